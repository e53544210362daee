//! Linear and bilinear layers.

use crate::details::{bias, extent};
use crate::{Forward, Init, Module, called};
use isograd_core::ops::{Activation, GemmBias, Transpose};
use isograd_core::{Result, Tensor};

/// `x w^T + b` for `x: [.., in]`.
///
/// ```
/// # use isograd_core::{DType, Device, Tensor};
/// # use isograd_nn::{Forward, Init, Linear};
/// # use isograd_cpu as _;
/// # fn main() -> isograd_core::Result<()> {
/// let device = Device::cpu()?;
/// let layer = Linear::new(64, 10, &Init::new(&device).seed(42))?;
/// let y = layer.forward(&Tensor::ones((32, 64), DType::F32, &device)?)?;
/// assert_eq!(y.dims(), [32, 10]);
/// assert_eq!(format!("{layer:?}"), "Linear(64 -> 10, bias)");
/// # Ok(())
/// # }
/// ```
#[derive(Module)]
#[module(details = format!("{} -> {}{}", extent(&self.weight, 1), extent(&self.weight, 0), bias(&self.bias)))]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
}

impl Linear {
    /// Weight and bias uniform in `±1 / sqrt(in)`.
    pub fn new(input: usize, output: usize, init: &Init) -> Result<Linear> {
        let bound = bound(input);
        let weight = init.uniform((output, input), -bound, bound)?;
        Ok(Linear { weight, bias: Some(init.uniform(output, -bound, bound)?) })
    }

    /// Without a bias.
    pub fn without_bias(input: usize, output: usize, init: &Init) -> Result<Linear> {
        let bound = bound(input);
        Ok(Linear { weight: init.uniform((output, input), -bound, bound)?, bias: None })
    }
}

/// The bound of Kaiming's uniform rule for a leaky relu of slope sqrt(5).
pub(crate) fn bound(input: usize) -> f64 {
    if input == 0 { 0.0 } else { 1.0 / (input as f64).sqrt() }
}

impl Forward for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || x.linear(&self.weight, self.bias.as_ref()))
    }

    /// `activation(x w^T + b)`, rounded once. On a GPU it is one kernel. Hooks get the activated result. Errors: `Shape`.
    fn forward_with(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        called(self, &[x], || {
            let options = GemmBias { trans_b: Transpose::Yes, activation, ..Default::default() };
            x.gemm_bias(&self.weight, self.bias.as_ref(), &options)
        })
    }
}

/// `y[.., o] = x1[.., i] weight[o, i, j] x2[.., j] + bias[o]`, summed over i and j, for `x1: [.., in1]` and `x2: [.., in2]`.
#[derive(Module)]
#[module(details = self.text())]
pub struct Bilinear {
    /// `[out, in1, in2]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
}

impl Bilinear {
    /// Weight and bias uniform in `±1 / sqrt(in1)`.
    pub fn new(input1: usize, input2: usize, output: usize, init: &Init) -> Result<Bilinear> {
        let bound = bound(input1);
        let weight = init.uniform((output, input1, input2), -bound, bound)?;
        Ok(Bilinear { weight, bias: Some(init.uniform(output, -bound, bound)?) })
    }

    /// Without a bias.
    pub fn without_bias(input1: usize, input2: usize, output: usize, init: &Init) -> Result<Bilinear> {
        let bound = bound(input1);
        Ok(Bilinear { weight: init.uniform((output, input1, input2), -bound, bound)?, bias: None })
    }

    fn text(&self) -> String {
        let [output, input1, input2] = [0, 1, 2].map(|axis| extent(&self.weight, axis));
        format!("{input1} x {input2} -> {output}{}", bias(&self.bias))
    }

    /// The form of two inputs with equal leading dimensions. Errors: `Shape`, `Dtype`.
    pub fn forward(&self, x1: &Tensor, x2: &Tensor) -> Result<Tensor> {
        called(self, &[x1, x2], || x1.bilinear(x2, &self.weight, self.bias.as_ref()))
    }
}
