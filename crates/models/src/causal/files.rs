//! Names and shapes of parameters in files.

use super::{Architecture, CausalLmOptions};
use crate::hub::Source;

/// Names in files that differ from LLaMA's, by architecture: ours, and theirs.
const OF_NEOX: [(&str, &str); 8] = [
    ("model.embed_tokens.", "gpt_neox.embed_in."),
    ("model.norm.", "gpt_neox.final_layer_norm."),
    ("model.layers.", "gpt_neox.layers."),
    ("lm_head.", "embed_out."),
    (".self_attn.o_proj.", ".attention.dense."),
    (".mlp.up_proj.", ".mlp.dense_h_to_4h."),
    (".mlp.down_proj.", ".mlp.dense_4h_to_h."),
    (".self_attn.", ".attention."),
];
const OF_MIXTRAL: [(&str, &str); 1] = [(".mlp.", ".block_sparse_moe.")];
/// The weights of experts: ours, Mixtral's, and those of others.
const OF_EXPERTS: [(&str, &str, &str); 3] =
    [("gate_proj", "w1", "gate_proj"), ("up_proj", "w3", "up_proj"), ("down_proj", "w2", "down_proj")];

/// Where files have a parameter.
pub(super) fn source(options: &CausalLmOptions, own: &str) -> Source {
    let names: &[(&str, &str)] = match options.architecture {
        Architecture::GptNeoX => &OF_NEOX,
        Architecture::Mixtral => &OF_MIXTRAL,
        _ => &[],
    };
    let replaced = |name: String, &(ours, theirs): &(&str, &str)| name.replacen(ours, theirs, 1);
    let name = names.iter().fold(own.to_string(), replaced);
    if let Some(experts) = &options.experts {
        // The weights of all experts are one parameter.
        let weight = OF_EXPERTS.iter().find_map(|&(ours, of_mixtral, of_others)| {
            let part = name
                .strip_suffix(ours)?
                .strip_suffix('.')
                .filter(|part| part.ends_with(".mlp") || part.ends_with("_moe"))?;
            Some((part, if options.architecture == Architecture::Mixtral { of_mixtral } else { of_others }))
        });
        if let Some((part, theirs)) = weight {
            return Source::Each((0..experts.count).map(|i| format!("{part}.experts.{i}.{theirs}.weight")).collect());
        }
    }
    let (of_queries, of_keys) = (options.heads * options.head_width(), options.key_heads * options.head_width());
    match options.architecture {
        Architecture::GptNeoX => {
            for (part, ours) in ["q_proj", "k_proj", "v_proj"].into_iter().enumerate() {
                if name.contains(ours) {
                    let name = name.replace(ours, "query_key_value");
                    return Source::Heads { name, heads: options.heads, part, parts: 3 };
                }
            }
        }
        Architecture::Phi3 => {
            for (ours, theirs, start) in [
                ("q_proj", "qkv_proj", 0),
                ("k_proj", "qkv_proj", of_queries),
                ("v_proj", "qkv_proj", of_queries + of_keys),
                ("gate_proj", "gate_up_proj", 0),
                ("up_proj", "gate_up_proj", options.hidden),
            ] {
                if name.contains(&format!(".{ours}.")) {
                    return Source::Rows { name: name.replace(ours, theirs), start };
                }
            }
        }
        _ => {}
    }
    Source::Whole(name)
}

/// The names of parameters in GGUF files: ours, behind the number of the block, and theirs.
const OF_GGUF: [(&str, &str); 24] = [
    ("self_attn.q_proj.", "attn_q."),
    ("self_attn.k_proj.", "attn_k."),
    ("self_attn.v_proj.", "attn_v."),
    ("self_attn.o_proj.", "attn_output."),
    ("self_attn.q_norm.", "attn_q_norm."),
    ("self_attn.k_norm.", "attn_k_norm."),
    ("input_layernorm.", "attn_norm."),
    ("pre_feedforward_layernorm.", "ffn_norm."),
    ("post_feedforward_layernorm.", "post_ffw_norm."),
    ("post_attention_layernorm.", "ffn_norm."),
    ("mlp.gate_proj.", "ffn_gate."),
    ("mlp.up_proj.", "ffn_up."),
    ("mlp.down_proj.", "ffn_down."),
    ("mlp.gate.", "ffn_gate_inp."),
    ("mlp.gate_proj", "ffn_gate_exps.weight"),
    ("mlp.up_proj", "ffn_up_exps.weight"),
    ("mlp.down_proj", "ffn_down_exps.weight"),
    ("mlp.shared_expert.gate_proj.", "ffn_gate_shexp."),
    ("mlp.shared_expert.up_proj.", "ffn_up_shexp."),
    ("mlp.shared_expert.down_proj.", "ffn_down_shexp."),
    ("mlp.shared_expert_gate.", "ffn_gate_inp_shexp."),
    ("model.embed_tokens.", "token_embd."),
    ("model.norm.", "output_norm."),
    ("lm_head.", "output."),
];

/// Where a GGUF file has a parameter.
pub(super) fn source_in_gguf(options: &CausalLmOptions, own: &str) -> Source {
    let architecture = options.architecture;
    let (block, part) = match own.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
        Some((number, part)) => (format!("blk.{number}."), part),
        None => (String::new(), own),
    };
    let found = OF_GGUF.iter().find_map(|(ours, theirs)| Some((ours, theirs, part.strip_prefix(ours)?)));
    let Some((ours, theirs, end)) = found else { return Source::Whole(own.to_string()) };
    let is_after = *ours == "post_attention_layernorm." && architecture.has_norms_after();
    let theirs = if is_after { "post_attention_norm." } else { theirs };
    let name = format!("{block}{theirs}{end}");
    let (of_queries, of_keys) = (options.heads * options.head_width(), options.key_heads * options.head_width());
    let is_joined = matches!(architecture, Architecture::Phi3 | Architecture::GptNeoX);
    let joined = |start| Source::Rows { name: format!("{block}attn_qkv.{end}"), start };
    match *ours {
        "self_attn.q_proj." if is_joined => joined(0),
        "self_attn.k_proj." if is_joined => joined(of_queries),
        "self_attn.v_proj." if is_joined => joined(of_queries + of_keys),
        "mlp.gate_proj." if architecture == Architecture::Phi3 => {
            Source::Rows { name: format!("{block}ffn_up.{end}"), start: 0 }
        }
        "mlp.up_proj." if architecture == Architecture::Phi3 => Source::Rows { name, start: options.hidden },
        "self_attn.q_proj." if architecture.has_neighbors_in_gguf() => Source::Neighbors { name, heads: options.heads },
        "self_attn.k_proj." if architecture.has_neighbors_in_gguf() => {
            Source::Neighbors { name, heads: options.key_heads }
        }
        of if architecture.is_gemma() && of.contains("norm.") => Source::More { name, by: 1.0 },
        _ => Source::Whole(name),
    }
}
