//! Cross entropy and negative log likelihood.

use super::{Reduction, check_constant};
use crate::backend::class_error;
use crate::check::{check_device, check_float, check_same, describe};
use crate::fused::{Fused, gradient_by_ops, has_kernel, run_fused};
use crate::operands::{List, Operands, Output};
use crate::tape::{Backward, Record};
use crate::{Dims, Error, Kind, Result, Shape, Tensor, autocast};
use std::iter::{once, repeat};

/// The attributes of [`Tensor::cross_entropy_with`] and [`Tensor::nll_loss`].
#[derive(Clone, Debug, Default)]
pub struct CrossEntropy {
    /// A weight for each class, `[C]`; of a float dtype.
    pub weight: Option<Tensor>,
    /// The ignored target; -100 if absent. Only with class indices.
    pub ignore_index: Option<i64>,
    /// The fraction of the target that is spread evenly over the classes, 0 to 1.
    pub label_smoothing: f64,
    /// The reduction of the losses. `Mean` divides by the sum of the weights of the targets.
    pub reduction: Reduction,
    /// Bytes of each class, `[C]`. The loss is then the sum of the losses times the bytes of their targets, divided by the sum of
    /// these bytes (0 if that is 0). This replaces the reduction.
    pub token_bytes: Option<Tensor>,
}

/// The losses of logits, or of log probabilities, for class indices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyForward {
    /// The product of the extents before the classes.
    pub outer: usize,
    /// Classes.
    pub classes: usize,
    /// The product of the extents after the classes.
    pub inner: usize,
    /// The ignored target.
    pub ignored: i64,
    /// The sum of the losses, if any.
    pub total: LossTotal,
    /// True if the logits are log probabilities.
    pub is_logarithm: bool,
    /// Label smoothing.
    pub smoothing: f64,
}

/// The reduction of the losses of all targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossTotal {
    /// The losses themselves.
    None,
    /// The sum of the losses, divided by a number.
    Sum {
        /// The divisor.
        divisor: f64,
    },
    /// The mean of the losses. The divisor is the sum of the targets' bytes, without bytes the sum of their weights, without
    /// weights their number.
    Mean,
}

/// The gradient of [`CrossEntropyForward`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyBackward(pub CrossEntropyForward);

crate::operands! {
    /// The inputs of [`CrossEntropyForward`]. Numbers of classes are in the accumulation dtype.
    pub struct CrossEntropyInputs {
        /// Logits or log probabilities, `[outer, classes, inner]`.
        x,
        /// The class of each loss, `[outer, inner]`.
        target,
        /// The weights of classes, `[classes]`.
        weight?,
        /// The bytes of classes, `[classes]`; see [`CrossEntropy::token_bytes`].
        bytes?,
    }
}

crate::operands! {
    /// The outputs of [`CrossEntropyForward`].
    pub struct CrossEntropyOutputs {
        /// The losses `[outer, inner]`, or one number from them.
        y,
        /// The largest logit, and the logarithm of the sum of powers relative to it: `[2, outer, inner]`. Unspecified for log probabilities.
        statistics,
        /// The divisor of the sum, if the losses are summed.
        divisor?,
    }
}

crate::operands! {
    /// The inputs of [`CrossEntropyBackward`].
    pub struct CrossEntropyBackwardInputs {
        /// The gradient of y.
        dy,
        /// As in the forward kernel.
        x,
        /// As in the forward kernel.
        target,
        /// As in the forward kernel.
        statistics,
        /// As in the forward kernel.
        weight?,
        /// As in the forward kernel.
        bytes?,
        /// As in the forward kernel.
        divisor?,
        /// The sum of the weights, if there is label smoothing too.
        all_weights?,
    }
}

