//! Images: their options, and the datasets that have them.

use super::batch::Sample;
use super::sample::{Objective, Split, numbered};
use crate::parse;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use isograd::Error;
use isograd::data::images::{
    self, ColorJitter, Cutout, ImageFolder, Mixup, Normalize, RandomCrop, RandomHorizontalFlip, Transform,
};
use isograd::data::{Dataset, HostTensor};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;

/// The options of images, and of networks for them.
#[derive(Args, Debug)]
pub struct ImageOptions {
    /// Rows and columns that images of a folder are scaled to [default: 64]
    #[arg(long, value_name = "PIXELS", value_parser = parse::count, groups = ["images"])]
    pub size: Option<usize>,
    /// Random changes of training images, separated by commas [default: crop,flip]
    #[arg(long, value_enum, value_delimiter = ',', groups = ["cifar10", "cifar100", "images"])]
    pub augment: Option<Vec<Augment>>,
    /// The layers before the first block of a resnet [default: cifar for up to 64 pixels, imagenet for more]
    #[arg(long, value_enum, groups = ["resnet18", "resnet34", "resnet50"])]
    pub stem: Option<StemName>,
    /// The channels of images and weights are last in memory, which is the fast order in 16 bits
    #[arg(long, groups = ["lenet", "resnet18", "resnet34", "resnet50", "mobilenet"])]
    pub channels_last: bool,
}

/// A random change of training images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Augment {
    /// No change
    None,
    /// A window of the image's size, moved by up to an eighth of it, with zeros around the image
    Crop,
    /// Left and right exchanged in every second image
    Flip,
    /// Brightness, contrast and saturation changed by up to 20 %
    Jitter,
    /// A square of half the image's extents removed
    Cutout,
    /// Images mixed with another of the batch
    Mixup,
}

/// The layers before the first block of a residual network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StemName {
    /// Windows of 7 x 7 at a distance of 2, and maxima
    Imagenet,
    /// Windows of 3 x 3
    Cifar,
}

/// The part of a configuration that only images have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// Rows and columns of images of a folder.
    pub size: usize,
    /// Random changes of training images.
    pub augment: Vec<Augment>,
    /// The stem of a resnet, or none for that of the size.
    pub stem: Option<StemName>,
    /// The channels are last in memory.
    pub channels_last: bool,
}

impl ImageConfig {
    /// The options with their defaults. Errors: `none` beside other changes.
    pub fn new(options: &ImageOptions) -> Result<ImageConfig> {
        let mut augment = options.augment.clone().unwrap_or_else(|| vec![Augment::Crop, Augment::Flip]);
        if augment.contains(&Augment::None) {
            if augment.len() > 1 {
                bail!("--augment has none beside other changes");
            }
            augment.clear();
        }
        let ImageOptions { size, stem, channels_last, .. } = *options;
        Ok(ImageConfig { size: size.unwrap_or(64), augment, stem, channels_last })
    }

    fn has(&self, augment: Augment) -> bool {
        self.augment.contains(&augment)
    }

    /// The changes of training images of a size, which end with the normalised values.
    fn transforms(&self, [rows, columns]: [usize; 2], normalize: Normalize) -> Vec<Box<dyn Transform>> {
        let mut transforms: Vec<Box<dyn Transform>> = Vec::new();
        let shorter = rows.min(columns);
        if self.has(Augment::Jitter) {
            transforms.push(Box::new(ColorJitter { brightness: 0.2, contrast: 0.2, saturation: 0.2 }));
        }
        if self.has(Augment::Crop) {
            transforms.push(Box::new(RandomCrop { size: [rows, columns], padding: shorter / 8 }));
        }
        if self.has(Augment::Flip) {
            transforms.push(Box::new(RandomHorizontalFlip::default()));
        }
        transforms.push(Box::new(normalize));
        if self.has(Augment::Cutout) {
            transforms.push(Box::new(Cutout { size: shorter / 2 }));
        }
        transforms
    }
}

/// Samples to train on, or to test with, before they are changed.
type Pictures = Box<dyn Dataset<Item = (HostTensor, i64)>>;

/// Name, size and classes of a dataset's images, and how they are read.
struct About {
    name: String,
    size: [usize; 2],
    classes: Vec<String>,
    normalize: Normalize,
    /// Threads that read images.
    workers: usize,
}

