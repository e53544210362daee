//! Decoding: sequences that a language model continues, token after token.

use crate::language::LanguageModel;
use crate::sampler::{Changes, LogitsOptions};
use isograd_core::ops::Sampling;
use isograd_core::{DType, Device, Error, Result, Rng, Step, Tensor, no_grad};
use isograd_nn::KvCache;
use std::cell::RefCell;
use std::rc::Rc;

/// Sequences that a model continues. On devices that record, a token is a replay of a captured step: the positions of the sequences, the numbers of
/// their keys and the state of the generator are on the device.
///
/// ```
/// # use isograd_core::ops::Sampling;
/// # use isograd_core::{Result, Rng, Tensor};
/// # use isograd_models::{Decoder, LanguageModel};
/// /// Continues a prompt `[1, T]` by 20 tokens.
/// fn generate(model: &impl LanguageModel, prompt: &Tensor, rng: &Rng) -> Result<Vec<i64>> {
///     let sampling = Sampling { temperature: 0.8, top_k: 40, ..Sampling::default() };
///     let mut decoder = Decoder::new(model, prompt.dims()[1] + 20, &sampling, rng.clone());
///     let mut found = decoder.prompt(prompt, None)?.to_vec::<i64>()?;
///     for _ in 1..20 {
///         found.extend(decoder.next()?.to_vec::<i64>()?);
///     }
///     Ok(found)
/// }
/// ```
pub struct Decoder<'a> {
    model: &'a dyn LanguageModel,
    sampling: Sampling,
    rng: Rng,
    cache: Rc<RefCell<KvCache>>,
    /// The last tokens, `[B, 1]`.
    last: Option<Tensor>,
    step: Option<Step<'a, Tensor, Tensor>>,
    /// Whether the device records, once it is known.
    records: Option<bool>,
    changes: Changes<'a>,
    /// The tokens of each sequence, and the place of the first that was drawn, if the changes may depend on them.
    texts: Vec<(Vec<i64>, usize)>,
    /// The tokens of prompts that are read at a time; 0 for all.
    chunk: usize,
}

impl<'a> Decoder<'a> {
    /// No sequences yet. Each may have `capacity` tokens. One token is drawn at a time.
    pub fn new(model: &'a dyn LanguageModel, capacity: usize, sampling: &Sampling, rng: Rng) -> Decoder<'a> {
        let cache = Rc::new(RefCell::new(model.cache(capacity)));
        Decoder {
            model,
            sampling: Sampling { num_samples: 1, ..*sampling },
            rng,
            cache,
            last: None,
            step: None,
            records: None,
            changes: Changes { options: LogitsOptions::default(), processor: None },
            texts: Vec::new(),
            chunk: 0,
        }
    }

    /// With changes of logits before tokens are drawn. If there are any, logits come to the host for each token.
    #[must_use]
    pub fn logits_options(mut self, options: &LogitsOptions) -> Decoder<'a> {
        self.changes.options = *options;
        self
    }

