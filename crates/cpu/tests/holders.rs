//! Errors for want of memory name what holds it. No other test of this program makes a profile, and none allocates on this device.

use isograd_core::{DType, Device, Kind, Result, Tensor, profile};
use isograd_cpu::Cpu;
use std::sync::Arc;

/// More than a machine has.
const TOO_MUCH: usize = 1 << 52;

fn hold(device: &Device) -> Result<Vec<Tensor>> {
    let one = Tensor::ones((1000, 1000), DType::F32, device)?;
    let mut held = vec![one.clone(), one.add(&one)?, one.add(&one)?, one.exp()?];
    held.push(Tensor::zeros(10, DType::F32, device)?);
    drop(one.mul(&one)?);
    Ok(held)
}

#[test]
fn an_error_for_want_of_memory_names_the_largest_holders() {
    let device = Device::from_backend("cpu", Arc::new(Cpu::default()));
    let earlier = Tensor::zeros(5_000_000, DType::F32, &device).unwrap();
    let error = Tensor::empty(TOO_MUCH, DType::U8, &device).err().unwrap();
    assert_eq!(error.kind(), Kind::OutOfMemory);
    assert!(error.message().contains("within `profile`"), "{error}");
    let failing = || -> Result<()> {
        let _held = hold(&device)?;
        Tensor::empty(TOO_MUCH, DType::U8, &device).map(drop)
    };
    let error = profile(&device, failing).err().unwrap();
    assert_eq!((error.kind(), error.op()), (Kind::OutOfMemory, "empty"));
    let (_, holders) = error.message().split_once("the largest holders are ").unwrap();
    let holders: Vec<&str> = holders.split(", ").collect();
    assert_eq!(holders.len(), 5, "{holders:?}");
    assert_eq!(holders[0], "20.0 MB from before the profile");
    assert!(holders[1].starts_with("8.0 MB of 2 results of add"), "{holders:?}");
    assert!(holders[2].starts_with("4.0 MB of ") && holders[3].starts_with("4.0 MB of "), "{holders:?}");
    assert!(holders.iter().any(|holder| holder.contains("exp") && holder.contains("holders.rs:")), "{holders:?}");
    assert!(!holders.iter().any(|holder| holder.contains("mul")), "{holders:?}");
    drop(earlier);
}
