//! Matrix products, by the gemm crate.

// The crate takes pointers and strides.
#![allow(unsafe_code)]

use crate::access::{Acc, Source, Strided, Target, load, store};
use crate::memory::{Scratch, scratch};
use gemm::Parallelism;
use isograd_core::{Call, DType, Result};
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
    store(&wide, dtype, bytes);
    Ok(())
}

/// `y = alpha a @ b + beta c`. Operands whose factor is 0 are not read.
fn compute<A: Acc>(call: &Call<'_>, y: &mut [A]) -> Result<()> {
    let (shape, k) = (call.outputs[0].layout.shape(), call.inputs[0].layout.shape()[2]);
    let (alpha, beta) = (call.floats[0], call.floats[1]);
    let added = call.inputs.get(2).filter(|_| beta != 0.0);
    if let Some(c) = added {
        let c = Source::new(c)?;
        load(c.view(), &Strided::new(c.layout), 0, y);
    }
    if alpha != 0.0 && k > 0 {
        let (a, b) = (Source::new(&call.inputs[0])?, Source::new(&call.inputs[1])?);
        let (a, b) = (Matrices::<A>::new(call, &a)?, Matrices::<A>::new(call, &b)?);
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
    Converted(Scratch<'a, A>),
}

impl<A: Acc> Deref for Values<'_, A> {
    type Target = [A];

    fn deref(&self) -> &[A] {
        match self {
            Values::Borrowed(values) => values,
            Values::Converted(values) => values,
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
        load(source.view(), &Strided::new(&once), 0, &mut values);
        let (rows, columns) = (once.shape()[1], once.shape()[2]);
        let batch = if strides[0] == 0 { 0 } else { rows * columns };
        let strides = if is_turned { [batch, 1, columns] } else { [batch, columns, 1] };
        Ok(Matrices { values: Values::Converted(values), offset: 0, strides })
    }

    /// The position one past the last element of any matrix, given the extents.
    fn end(&self, extents: [usize; 3]) -> usize {
        self.offset + 1 + extents.iter().zip(self.strides).map(|(d, s)| (d - 1) * s).sum::<usize>()
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
    assert!(a.end([batches, m, k]) <= a.values.len() && b.end([batches, k, n]) <= b.values.len());
    assert_eq!(y.len(), batches * m * n);
    // Threads share the batches, or each product if there is one batch.
    let large = batches * m * n * k >= PARALLEL;
    let share_batches = large && batches > 1 && (batches >= 16 || m * n * k < PARALLEL);
    let parallelism = if large && !share_batches { Parallelism::Rayon(0) } else { Parallelism::None };
    let one = |(batch, y): (usize, &mut [A])| {
        // SAFETY: the assertions above keep every element that strides and extents can reach inside of the slices; y is this matrix
        // alone, row-major. A is f32 or f64, for which the crate has kernels.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                y.as_mut_ptr(),
                1,
                n as isize,
                beta.is_some(),
                a.values.as_ptr().add(a.offset + batch * a.strides[0]),
                a.strides[2] as isize,
                a.strides[1] as isize,
                b.values.as_ptr().add(b.offset + batch * b.strides[0]),
                b.strides[2] as isize,
                b.strides[1] as isize,
                A::from_f64(beta.unwrap_or(0.0)),
                A::from_f64(alpha),
                false,
                false,
                false,
                parallelism,
            );
        }
    };
    match share_batches {
        true => y.par_chunks_mut(m * n).enumerate().for_each(one),
        false => y.chunks_mut(m * n).enumerate().for_each(one),
    }
}
