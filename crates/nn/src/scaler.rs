//! Loss scaling for 16-bit training.

use crate::StateDict;
use crate::clip::gradients_of;
use crate::module::{check_state, same_tensor};
use crate::optim::{Optimizer, Scaling};
use isograd_core::backend::Total;
use isograd_core::ops::{total, unscale_, update_};
use isograd_core::pointwise::Pointwise;
use isograd_core::{DType, Device, Error, Result, Tensor, no_grad};

/// Scales the loss up so that small gradients survive in 16 bits, and the gradients down again; a step whose gradients
/// are not finite is left out and the scale lowered. All of it happens on the device. Micikevicius et al. 2017, arXiv
/// 1710.03740.
///
/// In a step: `scaler.scale(&loss)?.backward()?`, then, to look at or clip the gradients, `unscale_`, then `step`, then
/// `update`. Several optimizers may share a scaler; a step is left out only for those whose gradients were not finite.
pub struct GradScaler {
    /// Rank 0, f32.
    scale: Tensor,
    /// Steps since the scale changed; rank 0, i32.
    tracker: Tensor,
    growth: f64,
    backoff: f64,
    interval: i64,
    /// The optimizers of this step.
    seen: Vec<Seen>,
}

/// What was done with an optimizer's gradients in this step.
struct Seen {
    /// A parameter, by which the optimizer is known again.
    parameter: Tensor,
    /// 1 if a gradient was not finite, else 0; rank 0, f32.
    found_inf: Tensor,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Unscaled,
    Stepped,
}

impl GradScaler {
    /// Starts at 65536, doubles after 2000 good steps, halves after a bad one.
    pub fn new(device: &Device) -> Result<GradScaler> {
        Ok(GradScaler {
            scale: Tensor::scalar(65536f32, device)?,
            tracker: Tensor::scalar(0i32, device)?,
            growth: 2.0,
            backoff: 0.5,
            interval: 2000,
            seen: Vec::new(),
        })
    }

    /// Another first scale. Errors: `Attr` unless it is positive and finite.
    pub fn init_scale(self, scale: f64) -> Result<Self> {
        if !scale.is_finite() || scale <= 0.0 {
            return Err(Error::attr("grad_scaler", format!("init_scale is {scale}, expected a positive number")));
        }
        self.scale.fill_(scale)?;
        Ok(self)
    }

    /// The factors after `growth_interval` good steps and after a bad one. Errors: `Attr` unless `growth > 1` and
    /// `0 < backoff < 1`.
    pub fn factors(self, growth: f64, backoff: f64) -> Result<Self> {
        check_factors(growth, backoff)?;
        Ok(GradScaler { growth, backoff, ..self })
    }

    /// Steps without an infinity after which the scale grows. Errors: `Attr` for 0.
    pub fn growth_interval(self, interval: u32) -> Result<Self> {
        check_interval(interval as i64)?;
        Ok(GradScaler { interval: interval as i64, ..self })
    }

    /// The scale, rank 0 f32 on the device.
    pub fn current(&self) -> &Tensor {
        &self.scale
    }

