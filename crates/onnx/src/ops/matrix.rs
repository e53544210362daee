//! Products of matrices and convolutions.

use super::elementwise;
use crate::graph::{Value, float, int, ints};
use crate::translation::{Found, Translation};
use isograd_core::Result;

pub fn translate(t: &mut Translation<'_>) -> Found {
    match t.op.name {
        "gemm" => gemm(t),
        name if name.starts_with("conv") => convolution(t),
        "matmul" if t.op.attributes.is_empty() => {
            let inputs = t.inputs.clone();
            Ok(vec![t.graph.node("MatMul", &inputs, &[])])
        }
        _ => dense(t),
    }
}

/// `activation(a @ b + bias)`.
fn dense(t: &mut Translation<'_>) -> Found {
    let (trans_a, trans_b) = (t.flag("trans_a")?, t.flag("trans_b")?);
    let activation = t.text("activation")?;
    let (a, b, bias) = (t.inputs[0], t.inputs[1], t.inputs.get(2).copied());
    let y = if t.x().rank() == 2 {
        let inputs = [Some(a), Some(b), bias];
        t.graph.node_of("Gemm", &inputs, &[int("transA", trans_a.into()), int("transB", trans_b.into())], 1)[0]
    } else {
        let b = if trans_b { t.matrix_transposed(b, 2) } else { b };
        let y = t.graph.node("MatMul", &[a, b], &[]);
        bias.map_or(y, |bias| t.graph.node("Add", &[y, bias], &[]))
    };
    activated(t, y, activation)
}

/// A value after the activation that is a row of the pointwise table, or none.
pub fn activated(t: &mut Translation<'_>, y: Value, activation: &str) -> Found {
    match activation {
        "" => Ok(vec![y]),
        row => elementwise::unary(t.graph, row, y, t.op.outputs[0].dtype()),
    }
}

/// `alpha a @ b + beta c`.
fn gemm(t: &mut Translation<'_>) -> Found {
    let (alpha, beta) = (t.float("alpha")?, t.float("beta")?);
    let (a, b, c) = (t.inputs[0], t.inputs[1], t.inputs.get(2).copied());
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

fn convolution(t: &mut Translation<'_>) -> Found {
    let (low, high) = (t.ints("low")?, t.ints("high")?);
    let kernel = t.op.inputs[1].dims()[2..].iter().map(|&k| k as i64);
    let mut attributes = vec![
        ints("kernel_shape", kernel),
        ints("strides", t.ints("stride")?),
        ints("pads", low.into_iter().chain(high)),
        ints("dilations", t.ints("dilation")?),
        int("group", t.int("groups")?),
    ];
    let op = if t.op.name.starts_with("conv_transpose") { "ConvTranspose" } else { "Conv" };
    if op == "ConvTranspose" {
        attributes.push(ints("output_padding", t.ints("output_padding")?));
    }
    let inputs = t.inputs.clone();
    Ok(vec![t.graph.node(op, &inputs, &attributes)])
}
