//! Memory in which groups of a launch leave partial results, which the last group joins.
//!
//! A device has one such memory. It is 0 before each launch that uses it and after it, so that launches of the one queue, and
//! of recordings in that queue, take turns with it.

use crate::driver::Address;
use crate::memory::pool::{Buffer, Pool};
use isograd_core::Result;
use parking_lot::Mutex;
use std::sync::Arc;

/// The most results of a launch.
const RESULTS: usize = 1 << 12;
/// The most 32-bit words of their partial results.
const WORDS: usize = 1 << 15;
/// Bytes of a result's counter of finished groups.
const COUNTER: usize = 4;
/// Bytes that such a word takes in memory.
const WORD: usize = 8;

/// Whether there is room for the parts of so many results.
pub fn has_room(results: usize, parts: usize, words: usize) -> bool {
    results <= RESULTS && results.saturating_mul(parts * words) <= WORDS
}

/// The memory of a device, made when it is first needed.
#[derive(Default)]
pub struct Partials(Mutex<Option<Buffer>>);

impl Partials {
    /// Where words are left, and where groups are counted.
    pub fn starts(&self, pool: &Arc<Pool>) -> Result<[Address; 2]> {
        let mut memory = self.0.lock();
        let bytes = WORDS * WORD + RESULTS * COUNTER;
        let words = match &*memory {
            Some(made) => made.address,
            None => {
                let made = pool.take_hidden(bytes)?;
                pool.driver.fill(made.address, 0, bytes)?;
                memory.insert(made).address
            }
        };
        Ok([words, words + (WORDS * WORD) as Address])
    }
}
