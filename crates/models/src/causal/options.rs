//! The description of a decoder, and `config.json`, which has it.

use super::experts::ExpertOptions;
use super::rotary::{Rotary, RotaryScaling};
use crate::hub::{Config, text};
use isograd_core::Result;
use isograd_core::ops::Approximate;
use isograd_nn::Gate;
use serde_json::{Value, json};
use std::path::Path;

/// The kind of a decoder: the `model_type` of its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Architecture {
    /// LLaMA 1 to 3. Touvron et al. 2023, arXiv 2302.13971.
    Llama,
    /// Jiang et al. 2023, arXiv 2310.06825.
    Mistral,
    /// Experts in place of hidden layers. Jiang et al. 2024, arXiv 2401.04088.
    Mixtral,
    /// Qwen 2 and 2.5. Yang et al. 2024, arXiv 2407.10671.
    Qwen2,
    /// Qwen 2 with experts.
    Qwen2Moe,
    /// Yang et al. 2025, arXiv 2505.09388.
    Qwen3,
    /// Qwen 3 with experts.
    Qwen3Moe,
    /// Gemma Team 2024, arXiv 2403.08295.
    Gemma,
    /// Gemma Team 2024, arXiv 2408.00118.
    Gemma2,
    /// The language model of Gemma 3. Gemma Team 2025, arXiv 2503.19786.
    Gemma3,
    /// Phi 3 and 4. Abdin et al. 2024, arXiv 2404.14219.
    Phi3,
    /// GPT-NeoX and Pythia. Black et al. 2022, arXiv 2204.06745.
    GptNeoX,
}

/// The name of an architecture in files, and that of its class in `transformers`.
const NAMES: [(Architecture, &str, &str); 12] = [
    (Architecture::Llama, "llama", "LlamaForCausalLM"),
    (Architecture::Mistral, "mistral", "MistralForCausalLM"),
    (Architecture::Mixtral, "mixtral", "MixtralForCausalLM"),
    (Architecture::Qwen2, "qwen2", "Qwen2ForCausalLM"),
    (Architecture::Qwen2Moe, "qwen2_moe", "Qwen2MoeForCausalLM"),
    (Architecture::Qwen3, "qwen3", "Qwen3ForCausalLM"),
    (Architecture::Qwen3Moe, "qwen3_moe", "Qwen3MoeForCausalLM"),
    (Architecture::Gemma, "gemma", "GemmaForCausalLM"),
    (Architecture::Gemma2, "gemma2", "Gemma2ForCausalLM"),
    (Architecture::Gemma3, "gemma3_text", "Gemma3ForCausalLM"),
    (Architecture::Phi3, "phi3", "Phi3ForCausalLM"),
    (Architecture::GptNeoX, "gpt_neox", "GPTNeoXForCausalLM"),
];

impl Architecture {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(of, ..)| *of == self).map_or("", |(_, name, _)| name)
    }

    fn class(self) -> &'static str {
        NAMES.iter().find(|(of, ..)| *of == self).map_or("", |(.., class)| class)
    }

    /// Norms have the weight `1 + w`, and embeddings are multiplied by the root of the width.
    pub(super) fn is_gemma(self) -> bool {
        matches!(self, Architecture::Gemma | Architecture::Gemma2 | Architecture::Gemma3)
    }

    /// The results of parts have norms too.
    pub(super) fn has_norms_after(self) -> bool {
        matches!(self, Architecture::Gemma2 | Architecture::Gemma3)
    }

    /// Some blocks have windows, and others have none.
    fn has_some_windows(self) -> bool {
        self.has_norms_after() || self.name().starts_with("qwen")
    }

    /// Heads of queries and keys have norms.
    pub(super) fn has_head_norms(self) -> bool {
        matches!(self, Architecture::Qwen3 | Architecture::Qwen3Moe | Architecture::Gemma3)
    }

    /// GGUF files have the pairs that are rotated as neighbours.
    pub(super) fn has_neighbors_in_gguf(self) -> bool {
        matches!(self, Architecture::Llama | Architecture::Mixtral | Architecture::Mistral)
    }

    /// The key of the function of hidden layers.
    fn activation(self) -> &'static str {
        if self.has_norms_after() { "hidden_activation" } else { "hidden_act" }
    }

    pub(super) fn gate(self) -> Gate {
        if self.is_gemma() { Gate::Gelu(Approximate::Tanh) } else { Gate::Silu }
    }
}

