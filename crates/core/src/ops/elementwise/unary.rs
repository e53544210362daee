//! Functions of one operand: activations, elementary functions, rounding.

use crate::backend::Kernel;
use crate::check::check_float;
use crate::ops::{gradients, in_acc_of, pointwise_one, run_elementwise};
use crate::pointwise::{Domain, Pointwise};
use crate::tape::{Prologue, Record, Saved, record};
use crate::tensor::Attributes;
use crate::{DType, Error, Position, Result, Tensor, autocast};
use std::sync::Arc;

/// The formula of gelu: with the error function, or approximated with tanh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Approximate {
    /// `x/2 (1 + erf(x / sqrt 2))`.
    #[default]
    None,
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    Tanh,
}

/// The backward row of a unary op, and the tensor that it reads besides the gradient.
pub(crate) enum Slope {
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
    &[Acos, Asin, Cosh, Exp, Exp2, Expm1, Log, Log10, Log1p, Log2, Reciprocal, Rsqrt, Sinh, Softplus, Tan]
};

fn forward(op: &'static str, x: &Tensor, row: Pointwise, attributes: &[f64]) -> Result<Tensor> {
    if row.domain() == Domain::Real || !x.dtype().is_number() {
        check_float(op, x)?;
    }
    pointwise_one(op, row, &[x], Attributes::floats(attributes), x.shape(), x.dtype())
}

/// A pointwise function of one input, on the tape.
pub(crate) fn unary(op: &'static str, x: &Tensor, row: Pointwise, slope: Slope, attributes: &[f64]) -> Result<Tensor> {
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
    Record::new(op, &[x])
        .prologue(prologue.clone())
        .rule(y, move |b| gradients![if b.creates_graph() { b.apply(&prologue, b.dy())? } else { b.dy().clone() }])
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
    /// `x relu6(x + 3) / 6`; 0 at -infinity. Float dtypes. Howard et al. 2019, arXiv 1905.02244.
    hardswish Hardswish Input HardswishBackward;
    /// `min(max(x, 0), 6)`. Float dtypes.
    relu6 Relu6 Input Relu6Backward;
    /// `x / (1 + |x|)`; 1 and -1 at the infinities. Float dtypes. Turian et al. 2009.
    softsign Softsign Input SoftsignBackward;
    /// `ln(sigmoid(x))` without overflow. Float dtypes.
    logsigmoid LogSigmoid Input LogSigmoidBackward;
    /// `x - tanh(x)`. Float dtypes.
    tanhshrink Tanhshrink Input TanhshrinkBackward;
    /// `max(x, 0)^2`. Float dtypes. So et al. 2021, arXiv 2109.08668.
    relu_squared ReluSquared Input ReluSquaredBackward;
    /// `e^x`. Float dtypes.
    exp Exp Output ExpBackward;
    /// `e^x - 1`, exact near 0. Float dtypes.
    expm1 Expm1 Output Expm1Backward;
    /// `2^x`. Float dtypes.
    exp2 Exp2 Output Exp2Backward;
    /// The natural logarithm. Float dtypes.
    log Log Input LogBackward;
    /// The logarithm to the base 2. Float dtypes.
    log2 Log2 Input Log2Backward;
    /// The logarithm to the base 10. Float dtypes.
    log10 Log10 Input Log10Backward;
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
    /// The tangent. Float dtypes.
    tan Tan Output TanBackward;
    /// The inverse sine, `-pi/2` to `pi/2`; NaN outside of -1 to 1. Float dtypes.
    asin Asin Input AsinBackward;
    /// The inverse cosine, 0 to `pi`; NaN outside of -1 to 1. Float dtypes.
    acos Acos Input AcosBackward;
    /// The inverse tangent, `-pi/2` to `pi/2`. Float dtypes.
    atan Atan Input AtanBackward;
    /// The hyperbolic sine. Float dtypes.
    sinh Sinh Input SinhBackward;
    /// The hyperbolic cosine. Float dtypes.
    cosh Cosh Input CoshBackward;
    /// The inverse hyperbolic sine. Float dtypes.
    asinh Asinh Input AsinhBackward;
    /// The inverse hyperbolic cosine; NaN below 1. Float dtypes.
    acosh Acosh Input AcoshBackward;
    /// The inverse hyperbolic tangent; NaN outside of -1 to 1. Float dtypes.
    atanh Atanh Input AtanhBackward;
    /// `sin(pi x) / (pi x)`, and 1 at 0. Float dtypes.
    sinc Sinc Input SincBackward;
    /// The entropy `-x ln x`: 0 at 0, -inf for negative x. Float dtypes.
    entr Entr Input EntrBackward;
    /// The error function. Float dtypes.
    erf Erf Input ErfBackward;
    /// `1 - erf(x)`, exact for large x. Float dtypes.
    erfc Erfc Input ErfcBackward;
    /// The number whose error function is x; infinite at 1 and -1, NaN outside of them. Float dtypes.
    erfinv Erfinv Output ErfinvBackward;
    /// The logarithm of the absolute value of the gamma function; infinity at 0 and negative integers. Float dtypes.
    lgamma Lgamma Input LgammaBackward;
    /// The derivative of [`lgamma`](Tensor::lgamma); NaN at negative integers. Float dtypes.
    digamma Digamma Input DigammaBackward;
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

/// The numbers of [`Tensor::nan_to_num`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NanToNum {
    /// In the place of NaN; 0 by default.
    pub nan: f64,
    /// In the place of infinity; the largest number of the dtype by default.
    pub infinity: Option<f64>,
    /// In the place of -infinity; the smallest number of the dtype by default.
    pub minus_infinity: Option<f64>,
}

