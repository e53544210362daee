//! Cross entropy and negative log likelihood.

use super::super::fused::{has_kernel, record_fused};
use super::{Reduction, check_constant};
use crate::backend::{Fused, Kernel, class_error};
use crate::tape::Backward;
use crate::tensor::{Attributes, check_device, check_float, check_same, describe, run};
use crate::{Dims, Error, Kind, Result, Shape, Tensor, autocast};
use std::iter::{once, repeat};

/// The attributes of [`Tensor::cross_entropy_with`] and [`Tensor::nll_loss`].
#[derive(Clone, Debug, Default)]
pub struct CrossEntropy {
    /// A weight for each class, `[C]`; of a float dtype.
    pub weight: Option<Tensor>,
    /// The target that is left out; -100 if absent. Only with class indices.
    pub ignore_index: Option<i64>,
    /// How much of the target is spread evenly over the classes, 0 to 1.
    pub label_smoothing: f64,
    /// What becomes of the losses of the elements. The mean divides by the sum of the weights of the targets.
    pub reduction: Reduction,
    /// With bytes for each class, `[C]`: the loss is the sum of the losses times the bytes of their targets, divided by
    /// the sum of these bytes (0 if that is 0). Takes the place of the reduction.
    pub token_bytes: Option<Tensor>,
}

/// The op whose input are logarithms of probabilities already.
const NLL: &str = "nll_loss";

impl Tensor {
    /// The mean cross entropy of logits `[N, C, d..]` or `[C]` with class indices `[N, d..]` (i64 or i32) or
    /// probabilities `[N, C, d..]`. Errors: as [`cross_entropy_with`](Tensor::cross_entropy_with).
    pub fn cross_entropy(&self, target: &Tensor) -> Result<Tensor> {
        self.cross_entropy_with(target, &CrossEntropy::default())
    }

    /// [`cross_entropy`](Tensor::cross_entropy) with weights, ignored targets, label smoothing and a reduction. If all
    /// targets are ignored the mean is NaN and the gradient 0. Float dtypes; probabilities have a gradient too. Of logits that
    /// are -inf throughout the loss is NaN and the gradient 0, as of [`log_softmax`](Tensor::log_softmax).
    ///
    /// Errors: `Shape`, `Dtype`; `Attr` for a smoothing outside of `0..=1` or an ignore_index with probabilities; `Value`
    /// for a class outside of `0..C`.
    pub fn cross_entropy_with(&self, target: &Tensor, options: &CrossEntropy) -> Result<Tensor> {
        let op = "cross_entropy";
        if let Some(([x, target], _)) = autocast::wide([self, target], None)? {
            return x.cross_entropy_with(&target, options);
        }
        check_float(op, self)?;
        check_weight(op, options)?;
        if !(0.0..=1.0).contains(&options.label_smoothing) {
            let message = format!("label_smoothing is {}, expected 0 to 1", options.label_smoothing);
            return Err(Error::attr(op, message));
        }
        let dim = class_dim(op, self, target)?;
        if target.dtype().is_float() || !has_kernel(Fused::CrossEntropy, self) {
            return composite(op, self, target, dim, options);
        }
        check_indices(op, self, target, dim)?;
        fused(op, self, target, dim, options)
    }

    /// `-w[t] logp[t]` for log probabilities `[N, C, d..]` or `[C]` and class indices `[N, d..]`. Label smoothing is not
    /// used. Errors: as [`cross_entropy_with`](Tensor::cross_entropy_with).
    pub fn nll_loss(&self, target: &Tensor, options: &CrossEntropy) -> Result<Tensor> {
        let op = NLL;
        if let Some(([x, target], _)) = autocast::wide([self, target], None)? {
            return x.nll_loss(&target, options);
        }
        check_float(op, self)?;
        check_weight(op, options)?;
        let dim = class_dim(op, self, target)?;
        let options = CrossEntropy { label_smoothing: 0.0, ..options.clone() };
        if !has_kernel(Fused::CrossEntropy, self) {
            return composite(op, self, target, dim, &options);
        }
        check_indices(op, self, target, dim)?;
        fused(op, self, target, dim, &options)
    }
}

/// Where the classes are: dimension 1, or 0 of a single sample.
fn class_dim(op: &'static str, x: &Tensor, target: &Tensor) -> Result<isize> {
    let dim = if x.rank() == 1 { 0 } else { 1 };
    match x.dims().get(dim) {
        None => Err(Error::shape(op, format!("{} was given, expected [N, C, ..] or [C]", describe(&[x, target])))),
        Some(0) => Err(Error::shape(op, format!("there are no classes in {}", describe(&[x, target])))),
        Some(_) => Ok(dim as isize),
    }
}

fn check_weight(op: &'static str, options: &CrossEntropy) -> Result<()> {
    match &options.weight {
        Some(w) if !w.dtype().is_float() => {
            Err(Error::dtype(op, format!("weight is {}, expected a float dtype", describe(&[w]))))
        }
        _ => Ok(()),
    }
}

