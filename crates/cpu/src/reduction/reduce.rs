//! Reductions of the last dimensions of a view, in an order that depends only on the shape.
//!
//! The reduced elements of a row are divided into segments, which threads share, and these into blocks of a few hundred elements.
//! Partial results of blocks, and then of segments, are joined in the order of a binary counter's carries. The error of a sum
//! therefore grows with the logarithm of its length.

use crate::access::{
    Acc, BLOCK, PARALLEL, Source, Strided, Target, View, borrow, for_runs, store, with_acc, with_scratch,
};
use crate::normalization::moments;
use crate::reduction::product::products;
use isograd_core::backend::Reduce;
use isograd_core::{Call, Result, host};
use rayon::prelude::*;
use smallvec::{SmallVec, smallvec};

/// Elements of a row that one thread reduces at a time.
pub const SEGMENT: usize = 64 * BLOCK;
/// Columns that are reduced side by side, and lines of them that are joined sequentially.
pub const COLUMNS: usize = 128;
const LINES: usize = 32;

/// The extremum of an arg-reduction.
#[derive(Clone, Copy)]
pub enum Extremum {
    Max,
    Min,
}

/// The function of a reduction. `join` is called in a fixed order.
trait Fold<A: Acc>: Sync {
    fn identity() -> A;
    fn join(a: A, b: A) -> A;
    /// The partial result of one element.
    #[inline(always)]
    fn take(v: A) -> A {
        v
    }
}

struct Sum;
struct Squares;
struct Product;
struct Max;
struct Min;

impl<A: Acc> Fold<A> for Sum {
    fn identity() -> A {
        A::from_i64(0)
    }
    #[inline(always)]
    fn join(a: A, b: A) -> A {
        A::back(a.number() + b.number())
    }
}

impl<A: Acc> Fold<A> for Squares {
    fn identity() -> A {
        A::from_i64(0)
    }
    #[inline(always)]
    fn join(a: A, b: A) -> A {
        A::back(a.number() + b.number())
    }
    #[inline(always)]
    fn take(v: A) -> A {
        A::back(v.number() * v.number())
    }
}

impl<A: Acc> Fold<A> for Product {
    fn identity() -> A {
        A::from_i64(1)
    }
    #[inline(always)]
    fn join(a: A, b: A) -> A {
        A::back(a.number() * b.number())
    }
}

// Core rejects extrema of empty slices, so their identity never is a result.
impl<A: Acc> Fold<A> for Max {
    fn identity() -> A {
        A::from_i64(0)
    }
    #[inline(always)]
    fn join(a: A, b: A) -> A {
        if (b > a) | b.is_nan() { b } else { a }
    }
}

impl<A: Acc> Fold<A> for Min {
    fn identity() -> A {
        A::from_i64(0)
    }
    #[inline(always)]
    fn join(a: A, b: A) -> A {
        if (b < a) | b.is_nan() { b } else { a }
    }
}

/// A view whose last dimensions are reduced.
pub struct Rows<'a> {
    pub view: View<'a>,
    pub kept: Strided,
    pub reduced: Strided,
    pub rows: usize,
    pub count: usize,
}

impl<'a> Rows<'a> {
    pub fn new(source: &'a Source<'_>, reduced: usize) -> Rows<'a> {
        let (dims, strides) = (source.layout.shape().dims(), source.layout.strides());
        let at = dims.len() - reduced;
        let kept = Strided::of(&dims[..at], &strides[..at], source.layout.offset());
        let reduced = Strided::of(&dims[at..], &strides[at..], 0);
        Rows { view: source.view(), kept, reduced, rows: kept.numel(), count: reduced.numel() }
    }

    /// Calls `f(first element's number, block)` for the blocks of a part of a row.
    pub fn blocks<A: Acc>(&self, row: usize, start: usize, end: usize, mut f: impl FnMut(usize, &[A])) {
        let layout = self.reduced.at(self.kept.position(row));
        with_scratch(BLOCK.min(end - start), |scratch: &mut [A]| {
            for at in (start..end).step_by(BLOCK) {
                f(at, borrow(self.view, &layout, at, &mut scratch[..BLOCK.min(end - at)]));
            }
        });
    }

    /// The number of adjacent columns, if reading rows would be strided access.
    pub fn columns(&self) -> Option<usize> {
        let (columns, stride) = self.kept.last();
        (stride == 1 && columns >= 8 && self.count > 1 && self.reduced.last().1 != 1).then_some(columns)
    }

    pub fn is_large(&self) -> bool {
        self.rows * self.count >= PARALLEL
    }
}

