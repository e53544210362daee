//! Fused kernels work on slices that stay in the cache, in f32: in f64 the backend runs composites, with which other devices are compared.
//!
//! They apply rows of the pointwise table, which have the bits of a composite, and add up in lanes, in an order that depends only on the shape.

use crate::access::{BLOCK, PARALLEL, Source, Strided, Target, borrow, in_vectors, load, shares, store, with_scratch};
use crate::elementwise::pointwise::{Eval, real_f32};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Operand, Result, host};
use rayon::prelude::*;

/// Elements of a task, unless a row has more.
pub const TASK: usize = 16 * BLOCK;
/// The fewest rows whose gradients a task adds up: for each task there is a row of sums.
pub const SUMMED: usize = 32;

/// A row of the pointwise table that takes floats.
pub fn row(row: Pointwise) -> Eval<f32> {
    real_f32(row).expect("the row takes floats")
}

/// A contiguous operand.
pub struct Elements<'a>(pub Source<'a>);

impl<'a> Elements<'a> {
    pub fn new(operand: &Operand<'a>) -> Result<Elements<'a>> {
        Ok(Elements(Source::new(operand)?))
    }

    /// The elements from this one on, of which there are as many as fit into the scratch.
    pub fn at<'s>(&'s self, start: usize, scratch: &'s mut [f32]) -> &'s [f32] {
        debug_assert!(self.0.layout.is_contiguous(), "operands of these kernels are contiguous");
        borrow(self.0.view(), &Strided::new(self.0.layout), start, scratch)
    }

    /// All elements.
    pub fn all(operand: Option<&Operand<'a>>) -> Result<Option<Vec<f32>>> {
        let Some(operand) = operand else { return Ok(None) };
        let source = Source::new(operand)?;
        let mut values = vec![0.0; source.layout.shape().numel()];
        load(source.view(), &Strided::new(source.layout), 0, &mut values);
        Ok(Some(values))
    }
}

/// Lanes of sums: they are added in the same order whatever the processor. The compiler takes loops over shorter arrays apart before it makes
/// vectors of them.
const LANES: usize = 32;

/// Sums of `f` of the elements of slices of the same length: of blocks in f32, in lanes, and of the blocks in f64.
#[inline(always)]
pub fn sums<const N: usize, const K: usize>(x: [&[f32]; N], f: impl Fn([f32; N]) -> [f32; K]) -> [f64; K] {
    let n = x[0].len();
    let mut totals = [0.0; K];
    for start in (0..n).step_by(BLOCK) {
        let end = n.min(start + BLOCK);
        let mut lanes = [[0.0f32; LANES]; K];
        let mut at = start;
        while at < end {
            // Elements beyond the block are not added.
            let count = LANES.min(end - at);
            let mut group = [[0.0f32; LANES]; N];
            for k in 0..N {
                match x[k][at..end].first_chunk() {
                    Some(elements) => group[k] = *elements,
                    None => group[k][..count].copy_from_slice(&x[k][at..end]),
                }
            }
            let mut values = [[0.0f32; LANES]; K];
            for i in 0..LANES {
                let mut elements = [0.0; N];
                for k in 0..N {
                    elements[k] = group[k][i];
                }
                let found = f(elements);
                for k in 0..K {
                    values[k][i] = found[k];
                }
            }
            for k in 0..K {
                for i in 0..LANES {
                    lanes[k][i] += if i < count { values[k][i] } else { 0.0 };
                }
            }
            at += LANES;
        }
        for (total, mut lanes) in totals.iter_mut().zip(lanes) {
            for width in [16, 8, 4, 2, 1] {
                (0..width).for_each(|i| lanes[i] += lanes[i + width]);
            }
            *total += f64::from(lanes[0]);
        }
    }
    totals
}

/// The sum of a slice.
pub fn sum(a: &[f32]) -> f64 {
    in_vectors(
        #[inline(always)]
        || sums([a], |a| a)[0],
    )
}

/// The sums of a, and of the products of a and b.
pub fn sum_and_dot(a: &[f32], b: &[f32]) -> [f64; 2] {
    in_vectors(
        #[inline(always)]
        || sums([a, b], |[a, b]| [a, a * b]),
    )
}

/// Adds a to the first sums, and the products of a and b to the second.
pub fn add_to(totals: [&mut [f32]; 2], a: &[f32], b: &[f32]) {
    let n = a.len();
    let [first, second] = totals.map(|total| &mut total[..n]);
    let b = &b[..n];
    in_vectors(
        #[inline(always)]
        || {
            for i in 0..n {
                first[i] += a[i];
                second[i] += a[i] * b[i];
            }
        },
    );
}

/// The sum of rows, in the order of a tree. It replaces the first row.
pub fn sum_rows(rows: &mut [f32], width: usize) -> &[f32] {
    let count = rows.len() / width.max(1);
    let mut step = 1;
    while step < count {
        for i in (0..count - step).step_by(2 * step) {
            let (to, from) = rows[i * width..].split_at_mut(step * width);
            to[..width].iter_mut().zip(&from[..width]).for_each(|(to, from)| *to += from);
        }
        step *= 2;
    }
    &rows[..width]
}

/// The largest element; NaN if one is.
pub fn largest(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if (b > a) | b.is_nan() { b } else { a };
    let (groups, rest) = x.as_chunks::<LANES>();
    let lanes = in_vectors(
        #[inline(always)]
        || {
            let mut lanes = [f32::NEG_INFINITY; LANES];
            for group in groups {
                lanes.iter_mut().zip(group).for_each(|(lane, &v)| *lane = larger(*lane, v));
            }
            lanes
        },
    );
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

/// Slices along the middle of `[outer, extent, inner]`. A task takes adjacent ones, and has the elements of each side by side in its scratch.
pub struct Slices {
    outer: usize,
    extent: usize,
    inner: usize,
    /// Slices of a task.
    width: usize,
}

impl Slices {
    pub fn new([outer, extent, inner]: [usize; 3]) -> Slices {
        let fitting = TASK / extent;
        // Several slices share a line of the cache.
        let width = if inner == 1 { fitting.clamp(1, outer) } else { fitting.max(LANES).min(inner) };
        Slices { outer, extent, inner, width }
    }

    /// Tasks of an outer index.
    fn cuts(&self) -> usize {
        self.inner.div_ceil(self.width)
    }

    /// The first slice of a task, and the number of its slices.
    fn of_task(&self, task: usize) -> [usize; 2] {
        if self.inner == 1 {
            return [task * self.width, self.width.min(self.outer - task * self.width)];
        }
        let column = task % self.cuts() * self.width;
        [task / self.cuts() * self.inner + column, self.width.min(self.inner - column)]
    }

    /// The position of the first element of a slice.
    pub fn start(&self, slice: usize) -> usize {
        slice / self.inner * self.extent * self.inner + slice % self.inner
    }

    fn is_large(&self) -> bool {
        self.outer * self.extent * self.inner >= PARALLEL / 4
    }

    /// The elements of slices, the first and their number, slice after slice.
    fn read<'s>(
        &self,
        elements: &'s Elements<'_>,
        slices: [usize; 2],
        to: &'s mut [f32],
        line: &mut [f32],
    ) -> &'s [f32] {
        let [first, count] = slices;
        if self.inner == 1 {
            return elements.at(self.start(first), to);
        }
        for e in 0..self.extent {
            let line = elements.at(self.start(first) + e * self.inner, &mut line[..count]);
            line.iter().enumerate().for_each(|(c, &v)| to[c * self.extent + e] = v);
        }
        to
    }

