//! The language models of folders and files, with their tokenizers.

use super::TextStart;
use super::models::{TextModel, model};
use super::options::{Config, NAME, tokenizer_of};
use crate::run::{Start, Weights};
use anyhow::{Context, Result, bail};
use clap::Args;
use isograd::Device;
use isograd::data::{Tokenizer, tokenizer};
use isograd::models::{CausalLm, Gpt2, Pretrained, stop_tokens};
use isograd::nn::Init;
#[cfg(any(feature = "chat", feature = "tokenizers"))]
use isograd::nn::gguf::{Gguf, Value as Metadata};
use isograd::train::{CONFIG, SavedRun};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A language model of the command line.
#[derive(Args, Clone, Debug)]
pub struct Source {
    /// The folder of a run of `isograd train text`, or of a language model that Hugging Face's transformers saved, with its tokenizer.json; or a
    /// GGUF file
    #[arg(long = "model", value_name = "DIR")]
    pub path: PathBuf,
    /// A tokenizer.json in place of the vocabulary of a GGUF file
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The device, as `isograd devices` lists it [default: the best there is]
    #[arg(long)]
    pub device: Option<String>,
    #[command(flatten)]
    weights: Weights,
}

impl Source {
    /// The tokenizer: that of the folder, of the GGUF file, or of another file.
    pub fn tokenizer(&self) -> Result<Box<dyn Tokenizer>> {
        match (self.path.is_file(), &self.tokenizer) {
            (true, Some(file)) => Ok(tokenizer::load(file)?),
            (true, None) => of_gguf(&self.path),
            (false, Some(_)) => bail!("--tokenizer is for a GGUF file: a folder has its tokenizer"),
            (false, None) => {
                let config = config(&self.path)?;
                if !config["model_type"].is_string() && config["dataset"] != NAME {
                    bail!("{} has no language model", self.path.display());
                }
                tokenizer_of(&self.path)
            }
        }
    }

    /// The model, in evaluation, whose tokenizer has so many tokens.
    pub fn model(&self, vocabulary: usize, device: &Device) -> Result<Box<dyn TextModel>> {
        let model = match self.path.is_file() {
            true => Box::new(CausalLm::load_quantized(&self.path, &Init::new(device))?),
            false => model_of(&self.path, vocabulary, device, self.weights)?,
        };
        model.eval();
        Ok(model)
    }

    /// The tokens that end a text; none for a model of `isograd train text`.
    pub fn stop_tokens(&self) -> Result<Vec<i64>> {
        Ok(stop_tokens(&self.path)?)
    }

    /// The template of the model's conversations.
    #[cfg(feature = "chat")]
    pub fn template(&self, tokenizer: &dyn Tokenizer) -> Result<Option<isograd::data::chat::ChatTemplate>> {
        use isograd::data::chat::ChatTemplate;
        if self.path.is_dir() {
            return Ok(ChatTemplate::of_folder(&self.path)?);
        }
        let file = Gguf::open(&self.path)?;
        let Some(source) = file.metadata.get("tokenizer.chat_template").and_then(Metadata::as_text) else {
            return Ok(None);
        };
        let mut template = ChatTemplate::new(source)?;
        for name in ["bos", "eos"] {
            let id = file.metadata.get(&format!("tokenizer.ggml.{name}_token_id")).and_then(Metadata::as_i64);
            if let Some(id) = id {
                template = template.special(&format!("{name}_token"), &tokenizer.decode(&[id])?);
            }
        }
        Ok(Some(template))
    }
}

/// The configuration of a folder.
fn config(folder: &Path) -> Result<Value> {
    let path = folder.join(CONFIG);
    let config = isograd_files::read(&path)
        .with_context(|| format!("{} has no trained model: cannot read {}", folder.display(), path.display()))?;
    serde_json::from_slice(&config).with_context(|| format!("{} is not JSON", path.display()))
}

/// True for the folder of a network that Hugging Face's transformers saved.
pub fn is_pretrained(folder: &Path) -> bool {
    config(folder).is_ok_and(|config| config["model_type"].is_string())
}

/// The model of a folder, and the number of tokens of its context.
pub fn load_with_context(folder: &Path, device: &Device, weights: Weights) -> Result<(Box<dyn TextModel>, usize)> {
    let config = config(folder)?;
    let context = ["context", "n_positions", "max_position_embeddings"].iter().find_map(|key| config[key].as_u64());
    let context = context.with_context(|| format!("the configuration of {} has no context", folder.display()))?;
    let vocabulary = tokenizer_of(folder)?.vocabulary();
    Ok((model_of(folder, vocabulary, device, weights)?, context as usize))
}

/// The model of a folder.
fn model_of(folder: &Path, vocabulary: usize, device: &Device, weights: Weights) -> Result<Box<dyn TextModel>> {
    let config = config(folder)?;
    let init = Init::new(device);
    if config["model_type"] == "gpt2" {
        return Ok(Box::new(Gpt2::load(folder, &init)?));
    }
    if config["model_type"].is_string() {
        return Ok(Box::new(CausalLm::load(folder, &init)?));
    }
    if config["dataset"] != NAME {
        bail!("{} has no language model", folder.display());
    }
    let saved = SavedRun::load(folder, device)?;
    let (config, init): (Config, _) = (saved.config()?, saved.loading(init));
    let start: TextStart = Start { model: model(&config, vocabulary, &init)?, init };
    weights.restore(&saved, folder, &start)?;
    Ok(start.model)
}

/// The tokenizer of a GGUF file.
#[cfg(feature = "tokenizers")]
fn of_gguf(path: &Path) -> Result<Box<dyn Tokenizer>> {
    use isograd::data::{GgmlVocabulary, Pretrained};
    let file = Gguf::open(path)?;
    let get = |key: &str| file.metadata.get(&format!("tokenizer.ggml.{key}"));
    let name = || {
        format!("{} has no vocabulary that is read: --tokenizer FILE, the tokenizer.json of the model", path.display())
    };
    let text = |key: &str| get(key).and_then(Metadata::as_text).map(str::to_string);
    let texts = |key: &str| get(key).and_then(Metadata::as_texts).map(<[String]>::to_vec).unwrap_or_default();
    let vocabulary = GgmlVocabulary {
        model: text("model").with_context(name)?,
        pre: text("pre").unwrap_or_default(),
        tokens: texts("tokens"),
        kinds: get("token_type").and_then(Metadata::as_i64s).unwrap_or_default(),
        scores: get("scores").and_then(Metadata::as_f64s).unwrap_or_default(),
        merges: texts("merges"),
        bos: get("bos_token_id").and_then(Metadata::as_usize),
        begins: get("add_bos_token").and_then(Metadata::as_bool),
        has_blank: get("add_space_prefix").and_then(Metadata::as_bool),
    };
    Ok(Box::new(Pretrained::from_ggml(&vocabulary).with_context(name)?))
}

#[cfg(not(feature = "tokenizers"))]
fn of_gguf(path: &Path) -> Result<Box<dyn Tokenizer>> {
    bail!(
        "{} needs a tokenizer beside: --tokenizer FILE, the tokenizer.json of the model. `cargo install --path crates/cli --features tokenizers` builds a command that reads the vocabularies of GGUF files",
        path.display()
    )
}
