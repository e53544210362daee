//! Language models, and how they continue a text.

use isograd_core::{Error, Result, Tensor, no_grad};
use isograd_nn::{Forward, KvCache, LayerNorm, Module, called};

/// The extents of a language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanguageExtents {
    /// V, the number of tokens.
    pub vocab: usize,
    /// The largest number of positions.
    pub context: usize,
    /// The layers, which have keys and values in a cache.
    pub layers: usize,
}

/// A model that reads tokens `[B, T]` and gives the logits `[B, T, V]` of the tokens that follow each. With a cache, each call reads only
/// tokens that are new. A [`Decoder`](crate::Decoder) draws token after token.
pub trait LanguageModel: Module + Forward {
    /// The extents of the model.
    fn extents(&self) -> LanguageExtents;

    /// V, the number of tokens.
    fn vocab(&self) -> usize {
        self.extents().vocab
    }

    /// The largest number of positions.
    fn context(&self) -> usize {
        self.extents().context
    }

    /// An empty cache for sequences of up to `capacity` tokens.
    fn cache(&self, capacity: usize) -> KvCache {
        KvCache::new(self.extents().layers, capacity)
    }

    /// The normalised result `[B, T, E]` of the last block, for tokens `[B, T]` that follow those in the cache, which are appended to it. The
    /// sequences of a cache may have several lengths.
    fn features(&self, tokens: &Tensor, cache: Option<&mut KvCache>) -> Result<Tensor>;

    /// The logits `[.., V]` of features `[.., E]`.
    fn logits(&self, features: &Tensor) -> Result<Tensor>;

    /// The logits `[B, T, V]` for tokens `[B, T]` that follow those in the cache, which are appended to it. Outside of the tape.
    ///
    /// Errors: as for `forward`; as [`KvCache::begin`]. After an error the cache has the positions that it had.
    fn forward_cached(&self, tokens: &Tensor, cache: &mut KvCache) -> Result<Tensor> {
        no_grad(|| called(self, &[tokens], || self.logits(&self.features(tokens, Some(cache))?)))
    }

    /// The logits `[B, V]` of [`forward_cached`](LanguageModel::forward_cached) for the last token. Errors: as there; `Shape` if there is
    /// no token.
    fn next_logits(&self, tokens: &Tensor, cache: &mut KvCache) -> Result<Tensor> {
        no_grad(|| called(self, &[tokens], || self.logits(&last(&self.features(tokens, Some(cache))?)?)))
    }
}

/// The extents of tokens `[B, T]`, whose first position is `start`. Errors: `Shape`; `Index` if there are more than `context` positions.
pub(crate) fn check_tokens(op: &'static str, tokens: &Tensor, start: usize, context: usize) -> Result<[usize; 2]> {
    let &[b, t] = tokens.dims() else {
        return Err(Error::shape(op, format!("tokens are {} {}, expected [B, T]", tokens.dtype(), tokens.shape())));
    };
    if start + t > context {
        return Err(Error::index(op, format!("{t} tokens follow {start}, and the context is {context}")));
    }
    Ok([b, t])
}

/// The features `[B, E]` of the last position of `[B, T, E]`.
fn last(features: &Tensor) -> Result<Tensor> {
    match features.dims()[1] {
        0 => Err(Error::shape("next_logits", format!("there is no last position in {}", features.shape()))),
        _ => features.select(1, -1)?.contiguous(),
    }
}

/// The sum of embeddings and of the parts of all blocks so far. The last part is added by the next norm, in one kernel on GPUs.
pub(crate) struct Stream {
    sum: Tensor,
    part: Option<Tensor>,
}

impl Stream {
    pub(crate) fn new(sum: Tensor) -> Stream {
        Stream { sum, part: None }
    }

    /// Adds a part.
    pub(crate) fn add(&mut self, part: Tensor) {
        debug_assert!(self.part.is_none(), "a norm follows each part");
        self.part = Some(part);
    }

    /// The sum, with the last part.
    pub(crate) fn sum(self) -> Result<Tensor> {
        match self.part {
            Some(part) => self.sum.add(&part.cast(self.sum.dtype())?),
            None => Ok(self.sum),
        }
    }

    /// The norm of the sum.
    pub(crate) fn norm(&mut self, norm: &LayerNorm) -> Result<Tensor> {
        let Some(part) = self.part.take() else { return norm.forward(&self.sum) };
        let (y, sum) = norm.forward_residual(&part, &self.sum)?;
        self.sum = sum;
        Ok(y)
    }
}
