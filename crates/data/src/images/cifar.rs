//! CIFAR-10 and CIFAR-100 in their binary version: records of a label and 3,072 pixels, `[3, 32, 32]`. Files have no header.
//!
//! Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009, and its page, section "Binary version".

use super::Images;
use crate::file::{self, invalid};
use isograd_core::Result;
use std::io::Read;
use std::path::Path;

/// The names of CIFAR-10's classes.
pub const CIFAR10_CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

const SHAPE: [usize; 3] = [3, 32, 32];
const PIXELS: usize = 3 * 32 * 32;

/// Files, labels and classes of one of the two datasets.
struct Format {
    name: &'static str,
    /// The folder in the archive.
    folder: &'static str,
    train: &'static [&'static str],
    test: &'static str,
    /// Bytes before the pixels of a record; the last is the label.
    labels: usize,
    classes: usize,
}

const CIFAR10: Format = Format {
    name: "cifar10",
    folder: "cifar-10-batches-bin",
    train: &["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"],
    test: "test_batch.bin",
    labels: 1,
    classes: 10,
};

const CIFAR100: Format = Format {
    name: "cifar100",
    folder: "cifar-100-binary",
    train: &["train.bin"],
    test: "test.bin",
    // The class of 20 comes before that of 100.
    labels: 2,
    classes: 100,
};

/// Training and test images of CIFAR-10 from the folder `dir`, or `cifar-10-batches-bin` in it: `[3, 32, 32]`, ten classes. Reads
/// `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`, gzipped or not, of any number of images.
///
/// Errors: `Io` for a file that is missing or cannot be read; `Format` for one that is not a number of records, or has a label beyond
/// the classes.
pub fn cifar10(dir: impl AsRef<Path>) -> Result<(Images, Images)> {
    CIFAR10.read(dir.as_ref())
}

/// Training and test images of CIFAR-100 from the folder `dir`, or `cifar-100-binary` in it: `[3, 32, 32]`, a hundred classes (the fine
/// ones). Reads `train.bin` and `test.bin`. Errors: as [`cifar10`].
pub fn cifar100(dir: impl AsRef<Path>) -> Result<(Images, Images)> {
    CIFAR100.read(dir.as_ref())
}

impl Format {
    fn read(&self, dir: &Path) -> Result<(Images, Images)> {
        let inner = dir.join(self.folder);
        let dir = if inner.is_dir() { &inner } else { dir };
        Ok((self.images(dir, self.train)?, self.images(dir, &[self.test])?))
    }

    fn images(&self, dir: &Path, files: &[&str]) -> Result<Images> {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for file in files {
            self.append(&dir.join(file), &mut pixels, &mut labels)?;
        }
        Images::new(self.name, pixels, SHAPE, labels, self.classes)
    }

    /// Appends the records of a file.
    fn append(&self, path: &Path, pixels: &mut Vec<u8>, labels: &mut Vec<i64>) -> Result<()> {
        let (bytes, record, classes) = (isograd_files::read(path)?, self.labels + PIXELS, self.classes);
        let failed = |e| file::failed(path, e);
        let (mut content, mut one) = (file::content(&bytes[..]).map_err(failed)?, Vec::with_capacity(record));
        for i in 0.. {
            one.clear();
            let read = (&mut content).take(record as u64).read_to_end(&mut one).map_err(failed)?;
            if read == 0 && i > 0 {
                break;
            }
            if read < record {
                let message = format!("{} bytes are not a number of records of {record} bytes each", i * record + read);
                return Err(invalid(path, message));
            }
            let (head, image) = one.split_at(self.labels);
            let label = usize::from(head[self.labels - 1]);
            if label >= classes {
                return Err(invalid(path, format!("image {i} has label {label}, expected one in 0..{classes}")));
            }
            pixels.extend_from_slice(image);
            labels.push(label as i64);
        }
        Ok(())
    }
}
