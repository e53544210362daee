//! Attention, in parts: opset 21 has no such op.

use crate::graph::{Dim, Value, int};
use crate::translation::{Found, Translation, absent};
use isograd_core::{DType, Result, Tensor};

pub fn translate(t: &mut Translation<'_>) -> Found {
    let (scale, low, high) = (t.float("scale")?, t.int("low")?, t.int("high")?);
    if t.flag("drops")? {
        return absent("it drops weights at random; call `eval` of the module before the export");
    }
    if t.flag("has_lengths")? {
        return absent("its numbers of keys are data");
    }
    let dtype = t.x().dtype();
    let q = t.inputs[0];
    let (k, v) = (repeated(t, 1)?, repeated(t, 2)?);
    let k = t.matrix_transposed(k, 4);
    let product = t.graph.node("MatMul", &[q, k], &[]);
    let scale = t.graph.scalar(scale, dtype)?;
    let mut scores = t.graph.node("Mul", &[product, scale], &[]);
    let cap = t.float("cap")?;
    if cap.is_finite() {
        let cap = t.graph.scalar(cap, dtype)?;
        let part = t.graph.node("Div", &[scores, cap], &[]);
        let part = t.graph.node("Tanh", &[part], &[]);
        scores = t.graph.node("Mul", &[part, cap], &[]);
    }
    let lowest = t.graph.scalar(f64::NEG_INFINITY, dtype)?;
    let mask = t.inputs.get(3).copied();
    if let Some(mask) = mask {
        scores = match t.op.inputs[3].dtype() {
            DType::Bool => t.graph.node("Where", &[mask, scores, lowest], &[]),
            of if of == dtype => t.graph.node("Add", &[scores, mask], &[]),
            _ => {
                let mask = t.cast(mask, dtype);
                t.graph.node("Add", &[scores, mask], &[])
            }
        };
    }
    let (queries, keys) = (t.x().dims()[2], t.op.inputs[1].dims()[2]);
    if low > -(queries as i64 - 1) || high < keys as i64 - 1 {
        if t.x_dims(0)[2].known().is_none() || t.x_dims(1)[2].known().is_none() {
            return absent("its band depends on the batch size");
        }
        let attended =
            |i: usize| (i / keys) as i64 + low <= (i % keys) as i64 && (i % keys) as i64 <= (i / keys) as i64 + high;
        let band: Vec<bool> = (0..queries * keys).map(attended).collect();
        let band = Tensor::from_vec(band, (queries, keys), t.graph.device())?;
        let band = t.graph.constant(&band);
        scores = t.graph.node("Where", &[band, scores, lowest], &[]);
    }
    let mut weights = t.graph.node("Softmax", &[scores], &[int("axis", -1)]);
    if mask.is_some() {
        // A query without keys has the output 0.
        let (is_none, zero) = (t.graph.node("IsNaN", &[weights], &[]), t.graph.scalar(0.0, dtype)?);
        weights = t.graph.node("Where", &[is_none, zero, weights], &[]);
    }
    let o = t.graph.node("MatMul", &[weights, v], &[]);
    let axes = t.graph.ints(&[-1])?;
    let lse = t.graph.node("ReduceLogSumExp", &[scores, axes], &[int("keepdims", 0)]);
    Ok(vec![o, lse])
}

/// Keys or values with a head for each head of queries.
fn repeated(t: &mut Translation<'_>, i: usize) -> Result<Value> {
    let (x, dims, heads) = (t.inputs[i], t.x_dims(i), t.x_dims(0)[1]);
    let (Some(queries), Some(keys)) = (heads.known(), dims[1].known()) else { return Ok(x) };
    if queries == keys || keys == 0 {
        return Ok(x);
    }
    let one = Dim::fixed(1);
    let copies = Dim::fixed((queries / keys) as usize);
    let x = t.unsqueeze(x, &[2])?;
    let extents = t.graph.extents(&[one, one, copies, one, one])?;
    let x = t.graph.node("Expand", &[x, extents], &[]);
    let from = [dims[0], dims[1], copies, dims[2], dims[3]];
    t.graph.reshape(x, &from, &[dims[0], heads, dims[2], dims[3]])
}
