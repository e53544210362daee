//! Search for probable texts.

use crate::language::LanguageModel;
use isograd_core::ops::Order;
use isograd_core::{DType, Error, Result, Tensor, no_grad};

/// The options of [`beam_search`].
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct BeamOptions {
    /// The number of sequences that are followed.
    pub beams: usize,
    /// The largest number of tokens that follow the prompt.
    pub tokens: usize,
    /// Tokens that end a sequence; they are no part of it.
    pub stops: Vec<i64>,
    /// Sequences are compared by their logarithmic probability over the number of their tokens to this power: above 0 favours long ones.
    pub length_penalty: f64,
}

impl Default for BeamOptions {
    /// Four sequences of up to 50 tokens, without stops, compared by the mean of the logarithms.
    fn default() -> BeamOptions {
        BeamOptions { beams: 4, tokens: 50, stops: Vec::new(), length_penalty: 1.0 }
    }
}

/// A sequence that follows a prompt.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Beam {
    /// The tokens after the prompt.
    pub tokens: Vec<i64>,
    /// The logarithm of the probability of these tokens, and of the stop if there was one.
    pub log_probability: f64,
    /// The number by which sequences are compared.
    pub score: f64,
}

/// The most probable continuations of a prompt `[1, T]` that a search of some width finds, the best first. Each token, the `beams` most probable of all
/// extensions are kept; the search ends when as many sequences have met a stop, or at the last token. Errors: as
/// [`LanguageModel::next_logits`]; `Attr` for no beams; `Shape` unless there is one prompt.
pub fn beam_search(model: &dyn LanguageModel, prompt: &Tensor, options: &BeamOptions) -> Result<Vec<Beam>> {
    let op = "beam_search";
    let BeamOptions { beams, tokens, stops, length_penalty } = options;
    let &[1, length] = prompt.dims() else {
        return Err(Error::shape(op, format!("the prompt is {}, expected [1, T]", prompt.shape())));
    };
    if *beams == 0 {
        return Err(Error::attr(op, "0 beams were asked for, expected at least 1"));
    }
    let beam = |tokens: Vec<i64>, log_probability: f64, count: usize| {
        let score = log_probability / (count.max(1) as f64).powf(*length_penalty);
        Beam { tokens, log_probability, score }
    };
    let mut cache = model.cache(length.saturating_add(*tokens));
    let (mut live, mut ended) = (vec![(Vec::new(), 0.0)], Vec::new());
    let mut read = prompt.clone();
    for step in 0..*tokens {
        let extensions = no_grad(|| {
            let logits = model.next_logits(&read, &mut cache)?;
            let logp = logits.cast(DType::F32)?.log_softmax(-1)?;
            // As many stops as there are may be among them.
            let count = (beams + stops.len()).min(model.vocab());
            let (values, places) = logp.topk(count, -1, Order::Descending)?;
            let row = |i: usize| move |(logp, token): (f32, i64)| (i / count, token, f64::from(logp));
            let all = values.to_vec::<f32>()?.into_iter().zip(places.to_vec::<i64>()?).enumerate();
            Ok(all.map(|(i, found)| row(i)(found)).collect::<Vec<_>>())
        })?;
        let mut all: Vec<(usize, i64, f64)> =
            extensions.into_iter().map(|(from, token, logp)| (from, token, live[from].1 + logp)).collect();
        all.sort_by(|a, b| b.2.total_cmp(&a.2));
        let mut next: Vec<(usize, i64, f64)> = Vec::new();
        for (from, token, logp) in all {
            if next.len() == *beams {
                break;
            }
            match stops.contains(&token) {
                true => ended.push(beam(live[from].0.clone(), logp, step + 1)),
                false => next.push((from, token, logp)),
            }
        }
        let extended = |&(from, token, logp): &(usize, i64, f64)| {
            let before: &Vec<i64> = &live[from].0;
            (before.iter().copied().chain([token]).collect(), logp)
        };
        let (rows, last): (Vec<usize>, Vec<i64>) = next.iter().map(|&(from, token, _)| (from, token)).unzip();
        live = next.iter().map(extended).collect();
        if live.is_empty() || ended.len() >= *beams {
            break;
        }
        cache.select(&rows)?;
        read = Tensor::from_slice(&last, (last.len(), 1), prompt.device())?;
    }
    ended.extend(live.into_iter().map(|(tokens, logp)| {
        let count = tokens.len();
        beam(tokens, logp, count)
    }));
    ended.sort_by(|a, b| b.score.total_cmp(&a.score));
    ended.truncate(*beams);
    Ok(ended)
}
