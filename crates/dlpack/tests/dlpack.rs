//! Tensors through DLPack, there and back.

use dlpark::ffi::{DLDataType, DLDevice, DLDeviceType};
use dlpark::metadata::Dynamic;
use dlpark::{DlpackFlags, legacy, versioned};
use isograd_core::{DType, Device, Kind, Result, Tensor};
use isograd_cpu as _;
use isograd_dlpack::{device_of, dlpark, export, import};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn cpu() -> Device {
    Device::cpu().expect("the CPU backend is linked")
}

/// Numbers of another library, which counts how often they are given back.
struct Numbers(Vec<f32>, Arc<AtomicUsize>);

impl Drop for Numbers {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// A header of `shape` and `strides` over 12 numbers from the one at `start` on, with changes.
#[allow(unsafe_code, reason = "headers have addresses")]
fn header(
    shape: &[i64],
    strides: &[i64],
    start: u64,
    drops: &Arc<AtomicUsize>,
    change: impl FnOnce(&mut dlpark::ffi::DLTensor) -> DlpackFlags,
) -> versioned::Dlpack {
    let mut numbers = Box::new(Numbers((0..12).map(|i| i as f32).collect(), drops.clone()));
    let data = numbers.0.as_mut_ptr().cast();
    let mut header = Dynamic::new(shape, strides).initialize(numbers).expect("a header");
    header.set_data(data).set_dtype(DLDataType::F32).set_device(DLDevice::CPU).set_byte_offset(4 * start);
    let flags = change(header.tensor_mut());
    header.set_flags(flags).expect("flags");
    // SAFETY: tests read only tensors whose elements lie within the numbers, which the header owns.
    unsafe { header.finish() }
}

fn plain(_: &mut dlpark::ffi::DLTensor) -> DlpackFlags {
    DlpackFlags::empty()
}

#[test]
fn every_dtype_and_order_of_strides_goes_there_and_back_in_one_place() -> Result<()> {
    for dtype in DType::ALL {
        let x = Tensor::arange(24, &cpu())?.cast(dtype)?.reshape((2, 3, 4))?;
        let views = [
            x.clone(),
            x.permute(&[2, 0, 1])?,
            x.narrow(1, 1, 2)?.select(2, 3)?,
            x.narrow(0, 0, 1)?.broadcast_to((5, 3, 4))?,
            x.narrow(0, 2, 0)?,
            x.reshape(24)?.select(0, 7)?,
        ];
        for view in views {
            let versioned: versioned::Dlpack = export(&view)?;
            let legacy: legacy::Dlpack = export(&view)?;
            for back in [import(versioned, None)?, import(legacy, None)?] {
                assert_eq!((back.dims(), back.dtype()), (view.dims(), dtype));
                assert_eq!(back.to_bytes()?, view.to_bytes()?);
                assert!(view.numel() == 0 || back.address()? == view.address()?, "{dtype} was copied");
            }
        }
    }
    Ok(())
}

#[test]
fn memory_goes_back_once_and_after_its_last_tensor() -> Result<()> {
    let drops = Arc::new(AtomicUsize::new(0));
    let x = import(header(&[3, 4], &[4, 1], 0, &drops, plain), None)?;
    let view = x.t()?.narrow(0, 1, 2)?;
    drop(x);
    assert_eq!((drops.load(Ordering::SeqCst), view.to_vec::<f32>()?), (0, vec![1.0, 5.0, 9.0, 2.0, 6.0, 10.0]));
    let again: versioned::Dlpack = export(&view)?;
    drop(view);
    assert_eq!(drops.load(Ordering::SeqCst), 0, "what is lent again keeps the memory");
    drop(again);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    Ok(())
}

#[test]
fn ten_thousand_exchanges_keep_nothing() -> Result<()> {
    let drops = Arc::new(AtomicUsize::new(0));
    let before = cpu().memory().in_use;
    for i in 0..10_000 {
        let x = import(header(&[12], &[1], 0, &drops, plain), None)?;
        let lent: legacy::Dlpack = export(&x)?;
        let y = import(lent, None)?;
        assert_eq!(y.address()?, x.address()?, "exchange {i}");
        let own: versioned::Dlpack = export(&Tensor::full(3, 1.0, DType::F32, &cpu())?)?;
        drop(import(own, None)?);
    }
    assert_eq!(drops.load(Ordering::SeqCst), 10_000);
    let kept = cpu().memory().in_use.saturating_sub(before);
    assert!(kept < 10_000, "{kept} bytes are left, and the tests beside this one hold far fewer than that");
    Ok(())
}

#[test]
fn both_sides_see_changes_unless_one_forbids_them() -> Result<()> {
    let drops = Arc::default();
    let x = import(header(&[2], &[3], 5, &drops, plain), None)?;
    x.mul_(&x.full_like(2.0)?)?;
    let seen: versioned::Dlpack = export(&x)?;
    assert_eq!(import(seen, None)?.to_vec::<f32>()?, [10.0, 16.0]);
    let read = import(header(&[2], &[3], 5, &drops, |_| DlpackFlags::READ_ONLY), None)?;
    assert_eq!(read.mul_(&read.full_like(2.0)?).map_err(|e| e.kind()), Err(Kind::Value));
    assert_eq!(read.mul_scalar(2.0)?.to_vec::<f32>()?, [10.0, 16.0]);
    Ok(())
}

#[test]
fn headers_that_no_tensor_can_have_are_refused_and_given_back() {
    let drops = Arc::new(AtomicUsize::new(0));
    type Change = fn(&mut dlpark::ffi::DLTensor) -> DlpackFlags;
    let cases: [(&[i64], Change, Kind); 6] = [
        (&[-1], plain, Kind::Value),
        (
            &[1],
            |of| {
                of.dtype = DLDataType::I8;
                DlpackFlags::empty()
            },
            Kind::Unsupported,
        ),
        (
            &[1],
            |of| {
                of.dtype.lanes = 4;
                DlpackFlags::empty()
            },
            Kind::Unsupported,
        ),
        (
            &[1],
            |of| {
                of.device.device_type = DLDeviceType::METAL;
                DlpackFlags::empty()
            },
            Kind::Unsupported,
        ),
        (
            &[1],
            |of| {
                of.byte_offset += 2;
                DlpackFlags::empty()
            },
            Kind::Value,
        ),
        (
            &[1],
            |of| {
                of.data = std::ptr::null_mut();
                DlpackFlags::empty()
            },
            Kind::Value,
        ),
    ];
    let count = cases.len();
    for (strides, change, kind) in cases {
        let found = import(header(&[2], strides, 4, &drops, change), None);
        assert_eq!(found.map(|_| ()).map_err(|e| e.kind()), Err(kind));
    }
    assert_eq!(drops.load(Ordering::SeqCst), count);
    let x = Tensor::full(3, 1.0, DType::F32, &cpu()).and_then(|x| x.require_grad()).expect("a leaf");
    assert_eq!(export::<dlpark::ffi::DLManagedTensor>(&x).map(|_| ()).map_err(|e| e.kind()), Err(Kind::Value));
    assert_eq!(device_of(&cpu()).ok(), Some(DLDevice::CPU));
}
