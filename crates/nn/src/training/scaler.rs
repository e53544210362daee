//! Loss scaling for 16-bit training.

use crate::StateDict;
use crate::module::{check_distinct, check_state};
use crate::number::{Checks, Range};
use crate::optim::{Optimizer, Scaling};
use crate::training::clip::gradients_of;
use isograd_core::ops::Total;
use isograd_core::ops::{cast_each, total, unscale_, update_};
use isograd_core::pointwise::Pointwise;
use isograd_core::pointwise::rows::LEAST_SCALE;
use isograd_core::{DType, Device, Error, Result, Tensor, TensorKey, no_grad};
use std::collections::{BTreeSet, HashMap};

/// Scales the loss up, so that small gradients do not vanish in 16 bits, and the gradients down again. A step whose gradients are
/// not finite is skipped, and the scale lowered, down to [`LEAST_SCALE`]. All of it happens on the device. Micikevicius et al. 2017, arXiv 1710.03740.
///
/// In a step: `scaler.scale(&loss)?.backward()?`; then `unscale_`, if gradients are inspected or clipped; then `step`; then
/// `update`. Several optimizers may share a scaler; a step is skipped only for optimizers whose gradients were not finite. They may
/// also share parameters: the scaler tracks the gradient of each parameter. Gradients that were unscaled together are checked
/// together.
///
/// ```
/// # use isograd_core::{DType, Device, Tensor, autocast};
/// # use isograd_nn::{AdamW, Forward, GradScaler, Init, Linear};
/// # use isograd_cpu as _;
/// # fn main() -> isograd_core::Result<()> {
/// let device = Device::cpu()?;
/// let model = Linear::new(4, 1, &Init::new(&device))?;
/// let (mut optimizer, mut scaler) = (AdamW::new(&model), GradScaler::new(&device)?);
/// let x = Tensor::ones((8, 4), DType::F32, &device)?;
/// let loss = autocast(DType::F16, || model.forward(&x)?.square()?.mean(..))?;
/// scaler.scale(&loss)?.backward()?;
/// scaler.step(&mut optimizer)?;
/// scaler.update()?;
/// # Ok(())
/// # }
/// ```
pub struct GradScaler {
    /// Rank 0, f32.
    scale: Tensor,
    /// Steps since the last change of the scale; rank 0, i32.
    tracker: Tensor,
    growth: f64,
    backoff: f64,
    interval: i64,
    /// One for each check of gradients in this step: 1 if a gradient was not finite, else 0; rank 0, f32.
    checks: Vec<Tensor>,
    /// The parameters whose gradients were unscaled or used in this step.
    seen: HashMap<TensorKey, Seen>,
}

/// The stage of a parameter's gradient in this step.
struct Seen {
    /// Keeps the memory, which identifies the parameter.
    _parameter: Tensor,
    /// The number of the check of its gradient.
    check: usize,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Unscaled,
    Stepped,
}

const OP: &str = "grad_scaler";
/// The range of the scale: its inverse is finite.
const SCALES: Range = Range::AtLeast(LEAST_SCALE);
/// The scale and its factors are f32 on the device.
const CHECKS: Checks = Checks { op: OP, dtype: DType::F32 };

impl GradScaler {
    /// Starts at 65536, doubles after 2000 good steps, halves after a bad one.
    pub fn new(device: &Device) -> Result<GradScaler> {
        Ok(GradScaler {
            scale: Tensor::scalar(65536f32, device)?,
            tracker: Tensor::scalar(0i32, device)?,
            growth: 2.0,
            backoff: 0.5,
            interval: 2000,
            checks: Vec::new(),
            seen: HashMap::new(),
        })
    }

    /// Sets the initial scale. Errors: `Attr` unless it is finite and at least [`LEAST_SCALE`].
    pub fn init_scale(self, scale: f64) -> Result<Self> {
        CHECKS.number("init_scale", scale, SCALES)?;
        self.scale.fill_(scale)?;
        Ok(self)
    }

    /// Sets the factors after `growth_interval` good steps, and after a bad one. Errors: `Attr` unless `growth > 1` and `0 <
    /// backoff < 1`, also in f32.
    pub fn factors(self, growth: f64, backoff: f64) -> Result<Self> {
        check_factors(growth, backoff)?;
        Ok(GradScaler { growth, backoff, ..self })
    }

    /// Sets the number of good steps after which the scale grows. Errors: `Attr` for 0.
    pub fn growth_interval(self, interval: u32) -> Result<Self> {
        check_interval(interval.into())?;
        Ok(GradScaler { interval: interval.into(), ..self })
    }

    /// The scale, rank 0 f32 on the device.
    pub fn current(&self) -> &Tensor {
        &self.scale
    }

