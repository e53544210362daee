//! All steps of a recurrent op. Rows of a batch do not depend on each other: a thread takes some of them through all steps, and multiplies
//! them by a weight whose columns are in the order in which vectors read them. How the rows are shared changes no bit.

use crate::access::{Acc, Source, Strided, Target, View, borrow, load, store};
use crate::elementwise::pointwise::Eval;
use crate::memory::{Scratch, scratch};
use crate::vectors::Real;
use isograd_core::fused::Fused;
use isograd_core::operands::Operands;
use isograd_core::ops::TimeOrder;
use isograd_core::ops::recurrent::kernel::{
    Cell, Recurrence, RecurrentBackward, RecurrentBackwardInputs, RecurrentForward, RecurrentInputs,
};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Call, DType, Error, Result, host};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use smallvec::SmallVec;
use std::iter::once;
use std::marker::PhantomData;

/// A task has at least so many multiplications, if there are so many.
const LEAST_TASK: usize = 64 * 64 * 64;
/// The fewest rows of a task, if there are so many: each reads the whole weight once.
const LEAST_ROWS: usize = 4;

/// Vectors of a panel.
const VECTORS: usize = 2;

/// A matrix `[k, n]` in panels of adjacent columns: the elements of a panel's rows are adjacent. Columns beyond n are 0.
struct Panels<'a, A> {
    values: Scratch<'a, A>,
    k: usize,
    /// Columns of a panel.
    width: usize,
    /// n, in whole panels.
    columns: usize,
}

/// The columns of a panel on this processor.
struct Width<A>(PhantomData<A>);

impl<A: Real> WithSimd for Width<A> {
    type Output = usize;

    fn with_simd<S: Simd>(self, _simd: S) -> usize {
        VECTORS * size_of::<A::Vector<S>>() / size_of::<A>()
    }
}

impl<'a, A: Real> Panels<'a, A> {
    /// The panels of the matrix with these strides of rows and columns.
    fn new(call: &Call<'a>, w: &[A], [k, n]: [usize; 2], [row, column]: [usize; 2]) -> Result<Panels<'a, A>> {
        let width = Arch::new().dispatch(Width::<A>(PhantomData));
        let columns = n.next_multiple_of(width);
        let mut values = scratch::<A>(call, k * columns)?;
        values.par_chunks_mut(k * width).enumerate().for_each(|(panel, values)| {
            for (at, values) in values.chunks_mut(width).enumerate() {
                let inside = width.min(n - panel * width);
                let from = at * row + panel * width * column;
                (0..inside).for_each(|j| values[j] = w[from + j * column]);
                values[inside..].fill(A::from_i64(0));
            }
        });
        Ok(Panels { values, k, width, columns })
    }

    /// `y += x @ self`, on this thread: `y [m, columns]` is contiguous, and the rows of x are `step` apart.
    fn add_product(&self, y: &mut [A], x: &[A], step: usize) {
        Arch::new().dispatch(Product { y, x, step, w: self });
    }
}

struct Product<'a, 'w, A> {
    y: &'a mut [A],
    x: &'a [A],
    step: usize,
    w: &'a Panels<'w, A>,
}

impl<A: Real> WithSimd for Product<'_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Sums fill half of the registers, of which those with the longest vectors have twice as many.
        match size_of::<A::Vector<S>>() {
            64 => self.all_rows::<S, 8>(simd),
            _ => self.all_rows::<S, 4>(simd),
        }
    }
}

impl<A: Real> Product<'_, '_, A> {
    #[inline(always)]
    fn all_rows<S: Simd, const ROWS: usize>(self, simd: S) {
        let Product { y, x, step, w } = self;
        for (panel, values) in w.values.chunks(w.k * w.width).enumerate() {
            let (mut y, mut x) = (&mut *y, x);
            let mut rows = y.len() / w.columns;
            while rows > 0 {
                let (tile, first) = (Tile { columns: w.columns, step, k: w.k }, panel * w.width);
                let taken = match rows {
                    _ if rows >= ROWS => tile.add_rows::<A, S, ROWS>(simd, y, first, x, values),
                    4.. => tile.add_rows::<A, S, 4>(simd, y, first, x, values),
                    2.. => tile.add_rows::<A, S, 2>(simd, y, first, x, values),
                    _ => tile.add_rows::<A, S, 1>(simd, y, first, x, values),
                };
                (y, x, rows) = (&mut y[taken * w.columns..], x.get(taken * step..).unwrap_or(&[]), rows - taken);
            }
        }
    }
}

