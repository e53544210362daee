//! `isograd predict`: what a trained model says about new samples, as a table.

use super::batch::Input;
use super::images::normalization;
use super::sample::{Objective, Signature, Split};
use super::table::column;
use super::tasks::Task;
use super::{Config, TEST_BATCH, loading};
use crate::onnx::{self, Reading};
use crate::run::{Dataset, Weights, device};
use crate::{check_writable, put, text};
use anyhow::{Context, Result, bail};
use clap::Args;
use isograd::data::csv::{Encoding, Targets};
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
    /// The folder of a run of `isograd train`, or a model in the format of ONNX
    #[arg(value_name = "RUN|MODEL.onnx")]
    pub run: PathBuf,
    /// New samples: a table for csv and digits (the column to predict may lack; it is not read), images or folders of them, or an
    /// IDX file of images for mnist; a table of numbers, an array NAME.npy or images for an ONNX model
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Columns of the new table that stand before the predictions, such as an identifier
    #[arg(long, value_name = "COLUMN,..", value_delimiter = ',')]
    keep: Vec<String>,
    /// Write the table of predictions to this file [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The device, as `isograd devices` lists it [default: the best there is]
    #[arg(long)]
    device: Option<String>,
    #[command(flatten)]
    weights: Weights,
    #[command(flatten)]
    onnx: Reading,
}

/// New samples: features `[samples, columns]` and categories on the device, or files of images.
enum New {
    Rows(Input),
    Images(Vec<PathBuf>),
}

impl New {
    fn len(&self) -> usize {
        match self {
            New::Rows(rows) => rows.x.dims()[0],
            New::Images(files) => files.len(),
        }
    }

    /// Samples from one on.
    fn part(&self, from: usize, length: usize, config: &Config, device: &Device) -> Result<Input> {
        match self {
            New::Rows(Input { x, categories, .. }) => Ok(Input {
                x: x.narrow(0, from, length)?,
                categories: categories.as_ref().map(|all| all.narrow(0, from, length)).transpose()?,
                around: None,
            }),
            New::Images(files) => {
                let x = images(&files[from..from + length], config)?.to(device)?;
                Ok(Input { x, categories: None, around: None })
            }
        }
    }
}

/// Columns of the new samples that stand before the predictions, by their names.
type Carried = Vec<(String, Vec<String>)>;

