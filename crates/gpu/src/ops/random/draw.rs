//! Random draws, and dropout by them.

use crate::driver::Address;
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, in_groups};
use crate::launch::operands::start_of;
use crate::ops::family::{Example, Family};
use crate::program::source::{Variant, word};
use isograd_core::backend::Random;
use isograd_core::random::UniformRange;
use isograd_core::{Call, DType, Operand, Result, Rng, RngState, Tensor};

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
    let (at, bytes) = (start_of(y)?, 4 * y.dtype.size());
    let has_words = bytes <= 16 && at % bytes as u64 == 0;
    let variant = Variant::new("random/random.c")
        .define("THREADS", threads)
        .define("T", y.dtype)
        .define(name, true)
        .flag("NEEDS_F64", y.dtype == DType::F64)
        .optional("WORD", has_words.then(|| word(bytes)));
    let (variant, base) = with_base(variant, call.inputs.first())?;
    let ints = (0..4).map(|i| call.ints.get(i).copied().unwrap_or(0));
    let arguments = Arguments::new().pointers([at, base.unwrap_or(at)]).int(n).numbers(ints);
    let arguments = arguments.floats([a, b, c].map(f64::from), DType::F32);
    gpu.launch(variant, "draw", in_groups(n.div_ceil(4), threads), &arguments)
}

/// Adds a state on the device from which draws start, if there is one. Returns the address of the state.
pub fn with_base(variant: Variant, base: Option<&Operand<'_>>) -> Result<(Variant, Option<Address>)> {
    Ok((variant.flag("BASE", base.is_some()), base.map(start_of).transpose()?))
}

/// A state as kernels take it, bit for bit.
pub fn state_ints(RngState { seed, offset, stream }: RngState) -> [i64; 3] {
    [seed, offset, stream].map(|v| v as i64)
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[|d, t| Tensor::rand(1024, 0.0, 1.0, t, d, &Rng::new(0)).map(drop)];
