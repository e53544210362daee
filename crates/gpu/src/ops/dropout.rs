//! Dropout by draws that are made on the way.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, in_groups};
use crate::launch::operands::{place, variant};
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate};
use crate::ops::random::{state_ints, with_base};
use crate::program::source::word;
use isograd_core::ops::dropout::Dropout;
use isograd_core::{Call, Result, Rng};

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
    let is_aligned = from % 16 == 0 && to % 16 == 0;
    let variant = variant("random.c", y).define("THREADS", threads).define("DROPOUT", true);
    let (variant, base) = with_base(variant.optional("WORD", is_aligned.then(|| word(16))), call.inputs.get(1))?;
    let arguments = Arguments::new().pointers([from, to, base.unwrap_or(to)]).int(n);
    let arguments = arguments.numbers(state_ints(of.state)).int(of.threshold);
    let items = if y.dtype.size() == 2 { 8 } else { 4 };
    gpu.launch(variant, "dropout", in_groups(n.div_ceil(items), threads), &arguments.float(of.scale, y.dtype.acc()))
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[|d, t| differentiate(d, t, &[&[4096, 1024]], |x| x[0].dropout(0.1, &Rng::new(0)))];
