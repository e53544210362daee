//! Operators on numbers of the host: what computes shapes, places and limits.
//!
//! A node whose operands are all on the host is computed there, if this module has its operator and its result is small. Nothing then waits for
//! the device.

mod arithmetic;
mod places;

use super::call::Call;
use super::element::Element;
use super::value::{HOST_MOST, Host, Numbers, Value};
use isograd_core::{Error, Result};
use std::sync::Arc;

/// The results of a call on the host; `None` if it is not one for the host.
pub fn evaluate(call: &Call<'_>) -> Result<Option<Vec<Value>>> {
    let operands: Option<Vec<Option<&Arc<Host>>>> =
        (0..call.inputs.len()).map(|i| call.given(i).map_or(Some(None), |value| value.host().map(Some))).collect();
    let Some(operands) = operands.filter(|operands| operands.iter().any(Option::is_some)) else { return Ok(None) };
    let of = Operands { call, all: operands };
    if let Some(found) = arithmetic::evaluate(&of)? {
        return Ok(Some(vec![found.into()]));
    }
    let found = places::evaluate(&of)?;
    Ok(found.map(|found| found.into_iter().map(Value::from).collect()))
}

/// The operands of a call, all on the host.
struct Operands<'a> {
    call: &'a Call<'a>,
    all: Vec<Option<&'a Arc<Host>>>,
}

impl<'a> Operands<'a> {
    fn given(&self, i: usize) -> Option<&'a Host> {
        self.all.get(i).copied().flatten().map(|host| &**host)
    }

    fn x(&self, i: usize) -> Result<&'a Host> {
        self.given(i).ok_or_else(|| Error::value("onnx", format!("input {i} is missing")))
    }

    /// All operands, of which none is absent.
    fn each(&self) -> Option<Vec<&'a Host>> {
        self.all.iter().map(|host| host.map(|host| &**host)).collect()
    }
}

impl Host {
    /// The numbers at places of this one, under other extents.
    fn at(&self, dims: Vec<usize>, places: impl IntoIterator<Item = usize>) -> Host {
        let numbers = match &self.numbers {
            Numbers::Ints(v) => Numbers::Ints(places.into_iter().map(|place| v[place]).collect()),
            Numbers::Floats(v) => Numbers::Floats(places.into_iter().map(|place| v[place]).collect()),
        };
        Host::new(self.element, dims, numbers)
    }

    /// The same numbers under other extents.
    fn reshaped(&self, dims: Vec<usize>) -> Host {
        Host::new(self.element, dims, self.numbers.clone())
    }

    /// The numbers in the extents `to`, to which they broadcast.
    fn broadcast(&self, to: &[usize]) -> Host {
        self.at(to.to_vec(), broadcast_places(&self.dims, to))
    }
}

/// The product of extents that a value of the host may have.
fn small(dims: &[usize]) -> Option<usize> {
    let count = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    count.filter(|&n| n <= HOST_MOST)
}

/// The extents to which all broadcast. Errors: `Shape`.
fn broadcast_dims(all: &[&[usize]]) -> Result<Vec<usize>> {
    let rank = all.iter().map(|dims| dims.len()).max().unwrap_or(0);
    let at = |dims: &[usize], d: usize| (d + dims.len()).checked_sub(rank).map_or(1, |d| dims[d]);
    let extent = |d: usize| {
        let mut extents = all.iter().map(|dims| at(dims, d)).filter(|&extent| extent != 1);
        let first = extents.next().unwrap_or(1);
        match extents.all(|extent| extent == first) {
            true => Ok(first),
            false => Err(Error::shape("onnx", format!("{all:?} do not broadcast"))),
        }
    };
    (0..rank).map(extent).collect()
}

/// The place in `from` of each element of `to`, to which it broadcasts.
fn broadcast_places(from: &[usize], to: &[usize]) -> Vec<usize> {
    let new = to.len() - from.len();
    let mut strides = vec![0; to.len()];
    let mut stride = 1;
    for (d, &extent) in from.iter().enumerate().rev() {
        strides[new + d] = if extent == 1 { 0 } else { stride };
        stride *= extent;
    }
    (0..to.iter().product()).map(|i| place(i, to, &strides)).collect()
}

/// The place, by strides, of element `i` in row-major order of extents.
fn place(mut i: usize, dims: &[usize], strides: &[usize]) -> usize {
    let mut at = 0;
    for (&extent, stride) in dims.iter().zip(strides).rev() {
        at += i % extent * stride;
        i /= extent;
    }
    at
}

/// A float as elements of this type hold it.
fn rounded(element: Element, v: f64) -> f64 {
    use isograd_core::{DType, bf16, f16};
    match element.dtype() {
        DType::F32 => f64::from(v as f32),
        DType::F16 => f16::from_f64(v).to_f64(),
        DType::BF16 => bf16::from_f64(v).to_f64(),
        _ => v,
    }
}