/// Extents and constants of a [`CausalLm`](crate::CausalLm).
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CausalLmOptions {
    /// The kind of the decoder.
    pub architecture: Architecture,
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
    /// The experts of blocks that have them.
    pub experts: Option<ExpertOptions>,
    /// Rotary positions.
    pub rotary: Rotary,
    /// Rotary positions of blocks that have a window, if these have others.
    pub window_rotary: Option<Rotary>,
    /// The number of positions that a block attends to, its own among them; all where it is absent, and for blocks behind the list.
    pub windows: Vec<Option<usize>>,
    /// The biases of the projections.
    pub biases: Biases,
    /// The factor of the scores; `1 / sqrt(head_width)` if absent.
    pub score_scale: Option<f64>,
    /// The [soft limit](isograd_core::ops::Attention::score_cap) of the scores.
    pub score_cap: Option<f64>,
    /// The soft limit of the logits.
    pub logit_cap: Option<f64>,
    /// True if a hidden layer reads what the attention of its block reads.
    pub parallel: bool,
    /// Added to mean squares, or to variances.
    pub eps: f64,
    /// True if the weight of the last product is the table of embeddings.
    pub tied: bool,
}

/// The projections that have biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Biases {
    /// The projections to queries, keys and values.
    pub attention: bool,
    /// The projection of the result of attention.
    pub output: bool,
    /// The projections of hidden layers.
    pub hidden: bool,
}

impl CausalLmOptions {
    /// LLaMA 2 with 6.7 billion parameters.
    pub fn llama2_7b() -> CausalLmOptions {
        CausalLmOptions {
            architecture: Architecture::Llama,
            vocab: 32_000,
            context: 4096,
            layers: 32,
            heads: 32,
            key_heads: 32,
            head_width: None,
            width: 4096,
            hidden: 11_008,
            experts: None,
            rotary: Rotary::new(10_000.0),
            window_rotary: None,
            windows: Vec::new(),
            biases: Biases::default(),
            score_scale: None,
            score_cap: None,
            logit_cap: None,
            parallel: false,
            eps: 1e-5,
            tied: false,
        }
    }