/// The mean and the deviation of ImageNet's pixels: red, green, blue.
pub const IMAGENET: [[f32; 3]; 2] = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]];

/// The normalisation of a dataset's images, whose pixels are in 0..1: by mean and deviation of red, green and blue.
pub fn normalization(dataset: &str) -> isograd::Result<Normalize> {
    let [mean, std] = match dataset {
        "cifar10" => [[0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]],
        "cifar100" => [[0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]],
        // Weights that were trained on ImageNet expect its mean and deviation.
        _ => IMAGENET,
    };
    Normalize::new(&mean, &std)
}

/// CIFAR-10.
pub fn cifar10(path: &Path, config: &ImageConfig) -> isograd::Result<Split> {
    in_memory("cifar10", images::cifar10(path)?, images::CIFAR10_CLASSES.map(String::from).into(), config)
}

/// CIFAR-100.
pub fn cifar100(path: &Path, config: &ImageConfig) -> isograd::Result<Split> {
    in_memory("cifar100", images::cifar100(path)?, numbered(100), config)
}

fn in_memory(
    dataset: &str,
    (train, test): (images::Images, images::Images),
    classes: Vec<String>,
    config: &ImageConfig,
) -> isograd::Result<Split> {
    let [_, rows, columns] = train.shape();
    let (name, normalize) = (train.name().to_string(), normalization(dataset)?);
    let about = About { name, size: [rows, columns], classes, normalize, workers: 1 };
    split(Box::new(train), Box::new(test), about, config)
}

/// A folder with a folder for each class, or with such folders `train` and `test` (or `val`). Without these, every fifth image of a
/// class is for testing.
pub fn folder(path: &Path, config: &ImageConfig) -> isograd::Result<Split> {
    let size = [config.size; 2];
    let open = |path: &Path| ImageFolder::open(path, size);
    let tests = ["test", "val"].map(|name| path.join(name));
    let (train_path, test_path) = (path.join("train"), tests.iter().find(|path| path.is_dir()));
    let normalize = normalization("images")?;
    let about = |folder: &ImageFolder| About {
        name: path.display().to_string(),
        size,
        classes: folder.classes().to_vec(),
        normalize: normalize.clone(),
        workers: available_parallelism().map_or(1, usize::from).min(8),
    };
    if let (true, Some(test_path)) = (train_path.is_dir(), test_path) {
        let (train, test) = (open(&train_path)?, open(test_path)?);
        if train.classes() != test.classes() {
            let message = format!("the classes are {:?}, expected {:?} as in train", test.classes(), train.classes());
            return Err(Error::format(test_path.display().to_string(), message));
        }
        let about = about(&train);
        return split(Box::new(train), Box::new(test), about, config);
    }
    let all = open(path)?;
    let (about, all) = (about(&all), Arc::new(all));
    let (train, test) = parts(&all);
    split(Box::new(all.clone().subset(train)?), Box::new(all.subset(test)?), about, config)
}

/// The samples to train on, and to test with: every fifth of a class.
fn parts(folder: &ImageFolder) -> (Vec<usize>, Vec<usize>) {
    let mut seen = vec![0; folder.classes().len()];
    (0..folder.len()).partition(|&i| {
        let count: &mut usize = &mut seen[folder.files()[i].1 as usize];
        *count += 1;
        !count.is_multiple_of(5)
    })
}

fn split(train: Pictures, test: Pictures, about: About, config: &ImageConfig) -> isograd::Result<Split> {
    let About { name, size, classes, normalize, workers } = about;
    let [rows, columns] = size;
    let mixup = config.has(Augment::Mixup).then_some(Mixup { alpha: 0.2, classes: classes.len() });
    Ok(Split {
        name,
        train: samples(train, config.transforms(size, normalize.clone())),
        validation: None,
        test: samples(test, vec![Box::new(normalize)]),
        shape: vec![3, rows, columns],
        outputs: classes.len(),
        objective: Objective::Classes,
        classes,
        table: None,
        mixup,
        workers,
        graph: None,
    })
}

fn samples(images: Pictures, transforms: Vec<Box<dyn Transform>>) -> Arc<dyn Dataset<Item = Sample>> {
    let labelled = images.map(|(image, label), _| Ok((image, HostTensor::new(&[label], [])?)));
    Arc::new(labelled.map(images::augment(transforms)).map(|(x, y), _| Ok(Sample::new(x, y))))
}