impl CrossEntropyForward {
    /// The losses, or one number from them.
    fn loss(&self, CrossEntropyInputs { x, target, weight, bytes }: CrossEntropyInputs<&Tensor>) -> Result<Tensor> {
        let x = x.reshape((self.outer, self.classes, self.inner))?;
        let target = target.reshape((self.outer, self.inner))?;
        let (weight, token_bytes) = (weight.cloned(), bytes.cloned());
        let (reduction, divisor) = match self.total {
            LossTotal::None => (Reduction::None, 1.0),
            LossTotal::Sum { divisor } => (Reduction::Sum, divisor),
            LossTotal::Mean => (Reduction::Mean, 1.0),
        };
        let (ignore_index, label_smoothing) = (Some(self.ignored), self.smoothing);
        let options = CrossEntropy { weight, ignore_index, label_smoothing, reduction, token_bytes };
        let op = if self.is_logarithm { NLL } else { "cross_entropy" };
        composite(op, &x, &target, 1, &options)?.div_scalar(divisor)
    }

    /// The divisor of the sum of the losses.
    fn divisor(&self, CrossEntropyInputs { x, target, weight, bytes }: CrossEntropyInputs<&Tensor>) -> Result<Tensor> {
        if let LossTotal::Sum { divisor } = self.total {
            return Tensor::full((), divisor, x.dtype(), x.device());
        }
        let is_counted = target.ne_scalar(self.ignored)?;
        let counts = match bytes.or(weight) {
            None => Tensor::ones(target.shape(), x.dtype(), x.device())?,
            Some(numbers) => {
                let index = is_counted.where_scalar(target, 0)?.reshape(target.numel())?;
                numbers.cast(x.dtype())?.index_select(0, &index)?.reshape(target.shape())?
            }
        };
        is_counted.where_scalar(&counts, 0.0)?.sum(..)
    }
}

impl Fused for CrossEntropyForward {
    type Inputs<T> = CrossEntropyInputs<T>;
    type Outputs<T> = CrossEntropyOutputs<T>;

    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn composite(
        &self,
        inputs: CrossEntropyInputs<&Tensor>,
        before: CrossEntropyOutputs<&Tensor>,
    ) -> Result<CrossEntropyOutputs<Option<Tensor>>> {
        // The loss of log probabilities needs no statistics.
        let statistics = match self.is_logarithm {
            true => None,
            false => {
                let x = inputs.x.reshape((self.outer, self.classes, self.inner))?;
                let max = x.amax_keepdim(1)?;
                Some(Tensor::stack(&[&max, &x.sub(&max)?.exp()?.sum_keepdim(1)?.log()?], 0)?)
            }
        };
        let divisor = before.divisor.map(|_| self.divisor(inputs).map(Some)).transpose()?;
        Ok(CrossEntropyOutputs { y: Some(self.loss(inputs)?), statistics, divisor })
    }

    // The statistics of an ignored target are not read.
    fn are_read(&self, inputs: CrossEntropyInputs<&Tensor>) -> Result<List<Option<Tensor>>> {
        let is_counted = inputs.target.ne_scalar(self.ignored)?;
        let statistics = Tensor::stack(&[&is_counted, &is_counted], 0)?;
        Ok(CrossEntropyOutputs { y: None, statistics: Some(statistics), divisor: None }.present())
    }
}

impl Fused for CrossEntropyBackward {
    type Inputs<T> = CrossEntropyBackwardInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "cross_entropy_backward"
    }

    fn composite(
        &self,
        CrossEntropyBackwardInputs { dy, x, target, weight, bytes, .. }: CrossEntropyBackwardInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        let x = x.require_grad()?;
        let inputs = CrossEntropyInputs { x: &x, target, weight, bytes };
        gradient_by_ops(&x, &dy.cast(x.dtype())?, || self.0.loss(inputs))
    }
}

/// The op whose input is log probabilities.
const NLL: &str = "nll_loss";

