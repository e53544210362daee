//! LLaMA: Touvron et al. 2023, arXiv 2302.13971, with shared keys (arXiv 2307.09288) and the positions of later versions. Parameters have
//! the names and shapes of Hugging Face's `LlamaForCausalLM`.

use crate::hub::{Config, Pretrained, prefixed, text};
use crate::language::{LanguageModel, check_tokens};
use isograd_core::{Error, Result, Shape, Tensor};
use isograd_nn::{
    CacheLayer, CausalSelfAttention, Embedding, Forward, Init, KvCache, Layer, Linear, Module, Recompute, RmsNorm,
    Rotations, SelfAttentionOptions, SwiGlu, called,
};
use serde_json::{Value, json};
use std::f64::consts::TAU;
use std::path::Path;

/// Extents and constants of a [`Llama`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LlamaOptions {
    /// V, the number of tokens.
    pub vocab: usize,
    /// The largest number of positions.
    pub context: usize,
    /// The number of blocks.
    pub layers: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, which divide the heads of queries.
    pub key_heads: usize,
    /// The elements of a head; the width divided by the heads if absent.
    pub head_width: Option<usize>,
    /// E, the width of a position.
    pub width: usize,
    /// The width of the hidden layers.
    pub hidden: usize,
    /// The base of the angles of rotary positions.
    pub rotary_base: f64,
    /// The change of these angles for contexts that are longer than in the first training.
    pub rotary_scaling: Option<RotaryScaling>,
    /// Added to mean squares.
    pub eps: f64,
    /// True if the weight of the last product is the table of embeddings.
    pub tied: bool,
}

/// A change of the angles of rotary positions. Angles of a pair of elements grow by its rate from one position to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RotaryScaling {
    /// Rates are divided by a factor. Chen et al. 2023, arXiv 2306.15595.
    Linear(f64),
    /// As in LLaMA 3.1: slow rates are divided by a factor, fast ones stay, and between them there is a smooth transition.
    Llama3 {
        /// The divisor of slow rates.
        factor: f64,
        /// Rates with fewer turns in the first context are slow.
        low: f64,
        /// Rates with more turns in the first context are fast.
        high: f64,
        /// The context of the first training.
        context: usize,
    },
}

/// The key of the base of the angles, and that of the rotated part of a head.
const THETA: &str = "rope_theta";
const PART: &str = "partial_rotary_factor";
/// The options of rotary positions in files.
const KNOWN: [&str; 8] = [
    "rope_type",
    "type",
    THETA,
    PART,
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
];

impl RotaryScaling {
    /// The factor, if it is one.
    fn factor(self) -> f64 {
        match self {
            RotaryScaling::Linear(factor) | RotaryScaling::Llama3 { factor, .. } => factor,
        }
    }

    fn of(self, rate: f64) -> f64 {
        match self {
            RotaryScaling::Linear(factor) => rate / factor,
            RotaryScaling::Llama3 { factor, low, high, context } => {
                let turns = context as f64 * rate / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                rate * (kept + (1.0 - kept) / factor)
            }
        }
    }

    fn read(config: &Config) -> Result<Option<RotaryScaling>> {
        let Some(kind) = config.get("rope_type").or(config.get("type")) else {
            return match config.keys().find(|key| *key != THETA) {
                Some(key) => Err(config.wrong("rope_type", &Value::Null, format!("a type that has {key}"))),
                None => Ok(None),
            };
        };
        if let Some((key, value)) =
            config.keys().find(|key| !KNOWN.contains(key)).and_then(|key| Some((key, config.get(key)?)))
        {
            return Err(config.wrong(key, value, "none: this network has no such option of its positions"));
        }
        let number = |key: &str| match config.get(key) {
            Some(_) => config.positive_or(key, 0.0),
            None => Err(config.wrong(key, &Value::Null, format!("a number for {kind}"))),
        };
        match kind.as_str() {
            Some("default") => Ok(None),
            Some("linear") => Ok(Some(RotaryScaling::Linear(number("factor")?))),
            Some("llama3") => {
                let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
                if low >= high {
                    return Err(config.wrong("low_freq_factor", &json!(low), format!("less than {high}")));
                }
                let context = config.count("original_max_position_embeddings")?;
                Ok(Some(RotaryScaling::Llama3 { factor: number("factor")?, low, high, context }))
            }
            _ => Err(config.wrong("rope_type", kind, "default, linear or llama3")),
        }
    }

