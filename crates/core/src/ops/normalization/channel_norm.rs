//! Normalisation of channels: over the batch, over groups of channels, and of single channels.

use crate::check::{check_device, check_float, check_same, describe};
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands::Operands;
use crate::ops::elementwise::in_place::update_for;
use crate::ops::in_acc;
use crate::ops::normalization::norm::{Norm, alike, check_eps, in_f32, memory_if, needed, standardise};
use crate::ops::row_like;
use crate::pointwise::Pointwise;
use crate::tape::{Backward, Described, Record, Saved, no_grad, report_as};
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

    /// The operands of a normalisation, with the statistics that it uses.
    fn named(
        &self,
        x: &'a Tensor,
        weight: Option<&'a Tensor>,
        bias: Option<&'a Tensor>,
        residual: Option<&'a Tensor>,
    ) -> BatchNormInputs<&'a Tensor> {
        let used = self.used();
        BatchNormInputs { x, weight, bias, residual, mean: used.map(|r| r.mean), var: used.map(|r| r.var) }
    }
}

/// # Normalisation of channels
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
        self.batch_norm_then(
            "batch_norm_relu",
            weight,
            bias,
            statistics,
            eps,
            Then { residual, rectified: Rectified::Relu },
        )
    }

    /// `min(max(batch_norm(x), 0), 6)` with the parameters of [`batch_norm`](Tensor::batch_norm): what follows a convolution in networks
    /// for small devices. One kernel on GPUs, forward and backward, whose gradient is 0 where the norm is 6 or more before it is rounded.
    /// Sandler et al. 2018, arXiv:1801.04381.
    ///
    /// Errors: as [`batch_norm`](Tensor::batch_norm).
    pub fn batch_norm_relu6(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        statistics: Statistics<'_>,
        eps: f64,
    ) -> Result<Tensor> {
        let then = Then { residual: None, rectified: Rectified::Relu6 };
        self.batch_norm_then("batch_norm_relu6", weight, bias, statistics, eps, then)
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
        let geometry = NormGeometry::new(op, &operands(self, weight, bias, statistics), None, eps)?;
        geometry.check(self, weight, bias, statistics)?;
        if let Some(residual) = then.residual {
            check_same(op, &[self, residual])?;
            if residual.shape() != self.shape() {
                let message = format!("the residual must have the shape of x: {}", describe(&[self, residual]));
                return Err(Error::shape(op, message));
            }
        }
        let (weight, bias) = &alike(weight.cloned(), bias.cloned())?;
        let (weight, bias) = (weight.as_ref(), bias.as_ref());
        let count = geometry.batch * geometry.inner;
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
            let x = self.reshape(geometry.shape())?;
            let residual = then.residual.map(|residual| residual.reshape(geometry.shape())).transpose()?;
            let then = Then { residual: residual.as_ref(), ..then };
            geometry.over_batch(&x, weight, bias, statistics, then)?.reshape(self.shape())?
        };
        geometry.report(Span::Batch, then.rectified, statistics.named(self, weight, bias, then.residual), &y);
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
        let geometry = NormGeometry::new(op, &operands(self, weight, bias, Statistics::Batch), Some(groups), eps)?;
        geometry.check(self, weight, bias, Statistics::Batch)?;
        let (weight, bias) = &alike(weight.cloned(), bias.cloned())?;
        let (weight, bias) = (weight.as_ref(), bias.as_ref());
        if geometry.batch * geometry.channels * geometry.inner == 1 {
            let message = format!("a group has one value: x is {}, of {groups} groups", describe(&[self]));
            return Err(Error::value(op, message));
        }
        let y = geometry.alone(&self.reshape(geometry.shape())?, weight, bias, None)?.reshape(self.shape())?;
        geometry.report(Span::Groups(groups), Rectified::No, Statistics::Batch.named(self, weight, bias, None), &y);
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
        let geometry = NormGeometry::new(op, &operands(self, weight, bias, statistics), Some(channels), eps)?;
        geometry.check(self, weight, bias, statistics)?;
        let (weight, bias) = &alike(weight.cloned(), bias.cloned())?;
        let (weight, bias) = (weight.as_ref(), bias.as_ref());
        let x = self.reshape(geometry.shape())?;
        let y = match statistics {
            Statistics::Running(_) => geometry.over_batch(&x, weight, bias, statistics, Then::default())?,
            _ if geometry.inner == 1 => {
                let message = format!("the variance of one value is asked for: x is {}", describe(&[self]));
                return Err(Error::value(op, message));
            }
            _ => geometry.alone(&x, weight, bias, statistics.updated())?,
        };
        let y = y.reshape(self.shape())?;
        geometry.report(Span::Channels, Rectified::No, statistics.named(self, weight, bias, None), &y);
        Ok(y)
    }
}

