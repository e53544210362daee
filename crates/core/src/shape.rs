//! Shapes, strides and views.

use crate::{Error, Result};
use smallvec::SmallVec;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A list of extents or strides. Four have room in it without an allocation.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Dims(SmallVec<[usize; 4]>);

impl Dims {
    /// No elements.
    pub fn new() -> Dims {
        Dims::default()
    }

    /// A copy of these elements.
    pub fn from_slice(dims: &[usize]) -> Dims {
        Dims(SmallVec::from_slice(dims))
    }

    /// `count` elements of this value.
    pub fn from_elem(value: usize, count: usize) -> Dims {
        Dims(SmallVec::from_elem(value, count))
    }

    /// Appends an element.
    pub fn push(&mut self, value: usize) {
        self.0.push(value);
    }

    /// Appends copies of these elements.
    pub fn extend_from_slice(&mut self, dims: &[usize]) {
        self.0.extend_from_slice(dims);
    }

    /// Removes all elements from position `length` on.
    pub fn truncate(&mut self, length: usize) {
        self.0.truncate(length);
    }

    /// Inserts an element at a position. Panics beyond the end.
    pub fn insert(&mut self, at: usize, value: usize) {
        self.0.insert(at, value);
    }

    /// Removes the element at a position. Panics beyond the end.
    pub fn remove(&mut self, at: usize) -> usize {
        self.0.remove(at)
    }
}

