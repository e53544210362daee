//! Bounds of the error of a result.
//!
//! The bound is `1.5 u_out |r| + C u_acc a + eta`. The first term is the rounding of the result r; it is dropped if the result is
//! in the dtype of the arithmetic. The second term bounds the roundings of the computation. The companion a is the formula with the
//! absolute values of all summands and factors. For ops of several stages the second term is `max(8 E, 32 u_acc rho)`: E is the
//! CPU's largest error in the same dtype, and rho the largest |r|, among the elements that are reduced together. In f64, the
//! reference, E is the CPU's error in f32, scaled by the ratio of the roundoffs.

use crate::case::Case;
use crate::compare::precision;
use crate::registry::{Category, Class, Op, Slice};
use isograd_core::{DType, Device, Result, Shape, Tensor};
use std::ops::Range;

/// The factor C of a class.
fn factor(op: &Op, case: &Case, elements: usize, dtype: DType, device: &Device) -> f64 {
    let largest = case.inputs.iter().map(|(_, t)| t.numel()).max().unwrap_or(1);
    // A running sum, and a sum over repeated indices, may have all elements as terms.
    let terms = if op.collects { largest } else { largest / elements.max(1) } as f64;
    // The square root of a product's number of terms, which is at most the longest dimension.
    let extents = case.inputs.iter().flat_map(|(_, t)| t.dims().iter().copied());
    let sum = (extents.max().unwrap_or(0).max(4) as f64).sqrt();
    match op.class {
        Class::Exact => 0.0,
        Class::Arithmetic => 4.0,
        // OpenCL allows errors of 16 units in the last place for some functions.
        Class::Transcendental if device.name().starts_with("opencl") => 40.0,
        Class::Transcendental => 16.0,
        Class::Reduction => of_sum(terms),
        // Each factor adds a rounding, up or down.
        Class::Factors => of_product(terms),
        Class::Product | Class::Dense if dtype == dtype.acc() => 8.0 + 2.0 * sum,
        Class::Product | Class::Dense => 32.0 + 8.0 * sum,
        // For each step; there are at most two.
        Class::Optimizer => 2.0 * 16.0,
        Class::Stages => 32.0,
    }
}

/// The factor C of a sum with this number of terms.
fn of_sum(terms: f64) -> f64 {
    8.0 + 4.0 * (terms + 1.0).log2()
}

/// The factor C of a product with this number of factors.
fn of_product(factors: f64) -> f64 {
    8.0 + 2.0 * factors.sqrt()
}

/// The quantities that bound a result's error, besides the result.
pub struct Measures {
    /// The companion of a result.
    pub companion: Vec<f64>,
    /// The CPU's errors in the tested dtype, if the class needs them.
    pub errors: Option<Vec<f64>>,
}

/// The bound of each element of a result: `case` is the call in f64, and `r` its exact result.
pub fn bounds(
    op: &Op,
    case: &Case,
    r: &Tensor,
    measures: &Measures,
    dtype: DType,
    device: &Device,
) -> Result<Vec<f64>> {
    let exact = r.to_f64_vec()?;
    if op.class == Class::Exact {
        return Ok(vec![0.0; exact.len()]);
    }
    let (u_out, eta) = precision(dtype);
    let u_acc = precision(dtype.acc()).0;
    let c = factor(op, case, exact.len(), dtype, device);
    let within = match &measures.errors {
        Some(errors) => {
            let slices = Slices::new(r.shape(), op.slice_of(case, r.rank())?);
            let errors = slices.largest(exact.len(), |i| errors[i]);
            let sizes = slices.largest(exact.len(), |i| exact[i].abs());
            let error = |slice: usize| capped(errors[slice], sizes[slice].max(1.0), dtype);
            (0..exact.len()).map(|i| (8.0 * error(slices.of(i))).max(c * u_acc * sizes[slices.of(i)])).collect()
        }
        None => measures.companion.iter().map(|a| c * u_acc * a).collect::<Vec<f64>>(),
    };
    let rounding = if dtype == dtype.acc() { 0.0 } else { 1.5 * u_out };
    Ok(exact.iter().zip(within).map(|(r, within)| rounding * r.abs() + within + eta).collect())
}

/// The bounds of a result of several calls, as of an op with as many stages, over the whole result. `exact` and `near` are the
/// CPU's results in f64 and in the tested dtype.
pub fn stage_bounds(exact: &[f64], near: &[f64], dtype: DType, calls: usize) -> Vec<f64> {
    let (u_out, eta) = precision(dtype);
    let (u_acc, calls) = (precision(dtype.acc()).0, calls.max(1) as f64);
    let finite = |v: f64| if v.is_finite() { v.abs() } else { 0.0 };
    let scale = exact.iter().fold(0.0, |most: f64, &r| most.max(finite(r)));
    let error = exact.iter().zip(near).fold(0.0, |most: f64, (r, y)| most.max(finite(y - r)));
    // Each call adds a rounding.
    let error = capped(error / calls, scale.max(1.0), dtype) * calls;
    let within = (8.0 * error).max(32.0 * calls * u_acc * scale);
    let rounding = if dtype == dtype.acc() { 0.0 } else { 1.5 * u_out };
    exact.iter().map(|r| rounding * r.abs() + within + eta).collect()
}

/// The error of the CPU, limited: the measure of other errors must be correct itself. Sums in the dtype of the result round at each
/// term.
fn capped(error: f64, scale: f64, dtype: DType) -> f64 {
    let roundings = if dtype == dtype.acc() { 64.0 } else { 4.0 };
    error.min(roundings * precision(dtype).0 * scale)
}