/// The activation after a normalisation over the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rectified {
    /// None.
    #[default]
    No,
    /// `max(y, 0)`.
    Relu,
    /// `min(max(y, 0), 6)`.
    Relu6,
}

impl Rectified {
    fn apply(self, y: Tensor) -> Result<Tensor> {
        match self {
            Rectified::No => Ok(y),
            Rectified::Relu => y.relu(),
            Rectified::Relu6 => y.relu6(),
        }
    }

    /// The function of the gradient and y, or what y is before the activation.
    fn backward(self) -> Option<Pointwise> {
        match self {
            Rectified::No => None,
            Rectified::Relu => Some(Pointwise::ReluBackward),
            Rectified::Relu6 => Some(Pointwise::Relu6Backward),
        }
    }
}

/// The ops that follow a normalisation over the batch, before the result is rounded: a residual is added, then there is an activation.
#[derive(Clone, Copy, Default)]
struct Then<'a> {
    residual: Option<&'a Tensor>,
    rectified: Rectified,
}

impl Then<'_> {
    fn apply(&self, y: Tensor) -> Result<Tensor> {
        let y = self.residual.map_or(Ok(y.clone()), |residual| y.add(&residual.cast(y.dtype())?))?;
        self.rectified.apply(y)
    }
}

/// A normalisation of channels of x `[N, C, ..]` as an op of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChannelNorm {
    /// The elements that have a mean and a variance in common, unless these are given.
    pub span: Span,
    /// The activation of the result.
    pub rectified: Rectified,
    /// Added to variances.
    pub eps: f64,
}

impl Described for ChannelNorm {
    type Inputs<T> = BatchNormInputs<T>;
}

/// The elements that have a mean and a variance in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// The elements of a channel, in all samples.
    Batch,
    /// The elements of a sample in one of so many groups of adjacent channels.
    Groups(usize),
    /// The elements of a channel of a sample.
    Channels,
}

/// The normalisation of the channels of x `[batch, channels, inner]`, each over the others. Mean and variance are given, or those of x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// Samples.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Elements of a channel of one sample.
    pub inner: usize,
    /// The activation after all else.
    pub rectified: Rectified,
    /// The weight of this batch in running statistics. Without a momentum, all batches have the same weight.
    pub momentum: Option<f64>,
    /// Added to variances.
    pub eps: f64,
}

crate::operands! {
    /// The inputs of [`BatchNorm`]. Weight and bias have the same dtype, as have mean and variance.
    pub struct BatchNormInputs {
        /// `[batch, channels, inner]`.
        x,
        /// The factor of normalised channels, `[channels]`.
        weight?,
        /// Added to the product, `[channels]`.
        bias?,
        /// Added to the result before the activation; like x.
        residual?,
        /// The mean of channels, `[channels]`, if it is given.
        mean?,
        /// The variance of channels, `[channels]`, if it is given.
        var?,
    }
}

crate::operands! {
    /// The outputs of [`BatchNorm`]. The running statistics are updated in place, in training.
    pub struct BatchNormOutputs {
        /// The result, like x.
        y,
        /// The mean of channels, `[channels]`.
        mean,
        /// `1 / sqrt(var + eps)` of channels, `[channels]`.
        rstd,
        /// The running mean, `[channels]`.
        running_mean?,
        /// The running unbiased variance, `[channels]`.
        running_var?,
        /// The number of batches, one i64, which is incremented before the statistics are updated.
        batches?,
    }
}

