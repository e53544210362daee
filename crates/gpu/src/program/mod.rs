//! Programs: the text that a compiler receives, and the cache of its binaries.

pub mod cache;
mod folder;
pub mod names;
pub mod source;
