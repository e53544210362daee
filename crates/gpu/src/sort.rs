//! Sorting: of tensors, and of what other kernels need in order.

use crate::driver::Driver;
use crate::launch::{Arguments, THREADS, each, element_address};
use crate::layout::Joint;
use crate::pool::Buffer;
use crate::source::Variant;
use crate::{Gpu, address};
use isograd_core::{Call, DType, Error, Result};

/// Keys (u64) and their positions (i32), row by row.
pub struct Keys<D: Driver> {
    pub keys: Buffer<D>,
    pub order: Buffer<D>,
}

impl<D: Driver> Keys<D> {
    /// Memory for `n` keys. Errors: `Unsupported` if there are more than a position can count.
    pub fn new(gpu: &Gpu<D>, op: &'static str, n: usize) -> Result<Keys<D>> {
        if n > i32::MAX as usize {
            return Err(Error::unsupported(op, format!("{n} elements cannot be sorted at once")));
        }
        Ok(Keys { keys: gpu.scratch(8 * n)?, order: gpu.scratch(4 * n)? })
    }

    /// Sorts rows of `length` keys; equal ones keep their order.
    pub fn sort(mut self, gpu: &Gpu<D>, op: &'static str, n: usize, length: usize) -> Result<Keys<D>> {
        if length < 2 {
            return Ok(self);
        }
        let mut other = Keys::new(gpu, op, n)?;
        let mut run = 1;
        while run < length {
            let pointers = [&self.keys, &self.order, &other.keys, &other.order];
            let arguments = pointers.iter().fold(Arguments::new(), |list, b| list.pointer(b.address));
            let arguments = [n, length, run].iter().fold(arguments, |list, &v| list.int(v as i64));
            gpu.launch(Variant::new("sort.c").define("THREADS", THREADS), "merge", each(n), &arguments)?;
            std::mem::swap(&mut self, &mut other);
            run *= 2;
        }
        Ok(self)
    }
}

pub fn run<D: Driver>(gpu: &Gpu<D>, call: &Call<'_>) -> Result<()> {
    let x = &call.inputs[0];
    let n = x.layout.shape().numel();
    let length = x.layout.shape().dims().last().copied().unwrap_or(1);
    let joint = Joint::new([x].into_iter()).at_least_one();
    let ints = joint.ints();
    let acc = if x.dtype.is_float() { x.dtype.acc() } else { DType::I64 };
    let variant = Variant::new("sort.c")
        .define("THREADS", THREADS)
        .define("KEYS", true)
        .define("X", x.dtype.name())
        .define("ACC", acc.name())
        .define("DIMS", joint.rank())
        .define("INTS", ints.len());
    let variant = match acc {
        DType::I64 => variant.define("INTEGER", true),
        DType::F64 => variant.define("NEEDS_F64", true),
        _ => variant,
    };
    let variant = if joint.is_wide() { variant.define("WIDE", true) } else { variant };
    let from = element_address(address::<D>(x.memory)?, x);
    let keys = Keys::new(gpu, call.op, n)?;
    let arguments = Arguments::new().pointer(from).pointer(keys.keys.address).pointer(keys.order.address);
    let arguments = arguments.ints(&ints).int(n as i64).int(length as i64).int(call.ints[0]);
    gpu.launch(variant.clone(), "keys", each(n), &arguments)?;
    let sorted = keys.sort(gpu, call.op, n, length)?;
    let [y, positions] = [0, 1].map(|i| &call.outputs[i]);
    let arguments = Arguments::new()
        .pointer(from)
        .pointer(sorted.order.address)
        .pointer(element_address(address::<D>(y.memory)?, y))
        .pointer(element_address(address::<D>(positions.memory)?, positions));
    let arguments = arguments.ints(&ints).int(n as i64).int(length as i64);
    gpu.launch(variant, "values", each(n), &arguments)
}