/// The gradients of [`BatchNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormBackward {
    /// The forward kernel.
    pub norm: BatchNorm,
    /// True if mean and variance were given: they are constants.
    pub is_given: bool,
}

crate::operands! {
    /// The inputs of [`BatchNormBackward`].
    pub struct BatchNormBackwardInputs {
        /// The gradient of y.
        dy,
        /// The input of the forward kernel.
        x,
        /// The mean of channels.
        mean,
        /// `1 / sqrt(var + eps)` of channels.
        rstd,
        /// The weight of the forward kernel.
        weight?,
        /// The result of an activation with a residual. Without a residual, the argument of the activation is computed again from x.
        y?,
        /// The bias of the forward kernel, if the argument of the activation is computed again.
        bias?,
        /// A further term of dy. Only where the gradient of the residual is written.
        added?,
    }
}

crate::operands! {
    /// The outputs of [`BatchNormBackward`].
    pub struct BatchNormBackwardOutputs {
        /// The gradient of x.
        dx?,
        /// The gradient of the weight.
        weight?,
        /// The gradient of the bias.
        bias?,
        /// The gradient of the residual.
        residual?,
    }
}

/// The normalisation of x `[batch, groups, channels, inner]`: each group of a sample, over its channels.
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
    /// The weight of this batch in running statistics. Without a momentum, all batches have the same weight.
    pub momentum: Option<f64>,
    /// Added to variances.
    pub eps: f64,
}

crate::operands! {
    /// The inputs of [`GroupNorm`]. Weight and bias have the same dtype.
    pub struct GroupNormInputs {
        /// `[batch, groups, channels, inner]`.
        x,
        /// The factor of normalised channels, `[groups * channels]`.
        weight?,
        /// Added to the product, `[groups * channels]`.
        bias?,
        /// The number of batches, one i64, if running statistics are updated without a momentum.
        batches?,
    }
}

crate::operands! {
    /// The outputs of [`GroupNorm`]. The running statistics are updated in place, in training.
    pub struct GroupNormOutputs {
        /// The result, like x.
        y,
        /// The mean of each group, `[batch * groups]`.
        mean,
        /// `1 / sqrt(var + eps)` of each group, `[batch * groups]`.
        rstd,
        /// The running mean, `[groups]`.
        running_mean?,
        /// The running unbiased variance, `[groups]`.
        running_var?,
    }
}

/// The gradients of [`GroupNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNormBackward(pub GroupNorm);

crate::operands! {
    /// The inputs of [`GroupNormBackward`].
    pub struct GroupNormBackwardInputs {
        /// The gradient of y.
        dy,
        /// The input of the forward kernel.
        x,
        /// The mean of each group.
        mean,
        /// `1 / sqrt(var + eps)` of each group.
        rstd,
        /// The weight of the forward kernel.
        weight?,
    }
}

crate::operands! {
    /// The outputs of [`GroupNormBackward`].
    pub struct GroupNormBackwardOutputs {
        /// The gradient of x.
        dx?,
        /// The gradient of the weight.
        weight?,
        /// The gradient of the bias.
        bias?,
    }
}

impl Fused for BatchNorm {
    type Inputs<T> = BatchNormInputs<T>;
    type Outputs<T> = BatchNormOutputs<T>;

    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn composite(
        &self,
        BatchNormInputs { x, weight, bias, residual, mean, var }: BatchNormInputs<&Tensor>,
        before: BatchNormOutputs<&Tensor>,
    ) -> Result<BatchNormOutputs<Option<Tensor>>> {
        let BatchNorm { batch, channels, inner, .. } = *self;
        let x = x.reshape((batch, channels, inner))?;
        let (mean, var) = match (mean, var) {
            (Some(mean), Some(var)) => (mean.reshape((1, channels, 1))?, var.reshape((1, channels, 1))?),
            _ => moments(&x, &[0, 2])?,
        };
        let rstd = var.add_scalar(self.eps)?.rsqrt()?;
        let y = scaled(&x.sub(&mean)?.mul(&rstd)?, weight, bias)?;
        let y = residual.map_or(Ok(y.clone()), |residual| y.add(&residual.reshape(y.shape())?))?;
        let y = self.rectified.apply(y)?;
        let batches = before.batches.map(|batches| batches.add_scalar(1)).transpose()?;
        let share = share(self.momentum, batches.as_ref())?;
        let var = unbiased(&var, batch * inner)?;
        Ok(BatchNormOutputs {
            y: Some(y),
            running_mean: updated(before.running_mean, &mean, share)?,
            running_var: updated(before.running_var, &var, share)?,
            mean: Some(mean),
            rstd: Some(rstd),
            batches: batches.map(Some),
        })
    }
}