fn check_lambda(op: &'static str, lambda: f64) -> Result<()> {
    if lambda >= 0.0 { Ok(()) } else { Err(Error::attr(op, format!("lambda is {lambda}, expected at least 0"))) }
}

/// # Functions of elements
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

    /// The scaled elu of self-normalising networks, [`selu_with`](Tensor::selu_with) of alpha 1.6732632423543772 and gamma
    /// 1.0507009873554805. Float dtypes. Klambauer et al. 2017, arXiv 1706.02515.
    pub fn selu(&self) -> Result<Tensor> {
        self.selu_with(1.673_263_242_354_377_2, 1.050_700_987_355_480_5)
    }

    /// `gamma x` where positive, `gamma alpha (e^x - 1)` elsewhere. Float dtypes.
    pub fn selu_with(&self, alpha: f64, gamma: f64) -> Result<Tensor> {
        unary("selu", self, Pointwise::Selu, Slope::Input(Pointwise::SeluBackward), &[alpha, gamma])
    }

    /// `relu6(x + 3) / 6`: [`hardsigmoid_with`](Tensor::hardsigmoid_with) of alpha 1/6 and beta 1/2. Float dtypes.
    pub fn hardsigmoid(&self) -> Result<Tensor> {
        self.hardsigmoid_with(1.0 / 6.0, 0.5)
    }

    /// `min(max(alpha x + beta, 0), 1)`; the gradient at the bounds is 0. Float dtypes.
    pub fn hardsigmoid_with(&self, alpha: f64, beta: f64) -> Result<Tensor> {
        let slope = Slope::Input(Pointwise::HardsigmoidBackward);
        unary("hardsigmoid", self, Pointwise::Hardsigmoid, slope, &[alpha, beta])
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

    /// `min(max(x, lo), hi)`; the gradient at the bounds is 0. Float dtypes. The bounds are rounded to the dtype of x first. Errors: `Attr` if
    /// `lo > hi`.
    pub fn hardtanh(&self, lo: f64, hi: f64) -> Result<Tensor> {
        if lo.is_nan() || hi.is_nan() || lo > hi {
            return Err(Error::attr("hardtanh", format!("the bounds are {lo} and {hi}, expected min <= max")));
        }
        let bounds = [lo, hi].map(|v| self.dtype().rounded(v));
        unary("hardtanh", self, Pointwise::Hardtanh, Slope::Input(Pointwise::HardtanhBackward), &bounds)
    }

    /// `value` where `x <= threshold`, `x` elsewhere. Float dtypes. Both numbers are rounded to the dtype of x.
    pub fn threshold(&self, threshold: f64, value: f64) -> Result<Tensor> {
        let attributes = [self.dtype().rounded(threshold), value];
        unary("threshold", self, Pointwise::Threshold, Slope::Input(Pointwise::ThresholdBackward), &attributes)
    }

    /// `x - lambda` above lambda, `x + lambda` below -lambda, and 0 between. Float dtypes. Lambda is rounded to the dtype of x first. Errors:
    /// `Attr` if lambda is negative.
    pub fn softshrink(&self, lambda: f64) -> Result<Tensor> {
        check_lambda("softshrink", lambda)?;
        let lambda = self.dtype().rounded(lambda);
        unary("softshrink", self, Pointwise::Softshrink, Slope::Input(Pointwise::ShrinkBackward), &[lambda])
    }

    /// `x` outside of -lambda to lambda, and 0 within. Float dtypes. Lambda is rounded to the dtype of x first. Errors: `Attr` if lambda is
    /// negative.
    pub fn hardshrink(&self, lambda: f64) -> Result<Tensor> {
        check_lambda("hardshrink", lambda)?;
        let lambda = self.dtype().rounded(lambda);
        unary("hardshrink", self, Pointwise::Hardshrink, Slope::Input(Pointwise::ShrinkBackward), &[lambda])
    }

    /// `ln(x / (1 - x))`; NaN outside of 0 to 1, as the gradient. With `eps`, x is first limited to `eps .. 1 - eps`, outside of which the gradient is 0. Float dtypes.
    /// Errors: `Attr` if eps is not within 0 .. 0.5.
    pub fn logit(&self, eps: Option<f64>) -> Result<Tensor> {
        if eps.is_some_and(|eps| !(0.0..=0.5).contains(&eps)) {
            return Err(Error::attr("logit", format!("eps is {eps:?}, expected 0 to 0.5")));
        }
        let (lo, hi) = eps.map_or((f64::NEG_INFINITY, f64::INFINITY), |eps| (eps, 1.0 - eps));
        unary("logit", self, Pointwise::Logit, Slope::Input(Pointwise::LogitBackward), &[lo, hi])
    }

    /// Numbers in the places of NaN and of infinities, whose gradients are 0. Float dtypes.
    pub fn nan_to_num(&self, numbers: &NanToNum) -> Result<Tensor> {
        let largest = self.dtype().largest();
        let attributes = [numbers.nan, numbers.infinity.unwrap_or(largest), numbers.minus_infinity.unwrap_or(-largest)];
        let y = forward("nan_to_num", self, Pointwise::NanToNum, &attributes)?;
        let saved = Saved::input(self);
        record("nan_to_num", &[self], y, move |t| {
            gradients![Some(t.row(Pointwise::NanToNumBackward, &[t.dy(), &t.get(&saved)?], &[])?)]
        })
    }

    /// Halves the axis `dim`: the first half times the sigmoid of the second. Float dtypes. Errors: `Attr` if there is no such
    /// axis; `Shape` if its size is odd. Dauphin et al. 2016, arXiv 1612.08083.
    pub fn glu(&self, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        check_float("glu", self)?;
        let axis = self.shape().dim_for("glu", dim)?;
        let size = self.dims().get(axis).copied().unwrap_or(1);
        if size % 2 != 0 {
            return Err(Error::shape(
                "glu",
                format!("dimension {axis} of {} is odd, expected an even size", self.shape()),
            ));
        }
        let half = |from| self.narrow(axis as isize, from, size / 2);
        in_acc_of("glu", [&half(0)?, &half(size / 2)?], |[a, b]| a.mul(&b.sigmoid()?))
    }

    /// The same values in another dtype. To floats: rounded to the nearest even, with infinity on overflow. To integers: truncated
    /// and saturated; NaN becomes 0. To bool: `x != 0`. Results of integer and bool dtypes are outside of the tape.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// assert_eq!(Tensor::arange(2, device)?.cast(DType::F32)?.to_vec::<f32>()?, [0.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
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
        Record::new("cast", &[self]).stateless().rule(y, move |b| gradients![Some(b.dy().cast(from)?)])
    }
}
