//! Normalisation of rows.

use crate::check::{check_device, check_float, check_same, describe};
use crate::fused::{Fused, gradients_on_tape, has_kernel, run_fused};
use crate::operands::Operands;
use crate::ops::elementwise::unary::unary;
use crate::ops::matrix::gemm_bias::Activation;
use crate::ops::reduction::reduce::{Moments, ReducePlan};
use crate::ops::{Axes, in_acc, pointwise_one, row_like};
use crate::pointwise::Pointwise;
use crate::tape::{Backward, Described, Gradients, Record, Saved, record_outputs, report_as};
use crate::tensor::Attributes;
use crate::{DType, Error, Result, Shape, Tensor, autocast};

/// The normalisation: with or without subtraction of the mean.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Norm {
    Layer,
    Rms,
}

/// A normalisation of rows as an op.
#[derive(Clone, Copy)]
struct RowNormOp {
    op: &'static str,
    norm: Norm,
    activation: Activation,
}

impl RowNormOp {
    /// Reports the normalisation of the last dimensions of x, or of its sum with a residual.
    fn report(&self, inputs: NormInputs<&Tensor>, outputs: &[&Tensor], dims: usize, eps: f64) {
        let RowNormOp { op, norm, activation } = *self;
        report_as(op, inputs, outputs, || LastNorm { dims, is_centred: norm == Norm::Layer, eps, activation });
    }
}

/// The normalisation of the last dimensions of a tensor, or of its sum with a residual, as an op of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastNorm {
    /// The number of dimensions.
    pub dims: usize,
    /// True if the mean is subtracted.
    pub is_centred: bool,
    /// Added to variances.
    pub eps: f64,
    /// Applied after the bias.
    pub activation: Activation,
}

impl Described for LastNorm {
    type Inputs<T> = NormInputs<T>;
}

const LAYER: RowNormOp = RowNormOp { op: "layer_norm", norm: Norm::Layer, activation: Activation::Identity };
const RMS: RowNormOp = RowNormOp { op: "rms_norm", norm: Norm::Rms, activation: Activation::Identity };
const RESIDUAL: RowNormOp = RowNormOp { op: "residual_layer_norm", ..LAYER };

/// The normalisation of rows `[rows, length]`, or of their sum with a residual.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowNorm {
    /// The number of rows.
    pub rows: usize,
    /// The elements of a row.
    pub length: usize,
    /// True if the mean is subtracted ([`Tensor::layer_norm`]); false for [`Tensor::rms_norm`].
    pub is_centred: bool,
    /// Added to variances.
    pub eps: f64,
    /// Applied after the bias. Its gradient is a function of its argument, or of the sign of its result.
    pub activation: Activation,
}

/// The gradients of [`RowNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowNormBackward(pub RowNorm);

crate::operands! {
    /// The inputs of [`RowNorm`].
    pub struct NormInputs {
        /// The rows `[rows, length]`.
        x,
        /// Added to x, and like x; or f32 where x has 16 bits.
        residual?,
        /// The factor of normalised elements, `[length]`.
        weight?,
        /// Added to the product, `[length]`, in the dtype of the weight.
        bias?,
    }
}

crate::operands! {
    /// The outputs of [`RowNorm`].
    pub struct NormOutputs {
        /// The result, like x.
        y,
        /// The mean of each row, `[rows]`; unspecified unless it is subtracted.
        mean,
        /// `1 / sqrt(var + eps)` of each row.
        rstd,
        /// With a residual: its rounded sum with x, like the residual. The rows of the sum are normalised.
        sum?,
    }
}

crate::operands! {
    /// The inputs of [`RowNormBackward`].
    pub struct NormBackwardInputs {
        /// The gradient of y.
        dy,
        /// The rows that were normalised: x, or its sum with the residual.
        x,
        /// The mean of each row.
        mean,
        /// `1 / sqrt(var + eps)` of each row.
        rstd,
        /// The weight of the forward kernel.
        weight?,
        /// The bias of the forward kernel, if there is an activation.
        bias?,
        /// A further term of dx, like x. Not with an activation.
        added?,
    }
}

