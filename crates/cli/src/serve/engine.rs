//! The thread that owns the model: it continues the texts of all requests side by side.

use super::metrics::Metrics;
use crate::text::CHUNK;
use anyhow::Result;
use isograd::data::{StopStrings, TextStream, Tokenizer};
use isograd::models::{DecodingBatch, LanguageModel, LogitsOptions, TokenSampler};
use isograd::ops::Sampling;
use isograd::{Device, Rng, Tensor, no_grad};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// How often the thread looks whether the server stops while there is nothing to do.
const WAIT: Duration = Duration::from_millis(100);

/// What a request asks of the model.
pub enum Job {
    Text(TextJob),
    Embed(EmbedJob),
}

/// A text that the model continues.
pub struct TextJob {
    pub prompt: Vec<i64>,
    /// The most tokens that are drawn.
    pub count: usize,
    pub sampling: Sampling,
    pub logits: LogitsOptions,
    pub seed: u64,
    pub stop_strings: Vec<String>,
    pub ignores_stops: bool,
    /// The text follows the prompt as its next words do, not as a new one.
    pub continues: bool,
    pub until: Instant,
    pub events: mpsc::UnboundedSender<Event>,
}

/// What happens to a text.
#[derive(Debug)]
pub enum Event {
    /// It goes on.
    Text(String),
    /// It has ended: for a stop, or because it is as long as it may be.
    End {
        reason: &'static str,
        tokens: usize,
    },
    Failed(Failure),
}

#[derive(Debug)]
pub enum Failure {
    /// The request took too long.
    Late,
    /// The server ends.
    Stopping,
    /// The model failed.
    Model(String),
}

/// Texts whose vectors are computed.
pub struct EmbedJob {
    pub texts: Vec<Vec<i64>>,
    pub until: Instant,
    pub reply: oneshot::Sender<Result<Vec<Vec<f32>>, Failure>>,
}

/// The model, and what bounds its work.
pub struct Engine<'a> {
    pub model: &'a dyn LanguageModel,
    pub tokenizer: &'a dyn Tokenizer,
    /// Tokens that end a text.
    pub stops: Vec<i64>,
    /// The most texts that are continued at a time.
    pub slots: usize,
    pub metrics: &'a Metrics,
    /// Set when what is left must end.
    pub cut: &'a AtomicBool,
}

/// A text that is continued.
struct Running<'a> {
    job: TextJob,
    stream: TextStream<'a>,
    stops: StopStrings,
    tokens: usize,
}

impl Running<'_> {
    /// Passes a token on. Returns the reason of the end, if it ends the text.
    fn push(&mut self, token: i64, stops: &[i64]) -> Result<Option<&'static str>> {
        self.tokens += 1;
        if !self.job.ignores_stops && stops.contains(&token) {
            return Ok(Some("stop"));
        }
        let part = self.stops.push(&self.stream.push(token)?);
        if !part.is_empty() {
            let _ = self.job.events.send(Event::Text(part));
        }
        Ok(match () {
            () if self.stops.has_ended() => Some("stop"),
            () if self.tokens >= self.job.count => Some("length"),
            () => None,
        })
    }

    fn end(mut self, reason: &'static str) -> Result<()> {
        let rest = self.stops.push(&self.stream.finish()?) + &self.stops.finish();
        if !rest.is_empty() {
            let _ = self.job.events.send(Event::Text(rest));
        }
        let _ = self.job.events.send(Event::End { reason, tokens: self.tokens });
        Ok(())
    }

    fn fail(self, failure: Failure) {
        let _ = self.job.events.send(Event::Failed(failure));
    }
}

impl<'a> Engine<'a> {
    /// Works until nobody can send any more, or until it is cut.
    pub fn run(&self, jobs: &Receiver<Job>) -> Result<()> {
        let mut batch = self.batch()?;
        let mut texts = BTreeMap::new();
        let mut next = 0;
        while !self.cut.load(Ordering::Relaxed) {
            // One that waits is taken where there is room; without texts the thread sleeps until there is one.
            while texts.len() < self.slots {
                let job = match texts.is_empty() {
                    false => jobs.try_recv().ok(),
                    true => match jobs.recv_timeout(WAIT) {
                        Ok(job) => Some(job),
                        Err(RecvTimeoutError::Timeout) => None,
                        Err(RecvTimeoutError::Disconnected) => return Ok(()),
                    },
                };
                let Some(job) = job else { break };
                self.metrics.waiting.fetch_sub(1, Ordering::Relaxed);
                match job {
                    Job::Text(job) => self.begin(job, next, &mut batch, &mut texts),
                    Job::Embed(job) => self.embed(job),
                }
                next += 1;
            }
            self.leave(&mut batch, &mut texts)?;
            if !texts.is_empty() {
                self.step(&mut batch, &mut texts)?;
            }
            self.metrics.running.store(texts.len() as u64, Ordering::Relaxed);
        }
        for text in texts.into_values() {
            text.fail(Failure::Stopping);
        }
        while let Ok(job) = jobs.try_recv() {
            match job {
                Job::Text(job) => drop(job.events.send(Event::Failed(Failure::Stopping))),
                Job::Embed(job) => drop(job.reply.send(Err(Failure::Stopping))),
            }
        }
        Ok(())
    }

