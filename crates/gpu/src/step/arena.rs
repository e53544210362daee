//! The memory of a program: how long each tensor is needed, and where it lies.

use crate::memory::block::{Lent, Place};
use crate::memory::pool::{Buffer, GRAIN, Pool};
use crate::step::program::Program;
use isograd_core::Result;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The entries between which a memory is in use; `None` for one that no entry touches.
pub fn lifetimes(program: &Program) -> Vec<Option<RangeInclusive<usize>>> {
    let mut found: Vec<Option<RangeInclusive<usize>>> = vec![None; program.memory.len()];
    for (i, entry) in program.entries.iter().enumerate() {
        for part in entry.inputs.iter().chain(&entry.outputs) {
            if let Place::Later(number) = part.place {
                let first = found[number].as_ref().map_or(i, |range| *range.start());
                found[number] = Some(first..=i);
            }
        }
    }
    found
}

/// A memory that shares the arena.
#[derive(Clone, Debug)]
pub struct Tenant {
    pub bytes: usize,
    pub life: RangeInclusive<usize>,
}

/// Where tenants lie so that none overlaps another that lives at the same time, and the bytes of all. The largest are placed first,
/// each in the smallest gap that has room for it.
pub fn place(tenants: &[Tenant]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..tenants.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(tenants[i].bytes), *tenants[i].life.start()));
    let (mut starts, mut end) = (vec![0usize; tenants.len()], 0);
    // By their starts.
    let mut placed: Vec<usize> = Vec::new();
    for i in order {
        let Tenant { bytes, life } = &tenants[i];
        let size = size(*bytes);
        let (mut low, mut best): (usize, Option<(usize, usize)>) = (0, None);
        for &other in &placed {
            if tenants[other].life.start() > life.end() || tenants[other].life.end() < life.start() {
                continue;
            }
            let gap = starts[other].saturating_sub(low);
            if gap >= size && best.is_none_or(|(smallest, _)| gap < smallest) {
                best = Some((gap, low));
            }
            low = low.max(starts[other] + self::size(tenants[other].bytes));
        }
        starts[i] = best.map_or(low, |(_, start)| start);
        end = end.max(starts[i] + size);
        placed.insert(placed.partition_point(|&other| starts[other] <= starts[i]), i);
    }
    (starts, end)
}

fn size(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(GRAIN)
}

/// Whether memory may be used for one tensor after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    Yes,
    No,
}

/// What was placed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placed {
    /// Bytes of results and states.
    pub kept: usize,
    /// Bytes of temporary tensors, each for itself.
    pub temporary: usize,
    /// Bytes of the memory that they share.
    pub arena: usize,
}

/// Gives all memory of a program a place. The buffers are needed until the program has been recorded.
pub fn settle(program: &Program, pool: &Arc<Pool>, reuse: Reuse) -> Result<(Vec<Buffer>, Placed)> {
    let (lives, survivors) = (lifetimes(program), program.survivors());
    let (mut buffers, mut placed) = (Vec::new(), Placed::default());
    let mut tenants = Vec::new();
    for (later, life) in program.memory.iter().zip(lives) {
        if let (false, Some(life)) = (survivors[later.number], life) {
            placed.temporary += later.bytes;
            tenants.push((later, Tenant { bytes: later.bytes, life }));
        }
    }
    // Before the others, as it may be most of the device's memory.
    if reuse == Reuse::Yes && pool.keeps() && !tenants.is_empty() {
        let (later, tenants): (Vec<_>, Vec<_>) = tenants.into_iter().unzip();
        let (starts, bytes) = place(&tenants);
        let arena = pool.take_arena(bytes)?;
        for (later, start) in later.into_iter().zip(starts) {
            later.lend(Lent { address: arena.address + start as u64, allocation: arena.address });
        }
        placed.arena = bytes;
        buffers.push(arena);
    } else {
        for (later, _) in tenants {
            let buffer = pool.take_hidden(later.bytes)?;
            later.lend(Lent { address: buffer.address, allocation: buffer.address });
            placed.arena += later.bytes;
            buffers.push(buffer);
        }
    }
    placed.kept = keep(program, pool)?;
    Ok((buffers, placed))
}

/// Gives the memory of tensors that outlive the step buffers of their own. Returns their bytes.
pub fn keep(program: &Program, pool: &Arc<Pool>) -> Result<usize> {
    let mut bytes = 0;
    for (later, _) in program.memory.iter().zip(program.survivors()).filter(|(_, survives)| *survives) {
        later.own(pool.take(later.bytes)?);
        bytes += later.bytes;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenants(list: &[(usize, RangeInclusive<usize>)]) -> Vec<Tenant> {
        list.iter().map(|(bytes, life)| Tenant { bytes: *bytes, life: life.clone() }).collect()
    }

    #[test]
    fn tenants_of_different_times_share_memory() {
        let chain = tenants(&[(4000, 0..=1), (4000, 1..=2), (4000, 2..=3), (4000, 3..=4)]);
        assert_eq!(place(&chain), (vec![0, 4096, 0, 4096], 8192));
        // The small one fits the gap that is left when the first is gone.
        let gap = tenants(&[(2048, 0..=1), (1024, 0..=5), (512, 2..=4), (1, 2..=3)]);
        assert_eq!(place(&gap).1, 3072);
        assert_eq!(place(&[]), (vec![], 0));
    }

    #[test]
    fn no_two_tenants_of_one_time_overlap() {
        let mut state = 1u64;
        let mut draw = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) % n) as usize
        };
        for _ in 0..50 {
            let list: Vec<_> = (0..40)
                .map(|_| {
                    let start = draw(50);
                    Tenant { bytes: draw(10_000), life: start..=start + draw(12) }
                })
                .collect();
            let (starts, end) = place(&list);
            for i in 0..list.len() {
                assert!(starts[i] % GRAIN == 0 && starts[i] + size(list[i].bytes) <= end);
                for j in 0..i {
                    let apart = starts[i] + size(list[i].bytes) <= starts[j] || starts[j] + size(list[j].bytes) <= starts[i];
                    let before = |a: &Tenant, b: &Tenant| a.life.end() < b.life.start();
                    assert!(apart || before(&list[i], &list[j]) || before(&list[j], &list[i]), "{i} {j}");
                }
            }
        }
    }
}
