//! Self-attention of language models.

use super::{CacheLayer, Rotations};
use crate::{Forward, Init, Layer, Linear, Mode, Module, RmsNorm, called};
use isograd_core::ops::{Attention, Causal, Rotary};
use isograd_core::{Error, Result, Rng, Tensor, no_grad};

/// The options of a [`CausalSelfAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SelfAttentionOptions {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, which divide the heads of queries.
    pub key_heads: usize,
    /// The elements of a head; the width divided by the heads if absent.
    pub head_width: Option<usize>,
    /// Whether the projections have biases.
    pub bias: bool,
    /// The number of positions and the base of the angles, for rotary positions.
    pub rotary: Option<(usize, f64)>,
    /// The number of keys before its own that a query attends to; all if absent.
    pub window: Option<usize>,
    /// The factor of the scores; `1 / sqrt(head_width)` if absent.
    pub scale: Option<f64>,
    /// The [soft limit](Attention::score_cap) of the scores.
    pub score_cap: Option<f64>,
    /// The probability with which a weight of the attention becomes 0 in training.
    pub dropout: f64,
}

impl SelfAttentionOptions {
    /// As many heads of keys as of queries, with biases, and without rotary positions, window and dropout.
    pub fn new(heads: usize) -> SelfAttentionOptions {
        SelfAttentionOptions {
            heads,
            key_heads: heads,
            head_width: None,
            bias: true,
            rotary: None,
            window: None,
            scale: None,
            score_cap: None,
            dropout: 0.0,
        }
    }
}

/// Self-attention in which each position attends to itself and earlier ones: x `[B, T, E]` to `[B, T, E]`. Several heads of queries
/// may share the keys and values of a head.
#[derive(Debug, Module)]
pub struct CausalSelfAttention {
    /// The projection to queries: a [`Linear`] at first.
    pub q_proj: Box<dyn Layer>,
    /// The projection to keys.
    pub k_proj: Box<dyn Layer>,
    /// The projection to values.
    pub v_proj: Box<dyn Layer>,
    /// The projection of the result.
    pub o_proj: Box<dyn Layer>,
    /// The norm of each head of queries, before the rotation.
    pub q_norm: Option<RmsNorm>,
    /// The norm of each head of keys, before the rotation.
    pub k_norm: Option<RmsNorm>,
    rotations: Option<Rotations>,
    #[module(skip)]
    options: SelfAttentionOptions,
    #[module(skip)]
    rng: Rng,
    mode: Mode,
}

impl CausalSelfAttention {
    /// For x of width `width`. Errors: `Attr` unless heads of keys divide heads of queries, and these the width if heads have no width of
    /// their own.
    pub fn new(width: usize, options: &SelfAttentionOptions, init: &Init) -> Result<CausalSelfAttention> {
        let SelfAttentionOptions { heads, key_heads, head_width, bias, rotary, .. } = *options;
        let is_divided = head_width.is_some() || (heads > 0 && width.is_multiple_of(heads));
        if heads == 0 || key_heads == 0 || !is_divided || !heads.is_multiple_of(key_heads) {
            let message = format!("{key_heads} heads of keys, {heads} of queries and the width {width}");
            return Err(Error::attr("causal_self_attention", format!("{message}: each must divide the next")));
        }
        let head_width = head_width.unwrap_or(width / heads);
        let linear = |input, output| -> Result<Box<dyn Layer>> {
            let linear =
                if bias { Linear::new(input, output, init) } else { Linear::without_bias(input, output, init) };
            Ok(Box::new(linear?))
        };
        let table = |(length, base)| Rotations::new(length, head_width, base, init.device());
        Ok(CausalSelfAttention {
            q_proj: linear(width, heads * head_width)?,
            k_proj: linear(width, key_heads * head_width)?,
            v_proj: linear(width, key_heads * head_width)?,
            o_proj: linear(heads * head_width, width)?,
            q_norm: None,
            k_norm: None,
            rotations: rotary.map(table).transpose()?,
            options: *options,
            rng: init.rng().clone(),
            mode: Mode::default(),
        })
    }

    /// With these rotary positions, which layers may share.
    pub fn with_rotations(self, rotations: Rotations) -> CausalSelfAttention {
        CausalSelfAttention { rotations: Some(rotations), ..self }
    }

    /// x `[B, T, E]` of positions that follow those in the cache, to whose keys it attends too. Its own keys and values are appended.
    /// Outside of the tape. Errors: as [`CacheLayer::append`]; `Index` for a position outside of the rotary tables.
    pub fn forward_cached(&self, x: &Tensor, cache: &mut CacheLayer<'_>) -> Result<Tensor> {
        no_grad(|| self.attend(x, Some(cache), None))
    }

    /// [`forward`](Forward::forward), or [`forward_cached`](CausalSelfAttention::forward_cached) with a cache, with other rotary positions if
    /// some are given.
    pub fn attend(
        &self,
        x: &Tensor,
        cache: Option<&mut CacheLayer<'_>>,
        rotations: Option<&Rotations>,
    ) -> Result<Tensor> {
        called(self, &[x], || {
            let &[b, t, _] = x.dims() else {
                return Err(Error::shape("causal_self_attention", format!("x is {}, expected [B, T, E]", x.shape())));
            };
            let SelfAttentionOptions { heads, key_heads, window, scale, score_cap, dropout, .. } = self.options;
            let split = |y: Tensor, heads: usize| y.reshape((b, t, heads, y.dims()[2] / heads))?.transpose(1, 2);
            let (mut q, mut k) = (split(self.q_proj.forward(x)?, heads)?, split(self.k_proj.forward(x)?, key_heads)?);
            let mut v = split(self.v_proj.forward(x)?, key_heads)?;
            if let Some(norm) = &self.q_norm {
                q = norm.forward(&q)?;
            }
            if let Some(norm) = &self.k_norm {
                k = norm.forward(&k)?;
            }
            if let Some(rotations) = rotations.or(self.rotations.as_ref()) {
                let positions = cache.as_ref().map(|cache| cache.new_positions().positions.clone());
                (q, k) = rotations.apply(&q, &k, &Rotary { positions, ..Rotary::default() })?;
            }
            let mut key_lengths = None;
            if let Some(cache) = cache {
                [k, v] = cache.append(&k, &v)?;
                key_lengths = cache.new_positions().lengths.clone();
            }
            let attention = Attention {
                // Without a cache there are as many keys as queries.
                causal: Causal::BottomRight,
                window: window.map(|before| [before, 0]),
                scale,
                score_cap,
                dropout: (dropout > 0.0 && self.mode.is_training()).then(|| (dropout, self.rng.clone())),
                key_lengths,
                ..Attention::default()
            };
            let o = q.scaled_dot_product_attention(&k, &v, &attention)?;
            self.o_proj.forward(&o.transpose(1, 2)?.flatten(2, 3)?)
        })
    }
}

impl Forward for CausalSelfAttention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.attend(x, None, None)
    }
}
