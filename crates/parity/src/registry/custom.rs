//! Ops defined by a program, and other implementations of the registry's ops, as rows.

use super::invocation::Invocation;
use super::op::{Class, Derivative, Op};
use crate::case::{Case, Gen};
use isograd_core::custom::{CustomOp, Gradient};
use isograd_core::{Result, Tensor};
use serde_json::Value;

/// The row of an op defined by a program. The attributes `ints` and `floats` of a case are the numbers of its call.
pub fn custom(op: &'static CustomOp, make: impl Fn(&mut Gen) -> Case + Send + Sync + 'static) -> Op {
    let run = |c: &Invocation<'_>| {
        let ints = c.list_or_empty("ints", |v| v.as_i64())?;
        let floats = c.list_or_empty("floats", |v| v.as_f64())?;
        Ok(vec![op.call_with(&c.all(), &ints, &floats)?])
    };
    let derivative = match op.gradient {
        Gradient::None => Derivative::None("the op says so"),
        Gradient::Once(_) => Derivative::Once("the op says so"),
        Gradient::Twice(_) => Derivative::Twice,
    };
    let row = Op::new(op.name, move |c| run(c), make).class(Class::Stages).derivative(derivative);
    // The launches of its gradient are not limited.
    Op { launches: [1, u64::MAX], ..row }
}

/// The row of another implementation of an op. Its results and first derivatives are compared with those of the op. An implementation without
/// derivatives returns tensors outside of the tape.
pub fn implemented(op: &'static Op, run: impl Fn(&Case) -> Result<Vec<Tensor>> + Send + Sync + 'static) -> Op {
    let run = move |c: &Invocation<'_>| {
        let attributes = Value::Object(c.attributes.values.clone());
        run(&Case { attributes, inputs: c.inputs.to_vec(), device: c.attributes.device.clone() })
    };
    let derivative = match op.derivative {
        Derivative::None(why) => Derivative::None(why),
        _ => Derivative::Once("other implementations have first derivatives"),
    };
    Op {
        category: op.category,
        class: op.class,
        derivative,
        constant: op.constant,
        linear: op.linear,
        picks: op.picks,
        also: op.also,
        collects: op.collects,
        slice: op.slice,
        launches: [u64::MAX; 2],
        wide: op.wide,
        finite: op.finite,
        changes: op.changes,
        reference: Some(op),
        ..Op::new(op.name, run, |g| (op.make)(g))
    }
}
