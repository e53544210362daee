//! Elementary functions of f32 without branches, tables and fused multiply-adds. Compilers vectorise loops that call them, and their
//! bits do not depend on the width of vectors. The largest errors are in units in the last place (ulp), as the tests measure them.
//!
//! The polynomials of `exp`, `log` and `tanh` are those of the Cephes library (S. Moshier), the ones of `erf` are from N. Juffa.

/// The sum of this and a number of magnitude up to 2^22 is the number, rounded to an integer; its low bits are those of the integer.
const ROUNDS: f32 = 12_582_912.0;

/// `2^n` for n of -126 to 127.
#[inline(always)]
fn power_of_2(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32).wrapping_shl(23))
}

/// The polynomial with these coefficients, of the highest power first.
#[inline(always)]
fn polynomial<const N: usize>(coefficients: [f32; N], x: f32) -> f32 {
    coefficients[1..].iter().fold(coefficients[0], |sum, c| sum * x + c)
}

/// `x = n ln 2 + r`, with r around 0, for x of -150 to 150: n, and `e^r - 1`.
#[inline(always)]
fn reduced(x: f32) -> (i32, f32) {
    let shifted = x * std::f32::consts::LOG2_E + ROUNDS;
    let n = shifted.to_bits().wrapping_sub(ROUNDS.to_bits()) as i32;
    let whole = shifted - ROUNDS;
    // ln 2 in two parts, of which the product of the first is exact.
    let r = (x - whole * 0.693_359_4) - whole * -2.121_944_4e-4;
    let of_r = polynomial([1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5], r);
    (n, of_r * (r * r) + r)
}

/// `e^x`, 1 ulp.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Where the result rounds to 0, e^0 is computed instead: processors are slow with numbers below the normal ones.
    let is_zero = x < -104.0;
    let x = if is_zero { 0.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let (n, y) = reduced(x);
    // In two steps, so that a result below the normal numbers is rounded once.
    let half = n >> 1;
    let y = (y + 1.0) * power_of_2(half) * power_of_2(n.wrapping_sub(half));
    if is_zero { 0.0 } else { y }
}

/// `e^x - 1`, 2 ulp.
#[inline(always)]
pub fn expm1(x: f32) -> f32 {
    // From some number on it is -1, and from another e^x.
    let low = if x < -30.0 { -30.0 } else { x };
    let (n, y) = reduced(if low > 30.0 { 30.0 } else { low });
    let power = power_of_2(n);
    let near = power * y + (power - 1.0);
    // Of both zeros too.
    (if x > 30.0 { exp(x) } else { near }).copysign(x)
}

/// The natural logarithm, 1 ulp.
#[inline(always)]
pub fn log(x: f32) -> f32 {
    let is_small = x < f32::MIN_POSITIVE;
    let (scaled, shift) = if is_small { (x * 8_388_608.0, 23.0) } else { (x, 0.0) };
    // x = m 2^n, with m from sqrt(1/2) to sqrt(2).
    let bits = scaled.to_bits().wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let n = (bits as i32 >> 23) as f32 - shift;
    let m = f32::from_bits((bits & 0x7F_FFFF).wrapping_add(std::f32::consts::FRAC_1_SQRT_2.to_bits()));
    let z = m - 1.0;
    let of_z = [
        7.037_683_6e-2,
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ];
    let y = polynomial(of_z, z) * z * (z * z) + n * -2.121_944_4e-4 - 0.5 * (z * z);
    let y = z + y + n * 0.693_359_4;
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    // NaN is not at least 0.
    if x >= 0.0 { y } else { f32::NAN }
}

/// `ln(1 + x)`, 2 ulp.
#[inline(always)]
pub fn log1p(x: f32) -> f32 {
    let sum = 1.0 + x;
    // The rounding error of the sum, over the sum.
    let rest = (x - (sum - 1.0)) / sum;
    let y = log(sum) + rest;
    let y = if sum == 0.0 || sum == f32::INFINITY { log(sum) } else { y };
    if x == 0.0 { x } else { y }
}