    fn config(&self) -> Value {
        match *self {
            RotaryScaling::Linear(factor) => json!({ "rope_type": "linear", "factor": factor }),
            RotaryScaling::Llama3 { factor, low, high, context } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": context,
            }),
        }
    }
}

impl LlamaOptions {
    /// LLaMA 2 with 6.7 billion parameters.
    pub fn llama2_7b() -> LlamaOptions {
        LlamaOptions {
            vocab: 32_000,
            context: 4096,
            layers: 32,
            heads: 32,
            key_heads: 32,
            head_width: None,
            width: 4096,
            hidden: 11_008,
            rotary_base: 10_000.0,
            rotary_scaling: None,
            eps: 1e-5,
            tied: false,
        }
    }

    /// LLaMA 3.2 with 1.2 billion parameters.
    pub fn llama3_1b() -> LlamaOptions {
        let scaling = RotaryScaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, context: 8192 };
        LlamaOptions {
            vocab: 128_256,
            context: 131_072,
            layers: 16,
            heads: 32,
            key_heads: 8,
            head_width: Some(64),
            width: 2048,
            hidden: 8192,
            rotary_base: 500_000.0,
            rotary_scaling: Some(scaling),
            eps: 1e-5,
            tied: true,
        }
    }

    /// From `config.json` of a folder that `transformers` or [`save`](Pretrained::save) wrote. Errors: `Io`; `Format` for another kind of
    /// network, and for options that a [`Llama`] does not have, such as biases.
    pub fn read(folder: impl AsRef<Path>) -> Result<LlamaOptions> {
        let config = Config::read(folder.as_ref(), "llama")?;
        config.expect("hidden_act", "silu")?;
        config.expect("attention_bias", false)?;
        config.expect("mlp_bias", false)?;
        let heads = config.count("num_attention_heads")?;
        // Both are in one object since version 5 of `transformers`.
        let rope = config.part("rope_parameters")?;
        let scaling = config.part("rope_scaling")?;
        if let (Some(_), Some(value)) = (&rope, config.get("rope_scaling")) {
            return Err(config.wrong("rope_scaling", value, "none beside rope_parameters"));
        }
        for config in [Some(&config), rope.as_ref()].into_iter().flatten() {
            if config.float_or(PART, 1.0)? != 1.0 {
                return Err(config.wrong(
                    PART,
                    &json!(config.float_or(PART, 1.0)?),
                    "1: all elements of a head are rotated",
                ));
            }
        }
        Ok(LlamaOptions {
            vocab: config.count("vocab_size")?,
            context: config.count("max_position_embeddings")?,
            layers: config.count("num_hidden_layers")?,
            heads,
            key_heads: config.count_or("num_key_value_heads", None)?.unwrap_or(heads),
            head_width: config.count_or("head_dim", None)?,
            width: config.count("hidden_size")?,
            hidden: config.count("intermediate_size")?,
            rotary_base: rope.as_ref().unwrap_or(&config).positive_or(THETA, 10_000.0)?,
            rotary_scaling: rope.or(scaling).map_or(Ok(None), |config| RotaryScaling::read(&config))?,
            eps: config.positive_or("rms_norm_eps", 1e-6)?,
            tied: config.flag_or("tie_word_embeddings", false)?,
        })
    }

    fn config(&self) -> String {
        text(&json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "head_dim": self.head_width(),
            "hidden_size": self.width,
            "intermediate_size": self.hidden,
            "hidden_act": "silu",
            "rope_theta": self.rotary_base,
            "rope_scaling": self.rotary_scaling.map(|scaling| scaling.config()),
            "rms_norm_eps": self.eps,
            "attention_bias": false,
            "mlp_bias": false,
            "tie_word_embeddings": self.tied,
        }))
    }

    fn head_width(&self) -> usize {
        self.head_width.unwrap_or(self.width.checked_div(self.heads).unwrap_or(0))
    }

    /// The rate of each pair of a head's elements.
    fn rates(&self) -> Result<Vec<f64>> {
        let width = self.head_width();
        if !width.is_multiple_of(2) {
            return Err(Error::attr("llama", format!("heads have {width} elements, expected an even number")));
        }
        let factor = self.rotary_scaling.map_or(1.0, RotaryScaling::factor);
        if [self.rotary_base, factor].iter().any(|v| !v.is_finite() || *v <= 0.0) {
            let message =
                format!("rotary_base is {} and its factor {factor}, expected numbers above 0", self.rotary_base);
            return Err(Error::attr("llama", message));
        }
        let rate = |i: usize| self.rotary_base.powf(-2.0 * i as f64 / width as f64);
        Ok((0..width / 2).map(|i| self.rotary_scaling.map_or(rate(i), |scaling| scaling.of(rate(i)))).collect())
    }
}

