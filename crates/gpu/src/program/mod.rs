//! Programs: the text that a compiler receives, and the cache of what it made.

pub mod cache;
pub mod source;
