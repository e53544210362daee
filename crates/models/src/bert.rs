//! BERT: Devlin et al. 2018, arXiv 1810.04805. Parameters have the names and shapes of Hugging Face's `BertModel`.

use crate::encoder::{Heads, STD, linear};
use crate::hub::{Config, Pretrained, text};
use crate::language::check_tokens;
use isograd_core::ops::{Activation, Approximate};
use isograd_core::{DType, Error, Result, Shape, Tensor};
use isograd_nn::{Dropout, Embedding, Forward, Init, Layer, LayerNorm, Module, Recompute, called, is_hooked};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// Extents of a [`Bert`], and the probability of its dropout.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct BertOptions {
    /// The number of tokens.
    pub vocab: usize,
    /// The largest number of positions.
    pub context: usize,
    /// The number of kinds of segments.
    pub segments: usize,
    /// The number of layers.
    pub layers: usize,
    /// Heads of an attention. They divide the width.
    pub heads: usize,
    /// E, the width of a position.
    pub width: usize,
    /// The width of the hidden layers.
    pub hidden: usize,
    /// The probability of dropout, of embeddings, of weights of the attention and after each part of a layer.
    pub dropout: f64,
    /// Added to variances.
    pub eps: f64,
    /// True if there is the layer of [`Bert::pooled`]. Files of networks that predict words have none.
    pub has_pooler: bool,
}

/// The beginning of the names of the pooler's parameters.
const POOLER: &str = "pooler.";

impl Default for BertOptions {
    /// The options of [`BertOptions::base`].
    fn default() -> BertOptions {
        BertOptions::base()
    }
}

impl BertOptions {
    /// 12 layers of width 768, for 30,522 tokens and 512 positions: 109 million parameters. Dropout is 0.1.
    pub fn base() -> BertOptions {
        BertOptions {
            vocab: 30_522,
            context: 512,
            segments: 2,
            layers: 12,
            heads: 12,
            width: 768,
            hidden: 3072,
            dropout: 0.1,
            eps: 1e-12,
            has_pooler: true,
        }
    }

    /// 24 layers of width 1024: 335 million parameters.
    pub fn large() -> BertOptions {
        BertOptions { layers: 24, heads: 16, width: 1024, hidden: 4096, ..BertOptions::base() }
    }

    /// From `config.json` of a folder that `transformers` or [`save`](Pretrained::save) wrote; the dropout is its `hidden_dropout_prob`.
    /// Errors: `Io`; `Format` for another kind of network, and for options that a [`Bert`] does not have, such as another activation.
    pub fn read(folder: impl AsRef<Path>) -> Result<BertOptions> {
        let config = Config::read(folder.as_ref(), &["bert"])?;
        config.expect("hidden_act", "gelu")?;
        config.expect("position_embedding_type", "absolute")?;
        config.expect("is_decoder", false)?;
        config.expect("add_cross_attention", false)?;
        Ok(BertOptions {
            vocab: config.count("vocab_size")?,
            context: config.count("max_position_embeddings")?,
            segments: config.count("type_vocab_size")?,
            layers: config.count("num_hidden_layers")?,
            heads: config.count("num_attention_heads")?,
            width: config.count("hidden_size")?,
            hidden: config.count("intermediate_size")?,
            dropout: config.float_or("hidden_dropout_prob", 0.1)?,
            eps: config.float_or("layer_norm_eps", 1e-12)?,
            has_pooler: true,
        })
    }

    fn config(&self) -> String {
        text(&json!({
            "architectures": ["BertModel"],
            "model_type": "bert",
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "type_vocab_size": self.segments,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_size": self.width,
            "intermediate_size": self.hidden,
            "hidden_act": "gelu",
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.dropout,
            "layer_norm_eps": self.eps,
        }))
    }

    fn norm(&self, init: &Init) -> Result<LayerNorm> {
        let mut norm = LayerNorm::new(self.width, init)?;
        norm.eps = self.eps;
        Ok(norm)
    }
}

/// The sum of the embeddings of tokens, positions and segments, and its norm.
#[derive(Debug, Module)]
pub struct Embeddings {
    /// The table of tokens.
    #[module(name = "word_embeddings")]
    pub words: Embedding,
    /// The table of positions.
    #[module(name = "position_embeddings")]
    pub positions: Embedding,
    /// The table of segments.
    #[module(name = "token_type_embeddings")]
    pub segments: Embedding,
    /// The norm of the sum.
    #[module(name = "LayerNorm")]
    pub norm: LayerNorm,
}

