//! Tables: their options, and the dataset.

use super::sample::{Names, Objective, Scale, Split, classes};
use clap::Args;
use isograd::data::{HostTensor, csv};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// The options of a table.
#[derive(Args, Debug)]
pub struct TableOptions {
    /// The column of a table to predict: a name of its first line, or a number from 0; may be repeated for numbers [default: the last]
    #[arg(long, value_name = "COLUMN", groups = ["csv"])]
    pub target: Vec<String>,
    /// The first line of a table has the names of the columns
    #[arg(long, groups = ["csv"])]
    pub header: bool,
    /// Predict classes: indices, or names [default: if the column has whole numbers below 1000, or no numbers]
    #[arg(long, conflicts_with = "numbers", groups = ["csv"])]
    pub classes: bool,
    /// Predict numbers, not classes [default: if the column has others, or there are several]
    #[arg(long, groups = ["csv"])]
    pub numbers: bool,
}

/// How a table is read: the part of a configuration that only tables have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The columns to predict, or none for the last.
    pub targets: Vec<String>,
    /// The first line has names.
    pub header: bool,
    /// The targets are classes, whatever they look like.
    #[serde(default)]
    pub classes: bool,
    /// The targets are numbers, whatever they look like.
    pub numbers: bool,
}

impl Table {
    /// How the options say that a table is read.
    pub fn new(options: &TableOptions) -> Table {
        let TableOptions { target, header, classes, numbers } = options;
        Table { targets: target.clone(), header: *header, classes: *classes, numbers: *numbers }
    }

    /// The options of a reader. A target that is no number is a name, and names are in the first line.
    pub fn options(&self) -> csv::Options {
        let is_named = self.targets.iter().any(|target| target.parse::<usize>().is_err());
        let column = |target: &String| match target.parse() {
            Ok(number) => csv::Column::Number(number),
            Err(_) => csv::Column::Name(target.clone()),
        };
        let targets: Vec<csv::Column> = self.targets.iter().map(column).collect();
        let header = if self.header || is_named { csv::Header::Present } else { csv::Header::Absent };
        let targets = if targets.is_empty() { vec![csv::Column::Last] } else { targets };
        csv::Options { targets, header, ..csv::Options::default() }
    }
}

/// Every fifth line of a table is for testing.
pub fn read(path: &Path, table: &Table) -> isograd::Result<Split> {
    let options = table.options();
    let content = match (table.classes, table.numbers) {
        (_, true) => csv::Content::Numbers,
        (is_classes, false) => match csv::content(path, &options)? {
            csv::Content::Numbers if is_classes => csv::Content::Names,
            content => content,
        },
    };
    let csv::Columns { count, names, targets } = csv::columns(path, &options)?;
    let names = Names { classes: Vec::new(), columns: count, of_columns: names, targets };
    if content != csv::Content::Numbers {
        let labels = if content == csv::Content::Names { csv::Labels::Names } else { csv::Labels::Indices };
        let all = csv::read(path, &csv::Options { labels, ..options })?;
        let scale = Scale::of(&all.split_every(5)?.0);
        let unscaled = Scale::unit(0);
        let split = classes(all.split_every(5)?)?;
        let names = Names { classes: split.names.classes, ..names };
        return Ok(Split { scales: Some((scale, unscaled)), names, ..split });
    }
    let (train, test) = csv::read_regression(path, &options)?.split_every(5)?;
    let (name, shape) = (train.name().to_string(), train.sample_shape().to_vec());
    let targets: Vec<f32> =
        train.targets().iter().map(HostTensor::to_vec).collect::<isograd::Result<Vec<_>>>()?.concat();
    let outputs = options.targets.len();
    let scales = Some((Scale::of(&train), Scale::of_columns(&targets, outputs)));
    let (train, test, objective) = (Arc::new(train), Arc::new(test), Objective::Numbers);
    let (validation, mixup, graph) = (None, None, None);
    Ok(Split { name, train, validation, test, shape, outputs, objective, names, scales, mixup, workers: 1, graph })
}
