//! Layers with parameters, by the names of the registry's modules.

use crate::call::{find, run};
use crate::convert::{attribute, attributes};
use crate::tensor::Tensor;
use isograd::nn;
use isograd::parity::registry::{Attributes, Op};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Map, Value};

/// A layer: its parameters and buffers are given, its options are attributes.
#[pyclass(frozen, module = "isograd", subclass)]
pub struct Layer {
    op: &'static Op,
    layer: Box<dyn nn::Layer>,
    attributes: parking_lot::Mutex<Map<String, Value>>,
}

fn listed(inputs: Vec<(String, PyRef<'_, Tensor>)>) -> Vec<(String, isograd::Tensor)> {
    inputs.into_iter().map(|(name, t)| (name, t.0.clone())).collect()
}

#[pymethods]
impl Layer {
    /// The layer of a name. `x` is an input of the shape and dtype that it gets, for layers whose options depend on it.
    #[new]
    #[pyo3(signature = (name, inputs, attributes=None))]
    fn new(
        py: Python<'_>,
        name: &str,
        inputs: Vec<(String, PyRef<'_, Tensor>)>,
        attributes: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Layer> {
        let (op, attributes, inputs) = (find(name)?, self::attributes(attributes)?, listed(inputs));
        let given = Attributes::new(&Value::Object(attributes.clone()));
        let layer = run(py, move || op.build(&given, &inputs))?;
        Ok(Layer { op, layer, attributes: attributes.into() })
    }

    /// Sets an attribute of later calls, such as `training`.
    fn set(&self, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.attributes.lock().insert(name.to_string(), attribute(value)?);
        Ok(())
    }

    /// The results for inputs.
    fn forward(&self, py: Python<'_>, inputs: Vec<(String, PyRef<'_, Tensor>)>) -> PyResult<Vec<Tensor>> {
        let (inputs, given) = (listed(inputs), Value::Object(self.attributes.lock().clone()));
        let found = run(py, || self.op.forward(&*self.layer, &Attributes::new(&given), &inputs))?;
        Ok(found.into_iter().map(Tensor).collect())
    }

    /// The parameters by their names.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        self.layer.named_parameters().into_iter().map(|(name, t)| (name, Tensor(t))).collect()
    }

    /// The buffers by their names.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        self.layer.named_buffers().into_iter().map(|(name, t)| (name, Tensor(t))).collect()
    }

    fn __repr__(&self) -> String {
        format!("{:?}", &*self.layer)
    }
}