impl Deref for Dims {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl DerefMut for Dims {
    fn deref_mut(&mut self) -> &mut [usize] {
        &mut self.0
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl From<Vec<usize>> for Dims {
    fn from(dims: Vec<usize>) -> Dims {
        Dims(SmallVec::from_vec(dims))
    }
}

impl FromIterator<usize> for Dims {
    fn from_iter<I: IntoIterator<Item = usize>>(dims: I) -> Dims {
        Dims(dims.into_iter().collect())
    }
}

impl Extend<usize> for Dims {
    fn extend<I: IntoIterator<Item = usize>>(&mut self, dims: I) {
        self.0.extend(dims);
    }
}

impl<'a> IntoIterator for &'a Dims {
    type Item = &'a usize;
    type IntoIter = std::slice::Iter<'a, usize>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The highest rank of a tensor.
pub const MAX_RANK: usize = 8;

/// The extents of a tensor, outermost first; rank 0 is a single number.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Dims);

impl Shape {
    /// The shape with these extents.
    pub fn new(dims: &[usize]) -> Self {
        Shape(Dims::from_slice(dims))
    }

    /// The extents.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.0.iter().product()
    }

    /// One past the highest position of an element, for steps between neighbours and the position of the first: 0 if there are no elements,
    /// `None` if it is no `usize`.
    pub fn end(&self, strides: &[usize], offset: usize) -> Option<usize> {
        if self.numel() == 0 {
            return Some(0);
        }
        let last = |at: usize, (&extent, &stride): (&usize, &usize)| at.checked_add((extent - 1).checked_mul(stride)?);
        self.0.iter().zip(strides).try_fold(offset, last)?.checked_add(1)
    }

    /// Checks the rank, and that the size in bytes does not overflow. Errors: `Shape`.
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        if self.rank() > MAX_RANK {
            return Err(Error::shape(op, format!("{self} has rank {}, at most {MAX_RANK} is allowed", self.rank())));
        }
        // The product of nonzero extents must not overflow either: strides are computed from it.
        let product = self.0.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
        match product.and_then(|n| n.checked_mul(16)).filter(|&n| n <= isize::MAX as usize) {
            Some(_) => Ok(()),
            None => Err(Error::shape(op, format!("{self} has more elements than memory can address"))),
        }
    }

    /// Strides of the contiguous row-major layout.
    pub fn strides(&self) -> Dims {
        let mut strides = Dims::from_elem(0, self.rank());
        let mut stride = 1;
        for (s, &d) in strides.iter_mut().zip(&self.0).rev() {
            *s = stride;
            stride *= d.max(1);
        }
        strides
    }

    /// Resolves a dimension in `-rank..rank` (rank 0 counts as rank 1). Errors: `Attr`.
    pub fn dim(&self, dim: impl Into<Position>) -> Result<usize> {
        self.dim_for("dim", dim.into().0)
    }

    /// [`dim`](Shape::dim), with errors of `op`, for ops that take a dimension.
    pub fn dim_for(&self, op: &'static str, dim: isize) -> Result<usize> {
        let rank = self.rank().max(1) as isize;
        let resolved = if dim < 0 { dim.saturating_add(rank) } else { dim };
        if (0..rank).contains(&resolved) {
            return Ok(resolved as usize);
        }
        Err(Error::attr(op, format!("dimension {dim} is outside of {}..{rank} for shape {self}", -rank)))
    }

    /// The common shape of two operands by NumPy's rule. Errors: `Shape`, naming both.
    pub fn broadcast(&self, other: &Shape) -> Result<Shape> {
        self.broadcast_for("broadcast", other)
    }

    /// [`broadcast`](Shape::broadcast), with errors of `op`.
    pub(crate) fn broadcast_for(&self, op: &'static str, other: &Shape) -> Result<Shape> {
        if self == other {
            return Ok(self.clone());
        }
        let rank = self.rank().max(other.rank());
        let at = |s: &Shape, i: usize| (i + s.rank()).checked_sub(rank).map_or(1, |k| s.0[k]);
        let mut dims = Dims::new();
        for i in 0..rank {
            dims.push(match (at(self, i), at(other, i)) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => return Err(Error::shape(op, format!("{self} and {other} do not broadcast"))),
            });
        }
        Ok(Shape(dims))
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The position of a dimension, or of an element along one; from the end if it is negative. Made of any integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(pub isize);

/// Numbers that no `isize` holds are as far outside as it can say.
macro_rules! positions {
    ($($Integer:ty),*) => {$(
        impl From<$Integer> for Position {
            #[allow(irrefutable_let_patterns, clippy::unnecessary_fallible_conversions, clippy::absurd_extreme_comparisons, unused_comparisons)]
            fn from(at: $Integer) -> Self {
                Position(isize::try_from(at).unwrap_or(if at < 0 { isize::MIN } else { isize::MAX }))
            }
        }
    )*};
}
positions!(isize, usize, i32, u32, i64, u64);

impl From<Dims> for Shape {
    fn from(dims: Dims) -> Self {
        Shape(dims)
    }
}

impl From<()> for Shape {
    fn from(_: ()) -> Self {
        Shape::default()
    }
}

impl From<usize> for Shape {
    fn from(n: usize) -> Self {
        Shape(Dims::from_slice(&[n]))
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Shape::new(dims)
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(dims.into())
    }
}

impl From<&Vec<usize>> for Shape {
    fn from(dims: &Vec<usize>) -> Self {
        Shape::new(dims)
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape::new(&dims)
    }
}

impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(dims: &[usize; N]) -> Self {
        Shape::new(dims)
    }
}

macro_rules! from_tuple {
    ($($x:ident)+) => {
        impl From<($(from_tuple!(@usize $x),)+)> for Shape {
            #[allow(non_snake_case)]
            fn from(($($x,)+): ($(from_tuple!(@usize $x),)+)) -> Self {
                Shape::new(&[$($x),+])
            }
        }
    };
    (@usize $x:ident) => { usize };
}

from_tuple!(A);
from_tuple!(A B);
from_tuple!(A B C);
from_tuple!(A B C D);
from_tuple!(A B C D E);

/// The memory layout of a tensor: element `i` is at `offset + sum(i[k] * strides[k])`, counted in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Shape,
    strides: Dims,
    offset: usize,
}

impl Layout {
    /// The row-major layout of `shape`.
    pub fn contiguous(shape: Shape) -> Self {
        let strides = shape.strides();
        Layout { shape, strides, offset: 0 }
    }

    /// A layout with any strides. Both lists have the shape's rank.
    pub(crate) fn strided(shape: Shape, strides: Dims, offset: usize) -> Layout {
        debug_assert_eq!(shape.rank(), strides.len());
        Layout { shape, strides, offset }
    }

    /// The extents.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Steps between neighbours, in elements; 0 for an expanded dimension.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// The first element's position in the buffer.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The layout of `[N, C, ..]`, of three dimensions or more, whose channels are adjacent in memory.
    pub fn channels_last(shape: Shape) -> Layout {
        let mut strides = Dims::from_elem(1, shape.rank());
        let mut step = shape[1].max(1);
        for d in (2..shape.rank()).rev().chain([0]) {
            strides[d] = step;
            step *= shape[d].max(1);
        }
        Layout { shape, strides, offset: 0 }
    }

    /// True if the elements of `[N, C, ..]` fill memory without gaps, channels adjacent.
    pub fn has_channels_last(&self) -> bool {
        if self.shape.rank() < 3 {
            return false;
        }
        let last = Layout::channels_last(self.shape.clone());
        self.shape.iter().zip(&self.strides).zip(&last.strides).all(|((&d, s), t)| d == 1 || s == t)
    }

