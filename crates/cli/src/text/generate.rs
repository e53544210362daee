//! `isograd generate`: texts that a trained model continues.

use super::TextStart;
use super::models::{TextModel, model};
use super::options::{Config, NAME, tokenizer_of};
use crate::run::{Start, Weights, device};
use crate::{parse, print, put};
use anyhow::{Context, Result, bail};
use clap::Args;
use isograd::data::{TextStream, Tokenizer, tokenizer};
use isograd::models::{CausalLm, Gpt2, Pretrained};
use isograd::nn::Init;
use isograd::ops::Sampling;
use isograd::train::{CONFIG, SavedRun};
use isograd::{Device, Rng, no_grad};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The options of `isograd generate`.
#[derive(Args, Debug)]
pub struct Generate {
    /// The folder of a run of `isograd train text`, or of a language model that Hugging Face's transformers saved, with its tokenizer.json; or a
    /// GGUF file
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// The tokenizer.json of a GGUF file
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The text to continue
    #[arg(long, default_value = "\n", hide_default_value = true)]
    prompt: String,
    /// The number of tokens that are added
    #[arg(long, default_value_t = 200)]
    tokens: usize,
    /// The divisor of logits; with 0 each token is the most likely one
    #[arg(long, default_value_t = 0.8, value_parser = parse::rate, allow_negative_numbers = true)]
    temperature: f64,
    /// Draw from so many most likely tokens; 0 for all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Draw from the fewest most likely tokens whose probabilities add up to this
    #[arg(long, default_value_t = 1.0, value_parser = parse::share)]
    top_p: f64,
    /// Decides the draws
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// The device, as `isograd devices` lists it [default: the best there is]
    #[arg(long)]
    device: Option<String>,
    #[command(flatten)]
    weights: Weights,
}

/// Prints the prompt and, as they are drawn, the tokens that follow.
pub fn run(options: Generate) -> Result<ExitCode> {
    let device = device(options.device.as_deref())?;
    let (model, tokenizer) = match options.model.is_file() {
        true => of_file(&options.model, options.tokenizer.as_deref(), &device)?,
        false if options.tokenizer.is_some() => bail!("--tokenizer is for a GGUF file: a folder has its tokenizer"),
        false => load(&options.model, &device, options.weights)?,
    };
    let Generate { prompt, tokens, temperature, top_k, top_p, seed, .. } = options;
    let prompted = tokenizer.encode(&prompt).context("the prompt has no tokens of this model")?;
    let sampling = Sampling { temperature, top_k, top_p, num_samples: 1 };
    model.eval();
    let texts = Drawn { model: &*model, tokenizer: &*tokenizer, sampling, rng: Rng::new(seed) };
    // Nothing is printed if nothing can be drawn.
    let mut prompt = Some(prompt);
    texts.continue_with(&prompted, tokens, &mut |text| put(&(prompt.take().unwrap_or_default() + text)))?;
    print("")?;
    Ok(ExitCode::SUCCESS)
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
    Ok((load(folder, device, weights)?.0, context as usize))
}

/// The model of a GGUF file, and the tokenizer of another one.
fn of_file(
    model: &Path,
    tokenizer: Option<&Path>,
    device: &Device,
) -> Result<(Box<dyn TextModel>, Box<dyn Tokenizer>)> {
    let tokenizer =
        tokenizer.context("a GGUF file needs a tokenizer beside: --tokenizer FILE, the tokenizer.json of the model")?;
    let tokenizer = tokenizer::load(tokenizer)?;
    Ok((Box::new(CausalLm::load_quantized(model, &Init::new(device))?), tokenizer))
}

/// The model and the tokenizer of a folder.
fn load(folder: &Path, device: &Device, weights: Weights) -> Result<(Box<dyn TextModel>, Box<dyn Tokenizer>)> {
    let config = config(folder)?;
    let init = Init::new(device);
    if config["model_type"] == "gpt2" {
        let model = Gpt2::load(folder, &init)?;
        return Ok((Box::new(model), tokenizer_of(folder)?));
    }
    if config["model_type"].is_string() {
        return Ok((Box::new(CausalLm::load(folder, &init)?), tokenizer_of(folder)?));
    }
    if config["dataset"] != NAME {
        bail!("{} has no language model", folder.display());
    }
    let tokenizer = tokenizer_of(folder)?;
    let saved = SavedRun::load(folder, device)?;
    let (config, init): (Config, _) = (saved.config()?, saved.loading(init));
    let start: TextStart = Start { model: model(&config, tokenizer.vocabulary(), &init)?, init };
    weights.restore(&saved, folder, &start)?;
    Ok((start.model, tokenizer))
}

/// A model, and how tokens are drawn from its logits.
pub struct Drawn<'a> {
    pub model: &'a dyn TextModel,
    pub tokenizer: &'a dyn Tokenizer,
    pub sampling: Sampling,
    pub rng: Rng,
}

impl Drawn<'_> {
    /// Continues a prompt by so many tokens, and calls `write` with their text as it comes. The model is in evaluation. Errors: a prompt
    /// without tokens.
    pub fn continue_with(&self, prompt: &[i64], count: usize, write: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        if prompt.is_empty() {
            bail!("the prompt is empty, expected a token or more");
        }
        no_grad(|| {
            let mut text = self.model.begin(self.sampling, self.rng.clone());
            let mut stream = TextStream::new(self.tokenizer);
            for i in 0..count {
                let token = if i == 0 { text.prompt(prompt)? } else { text.next()? };
                write(&stream.push(token)?)?;
            }
            write(&stream.finish()?)
        })
    }
}
