//! Gradients against finite differences.

use super::{BackwardOptions, grad_with, no_grad};
use crate::{DType, Error, Result, Tensor};

/// The step and the tolerance of [`gradcheck`].
#[derive(Clone, Copy, Debug)]
pub struct GradcheckOptions {
    /// The step of the central difference.
    pub step: f64,
    /// Every element must satisfy `|numeric - analytic| <= tolerance * (1 + |analytic|)`.
    pub tolerance: f64,
}

impl Default for GradcheckOptions {
    fn default() -> Self {
        GradcheckOptions { step: 1e-6, tolerance: 1e-5 }
    }
}

/// Compares the gradients of `f` at `inputs` with central differences, for a fixed cotangent whose neighbouring elements differ.
///
/// `inputs` must be f64, and farther from kinks than the step. Leaves, and tensors computed from leaves, are checked as values. `f`
/// must be deterministic. Errors: `Dtype` unless f64; `Value` where the derivatives differ, naming the input, the element and both
/// derivatives.
pub fn gradcheck(
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
    inputs: &[&Tensor],
    options: &GradcheckOptions,
) -> Result<()> {
    for t in inputs {
        if t.dtype() != DType::F64 {
            return Err(Error::dtype("gradcheck", format!("an input is {}, expected f64", t.dtype())));
        }
    }
    let leaves: Vec<Tensor> = inputs.iter().map(|t| t.detach().copy()?.require_grad()).collect::<Result<_>>()?;
    let y = f(&leaves)?;
    let cotangent = cotangent(&y)?;
    let references: Vec<&Tensor> = leaves.iter().collect();
    let gradient = Some(cotangent.clone());
    let analytic = grad_with(&y, &references, &BackwardOptions { gradient, ..Default::default() })?;
    let value = |at: &[Tensor]| no_grad(|| f(at)?.mul(&cotangent)?.sum(..)?.item::<f64>());
    for (i, analytic) in analytic.iter().enumerate() {
        let analytic = analytic.to_f64_vec()?;
        let base = inputs[i].to_f64_vec()?;
        for (j, &expected) in analytic.iter().enumerate() {
            let moved = |delta: f64| -> Result<f64> {
                let mut values = base.clone();
                values[j] += delta;
                let mut at: Vec<Tensor> = leaves.iter().map(Tensor::detach).collect();
                at[i] = Tensor::from_vec(values, inputs[i].shape(), inputs[i].device())?;
                value(&at)
            };
            let numeric = (moved(options.step)? - moved(-options.step)?) / (2.0 * options.step);
            let difference = (numeric - expected).abs();
            if difference.is_nan() || difference > options.tolerance * (1.0 + expected.abs()) {
                let message = format!("input {i}, element {j}: the tape says {expected}, differences say {numeric}");
                return Err(Error::value("gradcheck", message));
            }
        }
    }
    Ok(())
}

/// [`gradcheck`] of the gradient of `f`: checks second derivatives.
pub fn gradgradcheck(
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
    inputs: &[&Tensor],
    options: &GradcheckOptions,
) -> Result<()> {
    let first = |at: &[Tensor]| {
        // A difference quotient records nothing, but the inner gradient needs the tape.
        super::enable_grad(|| {
            let leaves: Vec<Tensor> = at
                .iter()
                .map(|t| if t.requires_grad() { Ok(t.clone()) } else { t.require_grad() })
                .collect::<Result<_>>()?;
            let y = f(&leaves)?;
            let references: Vec<&Tensor> = leaves.iter().collect();
            let options = BackwardOptions { gradient: Some(cotangent(&y)?), create_graph: true, ..Default::default() };
            let gradients = grad_with(&y, &references, &options)?;
            let flat: Vec<Tensor> = gradients.iter().map(|g| g.reshape(g.numel())).collect::<Result<_>>()?;
            Tensor::concat(&flat.iter().collect::<Vec<_>>(), 0)
        })
    };
    gradcheck(first, inputs, options)
}

/// Fixed numbers in (0.5, 1.5). Neighbours differ.
fn cotangent(y: &Tensor) -> Result<Tensor> {
    let values = (0..y.numel()).map(|i| 0.5 + (0.618_033_988_75 * (i + 1) as f64).fract()).collect();
    Tensor::from_vec::<f64>(values, y.shape(), y.device())?.cast(y.dtype())
}
