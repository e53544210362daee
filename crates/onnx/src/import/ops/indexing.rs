//! Elements at places: gathers, sorted elements, those that are not zero.

use super::{Op, Table};
use crate::import::call::{Call, axis_of, misshapen, sizes};
use crate::import::value::{Numbers, Value};
use isograd_core::ops::Order;
use isograd_core::{DType, Error, Result, Tensor};
use std::collections::BTreeMap;

pub const OPS: Table = &[
    ("Gather", Op::One(gather)),
    ("GatherElements", Op::One(gather_elements)),
    ("GatherND", Op::One(gather_nd)),
    ("NonZero", Op::Tensor(nonzero)),
    ("Compress", Op::One(compress)),
    ("TopK", Op::Many(topk)),
    ("Unique", Op::Many(unique)),
    ("ReverseSequence", Op::One(reverse_sequence)),
];

/// Places of an extent, of which negative ones count from its end.
pub fn counted(c: &Call<'_>, i: usize, extent: usize) -> Result<Tensor> {
    if let Some(host) = c.value(i)?.host() {
        let wrap = |v: i64| if v < 0 { v.saturating_add(extent as i64) } else { v };
        let places: Vec<i64> = c.ints(i)?.into_iter().map(wrap).collect();
        return Tensor::from_slice(&places, &host.dims, c.device());
    }
    positive(&c.x(i)?, extent)
}

/// Places on the device, counted from the start.
fn positive(index: &Tensor, extent: usize) -> Result<Tensor> {
    let index = index.cast(DType::I64)?;
    index.lt_scalar(0)?.where_cond(&index.add_scalar(extent as i64)?, &index)
}

fn gather(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let axis = c.axis("axis", 0, x.rank())?;
    if let Some(host) = c.value(1)?.host().filter(|host| host.dims.is_empty()) {
        let at = host.to_floats()[0] as isize;
        return c.moved(0, x.select(axis as isize, at)?);
    }
    let index = counted(c, 1, x.dims()[axis])?;
    let dims = [&x.dims()[..axis], index.dims(), &x.dims()[axis + 1..]].concat();
    let flat = index.reshape(index.numel())?;
    c.moved(0, x.index_select(axis as isize, &flat)?.reshape(dims)?)
}

fn gather_elements(c: &Call<'_>) -> Result<Value> {
    let x = c.x(0)?;
    let axis = c.axis("axis", 0, x.rank())?;
    c.moved(0, x.gather(axis as isize, &counted(c, 1, x.dims()[axis])?)?)
}

/// Places in row-major order of tuples `[.., k]` over extents; negative numbers count from the ends.
pub fn linear_places(index: &Tensor, extents: &[usize]) -> Result<Tensor> {
    let last = index.rank() as isize - 1;
    let mut places: Option<Tensor> = None;
    for (k, &extent) in extents.iter().enumerate() {
        let at = positive(&index.select(last, k as isize)?, extent)?;
        places = Some(match places {
            None => at,
            Some(outer) => outer.mul_scalar(extent as i64)?.add(&at)?,
        });
    }
    match places {
        Some(places) => Ok(places),
        None => Tensor::zeros(&index.dims()[..last as usize], DType::I64, index.device()),
    }
}

fn gather_nd(c: &Call<'_>) -> Result<Value> {
    let (x, index) = (c.x(0)?, c.x(1)?);
    let batch = sizes(&[c.int("batch_dims", 0)?])?[0];
    let width = index.dims().last().copied().unwrap_or(0);
    if batch >= index.rank().max(1) || batch + width > x.rank() || x.dims()[..batch] != index.dims()[..batch] {
        return misshapen(format!("{} has no places {} after {batch} batches", x.shape(), index.shape()));
    }
    let (extents, inner) = (&x.dims()[batch..batch + width], &x.dims()[batch + width..]);
    let mut places = linear_places(&index, extents)?;
    let batches: usize = x.dims()[..batch].iter().product();
    let volume: usize = extents.iter().product();
    if batch > 0 {
        let mut dims = vec![1; places.rank()];
        dims[..batch].copy_from_slice(&x.dims()[..batch]);
        places = places.add(&Tensor::arange(batches, c.device())?.mul_scalar(volume as i64)?.reshape(dims)?)?;
    }
    let rows = x.reshape([batches * volume, inner.iter().product()])?;
    let dims = [places.dims(), inner].concat();
    c.moved(0, rows.index_select(0, &places.reshape(places.numel())?)?.reshape(dims)?)
}

