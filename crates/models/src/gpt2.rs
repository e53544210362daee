//! GPT-2: Radford et al. 2019, "Language models are unsupervised multitask learners". Parameters have the names and shapes of Hugging
//! Face's `GPT2LMHeadModel`.

use crate::hub::{Config, Pretrained, text};
use crate::language::{LanguageExtents, LanguageModel, Stream, check_tokens};
use isograd_core::ops::{Activation, Approximate, Attention, Causal, GemmBias};
use isograd_core::{Error, Result, Rng, Tensor};
use isograd_nn::{
    CacheLayer, Dropout, Embedding, Forward, Init, KvCache, Layer, LayerNorm, Mode, Module, Recompute, called,
    is_hooked,
};
use serde_json::json;
use std::path::Path;

/// Extents of a [`Gpt2`], and the probability of its dropout.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Gpt2Options {
    /// V, the number of tokens.
    pub vocab: usize,
    /// The largest number of positions.
    pub context: usize,
    /// The number of blocks.
    pub layers: usize,
    /// Heads of an attention. They divide the width.
    pub heads: usize,
    /// E, the width of a position. The hidden layers have four times this width.
    pub width: usize,
    /// The probability of dropout, of embeddings, of weights of the attention and after each part of a block.
    pub dropout: f64,
}

impl Default for Gpt2Options {
    /// The options of [`Gpt2Options::small`].
    fn default() -> Gpt2Options {
        Gpt2Options::small()
    }
}

impl Gpt2Options {
    /// 12 layers of width 768, for 50,257 tokens and 1,024 positions: 124 million parameters. Dropout is 0.1.
    pub fn small() -> Gpt2Options {
        Gpt2Options { vocab: 50_257, context: 1024, layers: 12, heads: 12, width: 768, dropout: 0.1 }
    }

    /// 24 layers of width 1024: 355 million parameters.
    pub fn medium() -> Gpt2Options {
        Gpt2Options { layers: 24, heads: 16, width: 1024, ..Gpt2Options::small() }
    }

    /// 36 layers of width 1280: 774 million parameters.
    pub fn large() -> Gpt2Options {
        Gpt2Options { layers: 36, heads: 20, width: 1280, ..Gpt2Options::small() }
    }

    /// From `config.json` of a folder that `transformers` or [`save`](Pretrained::save) wrote; the dropout is its `resid_pdrop`. Errors: `Io`;
    /// `Format` for another kind of network, and for options that a [`Gpt2`] does not have, such as another activation.
    pub fn read(folder: impl AsRef<Path>) -> Result<Gpt2Options> {
        let config = Config::read(folder.as_ref(), &["gpt2"])?;
        config.expect_one("activation_function", &["gelu_new", "gelu_pytorch_tanh"])?;
        config.expect("layer_norm_epsilon", EPS)?;
        config.expect("scale_attn_weights", true)?;
        config.expect("scale_attn_by_inverse_layer_idx", false)?;
        config.expect("tie_word_embeddings", true)?;
        let width = config.count("n_embd")?;
        config.expect("n_inner", 4 * width)?;
        Ok(Gpt2Options {
            vocab: config.count("vocab_size")?,
            context: config.count("n_positions")?,
            layers: config.count("n_layer")?,
            heads: config.count("n_head")?,
            width,
            dropout: config.float_or("resid_pdrop", 0.1)?,
        })
    }

    fn config(&self) -> String {
        text(&json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": self.vocab,
            "n_positions": self.context,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_embd": self.width,
            "n_inner": null,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": EPS,
            "embd_pdrop": self.dropout,
            "attn_pdrop": self.dropout,
            "resid_pdrop": self.dropout,
            "tie_word_embeddings": true,
        }))
    }
}

/// A linear layer whose weight is `[in, out]`: `x w + b`.
#[derive(Debug, Module)]
pub struct Projection {
    /// `[in, out]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Tensor,
}

impl Projection {
    /// A normal weight of this deviation, and a bias of 0.
    pub fn new(input: usize, output: usize, std: f64, init: &Init) -> Result<Projection> {
        Ok(Projection { weight: init.normal((input, output), 0.0, std)?, bias: init.zeros(output)? })
    }
}

impl Forward for Projection {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, Activation::Identity)
    }

    fn forward_with(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        let options = GemmBias { activation, ..GemmBias::default() };
        called(self, &[x], || x.gemm_bias(&self.weight, Some(&self.bias), &options))
    }
}

/// Causal self-attention of a [`Block`].
#[derive(Debug, Module)]
pub struct SelfAttention {
    /// The projection to queries, keys and values, `[.., E]` to `[.., 3E]`: a [`Projection`] at first.
    pub c_attn: Box<dyn Layer>,
    /// The projection of the result.
    pub c_proj: Box<dyn Layer>,
    mode: Mode,
    #[module(skip)]
    heads: usize,
    #[module(skip)]
    dropout: f64,
    #[module(skip)]
    rng: Rng,
}

