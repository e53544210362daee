//! Positions in a sequence: sinusoidal tables, and rotations of queries and keys.

use crate::{Module, Visitor, VisitorMut};
use isograd_core::ops::Rotary;
use isograd_core::{DType, Device, Error, Result, Tensor};

/// The table `[length, width]` (f32) of sinusoidal positions: element `2i` of row p is `sin(p / 10000^(2i / width))`, element `2i +
/// 1` the cosine of the same angle. It is added to embeddings. Vaswani et al. 2017, arXiv 1706.03762, section 3.5. Errors: `Attr`
/// for an odd width.
pub fn sinusoidal_positions(length: usize, width: usize, device: &Device) -> Result<Tensor> {
    if !width.is_multiple_of(2) {
        return Err(Error::attr("sinusoidal_positions", format!("the width is {width}, expected an even number")));
    }
    let [sin, cos] = angles(length, width, 10_000.0);
    let both = sin.into_iter().zip(cos).flat_map(|(sin, cos)| [sin, cos]).collect();
    Tensor::from_vec(both, (length, width), device)
}

/// Sines and cosines `[length, width / 2]` of `p / base^(2i / width)`, computed in f64.
fn angles(length: usize, width: usize, base: f64) -> [Vec<f32>; 2] {
    let angle = |p: usize, i: usize| p as f64 / base.powf(2.0 * i as f64 / width as f64);
    let all = || (0..length).flat_map(|p| (0..width / 2).map(move |i| (p, i)));
    let table = |f: fn(f64) -> f64| all().map(|(p, i)| f(angle(p, i)) as f32).collect();
    [table(f64::sin), table(f64::cos)]
}

/// The tables of rotary positions, for [`Tensor::apply_rotary_embedding`]. They are not trained and not saved.
#[derive(Clone, Debug)]
pub struct Rotations {
    cos: Tensor,
    sin: Tensor,
}

impl Rotations {
    /// For positions below `length` and heads of `width` elements; angles are `p / base^(2i / width)`, with a base of 10000 in most
    /// models. Errors: `Attr` for an odd width.
    pub fn new(length: usize, width: usize, base: f64, device: &Device) -> Result<Rotations> {
        if !width.is_multiple_of(2) {
            return Err(Error::attr("rotary", format!("heads have {width} elements, expected an even number")));
        }
        let table = |values: Vec<f32>| Tensor::from_vec(values, (length, width / 2), device);
        let [sin, cos] = angles(length, width, base);
        Ok(Rotations { cos: table(cos)?, sin: table(sin)? })
    }

    /// For positions below `length`, with the angle `p * rates[i]` for pair i of a head's elements. Models for long sequences have rates
    /// of their own, and may multiply sines and cosines by a factor. Elements that belong to no pair stay as they are.
    pub fn with_rates(length: usize, rates: &[f64], factor: f64, device: &Device) -> Result<Rotations> {
        let table = |f: fn(f64) -> f64| {
            let value = |p: usize, rate: &f64| (factor * f(p as f64 * rate)) as f32;
            let values = (0..length).flat_map(|p| rates.iter().map(move |rate| value(p, rate))).collect();
            Tensor::from_vec(values, (length, rates.len()), device)
        };
        Ok(Rotations { cos: table(f64::cos)?, sin: table(f64::sin)? })
    }

    /// Rotates queries and keys `[B, H, T, D]`. Errors: as [`Tensor::apply_rotary_embedding`].
    pub fn apply(&self, q: &Tensor, k: &Tensor, rotary: &Rotary) -> Result<(Tensor, Tensor)> {
        let dtype = if q.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let rotary = Rotary { rotary_dim: rotary.rotary_dim.or(Some(2 * self.cos.dims()[1])), ..rotary.clone() };
        q.apply_rotary_embedding(k, &self.cos.cast(dtype)?, &self.sin.cast(dtype)?, &rotary)
    }
}

/// A part whose tables move to another device with the module.
impl Module for Rotations {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.constant(&mut self.cos);
        visitor.constant(&mut self.sin);
    }

    fn type_name(&self) -> &'static str {
        ""
    }
}
