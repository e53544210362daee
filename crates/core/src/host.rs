//! Host memory whose size depends on a program's data: a failed allocation is an error, not an abort.

use crate::{Error, Kind, Result, sys};

/// Larger buffers are requested only if the system has that much memory: it may promise more than it can give.
const CHECKED_FROM: usize = 1 << 30;

/// Reserves capacity for `n` further elements in `buffer`; false if there is no memory.
pub fn reserve<T>(buffer: &mut Vec<T>, n: usize) -> bool {
    let bytes = n.saturating_mul(size_of::<T>());
    let is_there = bytes < CHECKED_FROM || available().is_none_or(|free| bytes <= free);
    is_there && buffer.try_reserve_exact(n).is_ok()
}

/// An empty vector with capacity for `n` elements. Errors: `OutOfMemory`, of `op`.
pub fn with_room<T>(op: &'static str, n: usize) -> Result<Vec<T>> {
    let mut buffer = Vec::new();
    if reserve(&mut buffer, n) {
        return Ok(buffer);
    }
    let free = available().map_or("an unknown number".into(), |bytes| bytes.to_string());
    let message =
        format!("{n} elements of {} bytes were asked for on the host, which has {free} bytes free", size_of::<T>());
    Err(Error::new(Kind::OutOfMemory, op, message))
}

/// Collects an iterator of known length. Errors: `OutOfMemory`, of `op`.
pub fn collect<T>(op: &'static str, elements: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut all = with_room(op, elements.len())?;
    all.extend(elements);
    Ok(all)
}

/// `n` copies of `element`. Errors: `OutOfMemory`, of `op`.
pub fn repeated<T: Clone>(op: &'static str, element: T, n: usize) -> Result<Vec<T>> {
    let mut all = with_room(op, n)?;
    all.resize(n, element);
    Ok(all)
}

/// Bytes of available memory, if the system tells.
pub fn available() -> Option<usize> {
    sys::available_memory()
}
