//! Connectionist temporal classification: the probability that frames spell a sequence of labels, over all alignments.
//!
//! An alignment of S labels runs through `L = 2 S + 1` states: blanks at even numbers, and label k at number 2 k + 1. In a step it stays,
//! or moves to the next state, or skips a blank between two labels that differ. Graves et al. 2006.

use super::Reduction;
use crate::check::{check_device, check_float, check_index, describe};
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands::Output;
use crate::ops::{gradients, named};
use crate::tape::{Gradient, Record};
use crate::{DType, Error, Result, Tensor, autocast, no_grad};
use std::any::TypeId;

/// The attributes of [`Tensor::ctc_loss`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ctc {
    /// The class of a blank.
    pub blank: usize,
    /// The reduction of the losses of the sequences. The mean is of losses over numbers of labels.
    pub reduction: Reduction,
    /// True if the loss of a sequence without an alignment counts as 0, without a gradient. Otherwise it is infinite, and its gradient NaN.
    pub zero_infinity: bool,
}

/// The logarithm of the sum over all alignments up to a state, with this state; or from a state on: `[T, N, L]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtcScan {
    /// From the last frame to the first.
    pub is_reversed: bool,
}

crate::operands! {
    /// The inputs of [`CtcScan`].
    pub struct CtcInputs {
        /// Log-probabilities of states `[T, N, L]`, f32 or f64.
        emission,
        /// True for states that can be entered by a skip: bool, `[N, L]`.
        skip,
        /// The number of frames, and of labels, of each sequence: i64, `[N, 2]`.
        lengths,
    }
}

/// The largest number of states of the kernel, which keeps two frames of a sequence on chip.
const MOST_STATES: usize = 1024;

impl Fused for CtcScan {
    type Inputs<T> = CtcInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "ctc_scan"
    }

    fn composite(
        &self,
        CtcInputs { emission, skip, lengths }: CtcInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        Ok(Output { y: Some(self.by_ops(emission, skip, lengths)?) })
    }
}

impl CtcScan {
    fn by_ops(self, emission: &Tensor, skip: &Tensor, lengths: &Tensor) -> Result<Tensor> {
        let [steps, batch, states] = [0, 1, 2].map(|d| emission.dims()[d]);
        let device = emission.device();
        let none = |n: usize| Tensor::full((batch, n), f64::NEG_INFINITY, emission.dtype(), device);
        // The row moved by n states along the alignment; no alignment enters the first ones.
        let moved = |row: &Tensor, n: usize| {
            let n = n.min(states);
            match self.is_reversed {
                false => Tensor::concat(&[&none(n)?, &row.narrow(1, 0, states - n)?], 1),
                true => Tensor::concat(&[&row.narrow(1, n, states - n)?, &none(n)?], 1),
            }
        };
        // Whether the move by two states is a skip: into a state, or out of the state before it.
        let skips = match self.is_reversed {
            false => skip.clone(),
            true => {
                let n = states.min(2);
                let last = Tensor::zeros((batch, n), DType::Bool, device)?;
                Tensor::concat(&[&skip.narrow(1, n, states - n)?, &last], 1)?
            }
        };
        let number = Tensor::arange(states, device)?;
        let [frames, last] = [0, 1].map(|d| lengths.narrow(1, d, 1));
        let (frames, last) = (frames?, last?.mul_scalar(2)?);
        let ends = number.eq(&last)?.logical_or(&number.eq(&last.sub_scalar(1)?)?)?;
        let (mut row, mut rows) = (none(states)?, Vec::new());
        for turn in 0..steps {
            let t = if self.is_reversed { steps - 1 - turn } else { turn };
            let e = emission.select(0, t as isize)?;
            let skipped = skips.where_scalar(&moved(&row, 2)?, f64::NEG_INFINITY)?;
            let sum = Tensor::stack(&[&row, &moved(&row, 1)?, &skipped], 0)?.logsumexp(0)?.add(&e)?;
            let starts = match self.is_reversed {
                true => ends.logical_and(&frames.eq_scalar(t as i64 + 1)?)?,
                false => number.le_scalar(if t == 0 { 1 } else { -1 })?,
            };
            row = starts.where_cond(&e, &sum)?;
            rows.push(row.clone());
        }
        if self.is_reversed {
            rows.reverse();
        }
        Tensor::stack(&rows.iter().collect::<Vec<_>>(), 0)
    }

