//! Images: CIFAR's files, folders of files (feature `images`), and augmentation.
//!
//! A sample is an image, u8 `[C, H, W]`, and a class. A [`Transform`] changes images as they are read; its random numbers are those of the
//! sample's [`Context`], so that a resumed run has the same images.
//!
//! ```
//! # use isograd_cpu as _;
//! use isograd_core::{Device, Result};
//! use isograd_data::images::{Images, Normalize, RandomCrop, RandomHorizontalFlip, augment};
//! use isograd_data::{Dataset, Loader};
//!
//! # fn main() -> Result<()> {
//! let train = Images::new("squares", vec![255; 2 * 3 * 8 * 8], [3, 8, 8], vec![0, 1], 2)?;
//! let (mean, std) = ([0.5; 3], [0.25; 3]);
//! let crop = RandomCrop { size: [8, 8], padding: 1 };
//! let train = train.map(augment((crop, RandomHorizontalFlip::default(), Normalize::new(&mean, &std)?)));
//! for batch in Loader::new(train, 2)?.shuffle(42).to(&Device::cpu()?).epoch(0) {
//!     let (x, y) = batch?;
//!     assert_eq!((x.dims(), y.dims()), (&[2, 3, 8, 8][..], &[2][..]));
//! }
//! # Ok(())
//! # }
//! ```

mod cifar;
mod color;
mod crop;
#[cfg(feature = "images")]
mod folder;
mod grid;
mod mixup;
mod transform;

pub use cifar::{CIFAR10_CLASSES, cifar10, cifar100};
pub use color::{ColorJitter, GREY, Normalize};
pub use crop::{Cutout, RandomCrop, RandomHorizontalFlip};
#[cfg(feature = "images")]
pub use folder::{ImageFolder, image_files, read_image};
pub use grid::make_grid;
pub use mixup::{Mixed, Mixup};
pub use transform::{Transform, augment};

use crate::dataset::no_sample;
use crate::host::element_count;
use crate::{Context, Dataset, HostTensor};
use isograd_core::{DType, Error, Result};

/// Images of one shape and a class each, in host memory. A sample is an image, u8 `[C, H, W]`, and its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    name: String,
    pixels: Vec<u8>,
    shape: [usize; 3],
    labels: Vec<i64>,
    classes: usize,
}

impl Images {
    /// `labels.len()` images of shape `[C, H, W]`, one after the other in `pixels`.
    ///
    /// Errors: `Shape` if the number of pixels is not that of the images; `Index` if a label is not in `0..classes`.
    pub fn new(
        name: impl Into<String>,
        pixels: Vec<u8>,
        shape: [usize; 3],
        labels: Vec<i64>,
        classes: usize,
    ) -> Result<Images> {
        let name = name.into();
        if element_count(&shape).and_then(|n| n.checked_mul(labels.len())) != Some(pixels.len()) {
            let message = format!("{} pixels do not fill {} images of shape {shape:?}", pixels.len(), labels.len());
            return Err(Error::shape(name, message));
        }
        if let Some((i, label)) = labels.iter().enumerate().find(|&(_, &l)| l < 0 || l as u64 >= classes as u64) {
            return Err(Error::index(name, format!("image {i} has label {label}, expected one in 0..{classes}")));
        }
        Ok(Images { name, pixels, shape, labels, classes })
    }

    /// The name in errors and reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Channels, rows and columns of an image.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// All images, one after the other.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The class of each image.
    pub fn labels(&self) -> &[i64] {
        &self.labels
    }

    /// The number of classes; labels are in `0..classes`.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The means and the deviations of the channels, where pixels are in 0..1, as [`Normalize`] takes them.
    pub fn channel_statistics(&self) -> (Vec<f32>, Vec<f32>) {
        let [channels, rows, columns] = self.shape;
        let count = (self.len() * rows * columns).max(1) as f64;
        let statistics = (0..channels).map(|channel| {
            let planes = self.pixels.chunks_exact((rows * columns).max(1)).skip(channel).step_by(channels);
            let sums = planes.flatten().fold([0u64; 2], |[sum, squares], &p| {
                let p = u64::from(p);
                [sum + p, squares + p * p]
            });
            let [mean, square] = sums.map(|sum| sum as f64 / count);
            ((mean / 255.0) as f32, ((square - mean * mean).max(0.0).sqrt() / 255.0) as f32)
        });
        statistics.unzip()
    }
}

impl Dataset for Images {
    type Item = (HostTensor, i64);

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn get(&self, index: usize, _: &Context) -> Result<(HostTensor, i64)> {
        let label = self.labels.get(index).ok_or_else(|| no_sample(&self.name, index, self.labels.len()))?;
        let size: usize = self.shape.iter().product();
        let pixels = self.pixels[index * size..(index + 1) * size].to_vec();
        Ok((HostTensor::from_bytes(pixels, self.shape, DType::U8), *label))
    }
}

/// Channels, rows and columns of an image.
fn extents(op: &'static str, image: &HostTensor) -> Result<[usize; 3]> {
    let shape = image.dims();
    shape.try_into().map_err(|_| Error::shape(op, format!("the image has shape {shape:?}, expected [C, H, W]")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_their_pixels_labels_and_statistics() {
        let pixels = vec![0, 255, 51, 51, 255, 0, 51, 51];
        let images = Images::new("four", pixels.clone(), [2, 1, 2], vec![1, 0], 2).unwrap();
        let (image, label) = images.get(1, &Context::new(0, 0, 1)).unwrap();
        assert_eq!((image.dims(), image.to_vec::<u8>().unwrap(), label), (&[2, 1, 2][..], pixels[4..].to_vec(), 0));
        assert_eq!(images.channel_statistics(), (vec![0.5, 0.2], vec![0.5, 0.0]));
        let error = images.get(2, &Context::new(0, 0, 2)).unwrap_err();
        assert_eq!(error.to_string(), "four: Index: there is no sample 2, expected one in 0..2");
    }

    #[test]
    fn mismatches_name_what_was_expected() {
        let error = Images::new("d", vec![0; 5], [1, 2, 1], vec![0, 1], 2).unwrap_err();
        assert_eq!(error.to_string(), "d: Shape: 5 pixels do not fill 2 images of shape [1, 2, 1]");
        for label in [2, -1] {
            let error = Images::new("d", vec![0; 4], [1, 2, 1], vec![0, label], 2).unwrap_err();
            assert_eq!(error.to_string(), format!("d: Index: image 1 has label {label}, expected one in 0..2"));
        }
    }
}
