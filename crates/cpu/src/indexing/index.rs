//! Gather and scatter.
//!
//! Trailing dimensions along which the index is constant, such as the rows of an embedding, are moved as a whole.

use crate::access::{
    Acc, BLOCK, PARALLEL, Source, Strided, Target, View, borrow, for_runs, load, store, with_acc, with_bits,
    with_scratch,
};
use crate::memory::scratch;
use bytemuck::Pod;
use isograd_core::backend::{Scatter, index_error};
use isograd_core::{Call, Layout, Result};
use rayon::prelude::*;
use std::ops::Range;

/// An index and the tensor that it points into.
struct Places<'a> {
    op: &'static str,
    /// The index, without the dimensions along which it is constant.
    index: Strided,
    view: View<'a>,
    rows: usize,
    /// The position of each row of the index for the value 0.
    origins: Strided,
    /// The step of the indexed dimension, and its extent.
    along: usize,
    extent: usize,
    /// The elements at one row of the index, from offset 0.
    inner: Strided,
    width: usize,
}

impl<'a> Places<'a> {
    /// For an index into `layout`.
    fn new(op: &'static str, index: &'a Source<'_>, layout: &Layout, dim: usize) -> Places<'a> {
        let (dims, steps) = (index.layout.shape().dims(), index.layout.strides());
        let still = (dim + 1..dims.len()).rev().take_while(|&d| steps[d] == 0 || dims[d] == 1).count();
        let at = dims.len() - still;
        let mut strides = layout.strides().iter().copied().collect::<smallvec::SmallVec<[usize; 8]>>();
        let along = std::mem::take(&mut strides[dim]);
        let inner = Strided::of(&dims[at..], &strides[at..], 0);
        Places {
            op,
            index: Strided::of(&dims[..at], &steps[..at], index.layout.offset()),
            view: index.view(),
            rows: dims[..at].iter().product(),
            origins: Strided::of(&dims[..at], &strides[..at], layout.offset()),
            along,
            extent: layout.shape()[dim],
            inner,
            width: inner.numel(),
        }
    }

    /// Calls `f(first row, indices)` for blocks of rows, until it fails.
    fn blocks(&self, rows: Range<usize>, mut f: impl FnMut(usize, &[i64]) -> Result<()>) -> Result<()> {
        let mut scratch = [0i64; BLOCK];
        for at in rows.clone().step_by(BLOCK) {
            let scratch = &mut scratch[..BLOCK.min(rows.end - at)];
            f(at, borrow(self.view, &self.index, at, scratch))?;
        }
        Ok(())
    }

    /// Returns an error for the first bad index. Its position is that in the index without repetitions.
    fn check(&self) -> Result<()> {
        if self.width == 0 {
            return Ok(());
        }
        self.blocks(0..self.rows, |at, block| match block.iter().position(|&i| i as u64 >= self.extent as u64) {
            None => Ok(()),
            Some(k) => Err(index_error(self.op, (at + k) as i64, block[k], self.extent)),
        })
    }

    /// Calls `f(row, position)` for every row of a checked index; `position` is the row's position in the buffer.
    fn each(&self, rows: Range<usize>, mut f: impl FnMut(usize, usize)) {
        let all = self.blocks(rows, |first, block| {
            for_runs(&self.origins, first, block.len(), |at, position, stride, n| {
                for j in 0..n {
                    f(first + at + j, position + j * stride + block[at + j] as usize * self.along);
                }
            });
            Ok(())
        });
        debug_assert!(all.is_ok());
    }
}

pub fn gather(call: &Call<'_>) -> Result<()> {
    let (x, index) = (Source::new(&call.inputs[0])?, Source::new(&call.inputs[1])?);
    let mut y = Target::new(&call.outputs[0])?;
    let places = Places::new(call.op, &index, x.layout, call.ints[0] as usize);
    places.check()?;
    with_bits!(x.dtype, gather_bits(&places, &x.bytes, y.elements()));
    Ok(())
}

fn gather_bits<T: Pod + Send + Sync>(places: &Places<'_>, x: &[u8], y: &mut [u8]) {
    let (x, y): (&[T], &mut [T]) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(y));
    let width = places.width;
    let some = |start: usize, y: &mut [T]| {
        places.each(start..start + y.len() / width, |row, position| {
            let y = &mut y[(row - start) * width..][..width];
            if places.inner.is_contiguous() {
                return y.copy_from_slice(&x[position..][..width]);
            }
            for_runs(&places.inner.at(position), 0, width, |at, position, stride, n| {
                (0..n).for_each(|i| y[at + i] = x[position + i * stride]);
            });
        });
    };
    if y.len() < PARALLEL {
        return if y.is_empty() {
        } else {
            some(0, y)
        };
    }
    let rows = (PARALLEL / 2).div_ceil(width);
    y.par_chunks_mut(rows * width).enumerate().for_each(|(i, y)| some(i * rows, y));
}

