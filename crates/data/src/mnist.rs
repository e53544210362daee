//! MNIST, and whatever comes in the same four files.

use crate::dataset::Dataset;
use crate::file::invalid;
use crate::idx::{self, Images};
use isograd_core::{Error, Result};
use std::io;
use std::path::{Path, PathBuf};

const CLASSES: usize = 10;

/// Training and test images of MNIST (or Fashion-MNIST, ...) from the folder `dir`: samples of shape `[784]` with pixels in 0..1,
/// ten classes. `with_sample_shape([1, 28, 28])` gives images to convolutions.
///
/// Reads `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`, each with or
/// without `.gz`. If only the `t10k` files are there, their first 85 % (8,500 of 10,000) are for training and the others for testing.
///
/// Errors: `Io` for files that are missing or cannot be read, `Format` for files that are damaged or do not belong together.
pub fn mnist(dir: impl AsRef<Path>) -> Result<(Dataset, Dataset)> {
    let dir = dir.as_ref();
    let train = find(dir, "train-images-idx3-ubyte").is_some() || find(dir, "train-labels-idx1-ubyte").is_some();
    let test = part(dir, "t10k")?;
    if train {
        return Ok((part(dir, "train")?, test));
    }
    test.split_at(test.len() * 85 / 100)
}

fn part(dir: &Path, prefix: &str) -> Result<Dataset> {
    let images_path = require(dir, &format!("{prefix}-images-idx3-ubyte"))?;
    let labels_path = require(dir, &format!("{prefix}-labels-idx1-ubyte"))?;
    let Images { count, rows, columns, pixels } = idx::read_images(&images_path)?;
    let labels = idx::read_labels(&labels_path)?;
    if labels.len() != count {
        let message =
            format!("{} labels, expected {count}, one for each image of {}", labels.len(), images_path.display());
        return Err(invalid(&labels_path, message));
    }
    if let Some((i, label)) = labels.iter().enumerate().find(|&(_, &l)| usize::from(l) >= CLASSES) {
        return Err(invalid(&labels_path, format!("label {i} is {label}, expected one in 0..{CLASSES}")));
    }
    let features = pixels.iter().map(|&p| f32::from(p) / 255.0).collect();
    Dataset::new("mnist", features, [rows * columns], labels.into_iter().map(i64::from).collect(), CLASSES)
}

fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    [dir.join(name), dir.join(format!("{name}.gz"))].into_iter().find(|path| path.is_file())
}

fn require(dir: &Path, name: &str) -> Result<PathBuf> {
    find(dir, name).ok_or_else(|| {
        let missing = io::Error::new(io::ErrorKind::NotFound, format!("expected {name} or {name}.gz in this folder"));
        Error::io(dir, "looking for MNIST files", missing)
    })
}
