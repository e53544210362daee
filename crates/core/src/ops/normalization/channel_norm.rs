//! Normalisation of channels: over the batch, over groups of channels, and of single channels.

use crate::check::{check_device, check_float, check_same, describe};
use crate::fused::{FlatFused, has_kernel, run_fused};
use crate::ops::elementwise::in_place::update_for;
use crate::ops::in_acc;
use crate::ops::normalization::norm::{
    Norm, Wanted, alike, check_eps, gradients, in_f32, launch_backward, like, standardise,
};
use crate::ops::row_like;
use crate::pointwise::Pointwise;
use crate::tape::{Backward, Record, Saved, no_grad, report};
use crate::{DType, Error, Result, Shape, Tensor, autocast};

/// Running mean and variance, which training updates in place.
#[derive(Clone, Copy, Debug)]
pub struct Running<'a> {
    /// `[C]`, in the dtype of x or f32.
    pub mean: &'a Tensor,
    /// `[C]`, unbiased, in the dtype of x or f32.
    pub var: &'a Tensor,
    /// The number of batches so far: one element of i64, which training increments.
    pub batches: Option<&'a Tensor>,
    /// The weight of a batch: `running = (1 - momentum) running + momentum batch`. Without a momentum, all batches have the same
    /// weight.
    pub momentum: Option<f64>,
}

/// The source of the mean and variance of a channel.
#[derive(Clone, Copy, Debug)]
pub enum Statistics<'a> {
    /// Computed from x.
    Batch,
    /// Computed from x; the running statistics are updated with them (training).
    Update(Running<'a>),
    /// The running statistics (inference).
    Running(Running<'a>),
}

impl<'a> Statistics<'a> {
    fn running(&self) -> Option<Running<'a>> {
        match self {
            Statistics::Batch => None,
            Statistics::Update(running) | Statistics::Running(running) => Some(*running),
        }
    }

    fn updated(&self) -> Option<Running<'a>> {
        if let Statistics::Update(running) = self { Some(*running) } else { None }
    }

    fn used(&self) -> Option<Running<'a>> {
        if let Statistics::Running(running) = self { Some(*running) } else { None }
    }
}