pub fn scatter(call: &Call<'_>, mode: Scatter) -> Result<()> {
    let (index, source) = (Source::new(&call.inputs[0])?, Source::new(&call.inputs[1])?);
    let mut y = Target::new(&call.outputs[0])?;
    let dim = call.ints[0] as usize;
    // Positions count from the first element of y, which is contiguous.
    let places = Places::new(call.op, &index, &Layout::contiguous(y.layout.shape().clone()), dim);
    // All indices are checked before the first write.
    places.check()?;
    if index.layout.shape().numel() == 0 {
        return Ok(());
    }
    let sharing = Sharing::new(&places, index.layout, y.layout, dim);
    match mode {
        Scatter::Assign | Scatter::Distinct => with_bits!(y.dtype, assign(&places, sharing, &source, y.elements())),
        Scatter::Add => with_acc!(y.dtype, add(call, &places, sharing, &source, &mut y))?,
    }
    Ok(())
}

/// The division of a scatter's target among threads. A thread owns a piece, and writes to it in order.
#[derive(Clone, Copy)]
struct Sharing {
    /// Elements of a piece.
    piece: usize,
    /// The number of rows of the index for each piece. If it is the number of all rows, every piece may get any row.
    rows: usize,
}

impl Sharing {
    fn new(places: &Places<'_>, index: &Layout, y: &Layout, dim: usize) -> Sharing {
        let (dims, all) = (index.shape().dims(), y.shape().dims());
        let outer: usize = all[..dim].iter().product();
        if places.rows * places.width >= PARALLEL {
            if outer == 1 && places.width >= 8 {
                // Every thread reads the whole index, and takes the rows of its piece.
                return Sharing { piece: places.extent.div_ceil(8) * places.along, rows: places.rows };
            }
            if outer > 1 && dims[..dim] == all[..dim] {
                return Sharing { piece: y.shape().numel() / outer, rows: places.rows / outer };
            }
        }
        Sharing { piece: y.shape().numel(), rows: places.rows }
    }

    /// Calls `f(rows, first element, piece)` for all pieces.
    fn run<T: Send>(self, places: &Places<'_>, y: &mut [T], f: impl Fn(Range<usize>, usize, &mut [T]) + Sync) {
        if self.piece == y.len() {
            return f(0..places.rows, 0, y);
        }
        y.par_chunks_mut(self.piece).enumerate().for_each(|(i, y)| {
            let rows = if self.rows == places.rows { 0..places.rows } else { i * self.rows..(i + 1) * self.rows };
            f(rows, i * self.piece, y);
        });
    }
}

fn assign<T: Pod + Send + Sync>(places: &Places<'_>, sharing: Sharing, source: &Source<'_>, y: &mut [u8]) {
    let (from, y): (&[T], &mut [T]) = (bytemuck::cast_slice(&source.bytes), bytemuck::cast_slice_mut(y));
    let (layout, width) = (Strided::new(source.layout), places.width);
    sharing.run(places, y, |rows, first, y| {
        places.each(rows, |row, position| {
            let Some(position) = position.checked_sub(first).filter(|&p| p < y.len()) else { return };
            for_runs(&places.inner.at(position), 0, width, |at, to, to_step, n| {
                for_runs(&layout, row * width + at, n, |i, from_position, step, n| {
                    (0..n).for_each(|j| y[to + (i + j) * to_step] = from[from_position + j * step]);
                });
            });
        });
    });
}

/// Adds in the accumulation type, and rounds once.
fn add<A: Acc>(
    call: &Call<'_>,
    places: &Places<'_>,
    sharing: Sharing,
    source: &Source<'_>,
    y: &mut Target<'_>,
) -> Result<()> {
    let dtype = y.dtype;
    if dtype == A::DTYPE {
        sum::<A>(places, sharing, source, bytemuck::cast_slice_mut(y.elements()));
        return Ok(());
    }
    let bytes = y.elements();
    let n = bytes.len() / dtype.size();
    let mut wide = scratch::<A>(call, n)?;
    load(View { bytes, dtype }, &Strided::line(0, n), 0, &mut wide);
    sum(places, sharing, source, &mut wide);
    store(&wide, dtype, bytes);
    Ok(())
}

/// Adds values to the elements of y, from number `start` of a layout on.
fn add_block<A: Acc>(y: &mut [A], layout: &Strided, start: usize, values: &[A]) {
    for_runs(layout, start, values.len(), |at, to, stride, n| {
        let values = &values[at..at + n];
        let add = |(y, &v): (&mut A, &A)| *y = A::back(y.number() + v.number());
        match stride {
            1 => y[to..to + n].iter_mut().zip(values).for_each(add),
            _ => y[to..].iter_mut().step_by(stride.max(1)).zip(values).for_each(add),
        }
    });
}

fn sum<A: Acc>(places: &Places<'_>, sharing: Sharing, source: &Source<'_>, y: &mut [A]) {
    let (layout, view, width) = (Strided::new(source.layout), source.view(), places.width);
    sharing.run(places, y, |rows, first, y| {
        with_scratch(BLOCK.min(width), |scratch: &mut [A]| {
            places.each(rows, |row, position| {
                let Some(position) = position.checked_sub(first).filter(|&p| p < y.len()) else { return };
                let onto = places.inner.at(position);
                for start in (0..width).step_by(BLOCK) {
                    let scratch = &mut scratch[..BLOCK.min(width - start)];
                    add_block(y, &onto, start, borrow(view, &layout, row * width + start, scratch));
                }
            });
        });
    });
}
