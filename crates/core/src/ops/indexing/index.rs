//! Advanced indexing: slices, index tensors and masks, as in NumPy.

use crate::backend::Scatter;
use crate::check::{check_index, describe};
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands;
use crate::operands::Output;
use crate::ops::indexing::gather::{along, check_apart, scatter, scatter_};
use crate::ops::{common_shape, pointwise_one};
use crate::pointwise::Pointwise;
use crate::tensor::Attributes;
use crate::{DType, Dims, Error, Kind, Result, Shape, Tensor, host, no_grad};
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// Output: the positions (i64) of a mask's true elements in row-major order, `[rank, count]`, with one row per dimension. `count` is the
/// number of true elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskPositions;

operands! {
    /// The input of [`MaskPositions`].
    pub struct MaskInputs {
        /// A mask of one dimension or more.
        mask,
    }
}

impl Fused for MaskPositions {
    type Inputs<T> = MaskInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "positions"
    }

    fn composite(&self, inputs: MaskInputs<&Tensor>, _before: Output<&Tensor>) -> Result<Output<Option<Tensor>>> {
        let found = inputs.mask.nonzero()?;
        Ok(Output { y: Some(Tensor::stack(&found.iter().collect::<Vec<_>>(), 0)?) })
    }
}

/// One entry of an advanced index.
#[derive(Clone, Debug)]
pub enum Index {
    /// Elements `start`, `start + step`, ... below `stop`, clipped to the extent as in Python.
    Slice {
        /// The first element.
        start: usize,
        /// One past the last.
        stop: usize,
        /// The distance between elements.
        step: usize,
    },
    /// One position, whose dimension the result does not have; a negative one counts from the end.
    At(isize),
    /// Positions (i64 or i32; negative ones count from the end), or a bool mask, which covers as many dimensions as it has.
    Tensor(Tensor),
}

impl From<&Tensor> for Index {
    fn from(t: &Tensor) -> Self {
        Index::Tensor(t.clone())
    }
}

macro_rules! from_ranges {
    ($($Range:ty, $range:pat => $start:expr, $stop:expr;)*) => {$(
        impl From<$Range> for Index {
            fn from($range: $Range) -> Self {
                Index::Slice { start: $start, stop: $stop, step: 1 }
            }
        }
    )*};
}

from_ranges! {
    Range<usize>, range => range.start, range.end;
    RangeInclusive<usize>, range => *range.start(), range.end().saturating_add(1);
    RangeFrom<usize>, range => range.start, usize::MAX;
    RangeTo<usize>, range => 0, range.end;
    RangeToInclusive<usize>, range => 0, range.end.saturating_add(1);
    RangeFull, _ => 0, usize::MAX;
}

macro_rules! from_integers {
    ($($Integer:ty)*) => {$(
        impl From<$Integer> for Index {
            fn from(at: $Integer) -> Self {
                Index::At(at as isize)
            }
        }
    )*};
}

from_integers!(i32 isize usize);

/// The entries of [`Tensor::i`]: a tuple of ranges, positions and index tensors.
#[derive(Clone, Debug)]
pub struct Indices(Vec<Index>);

macro_rules! from_tuples {
    ($(($($T:ident)+))*) => {$(
        impl<$($T: Into<Index>),+> From<($($T,)+)> for Indices {
            // A parameter has the name of its type.
            #[allow(non_snake_case)]
            fn from(($($T,)+): ($($T,)+)) -> Self {
                Indices(vec![$($T.into()),+])
            }
        }
    )*};
}

from_tuples!((A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F));

/// The effect of [`Tensor::index_put`] on the elements at its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// Overwrites. Of several values for one position, the last in row-major order of the index is written.
    Assign,
    /// Adds. Several values for one position are summed.
    Accumulate,
}

impl Put {
    /// The kind of scatter. `is_distinct`: no two elements of its index have the same position.
    fn mode(self, is_distinct: bool) -> Scatter {
        match self {
            Put::Assign if is_distinct => Scatter::Distinct,
            Put::Assign => Scatter::Assign,
            Put::Accumulate => Scatter::Add,
        }
    }
}

/// The dimensions with index tensors, and these tensors, after slices have become views.
struct Resolved {
    view: Tensor,
    indices: Vec<Positions>,
}

/// Positions (i64) in a dimension. The positions of a mask's true elements are always in range.
struct Positions {
    dim: usize,
    at: Tensor,
    is_of_mask: bool,
}