    /// By the kernel, outside of the tape.
    fn run(self, states: &States) -> Result<Tensor> {
        let inputs = CtcInputs { emission: &states.emission.detach(), skip: &states.skip, lengths: &states.lengths };
        let inputs = inputs.try_map(Tensor::contiguous)?;
        let CtcInputs { emission, skip, lengths } = inputs.as_ref();
        if !has_kernel::<CtcScan>(emission) || skip.dims()[1] > MOST_STATES {
            return no_grad(|| self.by_ops(emission, skip, lengths));
        }
        let y = Tensor::allocate("ctc_loss", emission.shape(), emission.dtype(), emission.device())?;
        run_fused("ctc_loss", &self, inputs.as_ref(), Output { y: &y })?;
        Ok(y)
    }
}

/// The inputs of both scans, and the classes of the states.
struct States {
    emission: Tensor,
    skip: Tensor,
    lengths: Tensor,
    /// The class of each state (i64, `[N, L]`).
    labels: Tensor,
}

impl States {
    /// Of log-probabilities `[T, N, C]`, labels `[N, S]`, and numbers of frames and labels `[N]`.
    fn new(x: &Tensor, targets: &Tensor, frames: &Tensor, count: &Tensor, blank: usize) -> Result<States> {
        let [steps, batch, most] = [x.dims()[0], x.dims()[1], targets.dims()[1]];
        let wide = |t: &Tensor| t.cast(DType::I64);
        let (targets, lengths) = (wide(targets)?, Tensor::stack(&[&wide(frames)?, &wide(count)?], 1)?);
        // Padding may be any number.
        let is_label = Tensor::arange(most, x.device())?.lt(&lengths.narrow(1, 1, 1)?)?;
        let targets = is_label.where_scalar(&targets, blank as i64)?;
        let blanks = |n: usize| Tensor::full((batch, n), blank as i64, DType::I64, x.device());
        let pairs = Tensor::stack(&[&blanks(most)?, &targets], 2)?.reshape((batch, 2 * most))?;
        let labels = Tensor::concat(&[&pairs, &blanks(1)?], 1)?;
        let states = 2 * most + 1;
        let apart = states.min(2);
        let (later, earlier) = (labels.narrow(1, apart, states - apart)?, labels.narrow(1, 0, states - apart)?);
        let differs = later.ne(&earlier)?.logical_and(&later.ne_scalar(blank as i64)?)?;
        let skip = Tensor::concat(&[&Tensor::zeros((batch, apart), DType::Bool, x.device())?, &differs], 1)?;
        let index = labels.unsqueeze(0)?.broadcast_to((steps, batch, states))?;
        Ok(States { emission: x.gather(2, &index)?.cast(sum_dtype(x))?, skip, lengths, labels })
    }

    /// The losses `[N]`, from the sums over alignments up to each state.
    fn losses(&self, sums: &Tensor) -> Result<Tensor> {
        let [batch, states] = [0, 1].map(|d| self.labels.dims()[d]);
        let [frames, count] = [0, 1].map(|d| self.lengths.narrow(1, d, 1));
        let (frames, count) = (frames?, count?);
        let at = frames.sub_scalar(1)?.unsqueeze(0)?.broadcast_to((1, batch, states))?;
        let row = sums.gather(0, &at)?.squeeze(0)?;
        let last = count.mul_scalar(2)?;
        let of_last_label = last.sub_scalar(1)?.clamp(Some(0.into()), None)?;
        let ends = row.gather(1, &Tensor::concat(&[&last, &of_last_label], 1)?)?;
        let is_there = Tensor::arange(2, row.device())?.lt(&count.add_scalar(1)?)?;
        is_there.where_scalar(&ends, f64::NEG_INFINITY)?.logsumexp(-1)?.neg()
    }
}

/// The dtype of sums over alignments of many frames, whose logarithms have few digits in f32: f64, unless the device has none.
fn sum_dtype(x: &Tensor) -> DType {
    let is_on_device = |dtype| x.device().backend().supports(TypeId::of::<CtcScan>(), dtype);
    if is_on_device(DType::F32) && !is_on_device(DType::F64) { x.dtype() } else { DType::F64 }
}

