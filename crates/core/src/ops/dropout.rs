//! Dropout.

use super::{gradients, pointwise_one};
use crate::pointwise::Pointwise;
use crate::tape::record;
use crate::tensor::{Attributes, check_float};
use crate::{Error, Result, Rng, Tensor};

impl Tensor {
    /// Multiplies each element by 0 with probability `p` and by `1 / (1 - p)` otherwise. With `p` 0 nothing is drawn; at
    /// `p` 1 everything is multiplied by 0. Float dtypes. Errors: `Attr` unless `0 <= p <= 1`. Srivastava et al. 2014,
    /// JMLR 15.
    pub fn dropout(&self, p: f64, rng: &Rng) -> Result<Tensor> {
        let op = "dropout";
        check_float(op, self)?;
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::attr(op, format!("p is {p}, expected 0 to 1")));
        }
        if p == 0.0 {
            return Ok(self.clone());
        }
        let mask = Tensor::bernoulli(self.shape(), 1.0 - p, self.device(), rng)?;
        let scale = if p == 1.0 { 0.0 } else { 1.0 / (1.0 - p) };
        let y = masked(self, &mask, scale)?;
        record(op, &[self], y, move |t| gradients![Some(t.dy().masked_on_tape(&mask, scale)?)])
    }

    /// [`masked`], differentiable.
    fn masked_on_tape(&self, mask: &Tensor, scale: f64) -> Result<Tensor> {
        let kept = mask.clone();
        let y = masked(self, mask, scale)?;
        record("dropout_backward", &[self], y, move |t| gradients![Some(t.dy().masked_on_tape(&kept, scale)?)])
    }
}

/// `x mask scale`.
fn masked(x: &Tensor, mask: &Tensor, scale: f64) -> Result<Tensor> {
    pointwise_one("dropout", Pointwise::Dropout, &[x, mask], Attributes::floats(&[scale]), x.shape(), x.dtype())
}
