//! Attention, and rotary embeddings.

use super::{Op, Table};
use crate::import::call::{Call, misshapen, numbered, sizes};
use crate::import::value::Value;
use isograd_core::ops::Attention;
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[("Attention", Op::Many(attention)), ("RotaryEmbedding", Op::Tensor(rotary_embedding))];

/// Rows `[B, T, H D]` as heads `[B, H, T, D]`; heads stay as they are.
pub fn heads(t: Tensor, count: i64) -> Result<Tensor> {
    let count = sizes(&[count])?[0];
    match t.dims() {
        [_, _, _, _] => Ok(t),
        &[batch, steps, width] if count > 0 && width % count == 0 => {
            t.reshape([batch, steps, count, width / count])?.transpose(1, 2)
        }
        _ => misshapen(format!("{} was given for {count} heads", t.shape())),
    }
}

/// Heads `[B, H, T, D]` as rows `[B, T, H D]`.
pub fn rows(t: &Tensor) -> Result<Tensor> {
    let &[batch, count, steps, width] = t.dims() else { return misshapen(format!("{} are no heads", t.shape())) };
    t.transpose(1, 2)?.reshape([batch, steps, count * width])
}

fn attention(c: &Call<'_>) -> Result<Vec<Value>> {
    let (q, k, v) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let is_rows = q.rank() == 3;
    let (of_q, of_k) = (c.int("q_num_heads", 0)?, c.int("kv_num_heads", 0)?);
    let (q, k, v) = (heads(q, of_q)?, heads(k, of_k)?, heads(v, of_k)?);
    let after = |past: Option<Tensor>, t: Tensor| match past {
        Some(past) => Tensor::concat(&[&past, &t], 2),
        None => Ok(t),
    };
    let (past_k, past_v) = (c.optional(4)?, c.optional(5)?);
    let before = past_k.as_ref().map_or(0, |past| past.dims().get(2).copied().unwrap_or(0));
    let (k, v) = (after(past_k, k)?, after(past_v, v)?);
    let scores = Scores { c, q: &q, k: &k, before };
    let wants_scores = c.node.outputs.get(3).is_some_and(Option::is_some);
    let score_cap = Some(c.float("softcap", 0.0)?).filter(|&cap| cap > 0.0);
    let (y, seen) = if wants_scores {
        scores.in_parts(&v, score_cap)?
    } else {
        let scale = Some(scores.scale()?);
        let attention = Attention { mask: scores.mask()?, scale, score_cap, ..Default::default() };
        (q.scaled_dot_product_attention(&k, &v, &attention)?, None)
    };
    let y = if is_rows { rows(&y)? } else { y };
    Ok([y, k.clone(), v].into_iter().chain(seen).map(Value::from).collect())
}

/// The scores of an attention.
struct Scores<'a> {
    c: &'a Call<'a>,
    q: &'a Tensor,
    k: &'a Tensor,
    /// The keys before the first query.
    before: usize,
}

