//! Language models of recurrent layers, as PyTorch's example word_language_model has them, with its names of parameters.

use isograd_core::{Error, Result, Tensor, Tensors};
use isograd_nn::{
    Dropout, Embedding, Forward, Gru, Init, Layer, Linear, Lstm, LstmState, Module, RecurrentOptions, Visitor,
    VisitorMut, called,
};

/// The recurrent layers of a [`RecurrentModel`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Recurrence {
    /// Long short-term memory.
    #[default]
    Lstm,
    /// Gated recurrent units.
    Gru,
}

/// Extents of a [`RecurrentModel`], and the probability of its dropout.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RecurrentModelOptions {
    /// The recurrent layers.
    pub recurrence: Recurrence,
    /// V, the number of tokens.
    pub vocab: usize,
    /// The width of an embedding.
    pub embedding: usize,
    /// H, the width of a recurrent layer.
    pub hidden: usize,
    /// The number of recurrent layers.
    pub layers: usize,
    /// The probability of dropout: of embeddings, between layers, and before the last product.
    pub dropout: f64,
}

impl RecurrentModelOptions {
    /// Two layers of LSTM of width 200, with embeddings of this width and dropout of 0.2, as PyTorch's example has them.
    pub fn new(vocab: usize) -> RecurrentModelOptions {
        RecurrentModelOptions {
            recurrence: Recurrence::Lstm,
            vocab,
            embedding: 200,
            hidden: 200,
            layers: 2,
            dropout: 0.2,
        }
    }
}

/// The states of all layers after some tokens, each `[layers, B, H]`.
#[derive(Clone, Debug)]
pub struct RecurrentState {
    /// Hidden states.
    pub h: Tensor,
    /// Cell states, for LSTM.
    pub c: Option<Tensor>,
}

impl RecurrentState {
    /// The same states outside of the tape, from which the next part of a sequence begins in truncated backpropagation.
    pub fn detach(&self) -> RecurrentState {
        RecurrentState { h: self.h.detach(), c: self.c.as_ref().map(Tensor::detach) }
    }
}

impl Tensors for RecurrentState {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(RecurrentState { h: f(&self.h)?, c: self.c.as_ref().map(f).transpose()? })
    }

    fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor)) {
        std::iter::once(&self.h).chain(&self.c).for_each(f);
    }
}

#[derive(Debug)]
enum Layers {
    Lstm(Lstm),
    Gru(Gru),
}

impl Module for Layers {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        match self {
            Layers::Lstm(lstm) => lstm.visit(visitor),
            Layers::Gru(gru) => gru.visit(visitor),
        }
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        match self {
            Layers::Lstm(lstm) => visitor.part(lstm),
            Layers::Gru(gru) => visitor.part(gru),
        }
    }
}

impl Clone for Layers {
    fn clone(&self) -> Self {
        VisitorMut::cloned(|| match self {
            Layers::Lstm(lstm) => Layers::Lstm(lstm.clone()),
            Layers::Gru(gru) => Layers::Gru(gru.clone()),
        })
    }
}

/// A language model: tokens `[B, T]` (i64 or i32) to logits `[B, T, V]` of the tokens that follow each, through an embedding, recurrent
/// layers and a linear layer.
///
/// ```
/// # use isograd_core::{Result, Tensor};
/// # use isograd_models::{RecurrentModel, RecurrentState};
/// /// The loss of the next part of long sequences. The state goes on from part to part, and gradients stay within a part.
/// fn loss(model: &RecurrentModel, x: &Tensor, y: &Tensor, state: &mut Option<RecurrentState>) -> Result<Tensor> {
///     let (logits, last) = model.run(x, state.as_ref())?;
///     *state = Some(last.detach());
///     logits.flatten(0, 1)?.cross_entropy(&y.flatten(0, 1)?)
/// }
/// ```
#[derive(Debug, Module)]
pub struct RecurrentModel {
    drop: Dropout,
    /// The table of tokens.
    pub encoder: Embedding,
    rnn: Layers,
    /// From the states `[.., H]` to logits: a [`Linear`] at first.
    pub decoder: Box<dyn Layer>,
    #[module(skip)]
    options: RecurrentModelOptions,
}

