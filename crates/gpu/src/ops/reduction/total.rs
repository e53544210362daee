//! One number of all elements of many tensors, in two launches; and the unscaling of many tensors, in one.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{THREADS, groups};
use crate::launch::multi_tensor::Sets;
use crate::launch::operands::start_of;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, zeros};
use crate::program::source::Variant;
use isograd_core::fused::Fused;
use isograd_core::operands::Output;
use isograd_core::ops::Total;
use isograd_core::ops::elementwise::unscale::Unscale;
use isograd_core::ops::{total, unscale_};
use isograd_core::{Call, DType, Result};
use smallvec::smallvec;

pub const FAMILY: Family =
    Family { launchers: &[Launcher::of::<Total>(), Launcher::of::<Unscale>()], examples: EXAMPLES };

impl FusedLaunch for Total {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call, *self)
    }
}

impl FusedLaunch for Unscale {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        unscale(gpu, call, self)
    }
}

fn run(gpu: &Gpu, call: &Call<'_>, kind: Total) -> Result<()> {
    let Output { y } = kind.outputs(call);
    let (from, acc) = (call.inputs[0].dtype, y.dtype);
    let sets = Sets { sets: call.inputs.iter().map(|x| smallvec![x]).collect(), numbers: 0, vector: 16 / from.size() };
    let table = sets.table(gpu)?;
    let parts = gpu.scratch(table.chunks * acc.size())?;
    let variant = variant(kind, from, acc, &sets);
    let arguments = table.arguments().pointer(parts.address);
    gpu.launch(variant.clone(), "total_parts", table.geometry(), &arguments)?;
    let arguments = Arguments::new().pointer(parts.address).int(table.chunks);
    gpu.launch(variant, "total", groups(1, THREADS).following(), &arguments.pointer(start_of(y)?))
}

/// Tensors of one dtype without the loss scale, and whether a number was not finite, in one launch.
fn unscale(gpu: &Gpu, call: &Call<'_>, descriptor: &Unscale) -> Result<()> {
    let (targets, found) = call.outputs.split_at(call.outputs.len() - 1);
    let from = targets[0].dtype;
    let sets = Sets { sets: targets.iter().map(|x| smallvec![x]).collect(), numbers: 0, vector: 16 / from.size() };
    let table = sets.table(gpu)?;
    let arguments = table.arguments().pointer(start_of(descriptor.inputs(call).scale)?).pointer(start_of(&found[0])?);
    gpu.launch(variant(Total::NotFinite, from, from.acc(), &sets), "unscale", table.geometry(), &arguments)
}

/// The program of a total over sets of one dtype, or of norms over parts in it, in the arithmetic of `acc`.
pub fn variant(kind: Total, from: DType, acc: DType, sets: &Sets<'_>) -> Variant {
    let term = match kind {
        Total::Norm => "TERM_SQUARE",
        Total::AbsSum | Total::AbsMax => "TERM_ABS",
        Total::NotFinite => "TERM_NOT_FINITE",
    };
    Variant::new("reduction/total.c")
        .define("T", from)
        .arithmetic(acc)
        .define("THREADS", THREADS)
        .define("OPERANDS", 1usize)
        .define("VECTOR", sets.vector)
        .define("WORD", "u32x4")
        .define("TERM", term)
        .flag("FINISH_NORM", kind == Total::Norm)
        .flag("JOIN_MAX", matches!(kind, Total::AbsMax | Total::NotFinite))
        .flag("WIDE", sets.is_wide())
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| total(Total::Norm, &[&zeros(d, t, &[1024, 1024])?]).map(drop),
    |d, t| {
        let [scale, found] = [zeros(d, DType::F32, &[])?, zeros(d, DType::F32, &[])?];
        unscale_(&[&zeros(d, t, &[1024, 1024])?], &scale, &found)
    },
];
