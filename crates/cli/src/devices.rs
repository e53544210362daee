//! `isograd devices`.

use crate::print;
use anyhow::Result;
use isograd::Device;
use std::process::ExitCode;

/// Prints each device with its description, and for each backend without one why.
pub fn list() -> Result<ExitCode> {
    let best = Device::best().ok();
    for (backend, found) in Device::list() {
        match found {
            Ok(devices) if devices.is_empty() => print(&format!("{backend:<10} none"))?,
            Ok(devices) => {
                for device in devices {
                    let is_best = best.as_ref().is_some_and(|best| best.name() == device.name);
                    let note = if is_best { " (default)" } else { "" };
                    print(&format!("{:<10} {}{note}", device.name, device.description))?;
                }
            }
            // Why stands on a line of its own, which may be long.
            Err(error) => print(&format!("{backend:<10} none\n{:<10} {}", "", error.message()))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
