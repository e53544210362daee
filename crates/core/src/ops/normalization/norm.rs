//! Normalisation of rows.

use crate::check::{check_device, check_float, check_same, describe};
use crate::fused::{FlatFused, gradients_on_tape, has_kernel, run_fused};
use crate::ops::elementwise::unary::unary;
use crate::ops::matrix::gemm_bias::Activation;
use crate::ops::reduction::reduce::{Moments, Plan};
use crate::ops::{Axes, in_acc, pointwise_one, row_like};
use crate::pointwise::Pointwise;
use crate::tape::{Backward, Gradients, Record, Saved, record_outputs, report};
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
struct Form {
    op: &'static str,
    norm: Norm,
    activation: Activation,
}

impl Form {
    /// Reports the normalisation of x, or of its sum with a residual. Operands: x and the residual; weight and bias, where present.
    fn report(&self, x: &[&Tensor], [weight, bias]: [Option<&Tensor>; 2], y: &[&Tensor], dims: usize, eps: f64) {
        let inputs: Vec<&Tensor> = x.iter().copied().chain(weight).chain(bias).collect();
        report(self.op, &inputs, y, || {
            [
                ("dims", dims.into()),
                ("eps", eps.into()),
                ("has_weight", weight.is_some().into()),
                ("has_bias", bias.is_some().into()),
                ("activation", self.activation.row().map_or("", Pointwise::name).into()),
            ]
        });
    }
}

const LAYER: Form = Form { op: "layer_norm", norm: Norm::Layer, activation: Activation::Identity };
const RMS: Form = Form { op: "rms_norm", norm: Norm::Rms, activation: Activation::Identity };
const RESIDUAL: Form = Form { op: "residual_layer_norm", ..LAYER };

/// Inputs: rows x `[rows, length]`; the residual like x, the weight and the bias, where present. Outputs: y; mean and
/// `1 / sqrt(var + eps)` of each row; with a residual, its rounded sum with x, whose rows are normalised. The mean is unspecified
/// unless it is subtracted. The residual and the sum may be f32 where x and y have 16 bits.
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
    /// Applied after the bias. Its gradient is a function of its argument, or of the sign of its result.
    pub activation: Activation,
    /// True if x is added to a residual.
    pub has_residual: bool,
}

/// Inputs: dy, x (the sum, with a residual), mean, rstd; the weight, where present; with an activation, the bias, where present; the
/// gradient that is added to dx, if `is_added`. Outputs: dx and the gradients of weight and bias, where present and wanted. If
/// `is_mixed`, dy has 16 bits and x f32, and dx comes twice: first in the dtype of dy, then in that of x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowNormBackward {
    /// The forward kernel.
    pub norm: RowNorm,
    /// The outputs of the kernel.
    pub wanted: Wanted,
    /// True if a further gradient is added to dx.
    pub is_added: bool,
    /// True if the sum of x and the residual has another dtype than x.
    pub is_mixed: bool,
}

/// The gradients of a normalisation that are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The gradient of x.
    pub dx: bool,
    /// The gradients of the weight and the bias.
    pub parameters: bool,
}

impl Wanted {
    /// Whether the gradient of each input, x and the parameters, is computed.
    fn of(&self, inputs: &[Tensor]) -> Vec<bool> {
        (0..inputs.len()).map(|i| if i == 0 { self.dx } else { self.parameters }).collect()
    }
}

impl FlatFused for RowNorm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let sum = if self.has_residual { Some(inputs[0].add(&inputs[1])?) } else { None };
        let (x, parameters) = (sum.as_ref().unwrap_or(&inputs[0]), &inputs[1 + self.has_residual as usize..]);
        let mean = x.mean_keepdim(1)?;
        let centred = if self.is_centred { x.sub(&mean)? } else { x.clone() };
        let rstd = centred.square()?.mean_keepdim(1)?.add_scalar(self.eps)?.rsqrt()?;
        let mut y = self.scaled(&centred.mul(&rstd)?, parameters)?;
        if let Some(row) = self.activation.row() {
            y = row_like(row, std::slice::from_ref(&y), std::slice::from_ref(&y), &[])?.remove(0);
        }
        let found = [Some(y), Some(mean).filter(|_| self.is_centred), Some(rstd)];
        Ok(found.into_iter().chain(sum.map(Some)).collect())
    }

    // The sum, and the results for it.
    fn roundings(&self) -> usize {
        1 + self.has_residual as usize
    }
}

impl RowNorm {
    /// Normalised rows times the weight plus the bias, where present.
    fn scaled(&self, xhat: &Tensor, parameters: &[Tensor]) -> Result<Tensor> {
        let y = if self.has_weight { xhat.mul(&parameters[0])? } else { xhat.clone() };
        if self.has_bias { y.add(&parameters[self.has_weight as usize]) } else { Ok(y) }
    }
}

