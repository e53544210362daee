//! Matrix products.

use crate::backend::Kernel;
use crate::check::{check_same, describe};
use crate::fused::{Fused, Sum, has_kernel, run_fused};
use crate::operands;
use crate::operands::Output;
use crate::ops::matrix::gemm_bias::{self, DenseInputs, GemmBias, GemmInputs};
use crate::ops::{gradients, row_like};
use crate::pointwise::Pointwise;
use crate::tape::{Backward, Gradient, Saved, record, report_as};
use crate::tensor::{Attributes, run};
use crate::{Dims, Error, Result, Shape, Tensor, autocast, no_autocast};

/// The factors of [`Tensor::gemm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// Factor of the product.
    pub alpha: f64,
    /// Factor of the added matrix.
    pub beta: f64,
}

impl Default for Gemm {
    fn default() -> Self {
        Gemm { alpha: 1.0, beta: 1.0 }
    }
}

/// [`Kernel::Matmul`], and a row of its result and of a further input. The row has two inputs and no attributes. The result is rounded
/// once; it may also be rounded before the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulPointwise(pub Pointwise);

operands! {
    /// The inputs of [`MatmulPointwise`], of any strides.
    pub struct MatmulPointwiseInputs {
        /// `[B, M, K]`.
        a,
        /// `[B, K, N]`.
        b,
        /// The second input of the row, `[B, M, N]`.
        beside,
    }
}

impl MatmulPointwise {
    fn output(&self, a: &Tensor, b: &Tensor, beside: &Tensor) -> Result<Tensor> {
        let product = a.matmul(b)?;
        let like = product.zeros_like()?;
        Ok(row_like(self.0, &[product, beside.clone()], &[like], &[])?.swap_remove(0))
    }
}

impl Fused for MatmulPointwise {
    type Inputs<T> = MatmulPointwiseInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "matmul_pointwise"
    }

    fn row(&self) -> Option<Pointwise> {
        Some(self.0)
    }

    fn composite(
        &self,
        MatmulPointwiseInputs { a, b, beside }: MatmulPointwiseInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        Ok(Output { y: Some(self.output(a, b, beside)?) })
    }

    // The row is linear in the product.
    fn companions(
        &self,
        MatmulPointwiseInputs { a, b, beside }: MatmulPointwiseInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Option<Output<Tensor>>> {
        Ok(Some(Output { y: self.output(&a.abs()?, &b.abs()?, beside)?.abs()? }))
    }

    fn sum(&self) -> Sum {
        Sum::Product
    }

    fn roundings(&self, _inputs: MatmulPointwiseInputs<()>) -> usize {
        2
    }
}

/// `alpha a @ b + beta c` for batches of matrices, outside of the tape: `a: [B, M, K]`, `b: [B, K, N]`, `c: [B, M, N]`.
fn product(op: &'static str, a: &Tensor, b: &Tensor, c: Option<&Tensor>, scale: Gemm) -> Result<Tensor> {
    let y = Tensor::allocate(op, &Shape::from([a.dims()[0], a.dims()[1], b.dims()[2]]), a.dtype(), a.device())?;
    if y.numel() > 0 {
        let floats = [scale.alpha, scale.beta];
        let attributes = Attributes::floats(&floats);
        match c {
            Some(c) => run(op, Kernel::Matmul, &[a, b, c], &[&y], attributes)?,
            None => run(op, Kernel::Matmul, &[a, b], &[&y], attributes)?,
        }
    }
    Ok(y)
}

/// `[M, N]` as `[1, M, N]`, outside of the tape.
pub(crate) fn batched(t: &Tensor) -> Tensor {
    let mut dims = Dims::from_slice(t.dims());
    dims.insert(0, 1);
    t.with_layout(t.layout().expand(&Shape::from(dims)))
}

/// Matrices as a batch of rank 3, outside of the tape.
fn as_batch(t: &Tensor) -> Result<Tensor> {
    match *t.dims() {
        [_, _] => Ok(batched(t)),
        [ref leading @ .., m, n] => t.detach().reshape((leading.iter().product(), m, n)),
        _ => Ok(t.detach()),
    }
}

