//! Dropout.

use crate::{Forward, Init, Mode, Module, called};
use isograd_core::{Result, Rng, Tensor};

/// Multiplies elements by 0 with probability `p` in training. The identity in evaluation.
///
/// ```
/// # use isograd_core::{DType, Device, Tensor};
/// # use isograd_nn::{Dropout, Forward, Init, Module};
/// # use isograd_cpu as _;
/// # fn main() -> isograd_core::Result<()> {
/// let device = Device::cpu()?;
/// let (dropout, x) = (Dropout::new(0.5, &Init::new(&device)), Tensor::ones(100, DType::F32, &device)?);
/// assert!(!dropout.forward(&x)?.allclose(&x, 0.0, 0.0)?);
/// dropout.eval();
/// assert!(dropout.forward(&x)?.allclose(&x, 0.0, 0.0)?);
/// # Ok(())
/// # }
/// ```
#[derive(Module)]
#[module(details = self.p.to_string())]
pub struct Dropout {
    #[module(skip)]
    p: f64,
    #[module(skip)]
    rng: Rng,
    mode: Mode,
}

impl Dropout {
    /// Draws from the generator of `init`. Errors (in `forward`): `Attr` unless `0 <= p <= 1`.
    pub fn new(p: f64, init: &Init) -> Dropout {
        Dropout { p, rng: init.rng().clone(), mode: Mode::default() }
    }
}

impl Dropout {
    /// Dropout of the sum of x `[.., C]` and a bias `[C]`. On a GPU it is one kernel. Errors: `Shape`, `Dtype`.
    pub fn forward_with_bias(&self, x: &Tensor, bias: &Tensor) -> Result<Tensor> {
        called(self, &[x, bias], || x.bias_dropout(bias, if self.mode.is_training() { self.p } else { 0.0 }, &self.rng))
    }
}

impl Forward for Dropout {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || if self.mode.is_training() { x.dropout(self.p, &self.rng) } else { Ok(x.clone()) })
    }
}