impl Embeddings {
    fn forward(&self, input: &BertInput) -> Result<Tensor> {
        called(self, &[&input.tokens], || self.sum(input))
    }

    fn sum(&self, input: &BertInput) -> Result<Tensor> {
        let [_, t] = check_tokens("bert", &input.tokens, 0, self.positions.weight.dims()[0])?;
        let words = self.words.forward(&input.tokens)?;
        let segments = match &input.segments {
            Some(segments) if segments.shape() != input.tokens.shape() => {
                let message = format!("segments are {}, expected {} as tokens", segments.shape(), input.tokens.shape());
                return Err(Error::shape("bert", message));
            }
            Some(segments) => self.segments.forward(segments)?,
            // Hooks are of calls.
            None if is_hooked() => self.segments.forward(&Tensor::arange(1, input.tokens.device())?)?,
            None => self.segments.weight.narrow(0, 0, 1)?,
        };
        let positions = match is_hooked() {
            true => self.positions.forward(&Tensor::arange(t, input.tokens.device())?)?,
            false => self.positions.weight.narrow(0, 0, t)?,
        };
        self.norm.forward(&words.add(&segments)?.add(&positions)?)
    }
}

/// A linear layer and dropout, whose result is added to x and normalised.
#[derive(Debug, Module)]
pub struct Output {
    /// A [`Linear`](isograd_nn::Linear) at first.
    pub dense: Box<dyn Layer>,
    /// The norm of the sum.
    #[module(name = "LayerNorm")]
    pub norm: LayerNorm,
    dropout: Dropout,
}

impl Output {
    fn new(input: usize, options: &BertOptions, init: &Init) -> Result<Output> {
        let dense = linear(input, options.width, init)?;
        Ok(Output { dense, norm: options.norm(init)?, dropout: Dropout::new(options.dropout, init) })
    }

    fn forward(&self, part: &Tensor, x: &Tensor) -> Result<Tensor> {
        called(self, &[part, x], || {
            let part = self.dropout.forward(&self.dense.forward(part)?)?;
            // The norm is the next residual, and has its dtype.
            Ok(self.norm.forward_residual(&part.cast(x.dtype())?, x)?.0)
        })
    }
}

/// Attention and a hidden layer with gelu.
#[derive(Debug, Module)]
pub struct Block {
    /// The attention, without the projection of its result.
    #[module(name = "attention.self")]
    pub attention: Heads,
    /// The end of the attention.
    #[module(name = "attention.output")]
    pub attention_output: Output,
    /// To the hidden layer: a [`Linear`](isograd_nn::Linear) at first.
    #[module(name = "intermediate.dense")]
    pub intermediate: Box<dyn Layer>,
    /// The end of the hidden layer.
    pub output: Output,
}

impl Block {
    fn new(options: &BertOptions, init: &Init) -> Result<Block> {
        let &BertOptions { heads, width, hidden, dropout, .. } = options;
        Ok(Block {
            attention: Heads::new("bert", width, heads, dropout, init)?,
            attention_output: Output::new(width, options, init)?,
            intermediate: linear(width, hidden, init)?,
            output: Output::new(hidden, options, init)?,
        })
    }

    fn forward(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        called(self, &[x], || {
            let x = self.attention_output.forward(&self.attention.forward(x, mask)?, x)?;
            let hidden = self.intermediate.forward_with(&x, Activation::Gelu(Approximate::None))?;
            self.output.forward(&hidden, &x)
        })
    }
}

/// The input of a [`Bert`].
#[derive(Clone, Debug)]
pub struct BertInput {
    /// Tokens `[B, T]`, i64 or i32.
    pub tokens: Tensor,
    /// The segment of each token, like the tokens; 0 if absent.
    pub segments: Option<Tensor>,
    /// True for tokens that are attended to, false for padding, bool `[B, T]`. All if absent.
    pub attended: Option<Tensor>,
}

impl BertInput {
    /// Tokens of one segment, without padding.
    pub fn new(tokens: &Tensor) -> BertInput {
        BertInput { tokens: tokens.clone(), segments: None, attended: None }
    }