/// The sums that make up the gradient of an expanded input.
pub struct Sums {
    /// The number of terms of each sum.
    pub terms: usize,
    /// The sum of their absolute values.
    pub companion: Vec<f64>,
}

/// The gradients of the results, as they arrive.
#[derive(Clone, Copy, Debug)]
pub struct Arriving {
    /// The largest element, summed over calls.
    largest: f64,
    /// The largest product with a saved result, which was rounded.
    kept: f64,
    /// Multiplies the rounding of a sum: the square root of its terms. Attention's gradient of a score is a difference of two sums over the
    /// width of the values, which may be close to each other.
    added: f64,
}

impl Arriving {
    /// For a call in f64, with the largest gradient. Softmaxes, and activations of products, compute their gradients from the
    /// result, as factors of at most 1.
    pub fn new(op: &Op, case: &Case, largest: f64) -> Result<Arriving> {
        let keeps_result = op.class == Class::Dense || op.slice == Slice::Along;
        let is_attention = op.category == Category::Attention;
        let width = if is_attention { op.call(case)?[0].dims().last().copied() } else { None };
        let added = (width.unwrap_or(1).max(1) as f64).sqrt();
        let sizes = if keeps_result { op.call(case)?[0].detach().to_f64_vec()? } else { Vec::new() };
        let kept = largest * sizes.iter().fold(0.0, |most: f64, y| most.max(y.abs())).min(1.0);
        Ok(Arriving { largest, kept, added })
    }
}

/// The bounds of a gradient: 8 times the CPU's error in the same dtype, 32 roundings of the largest element, both among elements
/// that are reduced together, or the bound of a sum.
pub fn gradient_bounds(
    op: &Op,
    r: &[f64],
    errors: &[f64],
    sums: Option<&Sums>,
    arriving: Arriving,
    slices: &Slices,
    dtype: DType,
) -> Vec<f64> {
    let Arriving { largest: arriving, kept, added } = arriving;
    let (u_out, eta) = precision(dtype);
    let scales = slices.largest(r.len(), |i| r[i].abs());
    let errors = slices.largest(r.len(), |i| errors[i]);
    let u_acc = precision(dtype.acc()).0;
    // A kernel of several stages may save its rounded result for the backward pass, and multiply it with the arriving gradients. Or
    // it may round a value and then multiply it with factors of at most 2.
    let is_kept = matches!(op.class, Class::Stages | Class::Dense);
    let kept = |scale: f64| if is_kept { 4.0 * (u_out * scale.max(kept) + u_acc * arriving * added) } else { 0.0 };
    // A product may have all elements as factors. In f32 it may be too large to show its error.
    let roundings = if op.class == Class::Factors { of_product(r.len() as f64) } else { 32.0 };
    // Ties divide the gradient.
    if op.class == Class::Exact && sums.is_none() && op.category != Category::Reduction {
        return vec![0.0; r.len()];
    }
    // In pointwise functions, elements do not depend on each other.
    let size = |r: f64, scale: f64| if op.is_pointwise() { r.abs().max(arriving).min(scale) } else { scale };
    let of_sum = |i: usize| sums.map_or(0.0, |sums| of_sum(sums.terms as f64) * u_acc * sums.companion[i]);
    let rounding = if dtype == dtype.acc() { 0.0 } else { 1.5 * u_out };
    let bound = |(i, &r): (usize, &f64)| {
        let slice = slices.of(i);
        let (scale, error) = (scales[slice], capped(errors[slice], scales[slice].max(arriving), dtype));
        let stages = (8.0 * error).max(roundings.max(32.0) * u_acc * size(r, scale));
        rounding * r.abs() + stages.max(of_sum(i)) + kept(scale) + eta
    };
    r.iter().enumerate().map(bound).collect()
}

/// The parts of a result whose elements are reduced together: elements that differ only along a range of adjacent dimensions.
pub struct Slices {
    inner: usize,
    reduced: usize,
}

impl Slices {
    fn new(shape: &Shape, dims: Range<usize>) -> Slices {
        Slices { inner: shape[dims.end..].iter().product(), reduced: shape[dims].iter().product() }
    }

    /// The slices of gradients: those of the result for a gradient of its shape, otherwise the whole gradient.
    pub fn of_gradients(op: &Op, case: &Case, shapes: &[&Shape]) -> Result<Vec<Slices>> {
        let result = if op.slice == Slice::Whole { None } else { Some(op.call(case)?[0].shape().clone()) };
        let of = |shape: &&Shape| match &result {
            Some(result) if result == *shape => Ok(Slices::new(shape, op.slice_of(case, shape.rank())?)),
            _ => Ok(Slices::new(shape, 0..shape.rank())),
        };
        shapes.iter().map(of).collect()
    }

    /// The slice of an element.
    fn of(&self, i: usize) -> usize {
        i / (self.reduced * self.inner).max(1) * self.inner + i % self.inner.max(1)
    }

    /// The largest finite value of each slice.
    fn largest(&self, n: usize, value: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut largest = vec![0.0; n / self.reduced.max(1)];
        for i in 0..n {
            let v = value(i);
            let slot: &mut f64 = &mut largest[self.of(i)];
            *slot = if v.is_finite() { slot.max(v) } else { *slot };
        }
        largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_what_is_reduced_together() {
        let shape = Shape::from((2, 3, 2));
        let largest = |dims| Slices::new(&shape, dims).largest(12, |i| i as f64);
        assert_eq!(largest(0..3), [11.0]);
        assert_eq!(largest(2..3), [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]);
        assert_eq!(largest(1..2), [4.0, 5.0, 10.0, 11.0]);
        assert_eq!(largest(1..3), [5.0, 11.0]);
        assert_eq!(largest(0..0).len(), 12);
    }
}