impl FlatFused for RowNormBackward {
    fn name(&self) -> &'static str {
        "norm_backward"
    }

    // dx = rstd (h - mean(h) - xhat mean(h xhat)), h = dy weight
    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (RowNormBackward { norm, wanted, is_added, is_mixed }, x) = (self, &inputs[1]);
        let (mean, rstd) = (inputs[2].unsqueeze(1)?, inputs[3].unsqueeze(1)?);
        let xhat = if norm.is_centred { x.sub(&mean)? } else { x.clone() }.mul(&rstd)?;
        let dy = &match norm.activation.slope() {
            None => inputs[0].clone(),
            Some((row, _)) => {
                let operands = [inputs[0].clone(), norm.scaled(&xhat, &inputs[4..])?];
                row_like(row, &operands, &inputs[..1], &[])?.remove(0)
            }
        };
        let mut found = Vec::new();
        if wanted.dx {
            let h = if norm.has_weight { dy.mul(&inputs[4])? } else { dy.clone() };
            let along = xhat.mul(&h.mul(&xhat)?.mean_keepdim(1)?)?;
            let h = if norm.is_centred { h.sub(&h.mean_keepdim(1)?)? } else { h };
            let dx = h.sub(&along)?.mul(&rstd)?;
            let dx = if *is_added { dx.add(&inputs[inputs.len() - 1])? } else { dx };
            found.extend(std::iter::repeat_n(Some(dx), 1 + *is_mixed as usize));
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
        norm(Form { op: "layer_norm_activation", activation, ..LAYER }, self, dims, weight, bias, eps)
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
    form: Form,
    x: &Tensor,
    dims: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    if let Some(([x], _)) = autocast::wide([x], None)? {
        return norm(form, &x, dims, in_f32(weight)?.as_ref(), in_f32(bias)?.as_ref(), eps);
    }
    let given = (weight, bias);
    let (rows, weight, bias) = flattened(form.op, x, dims, weight, bias, eps)?;
    let run = match (has_kernel::<RowNorm>(x), form.activation) {
        (false, _) => composite,
        (true, Activation::Sigmoid | Activation::Tanh) => in_two_steps,
        (true, _) => fused,
    };
    let y = run(form, &rows, weight.as_ref(), bias.as_ref(), eps)?.reshape(x.shape())?;
    form.report(&[x], [given.0, given.1], &[&y], dims, eps);
    Ok(y)
}

/// The norm by its kernel, and an activation by another: a gradient that is a function of the result alone needs the result.
fn in_two_steps(form: Form, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    in_acc(x, |x| {
        let wide = |p: Option<&Tensor>| p.map(|p| p.cast(x.dtype())).transpose();
        let plain = Form { activation: Activation::Identity, ..form };
        let y = fused(plain, x, wide(weight)?.as_ref(), wide(bias)?.as_ref(), eps)?;
        activated(form, y)
    })
}

