//! Profiles of a run, and its event files: the options `--profile` and `--tensorboard`.

use anyhow::Result;
use clap::Args;
use isograd::nn::{Module, profile_model};
use isograd::train::Epoch;
use isograd::train::Logger;
use isograd::train::tensorboard::TensorBoard;
use isograd::{Device, Tensor, replace_file, tape};
use std::path::Path;

/// The file of the trace in a run's folder.
pub const TRACE: &str = "profile.json";

/// Rows of the table of ops.
const ROWS: usize = 20;

/// The options that watch a run.
#[derive(Args, Clone, Copy, Debug)]
pub struct Watch {
    /// Before the run, measure the ops of a step forward and backward: print those that take the longest on the device, and leave a
    /// trace for chrome://tracing and ui.perfetto.dev in the folder of the run, profile.json
    #[arg(long)]
    pub profile: bool,
    /// Leave event files of TensorBoard in the folder of the run: the curves, and histograms of weights and gradients after each epoch
    #[arg(long)]
    pub tensorboard: bool,
}

/// Measures the second of two steps of a model; the first one compiles kernels. Returns the table of its ops, and leaves the trace.
pub fn measured<M: Module + ?Sized>(
    model: &M,
    device: &Device,
    out: &Path,
    step: impl Fn() -> isograd::Result<Tensor>,
) -> Result<String> {
    step()?;
    let (_, found) = profile_model(model, device, &step)?;
    let file = out.join(TRACE);
    replace_file(&file, &[found.chrome_trace().as_bytes()])?;
    Ok(format!("a step on {device}: {}the trace is {}\n", found.table(ROWS), file.display()))
}

/// Writes each epoch's results and the distributions of the parameters and their gradients to an event file. Gradients are those of
/// `loss` in evaluation, without dropout, so that a run has the same bits as one that is not watched.
pub fn on_board<'a, M: Module + ?Sized>(
    out: &Path,
    model: &'a M,
    loss: impl Fn() -> isograd::Result<Tensor> + 'a,
) -> isograd::Result<impl FnMut(&Epoch) -> isograd::Result<()> + 'a> {
    let mut board = TensorBoard::create(out)?;
    Ok(move |epoch: &Epoch| {
        board.epoch(epoch)?;
        let parameters = model.named_parameters();
        model.eval();
        let inputs: Vec<&Tensor> = parameters.iter().map(|(_, t)| t).collect();
        let gradients = loss().and_then(|loss| tape::grad(&loss, &inputs));
        model.train();
        for ((name, weight), gradient) in parameters.iter().zip(gradients?) {
            board.histogram(&format!("weights/{name}"), epoch.steps, weight)?;
            board.histogram(&format!("gradients/{name}"), epoch.steps, &gradient)?;
        }
        Ok(())
    })
}