impl Tensor {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` for each channel of x `[N, C, ..]`. Mean and biased variance are over all
    /// other dimensions, or are running statistics. Weight and bias are `[C]`, in the dtype of x or f32, and default to 1 and 0.
    /// Float dtypes. Ioffe and Szegedy 2015, arXiv:1502.03167.
    ///
    /// Errors: `Shape`; `Dtype`; `Attr` if eps is negative, or if all batches have the same weight and there is no count of
    /// batches; `Value` for the variance of a single element, or if running statistics require a gradient or share memory with
    /// another operand.
    pub fn batch_norm(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        statistics: Statistics<'_>,
        eps: f64,
    ) -> Result<Tensor> {
        self.batch_norm_then("batch_norm", weight, bias, statistics, eps, Then::default())
    }

    /// `max(batch_norm(x) + residual, 0)` with the parameters of [`batch_norm`](Tensor::batch_norm), and a residual like x where it is
    /// given: what follows a convolution in residual networks. One kernel on GPUs, forward and backward. He et al. 2016,
    /// arXiv:1512.03385.
    ///
    /// Errors: as [`batch_norm`](Tensor::batch_norm); `Shape`, `Dtype` or `Device` for a residual that is not like x.
    pub fn batch_norm_relu(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        statistics: Statistics<'_>,
        eps: f64,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.batch_norm_then("batch_norm_relu", weight, bias, statistics, eps, Then { residual, is_relu: true })
    }

    fn batch_norm_then(
        &self,
        op: &'static str,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        statistics: Statistics<'_>,
        eps: f64,
        then: Then<'_>,
    ) -> Result<Tensor> {
        let form = Form::new(op, &operands(self, weight, bias, statistics), None, eps)?;
        form.check(self, weight, bias, statistics)?;
        if let Some(residual) = then.residual {
            check_same(op, &[self, residual])?;
            if residual.shape() != self.shape() {
                let message = format!("the residual must have the shape of x: {}", describe(&[self, residual]));
                return Err(Error::shape(op, message));
            }
        }
        let (weight, bias) = &alike(weight.cloned(), bias.cloned())?;
        let (weight, bias) = (weight.as_ref(), bias.as_ref());
        let count = form.batch * form.inner;
        if statistics.used().is_none() && count == 1 {
            let message = format!("the variance of one value is asked for: x is {}", describe(&[self]));
            return Err(Error::value(op, message));
        }
        let y = if self.is_channels_last() {
            let residual = then.residual.map(Tensor::to_channels_last).transpose()?;
            let rows = residual.as_ref().map(Tensor::as_rows).transpose()?;
            let then = Then { residual: rows.as_ref(), ..then };
            self.on_rows(|x| x.batch_norm_then(op, weight, bias, statistics, eps, then))?
        } else {
            let x = self.reshape(form.shape())?;
            let residual = then.residual.map(|residual| residual.reshape(form.shape())).transpose()?;
            let then = Then { residual: residual.as_ref(), ..then };
            form.over_batch(&x, weight, bias, statistics, then)?.reshape(self.shape())?
        };
        form.report(self, then.residual, [weight, bias], statistics, &y);
        Ok(y)
    }

    /// Normalises each of `groups` groups of adjacent channels of x `[N, C, ..]` by its mean and biased variance, separately for
    /// each sample. Weight and bias are as in [`batch_norm`](Tensor::batch_norm). Float dtypes. Wu and He 2018, arXiv:1803.08494.
    ///
    /// Errors: `Attr` if eps is negative or the groups do not divide C; `Shape`; `Dtype`; `Value` if each group has only one
    /// element in the whole batch.
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.group_norm(groups, in_f32(weight)?.as_ref(), in_f32(bias)?.as_ref(), eps);
        }
        let op = "group_norm";
        let form = Form::new(op, &operands(self, weight, bias, Statistics::Batch), Some(groups), eps)?;
        form.check(self, weight, bias, Statistics::Batch)?;
        let (weight, bias) = &alike(weight.cloned(), bias.cloned())?;
        let (weight, bias) = (weight.as_ref(), bias.as_ref());
        if form.batch * form.channels * form.inner == 1 {
            let message = format!("a group has one value: x is {}, of {groups} groups", describe(&[self]));
            return Err(Error::value(op, message));
        }
        let y = form.alone(&self.reshape(form.shape())?, weight, bias, None)?.reshape(self.shape())?;
        form.report(self, None, [weight, bias], Statistics::Batch, &y);
        Ok(y)
    }

    /// Normalises each channel of each sample of x `[N, C, ..]` by its mean and biased variance, or by running statistics. Training
    /// updates the running statistics with the means over N of the samples' means and unbiased variances. Weight and bias are as in
    /// [`batch_norm`](Tensor::batch_norm). Float dtypes. Ulyanov et al. 2016, arXiv:1607.08022.
    ///
    /// Errors: as [`batch_norm`](Tensor::batch_norm).
    pub fn instance_norm(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        statistics: Statistics<'_>,
        eps: f64,
    ) -> Result<Tensor> {
        let op = "instance_norm";
        let channels = self.dims().get(1).copied().unwrap_or(0);
        let form = Form::new(op, &operands(self, weight, bias, statistics), Some(channels), eps)?;
        form.check(self, weight, bias, statistics)?;
        let (weight, bias) = &alike(weight.cloned(), bias.cloned())?;
        let (weight, bias) = (weight.as_ref(), bias.as_ref());
        let x = self.reshape(form.shape())?;
        let y = match statistics {
            Statistics::Running(_) => form.over_batch(&x, weight, bias, statistics, Then::default())?,
            _ if form.inner == 1 => {
                let message = format!("the variance of one value is asked for: x is {}", describe(&[self]));
                return Err(Error::value(op, message));
            }
            _ => form.alone(&x, weight, bias, statistics.updated())?,
        };
        let y = y.reshape(self.shape())?;
        form.report(self, None, [weight, bias], statistics, &y);
        Ok(y)
    }
}

/// The ops that follow a normalisation over the batch, before the result is rounded: a residual is added, and a maximum with 0 is taken.
#[derive(Clone, Copy, Default)]
struct Then<'a> {
    residual: Option<&'a Tensor>,
    is_relu: bool,
}

impl Then<'_> {
    fn apply(&self, y: Tensor) -> Result<Tensor> {
        let y = self.residual.map_or(Ok(y.clone()), |residual| y.add(&residual.cast(y.dtype())?))?;
        if self.is_relu { y.relu() } else { Ok(y) }
    }
}

/// Inputs: x `[batch, channels, inner]`; the weight and bias of channels, where present; a residual like x, where present; the given mean
/// and variance of channels. Outputs: y; mean and `1 / sqrt(var + eps)` of channels; where present, running mean, running variance and number of batches,
/// which are updated in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// Samples.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Elements of a channel of one sample.
    pub inner: usize,
    /// True if there is a weight.
    pub has_weight: bool,
    /// True if there is a bias.
    pub has_bias: bool,
    /// True if there is a residual, which is added to what is normalised.
    pub has_residual: bool,
    /// True if y is `max(.., 0)` of this.
    pub is_relu: bool,
    /// The source of mean and variance.
    pub moments: ChannelMoments,
    /// True if the number of batches is incremented, before running statistics are updated.
    pub counts_batches: bool,
    /// The weight of this batch in running statistics. Without a momentum, all batches have the same weight.
    pub momentum: Option<f64>,
    /// Added to variances.
    pub eps: f64,
}

/// The source of a channel's mean and variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelMoments {
    /// From x.
    Batch,
    /// From x; running statistics are updated with them.
    Update,
    /// Inputs of the kernel.
    Given,
}

/// Inputs: dy, x, mean, rstd, and the weight where present. After a relu: with a residual, y; without, the bias where present. If
/// `is_added`, a further term of dy. Outputs: dx and the gradients of weight, bias and residual, where present and wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormBackward {
    /// The forward kernel.
    pub norm: BatchNorm,
    /// The outputs of the kernel, beside the gradient of the residual.
    pub wanted: Wanted,
    /// True if the gradient of the residual is wanted.
    pub residual: bool,
    /// True if a further term is added to dy; needs the gradient of a residual.
    pub is_added: bool,
}

impl BatchNorm {
    /// True if the gradient reads y. Without a residual, the argument of a relu is computed again from x.
    pub fn keeps_result(&self) -> bool {
        self.is_relu && self.has_residual
    }

    /// True if the gradient reads the bias.
    pub fn reads_bias(&self) -> bool {
        self.is_relu && !self.has_residual && self.has_bias
    }
}

/// Inputs: x `[batch, groups, channels, inner]`; the weight and bias of all channels, where present; the number of batches, if
/// running statistics are updated and all batches have the same weight. Outputs: y; mean and `1 / sqrt(var + eps)` of each group;
/// the running mean and variance of the groups, updated in place, if they are updated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNorm {
    /// Samples.
    pub batch: usize,
    /// Groups of a sample.
    pub groups: usize,
    /// Channels of a group.
    pub channels: usize,
    /// Elements of a channel.
    pub inner: usize,
    /// True if there is a weight.
    pub has_weight: bool,
    /// True if there is a bias.
    pub has_bias: bool,
    /// True if running statistics are updated.
    pub is_updated: bool,
    /// The weight of this batch in running statistics. Without a momentum, all batches have the same weight.
    pub momentum: Option<f64>,
    /// Added to variances.
    pub eps: f64,
}

/// [`BatchNormBackward`] for groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNormBackward {
    /// The forward kernel.
    pub norm: GroupNorm,
    /// The outputs of the kernel.
    pub wanted: Wanted,
}

impl FlatFused for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn composite(&self, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (channels, given) = (self.channels, &inputs[inputs.len() - 2..]);
        let x = inputs[0].reshape((self.batch, channels, self.inner))?;
        let (mean, var) = match self.moments {
            ChannelMoments::Given => (given[0].reshape((1, channels, 1))?, given[1].reshape((1, channels, 1))?),
            _ => moments(&x, &[0, 2])?,
        };
        let rstd = var.add_scalar(self.eps)?.rsqrt()?;
        let y = scaled(&x.sub(&mean)?.mul(&rstd)?, &inputs[1..], self.has_weight, self.has_bias)?;
        let residual = &inputs[1 + self.has_weight as usize + self.has_bias as usize..];
        let y = if self.has_residual { y.add(&residual[0].reshape(y.shape())?)? } else { y };
        let y = if self.is_relu { y.relu()? } else { y };
        let mut found = vec![Some(y), Some(mean.clone()), Some(rstd)];
        if self.moments == ChannelMoments::Update {
            let batches = if self.counts_batches { Some(before[5].add_scalar(1)?) } else { None };
            let var = unbiased(&var, self.batch * self.inner)?;
            found.extend(updated(&before[3..5], [mean, var], share(self.momentum, batches.as_ref())?)?);
            found.extend(batches.map(Some));
        }
        Ok(found)
    }
}

impl FlatFused for BatchNormBackward {
    fn name(&self) -> &'static str {
        "batch_norm_backward"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let BatchNorm { batch, channels, inner, has_weight, has_bias, moments, .. } = self.norm;
        let is_given = moments == ChannelMoments::Given;
        let gradients =
            ChannelGradients { shape: &[batch, channels, inner], has_weight, has_bias, wanted: self.wanted };
        let mut inputs = inputs.to_vec();
        if self.is_added {
            let further = inputs.pop().expect("a further term").reshape(inputs[0].shape())?;
            inputs[0] = inputs[0].add(&further)?;
        }
        if self.norm.is_relu {
            let read = inputs.split_off(4 + has_weight as usize);
            let y = match self.norm.has_residual {
                true => read[0].clone(),
                false => {
                    let by_channel = |t: &Tensor| t.reshape((1, channels, 1));
                    let x = inputs[1].reshape((batch, channels, inner))?;
                    let xhat = x.sub(&by_channel(&inputs[2])?)?.mul(&by_channel(&inputs[3])?)?;
                    scaled(&xhat, &[&inputs[4..], &read].concat(), has_weight, has_bias)?
                }
            };
            let (dy, y) = (inputs[0].clone(), y.reshape(inputs[0].shape())?);
            inputs[0] = row_like(Pointwise::ReluBackward, &[dy.clone(), y], &[dy], &[])?.remove(0);
        }
        let mut found = gradients.of(&inputs, &[0, 2], is_given)?;
        found.extend(self.residual.then(|| Some(inputs[0].clone())));
        Ok(found)
    }
}

impl FlatFused for GroupNorm {
    fn name(&self) -> &'static str {
        "group_norm"
    }

    fn composite(&self, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let x = inputs[0].reshape((self.batch, self.groups, self.channels, self.inner))?;
        let (mean, var) = moments(&x, &[2, 3])?;
        let rstd = var.add_scalar(self.eps)?.rsqrt()?;
        let y = scaled(&x.sub(&mean)?.mul(&rstd)?, &inputs[1..], self.has_weight, self.has_bias)?;
        let mut found = vec![Some(y), Some(mean.clone()), Some(rstd)];
        if self.is_updated {
            let var = unbiased(&var, self.channels * self.inner)?;
            let share = share(self.momentum, inputs.last())?;
            found.extend(updated(&before[3..5], [mean.mean(0)?, var.mean(0)?], share)?);
        }
        Ok(found)
    }
}

impl FlatFused for GroupNormBackward {
    fn name(&self) -> &'static str {
        "group_norm_backward"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let GroupNorm { batch, groups, channels, inner, has_weight, has_bias, .. } = self.norm;
        let shape = &[batch, groups, channels, inner];
        ChannelGradients { shape, has_weight, has_bias, wanted: self.wanted }.of(inputs, &[2, 3], false)
    }
}

/// Mean and biased variance over `axes`, which stay as dimensions of extent 1.
fn moments(x: &Tensor, axes: &[isize]) -> Result<(Tensor, Tensor)> {
    let mean = x.mean_keepdim(axes)?;
    let var = x.sub(&mean)?.square()?.mean_keepdim(axes)?;
    Ok((mean, var))
}

/// Converts a biased variance of `count` elements to an unbiased one.
fn unbiased(var: &Tensor, count: usize) -> Result<Tensor> {
    var.mul_scalar(count as f64 / (count as f64 - 1.0))
}

/// `y weight + bias`, with the parameters that are present. Channels are the dimensions between the first and the last of y.
fn scaled(y: &Tensor, parameters: &[Tensor], has_weight: bool, has_bias: bool) -> Result<Tensor> {
    let shape: Vec<usize> = y.dims()[1..].iter().copied().take(y.rank() - 2).chain([1]).collect();
    let mut y = y.clone();
    if has_weight {
        y = y.mul(&parameters[0].reshape(&*shape)?)?;
    }
    if has_bias {
        y = y.add(&parameters[has_weight as usize].reshape(&*shape)?)?;
    }
    Ok(y)
}

/// The weight of a batch in running statistics: the momentum, or one over the number of batches.
fn share(momentum: Option<f64>, batches: Option<&Tensor>) -> Result<f64> {
    match (momentum, batches) {
        (None, Some(batches)) => Ok(1.0 / batches.item::<f64>()?),
        (momentum, _) => Ok(momentum.unwrap_or_default()),
    }
}

/// Running statistics after an update.
fn updated(old: &[Tensor], new: [Tensor; 2], share: f64) -> Result<Vec<Option<Tensor>>> {
    let one = |(old, new): (&Tensor, Tensor)| {
        old.mul_scalar(1.0 - share)?.add(&new.reshape(old.shape())?.mul_scalar(share)?).map(Some)
    };
    old.iter().zip(new).map(one).collect()
}

/// The gradients of a normalisation of x `[batch, .., inner]`. The dimensions in between are channels.
struct ChannelGradients<'a> {
    shape: &'a [usize],
    has_weight: bool,
    has_bias: bool,
    wanted: Wanted,
}

impl ChannelGradients<'_> {
    /// From dy, x, mean, rstd and, where present, the weight; statistics are over `axes`.
    // dx = rstd (h - mean(h) - xhat mean(h xhat)), h = dy weight. With given mean and variance, dx = rstd h.
    fn of(&self, inputs: &[Tensor], axes: &[isize], is_given: bool) -> Result<Vec<Option<Tensor>>> {
        let ChannelGradients { shape, wanted, .. } = *self;
        let rank = shape.len();
        let extent = |d: usize| if axes.contains(&(d as isize)) { 1 } else { shape[d] };
        let statistics: Vec<usize> = (0..rank).map(extent).collect();
        let (dy, x) = (inputs[0].reshape(shape)?, inputs[1].reshape(shape)?);
        let (mean, rstd) = (inputs[2].reshape(&*statistics)?, inputs[3].reshape(&*statistics)?);
        let xhat = x.sub(&mean)?.mul(&rstd)?;
        let channels: Vec<usize> = shape[1..rank - 1].iter().copied().chain([1]).collect();
        let others = [0, rank as isize - 1];
        let mut found = Vec::new();
        if wanted.dx {
            let h = if self.has_weight { dy.mul(&inputs[4].reshape(&*channels)?)? } else { dy.clone() };
            let h = match is_given {
                true => h,
                false => {
                    let along = xhat.mul(&h.mul(&xhat)?.mean_keepdim(axes)?)?;
                    h.sub(&h.mean_keepdim(axes)?)?.sub(&along)?
                }
            };
            found.push(Some(h.mul(&rstd)?));
        }
        if wanted.parameters && self.has_weight {
            found.push(Some(dy.mul(&xhat)?.sum(others)?));
        }
        if wanted.parameters && self.has_bias {
            found.push(Some(dy.sum(others)?));
        }
        Ok(found)
    }
}

/// x and the other operands that are present.
fn operands<'a>(
    x: &'a Tensor,
    weight: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
    statistics: Statistics<'a>,
) -> Vec<&'a Tensor> {
    let kept = statistics.running().map(|running| [running.mean, running.var]);
    [x].into_iter().chain(weight).chain(bias).chain(kept.into_iter().flatten()).collect()
}

/// The operand of a normalisation, as `[batch, groups, channels, inner]`.
#[derive(Clone, Copy)]
struct Form {
    op: &'static str,
    batch: usize,
    groups: usize,
    /// Channels of a group.
    channels: usize,
    inner: usize,
    eps: f64,
}

impl Form {
    /// The form of the first operand. Without `groups`, each channel is a group.
    fn new(op: &'static str, operands: &[&Tensor], groups: Option<usize>, eps: f64) -> Result<Form> {
        let x = operands[0];
        check_float(op, x)?;
        let [batch, all, inner @ ..] = x.dims() else {
            return Err(Error::shape(op, format!("x must be [N, C, ..]: {}", describe(operands))));
        };
        check_eps(op, eps)?;
        let groups = groups.unwrap_or(*all);
        let is_divided = if groups == 0 { *all == 0 && op != "group_norm" } else { all % groups == 0 };
        if !is_divided {
            return Err(Error::attr(op, format!("{groups} groups do not divide {all} channels: {}", describe(&[x]))));
        }
        let channels = all.checked_div(groups).unwrap_or(1);
        Ok(Form { op, batch: *batch, groups, channels, inner: inner.iter().product(), eps })
    }

    fn shape(&self) -> [usize; 4] {
        [self.batch, self.groups, self.channels, self.inner]
    }

    /// Reports the normalisation of x to y. Operands: x; residual, weight, bias, and mean and variance that were given, where present.
    fn report(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        [weight, bias]: [Option<&Tensor>; 2],
        of: Statistics<'_>,
        y: &Tensor,
    ) {
        let given = of.used().map(|running| [running.mean, running.var]).into_iter().flatten();
        let inputs: Vec<&Tensor> = [x].into_iter().chain(residual).chain(weight).chain(bias).chain(given).collect();
        report(self.op, &inputs, &[y], || {
            [
                ("has_residual", residual.is_some().into()),
                ("groups", self.groups.into()),
                ("eps", self.eps.into()),
                ("has_weight", weight.is_some().into()),
                ("has_bias", bias.is_some().into()),
                ("has_statistics", of.used().is_some().into()),
            ]
        });
    }

    /// Checks that the operands fit x.
    fn check(&self, x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>, of: Statistics<'_>) -> Result<()> {
        let (op, channels) = (self.op, self.groups * self.channels);
        let running = of.running();
        let kept = running.iter().flat_map(|running| [running.mean, running.var]);
        for p in weight.into_iter().chain(bias).chain(kept.clone()) {
            check_device(op, &[x, p])?;
            if p.dims() != [channels] {
                let message = format!("parameters and statistics must be [{channels}]: {}", describe(&[x, p]));
                return Err(Error::shape(op, message));
            }
            if p.dtype() != x.dtype() && p.dtype() != DType::F32 {
                let message =
                    format!("parameters and statistics must have the dtype of x or f32: {}", describe(&[x, p]));
                return Err(Error::dtype(op, message));
            }
        }
        let Some(running) = of.updated() else { return Ok(()) };
        if let Some(batches) = running.batches {
            check_device(op, &[x, batches])?;
            if batches.dtype() != DType::I64 || batches.numel() != 1 {
                let message = format!("the number of batches must be one i64: {}", describe(&[batches]));
                return Err(Error::dtype(op, message));
            }
        } else if running.momentum.is_none() {
            return Err(Error::attr(op, "an average over all batches needs their number"));
        }
        let changed: Vec<&Tensor> = kept.chain(running.batches).collect();
        for (i, target) in changed.iter().enumerate() {
            target.check_in_place(op)?;
            let mut others = changed[..i].iter().copied().chain([x]).chain(weight).chain(bias);
            if others.any(|other| other.shares_memory(target)) {
                return Err(Error::value(op, "running statistics share memory with another operand"));
            }
        }
        Ok(())
    }

    /// Normalises x, `[N, C, 1, inner]`, over N and inner, or by running statistics.
    fn over_batch(
        &self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        of: Statistics<'_>,
        then: Then<'_>,
    ) -> Result<Tensor> {
        if has_fused::<BatchNorm>(x, of.running()) {
            return self.fused_over_batch(x, weight, bias, of, then);
        }
        let given = of.used().map(|running| self.given(running, x.dtype().acc())).transpose()?;
        let y = self.composite(x, weight, bias, given.as_ref(), &[0, 3], then)?;
        if let Some(running) = of.updated() {
            self.update(x, running, &[0, 3])?;
        }
        Ok(y)
    }

    /// Mean and `1 / sqrt(var + eps)` of running statistics, in `acc`.
    fn given(&self, running: Running<'_>, acc: DType) -> Result<(Tensor, Tensor)> {
        let var = running.var.detach().cast(acc)?;
        Ok((running.mean.detach().cast(acc)?, var.add_scalar(self.eps)?.rsqrt()?))
    }

    /// The composite of the kernels: x is normalised over `axes`, or by the `given` statistics.
    fn composite(
        &self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        given: Option<&(Tensor, Tensor)>,
        axes: &[isize],
        then: Then<'_>,
    ) -> Result<Tensor> {
        let spread = |t: &Tensor, dtype: DType| t.cast(dtype)?.reshape((self.groups, self.channels, 1));
        in_acc(x, |x| {
            let mut y = match given {
                Some((mean, rstd)) => x.sub(&spread(mean, x.dtype())?)?.mul(&spread(rstd, x.dtype())?)?,
                None => standardise(self.op, Norm::Layer, x, axes, self.eps)?,
            };
            if let Some(weight) = weight {
                y = y.mul(&spread(weight, y.dtype())?)?;
            }
            if let Some(bias) = bias {
                y = y.add(&spread(bias, y.dtype())?)?;
            }
            then.apply(y)
        })
    }

    /// Updates running statistics from x over `axes`. If N is not among them, the new statistics are averaged over N. An empty x
    /// changes nothing.
    fn update(&self, x: &Tensor, running: Running<'_>, axes: &[isize]) -> Result<()> {
        if x.numel() == 0 {
            return Ok(());
        }
        let channels = self.groups * self.channels;
        let count = axes.iter().map(|&axis| x.dims()[axis as usize]).product::<usize>() as f64;
        no_grad(|| {
            let x = x.detach().cast(x.dtype().acc())?;
            let rows = |t: Tensor| t.reshape((t.numel() / channels, channels))?.mean(0);
            count_batch(running.batches)?;
            let share = match (running.batches, running.momentum) {
                (Some(batches), None) => batches.reshape(())?.cast(x.dtype())?.reciprocal()?,
                (_, momentum) => Tensor::full((), momentum.unwrap_or_default(), x.dtype(), x.device())?,
            };
            let new = [&rows(x.mean(axes)?)?, &rows(x.var(axes, 0.0)?)?, &share];
            let unbiased = count / (count - 1.0);
            update_for(self.op, Pointwise::RunningUpdate, &[running.mean, running.var], &new, &[unbiased])
        })
    }

    fn fused_over_batch(
        &self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        of: Statistics<'_>,
        then: Then<'_>,
    ) -> Result<Tensor> {
        let (op, form, x) = (self.op, *self, x.contiguous()?);
        let acc = x.dtype().acc();
        let statistics = || Tensor::allocate(op, &Shape::from(self.groups), acc, x.device());
        let (mean, rstd) = (statistics()?, statistics()?);
        let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
        let parameters = contiguous(weight, bias)?;
        let residual = then.residual.map(Tensor::contiguous).transpose()?;
        let inputs: Vec<&Tensor> = [&x].into_iter().chain(&parameters).chain(&residual).collect();
        let (used, updated) = (of.used(), of.updated());
        let changed = updated.iter().flat_map(|r| [r.mean, r.var].into_iter().chain(r.batches));
        let changed: Vec<&Tensor> = changed.collect();
        let read: Vec<&Tensor> = inputs.iter().copied().chain(used.iter().flat_map(|r| [r.mean, r.var])).collect();
        let written: Vec<&Tensor> = [&y, &mean, &rstd].into_iter().chain(changed.iter().copied()).collect();
        let (has_weight, has_bias) = (weight.is_some(), bias.is_some());
        let fused = BatchNorm {
            batch: self.batch,
            channels: self.groups,
            inner: self.inner,
            has_weight,
            has_bias,
            has_residual: residual.is_some(),
            is_relu: then.is_relu,
            moments: match (used, updated) {
                (Some(_), _) => ChannelMoments::Given,
                (_, Some(_)) => ChannelMoments::Update,
                _ => ChannelMoments::Batch,
            },
            counts_batches: updated.is_some_and(|r| r.batches.is_some()),
            momentum: updated.and_then(|r| r.momentum),
            eps: self.eps,
        };
        run_fused(op, &fused, &read, &written)?;
        changed.iter().for_each(|t| t.touch());
        let given = used.is_some().then(|| (mean.clone(), rstd.clone()));
        let (is_relu, parameters) = (then.is_relu, has_weight as usize + has_bias as usize);
        let again = move |x: &[Tensor]| {
            let (weight, bias) = split(x, has_weight, has_bias);
            let then = Then { residual: x.get(1 + parameters), is_relu };
            form.composite(&x[0], weight, bias, given.as_ref(), &[0, 3], then)
        };
        let result = fused.keeps_result().then(|| Saved::output(&y));
        // The kernel adds two terms of the gradient where it writes their sum, the gradient of the residual.
        let has_sum = residual.as_ref().is_some_and(Tensor::requires_grad);
        let is_read_again = fused.keeps_result() && has_sum && fused.moments != ChannelMoments::Given;
        let record = Record::new(op, &inputs);
        let record = if is_read_again { record.reads_terms() } else { record };
        record.fused(y, again, move |t: &Backward<'_>, inputs: &[Tensor]| {
            let is_parameter = |i: &usize| (1..=parameters).contains(i);
            let needs = |i: usize| t.needs(i);
            let wanted = Wanted { dx: needs(0), parameters: (0..inputs.len()).filter(is_parameter).any(needs) };
            let residual = inputs.len() > 1 + parameters && needs(1 + parameters);
            let wants = |i: usize| match i {
                0 => wanted.dx,
                i if is_parameter(&i) => wanted.parameters,
                _ => residual,
            };
            let all: Vec<bool> = (0..inputs.len()).map(wants).collect();
            let y = result.as_ref().map(|y| t.get(y)).transpose()?;
            let bias = fused.reads_bias().then(|| &inputs[1 + has_weight as usize]);
            let (dy, more) = (&t.terms()[0].value, t.terms().get(1));
            let more = more.map(|term| term.value.contiguous()).transpose()?;
            let kernel = BatchNormBackward { norm: fused, wanted, residual, is_added: more.is_some() };
            let further: Vec<&Tensor> = y.iter().chain(bias).chain(&more).collect();
            let backward = (like(op, inputs, &all)?, kernel);
            let found = launch_backward(op, dy, inputs, &[&mean, &rstd], has_weight, &further, backward)?;
            Ok(found.into_iter().enumerate().map(|(i, gradient)| gradient.filter(|_| needs(i))).collect())
        })
    }

    /// Normalises the groups of x `[N, groups, channels, inner]`, each over channels and inner. Updates the running statistics of
    /// instances: groups of one channel.
    fn alone(
        &self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        updated: Option<Running<'_>>,
    ) -> Result<Tensor> {
        let (op, form) = (self.op, *self);
        if !has_fused::<GroupNorm>(x, updated) {
            let y = self.composite(x, weight, bias, None, &[2, 3], Then::default())?;
            if let Some(running) = updated {
                self.update(x, running, &[2, 3])?;
            }
            return Ok(y);
        }
        let x = x.contiguous()?;
        let acc = x.dtype().acc();
        let statistics = || Tensor::allocate(op, &Shape::from(self.batch * self.groups), acc, x.device());
        let (mean, rstd) = (statistics()?, statistics()?);
        let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
        let parameters = contiguous(weight, bias)?;
        let inputs: Vec<&Tensor> = [&x].into_iter().chain(&parameters).collect();
        let (has_weight, has_bias) = (weight.is_some(), bias.is_some());
        let momentum = updated.and_then(|r| r.momentum);
        let batches = updated.and_then(|r| r.batches);
        count_batch(batches)?;
        let read: Vec<&Tensor> = inputs.iter().copied().chain(batches.filter(|_| momentum.is_none())).collect();
        let changed: Vec<&Tensor> = updated.iter().flat_map(|r| [r.mean, r.var]).collect();
        let written: Vec<&Tensor> = [&y, &mean, &rstd].into_iter().chain(changed.iter().copied()).collect();
        let fused = GroupNorm {
            batch: self.batch,
            groups: self.groups,
            channels: self.channels,
            inner: self.inner,
            has_weight,
            has_bias,
            is_updated: updated.is_some(),
            momentum,
            eps: self.eps,
        };
        run_fused(op, &fused, &read, &written)?;
        changed.iter().for_each(|t| t.touch());
        let again = move |x: &[Tensor]| {
            let (weight, bias) = split(x, has_weight, has_bias);
            form.composite(&x[0], weight, bias, None, &[2, 3], Then::default())
        };
        Record::new(op, &inputs).fused(y, again, move |t: &Backward<'_>, inputs: &[Tensor]| {
            let backward = |wanted| GroupNormBackward { norm: fused, wanted };
            gradients(op, t, inputs, &[&mean, &rstd], has_weight, backward)
        })
    }
}

/// True if the device has a kernel for these operands.
fn has_fused<F: FlatFused>(x: &Tensor, running: Option<Running<'_>>) -> bool {
    let is_fit = |r: Running<'_>| {
        let is_contiguous = [r.mean, r.var].into_iter().chain(r.batches).all(Tensor::is_contiguous);
        r.mean.dtype() == r.var.dtype() && is_contiguous
    };
    running.is_none_or(is_fit) && has_kernel::<F>(x)
}

/// Increments the number of batches.
fn count_batch(batches: Option<&Tensor>) -> Result<()> {
    let Some(batches) = batches else { return Ok(()) };
    no_grad(|| batches.add_(&Tensor::ones(batches.shape(), DType::I64, batches.device())?))
}

fn contiguous(weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Vec<Tensor>> {
    weight.into_iter().chain(bias).map(Tensor::contiguous).collect()
}

/// The weight and the bias among the inputs.
fn split(inputs: &[Tensor], has_weight: bool, has_bias: bool) -> (Option<&Tensor>, Option<&Tensor>) {
    (has_weight.then(|| &inputs[1]), has_bias.then(|| &inputs[1 + has_weight as usize]))
}
