//! Ranks of a training: one process alone, those that a launcher has started, or threads with a device each.

use anyhow::{Result, bail};
use isograd::parallel::{Group, Options, World, threads_with};
use isograd::{Device, Error};
use std::process::ExitCode;
use std::sync::Mutex;

/// Runs `f` as a rank of each of these devices, in threads. Without devices, it runs as the rank that a launcher has started, on the
/// device of the name, or the best. Returns the exit code of rank 0. Errors: that of the rank that fails first.
pub fn run(
    device: Option<&str>,
    devices: &[String],
    f: impl Fn(&Group, &Device) -> Result<ExitCode> + Sync,
) -> Result<ExitCode> {
    let world = World::start()?;
    if devices.is_empty() {
        return f(world.group(), &world.device(device)?);
    }
    if world.group().size() > 1 {
        bail!("--devices is for one process, and a launcher has started {}", world.group().size());
    }
    let devices = devices.iter().map(|name| name.parse()).collect::<isograd::Result<Vec<Device>>>()?;
    let first: Mutex<Option<anyhow::Error>> = Mutex::new(None);
    let codes = threads_with(devices.len(), &Options::from_environment()?, |group| {
        f(&group, &devices[group.rank()]).map_err(|error| {
            let message = format!("{error:#}");
            first.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
            Error::value("train", message)
        })
    });
    match (codes, first.into_inner().unwrap_or_else(|e| e.into_inner())) {
        (_, Some(error)) => Err(error),
        (codes, None) => Ok(codes?.into_iter().next().unwrap_or(ExitCode::SUCCESS)),
    }
}

/// The devices of all ranks, for titles and reports.
pub fn words(group: &Group, device: &Device) -> String {
    match group.size() {
        1 => device.to_string(),
        n => format!("{device} and others, {n} ranks"),
    }
}

/// The options of a command that choose the devices.
pub fn options(device: Option<&str>, devices: &[String]) -> String {
    match (device, devices) {
        (Some(device), _) => format!(" --device {device}"),
        (None, []) => String::new(),
        (None, devices) => format!(" --devices {}", devices.join(",")),
    }
}
