//! Elements written at places.

use super::indexing::{counted, linear_places};
use super::{Op, Table};
use crate::import::call::{Call, misshapen, unsupported};
use crate::import::value::Value;
use isograd_core::ops::{Own, ScatterReduce};
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[
    ("Scatter", Op::One(scatter_elements)),
    ("ScatterElements", Op::One(scatter_elements)),
    ("ScatterND", Op::One(scatter_nd)),
    ("TensorScatter", Op::One(tensor_scatter)),
];

/// Updates written or reduced at places of a dimension.
fn scattered(c: &Call<'_>, x: &Tensor, axis: isize, index: &Tensor, updates: &Tensor) -> Result<Tensor> {
    let reduce = match c.text("reduction", "none")? {
        "none" => return x.scatter(axis, index, updates),
        "add" => ScatterReduce::Sum,
        "mul" => ScatterReduce::Prod,
        "max" => ScatterReduce::Amax,
        "min" => ScatterReduce::Amin,
        other => return unsupported(format!("a scatter with the reduction {other:?}")),
    };
    x.scatter_reduce(axis, index, updates, reduce, Own::Included)
}

fn scatter_elements(c: &Call<'_>) -> Result<Value> {
    let (x, updates) = (c.x(0)?, c.x(2)?);
    let axis = c.axis("axis", 0, x.rank())?;
    let index = counted(c, 1, x.dims()[axis])?;
    c.wrapped(0, scattered(c, &x, axis as isize, &index, &updates)?)
}

fn scatter_nd(c: &Call<'_>) -> Result<Value> {
    let (x, index, updates) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let width = index.dims().last().copied().unwrap_or(0);
    if index.rank() == 0 || width > x.rank() {
        return misshapen(format!("{} has no places {}", x.shape(), index.shape()));
    }
    let (extents, inner) = x.dims().split_at(width);
    let inner = inner.iter().product::<usize>();
    let places = linear_places(&index, extents)?;
    let count = places.numel();
    let places = places.reshape([count, 1])?.broadcast_to([count, inner])?;
    let rows = x.reshape([extents.iter().product(), inner])?;
    let y = scattered(c, &rows, 0, &places, &updates.reshape([count, inner])?)?;
    c.wrapped(0, y.reshape(x.shape())?)
}

/// A cache with updates written after the positions of each sequence.
fn tensor_scatter(c: &Call<'_>) -> Result<Value> {
    let (x, updates) = (c.x(0)?, c.x(1)?);
    let axis = c.axis("axis", -2, x.rank())?;
    if updates.rank() != x.rank() {
        return misshapen(format!("{} was given for the cache {}", updates.shape(), x.shape()));
    }
    let (extent, batch) = (x.dims()[axis], x.dims()[0]);
    let along = |d: usize, n: usize| {
        let mut dims = vec![1; x.rank()];
        dims[d] = n;
        dims
    };
    let first = match c.optional(2)? {
        Some(first) => first.cast(DType::I64)?,
        None => Tensor::zeros(batch, DType::I64, c.device())?,
    };
    let steps = Tensor::arange(updates.dims()[axis], c.device())?.reshape(along(axis, updates.dims()[axis]))?;
    let mut places = first.reshape(along(0, batch))?.add(&steps)?;
    if c.text("mode", "linear")? == "circular" {
        places = places.remainder(&Tensor::full((), extent as i64, DType::I64, c.device())?)?;
    }
    c.moved(0, x.scatter(axis as isize, &places.broadcast_to(updates.shape())?, &updates)?)
}