/// Rows of y and x, whose elements are `columns` and `step` apart.
#[derive(Clone, Copy)]
struct Tile {
    columns: usize,
    step: usize,
    k: usize,
}

impl Tile {
    /// Adds the products of the first rows and a panel, and returns their number.
    #[inline(always)]
    fn add_rows<A: Real, S: Simd, const ROWS: usize>(
        self,
        simd: S,
        y: &mut [A],
        first: usize,
        x: &[A],
        panel: &[A],
    ) -> usize {
        let width = panel.len() / self.k;
        let panel: &[A::Vector<S>] = bytemuck::cast_slice(panel);
        let x: [&[A]; ROWS] = std::array::from_fn(|i| &x[i * self.step..][..self.k]);
        let mut sums: [[A::Vector<S>; VECTORS]; ROWS] = std::array::from_fn(|i| {
            let y: &[A::Vector<S>] = bytemuck::cast_slice(&y[i * self.columns + first..][..width]);
            std::array::from_fn(|j| y[j])
        });
        for (at, w) in panel.as_chunks::<VECTORS>().0.iter().enumerate() {
            for i in 0..ROWS {
                let v = A::splat(simd, x[i][at]);
                for j in 0..VECTORS {
                    sums[i][j] = A::multiply_add(simd, v, w[j], sums[i][j]);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            let y: &mut [A::Vector<S>] = bytemuck::cast_slice_mut(&mut y[i * self.columns + first..][..width]);
            y.copy_from_slice(sums);
        }
        ROWS
    }
}

/// A recurrence in this arithmetic.
struct Steps<A: 'static> {
    op: &'static str,
    of: Recurrence,
    eval: Eval<A>,
    /// Elements of a row of the arguments of gates.
    columns: usize,
}

/// The rows of a task, and the bytes of the outputs that belong to them: a part for each step, of each output.
struct Task<'a> {
    first: usize,
    rows: usize,
    outputs: SmallVec<[Vec<&'a mut [u8]>; 4]>,
}

impl<A: Real> Steps<A> {
    fn new(op: &'static str, recurrence: Recurrence, row: Pointwise) -> Result<Steps<A>> {
        let unsupported = || Error::unsupported(op, format!("`{}` does not run on {}", row.name(), A::DTYPE));
        let eval = A::function(row).ok_or_else(unsupported)?;
        Ok(Steps { op, of: recurrence, eval, columns: recurrence.cell.gates() * recurrence.extents[2] })
    }

    fn width(&self) -> usize {
        self.of.extents[2]
    }

    /// The place in time of a step, and the places of the hidden states before and after it.
    fn places(&self, step: usize) -> (usize, usize, usize) {
        match self.of.order {
            TimeOrder::Forward => (step, step, step + 1),
            TimeOrder::Reverse => {
                let t = self.of.extents[0] - 1 - step;
                (t, t + 1, t)
            }
        }
    }

