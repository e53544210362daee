//! Which samples an epoch has, and in what order.

use crate::draws::{Draws, permutation, permuted};
use isograd_core::{Error, Result, RngState};

/// The order of samples in each epoch. It depends on the seed and the epoch's number alone, so that a run that is resumed sees the
/// batches of a run that was not interrupted.
pub trait Sampler: Send + Sync {
    /// The number of samples in an epoch, of a dataset with `samples`.
    fn count(&self, samples: usize) -> usize {
        samples
    }

    /// The indices of the samples of an epoch: [`count`](Sampler::count) of them, each below `samples`.
    /// An error is the only item of the epoch.
    fn order(&self, samples: usize, seed: u64, epoch: u64) -> Result<Vec<usize>>;
}

/// Every sample once, in the order of the dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequential;

impl Sampler for Sequential {
    fn order(&self, samples: usize, _: u64, _: u64) -> Result<Vec<usize>> {
        Ok((0..samples).collect())
    }
}

/// Every sample once, in a new order in each epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shuffled;

impl Sampler for Shuffled {
    fn order(&self, samples: usize, seed: u64, epoch: u64) -> Result<Vec<usize>> {
        Ok(permutation(samples, seed, epoch))
    }
}

/// Keeps weighted draws apart from others of the same seed ("weight" in ASCII; the epoch is added).
const STREAM: u64 = 0x7765_6967_6874_0000;

/// Draws samples independently with probabilities in proportion to weights, as for classes of unequal size. A sample may occur
/// several times.
#[derive(Clone, Debug, PartialEq)]
pub struct Weighted {
    /// The sum of the weights up to each sample, which is included.
    sums: Vec<f64>,
    count: usize,
}

impl Weighted {
    /// One weight for each sample, and the number of samples of an epoch.
    /// Errors: `Attr` unless every weight is at least 0 and finite, and their sum is positive and finite.
    pub fn new(weights: &[f64], count: usize) -> Result<Weighted> {
        if let Some((i, weight)) = weights.iter().enumerate().find(|(_, w)| !w.is_finite() || **w < 0.0) {
            let message = format!("weight {i} is {weight}, expected a finite number of at least 0");
            return Err(Error::attr("weighted", message));
        }
        let sums: Vec<f64> = weights.iter().scan(0.0, |sum, w| Some(accumulated(sum, *w))).collect();
        match sums.last() {
            Some(sum) if sum.is_finite() && *sum > 0.0 => Ok(Weighted { sums, count }),
            sum => Err(Error::attr(
                "weighted",
                format!("the sum of the weights is {}, expected more", sum.unwrap_or(&0.0)),
            )),
        }
    }
}

fn accumulated(sum: &mut f64, weight: f64) -> f64 {
    *sum += weight;
    *sum
}

impl Sampler for Weighted {
    fn count(&self, _: usize) -> usize {
        self.count
    }

    /// Errors: `Attr` if the number of weights is not that of the samples.
    fn order(&self, samples: usize, seed: u64, epoch: u64) -> Result<Vec<usize>> {
        if self.sums.len() != samples {
            let message = format!("{} weights for {samples} samples, expected one for each", self.sums.len());
            return Err(Error::attr("weighted", message));
        }
        let mut draws = Draws::new(RngState { seed, offset: 0, stream: STREAM.wrapping_add(epoch) });
        let total = self.sums[samples - 1];
        // The first sum above a draw; samples of weight 0 have the sum of the sample before.
        let last = self.sums.partition_point(|&sum| sum < total);
        let mut draw = || {
            let at = draws.uniform() * total;
            self.sums.partition_point(|&sum| sum <= at).min(last)
        };
        Ok((0..self.count).map(|_| draw()).collect())
    }
}

/// Keeps orders of batches apart from shuffles of the same seed ("length" in ASCII; the epoch is added).
const OF_BATCHES: u64 = 0x6c65_6e67_7468_0000;

/// Batches among which [`ByLength`] sorts samples.
const SORTED: usize = 50;

/// Every sample once, with samples of similar lengths in one batch, so that [`Padded`](crate::Padded) has little padding. An epoch is shuffled
/// and sorted by length within every 50 batches; then the order of batches is shuffled. A last batch that is not full stays the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByLength {
    lengths: Vec<usize>,
    batch_size: usize,
}

impl ByLength {
    /// The length of each sample, and the loader's number of samples a batch. Errors: `Attr` if it is 0.
    pub fn new(lengths: Vec<usize>, batch_size: usize) -> Result<ByLength> {
        match batch_size {
            0 => Err(Error::attr("by_length", "the batch size is 0, expected at least 1")),
            _ => Ok(ByLength { lengths, batch_size }),
        }
    }
}

