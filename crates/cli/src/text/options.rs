//! The options of `isograd train text`: the command line, and the part of it that a checkpoint keeps.

use super::models::{MODELS, ModelEntry};
use crate::parse;
use crate::run::RunOptions;
use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;
use clap::{Args, Command};
use isograd::DType;
use isograd::data::tokenizer::{self, Bytes, Characters, Tokenizer};
use isograd::data::{TokenType, Tokens};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// The name of the dataset in configurations, and of the subcommand.
pub const NAME: &str = "text";

/// The file of a run's folder from which the tokenizer is read again.
pub const TOKENIZER: &str = "tokenizer.json";

/// The kinds of tokenizers.
const CHARACTERS: &str = "characters";
const BYTES: &str = "bytes";
const FILE: &str = "file";

/// The options of `isograd train text`.
#[derive(Args, Debug)]
pub struct Text {
    /// The text
    #[arg(value_name = "PATH", required_unless_present_any = ["data", "resume"])]
    path: Option<PathBuf>,
    /// The text
    #[arg(long, value_name = "PATH", conflicts_with = "path")]
    data: Option<PathBuf>,
    #[command(flatten)]
    model: Model,
    /// Steps of the optimizer, rounded up to whole epochs [default: 2000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,
    /// Tokens of the sample of text at the end
    #[arg(long, value_name = "TOKENS", default_value_t = 200)]
    pub sample: usize,
    /// Go on from the checkpoint in this folder, with its hyper-parameters; --steps may be larger than before
    #[arg(long, value_name = "DIR", conflicts_with = "Model")]
    pub resume: Option<PathBuf>,
    #[command(flatten)]
    pub run: RunOptions,
}

/// A model and its training. Hyper-parameters are optional, so that a resumed run takes them from its checkpoint.
#[derive(Args, Debug)]
struct Model {
    /// The model [default: gpt2]
    #[arg(long, value_parser = PossibleValuesParser::new(MODELS.iter().map(|model| model.name)))]
    model: Option<String>,
    /// Blocks of gpt2, or recurrent layers [default: 4 for gpt2, 2 for others]
    #[arg(long, value_parser = parse::count)]
    layers: Option<usize>,
    /// The width of a layer [default: 128 for gpt2, 256 for others]
    #[arg(long, value_parser = parse::count)]
    width: Option<usize>,
    /// Heads of an attention of gpt2, which divide the width [default: 4]
    #[arg(long, value_parser = parse::count)]
    heads: Option<usize>,
    /// Tokens that a sample has [default: 64]
    #[arg(long, value_parser = parse::count)]
    context: Option<usize>,
    /// The probability of dropout [default: 0]
    #[arg(long, value_parser = parse::share)]
    dropout: Option<f64>,
    /// The tokens: characters, bytes, or a tokenizer.json [default: characters]
    #[arg(long, value_name = "KIND|FILE")]
    tokenizer: Option<String>,
    /// The share of the text, at its end, to validate with [default: 0.1]
    #[arg(long, value_name = "SHARE", value_parser = parse::share)]
    validation: Option<f64>,
    /// Samples a step [default: 12 for gpt2, 32 for others]
    #[arg(long, value_parser = parse::count)]
    batch_size: Option<usize>,
    /// Steps of an epoch, after which the model is validated [default: 500, or all steps if there are fewer]
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    eval_every: Option<u64>,
    /// Learning rate of AdamW, which rises at first and falls to a tenth at the end [default: 0.001 for gpt2, 0.003 for others]
    #[arg(long, value_parser = parse::rate, allow_negative_numbers = true)]
    lr: Option<f64>,
    /// Mixed precision: products in f16 (with loss scaling) or bf16
    #[arg(long, value_name = "DTYPE", value_parser = parse::half)]
    autocast: Option<DType>,
    /// Decides weights, samples and the sample of text [default: 42]
    #[arg(long)]
    seed: Option<u64>,
}

/// False for an option that the model, or the default one, does not have.
pub fn takes(model: Option<&str>, option: &str) -> bool {
    option != "heads" || ModelEntry::named(model.unwrap_or(MODELS[0].name)).has_heads
}

/// The options on which the weights depend; a checkpoint keeps them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// [`NAME`].
    pub dataset: String,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    /// The name of the model.
    pub model: String,
    /// Blocks, or recurrent layers.
    pub layers: usize,
    /// The width of a layer.
    pub width: usize,
    /// Heads of an attention.
    pub heads: usize,
    /// Tokens of a sample.
    pub context: usize,
    /// The probability of dropout.
    pub dropout: f64,
    /// characters, bytes, or file.
    pub tokenizer: String,
    /// The share of the text to validate with.
    pub validation: f64,
    /// Samples a step.
    pub batch_size: usize,
    /// Steps of the optimizer: whole epochs.
    pub steps: u64,
    /// Steps of an epoch.
    pub eval_every: u64,
    /// Learning rate.
    pub lr: f64,
    /// The dtype of products in mixed precision.
    pub autocast: Option<String>,
    /// The seed of weights and samples.
    pub seed: u64,
}

