//! Functions of one operand: activations, elementary functions, rounding.

use super::{gradients, pointwise_one, run_elementwise};
use crate::backend::Kernel;
use crate::pointwise::{Domain, Pointwise};
use crate::tape::{Prologue, Saved, record, record_after, record_stateless};
use crate::tensor::{Attributes, check_float};
use crate::{DType, Error, Result, Tensor, autocast};
use std::sync::Arc;

/// The formula of gelu: with the error function, or approximated with tanh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Approximate {
    /// `x/2 (1 + erf(x / sqrt 2))`.
    #[default]
    None,
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    Tanh,
}

/// The backward row of a unary op, and the tensor that it reads besides the gradient.
pub(super) enum Slope {
    /// The op's input.
    Input(Pointwise),
    /// The op's output.
    Output(Pointwise),
}

impl Slope {
    /// The prologue of the rule, with the tensor that it reads.
    pub fn prologue(self, x: &Tensor, y: &Tensor, attributes: &[f64]) -> Prologue {
        let (function, saved) = match self {
            Slope::Input(row) => (row, Saved::input(x)),
            Slope::Output(row) => (row, Saved::output(y)),
        };
        Prologue { function, saved, attributes: attributes.into() }
    }
}

/// Rows whose results need more than 16 bits.
const NEEDS_F32: &[Pointwise] = {
    use Pointwise::*;
    &[Exp, Expm1, Log, Log1p, Rsqrt, Reciprocal, Softplus]
};

fn forward(op: &'static str, x: &Tensor, row: Pointwise, attributes: &[f64]) -> Result<Tensor> {
    if row.domain() == Domain::Real || !x.dtype().is_int() {
        check_float(op, x)?;
    }
    pointwise_one(op, row, &[x], Attributes::floats(attributes), x.shape(), x.dtype())
}

/// A pointwise function of one input, on the tape.
pub(super) fn unary(op: &'static str, x: &Tensor, row: Pointwise, slope: Slope, attributes: &[f64]) -> Result<Tensor> {
    if NEEDS_F32.contains(&row)
        && let Some(([x], _)) = autocast::wide([x], None)?
    {
        return unary(op, &x, row, slope, attributes);
    }
    let y = forward(op, x, row, attributes)?;
    if !x.requires_grad() {
        return record(op, &[x], y, |_| gradients![]);
    }
    let prologue = Arc::new(slope.prologue(x, &y, attributes));
    record_after(op, &[x], y, Some(prologue.clone()), move |b| {
        gradients![if b.creates_graph() { b.apply(&prologue)? } else { b.dy().clone() }]
    })
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident $row:ident $slope:ident $backward:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $name(&self) -> Result<Tensor> {
                unary(stringify!($name), self, Pointwise::$row, Slope::$slope(Pointwise::$backward), &[])
            }
        )*}
    };
}

unary! {
    /// `max(x, 0)`; the gradient at 0 is 0. Float dtypes.
    relu Relu Output ReluBackward;
    /// `1 / (1 + e^-x)`. Float dtypes.
    sigmoid Sigmoid Output SigmoidBackward;
    /// The hyperbolic tangent. Float dtypes.
    tanh Tanh Output TanhBackward;
    /// `x sigmoid(x)`. Float dtypes. Elfwing et al. 2017, arXiv 1702.03118.
    silu Silu Input SiluBackward;
    /// `x tanh(softplus(x))`. Float dtypes. Misra 2019, arXiv 1908.08681.
    mish Mish Input MishBackward;
    /// `x relu6(x + 3) / 6`. Float dtypes. Howard et al. 2019, arXiv 1905.02244.
    hardswish Hardswish Input HardswishBackward;
    /// `relu6(x + 3) / 6`. Float dtypes.
    hardsigmoid Hardsigmoid Input HardsigmoidBackward;
    /// `min(max(x, 0), 6)`. Float dtypes.
    relu6 Relu6 Input Relu6Backward;
    /// The scaled elu of self-normalising networks. Float dtypes. Klambauer et al. 2017, arXiv 1706.02515.
    selu Selu Input SeluBackward;
    /// `x / (1 + |x|)`. Float dtypes. Turian et al. 2009.
    softsign Softsign Input SoftsignBackward;
    /// `max(x, 0)^2`. Float dtypes. So et al. 2021, arXiv 2109.08668.
    relu_squared ReluSquared Input ReluSquaredBackward;
    /// `e^x`. Float dtypes.
    exp Exp Output ExpBackward;
    /// `e^x - 1`, exact near 0. Float dtypes.
    expm1 Expm1 Output Expm1Backward;
    /// The natural logarithm. Float dtypes.
    log Log Input LogBackward;
    /// `ln(1 + x)`, exact near 0. Float dtypes.
    log1p Log1p Input Log1pBackward;
    /// The square root. Float dtypes.
    sqrt Sqrt Output SqrtBackward;
    /// `1 / sqrt(x)`. Float dtypes.
    rsqrt Rsqrt Output RsqrtBackward;
    /// The sine. Float dtypes.
    sin Sin Input SinBackward;
    /// The cosine. Float dtypes.
    cos Cos Input CosBackward;
    /// The error function. Float dtypes.
    erf Erf Input ErfBackward;
    /// `1 / x`. Float dtypes.
    reciprocal Reciprocal Output ReciprocalBackward;
    /// `|x|`; the gradient at 0 is 0. Float and integer dtypes; the smallest integer stays as it is.
    abs Abs Input AbsBackward;
    /// `x^2`. Float and integer dtypes; integers wrap.
    square Square Input SquareBackward;
}

