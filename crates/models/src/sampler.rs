//! How the next token of a text is drawn: changes of its logits, and the draw.

use isograd_core::ops::Sampling;
use isograd_core::{DType, Error, Result, Rng, Tensor};
use std::collections::BTreeMap;

const OP: &str = "logits";

/// Changes of the logits of the next token before it is drawn: first the penalties, then the processor, then `min_p`; temperature, `top_k` and `top_p`
/// are those of [`Sampling`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct LogitsOptions {
    /// Positive logits of tokens that the text has, the prompt included, are divided by this number, and negative ones multiplied. Above 0; 1 changes
    /// nothing. Keskar et al. 2019, arXiv 1909.05858.
    pub repetition_penalty: f64,
    /// It is subtracted from the logit of a token for each time that it was drawn.
    pub frequency_penalty: f64,
    /// It is subtracted from the logit of each token that was drawn.
    pub presence_penalty: f64,
    /// Tokens are left out whose probability, at the temperature, is below this share of the largest. 0 keeps all. Nguyen et al. 2024, arXiv 2407.01082.
    pub min_p: f64,
}

impl Default for LogitsOptions {
    /// No changes.
    fn default() -> LogitsOptions {
        LogitsOptions { repetition_penalty: 1.0, frequency_penalty: 0.0, presence_penalty: 0.0, min_p: 0.0 }
    }
}

impl LogitsOptions {
    /// Errors: `Attr` for a repetition penalty that is not above 0, a `min_p` outside of 0 to 1, and numbers that are not finite.
    pub fn check(&self) -> Result<()> {
        let &LogitsOptions { repetition_penalty, frequency_penalty, presence_penalty, min_p } = self;
        if !(repetition_penalty.is_finite() && repetition_penalty > 0.0) {
            return Err(Error::attr(
                OP,
                format!("repetition_penalty is {repetition_penalty}, expected a number above 0"),
            ));
        }
        for (name, value) in [("frequency_penalty", frequency_penalty), ("presence_penalty", presence_penalty)] {
            if !value.is_finite() {
                return Err(Error::attr(OP, format!("{name} is {value}, expected a finite number")));
            }
        }
        if !(0.0..=1.0).contains(&min_p) {
            return Err(Error::attr(OP, format!("min_p is {min_p}, expected 0 to 1")));
        }
        Ok(())
    }

    /// True if they change nothing.
    pub fn is_default(&self) -> bool {
        *self == LogitsOptions::default()
    }

    /// Changes the logits `[V]` of the token that follows a text, whose tokens from `drawn` on were drawn.
    fn penalize(&self, logits: &mut [f32], tokens: &[i64], drawn: usize) {
        let mut counts = BTreeMap::<usize, u32>::new();
        for (i, &token) in tokens.iter().enumerate() {
            *counts.entry(token as usize).or_default() += u32::from(i >= drawn);
        }
        let by = self.repetition_penalty as f32;
        for (token, count) in counts {
            let Some(logit) = logits.get_mut(token) else { continue };
            *logit = if *logit > 0.0 { *logit / by } else { *logit * by };
            if count > 0 {
                *logit -= (self.frequency_penalty * f64::from(count) + self.presence_penalty) as f32;
            }
        }
    }

    /// Leaves tokens out that are improbable: `p < min_p * max(p)`, that is `logit < max + temperature * ln(min_p)`.
    fn leave_out(&self, logits: &mut [f32], temperature: f64) {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let least = (f64::from(largest) + temperature * self.min_p.ln()) as f32;
        for logit in logits.iter_mut().filter(|logit| **logit < least.min(largest)) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Changes the logits `[V]` of the token that follows some tokens: [`Decoder::process_logits`](crate::Decoder::process_logits).
pub type LogitsProcessor<'a> = Box<dyn FnMut(&mut [f32], &[i64]) -> Result<()> + Send + 'a>;

/// The changes of logits, and the texts that they depend on.
pub(crate) struct Changes<'a> {
    pub(crate) options: LogitsOptions,
    pub(crate) processor: Option<LogitsProcessor<'a>>,
}

impl Changes<'_> {
    /// True if logits stay as they are.
    pub(crate) fn are_none(&self) -> bool {
        self.options.is_default() && self.processor.is_none()
    }

    /// The changed logits `[B, V]` of texts, each with the place of the first token that was drawn.
    pub(crate) fn apply(
        &mut self,
        logits: &Tensor,
        texts: &[(Vec<i64>, usize)],
        sampling: &Sampling,
    ) -> Result<Tensor> {
        self.options.check()?;
        let vocab = logits.dims()[1];
        let mut rows = logits.detach().cast(DType::F32)?.to_vec::<f32>()?;
        for (row, (tokens, drawn)) in rows.chunks_mut(vocab.max(1)).zip(texts) {
            self.options.penalize(row, tokens, *drawn);
            if let Some(processor) = &mut self.processor {
                processor(row, tokens)?;
            }
            if self.options.min_p > 0.0 {
                self.options.leave_out(row, sampling.temperature);
            }
        }
        Tensor::from_vec(rows, logits.dims(), logits.device())
    }
}

/// Draws the tokens of one text, which may be one of several in a [`DecodingBatch`](crate::DecodingBatch).
pub struct TokenSampler<'a> {
    sampling: Sampling,
    changes: Changes<'a>,
    rng: Rng,
    /// The tokens of the text, and the place of the first that was drawn.
    text: [(Vec<i64>, usize); 1],
}

impl<'a> TokenSampler<'a> {
    /// Draws from logits with these changes. Errors: `Attr` as [`LogitsOptions::check`].
    pub fn new(sampling: &Sampling, options: &LogitsOptions, rng: Rng) -> Result<TokenSampler<'a>> {
        options.check()?;
        let changes = Changes { options: *options, processor: None };
        let sampling = Sampling { num_samples: 1, ..*sampling };
        Ok(TokenSampler { sampling, changes, rng, text: [(Vec::new(), 0)] })
    }

    /// With a function that changes the logits `[V]` of the token that follows some tokens.
    #[must_use]
    pub fn process_logits(mut self, processor: impl FnMut(&mut [f32], &[i64]) -> Result<()> + Send + 'a) -> Self {
        self.changes.processor = Some(Box::new(processor));
        self
    }

    /// Counts tokens of a prompt.
    pub fn read(&mut self, tokens: &[i64]) {
        self.text[0].0.extend(tokens);
        self.text[0].1 = self.text[0].0.len();
    }

    /// The tokens of the text, of the prompt and drawn ones.
    pub fn tokens(&self) -> &[i64] {
        &self.text[0].0
    }

    /// Draws a token from logits `[1, V]`. Errors: as [`Tensor::sample_logits`]; those of the processor.
    pub fn draw(&mut self, logits: &Tensor) -> Result<i64> {
        let changed = match self.changes.are_none() {
            true => None,
            false => Some(self.changes.apply(logits, &self.text, &self.sampling)?),
        };
        let token = changed.as_ref().unwrap_or(logits).sample_logits(&self.sampling, &self.rng)?.item()?;
        self.text[0].0.push(token);
        Ok(token)
    }
}

impl std::fmt::Debug for TokenSampler<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sampling, options) = (&self.sampling, &self.changes.options);
        f.debug_struct("TokenSampler").field("sampling", sampling).field("options", options).finish_non_exhaustive()
    }
}
