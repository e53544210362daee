//! Ops defined by a program.

use crate::access::{Source, Strided, Target, load, store};
use isograd_core::custom::{CustomCall, CustomOp, Values};
use isograd_core::{Call, Operand, Result, host};

pub fn run(call: &Call<'_>, op: &CustomOp) -> Result<()> {
    let values = |operand: &Operand<'_>| {
        let (source, shape) = (Source::new(operand)?, operand.layout.shape().clone());
        let mut elements = host::repeated(call.op, 0f64, shape.numel())?;
        if !elements.is_empty() {
            load(source.view(), &Strided::new(source.layout), 0, &mut elements);
        }
        Ok(Values { shape, elements })
    };
    let inputs = call.inputs.iter().map(values).collect::<Result<_>>()?;
    let mut target = Target::new(&call.outputs[0])?;
    let shape = target.layout.shape();
    let mut y = host::repeated(call.op, 0f64, shape.numel())?;
    (op.cpu)(&CustomCall { inputs, shape, ints: call.ints, floats: call.floats }, &mut y);
    let dtype = target.dtype;
    store(&y, dtype, target.elements());
    Ok(())
}
