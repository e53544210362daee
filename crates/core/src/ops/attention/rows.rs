//! Attention in tensor ops, for a block of queries and the keys that they attend to.
//!
//! With `S = scale q k^T + mask`, where scores of masked keys are -infinity, a row's weights are `P = exp(S - lse)`, where `lse` is
//! the logarithm of the sum of `exp S`. With factors Z of dropout and the gradients g of O and dlse of lse:
//!
//! ```text
//! O = (P Z) v        dv = (P Z)^T g        dP = (g v^T) Z
//! dS = P (dP - (sum of P dP) + dlse)       dq = scale dS k        dk = scale dS^T q
//! ```
//!
//! With a soft limit, `S = C + mask` for `C = cap tanh(scale q k^T / cap)`, and dS is multiplied by `1 - (C / cap)^2` before dq and dk.
//!
//! The sum of P dP is that of g O. Where a weight is 1, it is the same number as dP, and their difference is 0. In 16 bits the sum is that
//! of g O, as in the kernels: O is rounded, and so is the difference.

use super::band::{Band, Reach};
use super::dropout::Kept;
use super::sequences::{Rows, Sequences};
use super::{AttentionInputs, Scores};
use crate::tape::{Backward, Saved};
use crate::{Device, Result, Tensor, no_grad};
use std::ops::Range;
use std::sync::Arc;

/// Scores that are computed together, if there are enough queries.
const SCORES: usize = 1 << 20;
/// Queries that are computed together, at least.
const LEAST_ROWS: usize = 32;

/// The operands and attributes of a call.
#[derive(Clone)]
pub struct Problem {
    /// `[B, Hq, Tq, D]`.
    pub q: Tensor,
    /// `[B, Hk, Tk, D]`.
    pub k: Tensor,
    /// `[B, Hk, Tk, Dv]`.
    pub v: Tensor,
    /// Four dimensions, which broadcast to `[B, Hq, Tq, Tk]`.
    pub mask: Option<Tensor>,
    /// Relative to a query's own position, unless the sequences are whole.
    pub band: Band,
    pub sequences: Sequences,
    /// The operands of the sequences.
    pub ends: Vec<Tensor>,
    /// True if the own positions of queries are counted from the end of their sequence.
    pub from_end: bool,
    pub scale: f64,
    /// The soft limit of scores.
    pub cap: Option<f64>,
    pub kept: Option<Kept>,
}

/// A problem without its tensors.
pub struct Rest {
    band: Band,
    sequences: Sequences,
    ends: Vec<Saved>,
    from_end: bool,
    scale: f64,
    cap: Option<f64>,
    kept: Option<Kept>,
}

impl Rest {
    /// The problem with its tensors.
    pub fn of(&self, t: &Backward<'_>, inputs: AttentionInputs<Tensor>) -> Result<Problem> {
        let Rest { band, sequences, from_end, scale, cap, ref kept, ref ends } = *self;
        let AttentionInputs { q, k, v, mask } = inputs;
        let ends = ends.iter().map(|end| t.get(end)).collect::<Result<_>>()?;
        Ok(Problem { q, k, v, mask, band, sequences, ends, from_end, scale, cap, kept: kept.clone() })
    }
}

/// A problem in the accumulation dtype, and the keys that its queries attend to.
struct Wide {
    of: Problem,
    reach: Reach,
}

/// The numbers of a block of queries from which its weights are made.
struct Powers {
    power: Tensor,
    sum: Tensor,
    largest: Tensor,
    is_empty: Tensor,
}

/// The outputs of a call, and their gradients.
pub struct Gradient {
    /// `[B, Hq, Tq, Dv]`.
    pub dy: Tensor,
    /// `[B, Hq, Tq]`.
    pub dlse: Option<Tensor>,
    /// `[B, Hq, Tq, Dv]`.
    pub o: Tensor,
    /// `[B, Hq, Tq]`.
    pub lse: Tensor,
}

impl Problem {
    pub fn inputs(&self) -> AttentionInputs<&Tensor> {
        AttentionInputs { q: &self.q, k: &self.k, v: &self.v, mask: self.mask.as_ref() }
    }

    pub fn scores(&self) -> Scores {
        let Problem { scale, cap, band, sequences, ref kept, .. } = *self;
        Scores { scale, cap, band, sequences, drops: kept.is_some() }
    }

