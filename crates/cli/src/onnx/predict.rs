//! `isograd predict MODEL.onnx`: what a model of ONNX says about new samples, as a table.

use crate::train::{IMAGENET, line};
use crate::{check_writable, put};
use anyhow::{Context, Result, bail};
use clap::Args;
use isograd::data::images::{GREY, image_files, read_image};
use isograd::data::{HostTensor, csv, npy};
use isograd::onnx::{OnnxModel, Port, Size, load};
use isograd::{DType, Device, Tensor, no_grad, replace_file};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Samples of a batch, where the model leaves their number open.
const BATCH: usize = 64;
/// Rows and columns of images, where the model leaves them open.
const SIDE: usize = 224;

/// The options of images and classes.
#[derive(Args, Debug)]
pub struct Reading {
    /// Of an ONNX model: a file with the name of a class in each line. The first output is then scores, which become probabilities
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Of an ONNX model of images: rows and columns [default: those of the model, else 224]
    #[arg(long, value_name = "PIXELS", value_delimiter = ',', num_args = 1..=2)]
    size: Vec<usize>,
    /// Of an ONNX model of images: the mean of each channel of pixels in 0..1 [default: ImageNet's for three channels, else 0]
    #[arg(long, value_name = "MEAN,..", value_delimiter = ',')]
    mean: Vec<f64>,
    /// Of an ONNX model of images: the deviation of each channel [default: ImageNet's for three channels, else 1]
    #[arg(long, value_name = "STD,..", value_delimiter = ',')]
    std: Vec<f64>,
}

impl Reading {
    /// True if one of the options was given.
    pub fn is_given(&self) -> bool {
        self.labels.is_some() || !(self.size.is_empty() && self.mean.is_empty() && self.std.is_empty())
    }
}

/// New samples.
enum New {
    /// An array for each input, on the CPU, whose first dimension is that of the samples.
    Arrays(Vec<Tensor>),
    Images(Vec<PathBuf>, Picture),
}

/// The images that a model takes.
struct Picture {
    channels: usize,
    size: [usize; 2],
    /// True if channels are the last dimension.
    is_channels_last: bool,
    mean: Vec<f64>,
    std: Vec<f64>,
}