fn nonzero(c: &Call<'_>) -> Result<Tensor> {
    let x = c.x(0)?;
    let is_set = x.cast(DType::Bool)?;
    // A single number has places without coordinates.
    if x.rank() == 0 {
        let count = is_set.item::<u8>()? as usize;
        return Tensor::zeros([0, count], DType::I64, c.device());
    }
    Tensor::stack(&is_set.nonzero()?.iter().collect::<Vec<_>>(), 0)
}

fn compress(c: &Call<'_>) -> Result<Value> {
    let (x, condition) = (c.x(0)?, c.ints(1)?);
    let (x, axis) = match c.node.attributes.int("axis")? {
        Some(axis) => (x.clone(), axis_of(axis, x.rank())?),
        None => (x.reshape(x.numel())?, 0),
    };
    let places: Vec<i64> = (0..).zip(&condition).filter(|(_, is)| **is != 0).map(|(i, _)| i).collect();
    c.moved(0, x.index_select(axis as isize, &Tensor::from_slice(&places, places.len(), c.device())?)?)
}

fn topk(c: &Call<'_>) -> Result<Vec<Value>> {
    let x = c.x(0)?;
    let axis = c.axis("axis", -1, x.rank())?;
    let k = match c.node.attributes.int("k")? {
        Some(k) => k,
        None => c.int_of(1)?,
    };
    let order = if c.int("largest", 1)? != 0 { Order::Descending } else { Order::Ascending };
    let (values, places) = x.topk(sizes(&[k])?[0], axis as isize, order)?;
    Ok(vec![c.moved(0, values)?, places.into()])
}

/// The distinct elements, or slices, in ascending order or in that of their first places; these places, the number of each, and that which each
/// element is. Read on the host.
fn unique(c: &Call<'_>) -> Result<Vec<Value>> {
    let x = c.x(0)?;
    let (x, axis) = match c.node.attributes.int("axis")? {
        Some(axis) => (x.clone(), axis_of(axis, x.rank())?),
        None => (x.reshape(x.numel())?, 0),
    };
    let rows = x.movedim(axis as isize, 0)?;
    let count = rows.dims()[0];
    let width = rows.numel() / count.max(1);
    // Floats are ordered by integers of their bits.
    let keys: Vec<i64> = match Value::from(rows.reshape(rows.numel())?).numbers()? {
        Numbers::Ints(v) => v,
        Numbers::Floats(v) => v.into_iter().map(ordered).collect(),
    };
    let mut groups: BTreeMap<&[i64], Vec<i64>> = BTreeMap::new();
    for i in 0..count {
        groups.entry(&keys[i * width..(i + 1) * width]).or_default().push(i as i64);
    }
    let mut groups: Vec<Vec<i64>> = groups.into_values().collect();
    if c.int("sorted", 1)? == 0 {
        groups.sort_by_key(|places| places[0]);
    }
    let mut inverse = vec![0; count];
    for (group, places) in groups.iter().enumerate() {
        places.iter().for_each(|&place| inverse[place as usize] = group as i64);
    }
    let vector = |v: Vec<i64>| Tensor::from_slice(&v, v.len(), c.device());
    let first = vector(groups.iter().map(|places| places[0]).collect())?;
    let counts = vector(groups.iter().map(|places| places.len() as i64).collect())?;
    let values = x.index_select(axis as isize, &first)?;
    Ok(vec![c.moved(0, values)?, first.into(), vector(inverse)?.into(), counts.into()])
}

/// An integer with the order of a float.
fn ordered(v: f64) -> i64 {
    // 0 and -0 are equal.
    let bits = (v + 0.0).to_bits() as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

/// The first elements of each sequence, as many as its length, in reverse.
fn reverse_sequence(c: &Call<'_>) -> Result<Value> {
    let (x, lengths) = (c.x(0)?, c.x(1)?);
    let (time, batch) = (c.axis("time_axis", 0, x.rank())?, c.axis("batch_axis", 1, x.rank())?);
    c.moved(0, reversed(&x, &lengths, time, batch)?)
}

/// x with the first elements of each sequence in reverse.
pub fn reversed(x: &Tensor, lengths: &Tensor, time: usize, batch: usize) -> Result<Tensor> {
    if time == batch || lengths.dims() != [x.dims()[batch]] {
        return Err(Error::shape("onnx", format!("lengths {} for sequences {}", lengths.shape(), x.shape())));
    }
    let along = |d: usize| {
        let mut dims = vec![1; x.rank()];
        dims[d] = x.dims()[d];
        dims
    };
    let at = Tensor::arange(x.dims()[time], x.device())?.reshape(along(time))?;
    let lengths = lengths.cast(DType::I64)?.reshape(along(batch))?;
    let turned = lengths.sub(&at)?.sub_scalar(1)?;
    let places = turned.ge_scalar(0)?.where_cond(&turned, &at)?;
    x.gather(time as isize, &places.broadcast_to(x.shape())?)
}
