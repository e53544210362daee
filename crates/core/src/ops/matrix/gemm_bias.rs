//! A matrix product with a bias and an activation: the dense layer.

use crate::backend::Kernel;
use crate::check::{check_float, check_same};
use crate::fused::{Fused, Sum, has_kernel, has_kernel_for, run_fused};
use crate::operands;
use crate::operands::Operands;
use crate::ops::elementwise::unary::{Slope, unary};
use crate::ops::matrix::matmul::{batched, gradient};
use crate::ops::{Approximate, Gemm, gradients, in_acc, row_like};
use crate::pointwise::Pointwise;
use crate::tape::{Described, Record, is_recording, report_as};
use crate::tensor::{Attributes, run};
use crate::{Dims, Error, Result, Shape, Tensor, autocast, no_autocast};
use std::sync::Arc;

/// The activation that an op such as [`Tensor::gemm_bias`] applies to its result before it is rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Activation {
    /// The identity.
    #[default]
    Identity,
    /// [`Tensor::relu`].
    Relu,
    /// [`Tensor::gelu`].
    Gelu(Approximate),
    /// [`Tensor::sigmoid`].
    Sigmoid,
    /// [`Tensor::tanh`].
    Tanh,
    /// [`Tensor::silu`].
    Silu,
}

impl Activation {
    /// The activation of z, as an op of its own.
    pub fn of(self, z: &Tensor) -> Result<Tensor> {
        match self.rows() {
            Some((row, slope)) => unary(row.name(), z, row, slope, &[]),
            None => Ok(z.clone()),
        }
    }

    /// Its row of the pointwise table; `None` for the identity.
    pub fn row(self) -> Option<Pointwise> {
        self.rows().map(|(row, _)| row)
    }

    /// The row of its gradient. The first operand is the gradient of the result; the second is the result if the flag is set, else
    /// the argument. `None` for the identity.
    pub fn slope(self) -> Option<(Pointwise, bool)> {
        self.rows().map(|(_, slope)| match slope {
            Slope::Input(row) => (row, false),
            Slope::Output(row) => (row, true),
        })
    }

    /// Its row of the pointwise table, and the row of its gradient; `None` for the identity.
    pub(crate) fn rows(self) -> Option<(Pointwise, Slope)> {
        match self {
            Activation::Identity => None,
            Activation::Relu => Some((Pointwise::Relu, Slope::Output(Pointwise::ReluBackward))),
            Activation::Gelu(Approximate::None) => Some((Pointwise::Gelu, Slope::Input(Pointwise::GeluBackward))),
            Activation::Gelu(Approximate::Tanh) => {
                Some((Pointwise::GeluTanh, Slope::Input(Pointwise::GeluTanhBackward)))
            }
            Activation::Sigmoid => Some((Pointwise::Sigmoid, Slope::Output(Pointwise::SigmoidBackward))),
            Activation::Tanh => Some((Pointwise::Tanh, Slope::Output(Pointwise::TanhBackward))),
            Activation::Silu => Some((Pointwise::Silu, Slope::Input(Pointwise::SiluBackward))),
        }
    }
}

/// The orientation of a matrix in a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transpose {
    /// As stored.
    #[default]
    No,
    /// Transposed.
    Yes,
}

impl Transpose {
    /// The matrix in this orientation.
    fn of(self, t: &Tensor) -> Result<Tensor> {
        match self {
            Transpose::No => Ok(t.clone()),
            Transpose::Yes => t.t(),
        }
    }

    /// The extents of a matrix of this shape in this orientation.
    fn extents(self, shape: &Shape) -> [usize; 2] {
        match self {
            Transpose::No => [shape[0], shape[1]],
            Transpose::Yes => [shape[1], shape[0]],
        }
    }

    /// The factors of `left @ right`, the gradient of the oriented matrix, in the layout of the stored matrix.
    fn factors(self, left: &Tensor, right: &Tensor) -> Result<[Tensor; 2]> {
        match self {
            Transpose::No => Ok([left.clone(), right.clone()]),
            Transpose::Yes => Ok([right.t()?, left.t()?]),
        }
    }

    /// The product of [`factors`](Transpose::factors) and the sums of the columns of `right`, in one kernel outside of the tape.
    fn gradient_and_sums(self, op: &'static str, left: &Tensor, right: &Tensor) -> Result<[Tensor; 2]> {
        let [a, b] = self.factors(left, right)?;
        let summed = if self == Transpose::No { Summed::Columns } else { Summed::Rows };
        let like = |shape: &[usize]| Tensor::allocate(op, &Shape::new(shape), a.dtype(), a.device());
        let (y, sums) = (like(&[a.dims()[0], b.dims()[1]])?, like(&[1, right.dims()[1]])?);
        let (inputs, product) = (MatmulSumInputs { a: &batched(&a), b: &batched(&b) }, batched(&y));
        run_fused(op, &MatmulSum(summed), inputs, MatmulSumOutputs { y: &product, sums: &sums })?;
        Ok([y, sums.squeeze(0)?])
    }
}