    /// The mask of the attention, `[B, 1, 1, T]`.
    fn mask(&self) -> Result<Option<Tensor>> {
        let Some(attended) = &self.attended else { return Ok(None) };
        let is_bool = attended.dtype() == DType::Bool;
        match attended.dims() {
            &[b, t] if is_bool && attended.shape() == self.tokens.shape() => attended.reshape((b, 1, 1, t)).map(Some),
            _ => {
                let given = format!("attended is {} {}", attended.dtype(), attended.shape());
                Err(Error::shape("bert", format!("{given}, expected bool {} as tokens", self.tokens.shape())))
            }
        }
    }
}

/// An encoder of text: tokens `[B, T]` to features `[B, T, E]`, normalised after each part of a layer.
#[derive(Debug, Module)]
pub struct Bert {
    /// The embeddings.
    pub embeddings: Embeddings,
    dropout: Dropout,
    /// The layers.
    #[module(name = "encoder.layer")]
    pub layers: Vec<Block>,
    /// The layer of [`pooled`](Bert::pooled), before tanh.
    #[module(name = "pooler.dense")]
    pub pooler: Option<Box<dyn Layer>>,
    recompute: Recompute,
    #[module(skip)]
    options: BertOptions,
}

impl Bert {
    /// With initial weights: normal, with a deviation of 0.02. Errors: `Attr` unless the heads divide the width.
    pub fn new(options: &BertOptions, init: &Init) -> Result<Bert> {
        let width = options.width;
        let table =
            |rows: usize| Embedding::from_pretrained(init.normal((rows, width), 0.0, STD)?, &Default::default());
        let embeddings = Embeddings {
            words: table(options.vocab)?,
            positions: table(options.context)?,
            segments: table(options.segments)?,
            norm: options.norm(init)?,
        };
        Ok(Bert {
            embeddings,
            dropout: Dropout::new(options.dropout, init),
            layers: (0..options.layers).map(|_| Block::new(options, init)).collect::<Result<_>>()?,
            pooler: options.has_pooler.then(|| linear(width, width, init)).transpose()?,
            recompute: Recompute::default(),
            options: *options,
        })
    }

    /// The features `[B, T, E]` of tokens with segments and padding. Errors: `Shape`; `Index` for more positions than the context, and for a
    /// token or segment outside of its table.
    pub fn forward_with(&self, input: &BertInput) -> Result<Tensor> {
        called(self, &[&input.tokens], || {
            let x = self.dropout.forward(&self.embeddings.forward(input)?)?;
            let mask = input.mask()?;
            let block = |x: Tensor, block| {
                let mask = mask.clone();
                self.recompute.run(block, &[&x], move |block: &Block, x| block.forward(&x[0], mask.as_ref()))
            };
            self.layers.iter().try_fold(x, block)
        })
    }

    /// A linear layer and tanh of the first position: features `[B, T, E]` to `[B, E]`. Errors: `Index` if there is no position; `Value` if there
    /// is no such layer.
    pub fn pooled(&self, features: &Tensor) -> Result<Tensor> {
        let pooler = self.pooler.as_ref();
        let pooler = pooler.ok_or_else(|| Error::value("bert", "this network has no pooler: its file had none"))?;
        pooler.forward(&features.select(1, 0)?.contiguous()?)?.tanh()
    }
}

impl Pretrained for Bert {
    type Options = BertOptions;

    fn options(&self) -> BertOptions {
        self.options
    }

    fn config(&self) -> String {
        self.options.config()
    }

    fn read(folder: &Path) -> Result<BertOptions> {
        BertOptions::read(folder)
    }

    fn begin(options: &BertOptions, init: &Init) -> Result<Bert> {
        Bert::new(options, init)
    }

    fn fit(options: BertOptions, shapes: &BTreeMap<String, Shape>) -> BertOptions {
        let has_pooler = shapes.keys().any(|name| Bert::name_of(name).starts_with(POOLER));
        BertOptions { has_pooler, ..options }
    }

    /// Names may have the prefix `bert.`, and the weight and bias of a norm may be called gamma and beta.
    fn name_of(name: &str) -> String {
        let name = name.strip_prefix("bert.").unwrap_or(name);
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    }
}

impl Forward for Bert {
    /// The features of tokens of one segment, without padding. Errors: as [`Bert::forward_with`].
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.forward_with(&BertInput::new(tokens))
    }
}