impl RecurrentModel {
    /// Embeddings and the weight of the last product are uniform in ±0.1, its bias is 0. Errors: `Attr` without layers, for a hidden
    /// width of 0 and a dropout outside of 0 to 1.
    pub fn new(options: &RecurrentModelOptions, init: &Init) -> Result<RecurrentModel> {
        let RecurrentModelOptions { recurrence, vocab, embedding, hidden, layers, dropout } = *options;
        let stack = RecurrentOptions { layers, dropout, batch_first: true, ..RecurrentOptions::default() };
        let encoder = Embedding::from_pretrained(init.uniform((vocab, embedding), -0.1, 0.1)?, &Default::default())?;
        let rnn = match recurrence {
            Recurrence::Lstm => Layers::Lstm(Lstm::with_options(embedding, hidden, &stack, init)?),
            Recurrence::Gru => Layers::Gru(Gru::with_options(embedding, hidden, &stack, init)?),
        };
        let decoder = Linear { weight: init.uniform((vocab, hidden), -0.1, 0.1)?, bias: Some(init.zeros(vocab)?) };
        let drop = Dropout::new(dropout, init);
        Ok(RecurrentModel { drop, encoder, rnn, decoder: Box::new(decoder), options: *options })
    }

    /// The extents.
    pub fn options(&self) -> RecurrentModelOptions {
        self.options
    }

    /// The logits `[B, T, V]` for tokens `[B, T]` after those of a state, by default none, and the state after them. Errors: `Shape` for
    /// tokens that are not `[B, T]` and states of other extents; `Index` for a token outside of the vocabulary; `Value` for an LSTM
    /// state without cell states.
    pub fn run(&self, tokens: &Tensor, state: Option<&RecurrentState>) -> Result<(Tensor, RecurrentState)> {
        called(self, &[tokens], || {
            let (features, state) = self.features(tokens, state)?;
            Ok((self.decoder.forward(&features)?, state))
        })
    }

    /// The logits `[B, V]` of the last position of [`run`](RecurrentModel::run), and the state. Errors: as there.
    pub fn next_logits(&self, tokens: &Tensor, state: Option<&RecurrentState>) -> Result<(Tensor, RecurrentState)> {
        called(self, &[tokens], || {
            let (features, state) = self.features(tokens, state)?;
            Ok((self.decoder.forward(&features.select(1, -1)?.contiguous()?)?, state))
        })
    }

    fn features(&self, tokens: &Tensor, state: Option<&RecurrentState>) -> Result<(Tensor, RecurrentState)> {
        let op = "recurrent_model";
        if tokens.rank() != 2 || tokens.dims()[1] == 0 {
            let given =
                format!("tokens are {} {}, expected [B, T] with T of 1 or more", tokens.dtype(), tokens.shape());
            return Err(Error::shape(op, given));
        }
        let x = self.drop.forward(&self.encoder.forward(tokens)?)?;
        let (y, state) = called(&self.rnn, &[&x], || match &self.rnn {
            Layers::Lstm(lstm) => {
                let no_cells = || Error::value(op, "the state has no cell states, which an LSTM needs");
                let both = |state: &RecurrentState| -> Result<LstmState> {
                    Ok((state.h.clone(), state.c.clone().ok_or_else(no_cells)?))
                };
                let (y, (h, c)) = lstm.run(&x, None, state.map(both).transpose()?.as_ref())?;
                Ok((y, RecurrentState { h, c: Some(c) }))
            }
            Layers::Gru(gru) => {
                let (y, h) = gru.run(&x, None, state.map(|state| &state.h))?;
                Ok((y, RecurrentState { h, c: None }))
            }
        })?;
        Ok((self.drop.forward(&y)?, state))
    }
}

impl Forward for RecurrentModel {
    /// Errors: as [`run`](RecurrentModel::run).
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        Ok(self.run(tokens, None)?.0)
    }
}
