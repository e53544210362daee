//! Reductions of the last dimensions of a view, in an order that depends on the shape alone.

use crate::access::{Acc, BLOCK, PARALLEL, Source, Target, View, load, store, with_acc, with_scratch};
use isograd_core::backend::Reduce;
use isograd_core::{Call, Layout, Result};
use rayon::prelude::*;

/// Which element an arg-reduction looks for.
#[derive(Clone, Copy)]
pub enum Extremum {
    Max,
    Min,
}

/// A view whose last dimensions are reduced.
struct Rows<'a> {
    view: View<'a>,
    layout: &'a Layout,
    rows: usize,
    count: usize,
}

impl<'a> Rows<'a> {
    fn new(source: &'a Source<'_>, reduced: usize) -> Rows<'a> {
        let dims = source.layout.shape().dims();
        let (kept, last) = dims.split_at(dims.len() - reduced);
        let (rows, count) = (kept.iter().product(), last.iter().product());
        Rows { view: source.view(), layout: source.layout, rows, count }
    }

    /// Calls `f(first element's number, block)` for a row's blocks.
    fn blocks<A: Acc>(&self, row: usize, mut f: impl FnMut(usize, &[A])) {
        with_scratch(BLOCK.min(self.count), |scratch: &mut [A]| {
            for at in (0..self.count).step_by(BLOCK) {
                let block = &mut scratch[..BLOCK.min(self.count - at)];
                load(self.view, self.layout, row * self.count + at, block);
                f(at, block);
            }
        });
    }

    /// Fills `y` with `f(row)`, by several threads if that is worth it.
    fn map<A: Acc>(&self, y: &mut [A], f: impl Fn(usize) -> A + Sync) {
        if self.rows * self.count < PARALLEL {
            y.iter_mut().enumerate().for_each(|(row, y)| *y = f(row));
        } else {
            y.par_iter_mut().enumerate().for_each(|(row, y)| *y = f(row));
        }
    }
}

pub fn run(call: &Call<'_>, kind: Reduce) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let rows = Rows::new(&source, call.ints[0] as usize);
    let mut target = Target::new(&call.outputs[0])?;
    with_acc!(source.dtype, reduce(&rows, &mut target, kind));
    Ok(())
}

fn reduce<A: Acc>(rows: &Rows<'_>, target: &mut Target<'_>, kind: Reduce) {
    let mut y = vec![A::from_i64(0); rows.rows];
    match columns(rows) {
        Some(stride) => reduce_columns(rows, stride, &mut y, kind),
        None => rows.map(&mut y, |row| reduce_row(rows, row, kind)),
    }
    y.iter_mut().for_each(|v| *v = finish(*v, rows.count, kind));
    let dtype = target.dtype;
    store(&y, dtype, target.elements());
}

/// What an element contributes.
fn contribution<A: Acc>(v: A, kind: Reduce) -> A {
    if kind == Reduce::Norm { A::back(v.number() * v.number()) } else { v }
}

fn identity<A: Acc>(kind: Reduce) -> A {
    A::from_i64((kind == Reduce::Prod) as i64)
}

/// Joins two partial results.
fn join<A: Acc>(a: A, b: A, kind: Reduce) -> A {
    match kind {
        Reduce::Sum | Reduce::Mean | Reduce::Norm => A::back(a.number() + b.number()),
        Reduce::Prod => A::back(a.number() * b.number()),
        Reduce::Max => better(a, b, Extremum::Max),
        Reduce::Min => better(a, b, Extremum::Min),
    }
}

fn finish<A: Acc>(v: A, count: usize, kind: Reduce) -> A {
    match kind {
        Reduce::Mean => A::from_f64(v.to_f64() / count as f64),
        Reduce::Norm => A::from_f64(v.to_f64().sqrt()),
        _ => v,
    }
}

fn reduce_row<A: Acc>(rows: &Rows<'_>, row: usize, kind: Reduce) -> A {
    // Partial results of blocks are joined like the digits of a binary counter, so that the error grows with the
    // logarithm of their number.
    let mut partials: [Option<A>; 64] = [None; 64];
    rows.blocks(row, |_, block: &[A]| {
        let mut carry = reduce_block(block, kind);
        for slot in &mut partials {
            match slot.take() {
                Some(lower) => carry = join(lower, carry, kind),
                None => {
                    *slot = Some(carry);
                    break;
                }
            }
        }
    });
    partials.into_iter().flatten().reduce(|low, high| join(high, low, kind)).unwrap_or(identity(kind))
}

