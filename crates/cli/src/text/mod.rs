//! Language models: `isograd train text`, `isograd generate`, and `isograd eval` of their runs.

#[cfg(feature = "chat")]
mod chat;
mod generate;
mod models;
mod open;
mod options;

#[cfg(feature = "chat")]
pub use chat::{Chat, run as chat};
pub use generate::{Generate, run as generate};
#[cfg(feature = "serve")]
pub use models::CHUNK;
#[cfg(feature = "serve")]
pub use open::Source;
pub use open::{is_pretrained, load_with_context as load};
pub use options::{NAME, Text, takes};

use crate::run::{Report, RunOptions, Start, Weights, Work, choice, kept_path};
use anyhow::{Context, Result, bail};
use generate::Drawn;
use isograd::data::Loader;
use isograd::nn::schedule::{Cosine, WarmUp};
use isograd::nn::{AdamW, Init};
use isograd::ops::Sampling;
use isograd::parallel::Group;
use isograd::train::{Epoch, SavedRun, Trainer, shown_number};
use isograd::{DType, Device, Rng, Tensor};
use models::{Drawing, TextModel};
use options::{Config, Corpus, TOKENIZER, tokenizer_of};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// Steps in which the learning rate rises, at most a tenth of all.
const WARM_UP: u64 = 100;

/// Tokens `[B, T]`, and those that follow them.
type Batch = (Tensor, Tensor);

/// A trainer of language models.
type Teacher<'a> = Trainer<'a, dyn TextModel, Batch, Tensor>;

/// A language model at its start.
type TextStart = Start<dyn TextModel>;

impl Work for Text {
    type Config = Config;
    type Split = Corpus;
    type Model = dyn TextModel;
    type Batch = Batch;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn dataset(&self) -> &str {
        NAME
    }

    fn resume(&self) -> Option<&Path> {
        self.resume.as_deref()
    }

    fn config(&self) -> Result<Config> {
        Config::new(self)
    }

    fn lengthened(&self, config: Config, saved: &SavedRun) -> Result<Config> {
        let Some(steps) = self.steps else { return Ok(config) };
        let done = saved.progress.steps;
        if steps < done {
            bail!("{} has {done} steps already, more than --steps {steps}", saved.path.display());
        }
        Ok(config.with_steps(steps))
    }

    fn split(&self, config: &mut Config) -> Result<Corpus> {
        config.data = kept_path(self.file(), config.data.take())?;
        Corpus::read(data(config)?, self.known_tokenizer()?, config)
    }

    fn start(&self, config: &Config, corpus: &Corpus, device: &Device, _: Option<&Group>) -> Result<TextStart> {
        start(config, corpus, Init::new(device).seed(config.seed))
    }

    fn trainer<'a>(&self, config: &Config, corpus: &Corpus, start: &'a TextStart) -> isograd::Result<Teacher<'a>> {
        trainer(config, corpus, start)
    }

    fn loss(_: &Corpus, start: &TextStart, batch: &Batch) -> isograd::Result<Tensor> {
        loss(&start.model.forward(&batch.0)?, batch)
    }

    fn keep(&self, corpus: &Corpus, out: &Path) -> Result<()> {
        Ok(corpus.tokenizer.save(&out.join(TOKENIZER))?)
    }

    fn title(config: &Config, corpus: &Corpus) -> String {
        format!("{}, {}", corpus.name, config.model)
    }

    fn announcement(config: &Config, corpus: &Corpus, parameters: usize) -> String {
        let Corpus { name, tokenizer, train, validation } = corpus;
        let (train, validation, kinds, model) = (train.len(), validation.len(), tokenizer.vocabulary(), &config.model);
        format!(
            "{name}: {train} tokens to train on and {validation} to validate with, of {kinds} kinds; {model} with {parameters} parameters"
        )
    }

    /// The model continues a text, as a sample.
    fn report(
        &self,
        config: &Config,
        corpus: &Corpus,
        start: &TextStart,
        kept: &Epoch,
        report: Report,
    ) -> Result<Report> {
        let validation_loss = kept.validation_loss.unwrap_or(f64::NAN);
        Ok(Report {
            model: Some(config.model.clone()),
            vocabulary: Some(corpus.tokenizer.vocabulary()),
            parameters: Some(start.model.num_parameters()),
            results: BTreeMap::from([("validation_loss".into(), validation_loss)]),
            seed: config.seed,
            sample: Some(sample(&*start.model, corpus, config, self.sample)?),
            words: format!("validation loss {}; {}", shown_number(validation_loss), choice(&report)),
            ..report
        })
    }
}

