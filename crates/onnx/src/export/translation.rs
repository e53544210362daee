//! An op that is translated, in the traces for two batch sizes, and the reasons why it may not be.

use crate::export::graph::{Dim, Graph, Pair, Value, data_type, int, ints};
use isograd_core::tape::{Attribute, Described, Op};
use isograd_core::{DType, Error, Result, Tensor};

/// The reason why an op does not become nodes.
#[derive(Debug)]
pub enum Refusal {
    /// ONNX does not have it, and why. The ops that it consists of may be nodes.
    Absent(String),
    /// An error, which ends the export.
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::Failed(error)
    }
}

/// The results of an op.
pub type Found<T = Vec<Value>> = std::result::Result<T, Refusal>;

/// The refusal of an op that ONNX does not have.
pub fn absent<T>(why: impl Into<String>) -> Found<T> {
    Err(Refusal::Absent(why.into()))
}

/// An op that is translated.
pub struct Translation<'a> {
    pub graph: &'a mut Graph,
    pub op: &'a Op,
    /// The same op for another batch size.
    pub other: &'a Op,
    /// The values of the operands.
    pub inputs: Vec<Value>,
}

/// True for the same numbers, of which NaN is one.
fn is_same(a: &Attribute, b: &Attribute) -> bool {
    let bits = |v: &Attribute| match v {
        Attribute::Float(v) => Some(vec![v.to_bits()]),
        Attribute::Floats(all) => Some(all.iter().map(|v| v.to_bits()).collect()),
        _ => None,
    };
    a == b || bits(a).is_some_and(|of_a| bits(b) == Some(of_a))
}

impl<'a> Translation<'a> {
    /// An attribute of the op, for both batch sizes. An op without a report of its own, as a part of another, has none.
    fn attribute(&self, name: &str) -> Found<&Attribute> {
        if self.op.attributes.is_empty() {
            return absent("ONNX has no such op");
        }
        let [value, other] = [self.op, self.other].map(|op| {
            let found = op.attributes.iter().find(|(key, _)| *key == name);
            &found.unwrap_or_else(|| panic!("{} reports no attribute `{name}`", op.name)).1
        });
        if is_same(value, other) { Ok(value) } else { absent(format!("its {name} depends on the batch size")) }
    }

    /// The descriptor of the op, the same for both batch sizes, and the values of its operands. An op without a report of its own, as a part of
    /// another, has none.
    pub fn described<D: Described>(&self) -> Found<(D, D::Inputs<Value>)> {
        let [Some(descriptor), Some(other)] = [self.op, self.other].map(Op::descriptor::<D>) else {
            return absent("ONNX has no such op");
        };
        if descriptor != other {
            return absent(format!("an attribute depends on the batch size: {descriptor:?}, {other:?}"));
        }
        let inputs = self.op.named::<D, _>(self.inputs.iter().copied());
        Ok((descriptor.clone(), inputs.expect("an op with a descriptor has named operands")))
    }

    /// The operands of an op with a descriptor, for both batch sizes.
    pub fn tensors<D: Described>(&self) -> Found<D::Inputs<Pair<'a>>> {
        let pairs = self.op.inputs.iter().zip(&self.other.inputs).map(|(a, b)| Pair(a, b));
        self.op.named::<D, _>(pairs).map_or_else(|| absent("ONNX has no such op"), Ok)
    }

    pub fn int(&self, name: &str) -> Found<i64> {
        match self.attribute(name)? {
            Attribute::Int(v) => Ok(*v),
            other => self.mistaken(name, other),
        }
    }

    /// A report of the op gives an attribute another type than its translation reads.
    fn mistaken(&self, name: &str, value: &Attribute) -> ! {
        panic!("{} reports `{name}` as {value:?}", self.op.name)
    }

    pub fn flag(&self, name: &str) -> Found<bool> {
        Ok(self.int(name)? != 0)
    }

    pub fn ints(&self, name: &str) -> Found<Vec<i64>> {
        match self.attribute(name)? {
            Attribute::Ints(v) => Ok(v.clone()),
            other => self.mistaken(name, other),
        }
    }

    pub fn float(&self, name: &str) -> Found<f64> {
        match self.attribute(name)? {
            Attribute::Float(v) => Ok(*v),
            other => self.mistaken(name, other),
        }
    }

    pub fn floats(&self, name: &str) -> Found<Vec<f64>> {
        match self.attribute(name)? {
            Attribute::Floats(v) => Ok(v.clone()),
            other => self.mistaken(name, other),
        }
    }

    pub fn text(&self, name: &str) -> Found<&'static str> {
        match self.attribute(name)? {
            Attribute::Text(v) => Ok(v),
            other => self.mistaken(name, other),
        }
    }

    /// The first operand.
    pub fn x(&self) -> &Tensor {
        &self.op.inputs[0]
    }

    /// The first result.
    pub fn y(&self) -> &Tensor {
        &self.op.outputs[0]
    }

    /// The extents of an operand.
    pub fn x_dims(&self, i: usize) -> Vec<Dim> {
        Pair(&self.op.inputs[i], &self.other.inputs[i]).dims()
    }

    /// The extents of a result.
    pub fn y_dims(&self, i: usize) -> Vec<Dim> {
        Pair(&self.op.outputs[i], &self.other.outputs[i]).dims()
    }

    pub fn cast(&mut self, x: Value, dtype: DType) -> Value {
        self.graph.node("Cast", &[x], &[int("to", data_type(dtype).into())])
    }

    pub fn unsqueeze(&mut self, x: Value, axes: &[i64]) -> Result<Value> {
        let axes = self.graph.ints(axes)?;
        Ok(self.graph.node("Unsqueeze", &[x, axes], &[]))
    }

    pub fn squeeze(&mut self, x: Value, axes: &[i64]) -> Result<Value> {
        let axes = self.graph.ints(axes)?;
        Ok(self.graph.node("Squeeze", &[x, axes], &[]))
    }

    pub fn transpose(&mut self, x: Value, order: impl IntoIterator<Item = i64>) -> Value {
        self.graph.node("Transpose", &[x], &[ints("perm", order)])
    }

    /// x with its last two of `rank` dimensions exchanged.
    pub fn matrix_transposed(&mut self, x: Value, rank: usize) -> Value {
        let mut order: Vec<i64> = (0..rank as i64).collect();
        order.swap(rank - 2, rank - 1);
        self.transpose(x, order)
    }
}
