//! Attention as layers, with PyTorch's names, defaults and initial values.

mod cache;
mod causal;
mod positions;
mod transformer;

pub use cache::{CacheLayer, KvCache, NewPositions};
pub use causal::{CausalSelfAttention, SelfAttentionOptions};
pub use positions::{Rotations, sinusoidal_positions};
pub use transformer::{
    DecoderMasks, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer,
    TransformerOptions,
};

use crate::details::extent;
use crate::{Gain, Init, Linear, Mode, Module, called};
use isograd_core::ops::{Attention, Causal, MultiHead, Projection};
use isograd_core::{Error, Result, Rng, Tensor};

/// Attention of several heads between projections: [`Tensor::multi_head_attention`]. Inputs are `[B, T, E]`, as with PyTorch's
/// `batch_first`.
#[derive(Module)]
#[module(details = format!("{}, {} heads", extent(&self.out_proj.weight, 0), self.heads))]
pub struct MultiheadAttention {
    /// The weights of the projections of query, key and value, `[3E, E]`, if all have the width E.
    pub in_proj_weight: Option<Tensor>,
    /// The weight of the query, `[E, E]`, if key or value has another width.
    pub q_proj_weight: Option<Tensor>,
    /// The weight of the key, `[E, Ek]`.
    pub k_proj_weight: Option<Tensor>,
    /// The weight of the value, `[E, Ev]`.
    pub v_proj_weight: Option<Tensor>,
    /// The biases of these projections, `[3E]`.
    pub in_proj_bias: Option<Tensor>,
    /// The projection of the result.
    pub out_proj: Linear,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    dropout: f64,
    #[module(skip)]
    rng: Rng,
    mode: Mode,
}

/// The masks of a [`MultiheadAttention`], in PyTorch's sense.
#[derive(Clone, Debug, Default)]
pub struct AttentionMask {
    /// A mask that broadcasts to `[B, heads, Tq, Tk]`: bool, true for keys that a query does not attend to; or floats that are added
    /// to the scores.
    pub attention: Option<Tensor>,
    /// True for keys that are ignored, `[B, Tk]`.
    pub key_padding: Option<Tensor>,
    /// The keys that precede a query's own position.
    pub causal: Causal,
}

impl AttentionMask {
    /// Each query attends to the keys up to its own.
    pub fn causal() -> AttentionMask {
        AttentionMask { causal: Causal::TopLeft, ..AttentionMask::default() }
    }
}

impl MultiheadAttention {
    /// For query, key and value of width `width`. Weights are uniform by Glorot's rule, biases 0. `dropout` is the probability with
    /// which a weight of the attention becomes 0 in training. Errors: `Attr` unless the heads divide the width.
    pub fn new(width: usize, heads: usize, dropout: f64, init: &Init) -> Result<MultiheadAttention> {
        let weight = init.xavier_uniform((3 * width, width), Gain::Linear)?;
        Ok(MultiheadAttention { in_proj_weight: Some(weight), ..without_weights(width, heads, dropout, init)? })
    }

    /// For keys and values of other widths. Errors: as [`new`](MultiheadAttention::new).
    pub fn with_widths(
        width: usize,
        [key, value]: [usize; 2],
        heads: usize,
        dropout: f64,
        init: &Init,
    ) -> Result<MultiheadAttention> {
        let weight = |input: usize| init.xavier_uniform((width, input), Gain::Linear).map(Some);
        let [q_proj_weight, k_proj_weight, v_proj_weight] = [weight(width)?, weight(key)?, weight(value)?];
        let rest = without_weights(width, heads, dropout, init)?;
        Ok(MultiheadAttention { q_proj_weight, k_proj_weight, v_proj_weight, ..rest })
    }

    /// The attention of `query: [B, Tq, E]` to `key: [B, Tk, Ek]` and `value: [B, Tk, Ev]`. Errors: as
    /// [`Tensor::multi_head_attention`]; `Value` if a weight is absent.
    pub fn forward(&self, query: &Tensor, key: &Tensor, value: &Tensor, mask: &AttentionMask) -> Result<Tensor> {
        called(self, &[query, key, value], || {
            let attends = |mask: &Tensor| if mask.dtype().is_float() { Ok(mask.clone()) } else { mask.logical_not() };
            let dropout = (self.dropout > 0.0 && self.mode.is_training()).then(|| (self.dropout, self.rng.clone()));
            let attention = Attention {
                mask: mask.attention.as_ref().map(attends).transpose()?,
                causal: mask.causal,
                dropout,
                ..Attention::default()
            };
            let of = MultiHead {
                heads: self.heads,
                weight: self.projection()?,
                bias: self.in_proj_bias.as_ref(),
                out_weight: &self.out_proj.weight,
                out_bias: self.out_proj.bias.as_ref(),
                key_padding_mask: mask.key_padding.as_ref(),
                attention,
            };
            query.multi_head_attention(key, value, &of)
        })
    }

    fn projection(&self) -> Result<Projection<'_>> {
        match (&self.in_proj_weight, &self.q_proj_weight, &self.k_proj_weight, &self.v_proj_weight) {
            (Some(packed), ..) => Ok(Projection::Packed(packed)),
            (None, Some(q), Some(k), Some(v)) => Ok(Projection::Separate([q, k, v])),
            _ => Err(Error::value("multi_head_attention", "a weight of the projections is absent")),
        }
    }
}

/// A layer without the weights of query, key and value.
fn without_weights(width: usize, heads: usize, dropout: f64, init: &Init) -> Result<MultiheadAttention> {
    if heads == 0 || !width.is_multiple_of(heads) {
        return Err(Error::attr("multi_head_attention", format!("{heads} heads do not divide the width {width}")));
    }
    let out_proj = Linear { bias: Some(init.zeros(width)?), ..Linear::without_bias(width, width, init)? };
    Ok(MultiheadAttention {
        in_proj_weight: None,
        q_proj_weight: None,
        k_proj_weight: None,
        v_proj_weight: None,
        in_proj_bias: Some(init.zeros(3 * width)?),
        out_proj,
        heads,
        dropout,
        rng: init.rng().clone(),
        mode: Mode::default(),
    })
}
