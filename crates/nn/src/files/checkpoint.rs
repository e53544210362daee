//! The whole state of a training run in one file.

use crate::module::same_tensor;
use crate::{Averaged, GradScaler, Metadata, Module, Optimizer, StateDict, load_checked, save};
use isograd_core::{Device, Error, Result, Rng, RngState, Tensor};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

/// The state of a training run: model, optimizer, loss scaler, generators, and texts such as the epoch. A restored run continues
/// with the same bits as if it had not been interrupted. A checkpoint in memory stays as it is when training goes on.
///
/// ```no_run
/// # use isograd_nn::{AdamW, Checkpoint, Init, Linear, Optimizer};
/// # fn main() -> isograd_core::Result<()> {
/// # let device = isograd_core::Device::best()?;
/// # let init = Init::new(&device);
/// # let model = Linear::new(2, 1, &init)?;
/// # let mut optimizer = AdamW::new(&model);
/// Checkpoint::new()
///     .with_model(&model)?
///     .with_optimizer(&optimizer)?
///     .with_rng("init", init.rng())
///     .with("epoch", 3)
///     .save("run.safetensors")?;
///
/// let saved = Checkpoint::load("run.safetensors", &device)?;
/// saved.restore_model(&model)?;
/// saved.restore_optimizer(&mut optimizer)?;
/// saved.restore_rng("init", init.rng())?;
/// let epoch: u64 = saved.get("epoch")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    /// Parameters and buffers.
    pub model: StateDict,
    /// The optimizer's states.
    pub optimizer: StateDict,
    /// The loss scaler's state.
    pub scaler: StateDict,
    /// An average of the weights, and the buffers.
    pub averaged: StateDict,
    /// The positions of generators.
    pub rngs: BTreeMap<String, RngState>,
    /// Texts of the caller.
    pub texts: BTreeMap<String, String>,
}

/// The key of generators and texts in a file's metadata.
const KEY: &str = "isograd.checkpoint";
/// The key that earlier versions of the command used.
const EARLIER_KEY: &str = "isograd.train";
/// Prefixes of a checkpoint's parts in the file.
const PARTS: [&str; 4] = ["model.", "optimizer.", "scaler.", "averaged."];
/// The text with the number of updates of the average.
const UPDATES: &str = "averaged.updates";

impl Checkpoint {
    /// An empty checkpoint.
    pub fn new() -> Checkpoint {
        Checkpoint::default()
    }

    /// Adds copies of the parameters and buffers of a model. Errors: `OutOfMemory`.
    pub fn with_model(self, model: &(impl Module + ?Sized)) -> Result<Checkpoint> {
        Ok(Checkpoint { model: copies(&model.state_dict())?, ..self })
    }

    /// Adds copies of the states of an optimizer. Errors: `OutOfMemory`, and the optimizer's.
    pub fn with_optimizer(self, optimizer: &(impl Optimizer + ?Sized)) -> Result<Checkpoint> {
        Ok(Checkpoint { optimizer: copies(&optimizer.state_dict()?)?, ..self })
    }

    /// Adds a copy of the state of a loss scaler. Errors: `OutOfMemory`, and the scaler's.
    pub fn with_scaler(self, scaler: &GradScaler) -> Result<Checkpoint> {
        Ok(Checkpoint { scaler: copies(&scaler.state_dict()?)?, ..self })
    }

    /// Adds a copy of an average of the weights. Errors: `OutOfMemory`.
    pub fn with_averaged(self, averaged: &Averaged) -> Result<Checkpoint> {
        let checkpoint = Checkpoint { averaged: copies(averaged.state_dict())?, ..self };
        Ok(checkpoint.with(UPDATES, averaged.updates()))
    }

    /// Adds the position of a generator.
    pub fn with_rng(mut self, name: &str, rng: &Rng) -> Checkpoint {
        self.rngs.insert(name.into(), rng.state());
        self
    }

    /// Adds a value of the caller, as text.
    pub fn with(mut self, name: &str, value: impl Display) -> Checkpoint {
        self.texts.insert(name.into(), value.to_string());
        self
    }

