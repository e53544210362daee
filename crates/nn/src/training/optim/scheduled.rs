//! Optimizers whose learning rate follows a schedule.

use super::{Optimizer, Scaling};
use crate::{Schedule, StateDict};
use isograd_core::{DType, Error, Result, Tensor, is_in_step};

/// The number of steps in a state.
const STEPS: &str = "schedule.steps";

/// An optimizer that sets its learning rate by a schedule: the result of [`Optimizer::scheduled`]. The state has the number of steps, so that
/// a resumed run goes on with the rate of its step. A step that a loss scaler skips counts.
#[derive(Clone, Debug)]
pub struct Scheduled<O, S> {
    optimizer: O,
    schedule: S,
    steps: u64,
}

impl<O: Optimizer, S: Schedule> Scheduled<O, S> {
    pub(super) fn new(optimizer: O, schedule: S) -> Result<Scheduled<O, S>> {
        let mut scheduled = Scheduled { optimizer, schedule, steps: 0 };
        scheduled.set_rate()?;
        Ok(scheduled)
    }

    /// The number of steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Sets the rate of the next step.
    fn set_rate(&mut self) -> Result<()> {
        let rate = self.schedule.lr(self.steps)?;
        if rate == self.optimizer.learning_rate() { Ok(()) } else { self.optimizer.set_lr(rate) }
    }
}

impl<O: Optimizer, S: Schedule> Optimizer for Scheduled<O, S> {
    /// Errors: `Unsupported` in a captured step, whose host code does not run again; [`set_lr`](Optimizer::set_lr) is called
    /// between such steps, as the trainer of isograd-train does for its schedule. Else as the optimizer's and the schedule's.
    fn step_scaled(&mut self, scaling: Option<&Scaling>) -> Result<()> {
        if is_in_step() {
            let message = "a captured step sets no rate; call `set_lr` between steps, or give the trainer the schedule";
            return Err(Error::unsupported("scheduled", message));
        }
        self.optimizer.step_scaled(scaling)?;
        self.steps += 1;
        self.set_rate()
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.optimizer.parameters()
    }

    /// Sets the rate of the next step only.
    fn set_lr(&mut self, lr: f64) -> Result<()> {
        self.optimizer.set_lr(lr)
    }

    fn learning_rate(&self) -> f64 {
        self.optimizer.learning_rate()
    }

    fn inner(&self) -> Option<&dyn Optimizer> {
        Some(&self.optimizer)
    }

    fn state_dict(&self) -> Result<StateDict> {
        let mut state = self.optimizer.state_dict()?;
        if let Some(first) = self.optimizer.parameters().first() {
            let steps = Tensor::full((), self.steps as f64, DType::F64, first.device())?;
            state.insert(STEPS.into(), steps);
        }
        Ok(state)
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let mut state = state.clone();
        let steps = state.remove(STEPS);
        let steps =
            steps.ok_or_else(|| Error::value("scheduled", format!("{STEPS} is missing: the state has no schedule")))?;
        let steps = steps.item::<f64>()? as u64;
        self.optimizer.load_state_dict(&state)?;
        self.steps = steps;
        self.set_rate()
    }
}
