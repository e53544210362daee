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