/// Attention and a hidden layer, each after a norm and added to the sum of the parts before.
#[derive(Debug, Module)]
pub struct Block {
    /// The norm before the attention.
    pub input_layernorm: RmsNorm,
    /// The attention.
    pub self_attn: CausalSelfAttention,
    /// The norm before the hidden layer.
    pub post_attention_layernorm: RmsNorm,
    /// The hidden layer.
    pub mlp: SwiGlu,
}

/// The deviation of initial weights.
const STD: f64 = 0.02;
/// The name of the weight of the last product.
const HEAD: &str = "lm_head.weight";

/// A linear layer without a bias, with normal weights.
fn linear(input: usize, output: usize, init: &Init) -> Result<Box<dyn Layer>> {
    Ok(Box::new(Linear { weight: init.normal((output, input), 0.0, STD)?, bias: None }))
}

fn norm(options: &LlamaOptions, init: &Init) -> Result<RmsNorm> {
    let mut norm = RmsNorm::new(options.width, init)?;
    norm.eps = options.eps;
    Ok(norm)
}

impl Block {
    fn new(options: &LlamaOptions, rotations: &Rotations, init: &Init) -> Result<Block> {
        let &LlamaOptions { heads, key_heads, head_width, width, hidden, .. } = options;
        let attention = SelfAttentionOptions { key_heads, head_width, bias: false, ..SelfAttentionOptions::new(heads) };
        let of_queries = heads * options.head_width();
        let of_keys = key_heads * options.head_width();
        let mut self_attn = CausalSelfAttention::new(width, &attention, init)?.with_rotations(rotations.clone());
        self_attn.q_proj = linear(width, of_queries, init)?;
        self_attn.k_proj = linear(width, of_keys, init)?;
        self_attn.v_proj = linear(width, of_keys, init)?;
        self_attn.o_proj = linear(of_queries, width, init)?;
        Ok(Block {
            input_layernorm: norm(options, init)?,
            self_attn,
            post_attention_layernorm: norm(options, init)?,
            mlp: SwiGlu {
                gate_proj: linear(width, hidden, init)?,
                up_proj: linear(width, hidden, init)?,
                down_proj: linear(hidden, width, init)?,
            },
        })
    }

    fn forward(&self, x: &Tensor, cache: Option<&mut CacheLayer<'_>>) -> Result<Tensor> {
        called(self, &[x], || {
            let y = self.input_layernorm.forward(x)?;
            let part = match cache {
                Some(cache) => self.self_attn.forward_cached(&y, cache)?,
                None => self.self_attn.forward(&y)?,
            };
            let x = sum(x, &part)?;
            sum(&x, &self.mlp.forward(&self.post_attention_layernorm.forward(&x)?)?)
        })
    }
}

/// With mixed precision, parts have 16 bits, and sums f32.
fn sum(x: &Tensor, part: &Tensor) -> Result<Tensor> {
    x.add(&part.cast(x.dtype())?)
}

/// A [`Llama`] without the last product.
#[derive(Debug, Module)]
pub struct Decoder {
    /// The table of tokens `[V, E]`.
    pub embed_tokens: Embedding,
    /// The blocks.
    pub layers: Vec<Block>,
    /// The norm of the result.
    pub norm: RmsNorm,
    recompute: Recompute,
}

