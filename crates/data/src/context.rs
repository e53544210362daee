//! The random numbers of a sample.

use crate::draws::Draws;
use isograd_core::RngState;
use std::cell::RefCell;
use std::f64::consts::TAU;

/// Keeps the draws of samples apart from shuffles and from a model's draws of the same seed ("augmen" in ASCII; the epoch is added).
const STREAM: u64 = 0x6175_676d_656e_0000;

/// Random numbers for one sample, for augmentation. They depend on the loader's seed, the epoch, the sample's index and the draws
/// before, and on nothing else: each epoch has its own, and a run that is resumed has those of a run that was not interrupted,
/// whatever the number of worker threads.
#[derive(Debug)]
pub struct Context {
    epoch: u64,
    draws: RefCell<Draws>,
}

impl Context {
    /// The context of sample `index` in an epoch.
    pub fn new(seed: u64, epoch: u64, index: usize) -> Context {
        Context::repeated(seed, epoch, index, 0)
    }

    /// The context of the `repeat`-th time that an epoch has this sample, counted from 0.
    pub(crate) fn repeated(seed: u64, epoch: u64, index: usize, repeat: u32) -> Context {
        let stream = STREAM.wrapping_add(epoch).wrapping_add(u64::from(repeat) << 32);
        // A sample has 2^32 blocks of draws.
        let state = RngState { seed, offset: (index as u64) << 32, stream };
        Context { epoch, draws: RefCell::new(Draws::new(state)) }
    }

    /// The epoch, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A number that decides the draws of a whole batch.
    pub(crate) fn key(&self) -> u64 {
        self.draws.borrow_mut().below(u64::MAX)
    }

    /// A number in 0..1.
    pub fn uniform(&self) -> f64 {
        self.draws.borrow_mut().uniform()
    }

    /// A number in `low..high`.
    pub fn between(&self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// True with probability `p`.
    pub fn chance(&self, p: f64) -> bool {
        self.uniform() < p
    }

    /// A number in `0..bound`; 0 if the bound is 0.
    pub fn below(&self, bound: usize) -> usize {
        self.draws.borrow_mut().below(bound.max(1) as u64) as usize
    }

    /// A normal number with mean 0 and deviation 1. Box, Muller 1958.
    pub fn normal(&self) -> f64 {
        let (radius, angle) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(seed: u64, epoch: u64, index: usize, repeat: u32) -> f64 {
        Context::repeated(seed, epoch, index, repeat).uniform()
    }

    #[test]
    fn seed_epoch_index_and_repeat_change_the_draws() {
        let known = first(1, 2, 3, 0);
        assert_eq!(Context::new(1, 2, 3).uniform(), known);
        for other in [first(0, 2, 3, 0), first(1, 3, 3, 0), first(1, 2, 2, 0), first(1, 2, 3, 1)] {
            assert_ne!(other, known);
        }
        let context = Context::new(1, 2, 3);
        assert_ne!(context.uniform(), context.uniform());
    }

    #[test]
    fn draws_have_their_distributions() {
        let context = Context::new(7, 0, 0);
        let n = 20_000;
        let mean = |f: &dyn Fn() -> f64| (0..n).map(|_| f()).sum::<f64>() / f64::from(n);
        // Deviations of these means are at most 0.01.
        assert!((mean(&|| context.uniform()) - 0.5).abs() < 0.02);
        assert!((mean(&|| context.between(-2.0, 1.0)) + 0.5).abs() < 0.03);
        assert!((mean(&|| context.normal())).abs() < 0.04);
        assert!((mean(&|| context.normal().powi(2)) - 1.0).abs() < 0.05);
        assert!((mean(&|| f64::from(context.chance(0.25) as u8)) - 0.25).abs() < 0.02);
        assert!((mean(&|| context.below(5) as f64) - 2.0).abs() < 0.05);
        assert_eq!(context.below(0), 0);
    }
}
