//! Normalisation of rows.

use super::reduce::{Moments, Plan};
use super::{Axes, in_acc, pointwise_one};
use crate::fused::{Fused, has_kernel, record_fused, run_fused};
use crate::pointwise::Pointwise;
use crate::tape::{Backward, Gradients, Saved};
use crate::tensor::{Attributes, check_device, check_float, describe};
use crate::{DType, Error, Result, Shape, Tensor, autocast};

/// The normalisation: with or without subtraction of the mean.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Norm {
    Layer,
    Rms,
}

impl Norm {
    fn op(self) -> &'static str {
        match self {
            Norm::Layer => "layer_norm",
            Norm::Rms => "rms_norm",
        }
    }
}

/// Inputs: rows x `[rows, length]`; the weight and the bias, where present. Outputs: y; mean and `1 / sqrt(var + eps)` of each row.
/// The mean is unspecified unless it is subtracted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowNorm {
    /// The number of rows.
    pub rows: usize,
    /// The elements of a row.
    pub length: usize,
    /// True if the mean is subtracted ([`Tensor::layer_norm`]); false for [`Tensor::rms_norm`].
    pub is_centred: bool,
    /// True if there is a weight.
    pub has_weight: bool,
    /// True if there is a bias.
    pub has_bias: bool,
    /// Added to variances.
    pub eps: f64,
}

/// Inputs: dy, x, mean, rstd and, where present, the weight. Outputs: dx and the gradients of weight and bias, where present and
/// wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowNormBackward {
    /// The forward kernel.
    pub norm: RowNorm,
    /// The outputs of the kernel.
    pub wanted: Wanted,
}

/// The gradients of a normalisation that are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The gradient of x.
    pub dx: bool,
    /// The gradients of the weight and the bias.
    pub parameters: bool,
}

impl Fused for RowNorm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let x = &inputs[0];
        let mean = x.mean_keepdim(1)?;
        let centred = if self.is_centred { x.sub(&mean)? } else { x.clone() };
        let rstd = centred.square()?.mean_keepdim(1)?.add_scalar(self.eps)?.rsqrt()?;
        let mut y = centred.mul(&rstd)?;
        if self.has_weight {
            y = y.mul(&inputs[1])?;
        }
        if self.has_bias {
            y = y.add(&inputs[1 + self.has_weight as usize])?;
        }
        Ok(vec![Some(y), Some(mean).filter(|_| self.is_centred), Some(rstd)])
    }
}

impl Fused for RowNormBackward {
    fn name(&self) -> &'static str {
        "norm_backward"
    }

    // dx = rstd (h - mean(h) - xhat mean(h xhat)), h = dy weight
    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (RowNormBackward { norm, wanted }, dy, x) = (self, &inputs[0], &inputs[1]);
        let (mean, rstd) = (inputs[2].unsqueeze(1)?, inputs[3].unsqueeze(1)?);
        let xhat = if norm.is_centred { x.sub(&mean)? } else { x.clone() }.mul(&rstd)?;
        let mut found = Vec::new();
        if wanted.dx {
            let h = if norm.has_weight { dy.mul(&inputs[4])? } else { dy.clone() };
            let along = xhat.mul(&h.mul(&xhat)?.mean_keepdim(1)?)?;
            let h = if norm.is_centred { h.sub(&h.mean_keepdim(1)?)? } else { h };
            found.push(Some(h.sub(&along)?.mul(&rstd)?));
        }
        if wanted.parameters && norm.has_weight {
            found.push(Some(dy.mul(&xhat)?.sum(0)?));
        }
        if wanted.parameters && norm.has_bias {
            found.push(Some(dy.sum(0)?));
        }
        Ok(found)
    }
}

