//! Self-attention of language models.

use super::Rotations;
use crate::{Forward, Init, Linear, Mode, Module, Visitor};
use isograd_core::ops::{Attention, Causal, Rotary};
use isograd_core::{Error, Result, Rng, Tensor};

/// The options of a [`CausalSelfAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelfAttentionOptions {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, which divide the heads of queries.
    pub key_heads: usize,
    /// Whether the projections have biases.
    pub bias: bool,
    /// The number of positions and the base of the angles, for rotary positions.
    pub rotary: Option<(usize, f64)>,
    /// The number of keys before its own that a query attends to; all if absent.
    pub window: Option<usize>,
    /// The probability with which a weight of the attention becomes 0 in training.
    pub dropout: f64,
}

impl SelfAttentionOptions {
    /// As many heads of keys as of queries, with biases, and without rotary positions, window and dropout.
    pub fn new(heads: usize) -> SelfAttentionOptions {
        SelfAttentionOptions { heads, key_heads: heads, bias: true, rotary: None, window: None, dropout: 0.0 }
    }
}

/// Self-attention in which each position attends to itself and earlier ones: x `[B, T, E]` to `[B, T, E]`. Several heads of queries
/// may share the keys and values of a head.
#[derive(Debug)]
pub struct CausalSelfAttention {
    /// The projection to queries.
    pub q_proj: Linear,
    /// The projection to keys.
    pub k_proj: Linear,
    /// The projection to values.
    pub v_proj: Linear,
    /// The projection of the result.
    pub o_proj: Linear,
    rotations: Option<Rotations>,
    options: SelfAttentionOptions,
    rng: Rng,
    mode: Mode,
}

impl CausalSelfAttention {
    /// For x of width `width`. Errors: `Attr` unless heads of keys divide heads of queries, and these the width.
    pub fn new(width: usize, options: SelfAttentionOptions, init: &Init) -> Result<CausalSelfAttention> {
        let SelfAttentionOptions { heads, key_heads, bias, rotary, .. } = options;
        if heads == 0 || key_heads == 0 || !width.is_multiple_of(heads) || !heads.is_multiple_of(key_heads) {
            let message = format!("{key_heads} heads of keys, {heads} of queries and the width {width}");
            return Err(Error::attr("causal_self_attention", format!("{message}: each must divide the next")));
        }
        let of_keys = width / heads * key_heads;
        let linear = |input, output| match bias {
            true => Linear::new(input, output, init),
            false => Linear::without_bias(input, output, init),
        };
        let table = |(length, base)| Rotations::new(length, width / heads, base, init.device());
        Ok(CausalSelfAttention {
            q_proj: linear(width, width)?,
            k_proj: linear(width, of_keys)?,
            v_proj: linear(width, of_keys)?,
            o_proj: linear(width, width)?,
            rotations: rotary.map(table).transpose()?,
            options,
            rng: init.rng().clone(),
            mode: Mode::default(),
        })
    }
}

impl Module for CausalSelfAttention {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part("q_proj", &self.q_proj);
        visitor.part("k_proj", &self.k_proj);
        visitor.part("v_proj", &self.v_proj);
        visitor.part("o_proj", &self.o_proj);
        visitor.part("mode", &self.mode);
    }
}

impl Forward for CausalSelfAttention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let &[b, t, _] = x.dims() else {
            return Err(Error::shape("causal_self_attention", format!("x is {}, expected [B, T, E]", x.shape())));
        };
        let SelfAttentionOptions { heads, key_heads, window, dropout, .. } = self.options;
        let split = |y: Tensor, heads: usize| y.reshape((b, t, heads, y.dims()[2] / heads))?.transpose(1, 2);
        let (mut q, mut k) = (split(self.q_proj.forward(x)?, heads)?, split(self.k_proj.forward(x)?, key_heads)?);
        let v = split(self.v_proj.forward(x)?, key_heads)?;
        if let Some(rotations) = &self.rotations {
            (q, k) = rotations.apply(&q, &k, &Rotary::default())?;
        }
        let attention = Attention {
            causal: Causal::TopLeft,
            window: window.map(|before| [before, 0]),
            dropout: (dropout > 0.0 && self.mode.is_training()).then(|| (dropout, self.rng.clone())),
            ..Attention::default()
        };
        let o = q.scaled_dot_product_attention(&k, &v, &attention)?;
        self.o_proj.forward(&o.transpose(1, 2)?.reshape((b, t, self.q_proj.weight.dims()[0]))?)
    }
}
