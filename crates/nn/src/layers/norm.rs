//! Normalisation layers.

use crate::hook::{called, is_hooked};
use crate::module::of_rank;
use crate::{Across, Forward, Init, Mode, Module, Visitor, VisitorMut};
use isograd_core::ops::{Activation, LocalResponse, Running, Statistics};
use isograd_core::{DType, Error, Result, Shape, Tensor, no_grad};
use std::sync::Arc;

/// Normalises the last dimensions of x: `(x - mean) / sqrt(var + eps) * weight + bias`.
#[derive(Module)]
#[module(details = format!("{}, eps {}", self.shape, self.eps))]
pub struct LayerNorm {
    /// The weight, with the normalised shape.
    pub weight: Option<Tensor>,
    /// The bias, with the normalised shape.
    pub bias: Option<Tensor>,
    /// Added to the variance; 1e-5 by default.
    #[module(skip)]
    pub eps: f64,
    #[module(skip)]
    shape: Shape,
}

impl LayerNorm {
    /// For x `[.., shape]`, with weight 1 and bias 0.
    pub fn new(shape: impl Into<Shape>, init: &Init) -> Result<LayerNorm> {
        let norm = LayerNorm::without_bias(shape, init)?;
        Ok(LayerNorm { bias: Some(init.zeros(&norm.shape)?), ..norm })
    }

    /// Without a bias.
    pub fn without_bias(shape: impl Into<Shape>, init: &Init) -> Result<LayerNorm> {
        let norm = LayerNorm::without_parameters(shape);
        Ok(LayerNorm { weight: Some(init.ones(&norm.shape)?), ..norm })
    }

    /// Without weight and bias.
    pub fn without_parameters(shape: impl Into<Shape>) -> LayerNorm {
        LayerNorm { weight: None, bias: None, eps: 1e-5, shape: shape.into() }
    }
}

impl LayerNorm {
    /// The norm of `s = x + residual`, and s: `(y, s)`, as [`Tensor::residual_layer_norm`]: where x has 16 bits and the residual f32, y has 16
    /// bits and s f32. On a GPU it is one kernel. Errors: `Shape`, `Dtype`.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        called(self, &[x, residual], || {
            check_last("residual_layer_norm", x, &self.shape)?;
            let (weight, bias) = (self.weight.as_ref(), self.bias.as_ref());
            x.residual_layer_norm(residual, self.shape.rank(), weight, bias, self.eps)
        })
    }
}

impl Forward for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            check_last("layer_norm", x, &self.shape)?;
            x.layer_norm(self.shape.rank(), self.weight.as_ref(), self.bias.as_ref(), self.eps)
        })
    }

    /// `activation(norm(x))`, rounded once. For relu, gelu and silu it is one kernel on a GPU. Hooks get the activated result. Errors: `Shape`.
    fn forward_with(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        called(self, &[x], || {
            check_last("layer_norm_activation", x, &self.shape)?;
            let (weight, bias) = (self.weight.as_ref(), self.bias.as_ref());
            x.layer_norm_activation(self.shape.rank(), weight, bias, self.eps, activation)
        })
    }
}

/// Divides the last dimensions of x by their root mean square: `x / sqrt(mean(x^2) + eps) * weight`.
#[derive(Module)]
#[module(details = format!("{}, eps {}", self.shape, self.eps))]
pub struct RmsNorm {
    /// The weight, with the normalised shape.
    pub weight: Option<Tensor>,
    /// Added to the mean square; 1e-5 by default.
    #[module(skip)]
    pub eps: f64,
    /// Added to the weight; 0 by default. In Gemma it is 1.
    #[module(skip)]
    pub weight_offset: f64,
    #[module(skip)]
    shape: Shape,
}

impl RmsNorm {
    /// For x `[.., shape]`, with weight 1.
    pub fn new(shape: impl Into<Shape>, init: &Init) -> Result<RmsNorm> {
        let norm = RmsNorm::without_parameters(shape);
        Ok(RmsNorm { weight: Some(init.ones(&norm.shape)?), ..norm })
    }

    /// Without a weight.
    pub fn without_parameters(shape: impl Into<Shape>) -> RmsNorm {
        RmsNorm { weight: None, eps: 1e-5, weight_offset: 0.0, shape: shape.into() }
    }
}

impl Forward for RmsNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            check_last("rms_norm", x, &self.shape)?;
            let moved = |w: &Tensor| w.add_scalar(self.weight_offset);
            let weight = self.weight.as_ref().filter(|_| self.weight_offset != 0.0).map(moved).transpose()?;
            x.rms_norm(self.shape.rank(), weight.as_ref().or(self.weight.as_ref()), self.eps)
        })
    }
}

