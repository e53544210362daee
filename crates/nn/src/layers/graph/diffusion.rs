//! Diffusion on surfaces and graphs.

use crate::layers::bound;
use crate::{Init, Module, called};
use isograd_core::ops::{Spectrum, Times};
use isograd_core::{Result, Tensor};

/// Diffuses features of points for learned times, and maps them linearly: [`Tensor::diffusion_conv`].
#[derive(Debug, Module)]
pub struct DiffusionConv {
    /// The natural logarithms of the times, `[T]`.
    pub log_times: Tensor,
    /// `[out, T in]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
}

impl DiffusionConv {
    /// For `times` times, uniform in 0.1 to 1; weight and bias are uniform in `±1 / sqrt(times in)`.
    pub fn new(input: usize, output: usize, times: usize, init: &Init) -> Result<DiffusionConv> {
        let bound = bound(times * input);
        Ok(DiffusionConv {
            log_times: init.uniform(times, 0.1_f64.ln(), 0.0)?,
            weight: init.uniform((output, times * input), -bound, bound)?,
            bias: Some(init.uniform(output, -bound, bound)?),
        })
    }

    /// Maps x `[.., V, in]` to `[.., V, out]`. Errors: `Shape`, `Dtype`.
    pub fn forward(&self, x: &Tensor, spectrum: Spectrum<'_>) -> Result<Tensor> {
        called(self, &[x], || x.diffusion_conv(spectrum, Times::Log(&self.log_times), &self.weight, self.bias.as_ref()))
    }
}
