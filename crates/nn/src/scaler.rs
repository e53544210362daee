//! Loss scaling for 16-bit training.

use crate::StateDict;
use crate::optim::{Optimizer, Scaling};
use isograd_core::ops::update_;
use isograd_core::pointwise::Pointwise;
use isograd_core::{DType, Device, Error, Result, Tensor, no_grad};

/// Scales the loss up so that small gradients survive in 16 bits, and the gradients down again; a step whose gradients
/// are not finite is left out and the scale lowered. All of it happens on the device. Micikevicius et al. 2017, arXiv
/// 1710.03740.
///
/// In a step: `scaler.scale(&loss)?.backward()?`, then, to look at or clip the gradients, `unscale_`, then `step`, then
/// `update`.
pub struct GradScaler {
    scale: Tensor,
    tracker: Tensor,
    growth: f64,
    backoff: f64,
    interval: i64,
    unscaled: bool,
    /// Not 0 if a gradient of this step was not finite.
    found_inf: Option<Tensor>,
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
            unscaled: false,
            found_inf: None,
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

    /// Steps without an infinity after which the scale doubles. Errors: `Attr` for 0.
    pub fn growth_interval(self, interval: u32) -> Result<Self> {
        if interval == 0 {
            return Err(Error::attr("grad_scaler", "growth_interval is 0, expected at least 1"));
        }
        Ok(GradScaler { interval: interval as i64, ..self })
    }

    /// The scale, rank 0 f32 on the device.
    pub fn current(&self) -> &Tensor {
        &self.scale
    }

    /// `loss` times the scale, in f32 for 16-bit losses.
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        let wide = loss.cast(loss.dtype().acc())?;
        wide.mul(&self.scale.copy()?.cast(wide.dtype())?)
    }

    /// Divides the optimizer's gradients by the scale, once a step: what clips or looks at gradients comes after this.
    /// Errors: `Value` if called twice in a step.
    pub fn unscale_(&mut self, optimizer: &dyn Optimizer) -> Result<()> {
        if self.unscaled {
            return Err(Error::value(
                "unscale_",
                "the gradients of this step are unscaled already; call `update` first",
            ));
        }
        no_grad(|| {
            let inverse = self.scale.reciprocal()?;
            let gradients: Vec<Tensor> = optimizer.parameters().iter().filter_map(Tensor::grad).collect();
            self.note(&gradients)?;
            for gradient in &gradients {
                update_("amp_unscale_check", Pointwise::ScaleInPlace, &[gradient], &[&inverse], &[])?;
            }
            self.unscaled = true;
            Ok(())
        })
    }

    /// Steps the optimizer with unscaled gradients, or leaves everything as it is if one was not finite.
    pub fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        let inv_scale = match self.unscaled {
            true => self.scale.full_like(1.0)?,
            false => {
                let gradients: Vec<Tensor> = optimizer.parameters().iter().filter_map(Tensor::grad).collect();
                no_grad(|| self.note(&gradients))?;
                self.scale.reciprocal()?
            }
        };
        let found_inf = match &self.found_inf {
            Some(found) => found.clone(),
            None => self.scale.full_like(0.0)?,
        };
        optimizer.step_scaled(Some(&Scaling { inv_scale, found_inf }))
    }

    /// Ends the step: lowers the scale if a gradient was not finite, raises it after enough good steps.
    pub fn update(&mut self) -> Result<()> {
        self.unscaled = false;
        let Some(found) = self.found_inf.take() else { return Ok(()) };
        no_grad(|| {
            let found = found.ne_scalar(0.0)?;
            let count = self.tracker.add_scalar(1)?;
            let due = count.eq_scalar(self.interval)?;
            let grown = self.scale.mul_scalar(self.growth)?;
            let grows = due.logical_and(&grown.not_finite()?.logical_not()?)?;
            let scale = grows.where_cond(&grown, &self.scale)?;
            let scale = found.where_cond(&self.scale.mul_scalar(self.backoff)?, &scale)?;
            let restart = found.logical_or(&due)?;
            self.tracker.copy_(&restart.logical_not()?.where_scalar(&count, 0)?)?;
            self.scale.copy_(&scale)
        })
    }

    /// Scale and counter by name.
    pub fn state_dict(&self) -> StateDict {
        [("scale".into(), self.scale.clone()), ("growth_tracker".into(), self.tracker.clone())].into()
    }

    /// Takes over what [`state_dict`](GradScaler::state_dict) gave. Errors: `Value` if something is missing.
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let missing = |name: &str| Error::value("load_state_dict", format!("{name} is missing"));
        let scale = state.get("scale").ok_or_else(|| missing("scale"))?;
        self.tracker.copy_(state.get("growth_tracker").ok_or_else(|| missing("growth_tracker"))?)?;
        self.scale.copy_(scale)
    }

    /// Adds to `found_inf` whether a gradient is not finite.
    fn note(&mut self, gradients: &[Tensor]) -> Result<()> {
        let mut found = self.found_inf.take().map_or_else(|| self.scale.full_like(0.0), Ok)?;
        for gradient in gradients.iter().filter(|g| g.numel() > 0) {
            found = found.maximum(&gradient.not_finite()?.cast(DType::F32)?.amax(..)?)?;
        }
        self.found_inf = Some(found);
        Ok(())
    }
}
