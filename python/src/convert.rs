//! Values of Python as tensors' numbers and as attributes.

use crate::errors::raised;
use isograd::{DType, Device, Error, Tensor};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde_json::{Map, Value};

/// Lists within lists that a value may have.
const DEEPEST: usize = 64;

/// The dtype of a name: this library's, NumPy's or PyTorch's.
pub fn dtype(py: Python<'_>, name: &str) -> PyResult<DType> {
    let short = match name.rsplit('.').next().unwrap_or(name) {
        "float64" | "double" => "f64",
        "float32" | "float" => "f32",
        "float16" | "half" => "f16",
        "bfloat16" => "bf16",
        "int64" | "long" => "i64",
        "int32" | "int" => "i32",
        "uint8" => "u8",
        other => other,
    };
    short.parse().map_err(|e| raised(py, e))
}

/// The dtype that an argument names, by its text: `"f32"`, `numpy.float32`, `torch.float32`.
pub fn dtype_of(value: &Bound<'_, PyAny>) -> PyResult<DType> {
    let py = value.py();
    if let Ok(name) = value.cast::<PyString>() {
        return dtype(py, name.to_str()?);
    }
    // A class of NumPy has the name; an instance has the text.
    let name = value.getattr("__name__").or_else(|_| value.str().map(|text| text.into_any()))?;
    dtype(py, name.extract::<String>()?.as_str())
}

pub fn device(py: Python<'_>, name: Option<&str>) -> PyResult<Device> {
    name.map_or_else(Device::cpu, str::parse).map_err(|e| raised(py, e))
}

/// An attribute.
pub fn attribute(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    within(value, DEEPEST)
}

fn within(value: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth == 0 {
        return Err(PyValueError::new_err("lists are nested too deep"));
    }
    let list = |items: Vec<Bound<'_, PyAny>>| items.iter().map(|item| within(item, depth - 1)).collect::<PyResult<_>>();
    if value.is_none() {
        Ok(Value::Null)
    } else if let Ok(flag) = value.cast::<PyBool>() {
        Ok(flag.is_true().into())
    } else if value.is_instance_of::<PyInt>() {
        value.extract::<i64>().map(Value::from).or_else(|_| value.extract::<u64>().map(Value::from))
    } else if let Ok(number) = value.cast::<PyFloat>() {
        let number = number.value();
        // JSON has no infinities; the registry reads their names.
        Ok(serde_json::Number::from_f64(number).map_or_else(|| number.to_string().to_lowercase().into(), Value::Number))
    } else if let Ok(text) = value.cast::<PyString>() {
        Ok(text.to_str()?.into())
    } else if let Ok(items) = value.cast::<PyList>() {
        list(items.iter().collect()).map(Value::Array)
    } else if let Ok(items) = value.cast::<PyTuple>() {
        list(items.iter().collect()).map(Value::Array)
    } else if let Ok(entries) = value.cast::<PyDict>() {
        attributes(Some(entries)).map(Value::Object)
    } else if value.hasattr("__index__")? {
        Ok(value.call_method0("__index__")?.extract::<i64>()?.into())
    } else if value.hasattr("__float__")? {
        within(&value.call_method0("__float__")?, depth - 1)
    } else {
        dtype_of(value).map(|dtype| dtype.to_string().into()).map_err(|_| {
            let kind = value.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
            PyTypeError::new_err(format!(
                "a value of type {kind} is no attribute, expected a number, a text, a list or a dtype"
            ))
        })
    }
}

/// Attributes by name, without those that are `None`.
pub fn attributes(values: Option<&Bound<'_, PyDict>>) -> PyResult<Map<String, Value>> {
    let mut found = Map::new();
    for (name, value) in values.into_iter().flatten() {
        found.insert(name.extract()?, attribute(&value)?);
    }
    Ok(found)
}

/// A value of an attribute for Python.
pub fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(flag) => PyBool::new(py, *flag).to_owned().into_any(),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(integer), ..) => integer.into_pyobject(py)?.into_any(),
            (_, Some(integer), _) => integer.into_pyobject(py)?.into_any(),
            (.., float) => float.into_pyobject(py)?.into_any(),
        },
        Value::String(text) => text.into_pyobject(py)?.into_any(),
        Value::Array(items) => {
            let items = items.iter().map(|item| to_python(py, item)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, items)?.into_any()
        }
        Value::Object(entries) => {
            let dict = PyDict::new(py);
            entries.iter().try_for_each(|(name, item)| dict.set_item(name, to_python(py, item)?))?;
            dict.into_any()
        }
    })
}

/// Numbers in lists, in row-major order.
#[derive(Default)]
struct Numbers {
    shape: Vec<usize>,
    floats: Vec<f64>,
    ints: Vec<i64>,
    has_floats: bool,
    has_ints: bool,
}

impl Numbers {
    fn add(&mut self, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<()> {
        let items: Option<Vec<Bound<'_, PyAny>>> = match (value.cast::<PyList>(), value.cast::<PyTuple>()) {
            (Ok(list), _) => Some(list.iter().collect()),
            (_, Ok(tuple)) => Some(tuple.iter().collect()),
            _ => None,
        };
        let is_first = self.floats.is_empty() && self.shape.len() == depth;
        let Some(items) = items else {
            if depth != self.shape.len() {
                return Err(PyValueError::new_err("the lists have different depths"));
            }
            if let Ok(flag) = value.cast::<PyBool>() {
                self.ints.push(flag.is_true().into());
                self.floats.push(flag.is_true().into());
            } else if value.is_instance_of::<PyInt>() {
                self.has_ints = true;
                self.ints.push(value.extract()?);
                self.floats.push(value.extract()?);
            } else {
                self.has_floats = true;
                self.ints.push(0);
                self.floats.push(value.extract()?);
            }
            return Ok(());
        };
        if is_first && depth < DEEPEST {
            self.shape.push(items.len());
        } else if self.shape.get(depth) != Some(&items.len()) {
            return Err(PyValueError::new_err("the lists have different lengths"));
        }
        items.iter().try_for_each(|item| self.add(item, depth + 1))
    }
}

/// A tensor of numbers in lists: f32, i64 or bool, unless a dtype is given.
pub fn from_lists(value: &Bound<'_, PyAny>, wanted: Option<DType>, device: &Device) -> PyResult<Tensor> {
    let mut numbers = Numbers::default();
    numbers.add(value, 0)?;
    let Numbers { shape, floats, ints, has_floats, has_ints } = numbers;
    let own = match (has_floats, has_ints) {
        (true, _) => DType::F32,
        (false, true) => DType::I64,
        _ if floats.is_empty() => DType::F32,
        _ => DType::Bool,
    };
    let made = || -> Result<Tensor, Error> {
        let dtype = wanted.unwrap_or(own);
        let t = match has_floats || dtype.is_float() && !has_ints {
            true => Tensor::from_vec(floats, shape, &Device::cpu()?)?.cast(dtype)?,
            false => Tensor::from_vec(ints, shape, &Device::cpu()?)?.cast(dtype)?,
        };
        t.to_device(device)
    };
    made().map_err(|e| raised(value.py(), e))
}
