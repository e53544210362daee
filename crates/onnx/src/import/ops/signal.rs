//! Windows and transforms of signals. A transform is a product with the matrix of its waves.

use super::{Op, Table};
use crate::import::call::{Call, axis_of, few, misshapen, sizes};
use crate::import::value::Value;
use isograd_core::{DType, Result, Tensor};
use std::f64::consts::PI;

pub const OPS: Table = &[
    ("HannWindow", Op::One(|c| window(c, &[0.5, -0.5]))),
    ("HammingWindow", Op::One(|c| window(c, &[25.0 / 46.0, -21.0 / 46.0]))),
    ("BlackmanWindow", Op::One(|c| window(c, &[0.42, -0.5, 0.08]))),
    ("DFT", Op::Tensor(dft)),
    ("STFT", Op::Tensor(stft)),
    ("MelWeightMatrix", Op::One(mel_weights)),
];

/// A sum of cosines.
fn window(c: &Call<'_>, terms: &[f64]) -> Result<Value> {
    let size = sizes(&[c.int_of(0)?])?[0];
    let last = if c.int("periodic", 1)? != 0 { size as f64 } else { size as f64 - 1.0 };
    let at = Tensor::arange(size, c.device())?.cast(DType::F64)?.mul_scalar(2.0 * PI / last)?;
    let mut sum = at.zeros_like()?;
    for (k, &term) in terms.iter().enumerate() {
        sum = sum.add(&at.mul_scalar(k as f64)?.cos()?.mul_scalar(term)?)?;
    }
    c.element_named("output_datatype")?.unwrap_or(c.run.floats()).with(sum)
}

/// Cosines and sines `[n, k]` of the waves of a transform of length `n`.
fn waves(x: &Tensor, n: usize, k: usize, is_inverse: bool) -> Result<[Tensor; 2]> {
    let period = Tensor::full((), n.max(1) as i64, DType::I64, x.device())?;
    let products = Tensor::arange(n, x.device())?.unsqueeze(1)?.mul(&Tensor::arange(k, x.device())?)?;
    // Angles below a turn are exact.
    let turn = 2.0 * PI / n.max(1) as f64 * if is_inverse { 1.0 } else { -1.0 };
    let angles = products.remainder(&period)?.cast(DType::F64)?.mul_scalar(turn)?;
    Ok([angles.cos()?, angles.sin()?])
}

/// x with `n` elements in dimension `dim`: cut, or with zeros at the end.
fn with_length(x: &Tensor, dim: usize, n: usize) -> Result<Tensor> {
    let mut ends = vec![[0isize; 2]; x.rank()];
    ends[dim][1] = n as isize - x.dims()[dim] as isize;
    x.pad(&ends, isograd_core::ops::Pad::ZEROS)
}

/// The transform of the last dimension of real and imaginary parts, in f64: `k` of `n` waves.
fn transformed(re: &Tensor, im: Option<&Tensor>, k: usize, is_inverse: bool) -> Result<[Tensor; 2]> {
    let (n, own) = (re.dims()[re.rank() - 1], re.dtype());
    let re = re.cast(DType::F64)?;
    let im = im.map(|im| im.cast(DType::F64)).transpose()?;
    let [cos, sin] = waves(&re, n, k, is_inverse)?;
    let (mut real, mut imaginary) = (re.matmul(&cos)?, re.matmul(&sin)?);
    if let Some(im) = &im {
        real = real.sub(&im.matmul(&sin)?)?;
        imaginary = imaginary.add(&im.matmul(&cos)?)?;
    }
    let divisor = if is_inverse { n as f64 } else { 1.0 };
    Ok([real.div_scalar(divisor)?.cast(own)?, imaginary.div_scalar(divisor)?.cast(own)?])
}