/// A language model: tokens `[B, T]` (i64 or i32) to logits `[B, T, V]` of the tokens that follow each.
#[derive(Debug, Module)]
pub struct Llama {
    /// All but the last product.
    pub model: Decoder,
    /// The last product, a [`Linear`] at first; without one, its weight is the table of tokens.
    pub lm_head: Option<Box<dyn Layer>>,
    #[module(skip)]
    options: LlamaOptions,
}

impl Llama {
    /// With initial weights: normal, with a deviation of 0.02. Errors: `Attr` unless heads of keys divide heads of queries, and these the width
    /// if heads have no width of their own; `Attr` for heads of an odd width.
    pub fn new(options: &LlamaOptions, init: &Init) -> Result<Llama> {
        let rates = options.rates()?;
        init.count(&Shape::from((options.context, 2 * rates.len())))?;
        let rotations = Rotations::with_rates(options.context, &rates, init.device())?;
        let table = init.normal((options.vocab, options.width), 0.0, STD)?;
        let model = Decoder {
            embed_tokens: Embedding::from_pretrained(table, &Default::default())?,
            layers: (0..options.layers).map(|_| Block::new(options, &rotations, init)).collect::<Result<_>>()?,
            norm: norm(options, init)?,
            recompute: Recompute::default(),
        };
        let lm_head = (!options.tied).then(|| linear(options.width, options.vocab, init)).transpose()?;
        Ok(Llama { model, lm_head, options: *options })
    }
}

impl Pretrained for Llama {
    type Options = LlamaOptions;
    const PREFIX: &'static str = "model.";

    fn options(&self) -> LlamaOptions {
        self.options
    }

    fn config(&self) -> String {
        self.options.config()
    }

    fn read(folder: &Path) -> Result<LlamaOptions> {
        LlamaOptions::read(folder)
    }

    fn begin(options: &LlamaOptions, init: &Init) -> Result<Llama> {
        Llama::new(options, init)
    }

    fn tied(&self) -> Option<[&'static str; 2]> {
        self.options.tied.then_some([HEAD, "model.embed_tokens.weight"])
    }

    fn name_of(name: &str) -> String {
        if name == HEAD { name.to_string() } else { prefixed::<Llama>(name) }
    }
}

impl Forward for Llama {
    /// Errors: `Shape` for tokens that are not `[B, T]`; `Index` for more positions than the context, and for a token outside of the
    /// vocabulary.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        called(self, &[tokens], || self.logits(&self.features(tokens, None)?))
    }
}

impl LanguageModel for Llama {
    fn vocab(&self) -> usize {
        self.options.vocab
    }

    fn context(&self) -> usize {
        self.options.context
    }

    fn cache(&self, capacity: usize) -> KvCache {
        KvCache::new(self.options.layers, capacity)
    }

    fn features(&self, tokens: &Tensor, mut cache: Option<&mut KvCache>) -> Result<Tensor> {
        let start = cache.as_ref().map_or(0, |cache| cache.len());
        let extents = check_tokens("llama", tokens, start, self.options.context)?;
        let new = cache.as_mut().map(|cache| cache.begin(extents, tokens.device())).transpose()?;
        let Decoder { embed_tokens, layers, norm, recompute } = &self.model;
        let features = called(&self.model, &[tokens], || {
            let mut x = embed_tokens.forward(tokens)?;
            for (i, block) in layers.iter().enumerate() {
                x = match cache.as_mut().zip(new.as_ref()) {
                    None => recompute.run(block, &[&x], |block: &Block, x| block.forward(&x[0], None))?,
                    Some((cache, new)) => block.forward(&x, Some(&mut cache.layer(i, new)))?,
                };
            }
            norm.forward(&x)
        })?;
        if let Some((cache, new)) = cache.zip(new) {
            cache.finish(new)?;
        }
        Ok(features)
    }

    fn logits(&self, features: &Tensor) -> Result<Tensor> {
        match &self.lm_head {
            Some(head) => head.forward(features),
            None => features.linear(&self.model.embed_tokens.weight, None),
        }
    }
}
