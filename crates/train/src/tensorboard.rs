//! Event files of TensorBoard: scalars, histograms and images, which `tensorboard --logdir FOLDER` shows.
//!
//! An event is a record: its length, a checksum of the length, the event as a protocol buffer, and a checksum of it. The field numbers
//! are those of TensorFlow's event.proto and summary.proto. A record that a crash has cut off ends the file for readers.

use crate::{Epoch, Logger};
use isograd_core::{DType, Error, Result, Tensor, no_grad};
use prost::Message;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const OP: &str = "tensorboard";

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "4")]
    image: Option<Image>,
    #[prost(message, optional, tag = "5")]
    histo: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct Image {
    #[prost(int32, tag = "1")]
    height: i32,
    #[prost(int32, tag = "2")]
    width: i32,
    #[prost(int32, tag = "3")]
    colorspace: i32,
    #[prost(bytes = "vec", tag = "4")]
    encoded: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(double, tag = "1")]
    min: f64,
    #[prost(double, tag = "2")]
    max: f64,
    #[prost(double, tag = "3")]
    num: f64,
    #[prost(double, tag = "4")]
    sum: f64,
    #[prost(double, tag = "5")]
    sum_squares: f64,
    #[prost(double, repeated, tag = "6")]
    bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    bucket: Vec<f64>,
}

/// An event file in a folder.
///
/// ```no_run
/// # use isograd_train::tensorboard::TensorBoard;
/// # fn main() -> isograd_core::Result<()> {
/// let mut board = TensorBoard::create("out/events")?;
/// for step in 0..100 {
///     board.scalar("loss", step, 1.0 / (step + 1) as f64)?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TensorBoard {
    file: File,
    path: PathBuf,
}

impl TensorBoard {
    /// Begins a file of its own in `folder`, which is made if it is not there. A run that goes on begins another one; TensorBoard reads
    /// all of a folder. Errors: `Io`.
    pub fn create(folder: impl AsRef<Path>) -> Result<TensorBoard> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder).map_err(|e| Error::io(folder, "creating the folder", e))?;
        let seconds = now() as u64;
        for number in 0.. {
            let path = folder.join(format!("events.out.tfevents.{seconds:010}.{}.{number}", std::process::id()));
            match OpenOptions::new().append(true).create_new(true).open(&path) {
                Ok(file) => {
                    let mut board = TensorBoard { file, path };
                    let file_version = Some("brain.Event:2".to_string());
                    board.write(&Record { wall_time: now(), step: 0, file_version, summary: None })?;
                    return Ok(board);
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io(&path, "creating the file", e)),
            }
        }
        unreachable!("a number is free")
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A number of a curve. Errors: `Io`.
    pub fn scalar(&mut self, tag: &str, step: u64, value: f64) -> Result<()> {
        self.value(step, Value { tag: tag.into(), simple_value: Some(value as f32), ..Value::default() })
    }

    /// The distribution of a tensor's elements: of weights or gradients. NaN is left out; infinite elements are in the outer buckets. Waits
    /// for the device. Errors: `Io`, and those of reading the tensor.
    pub fn histogram(&mut self, tag: &str, step: u64, x: &Tensor) -> Result<()> {
        let x = no_grad(|| x.detach().cast(DType::F32)?.to_f64_vec())?;
        let histo = Some(Histogram::of(&x));
        self.value(step, Value { tag: tag.into(), histo, ..Value::default() })
    }

    /// An image `[C, H, W]` of 1 (grey) or 3 (RGB) channels: floats from 0 to 1, or u8. Waits for the device. Errors: `Shape`; `Dtype`;
    /// `Io`.
    pub fn image(&mut self, tag: &str, step: u64, x: &Tensor) -> Result<()> {
        let &[channels @ (1 | 3), height, width] = x.dims() else {
            return Err(Error::shape(OP, format!("the image is {}, expected [1, H, W] or [3, H, W]", x.shape())));
        };
        let pixels = no_grad(|| {
            let x = x.detach().permute(&[1, 2, 0])?.contiguous()?;
            match x.dtype() {
                DType::U8 => x.to_vec::<u8>(),
                dtype if dtype.is_float() => {
                    let x = x.cast(DType::F32)?.to_vec::<f32>()?;
                    Ok(x.iter().map(|v| (v * 255.0).round() as u8).collect())
                }
                dtype => Err(Error::dtype(OP, format!("the image is {dtype}, expected floats or u8"))),
            }
        })?;
        let encoded =
            encoded(&pixels, [height, width], channels).map_err(|e| Error::value(OP, format!("{tag}: {e}")))?;
        let [height, width, colorspace] = [height, width, channels].map(|n| n as i32);
        let image = Some(Image { height, width, colorspace, encoded });
        self.value(step, Value { tag: tag.into(), image, ..Value::default() })
    }

    fn value(&mut self, step: u64, value: Value) -> Result<()> {
        let summary = Some(Summary { value: vec![value] });
        self.write(&Record { wall_time: now(), step: step as i64, file_version: None, summary })
    }

    /// Appends a record by one write.
    fn write(&mut self, event: &Record) -> Result<()> {
        let data = event.encode_to_vec();
        let length = (data.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(data.len() + 16);
        record.extend(length);
        record.extend(masked(&length).to_le_bytes());
        record.extend(&data);
        record.extend(masked(&data).to_le_bytes());
        let written = self.file.write_all(&record).and_then(|()| self.file.flush());
        written.map_err(|e| Error::io(&self.path, "writing", e))
    }
}

