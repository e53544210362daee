//! The keys that a query attends to by its position.

use super::sequences::Rows;
use crate::{Device, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// The keys that precede a query's own position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Causal {
    /// Queries attend to all keys.
    #[default]
    None,
    /// Query i attends to the keys up to i.
    TopLeft,
    /// Query i attends to the keys up to `i + Tk - Tq`, as for the last positions of a longer sequence. The numbers of queries and keys are those
    /// of a sequence.
    BottomRight,
}

/// Query i attends to the keys from `i + low` to `i + high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// The first key, relative to the query's index. At least `-Tq`.
    pub low: i64,
    /// The last key, relative to the query's index. At most `Tk`.
    pub high: i64,
}

impl Band {
    pub(super) fn new(causal: Causal, window: Option<[usize; 2]>, queries: usize, keys: usize) -> Band {
        let (queries, keys) = (queries as i64, keys as i64);
        let own = if causal == Causal::BottomRight { keys - queries } else { 0 };
        let [before, after] = window.map_or([i64::MAX; 2], |w| w.map(|n| i64::try_from(n).unwrap_or(i64::MAX)));
        let after = if causal == Causal::None { after } else { 0 };
        Band { low: own.saturating_sub(before).max(-queries), high: own.saturating_add(after).min(keys) }
    }

    /// The band relative to a query's own position, which the sequence decides on.
    pub(super) fn relative(causal: Causal, window: Option<[usize; 2]>, queries: usize, keys: usize) -> Band {
        let most = queries.saturating_add(keys) as i64;
        let [before, after] = window.map_or([most; 2], |w| w.map(|n| i64::try_from(n).unwrap_or(i64::MAX).min(most)));
        Band { low: -before, high: if causal == Causal::None { after } else { 0 } }
    }

    /// The keys that some of these queries attend to, of `keys` keys.
    fn keys(&self, rows: &Range<usize>, keys: usize) -> Range<usize> {
        let clip = |at: i64| at.clamp(0, keys as i64) as usize;
        let start = clip(rows.start as i64 + self.low);
        start..clip(rows.end as i64 + self.high).max(start)
    }

    /// A mask `[rows, keys]` of the band; `None` if each of these queries attends to all of these keys.
    fn mask(&self, rows: &Range<usize>, keys: &Range<usize>, device: &Device) -> Result<Option<Tensor>> {
        let [first, last] = [rows.start, rows.end.saturating_sub(1)].map(|i| i as i64);
        if keys.is_empty() || (last + self.low <= keys.start as i64 && first + self.high >= keys.end as i64 - 1) {
            return Ok(None);
        }
        let queries = Tensor::arange(rows.len(), device)?.unsqueeze(1)?;
        let distance = Tensor::arange(keys.len(), device)?.sub(&queries)?;
        let shift = rows.start as i64 - keys.start as i64;
        let mask = distance.ge_scalar(self.low + shift)?.logical_and(&distance.le_scalar(self.high + shift)?)?;
        Ok(Some(mask))
    }
}

/// The keys that each query of a call attends to.
#[derive(Clone)]
pub enum Reach {
    /// A band of all batches.
    Band(Band),
    /// A range of keys for each query.
    Rows(Arc<Rows>),
}

impl Reach {
    /// The keys that some of these queries attend to, of `keys` keys.
    pub(super) fn keys(&self, rows: &Range<usize>, keys: usize) -> Range<usize> {
        match self {
            Reach::Band(band) => band.keys(rows, keys),
            Reach::Rows(all) => all.keys(rows),
        }
    }

    /// A mask that broadcasts to `[B, Hq, rows, keys]`; `None` if each of these queries attends to all of these keys.
    pub(super) fn mask(&self, rows: &Range<usize>, keys: &Range<usize>, device: &Device) -> Result<Option<Tensor>> {
        match self {
            Reach::Band(band) => band.mask(rows, keys, device),
            Reach::Rows(all) => all.mask(rows, keys, device).map(Some),
        }
    }
}