impl Fused for BatchNormBackward {
    type Inputs<T> = BatchNormBackwardInputs<T>;
    type Outputs<T> = BatchNormBackwardOutputs<T>;

    fn name(&self) -> &'static str {
        "batch_norm_backward"
    }

    fn composite(
        &self,
        inputs: BatchNormBackwardInputs<&Tensor>,
        before: BatchNormBackwardOutputs<&Tensor>,
    ) -> Result<BatchNormBackwardOutputs<Option<Tensor>>> {
        let BatchNormBackwardInputs { dy, x, mean, rstd, weight, y, bias, added } = inputs;
        let BatchNorm { batch, channels, inner, rectified, .. } = self.norm;
        let mut dy = added.map_or(Ok(dy.clone()), |added| dy.add(&added.reshape(dy.shape())?))?;
        if let Some(backward) = rectified.backward() {
            let by_channel = |t: &Tensor| t.reshape((1, channels, 1));
            let again = || {
                let xhat = x.reshape((batch, channels, inner))?.sub(&by_channel(mean)?)?.mul(&by_channel(rstd)?)?;
                scaled(&xhat, weight, bias)
            };
            let y = y.map_or_else(again, |y| Ok(y.clone()))?.reshape(dy.shape())?;
            dy = row_like(backward, &[dy.clone(), y], &[dy], &[])?.remove(0);
        }
        let inputs = GroupNormBackwardInputs { dy: &dy, x, mean, rstd, weight };
        let wanted = GroupNormBackwardOutputs { dx: before.dx, weight: before.weight, bias: before.bias };
        let found = channel_gradients(&[batch, channels, inner], &[0, 2], self.is_given, inputs, wanted)?;
        let GroupNormBackwardOutputs { dx, weight, bias } = found;
        Ok(BatchNormBackwardOutputs { dx, weight, bias, residual: before.residual.map(|_| Some(dy)) })
    }
}

impl Fused for GroupNorm {
    type Inputs<T> = GroupNormInputs<T>;
    type Outputs<T> = GroupNormOutputs<T>;

    fn name(&self) -> &'static str {
        "group_norm"
    }

    fn composite(
        &self,
        GroupNormInputs { x, weight, bias, batches }: GroupNormInputs<&Tensor>,
        before: GroupNormOutputs<&Tensor>,
    ) -> Result<GroupNormOutputs<Option<Tensor>>> {
        let x = x.reshape((self.batch, self.groups, self.channels, self.inner))?;
        let (mean, var) = moments(&x, &[2, 3])?;
        let rstd = var.add_scalar(self.eps)?.rsqrt()?;
        let y = scaled(&x.sub(&mean)?.mul(&rstd)?, weight, bias)?;
        let share = share(self.momentum, batches)?;
        let var = unbiased(&var, self.channels * self.inner)?.mean(0)?;
        Ok(GroupNormOutputs {
            y: Some(y),
            running_mean: updated(before.running_mean, &mean.mean(0)?, share)?,
            running_var: updated(before.running_var, &var, share)?,
            mean: Some(mean),
            rstd: Some(rstd),
        })
    }
}

impl Fused for GroupNormBackward {
    type Inputs<T> = GroupNormBackwardInputs<T>;
    type Outputs<T> = GroupNormBackwardOutputs<T>;

