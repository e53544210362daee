//! Ops that a program defines. Their text is compiled as the repository's kernels are.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, groups, in_groups};
use crate::launch::operands::addresses;
use crate::launch::words::is_wide;
use crate::program::source::Variant;
use hmac_sha256::Hash as Sha256;
use isograd_core::custom::{CustomOp, Launch};
use isograd_core::{Call, DType, Error, Result};

/// The dtypes of inputs.
const INPUTS: [&str; 8] = ["T0", "T1", "T2", "T3", "T4", "T5", "T6", "T7"];

pub fn run(gpu: &Gpu, call: &Call<'_>, op: &'static CustomOp) -> Result<()> {
    let (dialect, limits) = (gpu.driver().dialect().name, gpu.driver().limits());
    let Some(text) = op.source.of(dialect) else {
        return Err(Error::unsupported(call.op, format!("the op has no kernel in {dialect}")));
    };
    let (y, all) = (&call.outputs[0], || call.inputs.iter().chain(call.outputs));
    let n = y.layout.shape().numel();
    let geometry = match op.launch {
        Launch::Elements => in_groups(n, group_size(limits)),
        Launch::Groups { threads, .. } if threads > limits.max_group || !threads.is_power_of_two() => {
            let message = format!("groups of {threads} threads, expected a power of 2 of at most {}", limits.max_group);
            return Err(Error::unsupported(call.op, message));
        }
        Launch::Groups { threads, groups: count } => groups(count(y.layout.shape()), threads),
    };
    let acc = all().map(|o| o.dtype).find(|dtype| dtype.is_float()).map_or(DType::I64, DType::acc);
    // Another op may have the name.
    let digest = Sha256::hash(text.as_bytes());
    let variant = Variant::new(op.name)
        .define("CUSTOM", i64::from(i32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])))
        .define("T", y.dtype)
        .define("ACC", acc)
        .define("THREADS", geometry.threads)
        .define("EACH(i)", "for (i64 i = GROUP * THREADS + LANE; i < n; i += GROUPS * THREADS)")
        .flag("INTEGER", acc == DType::I64)
        .flag("NEEDS_F64", all().any(|o| o.dtype == DType::F64))
        .flag("WIDE", all().any(|o| is_wide(o.layout.shape().numel())));
    let inputs = INPUTS.into_iter().zip(call.inputs);
    let variant = inputs.fold(variant, |variant, (name, input)| variant.define(name, input.dtype));
    let tensors = addresses(call.inputs)?.into_iter().chain(addresses(call.outputs)?);
    let arguments = Arguments::new().pointers(tensors).int(n).numbers(call.ints.iter().copied());
    let arguments = arguments.floats(call.floats.iter().copied(), acc);
    gpu.generated(variant, op.name, &|| text.to_string(), geometry, &arguments)
}
