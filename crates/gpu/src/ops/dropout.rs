//! Dropout by draws that are made on the way.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, in_groups};
use crate::launch::operands::{place, variant};
use crate::launch::words::word;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate};
use crate::ops::random::with_base;
use isograd_core::ops::dropout::Dropout;
use isograd_core::{Call, Result, Rng, RngState};

pub const FAMILY: Family = Family { launchers: &[Launcher::of::<Dropout>()], examples: EXAMPLES };

impl FusedLaunch for Dropout {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call, self)
    }
}

/// Masks x by draws that are made on the way.
fn run(gpu: &Gpu, call: &Call<'_>, of: &Dropout) -> Result<()> {
    let (x, y) = (&call.inputs[0], &call.outputs[0]);
    let (from, to, n) = (place(x)?, place(y)?, y.layout.shape().numel());
    let threads = group_size(gpu.driver().limits());
    let variant = variant("random.c", y).define("THREADS", threads).define("DROPOUT", true);
    let is_aligned = from % 16 == 0 && to % 16 == 0;
    let variant = if is_aligned { variant.define("WORD", word(16)) } else { variant };
    let (variant, base) = with_base(variant, call.inputs.get(1))?;
    let arguments = Arguments::new().pointer(from).pointer(to).pointer(base.unwrap_or(to)).int(n as i64);
    let RngState { seed, offset, stream } = of.state;
    let arguments = [seed, offset, stream].iter().fold(arguments, |list, &v| list.int(v as i64)).int(of.threshold);
    let items = if y.dtype.size() == 2 { 8 } else { 4 };
    gpu.launch(variant, "dropout", in_groups(n.div_ceil(items), threads), &arguments.float(of.scale, y.dtype.acc()))
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[|d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].dropout(0.1, &Rng::new(0)))];
