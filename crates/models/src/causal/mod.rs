//! Decoders of language models: blocks of causal self-attention with rotary positions and of hidden layers, as LLaMA has them, and their
//! relatives. Parameters have LLaMA's names; `files.rs` has the names and shapes of each architecture's files.

mod experts;
mod files;
mod gguf;
mod options;
mod rotary;

pub use experts::{ExpertOptions, Experts};
pub use options::{Architecture, Biases, CausalLmOptions};
pub use rotary::{Rotary, RotaryScaling};

use crate::hub::{Pretrained, Source, prefixed};
use crate::language::{LanguageExtents, LanguageModel, check_tokens};
use isograd_core::ops::Approximate;
use isograd_core::{DType, Result, Shape, Tensor};
use isograd_nn::{
    CacheLayer, CausalSelfAttention, Embedding, Forward, GatedMlp, Init, KvCache, Layer, LayerNorm, Linear, Module,
    QuantizedEmbedding, Recompute, RmsNorm, Rotations, SelfAttentionOptions, Visitor, VisitorMut, called,
};
use std::path::Path;

/// The deviation of initial weights.
const STD: f64 = 0.02;
/// The name of the weight of the last product.
const HEAD: &str = "lm_head.weight";

/// A linear layer with normal weights.
fn linear(input: usize, output: usize, has_bias: bool, init: &Init) -> Result<Box<dyn Layer>> {
    let bias = has_bias.then(|| init.zeros(output)).transpose()?;
    Ok(Box::new(Linear { weight: init.normal((output, input), 0.0, STD)?, bias }))
}

/// A module that is one of several: it has the parts of that one.
macro_rules! one_of {
    ($name:ident: $($variant:ident)*) => {
        impl Module for $name {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                match self { $($name::$variant(layer) => layer.visit(visitor),)* }
            }

            fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
                match self { $($name::$variant(layer) => layer.visit_mut(visitor),)* }
            }

            fn type_name(&self) -> &'static str {
                stringify!($name)
            }
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                called(self, &[x], || match self { $($name::$variant(layer) => layer.forward(x),)* })
            }
        }
    };
}

/// A norm over positions.
#[derive(Clone, Debug)]
pub enum Norm {
    /// The norm of mean squares.
    Rms(RmsNorm),
    /// With a mean and a bias.
    Layer(LayerNorm),
}

one_of!(Norm: Rms Layer);

impl Norm {
    /// The dtype of its weight.
    fn dtype(&self) -> DType {
        let weight = match self {
            Norm::Rms(norm) => &norm.weight,
            Norm::Layer(norm) => &norm.weight,
        };
        weight.as_ref().map_or(DType::F32, Tensor::dtype)
    }

    fn new(width: usize, options: &CausalLmOptions, init: &Init) -> Result<Norm> {
        if options.architecture == Architecture::GptNeoX {
            let mut layer = LayerNorm::new(width, init)?;
            layer.eps = options.eps;
            return Ok(Norm::Layer(layer));
        }
        rms_norm(width, options, init).map(Norm::Rms)
    }
}

fn rms_norm(width: usize, options: &CausalLmOptions, init: &Init) -> Result<RmsNorm> {
    let mut rms = RmsNorm::new(width, init)?;
    rms.eps = options.eps;
    if options.architecture.is_gemma() {
        rms.weight_offset = 1.0;
        rms.weight = Some(init.zeros(width)?);
    }
    Ok(rms)
}

/// The hidden layer of a block.
#[derive(Clone, Debug)]
pub enum Hidden {
    /// With a gate.
    Gated(GatedMlp),
    /// The layers of experts.
    Experts(Experts),
    /// Without a gate.
    Plain(Mlp),
}

one_of!(Hidden: Gated Experts Plain);

/// `down(gelu(up(x)))` for x `[.., E]`.
#[derive(Debug, Module)]
pub struct Mlp {
    /// From the width E to the hidden width: a [`Linear`] at first.
    pub up_proj: Box<dyn Layer>,
    /// From the hidden width to E.
    pub down_proj: Box<dyn Layer>,
}

impl Forward for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || self.down_proj.forward(&self.up_proj.forward(x)?.gelu(Approximate::None)?))
    }
}

