//! The devices of a run.

use crate::report::DeviceRun;
use crate::watch::private;
use isograd_core::{Checks, DType, Device, DeviceInfo, Kind, Result, Tensor};

/// The description of a device, and whether it computes in f64.
pub(crate) fn describe(device: &Device) -> Result<DeviceRun> {
    let all = Device::list().into_iter().filter_map(|(_, found)| found.ok()).flatten();
    let info: Option<DeviceInfo> = { all }.find(|info| info.name == device.name());
    let f64s = Tensor::ones(1, DType::F64, device).and_then(|x| x.exp()).and_then(|x| x.to_vec::<f64>());
    let has_f64 = match f64s {
        Ok(_) => true,
        Err(error) if error.kind() == Kind::Unsupported => false,
        Err(error) => return Err(error),
    };
    let (hardware, driver) = info.map(|info| (info.description, info.driver)).unwrap_or_default();
    Ok(DeviceRun { name: device.name().into(), hardware, driver, has_f64, bandwidth: None })
}

/// A device with a queue of its own. The kinds of its errors are those of ops.
pub(crate) fn opened(device: &Device) -> Result<Device> {
    let device = private(device)?;
    device.set_checks(Checks::AtOnce);
    Ok(device)
}

/// The part of a description that does not change for the same device, without the memory that PoCL reports.
pub(crate) fn lasting(description: &str, driver: &str) -> String {
    let name = description.split(", ").next().unwrap_or_default();
    format!("{name}, {driver}")
}