/// The activation of a normalised tensor.
fn activated(form: Form, y: Tensor) -> Result<Tensor> {
    match form.activation.rows() {
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
    let given = [weight, bias];
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
    RESIDUAL.report(&[x, residual], given, &[&y, &s], dims, eps);
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
    let [mean, rstd] = Plan::new(op, x, &axes)?.moments(op, norm == Norm::Layer, eps)?;
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
fn composite(form: Form, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    in_acc(x, |x| {
        let y = standardise(form.op, form.norm, x, &[1], eps)?;
        let y = match weight {
            Some(weight) => y.mul(&weight.cast(y.dtype())?)?,
            None => y,
        };
        let y = match bias {
            Some(bias) => y.add(&bias.cast(y.dtype())?)?,
            None => y,
        };
        activated(form, y)
    })
}

/// A call of the kernel: its descriptor, the parameters, and the statistics of each row.
struct Normalised {
    kernel: RowNorm,
    parameters: Vec<Tensor>,
    mean: Tensor,
    rstd: Tensor,
}

impl Normalised {
    /// Normalises contiguous rows `x[0]`, or their sum with the residual `x[1]`. Outputs: y and, with a residual, the sum.
    fn new(
        form: Form,
        x: &[&Tensor],
        outputs: &[&Tensor],
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Normalised> {
        let (rows, length) = (x[0].dims()[0], x[0].dims()[1]);
        let statistics = || Tensor::allocate(form.op, &Shape::from(rows), x[0].dtype().acc(), x[0].device());
        let kernel = RowNorm {
            rows,
            length,
            is_centred: form.norm == Norm::Layer,
            has_weight: weight.is_some(),
            has_bias: bias.is_some(),
            eps,
            activation: form.activation,
            has_residual: x.len() > 1,
        };
        let parameters = weight.into_iter().chain(bias).map(Tensor::contiguous).collect::<Result<_>>()?;
        let made = Normalised { kernel, parameters, mean: statistics()?, rstd: statistics()? };
        let inputs: Vec<&Tensor> = x.iter().copied().chain(&made.parameters).collect();
        let statistics = [&made.mean, &made.rstd];
        let outputs: Vec<&Tensor> =
            [outputs[0]].into_iter().chain(statistics).chain(outputs[1..].iter().copied()).collect();
        run_fused(form.op, &kernel, &inputs, &outputs)?;
        Ok(made)
    }

    /// The kernel's composite for x and the parameters.
    fn composite(form: Form, kernel: &RowNorm, x: &[Tensor]) -> Result<Tensor> {
        let weight = kernel.has_weight.then(|| &x[1]);
        let bias = kernel.has_bias.then(|| &x[1 + kernel.has_weight as usize]);
        composite(form, &x[0], weight, bias, kernel.eps)
    }
}

fn fused(form: Form, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let (op, x) = (form.op, x.contiguous()?);
    let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
    let Normalised { kernel, parameters, mean, rstd } = Normalised::new(form, &[&x], &[&y], weight, bias, eps)?;
    let inputs: Vec<&Tensor> = [&x].into_iter().chain(&parameters).collect();
    let again = move |x: &[Tensor]| Normalised::composite(form, &kernel, x);
    Record::new(op, &inputs).fused(y, again, move |t: &Backward<'_>, inputs: &[Tensor]| {
        // The activation's argument is computed again.
        let has_bias = kernel.has_bias && kernel.activation != Activation::Identity;
        let bias = if has_bias { inputs.last() } else { None };
        let wanted = Wanted { dx: t.needs(0), parameters: (1..inputs.len()).any(|i| t.needs(i)) };
        let backward = RowNormBackward { norm: kernel, wanted, is_added: false, is_mixed: false };
        let backward = (like(op, inputs, &wanted.of(inputs))?, backward);
        let found = launch_backward(op, t.dy(), inputs, &[&mean, &rstd], kernel.has_weight, bias.as_slice(), backward)?;
        Ok(found.into_iter().enumerate().map(|(i, gradient)| gradient.filter(|_| t.needs(i))).collect())
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
    let (op, x, residual) = (RESIDUAL.op, x.contiguous()?, residual.contiguous()?);
    let like = |t: &Tensor| Tensor::allocate(op, t.shape(), t.dtype(), t.device());
    let (y, s) = (like(&x)?, like(&residual)?);
    let made = Normalised::new(RESIDUAL, &[&x, &residual], &[&y, &s], weight, bias, eps)?;
    let Normalised { kernel, parameters, mean, rstd } = made;
    let inputs: Vec<&Tensor> = [&x, &residual].into_iter().chain(&parameters).collect();
    let saved: Vec<Saved> = [Saved::nth_output(&s, 1)].into_iter().chain(parameters.iter().map(Saved::input)).collect();
    let dtype = x.dtype();
    let outputs = record_outputs(op, &inputs, vec![y, s], move |t| {
        let inputs: Vec<Tensor> = saved.iter().map(|s| t.get(s)).collect::<Result<_>>()?;
        let is_needed: Vec<bool> =
            [t.needs(0) || t.needs(1)].into_iter().chain((1..inputs.len()).map(|i| t.needs(i + 1))).collect();
        let SumGradients { dx, ds, parameters } =
            residual_gradients(t, &inputs, &is_needed, &kernel, [&mean, &rstd], dtype)?;
        let both = [dx.filter(|_| t.needs(0)), ds.filter(|_| t.needs(1))];
        Ok(both.into_iter().chain(parameters).collect::<Vec<_>>())
    })?;
    Ok(outputs.try_into().expect("there are two outputs"))
}

/// The gradients of a normalised sum: of x, in its dtype; of the residual, in that of the sum; of the weight and the bias.
struct SumGradients {
    dx: Option<Tensor>,
    ds: Option<Tensor>,
    parameters: Vec<Option<Tensor>>,
}

impl SumGradients {
    /// From the gradients of the sum and the parameters, for x of a dtype.
    fn of(mut found: Vec<Option<Tensor>>, dtype: DType) -> Result<SumGradients> {
        let ds = found.remove(0);
        Ok(SumGradients { dx: ds.as_ref().map(|ds| ds.cast(dtype)).transpose()?, ds, parameters: found })
    }
}

/// The gradients from those of y and s. `inputs` are s and the parameters, and x has this dtype.
fn residual_gradients(
    t: &Backward<'_>,
    inputs: &[Tensor],
    is_needed: &[bool],
    kernel: &RowNorm,
    statistics: [&Tensor; 2],
    dtype: DType,
) -> Result<SumGradients> {
    let Some(dy) = t.dy_of(0) else {
        // The parameters are no part of s.
        let zeros = |i: usize| is_needed[i].then(|| inputs[i].zeros_like()).transpose();
        let found = [Ok(t.dy_of(1).cloned())].into_iter().chain((1..inputs.len()).map(zeros));
        return SumGradients::of(found.collect::<Result<_>>()?, dtype);
    };
    if t.creates_graph() {
        let dy_of = |_| Some(dy.clone());
        let composite = |x: &[Tensor]| Ok(vec![Normalised::composite(RESIDUAL, kernel, x)?.cast(dtype)?]);
        let mut found = gradients_on_tape(inputs, is_needed, dy_of, composite)?;
        if let (Some(ds), Some(more)) = (&found[0], t.dy_of(1)) {
            found[0] = Some(ds.add(more)?);
        }
        return SumGradients::of(found, dtype);
    }
    let wanted = Wanted { dx: is_needed[0], parameters: is_needed[1..].contains(&true) };
    let more = t.dy_of(1).filter(|_| wanted.dx).map(Tensor::contiguous).transpose()?;
    let is_mixed = dtype != inputs[0].dtype();
    let backward = RowNormBackward { norm: *kernel, wanted, is_added: more.is_some(), is_mixed };
    let mut outputs = like(RESIDUAL.op, inputs, &wanted.of(inputs))?;
    if is_mixed {
        let dx = wanted.dx.then(|| Tensor::allocate(RESIDUAL.op, inputs[0].shape(), dtype, inputs[0].device()));
        outputs.insert(0, dx.transpose()?);
    }
    let backward = (outputs, backward);
    let mut found =
        launch_backward(RESIDUAL.op, dy, inputs, &statistics, kernel.has_weight, more.as_ref().as_slice(), backward)?;
    let dx = if is_mixed { found.remove(0) } else { found[0].clone() };
    let mut found = found.into_iter().zip(is_needed).map(|(gradient, needed)| gradient.filter(|_| *needed));
    Ok(SumGradients { dx, ds: found.next().flatten(), parameters: found.collect() })
}

/// Runs a backward kernel for the gradients that are needed. Inputs: dy, x, the statistics and the weight. Outputs: dx and the
/// gradients of weight and bias.
pub(crate) fn gradients<F: FlatFused>(
    op: &'static str,
    t: &Backward<'_>,
    inputs: &[Tensor],
    statistics: &[&Tensor; 2],
    has_weight: bool,
    kernel: impl FnOnce(Wanted) -> F,
) -> Result<Gradients> {
    let wanted = Wanted { dx: t.needs(0), parameters: (1..inputs.len()).any(|i| t.needs(i)) };
    let backward = (like(op, inputs, &wanted.of(inputs))?, kernel(wanted));
    let found = launch_backward(op, t.dy(), inputs, statistics, has_weight, &[], backward)?;
    Ok(found.into_iter().enumerate().map(|(i, gradient)| gradient.filter(|_| t.needs(i))).collect())
}

/// Memory for the gradients of the inputs that are `wanted`.
pub(crate) fn like(op: &'static str, inputs: &[Tensor], wanted: &[bool]) -> Result<Vec<Option<Tensor>>> {
    let like = |t: &Tensor| Tensor::allocate(op, t.shape(), t.dtype(), t.device());
    inputs.iter().zip(wanted).map(|(x, wanted)| wanted.then(|| like(x)).transpose()).collect()
}

/// Runs a backward kernel. `inputs` are x, the parameters, and others as the kernel has them. Operands: dy, x, the statistics, the weight,
/// and those that are `further`. The outputs, where present, are returned.
pub(crate) fn launch_backward<F: FlatFused>(
    op: &'static str,
    dy: &Tensor,
    inputs: &[Tensor],
    statistics: &[&Tensor; 2],
    has_weight: bool,
    further: &[&Tensor],
    (outputs, kernel): (Vec<Option<Tensor>>, F),
) -> Result<Vec<Option<Tensor>>> {
    let dy = dy.contiguous()?;
    let mut operands = vec![&dy, &inputs[0], statistics[0], statistics[1]];
    operands.extend(has_weight.then(|| &inputs[1]).into_iter().chain(further.iter().copied()));
    run_fused(op, &kernel, &operands, &outputs.iter().flatten().collect::<Vec<_>>())?;
    Ok(outputs)
}
