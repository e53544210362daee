//! Random numbers and permutations that are the same on every machine.

use isograd_core::RngState;
use isograd_core::random::draws;

/// Keeps shuffles apart from a model's draws of the same seed ("shuffl" in ASCII; the epoch is added).
const STREAM: u64 = 0x7368_7566_666c_6500;

/// 64-bit draws, two a block.
#[derive(Debug)]
pub(crate) struct Draws {
    state: RngState,
    block: u64,
    spare: Option<u64>,
}

impl Draws {
    pub(crate) fn new(state: RngState) -> Draws {
        Draws { state, block: 0, spare: None }
    }

    fn next(&mut self) -> u64 {
        if let Some(draw) = self.spare.take() {
            return draw;
        }
        let [a, b, c, d] = draws(self.state, self.block);
        self.block += 1;
        self.spare = Some(u64::from(c) | u64::from(d) << 32);
        u64::from(a) | u64::from(b) << 32
    }

    /// A draw in `0..bound`, each value with the same probability. Lemire 2019, arXiv 1805.10941.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let rejected = bound.wrapping_neg() % bound;
        loop {
            let wide = u128::from(self.next()) * u128::from(bound);
            if wide as u64 >= rejected {
                return (wide >> 64) as u64;
            }
        }
    }

    /// A draw in 0..1, with 53 bits.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The order of `n` samples, which depends on nothing but seed and epoch. Fisher and Yates's method.
pub(crate) fn permutation(n: usize, seed: u64, epoch: u64) -> Vec<usize> {
    permuted(n, RngState { seed, offset: 0, stream: STREAM.wrapping_add(epoch) })
}

/// The permutation of `0..n` that the draws of a state choose.
pub(crate) fn permuted(n: usize, state: RngState) -> Vec<usize> {
    let mut draws = Draws::new(state);
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, draws.below(i as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_permutation_has_every_index_once(n in 0usize..300, seed: u64, epoch: u64) {
            let order = permutation(n, seed, epoch);
            prop_assert_eq!(&order, &permutation(n, seed, epoch));
            let mut sorted = order;
            sorted.sort_unstable();
            prop_assert!(sorted.into_iter().eq(0..n));
        }
    }

    #[test]
    fn seed_and_epoch_change_the_order() {
        assert_ne!(permutation(100, 1, 0), permutation(100, 1, 1));
        assert_ne!(permutation(100, 1, 0), permutation(100, 2, 0));
    }

    #[test]
    fn all_orders_are_equally_likely() {
        let mut counts = std::collections::HashMap::new();
        (0..6000).for_each(|epoch| *counts.entry(permutation(3, 7, epoch)).or_insert(0) += 1);
        // Six orders of 1,000 each; the deviation of a count is 29.
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|&c| (850..1150).contains(&c)), "{counts:?}");
    }

    #[test]
    fn the_order_is_the_same_on_every_machine() {
        assert_eq!(permutation(10, 42, 0), KNOWN);
    }

    /// From an implementation of its own in Python; a change would break every resumed run.
    const KNOWN: [usize; 10] = [8, 5, 4, 7, 6, 1, 0, 2, 3, 9];
}
