//! `isograd diff`.

use crate::onnx::Compared;
use crate::run::first;
use crate::train::{Config, Model, TASKS, Task, start, trainer};
use crate::{check_writable, report};
use anyhow::{Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;
use isograd::parallel::World;
use isograd::parity::Diff as Found;
use isograd::{Device, replace_file, tape};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The options of `isograd diff`.
#[derive(Args, Debug)]
pub struct Diff {
    /// A device, as `isograd devices` lists it
    #[arg(required_unless_present = "ranks")]
    a: Option<String>,
    /// The device to compare it with
    #[arg(required_unless_present = "ranks")]
    b: Option<String>,
    /// The dataset
    #[arg(default_value = "digits", value_parser = PossibleValuesParser::new(TASKS.iter().map(|task| task.name)))]
    dataset: String,
    /// Compare the devices of all ranks that a launcher has started, on this dataset: `mpirun -n 2 isograd diff --ranks digits`
    #[arg(long, value_name = "DATASET", conflicts_with_all = ["a", "b", "dataset"],
        value_parser = PossibleValuesParser::new(TASKS.iter().map(|task| task.name)))]
    ranks: Option<String>,
    /// With --ranks, the kind of the ranks' devices, such as cuda [default: the best]
    #[arg(long, requires = "ranks")]
    device: Option<String>,
    #[command(flatten)]
    onnx: Compared,
    #[command(flatten)]
    model: Model,
    /// Write all that was found to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// True if a terminal shows stdout, and styles are not switched off (no-color.org).
fn is_styled() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Runs the first training step, or a model of ONNX, on both devices and reports. The exit code is 1 if a node is beyond its tolerance.
pub fn run(options: Diff) -> Result<ExitCode> {
    options.json.iter().try_for_each(|path| check_writable(path))?;
    match (&options.ranks, &options.a, &options.b) {
        (Some(dataset), ..) => of_ranks(&options, dataset),
        (None, Some(a), Some(b)) => {
            let found = match options.onnx.file()? {
                Some(file) => of_file(&options.onnx, file, &a.parse()?, &b.parse()?)?,
                None => step(&options, &options.dataset, &a.parse()?, &b.parse()?)?,
            };
            write(&options, &serde_json::to_vec(&found)?)?;
            show(&found)
        }
        _ => bail!("two devices are compared, or ranks"),
    }
}

/// The forward and the backward pass of a model of ONNX.
fn of_file(onnx: &Compared, file: &Path, a: &Device, b: &Device) -> Result<Found> {
    Ok(tape::diff(a, b, |device| onnx.loss(file, device))?)
}

fn step(options: &Diff, dataset: &str, a: &Device, b: &Device) -> Result<Found> {
    let task = Task::named(dataset)?;
    let config = Config::new(&options.model, task, None)?;
    let split = task.load(options.model.data(), &config.reading, None)?;
    Ok(tape::diff(a, b, |device| {
        let start = start(&config, &split, device, None)?;
        let trainer = trainer(&config, &split, &start, &split.test)?;
        trainer.step(&first(trainer.train_loader())?)
    })?)
}

/// Every rank runs the step on its own device. Rank 0 shows its errors beside those of each other rank.
fn of_ranks(options: &Diff, dataset: &str) -> Result<ExitCode> {
    let world = World::start()?;
    let (group, device) = (world.group(), world.device(options.device.as_deref())?);
    if group.size() == 1 {
        bail!("--ranks compares ranks, and there is one; start several by mpirun, torchrun or srun");
    }
    let own = step(options, dataset, &device, &device)?;
    let all = group.gather_bytes("errors of ranks", &own.to_bytes())?;
    let names = group.gather_bytes("names of devices", device.to_string().as_bytes())?;
    if !group.is_first() {
        return Ok(ExitCode::SUCCESS);
    }
    let name = |rank: usize| format!("rank {rank} ({})", String::from_utf8_lossy(&names[rank]));
    let beside = |rank: usize| own.beside([name(0), name(rank)], &all[rank]);
    let found = (1..group.size()).map(beside).collect::<isograd::Result<Vec<_>>>()?;
    write(options, &serde_json::to_vec(&found)?)?;
    let codes = found.iter().map(show).collect::<Result<Vec<_>>>()?;
    Ok(codes.into_iter().find(|code| *code != ExitCode::SUCCESS).unwrap_or(ExitCode::SUCCESS))
}

fn write(options: &Diff, json: &[u8]) -> Result<()> {
    options.json.iter().try_for_each(|path| Ok(replace_file(path, &[json, b"\n"])?))
}

fn show(found: &Found) -> Result<ExitCode> {
    let verdict = if is_styled() { format!("\x1b[1m{}\x1b[0m", found.verdict()) } else { found.verdict() };
    report(&format!("{}\n{verdict}", found.table()), found.first().is_none())
}
