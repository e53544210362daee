//! The transport of a group of one rank.

use crate::transport::{Message, Received, Transport};
use isograd_core::Result;
use std::time::Instant;

/// One rank, which has nobody to talk to.
pub struct Alone;

impl Transport for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn send(&self, _: usize, _: u32, _: Message) -> Result<()> {
        Ok(())
    }

    fn receive(&self, _: usize, _: u32, _: Instant) -> Result<Received> {
        Ok(Received::Left)
    }

    fn leave(&self) {}

    fn words(&self) -> String {
        "one process".into()
    }
}
