//! Passes: gradients of results with respect to leaves, or to given tensors.

use super::engine::engine;
use super::{Edge, MODE, Meta, Mode, with_flag};
use crate::{Error, Result, Tensor, no_autocast};

/// The options of a backward pass.
#[derive(Clone, Debug, Default)]
pub struct BackwardOptions {
    /// The initial gradient. The default is ones, for a tensor of one element only.
    pub gradient: Option<Tensor>,
    /// Retains the tape for another pass.
    pub retain: bool,
    /// Records the pass itself, so that its gradients can be differentiated. Also retains the tape.
    pub create_graph: bool,
}

/// # Gradients
impl Tensor {
    /// Adds this tensor's gradient with respect to every leaf to the leaf's [`grad`](Tensor::grad) and frees the tape.
    /// Errors: `Shape` unless there is one element; `Value` if the tape is spent or the tensor is not on it.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let w = Tensor::full(2, 3.0, DType::F32, device)?.require_grad()?;
    /// w.square()?.sum(..)?.backward()?;
    /// assert_eq!(w.grad().unwrap().to_vec::<f32>()?, [6.0, 6.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn backward(&self) -> Result<()> {
        self.backward_with(&BackwardOptions::default())
    }

    /// [`backward`](Tensor::backward) with options.
    pub fn backward_with(&self, options: &BackwardOptions) -> Result<()> {
        let gradient = starting_gradient("backward", self, options)?;
        no_autocast(|| engine("backward", [(self, gradient)], options, None).map(drop))
    }
}

/// The gradients of `y` with respect to `inputs`. The leaves' [`grad`](Tensor::grad) does not change. Frees the tape. Each result
/// owns its memory. A gradient that is constant along a dimension, such as a mean's, may be an expanded view, which cannot be
/// changed in place. Errors: as [`Tensor::backward`], and `Value` if `y` does not depend on an input.
pub fn grad(y: &Tensor, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    grad_with(y, inputs, &BackwardOptions::default())
}

/// [`grad`] with options. `create_graph` allows higher derivatives.
///
/// ```
/// # use isograd_core::{Device, Result, Tensor, tape::{BackwardOptions, grad, grad_with}};
/// # fn example(device: &Device) -> Result<()> {
/// let x = Tensor::scalar(2.0f64, device)?.require_grad()?;
/// let options = BackwardOptions { create_graph: true, ..BackwardOptions::default() };
/// let slope = grad_with(&x.pow_scalar(3)?, &[&x], &options)?.remove(0);
/// let curvature = grad(&slope, &[&x])?.remove(0);
/// assert_eq!([slope.item::<f64>()?, curvature.item()?], [12.0, 12.0]);
/// # Ok(())
/// # }
/// ```
pub fn grad_with(y: &Tensor, inputs: &[&Tensor], options: &BackwardOptions) -> Result<Vec<Tensor>> {
    let gradient = starting_gradient("grad", y, options)?;
    let found = gradients_from([(y, gradient)], inputs, options)?;
    let unused = |i: usize| Error::value("grad", format!("the result does not depend on input {i}"));
    handed_out(found, options, unused)
}

/// The sum of the gradients of several results with respect to `inputs`; each result is given with its own gradient. Nodes that the
/// results share are visited once. Errors: as [`grad`]; `Value` if `options` has a gradient too.
///
/// ```
/// # use isograd_core::{Result, Tensor, tape::{self, BackwardOptions}};
/// /// `d(sum(u * y) + sum(v * z)) / dx`.
/// fn of_both(y: &Tensor, u: Tensor, z: &Tensor, v: Tensor, x: &Tensor) -> Result<Tensor> {
///     Ok(tape::grad_from(&[(y, u), (z, v)], &[x], &BackwardOptions::default())?.swap_remove(0))
/// }
/// ```
pub fn grad_from(roots: &[(&Tensor, Tensor)], inputs: &[&Tensor], options: &BackwardOptions) -> Result<Vec<Tensor>> {
    if options.gradient.is_some() {
        return Err(Error::value("grad", "each result has a gradient of its own; the options have another"));
    }
    let unused = |i: usize| Error::value("grad", format!("no result depends on input {i}"));
    let found = gradients_from(roots.iter().cloned(), inputs, options)?;
    handed_out(found, options, unused)
}

/// [`grad_from`], with `None` for an input on which no result depends. Gradients may share memory with each other and with what is given.
pub fn grad_allow_unused(
    roots: &[(&Tensor, Tensor)],
    inputs: &[&Tensor],
    options: &BackwardOptions,
) -> Result<Vec<Option<Tensor>>> {
    gradients_from(roots.iter().cloned(), inputs, options)
}

/// [`grad_allow_unused`] of roots that are made one after the other.
pub(crate) fn gradients_from<'r>(
    roots: impl IntoIterator<Item = (&'r Tensor, Tensor)>,
    inputs: &[&Tensor],
    options: &BackwardOptions,
) -> Result<Vec<Option<Tensor>>> {
    let missing = |i: usize| Error::value("grad", format!("input {i} does not require a gradient"));
    let targets: Vec<&Edge> =
        inputs.iter().enumerate().map(|(i, t)| t.edge().ok_or_else(|| missing(i))).collect::<Result<_>>()?;
    no_autocast(|| engine("grad", roots, options, Some(&targets)))
}

/// Prepares gradients for the caller: all must exist, and each gets its own memory. A rule may return its given gradient or a saved
/// tensor, and the same gradient for several inputs.
fn handed_out(
    found: Vec<Option<Tensor>>,
    options: &BackwardOptions,
    missing: impl Fn(usize) -> Error,
) -> Result<Vec<Tensor>> {
    let one = |(i, gradient): (usize, Option<Tensor>)| {
        let gradient = gradient.ok_or_else(|| missing(i))?;
        if gradient.is_unique() { Ok(gradient) } else { gradient.copy() }
    };
    let mode = if options.create_graph { Mode::On } else { Mode::Off };
    with_flag(&MODE, mode, || found.into_iter().enumerate().map(one).collect())
}

/// The initial gradient of a pass from `y`.
fn starting_gradient(op: &'static str, y: &Tensor, options: &BackwardOptions) -> Result<Tensor> {
    edge_of(op, y)?;
    match &options.gradient {
        Some(gradient) => Ok(gradient.clone()),
        None if y.numel() == 1 => Tensor::ones(y.shape(), y.dtype(), y.device()),
        None => {
            let message = format!("{} has {} elements; give a gradient to start from", y.shape(), y.numel());
            Err(Error::shape(op, message))
        }
    }
}

pub(super) fn edge_of<'t>(op: &'static str, y: &'t Tensor) -> Result<&'t Edge> {
    let message = "the tensor is not on the tape: no input of it requires a gradient, or it was made in `no_grad`";
    y.edge().ok_or_else(|| Error::value(op, message))
}

/// Checks that a gradient has the expected shape, dtype and device.
pub(super) fn check_gradient(op: &'static str, expected: &Meta, gradient: &Tensor) -> Result<()> {
    if *gradient.shape() != expected.shape {
        let message = format!("a gradient has shape {}, expected {}", gradient.shape(), expected.shape);
        return Err(Error::shape(op, message));
    }
    if gradient.dtype() != expected.dtype {
        let message = format!("a gradient is {}, expected {}", gradient.dtype(), expected.dtype);
        return Err(Error::dtype(op, message));
    }
    if *gradient.device() != expected.device {
        let message = format!("a gradient is on {}, expected {}", gradient.device(), expected.device);
        return Err(Error::device(op, message));
    }
    Ok(())
}