fn check_last(op: &'static str, x: &Tensor, shape: &Shape) -> Result<()> {
    match x.dims().ends_with(shape.dims()) {
        true => Ok(()),
        false => Err(Error::shape(op, format!("x has shape {}, expected [.., {shape}]", x.shape()))),
    }
}

/// Normalises groups of adjacent channels of x `[N, C, ..]`, separately for each sample.
#[derive(Module)]
#[module(details = format!("{}, {} groups, eps {}", self.channels, self.groups, self.eps))]
pub struct GroupNorm {
    /// `[C]`.
    pub weight: Option<Tensor>,
    /// `[C]`.
    pub bias: Option<Tensor>,
    /// Added to the variance; 1e-5 by default.
    #[module(skip)]
    pub eps: f64,
    #[module(skip)]
    groups: usize,
    #[module(skip)]
    channels: usize,
}

impl GroupNorm {
    /// With weight 1 and bias 0. Errors: `Attr` unless the groups divide the channels.
    pub fn new(groups: usize, channels: usize, init: &Init) -> Result<GroupNorm> {
        let norm = GroupNorm::without_parameters(groups, channels)?;
        Ok(GroupNorm { weight: Some(init.ones(channels)?), bias: Some(init.zeros(channels)?), ..norm })
    }

    /// Without weight and bias. Errors: as above.
    pub fn without_parameters(groups: usize, channels: usize) -> Result<GroupNorm> {
        if groups == 0 || !channels.is_multiple_of(groups) {
            let message = format!("{groups} groups do not divide {channels} channels");
            return Err(Error::attr("group_norm", message));
        }
        Ok(GroupNorm { weight: None, bias: None, eps: 1e-5, groups, channels })
    }
}

impl Forward for GroupNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            check_channels("group_norm", x, 1, self.channels)?;
            x.group_norm(self.groups, self.weight.as_ref(), self.bias.as_ref(), self.eps)
        })
    }
}

fn check_channels(op: &'static str, x: &Tensor, dim: usize, channels: usize) -> Result<()> {
    match x.dims().get(dim) {
        Some(&found) if found == channels => Ok(()),
        _ => Err(Error::shape(op, format!("x has shape {}, expected {channels} channels", x.shape()))),
    }
}

/// The options of batch and instance normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct NormOptions {
    /// Added to the variance.
    pub eps: f64,
    /// The weight of a batch in the running statistics. Without a momentum, all batches have the same weight, and instance
    /// normalisation does not update the statistics.
    pub momentum: Option<f64>,
    /// True if there are weight and bias.
    pub affine: bool,
    /// True if there are running statistics, which are used in evaluation.
    pub track_running_stats: bool,
}

impl Default for NormOptions {
    /// The options of batch normalisation, [`NormOptions::BATCH`].
    fn default() -> NormOptions {
        NormOptions::BATCH
    }
}

impl NormOptions {
    /// For batch normalisation: weight, bias and running statistics, with eps 1e-5 and momentum 0.1.
    pub const BATCH: NormOptions =
        NormOptions { eps: 1e-5, momentum: Some(0.1), affine: true, track_running_stats: true };
    /// For instance normalisation: neither weight and bias nor running statistics.
    pub const INSTANCE: NormOptions = NormOptions { affine: false, track_running_stats: false, ..NormOptions::BATCH };
}

/// For x `[N, C]` or `[N, C, L]`.
pub type BatchNorm1d = BatchNorm<1>;
/// For x `[N, C, H, W]`.
pub type BatchNorm2d = BatchNorm<2>;
/// For x `[N, C, D, H, W]`.
pub type BatchNorm3d = BatchNorm<3>;

/// For x `[N, C, L]` or `[C, L]`.
pub type InstanceNorm1d = InstanceNorm<1>;
/// For x `[N, C, H, W]` or `[C, H, W]`.
pub type InstanceNorm2d = InstanceNorm<2>;
/// For x `[N, C, D, H, W]` or `[C, D, H, W]`.
pub type InstanceNorm3d = InstanceNorm<3>;

