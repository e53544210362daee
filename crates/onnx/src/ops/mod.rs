//! The translation of ops, one file a family.

mod attention;
pub mod elementwise;
mod image;
mod indexing;
mod matrix;
mod normalization;
mod recurrent;
mod reduction;
mod shape;

use crate::graph::{Dim, Graph, Value, data_type, int};
use crate::trace::Pair;
use isograd_core::tape::{Attribute, Op};
use isograd_core::{DType, Error, Result, Tensor};

pub use elementwise::Applied;

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

impl Translation<'_> {
    fn attribute(&self, name: &str) -> Found<&Attribute> {
        let find = |op: &'_ Op| op.attributes.iter().position(|(key, _)| *key == name);
        let (Some(i), Some(j)) = (find(self.op), find(self.other)) else { return absent("ONNX has no such op") };
        let (value, other) = (&self.op.attributes[i].1, &self.other.attributes[j].1);
        if value == other { Ok(value) } else { absent(format!("its {name} depends on the batch size")) }
    }

    fn int(&self, name: &str) -> Found<i64> {
        match self.attribute(name)? {
            Attribute::Int(v) => Ok(*v),
            other => absent(format!("{name} is {other:?}, expected a number")),
        }
    }

    fn flag(&self, name: &str) -> Found<bool> {
        Ok(self.int(name)? != 0)
    }

    fn ints(&self, name: &str) -> Found<Vec<i64>> {
        match self.attribute(name)? {
            Attribute::Ints(v) => Ok(v.clone()),
            other => absent(format!("{name} is {other:?}, expected numbers")),
        }
    }

    fn float(&self, name: &str) -> Found<f64> {
        match self.attribute(name)? {
            Attribute::Float(v) => Ok(*v),
            other => absent(format!("{name} is {other:?}, expected a number")),
        }
    }

    fn floats(&self, name: &str) -> Found<Vec<f64>> {
        match self.attribute(name)? {
            Attribute::Floats(v) => Ok(v.clone()),
            other => absent(format!("{name} is {other:?}, expected numbers")),
        }
    }

    fn text(&self, name: &str) -> Found<&'static str> {
        match self.attribute(name)? {
            Attribute::Text(v) => Ok(v),
            other => absent(format!("{name} is {other:?}, expected a name")),
        }
    }

    /// The first operand.
    fn x(&self) -> &Tensor {
        &self.op.inputs[0]
    }

    /// The first result.
    fn y(&self) -> &Tensor {
        &self.op.outputs[0]
    }

    /// The extents of an operand.
    fn x_dims(&self, i: usize) -> Vec<Dim> {
        Pair(&self.op.inputs[i], &self.other.inputs[i]).dims()
    }

    /// The extents of a result.
    fn y_dims(&self, i: usize) -> Vec<Dim> {
        Pair(&self.op.outputs[i], &self.other.outputs[i]).dims()
    }

    fn cast(&mut self, x: Value, dtype: DType) -> Value {
        self.graph.node("Cast", &[x], &[int("to", data_type(dtype).into())])
    }

    fn unsqueeze(&mut self, x: Value, axes: &[i64]) -> Result<Value> {
        let axes = self.graph.ints(axes)?;
        Ok(self.graph.node("Unsqueeze", &[x, axes], &[]))
    }

    fn squeeze(&mut self, x: Value, axes: &[i64]) -> Result<Value> {
        let axes = self.graph.ints(axes)?;
        Ok(self.graph.node("Squeeze", &[x, axes], &[]))
    }

    fn transpose(&mut self, x: Value, order: impl IntoIterator<Item = i64>) -> Value {
        self.graph.node("Transpose", &[x], &[crate::graph::ints("perm", order)])
    }

    /// x with its last two of `rank` dimensions exchanged.
    fn matrix_transposed(&mut self, x: Value, rank: usize) -> Value {
        let mut order: Vec<i64> = (0..rank as i64).collect();
        order.swap(rank - 2, rank - 1);
        self.transpose(x, order)
    }
}

/// The nodes of an op.
pub fn translate(t: &mut Translation<'_>) -> Found {
    if let Some(row) = elementwise::row(t.op) {
        return elementwise::translate(t, row);
    }
    match t.op.name {
        "copy" | "reshape" | "transpose" | "permute" | "narrow" | "select" | "windows" | "split"
        | "split_with_sizes" | "broadcast_to" | "concat" | "flip" | "pad" | "tril" | "triu" | "diagonal" => {
            shape::translate(t)
        }
        "sum" | "mean" | "prod" | "l2_norm" | "amax" | "amin" | "logsumexp" | "var" | "argmax" | "argmin"
        | "softmax" | "log_softmax" | "cumsum" | "cumprod" => reduction::translate(t),
        "matmul" | "linear" | "gemm_bias" | "gemm" | "conv1d" | "conv2d" | "conv3d" | "conv_transpose1d"
        | "conv_transpose2d" | "conv_transpose3d" => matrix::translate(t),
        "batch_norm"
        | "batch_norm_relu"
        | "group_norm"
        | "instance_norm"
        | "layer_norm"
        | "layer_norm_activation"
        | "rms_norm"
        | "residual_layer_norm" => normalization::translate(t),
        "gather" | "index_select" | "embedding" | "scatter" | "scatter_add" | "sort" | "argsort" | "topk" => {
            indexing::translate(t)
        }
        "scaled_dot_product_attention" => attention::translate(t),
        "lstm" | "gru" | "rnn" | "lstm_cell" | "gru_cell" | "rnn_cell" => recurrent::translate(t),
        "cast" => {
            let casts = t.inputs.clone().into_iter().zip(&t.op.outputs);
            Ok(casts.map(|(x, y)| t.graph.node("Cast", &[x], &[int("to", data_type(y.dtype()).into())])).collect())
        }
        "interpolate" => image::interpolate(t),
        name if name.contains("_pool") => image::translate(t),
        "dropout" | "bias_dropout" => absent("it draws random numbers; call `eval` of the module before the export"),
        _ => absent("ONNX has no such op"),
    }
}