impl Scores<'_> {
    fn scale(&self) -> Result<f64> {
        self.c.float("scale", 1.0 / (self.q.dims()[3] as f64).sqrt())
    }

    /// The mask of the call, of the order of keys, and of their number: bool, or numbers that are added. Four dimensions.
    fn mask(&self) -> Result<Option<Tensor>> {
        let (queries, keys, device) = (self.q.dims()[2], self.k.dims()[2], self.c.device());
        let mut mask = self.c.optional(3)?;
        if let Some(given) = &mut mask {
            while given.rank() < 4 {
                *given = given.unsqueeze(0)?;
            }
            let missing = keys.saturating_sub(given.dims()[3]) as isize;
            let value = if given.dtype() == DType::Bool { 0.into() } else { f64::NEG_INFINITY.into() };
            *given = given.pad(&[[0, missing]], isograd_core::ops::Pad::Constant(value))?;
        }
        let at = |n: usize, dims: [usize; 4]| Tensor::arange(n, device)?.reshape(dims);
        let keys_at = at(keys, [1, 1, 1, keys])?;
        let lengths = match self.c.optional(6)? {
            Some(lengths) => Some(lengths.cast(DType::I64)?.reshape([lengths.numel(), 1, 1, 1])?),
            None => None,
        };
        // A query is at its place after the keys that precede it.
        let first = at(queries, [1, 1, queries, 1])?;
        let queries_at = match &lengths {
            Some(lengths) if self.before == 0 => first.add(lengths)?.sub_scalar(queries as i64)?,
            _ => first.add_scalar(self.before as i64)?,
        };
        let [left, right] = [self.c.int("left_window_size", -1)?, self.c.int("right_window_size", -1)?];
        let mut attended = Vec::new();
        if self.c.flag("is_causal")? {
            attended.push(keys_at.le(&queries_at)?);
        }
        if left >= 0 {
            attended.push(keys_at.ge(&queries_at.sub_scalar(left)?)?);
        }
        if right >= 0 {
            attended.push(keys_at.le(&queries_at.add_scalar(right)?)?);
        }
        if let Some(lengths) = &lengths {
            attended.push(keys_at.lt(lengths)?);
        }
        attended.into_iter().try_fold(mask, |mask, is_attended| both(mask, is_attended).map(Some))
    }

    /// The result, and the scores as far as the call asks for.
    fn in_parts(&self, v: &Tensor, cap: Option<f64>) -> Result<(Tensor, Option<Tensor>)> {
        let (q, own) = (self.q, self.q.dtype());
        let (of_q, of_k) = (q.dims()[1], self.k.dims()[1]);
        if of_k == 0 || of_q % of_k != 0 {
            return misshapen(format!("{of_q} heads of queries are no multiple of {of_k} of keys"));
        }
        let each = |t: &Tensor| t.repeat_interleave(of_q / of_k, 1);
        let raw = q.matmul(&each(self.k)?.t()?)?.mul_scalar(self.scale()?)?;
        let capped = match cap {
            Some(cap) => raw.div_scalar(cap)?.tanh()?.mul_scalar(cap)?,
            None => raw.clone(),
        };
        let mask = self.mask()?;
        let masked = match &mask {
            None => capped.clone(),
            Some(mask) if mask.dtype() == DType::Bool => mask.where_scalar(&capped, f64::NEG_INFINITY)?,
            Some(mask) => capped.add(&mask.cast(own)?)?,
        };
        let wide = match self.c.node.attributes.int("softmax_precision")? {
            Some(number) => numbered(number)?.dtype(),
            None => own,
        };
        let mut weights = masked.cast(wide)?.softmax(-1)?;
        if let Some(mask) = &mask {
            // A query without keys has the output 0.
            let has_keys = match mask.dtype() {
                DType::Bool => mask.any(-1)?,
                _ => mask.amax(-1)?.gt_scalar(f64::NEG_INFINITY)?,
            };
            weights = has_keys.unsqueeze(-1)?.where_scalar(&weights, 0.0)?;
        }
        let weights = weights.cast(own)?;
        let y = weights.matmul(&each(v)?)?;
        let seen = match self.c.int("qk_matmul_output_mode", 0)? {
            1 => capped,
            2 => masked,
            3 => weights,
            _ => raw,
        };
        Ok((y, Some(seen)))
    }
}

/// A mask, and keys that are attended to.
fn both(mask: Option<Tensor>, is_attended: Tensor) -> Result<Tensor> {
    match mask {
        None => Ok(is_attended),
        Some(mask) if mask.dtype() == DType::Bool => mask.logical_and(&is_attended),
        Some(mask) => is_attended.where_scalar(&mask, f64::NEG_INFINITY),
    }
}

/// Rows `[B, T, H D]` or heads `[B, H, T, D]` whose pairs are turned by the angles of their positions.
fn rotary_embedding(c: &Call<'_>) -> Result<Tensor> {
    let given = c.x(0)?;
    let x = heads(given.clone(), c.int("num_heads", 0)?)?;
    let width = match c.int("rotary_embedding_dim", 0)? {
        0 => x.dims()[3],
        width => sizes(&[width])?[0],
    };
    let (tables, positions) = ([c.x(1)?, c.x(2)?], c.optional(3)?);
    // [B, 1, T, R / 2].
    let [cos, sin] = tables.map(|table| -> Result<Tensor> {
        let table = match &positions {
            Some(_) if table.rank() == 0 => return misshapen("a table of angles is a single number"),
            Some(at) => {
                let dims = [at.dims(), &table.dims()[1..]].concat();
                table.index_select(0, &at.reshape(at.numel())?)?.reshape(dims)?
            }
            None => table,
        };
        table.unsqueeze(1)
    });
    let (cos, sin) = (cos?, sin?);
    let (turned, rest) = (x.narrow(3, 0, width)?, x.narrow(3, width, x.dims()[3] - width.min(x.dims()[3]))?);
    let is_interleaved = c.flag("interleaved")?;
    let half = width / 2;
    let [a, b] = match is_interleaved {
        true => [turned.slice(3, 0, width, 2)?, turned.slice(3, 1, width, 2)?],
        false => [turned.narrow(3, 0, half)?, turned.narrow(3, half, half)?],
    };
    let real = cos.mul(&a)?.sub(&sin.mul(&b)?)?;
    let imaginary = sin.mul(&a)?.add(&cos.mul(&b)?)?;
    let turned = match is_interleaved {
        true => Tensor::stack(&[&real, &imaginary], -1)?.reshape(turned.shape())?,
        false => Tensor::concat(&[&real, &imaginary], 3)?,
    };
    let y = Tensor::concat(&[&turned, &rest], 3)?;
    if given.rank() == 3 { rows(&y) } else { Ok(y) }
}
