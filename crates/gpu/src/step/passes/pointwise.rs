//! Elementwise calls over one shape become one kernel, and so do reductions of its rows, with elementwise calls on what they make of a row.
//!
//! Calls are visited in order. One joins an earlier group if it may run at the group's place, because it depends on no call after that, or
//! if the group may run at the call's place, because no call between depends on the group. So the order of calls is at all times
//! one in which they can run. A call that joins one of several groups that it depends on brings the others with it, if they can run there.

use crate::driver::Limits;
use crate::memory::block::Place;
use crate::step::passes::Report;
use crate::step::passes::draft::{
    Draft, Elementwise, Frame, Made, Reduction, Region, are_apart, elementwise, reduction, walk,
};
use crate::step::passes::{recompute, shapes, split, sums, together, versions};
use crate::step::program::{Entry, KeptOperand, Program, Work};
use isograd_core::{DType, Kernel, Shape};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};

/// Calls of a kernel: its values take registers, and its compilation takes time.
pub const MOST_CALLS: usize = 48;
/// Groups that a call is compared with, the latest ones.
const MOST_GROUPS: usize = 8;
/// Bytes up to which the start of a launch takes longer than moving them: such calls are joined even if no byte is saved.
const SMALL: usize = 256 << 10;

/// A call, or a group, at a place in the order.
pub struct Item {
    /// In the order of the program.
    pub members: Vec<usize>,
    /// Calls of other groups that this one makes again.
    pub clones: Vec<usize>,
    slot: usize,
    /// Whether a later item depends on this one.
    has_dependents: bool,
    pub group: Option<Open>,
}

/// A group to which calls may be added.
pub struct Open {
    pub shape: Shape,
    /// Once there is a reduction.
    pub frame: Option<Frame>,
    pub acc: Option<DType>,
    pub walk: (SmallVec<[usize; 6]>, bool),
    /// The operands of its calls, and whether they are written.
    parts: Vec<Part>,
    traffic: usize,
    /// Why a call that shares memory was not added.
    end: Option<String>,
}

/// An operand of a call, and whether it is written.
type Part = (Region, KeptOperand, bool);

/// A group for a call.
struct Choice {
    item: usize,
    /// Whether the group moves to the call's place.
    moves: bool,
    frame: Option<Frame>,
    traffic: usize,
    gain: usize,
}

/// A call that can be one of a kernel.
struct Member {
    shape: Shape,
    frame: Option<Frame>,
    acc: Option<DType>,
}

pub fn run(program: &mut Program, limits: &Limits, report: &mut Report) {
    shapes::run(program);
    let versions = versions::run(program);
    let pairs = split::run(program, limits);
    sums::run(program, limits);
    let (mut items, saved) = Grouping::new(program, limits).run();
    let mut uses = Uses::new(program, limits);
    let bytes: Vec<usize> = program.memory.iter().map(|later| later.bytes).collect();
    let (again, saved_again) = recompute::run(&program.entries, &mut items, &mut uses, &bytes);
    split::join(pairs, &mut program.entries, &mut items, |place| uses.again.contains(&place));
    report.again += again;
    report.saved += saved + saved_again + together::run(&program.entries, &mut items, &uses);
    let drafts: Vec<_> =
        items.iter().map(|item| (item.draft(&program.entries, &uses), item.ops(&program.entries))).collect();
    let mut entries: Vec<Option<Entry>> = std::mem::take(&mut program.entries).into_iter().map(Some).collect();
    for (Item { members, group, .. }, (draft, ops)) in items.into_iter().zip(drafts) {
        let members: Vec<Entry> = members.into_iter().filter_map(|i| entries[i].take()).collect();
        let Some(draft) = draft else {
            program.entries.extend(members);
            continue;
        };
        if draft.outputs.is_empty() {
            report.dead += members.len();
            continue;
        }
        report.groups += 1;
        report.grouped += members.len();
        let (count, first) = (members.len(), members[0].whole);
        let end = group.and_then(|group| group.end);
        report.ends.extend(end.map(|end| format!("the kernel of {count} calls that begins with {first}: {end}")));
        let (group, inputs, outputs) = draft.group(ops);
        program.entries.push(Entry {
            op: members[0].op,
            whole: first,
            work: Work::Group(Box::new(group)),
            inputs: inputs.into_iter().collect(),
            outputs: outputs.into_iter().collect(),
        });
    }
    versions::join(versions, program);
}

