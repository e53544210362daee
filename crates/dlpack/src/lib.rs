//! Tensors from and to other libraries of the same process without a copy, by [DLPack](https://dmlc.github.io/dlpack/latest/): PyTorch,
//! NumPy, JAX, CuPy, and Rust crates that speak it.
//!
//! [`export`] lends a tensor's memory, and [`import`] makes a tensor of borrowed memory. Each side keeps the memory as long as the other
//! uses it, and sees what the other writes. Memory is that of the CPU, or of a device of CUDA or ROCm; elements have the dtypes that this library has, and
//! any strides that are not negative. Headers of both kinds are there, with a version (`dlpark::versioned::Dlpack`) and without
//! (`dlpark::legacy::Dlpack`).
//!
//! ```
//! use isograd_core::{Device, Result, Tensor};
//! use isograd_dlpack::{export, import, dlpark::versioned::Dlpack};
//! # use isograd_cpu as _;
//!
//! # fn main() -> Result<()> {
//! let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::cpu()?)?.t()?;
//! let lent: Dlpack = export(&x)?;
//! let y = import(lent, None)?;
//! assert_eq!(y.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
//! assert_eq!(y.address()?, x.address()?);
//! # Ok(())
//! # }
//! ```

#![allow(unsafe_code, reason = "DLPack is a convention of C: memory and headers by their addresses")]

pub use dlpark;

use dlpark::ffi::{DLDataType, DLDevice, DLDeviceType};
use dlpark::metadata::Dynamic;
use dlpark::{DlpackFlags, Managed, ManagedTensorBase, TensorRef};
use isograd_core::{DType, Device, Error, Foreign, Permission, Result, Shape, Space, Tensor};
use std::ffi::c_void;
use std::fmt::Display;
use std::ptr::with_exposed_provenance_mut;

const EXPORT: &str = "export";
const IMPORT: &str = "import";

/// The name that DLPack has for a device. Errors: `Unsupported` if other libraries cannot read its memory, as that of OpenCL.
pub fn device_of(device: &Device) -> Result<DLDevice> {
    let (device_type, number) = match device.backend().space() {
        Some(Space::Host) => return Ok(DLDevice::CPU),
        Some(Space::Cuda(number)) => (DLDeviceType::CUDA, number),
        Some(Space::Rocm(number)) => (DLDeviceType::ROCM, number),
        _ => {
            let message =
                format!("other libraries cannot read the memory of {device}; copy the tensor to the CPU first");
            return Err(Error::unsupported(EXPORT, message));
        }
    };
    Ok(DLDevice { device_type, device_id: number as i32 })
}

/// The memory that a name of DLPack means: that of the host also where it is pinned, that of CUDA also where it is managed.
fn space_of(device: DLDevice) -> Result<Space> {
    let number = u32::try_from(device.device_id).map_err(|e| wrong(IMPORT, e))?;
    match device.device_type {
        DLDeviceType::CPU | DLDeviceType::CUDAHOST | DLDeviceType::ROCMHOST => Ok(Space::Host),
        DLDeviceType::CUDA | DLDeviceType::CUDAMANAGED => Ok(Space::Cuda(number)),
        DLDeviceType::ROCM => Ok(Space::Rocm(number)),
        DLDeviceType(other) => {
            let message = format!("the tensor is on a device of type {other}, expected the CPU, CUDA or ROCm");
            Err(Error::unsupported(IMPORT, message))
        }
    }
}

/// DLPack's name of a dtype.
fn data_type_of(dtype: DType) -> DLDataType {
    match dtype {
        DType::F64 => DLDataType::F64,
        DType::F32 => DLDataType::F32,
        DType::F16 => DLDataType::F16,
        DType::BF16 => DLDataType::BF16,
        DType::I64 => DLDataType::I64,
        DType::I32 => DLDataType::I32,
        DType::U8 => DLDataType::U8,
        DType::Bool => DLDataType::BOOL,
    }
}

fn dtype_of(found: DLDataType) -> Result<DType> {
    let known = DType::ALL.into_iter().find(|dtype| data_type_of(*dtype).matches(found));
    known.ok_or_else(|| {
        let DLDataType { code, bits, lanes } = found;
        let message = format!("elements have DLPack's type {}, {bits} bits and {lanes} lanes", code.0);
        Error::unsupported(IMPORT, format!("{message}, expected one of {:?}", DType::ALL))
    })
}

