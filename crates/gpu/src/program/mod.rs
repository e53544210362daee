//! Programs: the text that a compiler receives, and the cache of what it made.

pub mod cache;
mod folder;
pub mod source;