/// Eight lanes, joined in a fixed order.
fn reduce_block<A: Acc>(block: &[A], kind: Reduce) -> A {
    let (groups, rest) = block.as_chunks::<8>();
    let Some((first, groups)) = groups.split_first() else { return reduce_few(rest, kind) };
    let mut lanes = first.map(|v| contribution(v, kind));
    for group in groups {
        for (lane, &v) in lanes.iter_mut().zip(group) {
            *lane = join(*lane, contribution(v, kind), kind);
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    let j = |a, b| join(a, b, kind);
    let joined = j(j(j(a, e), j(b, f)), j(j(c, g), j(d, h)));
    if rest.is_empty() { joined } else { j(joined, reduce_few(rest, kind)) }
}

fn reduce_few<A: Acc>(values: &[A], kind: Reduce) -> A {
    let contributions = values.iter().map(|&v| contribution(v, kind));
    contributions.reduce(|a, b| join(a, b, kind)).unwrap_or(identity(kind))
}

/// The distance between a column's elements, if columns of a matrix with contiguous rows are reduced.
fn columns(rows: &Rows<'_>) -> Option<usize> {
    match (rows.layout.shape().dims(), rows.layout.strides()) {
        (&[kept, count], &[1, stride]) if kept >= 8 && count > 1 && stride >= kept => Some(stride),
        _ => None,
    }
}

/// Reduces columns side by side, so that memory is read in its order.
fn reduce_columns<A: Acc>(rows: &Rows<'_>, stride: usize, y: &mut [A], kind: Reduce) {
    /// Rows after which a partial result is put aside.
    const DEPTH: usize = 512;
    let line = |row: usize, first: usize, out: &mut [A]| {
        let layout = rows.layout.narrow(0, first, out.len(), 1).select(1, row);
        load(rows.view, &layout, 0, out);
    };
    let some = |(i, y): (usize, &mut [A])| {
        let first = i * BLOCK;
        with_scratch(2 * y.len(), |scratch: &mut [A]| {
            let (values, partial) = scratch.split_at_mut(y.len());
            for start in (0..rows.count).step_by(DEPTH) {
                for row in start..rows.count.min(start + DEPTH) {
                    line(row, first, values);
                    values.iter_mut().for_each(|v| *v = contribution(*v, kind));
                    let into: &mut [A] = if start == 0 { &mut *y } else { partial };
                    match row == start {
                        true => into.copy_from_slice(values),
                        false => into.iter_mut().zip(values.iter()).for_each(|(a, &b)| *a = join(*a, b, kind)),
                    }
                }
                if start > 0 {
                    y.iter_mut().zip(partial.iter()).for_each(|(a, &b)| *a = join(*a, b, kind));
                }
            }
        });
    };
    debug_assert!(stride > 0);
    if rows.rows * rows.count < PARALLEL {
        y.chunks_mut(BLOCK).enumerate().for_each(some);
    } else {
        y.par_chunks_mut(BLOCK).enumerate().for_each(some);
    }
}

fn is_nan<A: Acc>(v: A) -> bool {
    v.partial_cmp(&v).is_none()
}

/// The larger or smaller of two, the first of equals; NaN wins.
fn better<A: Acc>(a: A, b: A, which: Extremum) -> A {
    if beats(b, a, which) { b } else { a }
}

/// True if `v` is strictly better than `best`.
fn beats<A: Acc>(v: A, best: A, which: Extremum) -> bool {
    if is_nan(best) {
        return false;
    }
    is_nan(v)
        || match which {
            Extremum::Max => v > best,
            Extremum::Min => v < best,
        }
}

pub fn arg(call: &Call<'_>, which: Extremum) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let rows = Rows::new(&source, call.ints[0] as usize);
    let mut target = Target::new(&call.outputs[0])?;
    with_acc!(source.dtype, find(&rows, &mut target, which));
    Ok(())
}

fn find<A: Acc>(rows: &Rows<'_>, target: &mut Target<'_>, which: Extremum) {
    let y: &mut [i64] = bytemuck::cast_slice_mut(target.elements());
    rows.map(y, |row| {
        let mut best: Option<(A, usize)> = None;
        rows.blocks(row, |at, block: &[A]| {
            for (i, &v) in block.iter().enumerate() {
                if best.is_none_or(|(b, _)| beats(v, b, which)) {
                    best = Some((v, at + i));
                }
            }
        });
        best.map_or(0, |(_, i)| i as i64)
    });
}