    /// [`has_channels_last`](Layout::has_channels_last), of a layout that is not row-major as well. Where a single channel, or volumes of
    /// single elements, leave both orders the same, the strides of dimensions of one element tell which one is meant: those of
    /// [`channels_last`](Layout::channels_last), or others.
    pub fn is_channels_last(&self) -> bool {
        self.has_channels_last() && (!self.is_contiguous() || self.is_marked_last())
    }

    /// True if the strides are those of [`channels_last`](Layout::channels_last), and not those of row-major order.
    fn is_marked_last(&self) -> bool {
        self.strides == Layout::channels_last(self.shape.clone()).strides && self.strides != self.shape.strides()
    }

    /// True for a view `[N, C, ..]` whose channels are adjacent in memory, as those of a part of the channels of a tensor whose channels are
    /// last.
    pub fn has_adjacent_channels(&self) -> bool {
        // Dimensions that are expanded belong to no order. Of volumes of single elements, the strides tell the order.
        let mut strides = self.strides.iter().enumerate();
        self.shape.rank() > 2 && self.shape[1] > 1 && strides.all(|(d, &s)| if d == 1 { s == 1 } else { s > 1 })
    }

    /// `[N, C, ..]` as `[N, .., C]`.
    pub fn with_channels_at_end(&self) -> Layout {
        self.permute(&[0].into_iter().chain(2..self.shape.rank()).chain([1]).collect::<SmallVec<[usize; 8]>>())
    }

    /// True if the elements fill memory without gaps, in row-major order or with channels last.
    pub fn is_dense(&self) -> bool {
        self.is_contiguous() || self.has_channels_last()
    }