/// Writes a line of CSV for each sample with the elements of each output, and for classes with names the class and the probability of each.
pub fn predict(
    file: &Path,
    samples: &[PathBuf],
    reading: &Reading,
    out: Option<&Path>,
    device: &Device,
) -> Result<ExitCode> {
    out.iter().try_for_each(|path| check_writable(path))?;
    let model = load(file, device)?;
    let labels = reading.labels.as_deref().map(labels).transpose()?;
    let new = New::read(samples, &model, reading)?;
    let count = new.len();
    let fixed = model.inputs().iter().find_map(|port| match port.shape()?.first()? {
        Size::Fixed(extent) => Some(*extent),
        _ => None,
    });
    let batch = fixed.unwrap_or(BATCH).max(1);
    let mut table = String::new();
    for from in (0..count).step_by(batch) {
        let own = batch.min(count - from);
        // A batch of a fixed size is filled by its last sample.
        let filled = if fixed.is_some() { batch } else { own };
        let inputs = new.part(from, own, filled, &model)?;
        let outputs = no_grad(|| model.forward(&inputs))?;
        let columns = columns(&model, &outputs, filled, labels.as_deref())?;
        if table.is_empty() {
            let head = new.is_named().then(|| "file".to_string());
            table.push_str(&line(&head.into_iter().chain(columns.names).collect::<Vec<_>>()));
        }
        for (i, cells) in columns.rows.into_iter().take(own).enumerate() {
            table.push_str(&line(&new.name(from + i).into_iter().chain(cells).collect::<Vec<_>>()));
        }
    }
    match out {
        Some(path) => replace_file(path, &[table.as_bytes()])?,
        None => put(&table)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The names of classes, a line each.
fn labels(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().map(|line| line.trim().to_string()).collect())
}

/// The columns of a table, and their cells.
struct Columns {
    names: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// The outputs of a batch as columns.
fn columns(model: &OnnxModel, outputs: &[Tensor], count: usize, labels: Option<&[String]>) -> Result<Columns> {
    let mut columns = Columns { names: Vec::new(), rows: vec![Vec::new(); count] };
    let mut classes = labels;
    for (port, y) in model.outputs().iter().zip(outputs) {
        if y.rank() == 0 || y.dims()[0] != count {
            bail!("the output {} is {}, expected the {count} samples in its first dimension", port.name(), y.shape());
        }
        let y = y.reshape((count, y.numel() / count.max(1)))?;
        let width = y.dims()[1];
        match classes.filter(|_| y.dtype().is_float()) {
            Some(labels) if labels.len() != width => {
                bail!("the output {} has {width} scores a sample, and there are {} labels", port.name(), labels.len());
            }
            Some(labels) => {
                classes = None;
                let best = y.argmax(1)?.to_vec::<i64>()?;
                columns.names.push("class".into());
                columns.names.extend(labels.iter().cloned());
                columns.rows.iter_mut().zip(&best).for_each(|(row, &k)| row.push(labels[k as usize].clone()));
                columns.add(&y.cast(y.dtype().acc())?.softmax(1)?)?;
            }
            None => {
                let of = |k: usize| if width == 1 { port.name().to_string() } else { format!("{} {k}", port.name()) };
                columns.names.extend((0..width).map(of));
                columns.add(&y)?;
            }
        }
    }
    Ok(columns)
}

impl Columns {
    /// Adds the elements of the rows of a matrix.
    fn add(&mut self, y: &Tensor) -> Result<()> {
        let cells: Vec<String> = match y.dtype().is_float() {
            true => y.to_f64_vec()?.iter().map(|v| (*v as f32).to_string()).collect(),
            false => y.cast(DType::I64)?.to_vec::<i64>()?.iter().map(i64::to_string).collect(),
        };
        let width = y.dims()[1].max(1);
        self.rows.iter_mut().zip(cells.chunks(width)).for_each(|(row, cells)| row.extend_from_slice(cells));
        Ok(())
    }
}

impl New {
    fn read(samples: &[PathBuf], model: &OnnxModel, reading: &Reading) -> Result<New> {
        let has = |path: &PathBuf, extensions: &[&str]| {
            path.extension().is_some_and(|e| extensions.iter().any(|known| e.eq_ignore_ascii_case(known)))
        };
        match samples {
            [array] if has(array, &["npy"]) => Ok(New::Arrays(vec![whole(npy::read(array)?, model)?])),
            [table] if has(table, &["csv", "tsv", "txt", "parquet", "arrow"]) => numbers(table, model),
            _ => {
                let files = samples.iter().map(image_files).collect::<isograd::Result<Vec<_>>>()?;
                Ok(New::Images(files.concat(), Picture::of(only(model)?, reading)?))
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            New::Arrays(arrays) => arrays.first().map_or(0, |x| x.dims()[0]),
            New::Images(files, _) => files.len(),
        }
    }

    fn is_named(&self) -> bool {
        matches!(self, New::Images(..))
    }

    /// The file of a sample, of images.
    fn name(&self, sample: usize) -> Option<String> {
        match self {
            New::Arrays(_) => None,
            New::Images(files, _) => Some(files[sample].display().to_string()),
        }
    }

    /// The inputs of samples, of which the last stands as often as the batch needs.
    fn part(&self, from: usize, own: usize, filled: usize, model: &OnnxModel) -> Result<Vec<Tensor>> {
        let arrays = match self {
            New::Arrays(arrays) => arrays.iter().map(|x| Ok(x.narrow(0, from, own)?)).collect::<Result<Vec<_>>>()?,
            New::Images(files, picture) => vec![picture.read(&files[from..from + own], only(model)?)?],
        };
        let input = |(x, port): (Tensor, &Port)| -> Result<Tensor> {
            let mut parts = vec![x.clone()];
            parts.extend((own..filled).map(|_| x.narrow(0, own - 1, 1)).collect::<isograd::Result<Vec<_>>>()?);
            let x = Tensor::concat(&parts.iter().collect::<Vec<_>>(), 0)?;
            Ok(x.cast(port.dtype())?.to_device(model.device())?)
        };
        arrays.into_iter().zip(model.inputs()).map(input).collect()
    }
}

/// The only input of a model.
fn only(model: &OnnxModel) -> Result<&Port> {
    match model.inputs() {
        [port] => Ok(port),
        ports => {
            let names: Vec<&str> = ports.iter().map(Port::name).collect();
            bail!(
                "the model has the inputs {}, and predictions are made from one; `isograd onnx run` takes several",
                names.join(", ")
            )
        }
    }
}

/// An array of samples for the only input.
fn whole(array: HostTensor, model: &OnnxModel) -> Result<Tensor> {
    let port = only(model)?;
    if array.dims().is_empty() {
        bail!("the input {port} is an array of samples, and a number was given");
    }
    Ok(array.to(&Device::cpu()?)?)
}

/// The numbers of a table: columns in order for the only input, or a column of its name for each input.
fn numbers(path: &Path, model: &OnnxModel) -> Result<New> {
    let features = csv::Features::Numbers;
    let table = csv::Table::read(path, &csv::Options { targets: Vec::new(), features, ..csv::Options::default() })?;
    let x = table.numbers()?.to(&Device::cpu()?)?;
    if let [_] = model.inputs() {
        return Ok(New::Arrays(vec![x]));
    }
    let names: Vec<&str> = table.columns().iter().map(|column| column.name.as_str()).collect();
    let column = |port: &Port| match names.iter().position(|name| *name == port.name()) {
        Some(at) => Ok(x.narrow(1, at, 1)?),
        None => {
            bail!("{} lacks the column {} of the model, it has {}", path.display(), port.name(), names.join(", "))
        }
    };
    Ok(New::Arrays(model.inputs().iter().map(column).collect::<Result<_>>()?))
}

impl Picture {
    /// The images of an input `[N, channels, rows, columns]` or `[N, rows, columns, channels]`.
    fn of(port: &Port, reading: &Reading) -> Result<Picture> {
        let Some([_, sizes @ ..]) = port.shape() else { bail!("the input {port} is no batch of images") };
        let fixed = |size: &Size| if let Size::Fixed(extent) = size { Some(*extent) } else { None };
        let are_channels = |size: &Size| matches!(fixed(size), Some(1 | 3));
        let (channels, rows, columns, is_channels_last) = match sizes {
            [channels, rows, columns] if are_channels(channels) => (channels, rows, columns, false),
            [rows, columns, channels] if are_channels(channels) => (channels, rows, columns, true),
            _ => bail!("the input {port} is no batch of images, which have one channel or three"),
        };
        let channels = fixed(channels).unwrap_or(1);
        let given = |at: usize| reading.size.get(at).or(reading.size.first()).copied();
        let side = |size: &Size, at: usize| match (fixed(size), given(at)) {
            (Some(extent), Some(other)) if extent != other => bail!("the input is {port}, and --size says {other}"),
            (extent, other) => Ok(extent.or(other).unwrap_or(SIDE)),
        };
        let size = [side(rows, 0)?, side(columns, 1)?];
        let of_channels = |given: &[f64], what: usize, otherwise: f64| match given.len() {
            0 if channels == 3 => Ok(IMAGENET[what].map(f64::from).to_vec()),
            0 => Ok(vec![otherwise; channels]),
            n if n == channels => Ok(given.to_vec()),
            n => bail!("{n} numbers were given for {channels} channels"),
        };
        let (mean, std) = (of_channels(&reading.mean, 0, 0.0)?, of_channels(&reading.std, 1, 1.0)?);
        Ok(Picture { channels, size, is_channels_last, mean, std })
    }

    /// The images of files, on the CPU: numbers in 0..1 that are normalised, or bytes for an input of integers.
    fn read(&self, files: &[PathBuf], port: &Port) -> Result<Tensor> {
        let images = files.iter().map(|file| read_image(file, self.size)).collect::<isograd::Result<Vec<_>>>()?;
        let cpu = Device::cpu()?;
        let x = HostTensor::stack(&images)?.to(&cpu)?.cast(DType::F32)?;
        let x = match self.channels {
            1 => {
                let weights = Tensor::from_slice(&GREY, 3, &cpu)?.reshape((3, 1, 1))?;
                x.mul(&weights)?.sum_keepdim(1)?
            }
            _ => x,
        };
        let x = match port.dtype().is_float() {
            true => {
                let row = |v: &[f64]| {
                    Tensor::from_vec(v.iter().map(|&v| v as f32).collect(), v.len(), &cpu)?.reshape((v.len(), 1, 1))
                };
                x.div_scalar(255.0)?.sub(&row(&self.mean)?)?.div(&row(&self.std)?)?
            }
            false => x.round()?,
        };
        Ok(if self.is_channels_last { x.permute(&[0, 2, 3, 1])? } else { x })
    }
}