    /// LLaMA 3.2 with 1.2 billion parameters.
    pub fn llama3_1b() -> CausalLmOptions {
        let scaling = RotaryScaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, context: 8192 };
        CausalLmOptions {
            vocab: 128_256,
            context: 131_072,
            layers: 16,
            heads: 32,
            key_heads: 8,
            head_width: Some(64),
            width: 2048,
            hidden: 8192,
            rotary: Rotary { scaling, ..Rotary::new(500_000.0) },
            tied: true,
            ..CausalLmOptions::llama2_7b()
        }
    }

    /// From `config.json` of a folder that `transformers` or [`save`](crate::Pretrained::save) wrote, or from a GGUF file. Errors: `Io`; `Format` for
    /// another kind of network, and for options that a [`CausalLm`](crate::CausalLm) does not have.
    pub fn read(folder: impl AsRef<Path>) -> Result<CausalLmOptions> {
        if folder.as_ref().is_file() {
            return super::gguf::read(folder.as_ref());
        }
        let names = NAMES.map(|(_, name, _)| name);
        let config = Config::read(folder.as_ref(), &names)?;
        let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let architecture = NAMES.iter().find(|(_, name, _)| *name == kind).map_or(Architecture::Llama, |(of, ..)| *of);
        let activations: &[&str] = match architecture {
            Architecture::GptNeoX => &["gelu"],
            of if of.is_gemma() => &["gelu_pytorch_tanh", "gelu"],
            _ => &["silu"],
        };
        // The first files of Gemma say `gelu` and mean its approximation.
        config.expect_one(architecture.activation(), activations)?;
        let heads = config.count("num_attention_heads")?;
        let is_neox = architecture == Architecture::GptNeoX;
        let layers = config.count("num_hidden_layers")?;
        let context = config.count("max_position_embeddings")?;
        let (rotary, window_rotary) = rotary(&config, architecture, context)?;
        let attention = config.flag_or("attention_bias", is_neox)?;
        let biases = match architecture {
            Architecture::Qwen2 => Biases { attention: true, ..Biases::default() },
            Architecture::Qwen2Moe => Biases { attention: config.flag_or("qkv_bias", true)?, ..Biases::default() },
            Architecture::GptNeoX => Biases { attention, output: attention, hidden: true },
            _ => Biases { attention, output: attention, hidden: config.flag_or("mlp_bias", false)? },
        };
        let positive = |key: &str| config.get(key).map(|_| config.positive_or(key, 0.0)).transpose();
        let scale = match architecture {
            Architecture::Gemma2 | Architecture::Gemma3 => positive("query_pre_attn_scalar")?.or(Some(256.0)),
            _ => None,
        };
        let is_tied = architecture.is_gemma();
        Ok(CausalLmOptions {
            architecture,
            vocab: config.count("vocab_size")?,
            context,
            layers,
            heads,
            key_heads: match is_neox {
                true => heads,
                false => config.count_or("num_key_value_heads", None)?.unwrap_or(heads),
            },
            head_width: if is_neox { None } else { config.count_or("head_dim", None)? },
            width: config.count("hidden_size")?,
            hidden: config.count("intermediate_size")?,
            experts: experts(&config, architecture)?,
            rotary,
            window_rotary,
            windows: windows(&config, architecture, layers)?,
            biases,
            score_scale: scale.map(|scale| 1.0 / scale.sqrt()),
            score_cap: positive("attn_logit_softcapping")?,
            logit_cap: positive("final_logit_softcapping")?,
            parallel: is_neox && config.flag_or("use_parallel_residual", true)?,
            eps: match is_neox {
                true => config.positive_or("layer_norm_eps", 1e-5)?,
                false => config.positive_or("rms_norm_eps", 1e-6)?,
            },
            tied: config.flag_or("tie_word_embeddings", is_tied)?,
        })
    }

    pub(super) fn config(&self) -> String {
        let is_neox = self.architecture == Architecture::GptNeoX;
        let mut all = json!({
            "architectures": [self.architecture.class()],
            "model_type": self.architecture.name(),
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_size": self.width,
            "intermediate_size": self.hidden,
            "rope_scaling": self.rotary.scaling.config(),
            "tie_word_embeddings": self.tied,
        });
        let mut set = |key: &str, value: Value| all[key] = value;
        match is_neox {
            true => {
                set("hidden_act", json!("gelu"));
                set("rotary_emb_base", json!(self.rotary.base));
                set("rotary_pct", json!(self.rotary.part));
                set("use_parallel_residual", json!(self.parallel));
                set("layer_norm_eps", json!(self.eps));
            }
            false => {
                set("rope_theta", json!(self.rotary.base));
                if self.rotary.part != 1.0 {
                    set("partial_rotary_factor", json!(self.rotary.part));
                }
                if let Some(window) = &self.window_rotary {
                    set("rope_local_base_freq", json!(window.base));
                }
                set("num_key_value_heads", json!(self.key_heads));
                set("head_dim", json!(self.head_width()));
                set("rms_norm_eps", json!(self.eps));
                let gate = if self.architecture.is_gemma() { "gelu_pytorch_tanh" } else { "silu" };
                set(self.architecture.activation(), json!(gate));
            }
        }
        match self.architecture {
            Architecture::Qwen2 => {}
            Architecture::Qwen2Moe => set("qkv_bias", json!(self.biases.attention)),
            Architecture::Llama => {
                set("attention_bias", json!(self.biases.attention));
                set("mlp_bias", json!(self.biases.hidden));
            }
            _ => set("attention_bias", json!(self.biases.attention)),
        }
        if let Some(window) = self.windows.iter().flatten().next() {
            let kind = |has: bool| if has { "sliding_attention" } else { "full_attention" };
            let kinds = (0..self.layers).map(|i| kind(self.window(i).is_some())).collect::<Vec<_>>();
            set("sliding_window", json!(window));
            if self.architecture.has_some_windows() {
                set("layer_types", json!(kinds));
            }
            if self.architecture.name().starts_with("qwen") {
                set("use_sliding_window", json!(true));
            }
        } else if self.architecture == Architecture::Mistral {
            set("sliding_window", Value::Null);
        }
        if let Some(scale) = self.score_scale {
            // A whole number in files.
            set("query_pre_attn_scalar", json!((1.0 / (scale * scale)).round() as u64));
        }
        if self.architecture == Architecture::Phi3 {
            set("pad_token_id", Value::Null);
        }
        if self.architecture.has_norms_after() {
            set("attn_logit_softcapping", json!(self.score_cap));
            set("final_logit_softcapping", json!(self.logit_cap));
        }
        // Phi 3 has the context of the first training at this place too.
        if let (Architecture::Phi3, RotaryScaling::LongRope { context, .. }) = (self.architecture, &self.rotary.scaling)
        {
            set("original_max_position_embeddings", json!(context));
        }
        if let Some(ExpertOptions { count, taken, hidden, shared, normalized, every, without }) = &self.experts {
            let key = if self.architecture == Architecture::Mixtral { "num_local_experts" } else { "num_experts" };
            set(key, json!(count));
            set("num_experts_per_tok", json!(taken));
            if self.architecture != Architecture::Mixtral {
                set("moe_intermediate_size", json!(hidden));
                set("norm_topk_prob", json!(normalized));
                set("decoder_sparse_step", json!(every));
                set("mlp_only_layers", json!(without));
                if let Some(shared) = shared {
                    set("shared_expert_intermediate_size", json!(shared));
                }
            }
        }
        text(&all)
    }

    pub(super) fn head_width(&self) -> usize {
        self.head_width.unwrap_or(self.width.checked_div(self.heads).unwrap_or(0))
    }

    /// The number of positions that a block attends to.
    pub(super) fn window(&self, block: usize) -> Option<usize> {
        self.windows.get(block).copied().flatten()
    }
}

