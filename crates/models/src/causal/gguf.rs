//! The description of a decoder in a GGUF file. ggml, "GGUF", `docs/gguf.md`.

use super::experts::ExpertOptions;
use super::files::source_in_gguf;
use super::options::{Architecture, Biases, CausalLmOptions};
use super::rotary::{Rotary, RotaryScaling};
use super::{CausalLm, Table};
use crate::hub::{Pretrained, Source};
use isograd_core::quantized::QuantizedWeight;
use isograd_core::{DType, Device, Error, Result, Tensor};
use isograd_nn::gguf::{Gguf, Packed, Value};
use isograd_nn::{Init, Layer, Module, QuantizedEmbedding, QuantizedLinear};
use std::path::Path;

/// The names of architectures in GGUF files, and ours.
const NAMES: [(&str, Architecture); 10] = [
    ("llama", Architecture::Llama),
    ("qwen2", Architecture::Qwen2),
    ("qwen2moe", Architecture::Qwen2Moe),
    ("qwen3", Architecture::Qwen3),
    ("qwen3moe", Architecture::Qwen3Moe),
    ("gemma", Architecture::Gemma),
    ("gemma2", Architecture::Gemma2),
    ("gemma3", Architecture::Gemma3),
    ("phi3", Architecture::Phi3),
    ("gptneox", Architecture::GptNeoX),
];

/// The options of an architecture in a file.
struct Keys<'a> {
    file: &'a Gguf,
    prefix: &'a str,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.file.metadata.get(&format!("{}.{key}", self.prefix))
    }

    fn count(&self, key: &str) -> Result<usize> {
        self.file.count(&format!("{}.{key}", self.prefix))
    }

    fn count_or(&self, key: &str, other: usize) -> Result<usize> {
        Ok(self.optional_count(key)?.unwrap_or(other))
    }

    fn optional_count(&self, key: &str) -> Result<Option<usize>> {
        self.get(key).map(|_| self.count(key)).transpose()
    }

    fn number_or(&self, key: &str, other: f64) -> Result<f64> {
        Ok(self.optional(key)?.unwrap_or(other))
    }

    fn optional(&self, key: &str) -> Result<Option<f64>> {
        self.get(key).map(|_| self.file.number(&format!("{}.{key}", self.prefix))).transpose()
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_text()
    }
}

/// The options of a file. Errors: `Io`; `Format` for a damaged file, and for options that are missing; `Unsupported` for an architecture that a
/// [`CausalLm`](super::CausalLm) does not have.
pub(super) fn read(path: &Path) -> Result<CausalLmOptions> {
    read_in(&Gguf::open(path)?, path)
}

fn read_in(file: &Gguf, path: &Path) -> Result<CausalLmOptions> {
    let name = file.text("general.architecture")?;
    let known = NAMES.iter().find(|(known, _)| *known == name);
    let (prefix, architecture) = *known.ok_or_else(|| {
        let names = NAMES.map(|(name, _)| name).join(", ");
        let message = format!("the architecture is {name}, expected one of {names}");
        Error::unsupported("causal_lm", format!("{}: {message}", path.display()))
    })?;
    let keys = Keys { file, prefix };
    let experts = experts(&keys, architecture)?;
    let architecture = match architecture {
        Architecture::Llama if experts.is_some() => Architecture::Mixtral,
        of => of,
    };
    let (context, layers) = (keys.count("context_length")?, keys.count("block_count")?);
    let (width, heads) = (keys.count("embedding_length")?, keys.count("attention.head_count")?);
    let head_width = keys.optional_count("attention.key_length")?;
    let width_of_head = head_width.unwrap_or(width.checked_div(heads).unwrap_or(0));
    let vocab = file.tensors.get("token_embd.weight").and_then(|table| table.shape().dims().first().copied());
    let vocab = vocab.ok_or_else(|| Error::format(path.display().to_string(), "it has no tensor token_embd.weight"))?;
    let has = |name: &str| file.tensors.contains_key(name);
    let is_neox = architecture == Architecture::GptNeoX;
    let window = keys.optional_count("attention.sliding_window")?.filter(|&window| window > 0);
    Ok(CausalLmOptions {
        architecture,
        vocab,
        context,
        layers,
        heads,
        key_heads: keys.count_or("attention.head_count_kv", heads)?,
        head_width,
        width,
        hidden: keys.count("feed_forward_length")?,
        experts,
        rotary: rotary(&keys, width_of_head, context)?,
        window_rotary: (architecture == Architecture::Gemma3).then(|| Rotary::new(10_000.0)),
        windows: match window {
            Some(window) => (0..layers).map(|i| has_window(architecture, i).then_some(window)).collect(),
            None => Vec::new(),
        },
        biases: Biases {
            attention: has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias"),
            output: has("blk.0.attn_output.bias"),
            hidden: has("blk.0.ffn_up.bias"),
        },
        // The largest models of both divide by the width over the heads.
        score_scale: architecture.has_norms_after().then(|| match (architecture, layers) {
            (Architecture::Gemma2, 46) | (Architecture::Gemma3, 62) => 1.0 / (width as f64 / heads as f64).sqrt(),
            _ => 1.0 / (width_of_head as f64).sqrt(),
        }),
        score_cap: keys.optional("attn_logit_softcapping")?,
        logit_cap: keys.optional("final_logit_softcapping")?,
        parallel: is_neox && keys.get("use_parallel_residual").and_then(Value::as_bool).unwrap_or(true),
        eps: match is_neox {
            true => keys.number_or("attention.layer_norm_epsilon", 1e-5)?,
            false => keys.number_or("attention.layer_norm_rms_epsilon", 1e-6)?,
        },
        tied: !has("output.weight"),
    })
}

