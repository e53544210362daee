//! Attention, in parts: opset 21 has no such op.

use crate::export::graph::{Dim, Value, int};
use crate::export::translation::{Found, Translation, absent};
use isograd_core::ops::attention::sequences::Sequences;
use isograd_core::ops::attention::{AttentionInputs, Band, Scores};
use isograd_core::{DType, Result, Tensor};

pub fn translate(t: &mut Translation<'_>) -> Found {
    let (of, AttentionInputs { q, k, v, mask }) = t.described::<Scores>()?;
    let Band { low, high } = of.band;
    if of.drops {
        return absent("it drops weights at random; call `eval` of the module before the export");
    }
    if of.sequences != Sequences::Whole {
        return absent("its numbers of keys are data");
    }
    let (tensors, dtype) = (t.tensors::<Scores>()?, t.x().dtype());
    let heads = tensors.q.dims()[1];
    let (k, v) = (repeated(t, heads, k, tensors.k.dims())?, repeated(t, heads, v, tensors.v.dims())?);
    let k = t.matrix_transposed(k, 4);
    let product = t.graph.node("MatMul", &[q, k], &[]);
    let scale = t.graph.scalar(of.scale, dtype)?;
    let mut scores = t.graph.node("Mul", &[product, scale], &[]);
    if let Some(cap) = of.cap {
        let cap = t.graph.scalar(cap, dtype)?;
        let part = t.graph.node("Div", &[scores, cap], &[]);
        let part = t.graph.node("Tanh", &[part], &[]);
        scores = t.graph.node("Mul", &[part, cap], &[]);
    }
    let lowest = t.graph.scalar(f64::NEG_INFINITY, dtype)?;
    if let (Some(mask), Some(tensor)) = (mask, &tensors.mask) {
        scores = match tensor.0.dtype() {
            DType::Bool => t.graph.node("Where", &[mask, scores, lowest], &[]),
            own if own == dtype => t.graph.node("Add", &[scores, mask], &[]),
            _ => {
                let mask = t.cast(mask, dtype);
                t.graph.node("Add", &[scores, mask], &[])
            }
        };
    }
    let (queries, keys) = (tensors.q.0.dims()[2], tensors.k.0.dims()[2]);
    if low > -(queries as i64 - 1) || high < keys as i64 - 1 {
        if tensors.q.dims()[2].known().is_none() || tensors.k.dims()[2].known().is_none() {
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

/// Keys or values x of extents `dims`, with a head for each of the `heads` of queries.
fn repeated(t: &mut Translation<'_>, heads: Dim, x: Value, dims: Vec<Dim>) -> Result<Value> {
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
