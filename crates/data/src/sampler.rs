//! Which samples an epoch has, and in what order.

use crate::draws::{Draws, permutation};
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

#[cfg(test)]
mod tests {
    use super::*;

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
