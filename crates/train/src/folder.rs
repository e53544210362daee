//! The folder of a run: its configuration, checkpoints, metrics and curves.

use crate::Progress;
#[cfg(feature = "curves")]
use crate::curves;
use isograd_core::{Device, Error, Result, Tensor, replace_file};
use isograd_nn::{Checkpoint, Init};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// The file of the last checkpoint: all that a run needs to go on.
pub const CHECKPOINT: &str = "checkpoint.safetensors";
/// The file of the best epoch's model.
pub const BEST: &str = "best.safetensors";
/// The file of the configuration.
pub const CONFIG: &str = "config.json";
/// The file of the results of each epoch, one object a line.
pub const METRICS: &str = "metrics.jsonl";
/// The files of the learning curves.
pub const CURVES: [&str; 2] = ["curves.svg", "curves.png"];

/// The names of progress and configuration among a checkpoint's texts.
const PROGRESS: &str = "progress";
const CONFIGURATION: &str = "config";

/// Where a run keeps its files.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub path: PathBuf,
    /// The title of the curves.
    pub title: String,
    /// JSON of the caller.
    pub config: String,
}

impl Folder {
    pub fn new(path: &Path) -> Folder {
        let title = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Folder { path: path.to_path_buf(), title, config: "null".into() }
    }

    /// Writes all files but the curves. The best model, if it is not there yet, comes before the checkpoint that counts on it.
    pub fn save(&self, checkpoint: Checkpoint, best: Option<&Checkpoint>, progress: &Progress) -> Result<()> {
        if let Some(best) = best {
            best.save(self.path.join(BEST))?;
        }
        let checkpoint = checkpoint.with(PROGRESS, json(progress)?).with(CONFIGURATION, &self.config);
        checkpoint.save(self.path.join(CHECKPOINT))?;
        replace_file(self.path.join(CONFIG), &[self.config.as_bytes(), b"\n"])?;
        let lines = progress.history.iter().map(json).collect::<Result<Vec<_>>>()?;
        let lines: String = lines.into_iter().map(|line| line + "\n").collect();
        replace_file(self.path.join(METRICS), &[lines.as_bytes()])
    }

    /// Draws nothing: this needs the feature `curves`.
    #[cfg(not(feature = "curves"))]
    pub fn draw(&self, _: &Progress) -> Result<()> {
        Ok(())
    }

    /// Draws the curves.
    #[cfg(feature = "curves")]
    pub fn draw(&self, Progress { history, best, .. }: &Progress) -> Result<()> {
        let best = *best;
        replace_file(self.path.join(CURVES[0]), &[curves::svg(&self.title, history, best)?.as_bytes()])?;
        replace_file(self.path.join(CURVES[1]), &[&curves::png(&self.title, history, best)?])
    }
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::value("trainer", format!("cannot be written as JSON: {e}")))
}

/// Creates a folder if need be and makes sure that files can be written to it, before any work is done; removes the unfinished files
/// of a killed run. Errors: `Io` naming the folder.
pub fn prepare(folder: impl AsRef<Path>) -> Result<()> {
    let folder = folder.as_ref();
    std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, "creating the folder", e))?;
    isograd_core::try_writing(folder)?;
    isograd_core::remove_abandoned(folder);
    Ok(())
}

/// A run that a folder has, for [`Trainer::resume`](crate::Trainer::resume).
#[derive(Debug)]
pub struct SavedRun {
    /// The path of the checkpoint.
    pub path: PathBuf,
    /// Epochs, steps and results so far.
    pub progress: Progress,
    pub(crate) checkpoint: Checkpoint,
    /// The best model so far, if there is one.
    pub(crate) best: Option<Checkpoint>,
}

impl SavedRun {
    /// Reads the last checkpoint of a folder. Errors: as [`Checkpoint::load`], and `Format` if it is none of a
    /// [`Trainer`](crate::Trainer).
    pub fn load(folder: impl AsRef<Path>, device: &Device) -> Result<SavedRun> {
        let path = folder.as_ref().join(CHECKPOINT);
        let checkpoint = Checkpoint::load(&path, device)?;
        let progress: Progress = parse(&path, &checkpoint, PROGRESS)?;
        let best = match progress.best {
            Some(_) => Some(Checkpoint::load(folder.as_ref().join(BEST), device)?),
            None => None,
        };
        Ok(SavedRun { path, progress, checkpoint, best })
    }

    /// Parameters of a model that gets its weights from this run, as [`Init::loading`] makes them.
    pub fn loading(&self, init: Init) -> Init {
        init.loading(self.checkpoint.model.values().map(Tensor::shape))
    }

    /// Gives a model the last weights. Errors: as [`Checkpoint::restore_model`].
    pub fn restore_model(&self, model: &(impl isograd_nn::Module + ?Sized)) -> Result<()> {
        self.checkpoint.restore_model(model)
    }

    /// The configuration that the run was given. Errors: `Format` if it is not a `C`.
    pub fn config<C: DeserializeOwned>(&self) -> Result<C> {
        parse(&self.path, &self.checkpoint, CONFIGURATION)
    }
}

fn parse<T: DeserializeOwned>(path: &Path, checkpoint: &Checkpoint, name: &str) -> Result<T> {
    let text = checkpoint.texts.get(name).map(String::as_str).unwrap_or_default();
    serde_json::from_str(text).map_err(|e| {
        let message = format!("not a checkpoint of this training run: its {name} cannot be read: {e}");
        Error::format(path.display().to_string(), message)
    })
}
