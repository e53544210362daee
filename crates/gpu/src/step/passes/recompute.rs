//! Values are computed again where they are read, if that takes less time than a store and loads.
//!
//! A group stores a value that other groups read. If these compute it themselves, from what the first group reads, it need not be
//! stored. Its bits are the same, and its memory is not held from a forward pass to the backward pass.

use crate::memory::block::Place;
use crate::step::passes::draft::{Draft, Region, elementwise, walk};
use crate::step::passes::pointwise::{Item, MOST_CALLS, Uses, draft, operands};
use crate::step::program::{Entry, KeptOperand};
use isograd_core::DType;
use std::collections::HashMap;

/// The share of a value's bytes by which the operands from which it is computed again may be more.
const MORE: usize = 8;
/// Calls that are made again for one value.
const MOST_CHAIN: usize = 12;

/// The writers and readers of each memory of a program.
struct Memory {
    /// The calls that write each.
    writers: HashMap<Place, Vec<usize>>,
    /// The items that read each, in order.
    readers: HashMap<Place, Vec<usize>>,
}

/// Adds to groups the calls of other groups whose values they compute again. Returns how many values are not stored any more, and
/// the bytes that are neither written nor read.
pub fn run(entries: &[Entry], items: &mut [Item], uses: &mut Uses<'_>, bytes: &[usize]) -> (usize, usize) {
    let mut memory = Memory { writers: HashMap::new(), readers: HashMap::new() };
    for (k, item) in items.iter().enumerate() {
        for &i in &item.members {
            entries[i].outputs.iter().for_each(|part| memory.writers.entry(part.place).or_default().push(i));
            entries[i].inputs.iter().for_each(|part| memory.readers.entry(part.place).or_default().push(k));
        }
    }
    let (mut count, mut saved) = (0, 0);
    for k in 0..items.len() {
        for i in items[k].members.clone() {
            for part in &entries[i].outputs {
                if let Some(gain) = again(entries, items, uses, bytes, &mut memory, k, (i, part)) {
                    count += 1;
                    saved += gain;
                }
            }
        }
    }
    (count, saved)
}

/// Lets all readers of a result of call `i`, which is in item `k`, compute it again. Returns the bytes that this saves, if it does.
fn again(
    entries: &[Entry],
    items: &mut [Item],
    uses: &mut Uses<'_>,
    bytes: &[usize],
    memory: &mut Memory,
    k: usize,
    (i, part): (usize, &KeptOperand),
) -> Option<usize> {
    items[k].group.as_ref()?;
    let Place::Later(number) = part.place else { return None };
    let elements = Region::new(part);
    let mut readers = memory.readers.get(&part.place)?.clone();
    readers.sort_unstable();
    readers.dedup();
    readers.retain(|&reader| reader != k);
    if readers.is_empty() || uses.survivors[number] || uses.is_pinned(part.place) {
        return None;
    }
    let (chain, inputs) = chain(entries, items, uses, memory, k, i)?;
    // The memory that the repeated calls read is held until the last reader.
    let last = *readers.last()?;
    let longer = |place: &Place| match *place {
        Place::Later(n) if !uses.survivors[n] => {
            let read = memory.readers.get(place).into_iter().flatten().max();
            if read.is_none_or(|&read| read < last) { bytes[n] } else { 0 }
        }
        _ => 0,
    };
    if inputs.iter().map(longer).sum::<usize>() > bytes[number] + bytes[number] / MORE {
        return None;
    }
    // The kernel that stores the value, and then those that read it.
    let mut drafts = vec![items[k].kernel(entries, uses)];
    let mut joined = Vec::new();
    for &reader in &readers {
        let item = &items[reader];
        let open = item.group.as_ref()?;
        let reads = item.members.iter().flat_map(|&m| &entries[m].inputs).filter(|read| read.place == part.place);
        if reads.into_iter().any(|read| Region::new(read) != elements) || open.shape != *part.layout.shape() {
            return None;
        }
        let mut clones = item.clones.clone();
        clones.extend(chain.iter().filter(|&m| !item.clones.contains(m)));
        clones.sort_unstable();
        let mut acc = open.acc;
        for &m in &chain {
            let own = elementwise(&entries[m])?.acc;
            let fits = match &open.frame {
                Some(frame) => operands(&entries[m]).all(|(part, _)| frame.within(part).is_some()),
                None => walk(&entries[m]) == open.walk && *entries[m].outputs[0].layout.shape() == open.shape,
            };
            if matches!((acc, own), (Some(a), Some(b)) if a != b) || !fits {
                return None;
            }
            acc = acc.or(own);
        }
        if item.members.len() + clones.len() > MOST_CALLS {
            return None;
        }
        drafts.push(item.kernel(entries, uses));
        joined.push((reader, clones, acc));
    }
    let pinned: Vec<Place> = inputs.iter().copied().filter(|place| uses.pinned.insert(*place)).collect();
    uses.again.insert(part.place);
    let with = |(reader, clones, acc): &(usize, Vec<usize>, Option<DType>)| {
        let frame = items[*reader].group.as_ref().and_then(|open| open.frame.as_ref());
        draft(entries, &items[*reader].members, clones, (*acc, frame), uses)
    };
    let then: Vec<Draft> = std::iter::once(items[k].kernel(entries, uses)).chain(joined.iter().map(with)).collect();
    let sum = |drafts: &[Draft], of: fn(&Draft) -> usize| drafts.iter().map(of).sum::<usize>();
    let has_room = then.iter().all(|draft| draft.refusal(uses.limits).is_none());
    if !has_room || sum(&drafts, Draft::cost) <= sum(&then, Draft::cost) {
        uses.again.remove(&part.place);
        pinned.iter().for_each(|place| {
            uses.pinned.remove(place);
        });
        return None;
    }
    for (reader, clones, acc) in joined {
        items[reader].clones = clones;
        if let Some(open) = &mut items[reader].group {
            open.acc = acc;
        }
        inputs.iter().for_each(|place| memory.readers.entry(*place).or_default().push(reader));
    }
    Some(sum(&drafts, Draft::traffic).saturating_sub(sum(&then, Draft::traffic)))
}

