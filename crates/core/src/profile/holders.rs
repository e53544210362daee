//! Living allocations by op and origin, while a profile is made. Errors for want of memory name the largest.

use super::{Direction, size};
use crate::Device;
use crate::tensor::Storage;
use std::collections::BTreeMap;
use std::sync::Weak;

/// The number of holders that an error names.
const NAMED: usize = 5;

/// The number of allocations from which those that are gone are looked for.
const FEW: usize = 1024;

/// The allocations of a profile, and some that are gone.
#[derive(Default)]
pub struct Holders {
    all: Vec<Allocation>,
    /// The number that were alive when those that were gone were last removed.
    living: usize,
}

pub struct Allocation {
    pub op: &'static str,
    pub direction: Direction,
    pub origin: Option<String>,
    pub bytes: usize,
    pub storage: Weak<Storage>,
}

impl Holders {
    pub fn note(&mut self, allocation: Allocation) {
        if self.all.len() >= FEW.max(2 * self.living) {
            self.all.retain(|a| a.storage.strong_count() > 0);
            self.living = self.all.len();
        }
        self.all.push(allocation);
    }

    /// The largest holders of a device's memory, as text.
    pub fn largest(&self, device: &Device) -> Vec<String> {
        let mut sums: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        let mut followed = 0;
        let is_living = |a: &&Allocation| a.storage.upgrade().is_some_and(|storage| storage.device() == device);
        for Allocation { op, direction, origin, bytes, .. } in self.all.iter().filter(is_living) {
            let backward = if *direction == Direction::Backward { " (backward)" } else { "" };
            let origin = origin.as_ref().map(|origin| format!(" at {origin}")).unwrap_or_default();
            let (count, sum) = sums.entry(format!("{op}{backward}{origin}")).or_default();
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
}