impl Hidden {
    fn new(options: &CausalLmOptions, block: usize, init: &Init) -> Result<Hidden> {
        let &CausalLmOptions { width, hidden, biases, .. } = options;
        let gate = options.architecture.gate();
        let linear = |input, output| linear(input, output, biases.hidden, init);
        Ok(match options.experts.as_ref().filter(|experts| experts.are_in(block)) {
            Some(experts) => Hidden::Experts(Experts::new(width, experts, gate, init)?),
            None if options.architecture == Architecture::GptNeoX => {
                Hidden::Plain(Mlp { up_proj: linear(width, hidden)?, down_proj: linear(hidden, width)? })
            }
            None => {
                let (gate_proj, up_proj) = (linear(width, hidden)?, linear(width, hidden)?);
                Hidden::Gated(GatedMlp { gate_proj, up_proj, down_proj: linear(hidden, width)?, gate })
            }
        })
    }
}

/// A block: attention and a hidden layer, each added to what it reads: x `[B, T, E]` to `[B, T, E]`.
#[derive(Debug, Module)]
pub struct Block {
    /// Before the attention.
    pub input_layernorm: Norm,
    /// The attention.
    pub self_attn: CausalSelfAttention,
    /// Before the hidden layer, or after the attention where there are norms after parts.
    pub post_attention_layernorm: Norm,
    /// Before the hidden layer, where there are norms after parts.
    pub pre_feedforward_layernorm: Option<Norm>,
    /// The hidden layer.
    pub mlp: Hidden,
    /// After the hidden layer, where there are norms after parts.
    pub post_feedforward_layernorm: Option<Norm>,
    /// Rotary positions of sequences that are longer than in the first training, if these have others.
    long: Option<Rotations>,
    #[module(skip)]
    parallel: bool,
}

/// The tables of rotary positions: of all blocks, of those with windows, and of long sequences.
struct Tables {
    all: Rotations,
    of_windows: Option<Rotations>,
    long: Option<Rotations>,
}

impl Tables {
    fn new(options: &CausalLmOptions, init: &Init) -> Result<Tables> {
        let width = options.head_width();
        let table = |rotary: &Rotary, length: usize, is_long| {
            let rates = rotary.rates(width, is_long)?;
            init.count(&Shape::from((length, 2 * rates.rates.len())))?;
            Rotations::with_rates(length, &rates.rates, rates.factor, init.device())
        };
        let short = options.rotary.short_context().map(|short| short.min(options.context));
        let is_longer = short.is_some_and(|short| short < options.context);
        Ok(Tables {
            all: table(&options.rotary, short.unwrap_or(options.context), false)?,
            of_windows: options.window_rotary.as_ref().map(|of| table(of, options.context, false)).transpose()?,
            long: is_longer.then(|| table(&options.rotary, options.context, true)).transpose()?,
        })
    }
}

impl Block {
    fn new(options: &CausalLmOptions, i: usize, tables: &Tables, init: &Init) -> Result<Block> {
        let &CausalLmOptions { heads, key_heads, head_width, width, biases, .. } = options;
        let window = options.window(i);
        let attention = SelfAttentionOptions {
            key_heads,
            head_width,
            bias: false,
            // A window has the query's own position.
            window: window.map(|window| window.saturating_sub(1)),
            scale: options.score_scale,
            score_cap: options.score_cap,
            ..SelfAttentionOptions::new(heads)
        };
        let of_windows = tables.of_windows.as_ref().filter(|_| window.is_some());
        let rotations = of_windows.unwrap_or(&tables.all).clone();
        let of_queries = heads * options.head_width();
        let of_keys = key_heads * options.head_width();
        let mut self_attn = CausalSelfAttention::new(width, &attention, init)?.with_rotations(rotations);
        self_attn.q_proj = linear(width, of_queries, biases.attention, init)?;
        self_attn.k_proj = linear(width, of_keys, biases.attention, init)?;
        self_attn.v_proj = linear(width, of_keys, biases.attention, init)?;
        self_attn.o_proj = linear(of_queries, width, biases.output, init)?;
        let norm = |width| Norm::new(width, options, init);
        if options.architecture.has_head_norms() {
            self_attn.q_norm = Some(rms_norm(options.head_width(), options, init)?);
            self_attn.k_norm = Some(rms_norm(options.head_width(), options, init)?);
        }
        let after = || options.architecture.has_norms_after().then(|| norm(width)).transpose();
        Ok(Block {
            input_layernorm: norm(width)?,
            self_attn,
            post_attention_layernorm: norm(width)?,
            pre_feedforward_layernorm: after()?,
            mlp: Hidden::new(options, i, init)?,
            post_feedforward_layernorm: after()?,
            long: tables.long.clone().filter(|_| of_windows.is_none()),
            parallel: options.parallel,
        })
    }