    /// Cuts the rows of outputs into tasks. Output k is some times `[B, elements[k]]`.
    fn tasks<'t>(&self, targets: &'t mut [Target<'_>], elements: &[usize]) -> Result<Vec<Task<'t>>> {
        let [steps, rows, width] = self.of.extents;
        let least = LEAST_TASK.div_ceil((steps * self.columns * width).max(1)).max(LEAST_ROWS);
        let share = rows.div_ceil(rayon::current_num_threads()).max(least).min(rows);
        let starts = (0..rows).step_by(share);
        let task = |first| Task { first, rows: share.min(rows - first), outputs: SmallVec::new() };
        let mut tasks = host::collect(self.op, starts.map(task))?;
        for (target, elements) in targets.iter_mut().zip(elements) {
            let row = elements * target.dtype.size();
            let bytes = target.elements();
            for task in &mut tasks {
                task.outputs.push(host::with_room(self.op, bytes.len() / (rows * row))?);
            }
            for step in bytes.chunks_mut(rows * row) {
                for (task, bytes) in tasks.iter_mut().zip(step.chunks_mut(share * row)) {
                    task.outputs.last_mut().expect("was pushed above").push(bytes);
                }
            }
        }
        Ok(tasks)
    }
}

/// Values as they are after a round trip through their dtype, whose bytes are written.
fn round<A: Acc>(values: &mut [A], dtype: DType, bytes: &mut [u8]) {
    store(values, dtype, bytes);
    if dtype != A::DTYPE {
        load(View { bytes, dtype }, &Strided::line(0, values.len()), 0, values);
    }
}

/// An operand that may be absent: then its elements are 0.
struct Operand<'a> {
    source: Option<(&'a Source<'a>, Strided)>,
}

impl<'a> Operand<'a> {
    fn new(source: Option<&'a Source<'a>>) -> Operand<'a> {
        Operand { source: source.map(|source| (source, Strided::new(source.layout))) }
    }

    /// Elements from this number on.
    fn read<A: Acc>(&self, start: usize, out: &mut [A]) {
        match &self.source {
            Some((source, layout)) => load(source.view(), layout, start, out),
            None => out.fill(A::from_i64(0)),
        }
    }
}

/// The weight as a matrix `[k, n]` of panels: itself, `[G H, H]`, or turned.
fn panels<'a, A: Real>(call: &Call<'a>, source: &Source<'_>, is_turned: bool) -> Result<Panels<'a, A>> {
    let dims = source.layout.shape().dims();
    let mut values = scratch::<A>(call, dims[0] * dims[1])?;
    let values = borrow(source.view(), &Strided::new(source.layout), 0, &mut values);
    match is_turned {
        true => Panels::new(call, values, [dims[1], dims[0]], [1, dims[1]]),
        false => Panels::new(call, values, [dims[0], dims[1]], [dims[1], 1]),
    }
}

/// All steps, forward.
pub fn forward(call: &Call<'_>, recurrent: &RecurrentForward) -> Result<()> {
    match call.outputs[0].dtype {
        DType::F64 => forward_as::<f64>(call, recurrent),
        _ => forward_as::<f32>(call, recurrent),
    }
}

