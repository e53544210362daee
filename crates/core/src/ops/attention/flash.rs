//! The kernels of attention: one for the output, and one for all gradients, in memory that grows with the sequences alone.

use super::band::Band;
use super::dropout::Kept;
use super::rows::{Gradient, Problem};
use super::sequences::Sequences;
use crate::fused::{Fused, run_fused};
use crate::operands;
use crate::{DType, Layout, Result, RngState, Shape, Tensor};

/// The largest D of the kernels.
pub const WIDEST: usize = 256;

/// The result and the logarithms of sums. In inputs and outputs, rows of D elements are contiguous.
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
    /// The draws that decide which weights are kept, if there is dropout.
    pub dropout: Option<Draws>,
}

operands! {
    /// The inputs of [`FlashAttention`].
    pub struct FlashInputs {
        /// `[B, Hq, Tq, D]`.
        q,
        /// `[B, Hk, Tk, D]`.
        k,
        /// `[B, Hk, Tk, D]`.
        v,
        /// Of any strides, expanded to `[B, Hq, Tq, Tk]`.
        mask?,
        /// For [`Sequences::Packed`], the first query of each sequence, and the end of the last, i64 `[N + 1]`.
        query_starts?,
        /// The same for keys.
        key_starts?,
        /// For [`Sequences::Lengths`], the numbers of keys, i64 `[B]`.
        lengths?,
        /// With dropout, what is added to the generator's state, i64 `[3]`.
        base?,
    }
}

operands! {
    /// The outputs of [`FlashAttention`].
    pub struct FlashOutputs {
        /// The result, `[B, Hq, Tq, D]`.
        o,
        /// The logarithms of sums, `[B, Hq, Tq]`, in the accumulation dtype.
        lse,
    }
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

/// The gradients of the forward kernel. In inputs and outputs, rows of D elements are contiguous.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashAttentionBackward(pub FlashAttention);

operands! {
    /// The inputs of [`FlashAttentionBackward`].
    pub struct FlashBackwardInputs {
        /// The gradient of the result.
        dy,
        /// The gradient of the logarithms.
        dlse?,
        /// The result.
        o,
        /// The logarithms of sums.
        lse,
        /// `[B, Hq, Tq, D]`.
        q,
        /// `[B, Hk, Tk, D]`.
        k,
        /// `[B, Hk, Tk, D]`.
        v,
        /// As in [`FlashInputs`].
        mask?,
        /// As in [`FlashInputs`].
        query_starts?,
        /// As in [`FlashInputs`].
        key_starts?,
        /// As in [`FlashInputs`].
        lengths?,
        /// As in [`FlashInputs`].
        base?,
    }
}

operands! {
    /// The outputs of [`FlashAttentionBackward`], as far as they are wanted.
    pub struct FlashGradients {
        /// The gradient of q.
        q?,
        /// The gradient of k; wanted if that of v is.
        k?,
        /// The gradient of v.
        v?,
    }
}

impl<T> FlashBackwardInputs<T> {
    /// The inputs of the forward kernel.
    pub fn forward(self) -> FlashInputs<T> {
        let FlashBackwardInputs { q, k, v, mask, query_starts, key_starts, lengths, base, .. } = self;
        FlashInputs { q, k, v, mask, query_starts, key_starts, lengths, base }
    }
}

impl<T> FlashInputs<T> {
    /// The operands of the sequences.
    pub fn ends(self) -> impl Iterator<Item = T> {
        [self.query_starts, self.key_starts, self.lengths].into_iter().flatten()
    }
}

impl FlashAttention {
    fn of(problem: &Problem) -> FlashAttention {
        let draws = |kept: &Kept| Draws { state: kept.draw.state, threshold: kept.threshold, scale: kept.scale };
        FlashAttention {
            band: problem.band,
            sequences: problem.sequences,
            from_end: problem.from_end && problem.sequences != Sequences::Whole,
            scale: problem.scale,
            dropout: problem.kept.as_ref().map(draws),
        }
    }

    /// The problem of the kernel's inputs.
    fn problem(&self, inputs: FlashInputs<&Tensor>) -> Problem {
        let FlashInputs { q, k, v, mask, base, .. } = inputs;
        let dims = [q.dims()[0], q.dims()[1], q.dims()[2], k.dims()[2]];
        let kept = |d: Draws| Kept::from_state(d.state, base, d.threshold, d.scale, dims);
        let (ends, mask, kept) = (inputs.ends().cloned().collect(), mask.cloned(), self.dropout.map(kept));
        let FlashAttention { band, sequences, from_end, scale, .. } = *self;
        Problem {
            q: q.clone(),
            k: k.clone(),
            v: v.clone(),
            mask,
            band,
            sequences,
            ends,
            from_end,
            scale,
            cap: None,
            kept,
        }
    }
}

impl Fused for FlashAttention {
    type Inputs<T> = FlashInputs<T>;
    type Outputs<T> = FlashOutputs<T>;

    fn name(&self) -> &'static str {
        "flash_attention"
    }

    fn composite(
        &self,
        inputs: FlashInputs<&Tensor>,
        _before: FlashOutputs<&Tensor>,
    ) -> Result<FlashOutputs<Option<Tensor>>> {
        let (o, lse) = self.problem(inputs).composite(self.name())?;
        Ok(FlashOutputs { o: Some(o), lse: Some(lse) })
    }
}

