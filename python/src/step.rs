//! Captured steps.

use crate::errors::{below, forget, raised};
use crate::tensor::Tensor;
use isograd::Error;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// A function of tensors whose work is recorded and replayed where the device can record.
#[pyclass(unsendable, module = "isograd")]
pub struct Step(isograd::Step<'static, Vec<isograd::Tensor>, Vec<isograd::Tensor>>);

#[pymethods]
impl Step {
    /// Of a function that takes tensors, and returns a list of tensors.
    #[new]
    fn new(py: Python<'_>, function: Py<PyAny>, device: &str) -> PyResult<Step> {
        let device = crate::convert::device(py, Some(device))?;
        Ok(Step(device.capture(move |inputs| Python::attach(|py| called(py, &function, inputs)))))
    }

    fn run(&mut self, py: Python<'_>, inputs: Vec<PyRef<'_, Tensor>>) -> PyResult<Vec<Tensor>> {
        forget();
        let inputs = inputs.iter().map(|t| t.0.clone()).collect();
        let found = self.0.run(inputs).map_err(|e| raised(py, e))?;
        Ok(found.into_iter().map(Tensor).collect())
    }

    /// The recording in words.
    fn explain(&self) -> Option<String> {
        self.0.explain()
    }
}

/// The tensors that a function of Python returns.
pub fn called(
    py: Python<'_>,
    function: &Py<PyAny>,
    inputs: Vec<isograd::Tensor>,
) -> Result<Vec<isograd::Tensor>, Error> {
    let call = || -> PyResult<Vec<isograd::Tensor>> {
        let inputs =
            PyTuple::new(py, inputs.into_iter().map(Tensor).map(|t| Py::new(py, t)).collect::<PyResult<Vec<_>>>()?)?;
        let found = function.bind(py).call1(inputs)?;
        Ok(found.extract::<Vec<PyRef<'_, Tensor>>>()?.iter().map(|t| t.0.clone()).collect())
    };
    call().map_err(|e| below("capture", e))
}
