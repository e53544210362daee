//! Products of matrices.

use super::elementwise;
use crate::export::graph::{Value, float, int};
use crate::export::translation::{Found, Translation};
use isograd_core::Result;
use isograd_core::ops::Gemm;
use isograd_core::ops::matrix::gemm_bias::{Activation, DenseInputs, GemmBias, GemmInputs, Transpose};

pub fn translate(t: &mut Translation<'_>) -> Found {
    match t.op.name {
        "gemm" => gemm(t),
        "matmul" if t.op.descriptor::<GemmBias>().is_none() => {
            let inputs = t.inputs.clone();
            Ok(vec![t.graph.node("MatMul", &inputs, &[])])
        }
        _ => dense(t),
    }
}

/// `activation(a @ b + bias)`.
fn dense(t: &mut Translation<'_>) -> Found {
    let (GemmBias { trans_a, trans_b, activation }, DenseInputs { a, b, bias }) = t.described()?;
    let y = if t.x().rank() == 2 {
        let flag = |name, transpose| int(name, (transpose == Transpose::Yes).into());
        let attributes = [flag("transA", trans_a), flag("transB", trans_b)];
        t.graph.node_of("Gemm", &[Some(a), Some(b), bias], &attributes, 1)[0]
    } else {
        let b = if trans_b == Transpose::Yes { t.matrix_transposed(b, 2) } else { b };
        let y = t.graph.node("MatMul", &[a, b], &[]);
        bias.map_or(y, |bias| t.graph.node("Add", &[y, bias], &[]))
    };
    activated(t, y, activation)
}

/// A value after an activation.
pub fn activated(t: &mut Translation<'_>, y: Value, activation: Activation) -> Found {
    match activation.row() {
        None => Ok(vec![y]),
        Some(row) => elementwise::unary(t.graph, row, y, t.op.outputs[0].dtype()),
    }
}

/// `alpha a @ b + beta c`.
fn gemm(t: &mut Translation<'_>) -> Found {
    let (Gemm { alpha, beta }, GemmInputs { a, b, c }) = t.described()?;
    if t.x().rank() == 2 {
        let factors = [float("alpha", alpha), float("beta", beta)];
        return Ok(vec![t.graph.node_of("Gemm", &[Some(a), Some(b), c], &factors, 1)[0]]);
    }
    let product = t.graph.node("MatMul", &[a, b], &[]);
    let product = times(t, product, alpha)?;
    let Some(c) = c else { return Ok(vec![product]) };
    let c = times(t, c, beta)?;
    Ok(vec![t.graph.node("Add", &[product, c], &[])])
}

fn times(t: &mut Translation<'_>, x: Value, factor: f64) -> Result<Value> {
    if factor == 1.0 {
        return Ok(x);
    }
    let factor = t.graph.scalar(factor, t.op.outputs[0].dtype())?;
    Ok(t.graph.node("Mul", &[x, factor], &[]))
}