impl Sampler for ByLength {
    /// Errors: `Attr` if the number of lengths is not that of the samples.
    fn order(&self, samples: usize, seed: u64, epoch: u64) -> Result<Vec<usize>> {
        if self.lengths.len() != samples {
            let message = format!("{} lengths for {samples} samples, expected one for each", self.lengths.len());
            return Err(Error::attr("by_length", message));
        }
        let mut order = permutation(samples, seed, epoch);
        for part in order.chunks_mut(self.batch_size.saturating_mul(SORTED)) {
            part.sort_by_key(|&sample| self.lengths[sample]);
        }
        let full = order.chunks_exact(self.batch_size);
        let state = RngState { seed, offset: 0, stream: OF_BATCHES.wrapping_add(epoch) };
        let batches: Vec<&[usize]> = full.clone().collect();
        let shuffled = permuted(batches.len(), state).into_iter().flat_map(|batch| batches[batch]);
        Ok(shuffled.chain(full.remainder()).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_by_length_have_little_padding() {
        // 10,007 lengths from 1 to 1000, which differ from their neighbours.
        let lengths: Vec<usize> = (0..10_007).map(|i| 1 + i * 7919 % 1000).collect();
        let sampler = ByLength::new(lengths.clone(), 16).unwrap();
        let padded = |order: &[usize]| -> usize {
            let longest = |batch: &[usize]| batch.len() * batch.iter().map(|&i| lengths[i]).max().unwrap();
            order.chunks(16).map(longest).sum()
        };
        let (order, whole) = (sampler.order(10_007, 3, 0).unwrap(), lengths.iter().sum::<usize>());
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..10_007));
        let shares = [&order[..], &permutation(10_007, 3, 0)].map(|order| padded(order) as f64 / whole as f64);
        assert!(shares[0] < 1.05 && shares[1] > 1.8, "{shares:?}");
        // Batches are not in the order of their lengths.
        let means: Vec<usize> = order.chunks_exact(16).map(|b| b.iter().map(|&i| lengths[i]).sum()).collect();
        let rises = means.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((250..375).contains(&rises), "{rises} of {}", means.len() - 1);
        assert_eq!(order, sampler.order(10_007, 3, 0).unwrap());
        assert_ne!(order, sampler.order(10_007, 3, 1).unwrap());
        assert_eq!(ByLength::new(Vec::new(), 4).unwrap().order(0, 0, 0).unwrap(), Vec::<usize>::new());
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let error = ByLength::new(vec![1], 0).unwrap_err();
        assert!(error.message().contains("the batch size is 0"), "{error}");
        let error = ByLength::new(vec![1], 2).unwrap().order(2, 0, 0).unwrap_err();
        assert!(error.message().contains("1 lengths for 2 samples"), "{error}");
    }

    #[test]
    fn weights_are_probabilities() {
        let sampler = Weighted::new(&[0.0, 1.0, 0.0, 3.0, 0.0], 8000).unwrap();
        let mut counts = [0; 5];
        sampler.order(5, 1, 0).unwrap().into_iter().for_each(|i| counts[i] += 1);
        assert_eq!([counts[0], counts[2], counts[4]], [0; 3]);
        // 2,000 of 8,000; the deviation is 39.
        assert!((1850..2150).contains(&counts[1]), "{counts:?}");
        assert_eq!(sampler.order(5, 1, 0).unwrap(), sampler.order(5, 1, 0).unwrap());
        assert_ne!(sampler.order(5, 1, 0).unwrap(), sampler.order(5, 1, 1).unwrap());
    }

    #[test]
    fn weights_that_are_no_probabilities_are_refused() {
        for (weights, expected) in [
            (&[1.0, -1.0][..], "weight 1 is -1, expected a finite number of at least 0"),
            (&[f64::NAN], "weight 0 is NaN"),
            (&[f64::MAX, f64::MAX], "the sum of the weights is inf"),
            (&[0.0, 0.0], "the sum of the weights is 0"),
            (&[], "the sum of the weights is 0"),
        ] {
            let error = Weighted::new(weights, 1).unwrap_err();
            assert!(error.message().contains(expected), "{error}");
        }
        let error = Weighted::new(&[1.0], 1).unwrap().order(2, 0, 0).unwrap_err();
        assert!(error.message().contains("1 weights for 2 samples"), "{error}");
    }
}