fn wrong(op: &'static str, error: impl Display) -> Error {
    Error::value(op, error.to_string())
}

/// Lends a tensor's memory. The header keeps the tensor until the other library drops it.
///
/// On a GPU the elements are there once the device's work is done: [`Backend::follow`](isograd_core::Backend::follow) makes a stream wait for it.
/// Errors: `Value` for a tensor that requires a gradient, whose changes the tape would miss, and for a result of a captured step, which moves;
/// `Unsupported` if other libraries cannot read the device's memory.
pub fn export<M: ManagedTensorBase>(t: &Tensor) -> Result<Managed<M>> {
    if t.requires_grad() {
        return Err(Error::value(
            EXPORT,
            "the tensor requires a gradient, which others do not compute; `detach` it first",
        ));
    }
    let device = device_of(t.device())?;
    let data = with_exposed_provenance_mut::<c_void>(t.address()? as usize);
    let signed = |extents: &[usize]| extents.iter().map(|&extent| extent as i64).collect::<Vec<_>>();
    let metadata = Dynamic::new(signed(t.dims()), signed(t.layout().strides()));
    let mut header = metadata.initialize_as(Box::new(t.detach())).map_err(|e| wrong(EXPORT, e))?;
    header.set_data(data).set_dtype(data_type_of(t.dtype())).set_device(device);
    // SAFETY: the header owns a tensor of the memory, whose extents, strides and dtype it has.
    Ok(unsafe { header.finish() })
}

/// A tensor of the memory that another library lends, which is given back when no tensor uses it any more. A header that lets nobody write its memory
/// makes changes in place an error.
///
/// On a GPU the elements must be there for the device's stream, whose handle is [`Backend::stream`](isograd_core::Backend::stream). The
/// owner's `stream`, if given, waits for this library's work before the memory is given back; without it, the host waits. Errors: `Device` for a device that is not there;
/// `Unsupported` for other devices and dtypes; `Value` for negative strides, and for elements that are not aligned to their size.
pub fn import<M: ManagedTensorBase + 'static>(lent: Managed<M>, stream: Option<u64>) -> Result<Tensor> {
    let flags = lent.flags();
    let Described { address, bytes, shape, strides, dtype, device } =
        described(&lent.validate().map_err(|e| wrong(IMPORT, e))?)?;
    // SAFETY: who made the header from an address promised what DLPack asks for: memory for its elements until the header is dropped.
    let mut foreign = unsafe { Foreign::new(address, bytes, Box::new(lent.into_deleter())) };
    if flags.contains(DlpackFlags::READ_ONLY) {
        foreign = foreign.with_permission(Permission::Read);
    }
    if let Some(stream) = stream {
        foreign = foreign.with_stream(stream);
    }
    Tensor::from_foreign(foreign, 0, shape, &strides, dtype, &device).map_err(|e| e.of(IMPORT))
}

/// A header in this library's terms.
struct Described {
    address: u64,
    bytes: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
    dtype: DType,
    device: Device,
}

fn described(lent: &TensorRef<'_>) -> Result<Described> {
    let (dtype, device) = (dtype_of(lent.dtype())?, space_of(lent.device())?.device()?);
    let shape = lent.shape().iter().map(|&extent| extent as usize).collect::<Vec<_>>();
    let strides = lent.strides_or_compact().map_err(|e| wrong(IMPORT, e))?;
    // The stride of one element, or of none, is never used.
    let used = |(&stride, &extent): (&i64, &usize)| if extent > 1 { stride } else { stride.max(0) };
    let strides = strides.iter().zip(&shape).map(used).map(usize::try_from).collect::<std::result::Result<Vec<_>, _>>();
    let strides = strides.map_err(|_| {
        let message = format!("the strides are {:?}, and none may be negative", lent.strides().unwrap_or_default());
        Error::value(IMPORT, format!("{message}; take a contiguous copy"))
    })?;
    let bytes = Shape::new(&shape).end(&strides, 0).and_then(|end| end.checked_mul(dtype.size()));
    let bytes = bytes.ok_or_else(|| wrong(IMPORT, "the tensor is larger than memory can be"))?;
    // SAFETY: the header promises that its first element lies within its memory; nothing is read.
    let start = unsafe { lent.offset_bytes_ptr() }.map_err(|e| wrong(IMPORT, e));
    let address = if bytes == 0 { 0 } else { start?.expose_provenance() as u64 };
    Ok(Described { address, bytes, shape, strides, dtype, device })
}