/// The gradient of input `i` of a rule: `left @ right`, whose leading dimensions are equal, in this shape. If possible, the same
/// kernel applies the prologue of the input's own rule.
pub(crate) fn gradient(t: &Backward<'_>, i: usize, left: &Tensor, right: &Tensor, shape: &Shape) -> Result<Gradient> {
    let op = "matmul";
    if let Some((row, beside)) = t.prologue_of(i)?
        && has_kernel::<MatmulPointwise>(left)
        && right.numel() > 0
    {
        let (left, right) = (as_batch(left)?, as_batch(right)?);
        let extents = Shape::from([left.dims()[0], left.dims()[1], right.dims()[2]]);
        let y = Tensor::allocate(op, &extents, left.dtype(), left.device())?;
        let beside = beside.detach().reshape(extents)?;
        let inputs = MatmulPointwiseInputs { a: &left, b: &right, beside: &beside };
        run_fused(op, &MatmulPointwise(row), inputs, Output { y: &y })?;
        return Ok(Gradient::past_prologue(y.reshape(shape.clone())?));
    }
    Ok(left.matmul(right)?.reshape(shape.clone())?.into())
}

/// # Products of matrices
impl Tensor {
    /// The matrix product. A tensor of rank 1 is a row on the left and a column on the right. Leading dimensions are batches, which
    /// broadcast. Float dtypes. Errors: `Shape` where inner extents differ or an operand has rank 0.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
    /// assert_eq!(x.matmul(&x)?.to_vec::<f32>()?, [7.0, 14.0, 21.0, 42.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn matmul(&self, b: &Tensor) -> Result<Tensor> {
        let op = "matmul";
        if let Some(([a, b], _)) = autocast::low([self, b], None)? {
            return no_autocast(|| a.matmul(&b));
        }
        check_same(op, &[self, b])?;
        if !self.dtype().is_float() {
            return Err(Error::unsupported(op, format!("{} was given, expected floats", describe(&[self, b]))));
        }
        if self.rank() == 0 || b.rank() == 0 {
            return Err(Error::shape(op, format!("{} and {} must have rank 1 or more", self.shape(), b.shape())));
        }
        let left = if self.rank() == 1 { self.unsqueeze(0)? } else { self.clone() };
        let right = if b.rank() == 1 { b.unsqueeze(1)? } else { b.clone() };
        if left.dims()[left.rank() - 1] != right.dims()[right.rank() - 2] {
            return Err(Error::shape(op, format!("the inner sizes of {} and {} differ", self.shape(), b.shape())));
        }
        let mut y = matrices(op, &left, &right)?;
        if self.rank() == 1 {
            y = y.squeeze(-2)?;
        }
        if b.rank() == 1 { y.squeeze(-1) } else { Ok(y) }
    }

    /// `beta c + alpha a @ b` for this matrix `a: [M, K]`, `b: [K, N]` and `c`, which broadcasts to `[M, N]`; or for batches of
    /// such matrices, all three with a first dimension. With `beta` 0, `c` is not read. With `alpha` 0, `a` and `b` are not read.
    /// Float dtypes. Errors: `Shape`.
    pub fn gemm(&self, b: &Tensor, c: Option<&Tensor>, scale: &Gemm) -> Result<Tensor> {
        let op = "gemm";
        if let Some(([a, b], c)) = autocast::low([self, b], c)? {
            return no_autocast(|| a.gemm(&b, c.as_ref(), scale));
        }
        let operands = [Some(self), Some(b), c];
        let operands: Vec<&Tensor> = operands.into_iter().flatten().collect();
        check_same(op, &operands)?;
        if !self.dtype().is_float() {
            return Err(Error::unsupported(op, format!("{} was given, expected floats", describe(&operands))));
        }
        let shape = match (self.dims(), b.dims()) {
            ([m, k], [other, n]) if k == other => Shape::from([*m, *n]),
            ([batch, m, k], [batches, other, n]) if k == other && batch == batches => Shape::from([*batch, *m, *n]),
            _ => {
                let message =
                    format!("{} and {} are not [M, K] and [K, N], or batches of them", self.shape(), b.shape());
                return Err(Error::shape(op, message));
            }
        };
        if let Some(c) = c
            && c.shape().broadcast(&shape).ok().as_ref() != Some(&shape)
        {
            let message = format!("c {} does not broadcast to {shape}, which is", c.shape());
            return Err(Error::shape(op, format!("{message} a {} times b {}", self.shape(), b.shape())));
        }
        let expanded = c.map(|c| as_batch(&c.with_layout(c.layout().expand(&shape)))).transpose()?;
        let y = product(op, &as_batch(self)?, &as_batch(b)?, expanded.as_ref(), *scale)?;
        let y = if shape.rank() == 2 { y.with_layout(y.layout().select(0, 0)) } else { y };
        report_as(op, GemmInputs { a: self, b, c }, &[&y], || *scale);
        let (sa, sb) = (Saved::input(self), Saved::input(b));
        let (scale, c_shape) = (*scale, c.map(|c| c.shape().clone()));
        record(op, &operands, y, move |t| {
            let (a, b) = (t.get(&sa)?, t.get(&sb)?);
            let times = |a: &Tensor, b: &Tensor| a.gemm(b, None, &Gemm { alpha: scale.alpha, ..Gemm::default() });
            let da = t.want(0, || times(t.dy(), &b.t()?))?;
            let db = t.want(1, || times(&a.t()?, t.dy()))?;
            let dc = |c: &Shape| {
                let sum = t.dy().sum_to_size(c)?;
                if scale.beta == 1.0 { Ok(sum) } else { sum.mul_scalar(scale.beta) }
            };
            match &c_shape {
                Some(c) => gradients![da, db, t.want(2, || dc(c))?],
                None => gradients![da, db],
            }
        })
    }
}