    /// Writes the file as [`save`] does. Errors: as [`save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut tensors = StateDict::new();
        for (part, state) in PARTS.into_iter().zip([&self.model, &self.optimizer, &self.scaler, &self.averaged]) {
            tensors.extend(state.iter().map(|(name, t)| (format!("{part}{name}"), t.clone())));
        }
        let rngs = self.rngs.iter().map(|(name, s)| (name.clone(), json!([s.seed, s.offset, s.stream])));
        let text = json!({ "rngs": rngs.collect::<BTreeMap<_, _>>(), "texts": self.texts });
        save(path, &tensors, &Metadata::from([(KEY.into(), text.to_string())]))
    }

    /// Reads the file. Errors: as [`load_checked`], and `Format` if it is no checkpoint.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Checkpoint> {
        let path = path.as_ref();
        let file = load_checked(path, device)?;
        let invalid =
            || Error::format(path.display().to_string(), "a safetensors file, but no checkpoint of a training run");
        if file.metadata.contains_key(EARLIER_KEY) {
            let message = "a checkpoint of an earlier version of this library, from which this one cannot go on";
            return Err(Error::format(path.display().to_string(), message));
        }
        let text = file.metadata.get(KEY).ok_or_else(invalid)?;
        let metadata: Value = serde_json::from_str(text).map_err(|_| invalid())?;
        let mut checkpoint = Checkpoint {
            rngs: rngs(&metadata["rngs"]).ok_or_else(invalid)?,
            texts: serde_json::from_value(metadata["texts"].clone()).map_err(|_| invalid())?,
            ..Checkpoint::default()
        };
        let Checkpoint { model, optimizer, scaler, averaged, .. } = &mut checkpoint;
        let mut parts = PARTS.into_iter().zip([model, optimizer, scaler, averaged]).collect::<Vec<_>>();
        for (name, t) in file.tensors {
            let part = parts.iter_mut().find_map(|(part, state)| Some((state, name.strip_prefix(*part)?)));
            let (state, name) = part.ok_or_else(invalid)?;
            state.insert(name.to_string(), t);
        }
        Ok(checkpoint)
    }

    /// Copies the saved state into a model. Errors: as [`Module::load_state_dict`].
    pub fn restore_model(&self, model: &(impl Module + ?Sized)) -> Result<()> {
        model.load_state_dict(&self.model)
    }

    /// Copies the saved state into an optimizer. Errors: as [`Optimizer::load_state_dict`].
    pub fn restore_optimizer(&self, optimizer: &mut (impl Optimizer + ?Sized)) -> Result<()> {
        optimizer.load_state_dict(&self.optimizer)
    }

    /// Copies the saved state into a loss scaler. Errors: as [`GradScaler::load_state_dict`].
    pub fn restore_scaler(&self, scaler: &mut GradScaler) -> Result<()> {
        scaler.load_state_dict(&self.scaler)
    }

    /// Copies the saved average into another. Errors: `Value` if there is none, or its tensors differ.
    pub fn restore_averaged(&self, averaged: &mut Averaged) -> Result<()> {
        let updates = self.get(UPDATES)?;
        averaged.resume(&self.averaged, updates)
    }

    /// Sets a generator and its clones. Errors: `Value` if there is no generator of this name.
    pub fn restore_rng(&self, name: &str, rng: &Rng) -> Result<()> {
        rng.set_state(*self.rngs.get(name).ok_or_else(|| missing("generator", name, self.rngs.keys()))?);
        Ok(())
    }

    /// A value that was saved as text. Errors: `Value` if there is no value of this name, or if it does not parse.
    pub fn get<T: FromStr>(&self, name: &str) -> Result<T> {
        let text = self.texts.get(name).ok_or_else(|| missing("value", name, self.texts.keys()))?;
        let kind = std::any::type_name::<T>();
        text.parse().map_err(|_| Error::value("checkpoint", format!("{name} is {text:?}, expected a {kind}")))
    }
}

/// Tensors of their own, which training does not change. Names of one tensor, such as tied weights, get one copy.
fn copies(state: &StateDict) -> Result<StateDict> {
    let mut known: Vec<(&Tensor, Tensor)> = Vec::new();
    let mut copied = StateDict::new();
    for (name, t) in state {
        let copy = match known.iter().find(|(original, _)| same_tensor(original, t)) {
            Some((_, copy)) => copy.clone(),
            None => t.copy()?,
        };
        known.push((t, copy.clone()));
        copied.insert(name.clone(), copy);
    }
    Ok(copied)
}

fn rngs(value: &Value) -> Option<BTreeMap<String, RngState>> {
    let state = |v: &Value| Some(RngState { seed: v[0].as_u64()?, offset: v[1].as_u64()?, stream: v[2].as_u64()? });
    value.as_object()?.iter().map(|(name, v)| Some((name.clone(), state(v)?))).collect()
}

fn missing<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> Error {
    let known: Vec<&str> = known.map(String::as_str).collect();
    Error::value("checkpoint", format!("it has no {what} {name:?}, but {known:?}"))
}
