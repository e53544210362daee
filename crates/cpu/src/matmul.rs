//! Matrix products, by the gemm crate.

use crate::access::{Acc, Source, Target, load, store};
use gemm::Parallelism;
use isograd_core::{Call, DType, Result};
use rayon::prelude::*;
use std::borrow::Cow;

/// Products of fewer multiplications are not worth a second thread.
const PARALLEL: usize = 64 * 64 * 64;

pub fn run(call: &Call<'_>) -> Result<()> {
    match call.outputs[0].dtype {
        DType::F64 => product::<f64>(call),
        _ => product::<f32>(call),
    }
}

fn product<A: Acc>(call: &Call<'_>) -> Result<()> {
    let mut target = Target::new(&call.outputs[0])?;
    let shape = call.outputs[0].layout.shape();
    let (batches, m, n) = (shape[0], shape[1], shape[2]);
    let k = call.inputs[0].layout.shape()[2];
    let (alpha, beta) = (call.floats[0], call.floats[1]);
    let dtype = target.dtype;
    let mut rounded = Vec::new();
    let y: &mut [A] = if dtype == A::DTYPE {
        bytemuck::cast_slice_mut(target.elements())
    } else {
        rounded.resize(shape.numel(), A::from_i64(0));
        &mut rounded
    };
    let added = match call.inputs.get(2) {
        Some(c) if beta != 0.0 => {
            let c = Source::new(c)?;
            load(c.view(), c.layout, 0, y);
            true
        }
        _ => false,
    };
    if alpha == 0.0 || k == 0 {
        let factor = if added { beta } else { 0.0 };
        y.iter_mut().for_each(|v| *v = if added { A::from_f64(v.to_f64() * factor) } else { A::from_i64(0) });
    } else {
        let (a, b) = (Source::new(&call.inputs[0])?, Source::new(&call.inputs[1])?);
        let (a, b) = (Matrices::<A>::new(&a), Matrices::<A>::new(&b));
        multiply(y, [batches, m, n, k], &a, &b, alpha, added.then_some(beta));
    }
    if dtype != A::DTYPE {
        store(&rounded, dtype, target.elements());
    }
    Ok(())
}

/// A batch of matrices in the arithmetic's own type, wherever its elements lie.
struct Matrices<'a, A: Acc> {
    values: Cow<'a, [A]>,
    offset: usize,
    /// Of batch, row and column.
    strides: [usize; 3],
}

impl<'a, A: Acc> Matrices<'a, A> {
    fn new(source: &'a Source<'_>) -> Self {
        let (shape, layout) = (source.layout.shape(), source.layout);
        if source.dtype == A::DTYPE {
            let strides = [layout.strides()[0], layout.strides()[1], layout.strides()[2]];
            return Matrices {
                values: Cow::Borrowed(bytemuck::cast_slice(&source.bytes)),
                offset: layout.offset(),
                strides,
            };
        }
        let mut values = vec![A::from_i64(0); shape.numel()];
        load(source.view(), layout, 0, &mut values);
        Matrices { values: Cow::Owned(values), offset: 0, strides: [shape[1] * shape[2], shape[2], 1] }
    }

    /// The position one past the last element of any matrix, given the extents.
    fn end(&self, extents: [usize; 3]) -> usize {
        self.offset + 1 + extents.iter().zip(self.strides).map(|(d, s)| (d - 1) * s).sum::<usize>()
    }
}

/// `y = alpha a @ b + beta y`, or without the last term.
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
    let large = m * n * k >= PARALLEL;
    let one = |(batch, y): (usize, &mut [A])| {
        let parallelism = if large && batches == 1 { Parallelism::Rayon(0) } else { Parallelism::None };
        // SAFETY: the assertions above keep every element that strides and extents can reach inside of the slices; y is
        // this matrix alone, row-major.
        #[allow(unsafe_code)]
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
    if batches > 1 && batches * m * n * k >= PARALLEL {
        y.par_chunks_mut(m * n).enumerate().for_each(one);
    } else {
        y.chunks_mut(m * n).enumerate().for_each(one);
    }
}
