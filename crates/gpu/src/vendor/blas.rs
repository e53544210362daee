//! Calls of the vendor's library of matrix products.

use crate::driver::Geometry;
use crate::driver::blas::{Library, Product};
use crate::launch::device::{Gpu, Launch};
use isograd_core::Result;
use std::sync::atomic::Ordering;

/// The library, if products are to be left to it.
pub fn library(gpu: &Gpu) -> Option<&dyn Library> {
    let is_off = gpu.is_blas_off.load(Ordering::Relaxed);
    gpu.driver().blas().filter(|_| !is_off)
}

/// Has the library compute a product; false if it has no kernel for it.
pub fn multiply(gpu: &Gpu, library: &dyn Library, mut product: Product) -> Result<bool> {
    let bytes = library.workspace();
    if bytes > 0 {
        let mut workspace = gpu.workspace.lock();
        if workspace.is_none() {
            *workspace = Some(gpu.scratch(bytes)?);
        }
        product.workspace = workspace.as_ref().map_or(0, |buffer| buffer.address);
    }
    let is_done = library.multiply(&product)?;
    gpu.launched.fetch_add(is_done.into(), Ordering::Relaxed);
    if is_done && let Some(log) = &mut *gpu.log.lock() {
        let geometry = Geometry::new([0; 3], 0);
        log.push(Launch { program: format!("{:?}", product.form), entry: "vendor", geometry, arguments: Vec::new() });
    }
    Ok(is_done)
}
