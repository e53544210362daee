//! Averages of a model's weights over its training.

use crate::{Module, StateDict};
use isograd_core::{Error, Result, Tensor, no_grad};

/// The weight of a new state in an average.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Averaging {
    /// `1 - decay`: an exponential moving average (EMA).
    Exponential {
        /// The weight of the average so far, 0 to 1.
        decay: f64,
    },
    /// That of every other state: the mean of all (SWA). Izmailov et al. 2018, arXiv 1803.05407.
    Mean,
}

/// An average of a model's parameters. Buffers, such as running statistics, are those of the last state.
///
/// ```
/// # use isograd_core::{Device, Result};
/// # use isograd_nn::{Averaged, Averaging, Init, Linear};
/// # use isograd_cpu as _;
/// # fn main() -> Result<()> {
/// let model = Linear::new(3, 2, &Init::new(&Device::cpu()?))?;
/// let mut averaged = Averaged::new(&model, Averaging::Exponential { decay: 0.999 })?;
/// for _ in 0..10 {
///     // A step of training, then:
///     averaged.update(&model)?;
/// }
/// let loss = averaged.applied(&model, || Ok(0.1))?;
/// # let _ = loss;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Averaged {
    averaging: Averaging,
    /// Float tensors have the average, others the last state.
    state: StateDict,
    parameters: Vec<String>,
    updates: u64,
}

impl Averaged {
    /// Begins with the model's weights. Errors: `Attr` for a decay outside of 0 to 1; `OutOfMemory`.
    pub fn new(model: &(impl Module + ?Sized), averaging: Averaging) -> Result<Averaged> {
        if let Averaging::Exponential { decay } = averaging
            && !(0.0..=1.0).contains(&decay)
        {
            return Err(Error::attr("averaged", format!("decay is {decay}, expected 0 to 1")));
        }
        let parameters = model.named_parameters().into_iter().map(|(name, _)| name).collect();
        Ok(Averaged { averaging, state: copied(&model.state_dict())?, parameters, updates: 0 })
    }

    /// Takes the model's weights into the average. Errors: `Value` if the model has other tensors than before.
    pub fn update(&mut self, model: &(impl Module + ?Sized)) -> Result<()> {
        let now = model.state_dict();
        crate::module::check_state("averaged", &self.state, &now)?;
        self.updates += 1;
        let weight = match self.averaging {
            Averaging::Exponential { decay } => 1.0 - decay,
            // The initial weights are no state of the mean.
            Averaging::Mean => 1.0 / self.updates as f64,
        };
        no_grad(|| {
            for (name, average) in &self.state {
                match self.parameters.contains(name) {
                    true => average.copy_(&average.lerp_scalar(&now[name], weight)?)?,
                    false => average.copy_(&now[name])?,
                }
            }
            Ok(())
        })
    }

    /// The average, by name. It shares memory with the next ones.
    pub fn state_dict(&self) -> &StateDict {
        &self.state
    }

    /// The number of updates, which a resumed run restores with the average.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Continues from a saved average. Errors: `Value` if its tensors differ from the model's.
    pub fn resume(&mut self, state: &StateDict, updates: u64) -> Result<()> {
        crate::module::check_state("averaged", &self.state, state)?;
        no_grad(|| self.state.iter().try_for_each(|(name, t)| t.copy_(&state[name])))?;
        self.updates = updates;
        Ok(())
    }

    /// Runs `f` while the model has the averaged weights, then gives it back its own, also after an error. Errors: as `f`.
    pub fn applied<T>(&self, model: &(impl Module + ?Sized), f: impl FnOnce() -> Result<T>) -> Result<T> {
        let own = copied(&model.state_dict())?;
        model.load_state_dict(&self.state)?;
        let result = f();
        model.load_state_dict(&own)?;
        result
    }
}

fn copied(state: &StateDict) -> Result<StateDict> {
    no_grad(|| state.iter().map(|(name, t): (&String, &Tensor)| Ok((name.clone(), t.copy()?))).collect())
}
