//! The shared layer on drivers that run nothing, or run on the host.

mod cache;
mod choices;
mod null;
mod vendor;
