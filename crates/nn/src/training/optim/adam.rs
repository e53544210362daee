//! Adam and AdamW.

use super::engine::{Engine, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::{FLAG, Range};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Result, Tensor};

/// Adam: the step is the mean of the gradients over the root of the mean of their squares. Rate 1e-3, betas 0.9 and 0.999, eps
/// 1e-8. Weight decay (0) is added to the gradient. Kingma, Ba 2014, arXiv 1412.6980; as PyTorch's Adam.
pub struct Adam(Engine<AdamRule<false>>);

/// [`Adam`] with decoupled weight decay (0.01). Loshchilov, Hutter 2017, arXiv 1711.05101; as PyTorch's AdamW.
///
/// ```
/// # use isograd_core::{DType, Device, Tensor};
/// # use isograd_nn::{AdamW, Forward, Init, Linear, Optimizer};
/// # use isograd_cpu as _;
/// # fn main() -> isograd_core::Result<()> {
/// let device = Device::cpu()?;
/// let model = Linear::new(4, 1, &Init::new(&device).seed(42))?;
/// let no_decay = |name: &str, _: &Tensor| name.ends_with("bias");
/// let mut optimizer = AdamW::new(&model).lr(1e-2).clip_norm(1.0).group_where(no_decay, |group| group.weight_decay(0.0));
/// let x = Tensor::ones((8, 4), DType::F32, &device)?;
/// for _ in 0..10 {
///     model.forward(&x)?.square()?.mean(..)?.backward()?;
///     // Clears the gradients as well.
///     optimizer.step()?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct AdamW(Engine<AdamRule<true>>);

optimizer!(Adam of AdamRule<false>, lr 1e-3, weight_decay 0.0, rule AdamRule::DEFAULT);
optimizer!(AdamW of AdamRule<true>, lr 1e-3, weight_decay 0.01, rule AdamRule::DEFAULT);

macro_rules! adam_options {
    ($name:ident) => {
        options!($name {
            /// The decay rates of the two means, 0 to below 1.
            betas(beta1: f64, beta2: f64) |rule| (rule.beta1, rule.beta2) = (beta1, beta2);
            /// Added to the root, at least 0.
            eps(eps: f64) |rule| rule.eps = eps;
            /// Divides by the largest mean of squares so far, counted from the first step with this option. Reddi et al. 2018,
            /// ICLR.
            amsgrad() |rule| rule.amsgrad = true;
            /// Leaves the two means as they are, though they begin with 0.
            no_bias_correction() |rule| rule.corrects_bias = false;
        });
    };
}

adam_options!(Adam);
adam_options!(AdamW);

/// Weight decay shrinks the parameters if it is `DECOUPLED`; otherwise it is added to the gradient.
#[derive(Clone)]
pub struct AdamRule<const DECOUPLED: bool> {
    beta1: f64,
    beta2: f64,
    eps: f64,
    amsgrad: bool,
    corrects_bias: bool,
}

impl<const DECOUPLED: bool> AdamRule<DECOUPLED> {
    const DEFAULT: Self = AdamRule { beta1: 0.9, beta2: 0.999, eps: 1e-8, amsgrad: false, corrects_bias: true };
}

impl<const DECOUPLED: bool> Rule for AdamRule<DECOUPLED> {
    const NAME: &'static str = if DECOUPLED { "adamw" } else { "adam" };

    fn fields(&mut self) -> Vec<Named<'_>> {
        let AdamRule { beta1, beta2, eps, amsgrad, corrects_bias } = self;
        let all: [Named<'_>; 5] = [
            ("beta1", beta1, Range::Rate),
            ("beta2", beta2, Range::Rate),
            ("eps", eps, Range::AtLeast0),
            ("amsgrad", amsgrad, FLAG),
            ("bias_correction", corrects_bias, FLAG),
        ];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        if self.amsgrad { &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"] } else { &["exp_avg", "exp_avg_sq"] }
    }

    fn prepare(&self, weight_decay: f64) -> (Pointwise, Vec<f64>) {
        let apart = if DECOUPLED { weight_decay } else { 0.0 };
        let logarithms =
            [self.beta1, self.beta2].map(|beta| if self.corrects_bias { beta.ln() } else { f64::NEG_INFINITY });
        (Pointwise::AdamPrepare, [vec![apart], logarithms.to_vec()].concat())
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        let function = if self.amsgrad { Pointwise::AdamAmsgradStep } else { Pointwise::AdamStep };
        let in_gradient = if DECOUPLED { 0.0 } else { step.weight_decay };
        let attributes = [step.limit, in_gradient, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2, self.eps];
        step.each(function, &attributes, &step.prepared())
    }
}