    /// The block for positions of a sequence, whose cache may be that of a longer one.
    fn run(&self, x: &Tensor, cache: Option<&mut CacheLayer<'_>>, is_long: bool) -> Result<Tensor> {
        called(self, &[x], || {
            let rotations = self.long.as_ref().filter(|_| is_long);
            let part = self.self_attn.attend(&self.input_layernorm.forward(x)?, cache, rotations)?;
            if let (Some(before), Some(after)) = (&self.pre_feedforward_layernorm, &self.post_feedforward_layernorm) {
                let x = sum(x, &self.post_attention_layernorm.forward(&part)?)?;
                return sum(&x, &after.forward(&self.mlp.forward(&before.forward(&x)?)?)?);
            }
            let y = sum(x, &part)?;
            let read = if self.parallel { x } else { &y };
            sum(&y, &self.mlp.forward(&self.post_attention_layernorm.forward(read)?)?)
        })
    }
}

/// With mixed precision, parts have 16 bits, and sums f32.
fn sum(x: &Tensor, part: &Tensor) -> Result<Tensor> {
    x.add(&part.cast(x.dtype())?)
}

/// The table of embeddings `[V, E]`, which may also be the weight of the last product.
#[derive(Clone, Debug)]
pub enum Table {
    /// Floats.
    Floats(Embedding),
    /// The blocks of a file.
    Quantized(QuantizedEmbedding),
}

one_of!(Table: Floats Quantized);

impl Table {
    fn new(vocab: usize, width: usize, init: &Init) -> Result<Table> {
        let weight = init.normal((vocab, width), 0.0, STD)?;
        Ok(Table::Floats(Embedding::from_pretrained(weight, &Default::default())?))
    }

    /// The rows of tokens; those of blocks in a dtype.
    fn rows(&self, tokens: &Tensor, dtype: DType) -> Result<Tensor> {
        called(self, &[tokens], || match self {
            Table::Floats(table) => table.forward(tokens),
            Table::Quantized(table) => table.rows(tokens, dtype),
        })
    }

    fn logits(&self, features: &Tensor) -> Result<Tensor> {
        match self {
            Table::Floats(table) => features.linear(&table.weight, None),
            Table::Quantized(table) => features.quantized_linear(&table.weight, None),
        }
    }
}

/// The blocks of a [`CausalLm`], between embeddings and the last norm.
#[derive(Debug, Module)]
pub struct Blocks {
    /// The table of embeddings.
    pub embed_tokens: Table,
    /// The blocks.
    pub layers: Vec<Block>,
    /// The last norm.
    pub norm: Norm,
    recompute: Recompute,
}

/// A language model: tokens `[B, T]` (i64 or i32) to logits `[B, T, V]` of the tokens that follow each.
#[derive(Debug, Module)]
pub struct CausalLm {
    /// All but the last product.
    pub model: Blocks,
    /// The last product, a [`Linear`] at first, unless its weight is the table of embeddings.
    pub lm_head: Option<Box<dyn Layer>>,
    #[module(skip)]
    options: CausalLmOptions,
}

impl CausalLm {
    /// With initial weights: normal, with a deviation of 0.02. Errors: `Attr` unless heads of keys divide heads of queries, and these the width
    /// if heads have no width of their own; `Attr` for rotary positions of an odd number of elements.
    pub fn new(options: &CausalLmOptions, init: &Init) -> Result<CausalLm> {
        CausalLm::changed(options, init, &|| Table::new(options.vocab, options.width, init), &mut |_, _| Ok(()))
    }

