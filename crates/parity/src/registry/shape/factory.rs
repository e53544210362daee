//! Tensors without inputs: one number, and sequences.

use crate::registry::common::source;
use crate::registry::invocation::Invocation;
use crate::registry::op::Op;
use isograd_core::{DType, Tensor};
use serde_json::json;

pub(crate) fn ops() -> Vec<Op> {
    vec![
        source(
            "full",
            |c, device| Tensor::full(c.shape("shape")?, c.scalar("value")?, c.dtype_or("dtype", DType::F64)?, device),
            json!({"shape": [], "value": 3, "dtype": "f64"}),
            &["dtype"],
        )
        .kernels(&["fill_buffer", "zeros", "ones"]),
        source(
            "arange",
            |c, device| {
                if let Some(n) = c.optional_of("n", Invocation::size)? {
                    return Tensor::arange(n, device);
                }
                let (start, end, step) = (c.scalar_or("start", 0)?, c.scalar("end")?, c.scalar_or("step", 1)?);
                Tensor::arange_with(start, end, step, c.dtype_or("dtype", DType::I64)?, device)
            },
            json!({"start": 5, "end": -7, "step": -2, "dtype": "i64"}),
            &["dtype"],
        )
        .launches(4, 0),
        source(
            "linspace",
            |c, device| {
                let (start, end, steps) = (c.float("start")?, c.float("end")?, c.size("steps")?);
                Tensor::linspace(start, end, steps, c.dtype_or("dtype", DType::F32)?, device)
            },
            json!({"start": -1.0, "end": 2.0, "steps": 7, "dtype": "f64"}),
            &["dtype"],
        ),
        source(
            "logspace",
            |c, device| {
                let (start, end, steps) = (c.float("start")?, c.float("end")?, c.size("steps")?);
                Tensor::logspace(start, end, steps, c.float_or("base", 10.0)?, c.dtype_or("dtype", DType::F32)?, device)
            },
            json!({"start": -1.0, "end": 2.0, "steps": 7, "base": 2.0, "dtype": "f64"}),
            &["dtype"],
        ),
    ]
}
