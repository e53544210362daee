//! The translation of ops, one file a family.

mod attention;
mod elementwise;
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
use isograd_core::{DType, Result, Tensor};

/// The results of an op, or why ONNX does not have it.
pub type Found = std::result::Result<Vec<Value>, String>;

/// An op that is translated.
pub struct Translation<'a> {
    pub graph: &'a mut Graph,
    pub op: &'a Op,
    /// The same op for another batch size.
    pub other: &'a Op,
    /// The values of the operands.
    pub inputs: Vec<Value>,
}

/// An error that says why ONNX does not have an op.
macro_rules! unsupported {
    ($($message:tt)*) => { return Ok(Err(format!($($message)*))) };
}
use unsupported;

/// The attribute of an op, or a return with the reason.
macro_rules! given {
    ($found:expr) => {
        match $found {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        }
    };
}
use given;

impl Translation<'_> {
    fn attribute(&self, name: &str) -> std::result::Result<&Attribute, String> {
        let find = |op: &'_ Op| op.attributes.iter().position(|(key, _)| *key == name);
        let missing = || "ONNX has no such op".to_string();
        let value = &self.op.attributes[find(self.op).ok_or_else(missing)?].1;
        match &self.other.attributes[find(self.other).ok_or_else(missing)?].1 {
            other if other == value => Ok(value),
            _ => Err(format!("its {name} depends on the batch size")),
        }
    }

    fn int(&self, name: &str) -> std::result::Result<i64, String> {
        match self.attribute(name)? {
            Attribute::Int(v) => Ok(*v),
            other => Err(format!("{name} is {other:?}, expected a number")),
        }
    }

    fn flag(&self, name: &str) -> std::result::Result<bool, String> {
        Ok(self.int(name)? != 0)
    }

    fn ints(&self, name: &str) -> std::result::Result<Vec<i64>, String> {
        match self.attribute(name)? {
            Attribute::Ints(v) => Ok(v.clone()),
            other => Err(format!("{name} is {other:?}, expected numbers")),
        }
    }

    fn float(&self, name: &str) -> std::result::Result<f64, String> {
        match self.attribute(name)? {
            Attribute::Float(v) => Ok(*v),
            other => Err(format!("{name} is {other:?}, expected a number")),
        }
    }

    fn floats(&self, name: &str) -> std::result::Result<Vec<f64>, String> {
        match self.attribute(name)? {
            Attribute::Floats(v) => Ok(v.clone()),
            other => Err(format!("{name} is {other:?}, expected numbers")),
        }
    }

    fn text(&self, name: &str) -> std::result::Result<&'static str, String> {
        match self.attribute(name)? {
            Attribute::Text(v) => Ok(v),
            other => Err(format!("{name} is {other:?}, expected a name")),
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
pub fn translate(t: &mut Translation<'_>) -> Result<Found> {
    if t.op.attributes.iter().any(|(key, _)| *key == "row") {
        return elementwise::translate(t);
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
            Ok(Ok(casts.map(|(x, y)| t.graph.node("Cast", &[x], &[int("to", data_type(y.dtype()).into())])).collect()))
        }
        "interpolate" => image::interpolate(t),
        name if name.contains("_pool") => image::translate(t),
        "dropout" | "bias_dropout" => {
            unsupported!("it draws random numbers; call `eval` of the module before the export")
        }
        _ => unsupported!("ONNX has no such op"),
    }
}
