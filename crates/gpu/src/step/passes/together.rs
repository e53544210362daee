//! Sums of the same dimensions become one kernel, which reads once what several of them read.

use crate::memory::block::Place;
use crate::step::passes::draft::Frame;
use crate::step::passes::pointwise::{Item, MOST_CALLS, Uses, draft, operands};
use crate::step::program::Entry;
use std::collections::HashSet;

/// Sums of a kernel: each has its own accumulators.
const MOST_SUMS: usize = 3;
/// Items between two sums that may be one kernel.
const MOST_BETWEEN: usize = 32;

/// Joins sums. Returns the bytes that are neither written nor read any more.
pub fn run(entries: &[Entry], items: &mut Vec<Item>, uses: &Uses<'_>) -> usize {
    let mut saved = 0;
    for k in 0..items.len() {
        for first in (k.saturating_sub(MOST_BETWEEN)..k).rev() {
            if let Some((members, clones, at, gain)) = joined(entries, items, uses, first, k) {
                let other = if at == k { first } else { k };
                (items[at].members, items[at].clones) = (members, clones);
                items[other].members.clear();
                items[other].group = None;
                saved += gain;
                if at != k {
                    break;
                }
            }
        }
    }
    items.retain(|item| !item.members.is_empty());
    saved
}

/// The calls of two items as one kernel: its members, what it computes again, the item at whose place it runs, and the bytes that it saves.
fn joined(
    entries: &[Entry],
    items: &[Item],
    uses: &Uses<'_>,
    first: usize,
    second: usize,
) -> Option<(Vec<usize>, Vec<usize>, usize, usize)> {
    let (a, b) = (&items[first], &items[second]);
    let (of_a, of_b) = (a.group.as_ref()?, b.group.as_ref()?);
    let are_alike = matches!(of_a.frame, Some(Frame::Sum(_))) && of_a.frame == of_b.frame && of_a.acc == of_b.acc;
    let is_free = |item: usize, others: std::ops::Range<usize>| {
        others.into_iter().all(|other| !depend(entries, uses, &items[item], &items[other]))
    };
    if !are_alike || a.members.len() + b.members.len() > MOST_SUMS {
        return None;
    }
    let at = match () {
        () if is_free(first, first + 1..second + 1) => second,
        () if is_free(second, first..second) => first,
        () => return None,
    };
    let mut members = [&a.members[..], &b.members[..]].concat();
    members.sort_unstable();
    let mut clones: Vec<usize> = a.clones.iter().chain(&b.clones).copied().filter(|i| !members.contains(i)).collect();
    clones.sort_unstable();
    clones.dedup();
    if members.len() + clones.len() > MOST_CALLS {
        return None;
    }
    let kernel = draft(entries, &members, &clones, (of_a.acc, of_a.frame.as_ref()), uses);
    let apart = a.kernel(entries, uses).traffic() + b.kernel(entries, uses).traffic();
    let gain = apart.saturating_sub(kernel.traffic());
    (gain > 0 && kernel.refusal(uses.limits).is_none()).then_some((members, clones, at, gain))
}

/// The memory of an item, and what it writes of it.
#[derive(Default)]
struct Touched {
    all: HashSet<Place>,
    written: HashSet<Place>,
}

impl Touched {
    fn of(entries: &[Entry], uses: &Uses<'_>, item: &Item) -> Touched {
        let mut touched = Touched::default();
        let calls = item.members.iter().map(|&i| (i, true)).chain(item.clones.iter().map(|&i| (i, false)));
        for (i, is_stored) in calls {
            for (part, writes) in operands(&entries[i]).filter(|(part, _)| !uses.again.contains(&part.place)) {
                if is_stored || !writes {
                    touched.all.insert(part.place);
                }
                if is_stored && writes {
                    touched.written.insert(part.place);
                }
            }
        }
        touched
    }
}

/// Whether one of two items writes what the other reads or writes.
fn depend(entries: &[Entry], uses: &Uses<'_>, a: &Item, b: &Item) -> bool {
    let [a, b] = [a, b].map(|item| Touched::of(entries, uses, item));
    !a.written.is_disjoint(&b.all) || !b.written.is_disjoint(&a.all)
}