/// One number a class, `[C]` in the accumulation dtype.
fn class_numbers(op: &'static str, name: &str, x: &Tensor, dim: isize, w: &Tensor) -> Result<Tensor> {
    check_constant(op, name, w)?;
    check_device(op, &[x, w])?;
    if w.rank() != 1 || w.dims()[0] != x.dims()[dim as usize] {
        let message = format!("{name} is {}, expected one number a class of {}", w.shape(), x.shape());
        return Err(Error::shape(op, message));
    }
    w.cast(x.dtype().acc())
}

/// [`class_numbers`] as `[1, C, 1..]`.
fn per_class(op: &'static str, name: &str, logp: &Tensor, dim: isize, w: &Tensor) -> Result<Tensor> {
    let w = class_numbers(op, name, logp, dim, w)?;
    let mut dims: Dims = logp.dims().iter().map(|_| 1).collect();
    dims[dim as usize] = w.dims()[0];
    w.reshape(Shape::from(dims))
}

/// Errors unless the targets are class indices for `x`.
fn check_indices(op: &'static str, x: &Tensor, target: &Tensor, dim: isize) -> Result<()> {
    if !target.dtype().is_int() {
        let message = format!("the target is {}, expected i64, i32 or probabilities", target.dtype());
        return Err(Error::dtype(op, message));
    }
    check_device(op, &[x, target])?;
    let mut expected = Dims::from_slice(x.dims());
    expected.remove(dim as usize);
    if target.dims() != &expected[..] {
        let operands = describe(&[x, target]);
        return Err(Error::shape(op, format!("class indices must be {:?}: {operands}", expected.as_slice())));
    }
    Ok(())
}

/// What stands for "ignored" where nothing was given.
fn ignored(options: &CrossEntropy) -> i64 {
    options.ignore_index.unwrap_or(-100)
}

/// With class indices: the logits are read once, and once for the gradient; nothing of their size is saved.
fn fused(op: &'static str, x: &Tensor, target: &Tensor, dim: isize, options: &CrossEntropy) -> Result<Tensor> {
    let (x, target) = (x.contiguous()?, target.contiguous()?);
    let (acc, device, d) = (x.dtype().acc(), x.device(), dim as usize);
    let numbers = |name, w: &Option<Tensor>| match w {
        Some(w) => class_numbers(op, name, &x, dim, w)?.contiguous().map(Some),
        None => Ok(None),
    };
    let (weight, bytes) = (numbers("weight", &options.weight)?, numbers("token_bytes", &options.token_bytes)?);
    let (form, given_divisor) = match options.reduction {
        _ if bytes.is_some() => (2, 0.0),
        Reduction::Mean => (2, 0.0),
        Reduction::None => (0, 0.0),
        Reduction::Sum => (1, 1.0),
        Reduction::BatchMean => (1, target.dims().first().copied().unwrap_or(1) as f64),
    };
    let (outer, inner): (usize, usize) = (x.dims()[..d].iter().product(), x.dims()[d + 1..].iter().product());
    let extents = [outer, x.dims()[d], inner].map(|v| v as i64);
    let given = [ignored(options), weight.is_some() as i64, bytes.is_some() as i64, form, (op == NLL) as i64];
    let ints = [extents.as_slice(), &given].concat();
    let floats = [options.label_smoothing, given_divisor];
    let shape = if form == 0 { target.shape().clone() } else { Shape::from(()) };
    let y = Tensor::allocate(op, &shape, x.dtype(), device)?;
    let statistics = Tensor::allocate(op, &Shape::from((2, target.numel())), acc, device)?;
    let divisor = if form == 0 { None } else { Some(Tensor::allocate(op, &shape, acc, device)?) };
    let inputs: Vec<&Tensor> = [&x, &target].into_iter().chain(&weight).chain(&bytes).collect();
    let outputs: Vec<&Tensor> = [&y, &statistics].into_iter().chain(&divisor).collect();
    let attributes = Attributes { ints: &ints, floats: &floats };
    run(op, Kernel::Fused(Fused::CrossEntropy), &inputs, &outputs, attributes)?;
    let spreads_weights = weight.is_some() && options.label_smoothing > 0.0;
    let again = {
        let options = options.clone();
        move |x: &[Tensor]| composite(op, &x[0], &x[1], dim, &options)
    };
    record_fused(op, &inputs, y, again, move |t: &Backward<'_>, inputs: &[Tensor]| {
        let (dy, dx) =
            (t.dy().contiguous()?, Tensor::allocate(op, inputs[0].shape(), inputs[0].dtype(), t.dy().device())?);
        let (fixed, numbers) = inputs.split_at(2);
        let all_weights = if spreads_weights { Some(numbers[0].sum(..)?) } else { None };
        let operands = [&dy].into_iter().chain(fixed).chain([&statistics]).chain(numbers);
        let operands: Vec<&Tensor> = operands.chain(&divisor).chain(&all_weights).collect();
        let attributes = Attributes { ints: &ints, floats: &floats };
        run(op, Kernel::Fused(Fused::CrossEntropyBackward), &operands, &[&dx], attributes)?;
        Ok(once(Some(dx)).chain(repeat(None)).take(inputs.len()).collect())
    })
}