pub fn run(call: &Call<'_>, kind: Reduce) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let rows = Rows::new(&source, call.ints[0] as usize);
    let mut targets = call.outputs.iter().map(Target::new).collect::<Result<SmallVec<[Target<'_>; 2]>>>()?;
    if rows.rows > 0 {
        with_acc!(source.dtype, reduce(call.op, &rows, &mut targets, kind))?;
    }
    Ok(())
}

fn reduce<A: Acc>(op: &'static str, rows: &Rows<'_>, targets: &mut [Target<'_>], kind: Reduce) -> Result<()> {
    let mut y = match kind {
        Reduce::Sum | Reduce::Mean => fold::<A, Sum>(op, rows),
        Reduce::Norm => fold::<A, Squares>(op, rows),
        Reduce::Prod if A::DTYPE.is_float() => products::<A>(op, rows),
        Reduce::Prod => fold::<A, Product>(op, rows),
        Reduce::Max => fold::<A, Max>(op, rows),
        Reduce::Min => fold::<A, Min>(op, rows),
    }?;
    match kind {
        Reduce::Mean => y.iter_mut().enumerate().for_each(|(row, v)| *v = mean(rows, row, *v)),
        Reduce::Norm => y.iter_mut().enumerate().for_each(|(row, v)| *v = moments::norm(rows, row, *v)),
        _ => {}
    }
    let put = |target: &mut Target<'_>, v: &[A]| {
        let dtype = target.dtype;
        store(v, dtype, target.elements());
    };
    put(&mut targets[0], &y);
    if let Some(second) = targets.get_mut(1) {
        shares(rows, &mut y);
        put(second, &y);
    }
    Ok(())
}

/// Results of rows. A few of them need no allocation.
pub type Results<A> = SmallVec<[A; 32]>;

/// `n` copies of `v`. Errors: `OutOfMemory`, of `op`.
pub fn results<A: Acc>(op: &'static str, v: A, n: usize) -> Result<Results<A>> {
    if n > 32 { Ok(host::repeated(op, v, n)?.into()) } else { Ok(smallvec![v; n]) }
}

/// The mean of a row with this sum.
fn mean<A: Acc>(rows: &Rows<'_>, row: usize, sum: A) -> A {
    match sum.to_f64().is_finite() {
        true => A::from_f64(sum.to_f64() / rows.count as f64),
        false => moments::mean(rows, row),
    }
}

/// Replaces an extremum of each row by 1 over the number of elements of the row that equal it.
fn shares<A: Acc>(rows: &Rows<'_>, sums: &mut [A]) {
    let count = |(row, value): (usize, &mut A)| {
        let mut count = 0;
        rows.blocks(row, 0, rows.count, |_, block: &[A]| count += block.iter().filter(|&v| v == value).count());
        *value = A::from_f64(1.0 / count as f64);
    };
    match rows.is_large() {
        false => sums.iter_mut().enumerate().for_each(count),
        true => sums.par_iter_mut().enumerate().for_each(count),
    }
}

/// The results of all rows.
fn fold<A: Acc, F: Fold<A>>(op: &'static str, rows: &Rows<'_>) -> Result<Results<A>> {
    let segments = rows.count.div_ceil(SEGMENT).max(1);
    let mut partial = results(op, F::identity(), segments * rows.rows)?;
    let columns = rows.columns();
    // The smallest unit of work: adjacent results, and one segment.
    let (line, piece) = match columns {
        Some(columns) => (columns, COLUMNS),
        None => (rows.rows, (BLOCK * 16 / rows.count.max(1)).max(1)),
    };
    let work = |(i, y): (usize, &mut [A])| {
        let pieces = line.div_ceil(piece);
        let first = i / pieces * line + i % pieces * piece;
        let (segment, row) = (first / rows.rows, first % rows.rows);
        let (start, end) = (segment * SEGMENT, rows.count.min((segment + 1) * SEGMENT));
        match columns {
            Some(_) => fold_columns::<A, F>(rows, row, start, end, y),
            None => y.iter_mut().enumerate().for_each(|(k, y)| *y = fold_row::<A, F>(rows, row + k, start, end)),
        }
    };
    let count = (segments * rows.rows).div_ceil(line) * line.div_ceil(piece);
    let pieces = partial.chunks_mut(line).flat_map(|line| line.chunks_mut(piece)).enumerate();
    match rows.is_large() {
        false => pieces.for_each(work),
        true => {
            let mut all = host::with_room(op, count)?;
            all.extend(pieces);
            all.into_par_iter().for_each(work);
        }
    }
    if segments > 1 {
        // The total of each row replaces its first part.
        for row in 0..rows.rows {
            let mut counter = Counter::new();
            (0..segments).for_each(|s| counter.push::<F>(partial[s * rows.rows + row]));
            partial[row] = counter.total::<F>();
        }
        partial.truncate(rows.rows);
    }
    Ok(partial)
}

/// Joins partial results pairwise, like a binary counter.
struct Counter<A> {
    count: usize,
    /// Digit `k` is in use where bit `k` of the count is set.
    digits: SmallVec<[A; 8]>,
}

impl<A: Acc> Counter<A> {
    fn new() -> Self {
        Counter { count: 0, digits: SmallVec::new() }
    }

    fn push<F: Fold<A>>(&mut self, mut carry: A) {
        let digit = self.count.trailing_ones() as usize;
        self.digits[..digit].iter().for_each(|&lower| carry = F::join(lower, carry));
        match self.digits.get_mut(digit) {
            Some(slot) => *slot = carry,
            None => self.digits.push(carry),
        }
        self.count += 1;
    }

    fn total<F: Fold<A>>(self) -> A {
        let used = self.digits.into_iter().enumerate().filter(|(k, _)| self.count >> k & 1 == 1).map(|(_, v)| v);
        used.reduce(|low, high| F::join(high, low)).unwrap_or(F::identity())
    }
}

fn fold_row<A: Acc, F: Fold<A>>(rows: &Rows<'_>, row: usize, start: usize, end: usize) -> A {
    let mut counter = Counter::new();
    rows.blocks(row, start, end, |_, block: &[A]| counter.push::<F>(fold_block::<A, F>(block)));
    counter.total::<F>()
}

/// Eight lanes, joined in a fixed order.
fn fold_block<A: Acc, F: Fold<A>>(block: &[A]) -> A {
    let (groups, rest) = block.as_chunks::<8>();
    let few = rest.iter().map(|&v| F::take(v)).reduce(F::join);
    let Some((first, groups)) = groups.split_first() else { return few.unwrap_or(F::identity()) };
    let mut lanes = first.map(F::take);
    for group in groups {
        for (lane, &v) in lanes.iter_mut().zip(group) {
            *lane = F::join(*lane, F::take(v));
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    let joined = F::join(F::join(F::join(a, e), F::join(b, f)), F::join(F::join(c, g), F::join(d, h)));
    few.map_or(joined, |few| F::join(joined, few))
}

/// Reduces columns `first ..` side by side, in the order of memory. The results replace `y`.
fn fold_columns<A: Acc, F: Fold<A>>(rows: &Rows<'_>, first: usize, start: usize, end: usize, y: &mut [A]) {
    let (width, base) = (y.len(), rows.kept.position(first));
    let digits = (end - start).div_ceil(LINES).ilog2() as usize + 1;
    with_scratch((digits + 2) * width, |scratch: &mut [A]| {
        let (values, scratch) = scratch.split_at_mut(width);
        let (carry, digits) = scratch.split_at_mut(width);
        let mut blocks = 0usize;
        for at in (start..end).step_by(LINES) {
            let n = LINES.min(end - at);
            for_runs(&rows.reduced, at, n, |k, position, stride, n| {
                for j in 0..n {
                    let line = Strided::line(base + position + j * stride, width);
                    let line = borrow(rows.view, &line, 0, values);
                    match k + j {
                        0 => carry.iter_mut().zip(line).for_each(|(a, &b)| *a = F::take(b)),
                        _ => carry.iter_mut().zip(line).for_each(|(a, &b)| *a = F::join(*a, F::take(b))),
                    }
                }
            });
            let digit = blocks.trailing_ones() as usize;
            for lower in digits.chunks(width).take(digit) {
                carry.iter_mut().zip(lower).for_each(|(carry, &lower)| *carry = F::join(lower, *carry));
            }
            digits[digit * width..][..width].copy_from_slice(carry);
            blocks += 1;
        }
        let mut used = digits.chunks(width).enumerate().filter(|(k, _)| blocks >> k & 1 == 1).map(|(_, d)| d);
        if let Some(lowest) = used.next() {
            y.copy_from_slice(lowest);
        }
        used.for_each(|high| y.iter_mut().zip(high).for_each(|(low, &high)| *low = F::join(high, *low)));
    });
}

/// True if `v` is strictly better than `best`. NaN is better than any number and, with `is_last_nan`, than another NaN.
fn beats<A: Acc>(v: A, best: A, which: Extremum, is_last_nan: bool) -> bool {
    let better = match which {
        Extremum::Max => v > best,
        Extremum::Min => v < best,
    };
    better || v.is_nan() && (is_last_nan || !best.is_nan())
}

pub fn arg(call: &Call<'_>, which: Extremum) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let rows = Rows::new(&source, call.ints[0] as usize);
    let mut target = Target::new(&call.outputs[0])?;
    let is_last_nan = call.ints.get(1) == Some(&1);
    with_acc!(source.dtype, find(&rows, &mut target, which, is_last_nan));
    Ok(())
}

fn find<A: Acc>(rows: &Rows<'_>, target: &mut Target<'_>, which: Extremum, is_last_nan: bool) {
    let first = |(row, y): (usize, &mut i64)| {
        let mut best: Option<(A, usize)> = None;
        rows.blocks(row, 0, rows.count, |at, block: &[A]| {
            let (mut value, mut position) = best.unwrap_or((block[0], at));
            for (i, &v) in block.iter().enumerate() {
                if beats(v, value, which, is_last_nan) {
                    (value, position) = (v, at + i);
                }
            }
            best = Some((value, position));
        });
        *y = best.map_or(0, |(_, i)| i as i64);
    };
    let y: &mut [i64] = bytemuck::cast_slice_mut(target.elements());
    match rows.is_large() {
        false => y.iter_mut().enumerate().for_each(first),
        true => y.par_iter_mut().enumerate().for_each(first),
    }
}
