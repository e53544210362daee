//! Event files, read back by TensorBoard: scalars, histograms and images.
//!
//! TensorBoard comes from PyPI, in `target/tensorboard` (`cargo xtask test` installs it). Without it the tests are ignored;
//! `ISOGRAD_REQUIRE=tensorboard` makes them fail. One Python reads all files.

use isograd_core::{DType, Device, Tensor};
use isograd_cpu as _;
use isograd_train::Epoch;
use isograd_train::Logger;
use isograd_train::tensorboard::TensorBoard;
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// The elements of the histogram: of both signs, 0, some twice, and NaN, which is left out.
const ELEMENTS: [f32; 8] = [-3.0, -1e-3, 0.0, 0.0, 0.25, 0.25, 1e4, f32::NAN];

/// The pixels of an image of two rows and three columns.
const PIXELS: [u8; 6] = [0, 51, 102, 153, 204, 255];

/// The Python that has TensorBoard.
fn python() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tensorboard");
    let programs = ["bin/python", "Scripts/python.exe"].map(|program| target.join(program));
    programs.into_iter().find(|program| program.exists())
}

/// Writes two files to a folder, as a run does that was interrupted.
fn write(folder: &Path) -> isograd_core::Result<()> {
    let cpu = Device::cpu()?;
    let mut board = TensorBoard::create(folder)?;
    for step in 0..3 {
        board.scalar("loss", step, 1.0 / (step + 1) as f64)?;
    }
    let x = Tensor::from_slice(&ELEMENTS, ELEMENTS.len(), &cpu)?;
    board.histogram("weights", 7, &x)?;
    board.histogram("weights", 8, &x.mul_scalar(2.0)?.cast(DType::F16)?)?;
    let grey = Tensor::from_slice(&PIXELS, (1, 2, 3), &cpu)?;
    board.image("grey", 1, &grey)?;
    let mut board = TensorBoard::create(folder)?;
    board.image("color", 2, &grey.cast(DType::F32)?.mul_scalar(1.0 / 255.0)?.expand((3, 2, 3))?)?;
    board.epoch(&Epoch {
        epoch: 2,
        steps: 90,
        train_loss: 0.5,
        validation_loss: Some(0.75),
        metrics: BTreeMap::from([("accuracy".to_string(), 0.875)]),
        learning_rate: 1e-3,
        seconds: 1.0,
    })
}

/// The events that TensorBoard reads.
fn found(python: &Path) -> Result<Value, String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    write(folder.path()).map_err(|e| e.to_string())?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tensorboard/read.py");
    let output = Command::new(python).arg(script).arg(folder.path()).output().map_err(|e| e.to_string())?;
    let printed = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(printed.trim())
        .map_err(|e| format!("{e}: {printed}{}", String::from_utf8_lossy(&output.stderr)))
}

fn scalars(found: &Value) {
    let third = f64::from(1.0f32 / 3.0);
    let expected = json!({
        "loss": [[0, 1.0], [1, 0.5], [2, third]],
        "loss/train": [[90, 0.5]],
        "loss/validation": [[90, 0.75]],
        "metric/accuracy": [[90, 0.875]],
        "learning_rate": [[90, f64::from(1e-3f32)]],
    });
    assert_eq!(found["scalars"], expected);
}

fn histograms(found: &Value) {
    let all = found["histograms"]["weights"].as_array().expect("there are histograms");
    assert_eq!((&all[0][0], &all[1][0], all.len()), (&json!(7), &json!(8), 2));
    for (k, factor) in [(0, 1.0), (1, 2.0)] {
        let number = |name: &str| all[k][1][name].as_f64().expect("a number");
        let list = |name: &str| -> Vec<f64> {
            all[k][1][name].as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
        };
        // The second one was rounded to 16 bits.
        let elements: Vec<f64> = ELEMENTS.iter().filter(|v| !v.is_nan()).map(|v| factor * f64::from(*v)).collect();
        let is_near = |a: f64, b: f64| (a - b).abs() <= 1e-3 * b.abs();
        assert!(is_near(number("min"), -3.0 * factor) && is_near(number("max"), 1e4 * factor));
        assert_eq!(number("num"), 7.0);
        assert!(is_near(number("sum"), elements.iter().sum()), "{}", number("sum"));
        assert!(is_near(number("sum_squares"), elements.iter().map(|v| v * v).sum()));
        let (limits, counts) = (list("bucket_limit"), list("bucket"));
        assert!(limits.len() == counts.len() && limits.is_sorted(), "{limits:?}");
        assert_eq!(counts.iter().sum::<f64>(), 7.0);
        // A bucket has the numbers from the limit before it to its own.
        let count = |v: f64| counts[limits.partition_point(|limit| *limit <= v)];
        assert_eq!([-3.0, -1e-3, 0.0, 0.25, 1e4].map(|v| count(factor * v)), [1.0, 1.0, 2.0, 2.0, 1.0]);
    }
}

fn images(found: &Value) {
    for (tag, step, channels) in [("grey", 1, 1), ("color", 2, 3)] {
        let [image] = &found["images"][tag].as_array().expect("an image")[..] else { panic!("{found}") };
        assert_eq!([&image[0], &image[1], &image[2]], [&json!(step), &json!(3), &json!(2)]);
        let hex = image[3].as_str().expect("bytes").as_bytes();
        let digit = |c: u8| (c as char).to_digit(16).expect("a digit") as u8;
        let bytes: Vec<u8> = hex.chunks_exact(2).map(|pair| 16 * digit(pair[0]) + digit(pair[1])).collect();
        let mut reader = png::Decoder::new(Cursor::new(bytes)).read_info().expect("a PNG");
        let mut pixels = vec![0; reader.output_buffer_size().expect("a size")];
        let info = reader.next_frame(&mut pixels).expect("pixels");
        assert_eq!((info.width, info.height, info.color_type.samples()), (3, 2, channels));
        let expected: Vec<u8> = PIXELS.iter().flat_map(|&pixel| vec![pixel; channels]).collect();
        assert_eq!(&pixels[..info.buffer_size()], expected);
    }
}

/// A check of what TensorBoard finds.
type Check = fn(&Value);

fn main() {
    let arguments = Arguments::from_args();
    let python = python();
    let required = std::env::var("ISOGRAD_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').any(|name| name.trim() == "tensorboard");
    let is_ignored = python.is_none() && !is_required;
    let (python, read) = (Arc::new(python), Arc::new(OnceLock::new()));
    let checks: [(&str, Check); 3] = [("scalars", scalars), ("histograms", histograms), ("images", images)];
    let trial = |(name, check): (&str, Check)| {
        let (python, read) = (python.clone(), read.clone());
        let run = move || -> Result<(), Failed> {
            let python = python.as_deref().ok_or("TensorBoard is missing: `cargo xtask test` installs it")?;
            check(read.get_or_init(|| found(python)).as_ref()?);
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(is_ignored)
    };
    libtest_mimic::run(&arguments, checks.into_iter().map(trial).collect()).exit();
}
