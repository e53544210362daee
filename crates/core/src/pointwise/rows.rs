//! The pointwise table: one row per op.
//!
//! A row reads `domain Name "kernel" (inputs) [attributes] -> outputs`. `Real` rows run on floats, `Value` rows on floats and
//! integers, `Integer` rows on integers. A row with `inout` also reads its outputs: they are its first inputs. `check` is a
//! condition that every element must meet; a `Value` error names the first that does not. The backward of an op is a row of its
//! own. Its first input is `g`, the gradient of the output.

use super::value::{Integer, Real, Value};
use std::f64::consts::{LN_2, LN_10, PI};

/// A row of the table for a domain of numbers: `N` inputs, `K` attributes, `M` outputs.
pub trait Row<V, Mask, const N: usize, const K: usize, const M: usize> {
    /// The outputs of one element.
    fn eval(x: [V; N], attributes: [V; K]) -> [V; M];
    /// The condition on the inputs of one element; `None` for a row without a check.
    fn check(x: [V; N], attributes: [V; K]) -> Option<Mask>;
}

/// The dtypes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Floats.
    Real,
    /// Floats and integers.
    Any,
    /// Integers.
    Integer,
}

/// A function of a row's type; see [`Pointwise::visit_real`].
pub trait Visitor<V, Mask> {
    /// The result.
    type Output;
    /// Receives the row as a type.
    fn visit<R: Row<V, Mask, N, K, M>, const N: usize, const K: usize, const M: usize>(self) -> Self::Output;
}

macro_rules! count {
    () => { 0 };
    ($x:ident $($rest:ident)*) => { 1 + count!($($rest)*) };
}

/// True if a row of the second domain runs on numbers of the first.
macro_rules! dispatch {
    (Real Real $run:expr) => {
        Some($run)
    };
    (Real Value $run:expr) => {
        Some($run)
    };
    (Integer Integer $run:expr) => {
        Some($run)
    };
    (Integer Value $run:expr) => {
        Some($run)
    };
    ($wanted:ident $domain:ident $run:expr) => {
        None
    };
}

macro_rules! domain {
    (Real) => {
        Domain::Real
    };
    (Value) => {
        Domain::Any
    };
    (Integer) => {
        Domain::Integer
    };
}

macro_rules! inout {
    () => {
        false
    };
    (inout) => {
        true
    };
}

macro_rules! check {
    () => {
        None
    };
    ($check:expr) => {
        Some($check)
    };
}

macro_rules! is_checked {
    () => {
        false
    };
    ($check:expr) => {
        true
    };
}

macro_rules! rows {
    ($($domain:ident $Name:ident $name:literal ($($x:ident),*) [$($k:ident),*] -> $m:literal $($inout:ident)?
        $body:block $(, check $check:block)?)*) => {
        /// The rows of the table, by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum Pointwise { $($Name),* }

        $(
            #[doc = concat!("The row `", $name, "`.")]
            #[derive(Debug)]
            pub struct $Name;

            impl<V: $domain> Row<V, V::Mask, { count!($($x)*) }, { count!($($k)*) }, $m> for $Name {
                #[inline(always)]
                fn eval(x: [V; count!($($x)*)], attributes: [V; count!($($k)*)]) -> [V; $m] {
                    let [$($x),*] = x;
                    let [$($k),*] = attributes;
                    $body
                }
                #[inline(always)]
                #[allow(unused_variables)]
                fn check(x: [V; count!($($x)*)], attributes: [V; count!($($k)*)]) -> Option<V::Mask> {
                    let [$($x),*] = x;
                    let [$($k),*] = attributes;
                    check!($($check)?)
                }
            }
        )*

        impl Pointwise {
            /// Every row.
            pub const ALL: &'static [Pointwise] = &[$(Pointwise::$Name),*];

            /// The kernel's name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$Name => $name),* }
            }
            /// The number of inputs, including the outputs of an `inout` row.
            pub fn inputs(self) -> usize {
                match self { $(Self::$Name => count!($($x)*)),* }
            }
            /// The number of attributes.
            pub fn attributes(self) -> usize {
                match self { $(Self::$Name => count!($($k)*)),* }
            }
            /// The number of outputs.
            pub fn outputs(self) -> usize {
                match self { $(Self::$Name => $m),* }
            }
            /// The dtypes that the row accepts.
            pub fn domain(self) -> Domain {
                match self { $(Self::$Name => domain!($domain)),* }
            }
            /// True if the outputs are read as the first inputs.
            pub fn is_inout(self) -> bool {
                match self { $(Self::$Name => inout!($($inout)?)),* }
            }
            /// True if the row has a check.
            pub fn is_checked(self) -> bool {
                match self { $(Self::$Name => is_checked!($($check)?)),* }
            }
            /// Passes the row to the visitor if it runs on floats.
            pub fn visit_real<V: Real, T: Visitor<V, V::Mask>>(self, visitor: T) -> Option<T::Output> {
                match self {
                    $(Self::$Name => dispatch!(Real $domain
                        visitor.visit::<$Name, { count!($($x)*) }, { count!($($k)*) }, $m>())),*
                }
            }
            /// Passes the row to the visitor if it runs on integers.
            pub fn visit_integer<V: Integer, T: Visitor<V, V::Mask>>(self, visitor: T) -> Option<T::Output> {
                match self {
                    $(Self::$Name => dispatch!(Integer $domain
                        visitor.visit::<$Name, { count!($($x)*) }, { count!($($k)*) }, $m>())),*
                }
            }
        }
    };
}

const GELU_CUBE: f64 = 0.044715;

/// The smallest scale of a loss, 2^-24. At 0, unscaled gradients would be NaN.
pub const LEAST_SCALE: f64 = 1.0 / (1 << 24) as f64;

/// A number of at least 8, which is t or t + 8, and whether it is t + 8. Stirling's series are accurate from 8 on.
fn shifted<V: Real>(t: V) -> (V, V::Mask) {
    let is_near = t.lt(V::c(8.0));
    (V::select(is_near, t + V::c(8.0), t), is_near)
}

/// `sum of c[k] / z^(2k)`.
fn series<V: Real, const N: usize>(z: V, c: [f64; N]) -> V {
    let square = V::c(1.0) / (z * z);
    c.iter().rev().fold(V::c(0.0), |sum, c| sum * square + V::c(*c))
}

/// The derivative of `ln gamma(x)`. NaN at negative integers.
fn digamma<V: Real>(x: V) -> V {
    // Where x < 1/2: digamma(x) = digamma(1 - x) - pi / tan(pi x).
    let is_low = x.lt(V::c(0.5));
    let t = V::select(is_low, V::c(1.0) - x, x);
    let (z, is_near) = shifted(t);
    let near = V::select(is_near, t, V::c(1.0));
    let first = (0..8).fold(V::c(0.0), |sum, k| sum + V::c(1.0) / (near + V::c(k as f64)));
    let sum = series(
        z,
        [
            1.0 / 12.0,
            -1.0 / 120.0,
            1.0 / 252.0,
            -1.0 / 240.0,
            1.0 / 132.0,
            -691.0 / 32_760.0,
            1.0 / 12.0,
            -3617.0 / 8160.0,
            43867.0 / 14_364.0,
        ],
    );
    let of_t = z.log() - (V::c(0.5) + sum / z) / z - V::select(is_near, first, V::c(0.0));
    let fraction = V::select(is_low, x - x.round(), V::c(0.25));
    let y = V::select(is_low, of_t - V::c(PI) / (V::c(PI) * fraction).tan(), of_t);
    let is_pole = x.lt(V::c(0.0)) & fraction.eq(V::c(0.0));
    // 0 times infinity is NaN.
    V::select(is_pole, V::c(0.0) * y, y)
}

/// `sqrt(2 / pi) (x + 0.044715 x^3)`, the argument of gelu's tanh.
fn gelu_inner<V: Real>(x: V) -> V {
    V::c((2.0 / PI).sqrt()) * (x + V::c(GELU_CUBE) * x * x * x)
}

/// `e^x`, where x is limited to a value from which mish is x.
fn mish_exp<V: Real>(x: V) -> V {
    x.min(V::c(20.0)).exp()
}

/// `tanh(ln(1 + e))` without either function.
fn tanh_softplus<V: Real>(e: V) -> V {
    let n = e * (e + V::c(2.0));
    n / (n + V::c(2.0))
}

/// The line from 0 at -3 to 1 at 3, clamped; exact at both ends.
fn hard_step<V: Real>(x: V) -> V {
    (x + V::c(3.0)).max(V::c(0.0)).min(V::c(6.0)) * V::c(1.0 / 6.0)
}

/// The derivative of `x * sigmoid(x)`.
fn silu_slope<V: Real>(x: V) -> V {
    let s = x.sigmoid();
    s * (V::c(1.0) + saturated(x) * (V::c(1.0) - s))
}

/// x up to a number from which the slopes of activations are 1 in every dtype. Its product with a term that vanishes there is 0,
/// also for infinity.
fn saturated<V: Value>(x: V) -> V {
    x.min(V::c(40.0))
}

/// x in the domain of a function, outside of which its result is NaN; NaN there.
fn within<V: Real>(is_outside: V::Mask, x: V) -> V {
    V::select(is_outside, V::c(0.0) / V::c(0.0), x)
}

/// `x` between `-limit` and `limit`.
fn clamped<V: Real>(x: V, limit: V) -> V {
    let x = V::select(x.gt(limit), limit, x);
    V::select(x.lt(-limit), -limit, x)
}

/// Zero where `mask`, `g` elsewhere.
fn zero_if<V: Value>(mask: V::Mask, g: V) -> V {
    V::select(mask, V::c(0.0), g)
}

/// The gradient of `a` where a maximum of `a` and `b` was taken: ties share it.
fn share_of_larger<V: Value>(g: V, a: V, b: V) -> V {
    V::select(a.eq(b), V::c(0.5) * g, zero_if(a.lt(b), g))
}

/// `x`, or 1 where `mask`: an operand of a function whose result is not used there. A function that is infinite there would make
/// higher derivatives NaN.
fn one_where<V: Value>(mask: V::Mask, x: V) -> V {
    V::select(mask, V::c(1.0), x)
}

/// The gradients of `a^b`.
fn pow_slopes<V: Real>(g: V, a: V, b: V) -> [V; 2] {
    let (zero, one) = (V::c(0.0), V::c(1.0));
    let (is_constant, is_zero) = (b.eq(zero), a.eq(zero) & b.ge(zero));
    let base = one_where(is_zero, a);
    [
        zero_if(is_constant, g * b * a.pow(one_where(is_constant, b) - one)),
        zero_if(is_zero, g * base.pow(b) * base.log()),
    ]
}