impl Logger for TensorBoard {
    /// The results as curves over the steps. Errors: `Io`.
    fn epoch(&mut self, epoch: &Epoch) -> Result<()> {
        let step = epoch.steps;
        self.scalar("loss/train", step, epoch.train_loss)?;
        self.scalar("learning_rate", step, epoch.learning_rate)?;
        if let Some(loss) = epoch.validation_loss {
            self.scalar("loss/validation", step, loss)?;
        }
        epoch.metrics.iter().try_for_each(|(name, value)| self.scalar(&format!("metric/{name}"), step, *value))
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The checksum of a record's part: CRC-32C, rotated and shifted, so that a checksum of checksums is none.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The checksums of the 256 bytes, by Castagnoli's polynomial, lowest bit first.
const CRC32C: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < table.len() {
        let (mut sum, mut bit) = (i as u32, 0);
        while bit < 8 {
            sum = (sum >> 1) ^ (0x82f6_3b78 * (sum & 1));
            bit += 1;
        }
        table[i] = sum;
        i += 1;
    }
    table
};

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum: u32, &byte| (sum >> 8) ^ CRC32C[usize::from(sum as u8 ^ byte)])
}

fn encoded(
    pixels: &[u8],
    [height, width]: [usize; 2],
    channels: usize,
) -> std::result::Result<Vec<u8>, png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(if channels == 1 { png::ColorType::Grayscale } else { png::ColorType::Rgb });
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(bytes)
}

impl Histogram {
    /// Buckets whose limits grow by a tenth, from 1e-12 on, of both signs: those that TensorFlow has.
    fn of(x: &[f64]) -> Histogram {
        let mut limits: Vec<f64> =
            std::iter::successors(Some(1e-12), |v| Some(v * 1.1)).take_while(|v| *v < 1e20).collect();
        limits.push(f64::MAX);
        let limits: Vec<f64> = limits.iter().rev().map(|v| -v).chain(limits.iter().copied()).collect();
        let mut counts = vec![0.0; limits.len()];
        let numbers = || x.iter().copied().filter(|v| !v.is_nan());
        for v in numbers() {
            // A bucket has the numbers below its limit.
            let bucket = limits.partition_point(|limit| *limit <= v);
            counts[bucket.min(limits.len() - 1)] += 1.0;
        }
        let kept = |i: &usize| counts[*i] > 0.0 || counts.get(i + 1).is_some_and(|n| *n > 0.0);
        let kept: Vec<usize> = (0..limits.len()).filter(kept).collect();
        Histogram {
            min: numbers().fold(f64::INFINITY, f64::min),
            max: numbers().fold(f64::NEG_INFINITY, f64::max),
            num: numbers().count() as f64,
            sum: numbers().sum(),
            sum_squares: numbers().map(|v| v * v).sum(),
            bucket_limit: kept.iter().map(|&i| limits[i]).collect(),
            bucket: kept.iter().map(|&i| counts[i]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isograd_core::Device;
    use isograd_cpu as _;

    #[test]
    fn the_checksum_is_castagnolis() {
        // RFC 3720, B.4: 32 bytes of 0.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    /// The events of a file, after a check of both checksums of each.
    fn events(path: &Path) -> Vec<Record> {
        let bytes = fs::read(path).unwrap();
        let (mut rest, mut found) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(masked(&rest[..8]).to_le_bytes(), rest[8..12]);
            let data = &rest[12..12 + length];
            assert_eq!(masked(data).to_le_bytes(), rest[12 + length..16 + length]);
            found.push(Record::decode(data).unwrap());
            rest = &rest[16 + length..];
        }
        found
    }

    #[test]
    fn events_are_read_back() -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        let cpu = Device::cpu()?;
        let mut board = TensorBoard::create(folder.path().join("run"))?;
        board.scalar("loss", 3, 0.5)?;
        let x = Tensor::from_slice(&[-1.0f32, 0.0, 0.5, 0.5, f32::NAN, f32::INFINITY], 6, &cpu)?;
        board.histogram("weights", 4, &x)?;
        board.image("digit", 5, &Tensor::full((3, 2, 4), 0.5, DType::F32, &cpu)?)?;
        assert!(board.image("digit", 5, &Tensor::zeros((2, 2, 4), DType::F32, &cpu)?).is_err());
        let found = events(board.path());
        assert_eq!(found[0].file_version.as_deref(), Some("brain.Event:2"));
        let value = |i: usize| found[i].summary.as_ref().unwrap().value[0].clone();
        assert_eq!((found[1].step, value(1).tag.as_str(), value(1).simple_value), (3, "loss", Some(0.5)));
        let histogram = value(2).histo.unwrap();
        assert_eq!((histogram.num, histogram.min, histogram.bucket.iter().sum::<f64>()), (5.0, -1.0, 5.0));
        let of = |v: f64| histogram.bucket[histogram.bucket_limit.partition_point(|limit| *limit <= v)];
        assert_eq!([of(-1.0), of(0.0), of(0.5)], [1.0, 1.0, 2.0]);
        let image = value(3).image.unwrap();
        assert_eq!((image.height, image.width, image.colorspace), (2, 4, 3));
        assert_eq!(found.len(), 4);
        // Two runs in one second have files of their own.
        assert_ne!(TensorBoard::create(folder.path().join("run"))?.path(), board.path());
        Ok(())
    }
}
