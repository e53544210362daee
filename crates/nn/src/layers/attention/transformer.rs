//! Encoders and decoders of transformers, with PyTorch's names and the order of its operations.

use super::{AttentionMask, MultiheadAttention};
use crate::{Dropout, Forward, Init, LayerNorm, Linear, Module, Recompute, called};
use isograd_core::ops::Activation;
use isograd_core::{Result, Tensor};

/// The options of a transformer's layer.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TransformerOptions {
    /// E, the width of x.
    pub width: usize,
    /// Heads of the attention.
    pub heads: usize,
    /// The width of the hidden layer.
    pub hidden: usize,
    /// The probability of dropout, of weights of the attention and after each part.
    pub dropout: f64,
    /// The activation of the hidden layer.
    pub activation: Activation,
    /// Whether norms come before each part, or after the sum of x and the part.
    pub norm_first: bool,
    /// Added to variances.
    pub eps: f64,
}

impl TransformerOptions {
    /// A hidden layer of width 2048, dropout of 0.1, relu, norms after sums, and eps of 1e-5.
    pub fn new(width: usize, heads: usize) -> TransformerOptions {
        let activation = Activation::Relu;
        TransformerOptions { width, heads, hidden: 2048, dropout: 0.1, activation, norm_first: false, eps: 1e-5 }
    }

    fn norm(&self, init: &Init) -> Result<LayerNorm> {
        let mut norm = LayerNorm::new(self.width, init)?;
        norm.eps = self.eps;
        Ok(norm)
    }

    /// `x + part(norm(x))`, or `norm(x + part(x))`. With mixed precision, parts have 16 bits, and sums f32.
    fn residual(&self, x: &Tensor, norm: &LayerNorm, part: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        match self.norm_first {
            true => x.add(&part(&norm.forward(x)?)?.cast(x.dtype())?),
            false => norm.forward(&x.add(&part(x)?.cast(x.dtype())?)?),
        }
    }
}

/// Self-attention and a hidden layer, for x `[B, T, E]`.
#[derive(Debug, Module)]
pub struct TransformerEncoderLayer {
    /// The self-attention.
    pub self_attn: MultiheadAttention,
    /// To the hidden layer.
    pub linear1: Linear,
    /// From the hidden layer.
    pub linear2: Linear,
    /// The norm of the self-attention.
    pub norm1: LayerNorm,
    /// The norm of the hidden layer.
    pub norm2: LayerNorm,
    dropout: Dropout,
    #[module(skip)]
    options: TransformerOptions,
}

impl TransformerEncoderLayer {
    /// Errors: `Attr` unless the heads divide the width.
    pub fn new(options: &TransformerOptions, init: &Init) -> Result<TransformerEncoderLayer> {
        let TransformerOptions { width, heads, hidden, dropout, .. } = *options;
        Ok(TransformerEncoderLayer {
            self_attn: MultiheadAttention::new(width, heads, dropout, init)?,
            linear1: Linear::new(width, hidden, init)?,
            linear2: Linear::new(hidden, width, init)?,
            norm1: options.norm(init)?,
            norm2: options.norm(init)?,
            dropout: Dropout::new(dropout, init),
            options: *options,
        })
    }

    /// x with masks. Errors: as [`MultiheadAttention::forward`].
    pub fn forward_with(&self, x: &Tensor, mask: &AttentionMask) -> Result<Tensor> {
        called(self, &[x], || {
            let attend = |x: &Tensor| self.dropout.forward(&self.self_attn.forward(x, x, x, mask)?);
            let x = self.options.residual(x, &self.norm1, attend)?;
            let hidden = |x: &Tensor| hidden(x, [&self.linear1, &self.linear2], &self.dropout, self.options.activation);
            self.options.residual(&x, &self.norm2, hidden)
        })
    }
}

/// The hidden layer, with dropout after the activation and after the result.
fn hidden(x: &Tensor, [first, second]: [&Linear; 2], dropout: &Dropout, activation: Activation) -> Result<Tensor> {
    dropout.forward(&second.forward(&dropout.forward(&first.forward_with(x, activation)?)?)?)
}

impl Forward for TransformerEncoderLayer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &AttentionMask::default())
    }
}

/// Encoder layers in sequence, and a norm at the end.
#[derive(Debug, Module)]
pub struct TransformerEncoder {
    /// The layers.
    pub layers: Vec<TransformerEncoderLayer>,
    /// The norm of the result.
    pub norm: Option<LayerNorm>,
    #[module(flatten)]
    recompute: Recompute,
}

impl TransformerEncoder {
    /// `count` layers with initial values of their own. Layers with norms first need a norm at the end. Errors: as
    /// [`TransformerEncoderLayer::new`].
    pub fn new(count: usize, options: &TransformerOptions, init: &Init) -> Result<TransformerEncoder> {
        let layers = (0..count).map(|_| TransformerEncoderLayer::new(options, init)).collect::<Result<_>>()?;
        let norm = options.norm_first.then(|| options.norm(init)).transpose()?;
        Ok(TransformerEncoder { layers, norm, recompute: Recompute::default() })
    }

