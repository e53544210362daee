//! Calls of the registry's ops, their descriptions, and gradients.

use crate::convert::{attributes, device, to_python};
use crate::errors::{detached, forget};
use crate::tensor::Tensor;
use isograd::parity::registry::{MODULES, OPS, Op, Parameter};
use isograd::parity::{case::Case, signature};
use isograd::tape::{BackwardOptions, grad_allow_unused};
use isograd::{Result, no_grad};
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde_json::Value;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::LazyLock;

thread_local! {
    /// Whether calls of this thread are recorded.
    static RECORDS: Cell<bool> = const { Cell::new(true) };
}

#[pyfunction]
pub fn is_grad_enabled() -> bool {
    RECORDS.get()
}

/// Sets whether calls of this thread are recorded. Returns whether they were.
#[pyfunction]
pub fn set_grad_enabled(is_enabled: bool) -> bool {
    RECORDS.replace(is_enabled)
}

/// Runs work of this thread's mode, while other threads of Python run.
pub fn run<T: Send>(py: Python<'_>, f: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    let records = RECORDS.get();
    forget();
    detached(py, move || if records { f() } else { no_grad(f) })
}

static BY_NAME: LazyLock<HashMap<&'static str, &'static Op>> =
    LazyLock::new(|| OPS.iter().chain(MODULES.iter()).map(|op| (op.name, op)).collect());

pub fn find(name: &str) -> PyResult<&'static Op> {
    let found = BY_NAME.get(name).copied();
    found.ok_or_else(|| PyAttributeError::new_err(format!("isograd has no op `{name}`")))
}

/// A call of the registry, with inputs that are given.
pub fn case(
    inputs: Vec<(String, PyRef<'_, Tensor>)>,
    values: Option<&Bound<'_, PyDict>>,
    on: Option<&str>,
    py: Python<'_>,
) -> PyResult<Case> {
    let attributes = Value::Object(attributes(values)?);
    let device = if inputs.is_empty() || on.is_some() { Some(device(py, on)?) } else { None };
    Ok(Case { attributes, inputs: inputs.into_iter().map(|(name, t)| (name, t.0.clone())).collect(), device })
}

/// The results of an op. One that changes its input in place changes the given tensor.
#[pyfunction]
#[pyo3(signature = (name, inputs, attributes=None, device=None))]
pub fn call(
    py: Python<'_>,
    name: &str,
    inputs: Vec<(String, PyRef<'_, Tensor>)>,
    attributes: Option<&Bound<'_, PyDict>>,
    device: Option<&str>,
) -> PyResult<Vec<Tensor>> {
    let op = find(name)?;
    let case = case(inputs, attributes, device, py)?;
    let results = run(py, || if op.changes.is_some() { op.call_in_place(&case) } else { op.call(&case) })?;
    Ok(results.into_iter().map(Tensor).collect())
}

/// The gradients of results, each with its own gradient, with respect to inputs; `None` for an input on which no result depends.
#[pyfunction]
#[pyo3(signature = (results, inputs, retain_graph=false, create_graph=false))]
pub fn gradients(
    py: Python<'_>,
    results: Vec<(PyRef<'_, Tensor>, PyRef<'_, Tensor>)>,
    inputs: Vec<PyRef<'_, Tensor>>,
    retain_graph: bool,
    create_graph: bool,
) -> PyResult<Vec<Option<Tensor>>> {
    let roots: Vec<_> = results.iter().map(|(y, dy)| (y.0.clone(), dy.0.clone())).collect();
    let inputs: Vec<_> = inputs.iter().map(|t| t.0.clone()).collect();
    let options = BackwardOptions { retain: retain_graph, create_graph, ..Default::default() };
    let found = run(py, || {
        let roots: Vec<_> = roots.iter().map(|(y, dy)| (y, dy.clone())).collect();
        grad_allow_unused(&roots, &inputs.iter().collect::<Vec<_>>(), &options)
    })?;
    Ok(found.into_iter().map(|gradient| gradient.map(Tensor)).collect())
}

fn described<'py>(py: Python<'py>, ops: &'static [Op]) -> PyResult<Bound<'py, PyList>> {
    let found = detached(py, || ops.iter().map(signature).collect::<Result<Vec<_>>>())?;
    let all = PyList::empty(py);
    for (op, signature) in ops.iter().zip(found) {
        let entry = PyDict::new(py);
        entry.set_item("name", op.name)?;
        entry.set_item("category", op.category.to_string())?;
        entry.set_item("in_place", op.changes.is_some())?;
        entry.set_item("constant", op.constant)?;
        entry.set_item("differentiable", !matches!(op.derivative, isograd::parity::registry::Derivative::None(_)))?;
        for (key, mut parameters) in [("inputs", signature.inputs), ("attributes", signature.attributes)] {
            parameters.sort_by_key(|(_, parameter)| parameter.order);
            let list = parameters.iter().map(|(name, of)| parameter(py, name, of)).collect::<PyResult<Vec<_>>>()?;
            entry.set_item(key, list)?;
        }
        all.append(entry)?;
    }
    Ok(all)
}

fn parameter<'py>(py: Python<'py>, name: &str, described: &Parameter) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("name", name)?;
    entry.set_item("expected", &described.expected)?;
    entry.set_item("optional", described.is_optional || described.default.is_some())?;
    entry.set_item("default", described.default.as_ref().map(|value| to_python(py, value)).transpose()?)?;
    Ok(entry)
}

/// The ops of the registry: names, inputs and attributes.
#[pyfunction]
pub fn operators(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    described(py, &OPS)
}

/// The modules of the registry.
#[pyfunction]
pub fn modules(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    described(py, &MODULES)
}

/// The names of the optimizers.
#[pyfunction]
pub fn optimizers() -> Vec<&'static str> {
    OPS.iter().filter(|op| op.optimizer.is_some()).map(|op| op.name).collect()
}

/// Calls of an op: inputs by name, and attributes.
#[pyfunction]
pub fn examples<'py>(py: Python<'py>, name: &str) -> PyResult<Vec<(Bound<'py, PyDict>, Bound<'py, PyAny>)>> {
    let op = find(name)?;
    let cases = detached(py, || op.examples())?;
    let each = |case: &Case| {
        let inputs = PyDict::new(py);
        case.inputs.iter().try_for_each(|(name, t)| inputs.set_item(name, Py::new(py, Tensor(t.clone()))?))?;
        Ok((inputs, to_python(py, &case.attributes)?))
    };
    cases.iter().map(each).collect()
}