/// # Advanced indexing
impl Tensor {
    /// The elements at ranges, positions and index tensors: [`index`](Tensor::index) with a tuple. Without tensors it is a view. Errors: as there.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(12, device)?.reshape((3, 4))?;
    /// assert_eq!(x.i((.., 1..3))?.dims(), [3, 2]);
    /// assert_eq!(x.i((-1, 2..))?.to_vec::<i64>()?, [10, 11]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn i(&self, at: impl Into<Indices>) -> Result<Tensor> {
        self.index(&at.into().0)
    }

    /// The elements at an advanced index. Entries apply to the leading dimensions in order. Index tensors broadcast to a common
    /// shape. It replaces their dimensions in place if these are adjacent; otherwise it comes first. A mask of rank r counts as r
    /// index tensors: the positions of its true elements in row-major order. Positions that are numbers apply first.
    ///
    /// Errors: `Shape` for too many entries, a mask that does not fit or indices that do not broadcast; `Dtype`; `Index`
    /// for a position outside of `-extent..extent`.
    pub fn index(&self, indices: &[Index]) -> Result<Tensor> {
        let Resolved { view, indices } = resolve(self, indices)?;
        if indices.is_empty() {
            return Ok(view);
        }
        let picked: Vec<usize> = indices.iter().map(|p| p.dim).collect();
        let others: Vec<usize> = (0..view.rank()).filter(|d| !picked.contains(d)).collect();
        let order: Vec<isize> = picked.iter().chain(&others).map(|&d| d as isize).collect();
        let extents: Dims = picked.iter().map(|&d| view.dims()[d]).collect();
        let (shape, flat) = linear(&view, &indices, Shape::new(&extents).strides())?;
        let mut dims = Dims::from_slice(&[extents.iter().product()]);
        dims.extend(others.iter().map(|&d| view.dims()[d]));
        let rows = view.permute(&order)?.reshape(Shape::from(dims))?;
        let mut dims = Dims::from_slice(&shape);
        dims.extend(others.iter().map(|&d| view.dims()[d]));
        placed(rows.index_select(0, &flat)?.reshape(Shape::from(dims))?, shape.rank(), &picked)
    }

    /// This tensor with `values` written at an advanced index. `values` broadcast. Errors: as [`index`](Tensor::index).
    pub fn index_put(&self, indices: &[Index], values: &Tensor, put: Put) -> Result<Tensor> {
        let Places { onto, index, values, is_distinct } = places("index_put", self, indices, values)?;
        let op = if put == Put::Assign { "scatter" } else { "scatter_add" };
        scatter(op, put.mode(is_distinct), &onto, 0, &index, &values)?.reshape(self.shape())
    }

    /// [`index_put`](Tensor::index_put) in place: `x[index] = values`. Errors: as there, and `Value` if this tensor is on the tape, shares
    /// memory with `values` or an index, or has several elements at one position.
    pub fn index_put_(&self, indices: &[Index], values: &Tensor, put: Put) -> Result<()> {
        let op = "index_put_";
        self.check_in_place(op)?;
        let tensors = indices.iter().filter_map(|index| match index {
            Index::Tensor(t) => Some(t),
            _ => None,
        });
        check_apart(op, self, &tensors.chain([values]).collect::<Vec<_>>())?;
        let y = self.detach().contiguous()?;
        let Places { onto, index, values, is_distinct } = places(op, &y, indices, values)?;
        scatter_(op, put.mode(is_distinct), &onto, 0, &index, &values)?;
        if y.shares_memory(self) { Ok(()) } else { no_grad(|| self.copy_(&y)) }
    }

    /// The positions of the true elements of a bool tensor in row-major order, one i64 tensor per dimension. Reads back their
    /// number, or the mask if the backend has no kernel. Errors: `Dtype`.
    pub fn nonzero(&self) -> Result<Vec<Tensor>> {
        crate::ops::elementwise::compare::check_bool("nonzero", self)?;
        if self.rank() > 0 && has_kernel::<MaskPositions>(self) {
            return positions(self);
        }
        let mask = self.to_vec::<bool>()?;
        let count = mask.iter().filter(|&&is_set| is_set).count();
        let Some((&length, outer)) = self.dims().split_last() else { return Ok(Vec::new()) };
        let strides = Shape::new(outer).strides();
        let mut columns: Vec<Vec<i64>> =
            outer.iter().map(|_| host::with_room("nonzero", count)).collect::<Result<_>>()?;
        // Every position is written to the next free slot; only a true element advances the slot. There is no branch on the mask.
        let (mut last, mut found) = (host::repeated("nonzero", 0, count + 1)?, 0);
        for (row, elements) in mask.chunks(length.max(1)).enumerate() {
            for (i, &is_set) in elements.iter().enumerate() {
                last[found] = i as i64;
                found += usize::from(is_set);
            }
            for ((column, &extent), &stride) in columns.iter_mut().zip(outer).zip(&strides) {
                column.resize(found, (row / stride % extent) as i64);
            }
        }
        last.truncate(count);
        columns.push(last);
        columns.into_iter().map(|column| Tensor::from_vec(column, count, self.device())).collect()
    }
}

