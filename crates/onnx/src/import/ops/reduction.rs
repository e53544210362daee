//! Reductions and running sums.

use super::{Op, Table};
use crate::import::call::{Call, axes_of, axis_of, signed};
use crate::import::value::Value;
use isograd_core::ops::{ScanOptions, Tie};
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[
    ("ReduceSum", Op::One(|c| reduce(c, |x, axes| x.sum(axes)))),
    ("ReduceProd", Op::One(|c| reduce(c, |x, axes| x.prod(axes)))),
    ("ReduceMean", Op::One(|c| reduce(c, |x, axes| of_floats(x, |x| x.mean(axes))))),
    ("ReduceMax", Op::One(|c| reduce(c, |x, axes| extremum(x, axes, Extremum::Largest)))),
    ("ReduceMin", Op::One(|c| reduce(c, |x, axes| extremum(x, axes, Extremum::Smallest)))),
    ("ReduceL1", Op::One(|c| reduce(c, |x, axes| x.abs()?.sum(axes)))),
    ("ReduceL2", Op::One(|c| reduce(c, |x, axes| of_floats(x, |x| x.l2_norm(axes))))),
    ("ReduceSumSquare", Op::One(|c| reduce(c, |x, axes| x.square()?.sum(axes)))),
    ("ReduceLogSum", Op::One(|c| reduce(c, |x, axes| of_floats(x, |x| x.sum(axes)?.log())))),
    ("ReduceLogSumExp", Op::One(|c| reduce(c, |x, axes| of_floats(x, |x| x.logsumexp(axes))))),
    ("ArgMax", Op::Tensor(|c| position(c, Tensor::argmax_with))),
    ("ArgMin", Op::Tensor(|c| position(c, Tensor::argmin_with))),
    ("CumSum", Op::One(|c| scan(c, Tensor::cumsum_with))),
    ("CumProd", Op::One(|c| scan(c, Tensor::cumprod_with))),
];

/// A reduction over the axes of an attribute or an operand, or over all.
fn reduce(c: &Call<'_>, f: impl Fn(&Tensor, Vec<isize>) -> Result<Tensor>) -> Result<Value> {
    let x = c.x(0)?;
    let axes = c.moved_ints("axes", 1)?.unwrap_or_default();
    if axes.is_empty() && c.flag("noop_with_empty_axes")? {
        return without_axes(c, x);
    }
    let axes = if axes.is_empty() { (0..x.rank()).collect() } else { axes_of(&axes, x.rank())? };
    let y = if axes.is_empty() { f(&x.unsqueeze(0)?, vec![0])? } else { f(&x, signed(&axes))? };
    let y = if c.int("keepdims", 1)? != 0 {
        let kept = |d: usize| if axes.contains(&d) { 1 } else { x.dims()[d] };
        y.reshape((0..x.rank()).map(kept).collect::<Vec<_>>())?
    } else {
        y
    };
    c.wrapped(0, y)
}

/// A reduction of no dimension: the function of each element.
fn without_axes(c: &Call<'_>, x: Tensor) -> Result<Value> {
    let y = match c.node.op_type {
        "ReduceL1" | "ReduceL2" => x.abs()?,
        "ReduceSumSquare" => x.square()?,
        "ReduceLogSum" => of_floats(&x, Tensor::log)?,
        _ => x,
    };
    c.wrapped(0, y)
}

/// A function of floats; integers become f64, and its results integers toward zero.
fn of_floats(x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    if x.dtype().is_float() { f(x) } else { f(&x.cast(DType::F64)?)?.cast(x.dtype()) }
}

#[derive(Clone, Copy, PartialEq)]
enum Extremum {
    Largest,
    Smallest,
}

/// The largest or the smallest elements; of none, the number that any other exceeds.
fn extremum(x: &Tensor, axes: Vec<isize>, which: Extremum) -> Result<Tensor> {
    let is_largest = which == Extremum::Largest;
    if axes.iter().any(|&axis| x.dims()[axis as usize] == 0) {
        let kept = (0..x.rank()).filter(|&d| !axes.contains(&(d as isize))).map(|d| x.dims()[d]);
        let kept: Vec<usize> = kept.collect();
        let (dtype, device) = (x.dtype(), x.device());
        return match dtype {
            _ if dtype.is_float() && is_largest => Tensor::full(kept, f64::NEG_INFINITY, dtype, device),
            _ if dtype.is_float() => Tensor::full(kept, f64::INFINITY, dtype, device),
            DType::I64 => Tensor::full(kept, if is_largest { i64::MIN } else { i64::MAX }, dtype, device),
            DType::I32 => Tensor::full(kept, if is_largest { i32::MIN } else { i32::MAX }, dtype, device),
            DType::U8 => Tensor::full(kept, if is_largest { 0 } else { 255 }, dtype, device),
            _ => Tensor::full(kept, !is_largest, dtype, device),
        };
    }
    if is_largest { x.amax(axes) } else { x.amin(axes) }
}

fn position(c: &Call<'_>, f: fn(&Tensor, isize, Tie) -> Result<Tensor>) -> Result<Tensor> {
    let x = c.x(0)?;
    let axis = c.axis("axis", 0, x.rank())? as isize;
    let tie = if c.flag("select_last_index")? { Tie::Last } else { Tie::First };
    let y = f(&x, axis, tie)?;
    if c.int("keepdims", 1)? != 0 { y.unsqueeze(axis) } else { Ok(y) }
}

fn scan(c: &Call<'_>, f: fn(&Tensor, isize, &ScanOptions) -> Result<Tensor>) -> Result<Value> {
    let x = c.x(0)?;
    let axis = axis_of(c.int_of(1)?, x.rank())? as isize;
    let options = ScanOptions { exclusive: c.flag("exclusive")?, reverse: c.flag("reverse")? };
    c.wrapped(0, f(&x, axis, &options)?)
}