    /// `loss` times the scale, in f32 for 16-bit losses.
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        let wide = loss.cast(loss.dtype().acc())?;
        // A copy, because the tape saves it and `update` changes the scale in place.
        wide.mul(&self.scale.copy()?.cast(wide.dtype())?)
    }

    /// Divides the optimizer's gradients by the scale, once per step, before they are clipped or inspected. Gradients in f16 become f32
    /// tensors, because the scale exists for numbers that f16 does not hold; others change in place. Gradients that were unscaled with
    /// another optimizer's are not changed. Errors: `Value` if there are no other gradients, as in a second call or
    /// after `step`, and if the optimizer has a parameter twice.
    pub fn unscale_(&mut self, optimizer: &dyn Optimizer) -> Result<()> {
        let op = "unscale_";
        let parameters = optimizer.parameters();
        check_distinct(op, &parameters)?;
        let (known, new): (Vec<_>, Vec<_>) = parameters.into_iter().partition(|p| self.seen.contains_key(&p.key()));
        let new: Vec<Tensor> = new.into_iter().filter(|p| p.grad().is_some()).collect();
        if new.is_empty() && !known.is_empty() {
            let message = "the optimizer's gradients of this step are unscaled already; call `update` first";
            return Err(Error::value(op, message));
        }
        self.unscale_all(op, new)
    }

    /// Steps the optimizer with unscaled gradients, or changes nothing if a gradient was not finite. Errors: `Value` if all of its
    /// parameters have stepped in this step, as in a second call, and if it has a parameter twice; the optimizer's errors.
    pub fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        let parameters = optimizer.parameters();
        check_distinct(OP, &parameters)?;
        if parameters.is_empty() {
            return Ok(());
        }
        let has_stepped = |p: &Tensor| self.stage(p) == Some(Stage::Stepped);
        let with_gradients: Vec<Tensor> = parameters.iter().filter(|p| p.grad().is_some()).cloned().collect();
        if with_gradients.iter().all(has_stepped) && parameters.iter().any(has_stepped) {
            return Err(Error::value(OP, "the optimizer has stepped already; call `update` first"));
        }
        let is_unscaled = |p: &Tensor| self.stage(p) == Some(Stage::Unscaled);
        let scaling = match with_gradients.iter().any(is_unscaled) {
            false => no_grad(|| self.scaling(&gradients_of(&parameters), optimizer.clips_by_norm()))?,
            true => {
                let scaled = with_gradients.iter().filter(|p| !is_unscaled(p)).cloned().collect();
                self.unscale_all(OP, scaled)?;
                no_grad(|| self.unscaled(&with_gradients))?
            }
        };
        optimizer.step_scaled(Some(&scaling))?;
        self.note(scaling.found_inf, with_gradients, Stage::Stepped);
        Ok(())
    }

    /// Ends the step: lowers the scale if a gradient was not finite, and raises it after enough good steps.
    pub fn update(&mut self) -> Result<()> {
        self.seen.clear();
        let checks = std::mem::take(&mut self.checks);
        if checks.is_empty() {
            return Ok(());
        }
        no_grad(|| {
            let found = largest(&checks)?;
            let floats = [self.growth, self.backoff, self.interval as f64];
            let targets = [&self.scale, &self.tracker];
            update_(Pointwise::AmpUpdateScale, &targets, &[&found], &floats)
        })
        .map_err(|e: Error| e.of("grad_scaler"))
    }

    /// Scale and counter, which share memory with the scaler, and the factors and the interval (f64, i64). The names are PyTorch's,
    /// except for the counter, `growth_tracker`.
    pub fn state_dict(&self) -> Result<StateDict> {
        let device = self.scale.device();
        Ok([
            ("scale".into(), self.scale.clone()),
            ("growth_tracker".into(), self.tracker.clone()),
            ("growth_factor".into(), Tensor::scalar(self.growth, device)?),
            ("backoff_factor".into(), Tensor::scalar(self.backoff, device)?),
            ("growth_interval".into(), Tensor::scalar(self.interval, device)?),
        ]
        .into())
    }

    /// Loads the result of [`state_dict`](GradScaler::state_dict). Factors and interval that a state does not have stay as they
    /// are. Errors: `Value` naming every tensor that is missing, unexpected or of another shape or dtype; `Attr` for factors and
    /// intervals out of range; then nothing has changed.
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let (own, mut state) = (self.state_dict()?, state.clone());
        for name in ["growth_factor", "backoff_factor", "growth_interval"] {
            state.entry(name.into()).or_insert_with(|| own[name].clone());
        }
        check_state("grad_scaler", &own, &state)?;
        let (growth, backoff) = (state["growth_factor"].item::<f64>()?, state["backoff_factor"].item::<f64>()?);
        let interval = state["growth_interval"].to_vec::<i64>()?[0];
        check_factors(growth, backoff)?;
        check_interval(interval)?;
        CHECKS.number("scale", state["scale"].item::<f64>()?, SCALES)?;
        let copy = |name: &str| state[name].to_device(self.scale.device())?.copy();
        let (scale, tracker) = (copy("scale")?, copy("growth_tracker")?);
        self.scale.copy_(&scale)?;
        self.tracker.copy_(&tracker)?;
        (self.growth, self.backoff, self.interval) = (growth, backoff, interval);
        Ok(())
    }

    fn stage(&self, parameter: &Tensor) -> Option<Stage> {
        self.seen.get(&parameter.key()).map(|seen| seen.stage)
    }

    /// Records the stage of gradients, and the result of their check.
    fn note(&mut self, found_inf: Tensor, parameters: Vec<Tensor>, stage: Stage) {
        let known = self.checks.iter().position(|check| check.shares_memory(&found_inf));
        let check = known.unwrap_or(self.checks.len());
        if known.is_none() {
            self.checks.push(found_inf);
        }
        let seen = |p: Tensor| (p.key(), Seen { _parameter: p, check, stage });
        self.seen.extend(parameters.into_iter().map(seen));
    }

    /// Unscales the gradients of these parameters, which all have one, together.
    fn unscale_all(&mut self, op: &'static str, parameters: Vec<Tensor>) -> Result<()> {
        if parameters.is_empty() {
            return Ok(());
        }
        let found_inf = no_grad(|| {
            let (found_inf, mut gradients) = (self.scale.full_like(0.0)?, gradients_of(&parameters));
            let narrow: Vec<usize> = (0..gradients.len()).filter(|&i| gradients[i].dtype() == DType::F16).collect();
            let wide = cast_each(&narrow.iter().map(|&i| &gradients[i]).collect::<Vec<_>>(), DType::F32)?;
            narrow.iter().zip(wide).for_each(|(&i, wide)| gradients[i] = wide);
            unscale_(&gradients.iter().collect::<Vec<_>>(), &self.scale, &found_inf)?;
            narrow.iter().try_for_each(|&i| parameters[i].set_grad(Some(gradients[i].clone())))?;
            Ok(found_inf)
        })
        .map_err(|e: Error| e.of(op))?;
        self.note(found_inf, parameters, Stage::Unscaled);
        Ok(())
    }

    /// The scaling of a step with unscaled gradients.
    fn unscaled(&self, parameters: &[Tensor]) -> Result<Scaling> {
        let checks = parameters.iter().filter_map(|p| Some(self.seen.get(&p.key())?.check));
        let found: Vec<Tensor> = checks.collect::<BTreeSet<_>>().into_iter().map(|i| self.checks[i].clone()).collect();
        Ok(Scaling { inv_scale: self.scale.full_like(1.0)?, found_inf: largest(&found)?, norm: None })
    }

    /// The scaling of a step with scaled gradients. If the norm is wanted, it replaces the check: it is finite if all gradients
    /// are, unless it overflows, in which case the scale must be lowered too.
    fn scaling(&self, gradients: &[Tensor], wants_norm: bool) -> Result<Scaling> {
        let gradients: Vec<&Tensor> = gradients.iter().collect();
        let of_all = |kind| total(kind, &gradients).map_err(|e| e.of(OP));
        let (found_inf, norm) = match (gradients.is_empty(), wants_norm) {
            (true, _) => (self.scale.full_like(0.0)?, None),
            (_, false) => (of_all(Total::NotFinite)?.cast(DType::F32)?, None),
            (_, true) => {
                let norm = of_all(Total::Norm)?;
                (norm.not_finite()?.cast(DType::F32)?, Some(norm))
            }
        };
        Ok(Scaling { inv_scale: self.scale.reciprocal()?, found_inf, norm })
    }
}

/// The largest of one or more tensors.
fn largest(all: &[Tensor]) -> Result<Tensor> {
    let (first, rest) = all.split_first().ok_or_else(|| Error::value(OP, "there is no check of gradients"))?;
    rest.iter().try_fold(first.clone(), |largest, t| largest.maximum(t))
}

fn check_factors(growth: f64, backoff: f64) -> Result<()> {
    CHECKS.number("growth", growth, Range::Above(1.0))?;
    CHECKS.number("backoff", backoff, Range::Between0And1)
}

fn check_interval(interval: i64) -> Result<()> {
    CHECKS.number("growth_interval", interval as f64, Range::Count(1.0, u32::MAX.into()))
}
