//! The arithmetic in which rows of the pointwise table are written.
//!
//! A row is generic over [`Value`] (or [`Real`], [`Integer`]). The CPU runs it with f32, f64 and i64. With [`Lift`](super::Lift) it
//! becomes differentiable tensor ops, with [`CText`](super::CText) C source.

use super::elementary;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Sub};

/// A number that rows of any dtype may use.
pub trait Value: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self> {
    /// The result of a comparison.
    type Mask: Copy + BitAnd<Output = Self::Mask> + BitOr<Output = Self::Mask> + Not<Output = Self::Mask>;

    /// The constant `v`.
    fn c(v: f64) -> Self;
    /// `self < other`; false for NaN.
    fn lt(self, other: Self) -> Self::Mask;
    /// `self <= other`; false for NaN.
    fn le(self, other: Self) -> Self::Mask;
    /// `self == other`; false for NaN.
    fn eq(self, other: Self) -> Self::Mask;
    /// `if mask { yes } else { no }`; NaN of the side not selected has no effect.
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self;

    /// `self > other`.
    fn gt(self, other: Self) -> Self::Mask {
        other.lt(self)
    }
    /// `self >= other`.
    fn ge(self, other: Self) -> Self::Mask {
        other.le(self)
    }
    /// `self != other`; true for NaN.
    fn ne(self, other: Self) -> Self::Mask {
        !self.eq(other)
    }
    /// The larger; NaN if either is.
    fn max(self, other: Self) -> Self {
        Self::select(self.gt(other) | self.ne(self), self, other)
    }
    /// The smaller; NaN if either is.
    fn min(self, other: Self) -> Self {
        Self::select(self.lt(other) | self.ne(self), self, other)
    }
    /// -1, 0 or 1; 0 for NaN.
    fn sign(self) -> Self {
        let zero = Self::c(0.0);
        Self::select(zero.lt(self), Self::c(1.0), Self::select(self.lt(zero), Self::c(-1.0), zero))
    }
    /// 1 or 0.
    fn one_if(mask: Self::Mask) -> Self {
        Self::select(mask, Self::c(1.0), Self::c(0.0))
    }
    /// The absolute value.
    fn abs(self) -> Self;
}