impl Fused for FlashAttentionBackward {
    type Inputs<T> = FlashBackwardInputs<T>;
    type Outputs<T> = FlashGradients<T>;

    fn name(&self) -> &'static str {
        "flash_attention_backward"
    }

    fn composite(
        &self,
        inputs: FlashBackwardInputs<&Tensor>,
        before: FlashGradients<&Tensor>,
    ) -> Result<FlashGradients<Option<Tensor>>> {
        let FlashBackwardInputs { dy, dlse, o, lse, .. } = inputs;
        let arriving = Gradient { dy: dy.clone(), dlse: dlse.cloned(), o: o.clone(), lse: lse.clone() };
        let wanted = [before.q.is_some(), before.k.is_some(), before.v.is_some(), false];
        let problem = self.0.problem(inputs.forward());
        let [q, k, v, _] = problem.gradients_by_blocks(self.name(), &arriving, wanted)?;
        Ok(FlashGradients { q: q.map(Some), k: k.map(Some), v: v.map(Some) })
    }
}

/// A tensor that is contiguous in the last dimension.
fn whole(x: &Tensor) -> Result<Tensor> {
    let (x, last) = (x.detach(), x.rank() - 1);
    if x.layout().strides()[last] == 1 { Ok(x) } else { x.contiguous() }
}

/// The inputs of the forward kernel.
fn operands(problem: &Problem) -> Result<FlashInputs<Tensor>> {
    let Problem { q, k, v, mask, sequences, ends, kept, .. } = problem;
    let scores = Shape::from([q.dims()[0], q.dims()[1], q.dims()[2], k.dims()[2]]);
    let is = |of: Sequences| *sequences == of;
    let end = |is_there: bool, i: usize| is_there.then(|| ends[i].clone());
    Ok(FlashInputs {
        q: whole(q)?,
        k: whole(k)?,
        v: whole(v)?,
        mask: mask.as_ref().map(|mask| mask.with_layout(mask.layout().expand(&scores))),
        query_starts: end(is(Sequences::Packed), 0),
        key_starts: end(is(Sequences::Packed), 1),
        lengths: end(is(Sequences::Lengths), 0),
        base: kept.as_ref().and_then(|kept| kept.draw.base.clone()),
    })
}

/// A tensor `[B, H, T, D]` for a result, with the heads of a row adjacent in memory where they are so in `like`.
fn result(op: &'static str, like: &Tensor, dtype: DType) -> Result<Tensor> {
    let (dims, strides) = (like.dims(), like.layout().strides());
    match strides[1] < strides[2] {
        true => Tensor::allocate(op, &Shape::from([dims[0], dims[2], dims[1], dims[3]]), dtype, like.device())?
            .transpose(1, 2),
        false => Tensor::allocate(op, like.shape(), dtype, like.device()),
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
    run_fused(op, &FlashAttention::of(problem), inputs.as_ref(), FlashOutputs { o: &o, lse: &lse })?;
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
    let dlse = dlse.as_ref().map(Tensor::contiguous).transpose()?.map(|dlse| dlse.detach());
    let (dy, o, lse, operands) = (whole(dy)?, o.detach(), lse.detach(), operands(problem)?);
    let FlashInputs { q, k, v, mask, query_starts, key_starts, lengths, base } = operands.as_ref();
    let inputs = FlashBackwardInputs {
        dy: &dy,
        dlse: dlse.as_ref(),
        o: &o,
        lse: &lse,
        q,
        k,
        v,
        mask,
        query_starts,
        key_starts,
        lengths,
        base,
    };
    let (queries, keys) = (wanted[0], wanted[1] || wanted[2]);
    let empty = |is: bool, x: &Tensor| is.then(|| result(op, x, x.dtype())).transpose();
    let [dq, dk, dv] = match packed(op, problem)?.filter(|_| queries && keys) {
        Some(parts) => parts.map(Some),
        // The gradients of k and v have one layout.
        None => [empty(queries, &problem.q)?, empty(keys, &problem.k)?, empty(keys, &problem.k)?],
    };
    if queries || keys {
        let outputs = FlashGradients { q: dq.as_ref(), k: dk.as_ref(), v: dv.as_ref() };
        run_fused(op, &FlashAttentionBackward(FlashAttention::of(problem)), inputs, outputs)?;
    }
    Ok([dq, dk.filter(|_| wanted[1]), dv.filter(|_| wanted[2]), None])
}