/// What the kernel computes, in tensor ops.
fn composite(op: &'static str, x: &Tensor, target: &Tensor, dim: isize, options: &CrossEntropy) -> Result<Tensor> {
    let wide = x.cast(x.dtype().acc())?;
    if op != NLL && target.dtype().is_float() {
        return probabilities(op, &wide.log_softmax(dim)?, x, target, options)?.cast(x.dtype());
    }
    check_indices(op, x, target, dim)?;
    let counted = target.ne_scalar(ignored(options))?;
    let logp = match op {
        NLL => wide,
        // A softmax with NaN would have NaN for its gradient even where nothing arrives.
        _ => counted.unsqueeze(dim)?.where_scalar(&wide, 0.0)?.log_softmax(dim)?,
    };
    indices(op, &logp, target, &counted, dim, options)?.cast(x.dtype())
}

fn probabilities(
    op: &'static str,
    logp: &Tensor,
    logits: &Tensor,
    target: &Tensor,
    options: &CrossEntropy,
) -> Result<Tensor> {
    check_same(op, &[logits, target])?;
    if logits.shape() != target.shape() {
        let message = format!("probabilities {} must have the shape of logits {}", target.shape(), logits.shape());
        return Err(Error::shape(op, message));
    }
    if options.ignore_index.is_some() || options.token_bytes.is_some() {
        return Err(Error::attr(
            op,
            "ignore_index and token_bytes need class indices, but the target is probabilities",
        ));
    }
    let dim = class_dim(op, logp, target)?;
    let smoothing = options.label_smoothing;
    let mut q = target.cast(logp.dtype())?;
    if smoothing > 0.0 {
        q = q.mul_scalar(1.0 - smoothing)?.add_scalar(smoothing / logp.dims()[dim as usize] as f64)?;
    }
    if let Some(w) = &options.weight {
        q = q.mul(&per_class(op, "weight", logp, dim, w)?)?;
    }
    let loss = q.mul(logp)?.sum(dim)?.neg()?;
    options.reduction.apply(&loss)
}

fn indices(
    op: &'static str,
    logp: &Tensor,
    target: &Tensor,
    counted: &Tensor,
    dim: isize,
    options: &CrossEntropy,
) -> Result<Tensor> {
    let index = counted.where_scalar(target, 0)?.unsqueeze(dim)?;
    let at_target = |t: &Tensor| -> Result<Tensor> {
        let t = t.broadcast_to(logp.shape())?;
        let picked = t.gather(dim, &index).map_err(|e| match e.kind() {
            Kind::Index => class_error(op, &e),
            _ => e,
        })?;
        picked.squeeze(dim)
    };
    let weight = options.weight.as_ref().map(|w| per_class(op, "weight", logp, dim, w)).transpose()?;
    let of_target = weight.as_ref().map(&at_target).transpose()?;
    let mut loss = at_target(logp)?.neg()?;
    if let Some(w) = &of_target {
        loss = loss.mul(w)?;
    }
    let smoothing = options.label_smoothing;
    if smoothing > 0.0 {
        let all = match &weight {
            Some(w) => logp.mul(w)?.sum(dim)?,
            None => logp.sum(dim)?,
        };
        let share = smoothing / logp.dims()[dim as usize] as f64;
        loss = loss.mul_scalar(1.0 - smoothing)?.sub(&all.mul_scalar(share)?)?;
    }
    // Selected, not multiplied: an ignored element has gradient 0 whatever its loss.
    let loss = counted.where_scalar(&loss, 0.0)?;
    let counts = |of_target: Option<&Tensor>| match of_target {
        Some(w) => counted.where_scalar(w, 0.0),
        None => counted.cast(logp.dtype()),
    };
    if let Some(bytes) = &options.token_bytes {
        let bytes = counts(Some(&at_target(&per_class(op, "token_bytes", logp, dim, bytes)?)?))?;
        let total = bytes.sum(..)?;
        let empty = total.eq_scalar(0.0)?;
        let mean = loss.mul(&bytes)?.sum(..)?.div(&empty.logical_not()?.where_scalar(&total, 1.0)?)?;
        return empty.logical_not()?.where_scalar(&mean, 0.0);
    }
    match options.reduction {
        Reduction::Mean => loss.sum(..)?.div(&counts(of_target.as_ref())?.sum(..)?),
        other => other.apply(&loss),
    }
}
