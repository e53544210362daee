//! `isograd devices`.

use anyhow::Result;
use isograd::Device;
use std::process::ExitCode;

/// Prints each device with its description, and for each backend without one why.
pub fn list() -> Result<ExitCode> {
    let best = Device::best().ok();
    for (backend, found) in Device::list() {
        match found {
            Ok(devices) if devices.is_empty() => println!("{backend:<10} none"),
            Ok(devices) => {
                for device in devices {
                    let is_best = best.as_ref().is_some_and(|best| best.name() == device.name);
                    println!("{:<10} {}{}", device.name, device.description, if is_best { " (default)" } else { "" });
                }
            }
            Err(error) => println!("{backend:<10} none: {error}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}