    /// With a function that changes the logits `[V]` of the token that follows the tokens of a sequence: to -infinity what must not follow, such as
    /// what a grammar forbids. Its errors are those of [`prompt`](Decoder::prompt) and [`next`](Decoder::next).
    ///
    /// ```
    /// # use isograd_core::ops::Sampling;
    /// # use isograd_core::Rng;
    /// # use isograd_models::{Decoder, LanguageModel};
    /// /// Draws no token twice in a row.
    /// fn restless<'a>(model: &'a dyn LanguageModel, rng: Rng) -> Decoder<'a> {
    ///     Decoder::new(model, model.context(), &Sampling::default(), rng).process_logits(|logits, tokens| {
    ///         if let Some(&last) = tokens.last() {
    ///             logits[last as usize] = f32::NEG_INFINITY;
    ///         }
    ///         Ok(())
    ///     })
    /// }
    /// ```
    #[must_use]
    pub fn process_logits(
        mut self,
        processor: impl FnMut(&mut [f32], &[i64]) -> Result<()> + Send + 'a,
    ) -> Decoder<'a> {
        self.changes.processor = Some(Box::new(processor));
        self
    }

    /// With so many tokens of each prompt read at a time: a long one needs less memory. 0 reads all at once.
    #[must_use]
    pub fn chunk(mut self, tokens: usize) -> Decoder<'a> {
        self.chunk = tokens;
        self
    }

    /// Reads tokens `[B, T]` that continue the sequences, and draws the token `[B]` that follows each. With `lengths`, only the first tokens of each
    /// sequence are read, one or more. Errors: as [`LanguageModel::forward_cached`]; `Shape` or `Index` for lengths that do not fit.
    pub fn prompt(&mut self, tokens: &Tensor, lengths: Option<&[usize]>) -> Result<Tensor> {
        let mut cache = self.cache.borrow_mut();
        let before = cache.lengths().to_vec();
        let is_long = self.chunk > 0 && tokens.rank() == 2 && tokens.dims()[1] > self.chunk;
        let logits = match lengths {
            None if is_long => {
                let lengths = vec![tokens.dims()[1]; tokens.dims()[0]];
                next_logits_of(self.model, tokens, &lengths, self.chunk, &mut cache)?
            }
            None => self.model.next_logits(tokens, &mut cache)?,
            Some(lengths) => next_logits_of(self.model, tokens, lengths, self.chunk, &mut cache)?,
        };
        drop(cache);
        if !self.changes.are_none() {
            self.remember(tokens, lengths, &before)?;
        }
        self.drawn(logits)
    }

    /// Keeps the tokens that the model has read, and those of a prompt.
    fn remember(&mut self, tokens: &Tensor, lengths: Option<&[usize]>, before: &[usize]) -> Result<()> {
        let &[b, t] = tokens.dims() else { return Ok(()) };
        self.texts.resize(b, (Vec::new(), 0));
        let rows = tokens.cast(DType::I64)?.to_vec::<i64>()?;
        for (i, (text, drawn)) in self.texts.iter_mut().enumerate() {
            text.truncate(before.get(i).copied().unwrap_or(0));
            text.extend(&rows[i * t..i * t + lengths.map_or(t, |lengths| lengths[i])]);
            *drawn = text.len();
        }
        Ok(())
    }

    /// Reads the tokens that were drawn last, and draws the token `[B]` that follows each. Errors: `Value` before a prompt; `Index` if a sequence
    /// has no room for a token.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Tensor> {
        let Some(last) = self.last.clone() else {
            return Err(Error::value("decoder", "there is no prompt to continue"));
        };
        let records = match self.records {
            Some(records) => records,
            None => *self.records.insert(records(last.device())?),
        };
        if !records {
            // A step would read all of the memory.
            let logits = self.model.next_logits(&last, &mut self.cache.borrow_mut())?;
            return self.drawn(logits);
        }
        // Steps that were captured before have the addresses of the memory before.
        if self.cache.borrow_mut().reserve(1)? {
            self.step = None;
        }
        let (model, sampling, rng) = (self.model, self.sampling, self.rng.clone());
        let draws = self.changes.are_none();
        let step = self.step.get_or_insert_with(|| {
            let cache = self.cache.clone();
            last.device().capture(move |tokens: Tensor| {
                no_grad(|| {
                    let logits = model.next_logits(&tokens, &mut cache.borrow_mut())?;
                    if draws { logits.sample_logits(&sampling, &rng) } else { Ok(logits) }
                })
            })
        });
        let found = step.run(last)?;
        self.cache.borrow_mut().advance(1);
        if !draws {
            return self.drawn(found);
        }
        self.last = Some(found.unsqueeze(1)?);
        Ok(found)
    }

    /// The tokens that follow prompts `[B, T]`, for each until one of `stops` is drawn, which is left out, or until there are `count`. Waits for the
    /// device after each token. Errors: as [`prompt`](Decoder::prompt) and [`next`](Decoder::next).
    pub fn generate(&mut self, prompts: &Tensor, count: usize, stops: &[i64]) -> Result<Vec<Vec<i64>>> {
        let mut found: Vec<(Vec<i64>, bool)> = vec![(Vec::new(), false); prompts.dims().first().copied().unwrap_or(0)];
        for step in 0..count {
            let drawn = if step == 0 { self.prompt(prompts, None)? } else { self.next()? };
            for ((tokens, has_ended), token) in found.iter_mut().zip(drawn.to_vec::<i64>()?) {
                *has_ended |= stops.contains(&token);
                tokens.extend((!*has_ended).then_some(token));
            }
            if found.iter().all(|(_, has_ended)| *has_ended) {
                break;
            }
        }
        Ok(found.into_iter().map(|(tokens, _)| tokens).collect())
    }

    /// Keeps the first `length` tokens of each sequence. 0 begins new sequences.
    pub fn truncate(&mut self, length: usize) -> Result<()> {
        self.last = None;
        self.cache.borrow_mut().truncate(length)
    }

    /// The numbers of tokens that the model has read of each sequence.
    pub fn lengths(&self) -> Vec<usize> {
        self.cache.borrow().lengths().to_vec()
    }

    /// Draws tokens from logits `[B, V]`.
    fn drawn(&mut self, logits: Tensor) -> Result<Tensor> {
        if self.changes.are_none() {
            return self.keep(logits.sample_logits(&self.sampling, &self.rng)?);
        }
        let changed = self.changes.apply(&logits, &self.texts, &self.sampling)?;
        let tokens = changed.sample_logits(&self.sampling, &self.rng)?;
        for ((text, _), token) in self.texts.iter_mut().zip(tokens.to_vec::<i64>()?) {
            text.push(token);
        }
        self.keep(tokens)
    }

    /// Keeps the last tokens.
    fn keep(&mut self, tokens: Tensor) -> Result<Tensor> {
        self.last = Some(tokens.unsqueeze(1)?);
        Ok(tokens)
    }
}

