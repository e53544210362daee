//! Rows of the pointwise table: operators that ONNX has of its own, and otherwise the operators of which a row's text consists.

use crate::export::algebra::{self, Applied};
use crate::export::graph::{Graph, Value, float, int, text};
use crate::export::translation::{Found, Translation};
use isograd_core::pointwise::Pointwise;
use isograd_core::tape::{Attribute, Op};
use isograd_core::{DType, Result, Shape, Tensor};

/// The row of an op that comes from the table.
pub fn row(op: &Op) -> Option<Pointwise> {
    match op.attributes.iter().find(|(key, _)| *key == "row")?.1 {
        Attribute::Text(name) => named(name),
        _ => None,
    }
}

fn named(name: &str) -> Option<Pointwise> {
    Pointwise::ALL.iter().copied().find(|row| row.name() == name)
}

pub fn translate(t: &mut Translation<'_>, row: Pointwise) -> Found {
    let dtypes = |tensors: &[Tensor]| tensors.iter().map(Tensor::dtype).collect::<Vec<DType>>();
    let inputs = t.inputs.iter().copied().zip(dtypes(&t.op.inputs)).collect();
    let (floats, ints, outputs) = (t.floats("floats")?, t.ints("ints")?, dtypes(&t.op.outputs));
    let of = Applied { row, inputs, floats, ints, outputs };
    if let Some(y) = of.own(t.graph)? {
        return Ok(vec![y]);
    }
    let found = algebra::evaluate(t.graph, &of)?;
    found.into_iter().enumerate().map(|(i, output)| expanded(t, i, output)).collect()
}

/// Result `i`, which has the extents of all operands, also of those on which it does not depend.
fn expanded(t: &mut Translation<'_>, i: usize, (value, reads): algebra::Output) -> Found<Value> {
    let read = t.op.inputs.iter().enumerate().filter(|(k, _)| reads >> k & 1 == 1);
    let extent = read.map(|(_, x)| x.shape()).try_fold(Shape::from(()), |extent, shape| extent.broadcast(shape))?;
    if extent == *t.op.outputs[i].shape() {
        return Ok(value);
    }
    let extents = t.graph.extents(&t.y_dims(i))?;
    Ok(t.graph.node("Expand", &[value, extents], &[]))
}

/// A row of one value, without attributes.
pub fn unary(graph: &mut Graph, row: Pointwise, x: Value, dtype: DType) -> Found {
    let of = Applied { row, inputs: vec![(x, dtype)], floats: Vec::new(), ints: Vec::new(), outputs: vec![dtype] };
    match of.own(graph)? {
        Some(y) => Ok(vec![y]),
        None => Ok(algebra::evaluate(graph, &of)?.into_iter().map(|(y, _)| y).collect()),
    }
}

impl Applied {
    /// The operator of ONNX that is the row; `None` if there is none, or if it is one of those of the row's text.
    fn own(&self, g: &mut Graph) -> Result<Option<Value>> {
        use Pointwise as P;
        let (k, inputs) = (&self.floats[..], self.inputs.iter().map(|(value, _)| *value).collect::<Vec<_>>());
        let is_bool = self.outputs[0] == DType::Bool;
        let (op, attributes) = match self.row {
            P::Relu => ("Relu", vec![]),
            P::LeakyRelu => ("LeakyRelu", vec![float("alpha", k[0])]),
            P::Elu => ("Elu", vec![float("alpha", k[0])]),
            P::Selu => ("Selu", vec![float("alpha", k[0]), float("gamma", k[1])]),
            P::Celu => ("Celu", vec![float("alpha", k[0])]),
            P::Prelu => ("PRelu", vec![]),
            P::Gelu => ("Gelu", vec![text("approximate", "none")]),
            P::GeluTanh => ("Gelu", vec![text("approximate", "tanh")]),
            P::Mish => ("Mish", vec![]),
            P::Softsign => ("Softsign", vec![]),
            P::Softplus if k[0] == 1.0 && k[1] >= 20.0 => ("Softplus", vec![]),
            P::Hardswish => ("HardSwish", vec![]),
            P::Hardsigmoid => ("HardSigmoid", vec![float("alpha", k[0]), float("beta", k[1])]),
            P::Softshrink => ("Shrink", vec![float("lambd", k[0]), float("bias", k[0])]),
            P::Hardshrink => ("Shrink", vec![float("lambd", k[0]), float("bias", 0.0)]),
            P::Relu6 | P::Hardtanh | P::ClampScalar => return self.clip(g, inputs[0]).map(Some),
            P::Sign => ("Sign", vec![]),
            P::Add if self.is_attribute(-1) => ("Sub", vec![]),
            P::IntFmod => ("Mod", vec![int("fmod", 1)]),
            P::IntRemainder => ("Mod", vec![]),
            P::BitwiseNot => ("BitwiseNot", vec![]),
            P::IsNan if is_bool => ("IsNaN", vec![]),
            P::IsInf if is_bool => ("IsInf", vec![]),
            P::NotFinite | P::IsFinite if is_bool => {
                let (nan, infinite) = (g.node("IsNaN", &inputs, &[]), g.node("IsInf", &inputs, &[]));
                let y = g.node("Or", &[nan, infinite], &[]);
                return Ok(Some(if self.row == P::NotFinite { y } else { g.node("Not", &[y], &[]) }));
            }
            _ => return Ok(None),
        };
        Ok(Some(g.node(op, &inputs, &attributes)))
    }

    fn dtype(&self) -> DType {
        self.inputs[0].1
    }

    /// Whether the first attribute is this number.
    fn is_attribute(&self, v: i64) -> bool {
        if self.dtype().is_float() { self.floats[0] == v as f64 } else { self.ints[0] == v }
    }

    /// x between two limits, of which infinite ones are none.
    fn clip(&self, g: &mut Graph, x: Value) -> Result<Value> {
        let mut limit = |i: usize| match self.dtype() {
            _ if self.row == Pointwise::Relu6 => g.scalar([0.0, 6.0][i], self.dtype()).map(Some),
            dtype if !dtype.is_float() => match self.ints[i] {
                i64::MIN | i64::MAX => Ok(None),
                v => g.scalar(v, dtype).map(Some),
            },
            dtype => match self.floats[i] {
                v if v.is_infinite() => Ok(None),
                v => g.scalar(v, dtype).map(Some),
            },
        };
        let limits = [Some(x), limit(0)?, limit(1)?];
        Ok(g.node_of("Clip", &limits, &[], 1)[0])
    }
}
