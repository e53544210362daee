//! Dropout.

use super::random::threshold;
use super::{gradients, pointwise_one};
use crate::capture::Draw;
use crate::fused::{Fused, has_kernel, run_fused};
use crate::pointwise::Pointwise;
use crate::tape::record;
use crate::tensor::{Attributes, check_float};
use crate::{Error, Result, Rng, RngState, Tensor};
use smallvec::SmallVec;

/// Input: x. Output: `x m scale`, where m is 1 if a 32-bit draw is below the threshold, else 0. An optional second input, i64
/// `[3]`, is added to the generator's state. The kernel is its own backward kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The state of the generator at the first draw.
    pub state: RngState,
    /// Draws below this number keep an element; up to 2^32.
    pub threshold: i64,
    /// The factor of kept elements.
    pub scale: f64,
}

impl Fused for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (x, rng) = (&inputs[0], self.state.generator(inputs.get(1))?);
        let mask = Tensor::bernoulli(x.shape(), self.threshold as f64 / 4_294_967_296.0, x.device(), &rng)?;
        Ok(vec![Some(x.mul(&mask.cast(x.dtype())?)?.mul_scalar(self.scale)?)])
    }
}

impl Tensor {
    /// Multiplies each element by 0 with probability `p`, and by `1 / (1 - p)` otherwise. With `p` 0 nothing is drawn; with `p` 1
    /// every element is multiplied by 0. Float dtypes. Errors: `Attr` unless `0 <= p <= 1`. Srivastava et al. 2014, JMLR 15.
    pub fn dropout(&self, p: f64, rng: &Rng) -> Result<Tensor> {
        let op = "dropout";
        check_float(op, self)?;
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::attr(op, format!("p is {p}, expected 0 to 1")));
        }
        if p == 0.0 {
            return Ok(self.clone());
        }
        let scale = if p == 1.0 { 0.0 } else { 1.0 / (1.0 - p) };
        if has_kernel::<Dropout>(self) {
            return fused(op, self, rng.advance(self.numel())?, threshold(1.0 - p), scale);
        }
        let mask = Tensor::bernoulli(self.shape(), 1.0 - p, self.device(), rng)?;
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

/// `x mask scale` for these draws. The gradient repeats the draws, so no mask is saved.
fn fused(op: &'static str, x: &Tensor, draw: Draw, threshold: i64, scale: f64) -> Result<Tensor> {
    let x = x.contiguous()?;
    let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
    let inputs: SmallVec<[&Tensor; 2]> = std::iter::once(&x).chain(&draw.base).collect();
    run_fused(op, &Dropout { state: draw.state, threshold, scale }, &inputs, &[&y])?;
    drop(inputs);
    record(op, &[&x], y, move |t| gradients![Some(fused("dropout_backward", t.dy(), draw.clone(), threshold, scale)?)])
}

/// `x mask scale`.
fn masked(x: &Tensor, mask: &Tensor, scale: f64) -> Result<Tensor> {
    pointwise_one("dropout", Pointwise::Dropout, &[x, mask], Attributes::floats(&[scale]), x.shape(), x.dtype())
}
