//! The operators, a file a family. Each family has a table of names and functions.

mod activation;
pub mod arrange;
mod attention;
mod control;
mod conv;
pub mod create;
mod elementwise;
mod indexing;
mod loss;
mod matrix;
mod microsoft;
mod ml;
mod normalization;
mod pool;
mod quantized;
mod random;
mod recurrent;
mod recurrent_cell;
mod reduction;
mod resample;
mod resize;
mod scatter;
mod sequence;
pub mod shape;
mod signal;
mod trees;
mod vision;
mod window;

use super::call::Call;
use super::value::Value;
use isograd_core::{Result, Tensor};

/// The function of an operator.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// One result.
    One(fn(&Call<'_>) -> Result<Value>),
    /// One tensor of a dtype of the library.
    Tensor(fn(&Call<'_>) -> Result<Tensor>),
    /// Several results.
    Many(fn(&Call<'_>) -> Result<Vec<Value>>),
    /// Results that differ from call to call: random draws, and what training changes.
    Varying(fn(&Call<'_>) -> Result<Vec<Value>>),
}

impl Op {
    /// True if equal operands give equal results.
    pub fn is_function(self) -> bool {
        !matches!(self, Op::Varying(_))
    }

    pub fn run(self, call: &Call<'_>) -> Result<Vec<Value>> {
        match self {
            Op::One(f) => Ok(vec![f(call)?]),
            Op::Tensor(f) => Ok(vec![f(call)?.into()]),
            Op::Many(f) | Op::Varying(f) => f(call),
        }
    }
}

/// A table of a family.
type Table = &'static [(&'static str, Op)];

/// The operators of ONNX.
const OWN: &[Table] = &[
    activation::OPS,
    arrange::OPS,
    attention::OPS,
    control::OPS,
    conv::OPS,
    create::OPS,
    elementwise::OPS,
    indexing::OPS,
    loss::OPS,
    matrix::OPS,
    normalization::OPS,
    pool::OPS,
    quantized::OPS,
    random::OPS,
    recurrent::OPS,
    reduction::OPS,
    resize::OPS,
    scatter::OPS,
    sequence::OPS,
    shape::OPS,
    signal::OPS,
    vision::OPS,
];

/// The operator of a domain with this name, and its name.
pub fn find(domain: &str, name: &str) -> Option<(&'static str, Op)> {
    let tables = match domain {
        "ai.onnx" => OWN,
        "ai.onnx.ml" => &[ml::OPS, trees::OPS],
        "com.microsoft" => &[microsoft::OPS, quantized::OPS],
        _ => &[],
    };
    tables.iter().flat_map(|table| table.iter()).find(|(known, _)| *known == name).copied()
}

/// The use of a float tensor by an operator that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Arithmetic: the tensor may be trained.
    Any,
    /// Statistics of data, and scales of integers: saved, and not trained.
    Statistic,
    /// Numbers that say what is computed: limits, factors of extents.
    Number,
}

/// The use of input `i` by an operator.
pub fn use_of(op: &str, i: usize) -> Use {
    match (op, i) {
        ("BatchNormalization", 3 | 4) => Use::Statistic,
        ("QuantizeLinear" | "DequantizeLinear", 1) => Use::Statistic,
        ("QLinearConv" | "QLinearMatMul", 1 | 4 | 6) => Use::Statistic,
        ("Clip", 1 | 2) | ("Dropout", 1) | ("Pad", 2) | ("Resize", 1 | 2) | ("Upsample", 1) => Use::Number,
        ("OneHot", 2) | ("Range", _) | ("NonMaxSuppression", 3 | 4) => Use::Number,
        _ => Use::Any,
    }
}