macro_rules! constant_slope {
    ($($(#[$doc:meta])* $name:ident $row:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $name(&self) -> Result<Tensor> {
                forward(stringify!($name), self, Pointwise::$row, &[])
            }
        )*}
    };
}

constant_slope! {
    /// Rounds toward minus infinity. The result is outside of the tape, because its derivative is 0. Float dtypes.
    floor Floor;
    /// Rounds toward plus infinity. The result is outside of the tape, because its derivative is 0. Float dtypes.
    ceil Ceil;
    /// Rounds toward zero. The result is outside of the tape, because its derivative is 0. Float dtypes.
    trunc Trunc;
    /// Rounds to the nearest integer, half to even. The result is outside of the tape, because its derivative is 0. Float dtypes.
    round Round;
    /// -1, 0 or 1, and 0 for NaN. The result is outside of the tape, because its derivative is 0. Float and integer dtypes.
    sign Sign;
}

impl Tensor {
    /// `-x`. Float and integer dtypes; integers wrap.
    pub fn neg(&self) -> Result<Tensor> {
        record("neg", &[self], forward("neg", self, Pointwise::Neg, &[])?, |b| gradients![Some(b.dy().neg()?)])
    }

    /// `x - trunc(x)`, with the sign of x. Float dtypes.
    pub fn frac(&self) -> Result<Tensor> {
        record("frac", &[self], forward("frac", self, Pointwise::Frac, &[])?, |b| gradients![Some(b.dy().clone())])
    }

    /// The Gaussian error linear unit. Float dtypes. Hendrycks, Gimpel 2016, arXiv 1606.08415.
    pub fn gelu(&self, approximate: Approximate) -> Result<Tensor> {
        let (row, backward) = match approximate {
            Approximate::None => (Pointwise::Gelu, Pointwise::GeluBackward),
            Approximate::Tanh => (Pointwise::GeluTanh, Pointwise::GeluTanhBackward),
        };
        unary("gelu", self, row, Slope::Input(backward), &[])
    }

    /// `x` where positive, `slope x` elsewhere. Float dtypes.
    pub fn leaky_relu(&self, slope: f64) -> Result<Tensor> {
        unary("leaky_relu", self, Pointwise::LeakyRelu, Slope::Input(Pointwise::LeakyReluBackward), &[slope])
    }

    /// `x` where positive, `alpha (e^x - 1)` elsewhere. Float dtypes. Clevert et al. 2015, arXiv 1511.07289.
    pub fn elu(&self, alpha: f64) -> Result<Tensor> {
        unary("elu", self, Pointwise::Elu, Slope::Input(Pointwise::EluBackward), &[alpha])
    }

    /// `x` where positive, `alpha (e^(x / alpha) - 1)` elsewhere. Float dtypes. Errors: `Attr` if alpha is 0.
    pub fn celu(&self, alpha: f64) -> Result<Tensor> {
        if alpha == 0.0 || alpha.is_nan() {
            return Err(Error::attr("celu", format!("alpha is {alpha}, expected a number other than 0")));
        }
        unary("celu", self, Pointwise::Celu, Slope::Input(Pointwise::CeluBackward), &[alpha])
    }

    /// `ln(1 + e^(beta x)) / beta`, and `x` where `beta x > threshold`. Float dtypes. Errors: `Attr` if beta is 0.
    pub fn softplus(&self, beta: f64, threshold: f64) -> Result<Tensor> {
        if beta == 0.0 || beta.is_nan() {
            return Err(Error::attr("softplus", format!("beta is {beta}, expected a number other than 0")));
        }
        unary("softplus", self, Pointwise::Softplus, Slope::Input(Pointwise::SoftplusBackward), &[beta, threshold])
    }

    /// `min(max(x, lo), hi)`; the gradient at the bounds is 0. Float dtypes. Errors: `Attr` if `lo > hi`.
    pub fn hardtanh(&self, lo: f64, hi: f64) -> Result<Tensor> {
        if lo.is_nan() || hi.is_nan() || lo > hi {
            return Err(Error::attr("hardtanh", format!("the bounds are {lo} and {hi}, expected min <= max")));
        }
        unary("hardtanh", self, Pointwise::Hardtanh, Slope::Input(Pointwise::HardtanhBackward), &[lo, hi])
    }

    /// `value` where `x <= threshold`, `x` elsewhere. Float dtypes.
    pub fn threshold(&self, threshold: f64, value: f64) -> Result<Tensor> {
        unary("threshold", self, Pointwise::Threshold, Slope::Input(Pointwise::ThresholdBackward), &[threshold, value])
    }

    /// The same values in another dtype. To floats: rounded to the nearest even, with infinity on overflow. To integers: truncated
    /// and saturated; NaN becomes 0. To bool: `x != 0`. Results of integer and bool dtypes are outside of the tape.
    pub fn cast(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let y = Tensor::allocate("cast", self.shape(), dtype, self.device())?.ordered_as(&[self]);
        if y.numel() > 0 {
            run_elementwise("cast", Kernel::Cast, &[self], &[&y], Attributes::default())?;
        }
        if !dtype.is_float() {
            return Ok(y);
        }
        let from = self.dtype();
        record_stateless("cast", &[self], y, move |b| gradients![Some(b.dy().cast(from)?)])
    }
}
