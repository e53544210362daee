//! Tape diffs of devices on different hosts: each host has the errors of its device against the CPU, and one of them gets those of the
//! others as bytes.

use super::{Entry, Off};
use isograd_core::{Error, Result};
use std::hash::{DefaultHasher, Hash, Hasher};

/// A number that tells calls apart: their way, op, kernel, inputs and outputs. Hosts may have the program at other places.
fn key(entry: &Entry) -> u64 {
    let mut hasher = DefaultHasher::new();
    let Entry { direction, op, kernel, inputs, outputs, .. } = entry;
    (direction.to_string(), op, kernel, inputs, outputs).hash(&mut hasher);
    hasher.finish()
}

/// The entries of calls, each its key; 1 and the error of the first device, or 0. An error is its bounds, output, value, correct value, rank and index.
pub fn to_bytes(entries: &[Entry]) -> Vec<u8> {
    let mut words = Vec::new();
    for entry in entries {
        words.push(key(entry));
        let Some(off) = &entry.found[0] else {
            words.push(0);
            continue;
        };
        let numbers = [off.bounds, off.got, off.expected].map(f64::to_bits);
        words.extend([1, numbers[0], off.output as u64, numbers[1], numbers[2], off.element.len() as u64]);
        words.extend(off.element.iter().map(|&i| i as u64));
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The entries with the error of the first device, and that of another host.
pub fn beside(entries: &[Entry], bytes: &[u8]) -> Result<Vec<Entry>> {
    let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    let ended = || Error::value("diff", "the errors of another rank end too early");
    let mut next = || words.next().ok_or_else(ended);
    let mut found = Vec::with_capacity(entries.len());
    for (i, entry) in entries.iter().enumerate() {
        if next()? != key(entry) {
            let Entry { direction, op, kernel, .. } = entry;
            let message =
                format!("call {} is {op} {direction} ({kernel}) here, and another call on another rank", i + 1);
            return Err(Error::value("diff", message));
        }
        let other = match next()? {
            0 => None,
            _ => {
                let (bounds, output, got, expected) = (next()?, next()? as usize, next()?, next()?);
                let element = (0..next()?).map(|_| next().map(|i| i as usize)).collect::<Result<_>>()?;
                let [bounds, got, expected] = [bounds, got, expected].map(f64::from_bits);
                Some(Off { bounds, output, element, got, expected })
            }
        };
        found.push(Entry { found: [entry.found[0].clone(), other], ..entry.clone() });
    }
    Ok(found)
}