fn start(config: &Config, corpus: &Corpus, init: Init) -> Result<TextStart> {
    Ok(Start { model: models::model(config, corpus.tokenizer.vocabulary(), &init)?, init })
}

fn trainer<'a>(config: &Config, corpus: &Corpus, start: &'a TextStart) -> isograd::Result<Teacher<'a>> {
    let &Config { context, batch_size, steps, lr, .. } = config;
    let device = start.init.device();
    let samples = (config.eval_every as usize).saturating_mul(batch_size);
    let train = Loader::new(corpus.train.drawn_windows(context, samples)?, batch_size)?.seed(config.seed).to(device);
    let validation = Loader::new(corpus.validation.windows(context, context)?, batch_size)?;
    let optimizer = AdamW::new(&*start.model)
        .lr(lr)
        .betas(0.9, 0.99)
        .weight_decay(0.1)
        .group_where(|_, t| t.rank() < 2, |group| group.weight_decay(0.0))
        .clip_norm(1.0);
    let warm_up = WARM_UP.min(steps / 10);
    let then = Cosine { lr, min: lr / 10.0, steps: steps - warm_up };
    let trainer = Trainer::new(&*start.model, optimizer, train, |model, (x, _)| model.forward(x), loss)
        .validate(validation.to(device))
        .schedule(WarmUp { steps: warm_up, then })
        .epochs(config.epochs())
        .rng("init", start.init.rng());
    match &config.autocast {
        Some(dtype) => trainer.autocast(dtype.parse::<DType>()?),
        None => Ok(trainer),
    }
}

/// A text that a model writes after the end of a line.
fn sample(model: &dyn TextModel, corpus: &Corpus, config: &Config, count: usize) -> Result<String> {
    let prompt = corpus.tokenizer.encode("\n").ok().filter(|tokens| !tokens.is_empty());
    let prompt = prompt.map_or_else(|| corpus.validation.get(0, 1), Ok)?;
    let sampling = Sampling { temperature: 0.8, ..Sampling::default() };
    let mut text = String::new();
    model.eval();
    let drawing = Drawing { sampling, ..Drawing::default() };
    let drawn = Drawn::new(model, &*corpus.tokenizer, drawing, Rng::new(config.seed));
    drawn.continue_with(&prompt, count, &mut |part| {
        text.push_str(part);
        Ok(())
    })?;
    Ok(text)
}

/// The mean over all tokens.
fn loss(logits: &Tensor, (_, y): &Batch) -> isograd::Result<Tensor> {
    logits.cast(logits.dtype().acc())?.flatten(0, 1)?.cross_entropy(&y.flatten(0, 1)?)
}

/// The text of a run.
fn data(config: &Config) -> Result<&Path> {
    config.data.as_deref().with_context(|| format!("a run of {NAME} needs --data FILE with its text"))
}

/// `isograd eval` of a run: the validation loss of its model on the text that it learnt, as JSON and in words.
pub fn evaluate(
    saved: &SavedRun,
    run: &Path,
    given: Option<&Path>,
    weights: Weights,
    device: &Device,
) -> Result<[String; 2]> {
    let mut config: Config = saved.config()?;
    config.data = kept_path(given, config.data)?;
    let corpus = Corpus::read(data(&config)?, Some(tokenizer_of(run)?), &config)?;
    let start = start(&config, &corpus, saved.loading(Init::new(device).seed(config.seed)))?;
    let epoch = weights.restore(saved, run, &start)?;
    let loss = trainer(&config, &corpus, &start)?.evaluate()?.loss;
    let (tokens, parameters) = (corpus.validation.len(), start.model.num_parameters());
    let report =
        json!({ "dataset": NAME, "device": device.name(), "epoch": epoch, "tokens": tokens, "validation_loss": loss });
    let words = format!(
        "{NAME}: loss {} over {tokens} tokens; {parameters} parameters of epoch {epoch} on {device}",
        shown_number(loss)
    );
    Ok([report.to_string(), words])
}