/// [`Kernel::Matmul`], and a row applied to its unrounded result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GemmActivation {
    /// The row, with one input and no attributes.
    pub activation: Pointwise,
    /// The factors of the product and of c.
    pub scale: Gemm,
}

operands! {
    /// The inputs of [`GemmActivation`], of any strides.
    pub struct GemmInputs {
        /// `[B, M, K]`.
        a,
        /// `[B, K, N]`.
        b,
        /// The addend of the product, `[B, M, N]`.
        c?,
    }
}

impl Described for Gemm {
    type Inputs<T> = GemmInputs<T>;
}

operands! {
    /// The outputs of [`GemmActivation`], `[B, M, N]`.
    pub struct GemmOutputs {
        /// The result.
        y,
        /// The argument of the row.
        z?,
    }
}

/// [`Kernel::Matmul`] of two matrices, and the row or column sums of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulSum(pub Summed);

operands! {
    /// The inputs of [`MatmulSum`], of any strides.
    pub struct MatmulSumInputs {
        /// `[1, M, K]`.
        a,
        /// `[1, K, N]`.
        b,
    }
}

operands! {
    /// The outputs of [`MatmulSum`].
    pub struct MatmulSumOutputs {
        /// The product, `[1, M, N]`.
        y,
        /// The sums.
        sums,
    }
}

/// The sums that a [`MatmulSum`] computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summed {
    /// Sums of the rows of the first factor, `[1, M]`.
    Rows,
    /// Sums of the columns of the second factor, `[1, N]`.
    Columns,
}

impl Fused for GemmActivation {
    type Inputs<T> = GemmInputs<T>;
    type Outputs<T> = GemmOutputs<T>;

    fn name(&self) -> &'static str {
        "gemm_bias"
    }

    fn row(&self) -> Option<Pointwise> {
        Some(self.activation)
    }

    fn composite(
        &self,
        GemmInputs { a, b, c }: GemmInputs<&Tensor>,
        before: GemmOutputs<&Tensor>,
    ) -> Result<GemmOutputs<Option<Tensor>>> {
        let z = [a.gemm(b, c, &self.scale)?];
        let y = row_like(self.activation, &z, &z, &[])?.swap_remove(0);
        let [z] = z;
        Ok(GemmOutputs { y: Some(y), z: before.z.map(|_| Some(z)) })
    }

    // The slope of an activation is never much larger than 1.
    fn companions(
        &self,
        GemmInputs { a, b, c }: GemmInputs<&Tensor>,
        before: GemmOutputs<&Tensor>,
    ) -> Result<Option<GemmOutputs<Tensor>>> {
        let scale = Gemm { alpha: self.scale.alpha.abs(), beta: self.scale.beta.abs() };
        let size = a.abs()?.gemm(&b.abs()?, c.map(Tensor::abs).transpose()?.as_ref(), &scale)?;
        Ok(Some(GemmOutputs { z: before.z.map(|_| size.clone()), y: size }))
    }

    fn sum(&self) -> Sum {
        Sum::Product
    }
}

impl MatmulSum {
    fn both(&self, a: &Tensor, b: &Tensor) -> Result<MatmulSumOutputs<Tensor>> {
        let sums = if self.0 == Summed::Rows { a.sum(-1)? } else { b.sum(-2)? };
        Ok(MatmulSumOutputs { y: a.matmul(b)?, sums })
    }
}

impl Fused for MatmulSum {
    type Inputs<T> = MatmulSumInputs<T>;
    type Outputs<T> = MatmulSumOutputs<T>;

    fn name(&self) -> &'static str {
        "matmul_sum"
    }

    fn composite(
        &self,
        MatmulSumInputs { a, b }: MatmulSumInputs<&Tensor>,
        _before: MatmulSumOutputs<&Tensor>,
    ) -> Result<MatmulSumOutputs<Option<Tensor>>> {
        Ok(self.both(a, b)?.map(Some))
    }

    fn companions(
        &self,
        MatmulSumInputs { a, b }: MatmulSumInputs<&Tensor>,
        _before: MatmulSumOutputs<&Tensor>,
    ) -> Result<Option<MatmulSumOutputs<Tensor>>> {
        self.both(&a.abs()?, &b.abs()?).map(Some)
    }

    fn sum(&self) -> Sum {
        Sum::Product
    }
}