    pub fn without_tensors(&self) -> Rest {
        Rest {
            band: self.band,
            sequences: self.sequences,
            ends: self.ends.iter().map(Saved::input).collect(),
            from_end: self.from_end,
            scale: self.scale,
            cap: self.cap,
            kept: self.kept.clone(),
        }
    }

    /// The same problem outside of the tape.
    pub fn detached(&self) -> Problem {
        let mask = self.mask.as_ref().map(Tensor::detach);
        Problem { q: self.q.detach(), k: self.k.detach(), v: self.v.detach(), mask, ..self.clone() }
    }

    /// The same problem in the accumulation dtype. The order of a product's sums may depend on strides, so that there are none.
    fn wide(&self, op: &'static str) -> Result<Wide> {
        let reach = match self.sequences {
            Sequences::Whole => Reach::Band(self.band),
            all => {
                let extents = [self.queries(), self.keys()];
                Reach::Rows(Arc::new(Rows::read(op, all, &self.ends, extents, (self.band, self.from_end))?))
            }
        };
        let acc = self.q.dtype().acc();
        let plain = |x: &Tensor| x.cast(acc)?.contiguous();
        let cast = |mask: &Tensor| if mask.dtype().is_float() { mask.cast(acc) } else { Ok(mask.clone()) };
        let mask = self.mask.as_ref().map(cast).transpose()?;
        let of = Problem { q: plain(&self.q)?, k: plain(&self.k)?, v: plain(&self.v)?, mask, ..self.clone() };
        Ok(Wide { of, reach })
    }

    fn device(&self) -> &Device {
        self.q.device()
    }

    fn queries(&self) -> usize {
        self.q.dims()[2]
    }

    fn keys(&self) -> usize {
        self.k.dims()[2]
    }

    /// Output and logarithms in the accumulation dtype, as one block.
    pub fn composite(&self, op: &'static str) -> Result<(Tensor, Tensor)> {
        self.wide(op)?.forward(&(0..self.queries()))
    }

    /// Output, in the dtype of q, and logarithms, block by block.
    pub fn by_blocks(&self, op: &'static str) -> Result<(Tensor, Tensor)> {
        let wide = self.wide(op)?;
        let (mut outputs, mut logarithms) = (Vec::new(), Vec::new());
        for rows in self.blocks() {
            let (o, lse) = wide.forward(&rows)?;
            outputs.push(o.cast(self.q.dtype())?);
            logarithms.push(lse);
        }
        Ok((joined(outputs)?, joined(logarithms)?))
    }

    /// The gradients of q, k, v and the mask, where they are wanted, block by block.
    pub fn gradients_by_blocks(
        &self,
        op: &'static str,
        arriving: &Gradient,
        wanted: [bool; 4],
    ) -> Result<[Option<Tensor>; 4]> {
        no_grad(|| {
            let wide = self.detached().wide(op)?;
            let mut sums = Sums::new(&wide.of, wanted)?;
            for rows in self.blocks() {
                wide.backward(&rows, arriving, &mut sums)?;
            }
            sums.finish(self)
        })
    }

    /// The blocks of queries. There is at least one.
    fn blocks(&self) -> Vec<Range<usize>> {
        let of_row = (self.q.dims()[0] * self.q.dims()[1] * self.keys()).max(1);
        let size = (SCORES / of_row).max(LEAST_ROWS);
        let starts = (0..self.queries().max(1)).step_by(size);
        starts.map(|start| start..(start + size).min(self.queries())).collect()
    }

    /// Heads of queries that share keys, one after the other: `[B, Hq, rows, ..]` as `[B, Hk, Hq / Hk rows, ..]`.
    fn grouped(&self, x: &Tensor) -> Result<Tensor> {
        let (b, heads, rows, width) = (x.dims()[0], self.k.dims()[1], x.dims()[2], x.dims()[3]);
        x.reshape((b, heads, x.dims()[1] / heads.max(1) * rows, width))
    }

    /// The inverse of `grouped`, for this number of rows.
    fn ungrouped(&self, x: &Tensor, rows: usize) -> Result<Tensor> {
        x.reshape((x.dims()[0], self.q.dims()[1], rows, x.dims()[3]))
    }
}