crate::operands! {
    /// The outputs of [`RowNormBackward`].
    pub struct NormBackwardOutputs {
        /// dx in the dtype of dy, where x has another.
        low?,
        /// The gradient of x, in its dtype.
        dx?,
        /// The gradient of the weight.
        weight?,
        /// The gradient of the bias.
        bias?,
    }
}

impl Fused for RowNorm {
    type Inputs<T> = NormInputs<T>;
    type Outputs<T> = NormOutputs<T>;

    fn name(&self) -> &'static str {
        "norm"
    }

    fn composite(
        &self,
        NormInputs { x, residual, weight, bias }: NormInputs<&Tensor>,
        _before: NormOutputs<&Tensor>,
    ) -> Result<NormOutputs<Option<Tensor>>> {
        let sum = residual.map(|residual| x.add(residual)).transpose()?;
        let x = sum.as_ref().unwrap_or(x);
        let mean = x.mean_keepdim(1)?;
        let centred = if self.is_centred { x.sub(&mean)? } else { x.clone() };
        let rstd = centred.square()?.mean_keepdim(1)?.add_scalar(self.eps)?.rsqrt()?;
        let mut y = scaled(&centred.mul(&rstd)?, weight, bias)?;
        if let Some(row) = self.activation.row() {
            y = row_like(row, std::slice::from_ref(&y), std::slice::from_ref(&y), &[])?.remove(0);
        }
        let mean = Some(mean).filter(|_| self.is_centred);
        Ok(NormOutputs { y: Some(y), mean, rstd: Some(rstd), sum: sum.map(Some) })
    }

    // The sum, and the results for it.
    fn roundings(&self, inputs: NormInputs<()>) -> usize {
        1 + inputs.residual.is_some() as usize
    }
}

/// Normalised rows times the weight plus the bias, where present.
fn scaled(xhat: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
    let y = weight.map_or(Ok(xhat.clone()), |weight| xhat.mul(weight))?;
    bias.map_or(Ok(y.clone()), |bias| y.add(bias))
}

impl Fused for RowNormBackward {
    type Inputs<T> = NormBackwardInputs<T>;
    type Outputs<T> = NormBackwardOutputs<T>;

    fn name(&self) -> &'static str {
        "norm_backward"
    }

    // dx = rstd (h - mean(h) - xhat mean(h xhat)), h = dy weight
    fn composite(
        &self,
        NormBackwardInputs { dy, x, mean, rstd, weight, bias, added }: NormBackwardInputs<&Tensor>,
        before: NormBackwardOutputs<&Tensor>,
    ) -> Result<NormBackwardOutputs<Option<Tensor>>> {
        let RowNorm { is_centred, activation, .. } = self.0;
        let (mean, rstd) = (mean.unsqueeze(1)?, rstd.unsqueeze(1)?);
        let xhat = if is_centred { x.sub(&mean)? } else { x.clone() }.mul(&rstd)?;
        let dy = &match activation.slope() {
            None => dy.clone(),
            Some((row, _)) => {
                let operands = [dy.clone(), scaled(&xhat, weight, bias)?];
                row_like(row, &operands, &operands[..1], &[])?.remove(0)
            }
        };
        let dx = || {
            let h = weight.map_or(Ok(dy.clone()), |weight| dy.mul(weight))?;
            let along = xhat.mul(&h.mul(&xhat)?.mean_keepdim(1)?)?;
            let h = if is_centred { h.sub(&h.mean_keepdim(1)?)? } else { h };
            let dx = h.sub(&along)?.mul(&rstd)?;
            added.map_or(Ok(dx.clone()), |added| dx.add(added))
        };
        let dx = before.dx.map(|_| dx()).transpose()?;
        Ok(NormBackwardOutputs {
            low: before.low.map(|_| dx.clone()),
            dx: dx.map(Some),
            weight: before.weight.map(|_| dy.mul(&xhat)?.sum(0).map(Some)).transpose()?,
            bias: before.bias.map(|_| dy.sum(0).map(Some)).transpose()?,
        })
    }
}