/// The options of [`Tensor::gemm_bias`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GemmBias {
    /// The orientation of the first matrix.
    pub trans_a: Transpose,
    /// The orientation of the second matrix. The weight `[out, in]` of a linear layer is transposed.
    pub trans_b: Transpose,
    /// The function applied to the result.
    pub activation: Activation,
}

operands! {
    /// The operands of [`Tensor::gemm_bias`].
    pub struct DenseInputs {
        /// `[M, K]`, or `[K, M]` if it is transposed; or `[.., K]`.
        a,
        /// `[K, N]`, or `[N, K]` if it is transposed.
        b,
        /// `[N]`.
        bias?,
    }
}

impl Described for GemmBias {
    type Inputs<T> = DenseInputs<T>;
}

/// # Linear layers
impl Tensor {
    /// `activation(a @ b + bias)` for this matrix `a: [M, K]`, `b: [K, N]` and `bias: [N]`, rounded once. Transposed matrices are
    /// `[K, M]` and `[N, K]`. An `a: [.., K]` that is not transposed may have any rank but 0. Float dtypes. Errors: `Shape`.
    pub fn gemm_bias(&self, b: &Tensor, bias: Option<&Tensor>, options: &GemmBias) -> Result<Tensor> {
        dense("gemm_bias", self, b, bias, *options)
    }

    /// `x w^T + b` for `x: [.., I]`, `w: [O, I]`, `b: [O]`. Float dtypes. Errors: `Shape`.
    pub fn linear(&self, w: &Tensor, b: Option<&Tensor>) -> Result<Tensor> {
        let options = GemmBias { trans_b: Transpose::Yes, ..Default::default() };
        dense("linear", self, w, b, options)
    }
}

fn dense(op: &'static str, a: &Tensor, b: &Tensor, bias: Option<&Tensor>, options: GemmBias) -> Result<Tensor> {
    if let Some(([a, b], bias)) = autocast::low([a, b], bias)? {
        return no_autocast(|| dense(op, &a, &b, bias.as_ref(), options));
    }
    let inputs = DenseInputs { a, b, bias };
    check_same(op, &inputs.present())?;
    check_float(op, a)?;
    let is_matrix = b.rank() == 2 && a.rank() > 0 && (options.trans_a == Transpose::No || a.rank() == 2);
    let [k, n] = if is_matrix { options.trans_b.extents(b.shape()) } else { [0, 0] };
    if !is_matrix || k != options.trans_a.extents(&flat(a))[1] || bias.is_some_and(|bias| bias.dims() != [n]) {
        return Err(Error::shape(op, mismatch(a, b, bias, options)));
    }
    product(op, inputs, options)
}

/// The shape of `a` as a matrix: leading dimensions are merged. Zeros for rank 0.
fn flat(a: &Tensor) -> Shape {
    match a.dims() {
        [leading @ .., k] => Shape::from([leading.iter().product(), *k]),
        [] => Shape::from([0, 0]),
    }
}

fn mismatch(a: &Tensor, b: &Tensor, bias: Option<&Tensor>, options: GemmBias) -> String {
    let a_form = if options.trans_a == Transpose::Yes { "[K, M]" } else { "[.., K]" };
    let b_form = if options.trans_b == Transpose::Yes { "[N, K]" } else { "[K, N]" };
    match bias {
        None => format!("a {} and b {} are not {a_form} and {b_form}", a.shape(), b.shape()),
        Some(bias) => {
            let given = format!("a {}, b {} and bias {}", a.shape(), b.shape(), bias.shape());
            format!("{given} are not {a_form}, {b_form} and [N]")
        }
    }
}

/// The product of a and b, with the bias if there is one.
pub(crate) fn product(op: &'static str, inputs: DenseInputs<&Tensor>, options: GemmBias) -> Result<Tensor> {
    let a = inputs.a;
    if a.layout().reshape(&flat(a)).is_none() {
        // The tape saves the contiguous copy.
        return product(op, DenseInputs { a: &a.contiguous()?, ..inputs }, options);
    }
    if options.activation != Activation::Identity && !has_kernel_for::<GemmActivation>(a, a.dtype()) {
        return composite(op, inputs, options);
    }
    fused(op, inputs, options)
}