    /// The same with another table, whose blocks, by their numbers, are changed as they are made.
    fn changed(
        options: &CausalLmOptions,
        init: &Init,
        table: &dyn Fn() -> Result<Table>,
        change: &mut dyn FnMut(usize, &mut Block) -> Result<()>,
    ) -> Result<CausalLm> {
        let mut block = |i, tables: &Tables| {
            let mut block = Block::new(options, i, tables, init)?;
            change(i, &mut block).map(|()| block)
        };
        let tables = Tables::new(options, init)?;
        let model = Blocks {
            embed_tokens: table()?,
            layers: (0..options.layers).map(|i| block(i, &tables)).collect::<Result<_>>()?,
            norm: Norm::new(options.width, options, init)?,
            recompute: Recompute::default(),
        };
        let lm_head = (!options.tied).then(|| linear(options.width, options.vocab, false, init)).transpose()?;
        Ok(CausalLm { model, lm_head, options: options.clone() })
    }
}

impl Pretrained for CausalLm {
    type Options = CausalLmOptions;
    const PREFIX: &'static str = "model.";

    fn options(&self) -> CausalLmOptions {
        self.options.clone()
    }

    fn config(&self) -> String {
        self.options.config()
    }

    fn read(folder: &Path) -> Result<CausalLmOptions> {
        CausalLmOptions::read(folder)
    }

    fn source_in(&self, own: &str, path: &Path) -> Result<Source> {
        match isograd_nn::gguf::is_gguf(path)? {
            true => Ok(files::source_in_gguf(&self.options, own)),
            false => Ok(self.source(own)),
        }
    }

    fn begin(options: &CausalLmOptions, init: &Init) -> Result<CausalLm> {
        CausalLm::new(options, init)
    }

    fn tied(&self) -> Option<[&'static str; 2]> {
        self.options.tied.then_some([HEAD, "model.embed_tokens.weight"])
    }

    fn name_of(name: &str) -> String {
        let others = ["gpt_neox.", "embed_out.", "blk.", "token_embd.", "output"];
        let is_whole = name == HEAD || others.iter().any(|part| name.starts_with(part));
        if is_whole { name.to_string() } else { prefixed::<CausalLm>(name) }
    }

    fn source(&self, own: &str) -> Source {
        files::source(&self.options, own)
    }
}

impl Forward for CausalLm {
    /// Errors: `Shape` for tokens that are not `[B, T]`; `Index` for more positions than the context, and for a token outside of the
    /// vocabulary.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        called(self, &[tokens], || self.logits(&self.features(tokens, None)?))
    }
}

impl LanguageModel for CausalLm {
    fn extents(&self) -> LanguageExtents {
        LanguageExtents { vocab: self.options.vocab, context: self.options.context, layers: self.options.layers }
    }

    fn features(&self, tokens: &Tensor, mut cache: Option<&mut KvCache>) -> Result<Tensor> {
        let start = cache.as_ref().map_or(0, |cache| cache.len());
        let extents = check_tokens("causal_lm", tokens, start, self.options.context)?;
        // All positions of a cache have the rotations of the longest sequence that it may hold.
        let longest = cache.as_ref().map_or(extents[1], |cache| cache.capacity());
        let is_long = self.options.rotary.short_context().is_some_and(|short| longest > short);
        let new = cache.as_mut().map(|cache| cache.begin(extents, tokens.device())).transpose()?;
        let Blocks { embed_tokens, layers, norm, recompute } = &self.model;
        let features = called(&self.model, &[tokens], || {
            let mut x = embed_tokens.rows(tokens, norm.dtype())?;
            if self.options.architecture.is_gemma() {
                x = x.mul_scalar((self.options.width as f64).sqrt())?;
            }
            for (i, block) in layers.iter().enumerate() {
                x = match cache.as_mut().zip(new.as_ref()) {
                    None => recompute.run(block, &[&x], move |block: &Block, x| block.run(&x[0], None, is_long))?,
                    Some((cache, new)) => block.run(&x, Some(&mut cache.layer(i, new)), is_long)?,
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
        let logits = match &self.lm_head {
            Some(head) => head.forward(features)?,
            None => self.model.embed_tokens.logits(features)?,
        };
        match self.options.logit_cap {
            Some(cap) => logits.mul_scalar(1.0 / cap)?.tanh()?.mul_scalar(cap),
            None => Ok(logits),
        }
    }
}