impl Wide {
    /// Products `[B, Hq, rows, keys]` of queries and keys, divided by the soft limit if there is one.
    fn products(&self, rows: &Range<usize>, keys: &Range<usize>) -> Result<Tensor> {
        let q = self.of.grouped(&self.of.q.narrow(2, rows.start, rows.len())?)?;
        let k = self.of.k.narrow(2, keys.start, keys.len())?;
        let scale = self.of.scale / self.of.cap.unwrap_or(1.0);
        self.of.ungrouped(&q.matmul(&k.transpose(2, 3)?)?.mul_scalar(scale)?, rows.len())
    }

    /// Scores `[B, Hq, rows, keys]`, -infinity for masked keys.
    fn scores(&self, rows: &Range<usize>, keys: &Range<usize>) -> Result<Tensor> {
        let mut s = self.products(rows, keys)?;
        if let Some(cap) = self.of.cap {
            s = s.tanh()?.mul_scalar(cap)?;
        }
        if let Some(mask) = &self.of.mask {
            let part = part(mask, 3, keys, self.of.keys()).and_then(|mask| part(&mask, 2, rows, self.of.queries()))?;
            s = match part.dtype().is_float() {
                true => s.add(&part)?,
                false => part.where_scalar(&s, f64::NEG_INFINITY)?,
            };
        }
        match self.reach.mask(rows, keys, self.of.device())? {
            Some(band) => band.where_scalar(&s, f64::NEG_INFINITY),
            None => Ok(s),
        }
    }

    /// The powers of a block's scores, relative to the largest of each row, their sums, and the largest scores. A row without a key has the
    /// sum 1; the sum of another is at least 1.
    fn powers(&self, rows: &Range<usize>, keys: &Range<usize>) -> Result<Powers> {
        let s = self.scores(rows, keys)?;
        let largest = largest(&s)?;
        let power = s.sub(&largest)?.exp()?;
        let sum = power.sum_keepdim(3)?;
        let is_empty = sum.eq_scalar(0.0)?;
        let sum = is_empty.where_cond(&sum.ones_like()?, &sum)?;
        Ok(Powers { power, sum, largest, is_empty })
    }

    /// The output of a block of queries, and the logarithms of its sums.
    fn forward(&self, rows: &Range<usize>) -> Result<(Tensor, Tensor)> {
        let keys = self.reach.keys(rows, self.of.keys());
        let Powers { power, sum, largest, is_empty } = self.powers(rows, &keys)?;
        let lse = is_empty.logical_not()?.where_scalar(&largest.add(&sum.log()?)?, f64::NEG_INFINITY)?;
        let weights = match &self.of.kept {
            Some(kept) => power.mul(&kept.factors(rows, &keys, power.dtype(), self.of.device())?)?,
            None => power,
        };
        let v = self.of.v.narrow(2, keys.start, keys.len())?;
        let o = self.of.ungrouped(&self.of.grouped(&weights)?.matmul(&v)?, rows.len())?;
        Ok((o.div(&sum)?, lse.squeeze(3)?))
    }

    /// Adds the gradients that a block of queries contributes.
    fn backward(&self, rows: &Range<usize>, arriving: &Gradient, sums: &mut Sums) -> Result<()> {
        let acc = self.of.q.dtype();
        let all = 0..self.of.keys();
        let keys = if sums.mask.is_some() { all } else { self.reach.keys(rows, self.of.keys()) };
        let of_rows = |x: &Tensor| x.narrow(2, rows.start, rows.len());
        let g = of_rows(&arriving.dy)?.cast(acc)?.contiguous()?;
        let (k, v) = (self.of.k.narrow(2, keys.start, keys.len())?, self.of.v.narrow(2, keys.start, keys.len())?);
        let Powers { power, sum, .. } = self.powers(rows, &keys)?;
        let p = power.div(&sum)?;
        let factors = self.of.kept.as_ref().map(|kept| kept.factors(rows, &keys, acc, self.of.device())).transpose()?;
        let grouped = self.of.grouped(&g)?;
        if let Some(dv) = &sums.v {
            let kept = factors.as_ref().map_or_else(|| Ok(p.clone()), |z| p.mul(z))?;
            let part = self.of.grouped(&kept)?.transpose(2, 3)?.matmul(&grouped)?;
            dv.narrow(2, keys.start, keys.len())?.add_(&part)?;
        }
        if !sums.needs_scores() {
            return Ok(());
        }
        let dp = self.of.ungrouped(&grouped.matmul(&v.transpose(2, 3)?)?, rows.len())?;
        let dp = factors.as_ref().map_or_else(|| Ok(dp.clone()), |z| dp.mul(z))?;
        let o = of_rows(&arriving.o)?;
        let mut delta = match o.dtype() == acc {
            true => p.mul(&dp)?.sum_keepdim(3)?,
            false => g.mul(&o.cast(acc)?)?.sum_keepdim(3)?,
        };
        if let Some(dlse) = &arriving.dlse {
            delta = delta.sub(&of_rows(dlse)?.unsqueeze(3)?)?;
        }
        let ds = p.mul(&dp.sub(&delta)?)?;
        if let Some(dmask) = &sums.mask {
            part(dmask, 2, rows, self.of.queries())?
                .add_(&ds.sum_to_size(part(dmask, 2, rows, self.of.queries())?.shape())?)?;
        }
        let ds = match self.of.cap {
            Some(_) => ds.mul(&self.products(rows, &keys)?.tanh()?.square()?.neg()?.add_scalar(1.0)?)?,
            None => ds,
        };
        let ds = self.of.grouped(&ds)?;
        if let Some(dk) = &sums.k {
            let q = self.of.grouped(&self.of.q.narrow(2, rows.start, rows.len())?)?;
            let part = ds.transpose(2, 3)?.matmul(&q)?.mul_scalar(self.of.scale)?;
            dk.narrow(2, keys.start, keys.len())?.add_(&part)?;
        }
        if let Some(dq) = &mut sums.q {
            dq.push(self.of.ungrouped(&ds.matmul(&k)?.mul_scalar(self.of.scale)?, rows.len())?);
        }
        Ok(())
    }
}

