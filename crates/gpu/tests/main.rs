//! The shared layer on drivers that run nothing, or run on the host.

mod cache;
mod channels_last;
mod choices;
mod null;
mod vendor;
