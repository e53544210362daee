//! Models of ONNX: [`load`] opens them, and [`Export`] writes them in opset 21.
//!
//! A loaded model is a module whose graph runs node by node on the tape ([`OnnxModel`]). For an export, //! a function is called on example inputs. The ops that it takes ([`tape::trace`](isograd_core::tape::trace())) become the nodes of a graph; the
//! parameters and buffers of the module become initializers with their names; other tensors become constants. An op without a counterpart is
//! exported as the ops that it consists of. If these have none either, the error lists all such ops.
//!
//! ```
//! # use isograd_core::{Device, DType, Result, Tensor};
//! # use isograd_cpu as _;
//! use isograd_nn::{Forward, Init, Linear, Module};
//! use isograd_onnx::{Export, Input};
//!
//! # fn main() -> Result<()> {
//! # let device = Device::cpu()?;
//! let network = Linear::new(4, 2, &Init::new(&device))?;
//! network.eval();
//! let x = Tensor::zeros((1, 4), DType::F32, &device)?;
//! let model = Export::new(&network).input(Input::new("x", &x)).run(|x| Ok(vec![network.forward(&x[0])?.relu()?]))?;
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("model.onnx");
//! model.save(path)?;
//! # Ok(())
//! # }
//! ```

mod export;
mod import;
#[allow(missing_docs)]
mod proto;

pub use export::{Batch, Export, Input, Model, OPSET};
pub use import::{OnnxModel, Port, Size, load, load_in_f64};