/// The hyperbolic tangent, 2 ulp.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let (size, square) = (x.abs(), x * x);
    let of_square = polynomial([-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1], square);
    let small = of_square * square * x + x;
    let large = 1.0 - 2.0 / (exp(size + size) + 1.0);
    // Of both zeros too.
    (if size < 0.625 { small } else { large }).copysign(x)
}

/// The error function, 2 ulp.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let (size, square) = (x.abs(), x * x);
    let small = [-5.967_617e-4, 4.991_194e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1];
    let small = polynomial(small, square) * x + x;
    let of_size = [
        -1.728_534_7e-5,
        3.831_979_7e-4,
        -3.883_964e-3,
        2.425_462_2e-2,
        -1.067_778_8e-1,
        -6.348_468_7e-1,
        -1.287_175_1e-1,
    ];
    let large = (1.0 - exp(polynomial(of_size, size) * size - size)).copysign(x);
    if size < 0.927_734_4 { small } else { large }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error of `f` in units in the last place, at 2 million numbers of both signs and all sizes up to `most`.
    fn largest_error(most: f32, f: fn(f32) -> f32, exact: fn(f64) -> f64) -> f64 {
        let step = most.to_bits() / 1_000_000;
        let error = |bits: u32| {
            let x = f32::from_bits(bits);
            let (found, expected) = (f(x) as f64, exact(x as f64));
            let near = (expected as f32).abs().max(f32::MIN_POSITIVE);
            (found - expected).abs() / (f32::from_bits(near.to_bits() + 1) - near) as f64
        };
        (0..1_000_000).flat_map(|i| [i * step, (i * step) | (1 << 31)]).map(error).fold(0.0, f64::max)
    }

    #[test]
    fn errors_are_those_of_the_comments() {
        assert!(largest_error(87.0, exp, f64::exp) < 1.0);
        assert!(largest_error(87.0, expm1, f64::exp_m1) < 2.0);
        assert!(largest_error(1e38, |x| log(x.abs()), |x| x.abs().ln()) < 1.0);
        assert!(largest_error(1e38, |x| log1p(x.max(-0.999)), |x| f64::from((x as f32).max(-0.999)).ln_1p()) < 2.0);
        assert!(largest_error(20.0, tanh, f64::tanh) < 2.0);
        assert!(largest_error(6.0, erf, libm::erf) < 2.0);
    }

    #[test]
    fn limits_are_exact() {
        let all = [f32::NEG_INFINITY, -1e30, -200.0, -0.0, 0.0, 200.0, 1e30, f32::INFINITY];
        assert_eq!(all.map(exp), [0.0, 0.0, 0.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY, f32::INFINITY]);
        for f in [tanh, erf] {
            assert_eq!(all.map(f).map(f32::to_bits), [-1.0, -1.0, -1.0, -0.0, 0.0, 1.0, 1.0, 1.0].map(f32::to_bits));
        }
        assert_eq!(all.map(expm1), [-1.0, -1.0, -1.0, -0.0, 0.0, f32::INFINITY, f32::INFINITY, f32::INFINITY]);
        let [of_negative, of_zeros, large] = [log(-1e-40), log(-0.0), log(f32::INFINITY)];
        assert!(of_negative.is_nan() && of_zeros == f32::NEG_INFINITY && large == f32::INFINITY && log(1.0) == 0.0);
        assert_eq!([log1p(-1.0), log1p(f32::INFINITY), log1p(1e-40)], [f32::NEG_INFINITY, f32::INFINITY, 1e-40]);
        assert!(log1p(-1.5).is_nan() && [expm1(-0.0), log1p(-0.0)].map(f32::to_bits) == [(-0f32).to_bits(); 2]);
        // Below the normal numbers.
        assert_eq!(log(1e-40), f64::from(1e-40f32).ln() as f32);
        for f in [exp, expm1, log, log1p, tanh, erf] {
            assert!(f(f32::NAN).is_nan());
        }
        assert_eq!([tanh(1e-40), erf(1e-40) / std::f32::consts::FRAC_2_SQRT_PI], [1e-40, 1e-40]);
        // Below the normal numbers.
        assert_eq!(exp(-100.0), (-100f64).exp() as f32);
    }
}
