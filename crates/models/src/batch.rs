//! Sequences that come and go while a model continues them.

use crate::language::LanguageModel;
use crate::sampler::TokenSampler;
use isograd_core::{Device, Error, Result, Tensor, no_grad};
use isograd_nn::KvCache;
use std::collections::VecDeque;

const OP: &str = "decoding_batch";

/// Sequences that a model continues side by side, as a server does: each begins when it comes, and leaves when it has ended. A step reads a part of
/// the prompt that has waited longest, and the last token of every sequence whose prompt is read. Yu et al. 2022, "Orca", OSDI.
///
/// A sequence that begins or leaves costs a copy of all keys and values.
///
/// ```
/// # use isograd_core::ops::Sampling;
/// # use isograd_core::{Result, Rng};
/// # use isograd_models::{DecodingBatch, LanguageModel, LogitsOptions, TokenSampler};
/// /// Continues prompts by 20 tokens each.
/// fn generate(model: &impl LanguageModel, prompts: &[Vec<i64>]) -> Result<Vec<Vec<i64>>> {
///     let mut batch = DecodingBatch::new(model, model.context())?;
///     let mut found = vec![Vec::new(); prompts.len()];
///     for (i, prompt) in prompts.iter().enumerate() {
///         let sampler = TokenSampler::new(&Sampling::default(), &LogitsOptions::default(), Rng::new(i as u64))?;
///         batch.insert(i as u64, prompt, sampler)?;
///     }
///     while !batch.is_empty() {
///         for (id, token) in batch.step()? {
///             found[id as usize].push(token?);
///             if found[id as usize].len() == 20 {
///                 batch.remove(id)?;
///             }
///         }
///     }
///     Ok(found)
/// }
/// ```
pub struct DecodingBatch<'a> {
    model: &'a dyn LanguageModel,
    device: Device,
    capacity: usize,
    chunk: usize,
    /// Keys and values of the sequences whose prompts are read.
    cache: KvCache,
    ready: Vec<Sequence<'a>>,
    waiting: VecDeque<Waiting<'a>>,
}

struct Sequence<'a> {
    id: u64,
    sampler: TokenSampler<'a>,
}

/// A sequence whose prompt is not read yet.
struct Waiting<'a> {
    sequence: Sequence<'a>,
    cache: KvCache,
    /// The tokens of the prompt that are read.
    read: usize,
}

impl<'a> DecodingBatch<'a> {
    /// No sequences yet. Each may have `capacity` tokens. Errors: those of a model without parameters and devices.
    pub fn new(model: &'a dyn LanguageModel, capacity: usize) -> Result<DecodingBatch<'a>> {
        let device = model.parameters().first().map_or_else(Device::best, |t| Ok(t.device().clone()))?;
        let cache = model.cache(capacity);
        Ok(DecodingBatch { model, device, capacity, chunk: 512, cache, ready: Vec::new(), waiting: VecDeque::new() })
    }

    /// With so many tokens of a prompt at most in a step, 512 at first: other sequences wait for them.
    #[must_use]
    pub fn chunk(mut self, tokens: usize) -> DecodingBatch<'a> {
        self.chunk = tokens.max(1);
        self
    }

    /// The number of sequences.
    pub fn len(&self) -> usize {
        self.ready.len() + self.waiting.len()
    }

    /// True without sequences.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a sequence under a number of the caller's. Errors: `Value` for a prompt without tokens, and for a number that is there; `Index` for a prompt
    /// beyond the capacity.
    pub fn insert(&mut self, id: u64, prompt: &[i64], mut sampler: TokenSampler<'a>) -> Result<()> {
        if prompt.is_empty() {
            return Err(Error::value(OP, "the prompt has no tokens"));
        }
        if prompt.len() > self.capacity {
            let message = format!("the prompt has {} tokens, and there is room for {}", prompt.len(), self.capacity);
            return Err(Error::index(OP, message));
        }
        if self.ready.iter().chain(self.waiting.iter().map(|w| &w.sequence)).any(|sequence| sequence.id == id) {
            return Err(Error::value(OP, format!("there is a sequence {id}")));
        }
        sampler.read(prompt);
        let cache = self.model.cache(self.capacity);
        self.waiting.push_back(Waiting { sequence: Sequence { id, sampler }, cache, read: 0 });
        Ok(())
    }

    /// Takes a sequence out; does nothing if it is not there. Errors: `OutOfMemory`.
    pub fn remove(&mut self, id: u64) -> Result<()> {
        self.waiting.retain(|waiting| waiting.sequence.id != id);
        self.keep(|sequence| sequence.id != id)
    }

    /// Reads a part of a prompt, and draws the next token of each sequence whose prompt is read: its number and the token, or the error of its draw,
    /// which takes the sequence out. Errors: those of the model, such as `OutOfMemory`; `Index` if a sequence is longer than the capacity.
    pub fn step(&mut self) -> Result<Vec<(u64, Result<i64>)>> {
        let mut drawn = Vec::new();
        self.next(&mut drawn)?;
        self.read(&mut drawn)?;
        let failed: Vec<u64> = drawn.iter().filter(|(_, token)| token.is_err()).map(|(id, _)| *id).collect();
        if !failed.is_empty() {
            self.keep(|sequence| !failed.contains(&sequence.id))?;
        }
        Ok(drawn)
    }

    fn keep(&mut self, is_kept: impl Fn(&Sequence<'_>) -> bool) -> Result<()> {
        let kept: Vec<usize> = (0..self.ready.len()).filter(|&i| is_kept(&self.ready[i])).collect();
        if kept.is_empty() {
            self.cache = self.model.cache(self.capacity);
        } else if kept.len() < self.ready.len() {
            self.cache.select(&kept)?;
        }
        self.ready.retain(is_kept);
        Ok(())
    }

    /// A token of each sequence whose prompt is read.
    fn next(&mut self, drawn: &mut Vec<(u64, Result<i64>)>) -> Result<()> {
        if self.ready.is_empty() {
            return Ok(());
        }
        let last: Vec<i64> = self.ready.iter().filter_map(|s| s.sampler.tokens().last().copied()).collect();
        let last = Tensor::from_slice(&last, (last.len(), 1), &self.device)?;
        let logits = self.model.next_logits(&last, &mut self.cache)?;
        for (i, sequence) in self.ready.iter_mut().enumerate() {
            let row = logits.narrow(0, i, 1)?;
            drawn.push((sequence.id, sequence.sampler.draw(&row)));
        }
        Ok(())
    }

    /// A part of the first prompt that waits.
    fn read(&mut self, drawn: &mut Vec<(u64, Result<i64>)>) -> Result<()> {
        let Some(mut first) = self.waiting.pop_front() else { return Ok(()) };
        let prompt = first.sequence.sampler.tokens();
        let count = self.chunk.min(prompt.len() - first.read);
        let tokens = Tensor::from_slice(&prompt[first.read..first.read + count], (1, count), &self.device)?;
        first.read += count;
        if first.read < prompt.len() {
            no_grad(|| self.model.features(&tokens, Some(&mut first.cache)))?;
            self.waiting.push_front(first);
            return Ok(());
        }
        let logits = self.model.next_logits(&tokens, &mut first.cache)?;
        let token = first.sequence.sampler.draw(&logits);
        let id = first.sequence.id;
        if token.is_ok() {
            self.cache.join(first.cache)?;
            self.ready.push(first.sequence);
        }
        drawn.push((id, token));
        Ok(())
    }
}

impl std::fmt::Debug for DecodingBatch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DecodingBatch")
            .field("len", &self.len())
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
