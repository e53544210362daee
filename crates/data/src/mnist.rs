//! MNIST, and whatever comes in the same four files.

use crate::Labelled;
use crate::file::invalid;
use crate::idx::{self, Images};
use isograd_core::{Error, Result};
use std::io;
use std::path::{Path, PathBuf};

const CLASSES: usize = 10;
/// Names of the parts of the test images, where there are no others.
const FIRST: &str = "mnist (85 % of the test images: there are no training images)";
const OTHERS: &str = "mnist (15 % of the test images)";

/// Training and test images of MNIST (or Fashion-MNIST, ...) from the folder `dir`: samples of shape `[784]` with pixels in 0..1,
/// ten classes. `with_sample_shape([1, 28, 28])` gives images to convolutions.
///
/// Reads `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`, each with or
/// without `.gz`. If only the `t10k` files are there, their first 85 % (8,500 of 10,000) are for training and the others for testing;
/// the names of both parts say so.
///
/// Errors: `Io` for files that are missing or cannot be read, `Format` for files that are damaged or do not belong together.
pub fn mnist(dir: impl AsRef<Path>) -> Result<(Labelled, Labelled)> {
    let dir = dir.as_ref();
    let train = find(dir, "train-images-idx3-ubyte").is_some() || find(dir, "train-labels-idx1-ubyte").is_some();
    let test = Split::read(dir, "t10k")?;
    if !train {
        let (train, test) = test.dataset.split_at(test.dataset.len() * 85 / 100)?;
        return Ok((train.with_name(FIRST), test.with_name(OTHERS)));
    }
    let train = Split::read(dir, "train")?;
    if test.size != train.size {
        let ([rows, columns], [expected_rows, expected_columns]) = (test.size, train.size);
        let expected = format!("{expected_rows} x {expected_columns} as in {}", train.images.display());
        return Err(invalid(&test.images, format!("images of {rows} x {columns} pixels, expected {expected}")));
    }
    Ok((train.dataset, test.dataset))
}

/// Images with their labels.
struct Split {
    /// The file with the images.
    images: PathBuf,
    /// Rows and columns of each.
    size: [usize; 2],
    dataset: Labelled,
}

impl Split {
    fn read(dir: &Path, prefix: &str) -> Result<Split> {
        let images_path = require(dir, &format!("{prefix}-images-idx3-ubyte"))?;
        let labels_path = require(dir, &format!("{prefix}-labels-idx1-ubyte"))?;
        let Images { count, rows, columns, pixels } = idx::read_images(&images_path)?;
        if pixels.is_empty() {
            let message = format!("{count} images of {rows} x {columns} pixels, expected at least one pixel");
            return Err(invalid(&images_path, message));
        }
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
        let labels = labels.into_iter().map(i64::from).collect();
        let dataset = Labelled::new("mnist", features, [rows * columns], labels, CLASSES)?;
        Ok(Split { images: images_path, size: [rows, columns], dataset })
    }
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