/// True if a block has a window, in a file that has one.
fn has_window(architecture: Architecture, block: usize) -> bool {
    match architecture {
        Architecture::Gemma2 => block.is_multiple_of(2),
        Architecture::Gemma3 => !(block + 1).is_multiple_of(6),
        _ => true,
    }
}

fn rotary(keys: &Keys<'_>, width: usize, context: usize) -> Result<Rotary> {
    let base = keys.number_or("rope.freq_base", 10_000.0)?;
    let rotated = keys.count_or("rope.dimension_count", width)?;
    let divisors = |name: &str| -> Result<Option<Vec<f64>>> {
        let known = keys.file.tensors.contains_key(name);
        let divisors = || keys.file.tensor(name, DType::F64, &Device::cpu()?)?.flatten(0, -1)?.to_vec::<f64>();
        known.then(divisors).transpose()
    };
    let first = keys.count_or("rope.scaling.original_context_length", context)?;
    let factor = keys.number_or("rope.scaling.factor", 1.0)?;
    let scaling = if let Some(long) = divisors("rope_factors_long.weight")? {
        let grown = (context as f64 / first as f64).max(1.0);
        let attention = (1.0 + grown.ln() / (first as f64).ln()).sqrt();
        RotaryScaling::LongRope {
            short: divisors("rope_factors_short.weight")?.unwrap_or(vec![1.0; rotated / 2]),
            long,
            attention: keys.number_or("rope.scaling.attn_factor", attention)?,
            context: first,
        }
    } else if let Some(all) = divisors("rope_freqs.weight")? {
        // The divisors of LLaMA 3 are those of all lengths.
        RotaryScaling::LongRope { short: all.clone(), long: all, attention: 1.0, context }
    } else {
        match keys.text("rope.scaling.type") {
            Some("linear") if factor != 1.0 => RotaryScaling::Linear(factor),
            Some("yarn") => RotaryScaling::Yarn {
                factor,
                attention: keys.optional("rope.scaling.attn_factor")?,
                fast: keys.number_or("rope.scaling.yarn_beta_fast", 32.0)?,
                slow: keys.number_or("rope.scaling.yarn_beta_slow", 1.0)?,
                truncate: true,
                context: first,
            },
            _ => RotaryScaling::Default,
        }
    };
    Ok(Rotary { base, scaling, part: rotated as f64 / width.max(1) as f64 })
}

