//! `isograd predict`: what a trained model says about new samples, as a table.

use super::batch::Input;
use super::images::normalization;
use super::sample::{Objective, Signature, Split};
use super::tasks::Task;
use super::{Config, TEST_BATCH, loading};
use crate::run::{Dataset, Weights, device};
use crate::{check_writable, put, text};
use anyhow::{Context, Result, bail};
use clap::Args;
use isograd::data::images::{Transform, image_files, read_image};
use isograd::data::{self, HostTensor, csv, idx};
use isograd::train::SavedRun;
use isograd::{Device, Tensor, no_grad, replace_file};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The options of `isograd predict`.
#[derive(Args, Debug)]
pub struct Predict {
    /// The folder of a run of `isograd train`
    pub run: PathBuf,
    /// New samples: a table for csv and digits (the column to predict may lack; it is not read), images or a folder of them, or an
    /// IDX file of images for mnist
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write the table of predictions to this file [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The device, as `isograd devices` lists it [default: the best there is]
    #[arg(long)]
    device: Option<String>,
    #[command(flatten)]
    weights: Weights,
}

/// New samples: features `[samples, columns]` on the device, or files of images.
enum New {
    Rows(Tensor),
    Images(Vec<PathBuf>),
}

impl New {
    fn len(&self) -> usize {
        match self {
            New::Rows(rows) => rows.dims()[0],
            New::Images(files) => files.len(),
        }
    }
}

/// Writes a line of CSV for each sample: the class and the probability of each, or numbers in the units of the targets.
pub fn run(options: Predict) -> Result<ExitCode> {
    options.out.iter().try_for_each(|path| check_writable(path))?;
    let device = device(options.device.as_deref())?;
    let cannot = || format!("cannot predict with {}", options.run.display());
    let saved = SavedRun::load(&options.run, &device).with_context(cannot)?;
    let dataset = saved.config::<Dataset>()?.dataset;
    if dataset == text::NAME {
        bail!("{} is a run of {dataset}, which `isograd generate` continues", options.run.display());
    }
    let config: Config = saved.config()?;
    let Some(signature) = &config.samples else {
        bail!("{} does not say what its samples were like; train again", options.run.display());
    };
    if Task::named(&dataset)?.is_graph {
        bail!("{} is a run of graph, whose model is for one graph", options.run.display());
    }
    let new = read(&options.file, &config, signature, &device)?;
    let start = loading(&saved, &config, &Split::of(&config.dataset, signature), &device)?;
    options.weights.restore(&saved, &options.run, &start)?;
    start.model.eval();
    let mut table = head(&new, signature);
    for from in (0..new.len()).step_by(TEST_BATCH) {
        let length = TEST_BATCH.min(new.len() - from);
        let (x, files) = match &new {
            New::Rows(rows) => (rows.narrow(0, from, length)?, None),
            New::Images(files) => {
                let files = &files[from..from + length];
                (images(files, &config, signature)?.to(&device)?, Some(files))
            }
        };
        let dtype = start.init.parameter_dtype();
        let x = Input { x, around: None }.cast(dtype)?;
        let outputs = no_grad(|| start.model.predict(&x)?.cast(dtype.acc()))?;
        lines(&mut table, files, &outputs, signature)?;
    }
    match &options.out {
        Some(path) => replace_file(path, &[table.as_bytes()])?,
        None => put(&table)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The names of the table's columns.
fn head(new: &New, signature: &Signature) -> String {
    let names = &signature.names;
    let target = |column: &usize| names.of_columns.get(*column).cloned().unwrap_or_else(|| format!("column {column}"));
    let mut head: Vec<String> = match new {
        New::Images(_) => vec!["file".into()],
        New::Rows(_) => Vec::new(),
    };
    match signature.objective {
        Objective::Classes => {
            head.push("class".into());
            head.extend(names.classes.iter().cloned());
        }
        Objective::Numbers => head.extend(names.targets.iter().map(target)),
    }
    line(&head)
}

/// Adds the lines of a batch with these outputs, of these files if there are any.
fn lines(table: &mut String, files: Option<&[PathBuf]>, outputs: &Tensor, signature: &Signature) -> Result<()> {
    let is_class = signature.objective == Objective::Classes;
    let rows = if is_class { no_grad(|| outputs.softmax(1))? } else { outputs.clone() };
    let best = if is_class { outputs.argmax(1)?.to_vec::<i64>()? } else { Vec::new() };
    for (i, row) in rows.to_f64_vec()?.chunks(signature.outputs.max(1)).enumerate() {
        let mut cells: Vec<String> = files.iter().map(|files| files[i].display().to_string()).collect();
        if is_class {
            cells.push(signature.names.classes[best[i] as usize].clone());
        }
        cells.extend(row.iter().map(|v| (*v as f32).to_string()));
        table.push_str(&line(&cells));
    }
    Ok(())
}

/// A line of CSV. A cell that has a separator or a quote is in quotes.
fn line(cells: &[String]) -> String {
    let mut text = String::new();
    for (i, cell) in cells.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        // Writing to a string does not fail.
        let _ = match cell.contains([',', '"', '\n', '\r']) {
            true => write!(text, "{comma}\"{}\"", cell.replace('"', "\"\"")),
            false => write!(text, "{comma}{cell}"),
        };
    }
    text + "\n"
}

/// The samples of a file, as the dataset of the run has them.
fn read(path: &Path, config: &Config, signature: &Signature, device: &Device) -> Result<New> {
    if signature.names.columns > 0 {
        let rows = table(path, config, signature)?.to(device)?;
        // Pixels of the digits are counts from 0 to 16.
        let is_count = config.dataset == "digits";
        return Ok(New::Rows(if is_count { rows.mul_scalar(1.0 / 16.0)? } else { rows }));
    }
    if config.dataset == "mnist" {
        let idx::Images { count, rows, columns, pixels } = idx::read_images(path)?;
        let (found, expected): (usize, usize) = (rows * columns, signature.shape.iter().product());
        if found != expected {
            bail!(
                "{} has images of {rows} x {columns} pixels, expected {expected} pixels as in training",
                path.display()
            );
        }
        let pixels: Vec<f32> = pixels.into_iter().map(|p| f32::from(p) / 255.0).collect();
        return Ok(New::Rows(Tensor::from_vec(pixels, (count, found), device)?));
    }
    Ok(New::Images(image_files(path)?))
}

/// The features of a table's lines, found by the names of the columns if they have some.
fn table(path: &Path, config: &Config, signature: &Signature) -> Result<HostTensor> {
    let (known, options) = (&signature.names, config.reading.table.options());
    let found = csv::columns(path, &csv::Options { targets: Vec::new(), ..options.clone() })?;
    let features = known.features();
    let numbers: Vec<usize> = if found.count == known.columns && found.names == known.of_columns {
        features
    } else if !known.of_columns.is_empty() {
        let name = |column: &usize| known.of_columns[*column].as_str();
        let place = |column: &usize| found.names.iter().position(|found| found == name(column));
        let missing: Vec<&str> = features.iter().filter(|column| place(column).is_none()).map(name).collect();
        if !missing.is_empty() {
            bail!("{} lacks the columns {}, it has {}", path.display(), missing.join(", "), found.names.join(", "));
        }
        features.iter().filter_map(place).collect()
    } else if found.count == features.len() {
        (0..features.len()).collect()
    } else {
        let (columns, path) = (found.count, path.display());
        let (without, with) = (features.len(), known.columns);
        bail!("{path} has {columns} columns, expected {without}, or {with} with those to predict");
    };
    let targets = numbers.into_iter().map(csv::Column::Number).collect();
    Ok(csv::read_columns(path, &csv::Options { targets, ..options })?)
}

/// Images with the size and the normalisation of training.
fn images(files: &[PathBuf], config: &Config, signature: &Signature) -> Result<HostTensor> {
    let &[_, rows, columns] = &signature.shape[..] else {
        bail!("samples of {} have the shape {:?}, expected images", config.dataset, signature.shape);
    };
    let normalize = normalization(&config.dataset)?;
    let context = data::Context::new(0, 0, 0);
    let image = |path: &PathBuf| normalize.apply(read_image(path, [rows, columns])?, &context);
    Ok(HostTensor::stack(&files.iter().map(image).collect::<isograd::Result<Vec<_>>>()?)?)
}