fn dft(c: &Call<'_>) -> Result<Tensor> {
    let x = c.x(0)?;
    let rank = x.rank();
    if rank < 2 || !(1..=2).contains(&x.dims()[rank - 1]) {
        return misshapen(format!("{} was given, expected real or complex numbers at the end", x.shape()));
    }
    let axis = match (c.opset() < 20, c.given(2)) {
        (true, _) => c.int("axis", 1)?,
        (false, Some(_)) => c.int_of(2)?,
        (false, None) => -2,
    };
    let axis = axis_of(axis, rank)?;
    let (is_inverse, is_onesided) = (c.flag("inverse")?, c.flag("onesided")?);
    let length = match c.given(1) {
        Some(_) => sizes(&[c.int_of(1)?])?[0],
        None if is_inverse && is_onesided => 2 * (x.dims()[axis].max(1) - 1),
        None => x.dims()[axis],
    };
    let last = rank as isize - 1;
    let re = x.select(last, 0)?;
    let im = if x.dims()[rank - 1] == 2 { Some(x.select(last, 1)?) } else { None };
    let part = |t: &Tensor| {
        with_length(t, axis, if is_inverse && is_onesided { length / 2 + 1 } else { length })?
            .movedim(axis as isize, -1)
    };
    let (re, im) = (part(&re)?, im.as_ref().map(part).transpose()?);
    if is_inverse && is_onesided {
        let (re, im) = (mirrored(&re, length, 1.0)?, im.map(|im| mirrored(&im, length, -1.0)).transpose()?);
        let [real, _] = transformed(&re, im.as_ref(), length, true)?;
        return real.movedim(-1, axis as isize)?.unsqueeze(-1);
    }
    let k = if is_onesided { length / 2 + 1 } else { length };
    let parts = transformed(&re, im.as_ref(), k, is_inverse)?;
    let [real, imaginary] = parts.map(|part| part.movedim(-1, axis as isize));
    Tensor::stack(&[&real?, &imaginary?], -1)
}

/// All of a spectrum of `length`, of which the first half is given: the others are its conjugates.
fn mirrored(half: &Tensor, length: usize, sign: f64) -> Result<Tensor> {
    let rest = length - (length / 2 + 1).min(length);
    let others = half.narrow(-1, 1, rest)?.flip(&[-1])?.mul_scalar(sign)?;
    Tensor::concat(&[&half.narrow(-1, 0, length - rest)?, &others], -1)
}

/// The transforms of frames of a signal `[B, L, 1 or 2]`: `[B, frames, waves, 2]`.
fn stft(c: &Call<'_>) -> Result<Tensor> {
    let (x, step) = (c.x(0)?, sizes(&[c.int_of(1)?])?[0]);
    let window = c.optional(2)?;
    let length = match (c.given(3), &window) {
        (Some(_), _) => sizes(&[c.int_of(3)?])?[0],
        (None, Some(window)) => window.numel(),
        (None, None) => return misshapen("a transform of frames needs their length or a window"),
    };
    let is_complex = x.dims().get(2) == Some(&2);
    if !(2..=3).contains(&x.rank()) || step == 0 {
        return misshapen(format!("{} was given in steps of {step}, expected [B, L, 1]", x.shape()));
    }
    let frames = |k: isize| -> Result<Tensor> {
        let part = if x.rank() == 3 { x.select(2, k)? } else { x.clone() };
        let frames = part.windows(1, length, step)?;
        match &window {
            Some(window) => frames.mul(window),
            None => Ok(frames),
        }
    };
    let (re, im) = (frames(0)?, if is_complex { Some(frames(1)?) } else { None });
    let k = if c.int("onesided", 1)? != 0 && !is_complex { length / 2 + 1 } else { length };
    let [real, imaginary] = transformed(&re, im.as_ref(), k, false)?;
    Tensor::stack(&[&real, &imaginary], -1)
}

/// Triangles over the waves of a spectrum, whose corners are at equal distances in mel.
fn mel_weights(c: &Call<'_>) -> Result<Value> {
    let [bins, length, rate] = [c.int_of(0)?, c.int_of(1)?, c.int_of(2)?];
    let (low, high) = (c.optional_number(3)?.unwrap_or(0.0), c.optional_number(4)?.unwrap_or(0.0));
    let (bins, waves) = (sizes(&[bins])?[0], sizes(&[length / 2 + 1])?[0]);
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let step = (mel(high) - mel(low)) / (bins as f64 + 2.0);
    let corner = |i: usize| {
        let hertz = 700.0 * (10f64.powf((mel(low) + i as f64 * step) / 2595.0) - 1.0);
        ((length as f64 + 1.0) * hertz / rate as f64).floor() as usize
    };
    let mut weights = vec![0.0; few(waves.saturating_mul(bins))?];
    for bin in 0..bins {
        let [left, center, right] = [corner(bin), corner(bin + 1), corner(bin + 2)];
        let mut set = |wave: usize, weight: f64| {
            if wave < waves {
                weights[wave * bins + bin] = weight;
            }
        };
        if center == left {
            set(center, 1.0);
        }
        (left..=center).filter(|_| center > left).for_each(|w| set(w, (w - left) as f64 / (center - left) as f64));
        (center..right).for_each(|w| set(w, (right - w) as f64 / (right - center) as f64));
    }
    let weights = Tensor::from_vec(weights, [waves, bins], c.device())?;
    c.element_named("output_datatype")?.unwrap_or(c.run.floats()).with(weights)
}
