//! Matrix products, by the crates gemm-f32 and gemm-f64.

// The crates take pointers and strides.
#![allow(unsafe_code)]

use crate::access::{Acc, Source, Strided, Target, load_all, store_all, with_bits};
use crate::elementwise::copy::copy_bits;
use crate::memory::{Scratch, scratch};
use gemm_common::Parallelism;
use isograd_core::{Call, DType, Layout, Result, Shape};
use rayon::prelude::*;
use std::ops::Deref;

/// A product with fewer multiplications runs on one thread.
const PARALLEL: usize = 64 * 64 * 64;

pub fn run(call: &Call<'_>) -> Result<()> {
    match call.outputs[0].dtype {
        DType::F64 => product::<f64>(call),
        _ => product::<f32>(call),
    }
}

fn product<A: Acc>(call: &Call<'_>) -> Result<()> {
    let mut target = Target::new(&call.outputs[0])?;
    let (dtype, bytes) = (target.dtype, target.elements());
    if bytes.is_empty() {
        return Ok(());
    }
    if dtype == A::DTYPE {
        return compute(call, bytemuck::cast_slice_mut::<u8, A>(bytes));
    }
    let mut wide = scratch::<A>(call, bytes.len() / dtype.size())?;
    compute(call, &mut wide)?;
    store_all(&wide, dtype, bytes);
    Ok(())
}

/// `y = alpha a @ b + beta c`. Operands whose factor is 0 are not read.
fn compute<A: Acc>(call: &Call<'_>, y: &mut [A]) -> Result<()> {
    let (shape, k) = (call.outputs[0].layout.shape(), call.inputs[0].layout.shape()[2]);
    let (alpha, beta) = (call.floats[0], call.floats[1]);
    let added = call.inputs.get(2).filter(|_| beta != 0.0);
    if let Some(c) = added {
        let c = Source::new(c)?;
        load_all(c.view(), &Strided::new(c.layout), y);
    }
    if alpha != 0.0 && k > 0 {
        let (a, b) = (Source::new(&call.inputs[0])?, Source::new(&call.inputs[1])?);
        let (a, b) = (Matrices::<A>::new(call, &a)?, Matrices::<A>::new(call, &b)?);
        let b = b.with_rows(call, [shape[0], k, shape[2]], shape[1])?;
        multiply(y, [shape[0], shape[1], shape[2], k], &a, &b, alpha, added.map(|_| beta));
        return Ok(());
    }
    let scale = A::from_f64(beta).number();
    match added {
        Some(_) => y.iter_mut().for_each(|v| *v = A::back(scale * v.number())),
        None => y.fill(A::from_i64(0)),
    }
    Ok(())
}

/// A batch of matrices in the arithmetic's type, of any strides.
struct Matrices<'a, A: Acc> {
    values: Values<'a, A>,
    offset: usize,
    /// Strides of batch, row and column.
    strides: [usize; 3],
}

enum Values<'a, A> {
    /// The elements of the operand's memory.
    Borrowed(&'a [A]),
    Copied(Scratch<'a, A>),
}

impl<A: Acc> Deref for Values<'_, A> {
    type Target = [A];

    fn deref(&self) -> &[A] {
        match self {
            Values::Borrowed(values) => values,
            Values::Copied(values) => values,
        }
    }
}

impl<'a, A: Acc> Matrices<'a, A> {
    fn new(call: &Call<'a>, source: &'a Source<'_>) -> Result<Self> {
        let (layout, strides) = (source.layout, source.layout.strides());
        if source.dtype == A::DTYPE {
            let values = Values::Borrowed(bytemuck::cast_slice(&source.bytes));
            return Ok(Matrices { values, offset: layout.offset(), strides: [strides[0], strides[1], strides[2]] });
        }
        // Converted in the order of memory; repeated elements are converted once.
        let is_turned = strides[1] < strides[2];
        let layout = if is_turned { layout.transpose(1, 2) } else { layout.clone() };
        let once = if strides[0] == 0 { layout.narrow(0, 0, 1, 1) } else { layout };
        let mut values = scratch(call, once.shape().numel())?;
        load_all(source.view(), &Strided::new(&once), &mut values);
        let (rows, columns) = (once.shape()[1], once.shape()[2]);
        let batch = if strides[0] == 0 { 0 } else { rows * columns };
        let strides = if is_turned { [batch, 1, columns] } else { [batch, columns, 1] };
        Ok(Matrices { values: Values::Copied(values), offset: 0, strides })
    }

