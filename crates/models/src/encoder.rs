//! The parts that encoders of `transformers` share.

use isograd_core::ops::Attention;
use isograd_core::{Error, Result, Rng, Tensor};
use isograd_nn::{Init, Layer, Linear, Mode, Module, called};

/// The deviation of initial weights.
pub(crate) const STD: f64 = 0.02;

/// A linear layer with normal weights and a bias of 0.
pub(crate) fn linear(input: usize, output: usize, init: &Init) -> Result<Box<dyn Layer>> {
    Ok(Box::new(Linear { weight: init.normal((output, input), 0.0, STD)?, bias: Some(init.zeros(output)?) }))
}

/// Attention of all positions to all others, without the projection of the result.
#[derive(Debug, Module)]
pub struct Heads {
    /// The projection to queries: a [`Linear`] at first.
    pub query: Box<dyn Layer>,
    /// The projection to keys.
    pub key: Box<dyn Layer>,
    /// The projection to values.
    pub value: Box<dyn Layer>,
    mode: Mode,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    dropout: f64,
    #[module(skip)]
    rng: Rng,
}

impl Heads {
    /// Errors: `Attr` unless the heads divide the width.
    pub(crate) fn new(op: &'static str, width: usize, heads: usize, dropout: f64, init: &Init) -> Result<Heads> {
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(Error::attr(op, format!("{heads} heads do not divide the width {width}")));
        }
        Ok(Heads {
            query: linear(width, width, init)?,
            key: linear(width, width, init)?,
            value: linear(width, width, init)?,
            mode: Mode::default(),
            heads,
            dropout,
            rng: init.rng().clone(),
        })
    }

    /// x `[B, T, E]` with a mask as of [`Attention`].
    pub(crate) fn forward(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        called(self, &[x], || {
            let (b, t, e) = (x.dims()[0], x.dims()[1], x.dims()[2]);
            let part = |projection: &dyn Layer| {
                projection.forward(x)?.reshape((b, t, self.heads, e / self.heads))?.transpose(1, 2)
            };
            let dropout = (self.dropout > 0.0 && self.mode.is_training()).then(|| (self.dropout, self.rng.clone()));
            let attention = Attention { mask: mask.cloned(), dropout, ..Attention::default() };
            let (q, k, v) = (part(&*self.query)?, part(&*self.key)?, part(&*self.value)?);
            q.scaled_dot_product_attention(&k, &v, &attention)?.transpose(1, 2)?.reshape((b, t, e))
        })
    }
}
