//! The kernels of attention: one for the output, and one for all gradients, in memory that grows with the sequences alone.

use super::band::Band;
use super::dropout::Kept;
use super::rows::{Gradient, Problem};
use super::sequences::Sequences;
use crate::fused::{FlatFused, run_fused};
use crate::{DType, Layout, Result, RngState, Shape, Tensor};

/// The largest D of the kernels.
pub const WIDEST: usize = 256;

/// Inputs: q `[B, Hq, Tq, D]`, k and v `[B, Hk, Tk, D]`, all contiguous in the last dimension; where present, a mask of any strides
/// that is expanded to `[B, Hq, Tq, Tk]`; the operands of the sequences; where present, an i64 `[3]` that is added to the generator's
/// state. Outputs: the result `[B, Hq, Tq, D]`, contiguous in the last dimension, and the logarithms of sums `[B, Hq, Tq]` in the accumulation dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashAttention {
    /// The keys that a query attends to, relative to its own position unless the sequences are whole.
    pub band: Band,
    /// The sequences of queries and keys.
    pub sequences: Sequences,
    /// True if the own positions of queries are counted from the end of their sequence; false if the sequences are whole.
    pub from_end: bool,
    /// The factor of the scores.
    pub scale: f64,
    /// True if there is a mask.
    pub has_mask: bool,
    /// The draws that decide which weights are kept, if there is dropout.
    pub dropout: Option<Draws>,
}

/// The draws of dropout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draws {
    /// The state of the generator at the first draw.
    pub state: RngState,
    /// Draws below this number keep a weight; up to 2^32.
    pub threshold: i64,
    /// The factor of kept weights.
    pub scale: f64,
}

/// Inputs: the gradient of the result; the gradient of the logarithms, where present; the result; the logarithms; then the inputs
/// of [`FlashAttention`]. The gradient of the result and the result are contiguous in the last dimension, and so are the outputs: the
/// gradients of q, and of k and v, as far as they are wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashAttentionBackward {
    /// The forward kernel.
    pub forward: FlashAttention,
    /// True if the logarithms have a gradient.
    pub has_dlse: bool,
    /// True if the gradient of q is wanted.
    pub queries: bool,
    /// True if the gradients of k and v are wanted.
    pub keys: bool,
}

impl FlashAttention {
    fn of(problem: &Problem) -> FlashAttention {
        let draws = |kept: &Kept| Draws { state: kept.draw.state, threshold: kept.threshold, scale: kept.scale };
        FlashAttention {
            band: problem.band,
            sequences: problem.sequences,
            from_end: problem.from_end && problem.sequences != Sequences::Whole,
            scale: problem.scale,
            has_mask: problem.mask.is_some(),
            dropout: problem.kept.as_ref().map(draws),
        }
    }

    /// The problem of the kernel's inputs.
    fn problem(&self, inputs: &[Tensor]) -> Problem {
        let [q, k, v] = [0, 1, 2].map(|i| inputs[i].clone());
        let dims = [q.dims()[0], q.dims()[1], q.dims()[2], k.dims()[2]];
        let (ends, base) = inputs[3 + usize::from(self.has_mask)..].split_at(self.sequences.operands());
        let (ends, base) = (ends.to_vec(), base.first());
        let kept = |d: Draws| Kept::from_state(d.state, base, d.threshold, d.scale, dims);
        let mask = self.has_mask.then(|| inputs[3].clone());
        let FlashAttention { band, sequences, from_end, scale, .. } = *self;
        Problem { q, k, v, mask, band, sequences, ends, from_end, scale, kept: self.dropout.map(kept) }
    }
}

impl FlatFused for FlashAttention {
    fn name(&self) -> &'static str {
        "flash_attention"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (o, lse) = self.problem(inputs).composite(self.name())?;
        Ok(vec![Some(o), Some(lse)])
    }
}

impl FlatFused for FlashAttentionBackward {
    fn name(&self) -> &'static str {
        "flash_attention_backward"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (outputs, operands) = inputs.split_at(3 + usize::from(self.has_dlse));
        let dlse = self.has_dlse.then(|| outputs[1].clone());
        let [o, lse] = [2, 1].map(|back| outputs[outputs.len() - back].clone());
        let arriving = Gradient { dy: outputs[0].clone(), dlse, o, lse };
        let wanted = [self.queries, self.keys, self.keys, false];
        let found = self.forward.problem(operands).gradients_by_blocks(self.name(), &arriving, wanted)?;
        Ok(found.into_iter().flatten().map(Some).collect())
    }
}

