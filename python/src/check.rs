//! The checks of `isograd parity` for functions of Python.

use crate::convert::{device, dtype_of, to_python};
use crate::errors::{below, detached};
use crate::tensor::Tensor;
use isograd::Result;
use isograd::parity::registry::implemented;
use isograd::parity::{Check, Extent, Options, Report, case::Case, html, run_ops};
use isograd::tape::record_outputs;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Whether a function passes the checks of an op in each dtype, the findings as text, and as a page.
///
/// `function(inputs, attributes)` gets tensors by name. It returns a list of results, and `None` or a function of the results' gradients: that
/// function gets a list, in which absent gradients are `None`, and returns the gradients of the inputs in order. The selection is of dtypes,
/// and of checks that are left out.
#[pyfunction]
#[pyo3(signature = (function, op, device, selection, is_quick, seed=0))]
pub fn check(
    py: Python<'_>,
    function: Py<PyAny>,
    op: &str,
    device: &str,
    selection: (Vec<Bound<'_, PyAny>>, Vec<String>),
    is_quick: bool,
    seed: u64,
) -> PyResult<(bool, String, String)> {
    let (op, device) = (crate::call::find(op)?, self::device(py, Some(device))?);
    let (dtypes, without) = selection;
    let dtypes = dtypes.iter().map(dtype_of).collect::<PyResult<Vec<_>>>()?;
    let row = implemented(op, move |case| called(op.name, &function, case));
    if let Some(wrong) = without.iter().find(|name| name.parse::<Check>().is_err()) {
        return Err(PyValueError::new_err(format!("there is no check `{wrong}`")));
    }
    let mut reports = Vec::new();
    for dtype in dtypes {
        let extent = if is_quick { Extent::Quick } else { Extent::Checks };
        let options = Options { devices: vec![device.clone()], dtype: Some(dtype), extent, seed, ..Options::default() };
        let rows = std::slice::from_ref(&row);
        let mut report = detached(py, || run_ops(rows, &options, &mut |_| ()))?;
        report.findings.retain(|finding| !without.contains(&finding.check.to_string()));
        reports.push(report);
    }
    let texts: Vec<String> = reports.iter().map(Report::text).collect();
    Ok((reports.iter().all(Report::passed), texts.join("\n"), html(&reports)))
}

/// A function of Python that the tape keeps. It and its tensors are gone as soon as the tape is: without the interpreter, PyO3 would put that off.
struct Kept(Option<Py<PyAny>>);

impl Kept {
    fn call<'py>(&self, py: Python<'py>, given: Vec<Option<Tensor>>) -> PyResult<Bound<'py, PyAny>> {
        let function = self.0.as_ref().ok_or_else(|| PyValueError::new_err("the function is gone"))?;
        function.bind(py).call1((PyList::new(py, given)?,))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        Python::attach(|py| self.0.take().into_iter().for_each(|function| function.drop_ref(py)));
    }
}

/// The results of a function, on the tape if it has gradients.
fn called(op: &'static str, function: &Py<PyAny>, case: &Case) -> Result<Vec<isograd::Tensor>> {
    let call = |py: Python<'_>| -> PyResult<(Vec<isograd::Tensor>, Option<Py<PyAny>>)> {
        let inputs = PyDict::new(py);
        for (name, t) in &case.inputs {
            inputs.set_item(name, Py::new(py, Tensor(t.detach()))?)?;
        }
        let (results, rule): (Vec<PyRef<'_, Tensor>>, Option<Py<PyAny>>) =
            function.bind(py).call1((inputs, to_python(py, &case.attributes)?))?.extract()?;
        Ok((results.iter().map(|t| t.0.detach()).collect(), rule))
    };
    let (results, rule) = Python::attach(|py| call(py).map_err(|e| below(op, e)))?;
    // The device may be one that watches its calls; functions of other libraries return memory of the device itself.
    let device = case.inputs.first().map(|(_, t)| t.device().clone()).or(case.device.clone());
    let there = move |t: isograd::Tensor| device.as_ref().map_or(Ok(t.clone()), |device| t.to_device(device));
    let results = results.into_iter().map(&there).collect::<Result<Vec<_>>>()?;
    let Some(rule) = rule.map(|rule| Kept(Some(rule))) else { return Ok(results) };
    let (inputs, count) = (case.inputs.iter().map(|(_, t)| t).collect::<Vec<_>>(), results.len());
    record_outputs(op, &inputs, results, move |t| {
        let gradients = |py: Python<'_>| -> PyResult<Vec<Option<isograd::Tensor>>> {
            let given = (0..count).map(|k| t.dy_of(k).cloned().map(Tensor)).collect::<Vec<_>>();
            let found: Vec<Option<PyRef<'_, Tensor>>> = rule.call(py, given)?.extract()?;
            Ok(found.into_iter().map(|gradient| gradient.map(|g| g.0.detach())).collect())
        };
        let found = Python::attach(|py| gradients(py).map_err(|e| below(op, e)))?;
        let wanted =
            |(i, gradient): (usize, Option<isograd::Tensor>)| gradient.filter(|_| t.needs(i)).map(&there).transpose();
        found.into_iter().enumerate().map(wanted).collect::<Result<Vec<_>>>()
    })
}
