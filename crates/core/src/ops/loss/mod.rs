//! Losses. Targets are constants unless their gradient is documented. Inputs and targets have the same shape, unless the loss says that
//! they broadcast.

pub mod cross_entropy;
pub mod ctc;
pub mod distance;
pub mod elementwise;
pub mod likelihood;
pub mod margin;

pub use cross_entropy::CrossEntropy;
pub use ctc::Ctc;
pub use distance::{Triplet, TripletNegative};
pub use elementwise::{Focal, FocalInput, KlTarget};
pub use likelihood::{GaussianNll, PoissonNll, Rate, Terms};
pub use margin::MultiMargin;

use crate::check::{check_float, check_same, describe};
use crate::{Error, Result, Tensor};

/// The reduction of the losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// All losses.
    None,
    /// Their mean; NaN for an empty tensor.
    #[default]
    Mean,
    /// Their sum; 0 for an empty tensor.
    Sum,
    /// Their sum divided by the first extent, the batch size: the mean of a divergence between distributions.
    BatchMean,
}

impl Reduction {
    fn apply(self, loss: &Tensor) -> Result<Tensor> {
        match self {
            Reduction::None => Ok(loss.clone()),
            Reduction::Mean => loss.mean(..),
            Reduction::Sum => loss.sum(..),
            Reduction::BatchMean if loss.numel() == 0 => {
                loss.sum(..)?.div_scalar(self.divisor(loss.dims()).unwrap_or(1.0))
            }
            // The sum itself may overflow.
            Reduction::BatchMean => {
                loss.mean(..)?.mul_scalar(loss.numel() as f64 / self.divisor(loss.dims()).unwrap_or(1.0))
            }
        }
    }

    /// The divisor of the sum of losses of these extents, if they are summed.
    fn divisor(self, extents: &[usize]) -> Option<f64> {
        match self {
            Reduction::None => None,
            Reduction::Mean => Some(extents.iter().product::<usize>() as f64),
            Reduction::Sum => Some(1.0),
            Reduction::BatchMean => Some(extents.first().copied().unwrap_or(1) as f64),
        }
    }
}

/// Checks that all operands are floats of the same dtype, shape and device.
fn check_operands(op: &'static str, operands: &[&Tensor]) -> Result<()> {
    check_float(op, operands[0])?;
    check_same(op, operands)?;
    if operands.iter().any(|t| t.shape() != operands[0].shape()) {
        return Err(Error::shape(op, format!("operands must have one shape, got {}", describe(operands))));
    }
    Ok(())
}

/// Checks that `t` requires no gradient, because the op has none for it.
fn check_constant(op: &'static str, name: &str, t: &Tensor) -> Result<()> {
    if t.requires_grad() && crate::tape::is_grad_enabled() {
        return Err(Error::unsupported(op, format!("{name} requires a gradient, but has none here; use `detach`")));
    }
    Ok(())
}
