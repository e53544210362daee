//! The tokens that end the texts of a model.

use isograd_core::{Error, Result};
use isograd_nn::gguf::{Gguf, Value};
use serde_json::Value as Json;
use std::path::Path;

/// Keys of GGUF files: the ends of a text, of a turn and of a message.
const KEYS: [&str; 3] = ["eos_token_id", "eot_token_id", "eom_token_id"];
/// Control tokens that end a turn, for files that have no key for it.
const TURNS: [&str; 6] = ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"];
const CONTROL: i64 = 3;

/// The tokens with which a model ends a text: `eos_token_id` of `generation_config.json` and `config.json` in a folder of Hugging Face's, or the ends of
/// texts, turns and messages in a GGUF file. None if neither says so. Errors: `Io`; `Format` for damaged files.
pub fn stop_tokens(path: impl AsRef<Path>) -> Result<Vec<i64>> {
    let path = path.as_ref();
    let mut found = if path.is_dir() { of_folder(path)? } else { of_gguf(&Gguf::open(path)?) };
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

fn of_folder(folder: &Path) -> Result<Vec<i64>> {
    let mut found = Vec::new();
    for name in ["generation_config.json", "config.json"] {
        let path = folder.join(name);
        if !path.is_file() {
            continue;
        }
        let config: Json = serde_json::from_slice(&isograd_files::read(&path)?)
            .map_err(|e| Error::format(path.display().to_string(), format!("not JSON: {e}")))?;
        let value = &config["eos_token_id"];
        found.extend(value.as_i64().into_iter().chain(value.as_array().into_iter().flatten().filter_map(Json::as_i64)));
    }
    Ok(found)
}

fn of_gguf(file: &Gguf) -> Vec<i64> {
    let get = |key: &str| file.metadata.get(&format!("tokenizer.ggml.{key}"));
    let mut found: Vec<i64> = KEYS.iter().filter_map(|key| get(key).and_then(Value::as_i64)).collect();
    let kinds = get("token_type").and_then(Value::as_i64s).unwrap_or_default();
    let tokens = get("tokens").and_then(Value::as_texts).unwrap_or_default();
    let is_end = |(id, token): &(usize, &String)| kinds.get(*id) == Some(&CONTROL) && TURNS.contains(&token.as_str());
    found.extend(tokens.iter().enumerate().filter(is_end).map(|(id, _)| id as i64));
    found
}
