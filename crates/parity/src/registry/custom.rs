//! Ops defined by a program, as rows.

use super::invocation::Invocation;
use super::op::{Class, Derivative, Op};
use crate::case::{Case, Gen};
use isograd_core::custom::{CustomOp, Gradient};

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