    /// Writes `f(slice, elements of x, scratch for as many, twice)` of each slice to the results. Slices are numbered in `[outer, inner]`.
    pub fn map<R: Send>(
        &self,
        op: &'static str,
        x: &Elements<'_>,
        results: &mut [R],
        f: impl Fn(usize, &[f32], [&mut [f32]; 2]) -> R + Sync,
    ) -> Result<()> {
        let line = if self.inner == 1 { self.width } else { self.inner };
        let mut tasks = host::with_room(op, results.len().div_ceil(line) * self.cuts())?;
        tasks.extend(results.chunks_mut(line).flat_map(|line| line.chunks_mut(self.width)));
        let run = |(task, results): (usize, &mut &mut [R])| {
            let [first, count] = self.of_task(task);
            with_scratch(2 * (count + 1) * self.extent, |scratch: &mut [f32]| {
                let (buffers, spare) = scratch.split_at_mut(2 * count * self.extent);
                let (to, line) = buffers.split_at_mut(count * self.extent);
                let x = self.read(x, [first, count], to, line);
                for (c, result) in results.iter_mut().enumerate() {
                    *result =
                        f(first + c, &x[c * self.extent..][..self.extent], spare.split_at_mut(self.extent).into());
                }
            });
        };
        match self.is_large() {
            false => tasks.iter_mut().enumerate().for_each(run),
            true => tasks.par_iter_mut().enumerate().for_each(run),
        }
        Ok(())
    }