/// The positions of a mask's true elements, by the kernel.
fn positions(mask: &Tensor) -> Result<Vec<Tensor>> {
    let mask = mask.contiguous()?;
    let count = mask.sum(..)?.to_vec::<i64>()?[0] as usize;
    let found = Tensor::allocate("nonzero", &Shape::new(&[mask.rank(), count]), DType::I64, mask.device())?;
    run_fused("nonzero", &MaskPositions, MaskInputs { mask: &mask }, Output { y: &found })?;
    (0..mask.rank()).map(|d| found.select(0, d as isize)).collect()
}

/// The scatter of an advanced index, along dimension 0.
struct Places {
    /// The tensor, reshaped.
    onto: Tensor,
    index: Tensor,
    values: Tensor,
    /// No two elements of the index have the same position; true for slices and masks.
    is_distinct: bool,
}

fn places(op: &'static str, x: &Tensor, indices: &[Index], values: &Tensor) -> Result<Places> {
    let wrong = |shape: &Shape| {
        let message = format!("values {} do not broadcast to the indexed {shape}", values.shape());
        Error::shape(op, format!("{message} of {}", x.shape()))
    };
    let x = &x.contiguous()?;
    let Resolved { view, indices: found } = resolve(x, indices)?;
    let is_distinct = found.iter().all(|p| p.is_of_mask);
    let is_leading = found.iter().enumerate().all(|(k, p)| k == p.dim);
    if view.shape() == x.shape() && is_leading && !found.is_empty() {
        // The index selects whole rows.
        let (leading, others) = x.dims().split_at(found.len());
        let (shape, flat) = linear(&view, &found, Shape::new(leading).strides())?;
        let shape = Shape::new(&[shape.dims(), others].concat());
        let rows = |n: usize| Shape::new(&[&[n], others].concat());
        let values = values.broadcast_to(&shape).map_err(|_| wrong(&shape))?.reshape(rows(flat.numel()))?;
        let onto = x.reshape(rows(leading.iter().product()))?;
        return Ok(Places { index: along(op, &onto, 0, &flat)?, onto, values, is_distinct });
    }
    let index = numbers(&view, &found, view.layout().offset() - x.layout().offset())?;
    let values = values.broadcast_to(index.shape()).map_err(|_| wrong(index.shape()))?.reshape(index.numel())?;
    Ok(Places { onto: x.reshape(x.numel())?, index: index.reshape(index.numel())?, values, is_distinct })
}

fn resolve(x: &Tensor, indices: &[Index]) -> Result<Resolved> {
    let op = "index";
    let used = |index: &Index| match index {
        Index::Tensor(t) if t.dtype() == DType::Bool => t.rank(),
        _ => 1,
    };
    if indices.iter().map(used).sum::<usize>() > x.rank() || indices.iter().any(|index| used(index) == 0) {
        let tensors = indices.iter().filter_map(|index| match index {
            Index::Tensor(t) => Some(t),
            _ => None,
        });
        let given = describe(&tensors.collect::<Vec<_>>());
        let message = format!("{} entries index more dimensions than {} has", indices.len(), x.shape());
        return Err(Error::shape(op, format!("{message}; tensors: {given}")));
    }
    let (mut selected, mut d) = (x.clone(), 0);
    for index in indices {
        match index {
            Index::At(at) => selected = selected.select(d as isize, *at).map_err(|e| e.of(op))?,
            _ => d += used(index),
        }
    }
    let x = &selected;
    let mut view = x.clone();
    let mut tensors = Vec::new();
    let mut d = 0;
    for index in indices {
        let used = used(index);
        match index {
            Index::At(_) => continue,
            Index::Slice { start, stop, step } => {
                let extent = x.dims()[d];
                let stop = (*stop).min(extent);
                // A full slice is skipped: its gradient would copy the whole tensor.
                if (*start, stop, *step) != (0, extent, 1) {
                    view = view.slice(d as isize, (*start).min(stop), stop, *step)?;
                }
            }
            Index::Tensor(mask) if mask.dtype() == DType::Bool => {
                if mask.dims() != &x.dims()[d..d + used] {
                    let message = format!("the mask {} does not fit dimensions {d}..{} of", mask.shape(), d + used);
                    return Err(Error::shape(op, format!("{message} {}", x.shape())));
                }
                let found = mask.nonzero()?.into_iter().enumerate();
                tensors.extend(found.map(|(k, at)| Positions { dim: d + k, at, is_of_mask: true }));
            }
            Index::Tensor(t) => {
                check_index(op, t)?;
                tensors.push(Positions { dim: d, at: t.cast(DType::I64)?, is_of_mask: false });
            }
        }
        d += used;
    }
    Ok(Resolved { view, indices: tensors })
}

