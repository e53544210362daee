//! `isograd generate`: texts that a trained model continues.

use super::models::{Drawing, TextModel};
use super::open::Source;
use crate::run::device;
use crate::{parse, print, put};
use anyhow::{Context, Result, bail};
use clap::Args;
use isograd::data::{StopStrings, TextStream, Tokenizer};
use isograd::models::LogitsOptions;
use isograd::ops::Sampling;
use isograd::{Rng, no_grad};
use std::process::ExitCode;

/// The options of `isograd generate`.
#[derive(Args, Debug)]
pub struct Generate {
    #[command(flatten)]
    source: Source,
    /// The text to continue
    #[arg(long, default_value = "\n", hide_default_value = true)]
    prompt: String,
    /// The number of tokens that are added, at most
    #[arg(long, default_value_t = 200)]
    tokens: usize,
    #[command(flatten)]
    draws: Draws,
    /// Go on behind tokens that end a text
    #[arg(long)]
    ignore_eos: bool,
}

/// How tokens are drawn, and where texts end.
#[derive(Args, Debug)]
pub struct Draws {
    /// The divisor of logits; with 0 each token is the most likely one
    #[arg(long, default_value_t = 0.8, value_parser = parse::rate, allow_negative_numbers = true)]
    temperature: f64,
    /// Draw from so many most likely tokens; 0 for all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Draw from the fewest most likely tokens whose probabilities add up to this
    #[arg(long, default_value_t = 1.0, value_parser = parse::share)]
    top_p: f64,
    /// Leave out tokens whose probability is below this share of the largest
    #[arg(long, default_value_t = 0.0, value_parser = parse::share)]
    min_p: f64,
    /// Divide the logits of tokens that the text has by this, where they are positive, and multiply the others; 1 for no change
    #[arg(long, default_value_t = 1.0, value_parser = parse::rate, allow_negative_numbers = true)]
    repetition_penalty: f64,
    /// Subtract this from the logit of a token for each time that it was drawn
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f64,
    /// Subtract this from the logit of each token that was drawn
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f64,
    /// End before this text; may be given several times
    #[arg(long = "stop", value_name = "TEXT")]
    pub stops: Vec<String>,
    /// Decides the draws
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
}

impl Draws {
    /// Errors: numbers that no draw can have.
    pub fn drawing(&self) -> Result<Drawing> {
        let &Draws { temperature, top_k, top_p, min_p, .. } = self;
        let &Draws { repetition_penalty, frequency_penalty, presence_penalty, .. } = self;
        let logits = LogitsOptions { repetition_penalty, frequency_penalty, presence_penalty, min_p };
        logits.check()?;
        Ok(Drawing { sampling: Sampling { temperature, top_k, top_p, num_samples: 1 }, logits })
    }
}

/// Prints the prompt and, as they are drawn, the tokens that follow.
pub fn run(options: Generate) -> Result<ExitCode> {
    let Generate { source, prompt, tokens, draws, ignore_eos } = options;
    let device = device(source.device.as_deref())?;
    let (drawing, tokenizer) = (draws.drawing()?, source.tokenizer()?);
    let prompted = tokenizer.encode_special(&prompt).context("the prompt has no tokens of this model")?;
    let stops = if ignore_eos { Vec::new() } else { source.stop_tokens()? };
    let model = source.model(tokenizer.vocabulary(), &device)?;
    let texts =
        Drawn { stops, stop_strings: draws.stops, ..Drawn::new(&*model, &*tokenizer, drawing, Rng::new(draws.seed)) };
    // Nothing is printed if nothing can be drawn.
    let mut prompt = Some(prompt);
    texts.continue_with(&prompted, tokens, &mut |text| put(&(prompt.take().unwrap_or_default() + text)))?;
    print("")?;
    Ok(ExitCode::SUCCESS)
}

/// A model, how tokens are drawn from its logits, and where texts end.
pub struct Drawn<'a> {
    pub model: &'a dyn TextModel,
    pub tokenizer: &'a dyn Tokenizer,
    pub drawing: Drawing,
    pub rng: Rng,
    /// Tokens that end a text.
    pub stops: Vec<i64>,
    /// Texts that end a text.
    pub stop_strings: Vec<String>,
}

impl<'a> Drawn<'a> {
    /// Texts that nothing ends.
    pub fn new(model: &'a dyn TextModel, tokenizer: &'a dyn Tokenizer, drawing: Drawing, rng: Rng) -> Drawn<'a> {
        Drawn { model, tokenizer, drawing, rng, stops: Vec::new(), stop_strings: Vec::new() }
    }

    /// Continues a prompt by so many tokens at most, and calls `write` with their text as it comes. The model is in evaluation. Errors: a prompt
    /// without tokens.
    pub fn continue_with(&self, prompt: &[i64], count: usize, write: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
        if prompt.is_empty() {
            bail!("the prompt is empty, expected a token or more");
        }
        no_grad(|| {
            let mut text = self.model.begin(&self.drawing, self.rng.clone());
            let mut stream = TextStream::after(self.tokenizer, prompt);
            let mut stops = StopStrings::new(&self.stop_strings);
            for i in 0..count {
                let token = if i == 0 { text.prompt(prompt)? } else { text.next()? };
                if self.stops.contains(&token) {
                    break;
                }
                write(&stops.push(&stream.push(token)?))?;
                if stops.has_ended() {
                    return Ok(());
                }
            }
            let rest = stops.push(&stream.finish()?) + &stops.finish();
            write(&rest)
        })
    }
}
