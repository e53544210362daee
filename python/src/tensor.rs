//! `isograd.Tensor`.

use crate::call::run;
use crate::convert::{dtype_of, from_lists};
use crate::errors::raised;
use crate::exchange;
use dlpark::python::ExportRequest;
use isograd::{DType, Device, Layout, PrintOptions};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyList};
use std::ffi::{CStr, c_int};

/// A tensor on a device.
#[pyclass(frozen, module = "isograd", weakref)]
#[derive(Clone)]
pub struct Tensor(pub isograd::Tensor);

/// A tensor of a number, or of lists of numbers: f32 for floats, i64 for integers, bool for flags, unless a dtype is given.
#[pyfunction]
#[pyo3(signature = (data, dtype=None, device=None))]
pub fn tensor(data: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>, device: Option<&str>) -> PyResult<Tensor> {
    let dtype = dtype.map(dtype_of).transpose()?;
    from_lists(data, dtype, &crate::convert::device(data.py(), device)?).map(Tensor)
}

impl Tensor {
    /// The type of the elements, as Python's buffers name it.
    fn format(&self) -> PyResult<&'static CStr> {
        Ok(match self.0.dtype() {
            DType::F64 => c"d",
            DType::F32 => c"f",
            DType::F16 => c"e",
            DType::BF16 => return Err(PyBufferError::new_err("buffers have no elements of bf16; `to(\"f32\")` has")),
            DType::I64 => c"q",
            DType::I32 => c"i",
            DType::U8 => c"B",
            DType::Bool => c"?",
        })
    }
}

fn numbers<'py>(py: Python<'py>, t: &isograd::Tensor) -> PyResult<Vec<Bound<'py, PyAny>>> {
    Ok(match t.dtype() {
        dtype if dtype.is_float() => {
            let values = run(py, || t.to_f64_vec())?;
            values.into_iter().map(|v| PyFloat::new(py, v).into_any()).collect()
        }
        DType::Bool => {
            let values = run(py, || t.cast(DType::U8)?.to_vec::<u8>())?;
            values.into_iter().map(|v| pyo3::types::PyBool::new(py, v != 0).to_owned().into_any()).collect()
        }
        _ => {
            let values = run(py, || t.cast(DType::I64)?.to_vec::<i64>())?;
            values.into_iter().map(|v| PyInt::new(py, v).into_any()).collect()
        }
    })
}

/// The shape and the strides in bytes of a buffer, which live as long as the buffer.
struct Extents {
    shape: Box<[ffi::Py_ssize_t]>,
    strides: Box<[ffi::Py_ssize_t]>,
}

impl Extents {
    fn of(layout: &Layout, size: usize) -> Extents {
        let signed =
            |extents: &[usize], by: usize| extents.iter().map(|&extent| (extent * by) as ffi::Py_ssize_t).collect();
        Extents { shape: signed(layout.shape().dims(), 1), strides: signed(layout.strides(), size) }
    }
}

