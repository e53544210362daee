//! The models that `isograd train text` knows: an entry each.

use super::options::Config;
use isograd::models::{
    CausalLm, Decoder, Gpt2, Gpt2Options, LanguageModel, LogitsOptions, Recurrence, RecurrentModel,
    RecurrentModelOptions, RecurrentState, TokenSampler,
};
use isograd::nn::{Init, Layer, Module};
use isograd::ops::Sampling;
use isograd::{Device, Result, Rng, Tensor};

/// A model by its name on the command line, and what the command line need not say.
pub struct ModelEntry {
    pub name: &'static str,
    /// The model has attention of several heads: --heads.
    pub has_heads: bool,
    pub layers: usize,
    pub width: usize,
    pub batch_size: usize,
    pub lr: f64,
    make: fn(&Config, usize, &Init) -> Result<Box<dyn TextModel>>,
}

/// All models of the command. The first is the default.
pub const MODELS: &[ModelEntry] = &[
    ModelEntry {
        name: "gpt2",
        has_heads: true,
        layers: 4,
        width: 128,
        batch_size: 12,
        lr: 1e-3,
        make: |config, vocab, init| {
            let &Config { layers, width, heads, context, dropout, .. } = config;
            Ok(Box::new(Gpt2::new(&Gpt2Options { vocab, context, layers, heads, width, dropout }, init)?))
        },
    },
    ModelEntry {
        name: "lstm",
        has_heads: false,
        layers: 2,
        width: 256,
        batch_size: 32,
        lr: 3e-3,
        make: |config, vocab, init| recurrent(Recurrence::Lstm, config, vocab, init),
    },
    ModelEntry {
        name: "gru",
        has_heads: false,
        layers: 2,
        width: 256,
        batch_size: 32,
        lr: 3e-3,
        make: |config, vocab, init| recurrent(Recurrence::Gru, config, vocab, init),
    },
];

fn recurrent(recurrence: Recurrence, config: &Config, vocab: usize, init: &Init) -> Result<Box<dyn TextModel>> {
    let &Config { layers, width, dropout, .. } = config;
    let options = RecurrentModelOptions { recurrence, vocab, embedding: width, hidden: width, layers, dropout };
    Ok(Box::new(RecurrentModel::new(&options, init)?))
}

impl ModelEntry {
    /// The model of this name, or the default.
    pub fn named(name: &str) -> &'static ModelEntry {
        MODELS.iter().find(|entry| entry.name == name).unwrap_or(&MODELS[0])
    }
}

/// The model of a configuration, for so many tokens.
pub fn model(config: &Config, vocab: usize, init: &Init) -> Result<Box<dyn TextModel>> {
    (ModelEntry::named(&config.model).make)(config, vocab, init)
}

/// How tokens are drawn from logits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drawing {
    pub sampling: Sampling,
    pub logits: LogitsOptions,
}

/// The tokens of a prompt that are read at a time.
pub const CHUNK: usize = 512;

/// A language model: tokens `[B, T]` to logits `[B, T, V]`.
pub trait TextModel: Layer {
    /// An empty text, and how the tokens that continue it are drawn.
    fn begin(&self, drawing: &Drawing, rng: Rng) -> Box<dyn Continuation + '_>;

    /// The model with a cache of keys and values, if it has one.
    #[cfg(feature = "chat")]
    fn cached(&self) -> Option<&dyn LanguageModel>;
}

/// A text as a model reads it, token after token.
pub trait Continuation {
    /// The token that follows these tokens, of which there is at least one.
    fn prompt(&mut self, tokens: &[i64]) -> Result<i64>;

    /// The token that follows the last one.
    fn next(&mut self) -> Result<i64>;
}

impl TextModel for Gpt2 {
    fn begin(&self, drawing: &Drawing, rng: Rng) -> Box<dyn Continuation + '_> {
        window(self, drawing, rng)
    }

    #[cfg(feature = "chat")]
    fn cached(&self) -> Option<&dyn LanguageModel> {
        Some(self)
    }
}

impl TextModel for CausalLm {
    fn begin(&self, drawing: &Drawing, rng: Rng) -> Box<dyn Continuation + '_> {
        window(self, drawing, rng)
    }

    #[cfg(feature = "chat")]
    fn cached(&self) -> Option<&dyn LanguageModel> {
        Some(self)
    }
}

