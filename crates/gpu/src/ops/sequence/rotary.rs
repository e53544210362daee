//! Rotary position embedding of one tensor or two in one launch.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, in_groups};
use crate::launch::integers::Integers;
use crate::launch::operands::start_of;
use crate::launch::words::fits;
use crate::memory::status::Check;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, zeros};
use crate::ops::indexing::index::{check, is_wide};
use crate::program::source::Variant;
use isograd_core::fused::Fused;
use isograd_core::ops::Rotary;
use isograd_core::ops::RotaryStyle;
use isograd_core::ops::sequence::rotary::{RotaryInputs, RotaryTensors, RotaryTurn};
use isograd_core::{Call, DType, Device, Operand, Result};

pub const FAMILY: Family = Family { launchers: &[Launcher::of::<RotaryTurn>()], examples: EXAMPLES };

impl FusedLaunch for RotaryTurn {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call, self)
    }
}

fn run(gpu: &Gpu, call: &Call<'_>, turn: &RotaryTurn) -> Result<()> {
    let (is_interleaved, rotary) = (turn.style == RotaryStyle::Interleaved, turn.rotary_dim);
    let RotaryInputs { q: x, k, cos, sin, positions } = turn.inputs(call);
    let RotaryTensors { q: y_of_x, k: turned } = turn.outputs(call);
    let (z, y_of_z) = (k.unwrap_or(x), turned.unwrap_or(y_of_x));
    let (dims, half, size) = (x.layout.shape().dims(), rotary / 2, x.dtype.size());
    let (length, width) = (dims[2], dims[3]);
    let pointers = [x, z, cos, sin, positions.unwrap_or(cos), y_of_x, y_of_z].map(start_of);
    let pointers = pointers.into_iter().collect::<Result<Vec<_>>>()?;
    // Words that no half, row or stride cuts.
    let v = 16 / size;
    let part = if is_interleaved { rotary } else { half };
    let steps = [x, z].into_iter().flat_map(|x| x.layout.strides()[..3].iter().copied());
    let v = if fits(v, steps.chain([part, width]), pointers.iter().map(|&at| (at, size))) { v } else { 1 };
    let angles = if is_interleaved && v > 1 { v / 2 } else { v };
    let angle_bytes = angles * cos.dtype.size();
    let turned = half / angles;
    let units = turned + (width - 2 * half) / v;
    let rows = |x: &Operand<'_>| x.layout.shape().dims()[..3].iter().product::<usize>();
    let counts = [x, z].map(|x| rows(x) * units);
    let (n_first, n) = (counts[0], if k.is_some() { counts[0] + counts[1] } else { counts[0] });
    let threads = group_size(gpu.driver().limits());
    let variant = Variant::new("sequence/rotary.c")
        .define("THREADS", threads)
        .stored(x.dtype)
        .define("C", cos.dtype)
        .define("I", positions.map_or(DType::I64, |p| p.dtype))
        .words(v, size)
        .define("ANGLES", angles)
        .in_pieces(["ANGLE_WORD", "ANGLE_WORDS"], angle_bytes)
        .flag("INTERLEAVED", is_interleaved)
        .flag("POSITIONS", positions.is_some())
        .flag("WIDE", is_wide(&[x, z, cos]));
    let heads = [x, z].map(|x| x.layout.shape()[1]);
    let of_batch = positions.map_or(0, |p| if p.layout.shape().rank() == 2 { length } else { 0 });
    let extent = cos.layout.shape()[0];
    let strides = [x, z].into_iter().flat_map(|x| x.layout.strides()[..3].iter().copied());
    let integers = Integers::new()
        .divisors([("UNITS", units), ("LENGTH", length)])
        .positions([("ROW_WIDTH", width), ("TURNED", turned), ("MIDDLE", half)])
        .positions([("TABLE_ROWS", extent), ("OF_BATCH", of_batch)])
        .divisor_list("HEADS", heads)
        .position_list("STRIDES", strides);
    let arguments = Arguments::new().pointers(pointers).named(integers).numbers([n_first, n]);
    let arguments = arguments.float(turn.direction.sign() as f64, x.dtype.acc());
    let Some(positions) = positions else {
        return gpu.launch(variant, "rotary", in_groups(n, threads), &arguments.pointer(start_of(y_of_x)?));
    };
    let slot = gpu.status(call.op, Check::Index(extent))?;
    gpu.launch(variant, "rotary", in_groups(n, threads), &arguments.pointer(slot.address))?;
    check(gpu, call.op, slot, (positions, positions.layout.shape().rank()), extent)
}

/// Turns the pairs of queries and keys.
fn turns(device: &Device, dtype: DType, style: RotaryStyle) -> Result<()> {
    let (q, table) = (zeros(device, dtype, &[8, 32, 256, 128])?, zeros(device, dtype, &[256, 64])?);
    let options = Rotary { style, positions: Some(zeros(device, DType::I64, &[256])?), ..Default::default() };
    q.apply_rotary_embedding(&q, &table, &table, &options).map(drop)
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[|d, t| turns(d, t, RotaryStyle::Half), |d, t| turns(d, t, RotaryStyle::Interleaved)];