/// True if a device records captured steps.
fn records(device: &Device) -> Result<bool> {
    let x = Tensor::zeros(1, DType::I64, device)?;
    let mut step = device.capture(|x: Tensor| x.add_scalar(1));
    step.run(x.clone())?;
    step.run(x)?;
    Ok(step.is_recorded())
}

/// The logits `[B, V]` for the last of the first `lengths` tokens of each sequence. The others are forgotten. So many tokens are read at a time; 0
/// reads all at once. After an error the cache has the positions that it had.
fn next_logits_of(
    model: &dyn LanguageModel,
    tokens: &Tensor,
    lengths: &[usize],
    chunk: usize,
    cache: &mut KvCache,
) -> Result<Tensor> {
    let op = "decoder";
    let &[b, t] = tokens.dims() else {
        return Err(Error::shape(op, format!("tokens are {}, expected [B, T]", tokens.shape())));
    };
    if lengths.len() != b {
        return Err(Error::shape(op, format!("{} lengths for tokens {}", lengths.len(), tokens.shape())));
    }
    if let Some(length) = lengths.iter().find(|&&length| length == 0 || length > t) {
        return Err(Error::index(op, format!("a length is {length}, expected 1 to {t}")));
    }
    let before = if cache.lengths().len() == b { cache.lengths().to_vec() } else { vec![0; b] };
    let last = no_grad(|| last_features(model, tokens, lengths, chunk, cache));
    if last.is_err() && cache.lengths().len() == b {
        cache.truncate_each(&before)?;
    }
    let last = last?;
    let after: Vec<usize> = before.iter().zip(lengths).map(|(start, length)| start + length).collect();
    cache.truncate_each(&after)?;
    no_grad(|| model.logits(&last))
}

/// The features `[B, E]` of the last of the first `lengths` tokens of each sequence.
fn last_features(
    model: &dyn LanguageModel,
    tokens: &Tensor,
    lengths: &[usize],
    chunk: usize,
    cache: &mut KvCache,
) -> Result<Tensor> {
    let t = tokens.dims()[1];
    let chunk = if chunk == 0 { t } else { chunk };
    let (mut parts, mut place) = (Vec::new(), vec![0; lengths.len()]);
    let longest = lengths.iter().copied().max().unwrap_or(t);
    for start in (0..longest).step_by(chunk) {
        let count = chunk.min(t - start);
        let features = model.features(&tokens.narrow(1, start, count)?.contiguous()?, Some(cache))?;
        // The sequences whose last token is one of these.
        let ended = (0..lengths.len()).filter(|&i| (start + 1..=start + count).contains(&lengths[i]));
        let mut rows = Vec::new();
        for i in ended {
            place[i] = (parts.iter().map(|part: &Tensor| part.dims()[0]).sum::<usize>() + rows.len()) as i64;
            rows.push((i * count + lengths[i] - start - 1) as i64);
        }
        if !rows.is_empty() {
            let rows = Tensor::from_slice(&rows, rows.len(), tokens.device())?;
            parts.push(features.flatten(0, 1)?.index_select(0, &rows)?);
        }
    }
    let all = Tensor::concat(&parts.iter().collect::<Vec<_>>(), 0)?;
    all.index_select(0, &Tensor::from_slice(&place, place.len(), tokens.device())?)
}
