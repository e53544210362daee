//! Optimizers, by the names of the registry's rows.

use crate::call::{find, run};
use crate::convert::attributes;
use crate::errors::raised;
use crate::tensor::Tensor;
use isograd::nn;
use isograd::parity::registry::Attributes;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;
use std::collections::BTreeMap;

/// An optimizer of parameters that are on the tape.
#[pyclass(frozen, module = "isograd", subclass)]
pub struct Optimizer(Mutex<Box<dyn nn::Optimizer>>);

#[pymethods]
impl Optimizer {
    #[new]
    #[pyo3(signature = (name, parameters, attributes=None))]
    fn new(
        py: Python<'_>,
        name: &str,
        parameters: Vec<PyRef<'_, Tensor>>,
        attributes: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Optimizer> {
        let parameters = parameters.iter().map(|t| t.0.clone()).collect();
        let (op, given) = (find(name)?, Attributes::new(&Value::Object(self::attributes(attributes)?)));
        op.optimize(&given, parameters).map(|made| Optimizer(made.into())).map_err(|e| raised(py, e))
    }

    /// Updates every parameter that has a gradient, and clears the gradients.
    fn step(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.lock().step())
    }

    /// Clears the gradients.
    fn zero_grad(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.lock().parameters().iter().try_for_each(|p| p.set_grad(None)))
    }

    /// The learning rate.
    #[getter]
    fn lr(&self) -> f64 {
        self.0.lock().learning_rate()
    }

    #[setter]
    fn set_lr(&self, py: Python<'_>, lr: f64) -> PyResult<()> {
        self.0.lock().set_lr(lr).map_err(|e| raised(py, e))
    }

    /// States and options by name.
    fn state_dict(&self, py: Python<'_>) -> PyResult<BTreeMap<String, Tensor>> {
        let state = run(py, || self.0.lock().state_dict())?;
        Ok(state.into_iter().map(|(name, t)| (name, Tensor(t))).collect())
    }

    fn load_state_dict(&self, py: Python<'_>, state: BTreeMap<String, PyRef<'_, Tensor>>) -> PyResult<()> {
        let state = state.into_iter().map(|(name, t)| (name, t.0.clone())).collect();
        run(py, || self.0.lock().load_state_dict(&state))
    }
}