impl Tensor {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` over the last `dims` dimensions, with the biased variance. Weight and bias
    /// have the shape of these dimensions and the dtype of x or f32; they default to 1 and 0. Float dtypes. Ba et al. 2016,
    /// arXiv:1607.06450. Errors: `Attr` unless `1 <= dims <= rank` and `eps >= 0`, `Shape`, `Dtype`.
    pub fn layer_norm(&self, dims: usize, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        norm(Norm::Layer, self, dims, weight, bias, eps)
    }

    /// `x / sqrt(mean(x^2) + eps) * weight` over the last `dims` dimensions. Weight and errors are as for
    /// [`layer_norm`](Tensor::layer_norm). Float dtypes. Zhang and Sennrich 2019, NeurIPS.
    pub fn rms_norm(&self, dims: usize, weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        norm(Norm::Rms, self, dims, weight, None, eps)
    }
}

fn norm(
    norm: Norm,
    x: &Tensor,
    dims: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let op = norm.op();
    if let Some(([x], _)) = autocast::wide([x], None)? {
        return self::norm(norm, &x, dims, in_f32(weight)?.as_ref(), in_f32(bias)?.as_ref(), eps);
    }
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
    let y = match has_kernel::<RowNorm>(x) {
        true => fused(norm, &rows, weight.as_ref(), bias.as_ref(), eps)?,
        false => composite(norm, &rows, weight.as_ref(), bias.as_ref(), eps)?,
    };
    y.reshape(x.shape())
}

/// Checks that eps can be added to a variance.
pub(super) fn check_eps(op: &'static str, eps: f64) -> Result<()> {
    match eps >= 0.0 {
        true => Ok(()),
        false => Err(Error::attr(op, format!("eps is {eps}, expected 0 or more"))),
    }
}

/// A parameter in f32, within an [`autocast`](crate::autocast()).
pub(super) fn in_f32(p: Option<&Tensor>) -> Result<Option<Tensor>> {
    p.map(|p| p.cast(DType::F32)).transpose()
}

/// Weight and bias in a common dtype, as the kernels need them: the accumulation dtype if they differ.
pub(super) fn alike(weight: Option<Tensor>, bias: Option<Tensor>) -> Result<(Option<Tensor>, Option<Tensor>)> {
    match (&weight, &bias) {
        (Some(w), Some(b)) if w.dtype() != b.dtype() => {
            let dtype = if [w.dtype(), b.dtype()].contains(&DType::F64) { DType::F64 } else { DType::F32 };
            Ok((Some(w.cast(dtype)?), Some(b.cast(dtype)?)))
        }
        _ => Ok((weight, bias)),
    }
}

/// `(x - mean) / sqrt(var + eps)` over `axes`, or `x / sqrt(mean(x^2) + eps)` without a mean, for x in an accumulation dtype.
pub(super) fn standardise(op: &'static str, norm: Norm, x: &Tensor, axes: &[isize], eps: f64) -> Result<Tensor> {
    if x.numel() == 0 {
        return Ok(x.clone());
    }
    if !has_kernel::<Moments>(x) {
        return standardise_in_ops(norm, x, axes, eps);
    }
    let axes = Axes::from(axes);
    let [mean, rstd] = Plan::new(op, x, &axes)?.moments(op, norm == Norm::Layer, eps)?;
    let row = |row, inputs: &[&Tensor]| pointwise_one(op, row, inputs, Attributes::default(), x.shape(), x.dtype());
    let y = row(Pointwise::Standardise, &[x, &mean, &rstd])?;
    let saved = Saved::output(&y);
    let of = axes.clone();
    record_fused(
        op,
        &[x],
        y,
        move |x| standardise_in_ops(norm, &x[0], of.as_slice(), eps),
        move |t, _| {
            let (dy, y) = (t.dy(), t.get(&saved)?);
            let slope = dy.mul(&y)?.mean_keepdim(axes.clone())?;
            let mean = if norm == Norm::Layer { dy.mean_keepdim(axes.clone())? } else { slope.zeros_like()? };
            let (inputs, row) = ([dy, &y, &mean, &slope, &rstd], Pointwise::StandardiseBackward);
            super::gradients![Some(pointwise_one(op, row, &inputs, Attributes::default(), y.shape(), y.dtype())?)]
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
fn composite(norm: Norm, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    in_acc(x, |x| {
        let y = standardise(norm.op(), norm, x, &[1], eps)?;
        let y = match weight {
            Some(weight) => y.mul(&weight.cast(y.dtype())?)?,
            None => y,
        };
        match bias {
            Some(bias) => y.add(&bias.cast(y.dtype())?),
            None => Ok(y),
        }
    })
}

fn fused(norm: Norm, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let op = norm.op();
    let x = x.contiguous()?;
    let (rows, length, acc) = (x.dims()[0], x.dims()[1], x.dtype().acc());
    let (has_weight, has_bias) = (weight.is_some(), bias.is_some());
    let fused = RowNorm { rows, length, is_centred: norm == Norm::Layer, has_weight, has_bias, eps };
    let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
    let statistics = || Tensor::allocate(op, &Shape::from(rows), acc, x.device());
    let (mean, rstd) = (statistics()?, statistics()?);
    let parameters: Vec<Tensor> = weight.into_iter().chain(bias).map(Tensor::contiguous).collect::<Result<_>>()?;
    let inputs: Vec<&Tensor> = [&x].into_iter().chain(&parameters).collect();
    run_fused(op, &fused, &inputs, &[&y, &mean, &rstd])?;
    let again = move |x: &[Tensor]| {
        let weight = has_weight.then(|| &x[1]);
        let bias = has_bias.then(|| &x[1 + has_weight as usize]);
        composite(norm, &x[0], weight, bias, eps)
    };
    record_fused(op, &inputs, y, again, move |t: &Backward<'_>, inputs: &[Tensor]| {
        let backward = |wanted| RowNormBackward { norm: fused, wanted };
        gradients(op, t, inputs, &[&mean, &rstd], has_weight, backward)
    })
}

/// Runs a backward kernel for the wanted gradients. Inputs: dy, x, the statistics and the weight. Outputs: dx and the gradients of
/// weight and bias.
pub(super) fn gradients<F: Fused>(
    op: &'static str,
    t: &Backward<'_>,
    inputs: &[Tensor],
    statistics: &[&Tensor; 2],
    has_weight: bool,
    kernel: impl FnOnce(Wanted) -> F,
) -> Result<Gradients> {
    let dy = t.dy().contiguous()?;
    let like = |t: &Tensor| Tensor::allocate(op, t.shape(), t.dtype(), t.device());
    let (wants_dx, wants_parameters) = (t.needs(0), (1..inputs.len()).any(|i| t.needs(i)));
    let wants = |i: usize| if i == 0 { wants_dx } else { wants_parameters };
    let wanted = (0..inputs.len()).map(|i| wants(i).then(|| like(&inputs[i])).transpose());
    let wanted: Vec<Option<Tensor>> = wanted.collect::<Result<_>>()?;
    let mut operands = vec![&dy, &inputs[0], statistics[0], statistics[1]];
    operands.extend(has_weight.then(|| &inputs[1]));
    let outputs: Vec<&Tensor> = wanted.iter().flatten().collect();
    run_fused(op, &kernel(Wanted { dx: wants_dx, parameters: wants_parameters }), &operands, &outputs)?;
    Ok(wanted.into_iter().enumerate().map(|(i, gradient)| gradient.filter(|_| t.needs(i))).collect())
}
