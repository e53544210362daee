//! Layers whose weights stay quantised.

use crate::details::bias;
use crate::module::Kind;
use crate::{Forward, Linear, Module, Visitor, VisitorMut, called};
use isograd_core::quantized::{BlockFormat, QuantizedWeight};
use isograd_core::{DType, Result, Tensor};

/// A state has the blocks, u8 `[rows, bytes of a row]`. They are no parameter: they are not trained, and keep their format when a module is cast.
impl Module for QuantizedWeight {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.tensor(self.bytes());
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        let mut bytes = self.bytes().clone();
        visitor.tensor(&mut bytes, Kind::State);
        *self =
            QuantizedWeight::new(self.format(), &bytes, self.dims()[1]).expect("blocks that are moved stay the same");
    }

    fn type_name(&self) -> &'static str {
        ""
    }
}

/// `x w^T + b` for `x: [.., in]`, and a weight that stays quantised in memory: [`Tensor::quantized_linear`]. It takes the place of a [`Linear`] whose
/// weight is not trained, also as the part of an adapter. The bias is a parameter.
///
/// ```
/// # use isograd_core::quantized::BlockFormat;
/// # use isograd_core::{DType, Device, Tensor};
/// # use isograd_nn::{Forward, Init, Linear, QuantizedLinear};
/// # use isograd_cpu as _;
/// # fn main() -> isograd_core::Result<()> {
/// let device = Device::cpu()?;
/// let layer = Linear::new(256, 10, &Init::new(&device).seed(42))?;
/// let packed = QuantizedLinear::quantize(&layer, BlockFormat::Q6K)?;
/// let x = Tensor::ones((3, 256), DType::F32, &device)?;
/// assert!(packed.forward(&x)?.allclose(&layer.forward(&x)?, 0.0, 0.1)?);
/// assert_eq!(format!("{packed:?}"), "QuantizedLinear(256 -> 10, Q6_K, bias)");
/// # Ok(())
/// # }
/// ```
#[derive(Module)]
#[module(details = format!("{} -> {}, {}{}", self.weight.dims()[1], self.weight.dims()[0], self.weight.format(), bias(&self.bias)))]
pub struct QuantizedLinear {
    /// `[out, in]`.
    pub weight: QuantizedWeight,
    /// `[out]`.
    pub bias: Option<Tensor>,
}

impl QuantizedLinear {
    /// The layer with its weight quantised in a format; both have the bias. Errors: those of [`QuantizedWeight::quantize`].
    pub fn quantize(layer: &Linear, format: BlockFormat) -> Result<QuantizedLinear> {
        Ok(QuantizedLinear { weight: QuantizedWeight::quantize(&layer.weight, format)?, bias: layer.bias.clone() })
    }

    /// The layer with the numbers of its weight, in a dtype of floats, as a parameter; both have the bias. Errors: `Dtype`, `OutOfMemory`.
    pub fn dequantize(&self, dtype: DType) -> Result<Linear> {
        Ok(Linear { weight: self.weight.dequantize(dtype)?.require_grad()?, bias: self.bias.clone() })
    }
}

impl Forward for QuantizedLinear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || x.quantized_linear(&self.weight, self.bias.as_ref()))
    }
}

/// Rows of a table that stays quantised in memory, selected by index: [`QuantizedWeight::embedding`]. It takes the place of an
/// [`Embedding`](crate::Embedding) that is not trained.
#[derive(Module)]
#[module(details = format!("{} -> {}, {}", self.weight.dims()[0], self.weight.dims()[1], self.weight.format()))]
pub struct QuantizedEmbedding {
    /// `[V, E]`.
    pub weight: QuantizedWeight,
}

impl QuantizedEmbedding {
    /// The rows `[.., E]` of an index `[..]` in a dtype of floats. Errors: `Dtype`; `Index`.
    pub fn rows(&self, index: &Tensor, dtype: DType) -> Result<Tensor> {
        called(self, &[index], || self.weight.embedding(index, dtype))
    }
}

impl Forward for QuantizedEmbedding {
    /// The rows in f32.
    fn forward(&self, index: &Tensor) -> Result<Tensor> {
        self.rows(index, DType::F32)
    }
}
