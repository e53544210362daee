//! Exceptions: one for each kind of error, beside the built-in exception that programs expect.

use isograd::{Error, Kind};
use pyo3::exceptions::{PyException, PyIndexError, PyMemoryError, PyNotImplementedError, PyOSError, PyRuntimeError};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

/// The classes by the names of kinds, and the built-in class of which each is one too.
const CLASSES: [(&str, &str); 11] = [
    ("ShapeError", "ValueError"),
    ("DtypeError", "TypeError"),
    ("DeviceError", "ValueError"),
    ("AttributeValueError", "ValueError"),
    ("IndexOutOfRange", "IndexError"),
    ("DataError", "ValueError"),
    ("UnsupportedError", "NotImplementedError"),
    ("OutOfMemory", "MemoryError"),
    ("BackendError", "RuntimeError"),
    ("FileError", "OSError"),
    ("FormatError", "ValueError"),
];

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Shape => "ShapeError",
        Kind::Dtype => "DtypeError",
        Kind::Device => "DeviceError",
        Kind::Attr => "AttributeValueError",
        Kind::Index => "IndexOutOfRange",
        Kind::Value => "DataError",
        Kind::Unsupported => "UnsupportedError",
        Kind::OutOfMemory => "OutOfMemory",
        Kind::Io => "FileError",
        Kind::Format => "FormatError",
        _ => "BackendError",
    }
}

static MADE: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

/// Adds the classes to the module. All are an `isograd.Error`.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let base = class(py, "Error", &[py.get_type::<PyException>()])?;
    module.add("Error", &base)?;
    let made = PyDict::new(py);
    for (name, builtin) in CLASSES {
        let builtin = match builtin {
            "TypeError" => py.get_type::<PyTypeError>(),
            "IndexError" => py.get_type::<PyIndexError>(),
            "NotImplementedError" => py.get_type::<PyNotImplementedError>(),
            "MemoryError" => py.get_type::<PyMemoryError>(),
            "RuntimeError" => py.get_type::<PyRuntimeError>(),
            "OSError" => py.get_type::<PyOSError>(),
            _ => py.get_type::<PyValueError>(),
        };
        let class = class(py, name, &[base.clone(), builtin])?;
        module.add(name, &class)?;
        made.set_item(name, class)?;
    }
    let _ = MADE.set(py, made.unbind());
    Ok(())
}

fn class<'py>(py: Python<'py>, name: &str, bases: &[Bound<'py, PyType>]) -> PyResult<Bound<'py, PyType>> {
    let attributes = PyDict::new(py);
    attributes.set_item("__module__", "isograd")?;
    let made = py.get_type::<PyType>().call1((name, PyTuple::new(py, bases)?, attributes))?;
    Ok(made.cast_into::<PyType>()?)
}

/// The exception of an error. An exception that Python raised below is raised again as it was.
pub fn raised(py: Python<'_>, error: Error) -> PyErr {
    if let Some(original) = PENDING.take() {
        return original;
    }
    let class = MADE.get(py).and_then(|made| made.bind(py).get_item(name_of(error.kind())).ok().flatten());
    match class.and_then(|class| class.cast_into::<PyType>().ok()) {
        Some(class) => PyErr::from_type(class, error.to_string()),
        None => PyRuntimeError::new_err(error.to_string()),
    }
}

thread_local! {
    /// The exception of a function of Python that a call ran.
    static PENDING: std::cell::Cell<Option<PyErr>> = const { std::cell::Cell::new(None) };
}

/// The error of a function of Python that a call ran; [`raised`] raises the exception again.
pub fn below(op: &'static str, error: PyErr) -> Error {
    let text = error.to_string();
    PENDING.set(Some(error));
    Error::value(op, text)
}

/// Forgets the exception of a call whose error was not raised.
pub fn forget() {
    drop(PENDING.take());
}

/// Runs work that needs no Python, while other threads of Python run.
pub fn detached<T: Send>(py: Python<'_>, f: impl FnOnce() -> isograd::Result<T> + Send) -> PyResult<T> {
    py.detach(f).map_err(|e| raised(py, e))
}