    /// The right factors of products with `m` rows, with contiguous rows. The crates are slow where their columns are contiguous: they turn
    /// them once more for each part of the result.
    fn with_rows(self, call: &Call<'a>, [batches, k, n]: [usize; 3], m: usize) -> Result<Self> {
        let [batch, row, column] = self.strides;
        if m == 1 || row != 1 || column == 1 {
            return Ok(self);
        }
        let count = if batch == 0 { 1 } else { batches };
        let shape = Shape::from([count, k, n]);
        let from = Layout::contiguous(Shape::from([1])).shift(self.offset);
        let from = from.split(0, [(count, batch), (1, 1)]).split(1, [(k, row), (n, column)]);
        let mut values = scratch::<A>(call, shape.numel())?;
        let (bytes, to) = (bytemuck::cast_slice(&self.values), bytemuck::cast_slice_mut(&mut values));
        with_bits!(A::DTYPE, copy_bits(bytes, &from, to, &Layout::contiguous(shape)));
        let strides = [if batch == 0 { 0 } else { k * n }, n, 1];
        Ok(Matrices { values: Values::Copied(values), offset: 0, strides })
    }
}

/// `y = alpha a @ b + beta y`, or without the last term; no extent is 0.
fn multiply<A: Acc>(
    y: &mut [A],
    [batches, m, n, k]: [usize; 4],
    a: &Matrices<'_, A>,
    b: &Matrices<'_, A>,
    alpha: f64,
    beta: Option<f64>,
) {
    // Threads share the batches, or each product if there is one batch.
    let large = batches * m * n * k >= PARALLEL;
    let share_batches = large && batches > 1 && (batches >= 16 || m * n * k < PARALLEL);
    let parallelism = if large && !share_batches { Parallelism::Rayon(0) } else { Parallelism::None };
    let one = |(batch, y): (usize, &mut [A])| {
        let factor = |of: &Matrices<'_, A>| (of.offset + batch * of.strides[0], [of.strides[1], of.strides[2]]);
        let ((at_a, of_a), (at_b, of_b)) = (factor(a), factor(b));
        let (a, b) =
            (Factor { values: &a.values[at_a..], strides: of_a }, Factor { values: &b.values[at_b..], strides: of_b });
        product_of(y, [m, n, k], a, b, alpha, beta.unwrap_or(0.0), parallelism);
    };
    match share_batches {
        true => y.par_chunks_mut(m * n).enumerate().for_each(one),
        false => y.chunks_mut(m * n).enumerate().for_each(one),
    }
}

/// A matrix from the first of these values on, with the strides of rows and columns.
#[derive(Clone, Copy)]
pub struct Factor<'a, A> {
    pub values: &'a [A],
    pub strides: [usize; 2],
}

impl<A> Factor<'_, A> {
    fn transpose(self) -> Self {
        let [row, column] = self.strides;
        Factor { strides: [column, row], ..self }
    }

    /// True if all elements of a matrix of these extents, which are not 0, are among the values.
    fn has(&self, extents: [usize; 2]) -> bool {
        extents.iter().zip(self.strides).map(|(d, s)| (d - 1) * s).sum::<usize>() < self.values.len()
    }
}

/// `y = a @ b`, or `y += a @ b`, on this thread. `y [m, n]` is contiguous, and no extent is 0.
pub fn multiply_alone<A: Acc>(y: &mut [A], extents: [usize; 3], a: Factor<'_, A>, b: Factor<'_, A>, adds: bool) {
    product_of(y, extents, a, b, 1.0, f64::from(u8::from(adds)), Parallelism::None);
}

/// `y = alpha a @ b + beta y`; y is not read if beta is 0. `y [m, n]` is contiguous, and no extent is 0.
fn product_of<A: Acc>(
    y: &mut [A],
    [m, n, k]: [usize; 3],
    a: Factor<'_, A>,
    b: Factor<'_, A>,
    alpha: f64,
    beta: f64,
    parallelism: Parallelism,
) {
    assert!(y.len() == m * n && a.has([m, k]) && b.has([k, n]));
    // The crates prefer results whose columns are contiguous: y as rows is its transpose `b^T @ a^T`. A column is both.
    let (rows, columns, left, right) = match n {
        1 => (m, n, a, b),
        _ => (n, m, b.transpose(), a.transpose()),
    };
    let [(left_rows, left_columns), (right_rows, right_columns)] =
        [left, right].map(|factor| (factor.strides[0] as isize, factor.strides[1] as isize));
    macro_rules! call {
        ($t:ty, $gemm:path) => {
            // SAFETY: the assertion keeps every element that strides and extents can reach inside of the slices; y is this call's alone. Its
            // columns, and those of its transpose, are contiguous, `n` elements from each other. A is the type of these pointers.
            unsafe {
                $gemm()(
                    rows,
                    columns,
                    k,
                    y.as_mut_ptr().cast::<$t>(),
                    n as isize,
                    1,
                    beta != 0.0,
                    left.values.as_ptr().cast::<$t>(),
                    left_columns,
                    left_rows,
                    right.values.as_ptr().cast::<$t>(),
                    right_columns,
                    right_rows,
                    beta as $t,
                    alpha as $t,
                    false,
                    false,
                    false,
                    parallelism,
                )
            }
        };
    }
    match A::DTYPE {
        DType::F64 => call!(f64, gemm_f64::gemm::f64::get_gemm_fn),
        DType::F32 => call!(f32, gemm_f32::gemm::f32::get_gemm_fn),
        other => unreachable!("products are computed in f32 and f64, not {other}"),
    }
}