fn experts(keys: &Keys<'_>, architecture: Architecture) -> Result<Option<ExpertOptions>> {
    let Some(count) = keys.optional_count("expert_count")?.filter(|&count| count > 0) else { return Ok(None) };
    let hidden = keys.count("feed_forward_length")?;
    let is_qwen2 = architecture == Architecture::Qwen2Moe;
    Ok(Some(ExpertOptions {
        count,
        taken: keys.count("expert_used_count")?,
        hidden: keys.count_or("expert_feed_forward_length", hidden)?,
        shared: keys.optional_count("expert_shared_feed_forward_length")?.filter(|_| is_qwen2),
        normalized: !is_qwen2,
        every: 1,
        without: Vec::new(),
    }))
}

impl CausalLm {
    /// The network of a GGUF file, whose weights keep the blocks that the file has: the projections and the last product become a [`QuantizedLinear`] each,
    /// and the table of embeddings a [`QuantizedEmbedding`], where their types have blocks. These are not trained. All other parameters are loaded as
    /// [`load`](Pretrained::load) loads them, on the device and in the dtype of `init`: norms, biases, experts that are stacked. Errors: as
    /// [`load`](Pretrained::load); `Format` for another file.
    pub fn load_quantized(path: impl AsRef<Path>, init: &Init) -> Result<CausalLm> {
        let path = path.as_ref();
        let file = Gguf::open(path)?;
        let options = read_in(&file, path)?;
        let init = init.clone().loading(file.tensors.values().map(Packed::shape));
        let table = || {
            let extents = [options.vocab, options.width];
            match weight_in(&file, &options, "model.embed_tokens.weight", extents, init.device())? {
                Some(weight) => Ok(Table::Quantized(QuantizedEmbedding { weight })),
                None => Table::new(options.vocab, options.width, &init),
            }
        };
        // A block has floats only until it is changed.
        let mut model = CausalLm::changed(&options, &init, &table, &mut |i, block| {
            block.replace_matching("*", &mut |name, layer| {
                packed(&file, &options, &format!("model.layers.{i}.{name}"), layer, init.device())
            })
        })?;
        if let Some(head) = model.lm_head.take() {
            model.lm_head = Some(packed(&file, &options, "lm_head", head, init.device())?);
        }
        model.load_weights(path)?;
        Ok(model)
    }
}

/// The layer of a name with the blocks that the file has, or as it is if the file has none that fit.
fn packed(
    file: &Gguf,
    options: &CausalLmOptions,
    name: &str,
    layer: Box<dyn Layer>,
    device: &Device,
) -> Result<Box<dyn Layer>> {
    let parameters = layer.named_parameters();
    let parameter = |name: &str| parameters.iter().find(|(own, _)| own == name).map(|(_, t)| t);
    let Some(&[rows, columns]) = parameter("weight").map(Tensor::dims) else { return Ok(layer) };
    let found = weight_in(file, options, &format!("{name}.weight"), [rows, columns], device)?;
    let bias = parameter("bias").cloned();
    Ok(found.map_or(layer, |weight| Box::new(QuantizedLinear { weight, bias })))
}

/// The weight of these extents of a parameter's name, if the file has blocks that fit it. Others are an error of loading.
fn weight_in(
    file: &Gguf,
    options: &CausalLmOptions,
    own: &str,
    [rows, columns]: [usize; 2],
    device: &Device,
) -> Result<Option<QuantizedWeight>> {
    let source = source_in_gguf(options, own);
    let found = file.tensors.get(source.names()[0]).filter(|found| found.has_blocks());
    let Some((found, &[all, width])) = found.map(|found| (found, found.shape().dims())) else { return Ok(None) };
    let order: Option<Vec<usize>> = match source {
        _ if width != columns => return Ok(None),
        Source::Whole(_) if all == rows => None,
        Source::Rows { start, .. } if start + rows <= all => Some((start..start + rows).collect()),
        // In the file the two elements of a pair are neighbours; here they are half a head apart.
        Source::Neighbors { heads, .. } if all == rows && rows.is_multiple_of(2 * heads) => {
            let half = rows / (2 * heads);
            Some((0..rows).map(|row| row / (2 * half) * 2 * half + row % half * 2 + row / half % 2).collect())
        }
        _ => return Ok(None),
    };
    let weight = found.weight(device)?;
    let Some(order) = order else { return Ok(Some(weight)) };
    let order = order.into_iter().map(|row| row as i64).collect::<Vec<_>>();
    weight.select(&Tensor::from_vec(order, rows, device)?).map(Some)
}
