//! The option of examples that have no other.

use clap::Parser;
use isograd::{Device, Result};

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it [default: the best]
    #[arg(long)]
    device: Option<String>,
}

/// The device of `--device NAME`, or the best.
pub fn device() -> Result<Device> {
    Options::parse().device.map_or_else(Device::best, |name| name.parse())
}