#[pymethods]
impl Tensor {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, self.0.dims())
    }

    /// Steps between neighbours, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, self.0.layout().strides())
    }

    #[getter]
    fn ndim(&self) -> usize {
        self.0.rank()
    }

    #[getter]
    fn size(&self) -> usize {
        self.0.numel()
    }

    /// The name of the dtype, such as `f32`.
    #[getter]
    fn dtype(&self) -> String {
        self.0.dtype().to_string()
    }

    /// The name of the device, such as `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        self.0.device().name().to_string()
    }

    /// The address of the first element.
    fn data_ptr(&self, py: Python<'_>) -> PyResult<u64> {
        run(py, || self.0.address())
    }

    fn is_contiguous(&self) -> bool {
        self.0.is_contiguous()
    }

    #[getter]
    fn requires_grad(&self) -> bool {
        self.0.requires_grad()
    }

    #[getter]
    fn is_leaf(&self) -> bool {
        self.0.is_leaf()
    }

    /// The sum of the gradients of backward passes; `None` before the first.
    #[getter]
    fn grad(&self) -> Option<Tensor> {
        self.0.grad().map(Tensor)
    }

    fn set_grad(&self, py: Python<'_>, gradient: Option<PyRef<'_, Tensor>>) -> PyResult<()> {
        let gradient = gradient.map(|g| g.0.clone());
        self.0.set_grad(gradient).map_err(|e| raised(py, e))
    }

    /// The same elements as a leaf of the tape.
    fn require_grad(&self, py: Python<'_>) -> PyResult<Tensor> {
        self.0.require_grad().map(Tensor).map_err(|e| raised(py, e))
    }

    /// The same elements outside of the tape.
    fn detach(&self) -> Tensor {
        Tensor(self.0.detach())
    }

    /// Adds the gradient of every leaf to the leaf's `grad`. `gradient` is that of this tensor, by default 1 for one element.
    #[pyo3(signature = (gradient=None, retain_graph=false, create_graph=false))]
    fn backward(
        &self,
        py: Python<'_>,
        gradient: Option<PyRef<'_, Tensor>>,
        retain_graph: bool,
        create_graph: bool,
    ) -> PyResult<()> {
        let gradient = gradient.map(|g| g.0.clone());
        let options = isograd::tape::BackwardOptions { gradient, retain: retain_graph, create_graph };
        run(py, || self.0.backward_with(&options))
    }

    /// This tensor on a device, in a dtype, or both: `to("cuda:0")`, `to("f16")`, `to(device="cpu", dtype="f32")`.
    #[pyo3(signature = (target=None, *, device=None, dtype=None))]
    fn to(
        &self,
        py: Python<'_>,
        target: Option<&Bound<'_, PyAny>>,
        device: Option<&str>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Tensor> {
        let mut wanted: Option<Device> = device.map(|name| crate::convert::device(py, Some(name))).transpose()?;
        let mut dtype = dtype.map(dtype_of).transpose()?;
        if let Some(target) = target {
            match dtype_of(target) {
                Ok(found) => dtype = Some(found),
                Err(_) => wanted = Some(crate::convert::device(py, Some(&target.str()?.to_string()))?),
            }
        }
        run(py, || {
            let t = if let Some(dtype) = dtype { self.0.cast(dtype)? } else { self.0.clone() };
            if let Some(device) = &wanted { t.to_device(device) } else { Ok(t) }
        })
        .map(Tensor)
    }

    /// The number of a tensor of one element.
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match numbers(py, &self.0)?.as_slice() {
            [one] => Ok(one.clone()),
            all => Err(PyValueError::new_err(format!("the tensor has {} elements, expected one", all.len()))),
        }
    }

    /// The numbers as lists of lists.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut level = numbers(py, &self.0)?;
        for (depth, &extent) in self.0.dims().iter().enumerate().rev() {
            let count = self.0.dims()[..depth].iter().product::<usize>();
            let part = |i: usize| PyList::new(py, &level[i * extent..(i + 1) * extent]).map(|list| list.into_any());
            level = (0..count).map(part).collect::<PyResult<_>>()?;
        }
        level.into_iter().next().ok_or_else(|| PyValueError::new_err("the tensor has no elements"))
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        self.item(py)?.extract()
    }

    fn __int__(&self, py: Python<'_>) -> PyResult<i64> {
        self.item(py)?.extract::<f64>().map(|v| v as i64)
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        self.item(py)?.is_truthy()
    }

    fn __len__(&self) -> PyResult<usize> {
        self.0.dims().first().copied().ok_or_else(|| PyTypeError::new_err("a tensor without dimensions has no length"))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || Ok(self.0.display(&PrintOptions::default()).to_string()))
    }

    fn __hash__(slf: &Bound<'_, Self>) -> isize {
        slf.as_ptr() as isize >> 4
    }

    /// The capsule of DLPack.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let exported = exchange::prepared(py, &self.0, dl_device, copy)?;
        let request = ExportRequest::parse(stream, max_version, dl_device, None)?;
        dlpark::python::export_dlpack(&exported, py, request)
    }

    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(u32, i32)> {
        isograd::dlpack::device_of(self.0.device()).map(Into::into).map_err(|e| raised(py, e))
    }

    /// The buffer of a tensor on the CPU, which keeps it.
    #[allow(unsafe_code, reason = "Python's buffers are structs of C")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let t = &this.0;
        if view.is_null() {
            return Err(PyBufferError::new_err("the buffer has no place"));
        }
        if t.requires_grad() {
            return Err(PyBufferError::new_err("the tensor requires a gradient; `detach()` it first"));
        }
        if t.device().backend().space() != Some(isograd::Space::Host) {
            return Err(PyBufferError::new_err(format!("the tensor is on {}; `to(\"cpu\")` has a buffer", t.device())));
        }
        let is_read_only = t.permission() == isograd::Permission::Read;
        if is_read_only && flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("the memory belongs to another library, which lets nobody write it"));
        }
        if flags & ffi::PyBUF_STRIDES != ffi::PyBUF_STRIDES && !t.is_contiguous() {
            return Err(PyBufferError::new_err("the tensor is not contiguous"));
        }
        let (format, size) = (this.format()?, t.dtype().size());
        let address = t.address().map_err(|e| raised(slf.py(), e))?;
        let extents = Box::new(Extents::of(t.layout(), size));
        // SAFETY: Python gives a place for the struct, calls `__releasebuffer__` once with it, and keeps `obj`, whose tensor keeps the memory.
        unsafe {
            let view = &mut *view;
            view.buf = std::ptr::with_exposed_provenance_mut(address as usize);
            view.len = (t.numel() * size) as ffi::Py_ssize_t;
            view.readonly = is_read_only.into();
            view.itemsize = size as ffi::Py_ssize_t;
            view.format =
                if flags & ffi::PyBUF_FORMAT != 0 { format.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            view.ndim = t.rank() as c_int;
            let has = |flag: c_int| flags & flag == flag;
            view.shape = if has(ffi::PyBUF_ND) { extents.shape.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            view.strides =
                if has(ffi::PyBUF_STRIDES) { extents.strides.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            view.suboffsets = std::ptr::null_mut();
            view.internal = Box::into_raw(extents).cast();
            view.obj = slf.into_any().into_ptr();
        }
        Ok(())
    }

    #[allow(unsafe_code, reason = "as above")]
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: `__getbuffer__` put the box there.
        drop(unsafe { Box::from_raw((*view).internal.cast::<Extents>()) });
    }
}
