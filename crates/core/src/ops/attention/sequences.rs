//! Sequences of several lengths in one call: packed one after the other, or the first keys of each batch.

use super::band::Band;
use crate::backend::{index_error, starts_error};
use crate::check::{check_device, check_index, describe};
use crate::{DType, Device, Error, Result, Tensor, no_grad};
use std::ops::Range;

/// The sequences of a call of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequences {
    /// All queries and keys of a batch are a sequence.
    Whole,
    /// The sequences of a batch lie one after the other. Two operands, i64 `[N + 1]`, have the first query and the first key of each sequence,
    /// and the end of the last. Queries outside of all sequences attend to no key.
    Packed,
    /// The first keys of a batch are a sequence. An operand, i64 `[B]`, has their numbers.
    Lengths,
}

/// The first rows of packed sequences as i64, outside of the tape.
pub(super) fn starts(op: &'static str, q: &Tensor, starts: [&Tensor; 2]) -> Result<Vec<Tensor>> {
    if starts.iter().any(|x| x.rank() != 1) || starts[0].numel() == 0 || starts[0].numel() != starts[1].numel() {
        let message =
            format!("the first queries and keys of sequences are {}, expected two of [N + 1]", describe(&starts));
        return Err(Error::shape(op, message));
    }
    check_device(op, &[q, starts[0], starts[1]])?;
    starts.into_iter().map(|x| numbers(op, x)).collect()
}

/// The numbers of keys as i64, outside of the tape.
pub(super) fn lengths(op: &'static str, q: &Tensor, lengths: &Tensor) -> Result<Vec<Tensor>> {
    check_device(op, &[q, lengths])?;
    if lengths.dims() != &q.dims()[..1] {
        let numbers = lengths.shape();
        let message = format!("the numbers of keys are {numbers}, expected [{}] for q {}", q.dims()[0], q.shape());
        return Err(Error::shape(op, message));
    }
    Ok(vec![numbers(op, lengths)?])
}

fn numbers(op: &'static str, x: &Tensor) -> Result<Tensor> {
    check_index(op, x)?;
    no_grad(|| x.detach().cast(DType::I64)?.contiguous())
}

/// A range of keys for each query of each batch.
pub struct Rows {
    batches: usize,
    queries: usize,
    /// `[batches, queries]`.
    low: Vec<i64>,
    /// The end of each range.
    high: Vec<i64>,
}

impl Rows {
    /// Reads the operands. A band is relative to a query's own position: its index in its sequence or, if `from_end`, the index of the key that is
    /// as far from the end. Errors: `Index` for numbers that do not rise, or are out of range.
    pub fn read(
        op: &'static str,
        sequences: Sequences,
        operands: &[Tensor],
        [queries, keys]: [usize; 2],
        (band, from_end): (Band, bool),
    ) -> Result<Rows> {
        let read = |x: &Tensor| -> Result<Vec<i64>> {
            Ok(x.read()?.chunks_exact(8).map(|v| i64::from_ne_bytes(v.try_into().expect("8 bytes"))).collect())
        };
        let operands = operands.iter().map(read).collect::<Result<Vec<_>>>()?;
        let batches = if sequences == Sequences::Lengths { operands[0].len() } else { 1 };
        let (low, high) = (vec![0; batches * queries], vec![0; batches * queries]);
        let mut rows = Rows { batches, queries, low, high };
        // The queries and keys of each sequence.
        let mut add = |q: Range<i64>, k: Range<i64>| {
            let own = if from_end { (k.end - k.start) - (q.end - q.start) } else { 0 };
            for (i, at) in (q.start..q.end).enumerate() {
                let clip = |key: i64| k.start + key.clamp(0, k.end - k.start);
                rows.low[at as usize] = clip(i as i64 + own + band.low);
                rows.high[at as usize] = clip(i as i64 + own + band.high + 1);
            }
        };
        match sequences {
            Sequences::Whole => unreachable!("a band without rows"),
            Sequences::Packed => {
                for (starts, rows) in operands.iter().zip([queries, keys]) {
                    let rises =
                        |i: usize| starts[i] >= if i > 0 { starts[i - 1] } else { 0 } && starts[i] <= rows as i64;
                    if let Some(i) = (0..starts.len()).find(|&i| !rises(i)) {
                        return Err(starts_error(op, i as i64, starts[i], rows));
                    }
                }
                for (q, k) in operands[0].windows(2).zip(operands[1].windows(2)) {
                    add(q[0]..q[1], k[0]..k[1]);
                }
            }
            Sequences::Lengths => {
                for (b, &length) in operands[0].iter().enumerate() {
                    if !(0..=keys as i64).contains(&length) {
                        return Err(index_error(op, b as i64, length, keys + 1));
                    }
                    let first = (b * queries) as i64;
                    add(first..first + queries as i64, 0..length);
                }
            }
        }
        Ok(rows)
    }

    fn each<'a>(&self, bounds: &'a [i64], rows: &'a Range<usize>) -> impl Iterator<Item = i64> + use<'a> {
        let (batches, queries) = (self.batches, self.queries);
        (0..batches).flat_map(move |b| bounds[b * queries + rows.start..b * queries + rows.end].iter().copied())
    }

    /// The keys that some of these queries attend to.
    pub fn keys(&self, rows: &Range<usize>) -> Range<usize> {
        let mut found: Option<Range<i64>> = None;
        for (low, high) in self.each(&self.low, rows).zip(self.each(&self.high, rows)).filter(|(low, high)| low < high)
        {
            found = Some(found.map_or(low..high, |f| f.start.min(low)..f.end.max(high)));
        }
        found.map_or(0..0, |found| found.start as usize..found.end as usize)
    }

    /// A mask `[B, 1, rows, keys]`.
    pub fn mask(&self, rows: &Range<usize>, keys: &Range<usize>, device: &Device) -> Result<Tensor> {
        let column =
            |of: &[i64]| Tensor::from_vec(self.each(of, rows).collect(), (self.batches, 1, rows.len(), 1), device);
        let all = Tensor::arange(keys.len(), device)?.add_scalar(keys.start as i64)?;
        all.ge(&column(&self.low)?)?.logical_and(&all.lt(&column(&self.high)?)?)
    }
}