/// The gradients of a problem in the accumulation dtype, as far as blocks have contributed to them.
struct Sums {
    /// The parts of the gradient of q, one for each block.
    q: Option<Vec<Tensor>>,
    k: Option<Tensor>,
    v: Option<Tensor>,
    mask: Option<Tensor>,
}

impl Sums {
    fn new(problem: &Problem, wanted: [bool; 4]) -> Result<Sums> {
        let zeros = |i: usize, x: &Tensor| wanted[i].then(|| x.zeros_like()).transpose();
        let mask = problem.mask.as_ref().map_or(Ok(None), |mask| zeros(3, mask))?;
        Ok(Sums { q: wanted[0].then(Vec::new), k: zeros(1, &problem.k)?, v: zeros(2, &problem.v)?, mask })
    }

    /// True unless the gradient of v alone is wanted.
    fn needs_scores(&self) -> bool {
        self.q.is_some() || self.k.is_some() || self.mask.is_some()
    }

    /// The gradients in the dtypes of the operands.
    fn finish(self, problem: &Problem) -> Result<[Option<Tensor>; 4]> {
        let dtype = problem.q.dtype();
        let q = self.q.map(|parts| joined(parts)?.cast(dtype)).transpose()?;
        let [k, v] = [self.k, self.v].map(|x| x.map(|x| x.cast(dtype)).transpose());
        let mask = self.mask.zip(problem.mask.as_ref()).map(|(d, mask)| d.cast(mask.dtype())).transpose()?;
        Ok([q, k?, v?, mask])
    }
}

/// Blocks of queries as one tensor.
fn joined(mut blocks: Vec<Tensor>) -> Result<Tensor> {
    match blocks.len() {
        1 => Ok(blocks.swap_remove(0)),
        _ => Tensor::concat(&blocks.iter().collect::<Vec<_>>(), 2),
    }
}

/// A range of a dimension of a mask of this extent, or all of a dimension that broadcasts.
fn part(mask: &Tensor, dim: isize, range: &Range<usize>, extent: usize) -> Result<Tensor> {
    let is_expanded = mask.dims()[dim as usize] == 1 && extent != 1;
    if is_expanded || range.len() == extent { Ok(mask.clone()) } else { mask.narrow(dim, range.start, range.len()) }
}

/// The largest score of each row, outside of the tape; 0 for a row without scores above -infinity, which its scores may be
/// subtracted from.
fn largest(s: &Tensor) -> Result<Tensor> {
    let s = s.detach();
    if s.dims()[3] == 0 {
        return Tensor::zeros((s.dims()[0], s.dims()[1], s.dims()[2], 1), s.dtype(), s.device());
    }
    let largest = s.amax_keepdim(3)?;
    largest.ne_scalar(f64::NEG_INFINITY)?.where_scalar(&largest, 0.0)
}
