//! The libraries of GPUs' vendors: how they are found, and the calls that each runs in place of our kernels.

mod blas;
pub mod ccl;
pub mod compiler;
mod dnn;
pub mod dynlib;
mod padded;

use crate::driver::Geometry;
use crate::launch::device::{Gpu, Launch};
use isograd_core::{Call, Result};
use std::fmt::Debug;
use std::sync::atomic::Ordering;

/// Runs a call if a library can; false if the call is left to others.
type TryRun = fn(&Gpu, &Call<'_>) -> Result<bool>;

/// The libraries in the order in which they are asked.
const LIBRARIES: &[TryRun] = &[blas::try_run, dnn::try_run];

/// Runs a call by a vendor's library; false if none takes it, and it is left to our kernels.
pub(crate) fn try_run(gpu: &Gpu, call: &Call<'_>) -> Result<bool> {
    for library in LIBRARIES {
        if library(gpu, call)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Counts a call of a library as a launch, and logs its problem.
fn note(gpu: &Gpu, problem: &dyn Debug) {
    gpu.launched.fetch_add(1, Ordering::Relaxed);
    if let Some(log) = &mut *gpu.log.lock() {
        let geometry = Geometry::new([0; 3], 0);
        log.push(Launch { program: format!("{problem:?}"), entry: "vendor", geometry, arguments: Vec::new() });
    }
}