    fn name(&self) -> &'static str {
        "group_norm_backward"
    }

    fn composite(
        &self,
        inputs: GroupNormBackwardInputs<&Tensor>,
        before: GroupNormBackwardOutputs<&Tensor>,
    ) -> Result<GroupNormBackwardOutputs<Option<Tensor>>> {
        let GroupNorm { batch, groups, channels, inner, .. } = self.0;
        channel_gradients(&[batch, groups, channels, inner], &[2, 3], false, inputs, before)
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
fn scaled(y: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
    let shape: Vec<usize> = y.dims()[1..].iter().copied().take(y.rank() - 2).chain([1]).collect();
    let y = weight.map_or(Ok(y.clone()), |weight| y.mul(&weight.reshape(&*shape)?))?;
    bias.map_or(Ok(y.clone()), |bias| y.add(&bias.reshape(&*shape)?))
}

/// The weight of a batch in running statistics: the momentum, or one over the number of batches.
fn share(momentum: Option<f64>, batches: Option<&Tensor>) -> Result<f64> {
    match (momentum, batches) {
        (None, Some(batches)) => Ok(1.0 / batches.item::<f64>()?),
        (momentum, _) => Ok(momentum.unwrap_or_default()),
    }
}

/// A running statistic after an update.
fn updated(old: Option<&Tensor>, new: &Tensor, share: f64) -> Result<Option<Option<Tensor>>> {
    let one = |old: &Tensor| old.mul_scalar(1.0 - share)?.add(&new.reshape(old.shape())?.mul_scalar(share)?).map(Some);
    old.map(one).transpose()
}

/// The gradients of a normalisation of x, whose `shape` is `[batch, .., inner]`. The dimensions in between are channels. Statistics are
/// over `axes`, or `is_given`.
// dx = rstd (h - mean(h) - xhat mean(h xhat)), h = dy weight. With given mean and variance, dx = rstd h.
fn channel_gradients(
    shape: &[usize],
    axes: &[isize],
    is_given: bool,
    GroupNormBackwardInputs { dy, x, mean, rstd, weight }: GroupNormBackwardInputs<&Tensor>,
    before: GroupNormBackwardOutputs<&Tensor>,
) -> Result<GroupNormBackwardOutputs<Option<Tensor>>> {
    let rank = shape.len();
    let extent = |d: usize| if axes.contains(&(d as isize)) { 1 } else { shape[d] };
    let statistics: Vec<usize> = (0..rank).map(extent).collect();
    let (dy, x) = (dy.reshape(shape)?, x.reshape(shape)?);
    let (mean, rstd) = (mean.reshape(&*statistics)?, rstd.reshape(&*statistics)?);
    let xhat = x.sub(&mean)?.mul(&rstd)?;
    let channels: Vec<usize> = shape[1..rank - 1].iter().copied().chain([1]).collect();
    let others = [0, rank as isize - 1];
    let dx = || {
        let h = weight.map_or(Ok(dy.clone()), |weight| dy.mul(&weight.reshape(&*channels)?))?;
        if is_given {
            return h.mul(&rstd).map(Some);
        }
        let along = xhat.mul(&h.mul(&xhat)?.mean_keepdim(axes)?)?;
        h.sub(&h.mean_keepdim(axes)?)?.sub(&along)?.mul(&rstd).map(Some)
    };
    Ok(GroupNormBackwardOutputs {
        dx: before.dx.map(|_| dx()).transpose()?,
        weight: before.weight.map(|_| dy.mul(&xhat)?.sum(others).map(Some)).transpose()?,
        bias: before.bias.map(|_| dy.sum(others).map(Some)).transpose()?,
    })
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
struct NormGeometry {
    op: &'static str,
    batch: usize,
    groups: usize,
    /// Channels of a group.
    channels: usize,
    inner: usize,
    eps: f64,
}

impl NormGeometry {
    /// The geometry of the first operand. Without `groups`, each channel is a group.
    fn new(op: &'static str, operands: &[&Tensor], groups: Option<usize>, eps: f64) -> Result<NormGeometry> {
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
        Ok(NormGeometry { op, batch: *batch, groups, channels, inner: inner.iter().product(), eps })
    }

    fn shape(&self) -> [usize; 4] {
        [self.batch, self.groups, self.channels, self.inner]
    }

    /// Reports the normalisation with the result y.
    fn report(&self, span: Span, rectified: Rectified, inputs: BatchNormInputs<&Tensor>, y: &Tensor) {
        report_as(self.op, inputs, &[y], || ChannelNorm { span, rectified, eps: self.eps });
    }

    /// Checks that the operands fit x.
    fn check(
        &self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        statistics: Statistics<'_>,
    ) -> Result<()> {
        let (op, channels) = (self.op, self.groups * self.channels);
        let running = statistics.running();
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
        let Some(running) = statistics.updated() else { return Ok(()) };
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
        statistics: Statistics<'_>,
        then: Then<'_>,
    ) -> Result<Tensor> {
        if has_fused::<BatchNorm>(x, statistics.running()) {
            return self.fused_over_batch(x, weight, bias, statistics, then);
        }
        let given = statistics.used().map(|running| self.given(running, x.dtype().acc())).transpose()?;
        let y = self.composite(x, weight, bias, given.as_ref(), &[0, 3], then)?;
        if let Some(running) = statistics.updated() {
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
        statistics: Statistics<'_>,
        then: Then<'_>,
    ) -> Result<Tensor> {
        let (op, geometry, Then { residual, rectified }) = (self.op, *self, then);
        let inputs = BatchNormInputs { x, weight, bias, residual, mean: None, var: None };
        let inputs = inputs.try_map(Tensor::contiguous)?;
        let x = &inputs.x;
        let of_groups = || Tensor::allocate(op, &Shape::from(self.groups), x.dtype().acc(), x.device());
        let (mean, rstd) = (of_groups()?, of_groups()?);
        let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
        let (used, updated) = (statistics.used(), statistics.updated());
        let momentum = updated.and_then(|r| r.momentum);
        let norm = BatchNorm {
            batch: self.batch,
            channels: self.groups,
            inner: self.inner,
            rectified,
            momentum,
            eps: self.eps,
        };
        let (running_mean, running_var) = (updated.map(|r| r.mean), updated.map(|r| r.var));
        let batches = updated.and_then(|r| r.batches);
        let read = BatchNormInputs { mean: used.map(|r| r.mean), var: used.map(|r| r.var), ..inputs.as_ref() };
        let written = BatchNormOutputs { y: &y, mean: &mean, rstd: &rstd, running_mean, running_var, batches };
        run_fused(op, &norm, read, written)?;
        [running_mean, running_var, batches].iter().flatten().for_each(|t| t.touch());
        let given = used.is_some().then(|| (mean.clone(), rstd.clone()));
        let (mask, is_given) = (inputs.mask(), used.is_some());
        let again = move |inputs: &[Tensor]| {
            let BatchNormInputs { x, weight, bias, residual, .. } = BatchNormInputs::of(mask, &mut inputs.iter());
            geometry.composite(x, weight, bias, given.as_ref(), &[0, 3], Then { residual, rectified })
        };
        let is_rectified = rectified != Rectified::No;
        let result = (is_rectified && residual.is_some()).then(|| Saved::output(&y));
        // The kernel adds two terms of the gradient where it writes their sum, the gradient of the residual.
        let has_sum = inputs.residual.as_ref().is_some_and(Tensor::requires_grad);
        let read = inputs.as_ref().present();
        let record = Record::new(op, &read);
        let record = if result.is_some() && has_sum && !is_given { record.reads_terms() } else { record };
        record.fused(y, again, move |t: &Backward<'_>, inputs: &[Tensor]| {
            let BatchNormInputs { x, weight, bias, residual, .. } = BatchNormInputs::of(mask, &mut inputs.iter());
            let needs = BatchNormInputs::of(mask, &mut (0..).map(|i| t.needs(i)));
            let are_wanted = [needs.weight, needs.bias].contains(&Some(true));
            let outputs = BatchNormBackwardOutputs {
                dx: memory_if(op, needs.x, Some(x))?,
                weight: memory_if(op, are_wanted, weight)?,
                bias: memory_if(op, are_wanted, bias)?,
                residual: memory_if(op, needs.residual == Some(true), residual)?,
            };
            let y = result.as_ref().map(|y| t.get(y)).transpose()?;
            let (dy, more) = (&t.terms()[0].value, t.terms().get(1));
            let (dy, more) = (dy.contiguous()?, more.map(|term| term.value.contiguous()).transpose()?);
            let inputs = BatchNormBackwardInputs {
                dy: &dy,
                x,
                mean: &mean,
                rstd: &rstd,
                weight,
                y: y.as_ref(),
                bias: bias.filter(|_| is_rectified && y.is_none()),
                added: more.as_ref(),
            };
            run_fused(op, &BatchNormBackward { norm, is_given }, inputs, outputs.as_ref())?;
            let gradients = BatchNormInputs {
                x: outputs.dx,
                weight: weight.map(|_| outputs.weight),
                bias: bias.map(|_| outputs.bias),
                residual: residual.map(|_| outputs.residual),
                mean: None,
                var: None,
            };
            Ok(needed(t, gradients))
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
        let (op, geometry) = (self.op, *self);
        if !has_fused::<GroupNorm>(x, updated) {
            let y = self.composite(x, weight, bias, None, &[2, 3], Then::default())?;
            if let Some(running) = updated {
                self.update(x, running, &[2, 3])?;
            }
            return Ok(y);
        }
        let inputs = GroupNormInputs { x, weight, bias, batches: None }.try_map(Tensor::contiguous)?;
        let x = &inputs.x;
        let count = Shape::from(self.batch * self.groups);
        let statistics = || Tensor::allocate(op, &count, x.dtype().acc(), x.device());
        let (mean, rstd) = (statistics()?, statistics()?);
        let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
        let NormGeometry { batch, groups, channels, inner, eps, .. } = geometry;
        let (momentum, batches) = (updated.and_then(|r| r.momentum), updated.and_then(|r| r.batches));
        count_batch(batches)?;
        let norm = GroupNorm { batch, groups, channels, inner, momentum, eps };
        let (running_mean, running_var) = (updated.map(|r| r.mean), updated.map(|r| r.var));
        let read = GroupNormInputs { batches: batches.filter(|_| momentum.is_none()), ..inputs.as_ref() };
        let written = GroupNormOutputs { y: &y, mean: &mean, rstd: &rstd, running_mean, running_var };
        run_fused(op, &norm, read, written)?;
        [running_mean, running_var].iter().flatten().for_each(|t| t.touch());
        let mask = inputs.mask();
        let again = move |inputs: &[Tensor]| {
            let GroupNormInputs { x, weight, bias, .. } = GroupNormInputs::of(mask, &mut inputs.iter());
            geometry.composite(x, weight, bias, None, &[2, 3], Then::default())
        };
        Record::new(op, &inputs.as_ref().present()).fused(y, again, move |t: &Backward<'_>, inputs: &[Tensor]| {
            let GroupNormInputs { x, weight, bias, .. } = GroupNormInputs::of(mask, &mut inputs.iter());
            let are_wanted = (1..inputs.len()).any(|i| t.needs(i));
            let outputs = GroupNormBackwardOutputs {
                dx: memory_if(op, t.needs(0), Some(x))?,
                weight: memory_if(op, are_wanted, weight)?,
                bias: memory_if(op, are_wanted, bias)?,
            };
            let dy = t.dy().contiguous()?;
            let inputs = GroupNormBackwardInputs { dy: &dy, x, mean: &mean, rstd: &rstd, weight };
            run_fused(op, &GroupNormBackward(norm), inputs, outputs.as_ref())?;
            let (dweight, dbias) = (weight.map(|_| outputs.weight), bias.map(|_| outputs.bias));
            Ok(needed(t, GroupNormInputs { x: outputs.dx, weight: dweight, bias: dbias, batches: None }))
        })
    }
}

/// True if the device has a kernel for these operands.
fn has_fused<F: Fused>(x: &Tensor, running: Option<Running<'_>>) -> bool {
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