impl Config {
    /// The options of a new run, with the defaults of its model. Errors: heads for a model without.
    pub fn new(options: &Text) -> Result<Config> {
        let (steps, options) = (options.steps.unwrap_or(2000), &options.model);
        let entry = ModelEntry::named(options.model.as_deref().unwrap_or(MODELS[0].name));
        if options.heads.is_some() && !entry.has_heads {
            bail!("{} has no heads; --heads is for gpt2", entry.name);
        }
        let tokenizer = match options.tokenizer.as_deref() {
            None | Some(CHARACTERS) => CHARACTERS,
            Some(BYTES) => BYTES,
            Some(_) => FILE,
        };
        let config = Config {
            dataset: NAME.into(),
            data: None,
            model: entry.name.into(),
            layers: options.layers.unwrap_or(entry.layers),
            width: options.width.unwrap_or(entry.width),
            heads: options.heads.unwrap_or(4),
            context: options.context.unwrap_or(64),
            dropout: options.dropout.unwrap_or(0.0),
            tokenizer: tokenizer.into(),
            validation: options.validation.unwrap_or(0.1),
            batch_size: options.batch_size.unwrap_or(entry.batch_size),
            steps: 0,
            eval_every: options.eval_every.unwrap_or(500).min(steps),
            lr: options.lr.unwrap_or(entry.lr),
            autocast: options.autocast.map(|dtype| dtype.to_string()),
            seed: options.seed.unwrap_or(42),
        };
        Ok(config.with_steps(steps))
    }

    /// With as many epochs as so many steps need.
    pub fn with_steps(self, steps: u64) -> Config {
        let epochs = steps.div_ceil(self.eval_every);
        Config { steps: epochs.saturating_mul(self.eval_every), ..self }
    }

    /// The number of epochs.
    pub fn epochs(&self) -> u64 {
        self.steps / self.eval_every
    }
}

/// A text as tokens.
pub struct Corpus {
    pub name: String,
    pub tokenizer: Box<dyn Tokenizer>,
    pub train: Tokens,
    pub validation: Tokens,
}

impl Corpus {
    /// Reads a text with a known tokenizer, or by its characters. Bytes are not read before they are needed. Errors: a text that is not
    /// UTF-8, for tokens other than bytes; one that the tokenizer does not know; one that has fewer tokens than a sample in one of its
    /// parts.
    pub fn read(file: &Path, known: Option<Box<dyn Tokenizer>>, config: &Config) -> Result<Corpus> {
        let (tokenizer, tokens): (Box<dyn Tokenizer>, Tokens) = match config.tokenizer.as_str() {
            BYTES => (Box::new(Bytes), Tokens::open(file, TokenType::U8)?),
            _ => {
                let text = read_text(file)?;
                let tokenizer = known.unwrap_or_else(|| Box::new(Characters::of(&text)));
                let tokens = tokenizer.encode(&text);
                let tokens = tokens.with_context(|| format!("the tokenizer does not fit {}", file.display()))?;
                (tokenizer, Tokens::from_ids(&tokens)?)
            }
        };
        let (train, validation) = tokens.split_end(config.validation)?;
        let least = config.context.saturating_add(1);
        if train.len() < least || validation.len() < least {
            let (file, train, validation) = (file.display(), train.len(), validation.len());
            bail!(
                "{file} has {train} tokens to train on and {validation} to validate with, expected {least} or more of both"
            );
        }
        let name = file.file_name().map_or_else(|| NAME.into(), |name| name.to_string_lossy().into_owned());
        Ok(Corpus { name, tokenizer, train, validation })
    }
}

/// The tokenizer of the folder of a run.
pub fn tokenizer_of(folder: &Path) -> Result<Box<dyn Tokenizer>> {
    Ok(tokenizer::load(folder.join(TOKENIZER))?)
}

impl Text {
    /// The subcommand, whose help says what is validated.
    pub fn command() -> Command {
        Text::augment_args(Command::new(NAME)).about("A language model of a text").mut_args(|arg| {
            match arg.get_long() {
                Some("patience") => arg.help("End when the validation loss has not become lower for so many epochs"),
                Some("out") => {
                    let files = "configuration, tokenizer, metrics, curves and checkpoints";
                    arg.help(format!(
                        "The folder of the run: {files} [default: out/{NAME}, or {NAME}-2, .. if that has a run]"
                    ))
                }
                Some("quiet") => arg.help("Show no progress: only the first and the last line, and the sample"),
                _ => arg,
            }
        })
    }

    /// The text of the command line.
    pub fn file(&self) -> Option<&Path> {
        self.path.as_deref().or(self.data.as_deref())
    }

    /// The tokenizer of the folder of --resume, or that of a file; none for one that is made of the text.
    pub fn known_tokenizer(&self) -> Result<Option<Box<dyn Tokenizer>>> {
        match (&self.resume, self.model.tokenizer.as_deref()) {
            (Some(folder), _) => tokenizer_of(folder).map(Some),
            (None, None | Some(CHARACTERS | BYTES)) => Ok(None),
            (None, Some(path)) => Ok(Some(tokenizer::load(path)?)),
        }
    }
}

fn read_text(file: &Path) -> Result<String> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        anyhow::anyhow!("{} is not UTF-8 at byte {place}; --tokenizer bytes takes any file", file.display())
    })
}