/// A tensor that is contiguous in the last dimension.
fn whole(x: &Tensor) -> Result<Tensor> {
    let (x, last) = (x.detach(), x.rank() - 1);
    if x.layout().strides()[last] == 1 { Ok(x) } else { x.contiguous() }
}

/// q, k, v and, where present, the expanded mask, the operands of the sequences and the state on the device.
fn operands(problem: &Problem) -> Result<Vec<Tensor>> {
    let Problem { q, k, v, mask, ends, kept, .. } = problem;
    let mut all = [q, k, v].into_iter().map(whole).collect::<Result<Vec<_>>>()?;
    let scores = Shape::from([q.dims()[0], q.dims()[1], q.dims()[2], k.dims()[2]]);
    all.extend(mask.iter().map(|mask| mask.with_layout(mask.layout().expand(&scores))));
    all.extend(ends.iter().cloned());
    all.extend(kept.iter().flat_map(|kept| kept.draw.base.clone()));
    Ok(all)
}

/// A tensor `[B, H, T, D]` for a result, with the heads of a row adjacent in memory where they are so in `of`.
fn result(op: &'static str, of: &Tensor, dtype: DType) -> Result<Tensor> {
    let (dims, strides) = (of.dims(), of.layout().strides());
    match strides[1] < strides[2] {
        true => Tensor::allocate(op, &Shape::from([dims[0], dims[2], dims[1], dims[3]]), dtype, of.device())?
            .transpose(1, 2),
        false => Tensor::allocate(op, of.shape(), dtype, of.device()),
    }
}

/// Tensors for the gradients of q, k and v that are slices of one tensor `[B, T, 3, H, D]`, as q, k and v are; none if they are not.
fn packed(op: &'static str, problem: &Problem) -> Result<Option<[Tensor; 3]>> {
    let all = [&problem.q, &problem.k, &problem.v];
    let rows: Vec<Tensor> = all.into_iter().map(|x| x.transpose(1, 2)).collect::<Result<_>>()?;
    let layouts: Vec<&Layout> = rows.iter().map(|x| x.layout()).collect();
    let is_one = all[1..].iter().all(|x| x.shares_memory(all[0]));
    let Some(whole) = Layout::joined(&layouts, 2).filter(|whole| is_one && whole.is_contiguous()) else {
        return Ok(None);
    };
    let whole = Tensor::allocate(op, whole.shape(), problem.q.dtype(), problem.q.device())?;
    let part = |i| whole.select(2, i)?.transpose(1, 2);
    Ok(Some([part(0)?, part(1)?, part(2)?]))
}

/// The result and the logarithms of sums.
pub(super) fn forward(op: &'static str, problem: &Problem) -> Result<(Tensor, Tensor)> {
    let (q, inputs) = (&problem.q, operands(problem)?);
    let o = result(op, q, q.dtype())?;
    let lse = Tensor::allocate(op, &Shape::new(&q.dims()[..3]), q.dtype().acc(), q.device())?;
    run_fused(op, &FlashAttention::of(problem), &inputs.iter().collect::<Vec<_>>(), &[&o, &lse])?;
    Ok((o, lse))
}

/// The gradients of q, k and v, where they are wanted.
pub(super) fn backward(
    op: &'static str,
    problem: &Problem,
    arriving: &Gradient,
    wanted: [bool; 4],
) -> Result<[Option<Tensor>; 4]> {
    let Gradient { dy, dlse, o, lse } = arriving;
    let dlse = dlse.as_ref().map(Tensor::contiguous).transpose()?;
    let mut inputs = vec![whole(dy)?];
    inputs.extend(dlse.iter().map(Tensor::detach));
    inputs.extend([o.detach(), lse.detach()]);
    inputs.extend(operands(problem)?);
    let (queries, keys) = (wanted[0], wanted[1] || wanted[2]);
    let fused =
        FlashAttentionBackward { forward: FlashAttention::of(problem), has_dlse: dlse.is_some(), queries, keys };
    let empty = |is: bool, x: &Tensor| is.then(|| result(op, x, x.dtype())).transpose();
    let [dq, dk, dv] = match packed(op, problem)?.filter(|_| queries && keys) {
        Some(parts) => parts.map(Some),
        // The gradients of k and v have one layout.
        None => [empty(queries, &problem.q)?, empty(keys, &problem.k)?, empty(keys, &problem.k)?],
    };
    let outputs: Vec<&Tensor> = [&dq, &dk, &dv].into_iter().flatten().collect();
    if !outputs.is_empty() {
        run_fused(op, &fused, &inputs.iter().collect::<Vec<_>>(), &outputs)?;
    }
    Ok([dq, dk.filter(|_| wanted[1]), dv.filter(|_| wanted[2]), None])
}