    /// Calls `f(slice, elements of the inputs, elements of y, scratch for as many, twice)` for each slice. Slices are numbered in `[outer, inner]`.
    pub fn each<const N: usize>(
        &self,
        op: &'static str,
        y: &Operand<'_>,
        inputs: [&Elements<'_>; N],
        f: impl Fn(usize, [&[f32]; N], &mut [f32], [&mut [f32]; 2]) + Sync,
    ) -> Result<()> {
        let mut y = Target::new(y)?;
        let (dtype, size, extent) = (y.dtype, y.dtype.size(), self.extent);
        let (lines, line, piece) = match self.inner {
            1 => (1, self.width * extent, self.width * extent),
            _ => (extent, self.inner, self.width),
        };
        let count = (self.outer * extent * self.inner).div_ceil(line * lines) * self.cuts();
        let cuts = self.cuts();
        let mut tasks =
            shares(op, y.elements(), [line * size, piece * size], count, |line, cut| line / lines * cuts + cut)?;
        let run = |(task, y): (usize, &mut Vec<&mut [u8]>)| {
            let [first, count] = self.of_task(task);
            let all = count * extent;
            with_scratch((N + 2) * all + 2 * extent, |scratch: &mut [f32]| {
                let (spare, scratch) = scratch.split_at_mut(2 * extent);
                let mut parts = scratch.chunks_exact_mut(all);
                let mut part = || parts.next().unwrap_or_default();
                let (results, line) = (part(), part());
                let buffers: [&mut [f32]; N] = std::array::from_fn(|_| part());
                let mut read = [&[][..]; N];
                for ((read, input), buffer) in read.iter_mut().zip(inputs).zip(buffers) {
                    *read = self.read(input, [first, count], buffer, line);
                }
                for (c, results) in results.chunks_exact_mut(extent).enumerate() {
                    let spare = spare.split_at_mut(extent).into();
                    f(first + c, read.map(|read| &read[c * extent..][..extent]), results, spare);
                }
                if self.inner == 1 {
                    return store(results, dtype, y[0]);
                }
                for (e, y) in y.iter_mut().enumerate() {
                    line[..count].iter_mut().enumerate().for_each(|(c, v)| *v = results[c * extent + e]);
                    store(&line[..count], dtype, y);
                }
            });
        };
        match self.is_large() {
            false => tasks.iter_mut().enumerate().for_each(run),
            true => tasks.par_iter_mut().enumerate().for_each(run),
        }
        Ok(())
    }
}

/// Writes numbers to a contiguous output.
pub fn write(operand: &Operand<'_>, values: &[f32]) -> Result<()> {
    let mut target = Target::new(operand)?;
    let dtype = target.dtype;
    store(values, dtype, target.elements());
    Ok(())
}

/// The bytes of an output in pieces of so many elements; none where it is absent.
pub fn pieces<'y>(target: Option<&'y mut Target<'_>>, elements: usize) -> impl Iterator<Item = Option<&'y mut [u8]>> {
    let pieces = target.into_iter().flat_map(move |target| {
        let bytes = elements * target.dtype.size();
        target.elements().chunks_mut(bytes)
    });
    pieces.map(Some).chain(std::iter::repeat_with(|| None))
}