/// The rotary positions of all blocks, and of those with windows if they have others.
fn rotary(config: &Config, architecture: Architecture, context: usize) -> Result<(Rotary, Option<Rotary>)> {
    let base = match architecture {
        Architecture::Gemma3 => 1e6,
        Architecture::Mixtral => 1e6,
        _ => 1e4,
    };
    // All is in one object since version 5 of `transformers`.
    let (joint, scaling) = (config.part("rope_parameters")?, config.part("rope_scaling")?);
    if let (Some(_), Some(value)) = (&joint, config.get("rope_scaling")) {
        return Err(config.wrong("rope_scaling", value, "none beside rope_parameters"));
    }
    let read = |part: Option<&Config>, base: f64| match part {
        Some(part) => Rotary::read(part, config, base, context),
        None => Ok(Rotary {
            part: config.positive_or("partial_rotary_factor", 1.0)?,
            ..Rotary::new(config.positive_or("rope_theta", base)?)
        }),
    };
    if let Some(joint) = &joint
        && let Some(full) = joint.part_or_none("full_attention")
    {
        let window = joint.part_or_none("sliding_attention");
        return Ok((read(Some(&full), base)?, window.map(|window| read(Some(&window), 1e4)).transpose()?));
    }
    let mut all = read(joint.as_ref().or(scaling.as_ref()), base)?;
    if architecture == Architecture::GptNeoX && joint.is_none() {
        // The names of earlier files.
        all = Rotary {
            base: config.positive_or("rotary_emb_base", all.base)?,
            part: config.positive_or("rotary_pct", if all.part == 1.0 { 0.25 } else { all.part })?,
            ..all
        };
    }
    let window = match architecture {
        Architecture::Gemma3 => Some(Rotary::new(config.positive_or("rope_local_base_freq", 1e4)?)),
        _ => None,
    };
    Ok((all, window))
}

