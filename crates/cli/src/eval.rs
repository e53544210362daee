//! `isograd eval`.

use crate::run::{Dataset, Weights, device};
use crate::{print, text, train};
use anyhow::{Context, Result};
use clap::Args;
use isograd::train::SavedRun;
use std::path::PathBuf;
use std::process::ExitCode;

/// The options of `isograd eval`.
#[derive(Args, Debug)]
pub struct Eval {
    /// The folder of a run of `isograd train`
    run: PathBuf,
    /// The folder or the file with the samples, if the run had one
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// The device, as `isograd devices` lists it [default: the best there is]
    #[arg(long)]
    device: Option<String>,
    #[command(flatten)]
    weights: Weights,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Computes the loss and the metrics of a run's model over the samples to test with, or the end of its text.
pub fn run(Eval { run, data, device: name, weights, json }: Eval) -> Result<ExitCode> {
    let device = device(name.as_deref())?;
    let saved = SavedRun::load(&run, &device).with_context(|| format!("cannot evaluate {}", run.display()))?;
    let is_text = saved.config::<Dataset>()?.dataset == text::NAME;
    let evaluate = if is_text { text::evaluate } else { train::evaluate };
    let [object, words] = evaluate(&saved, &run, data.as_deref(), weights, &device)?;
    print(if json { &object } else { &words })?;
    Ok(ExitCode::SUCCESS)
}
