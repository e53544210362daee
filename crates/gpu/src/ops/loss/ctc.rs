//! The sums over alignments of connectionist temporal classification: a group takes a sequence.

use crate::driver::Limits;
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, groups};
use crate::launch::operands::starts;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, is_float, zeros};
use crate::program::source::Variant;
use isograd_core::fused::Fused;
use isograd_core::operands::Output;
use isograd_core::ops::loss::Ctc;
use isograd_core::ops::loss::ctc::{CtcInputs, CtcScan};
use isograd_core::{Call, DType, Result, Tensor};

pub const FAMILY: Family = Family { launchers: &[Launcher::of::<CtcScan>()], examples: EXAMPLES };

impl FusedLaunch for CtcScan {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (CtcInputs { emission, skip, lengths }, Output { y }) = (self.inputs(call), self.outputs(call));
        let [steps, batch, states] = [0, 1, 2].map(|d| y.layout.shape()[d]);
        let threads = group_size(gpu.driver().limits()).min(states.next_power_of_two());
        let variant = Variant::new("loss/ctc.c")
            .define("ACC", y.dtype)
            .define("THREADS", threads)
            .define("STATES", states.next_power_of_two())
            .flag("REVERSED", self.is_reversed)
            .flag("NEEDS_F64", y.dtype == DType::F64);
        let arguments =
            Arguments::new().pointers(starts([emission, skip, lengths, y])?).numbers([steps, batch, states]);
        gpu.launch(variant, "ctc_scan", groups(batch, threads), &arguments)
    }

    /// The accumulation dtypes.
    fn takes(dtype: DType, limits: &Limits) -> bool {
        dtype.acc() == dtype && is_float(dtype, limits)
    }
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[|d, t| {
    let (steps, batch, classes, labels) = (128, 32, 32, 24);
    let lengths = |n: i64| Tensor::full(batch, n, DType::I64, d);
    let targets = Tensor::ones((batch, labels), DType::I64, d)?;
    let x = zeros(d, t, &[steps, batch, classes])?.require_grad()?;
    x.ctc_loss(&targets, &lengths(steps as i64)?, &lengths(labels as i64)?, &Ctc::default())?.backward()
}];