impl Item {
    /// The kernel of its elementwise calls.
    pub fn kernel(&self, entries: &[Entry], uses: &Uses<'_>) -> Draft {
        let (acc, frame) = self.group.as_ref().map_or((None, None), |group| (group.acc, group.frame.as_ref()));
        draft(entries, &self.members, &self.clones, (acc, frame), uses)
    }

    /// The kernel of a group; none of a single call whose results all are stored.
    fn draft(&self, entries: &[Entry], uses: &Uses<'_>) -> Option<Draft> {
        let open = self.group.as_ref()?;
        let outputs = self.members.iter().map(|&i| entries[i].outputs.len()).sum::<usize>();
        let is_single = self.members.len() + self.clones.len() == 1;
        let is_unread =
            self.members.iter().flat_map(|&i| &entries[i].outputs).any(|part| uses.again.contains(&part.place));
        let may_leave_out = outputs > 1 || is_unread || matches!(open.frame, Some(Frame::Sum(_)));
        if is_single && !may_leave_out {
            return None;
        }
        let draft = self.kernel(entries, uses);
        (!is_single || draft.outputs.len() < outputs).then_some(draft)
    }

    /// The names of its calls, in order.
    fn ops(&self, entries: &[Entry]) -> Vec<String> {
        let once = self.members.iter().map(|&i| (i, entries[i].op.to_string()));
        let mut ops: Vec<_> =
            once.chain(self.clones.iter().map(|&i| (i, format!("{} again", entries[i].op)))).collect();
        ops.sort_unstable();
        ops.into_iter().map(|(_, op)| op).collect()
    }
}

/// Who needs memory of the step.
pub struct Uses<'a> {
    pub limits: &'a Limits,
    pub survivors: Vec<bool>,
    /// How often calls read and write each memory.
    touches: HashMap<Place, usize>,
    /// Memory that is not stored, because all who read it compute it.
    pub again: HashSet<Place>,
    /// Memory that is read for what is computed again.
    pub pinned: HashSet<Place>,
}

impl Uses<'_> {
    fn new<'a>(program: &Program, limits: &'a Limits) -> Uses<'a> {
        let (again, pinned) = (HashSet::new(), HashSet::new());
        Uses { limits, survivors: program.survivors(), touches: touches(program.entries.iter()), again, pinned }
    }

    /// Whether memory must be stored, since others read it for what they compute again.
    pub fn is_pinned(&self, place: Place) -> bool {
        self.pinned.contains(&place)
    }
}

/// How often calls read and write each memory.
fn touches<'a>(entries: impl Iterator<Item = &'a Entry>) -> HashMap<Place, usize> {
    let mut count = HashMap::new();
    for part in entries.flat_map(|entry| entry.inputs.iter().chain(&entry.outputs)) {
        *count.entry(part.place).or_insert(0) += 1;
    }
    count
}

/// The kernel of some calls, and of others that it makes again.
pub fn draft(
    entries: &[Entry],
    members: &[usize],
    clones: &[usize],
    (acc, frame): (Option<DType>, Option<&Frame>),
    uses: &Uses<'_>,
) -> Draft {
    let own = touches(members.iter().map(|&i| &entries[i]));
    let is_local = |place: Place| {
        let is_own = || own.get(&place) == uses.touches.get(&place) && !uses.is_pinned(place);
        matches!(place, Place::Later(n) if !uses.survivors[n]) && (uses.again.contains(&place) || is_own())
    };
    let once = members.iter().map(|&i| (i, Made::Once));
    let mut calls: Vec<(usize, Made)> = once.chain(clones.iter().map(|&i| (i, Made::Again))).collect();
    calls.sort_unstable_by_key(|call| call.0);
    let calls = calls.into_iter().map(|(i, made)| (&entries[i], made));
    Draft::new(calls, acc.unwrap_or(DType::I64), frame, uses.limits, is_local)
}

struct Grouping<'a> {
    entries: &'a [Entry],
    uses: Uses<'a>,
    /// Bytes of each memory of the step.
    bytes: Vec<usize>,
    items: Vec<Item>,
    /// The items that read or write a memory, and whether they write it.
    users: HashMap<Place, Vec<(usize, bool)>>,
    /// The groups of each shape.
    groups: HashMap<Shape, Vec<usize>>,
    slots: usize,
    saved: usize,
}