/// Writes a line of CSV for each sample: the class and the probability of each, or numbers in the units of the targets.
pub fn run(options: Predict) -> Result<ExitCode> {
    options.out.iter().try_for_each(|path| check_writable(path))?;
    let device = device(options.device.as_deref())?;
    if options.run.is_file() {
        if !options.keep.is_empty() || options.weights.are_given() {
            bail!("--keep and the options of weights are for runs, {} is a file", options.run.display());
        }
        return onnx::predict(&options.run, &options.files, &options.onnx, options.out.as_deref(), &device);
    }
    if options.onnx.is_given() {
        bail!("--labels, --size, --mean and --std are for models of ONNX, {} is a run", options.run.display());
    }
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
    let (new, carried) = read(&options.files, &config, signature, &options.keep, &device)?;
    let start = loading(&saved, &config, &Split::of(&config.dataset, signature), &device)?;
    options.weights.restore(&saved, &options.run, &start)?;
    start.model.eval();
    let mut table = head(&carried, signature);
    for from in (0..new.len()).step_by(TEST_BATCH) {
        let x = new.part(from, TEST_BATCH.min(new.len() - from), &config, &device)?;
        let dtype = start.init.parameter_dtype();
        let outputs = no_grad(|| start.model.predict(&x.cast(dtype)?)?.cast(dtype.acc()))?;
        lines(&mut table, &carried, from, &outputs, signature)?;
    }
    match &options.out {
        Some(path) => replace_file(path, &[table.as_bytes()])?,
        None => put(&table)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The names of the table's columns.
fn head(carried: &Carried, signature: &Signature) -> String {
    let mut head: Vec<String> = carried.iter().map(|(name, _)| name.clone()).collect();
    match (signature.objective, &signature.table) {
        (Objective::Classes, _) => {
            head.push("class".into());
            head.extend(signature.classes.iter().cloned());
        }
        (Objective::Numbers, Some(encoding)) => head.extend(encoding.targets().into_iter().map(String::from)),
        (Objective::Numbers, None) => head.extend((0..signature.outputs).map(|i| format!("output {i}"))),
    }
    line(&head)
}

/// Adds the lines of a batch with these outputs, whose first sample has the number `from`.
fn lines(table: &mut String, carried: &Carried, from: usize, outputs: &Tensor, signature: &Signature) -> Result<()> {
    let is_class = signature.objective == Objective::Classes;
    let rows = if is_class { no_grad(|| outputs.softmax(1))? } else { outputs.clone() };
    let best = if is_class { outputs.argmax(1)?.to_vec::<i64>()? } else { Vec::new() };
    // Numbers have the unit of the targets.
    let (means, deviations) = signature.table.as_ref().map(Encoding::target_scale).unwrap_or_default();
    let scales: Vec<(f64, f64)> = means.into_iter().map(f64::from).zip(deviations.into_iter().map(f64::from)).collect();
    for (i, row) in rows.to_f64_vec()?.chunks(signature.outputs.max(1)).enumerate() {
        let mut cells: Vec<String> = carried.iter().map(|(_, texts)| texts[from + i].clone()).collect();
        if is_class {
            cells.push(signature.classes[best[i] as usize].clone());
        }
        let in_unit = |(j, v): (usize, &f64)| scales.get(j).map_or(*v, |(mean, deviation)| v * deviation + mean);
        cells.extend(row.iter().enumerate().map(|cell| (in_unit(cell) as f32).to_string()));
        table.push_str(&line(&cells));
    }
    Ok(())
}

/// A line of CSV. A cell that has a separator or a quote is in quotes.
pub fn line(cells: &[String]) -> String {
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

/// The samples of a file, as the dataset of the run has them, and what stands before their predictions.
fn read(
    files: &[PathBuf],
    config: &Config,
    signature: &Signature,
    keep: &[String],
    device: &Device,
) -> Result<(New, Carried)> {
    let rows = |x| New::Rows(Input { x, categories: None, around: None });
    let path = match files {
        [path] => path,
        _ if signature.table.is_none() && !["digits", "mnist"].contains(&&*config.dataset) => &files[0],
        _ => bail!("{} files were given, and samples of {} are in one", files.len(), config.dataset),
    };
    if let Some(encoding) = &signature.table {
        let keep: Vec<csv::Column> = keep.iter().map(|name| column(name)).collect();
        let table = encoding.read(path, Targets::Unknown, &keep)?;
        let encoded = encoding.encode(&table)?;
        let has_categories = !encoding.categories().is_empty();
        let categories = has_categories.then(|| encoded.categories().to(device)).transpose()?;
        let x = encoded.numbers().to(device)?;
        return Ok((New::Rows(Input { x, categories, around: None }), table.kept().to_vec()));
    }
    if !keep.is_empty() {
        bail!("--keep is for runs of csv, {} has no columns", config.dataset);
    }
    match config.dataset.as_str() {
        "digits" => Ok((rows(digits(path, signature)?.to(device)?), Vec::new())),
        "mnist" => {
            let idx::Images { count, rows: height, columns: width, pixels } = idx::read_images(path)?;
            let (found, expected): (usize, usize) = (height * width, signature.shape.iter().product());
            if found != expected {
                bail!(
                    "{} has images of {height} x {width} pixels, expected {expected} pixels as in training",
                    path.display()
                );
            }
            let pixels: Vec<f32> = pixels.into_iter().map(|p| f32::from(p) / 255.0).collect();
            Ok((rows(Tensor::from_vec(pixels, (count, found), device)?), Vec::new()))
        }
        _ => {
            let files = files.iter().map(image_files).collect::<isograd::Result<Vec<_>>>()?.concat();
            let names = files.iter().map(|file| file.display().to_string()).collect();
            Ok((New::Images(files), vec![("file".into(), names)]))
        }
    }
}

/// Digits in a table: a line of pixels each, which may have the digit at its end.
fn digits(path: &Path, signature: &Signature) -> Result<HostTensor> {
    let features = csv::Features::Numbers;
    let table = csv::Table::read(path, &csv::Options { targets: Vec::new(), features, ..csv::Options::default() })?;
    let (pixels, found) = (signature.shape.iter().product::<usize>(), table.columns().len());
    if found != pixels && found != pixels + 1 {
        let path = path.display();
        bail!("{path} has {found} columns, expected {pixels}, or {} with the digit", pixels + 1);
    }
    // Pixels are counts from 0 to 16.
    let values: Vec<f32> = table.numbers()?.to_vec::<f32>()?;
    let rows = values.chunks(found).flat_map(|row| &row[..pixels]).map(|v| v / 16.0).collect::<Vec<f32>>();
    Ok(HostTensor::new(&rows, [table.len(), pixels])?)
}

/// Images with the size and the normalisation of training.
fn images(files: &[PathBuf], config: &Config) -> Result<HostTensor> {
    let shape = config.samples.as_ref().map(|samples| &samples.shape[..]).unwrap_or_default();
    let &[_, rows, columns] = shape else {
        bail!("samples of {} have the shape {shape:?}, expected images", config.dataset);
    };
    let normalize = normalization(&config.dataset)?;
    let context = data::Context::new(0, 0, 0);
    let image = |path: &PathBuf| normalize.apply(read_image(path, [rows, columns])?, &context);
    Ok(HostTensor::stack(&files.iter().map(image).collect::<isograd::Result<Vec<_>>>()?)?)
}