    /// `loss` times the scale, in f32 for 16-bit losses.
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        let wide = loss.cast(loss.dtype().acc())?;
        // A copy, because the tape keeps it and `update` changes the scale in place.
        wide.mul(&self.scale.copy()?.cast(wide.dtype())?)
    }

    /// Divides the optimizer's gradients by the scale, once a step: what clips or looks at gradients comes after this.
    /// Errors: `Value` if called twice in a step, or after `step`.
    pub fn unscale_(&mut self, optimizer: &dyn Optimizer) -> Result<()> {
        let parameters = optimizer.parameters();
        let Some(parameter) = parameters.first() else { return Ok(()) };
        if self.position(parameter).is_some() {
            let message = "the optimizer's gradients of this step are unscaled already; call `update` first";
            return Err(Error::value("unscale_", message));
        }
        no_grad(|| {
            let found_inf = self.scale.full_like(0.0)?;
            unscale_(&gradients_of(&parameters).iter().collect::<Vec<_>>(), &self.scale, &found_inf)?;
            self.seen.push(Seen { parameter: parameter.clone(), found_inf, stage: Stage::Unscaled });
            Ok(())
        })
    }

    /// Steps the optimizer with unscaled gradients, or leaves everything as it is if one was not finite.
    /// Errors: `Value` if called twice in a step; the optimizer's.
    pub fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        let parameters = optimizer.parameters();
        let Some(parameter) = parameters.first() else { return Ok(()) };
        let scaling = match self.position(parameter).map(|i| &self.seen[i]) {
            None => no_grad(|| self.scaling(&gradients_of(&parameters), optimizer.clips_by_norm()))?,
            Some(Seen { stage: Stage::Unscaled, found_inf, .. }) => {
                Scaling { inv_scale: self.scale.full_like(1.0)?, found_inf: found_inf.clone(), norm: None }
            }
            Some(_) => {
                let message = "the optimizer has stepped already; call `update` first";
                return Err(Error::value("grad_scaler", message));
            }
        };
        optimizer.step_scaled(Some(&scaling))?;
        let done = Seen { parameter: parameter.clone(), found_inf: scaling.found_inf, stage: Stage::Stepped };
        match self.position(parameter) {
            Some(i) => self.seen[i] = done,
            None => self.seen.push(done),
        }
        Ok(())
    }

    /// Ends the step: lowers the scale if a gradient was not finite, raises it after enough good steps.
    pub fn update(&mut self) -> Result<()> {
        let seen = std::mem::take(&mut self.seen);
        let Some((first, rest)) = seen.split_first() else { return Ok(()) };
        no_grad(|| {
            let found = rest.iter().try_fold(first.found_inf.clone(), |all, s| all.maximum(&s.found_inf))?;
            let floats = [self.growth, self.backoff, self.interval as f64];
            let targets = [&self.scale, &self.tracker];
            update_(Pointwise::AmpUpdateScale, &targets, &[&found], &floats)
        })
        .map_err(|e: Error| e.of("grad_scaler"))
    }

    /// Scale and counter, which share memory with the scaler, and the factors and the interval (f64, i64), by PyTorch's
    /// names but for the counter, `growth_tracker`.
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

    /// Takes over what [`state_dict`](GradScaler::state_dict) gave; factors and interval stay where a state does not have
    /// them. Errors: `Value` naming what is missing, unexpected or of another shape or dtype, `Attr` for factors and
    /// intervals out of range; then nothing has changed.
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let (own, mut state) = (self.state_dict()?, state.clone());
        for name in ["growth_factor", "backoff_factor", "growth_interval"] {
            state.entry(name.into()).or_insert_with(|| own[name].clone());
        }
        check_state("grad_scaler", &own, &state)?;
        let (growth, backoff) = (state["growth_factor"].item()?, state["backoff_factor"].item()?);
        let interval = state["growth_interval"].to_vec::<i64>()?[0];
        check_factors(growth, backoff)?;
        check_interval(interval)?;
        let copy = |name: &str| state[name].to_device(self.scale.device())?.copy();
        let (scale, tracker) = (copy("scale")?, copy("growth_tracker")?);
        self.scale.copy_(&scale)?;
        self.tracker.copy_(&tracker)?;
        (self.growth, self.backoff, self.interval) = (growth, backoff, interval);
        Ok(())
    }

    fn position(&self, parameter: &Tensor) -> Option<usize> {
        self.seen.iter().position(|s| same_tensor(&s.parameter, parameter))
    }

    /// What a step needs of gradients that are scaled. One whose norm is wanted is not looked at twice: the norm is finite if
    /// they all are, unless it overflows, which only a smaller scale helps against.
    fn scaling(&self, gradients: &[Tensor], wants_norm: bool) -> Result<Scaling> {
        let gradients: Vec<&Tensor> = gradients.iter().collect();
        let of_all = |kind| total(kind, &gradients).map_err(|e| e.of("grad_scaler"));
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

fn check_factors(growth: f64, backoff: f64) -> Result<()> {
    if !growth.is_finite() || growth <= 1.0 || backoff.is_nan() || backoff <= 0.0 || backoff >= 1.0 {
        let got = format!("growth is {growth} and backoff {backoff}");
        return Err(Error::attr("grad_scaler", format!("{got}, expected growth > 1 and 0 < backoff < 1")));
    }
    Ok(())
}

fn check_interval(interval: i64) -> Result<()> {
    match interval {
        1.. => Ok(()),
        _ => Err(Error::attr("grad_scaler", format!("growth_interval is {interval}, expected at least 1"))),
    }
}