/// The product of tensors of rank 2 or more.
fn matrices(op: &'static str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if b.rank() == 2 && a.rank() > 2 {
        // One large product replaces many small ones.
        return gemm_bias::product(op, DenseInputs { a, b, bias: None }, GemmBias::default());
    }
    let (m, k, n) = (a.dims()[a.rank() - 2], a.dims()[a.rank() - 1], b.dims()[b.rank() - 1]);
    let leading = |t: &Tensor| Shape::new(&t.dims()[..t.rank() - 2]);
    let wrong = |_| Error::shape(op, format!("the batches of {} and {} do not broadcast", a.shape(), b.shape()));
    let batch = leading(a).broadcast(&leading(b)).map_err(wrong)?;
    let with_batch = |r: usize, c: usize| {
        let mut dims = Dims::from_slice(&batch);
        dims.extend([r, c]);
        Shape::from(dims)
    };
    for (r, c) in [(m, k), (k, n), (m, n)] {
        with_batch(r, c)
            .check(op)
            .map_err(|e| Error::shape(op, format!("{} times {}: {}", a.shape(), b.shape(), e.message())))?;
    }
    let flat = |t: &Tensor, r: usize, c: usize| {
        let expanded = t.with_layout(t.layout().expand(&with_batch(r, c)));
        let (strides, rank) = (expanded.layout().strides(), expanded.rank());
        let needs_copy = expanded.layout().reshape(&Shape::from([batch.numel(), r, c])).is_none();
        if needs_copy && strides[rank - 2] < strides[rank - 1] {
            // Rows that are read as they lie in memory are copied faster than columns.
            return expanded.transpose(-2, -1)?.reshape((batch.numel(), c, r))?.transpose(-2, -1);
        }
        expanded.reshape((batch.numel(), r, c))
    };
    let y = product(op, &flat(a, m, k)?, &flat(b, k, n)?, None, Gemm::default())?;
    let y = y.with_layout(crate::Layout::contiguous(with_batch(m, n)));
    let (sa, sb) = (Saved::input(a), Saved::input(b));
    record(op, &[a, b], y, move |t| {
        let (a, b) = (t.get(&sa)?, t.get(&sb)?);
        let of = |i: usize, left: &Tensor, right: &Tensor, x: &Tensor| {
            if [left, right, x].iter().all(|t| leading(t) == batch) {
                return gradient(t, i, left, right, x.shape());
            }
            // The prologue cannot be applied before the sum.
            Ok(left.matmul(right)?.sum_to_size(x.shape())?.into())
        };
        gradients![t.want(0, || of(0, t.dy(), &b.t()?, &a))?, t.want(1, || of(1, &a.t()?, t.dy(), &b))?]
    })
}