/// # Losses of classes
impl Tensor {
    /// The mean cross entropy of logits `[N, C, d..]` or `[C]` with class indices `[N, d..]` (i64 or i32) or
    /// probabilities `[N, C, d..]`. Errors: as [`cross_entropy_with`](Tensor::cross_entropy_with).
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let (logits, classes) = (Tensor::zeros((2, 4), DType::F32, device)?, Tensor::from_vec(vec![3i64, 0], 2, device)?);
    /// assert!((logits.cross_entropy(&classes)?.item::<f64>()? - 4f64.ln()).abs() < 1e-6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn cross_entropy(&self, target: &Tensor) -> Result<Tensor> {
        self.cross_entropy_with(target, &CrossEntropy::default())
    }

    /// [`cross_entropy`](Tensor::cross_entropy) with weights, ignored targets, label smoothing and a reduction. If all targets are
    /// ignored, the mean is NaN and the gradient 0. If all logits of a target are -inf, the loss is NaN and the gradient 0, as for
    /// [`log_softmax`](Tensor::log_softmax). Float dtypes. Targets that are probabilities have a gradient too.
    ///
    /// Errors: `Shape`, `Dtype`; `Attr` for a smoothing outside of `0..=1` or an ignore_index with probabilities; `Index`
    /// for a class outside of `0..C`.
    pub fn cross_entropy_with(&self, target: &Tensor, options: &CrossEntropy) -> Result<Tensor> {
        let op = "cross_entropy";
        let is_fused = !target.dtype().is_float() && has_kernel::<CrossEntropyForward>(self);
        // The kernel computes in f32, and writes its result so within an autocast.
        let wide = if is_fused { None } else { autocast::wide([self, target], None)? };
        if let Some(([x, target], _)) = wide {
            return x.cross_entropy_with(&target, options);
        }
        check_float(op, self)?;
        check_weight(op, options)?;
        if !(0.0..=1.0).contains(&options.label_smoothing) {
            let message = format!("label_smoothing is {}, expected 0 to 1", options.label_smoothing);
            return Err(Error::attr(op, message));
        }
        let dim = class_dim(op, self, target)?;
        if !is_fused {
            return composite(op, self, target, dim, options);
        }
        check_indices(op, self, target, dim)?;
        fused(op, self, target, dim, options)
    }

    /// `-w[t] logp[t]` for log probabilities `[N, C, d..]` or `[C]` and class indices `[N, d..]`. Label smoothing is ignored.
    /// Errors: as [`cross_entropy_with`](Tensor::cross_entropy_with).
    pub fn nll_loss(&self, target: &Tensor, options: &CrossEntropy) -> Result<Tensor> {
        let op = NLL;
        let is_fused = has_kernel::<CrossEntropyForward>(self);
        let wide = if is_fused { None } else { autocast::wide([self, target], None)? };
        if let Some(([x, target], _)) = wide {
            return x.nll_loss(&target, options);
        }
        check_float(op, self)?;
        check_weight(op, options)?;
        let dim = class_dim(op, self, target)?;
        let options = CrossEntropy { label_smoothing: 0.0, ..options.clone() };
        if !is_fused {
            return composite(op, self, target, dim, &options);
        }
        check_indices(op, self, target, dim)?;
        fused(op, self, target, dim, &options)
    }
}

/// The dimension of the classes: 1, or 0 for a single sample.
fn class_dim(op: &'static str, x: &Tensor, target: &Tensor) -> Result<isize> {
    let dim = if x.rank() == 1 { 0 } else { 1 };
    let is_of_indices = target.rank() + 1 == x.rank();
    if target.dtype().is_float() && is_of_indices {
        let message = format!("the targets are {} {}", target.dtype(), target.shape());
        let expected =
            format!("class indices are i64 or i32, and probabilities have the shape {} of the logits", x.shape());
        return Err(Error::dtype(op, format!("{message}: {expected}")));
    }
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

/// One number per class, `[C]` in the accumulation dtype.
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

/// Checks that the targets are class indices for `x`.
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
        return Err(Error::shape(op, format!("class indices must be {:?}: {operands}", &expected[..])));
    }
    Ok(())
}

/// The ignored target, or its default.
fn ignored(options: &CrossEntropy) -> i64 {
    options.ignore_index.unwrap_or(-100)
}