impl SelfAttention {
    /// x `[B, T, E]` to `[B, T, E]`. With a cache, x follows the positions in it, and its keys and values are appended.
    fn forward(&self, x: &Tensor, cache: Option<&mut CacheLayer<'_>>) -> Result<Tensor> {
        called(self, &[x], || self.attend(x, cache))
    }

    fn attend(&self, x: &Tensor, cache: Option<&mut CacheLayer<'_>>) -> Result<Tensor> {
        let (b, t, e) = (x.dims()[0], x.dims()[1], x.dims()[2]);
        let projected = self.c_attn.forward(x)?;
        let all = projected.reshape((b, t, 3, self.heads, e / self.heads))?;
        let parts = all.unbind(2)?;
        let part = |i: usize| parts[i].transpose(1, 2);
        let (q, mut k, mut v) = (part(0)?, part(1)?, part(2)?);
        let mut key_lengths = None;
        if let Some(cache) = cache {
            [k, v] = cache.append(&k, &v)?;
            key_lengths = cache.new_positions().lengths.clone();
        }
        let dropout = (self.dropout > 0.0 && self.mode.is_training()).then(|| (self.dropout, self.rng.clone()));
        // Without a cache there are as many keys as queries.
        let attention = Attention { causal: Causal::BottomRight, dropout, key_lengths, ..Attention::default() };
        let o = q.scaled_dot_product_attention(&k, &v, &attention)?;
        self.c_proj.forward(&o.transpose(1, 2)?.reshape((b, t, e))?)
    }
}

/// The hidden layer of a [`Block`], with gelu.
#[derive(Debug, Module)]
pub struct Hidden {
    /// To the hidden layer, `[.., E]` to `[.., 4E]`: a [`Projection`] at first.
    pub c_fc: Box<dyn Layer>,
    /// From the hidden layer.
    pub c_proj: Box<dyn Layer>,
}

impl Forward for Hidden {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gelu = Activation::Gelu(Approximate::Tanh);
        called(self, &[x], || self.c_proj.forward(&self.c_fc.forward_with(x, gelu)?))
    }
}

/// Attention and a hidden layer, each after a norm and added to the sum of the parts before.
#[derive(Debug, Module)]
pub struct Block {
    /// The norm before the attention.
    pub ln_1: LayerNorm,
    /// The attention.
    pub attn: SelfAttention,
    /// The norm before the hidden layer.
    pub ln_2: LayerNorm,
    /// The hidden layer.
    pub mlp: Hidden,
    drop: Dropout,
}

impl Block {
    fn new(options: &Gpt2Options, init: &Init) -> Result<Block> {
        let &Gpt2Options { layers, heads, width, dropout, .. } = options;
        // Each block adds two parts to the sum, whose variance would grow with their number.
        let last = STD / ((2 * layers.max(1)) as f64).sqrt();
        Ok(Block {
            ln_1: LayerNorm::new(width, init)?,
            attn: SelfAttention {
                c_attn: Box::new(Projection::new(width, 3 * width, STD, init)?),
                c_proj: Box::new(Projection::new(width, width, last, init)?),
                mode: Mode::default(),
                heads,
                dropout,
                rng: init.rng().clone(),
            },
            ln_2: LayerNorm::new(width, init)?,
            mlp: Hidden {
                c_fc: Box::new(Projection::new(width, 4 * width, STD, init)?),
                c_proj: Box::new(Projection::new(4 * width, width, last, init)?),
            },
            drop: Dropout::new(dropout, init),
        })
    }

    /// Adds both parts of the block to the sum.
    fn add_to(&self, stream: &mut Stream, cache: Option<&mut CacheLayer<'_>>) -> Result<()> {
        let part = self.attn.forward(&stream.norm(&self.ln_1)?, cache)?;
        stream.add(self.drop.forward(&part)?);
        let part = self.mlp.forward(&stream.norm(&self.ln_2)?)?;
        stream.add(self.drop.forward(&part)?);
        Ok(())
    }

    fn forward(&self, x: &Tensor, cache: Option<&mut CacheLayer<'_>>) -> Result<Tensor> {
        called(self, &[x], || {
            let mut stream = Stream::new(x.clone());
            self.add_to(&mut stream, cache)?;
            stream.sum()
        })
    }
}

/// The deviation of initial weights.
const STD: f64 = 0.02;
/// Added to variances: the default of [`LayerNorm`].
const EPS: f64 = 1e-5;