    /// True if the elements are adjacent in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&d, &s) in self.shape.iter().zip(&self.strides).rev() {
            if d != 1 && s != expected {
                return self.shape.numel() == 0;
            }
            expected *= d;
        }
        true
    }

    /// True if several elements share a position. A view of a tensor without shared positions has none, unless it expands a
    /// dimension.
    pub fn overlaps(&self) -> bool {
        // Most tensors are contiguous, and an optimizer asks for each of its own.
        if self.shape.numel() == 0 || self.is_contiguous() {
            return false;
        }
        let mut runs: SmallVec<[(usize, usize); 4]> =
            self.strides.iter().copied().zip(self.shape.iter().copied()).filter(|&(_, d)| d > 1).collect();
        runs.sort_unstable();
        // Positions are distinct if each stride exceeds the reach of all smaller strides.
        let mut reach = 0;
        runs.iter().any(|&(stride, extent)| {
            let is_within = stride <= reach;
            reach += stride * (extent - 1);
            is_within
        })
    }

    /// One past the highest position of an element; 0 if there are no elements.
    pub fn end(&self) -> usize {
        self.shape.end(&self.strides, self.offset).unwrap_or(usize::MAX)
    }

    /// Swaps two dimensions.
    pub fn transpose(&self, a: usize, b: usize) -> Layout {
        let mut to = self.clone();
        if !self.shape.is_empty() {
            to.shape.0.swap(a, b);
            to.strides.swap(a, b);
        }
        to
    }

    /// Dimension `k` of the result is dimension `perm[k]` of this layout.
    pub fn permute(&self, perm: &[usize]) -> Layout {
        Layout {
            shape: Shape(perm.iter().map(|&p| self.shape[p]).collect()),
            strides: perm.iter().map(|&p| self.strides[p]).collect(),
            offset: self.offset,
        }
    }

    /// Elements `start .. start + length * step` of one dimension, `step` apart.
    pub fn narrow(&self, dim: usize, start: usize, length: usize, step: usize) -> Layout {
        let mut to = self.clone();
        to.shape.0[dim] = length;
        // An empty view has no first element: its offset stays within the memory.
        to.offset += if to.shape.numel() == 0 { 0 } else { start * self.strides[dim] };
        // A single element has no neighbour; its stride may have any value.
        to.strides[dim] *= if length > 1 { step } else { 1 };
        to
    }

    /// The layout of which these are the slices `0, 1, ..` along a dimension `dim` that they do not have; none if they are not the slices of
    /// one.
    pub fn joined(slices: &[&Layout], dim: usize) -> Option<Layout> {
        let [first, second, ..] = slices else { return None };
        let step = second.offset.checked_sub(first.offset)?;
        let is_slice = |(i, slice): (usize, &&Layout)| {
            slice.shape == first.shape && slice.strides == first.strides && slice.offset == first.offset + i * step
        };
        let mut to = (*first).clone();
        to.shape.0.insert(dim, slices.len());
        to.strides.insert(dim, step);
        slices.iter().enumerate().all(is_slice).then_some(to)
    }

    /// Splits dimension `dim` in two, each given by its extent and its step in elements of the old dimension.
    pub fn split(&self, dim: usize, parts: [(usize, usize); 2]) -> Layout {
        let stride = self.strides[dim];
        let mut to = self.clone();
        to.shape.0.remove(dim);
        to.strides.remove(dim);
        for (extent, step) in parts.into_iter().rev() {
            to.shape.0.insert(dim, extent);
            to.strides.insert(dim, step * stride);
        }
        to
    }

    /// For a layout `[n, c, kernel, extents]`, with three dimensions each for kernel and extents: the view `[n, c, output, kernel]`
    /// in which element l of the output and i of the kernel is element `before + padding + l - i dilation` of extents. These
    /// elements must exist.
    pub fn gathered(
        &self,
        before: [usize; 3],
        padding: [usize; 3],
        dilation: [usize; 3],
        output: [usize; 3],
    ) -> Layout {
        let mut to = self.permute(&[0, 1, 5, 6, 7, 2, 3, 4]);
        for d in 0..3 {
            let step = self.strides[d + 5];
            to.shape.0[d + 2] = output[d];
            to.offset += (before[d] + padding[d]) * step;
            // The extents behind an element of the kernel are more than `dilation`. A kernel of one element takes no step.
            to.strides[d + 5] = if self.shape[d + 2] > 1 { self.strides[d + 2] - dilation[d] * step } else { 0 };
        }
        to
    }

    /// The elements `[.., i, i + offset]` of the last two dimensions, which become one.
    pub fn diagonal(&self, offset: isize) -> Layout {
        let rank = self.shape.rank();
        let (mut rows, mut columns) = (self.shape[rank - 2], self.shape[rank - 1]);
        let (down, right) = (self.strides[rank - 2], self.strides[rank - 1]);
        let skipped = offset.unsigned_abs();
        let (side, step) = if offset < 0 { (&mut rows, down) } else { (&mut columns, right) };
        *side = side.saturating_sub(skipped);
        let length = rows.min(columns);
        let mut to = self.clone();
        to.shape.0.truncate(rank - 2);
        to.strides.truncate(rank - 2);
        to.shape.0.push(length);
        to.strides.push(down + right);
        to.offset += if to.shape.numel() > 0 { skipped * step } else { 0 };
        to
    }

    /// The same layout in a buffer with `by` more elements at its start.
    pub fn shift(&self, by: usize) -> Layout {
        Layout { offset: self.offset + by, ..self.clone() }
    }

    /// The same layout from the start of a buffer.
    pub(crate) fn at_start(&self) -> Layout {
        Layout { offset: 0, ..self.clone() }
    }

    /// Selects `index` along dimension `dim`, and removes the dimension.
    pub fn select(&self, dim: usize, index: usize) -> Layout {
        let mut to = self.narrow(dim, index, 1, 1);
        to.shape.0.remove(dim);
        to.strides.remove(dim);
        to
    }

    /// Expands to `shape`. The caller has checked that this layout's shape broadcasts to it.
    pub fn expand(&self, shape: &Shape) -> Layout {
        let new = shape.rank() - self.shape.rank();
        let stride = |i: usize, d: usize| match i.checked_sub(new) {
            Some(k) if self.shape[k] == d => self.strides[k],
            _ => 0,
        };
        let strides = shape.iter().enumerate().map(|(i, &d)| stride(i, d)).collect();
        Layout { shape: shape.clone(), strides, offset: self.offset }
    }

    /// The same elements under another shape with the same number of elements, if strides can express it.
    pub fn reshape(&self, shape: &Shape) -> Option<Layout> {
        if self.is_contiguous() {
            return Some(Layout { offset: self.offset, ..Layout::contiguous(shape.clone()) });
        }
        // A group of old dimensions that is contiguous in memory must cover a group of new dimensions exactly.
        let old: SmallVec<[(usize, usize); 4]> =
            self.shape.iter().zip(&self.strides).map(|(&d, &s)| (d, s)).filter(|&(d, _)| d != 1).collect();
        let mut strides = Dims::from_elem(1, shape.rank());
        let (mut i, mut j) = (0, 0);
        while i < old.len() {
            let (mut run, mut stride) = old[i];
            let start = j;
            let mut covered = 1;
            i += 1;
            loop {
                while covered < run {
                    covered *= *shape.get(j)?;
                    j += 1;
                }
                if covered == run {
                    break;
                }
                let &(d, s) = old.get(i)?;
                if stride != d * s {
                    return None;
                }
                run *= d;
                stride = s;
                i += 1;
            }
            for k in (start..j).rev() {
                strides[k] = stride;
                stride *= shape[k];
            }
        }
        Some(Layout { shape: shape.clone(), strides, offset: self.offset })
    }
}