/// The loss for class indices. Forward and backward each read the logits once. No tensor of their size is saved.
fn fused(op: &'static str, x: &Tensor, target: &Tensor, dim: isize, options: &CrossEntropy) -> Result<Tensor> {
    // Classes that are last in memory are rows.
    let (x, dim) = match dim == 1 && x.is_channels_last() {
        true => (x.with_channels_at_end()?, x.rank() as isize - 1),
        false => (x.clone(), dim),
    };
    let (x, target) = (x.contiguous()?, target.contiguous()?);
    let (acc, device, d) = (x.dtype().acc(), x.device(), dim as usize);
    let numbers = |name, w: &Option<Tensor>| match w {
        Some(w) => class_numbers(op, name, &x, dim, w)?.contiguous().map(Some),
        None => Ok(None),
    };
    let (weight, bytes) = (numbers("weight", &options.weight)?, numbers("token_bytes", &options.token_bytes)?);
    let total = match options.reduction {
        _ if bytes.is_some() => LossTotal::Mean,
        Reduction::Mean => LossTotal::Mean,
        Reduction::None => LossTotal::None,
        Reduction::Sum => LossTotal::Sum { divisor: 1.0 },
        Reduction::BatchMean => LossTotal::Sum { divisor: target.dims().first().copied().unwrap_or(1) as f64 },
    };
    let (outer, inner): (usize, usize) = (x.dims()[..d].iter().product(), x.dims()[d + 1..].iter().product());
    let kernel = CrossEntropyForward {
        outer,
        classes: x.dims()[d],
        inner,
        ignored: ignored(options),
        total,
        is_logarithm: op == NLL,
        smoothing: options.label_smoothing,
    };
    let shape = if total == LossTotal::None { target.shape().clone() } else { Shape::from(()) };
    let dtype = if autocast::current().is_some() { acc } else { x.dtype() };
    let y = Tensor::allocate(op, &shape, dtype, device)?;
    let statistics = Tensor::allocate(op, &Shape::from((2, target.numel())), acc, device)?;
    let divisor = if total == LossTotal::None { None } else { Some(Tensor::allocate(op, &shape, acc, device)?) };
    let inputs = CrossEntropyInputs { x: &x, target: &target, weight: weight.as_ref(), bytes: bytes.as_ref() };
    let outputs = CrossEntropyOutputs { y: &y, statistics: &statistics, divisor: divisor.as_ref() };
    run_fused(op, &kernel, inputs, outputs)?;
    let again = {
        let options = options.clone();
        move |x: &[Tensor]| composite(op, &x[0].cast(dtype)?, &x[1], dim, &options)
    };
    let mask = inputs.mask();
    Record::new(op, &inputs.present()).fused(y, again, move |t: &Backward<'_>, inputs: &[Tensor]| {
        let CrossEntropyInputs { x, target, weight, bytes } = CrossEntropyInputs::of(mask, &mut inputs.iter());
        let (dy, dx) = (t.dy().contiguous()?, Tensor::allocate(op, x.shape(), x.dtype(), x.device())?);
        let all_weights = weight.filter(|_| kernel.smoothing > 0.0).map(|weight| weight.sum(..)).transpose()?;
        let read = CrossEntropyBackwardInputs {
            dy: &dy,
            x,
            target,
            statistics: &statistics,
            weight,
            bytes,
            divisor: divisor.as_ref(),
            all_weights: all_weights.as_ref(),
        };
        run_fused(op, &CrossEntropyBackward(kernel), read, Output { y: &dx })?;
        Ok(once(Some(dx)).chain(repeat(None)).take(inputs.len()).collect())
    })
}

/// The kernel's composite.
fn composite(op: &'static str, x: &Tensor, target: &Tensor, dim: isize, options: &CrossEntropy) -> Result<Tensor> {
    let wide = x.cast(x.dtype().acc())?;
    if op != NLL && target.dtype().is_float() {
        return probabilities(op, &wide.log_softmax(dim)?, x, target, options)?.cast(x.dtype());
    }
    check_indices(op, x, target, dim)?;
    let counted = target.ne_scalar(ignored(options))?;
    let logp = match op {
        NLL => wide,
        // The gradient of a NaN softmax is NaN even for a gradient of 0.
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
    // 0 ln 0 is 0: a class that is masked, and that the target leaves out, is no term.
    let is_absent = q.eq_scalar(0.0)?.logical_and(&logp.eq_scalar(f64::NEG_INFINITY)?)?;
    let loss = q.mul(&is_absent.logical_not()?.where_scalar(logp, 0.0)?)?.sum(dim)?.neg()?;
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
    // Selection instead of multiplication: an ignored element has gradient 0 whatever its loss.
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
