//! The datasets and models that `isograd train` knows: an entry each.

use super::graph::{self, GraphConfig};
use super::images::{self, ImageConfig};
use super::sample::{Signature, Split, classes};
use super::table::{self, Table};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use isograd::data;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A dataset by its name on the command line.
pub struct Task {
    pub name: &'static str,
    /// The dataset's line in `isograd train --help`.
    pub about: &'static str,
    /// Passes over the training data, and samples a step, if the command line does not say.
    pub epochs: u64,
    pub batch_size: usize,
    /// The factor of an optimizer's learning rate, if the command line does not say.
    pub lr_factor: f64,
    /// The model if the command line does not say.
    pub model: ModelName,
    /// Samples are nodes of a graph.
    pub is_graph: bool,
    /// Where the samples come from, for the error of a missing or a needless --data.
    pub data: Data,
    load: fn(&Path, &Reading, Option<&Signature>) -> isograd::Result<Split>,
}

/// Where samples come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// This program.
    Inside,
    /// The folder or the file of --data.
    Named(&'static str),
}

/// All datasets of the command.
pub const TASKS: &[Task] = &[
    Task {
        name: "digits",
        about: "Handwritten digits, which are in this program",
        epochs: 60,
        batch_size: 32,
        lr_factor: 1.0,
        model: ModelName::Mlp,
        is_graph: false,
        data: Data::Inside,
        load: |_, _, _| digits(),
    },
    Task {
        name: "mnist",
        about: "MNIST's IDX files, or others in their format",
        epochs: 10,
        batch_size: 128,
        lr_factor: 1.0,
        model: ModelName::Mlp,
        is_graph: false,
        data: Data::Named("--data DIR with its IDX files"),
        load: |folder, _, _| classes(data::mnist(folder)?),
    },
    Task {
        name: "csv",
        about: "A table: classes or numbers in one of its columns",
        epochs: 60,
        batch_size: 32,
        lr_factor: 1.0,
        model: ModelName::Mlp,
        is_graph: false,
        data: Data::Named("--data FILE with a table"),
        load: |file, reading, known| table::read(file, &reading.table, known),
    },
    Task {
        name: "cifar10",
        about: "CIFAR-10's binary files",
        epochs: 30,
        batch_size: 128,
        lr_factor: 1.0,
        model: ModelName::Resnet18,
        is_graph: false,
        data: Data::Named("--data DIR with its binary files"),
        load: |folder, reading, _| images::cifar10(folder, &reading.images),
    },
    Task {
        name: "cifar100",
        about: "CIFAR-100's binary files",
        epochs: 30,
        batch_size: 128,
        lr_factor: 1.0,
        model: ModelName::Resnet18,
        is_graph: false,
        data: Data::Named("--data DIR with its binary files"),
        load: |folder, reading, _| images::cifar100(folder, &reading.images),
    },
    Task {
        name: "images",
        about: "A folder of images for each class",
        epochs: 30,
        batch_size: 32,
        lr_factor: 1.0,
        model: ModelName::Resnet18,
        is_graph: false,
        data: Data::Named("--data DIR with a folder of images for each class"),
        load: |folder, reading, _| images::folder(folder, &reading.images),
    },
    Task {
        name: "graph",
        about: "The nodes of a graph",
        epochs: 200,
        batch_size: 512,
        lr_factor: 10.0,
        model: ModelName::Gcn,
        is_graph: true,
        data: Data::Named("--data DIR with edges.csv, features.csv or features.npy, and labels.csv"),
        load: |folder, reading, _| graph::folder(folder, &reading.graph),
    },
];

/// A model by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelName {
    Mlp,
    Lenet,
    Resnet18,
    Resnet34,
    Resnet50,
    Mobilenet,
    Gcn,
    Sage,
    Gat,
}

impl ModelName {
    /// The name on the command line and in configurations.
    pub fn name(self) -> &'static str {
        match self {
            ModelName::Mlp => "mlp",
            ModelName::Lenet => "lenet",
            ModelName::Resnet18 => "resnet18",
            ModelName::Resnet34 => "resnet34",
            ModelName::Resnet50 => "resnet50",
            ModelName::Mobilenet => "mobilenet",
            ModelName::Gcn => "gcn",
            ModelName::Sage => "sage",
            ModelName::Gat => "gat",
        }
    }

    /// True for networks over the nodes of a graph.
    pub fn is_of_graph(self) -> bool {
        matches!(self, ModelName::Gcn | ModelName::Sage | ModelName::Gat)
    }

    /// Sizes of the hidden layers, if the command line does not say.
    pub fn hidden(self) -> &'static [usize] {
        match self {
            ModelName::Mlp => &[256],
            ModelName::Gcn | ModelName::Sage => &[64],
            ModelName::Gat => &[8],
            _ => &[],
        }
    }
}

/// How samples are read: the part of a configuration that datasets and their networks have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// How a table is read.
    pub table: Table,
    /// How images are read and changed.
    pub images: ImageConfig,
    /// How a graph is read and sampled.
    #[serde(default)]
    pub graph: GraphConfig,
}

impl Task {
    /// The task of this name. Errors: there is none.
    pub fn named(name: &str) -> Result<&'static Task> {
        TASKS.iter().find(|task| task.name == name).with_context(|| format!("there is no dataset {name:?}"))
    }

    /// True for models of such samples.
    pub fn fits(&self, model: ModelName) -> bool {
        model.is_of_graph() == self.is_graph
    }

    /// The models of such samples.
    pub fn models(&self) -> Vec<ModelName> {
        ModelName::value_variants().iter().copied().filter(|model| self.fits(*model)).collect()
    }

    /// Reads the samples. `path` is the --data of the command line; `known` describes the samples of a run, which these are like.
    pub fn load(&self, path: Option<&Path>, reading: &Reading, known: Option<&Signature>) -> Result<Split> {
        let split = match (self.data, path) {
            (Data::Inside, None) => (self.load)(Path::new(""), reading, known)?,
            (Data::Inside, Some(_)) => bail!("the {} are inside this program; --data is for {}", self.name, readers()),
            (Data::Named(_), Some(path)) => (self.load)(path, reading, known)?,
            (Data::Named(what), None) => bail!("{} needs {what}", self.name),
        };
        if let (Some(path), true) = (path, split.train.is_empty() || split.test.is_empty()) {
            let (train, test) = (split.train.len(), split.test.len());
            bail!("{} has {train} samples to train on and {test} to test with", path.display());
        }
        Ok(split)
    }
}

/// The tasks that read --data.
fn readers() -> String {
    let names: Vec<&str> = TASKS.iter().filter(|task| task.data != Data::Inside).map(|task| task.name).collect();
    names.join(", ")
}

/// The digits within this program.
fn digits() -> isograd::Result<Split> {
    classes(data::digits()?.split_every(5)?)
}
