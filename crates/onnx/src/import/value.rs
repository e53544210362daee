//! The values of a graph while it runs: tensors, numbers on the host, and sequences.

use super::element::Element;
use isograd_core::{DType, Device, Error, Result, Tensor, bf16, f16, is_in_step};
use std::sync::{Arc, OnceLock};

/// The most numbers that stay on the host.
pub const HOST_MOST: usize = 1024;

/// A value of a graph.
#[derive(Clone, Debug)]
pub enum Value {
    /// A tensor on the device, and the type of its elements.
    Tensor(Tensor, Element),
    /// Numbers that are known on the host: shapes, and what is computed from them.
    Host(Arc<Host>),
    /// Values in order.
    Sequence(Arc<Vec<Value>>),
    /// An optional value that is absent.
    Absent,
}

/// Few numbers on the host.
#[derive(Debug)]
pub struct Host {
    pub element: Element,
    pub dims: Vec<usize>,
    pub numbers: Numbers,
    /// The same numbers on a device, once they were asked for.
    tensor: OnceLock<Tensor>,
}

/// Numbers in row-major order. Those of bool are 0 and 1.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    Ints(Vec<i64>),
    Floats(Vec<f64>),
}

impl Host {
    pub fn new(element: Element, dims: Vec<usize>, numbers: Numbers) -> Host {
        Host { element, dims, numbers, tensor: OnceLock::new() }
    }

    pub fn ints(element: Element, dims: Vec<usize>, numbers: Vec<i64>) -> Host {
        Host::new(element, dims, Numbers::Ints(numbers))
    }

    pub fn floats(element: Element, dims: Vec<usize>, numbers: Vec<f64>) -> Host {
        Host::new(element, dims, Numbers::Floats(numbers))
    }

    /// The numbers as floats.
    pub fn to_floats(&self) -> Vec<f64> {
        match &self.numbers {
            Numbers::Ints(v) => v.iter().map(|&v| v as f64).collect(),
            Numbers::Floats(v) => v.clone(),
        }
    }

    /// The numbers on a device. They are kept there, except in a captured step, whose memory is its own.
    fn on(&self, device: &Device) -> Result<Tensor> {
        if let Some(known) = self.tensor.get().filter(|t| t.device() == device) {
            return Ok(known.clone());
        }
        let tensor = self.upload(device)?;
        if !is_in_step() {
            let _ = self.tensor.set(tensor.clone());
        }
        Ok(tensor)
    }

    fn upload(&self, device: &Device) -> Result<Tensor> {
        let dims = &self.dims;
        match (&self.numbers, self.element.dtype()) {
            (Numbers::Ints(v), DType::I64) => Tensor::from_slice(v, dims, device),
            (Numbers::Ints(v), DType::I32) => Tensor::from_vec(v.iter().map(|&v| v as i32).collect(), dims, device),
            (Numbers::Ints(v), DType::U8) => Tensor::from_vec(v.iter().map(|&v| v as u8).collect(), dims, device),
            (Numbers::Ints(v), _) => Tensor::from_vec(v.iter().map(|&v| v != 0).collect(), dims, device),
            (Numbers::Floats(v), DType::F64) => Tensor::from_slice(v, dims, device),
            (Numbers::Floats(v), DType::F16) => {
                Tensor::from_vec(v.iter().map(|&v| f16::from_f64(v)).collect(), dims, device)
            }
            (Numbers::Floats(v), DType::BF16) => {
                Tensor::from_vec(v.iter().map(|&v| bf16::from_f64(v)).collect(), dims, device)
            }
            (Numbers::Floats(v), _) => Tensor::from_vec(v.iter().map(|&v| v as f32).collect(), dims, device),
        }
    }
}

impl From<Host> for Value {
    fn from(host: Host) -> Value {
        Value::Host(Arc::new(host))
    }
}

impl From<Tensor> for Value {
    fn from(t: Tensor) -> Value {
        let element = Element::of(t.dtype());
        Value::Tensor(t, element)
    }
}

impl Value {
    /// A vector of i64 on the host.
    pub fn extents(v: &[usize]) -> Value {
        Host::ints(Element::I64, vec![v.len()], v.iter().map(|&v| v as i64).collect()).into()
    }

    /// An i64 on the host.
    pub fn int(v: i64) -> Value {
        Host::ints(Element::I64, Vec::new(), vec![v]).into()
    }

    /// A bool on the host.
    pub fn bool(v: bool) -> Value {
        Host::ints(Element::BOOL, Vec::new(), vec![v.into()]).into()
    }

    /// The tensor, on this device. Errors: `Dtype` for a sequence and for an absent value.
    pub fn tensor(&self, device: &Device) -> Result<Tensor> {
        match self {
            Value::Tensor(t, _) => Ok(t.clone()),
            Value::Host(host) => host.on(device),
            other => Err(other.no_tensor()),
        }
    }

    fn no_tensor(&self) -> Error {
        let what = if matches!(self, Value::Sequence(_)) { "a sequence" } else { "an absent value" };
        Error::dtype("onnx", format!("{what} was given, expected a tensor"))
    }

    /// The type of the elements. Errors: as [`tensor`](Value::tensor).
    pub fn element(&self) -> Result<Element> {
        match self {
            Value::Tensor(_, element) => Ok(*element),
            Value::Host(host) => Ok(host.element),
            other => Err(other.no_tensor()),
        }
    }

    /// The extents. Errors: as [`tensor`](Value::tensor).
    pub fn dims(&self) -> Result<Vec<usize>> {
        match self {
            Value::Tensor(t, _) => Ok(t.dims().to_vec()),
            Value::Host(host) => Ok(host.dims.clone()),
            other => Err(other.no_tensor()),
        }
    }

    /// The numbers on the host, for which a tensor on the device is read. Errors: as [`tensor`](Value::tensor); `Value` in a captured step.
    pub fn numbers(&self) -> Result<Numbers> {
        match self {
            Value::Host(host) => Ok(host.numbers.clone()),
            Value::Tensor(t, _) if t.dtype().is_float() => Ok(Numbers::Floats(t.to_f64_vec()?)),
            Value::Tensor(t, _) => Ok(Numbers::Ints(t.detach().cast(DType::I64)?.to_vec()?)),
            other => Err(other.no_tensor()),
        }
    }

    /// The integers. Errors: as [`numbers`](Value::numbers); `Dtype` for floats.
    pub fn ints(&self) -> Result<Vec<i64>> {
        match self.numbers()? {
            Numbers::Ints(v) => Ok(v),
            Numbers::Floats(_) => Err(Error::dtype("onnx", "floats were given, expected integers")),
        }
    }

    /// The numbers as floats. Errors: as [`numbers`](Value::numbers).
    pub fn floats(&self) -> Result<Vec<f64>> {
        Ok(match self.numbers()? {
            Numbers::Ints(v) => v.into_iter().map(|v| v as f64).collect(),
            Numbers::Floats(v) => v,
        })
    }

    /// The host's numbers of this value, if it has them.
    pub fn host(&self) -> Option<&Arc<Host>> {
        if let Value::Host(host) = self { Some(host) } else { None }
    }
}