impl<'a> Grouping<'a> {
    fn new(program: &'a Program, limits: &'a Limits) -> Grouping<'a> {
        Grouping {
            entries: &program.entries,
            uses: Uses::new(program, limits),
            bytes: program.memory.iter().map(|later| later.bytes).collect(),
            items: Vec::new(),
            users: HashMap::new(),
            groups: HashMap::new(),
            slots: 0,
            saved: 0,
        }
    }

    /// The items in order, and the bytes that are neither written nor read any more.
    fn run(mut self) -> (Vec<Item>, usize) {
        for i in 0..self.entries.len() {
            self.add(i);
        }
        self.items.retain(|item| !item.members.is_empty());
        self.items.sort_by_key(|item| item.slot);
        (self.items, self.saved)
    }

    fn add(&mut self, i: usize) {
        let entry = &self.entries[i];
        let before = self.conflicts(entry);
        let call = self.member(entry);
        let chosen = call.as_ref().and_then(|call| self.choose(i, call, &before));
        let free: Vec<usize> = before.iter().copied().filter(|&item| !self.items[item].has_dependents).collect();
        for &item in &before {
            self.items[item].has_dependents |= chosen.as_ref().is_none_or(|chosen| chosen.item != item);
        }
        let item = match chosen {
            Some(Choice { item, moves, frame, traffic, gain }) => {
                self.saved += gain;
                if moves {
                    self.items[item].slot = self.next_slot();
                }
                self.items[item].members.push(i);
                if let Some(open) = &mut self.items[item].group {
                    open.traffic = traffic;
                    // Calls on a number a row may have come first.
                    if open.frame.is_none() && frame.is_some() {
                        open.parts.clear();
                    }
                    open.frame = frame;
                }
                item
            }
            None => {
                self.note_ends(entry, &before);
                let slot = self.next_slot();
                let open = call.as_ref().map(|call| Open {
                    shape: call.shape.clone(),
                    frame: call.frame.clone(),
                    acc: call.acc,
                    walk: walk(entry),
                    parts: Vec::new(),
                    traffic: self.alone(i, call),
                    end: None,
                });
                if let Some(open) = &open {
                    self.groups.entry(open.shape.clone()).or_default().push(self.items.len());
                }
                self.items.push(Item {
                    members: vec![i],
                    clones: Vec::new(),
                    slot,
                    has_dependents: false,
                    group: open,
                });
                self.items.len() - 1
            }
        };
        for (part, writes) in operands(entry) {
            let users = self.users.entry(part.place).or_default();
            if !users.contains(&(item, writes)) {
                users.push((item, writes));
            }
        }
        let Item { members, group, .. } = &mut self.items[item];
        if let Some(open) = group {
            open.acc = open.acc.or(call.and_then(|call| call.acc));
            let new = if open.parts.is_empty() { &members[..] } else { &members[members.len() - 1..] };
            for (part, writes) in new.iter().flat_map(|&m| operands(&self.entries[m])) {
                let part = placed(open.frame.as_ref(), part).unwrap_or_else(|| part.clone());
                open.parts.push((Region::new(&part), part, writes));
            }
        }
        // A call that began a group has joined none.
        if self.items[item].members.len() > 1 {
            free.into_iter().filter(|&other| other != item).for_each(|other| self.merge(other, item));
        }
    }

    /// Makes one group of two, at the place of the second, if that saves bytes. No later item depends on the first, but for a call that has just
    /// joined the second.
    fn merge(&mut self, first: usize, second: usize) {
        let Some((members, open, gain)) = self.merged(&self.items[first], &self.items[second]) else { return };
        self.saved += gain;
        self.items[first].members.clear();
        if let Some(Open { shape, parts, .. }) = self.items[first].group.take() {
            self.groups.entry(shape).or_default().retain(|&item| item != first);
            for (_, part, _) in parts {
                let users = self.users.entry(part.place).or_default();
                users.iter_mut().filter(|(item, _)| *item == first).for_each(|(item, _)| *item = second);
                users.sort_unstable();
                users.dedup();
            }
        }
        self.items[second].members = members;
        self.items[second].group = Some(open);
    }

    fn merged(&self, first: &Item, second: &Item) -> Option<(Vec<usize>, Open, usize)> {
        let (a, b) = (first.group.as_ref()?, second.group.as_ref()?);
        if first.members.len() + second.members.len() > MOST_CALLS
            || matches!((a.acc, b.acc), (Some(a), Some(b)) if a != b)
        {
            return None;
        }
        let frame = common_frame(&a.frame, &b.frame).ok()?.cloned();
        let (acc, is_small) = (a.acc.or(b.acc), a.traffic.max(b.traffic) <= SMALL);
        let fits = match frame {
            Some(_) => acc.is_some_and(DType::is_float),
            None => a.shape == b.shape && (a.walk == b.walk || is_small),
        };
        if !fits {
            return None;
        }
        let parts_of = |item: &Item| {
            let all = item.members.iter().flat_map(|&m| operands(&self.entries[m]));
            let placed = |(part, writes)| placed(frame.as_ref(), part).map(|part| (Region::new(&part), part, writes));
            all.map(placed).collect::<Option<Vec<_>>>()
        };
        let (own, others) = (parts_of(first)?, parts_of(second)?);
        if own.iter().any(|a| others.iter().any(|b| meet(a, b))) {
            return None;
        }
        let mut members = [&first.members[..], &second.members[..]].concat();
        members.sort_unstable();
        let draft = draft(self.entries, &members, &[], (acc, frame.as_ref()), &self.uses);
        let traffic = draft.traffic();
        let gain = (a.traffic + b.traffic).saturating_sub(traffic);
        if draft.refusal(self.uses.limits).is_some() || !is_worth(gain, is_small, self.held(a)) {
            return None;
        }
        let parts = [own, others].concat();
        let (shape, walk, end) = (b.shape.clone(), b.walk.clone(), b.end.clone().or_else(|| a.end.clone()));
        Some((members, Open { shape, frame, acc, walk, parts, traffic, end }, gain))
    }

    /// A call that can be one of a kernel.
    fn member(&self, entry: &Entry) -> Option<Member> {
        if let Some(Elementwise { acc, .. }) = elementwise(entry) {
            return Some(Member { shape: entry.outputs[0].layout.shape().clone(), frame: None, acc });
        }
        let Reduction { frame, acc, .. } = reduction(entry, self.uses.limits)?;
        Some(Member { shape: frame.shape().clone(), frame: Some(frame), acc: Some(acc) })
    }

    /// Bytes that a call moves by itself.
    fn alone(&self, i: usize, call: &Member) -> usize {
        draft(self.entries, &[i], &[], (call.acc, call.frame.as_ref()), &self.uses).traffic()
    }

    fn next_slot(&mut self) -> usize {
        self.slots += 1;
        self.slots
    }

    /// The items on which a call depends: those that write what it touches, or touch what it writes.
    fn conflicts(&self, entry: &Entry) -> Vec<usize> {
        let read = entry.inputs.iter().map(|part| (part.place, false));
        let written = entry.outputs.iter().map(|part| (part.place, true));
        let mut found = Vec::new();
        for (place, writes) in read.chain(written) {
            let users = self.users.get(&place).into_iter().flatten();
            found.extend(users.filter(|(_, wrote)| writes || *wrote).map(|(item, _)| *item));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The group in which a call saves the most bytes; the latest of several.
    fn choose(&mut self, i: usize, call: &Member, before: &[usize]) -> Option<Choice> {
        let entry = &self.entries[i];
        let of_shape = self.groups.get(&call.shape).into_iter().flatten().rev().take(MOST_GROUPS);
        // A call on a number a row has another shape than its group.
        let of_rows = before.iter().rev().filter(|&&item| {
            self.items[item].group.as_ref().is_some_and(|open| open.frame.is_some() && open.shape != call.shape)
        });
        let candidates: Vec<usize> = of_shape.chain(of_rows).copied().collect();
        let mut best: Option<Choice> = None;
        for item in candidates {
            match self.joined(i, call, item, before) {
                Ok(choice) if best.as_ref().is_none_or(|best| choice.gain > best.gain) => best = Some(choice),
                Ok(_) => (),
                Err(why) => {
                    if before.contains(&item)
                        && let Some(open) = &mut self.items[item].group
                    {
                        open.end.get_or_insert_with(|| format!("{} does not join, {why}", entry.whole));
                    }
                }
            }
        }
        best
    }

    /// A group with a call, or why the call cannot be one of the group.
    fn joined(&self, i: usize, call: &Member, item: usize, before: &[usize]) -> Result<Choice, &'static str> {
        let (entry, Item { members, slot, has_dependents, group, .. }) = (&self.entries[i], &self.items[item]);
        let open = group.as_ref().ok_or("which is no group")?;
        if members.len() >= MOST_CALLS {
            return Err("which has as many calls as a kernel may have");
        }
        if matches!((open.acc, call.acc), (Some(a), Some(b)) if a != b) {
            return Err("whose arithmetic is of another dtype");
        }
        let is_late = before.iter().any(|&other| other != item && self.items[other].slot > *slot);
        if is_late && *has_dependents {
            return Err("as calls between them depend on one and are needed by the other");
        }
        let frame = common_frame(&open.frame, &call.frame)?;
        let acc = open.acc.or(call.acc);
        if frame.is_some() && !acc.is_some_and(DType::is_float) {
            return Err("as only floats are reduced");
        }
        let of_another_shape = "as it has another shape, or elements of a row lie apart";
        let begins = open.frame.is_none() && frame.is_some();
        let mut all = members.iter().flat_map(|&m| operands(&self.entries[m]));
        if begins && all.any(|(part, _)| placed(frame, part).is_none()) {
            return Err(of_another_shape);
        }
        for (part, writes) in operands(entry) {
            let part = placed(frame, part).ok_or(of_another_shape)?;
            let new = (Region::new(&part), part, writes);
            if open.parts.iter().any(|known| meet(known, &new)) {
                return Err("as it reads or writes other elements of the same memory");
            }
        }
        let alone = self.alone(i, call);
        let is_small = alone <= SMALL && open.traffic <= SMALL;
        if frame.is_none() && walk(entry) != open.walk && !is_small {
            return Err("as its elements lie in another order");
        }
        let members: Vec<usize> = members.iter().copied().chain([i]).collect();
        let draft = draft(self.entries, &members, &[], (acc, frame), &self.uses);
        if let Some(refusal) = draft.refusal(self.uses.limits) {
            return Err(refusal);
        }
        let traffic = draft.traffic();
        let gain = (open.traffic + alone).saturating_sub(traffic);
        let held = if is_late { self.held(open) } else { 0 };
        if !is_worth(gain, is_small, held) {
            return Err("which saves nothing, or holds memory for long");
        }
        Ok(Choice { item, moves: is_late, frame: frame.cloned(), traffic, gain })
    }

    /// Bytes of temporary memory that a group holds longer when it runs later: of what it reads, without what it writes.
    fn held(&self, open: &Open) -> usize {
        let bytes = |writes: bool| {
            let own = open.parts.iter().filter(|part| part.2 == writes);
            let mut numbers: Vec<usize> =
                own.filter_map(|part| if let Place::Later(n) = part.1.place { Some(n) } else { None }).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers.into_iter().filter(|&n| !self.uses.survivors[n]).map(|n| self.bytes[n]).sum::<usize>()
        };
        bytes(false).saturating_sub(bytes(true))
    }

    /// Notes that groups whose results this call takes have ended.
    fn note_ends(&mut self, entry: &Entry, before: &[usize]) {
        for &item in before {
            if let Some(open) = &mut self.items[item].group {
                open.end.get_or_insert_with(|| match &entry.work {
                    Work::Call { kernel, .. } => {
                        format!("its results are operands of {} ({})", entry.whole, kernel.kernel())
                    }
                    Work::Reduce(reduction) => {
                        format!("its results are operands of {} ({})", entry.whole, Kernel::Reduce(reduction.kind))
                    }
                    _ => format!("its results are operands of {}", entry.whole),
                });
            }
        }
    }
}