/// A real number.
pub trait Real: Value + Div<Output = Self> {
    /// `e^self`.
    fn exp(self) -> Self;
    /// `e^self - 1`, exact near 0.
    fn expm1(self) -> Self;
    /// `2^self`.
    fn exp2(self) -> Self;
    /// The natural logarithm.
    fn log(self) -> Self;
    /// The logarithm to the base 2.
    fn log2(self) -> Self;
    /// The logarithm to the base 10.
    fn log10(self) -> Self;
    /// `ln(1 + self)`, exact near 0.
    fn log1p(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The sine.
    fn sin(self) -> Self;
    /// The cosine.
    fn cos(self) -> Self;
    /// The tangent.
    fn tan(self) -> Self;
    /// The inverse sine, `-pi/2` to `pi/2`.
    fn asin(self) -> Self;
    /// The inverse cosine, 0 to `pi`.
    fn acos(self) -> Self;
    /// The inverse tangent, `-pi/2` to `pi/2`.
    fn atan(self) -> Self;
    /// The angle of the point `(x, self)`, `-pi` to `pi`.
    fn atan2(self, x: Self) -> Self;
    /// The hyperbolic sine.
    fn sinh(self) -> Self;
    /// The hyperbolic cosine.
    fn cosh(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The inverse hyperbolic sine.
    fn asinh(self) -> Self;
    /// The inverse hyperbolic cosine.
    fn acosh(self) -> Self;
    /// The inverse hyperbolic tangent.
    fn atanh(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
    /// `1 - erf(self)`, exact for large arguments.
    fn erfc(self) -> Self;
    /// `self^other`, as IEEE pow.
    fn pow(self, other: Self) -> Self;
    /// Toward minus infinity.
    fn floor(self) -> Self;
    /// Toward plus infinity.
    fn ceil(self) -> Self;
    /// Toward zero.
    fn trunc(self) -> Self;
    /// To the nearest, half to even.
    fn round(self) -> Self;
    /// C's fmod: the remainder with the sign of `self`.
    fn fmod(self, other: Self) -> Self;

    /// `(1 + erf(self / sqrt 2)) / 2`.
    #[inline(always)]
    fn normal_cdf(self) -> Self {
        Self::c(0.5) * (Self::c(1.0) + (self * Self::c(std::f64::consts::FRAC_1_SQRT_2)).erf())
    }
    /// `1 / (1 + e^-self)` without overflow.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        let (zero, one) = (Self::c(0.0), Self::c(1.0));
        let e = (-self.abs()).exp();
        // For negative arguments the numerator is e itself, which avoids cancellation.
        Self::select(self.lt(zero), e, one) / (one + e)
    }
    /// `ln(1 + e^self)` without overflow.
    fn softplus(self) -> Self {
        self.max(Self::c(0.0)) + (-self.abs()).exp().log1p()
    }
}

/// A 64-bit integer; arithmetic wraps.
pub trait Integer: Value {
    /// Rounds toward minus infinity; the divisor is not 0.
    fn div_floor(self, other: Self) -> Self;
    /// Rounds toward zero; the divisor is not 0.
    fn div_trunc(self, other: Self) -> Self;
    /// `self^other`; a negative exponent gives 0 unless the base is 1 or -1.
    fn pow(self, other: Self) -> Self;
    /// The bits that both have.
    fn and(self, other: Self) -> Self;
    /// The bits that one of them has.
    fn or(self, other: Self) -> Self;
    /// The bits that exactly one of them has.
    fn xor(self, other: Self) -> Self;
    /// `self 2^other`; 0 for an `other` outside of 0 to 63.
    fn shift_left(self, other: Self) -> Self;
    /// `self / 2^other`, rounded toward minus infinity; 0 or -1 for an `other` outside of 0 to 63.
    fn shift_right(self, other: Self) -> Self;
}

macro_rules! real {
    ($t:ident, $exp:path, $expm1:path, $log:path, $log1p:path, $tanh:path, $erf:path, $erfc:path, $asinh:path, $acosh:path, $atanh:path) => {
        impl Value for $t {
            type Mask = bool;
            fn c(v: f64) -> Self {
                v as $t
            }
            fn lt(self, other: Self) -> bool {
                self < other
            }
            fn le(self, other: Self) -> bool {
                self <= other
            }
            fn eq(self, other: Self) -> bool {
                self == other
            }
            fn select(mask: bool, yes: Self, no: Self) -> Self {
                if mask { yes } else { no }
            }
            fn abs(self) -> Self {
                $t::abs(self)
            }
        }

        impl Real for $t {
            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }
            #[inline(always)]
            fn expm1(self) -> Self {
                $expm1(self)
            }
            fn exp2(self) -> Self {
                $t::exp2(self)
            }
            #[inline(always)]
            fn log(self) -> Self {
                $log(self)
            }
            fn log2(self) -> Self {
                $t::log2(self)
            }
            fn log10(self) -> Self {
                $t::log10(self)
            }
            #[inline(always)]
            fn log1p(self) -> Self {
                $log1p(self)
            }
            fn sqrt(self) -> Self {
                $t::sqrt(self)
            }
            fn sin(self) -> Self {
                $t::sin(self)
            }
            fn cos(self) -> Self {
                $t::cos(self)
            }
            fn tan(self) -> Self {
                $t::tan(self)
            }
            fn asin(self) -> Self {
                $t::asin(self)
            }
            fn acos(self) -> Self {
                $t::acos(self)
            }
            fn atan(self) -> Self {
                $t::atan(self)
            }
            fn atan2(self, x: Self) -> Self {
                $t::atan2(self, x)
            }
            fn sinh(self) -> Self {
                $t::sinh(self)
            }
            fn cosh(self) -> Self {
                $t::cosh(self)
            }
            #[inline(always)]
            fn tanh(self) -> Self {
                $tanh(self)
            }
            fn asinh(self) -> Self {
                $asinh(self)
            }
            fn acosh(self) -> Self {
                // Musl's, which libm has, is finite below -1.
                if self < 1.0 { $t::NAN } else { $acosh(self) }
            }
            fn atanh(self) -> Self {
                $atanh(self)
            }
            #[inline(always)]
            fn erf(self) -> Self {
                $erf(self)
            }
            fn erfc(self) -> Self {
                $erfc(self)
            }
            fn pow(self, other: Self) -> Self {
                $t::powf(self, other)
            }
            fn floor(self) -> Self {
                $t::floor(self)
            }
            fn ceil(self) -> Self {
                $t::ceil(self)
            }
            fn trunc(self) -> Self {
                $t::trunc(self)
            }
            fn round(self) -> Self {
                $t::round_ties_even(self)
            }
            fn fmod(self, other: Self) -> Self {
                self % other
            }
        }
    };
}

real!(
    f32,
    elementary::exp,
    elementary::expm1,
    elementary::log,
    elementary::log1p,
    elementary::tanh,
    elementary::erf,
    libm::erfcf,
    libm::asinhf,
    libm::acoshf,
    libm::atanhf
);
real!(
    f64,
    f64::exp,
    f64::exp_m1,
    f64::ln,
    f64::ln_1p,
    f64::tanh,
    libm::erf,
    libm::erfc,
    libm::asinh,
    libm::acosh,
    libm::atanh
);

/// An i64 whose arithmetic wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Int(pub i64);

macro_rules! wrapping {
    ($($op:ident $f:ident $wrapping:ident;)*) => {$(
        impl $op for Int {
            type Output = Int;
            fn $f(self, other: Int) -> Int {
                Int(self.0.$wrapping(other.0))
            }
        }
    )*};
}

wrapping! { Add add wrapping_add; Sub sub wrapping_sub; Mul mul wrapping_mul; }

impl Neg for Int {
    type Output = Int;
    fn neg(self) -> Int {
        Int(self.0.wrapping_neg())
    }
}

impl Value for Int {
    type Mask = bool;
    fn c(v: f64) -> Self {
        Int(v as i64)
    }
    fn lt(self, other: Self) -> bool {
        self.0 < other.0
    }
    fn le(self, other: Self) -> bool {
        self.0 <= other.0
    }
    fn eq(self, other: Self) -> bool {
        self.0 == other.0
    }
    fn select(mask: bool, yes: Self, no: Self) -> Self {
        if mask { yes } else { no }
    }
    fn abs(self) -> Self {
        Int(self.0.wrapping_abs())
    }
}

impl Integer for Int {
    fn div_floor(self, other: Self) -> Self {
        let q = self.0.wrapping_div(other.0);
        let r = self.0.wrapping_rem(other.0);
        Int(if r != 0 && (r < 0) != (other.0 < 0) { q - 1 } else { q })
    }
    fn div_trunc(self, other: Self) -> Self {
        Int(self.0.wrapping_div(other.0))
    }
    fn pow(self, other: Self) -> Self {
        let (mut base, mut exponent, mut result) = (self.0, other.0, 1i64);
        if exponent < 0 {
            return Int(match base {
                1 => 1,
                -1 if exponent % 2 == 0 => 1,
                -1 => -1,
                _ => 0,
            });
        }
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = result.wrapping_mul(base);
            }
            base = base.wrapping_mul(base);
            exponent >>= 1;
        }
        Int(result)
    }
    fn and(self, other: Self) -> Self {
        Int(self.0 & other.0)
    }
    fn or(self, other: Self) -> Self {
        Int(self.0 | other.0)
    }
    fn xor(self, other: Self) -> Self {
        Int(self.0 ^ other.0)
    }
    fn shift_left(self, other: Self) -> Self {
        Int(if (0..64).contains(&other.0) { self.0 << other.0 } else { 0 })
    }
    fn shift_right(self, other: Self) -> Self {
        Int(self.0 >> if (0..64).contains(&other.0) { other.0 } else { 63 })
    }
}