/// Moves the `rank` leading dimensions of `y`, which come from the index, to the position of the indexed dimensions, if these are
/// adjacent.
fn placed(y: Tensor, rank: usize, picked: &[usize]) -> Result<Tensor> {
    let is_adjacent = picked.windows(2).all(|w| w[1] == w[0] + 1);
    if !is_adjacent || picked[0] == 0 {
        return Ok(y);
    }
    let (rank, before) = (rank as isize, picked[0] as isize);
    let order: Vec<isize> = (rank..rank + before).chain(0..rank).chain(rank + before..y.rank() as isize).collect();
    y.permute(&order)
}

/// The positions in memory of the elements at an index of `view`, whose first element has position `first`.
fn numbers(view: &Tensor, indices: &[Positions], first: usize) -> Result<Tensor> {
    let strides = view.layout().strides();
    let picked: Vec<usize> = indices.iter().map(|p| p.dim).collect();
    let others: Vec<usize> = (0..view.rank()).filter(|d| !picked.contains(d)).collect();
    let steps: Dims = picked.iter().map(|&d| strides[d]).collect();
    let (shape, flat) = match indices.is_empty() {
        true => (Shape::new(&[]), Tensor::zeros((), DType::I64, view.device())?),
        false => linear(view, indices, steps)?,
    };
    let leading = shape.rank();
    let mut dims = Dims::from_slice(&shape);
    dims.extend(others.iter().map(|_| 1));
    let mut sum = flat.reshape(Shape::from(dims))?.add_scalar(first as i64)?;
    for (k, &d) in others.iter().enumerate() {
        let along: Vec<usize> = (0..others.len()).map(|o| if o == k { view.dims()[d] } else { 1 }).collect();
        sum =
            sum.add(&Tensor::arange(view.dims()[d], view.device())?.mul_scalar(strides[d] as i64)?.reshape(along)?)?;
    }
    if picked.is_empty() { Ok(sum) } else { placed(sum, leading, &picked) }
}

/// The common shape of the index tensors, and for each of its elements the sum of positions times strides.
fn linear(x: &Tensor, indices: &[Positions], strides: Dims) -> Result<(Shape, Tensor)> {
    let op = "index";
    let references: Vec<&Tensor> = indices.iter().map(|p| &p.at).collect();
    let shape = common_shape(op, &references)?;
    let mut sum: Option<Tensor> = None;
    for (Positions { dim, at, is_of_mask }, &stride) in indices.iter().zip(&strides) {
        let extent = x.dims()[*dim];
        let positive = if *is_of_mask {
            at.clone()
        } else {
            let (row, size) = (Pointwise::NormalizeIndex, [extent as i64]);
            let positive = pointwise_one(op, row, &[at], Attributes::ints(&size), at.shape(), DType::I64);
            positive.map_err(|e| match e.kind() {
                Kind::Value => {
                    let range = format!("{}..{extent}, dimension {dim} of {}", -(extent as i64), x.shape());
                    Error::index(op, format!("an index is outside of {range}: {}", e.message()))
                }
                _ => e,
            })?
        };
        let term = if stride == 1 { positive } else { positive.mul_scalar(stride as i64)? };
        sum = Some(match sum {
            Some(sum) => sum.add(&term)?,
            None => term,
        });
    }
    let sum = sum.ok_or_else(|| Error::attr(op, "no index tensors"))?;
    let flat = sum.broadcast_to(&shape)?.reshape(shape.numel())?;
    Ok((shape, flat))
}