/// # Normalisation of rows
impl Tensor {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` over the last `dims` dimensions, with the biased variance. Weight and bias
    /// have the shape of these dimensions and the dtype of x or f32; they default to 1 and 0. Float dtypes. Ba et al. 2016,
    /// arXiv:1607.06450. Errors: `Attr` unless `1 <= dims <= rank` and `eps >= 0`, `Shape`, `Dtype`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 3.0], (1, 2), device)?;
    /// assert_eq!(x.layer_norm(1, None, None, 0.0)?.to_vec::<f32>()?, [-1.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn layer_norm(&self, dims: usize, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        norm(LAYER, self, dims, weight, bias, eps)
    }

    /// An activation of [`layer_norm`](Tensor::layer_norm), rounded once. The kernels of GPUs apply relu, gelu and silu.
    pub fn layer_norm_activation(
        &self,
        dims: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
        activation: Activation,
    ) -> Result<Tensor> {
        norm(RowNormOp { op: "layer_norm_activation", activation, ..LAYER }, self, dims, weight, bias, eps)
    }

    /// The sum `s = x + residual`, rounded, and its [`layer_norm`](Tensor::layer_norm) y: `(y, s)`. The residual has the shape and
    /// the dtype of x, or is f32 where x has 16 bits. The sum has the dtype of the residual, and y that of x. Both results have
    /// gradients. Errors: as for `layer_norm`.
    pub fn residual_layer_norm(
        &self,
        residual: &Tensor,
        dims: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<(Tensor, Tensor)> {
        residual_norm(self, residual, dims, weight, bias, eps)
    }

    /// `x / sqrt(mean(x^2) + eps) * weight` over the last `dims` dimensions. Weight and errors are as for
    /// [`layer_norm`](Tensor::layer_norm). Float dtypes. Zhang and Sennrich 2019, NeurIPS.
    pub fn rms_norm(&self, dims: usize, weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        norm(RMS, self, dims, weight, None, eps)
    }
}

fn norm(
    row_norm: RowNormOp,
    x: &Tensor,
    dims: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    if let Some(([x], _)) = autocast::wide([x], None)? {
        return norm(row_norm, &x, dims, in_f32(weight)?.as_ref(), in_f32(bias)?.as_ref(), eps);
    }
    let given = NormInputs { x, residual: None, weight, bias };
    let (rows, weight, bias) = flattened(row_norm.op, x, dims, weight, bias, eps)?;
    let run = match (has_kernel::<RowNorm>(x), row_norm.activation) {
        (false, _) => composite,
        (true, Activation::Sigmoid | Activation::Tanh) => in_two_steps,
        (true, _) => fused,
    };
    let y = run(row_norm, &rows, weight.as_ref(), bias.as_ref(), eps)?.reshape(x.shape())?;
    row_norm.report(given, &[&y], dims, eps);
    Ok(y)
}

/// The norm by its kernel, and an activation by another: a gradient that is a function of the result alone needs the result.
fn in_two_steps(
    row_norm: RowNormOp,
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    in_acc(x, |x| {
        let wide = |p: Option<&Tensor>| p.map(|p| p.cast(x.dtype())).transpose();
        let plain = RowNormOp { activation: Activation::Identity, ..row_norm };
        let y = fused(plain, x, wide(weight)?.as_ref(), wide(bias)?.as_ref(), eps)?;
        activated(row_norm, y)
    })
}

/// The activation of a normalised tensor.
fn activated(row_norm: RowNormOp, y: Tensor) -> Result<Tensor> {
    match row_norm.activation.rows() {
        Some((row, slope)) => unary("layer_norm_activation", &y, row, slope, &[]),
        None => Ok(y),
    }
}

fn residual_norm(
    x: &Tensor,
    residual: &Tensor,
    dims: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<(Tensor, Tensor)> {
    let op = RESIDUAL.op;
    let is_mixed = residual.dtype() == DType::F32 && [DType::F16, DType::BF16].contains(&x.dtype());
    if !is_mixed && let Some(([x, residual], _)) = autocast::wide([x, residual], None)? {
        return residual_norm(&x, &residual, dims, in_f32(weight)?.as_ref(), in_f32(bias)?.as_ref(), eps);
    }
    if is_mixed {
        check_device(op, &[x, residual])?
    } else {
        check_same(op, &[x, residual])?
    }
    if x.shape() != residual.shape() {
        return Err(Error::shape(op, format!("x and the residual differ: {}", describe(&[x, residual]))));
    }
    let given = NormInputs { x, residual: Some(residual), weight, bias };
    let (rows, weight, bias) = flattened(op, x, dims, weight, bias, eps)?;
    let (y, s) = if has_kernel::<RowNorm>(x) {
        let residual = residual.reshape(rows.shape())?;
        let [y, s] = fused_residual(&rows, &residual, weight.as_ref(), bias.as_ref(), eps)?;
        (y.reshape(x.shape())?, s.reshape(x.shape())?)
    } else {
        let s = x.cast(residual.dtype())?.add(residual)?;
        let y = composite(RESIDUAL, &s.reshape(rows.shape())?, weight.as_ref(), bias.as_ref(), eps)?;
        (y.cast(x.dtype())?.reshape(x.shape())?, s)
    };
    RESIDUAL.report(given, &[&y, &s], dims, eps);
    Ok((y, s))
}

/// x as rows `[rows, length]`, and the parameters `[length]` in a common dtype, after all checks.
#[allow(clippy::type_complexity)]
fn flattened(
    op: &'static str,
    x: &Tensor,
    dims: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<(Tensor, Option<Tensor>, Option<Tensor>)> {
    check_float(op, x)?;
    if dims == 0 || dims > x.rank() {
        let message = format!("{dims} dimensions of {} were asked for, expected 1 to {}", x.shape(), x.rank());
        return Err(Error::attr(op, message));
    }
    check_eps(op, eps)?;
    let (rows, row) = x.dims().split_at(x.rank() - dims);
    for p in weight.into_iter().chain(bias) {
        check_device(op, &[x, p])?;
        if p.dims() != row {
            return Err(Error::shape(op, format!("parameters must be {row:?}: {}", describe(&[x, p]))));
        }
        if p.dtype() != x.dtype() && p.dtype() != DType::F32 {
            return Err(Error::dtype(op, format!("parameters must have the dtype of x or f32: {}", describe(&[x, p]))));
        }
    }
    let (count, length) = (rows.iter().product::<usize>(), row.iter().product::<usize>());
    let rows = x.reshape((count, length))?;
    let flat = |p: Option<&Tensor>| p.map(|p| p.reshape(length)).transpose();
    let (weight, bias) = alike(flat(weight)?, flat(bias)?)?;
    Ok((rows, weight, bias))
}

/// Checks that eps can be added to a variance.
pub(crate) fn check_eps(op: &'static str, eps: f64) -> Result<()> {
    match eps >= 0.0 {
        true => Ok(()),
        false => Err(Error::attr(op, format!("eps is {eps}, expected 0 or more"))),
    }
}

/// A parameter in f32, within an [`autocast`](crate::autocast()).
pub(crate) fn in_f32(p: Option<&Tensor>) -> Result<Option<Tensor>> {
    p.map(|p| p.cast(DType::F32)).transpose()
}

/// Weight and bias in a common dtype, as the kernels need them: the accumulation dtype if they differ.
pub(crate) fn alike(weight: Option<Tensor>, bias: Option<Tensor>) -> Result<(Option<Tensor>, Option<Tensor>)> {
    match (&weight, &bias) {
        (Some(w), Some(b)) if w.dtype() != b.dtype() => {
            let dtype = if [w.dtype(), b.dtype()].contains(&DType::F64) { DType::F64 } else { DType::F32 };
            Ok((Some(w.cast(dtype)?), Some(b.cast(dtype)?)))
        }
        _ => Ok((weight, bias)),
    }
}

/// `(x - mean) / sqrt(var + eps)` over `axes`, or `x / sqrt(mean(x^2) + eps)` without a mean, for x in an accumulation dtype.
pub(crate) fn standardise(op: &'static str, norm: Norm, x: &Tensor, axes: &[isize], eps: f64) -> Result<Tensor> {
    if x.numel() == 0 {
        return Ok(x.clone());
    }
    if !has_kernel::<Moments>(x) {
        return standardise_in_ops(norm, x, axes, eps);
    }
    let axes = Axes::from(axes);
    let [mean, rstd] = ReducePlan::new(op, x, &axes)?.moments(op, norm == Norm::Layer, eps)?;
    let row = |row, inputs: &[&Tensor]| pointwise_one(op, row, inputs, Attributes::default(), x.shape(), x.dtype());
    let y = row(Pointwise::Standardise, &[x, &mean, &rstd])?;
    let saved = Saved::output(&y);
    let of = axes.clone();
    Record::new(op, &[x]).fused(
        y,
        move |x| standardise_in_ops(norm, &x[0], of.as_slice(), eps),
        move |t, _| {
            let (dy, y) = (t.dy(), t.get(&saved)?);
            let slope = dy.mul(&y)?.mean_keepdim(axes.clone())?;
            let mean = if norm == Norm::Layer { dy.mean_keepdim(axes.clone())? } else { slope.zeros_like()? };
            let (inputs, row) = ([dy, &y, &mean, &slope, &rstd], Pointwise::StandardiseBackward);
            crate::ops::gradients![Some(pointwise_one(op, row, &inputs, Attributes::default(), y.shape(), y.dtype())?)]
        },
    )
}

/// [`standardise`] in tensor ops. Slices are scaled so that no square overflows.
fn standardise_in_ops(norm: Norm, x: &Tensor, axes: &[isize], eps: f64) -> Result<Tensor> {
    let scale = scale(x, axes, eps)?;
    let x = x.mul(&scale)?;
    // The second subtraction removes the rounding error of the first mean.
    let centre = |x: &Tensor| x.sub(&x.mean_keepdim(axes)?);
    let x = if norm == Norm::Layer { centre(&centre(&x)?)? } else { x };
    let eps = scale.mul_scalar(eps.sqrt())?.square()?;
    x.mul(&x.square()?.mean_keepdim(axes)?.add(&eps)?.rsqrt()?)
}

/// Powers of 2 that scale the slices. They are 1, unless squares of the largest elements overflow, or are subnormal and not
/// outweighed by eps.
fn scale(x: &Tensor, axes: &[isize], eps: f64) -> Result<Tensor> {
    let (limit, step) = if x.dtype() == DType::F64 { (400, 600) } else { (50, 80) };
    let (limit, step) = (2f64.powi(limit), 2f64.powi(step));
    let fixed = x.detach();
    let reduce = |which: fn(&Tensor, Axes) -> Result<Tensor>| fixed.keepdim(axes, which);
    let largest = reduce(|x, axes| x.amax(axes))?.maximum(&reduce(|x, axes| x.amin(axes))?.neg()?)?;
    let ones = largest.ones_like()?;
    let scale = largest.gt_scalar(limit)?.where_cond(&ones.full_like(step.recip())?, &ones)?;
    match eps < (limit * limit).recip() {
        true => largest.lt_scalar(limit.recip())?.where_cond(&ones.full_like(step)?, &scale),
        false => Ok(scale),
    }
}

/// The kernel's composite, for rows `[rows, length]`.
fn composite(
    row_norm: RowNormOp,
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    in_acc(x, |x| {
        let y = standardise(row_norm.op, row_norm.norm, x, &[1], eps)?;
        let y = match weight {
            Some(weight) => y.mul(&weight.cast(y.dtype())?)?,
            None => y,
        };
        let y = match bias {
            Some(bias) => y.add(&bias.cast(y.dtype())?)?,
            None => y,
        };
        activated(row_norm, y)
    })
}

/// Normalises contiguous rows by the kernel.
fn by_kernel(row_norm: RowNormOp, inputs: NormInputs<&Tensor>, eps: f64) -> Result<(RowNorm, NormOutputs<Tensor>)> {
    let (op, x) = (row_norm.op, inputs.x);
    let (rows, length) = (x.dims()[0], x.dims()[1]);
    let statistics = || Tensor::allocate(op, &Shape::from(rows), x.dtype().acc(), x.device());
    let kernel =
        RowNorm { rows, length, is_centred: row_norm.norm == Norm::Layer, eps, activation: row_norm.activation };
    let (y, sum) = (memory_like(op, x)?, inputs.residual.map(|residual| memory_like(op, residual)).transpose()?);
    let outputs = NormOutputs { y, mean: statistics()?, rstd: statistics()?, sum };
    run_fused(op, &kernel, inputs, outputs.as_ref())?;
    Ok((kernel, outputs))
}

fn fused(row_norm: RowNormOp, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let op = row_norm.op;
    let inputs = NormInputs { x, residual: None, weight, bias }.try_map(Tensor::contiguous)?;
    let (kernel, NormOutputs { y, mean, rstd, .. }) = by_kernel(row_norm, inputs.as_ref(), eps)?;
    let mask = inputs.mask();
    let again = move |inputs: &[Tensor]| {
        let NormInputs { x, weight, bias, .. } = NormInputs::of(mask, &mut inputs.iter());
        composite(row_norm, x, weight, bias, eps)
    };
    Record::new(op, &inputs.as_ref().present()).fused(y, again, move |t: &Backward<'_>, inputs: &[Tensor]| {
        let NormInputs { x, weight, bias, .. } = NormInputs::of(mask, &mut inputs.iter());
        let are_wanted = (1..inputs.len()).any(|i| t.needs(i));
        let outputs = NormBackwardOutputs {
            low: None,
            dx: memory_if(op, t.needs(0), Some(x))?,
            weight: memory_if(op, are_wanted, weight)?,
            bias: memory_if(op, are_wanted, bias)?,
        };
        // The activation's argument is computed again.
        let read = bias.filter(|_| kernel.activation != Activation::Identity);
        let (dy, mean, rstd) = (&t.dy().contiguous()?, &mean, &rstd);
        let inputs = NormBackwardInputs { dy, x, mean, rstd, weight, bias: read, added: None };
        run_fused(op, &RowNormBackward(kernel), inputs, outputs.as_ref())?;
        let (dweight, dbias) = (weight.map(|_| outputs.weight), bias.map(|_| outputs.bias));
        Ok(needed(t, NormInputs { x: outputs.dx, residual: None, weight: dweight, bias: dbias }))
    })
}

/// The norm of a sum by the kernel: `[y, s]`. The tape keeps s alone, not x and the residual.
fn fused_residual(
    x: &Tensor,
    residual: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<[Tensor; 2]> {
    let (op, dtype) = (RESIDUAL.op, x.dtype());
    let inputs = NormInputs { x, residual: Some(residual), weight, bias }.try_map(Tensor::contiguous)?;
    let (kernel, NormOutputs { y, mean, rstd, sum }) = by_kernel(RESIDUAL, inputs.as_ref(), eps)?;
    let s = sum.expect("the sum with a residual is an output");
    let (mask, NormInputs { weight, bias, .. }) = (inputs.mask(), inputs.as_ref());
    let (weight, bias) = (weight.map(Saved::input), bias.map(Saved::input));
    let saved = NormInputs { x: Saved::nth_output(&s, 1), residual: None, weight, bias };
    let outputs = record_outputs(op, &inputs.as_ref().present(), vec![y, s], move |t| {
        let saved = saved.as_ref().try_map(|saved| t.get(saved))?;
        let needs = NormInputs::of(mask, &mut (0..).map(|i| t.needs(i)));
        Ok(needed(t, residual_gradients(t, saved.as_ref(), needs, &kernel, [&mean, &rstd], dtype)?))
    })?;
    Ok(outputs.try_into().expect("there are two outputs"))
}

/// The gradients from those of y and s, for x of a dtype. `saved` has s in the place of x, and no residual.
fn residual_gradients(
    t: &Backward<'_>,
    saved: NormInputs<&Tensor>,
    needs: NormInputs<bool>,
    kernel: &RowNorm,
    [mean, rstd]: [&Tensor; 2],
    dtype: DType,
) -> Result<NormInputs<Option<Tensor>>> {
    let op = RESIDUAL.op;
    let wanted = NormInputs { x: needs.x || needs.residual == Some(true), residual: None, ..needs };
    let in_both_dtypes = |found: NormInputs<Option<Tensor>>| -> Result<NormInputs<Option<Tensor>>> {
        let ds = found.x;
        Ok(NormInputs { x: ds.as_ref().map(|ds| ds.cast(dtype)).transpose()?, residual: Some(ds), ..found })
    };
    let Some(dy) = t.dy_of(0) else {
        // The parameters are no part of s.
        let zeros = |p: Option<&Tensor>, wanted: Option<bool>| {
            p.map(|p| (wanted == Some(true)).then(|| p.zeros_like()).transpose()).transpose()
        };
        let (weight, bias) = (zeros(saved.weight, wanted.weight)?, zeros(saved.bias, wanted.bias)?);
        return in_both_dtypes(NormInputs { x: t.dy_of(1).cloned(), residual: None, weight, bias });
    };
    if t.creates_graph() {
        let mask = saved.mask();
        let again = |saved: &[Tensor]| {
            let NormInputs { x, weight, bias, .. } = NormInputs::of(mask, &mut saved.iter());
            composite(RESIDUAL, x, weight, bias, kernel.eps)?.cast(dtype)
        };
        let found =
            gradients_on_tape(&saved.map(Tensor::clone).present(), &wanted.present(), |_| Some(dy.clone()), again)?;
        let mut found = NormInputs::of(mask, &mut found.into_iter());
        if let (Some(ds), Some(more)) = (&found.x, t.dy_of(1)) {
            found.x = Some(ds.add(more)?);
        }
        return in_both_dtypes(found);
    }
    let NormInputs { x, weight, bias, .. } = saved;
    let are_wanted = [wanted.weight, wanted.bias].contains(&Some(true));
    let is_mixed = dtype != x.dtype();
    let low = (wanted.x && is_mixed).then(|| Tensor::allocate(op, x.shape(), dtype, x.device())).transpose()?;
    let outputs = NormBackwardOutputs {
        low,
        dx: memory_if(op, wanted.x, Some(x))?,
        weight: memory_if(op, are_wanted, weight)?,
        bias: memory_if(op, are_wanted, bias)?,
    };
    let more = t.dy_of(1).filter(|_| wanted.x).map(Tensor::contiguous).transpose()?;
    let (dy, added) = (&dy.contiguous()?, more.as_ref());
    let inputs = NormBackwardInputs { dy, x, mean, rstd, weight, bias: None, added };
    run_fused(op, &RowNormBackward(*kernel), inputs, outputs.as_ref())?;
    let (dweight, dbias) = (weight.map(|_| outputs.weight), bias.map(|_| outputs.bias));
    let dx = if is_mixed { outputs.low } else { outputs.dx.clone() };
    Ok(NormInputs { x: dx, residual: Some(outputs.dx), weight: dweight, bias: dbias })
}

/// The gradients of the inputs that need one.
pub(crate) fn needed(t: &Backward<'_>, gradients: impl Operands<Option<Tensor>>) -> Gradients {
    let each = gradients.present().into_iter().enumerate();
    each.map(|(i, gradient)| gradient.filter(|_| t.needs(i))).collect()
}

/// Memory for the gradient of a tensor.
fn memory_like(op: &'static str, x: &Tensor) -> Result<Tensor> {
    Tensor::allocate(op, x.shape(), x.dtype(), x.device())
}

/// Memory for the gradient of a tensor that is present, if it is wanted.
pub(crate) fn memory_if(op: &'static str, is_wanted: bool, x: Option<&Tensor>) -> Result<Option<Tensor>> {
    x.filter(|_| is_wanted).map(|x| memory_like(op, x)).transpose()
}