/// The gradients of `a ln(b)`, which is 0 where a is.
fn xlogy_slopes<V: Real>(g: V, a: V, b: V) -> [V; 2] {
    let zero = V::c(0.0);
    let is_absent = a.eq(zero) & b.le(zero);
    let b = one_where(is_absent, b);
    [zero_if(is_absent, g * b.log()), g * a / within(b.lt(zero), b)]
}

/// The gradient of b of `a / b`. The square of b may be out of range.
fn quotient_slope<V: Real>(g: V, a: V, b: V) -> V {
    -(g / b) * (a / b)
}

/// The gradient of x of the norm y of a slice; 0 where the norm is.
fn norm_slope<V: Real>(g: V, x: V, y: V) -> V {
    let is_zero = y.eq(V::c(0.0));
    zero_if(is_zero, g * (x / one_where(is_zero, y)))
}

/// The gradient of a of the angle of (b, a); 0 at (0, 0). The squares may be out of range.
fn angle_slope<V: Real>(g: V, a: V, b: V) -> V {
    let y = length(a, b);
    norm_slope(g / one_where(y.eq(V::c(0.0)), y), b, y)
}

/// The Kullback-Leibler divergence's `t - x` for logarithms; 0 where the probability `p = e^t` is 0.
fn log_ratio<V: Real>(p: V, x: V, t: V) -> V {
    zero_if(p.eq(V::c(0.0)), t - x)
}

/// `ln(1 + e^-|x|)`, the difference of [`softplus`](Real::softplus) and `max(x, 0)`. As a separate term it survives the
/// cancellation of `max(x, 0)` with another term.
fn softplus_tail<V: Real>(x: V) -> V {
    (-x.abs()).exp().log1p()
}

/// The cross entropy of the sigmoid of x with t: `ln(1 + e^x) - x t`.
fn logistic_loss<V: Real>(x: V, t: V) -> V {
    (x.max(V::c(0.0)) - x * t) + softplus_tail(x)
}

/// True for -infinity.
fn is_lowest<V: Value>(x: V) -> V::Mask {
    let zero = V::c(0.0);
    x.lt(zero) & (x * zero).ne(zero)
}

/// `sqrt(a^2 + b^2)` without overflow; infinite where a or b is.
fn length<V: Real>(a: V, b: V) -> V {
    let (zero, one) = (V::c(0.0), V::c(1.0));
    let (a, b) = (a.abs(), b.abs());
    let is_infinite = is_lowest(-a) | is_lowest(-b);
    let (large, small) = (a.max(b), a.min(b));
    let ratio = small / one_where(large.eq(zero), large);
    let sum = a + b;
    V::select(
        is_infinite,
        V::select(is_lowest(-a), a, b),
        V::select(sum.ne(sum), sum, large * (one + ratio * ratio).sqrt()),
    )
}

/// `a - b`, and 0 for equal infinities.
fn distance<V: Real>(a: V, b: V) -> V {
    V::select(a.eq(b), V::c(0.0), a - b)
}

/// True for a negative number and for -0; false for NaN.
fn has_sign<V: Real>(x: V) -> V::Mask {
    let zero = V::c(0.0);
    x.lt(zero) | (x.eq(zero) & (V::c(1.0) / x).lt(zero))
}

/// True for a probability in range; NaN passes, so that it reaches `found_inf`.
fn is_probability<V: Value>(p: V) -> V::Mask {
    !(p.lt(V::c(0.0)) | p.gt(V::c(1.0)))
}

/// A probability clamped away from 0 and 1; NaN stays.
fn clamped_probability<V: Value>(p: V) -> V {
    p.max(V::c(1e-7)).min(V::c(1.0 - 1e-7))
}

/// `ln(p)` and `ln(1 - p)`, not below -100.
fn bounded_logarithms<V: Real>(p: V) -> [V; 2] {
    let (is_zero, is_one, least) = (p.eq(V::c(0.0)), p.eq(V::c(1.0)), V::c(-100.0));
    let (of_p, of_rest) = (one_where(is_zero, p).log(), (-zero_if(is_one, p)).log1p());
    [V::select(is_zero, least, of_p.max(least)), V::select(is_one, least, of_rest.max(least))]
}

/// Clips a gradient to `-limit` .. `limit`; NaN stays.
fn clipped<V: Value>(g: V, limit: V) -> V {
    g.max(-limit).min(limit)
}

/// The gradient of an optimizer step: scaled (loss scale, clipping by norm), clipped, and with the L2 penalty added.
fn step_gradient<V: Value>(g: V, scale: V, limit: V, p: V, decay: V) -> V {
    clipped(g * scale, limit) + decay * p
}

/// The factor of the gradients of a step: the inverse of the loss scale, times the factor that limits the total norm of the
/// unscaled gradients to `max_norm`. `norm` is the norm of the scaled gradients.
fn gradient_scale<V: Real>(inv_scale: V, norm: V, max_norm: V) -> V {
    let clip = max_norm / (norm * inv_scale + V::c(1e-6));
    inv_scale * clip.min(V::c(1.0))
}

/// `ratio`, or 1 if one of the norms is 0.
fn trust_ratio<V: Value>(w: V, u: V, ratio: V) -> V {
    let zero = V::c(0.0);
    V::select(w.eq(zero) | u.eq(zero), V::c(1.0), ratio)
}

/// The update of LAMB before the rate and the trust ratio: Adam's direction, plus weight decay.
fn lamb_update<V: Real>(m: V, v: V, p: V, correction1: V, correction2: V, decay: V, eps: V) -> V {
    m * correction1 / (v.sqrt() * correction2 + eps) + decay * p
}

/// `coth(y) - 1 / y` for y above 0; a series below 1/4, where the difference cancels.
fn langevin<V: Real>(y: V) -> V {
    let (c, y2) = (V::c, y * y);
    let series = y
        * (c(1.0 / 3.0)
            - y2 * (c(1.0 / 45.0) - y2 * (c(2.0 / 945.0) - y2 * (c(1.0 / 4725.0) - y2 * c(2.0 / 93555.0)))));
    V::select(y.lt(c(0.25)), series, c(1.0) / y.tanh() - c(1.0) / y)
}

/// The number of steps including this one, unless it is skipped.
fn counted<V: Value>(t: V, found_inf: V) -> V {
    t + V::one_if(found_inf.eq(V::c(0.0)))
}