macro_rules! channel_norm {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty = $of_init:expr)? }, $options:ident, $names:expr) => {
        $(#[$doc])*
        #[derive(Module)]
        #[module(details = format!("{}, eps {}", self.channels, self.options.eps))]
        #[module(type_name = of_rank(D, $names))]
        pub struct $name<const D: usize> {
            /// `[C]`.
            pub weight: Option<Tensor>,
            /// `[C]`.
            pub bias: Option<Tensor>,
            /// `[C]`: a buffer, which training updates in place.
            pub running_mean: Option<Tensor>,
            /// `[C]`, unbiased: a buffer, which training updates in place.
            pub running_var: Option<Tensor>,
            /// The number of training batches, a buffer of one i64. Instance normalisation does not count them.
            pub num_batches_tracked: Option<Tensor>,
            #[module(skip)]
            options: NormOptions,
            #[module(skip)]
            channels: usize,
            mode: Mode,
            $(#[module(skip)] $field: $type,)?
        }

        impl<const D: usize> $name<D> {
            /// With the options
            #[doc = concat!("[`NormOptions::", stringify!($options), "`].")]
            pub fn new(channels: usize, init: &Init) -> Result<Self> {
                Self::with_options(channels, &NormOptions::$options, init)
            }

            /// Weight 1, bias 0, running mean 0 and variance 1, as far as the options ask for them.
            pub fn with_options(channels: usize, options: &NormOptions, init: &Init) -> Result<Self> {
                let (dtype, device) = (init.parameter_dtype(), init.device());
                let affine = |value| options.affine.then(|| init.constant(channels, value)).transpose();
                let kept = |value| Tensor::full(channels, value, dtype, device);
                let kept = |value| options.track_running_stats.then(|| kept(value)).transpose();
                let batches = options.track_running_stats.then(|| Tensor::zeros((), DType::I64, device));
                Ok($name {
                    weight: affine(1.0)?,
                    bias: affine(0.0)?,
                    running_mean: kept(0.0)?,
                    running_var: kept(1.0)?,
                    num_batches_tracked: batches.transpose()?,
                    options: *options,
                    channels,
                    mode: Mode::default(),
                    $($field: $of_init(init),)?
                })
            }

            /// True in training, unless weight and bias are frozen.
            fn is_learning(&self) -> bool {
                let mut parameters = self.weight.iter().chain(&self.bias).filter(|t| t.is_leaf()).peekable();
                self.mode.is_training() && (parameters.peek().is_none() || parameters.any(Tensor::requires_grad))
            }

            /// The statistics of x while the layer learns, and without running statistics; otherwise running statistics.
            fn statistics<'a>(&'a self, batches: Option<&'a Tensor>, momentum: Option<f64>) -> Statistics<'a> {
                let (Some(mean), Some(var)) = (&self.running_mean, &self.running_var) else { return Statistics::Batch };
                let running = Running { mean, var, batches, momentum };
                if self.is_learning() { Statistics::Update(running) } else { Statistics::Running(running) }
            }
        }
    };
}

channel_norm!(
    /// Normalises each channel of x over the batch in training, which updates the running statistics, and by running statistics in
    /// evaluation, and wherever weight and bias are frozen. See [`BatchNorm1d`], [`BatchNorm2d`] and [`BatchNorm3d`].
    BatchNorm { across: Option<Arc<dyn Across>> = Init::processes }, BATCH, ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"]
);
channel_norm!(
    /// Normalises each channel of each sample. See [`InstanceNorm1d`], [`InstanceNorm2d`] and [`InstanceNorm3d`].
    InstanceNorm {}, INSTANCE, ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"]
);

impl<const D: usize> Forward for BatchNorm<D> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            self.check(x)?;
            if let Some(across) = self.across.as_ref().filter(|_| self.is_learning()) {
                return self.normalised_across(x, &**across);
            }
            let statistics = self.statistics(self.num_batches_tracked.as_ref(), self.options.momentum);
            x.batch_norm(self.weight.as_ref(), self.bias.as_ref(), statistics, self.options.eps)
        })
    }
}

impl<const D: usize> BatchNorm<D> {
    /// `max(forward(x) + residual, 0)`, see [`batch_norm_relu`](Tensor::batch_norm_relu). Hooks get the norm alone. Errors: as there.
    pub fn forward_relu(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        if is_hooked() || (self.across.is_some() && self.is_learning()) {
            let y = self.forward(x)?;
            return residual.map_or(Ok(y.clone()), |residual| y.add(residual))?.relu();
        }
        self.check(x)?;
        let statistics = self.statistics(self.num_batches_tracked.as_ref(), self.options.momentum);
        x.batch_norm_relu(self.weight.as_ref(), self.bias.as_ref(), statistics, self.options.eps, residual)
    }

