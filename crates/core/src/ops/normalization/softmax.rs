//! Softmax, log-softmax and softmax1.

use crate::check::check_float;
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands::{Input, Output};
use crate::ops::{gradients, in_acc, pointwise_one};
use crate::pointwise::Pointwise;
use crate::tape::{Record, Saved, report};
use crate::tensor::Attributes;
use crate::{Position, Result, Tensor, autocast};

/// The function of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftmaxKind {
    /// `e^x / sum(e^x)`.
    Plain,
    /// Its logarithm.
    Logarithm,
    /// `e^x / (1 + sum(e^x))`.
    PlusOne,
}

/// The softmax of x `[outer, extent, inner]` along the middle dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Softmax {
    /// The product of the extents before the dimension.
    pub outer: usize,
    /// The extent of the dimension.
    pub extent: usize,
    /// The product of the extents after the dimension.
    pub inner: usize,
    /// The function of a slice.
    pub kind: SoftmaxKind,
}

/// The gradient of [`Softmax`]. In a slice with an undefined softmax, where y is NaN, it is 0 where x is -infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftmaxBackward(pub Softmax);

crate::operands! {
    /// The inputs of [`SoftmaxBackward`].
    pub struct SoftmaxBackwardInputs {
        /// The gradient of y.
        dy,
        /// The result of the forward kernel.
        y,
        /// Its input.
        x,
    }
}

impl Softmax {
    fn shaped(&self, t: &Tensor) -> Result<Tensor> {
        t.reshape((self.outer, self.extent, self.inner))
    }
}

impl Fused for Softmax {
    type Inputs<T> = Input<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "softmax"
    }

    fn composite(&self, Input { x }: Input<&Tensor>, _before: Output<&Tensor>) -> Result<Output<Option<Tensor>>> {
        Ok(Output { y: Some(composite(&self.shaped(x)?, 1, self.kind)?) })
    }
}

impl Fused for SoftmaxBackward {
    type Inputs<T> = SoftmaxBackwardInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "softmax_backward"
    }

    fn composite(
        &self,
        inputs: SoftmaxBackwardInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        let SoftmaxBackwardInputs { dy, y, x } = inputs.try_map(|t| self.0.shaped(t))?;
        let dx = match self.0.kind {
            SoftmaxKind::Plain | SoftmaxKind::PlusOne => y.mul(&dy.sub(&dy.mul(&y)?.sum_keepdim(1)?)?)?,
            SoftmaxKind::Logarithm => dy.sub(&y.exp()?.mul(&dy.sum_keepdim(1)?)?)?,
        };
        let is_masked = y.ne(&y)?.logical_and(&x.eq_scalar(f64::NEG_INFINITY)?)?;
        Ok(Output { y: Some(is_masked.logical_not()?.where_scalar(&dx, 0.0)?) })
    }
}

/// # Softmax
impl Tensor {
    /// `e^x / sum(e^x)` along `dim`, without overflow. Float dtypes. The softmax is NaN for a slice with NaN or +inf, or of -inf
    /// alone. Errors: `Attr` for a dimension out of range.
    ///
    /// In such a slice the gradient of elements that are -inf is 0 (in PyTorch NaN), so that a slice that is masked throughout does
    /// not make other gradients NaN. The gradient of other elements is NaN.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let scores = Tensor::zeros((3, 4), DType::F32, device)?;
    /// assert_eq!(scores.softmax(-1)?.to_vec::<f32>()?, [0.25; 12]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn softmax(&self, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        reported("softmax", self, dim, SoftmaxKind::Plain)
    }

    /// `ln softmax(x)` along `dim`. Float dtypes. NaN and its gradients are as in [`softmax`](Tensor::softmax). Errors: `Attr`.
    pub fn log_softmax(&self, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        reported("log_softmax", self, dim, SoftmaxKind::Logarithm)
    }

    /// `e^x / (1 + sum(e^x))` along `dim`, without overflow: a softmax with one more element 0, which is left out. As weights of
    /// attention it can attend to nothing. Float dtypes. It is 0 for a slice of -inf alone, and NaN for a slice with NaN or +inf.
    /// Errors: `Attr` for a dimension out of range. Miller 2023, "Attention Is Off By One".
    pub fn softmax1(&self, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        reported("softmax1", self, dim, SoftmaxKind::PlusOne)
    }

    /// [`softmax`](Tensor::softmax) of `-x`.
    pub fn softmin(&self, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        self.neg()?.softmax(dim)
    }
}

fn reported(op: &'static str, x: &Tensor, dim: isize, kind: SoftmaxKind) -> Result<Tensor> {
    let y = softmax(op, x, dim, kind)?;
    report(op, &[x], &[&y], || [("dim", dim.rem_euclid(x.rank().max(1) as isize).unsigned_abs().into())]);
    Ok(y)
}