fn window<'a>(model: &'a dyn LanguageModel, drawing: &Drawing, rng: Rng) -> Box<dyn Continuation + 'a> {
    Box::new(Window { model, decoder: decoder(model, drawing, rng), tokens: Vec::new() })
}

/// Draws the tokens of one text.
pub fn decoder<'a>(model: &'a dyn LanguageModel, drawing: &Drawing, rng: Rng) -> Decoder<'a> {
    let decoder = Decoder::new(model, model.context(), &drawing.sampling, rng);
    decoder.logits_options(&drawing.logits).chunk(CHUNK)
}

/// The last tokens of a text, whose keys and values are kept. When the context is full, it begins anew with the last half of it.
struct Window<'a> {
    model: &'a dyn LanguageModel,
    decoder: Decoder<'a>,
    /// The tokens of the context, and the last token that was drawn.
    tokens: Vec<i64>,
}

impl Window<'_> {
    /// Reads the last of the tokens.
    fn read(&mut self, count: usize) -> Result<i64> {
        let first = self.tokens.len() - count;
        let token = one(&self.decoder.prompt(&row(&self.tokens[first..], self.model)?, None)?)?;
        self.tokens.push(token);
        Ok(token)
    }

    /// Begins anew with the last half of the context.
    fn begin_anew(&mut self) -> Result<i64> {
        let count = self.model.context().div_ceil(2);
        self.tokens.drain(..self.tokens.len() - count);
        self.decoder.truncate(0)?;
        self.read(count)
    }
}

impl Continuation for Window<'_> {
    fn prompt(&mut self, tokens: &[i64]) -> Result<i64> {
        self.tokens.extend(tokens);
        if self.tokens.len() > self.model.context() { self.begin_anew() } else { self.read(tokens.len()) }
    }

    fn next(&mut self) -> Result<i64> {
        if self.tokens.len() > self.model.context() {
            return self.begin_anew();
        }
        let token = one(&self.decoder.next()?)?;
        self.tokens.push(token);
        Ok(token)
    }
}

/// The only token of a batch.
fn one(tokens: &Tensor) -> Result<i64> {
    tokens.item()
}

impl TextModel for RecurrentModel {
    fn begin(&self, drawing: &Drawing, rng: Rng) -> Box<dyn Continuation + '_> {
        Box::new(Stepped {
            model: self,
            state: None,
            sampler: TokenSampler::new(&drawing.sampling, &drawing.logits, rng),
        })
    }

    #[cfg(feature = "chat")]
    fn cached(&self) -> Option<&dyn LanguageModel> {
        None
    }
}

/// The states of recurrent layers after a text.
struct Stepped<'a> {
    model: &'a RecurrentModel,
    state: Option<RecurrentState>,
    /// Or the error of its options.
    sampler: Result<TokenSampler<'a>>,
}

impl<'a> Stepped<'a> {
    /// The token that follows tokens, of which the sampler knows.
    fn read(&mut self, tokens: &[i64]) -> Result<i64> {
        let (logits, state) = self.model.next_logits(&row(tokens, self.model)?, self.state.as_ref())?;
        self.state = Some(state);
        self.sampler()?.draw(&logits)
    }

    fn sampler(&mut self) -> Result<&mut TokenSampler<'a>> {
        self.sampler.as_mut().map_err(|e| isograd::Error::new(e.kind(), e.op().to_string(), e.message()))
    }
}

impl Continuation for Stepped<'_> {
    fn prompt(&mut self, tokens: &[i64]) -> Result<i64> {
        self.sampler()?.read(tokens);
        self.read(tokens)
    }

    fn next(&mut self) -> Result<i64> {
        let last = self.sampler()?.tokens().last().copied();
        self.read(&[last.unwrap_or_default()])
    }
}

/// Tokens as `[1, T]` on the device of a model.
pub fn row(tokens: &[i64], model: &(impl Module + ?Sized)) -> Result<Tensor> {
    let device = model.parameters().first().map_or_else(Device::best, |t| Ok(t.device().clone()))?;
    Tensor::from_slice(tokens, (1, tokens.len()), &device)
}