    /// x with masks for every layer. Errors: as [`MultiheadAttention::forward`].
    pub fn forward_with(&self, x: &Tensor, mask: &AttentionMask) -> Result<Tensor> {
        called(self, &[x], || {
            let x = self.layers.iter().try_fold(x.clone(), |x, layer| {
                let mask = mask.clone();
                self.recompute.run(layer, &[&x], move |layer, x| layer.forward_with(&x[0], &mask))
            })?;
            self.norm.as_ref().map_or_else(|| Ok(x.clone()), |norm| norm.forward(&x))
        })
    }
}

impl Forward for TransformerEncoder {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &AttentionMask::default())
    }
}

/// The masks of a decoder.
#[derive(Clone, Debug, Default)]
pub struct DecoderMasks {
    /// The mask of the self-attention of x.
    pub own: AttentionMask,
    /// The mask of the attention to the memory.
    pub memory: AttentionMask,
}

/// Self-attention, attention to a memory, and a hidden layer, for x `[B, T, E]`.
#[derive(Debug, Module)]
pub struct TransformerDecoderLayer {
    /// The self-attention.
    pub self_attn: MultiheadAttention,
    /// The attention to the memory.
    pub multihead_attn: MultiheadAttention,
    /// To the hidden layer.
    pub linear1: Linear,
    /// From the hidden layer.
    pub linear2: Linear,
    /// The norm of the self-attention.
    pub norm1: LayerNorm,
    /// The norm of the attention to the memory.
    pub norm2: LayerNorm,
    /// The norm of the hidden layer.
    pub norm3: LayerNorm,
    dropout: Dropout,
    #[module(skip)]
    options: TransformerOptions,
}

impl TransformerDecoderLayer {
    /// Errors: `Attr` unless the heads divide the width.
    pub fn new(options: &TransformerOptions, init: &Init) -> Result<TransformerDecoderLayer> {
        let TransformerOptions { width, heads, hidden, dropout, .. } = *options;
        Ok(TransformerDecoderLayer {
            self_attn: MultiheadAttention::new(width, heads, dropout, init)?,
            multihead_attn: MultiheadAttention::new(width, heads, dropout, init)?,
            linear1: Linear::new(width, hidden, init)?,
            linear2: Linear::new(hidden, width, init)?,
            norm1: options.norm(init)?,
            norm2: options.norm(init)?,
            norm3: options.norm(init)?,
            dropout: Dropout::new(dropout, init),
            options: *options,
        })
    }

    /// x `[B, T, E]` with a memory `[B, S, E]`, such as the result of an encoder. Errors: as [`MultiheadAttention::forward`].
    pub fn forward(&self, x: &Tensor, memory: &Tensor, masks: &DecoderMasks) -> Result<Tensor> {
        called(self, &[x, memory], || {
            let attend = |x: &Tensor| self.dropout.forward(&self.self_attn.forward(x, x, x, &masks.own)?);
            let x = self.options.residual(x, &self.norm1, attend)?;
            let recall =
                |x: &Tensor| self.dropout.forward(&self.multihead_attn.forward(x, memory, memory, &masks.memory)?);
            let x = self.options.residual(&x, &self.norm2, recall)?;
            let hidden = |x: &Tensor| hidden(x, [&self.linear1, &self.linear2], &self.dropout, self.options.activation);
            self.options.residual(&x, &self.norm3, hidden)
        })
    }
}

/// Decoder layers in sequence, and a norm at the end.
#[derive(Debug, Module)]
pub struct TransformerDecoder {
    /// The layers.
    pub layers: Vec<TransformerDecoderLayer>,
    /// The norm of the result.
    pub norm: Option<LayerNorm>,
    #[module(flatten)]
    recompute: Recompute,
}

impl TransformerDecoder {
    /// `count` layers with initial values of their own. Layers with norms first need a norm at the end. Errors: as
    /// [`TransformerDecoderLayer::new`].
    pub fn new(count: usize, options: &TransformerOptions, init: &Init) -> Result<TransformerDecoder> {
        let layers = (0..count).map(|_| TransformerDecoderLayer::new(options, init)).collect::<Result<_>>()?;
        let norm = options.norm_first.then(|| options.norm(init)).transpose()?;
        Ok(TransformerDecoder { layers, norm, recompute: Recompute::default() })
    }

    /// x with a memory and masks for every layer. Errors: as [`MultiheadAttention::forward`].
    pub fn forward(&self, x: &Tensor, memory: &Tensor, masks: &DecoderMasks) -> Result<Tensor> {
        called(self, &[x, memory], || {
            let x = self.layers.iter().try_fold(x.clone(), |x, layer| {
                let masks = masks.clone();
                self.recompute.run(layer, &[&x, memory], move |layer, x| layer.forward(&x[0], &x[1], &masks))
            })?;
            self.norm.as_ref().map_or_else(|| Ok(x.clone()), |norm| norm.forward(&x))
        })
    }
}
