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

/// A place in one of the arenas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    arena: usize,
    start: usize,
}

/// Where tenants lie so that none overlaps another that lives at the same time, and the bytes of each arena. The largest are placed
/// first, each in the smallest gap that has room for it. An arena has at most `limit` bytes, unless one tenant needs more.
pub fn place(tenants: &[Tenant], limit: usize) -> (Vec<Spot>, Vec<usize>) {
    let mut order: Vec<usize> = (0..tenants.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(tenants[i].bytes), *tenants[i].life.start()));
    let mut spots = vec![Spot { arena: 0, start: 0 }; tenants.len()];
    // The tenants of each arena, by their starts, and its bytes.
    let mut arenas: Vec<(Vec<usize>, usize)> = Vec::new();
    for i in order {
        let size = size(tenants[i].bytes);
        let start = |placed: &[usize]| {
            start(&tenants[i], size, placed.iter().map(|&other| (&tenants[other], spots[other].start)))
        };
        let found = arenas.iter().enumerate().map(|(arena, (placed, _))| Spot { arena, start: start(placed) });
        let spot = found.into_iter().find(|spot| spot.start + size <= limit);
        let spot = spot.unwrap_or(Spot { arena: arenas.len(), start: 0 });
        if spot.arena == arenas.len() {
            arenas.push((Vec::new(), 0));
        }
        spots[i] = spot;
        let (placed, end) = &mut arenas[spot.arena];
        *end = (*end).max(spot.start + size);
        placed.insert(placed.partition_point(|&other| spots[other].start <= spot.start), i);
    }
    (spots, arenas.into_iter().map(|(_, end)| end).collect())
}

/// The start of the smallest gap among others, in the order of their starts, or behind them.
fn start<'a>(tenant: &Tenant, size: usize, others: impl Iterator<Item = (&'a Tenant, usize)>) -> usize {
    let (mut low, mut best): (usize, Option<(usize, usize)>) = (0, None);
    let meets = |other: &Tenant| other.life.start() <= tenant.life.end() && tenant.life.start() <= other.life.end();
    for (other, start) in others.filter(|(other, _)| meets(other)) {
        let gap = start.saturating_sub(low);
        if gap >= size && best.is_none_or(|(smallest, _)| gap < smallest) {
            best = Some((gap, low));
        }
        low = low.max(start + self::size(other.bytes));
    }
    best.map_or(low, |(_, start)| start)
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

/// The memory of a program, in bytes.
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
        let (spots, sizes) = place(&tenants, pool.driver.limits().max_allocation);
        for bytes in sizes {
            buffers.push(pool.take_arena(bytes)?);
            placed.arena += bytes;
        }
        for (later, Spot { arena, start }) in later.into_iter().zip(spots) {
            let allocation = buffers[arena].address;
            later.lend(Lent { address: allocation + start as u64, allocation });
        }
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
        let starts = |list: &[Tenant]| place(list, 1 << 20).0.iter().map(|spot| spot.start).collect::<Vec<_>>();
        let chain = tenants(&[(4000, 0..=1), (4000, 1..=2), (4000, 2..=3), (4000, 3..=4)]);
        assert_eq!((starts(&chain), place(&chain, 1 << 20).1), (vec![0, 4096, 0, 4096], vec![8192]));
        // The small ones fit the gap that is left when the first is gone.
        let gap = tenants(&[(2048, 0..=1), (1024, 0..=5), (512, 2..=4), (1, 2..=3)]);
        assert_eq!(place(&gap, 1 << 20).1, [3072]);
        assert_eq!(place(&[], 1 << 20), (vec![], vec![]));
    }

    #[test]
    fn an_arena_is_no_larger_than_an_allocation_may_be() {
        let all = tenants(&[(4096, 0..=9), (2048, 0..=9), (2048, 0..=9), (8192, 0..=9)]);
        let (spots, sizes) = place(&all, 4096);
        assert_eq!(sizes, [8192, 4096, 4096]);
        assert_eq!(spots[1..3], [Spot { arena: 2, start: 0 }, Spot { arena: 2, start: 2048 }]);
    }

    #[test]
    fn no_two_tenants_of_one_time_overlap() {
        let mut state = 1u64;
        let mut draw = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) % n) as usize
        };
        for limit in [1 << 40, 30_000] {
            for _ in 0..50 {
                let mut tenant = || {
                    let start = draw(50);
                    Tenant { bytes: draw(10_000), life: start..=start + draw(12) }
                };
                let list: Vec<_> = (0..40).map(|_| tenant()).collect();
                let (spots, sizes) = place(&list, limit);
                for (i, a) in list.iter().enumerate() {
                    let end = |k: usize| spots[k].start + size(list[k].bytes);
                    assert!(spots[i].start % GRAIN == 0 && end(i) <= sizes[spots[i].arena] && end(i) <= limit);
                    for (j, b) in list[..i].iter().enumerate() {
                        let apart =
                            spots[i].arena != spots[j].arena || end(i) <= spots[j].start || end(j) <= spots[i].start;
                        let in_turn = a.life.end() < b.life.start() || b.life.end() < a.life.start();
                        assert!(apart || in_turn, "{a:?} {b:?}");
                    }
                }
            }
        }
    }
}
