//! Negative logarithms of likelihoods of counts and of numbers. Both are composites in the accumulation dtype.

use super::Reduction;
use crate::check::{check_float, check_same, describe};
use crate::ops::named;
use crate::{Error, Result, Tensor, autocast};
use std::f64::consts::{PI, TAU};

/// The content of the input of [`Tensor::poisson_nll_loss`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// Logarithms of rates.
    #[default]
    Logarithm,
    /// Rates.
    Plain,
}

/// The terms of the logarithm of a likelihood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Terms {
    /// The terms that depend on the prediction.
    #[default]
    OfPrediction,
    /// All; the logarithm of a factorial by Stirling's formula.
    All,
}

/// The attributes of [`Tensor::poisson_nll_loss`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoissonNll {
    /// The content of the input.
    pub input: Rate,
    /// The terms of the loss.
    pub terms: Terms,
    /// Added to a plain rate before its logarithm.
    pub eps: f64,
    /// The reduction of the losses.
    pub reduction: Reduction,
}

impl Default for PoissonNll {
    fn default() -> Self {
        let (input, terms, reduction) = (Rate::default(), Terms::default(), Reduction::default());
        PoissonNll { input, terms, eps: 1e-8, reduction }
    }
}

/// The attributes of [`Tensor::gaussian_nll_loss`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaussianNll {
    /// The terms of the loss.
    pub terms: Terms,
    /// The smallest variance; above 0.
    pub eps: f64,
    /// The reduction of the losses.
    pub reduction: Reduction,
}

impl Default for GaussianNll {
    fn default() -> Self {
        GaussianNll { terms: Terms::default(), eps: 1e-6, reduction: Reduction::default() }
    }
}

/// # Losses of likelihoods
impl Tensor {
    /// `e^x - t x`, or `x - t ln(x + eps)` for plain rates, of counts `t`: the negative logarithm of a Poisson likelihood. With all
    /// terms, `t ln t - t + ln(2 pi t) / 2` is added where t is above 1. Operands broadcast, and both have gradients. Float dtypes.
    /// Errors: `Shape`, `Dtype`; `Attr` for an eps that is negative or NaN.
    pub fn poisson_nll_loss(&self, target: &Tensor, options: &PoissonNll) -> Result<Tensor> {
        let op = "poisson_nll_loss";
        if let Some(([x, target], _)) = autocast::wide([self, target], None)? {
            return x.poisson_nll_loss(&target, options);
        }
        let PoissonNll { input, terms, eps, reduction } = *options;
        check_float(op, self)?;
        check_same(op, &[self, target])?;
        if eps.is_nan() || eps < 0.0 {
            return Err(Error::attr(op, format!("eps is {eps}, expected at least 0")));
        }
        named(op, &[self, target], || {
            let (x, t) = (self.cast(self.dtype().acc())?, target.cast(self.dtype().acc())?);
            let loss = match input {
                Rate::Logarithm => x.exp()?.sub(&t.mul(&x)?)?,
                Rate::Plain => x.sub(&t.mul(&x.add_scalar(eps)?.log()?)?)?,
            };
            let loss = match terms {
                Terms::OfPrediction => loss,
                Terms::All => loss.add(&stirling(&t)?)?,
            };
            reduction.apply(&loss)?.cast(self.dtype())
        })
    }

    /// `(ln v + (x - t)^2 / v) / 2` for variances `v = max(var, eps)`: the negative logarithm of a normal likelihood. With all terms,
    /// `ln(2 pi) / 2` is added. `var` has the shape of x, its last extent may be 1 or missing; x and the target broadcast. All have
    /// gradients; the gradient of `var` does not stop at eps. Float dtypes. Errors: `Shape`, `Dtype`; `Attr` unless eps is positive.
    pub fn gaussian_nll_loss(&self, target: &Tensor, var: &Tensor, options: &GaussianNll) -> Result<Tensor> {
        let op = "gaussian_nll_loss";
        if let Some(([x, target, var], _)) = autocast::wide([self, target, var], None)? {
            return x.gaussian_nll_loss(&target, &var, options);
        }
        let GaussianNll { terms, eps, reduction } = *options;
        check_float(op, self)?;
        check_same(op, &[self, target, var])?;
        if eps.is_nan() || eps <= 0.0 {
            return Err(Error::attr(op, format!("eps is {eps}, expected more than 0")));
        }
        let fits = |k: usize, n: &usize| *n == self.dims()[k] || (k + 1 == self.rank() && *n == 1);
        let is_short = self.rank() > 0 && var.dims() == &self.dims()[..self.rank() - 1];
        if !is_short && (var.rank() != self.rank() || !var.dims().iter().enumerate().all(|(k, n)| fits(k, n))) {
            let message = format!("var of {} fits not x, the last extent of which it may lack", describe(&[self, var]));
            return Err(Error::shape(op, message));
        }
        named(op, &[self, target, var], || {
            let acc = self.dtype().acc();
            let [x, t, var] = [self.cast(acc)?, target.cast(acc)?, var.cast(acc)?];
            let var = if is_short { var.unsqueeze(-1)? } else { var };
            // A step that is constant on the tape.
            let plain = var.detach();
            let v = var.add(&plain.clamp(Some(eps.into()), None)?.sub(&plain)?)?;
            let loss = v.log()?.add(&x.sub(&t)?.square()?.div(&v)?)?.mul_scalar(0.5)?;
            let loss = match terms {
                Terms::OfPrediction => loss,
                Terms::All => loss.add_scalar(0.5 * TAU.ln())?,
            };
            reduction.apply(&loss)?.cast(self.dtype())
        })
    }
}

/// `t ln t - t + ln(2 pi t) / 2` above 1, and 0 elsewhere.
fn stirling(t: &Tensor) -> Result<Tensor> {
    let is_large = t.gt_scalar(1.0)?;
    let t = is_large.where_scalar(t, 1.0)?;
    let log = t.log()?;
    let formula = t.mul(&log)?.sub(&t)?.add(&log.add_scalar((2.0 * PI).ln())?.mul_scalar(0.5)?)?;
    is_large.where_scalar(&formula, 0.0)
}
