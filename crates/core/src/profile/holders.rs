//! Living allocations by op and place, while a profile is made. Errors for want of memory name the largest.

use super::{Direction, origin, size};
use crate::{Device, Error, Kind};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of holders that an error names.
const NAMED: usize = 5;

/// The number of profiles that are being made.
static FOLLOWED: AtomicUsize = AtomicUsize::new(0);

/// The living allocations by their numbers.
static LIVING: Mutex<BTreeMap<u64, Allocation>> = Mutex::new(BTreeMap::new());

struct Allocation {
    op: &'static str,
    direction: Direction,
    place: Option<String>,
    bytes: usize,
    device: Device,
}

/// Follows allocations as long as it lives.
pub struct Following(());

pub fn follow() -> Following {
    FOLLOWED.fetch_add(1, Ordering::Relaxed);
    Following(())
}

impl Drop for Following {
    fn drop(&mut self) {
        if FOLLOWED.fetch_sub(1, Ordering::Relaxed) == 1 {
            LIVING.lock().clear();
        }
    }
}

/// Notes an allocation by `op`.
#[inline]
pub fn note(number: u64, op: &'static str, bytes: usize, device: &Device) {
    if FOLLOWED.load(Ordering::Relaxed) > 0 {
        let (direction, op, place) = origin(op).unwrap_or((Direction::Forward, op, None));
        LIVING.lock().insert(number, Allocation { op, direction, place, bytes, device: device.clone() });
    }
}

/// Forgets an allocation that is given back.
#[inline]
pub fn forget(number: u64) {
    if FOLLOWED.load(Ordering::Relaxed) > 0 {
        drop(LIVING.lock().remove(&number));
    }
}

/// An error for want of memory with the largest holders, or with the way to learn them.
pub fn named(error: Error, device: &Device) -> Error {
    if error.kind() != Kind::OutOfMemory {
        return error;
    }
    let holders = if FOLLOWED.load(Ordering::Relaxed) > 0 { largest(device) } else { Vec::new() };
    let rest = match holders.is_empty() {
        true => "within `profile`, this error names what holds the memory".to_string(),
        false => format!("the largest holders are {}", holders.join(", ")),
    };
    Error::new(Kind::OutOfMemory, error.op().to_string(), format!("{}; {rest}", error.message()))
}

fn largest(device: &Device) -> Vec<String> {
    let mut sums: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut followed = 0;
    for allocation in LIVING.lock().values().filter(|a| a.device == *device) {
        let Allocation { op, direction, place, bytes, .. } = allocation;
        let backward = if *direction == Direction::Backward { " (backward)" } else { "" };
        let place = place.as_ref().map(|place| format!(" at {place}")).unwrap_or_default();
        let (count, sum) = sums.entry(format!("{op}{backward}{place}")).or_default();
        *count += 1;
        *sum += bytes;
        followed += bytes;
    }
    // Parameters, for example.
    let earlier = device.memory().in_use.saturating_sub(followed);
    if earlier > 0 {
        sums.insert("before the profile".into(), (0, earlier));
    }
    let mut sums: Vec<(String, (usize, usize))> = sums.into_iter().collect();
    sums.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
    let text = |(name, (count, bytes)): (String, (usize, usize))| match count {
        0 => format!("{} from {name}", size(bytes)),
        1 => format!("{} of {name}", size(bytes)),
        _ => format!("{} of {count} results of {name}", size(bytes)),
    };
    sums.into_iter().take(NAMED).map(text).collect()
}