fn softmax(op: &'static str, x: &Tensor, dim: isize, kind: SoftmaxKind) -> Result<Tensor> {
    if let Some(([x], _)) = autocast::wide([x], None)? {
        return softmax(op, &x, dim, kind);
    }
    check_float(op, x)?;
    let d = x.shape().dim_for(op, dim)?;
    if !has_kernel::<Softmax>(x) || x.rank() == 0 {
        return unfused(op, x, dim, kind);
    }
    let x = x.contiguous()?;
    let (outer, inner): (usize, usize) = (x.dims()[..d].iter().product(), x.dims()[d + 1..].iter().product());
    let fused = Softmax { outer, extent: x.dims()[d], inner, kind };
    let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
    run_fused(op, &fused, Input { x: &x }, Output { y: &y })?;
    let saved = Saved::output(&y);
    Record::new(op, &[&x]).fused(
        y,
        move |x| composite(&x[0], dim, kind),
        move |t, x| {
            let (dy, y) = (t.dy().contiguous()?, t.get(&saved)?);
            let dx = Tensor::allocate(op, y.shape(), y.dtype(), y.device())?;
            let inputs = SoftmaxBackwardInputs { dy: &dy, y: &y, x: &x[0] };
            run_fused(op, &SoftmaxBackward(fused), inputs, Output { y: &dx })?;
            gradients![Some(dx)]
        },
    )
}

/// For devices without a kernel: tensor ops, with a rule that needs fewer passes than their own rules.
fn unfused(op: &'static str, x: &Tensor, dim: isize, kind: SoftmaxKind) -> Result<Tensor> {
    if x.numel() == 0 {
        return composite(x, dim, kind);
    }
    let acc = x.dtype().acc();
    let Powers { z, e, sum } = powers(&x.detach().cast(acc)?, dim, kind)?;
    let is_logarithm = kind == SoftmaxKind::Logarithm;
    let wide = if is_logarithm { z.sub(&sum.log()?)? } else { e.div(&sum)? };
    let y = wide.cast(x.dtype())?;
    let saved = Saved::input(if is_logarithm { &e } else { &wide });
    Record::new(op, &[x]).fused(
        y,
        move |x| composite(&x[0], dim, kind),
        move |t, x| {
            let (dy, kept) = (t.dy(), t.get(&saved)?);
            let wide = dy.cast(acc)?;
            let run = |row, inputs: &[&Tensor]| {
                pointwise_one(op, row, inputs, Attributes::default(), x[0].shape(), x[0].dtype())
            };
            gradients![Some(match kind {
                SoftmaxKind::Plain | SoftmaxKind::PlusOne => {
                    let dot = wide.mul(&kept)?.sum_keepdim(dim)?;
                    run(Pointwise::SoftmaxBackward, &[dy, &x[0], &kept, &dot])?
                }
                SoftmaxKind::Logarithm => {
                    let total = wide.sum_keepdim(dim)?;
                    run(Pointwise::LogSoftmaxBackward, &[dy, &x[0], &kept, &sum, &total])?
                }
            })]
        },
    )
}

/// The kernel's composite.
fn composite(x: &Tensor, dim: isize, kind: SoftmaxKind) -> Result<Tensor> {
    in_acc(x, |x| {
        let Powers { z, e, sum } = powers(&unmasked(x, dim)?, dim, kind)?;
        if kind == SoftmaxKind::Logarithm { z.sub(&sum.log()?) } else { e.div(&sum) }
    })
}

/// x, where -inf elements of slices with an undefined softmax are constants.
fn unmasked(x: &Tensor, dim: isize) -> Result<Tensor> {
    if x.numel() == 0 {
        return Ok(x.clone());
    }
    let fixed = x.detach();
    let has_none = fixed.amax_keepdim(dim)?.not_finite()?.broadcast_to(x.shape())?;
    has_none.logical_and(&fixed.eq_scalar(f64::NEG_INFINITY)?)?.where_cond(&fixed, x)
}

/// `z = x - max(x)`, `e = e^z`, and the denominator of the softmax `[.., 1, ..]`.
struct Powers {
    z: Tensor,
    e: Tensor,
    sum: Tensor,
}

/// The maximum is a constant, because the result does not depend on it. That of softmax1 is at least 0, the logarithm of its 1.
fn powers(x: &Tensor, dim: isize, kind: SoftmaxKind) -> Result<Powers> {
    if x.numel() == 0 {
        let e = x.exp()?;
        return Ok(Powers { z: x.clone(), sum: e.sum_keepdim(dim)?, e });
    }
    let max = x.detach().amax_keepdim(dim)?;
    let max = if kind == SoftmaxKind::PlusOne { max.relu()? } else { max };
    let z = x.sub(&max)?;
    let e = z.exp()?;
    let sum = e.sum_keepdim(dim)?;
    let sum = if kind == SoftmaxKind::PlusOne { sum.add(&max.neg()?.exp()?)? } else { sum };
    Ok(Powers { z, e, sum })
}
