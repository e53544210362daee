//! The translation of ops, one file a family.

mod attention;
mod conv;
pub mod elementwise;
mod image;
mod indexing;
mod matrix;
mod normalization;
mod recurrent;
mod reduction;
mod shape;

use crate::export::graph::{data_type, int};
use crate::export::translation::{Found, Translation, absent};

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
        | "cumsum" | "cumprod" => reduction::translate(t),
        "matmul" | "linear" | "gemm_bias" | "gemm" => matrix::translate(t),
        "conv1d" | "conv2d" | "conv3d" | "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => {
            conv::translate(t)
        }
        "batch_norm"
        | "batch_norm_relu"
        | "batch_norm_relu6"
        | "group_norm"
        | "instance_norm"
        | "layer_norm"
        | "layer_norm_activation"
        | "rms_norm"
        | "residual_layer_norm"
        | "softmax"
        | "log_softmax" => normalization::translate(t),
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