/// # Losses of sequences
impl Tensor {
    /// The negative logarithm of the probability that frames spell labels. This tensor has the logarithms of probabilities `[T, N, C]`,
    /// as `log_softmax` gives them. Sequence n has the first `target_lengths[n]` labels of `targets: [N, S]`, none of which is the
    /// blank, in its first `input_lengths[n]` frames (integers, `[N]`). The gradient is that of this function, where PyTorch's contains
    /// that of a `log_softmax` before it: after `log_softmax` both are the same. Sums over alignments are in f64 where the device has it. On
    /// a GPU they are one kernel for up to 511 labels.
    ///
    /// Errors: `Dtype`; `Shape`; `Attr` for a blank that is no class; `Index` for a label that is no class, and for lengths of more
    /// frames or labels than there are, or no frames. Graves et al. 2006, "Connectionist Temporal Classification".
    pub fn ctc_loss(
        &self,
        targets: &Tensor,
        input_lengths: &Tensor,
        target_lengths: &Tensor,
        options: &Ctc,
    ) -> Result<Tensor> {
        let op = "ctc_loss";
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.ctc_loss(targets, input_lengths, target_lengths, options);
        }
        check_float(op, self)?;
        [targets, input_lengths, target_lengths].iter().try_for_each(|t| check_index(op, t))?;
        let operands = [self, targets, input_lengths, target_lengths];
        check_device(op, &operands)?;
        let fits = self.rank() == 3
            && self.dims()[0] > 0
            && targets.rank() == 2
            && targets.dims()[0] == self.dims()[1]
            && [input_lengths, target_lengths].iter().all(|t| t.dims() == [self.dims()[1]]);
        if !fits {
            let expected = "[T, N, C] with at least one frame, [N, S], [N] and [N]";
            return Err(Error::shape(op, format!("got {}, expected {expected}", describe(&operands))));
        }
        if options.blank >= self.dims()[2] {
            let message = format!("the blank is class {} of {}", options.blank, describe(&[self]));
            return Err(Error::attr(op, message));
        }
        let Ctc { blank, reduction, zero_infinity } = *options;
        named(op, &operands, || {
            let acc = self.dtype().acc();
            let losses = losses(&self.cast(acc)?, [targets, input_lengths, target_lengths], blank)?;
            let losses = match zero_infinity {
                true => losses.detach().ne_scalar(f64::INFINITY)?.where_scalar(&losses, 0.0)?,
                false => losses,
            };
            let losses = match reduction {
                Reduction::Mean => losses.div(&target_lengths.clamp(Some(1.into()), None)?.cast(acc)?)?,
                _ => losses,
            };
            reduction.apply(&losses)?.cast(self.dtype())
        })
    }
}

/// The losses of the sequences `[N]`, on the tape.
fn losses(x: &Tensor, [targets, frames, count]: [&Tensor; 3], blank: usize) -> Result<Tensor> {
    let states = no_grad(|| States::new(&x.detach(), targets, frames, count, blank))?;
    let before = CtcScan { is_reversed: false }.run(&states)?;
    let y = no_grad(|| states.losses(&before)?.cast(x.dtype()))?;
    let losses = y.clone();
    let by_ops = move |x: &[Tensor]| {
        let states = States::new(&x[0], &x[1], &x[2], &x[3], blank)?;
        let before = CtcScan { is_reversed: false }.by_ops(&states.emission, &states.skip, &states.lengths)?;
        states.losses(&before)?.cast(x[0].dtype())
    };
    Record::new("ctc_loss", &[x, targets, frames, count]).fused(y.copy()?, by_ops, move |t, inputs| {
        let after = CtcScan { is_reversed: true }.run(&states)?;
        // The share of alignments through a state: both sums contain its own probability, and those of a frame add up to 1.
        let is_on_way = before.gt_scalar(f64::NEG_INFINITY)?.logical_and(&after.gt_scalar(f64::NEG_INFINITY)?)?;
        let both = is_on_way.where_scalar(&before.add(&after)?.sub(&states.emission)?, f64::NEG_INFINITY)?;
        let share = is_on_way.where_scalar(&both.softmax(-1)?, 0.0)?;
        let is_undefined = losses.eq_scalar(f64::INFINITY)?.logical_and(&t.dy().ne_scalar(0.0)?)?;
        let dy = is_undefined.logical_not()?.where_scalar(&t.dy().neg()?, f64::NAN)?;
        let share = share.cast(dy.dtype())?.mul(&dy.reshape((1, dy.numel(), 1))?)?;
        let index = states.labels.unsqueeze(0)?.broadcast_to(share.shape())?;
        let zeros = Tensor::zeros(inputs[0].shape(), share.dtype(), share.device())?;
        gradients![zeros.scatter_add(2, &index, &share)?, Gradient::NONE, Gradient::NONE, Gradient::NONE]
    })
}
