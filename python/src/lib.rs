//! The module `isograd._isograd`: tensors, calls of the registry's ops, optimizers, captured steps, and the checks of `isograd parity` for
//! functions of Python. The package `isograd` around it has the names that Python programs use.

#![allow(missing_docs, reason = "Python's documentation is in the strings of the module")]

mod call;
mod check;
mod convert;
mod errors;
mod exchange;
mod optimizer;
mod step;
mod tensor;

use pyo3::prelude::*;

#[pymodule]
mod _isograd {
    #[pymodule_export]
    use super::call::{call, examples, gradients, is_grad_enabled, modules, operators, optimizers, set_grad_enabled};
    #[pymodule_export]
    use super::check::check;
    #[pymodule_export]
    use super::exchange::from_dlpack;
    #[pymodule_export]
    use super::optimizer::Optimizer;
    #[pymodule_export]
    use super::step::Step;
    #[pymodule_export]
    use super::tensor::{Tensor, tensor};

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        super::errors::add(module)
    }
}
