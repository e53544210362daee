//! The libraries of GPUs' vendors: how they are found, and the calls that each runs in place of our kernels.

mod blas;
mod dnn;
pub mod dynlib;

use crate::launch::device::Gpu;
use isograd_core::{Call, Result};

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