/// The kernel's composite.
fn composite(op: &'static str, inputs: DenseInputs<&Tensor>, options: GemmBias) -> Result<Tensor> {
    let DenseInputs { a, b, bias } = inputs;
    if options.activation == Activation::Identity {
        let rows = a.reshape(flat(a))?;
        let y = options.trans_a.of(&rows)?.gemm(&options.trans_b.of(b)?, bias, &Gemm::default())?;
        return y.reshape(shape(a, b, options));
    }
    in_acc(a, |a| {
        let wide = DenseInputs { a, ..inputs }.try_map(|t| t.cast(a.dtype()))?;
        let z = product(op, wide.as_ref(), GemmBias { activation: Activation::Identity, ..options })?;
        options.activation.of(&z)
    })
}

/// The shape of the result.
fn shape(a: &Tensor, b: &Tensor, options: GemmBias) -> Shape {
    let mut dims = Dims::from_slice(a.dims());
    if options.trans_a == Transpose::Yes {
        dims.swap(0, 1);
    }
    *dims.last_mut().expect("a has rank 1 or more") = options.trans_b.extents(b.shape())[1];
    Shape::from(dims)
}

fn fused(op: &'static str, inputs: DenseInputs<&Tensor>, options: GemmBias) -> Result<Tensor> {
    let (DenseInputs { a, b, .. }, rows) = (inputs, options.activation.rows());
    let like = || Tensor::allocate(op, &shape(a, b, options), a.dtype(), a.device());
    let y = like()?;
    // z is read by the backward pass only.
    let (present, mask) = (inputs.present(), inputs.mask());
    let is_recorded = is_recording(&present);
    let reads_z = matches!(rows, Some((_, Slope::Input(_))));
    let z = if is_recorded && reads_z { Some(like()?) } else { None };
    launch(op, inputs, GemmOutputs { y: &y, z: z.as_ref() }, options)?;
    report_as(op, inputs, &[&y], || options);
    let rows = rows.filter(|_| is_recorded);
    let prologue = rows.map(|(_, slope)| Arc::new(slope.prologue(z.as_ref().unwrap_or(&y), &y, &[])));
    Record::new(op, &present).prologue(prologue).fused(
        y,
        move |inputs| composite(op, DenseInputs::of(mask, &mut inputs.iter()), options),
        move |t, inputs| {
            let DenseInputs { a: own, b, bias } = DenseInputs::of(mask, &mut inputs.iter());
            let a = own.reshape(flat(own))?;
            let (read_a, read_b, dz) = (options.trans_a.of(&a)?, options.trans_b.of(b)?, t.dy().reshape(flat(t.dy()))?);
            let of = |i: usize, transpose: Transpose, left: &Tensor, right: &Tensor| {
                let [left, right] = transpose.factors(left, right)?;
                gradient(t, i, &left, &right, inputs[i].shape())
            };
            let da = t.want(0, || of(0, options.trans_a, &dz, &read_b.t()?))?;
            let Some(bias) = bias else {
                return gradients![da, t.want(1, || of(1, options.trans_b, &read_a.t()?, &dz))?];
            };
            if t.needs(1) && t.needs(2) && has_kernel::<MatmulSum>(&dz) && a.numel() > 0 {
                let [db, sums] = options.trans_b.gradient_and_sums(op, &read_a.t()?, &dz)?;
                return gradients![da, Some(db), Some(sums)];
            }
            gradients![
                da,
                t.want(1, || of(1, options.trans_b, &read_a.t()?, &dz))?,
                t.want(2, || dz.sum_to_size(bias.shape()))?,
            ]
        },
    )
}

/// Runs `Kernel::Matmul` or the fused kernel of the same operands, outside of the tape.
fn launch(
    op: &'static str,
    DenseInputs { a, b, bias }: DenseInputs<&Tensor>,
    outputs: GemmOutputs<&Tensor>,
    options: GemmBias,
) -> Result<()> {
    let matrix = |t: &Tensor| t.detach().reshape(flat(t));
    if outputs.y.numel() == 0 {
        return Ok(());
    }
    let of_result = |t: &Tensor| Ok(batched(&matrix(t)?));
    let (y, z) = (of_result(outputs.y)?, outputs.z.map(of_result).transpose()?);
    let (a, b) = (options.trans_a.of(&matrix(a)?)?, options.trans_b.of(&b.detach())?);
    let (a, b) = (batched(&a), batched(&b));
    let c = bias.map(|bias| bias.with_layout(bias.layout().expand(y.shape())));
    let inputs = GemmInputs { a: &a, b: &b, c: c.as_ref() };
    match options.activation.rows() {
        None => run(op, Kernel::Matmul, &inputs.present(), &[&y], Attributes::floats(&[1.0, 1.0])),
        Some((activation, _)) => {
            let outputs = GemmOutputs { y: &y, z: z.as_ref() };
            run_fused(op, &GemmActivation { activation, scale: Gemm::default() }, inputs, outputs)
        }
    }
}
