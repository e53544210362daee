//! Decoding: sequences that a language model continues, token after token.

use crate::language::LanguageModel;
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
        }
    }

    /// Reads tokens `[B, T]` that continue the sequences, and draws the token `[B]` that follows each. With `lengths`, only the first tokens of each
    /// sequence are read, one or more. Errors: as [`LanguageModel::forward_cached`]; `Shape` or `Index` for lengths that do not fit.
    pub fn prompt(&mut self, tokens: &Tensor, lengths: Option<&[usize]>) -> Result<Tensor> {
        let mut cache = self.cache.borrow_mut();
        let logits = match lengths {
            None => self.model.next_logits(tokens, &mut cache)?,
            Some(lengths) => next_logits_of(self.model, tokens, lengths, &mut cache)?,
        };
        drop(cache);
        self.drawn(&logits)
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
            return self.drawn(&logits);
        }
        // Steps that were captured before have the addresses of the memory before.
        if self.cache.borrow_mut().reserve(1)? {
            self.step = None;
        }
        let (model, sampling, rng) = (self.model, self.sampling, self.rng.clone());
        let step = self.step.get_or_insert_with(|| {
            let cache = self.cache.clone();
            last.device().capture(move |tokens: Tensor| {
                no_grad(|| model.next_logits(&tokens, &mut cache.borrow_mut())?.sample_logits(&sampling, &rng))
            })
        });
        let tokens = step.run(last)?;
        self.cache.borrow_mut().advance(1);
        self.last = Some(tokens.unsqueeze(1)?);
        Ok(tokens)
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

    fn drawn(&mut self, logits: &Tensor) -> Result<Tensor> {
        let tokens = logits.sample_logits(&self.sampling, &self.rng)?;
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

/// The logits `[B, V]` for the last of the first `lengths` tokens of each sequence. The others are forgotten.
fn next_logits_of(
    model: &dyn LanguageModel,
    tokens: &Tensor,
    lengths: &[usize],
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
    no_grad(|| {
        let features = model.features(tokens, Some(cache))?;
        let after: Vec<usize> = before.iter().zip(lengths).map(|(start, length)| start + length).collect();
        cache.truncate_each(&after)?;
        let rows: Vec<i64> = lengths.iter().enumerate().map(|(i, length)| (i * t + length - 1) as i64).collect();
        let rows = Tensor::from_slice(&rows, b, tokens.device())?;
        model.logits(&features.flatten(0, 1)?.index_select(0, &rows)?)
    })
}
