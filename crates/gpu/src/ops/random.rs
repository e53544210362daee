//! Random draws, and dropout by them.

use crate::driver::Address;
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, in_groups};
use crate::launch::operands::place;
use crate::launch::words::word;
use crate::ops::family::{Example, Family};
use crate::program::source::Variant;
use isograd_core::backend::Random;
use isograd_core::random::UniformRange;
use isograd_core::{Call, DType, Operand, Result, Rng, Tensor};

pub const FAMILY: Family = Family { launchers: &[], examples: EXAMPLES };

pub fn run(gpu: &Gpu, call: &Call<'_>, kind: Random) -> Result<()> {
    let y = &call.outputs[0];
    let n = y.layout.shape().numel();
    let (name, [a, b, c]) = match kind {
        Random::Uniform => {
            let range = UniformRange::new(call.floats[0], call.floats[1], y.dtype);
            ("UNIFORM", [range.lo, range.width, range.last])
        }
        Random::Normal => ("NORMAL", [call.floats[0] as f32, call.floats[1] as f32, 0.0]),
        Random::Bernoulli => ("BERNOULLI", [0.0; 3]),
    };
    let threads = group_size(gpu.driver().limits());
    let variant = Variant::new("random.c").define("THREADS", threads).define("T", y.dtype.name()).define(name, true);
    let variant = if y.dtype == DType::F64 { variant.define("NEEDS_F64", true) } else { variant };
    let at = place(y)?;
    let bytes = 4 * y.dtype.size();
    let variant = if bytes <= 16 && at % bytes as u64 == 0 { variant.define("WORD", word(bytes)) } else { variant };
    let (variant, base) = with_base(variant, call.inputs.first())?;
    let arguments = Arguments::new().pointer(at).pointer(base.unwrap_or(at)).int(n as i64);
    let arguments = (0..4).fold(arguments, |list, i| list.int(call.ints.get(i).copied().unwrap_or(0)));
    let arguments = [a, b, c].iter().fold(arguments, |list, &v| list.float(v.into(), DType::F32));
    gpu.launch(variant, "draw", in_groups(n.div_ceil(4), threads), &arguments)
}

/// Adds that there is a state on the device to start from, and says where.
pub fn with_base(variant: Variant, base: Option<&Operand<'_>>) -> Result<(Variant, Option<Address>)> {
    Ok(match base {
        Some(base) => (variant.define("BASE", true), Some(place(base)?)),
        None => (variant, None),
    })
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[|d, t| Tensor::rand(1024, 0.0, 1.0, t, d, &Rng::new(0)).map(drop)];
