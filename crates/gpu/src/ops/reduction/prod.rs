//! The gradient of products of rows.
//!
//! Its constants were tuned on an H100.

use crate::driver::Limits;
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::operands::{starts, variant};
use crate::launch::rows::{Kept, rows};
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, is_float};
use isograd_core::fused::Fused;
use isograd_core::operands::Output;
use isograd_core::ops::reduction::reduce::{ProdBackward, ProdBackwardInputs};
use isograd_core::{Call, DType, Operand, Result};

/// The fewest threads of a group. Each then has so few elements of the longest row that the product of their fractions stays in f32's
/// range.
const FEWEST: usize = 256;

pub const FAMILY: Family = Family { launchers: &[Launcher::of::<ProdBackward>()], examples: EXAMPLES };

impl FusedLaunch for ProdBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        backward(gpu, self.inputs(call), self.outputs(call))
    }

    /// Groups must be large enough.
    fn takes(dtype: DType, limits: &Limits) -> bool {
        limits.max_group >= FEWEST && is_float(dtype, limits)
    }
}

fn backward(
    gpu: &Gpu,
    ProdBackwardInputs { x, dy }: ProdBackwardInputs<&Operand<'_>>,
    Output { y: dx }: Output<&Operand<'_>>,
) -> Result<()> {
    let (count, extent) = (x.layout.shape()[0], x.layout.shape()[1]);
    let program = variant("reduction/prod.c", x).define("SCALED", "i32");
    let (dtype, [x, dy, dx]) = (x.dtype, starts([x, dy, dx])?);
    let (program, geometry) = rows(gpu, program, dtype, count, extent, &[x, dx], Kept::ALL);
    let arguments = Arguments::new().pointers([x, dy, dx]).numbers([count, extent]);
    gpu.launch(program, "prod_backward", geometry, &arguments)
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| differentiate(d, t, &[&[65536, 256]], |x| x[0].prod(0)),
    |d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].prod(-1)),
    |d, t| differentiate(d, t, &[&[64, 8191]], |x| x[0].prod(-1)),
];