rows! {
    // Activations.
    Real Relu "relu" (x) [] -> 1 { [V::select(x.lt(V::c(0.0)), V::c(0.0), x)] }
    Real ReluBackward "relu_backward" (g, y) [] -> 1 { [zero_if(y.le(V::c(0.0)), g)] }
    Real LeakyRelu "leaky_relu" (x) [slope] -> 1 { [V::select(x.gt(V::c(0.0)), x, slope * x)] }
    Real LeakyReluBackward "leaky_relu_backward" (g, x) [slope] -> 1 { [V::select(x.gt(V::c(0.0)), g, slope * g)] }
    Real Sigmoid "sigmoid" (x) [] -> 1 { [x.sigmoid()] }
    Real SigmoidBackward "sigmoid_backward" (g, y) [] -> 1 { [g * y * (V::c(1.0) - y)] }
    Real Tanh "tanh" (x) [] -> 1 { [x.tanh()] }
    Real TanhBackward "tanh_backward" (g, y) [] -> 1 { [g * (V::c(1.0) - y * y)] }
    Real Gelu "gelu" (x) [] -> 1 { [x * x.normal_cdf()] }
    Real GeluBackward "gelu_backward" (g, x) [] -> 1 {
        let density = (V::c(-0.5) * x * x).exp() * V::c((2.0 * PI).sqrt().recip());
        [g * (x.normal_cdf() + saturated(x) * density)]
    }
    // (1 + tanh(t)) / 2 = 1 / (1 + e^-2t)
    Real GeluTanh "gelu_tanh" (x) [] -> 1 {
        let slope = V::c(-2.0 * (2.0 / PI).sqrt() * GELU_CUBE) * x * x - V::c(2.0 * (2.0 / PI).sqrt());
        [x / (V::c(1.0) + (x * slope).exp())]
    }
    Real GeluTanhBackward "gelu_tanh_backward" (g, x) [] -> 1 {
        let (one, half) = (V::c(1.0), V::c(0.5));
        // Powers of what is limited do not overflow; beyond the limits the tanh is 1 or -1.
        let z = saturated(x).max(V::c(-40.0));
        let t = gelu_inner(z).tanh();
        let inner_slope = V::c((2.0 / PI).sqrt()) * (one + V::c(3.0 * GELU_CUBE) * z * z);
        [g * (half * (one + t) + half * saturated(x) * (one - t * t) * inner_slope)]
    }
    Real Silu "silu" (x) [] -> 1 { [x * x.sigmoid()] }
    Real SiluBackward "silu_backward" (g, x) [] -> 1 { [g * silu_slope(x)] }
    Real Elu "elu" (x) [alpha] -> 1 { [V::select(x.gt(V::c(0.0)), x, alpha * x.expm1())] }
    Real EluBackward "elu_backward" (g, x) [alpha] -> 1 { [V::select(x.le(V::c(0.0)), g * alpha * x.exp(), g)] }
    Real Mish "mish" (x) [] -> 1 { [x * tanh_softplus(mish_exp(x))] }
    Real MishBackward "mish_backward" (g, x) [] -> 1 {
        let (one, e) = (V::c(1.0), mish_exp(x));
        let t = tanh_softplus(e);
        [g * (t + saturated(x) * (e / (one + e)) * (one - t * t))]
    }
    Real Softplus "softplus" (x) [beta, threshold] -> 1 {
        [V::select((beta * x).gt(threshold), x, (beta * x).softplus() * (V::c(1.0) / beta))]
    }
    Real SoftplusBackward "softplus_backward" (g, x) [beta, threshold] -> 1 {
        [V::select((beta * x).gt(threshold), g, g * (beta * x).sigmoid())]
    }
    Real Hardswish "hardswish" (x) [] -> 1 {
        [x.max(V::c(-3.0)) * hard_step(x)]
    }
    Real HardswishBackward "hardswish_backward" (g, x) [] -> 1 {
        let three = V::c(3.0);
        let inside = V::select(x.lt(three), g * (x * V::c(1.0 / 3.0) + V::c(0.5)), g);
        [zero_if(x.le(-three), inside)]
    }
    Real Relu6 "relu6" (x) [] -> 1 { [x.max(V::c(0.0)).min(V::c(6.0))] }
    Real Relu6Backward "relu6_backward" (g, x) [] -> 1 { [zero_if(x.le(V::c(0.0)) | x.ge(V::c(6.0)), g)] }
    Real Selu "selu" (x) [alpha, gamma] -> 1 { [gamma * V::select(x.gt(V::c(0.0)), x, alpha * x.expm1())] }
    Real SeluBackward "selu_backward" (g, x) [alpha, gamma] -> 1 {
        [gamma * V::select(x.le(V::c(0.0)), alpha * x.exp() * g, g)]
    }
    Real Softsign "softsign" (x) [] -> 1 {
        // From some number on it is the sign, also of infinity.
        [V::select(x.abs().gt(V::c(1e30)), x.sign(), x / (V::c(1.0) + x.abs()))]
    }
    Real SoftsignBackward "softsign_backward" (g, x) [] -> 1 {
        let d = V::c(1.0) + x.abs();
        [g / (d * d)]
    }
    Real Celu "celu" (x) [alpha] -> 1 {
        [V::select(x.gt(V::c(0.0)), x, alpha * (x * (V::c(1.0) / alpha)).expm1())]
    }
    Real CeluBackward "celu_backward" (g, x) [alpha] -> 1 {
        [V::select(x.le(V::c(0.0)), g * (x * (V::c(1.0) / alpha)).exp(), g)]
    }
    Real Hardtanh "hardtanh" (x) [lo, hi] -> 1 { [x.max(lo).min(hi)] }
    Real HardtanhBackward "hardtanh_backward" (g, x) [lo, hi] -> 1 { [zero_if(x.le(lo) | x.ge(hi), g)] }
    Real Hardsigmoid "hardsigmoid" (x) [alpha, beta] -> 1 { [(alpha * x + beta).max(V::c(0.0)).min(V::c(1.0))] }
    Real HardsigmoidBackward "hardsigmoid_backward" (g, x) [alpha, beta] -> 1 {
        let y = alpha * x + beta;
        [V::select(y.gt(V::c(0.0)) & y.lt(V::c(1.0)), g * alpha, V::c(0.0))]
    }
    Real Threshold "threshold" (x) [threshold, value] -> 1 { [V::select(x.le(threshold), value, x)] }
    Real ThresholdBackward "threshold_backward" (g, x) [threshold, _value] -> 1 { [zero_if(x.le(threshold), g)] }
    Real LogSigmoid "logsigmoid" (x) [] -> 1 { [-(-x).softplus()] }
    Real LogSigmoidBackward "logsigmoid_backward" (g, x) [] -> 1 { [g * (-x).sigmoid()] }
    Real Tanhshrink "tanhshrink" (x) [] -> 1 { [x - x.tanh()] }
    Real TanhshrinkBackward "tanhshrink_backward" (g, x) [] -> 1 {
        let t = x.tanh();
        [g * t * t]
    }
    Real Softshrink "softshrink" (x) [lambda] -> 1 {
        let inner = V::select(x.lt(-lambda), x + lambda, V::c(0.0) * x);
        [V::select(x.gt(lambda), x - lambda, inner)]
    }
    Real Hardshrink "hardshrink" (x) [lambda] -> 1 { [zero_if(x.ge(-lambda) & x.le(lambda), x)] }
    Real ShrinkBackward "shrink_backward" (g, x) [lambda] -> 1 {
        [V::select(x.lt(-lambda) | x.gt(lambda), g, V::c(0.0))]
    }
    Real Prelu "prelu" (x, weight) [] -> 1 { [V::select(x.gt(V::c(0.0)), x, weight * x)] }
    Real PreluBackward "prelu_backward" (g, x, weight) [] -> 2 {
        let is_positive = x.gt(V::c(0.0));
        [V::select(is_positive, g, weight * g), zero_if(is_positive, x * g)]
    }
    Real PreluBackwardX "prelu_backward_x" (g, x, weight) [] -> 1 { [V::select(x.gt(V::c(0.0)), g, weight * g)] }
    Real PreluBackwardWeight "prelu_backward_weight" (g, x, _weight) [] -> 1 { [zero_if(x.gt(V::c(0.0)), x * g)] }
    Real ReluSquared "relu_squared" (x) [] -> 1 {
        let positive = x.max(V::c(0.0));
        [positive * positive]
    }
    Real ReluSquaredBackward "relu_squared_backward" (g, x) [] -> 1 { [V::c(2.0) * x.max(V::c(0.0)) * g] }
    Real Swiglu "swiglu" (gate, up) [alpha, beta, limit] -> 1 {
        let gate = V::select(gate.gt(limit), limit, gate);
        [gate * (alpha * gate).sigmoid() * (clamped(up, limit) + beta)]
    }
    Real SwigluBackward "swiglu_backward" (g, gate, up) [alpha, beta, limit] -> 2 {
        // A limited operand has no gradient.
        let (is_free, is_inside) = (gate.le(limit) | gate.ne(gate), up.abs().le(limit) | up.ne(up));
        let gate = V::select(gate.gt(limit), limit, gate);
        let s = (alpha * gate).sigmoid();
        let slope = s * (V::c(1.0) + alpha * gate * (V::c(1.0) - s));
        let of_gate = g * (clamped(up, limit) + beta) * slope;
        [V::select(is_free, of_gate, V::c(0.0)), V::select(is_inside, g * gate * s, V::c(0.0))]
    }

    // Unary functions.
    Value Neg "neg" (x) [] -> 1 { [-x] }
    Value Abs "abs" (x) [] -> 1 { [x.abs()] }
    Value AbsBackward "abs_backward" (g, x) [] -> 1 { [g * x.sign()] }
    Value Sign "sign" (x) [] -> 1 { [x.sign()] }
    Value Square "square" (x) [] -> 1 { [x * x] }
    Value SquareBackward "square_backward" (g, x) [] -> 1 { [V::c(2.0) * g * x] }
    Real Exp "exp" (x) [] -> 1 { [x.exp()] }
    Real ExpBackward "exp_backward" (g, y) [] -> 1 { [g * y] }
    Real Expm1 "expm1" (x) [] -> 1 { [x.expm1()] }
    Real Expm1Backward "expm1_backward" (g, y) [] -> 1 { [g * (y + V::c(1.0))] }
    Real Log "log" (x) [] -> 1 { [x.log()] }
    Real LogBackward "log_backward" (g, x) [] -> 1 { [g / within(x.lt(V::c(0.0)), x)] }
    Real Log1p "log1p" (x) [] -> 1 { [x.log1p()] }
    Real Log1pBackward "log1p_backward" (g, x) [] -> 1 { [g / within(x.lt(V::c(-1.0)), x + V::c(1.0))] }
    Real Sqrt "sqrt" (x) [] -> 1 { [x.sqrt()] }
    Real SqrtBackward "sqrt_backward" (g, y) [] -> 1 { [g / (V::c(2.0) * y)] }
    Real Rsqrt "rsqrt" (x) [] -> 1 { [V::c(1.0) / x.sqrt()] }
    Real RsqrtBackward "rsqrt_backward" (g, y) [] -> 1 { [V::c(-0.5) * g * y * y * y] }
    Real Sin "sin" (x) [] -> 1 { [x.sin()] }
    Real SinBackward "sin_backward" (g, x) [] -> 1 { [g * x.cos()] }
    Real Cos "cos" (x) [] -> 1 { [x.cos()] }
    Real CosBackward "cos_backward" (g, x) [] -> 1 { [-g * x.sin()] }
    Real Erf "erf" (x) [] -> 1 { [x.erf()] }
    Real ErfBackward "erf_backward" (g, x) [] -> 1 { [g * V::c(2.0 / PI.sqrt()) * (-x * x).exp()] }
    Real Reciprocal "reciprocal" (x) [] -> 1 { [V::c(1.0) / x] }
    Real ReciprocalBackward "reciprocal_backward" (g, y) [] -> 1 { [-g * y * y] }
    Real Exp2 "exp2" (x) [] -> 1 { [x.exp2()] }
    Real Exp2Backward "exp2_backward" (g, y) [] -> 1 { [g * y * V::c(LN_2)] }
    Real Log2 "log2" (x) [] -> 1 { [x.log2()] }
    Real Log2Backward "log2_backward" (g, x) [] -> 1 { [g / within(x.lt(V::c(0.0)), x * V::c(LN_2))] }
    Real Log10 "log10" (x) [] -> 1 { [x.log10()] }
    Real Log10Backward "log10_backward" (g, x) [] -> 1 { [g / within(x.lt(V::c(0.0)), x * V::c(LN_10))] }
    Real Tan "tan" (x) [] -> 1 { [x.tan()] }
    Real TanBackward "tan_backward" (g, y) [] -> 1 { [g * (V::c(1.0) + y * y)] }
    Real Asin "asin" (x) [] -> 1 { [x.asin()] }
    Real AsinBackward "asin_backward" (g, x) [] -> 1 { [g / (V::c(1.0) - x * x).sqrt()] }
    Real Acos "acos" (x) [] -> 1 { [x.acos()] }
    Real AcosBackward "acos_backward" (g, x) [] -> 1 { [-g / (V::c(1.0) - x * x).sqrt()] }
    Real Atan "atan" (x) [] -> 1 { [x.atan()] }
    Real AtanBackward "atan_backward" (g, x) [] -> 1 { [g / (V::c(1.0) + x * x)] }
    Real Sinh "sinh" (x) [] -> 1 { [x.sinh()] }
    Real SinhBackward "sinh_backward" (g, x) [] -> 1 { [g * x.cosh()] }
    Real Cosh "cosh" (x) [] -> 1 { [x.cosh()] }
    Real CoshBackward "cosh_backward" (g, x) [] -> 1 { [g * x.sinh()] }
    Real Asinh "asinh" (x) [] -> 1 { [x.asinh()] }
    Real AsinhBackward "asinh_backward" (g, x) [] -> 1 {
        // The square of a large x may be out of range.
        let is_large = x.abs().gt(V::c(1e15));
        let square = V::select(is_large, V::c(0.0), x * x);
        [g / V::select(is_large, x.abs(), (square + V::c(1.0)).sqrt())]
    }
    Real Acosh "acosh" (x) [] -> 1 { [x.acosh()] }
    Real AcoshBackward "acosh_backward" (g, x) [] -> 1 {
        [g / ((x - V::c(1.0)).sqrt() * (x + V::c(1.0)).sqrt())]
    }
    Real Atanh "atanh" (x) [] -> 1 { [x.atanh()] }
    Real AtanhBackward "atanh_backward" (g, x) [] -> 1 {
        let d = V::c(1.0) - x * x;
        [g / within(d.lt(V::c(0.0)), d)]
    }
    Real Lgamma "lgamma" (x) [] -> 1 {
        // Where x < 1/2: ln |gamma(x)| = ln(pi / |sin(pi x)|) - ln gamma(1 - x).
        let half = V::c(0.5);
        let is_low = x.lt(half);
        let t = V::select(is_low, V::c(1.0) - x, x);
        let (z, is_near) = shifted(t);
        let near = V::select(is_near, t, V::c(1.0));
        let product = (1..8).fold(near, |product, k| product * (near + V::c(k as f64)));
        let sum = series(z, [1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0, -1.0 / 1680.0, 1.0 / 1188.0, -691.0 / 360_360.0, 1.0 / 156.0]);
        let large = (z - half) * (z.log() - V::c(1.0)) + V::c((2.0 * PI).ln() / 2.0 - 0.5) + sum / z;
        let of_t = large - V::select(is_near, product.log(), V::c(0.0));
        let sine = (V::c(PI) * V::select(is_low, x - x.round(), half)).sin().abs();
        let y = V::select(is_low, (V::c(PI) / sine).log() - of_t, of_t);
        [V::select(is_lowest(x), -x, y)]
    }
    Real LgammaBackward "lgamma_backward" (g, x) [] -> 1 { [g * digamma(x)] }
    Real Digamma "digamma" (x) [] -> 1 { [digamma(x)] }
    Real DigammaBackward "digamma_backward" (g, x) [] -> 1 {
        // Where x < 1/2: the sum of trigamma at x and 1 - x is (pi / sin(pi x))^2.
        let is_low = x.lt(V::c(0.5));
        let t = V::select(is_low, V::c(1.0) - x, x);
        let (z, is_near) = shifted(t);
        let near = V::select(is_near, t, V::c(1.0));
        let square = |k: usize| (near + V::c(k as f64)) * (near + V::c(k as f64));
        let first = (0..8).fold(V::c(0.0), |sum, k| sum + V::c(1.0) / square(k));
        let sum = series(
            z,
            [
                1.0 / 6.0,
                -1.0 / 30.0,
                1.0 / 42.0,
                -1.0 / 30.0,
                5.0 / 66.0,
                -691.0 / 2730.0,
                7.0 / 6.0,
                -3617.0 / 510.0,
                43867.0 / 798.0,
            ],
        );
        let of_t = (V::c(1.0) + V::c(0.5) / z + sum / (z * z)) / z + V::select(is_near, first, V::c(0.0));
        let sine = (V::c(PI) * V::select(is_low, x - x.round(), V::c(0.5))).sin();
        [g * V::select(is_low, V::c(PI * PI) / (sine * sine) - of_t, of_t)]
    }
    Real Erfinv "erfinv" (x) [] -> 1 {
        // The approximation of Giles 2010, "Approximating the erfinv function", and three steps of Halley's method.
        let (one, half) = (V::c(1.0), V::c(0.5));
        let size = V::select(x.abs().lt(one), x.abs(), V::c(0.0));
        let w = -((one - size) * (one + size)).log();
        let polynomial = |w: V, c: [f64; 9]| c[1..].iter().fold(V::c(c[0]), |p, c| p * w + V::c(*c));
        let center = polynomial(
            w - V::c(2.5),
            [
                2.810_226_36e-8,
                3.432_739_39e-7,
                -3.523_387_7e-6,
                -4.391_506_54e-6,
                2.185_808_7e-4,
                -1.253_725_03e-3,
                -4.177_681_64e-3,
                0.246_640_727,
                1.501_409_41,
            ],
        );
        let tail = polynomial(
            w.sqrt() - V::c(3.0),
            [
                -2.002_142_57e-4,
                1.009_505_58e-4,
                1.349_343_22e-3,
                -3.673_428_44e-3,
                5.739_507_73e-3,
                -7.622_461_3e-3,
                9.438_870_47e-3,
                1.001_674_06,
                2.832_976_82,
            ],
        );
        // Beyond the range of f32: erfc(y) is near e^(-y^2) / (y sqrt(pi)), with sqrt(w) for y.
        let far = (w + V::c(LN_2) - V::c(0.5) * (V::c(PI) * w).log()).sqrt();
        let near = size * V::select(w.lt(V::c(5.0)), center, tail);
        let first = V::select(w.lt(V::c(16.0)), near, far);
        let step = |y: V| {
            // Near 1 the difference of complements has more digits.
            let missing = V::select(size.lt(half), size - y.erf(), y.erfc() - (one - size));
            let newton = missing * V::c(PI.sqrt() / 2.0) * (y * y).exp();
            y + newton / (one - y * newton)
        };
        let y = step(step(step(first)));
        let infinite = -zero_if(x.eq(x), x).log();
        let y = V::select(x.abs().eq(one), infinite, V::select(x.abs().gt(one), V::c(0.0) * infinite, y));
        [V::select(x.lt(V::c(0.0)), -y, y) + zero_if(x.eq(x), x)]
    }
    Real ErfinvBackward "erfinv_backward" (g, y) [] -> 1 { [g * V::c(PI.sqrt() / 2.0) * (y * y).exp()] }
    Real Erfc "erfc" (x) [] -> 1 { [x.erfc()] }
    Real ErfcBackward "erfc_backward" (g, x) [] -> 1 { [-g * V::c(2.0 / PI.sqrt()) * (-x * x).exp()] }
    // ln(x / (1 - x)) of x limited to lo .. hi, where hi = 1 - lo. The difference is limited as well: 1 - hi has few digits.
    Real Logit "logit" (x) [lo, hi] -> 1 {
        let q = V::c(1.0) - x;
        [(x.max(lo).min(hi) / q.max(lo).min(hi)).log()]
    }
    Real LogitBackward "logit_backward" (g, x) [lo, hi] -> 1 {
        let is_limited = x.lt(lo) | x.gt(hi);
        let d = one_where(is_limited, x * (V::c(1.0) - x));
        [zero_if(is_limited, g / within(d.lt(V::c(0.0)), d))]
    }
    Real Entr "entr" (x) [] -> 1 {
        let zero = V::c(0.0);
        [V::select(x.gt(zero), -x * x.log(), V::select(x.lt(zero), zero.log(), zero_if(x.eq(zero), x)))]
    }
    Real EntrBackward "entr_backward" (g, x) [] -> 1 { [-g * (x.log() + V::c(1.0))] }
    Real Sinc "sinc" (x) [] -> 1 {
        let t = V::c(PI) * x;
        [V::select(x.eq(V::c(0.0)), V::c(1.0), t.sin() / t)]
    }
    Real SincBackward "sinc_backward" (g, x) [] -> 1 {
        // The quotient cancels near 0, where the series has an error of 1e-14.
        let t = V::c(PI) * x;
        let (square, is_small) = (t * t, t.abs().lt(V::c(0.5)));
        let factors = [518_918_400.0, -3_991_680.0, 45_360.0, -840.0, 30.0, -3.0];
        let series = factors.iter().fold(V::c(0.0), |sum, f| sum * square + V::c(1.0 / f)) * t;
        let t = V::select(is_small, V::c(1.0), t);
        [g * V::c(PI) * V::select(is_small, series, (t.cos() - t.sin() / t) / t)]
    }
    Real NanToNum "nan_to_num" (x) [nan, highest, lowest] -> 1 {
        let bounded = V::select(is_lowest(-x), highest, V::select(is_lowest(x), lowest, x));
        [V::select(x.ne(x), nan, bounded)]
    }
    Real NanToNumBackward "nan_to_num_backward" (g, x) [] -> 1 { [zero_if((x * V::c(0.0)).ne(V::c(0.0)), g)] }
    Real Floor "floor" (x) [] -> 1 { [x.floor()] }
    Real Ceil "ceil" (x) [] -> 1 { [x.ceil()] }
    Real Trunc "trunc" (x) [] -> 1 { [x.trunc()] }
    Real Round "round" (x) [] -> 1 { [x.round()] }
    Real Frac "frac" (x) [] -> 1 { [x - x.trunc()] }

    // Binary functions; names in `_scalar` take the second operand as an attribute.
    Value Add "add" (a, b) [alpha] -> 1 { [a + alpha * b] }
    Value AddScalar "add_scalar" (a) [b] -> 1 { [a + b] }
    Value RsubScalar "rsub_scalar" (a) [b] -> 1 { [b - a] }
    Value Mul "mul" (a, b) [] -> 1 { [a * b] }
    Real MulBackward "mul_backward" (g, a, b) [] -> 2 { [g * b, g * a] }
    Value MulScalar "mul_scalar" (a) [b] -> 1 { [a * b] }
    Real Div "div" (a, b) [] -> 1 { [a / b] }
    Real DivScalar "div_scalar" (a) [b] -> 1 { [a / b] }
    Real RdivScalar "rdiv_scalar" (a) [b] -> 1 { [b / a] }
    Real DivBackward "div_backward" (g, a, b) [] -> 2 { [g / b, quotient_slope(g, a, b)] }
    Real RdivScalarBackward "rdiv_scalar_backward" (g, a) [b] -> 1 { [quotient_slope(g, b, a)] }
    Real DivBackwardB "div_backward_b" (g, a, b) [] -> 1 { [quotient_slope(g, a, b)] }
    Real DivFloor "div_floor" (a, b) [] -> 1 {
        let (zero, one) = (V::c(0.0), V::c(1.0));
        let m = a.fmod(b);
        let q = (a - m) / b;
        let q = V::select(m.ne(zero) & ((b.lt(zero) & m.ge(zero)) | (b.ge(zero) & m.lt(zero))), q - one, q);
        // q is an integer up to rounding; the nearest integer is the quotient.
        let floor = q.floor();
        let nearest = V::select((q - floor).gt(V::c(0.5)), floor + one, floor);
        [V::select(b.eq(zero), a / b, nearest)]
    }
    Real DivTrunc "div_trunc" (a, b) [] -> 1 { [(a / b).trunc()] }
    Integer IntDivFloor "int_div_floor" (a, b) [] -> 1 { [a.div_floor(b)] }, check { b.ne(V::c(0.0)) }
    Integer IntDivTrunc "int_div_trunc" (a, b) [] -> 1 { [a.div_trunc(b)] }, check { b.ne(V::c(0.0)) }
    Real Pow "pow" (a, b) [] -> 1 { [a.pow(b)] }
    Real PowScalar "pow_scalar" (a) [b] -> 1 { [a.pow(b)] }
    Real RpowScalar "rpow_scalar" (b) [a] -> 1 { [a.pow(b)] }
    Real PowBackward "pow_backward" (g, a, b) [] -> 2 { pow_slopes(g, a, b) }
    Real PowBackwardA "pow_backward_a" (g, a, b) [] -> 1 { [pow_slopes(g, a, b)[0]] }
    Real PowBackwardB "pow_backward_b" (g, a, b) [] -> 1 { [pow_slopes(g, a, b)[1]] }
    Real RpowScalarBackward "rpow_scalar_backward" (g, b) [a] -> 1 { [pow_slopes(g, a, b)[1]] }
    Real PowScalarBackward "pow_scalar_backward" (g, a) [b] -> 1 {
        [zero_if(b.eq(V::c(0.0)), g * b * a.pow(b - V::c(1.0)))]
    }
    Integer IntPow "int_pow" (a, b) [] -> 1 { [a.pow(b)] }
    Integer IntPowScalar "int_pow_scalar" (a) [b] -> 1 { [a.pow(b)] }
    Integer NormalizeIndex "normalize_index" (i) [size] -> 1 { [V::select(i.lt(V::c(0.0)), i + size, i)] },
        check { i.lt(size) & (-size).le(i) }
    Integer NeighborIndex "neighbor_index" (i) [size] -> 1 { [V::select(i.lt(size) & V::c(-1.0).le(i), i, V::c(-1.0))] },
        check { i.lt(size) & V::c(-1.0).le(i) }
    Value Maximum "maximum" (a, b) [] -> 1 { [a.max(b)] }
    Value Minimum "minimum" (a, b) [] -> 1 { [a.min(b)] }
    Real MaximumBackward "maximum_backward" (g, a, b) [] -> 2 { [share_of_larger(g, a, b), share_of_larger(g, b, a)] }
    Real MaximumBackwardA "maximum_backward_a" (g, a, b) [] -> 1 { [share_of_larger(g, a, b)] }
    Real MinimumBackward "minimum_backward" (g, a, b) [] -> 2 { [share_of_larger(g, -a, -b), share_of_larger(g, -b, -a)] }
    Real MinimumBackwardA "minimum_backward_a" (g, a, b) [] -> 1 { [share_of_larger(g, -a, -b)] }

    Real Atan2 "atan2" (a, b) [] -> 1 { [a.atan2(b)] }
    Real Atan2Backward "atan2_backward" (g, a, b) [] -> 2 {
        [angle_slope(g, a, b), -angle_slope(g, b, a)]
    }
    Real Atan2BackwardA "atan2_backward_a" (g, a, b) [] -> 1 { [angle_slope(g, a, b)] }
    Real Atan2BackwardB "atan2_backward_b" (g, a, b) [] -> 1 { [-angle_slope(g, b, a)] }
    Real Hypot "hypot" (a, b) [] -> 1 { [length(a, b)] }
    Real HypotBackward "hypot_backward" (g, a, b) [] -> 2 {
        let y = length(a, b);
        [norm_slope(g, a, y), norm_slope(g, b, y)]
    }
    Real HypotBackwardA "hypot_backward_a" (g, a, b) [] -> 1 {
        [norm_slope(g, a, length(a, b))]
    }
    Real LogAddExp "logaddexp" (a, b) [] -> 1 { [a.max(b) + (-distance(a, b).abs()).exp().log1p()] }
    Real LogAddExpBackward "logaddexp_backward" (g, a, b) [] -> 2 {
        let d = distance(a, b);
        [g * d.sigmoid(), g * (-d).sigmoid()]
    }
    Real LogAddExpBackwardA "logaddexp_backward_a" (g, a, b) [] -> 1 { [g * distance(a, b).sigmoid()] }
    Real Xlogy "xlogy" (a, b) [] -> 1 {
        [V::select(b.ne(b), b, zero_if(a.eq(V::c(0.0)), a * b.log()))]
    }
    Real XlogyBackward "xlogy_backward" (g, a, b) [] -> 2 { xlogy_slopes(g, a, b) }
    Real XlogyBackwardA "xlogy_backward_a" (g, a, b) [] -> 1 { [xlogy_slopes(g, a, b)[0]] }
    Real XlogyBackwardB "xlogy_backward_b" (g, a, b) [] -> 1 { [xlogy_slopes(g, a, b)[1]] }
    Real Fmax "fmax" (a, b) [] -> 1 { [V::select(a.ge(b) | b.ne(b), a, b)] }
    Real Fmin "fmin" (a, b) [] -> 1 { [V::select(a.le(b) | b.ne(b), a, b)] }
    Real FmaxBackward "fmax_backward" (g, a, b) [] -> 2 {
        let is_a = a.ge(b) | b.ne(b);
        [V::select(is_a, g, V::c(0.0)), zero_if(is_a, g)]
    }
    Real FmaxBackwardA "fmax_backward_a" (g, a, b) [] -> 1 { [V::select(a.ge(b) | b.ne(b), g, V::c(0.0))] }
    Real FmaxBackwardB "fmax_backward_b" (g, a, b) [] -> 1 { [zero_if(a.ge(b) | b.ne(b), g)] }
    Real FminBackward "fmin_backward" (g, a, b) [] -> 2 {
        let is_a = a.le(b) | b.ne(b);
        [V::select(is_a, g, V::c(0.0)), zero_if(is_a, g)]
    }
    Real FminBackwardA "fmin_backward_a" (g, a, b) [] -> 1 { [V::select(a.le(b) | b.ne(b), g, V::c(0.0))] }
    Real FminBackwardB "fmin_backward_b" (g, a, b) [] -> 1 { [zero_if(a.le(b) | b.ne(b), g)] }
    Real Fmod "fmod" (a, b) [] -> 1 { [a.fmod(b)] }
    Real Remainder "remainder" (a, b) [] -> 1 {
        let zero = V::c(0.0);
        let m = a.fmod(b);
        [V::select(m.ne(zero) & ((b.lt(zero) & m.ge(zero)) | (b.ge(zero) & m.lt(zero))), m + b, m)]
    }
    Integer IntFmod "int_fmod" (a, b) [] -> 1 { [a - a.div_trunc(b) * b] }, check { b.ne(V::c(0.0)) }
    Integer IntRemainder "int_remainder" (a, b) [] -> 1 { [a - a.div_floor(b) * b] }, check { b.ne(V::c(0.0)) }
    Real Copysign "copysign" (a, b) [] -> 1 { [V::select(has_sign(b), -a.abs(), a.abs())] }
    Real CopysignBackward "copysign_backward" (g, a, b) [] -> 1 {
        let slope = g * a.sign();
        [V::select(has_sign(b), -slope, slope)]
    }
    Value Heaviside "heaviside" (x, at_zero) [] -> 1 {
        [V::select(x.eq(V::c(0.0)), at_zero, V::one_if(x.gt(V::c(0.0))))]
    }
    Integer BitwiseAnd "bitwise_and" (a, b) [] -> 1 { [a.and(b)] }
    Integer BitwiseOr "bitwise_or" (a, b) [] -> 1 { [a.or(b)] }
    Integer BitwiseXor "bitwise_xor" (a, b) [] -> 1 { [a.xor(b)] }
    Integer BitwiseNot "bitwise_not" (a) [] -> 1 { [V::c(-1.0) - a] }
    Integer BitwiseLeftShift "bitwise_left_shift" (a, b) [] -> 1 { [a.shift_left(b)] }
    Integer BitwiseRightShift "bitwise_right_shift" (a, b) [] -> 1 { [a.shift_right(b)] }

    // Comparisons: outputs are bool.
    Value Eq "eq" (a, b) [] -> 1 { [V::one_if(a.eq(b))] }
    Value Ne "ne" (a, b) [] -> 1 { [V::one_if(a.ne(b))] }
    Value Lt "lt" (a, b) [] -> 1 { [V::one_if(a.lt(b))] }
    Value Gt "gt" (a, b) [] -> 1 { [V::one_if(a.gt(b))] }
    Value Le "le" (a, b) [] -> 1 { [V::one_if(a.le(b))] }
    Value Ge "ge" (a, b) [] -> 1 { [V::one_if(a.ge(b))] }
    Value EqScalar "eq_scalar" (a) [b] -> 1 { [V::one_if(a.eq(b))] }
    Value NeScalar "ne_scalar" (a) [b] -> 1 { [V::one_if(a.ne(b))] }
    Value LtScalar "lt_scalar" (a) [b] -> 1 { [V::one_if(a.lt(b))] }
    Value GtScalar "gt_scalar" (a) [b] -> 1 { [V::one_if(a.gt(b))] }
    Value LeScalar "le_scalar" (a) [b] -> 1 { [V::one_if(a.le(b))] }
    Value GeScalar "ge_scalar" (a) [b] -> 1 { [V::one_if(a.ge(b))] }
    // The names without a line are macros of C.
    Real IsNan "is_nan" (x) [] -> 1 { [V::one_if(x.ne(x))] }
    Real IsInf "is_inf" (x) [] -> 1 { [V::one_if(x.eq(x) & (x * V::c(0.0)).ne(V::c(0.0)))] }
    Real IsFinite "is_finite" (x) [] -> 1 { [V::one_if((x * V::c(0.0)).eq(V::c(0.0)))] }
    Real NotFinite "not_finite" (x) [] -> 1 { [V::one_if((x * V::c(0.0)).ne(V::c(0.0)))] }

    // Selection and fused pointwise.
    Value Where "where_cond" (cond, a, b) [] -> 1 { [V::select(cond.ne(V::c(0.0)), a, b)] }
    Value WhereBackward "where_backward" (g, cond) [] -> 2 {
        let is_a = cond.ne(V::c(0.0));
        [V::select(is_a, g, V::c(0.0)), zero_if(is_a, g)]
    }
    Value WhereBackwardA "where_backward_a" (g, cond) [] -> 1 { [zero_if(cond.eq(V::c(0.0)), g)] }
    Value WhereBackwardB "where_backward_b" (g, cond) [] -> 1 { [V::select(cond.eq(V::c(0.0)), g, V::c(0.0))] }
    Value WhereScalar "where_scalar" (cond, a) [b] -> 1 { [V::select(cond.ne(V::c(0.0)), a, b)] }
    Value Clamp "clamp" (x, lo, hi) [] -> 1 { [x.max(lo).min(hi)] }
    Value ClampScalar "clamp_scalar" (x) [lo, hi] -> 1 { [x.max(lo).min(hi)] }
    Real ClampScalarBackward "clamp_scalar_backward" (g, x) [lo, hi] -> 1 {
        [V::select(x.ge(lo) & x.le(hi), g, V::c(0.0))]
    }
    Real ClampBackward "clamp_backward" (g, x, lo, hi) [] -> 3 {
        let zero = V::c(0.0);
        let (below, above) = (x.lt(lo) & lo.lt(hi), x.gt(hi) | lo.gt(hi));
        [V::select(x.ge(lo) & x.le(hi), g, zero), V::select(below, g, zero), V::select(above, g, zero)]
    }
    Value Addcmul "addcmul" (s, a, b) [value] -> 1 { [s + value * a * b] }
    Real AddcmulBackward "addcmul_backward" (g, a, b) [value] -> 2 { [value * g * b, value * g * a] }
    Value AddcmulBackwardA "addcmul_backward_a" (g, b) [value] -> 1 { [value * g * b] }
    Real Addcdiv "addcdiv" (s, a, b) [value] -> 1 { [s + value * a / b] }
    Real AddcdivBackward "addcdiv_backward" (g, a, b) [value] -> 2 {
        [value * g / b, value * quotient_slope(g, a, b)]
    }
    Real AddcdivBackwardA "addcdiv_backward_a" (g, b) [value] -> 1 { [value * g / b] }
    Real AddcdivBackwardB "addcdiv_backward_b" (g, a, b) [value] -> 1 { [value * quotient_slope(g, a, b)] }
    Real Lerp "lerp" (a, b, w) [] -> 1 {
        let low = a + w * (b - a);
        [V::select(w.abs().lt(V::c(0.5)), low, b - (b - a) * (V::c(1.0) - w))]
    }
    Real LerpScalar "lerp_scalar" (a, b) [w] -> 1 {
        let low = a + w * (b - a);
        [V::select(w.abs().lt(V::c(0.5)), low, b - (b - a) * (V::c(1.0) - w))]
    }
    Real LerpBackward "lerp_backward" (g, a, b, w) [] -> 3 { [g * (V::c(1.0) - w), g * w, g * (b - a)] }
    Real LerpBackwardA "lerp_backward_a" (g, w) [] -> 1 { [g * (V::c(1.0) - w)] }
    Real LerpBackwardW "lerp_backward_w" (g, a, b) [] -> 1 { [g * (b - a)] }
    Real Dropout "dropout" (x, mask) [scale] -> 1 { [x * mask * scale] }
    // The state after a step; i, f, g and o are arguments of the gates. Hochreiter and Schmidhuber 1997; Gers et al. 2000.
    Real LstmStep "lstm_step" (i, f, g, o, c) [] -> 2 {
        let c = f.sigmoid() * c + i.sigmoid() * g.tanh();
        [o.sigmoid() * c.tanh(), c]
    }
    // `dc`: what arrives at `next`, the cell state after the step, from later steps. The results: the gradients of the arguments of
    // the gates, and of c.
    Real LstmStepBackward "lstm_step_backward" (dh, dc, i, f, g, o, c, next) [] -> 5 {
        let (i, f, g, o, t) = (i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid(), next.tanh());
        let one = V::c(1.0);
        let dc = dc + dh * o * (one - t * t);
        [dc * g * i * (one - i), dc * c * f * (one - f), dc * i * (one - g * g), dh * t * o * (one - o), dc * f]
    }
    // r, z, n: products of the input; ur, uz, un: products of the state h. The result is there twice: the next step reads one of
    // them while it writes beside the other. Cho et al. 2014, arXiv 1406.1078; the reset gate multiplies un.
    Real GruStep "gru_step" (r, z, n, ur, uz, un, h) [] -> 2 {
        let (r, z) = ((r + ur).sigmoid(), (z + uz).sigmoid());
        let n = (n + r * un).tanh();
        let next = (V::c(1.0) - z) * n + z * h;
        [next, next]
    }
    // The results: the gradients of the products of the input, of the products of h, and the direct part of the gradient of h plus
    // `dy`, which arrives there from the result of the step before.
    Real GruStepBackward "gru_step_backward" (dh, r, z, n, ur, uz, un, h, dy) [] -> 7 {
        let (r, z) = ((r + ur).sigmoid(), (z + uz).sigmoid());
        let n = (n + r * un).tanh();
        let one = V::c(1.0);
        let dn = dh * (one - z) * (one - n * n);
        let dz = dh * (h - n) * z * (one - z);
        let dr = dn * un * r * (one - r);
        [dr, dz, dn, dr, dz, dn * r, dh * z + dy]
    }
    // y: the largest or smallest element; `share`: 1 over the number of elements equal to y. No element equals a NaN y: 0 times an
    // infinite share makes the whole gradient of x NaN.
    Real ExtremumBackward "extremum_backward" (g, x, y, share) [] -> 1 { [g * V::one_if(x.eq(y)) * share] }
    // `max` and `log` are separate: in their sum, the result, a large `max` would absorb the digits of the logarithm.
    Real LogSumExpBackward "logsumexp_backward" (g, x, max, log) [] -> 1 { [g * ((x - max) - log).exp()] }
    // `dot`: the sum of g y over the slice. -infinity has no gradient in a slice whose softmax is undefined, where y is NaN.
    Real SoftmaxBackward "softmax_backward" (g, x, y, dot) [] -> 1 {
        [zero_if(y.ne(y) & is_lowest(x), y * (g - dot))]
    }
    // `power`: e^(x - max); `sum`, `total`: the sums of `power` and of g over the slice.
    Real LogSoftmaxBackward "log_softmax_backward" (g, x, power, sum, total) [] -> 1 {
        [zero_if(sum.ne(sum) & is_lowest(x), g - (total / sum) * power)]
    }
    // Halves keep the difference in range.
    Real Standardise "standardise" (x, mean, rstd) [] -> 1 {
        let half = V::c(0.5);
        [(half * x - half * mean) * (rstd + rstd)]
    }
    // `mean`, `slope`: the means of g and of g y over the slice.
    Real StandardiseBackward "standardise_backward" (g, y, mean, slope, rstd) [] -> 1 {
        [rstd * (g - mean - y * slope)]
    }
    // `factor`: 2 / (count - correction).
    Real VarBackward "var_backward" (g, x, mean) [factor] -> 1 { [factor * g * (x - mean)] }
    Real NormBackward "norm_backward" (g, x, y) [] -> 1 { [norm_slope(g, x, y)] }

    // Losses, before their reduction. g: the gradient of the reduced loss; `share`: 1 for a sum, 1/N for a mean.
    Real MseLoss "mse_loss" (a, t) [] -> 1 { [(a - t) * (a - t)] }
    Real MseBackward "mse_backward" (g, a, t) [share] -> 1 { [V::c(2.0) * g * share * (a - t)] }
    Real MseBackwardBoth "mse_backward_both" (g, a, t) [share] -> 2 {
        let d = V::c(2.0) * g * share * (a - t);
        [d, -d]
    }
    Real L1Loss "l1_loss" (a, t) [] -> 1 { [(a - t).abs()] }
    Real L1Backward "l1_backward" (g, a, t) [share] -> 1 { [g * share * (a - t).sign()] }
    Real L1BackwardBoth "l1_backward_both" (g, a, t) [share] -> 2 {
        let d = g * share * (a - t).sign();
        [d, -d]
    }
    Real SmoothL1Loss "smooth_l1_loss" (a, t) [beta] -> 1 {
        let d = (a - t).abs();
        [V::select(d.lt(beta), V::c(0.5) * d * (d / beta), d - V::c(0.5) * beta)]
    }
    Real SmoothL1Backward "smooth_l1_backward" (g, a, t) [beta, share] -> 1 {
        let (g, e) = (g * share, a - t);
        [V::select(e.abs().lt(beta), g * e / beta, g * e.sign())]
    }
    Real SmoothL1BackwardBoth "smooth_l1_backward_both" (g, a, t) [beta, share] -> 2 {
        let (g, e) = (g * share, a - t);
        let d = V::select(e.abs().lt(beta), g * e / beta, g * e.sign());
        [d, -d]
    }
    Real BceLoss "bce_loss" (p, t) [] -> 1 {
        let [of_p, of_rest] = bounded_logarithms(p);
        [-(t * of_p + (V::c(1.0) - t) * of_rest)]
    }, check { is_probability(p) }
    Real BceBackward "bce_backward" (g, p, t) [share] -> 1 {
        [g * share * (p - t) / (p * (V::c(1.0) - p)).max(V::c(1e-12))]
    }
    Real BceBackwardT "bce_backward_t" (g, p) [share] -> 1 {
        let [of_p, of_rest] = bounded_logarithms(p);
        [g * share * (of_rest - of_p)]
    }
    Real BceBackwardBoth "bce_backward_both" (g, p, t) [share] -> 2 {
        let (g, [of_p, of_rest]) = (g * share, bounded_logarithms(p));
        [g * (p - t) / (p * (V::c(1.0) - p)).max(V::c(1e-12)), g * (of_rest - of_p)]
    }
    Real BceWithLogits "bce_with_logits" (x, t, weight) [] -> 1 {
        // With weight w of the positive class: (1 - t) x + (1 + (w - 1) t) ln(1 + e^-x).
        let one = V::c(1.0);
        let share = one + (weight - one) * t;
        [((one - t) * x + share * (-x).max(V::c(0.0))) + share * softplus_tail(x)]
    }
    Real BceWithLogitsBackward "bce_with_logits_backward" (g, x, t, weight) [share] -> 1 {
        let one = V::c(1.0);
        [g * share * ((one - t) - (one + (weight - one) * t) * (-x).sigmoid())]
    }
    Real BceWithLogitsBackwardT "bce_with_logits_backward_t" (g, x, weight) [share] -> 1 {
        // d/dt ((1 - t) x + (1 + (w - 1) t) ln(1 + e^-x)).
        [g * share * ((weight - V::c(1.0)) * (-x).softplus() - x)]
    }
    Real KlDiv "kl_div" (input, target) [] -> 1 {
        [V::select(target.eq(V::c(0.0)), V::c(0.0), target * (target.log() - input))]
    }
    Real KlDivBackward "kl_div_backward" (g, target) [share] -> 1 { [-g * share * target] }
    Real KlDivLog "kl_div_log" (input, target) [] -> 1 {
        let p = target.exp();
        [p * log_ratio(p, input, target)]
    }
    Real KlDivLogBackward "kl_div_log_backward" (g, target) [share] -> 1 { [-g * share * target.exp()] }
    Real KlDivBackwardT "kl_div_backward_t" (g, input, target) [share] -> 1 {
        let is_absent = target.eq(V::c(0.0));
        let t = one_where(is_absent, target);
        [zero_if(is_absent, g * share * (t.log() + V::c(1.0) - input))]
    }
    Real KlDivLogBackwardT "kl_div_log_backward_t" (g, input, target) [share] -> 1 {
        let p = target.exp();
        [g * share * p * (log_ratio(p, input, target) + V::c(1.0))]
    }
    Real FocalLoss "focal_loss" (x, t) [alpha, gamma] -> 1 {
        let one = V::c(1.0);
        let p = x.sigmoid();
        let p_t = p * t + (one - p) * (one - t);
        let ce = logistic_loss(x, t);
        let alpha_t = V::select(alpha.ge(V::c(0.0)), alpha * t + (one - alpha) * (one - t), one);
        [alpha_t * ce * (one - p_t).pow(gamma)]
    }
    Real FocalBackward "focal_loss_backward" (g, x, t) [alpha, gamma, share] -> 1 {
        let (zero, one) = (V::c(0.0), V::c(1.0));
        let p = x.sigmoid();
        let p_t = p * t + (one - p) * (one - t);
        let ce = logistic_loss(x, t);
        let alpha_t = V::select(alpha.ge(zero), alpha * t + (one - alpha) * (one - t), one);
        // p (1-p) / (1-p_t). For hard targets this is p_t, where the quotient could be 0 / 0.
        let is_hard = t.eq(zero) | t.eq(one);
        let slope = V::select(is_hard, p_t, p * (one - p) / one_where(is_hard, one - p_t));
        [g * share * alpha_t * (one - p_t).pow(gamma) * (p - t - gamma * slope * (t + t - one) * ce)]
    }

    // The focal loss of a probability, which is clamped.
    Real FocalProbability "focal_loss_probability" (p, t) [alpha, gamma] -> 1 {
        let one = V::c(1.0);
        let p = clamped_probability(p);
        let p_t = p * t + (one - p) * (one - t);
        let ce = -(t * p.log() + (one - t) * (-p).log1p());
        let alpha_t = V::select(alpha.ge(V::c(0.0)), alpha * t + (one - alpha) * (one - t), one);
        [alpha_t * ce * (one - p_t).pow(gamma)]
    }
    Real FocalProbabilityBackward "focal_loss_probability_backward" (g, p, t) [alpha, gamma, share] -> 1 {
        let (zero, one) = (V::c(0.0), V::c(1.0));
        let within = clamped_probability(p);
        let is_clamped = p.ne(within);
        let p = within;
        let p_t = p * t + (one - p) * (one - t);
        let ce = -(t * p.log() + (one - t) * (-p).log1p());
        let alpha_t = V::select(alpha.ge(zero), alpha * t + (one - alpha) * (one - t), one);
        let slope = (t + t - one) * ce / (one - p_t);
        let d = alpha_t * (one - p_t).pow(gamma) * ((p - t) / (p * (one - p)) - gamma * slope);
        [zero_if(is_clamped, g * share * d)]
    }

    // Updates in place. `scale` multiplies the gradient; nothing changes where `found_inf` is not 0.
    Value Accumulate "accumulate_grad" (y, x) [] -> 1 inout { [y + x] }
    Real ScaleInPlace "scale_gradient" (y, scale) [] -> 1 inout { [y * scale] }
    // `tracker` counts steps since the last change of the scale.
    Real AmpUpdateScale "amp_update_scale" (scale, tracker, found_inf) [growth, backoff, interval] -> 2 inout {
        let (zero, count, grown) = (V::c(0.0), tracker + V::c(1.0), scale * growth);
        let (is_good, is_due) = (found_inf.eq(zero), count.eq(interval));
        // The scale does not grow to infinity.
        let due = V::select((grown * zero).eq(zero), grown, scale);
        [
            V::select(is_good, V::select(is_due, due, scale), (scale * backoff).max(V::c(LEAST_SCALE))),
            V::select(is_good, V::select(is_due, zero, count), zero)
        ]
    }
    // Running statistics: new values have the weight `share`. `unbiased` converts a biased variance to an unbiased one.
    Real RunningUpdate "running_update" (mean, var, new_mean, new_var, share) [unbiased] -> 2 inout {
        let kept = V::c(1.0) - share;
        [mean * kept + new_mean * share, var * kept + new_var * unbiased * share]
    }
    Real ClipValue "gradient_clip_value" (y) [limit] -> 1 inout { [clipped(y, limit)] }
    Real SgdPrepare "sgd_prepare" (t, _scale, inv_scale, norm, found_inf) [sign, max_norm] -> 2 inout {
        [counted(t, found_inf), sign * gradient_scale(inv_scale, norm, max_norm)]
    }
    Real SgdStep "sgd_step" (p, g, lr, scale, found_inf) [limit, decay] -> 1 inout {
        let g = step_gradient(g, scale, limit, p, decay);
        [V::select(found_inf.eq(V::c(0.0)), p - lr * g, p)]
    }
    Real SgdMomentumUpdate "sgd_momentum_update" (p, b, g, lr, scale, found_inf, t)
        [limit, decay, momentum, dampening, nesterov] -> 2 inout {
        // t counts the steps including this one. The first step initialises the momentum with the gradient.
        let (zero, one) = (V::c(0.0), V::c(1.0));
        let g = step_gradient(g, scale, limit, p, decay);
        let b1 = V::select(t.eq(one), g, momentum * b + (one - dampening) * g);
        let u = V::select(nesterov.ne(zero), g + momentum * b1, b1);
        let apply = found_inf.eq(zero);
        [V::select(apply, p - lr * u, p), V::select(apply, b1, b)]
    }
    Real AdamPrepare "adam_prepare" (t, _step_size, _correction, _shrink, _scale, inv_scale, norm, found_inf, lr)
        [sign, max_norm, decay, log_beta1, log_beta2] -> 5 inout {
        let t1 = counted(t, found_inf);
        // expm1(t ln beta) = beta^t - 1, without the cancellation of small t.
        let (bias1, bias2) = (-(t1 * log_beta1).expm1(), -(t1 * log_beta2).expm1());
        let scale = sign * gradient_scale(inv_scale, norm, max_norm);
        let one = V::c(1.0);
        [t1, lr / bias1, one / bias2.sqrt(), one - lr * decay, scale]
    }
    Real AdamStep "adam_step" (p, m, v, g, step_size, correction, shrink, scale, found_inf)
        [limit, decay, rate1, beta2, rate2, eps] -> 3 inout {
        // step_size = lr / (1 - beta1^t), correction = 1 / sqrt(1 - beta2^t), shrink = 1 - lr * weight_decay for AdamW, 1 for Adam.
        // rate = 1 - beta comes from the host: computed in f32 it would be off by 1e-5 for beta2 = 0.999.
        let g = step_gradient(g, scale, limit, p, decay);
        let m1 = m + rate1 * (g - m);
        let v1 = beta2 * v + rate2 * g * g;
        let p1 = p * shrink - step_size * m1 / (v1.sqrt() * correction + eps);
        let apply = found_inf.eq(V::c(0.0));
        [V::select(apply, p1, p), V::select(apply, m1, m), V::select(apply, v1, v)]
    }
    // v: the mean of squared gradients; a: the mean of gradients; b: the momentum. rate = 1 - alpha comes from the host, as for
    // Adam.
    Real RmsPropStep "rmsprop_step" (p, v, g, lr, scale, found_inf) [limit, decay, alpha, rate, eps] -> 2 inout {
        let g = step_gradient(g, scale, limit, p, decay);
        let v1 = alpha * v + rate * g * g;
        let apply = found_inf.eq(V::c(0.0));
        [V::select(apply, p - lr * g / (v1.sqrt() + eps), p), V::select(apply, v1, v)]
    }
    Real RmsPropMomentumStep "rmsprop_momentum_step" (p, v, b, g, lr, scale, found_inf)
        [limit, decay, alpha, rate, eps, momentum] -> 3 inout {
        let g = step_gradient(g, scale, limit, p, decay);
        let v1 = alpha * v + rate * g * g;
        let b1 = momentum * b + g / (v1.sqrt() + eps);
        let apply = found_inf.eq(V::c(0.0));
        [V::select(apply, p - lr * b1, p), V::select(apply, v1, v), V::select(apply, b1, b)]
    }
    Real RmsPropCenteredStep "rmsprop_centered_step" (p, v, a, g, lr, scale, found_inf)
        [limit, decay, alpha, rate, eps] -> 3 inout {
        let g = step_gradient(g, scale, limit, p, decay);
        let (v1, a1) = (alpha * v + rate * g * g, a + rate * (g - a));
        let apply = found_inf.eq(V::c(0.0));
        let p1 = p - lr * g / ((v1 - a1 * a1).sqrt() + eps);
        [V::select(apply, p1, p), V::select(apply, v1, v), V::select(apply, a1, a)]
    }
    Real RmsPropCenteredMomentumStep "rmsprop_centered_momentum_step" (p, v, a, b, g, lr, scale, found_inf)
        [limit, decay, alpha, rate, eps, momentum] -> 4 inout {
        let g = step_gradient(g, scale, limit, p, decay);
        let (v1, a1) = (alpha * v + rate * g * g, a + rate * (g - a));
        let b1 = momentum * b + g / ((v1 - a1 * a1).sqrt() + eps);
        let apply = found_inf.eq(V::c(0.0));
        [V::select(apply, p - lr * b1, p), V::select(apply, v1, v), V::select(apply, a1, a), V::select(apply, b1, b)]
    }
    Real AdagradPrepare "adagrad_prepare" (t, _step_size, _scale, inv_scale, norm, found_inf, lr)
        [sign, max_norm, rate_decay] -> 3 inout {
        let (t1, one) = (counted(t, found_inf), V::c(1.0));
        [t1, lr / (one + (t1 - one) * rate_decay), sign * gradient_scale(inv_scale, norm, max_norm)]
    }
    Real AdagradStep "adagrad_step" (p, h, g, step_size, scale, found_inf) [limit, decay, eps] -> 2 inout {
        let g = step_gradient(g, scale, limit, p, decay);
        let h1 = h + g * g;
        let apply = found_inf.eq(V::c(0.0));
        [V::select(apply, p - step_size * g / (h1.sqrt() + eps), p), V::select(apply, h1, h)]
    }
    // `norms` rows: the last operands are not written; only the sums of their squares are computed. w and u: the norms of the
    // parameter and of its update.
    Real LarsNorms "lars_norms" (p, g, scale) [limit] -> 2 inout { [p, clipped(g * scale, limit)] }
    Real LarsStep "lars_step" (p, b, g, w, u, lr, scale, found_inf) [limit, decay, momentum, trust, eps, nesterov] -> 2 inout {
        let zero = V::c(0.0);
        let ratio = trust_ratio(w, u, trust * w / (u + decay * w + eps));
        let step = ratio * lr * step_gradient(g, scale, limit, p, decay);
        let b1 = momentum * b + step;
        let step = V::select(nesterov.ne(zero), momentum * b1 + step, b1);
        let apply = found_inf.eq(zero);
        [V::select(apply, p - step, p), V::select(apply, b1, b)]
    }
    Real LambPrepare "lamb_prepare" (t, _correction1, _correction2, _scale, inv_scale, norm, found_inf)
        [sign, max_norm, log_beta1, log_beta2] -> 4 inout {
        // As Adam's. A log_beta of -infinity disables the bias correction.
        let (t1, one) = (counted(t, found_inf), V::c(1.0));
        let (bias1, bias2) = (-(t1 * log_beta1).expm1(), -(t1 * log_beta2).expm1());
        [t1, one / bias1, one / bias2.sqrt(), sign * gradient_scale(inv_scale, norm, max_norm)]
    }
    Real LambMoments "lamb_moments" (m, v, p, g, correction1, correction2, scale, found_inf)
        [limit, decay, rate1, beta2, rate2, eps] -> 4 inout {
        let g = clipped(g * scale, limit);
        let m1 = m + rate1 * (g - m);
        let v1 = beta2 * v + rate2 * g * g;
        let apply = found_inf.eq(V::c(0.0));
        let r = lamb_update(m1, v1, p, correction1, correction2, decay, eps);
        [V::select(apply, m1, m), V::select(apply, v1, v), p, r]
    }
    Real LambStep "lamb_step" (p, m, v, w, u, lr, correction1, correction2, found_inf) [decay, eps, max_trust] -> 1 inout {
        let ratio = trust_ratio(w, u, (w / u).min(max_trust));
        let r = lamb_update(m, v, p, correction1, correction2, decay, eps);
        [V::select(found_inf.eq(V::c(0.0)), p - lr * ratio * r, p)]
    }
    Real MuonMomentum "muon_momentum" (b, _u, g, scale, found_inf) [limit, momentum, rate, nesterov] -> 2 inout {
        // rate = 1 - momentum.
        let zero = V::c(0.0);
        let g = clipped(g * scale, limit);
        let b1 = b + rate * (g - b);
        let u = V::select(nesterov.ne(zero), g + momentum * (b1 - g), b1);
        [V::select(found_inf.eq(zero), b1, b), u]
    }
    Real MuonStep "muon_step" (p, x, lr, found_inf) [decay, factor] -> 1 inout {
        let p1 = p * (V::c(1.0) - lr * decay) - lr * factor * x;
        [V::select(found_inf.eq(V::c(0.0)), p1, p)]
    }
    Real AdamAmsgradStep "adam_amsgrad_step" (p, m, v, u, g, step_size, correction, shrink, scale, found_inf)
        [limit, decay, rate1, beta2, rate2, eps] -> 4 inout {
        let g = step_gradient(g, scale, limit, p, decay);
        let m1 = m + rate1 * (g - m);
        let v1 = beta2 * v + rate2 * g * g;
        let u1 = u.max(v1);
        let p1 = p * shrink - step_size * m1 / (u1.sqrt() * correction + eps);
        let apply = found_inf.eq(V::c(0.0));
        [V::select(apply, p1, p), V::select(apply, m1, m), V::select(apply, v1, v), V::select(apply, u1, u)]
    }
    Real AdamaxStep "adamax_step" (p, m, u, g, step_size, scale, found_inf) [limit, decay, rate1, beta2, eps] -> 3 inout {
        let g = step_gradient(g, scale, limit, p, decay);
        let m1 = m + rate1 * (g - m);
        let u1 = (beta2 * u).max(g.abs() + eps);
        let apply = found_inf.eq(V::c(0.0));
        [V::select(apply, p - step_size * m1 / u1, p), V::select(apply, m1, m), V::select(apply, u1, u)]
    }
    Real NadamPrepare "nadam_prepare"
        (t, product, _of_gradient, _of_mean, _correction, _shrink, _scale, inv_scale, norm, found_inf, lr)
        [sign, max_norm, decay, beta1, log_beta2, log_decay] -> 7 inout {
        // The momentum of step t is beta1 (1 - 0.96^(t momentum_decay) / 2); log_decay = momentum_decay ln 0.96. `product` is the
        // product of all of them.
        let (t1, one) = (counted(t, found_inf), V::c(1.0));
        let momentum = |t: V| beta1 * (one - V::c(0.5) * (t * log_decay).exp());
        let (now, next) = (momentum(t1), momentum(t1 + one));
        let product1 = V::select(found_inf.eq(V::c(0.0)), product * now, product);
        let bias2 = -(t1 * log_beta2).expm1();
        let scale = sign * gradient_scale(inv_scale, norm, max_norm);
        let (of_gradient, of_mean) = (lr * (one - now) / (one - product1), lr * next / (one - product1 * next));
        [t1, product1, of_gradient, of_mean, one / bias2.sqrt(), one - lr * decay, scale]
    }
    Real NadamStep "nadam_step" (p, m, v, g, of_gradient, of_mean, correction, shrink, scale, found_inf)
        [limit, decay, rate1, beta2, rate2, eps] -> 3 inout {
        let g = step_gradient(g, scale, limit, p, decay);
        let m1 = m + rate1 * (g - m);
        let v1 = beta2 * v + rate2 * g * g;
        let p1 = p * shrink - (of_gradient * g + of_mean * m1) / (v1.sqrt() * correction + eps);
        let apply = found_inf.eq(V::c(0.0));
        [V::select(apply, p1, p), V::select(apply, m1, m), V::select(apply, v1, v)]
    }
    Real RadamPrepare "radam_prepare" (t, _step_size, _rectifier, _shrink, _scale, inv_scale, norm, found_inf, lr)
        [sign, max_norm, decay, log_beta1, log_beta2, most] -> 5 inout {
        // The length of the moving average of squares: with y = -ln(beta2) / 2 and L(y) = coth(y) - 1 / y it is
        // rho = coth(y) - 2 t beta2^t / (1 - beta2^t) = t + L(y) - t L(t y). most = coth(y) = 2 / (1 - beta2) - 1. The rectifier is 0
        // where the variance is not yet defined.
        let c = V::c;
        let t1 = counted(t, found_inf);
        let y = c(-0.5) * log_beta2;
        let rho = t1 + langevin(y) - t1 * langevin(t1 * y);
        let (bias1, bias2) = (-(t1 * log_beta1).expm1(), -(t1 * log_beta2).expm1());
        let share = (rho - c(4.0)) * (rho - c(2.0)) * most / ((most - c(4.0)) * (most - c(2.0)) * rho);
        let rectifier = V::select(rho.gt(c(5.0)), (share.max(c(0.0)) * bias2).sqrt(), c(0.0));
        [t1, lr / bias1, rectifier, c(1.0) - lr * decay, sign * gradient_scale(inv_scale, norm, max_norm)]
    }
    Real RadamStep "radam_step" (p, m, v, g, step_size, rectifier, shrink, scale, found_inf)
        [limit, decay, rate1, beta2, rate2, eps] -> 3 inout {
        let zero = V::c(0.0);
        let g = step_gradient(g, scale, limit, p, decay);
        let m1 = m + rate1 * (g - m);
        let v1 = beta2 * v + rate2 * g * g;
        let factor = V::select(rectifier.eq(zero), V::c(1.0), rectifier / (v1.sqrt() + eps));
        let apply = found_inf.eq(zero);
        [V::select(apply, p * shrink - step_size * m1 * factor, p), V::select(apply, m1, m), V::select(apply, v1, v)]
    }
    Real AdadeltaStep "adadelta_step" (p, v, d, g, lr, scale, found_inf) [limit, decay, rho, rate, eps] -> 3 inout {
        // v and d: the means of squared gradients and of squared updates. rate = 1 - rho.
        let g = step_gradient(g, scale, limit, p, decay);
        let v1 = rho * v + rate * g * g;
        let u = g * (d + eps).sqrt() / (v1 + eps).sqrt();
        let d1 = rho * d + rate * u * u;
        let apply = found_inf.eq(V::c(0.0));
        [V::select(apply, p - lr * u, p), V::select(apply, v1, v), V::select(apply, d1, d)]
    }
    Real RpropStep "rprop_step" (p, q, s, g, lr, scale, found_inf, t) [limit, decay, shrink, grow, least, most] -> 3 inout {
        // q: the last gradient; s: the sizes of steps, which begin with the rate. t counts the steps including this one.
        let (zero, one) = (V::c(0.0), V::c(1.0));
        let g = step_gradient(g, scale, limit, p, decay);
        let s0 = V::select(t.eq(one), lr, s);
        let turn = g * q;
        let factor = V::select(turn.gt(zero), grow, V::select(turn.lt(zero), shrink, one));
        let s1 = (s0 * factor).max(least).min(most);
        let g1 = V::select(turn.lt(zero), zero, g);
        let apply = found_inf.eq(zero);
        // The sign of NaN is 0.
        let direction = V::select(g1.ne(g1), g1, g1.sign());
        [V::select(apply, p - direction * s1, p), V::select(apply, g1, q), V::select(apply, s1, s)]
    }
    Real AsgdPrepare "asgd_prepare" (t, _step_size, _share, _scale, inv_scale, norm, found_inf, lr)
        [sign, max_norm, lambda, alpha, start] -> 4 inout {
        let (t1, one) = (counted(t, found_inf), V::c(1.0));
        let before = t1 - one;
        let step_size = lr / (one + lambda * lr * before).pow(alpha);
        [t1, step_size, one / (before - start).max(one), sign * gradient_scale(inv_scale, norm, max_norm)]
    }
    Real AsgdStep "asgd_step" (p, a, g, step_size, share, scale, found_inf) [limit, decay, lambda] -> 2 inout {
        // a: the mean of the parameters; it is p itself while the share is 1.
        let g = step_gradient(g, scale, limit, p, decay);
        let p1 = p * (V::c(1.0) - lambda * step_size) - step_size * g;
        let a1 = V::select(share.eq(V::c(1.0)), p1, a + share * (p1 - a));
        let apply = found_inf.eq(V::c(0.0));
        [V::select(apply, p1, p), V::select(apply, a1, a)]
    }
    Real LionStep "lion_step" (p, m, g, lr, scale, found_inf) [limit, decay, beta1, rate1, beta2, rate2] -> 2 inout {
        // rate = 1 - beta.
        let g = clipped(g * scale, limit);
        // The sign of NaN is 0.
        let mean = beta1 * m + rate1 * g;
        let u = V::select(mean.ne(mean), mean, mean.sign());
        let m1 = beta2 * m + rate2 * g;
        let apply = found_inf.eq(V::c(0.0));
        [V::select(apply, p * (V::c(1.0) - lr * decay) - lr * u, p), V::select(apply, m1, m)]
    }
}
