//! Tables in device memory over many tensors, which give each group of one launch its tensor and chunk. `kernels/common.h`
//! has their layout.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{THREADS, groups};
use crate::launch::operands::{address, allocation, element_address};
use crate::memory::tables::Table;
use isograd_core::{Operand, Result};
use smallvec::SmallVec;
use std::sync::Arc;

/// The fewest elements of a chunk.
const LEAST: usize = 1 << 10;
/// The most elements of a chunk.
const MOST: usize = 1 << 14;
/// Groups that a launch should have on each multiprocessor.
const GROUPS_PER_UNIT: usize = 16;

/// The tensors of a launch, set by set.
pub struct Sets<'a> {
    /// The operands of each set, in the order in which the kernel takes them; not empty, and of one number of elements.
    pub sets: Vec<SmallVec<[&'a Operand<'a>; 8]>>,
    /// The number of operands at the end of a set that have one element each.
    pub numbers: usize,
    /// Elements that a thread takes side by side where a set's addresses allow it.
    pub vector: usize,
}

/// A table that is in use. It stays in memory for launches while this lives.
pub struct InUse {
    table: Arc<Table>,
    reached: Vec<Address>,
    tensors: usize,
    chunk: usize,
    /// How many chunks there are.
    pub chunks: usize,
}

impl Sets<'_> {
    /// True if a position within a tensor needs more than 31 bits, with room for a step beyond.
    pub fn is_wide(&self) -> bool {
        self.sets.iter().any(|set| elements(set) > i32::MAX as usize - MOST)
    }

    /// The table of these sets.
    pub fn table(&self, gpu: &Gpu) -> Result<InUse> {
        let total: usize = self.sets.iter().map(|set| elements(set)).sum();
        let groups = gpu.driver().limits().units * GROUPS_PER_UNIT;
        let chunk = total.div_ceil(groups.max(1)).next_power_of_two().clamp(LEAST, MOST);
        let (mut firsts, mut entries, mut reached) = (Vec::new(), Vec::new(), Vec::new());
        let mut chunks = 0;
        for set in &self.sets {
            let n = elements(set);
            firsts.push(chunks as i64);
            chunks += n.div_ceil(chunk);
            let mut is_aligned = true;
            for (k, operand) in set.iter().enumerate() {
                let address = element_address(address(operand.memory)?, operand);
                is_aligned &= k + self.numbers >= set.len()
                    || address.is_multiple_of((self.vector * operand.dtype.size()) as u64);
                entries.push(address as i64);
                reached.push(allocation(operand.memory)?);
            }
            entries.extend([n, if is_aligned { n / self.vector * self.vector } else { 0 }].map(|v| v as i64));
        }
        firsts.push(chunks as i64);
        firsts.extend(entries);
        let table = gpu.tables.get(&gpu.pool, firsts)?;
        Ok(InUse { table, reached, tensors: self.sets.len(), chunk, chunks })
    }
}

fn elements(set: &[&Operand<'_>]) -> usize {
    set[0].layout.shape().numel()
}

impl InUse {
    /// The first arguments of a kernel that takes a table: where it is, its tensors, the size of a chunk.
    pub fn arguments(&self) -> Arguments {
        let list = Arguments::new().pointer(self.table.buffer.address).reaching(self.reached.clone());
        list.numbers([self.tensors, self.chunk])
    }

    /// A group for each chunk.
    pub fn geometry(&self) -> Geometry {
        groups(self.chunks, THREADS)
    }
}
