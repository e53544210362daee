//! The `isograd` command, as a user runs it.

mod bench;
mod cases;
mod diff;
mod exporting;
mod graph;
mod images;
mod info;
mod kernels;
mod onnx;
mod parity;
mod predicting;
mod readme;
mod refusing;
mod resuming;
mod runs;
mod serving;
mod settings;
mod talking;
mod text;
mod training;

use isograd::nn::{Contents, load};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

const ISOGRAD: &str = env!("CARGO_BIN_EXE_isograd");

/// How a run of the command ended.
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ended = Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) };
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        ended
    }
}

impl Ended {
    /// The object in the last line of stdout.
    fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        serde_json::from_str(self.stdout.lines().last().unwrap()).unwrap()
    }
}

/// Runs the command with these arguments.
fn run(arguments: &[&str]) -> Ended {
    Command::new(ISOGRAD).args(arguments).output().unwrap().into()
}

/// Runs the command with arguments that are separated by blanks, and then a folder for `--out`. A test may train into one folder several
/// times: a new run replaces the one before.
fn isograd(arguments: &str, out: &Path) -> Ended {
    let mut command = Command::new(ISOGRAD);
    command.args(arguments.split_whitespace()).arg("--out").arg(out);
    command.args((arguments.starts_with("train ") && !arguments.contains("--resume")).then_some("--overwrite"));
    command.output().unwrap().into()
}

/// Trains on the digits with a small model; returns the report without its time.
fn train(arguments: &str, out: &Path) -> Value {
    let mut report = isograd(&format!("train digits --hidden 16 --json {arguments}"), out).json();
    report.as_object_mut().unwrap().remove("seconds").unwrap();
    report
}

fn checkpoint(folder: &Path) -> Contents {
    load(folder.join("checkpoint.safetensors"), &isograd::Device::cpu().unwrap()).unwrap()
}

/// The texts of a folder's checkpoint: `progress` and `config`.
fn saved(folder: &Path) -> Value {
    let metadata: Value = serde_json::from_str(&checkpoint(folder).metadata["isograd.checkpoint"]).unwrap();
    let text = |name: &str| serde_json::from_str::<Value>(metadata["texts"][name].as_str().unwrap()).unwrap();
    json!({ "progress": text("progress"), "config": text("config"), "rngs": metadata["rngs"] })
}

/// The files of a run's folder.
const FILES: [&str; 6] =
    ["best.safetensors", "checkpoint.safetensors", "config.json", "curves.png", "curves.svg", "metrics.jsonl"];

/// Stands for bytes in comparisons, so that a failure is short.
fn fingerprint(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("{} bytes, {:016x}", bytes.len(), hasher.finish())
}

/// Every tensor of a folder's checkpoint.
fn bits(folder: &Path) -> BTreeMap<String, String> {
    checkpoint(folder).tensors.iter().map(|(name, t)| (name.clone(), fingerprint(&t.to_bytes().unwrap()))).collect()
}

/// Every file of a folder.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), fingerprint(&fs::read(e.path()).unwrap()))).collect()
}

fn names(folder: &Path) -> Vec<String> {
    files(folder).into_keys().collect()
}

/// An IDX file of u8 values.
fn idx(shape: &[u32], values: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, shape.len() as u8];
    shape.iter().for_each(|d| bytes.extend(d.to_be_bytes()));
    bytes.extend(values);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

const IMAGES: &str = "t10k-images-idx3-ubyte";
const LABELS: &str = "t10k-labels-idx1-ubyte";

/// MNIST's test files with 100 images. The label says which tenth of the pixels is bright.
fn write_mnist(folder: &Path, [rows, columns]: [usize; 2]) {
    let size = rows * columns;
    let is_bright = |i: usize| i % size * 10 / size == i / size % 10;
    let pixels: Vec<u8> = (0..100 * size).map(|i| if is_bright(i) { 255 } else { 0 }).collect();
    let labels: Vec<u8> = (0..100).map(|i| i % 10).collect();
    fs::write(folder.join(IMAGES), idx(&[100, rows as u32, columns as u32], &pixels)).unwrap();
    fs::write(folder.join(LABELS), idx(&[100], &labels)).unwrap();
}