    fn batch(&self) -> Result<DecodingBatch<'a>> {
        Ok(DecodingBatch::new(self.model, self.model.context())?.chunk(CHUNK))
    }

    fn begin(&self, job: TextJob, id: u64, batch: &mut DecodingBatch<'a>, texts: &mut BTreeMap<u64, Running<'a>>) {
        if job.events.is_closed() {
            return self.metrics.cut(1);
        }
        let sampler = TokenSampler::new(&job.sampling, &job.logits, Rng::new(job.seed));
        let begun = sampler.and_then(|sampler| batch.insert(id, &job.prompt, sampler));
        if let Err(error) = begun {
            return drop(job.events.send(Event::Failed(Failure::Model(error.to_string()))));
        }
        self.metrics.prompt_tokens.fetch_add(job.prompt.len() as u64, Ordering::Relaxed);
        let stream = match job.continues {
            true => TextStream::after(self.tokenizer, &job.prompt),
            false => TextStream::new(self.tokenizer),
        };
        let stops = StopStrings::new(&job.stop_strings);
        texts.insert(id, Running { job, stream, stops, tokens: 0 });
    }

    /// Texts that nobody waits for any more, and those that took too long, leave.
    fn leave(&self, batch: &mut DecodingBatch<'a>, texts: &mut BTreeMap<u64, Running<'a>>) -> Result<()> {
        let now = Instant::now();
        let is_left = |text: &Running<'_>| text.job.events.is_closed() || text.job.until <= now;
        let left: Vec<u64> = texts.iter().filter(|(_, text)| is_left(text)).map(|(id, _)| *id).collect();
        for id in left {
            batch.remove(id)?;
            if let Some(text) = texts.remove(&id) {
                self.metrics.cut(u64::from(text.job.events.is_closed()));
                text.fail(Failure::Late);
            }
        }
        Ok(())
    }

    /// A token for each text whose prompt is read.
    fn step(&self, batch: &mut DecodingBatch<'a>, texts: &mut BTreeMap<u64, Running<'a>>) -> Result<()> {
        let drawn = match no_grad(|| batch.step()) {
            Ok(drawn) => drawn,
            Err(error) => {
                // The model failed for all, such as for lack of memory: what comes next begins anew.
                let message = error.to_string();
                for text in std::mem::take(texts).into_values() {
                    text.fail(Failure::Model(message.clone()));
                }
                *batch = self.batch()?;
                return Ok(());
            }
        };
        self.metrics.tokens.fetch_add(drawn.len() as u64, Ordering::Relaxed);
        for (id, token) in drawn {
            let Some(text) = texts.get_mut(&id) else { continue };
            let pushed = token.map_err(Into::into).and_then(|token| text.push(token, &self.stops));
            if matches!(pushed, Ok(None)) {
                continue;
            }
            batch.remove(id)?;
            let Some(text) = texts.remove(&id) else { continue };
            match pushed {
                Ok(reason) => text.end(reason.unwrap_or("stop"))?,
                Err(error) => text.fail(Failure::Model(format!("{error:#}"))),
            }
        }
        Ok(())
    }

    fn embed(&self, job: EmbedJob) {
        let vectors = job.texts.iter().map(|tokens| match () {
            () if job.until <= Instant::now() => Err(Failure::Late),
            () if self.cut.load(Ordering::Relaxed) => Err(Failure::Stopping),
            () => self.vector(tokens).map_err(|error| Failure::Model(error.to_string())),
        });
        let vectors = vectors.collect();
        self.metrics.prompt_tokens.fetch_add(job.texts.iter().map(Vec::len).sum::<usize>() as u64, Ordering::Relaxed);
        let _ = job.reply.send(vectors);
    }

    /// The mean of the last block's normalised results over all tokens, of length 1.
    fn vector(&self, tokens: &[i64]) -> isograd::Result<Vec<f32>> {
        let device = self.model.parameters().first().map_or_else(Device::best, |t| Ok(t.device().clone()))?;
        let tokens = Tensor::from_slice(tokens, (1, tokens.len()), &device)?;
        let features = no_grad(|| self.model.features(&tokens, None))?.cast(isograd::DType::F32)?;
        let mean = features.mean(1)?.to_vec::<f32>()?;
        let length = mean.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
        Ok(mean.into_iter().map(|x| x / length).collect())
    }
}