fn forward_as<A: Real>(call: &Call<'_>, kernel: &RecurrentForward) -> Result<()> {
    let of = kernel.0;
    let steps = Steps::<A>::new(call.op, of, of.cell.row())?;
    let sources: SmallVec<[Source<'_>; 5]> = call.inputs.iter().map(Source::new).collect::<Result<_>>()?;
    let RecurrentInputs { a, w, bias, h, c } = RecurrentInputs::of(call.kernel.masks()[0], &mut sources.iter());
    let [arguments, bias, h, c] = [Some(a), bias, h, c].map(Operand::new);
    let w = panels::<A>(call, w, true)?;
    let mut targets: SmallVec<[Target<'_>; 3]> = call.outputs.iter().map(Target::new).collect::<Result<_>>()?;
    let width = steps.width();
    let mut tasks = steps.tasks(&mut targets, &[width, steps.columns, width])?;
    let (is_lstm, is_gru) = (of.cell == Cell::Lstm, of.cell == Cell::Gru);
    let dtype = call.outputs[0].dtype;
    tasks.par_iter_mut().try_for_each(|task| {
        let (first, rows, columns) = (task.first, task.rows, steps.columns);
        let mut u = scratch::<A>(call, rows * w.columns)?;
        let mut inputs = scratch::<A>(call, columns)?;
        let [mut hidden, mut next, mut cell, mut next_cell] = [
            scratch::<A>(call, rows * width)?,
            scratch(call, rows * width)?,
            scratch(call, rows * width)?,
            scratch(call, rows * width)?,
        ];
        h.read(first * width, &mut hidden);
        c.read(first * width, &mut cell);
        let [states, products, cells @ ..] = &mut task.outputs[..] else {
            unreachable!("there are two outputs or more")
        };
        round(&mut hidden, dtype, states[steps.places(0).1]);
        if let [cells] = cells {
            store(&cell, A::DTYPE, cells[0]);
        }
        for s in 0..steps.of.extents[0] {
            let (t, _, after) = steps.places(s);
            let at = (t * steps.of.extents[1] + first) * columns;
            for (i, u) in u.chunks_mut(w.columns).enumerate() {
                match is_gru {
                    true => bias.read(0, &mut u[..columns]),
                    false => arguments.read(at + i * columns, &mut u[..columns]),
                }
            }
            w.add_product(&mut u, &hidden, width);
            let row_bytes = columns * dtype.size();
            for (i, bytes) in products[t].chunks_mut(row_bytes).enumerate() {
                let u = &mut u[i * w.columns..][..columns];
                round(u, dtype, bytes);
                let own = i * width..(i + 1) * width;
                let gates = u.chunks(width);
                let next = &mut next[own.clone()];
                if is_gru {
                    arguments.read(at + i * columns, &mut inputs);
                    let x: SmallVec<[&[A]; 8]> = inputs.chunks(width).chain(gates).chain(once(&hidden[own])).collect();
                    (steps.eval)(&x, &[], &mut [next, &mut next_cell[i * width..(i + 1) * width]]);
                } else if is_lstm {
                    let x: SmallVec<[&[A]; 8]> = gates.chain(once(&cell[own.clone()])).collect();
                    (steps.eval)(&x, &[], &mut [next, &mut next_cell[own]]);
                } else {
                    (steps.eval)(&[u], &[], &mut [next]);
                }
            }
            round(&mut next, dtype, states[after]);
            std::mem::swap(&mut hidden, &mut next);
            if let [cells] = cells {
                store(&next_cell, A::DTYPE, cells[s + 1]);
                std::mem::swap(&mut cell, &mut next_cell);
            }
        }
        Ok(())
    })
}

/// All steps, backward through time.
pub fn backward(call: &Call<'_>, recurrent: &RecurrentBackward) -> Result<()> {
    match call.outputs[0].dtype {
        DType::F64 => backward_as::<f64>(call, recurrent),
        _ => backward_as::<f32>(call, recurrent),
    }
}

fn backward_as<A: Real>(call: &Call<'_>, kernel: &RecurrentBackward) -> Result<()> {
    let of = kernel.0;
    let (is_lstm, is_gru) = (of.cell == Cell::Lstm, of.cell == Cell::Gru);
    let steps = Steps::<A>::new(call.op, of, of.cell.backward_row())?;
    let sources: SmallVec<[Source<'_>; 8]> = call.inputs.iter().map(Source::new).collect::<Result<_>>()?;
    let inputs = RecurrentBackwardInputs::of(call.kernel.masks()[0], &mut sources.iter());
    let RecurrentBackwardInputs { a, u, states, cells, w, dy, dh, dc } = inputs;
    let (w, has_dy) = (panels::<A>(call, w, false)?, dy.is_some());
    let is_state_wanted = kernel.outputs(call).h.is_some();
    let [a, u, states, cells, dy, dh, dc] = [Some(a), u, Some(states), cells, dy, dh, dc].map(Operand::new);
    let mut targets: SmallVec<[Target<'_>; 4]> = call.outputs.iter().map(Target::new).collect::<Result<_>>()?;
    let (width, columns, all_rows) = (steps.width(), steps.columns, of.extents[1]);
    let elements: SmallVec<[usize; 4]> = once(columns).chain(is_gru.then_some(columns)).chain([width, width]).collect();
    let mut tasks = steps.tasks(&mut targets, &elements)?;
    let dtype = call.outputs[0].dtype;
    tasks.par_iter_mut().try_for_each(|task| {
        let (first, rows) = (task.first, task.rows);
        let of_width = || scratch::<A>(call, rows * width);
        let [mut arriving, mut carried, mut next] = [of_width()?, of_width()?, of_width()?];
        let (mut sums, mut gates) = (scratch::<A>(call, rows * w.columns)?, scratch::<A>(call, rows * columns)?);
        let (mut of_arguments, mut of_row) = (scratch::<A>(call, columns)?, scratch::<A>(call, columns)?);
        let [mut of_products, mut before, mut after, mut zeros] =
            [scratch::<A>(call, columns)?, scratch(call, width)?, scratch(call, width)?, scratch(call, width)?];
        zeros.fill(A::from_i64(0));
        dh.read(first * width, &mut arriving);
        dc.read(first * width, &mut carried);
        let (of_steps, of_states) = task.outputs.split_at_mut(1 + usize::from(is_gru));
        for s in (0..of.extents[0]).rev() {
            let (t, slot_before, slot_after) = steps.places(s);
            for i in 0..rows {
                let own = i * width..(i + 1) * width;
                let (row, at) = (first + i, |slot: usize| (slot * all_rows + first + i) * width);
                let arriving = &mut arriving[own.clone()];
                if has_dy {
                    dy.read(at(t), &mut before);
                    arriving.iter_mut().zip(before.iter()).for_each(|(v, &d)| *v = A::back(v.number() + d.number()));
                }
                let in_gates = (t * all_rows + row) * columns;
                let gates = &mut gates[i * columns..][..columns];
                let next = &mut next[own.clone()];
                if is_lstm {
                    a.read(in_gates, &mut of_arguments);
                    cells.read(at(s), &mut before);
                    cells.read(at(s + 1), &mut after);
                    let x = [&*arriving, &carried[own]].into_iter().chain(of_arguments.chunks(width));
                    let x: SmallVec<[&[A]; 8]> = x.chain([&before[..], &after[..]]).collect();
                    let mut y: SmallVec<[&mut [A]; 8]> = gates.chunks_mut(width).chain(once(next)).collect();
                    (steps.eval)(&x, &[], &mut y);
                } else if is_gru {
                    a.read(in_gates, &mut of_arguments);
                    u.read(in_gates, &mut of_products);
                    states.read(at(slot_before), &mut before);
                    let x = once(&*arriving).chain(of_arguments.chunks(width)).chain(of_products.chunks(width));
                    let x: SmallVec<[&[A]; 8]> = x.chain([&before[..], &zeros[..]]).collect();
                    let y = of_row.chunks_mut(width).chain(gates.chunks_mut(width)).chain(once(next));
                    (steps.eval)(&x, &[], &mut y.collect::<SmallVec<[&mut [A]; 8]>>());
                    let size = columns * dtype.size();
                    store(&of_row, dtype, &mut of_steps[0][t][i * size..][..size]);
                } else {
                    states.read(at(slot_after), &mut after);
                    (steps.eval)(&[arriving, &after], &[], &mut [gates]);
                }
            }
            round(&mut gates, dtype, of_steps.last_mut().expect("the arguments have gradients")[t]);
            if is_lstm {
                std::mem::swap(&mut carried, &mut next);
            }
            if s == 0 && !is_state_wanted {
                break;
            }
            sums.fill(A::from_i64(0));
            if is_gru {
                sums.chunks_mut(w.columns)
                    .zip(next.chunks(width))
                    .for_each(|(sums, v)| sums[..width].copy_from_slice(v));
            }
            w.add_product(&mut sums, &gates, columns);
            arriving
                .chunks_mut(width)
                .zip(sums.chunks(w.columns))
                .for_each(|(v, sums)| v.copy_from_slice(&sums[..width]));
        }
        let (cell, state) = of_states.split_at_mut(usize::from(is_lstm));
        if let [cell] = cell {
            store(&carried, A::DTYPE, cell[0]);
        }
        if let [state] = state {
            store(&arriving, dtype, state[0]);
        }
        Ok(())
    })
}