/// The calls of item `k` that make the elements of the results of call `i`, in order, and the memory that they read. None if they are too many, or if what they
/// read is written later on.
fn chain(
    entries: &[Entry],
    items: &[Item],
    uses: &Uses<'_>,
    memory: &Memory,
    k: usize,
    i: usize,
) -> Option<(Vec<usize>, Vec<Place>)> {
    let (mut chain, mut inputs) = (vec![i], Vec::new());
    let mut next = 0;
    while let Some(&m) = chain.get(next) {
        next += 1;
        let entry = &entries[m];
        let is_alone = entry.outputs.iter().all(|part| memory.writers.get(&part.place).is_some_and(|w| w.len() == 1));
        if chain.len() > MOST_CHAIN || !is_alone || entry.is_inout() {
            return None;
        }
        let shape = entry.outputs[0].layout.shape();
        let is_element =
            |made: usize| elementwise(&entries[made]).is_some() && entries[made].outputs[0].layout.shape() == shape;
        for part in &entry.inputs {
            let elements = Region::new(part);
            let makes = |&&made: &&usize| entries[made].outputs.iter().any(|part| Region::new(part) == elements);
            let made = items[k].members.iter().chain(&items[k].clones).filter(|&&made| made < m).find(makes);
            // It has in the end what the call read.
            let is_unchanged = || memory.writers.get(&part.place).into_iter().flatten().all(|&writer| writer < m);
            let is_in_memory = !uses.again.contains(&part.place);
            let is_read_elsewhere = || memory.readers.get(&part.place).into_iter().flatten().any(|&reader| reader != k);
            match made {
                Some(&made) if chain.contains(&made) => (),
                // A value that other kernels read is stored anyway.
                Some(_) if is_in_memory && is_read_elsewhere() && is_unchanged() => inputs.push(part.place),
                Some(&made) if is_element(made) => chain.push(made),
                // A number of a row, which takes little to store.
                Some(made) if is_in_memory && is_unchanged() && items[k].members.contains(made) => {
                    inputs.push(part.place)
                }
                Some(_) => return None,
                None if is_in_memory && is_unchanged() => inputs.push(part.place),
                None => return None,
            }
        }
    }
    chain.sort_unstable();
    Some((chain, inputs))
}
