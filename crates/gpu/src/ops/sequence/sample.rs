//! Drawing positions from rows of logits: a group takes a row.
//!
//! Its constants were tuned on an H100.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{THREADS, groups};
use crate::launch::operands::start_of;
use crate::memory::status::Check;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, zeros};
use crate::ops::random::draw::{state_ints, with_base};
use crate::program::source::Variant;
use isograd_core::backend::logits_error;
use isograd_core::fused::Fused;
use isograd_core::ops::Sampling;
use isograd_core::ops::sequence::sample::{SampleInputs, SampleLogits};
use isograd_core::{Call, DType, Result, Rng};

/// The most threads of a group, on devices whose waves reduce by shuffles.
const MANY: usize = 512;

pub const FAMILY: Family = Family { launchers: &[Launcher::of::<SampleLogits>()], examples: EXAMPLES };

impl FusedLaunch for SampleLogits {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call, self)
    }
}

fn run(gpu: &Gpu, call: &Call<'_>, sampling: &SampleLogits) -> Result<()> {
    let (SampleInputs { logits: x, base }, y) = (sampling.inputs(call), sampling.outputs(call).y);
    let ([rows, extent], samples) = ([0, 1].map(|d| x.layout.shape()[d]), y.layout.shape()[1]);
    let (from, to) = (start_of(x)?, start_of(y)?);
    let limits = gpu.driver().limits();
    let most = if limits.wave > 1 { MANY } else { THREADS };
    let threads = 1 << limits.max_group.clamp(1, most).ilog2();
    let vector = if from.is_multiple_of(16) { 16 / x.dtype.size() } else { 1 };
    let variant = Variant::new("sequence/sample.c")
        .define("T", x.dtype)
        .define("ACC", DType::F32)
        .define("THREADS", threads)
        .define("AT_ONCE", true)
        .words(vector, x.dtype.size())
        .flag("NEEDS_F64", x.dtype == DType::F64);
    let (variant, base) = with_base(variant, base)?;
    let slot = gpu.status(call.op, Check::Logits)?;
    let arguments = Arguments::new().pointers([from, to, base.unwrap_or(to)]).numbers([rows, extent, samples]);
    let arguments = arguments
        .numbers(state_ints(sampling.state))
        .int(sampling.top_k)
        .int(sampling.left_out)
        .float(sampling.slope, DType::F32)
        .pointer(slot.address);
    gpu.launch(variant, "sample_logits", groups(rows, threads), &arguments)?;
    gpu.checked(slot, |row| Ok(logits_error(call.op, row as i64)))
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] =
    &[|d, t| zeros(d, t, &[64, 50257])?.sample_logits(&Sampling::default(), &Rng::new(0)).map(drop)];