/// The windows of all blocks.
fn windows(config: &Config, architecture: Architecture, layers: usize) -> Result<Vec<Option<usize>>> {
    let is_qwen = architecture.name().starts_with("qwen");
    let has_window = match architecture {
        Architecture::Mistral | Architecture::Mixtral | Architecture::Phi3 => true,
        Architecture::Gemma2 | Architecture::Gemma3 => true,
        _ => is_qwen && config.flag_or("use_sliding_window", false)?,
    };
    let window = config.count_or("sliding_window", None)?.filter(|_| has_window);
    let Some(window) = window else { return Ok(Vec::new()) };
    if let Some(kinds) = config.get("layer_types") {
        let known = |kind: &Value| match kind.as_str()? {
            "sliding_attention" => Some(Some(window)),
            "full_attention" => Some(None),
            _ => None,
        };
        let all = kinds.as_array().filter(|all| all.len() == layers).and_then(|all| all.iter().map(known).collect());
        let expected = format!("{layers} times sliding_attention or full_attention");
        return all.ok_or_else(|| config.wrong("layer_types", kinds, expected));
    }
    let first = config.count_or("max_window_layers", Some(28))?.unwrap_or(0);
    // In Gemma 3 each sixth block attends to all positions, in Gemma 2 each second.
    let period = match architecture {
        Architecture::Gemma2 => 2,
        _ => config
            .count_or("sliding_window_pattern", config.count_or("_sliding_window_pattern", Some(6))?)?
            .unwrap_or(6),
    };
    let has = |i: usize| match architecture {
        Architecture::Gemma2 | Architecture::Gemma3 => !(i + 1).is_multiple_of(period.max(1)),
        _ => !is_qwen || i >= first,
    };
    Ok((0..layers).map(|i| has(i).then_some(window)).collect())
}

fn experts(config: &Config, architecture: Architecture) -> Result<Option<ExpertOptions>> {
    let taken = || config.count("num_experts_per_tok");
    Ok(match architecture {
        Architecture::Mixtral => Some(ExpertOptions {
            count: config.count("num_local_experts")?,
            taken: taken()?,
            hidden: config.count("intermediate_size")?,
            shared: None,
            normalized: true,
            every: 1,
            without: Vec::new(),
        }),
        Architecture::Qwen2Moe | Architecture::Qwen3Moe => {
            let without = config.get("mlp_only_layers");
            let numbers = |all: &Value| {
                let number = |v: &Value| Some(v.as_u64()? as usize);
                let all = all.as_array().and_then(|all| all.iter().map(number).collect::<Option<Vec<_>>>());
                all.ok_or_else(|| config.wrong("mlp_only_layers", without.unwrap_or(&Value::Null), "a list of blocks"))
            };
            let is_qwen2 = architecture == Architecture::Qwen2Moe;
            Some(ExpertOptions {
                count: match config.count_or("num_local_experts", None)? {
                    Some(count) => count,
                    None => config.count("num_experts")?,
                },
                taken: taken()?,
                hidden: config.count("moe_intermediate_size")?,
                shared: if is_qwen2 { Some(config.count("shared_expert_intermediate_size")?) } else { None },
                normalized: config.flag_or("norm_topk_prob", false)?,
                every: config.count_or("decoder_sparse_step", Some(1))?.unwrap_or(1).max(1),
                without: without.map_or(Ok(Vec::new()), numbers)?,
            })
        }
        _ => None,
    })
}