/// The operands of a call, and whether they are written.
pub fn operands(entry: &Entry) -> impl Iterator<Item = (&KeptOperand, bool)> {
    entry.inputs.iter().map(|part| (part, false)).chain(entry.outputs.iter().map(|part| (part, true)))
}

/// The frame of a kernel of two calls or groups, or why they cannot be one kernel.
fn common_frame<'a>(a: &'a Option<Frame>, b: &'a Option<Frame>) -> Result<Option<&'a Frame>, &'static str> {
    match (a, b) {
        (Some(Frame::Sum(_)), _) | (_, Some(Frame::Sum(_))) => {
            Err("as a sum over columns computes for itself what it adds up")
        }
        (Some(a), Some(b)) if a != b => Err("as other rows are reduced, or in another order"),
        (a, b) => Ok(a.as_ref().or(b.as_ref())),
    }
}

/// Whether two operands may share a part of their elements, of which one writes.
fn meet(a: &Part, b: &Part) -> bool {
    a.1.place == b.1.place && (a.2 || b.2) && a.0 != b.0 && !are_apart(&a.1, &b.1)
}

/// An operand as a kernel has it: in the shape of the rows, if there are some. None if it does not fit them.
fn placed(frame: Option<&Frame>, part: &KeptOperand) -> Option<KeptOperand> {
    frame.map_or_else(|| Some(part.clone()), |frame| frame.within(part))
}

/// Whether a call is added to a group, which then moves so many bytes less than both alone, and holds so many bytes of memory longer.
fn is_worth(gain: usize, is_small: bool, held: usize) -> bool {
    (gain > 0 || is_small) && held <= 2 * gain + SMALL
}