    /// `min(max(forward(x), 0), 6)`, see [`batch_norm_relu6`](Tensor::batch_norm_relu6). Hooks get the norm alone. Errors: as there.
    pub fn forward_relu6(&self, x: &Tensor) -> Result<Tensor> {
        if is_hooked() || (self.across.is_some() && self.is_learning()) {
            return self.forward(x)?.relu6();
        }
        self.check(x)?;
        let statistics = self.statistics(self.num_batches_tracked.as_ref(), self.options.momentum);
        x.batch_norm_relu6(self.weight.as_ref(), self.bias.as_ref(), statistics, self.options.eps)
    }

    fn check(&self, x: &Tensor) -> Result<()> {
        let op = "batch_norm";
        if x.rank() != D + 2 && !(D == 1 && x.rank() == 2) {
            let message = format!("x has shape {}, expected [N, C] and {D} dimensions", x.shape());
            return Err(Error::shape(op, message));
        }
        check_channels(op, x, 1, self.channels)
    }

    /// The norm by mean and variance of the parts of a batch that several processes have: two sums over the processes.
    fn normalised_across(&self, x: &Tensor, across: &dyn Across) -> Result<Tensor> {
        let axes: Vec<isize> = (0..x.rank() as isize).filter(|axis| *axis != 1).collect();
        let channels: Vec<usize> = (0..x.rank()).map(|axis| if axis == 1 { self.channels } else { 1 }).collect();
        let wide = x.cast(x.dtype().acc())?;
        let own = Tensor::full(1, (x.numel() / self.channels.max(1)) as f64, wide.dtype(), x.device())?;
        let sums = across.sum(&Tensor::concat(&[&wide.sum(&axes[..])?, &own], 0)?)?;
        let count = sums.narrow(0, self.channels, 1)?.detach();
        let mean = sums.narrow(0, 0, self.channels)?.div(&count)?;
        let centred = wide.sub(&mean.reshape(&channels[..])?)?;
        let var = across.sum(&centred.square()?.sum(&axes[..])?)?.div(&count)?;
        no_grad(|| self.update_running(&mean.detach(), &var.detach(), &count))?;
        let mut y = centred.div(&var.add_scalar(self.options.eps)?.sqrt()?.reshape(&channels[..])?)?;
        if let Some(weight) = &self.weight {
            y = y.mul(&weight.cast(y.dtype())?.reshape(&channels[..])?)?;
        }
        if let Some(bias) = &self.bias {
            y = y.add(&bias.cast(y.dtype())?.reshape(&channels[..])?)?;
        }
        y.cast(x.dtype())
    }

    /// Updates the running statistics by those of a batch with `count` values of each channel.
    fn update_running(&self, mean: &Tensor, var: &Tensor, count: &Tensor) -> Result<()> {
        let (Some(to_mean), Some(to_var)) = (&self.running_mean, &self.running_var) else { return Ok(()) };
        let Some(batches) = &self.num_batches_tracked else { return Ok(()) };
        batches.add_(&batches.ones_like()?)?;
        let share = match self.options.momentum {
            Some(momentum) => Tensor::full((), momentum, mean.dtype(), mean.device())?,
            None => batches.cast(mean.dtype())?.reciprocal()?,
        };
        let unbiased = var.mul(&count.div(&count.sub_scalar(1.0)?)?)?;
        for (to, new) in [(to_mean, mean), (to_var, &unbiased)] {
            let old = to.cast(new.dtype())?;
            to.copy_(&old.add(&new.sub(&old)?.mul(&share)?)?.cast(to.dtype())?)?;
        }
        Ok(())
    }
}

impl<const D: usize> Forward for InstanceNorm<D> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            let op = "instance_norm";
            if x.rank() == D + 1 {
                return self.forward(&x.unsqueeze(0)?)?.squeeze(0);
            }
            if x.rank() != D + 2 {
                let message = format!("x has shape {}, expected [N, C] or [C] and {D} dimensions", x.shape());
                return Err(Error::shape(op, message));
            }
            check_channels(op, x, 1, self.channels)?;
            // As in PyTorch, which counts no batches here.
            let statistics = self.statistics(None, Some(self.options.momentum.unwrap_or(0.0)));
            x.instance_norm(self.weight.as_ref(), self.bias.as_ref(), statistics, self.options.eps)
        })
    }
}

/// [`Tensor::local_response_norm`].
#[derive(Clone, Copy, Debug)]
pub struct LocalResponseNorm(pub LocalResponse);

impl LocalResponseNorm {
    /// Over so many channels, with PyTorch's defaults.
    pub fn new(size: usize) -> LocalResponseNorm {
        LocalResponseNorm(LocalResponse::new(size))
    }
}

impl Module for LocalResponseNorm {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
}

impl Forward for LocalResponseNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || x.local_response_norm(&self.0))
    }
}
