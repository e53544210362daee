//! Tensors from and to other libraries of Python, by DLPack.

use crate::call::run;
use crate::errors::{detached, raised};
use crate::tensor::Tensor;
use dlpark::ffi::{DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::python::consumer::stream::{cuda, rocm};
use dlpark::python::{
    CudaStreamRequest, DlpackExporter, DlpackStream, ExportRequest, ImportRequest, ImportedDlpack, StreamArg,
};
use dlpark::{DlpackFlags, Managed};
use isograd::dlpack::{device_of, export, import};
use isograd::{Device, Permission};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use std::ffi::c_void;

/// A tensor that is lent.
pub struct Lent {
    tensor: isograd::Tensor,
    device: DLDevice,
}

/// The tensor, or a copy of it: where one is asked for, on the CPU where that device is asked for, and of a result that would move.
pub fn prepared(py: Python<'_>, t: &isograd::Tensor, wanted: Option<(u32, i32)>, copy: Option<bool>) -> PyResult<Lent> {
    if t.requires_grad() {
        return Err(PyBufferError::new_err(
            "the tensor requires a gradient, which others do not compute; `detach()` it first",
        ));
    }
    let to_host = wanted == Some(DLDevice::CPU.into());
    let own = device_of(t.device()).map_err(|e| raised(py, e))?;
    let is_elsewhere = to_host && own != DLDevice::CPU;
    let must = is_elsewhere || t.address().is_err();
    if must && copy == Some(false) {
        return Err(PyBufferError::new_err("the elements cannot be shared where they are, and a copy is not allowed"));
    }
    let tensor = match (is_elsewhere, must || copy == Some(true)) {
        (true, _) => detached(py, || t.to_device(&Device::cpu()?))?,
        (false, true) => detached(py, || t.copy())?,
        _ => t.detach(),
    };
    let device = device_of(tensor.device()).map_err(|e| raised(py, e))?;
    Ok(Lent { tensor, device })
}

impl DlpackExporter for Lent {
    fn device(&self) -> DLDevice {
        self.device
    }

    fn flags(&self) -> DlpackFlags {
        match self.tensor.permission() {
            Permission::Write => DlpackFlags::empty(),
            Permission::Read => DlpackFlags::READ_ONLY,
        }
    }

    /// Makes the consumer's stream wait for the device's work.
    fn prepare_export(&self, py: Python<'_>, request: &ExportRequest<'_>) -> PyResult<()> {
        let stream = match self.device.device_type {
            DLDeviceType::CUDA => match request.cuda_stream()? {
                CudaStreamRequest::NoSync => return Ok(()),
                CudaStreamRequest::Omitted | CudaStreamRequest::LegacyDefault => 1,
                CudaStreamRequest::PerThreadDefault => 2,
                CudaStreamRequest::Pointer(stream) => stream as u64,
            },
            DLDeviceType::ROCM => match request.stream().map(|stream| stream.extract::<i64>()).transpose()? {
                Some(-1) => return Ok(()),
                Some(stream) => u64::try_from(stream).map_err(|e| PyValueError::new_err(e.to_string()))?,
                None => 0,
            },
            _ => return Ok(()),
        };
        run(py, || self.tensor.device().backend().follow(Some(stream)))
    }

    fn export_legacy(&self, py: Python<'_>) -> PyResult<Managed<DLManagedTensor>> {
        export(&self.tensor).map_err(|e| raised(py, e))
    }

    fn export_versioned(&self, py: Python<'_>) -> PyResult<Managed<DLManagedTensorVersioned>> {
        export(&self.tensor).map_err(|e| raised(py, e))
    }
}

/// The stream in which a device's calls run.
struct Queue(u64);

#[allow(unsafe_code, reason = "dlpark asks for a promise about the stream")]
// SAFETY: the stream is that of a device's backend, which lives as long as the process.
unsafe impl DlpackStream for Queue {
    fn as_python_arg(&self, _py: Python<'_>, device: DLDevice) -> PyResult<StreamArg> {
        let stream = std::ptr::with_exposed_provenance_mut::<c_void>(self.0 as usize);
        if device.device_type == DLDeviceType::ROCM { rocm(stream) } else { Ok(cuda(stream)) }
    }
}

/// A tensor of the memory of another library's, `x.__dlpack__()`. With a copy, of memory of its own. `stream` is the handle of the stream on which
/// the other library uses the memory again; without it the host waits for the device before the memory is given back.
#[pyfunction]
#[pyo3(signature = (x, /, *, copy=None, stream=None))]
pub fn from_dlpack(x: &Bound<'_, PyAny>, copy: Option<bool>, stream: Option<u64>) -> PyResult<Tensor> {
    let py = x.py();
    let request = ImportRequest::new(x.as_borrowed())?;
    let queue = request.device().ok().and_then(|device| {
        let name = match device.device_type {
            DLDeviceType::CUDA | DLDeviceType::CUDAMANAGED => format!("cuda:{}", device.device_id),
            DLDeviceType::ROCM => format!("hip:{}", device.device_id),
            _ => return None,
        };
        name.parse::<Device>().ok()?.backend().stream().map(Queue)
    });
    let lent = request.import(queue.as_ref().map(|queue| queue as &dyn DlpackStream), None)?;
    let t = match lent {
        ImportedDlpack::Legacy(lent) => import(lent, stream),
        ImportedDlpack::Versioned(lent) => import(lent, stream),
    };
    let t = t.map_err(|e| raised(py, e))?;
    if copy == Some(true) { detached(py, || t.copy()).map(Tensor) } else { Ok(Tensor(t)) }
}
