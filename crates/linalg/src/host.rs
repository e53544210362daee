//! Batches of matrices on the host.

use faer::MatRef;
use isograd_core::check::{check_same, describe};
use isograd_core::{DType, Error, Result, Tensor, host};

/// Checks that operands are f32 or f64, all of one dtype and on one device. Errors: `Dtype`, `Device`.
pub(crate) fn check(op: &'static str, operands: &[&Tensor]) -> Result<()> {
    check_same(op, operands)?;
    match operands[0].dtype() {
        DType::F32 | DType::F64 => Ok(()),
        _ => Err(Error::dtype(op, format!("{} was given, expected f32 or f64", describe(operands)))),
    }
}

/// The extents of the matrices of `x`. Errors: `Shape` below rank 2.
pub(crate) fn extents(op: &'static str, x: &Tensor) -> Result<[usize; 2]> {
    match *x.dims() {
        [.., m, n] => Ok([m, n]),
        _ => Err(Error::shape(op, format!("{} was given, expected matrices", x.shape()))),
    }
}

/// The extent of the square matrices of `x`. Errors: `Shape` for other matrices.
pub(crate) fn side(op: &'static str, x: &Tensor) -> Result<usize> {
    match *x.dims() {
        [.., m, n] if m == n => Ok(n),
        _ => Err(Error::shape(op, format!("{} was given, expected square matrices", x.shape()))),
    }
}

/// Applies `f` to the matrices, in row-major order, at each place of a batch. It appends the elements of its results, whose extents are
/// `outputs`, or says what is wrong with the matrix. The batches of `inputs` are equal. Errors: `Value`, with what `f` says.
pub(crate) fn each<const I: usize, const O: usize>(
    op: &'static str,
    inputs: [&Tensor; I],
    outputs: [&[usize]; O],
    f: impl Fn([&[f64]; I], [&mut Vec<f64>; O]) -> Result<(), String>,
) -> Result<[Tensor; O]> {
    let x = inputs[0];
    let batch = &x.dims()[..x.rank() - 2];
    let count: usize = batch.iter().product();
    let values = inputs.iter().map(|t| read(op, t)).collect::<Result<Vec<_>>>()?;
    let sizes = inputs.map(|t| t.dims()[t.rank() - 2..].iter().product::<usize>());
    let lengths = outputs.map(|extents| extents.iter().product::<usize>());
    let mut results = [const { Vec::new() }; O];
    for (result, length) in results.iter_mut().zip(lengths) {
        *result = host::with_room(op, count * length)?;
    }
    if lengths.iter().any(|&length| length > 0) {
        for i in 0..count {
            let matrices = std::array::from_fn(|k| &values[k][i * sizes[k]..(i + 1) * sizes[k]]);
            f(matrices, results.each_mut()).map_err(|wrong| Error::value(op, format!("{} {wrong}", place(x, i))))?;
        }
    }
    let mut tensors = Vec::with_capacity(O);
    for (result, extents) in results.into_iter().zip(outputs) {
        tensors.push(write(op, result, [batch, extents].concat(), x)?);
    }
    Ok(tensors.try_into().unwrap_or_else(|_| unreachable!("one tensor for each result")))
}

fn read(op: &'static str, x: &Tensor) -> Result<Vec<f64>> {
    let found = match x.dtype() {
        DType::F64 => x.to_vec::<f64>(),
        _ => x.to_vec::<f32>().and_then(|values| host::collect(op, values.into_iter().map(f64::from))),
    };
    found.map_err(|e| e.of(op))
}

/// A tensor with the dtype and device of `like`.
fn write(op: &'static str, values: Vec<f64>, shape: Vec<usize>, like: &Tensor) -> Result<Tensor> {
    let made = match like.dtype() {
        DType::F64 => Tensor::from_vec(values, shape, like.device()),
        _ => {
            let values = host::collect(op, values.into_iter().map(|v| v as f32))?;
            Tensor::from_vec(values, shape, like.device())
        }
    };
    made.map_err(|e| e.of(op))
}

/// The name of matrix `i` of the batch, for errors.
fn place(x: &Tensor, i: usize) -> String {
    let batch = &x.dims()[..x.rank() - 2];
    if batch.is_empty() {
        return format!("the matrix {}", x.shape());
    }
    let (mut index, mut rest) = (vec![0; batch.len()], i);
    for (at, extent) in index.iter_mut().zip(batch).rev() {
        (*at, rest) = (rest % extent, rest / extent);
    }
    format!("matrix {index:?} of {}", x.shape())
}

/// Row-major elements as a matrix.
pub(crate) fn matrix(elements: &[f64], rows: usize, columns: usize) -> MatRef<'_, f64> {
    MatRef::from_row_major_slice(elements, rows, columns)
}

/// Appends the elements of a matrix in row-major order, 0 where `is_kept` is false.
pub(crate) fn append(to: &mut Vec<f64>, x: MatRef<'_, f64>, is_kept: impl Fn(usize, usize) -> bool) {
    for i in 0..x.nrows() {
        to.extend((0..x.ncols()).map(|j| if is_kept(i, j) { x[(i, j)] } else { 0.0 }));
    }
}

/// All elements, for [`append`].
pub(crate) fn all(_: usize, _: usize) -> bool {
    true
}

pub(crate) fn is_finite(elements: &[f64]) -> bool {
    elements.iter().all(|v| v.is_finite())
}

/// Says that elements are NaN or infinite, where a decomposition would not end.
pub(crate) fn check_finite(elements: &[f64]) -> Result<(), String> {
    if is_finite(elements) { Ok(()) } else { Err("has an element that is not finite".into()) }
}

/// Appends NaN, the results for a matrix with NaN or infinity.
pub(crate) fn append_nan(to: &mut Vec<f64>, count: usize) {
    to.extend(std::iter::repeat_n(f64::NAN, count));
}