/// A [`Gpt2`] without the last product.
#[derive(Debug, Module)]
pub struct Transformer {
    /// The table of tokens `[V, E]`, whose weight is that of the last product as well.
    pub wte: Embedding,
    /// The table of positions.
    pub wpe: Embedding,
    drop: Dropout,
    /// The blocks.
    pub h: Vec<Block>,
    /// The norm of the result.
    pub ln_f: LayerNorm,
    recompute: Recompute,
}

/// A language model: tokens `[B, T]` (i64 or i32) to logits `[B, T, V]` of the tokens that follow each. The weight of the last product is the
/// table of embeddings.
#[derive(Debug, Module)]
pub struct Gpt2 {
    /// All but the last product.
    pub transformer: Transformer,
    #[module(skip)]
    options: Gpt2Options,
}

impl Gpt2 {
    /// With initial weights: normal, with a deviation of 0.02, which at the end of each part of a block is divided by the square root of
    /// the number of parts. Errors: `Attr` unless the heads divide the width.
    pub fn new(options: &Gpt2Options, init: &Init) -> Result<Gpt2> {
        let Gpt2Options { vocab, context, layers, heads, width, dropout } = *options;
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(Error::attr("gpt2", format!("{heads} heads do not divide the width {width}")));
        }
        let table =
            |rows: usize| Embedding::from_pretrained(init.normal((rows, width), 0.0, STD)?, &Default::default());
        let transformer = Transformer {
            wte: table(vocab)?,
            wpe: table(context)?,
            drop: Dropout::new(dropout, init),
            h: (0..layers).map(|_| Block::new(options, init)).collect::<Result<_>>()?,
            ln_f: LayerNorm::new(width, init)?,
            recompute: Recompute::default(),
        };
        Ok(Gpt2 { transformer, options: *options })
    }
}

impl Pretrained for Gpt2 {
    type Options = Gpt2Options;
    const PREFIX: &'static str = "transformer.";

    fn options(&self) -> Gpt2Options {
        self.options
    }

    fn config(&self) -> String {
        self.options.config()
    }

    fn read(folder: &Path) -> Result<Gpt2Options> {
        Gpt2Options::read(folder)
    }

    fn begin(options: &Gpt2Options, init: &Init) -> Result<Gpt2> {
        Gpt2::new(options, init)
    }

    fn tied(&self) -> Option<[&'static str; 2]> {
        Some(["lm_head.weight", "transformer.wte.weight"])
    }
}

impl Forward for Gpt2 {
    /// Errors: `Shape` for tokens that are not `[B, T]`; `Index` for more positions than the context, and for a token outside of the
    /// vocabulary.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        called(self, &[tokens], || self.logits(&self.features(tokens, None)?))
    }
}

impl LanguageModel for Gpt2 {
    fn extents(&self) -> LanguageExtents {
        LanguageExtents { vocab: self.options.vocab, context: self.options.context, layers: self.options.layers }
    }

    fn features(&self, tokens: &Tensor, mut cache: Option<&mut KvCache>) -> Result<Tensor> {
        let start = cache.as_ref().map_or(0, |cache| cache.len());
        let [b, t] = check_tokens("gpt2", tokens, start, self.options.context)?;
        let new = cache.as_mut().map(|cache| cache.begin([b, t], tokens.device())).transpose()?;
        let features = called(&self.transformer, &[tokens], || {
            let Transformer { wte, wpe, drop, h, ln_f, recompute } = &self.transformer;
            let positions = match &new {
                Some(new) => wpe.forward(&new.positions)?,
                // Hooks are of calls.
                None if is_hooked() => wpe.forward(&Tensor::arange(t, tokens.device())?)?,
                None => wpe.weight.narrow(0, 0, t)?,
            };
            let mut x = drop.forward(&wte.forward(tokens)?.add(&positions)?)?;
            if recompute.is_on() && cache.is_none() {
                let block =
                    |x: Tensor, block| recompute.run(block, &[&x], |block: &Block, x| block.forward(&x[0], None));
                return ln_f.forward(&h.iter().try_fold(x, block)?);
            }
            let mut stream = Stream::new(x.clone());
            for (i, block) in h.iter().enumerate() {
                let mut layer = cache.as_mut().zip(new.as_ref()).map(|(cache, new)| cache.layer(i, new));
                match is_hooked() {
                    true => x = block.forward(&x, layer.as_mut())?,
                    false => block.add_to(&mut stream, layer.as_mut())?,
                }
            }
            if is_hooked() { ln_f.forward(&x) } else { stream.norm(ln_f) }
        })?;
        if let Some((cache, new)) = cache.zip(new) {
            cache.finish(new)?;
        }
        Ok(features)
    }

    fn logits(&self, features: &Tensor) -> Result<Tensor> {
        features.linear(&self.transformer.wte.weight, None)
    }
}
