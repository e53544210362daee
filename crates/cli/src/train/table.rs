//! Tables: their options, and the dataset.

use super::batch::Sample;
use super::sample::{Objective, Set, Signature, Split, TableSplit};
use crate::parse;
use clap::Args;
use isograd::data::csv::{self, Encoding, EncodingOptions, Learn, Targets};
use isograd::data::{Dataset, HostTensor};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// The probability with which a category of a row to train on is the unknown one.
const UNKNOWN: f64 = 0.02;

/// The options of a table. A column is named as in the first line, or by its number from 0.
#[derive(Args, Debug)]
pub struct TableOptions {
    /// The column of a table to predict: a name of its first line, or a number from 0; may be repeated for numbers [default: the last]
    #[arg(long, value_name = "COLUMN", groups = ["csv"])]
    pub target: Vec<String>,
    /// Columns that the model does not see [default: identifiers, and texts that hardly ever come again]
    #[arg(long, value_name = "COLUMN,..", value_delimiter = ',', groups = ["csv"])]
    pub ignore: Vec<String>,
    /// Columns of categories, even if they have numbers
    #[arg(long, value_name = "COLUMN,..", value_delimiter = ',', groups = ["csv"])]
    pub categories: Vec<String>,
    /// Columns of numbers, even if they look like identifiers
    #[arg(long, value_name = "COLUMN,..", value_delimiter = ',', groups = ["csv"])]
    pub numeric: Vec<String>,
    /// Categories with an input for each name, in place of an embedding
    #[arg(long, value_name = "COLUMN,..", value_delimiter = ',', groups = ["csv"])]
    pub one_hot: Vec<String>,
    /// The character between cells, or `tab` [default: the one that the first lines have]
    #[arg(long, value_name = "CHARACTER", value_parser = parse::delimiter, groups = ["csv"])]
    pub delimiter: Option<char>,
    /// The first line has the names of the columns [default: if it looks so]
    #[arg(long, groups = ["csv"])]
    pub header: bool,
    /// The first line is a row as the others
    #[arg(long, conflicts_with = "header", groups = ["csv"])]
    pub no_header: bool,
    /// Predict classes: the different texts or numbers of the column [default: if it has texts, or few different whole numbers]
    #[arg(long, conflicts_with = "numbers", groups = ["csv"])]
    pub classes: bool,
    /// Predict numbers, not classes [default: if the column has others, or there are several]
    #[arg(long, groups = ["csv"])]
    pub numbers: bool,
}

/// How a table is read: the part of a configuration that only tables have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Table {
    /// The columns to predict, or none for the last.
    pub targets: Vec<String>,
    pub ignore: Vec<String>,
    pub categories: Vec<String>,
    pub numeric: Vec<String>,
    pub one_hot: Vec<String>,
    pub delimiter: Option<char>,
    /// The first line has names, whatever it looks like.
    pub header: bool,
    /// The first line has no names, whatever it looks like.
    pub no_header: bool,
    /// The targets are classes, whatever they look like.
    pub classes: bool,
    /// The targets are numbers, whatever they look like.
    pub numbers: bool,
}

/// A column by a name, or by a number.
pub fn column(name: &str) -> csv::Column {
    match name.parse() {
        Ok(number) => csv::Column::Number(number),
        Err(_) => csv::Column::Name(name.to_string()),
    }
}

fn columns(names: &[String]) -> Vec<csv::Column> {
    names.iter().map(|name| column(name)).collect()
}

impl Table {
    /// How the options say that a table is read.
    pub fn new(options: &TableOptions) -> Table {
        Table {
            targets: options.target.clone(),
            ignore: options.ignore.clone(),
            categories: options.categories.clone(),
            numeric: options.numeric.clone(),
            one_hot: options.one_hot.clone(),
            delimiter: options.delimiter,
            header: options.header,
            no_header: options.no_header,
            classes: options.classes,
            numbers: options.numbers,
        }
    }

    /// The options of a reader.
    fn options(&self) -> csv::Options {
        let targets = if self.targets.is_empty() { vec![csv::Column::Last] } else { columns(&self.targets) };
        csv::Options {
            targets,
            learn: match (self.classes, self.numbers) {
                (true, _) => Learn::Classes,
                (_, true) => Learn::Numbers,
                _ => Learn::Inferred,
            },
            header: match (self.header, self.no_header) {
                (true, _) => csv::Header::Present,
                (_, true) => csv::Header::Absent,
                _ => csv::Header::Inferred,
            },
            delimiter: self.delimiter.and_then(|delimiter| u8::try_from(delimiter).ok()),
            ignore: columns(&self.ignore),
            categories: columns(&self.categories),
            numbers: columns(&self.numeric),
            ..csv::Options::default()
        }
    }
}

/// Every fifth row of a table is for the validation. `known` describes the samples of a run, whose encoding is that of this table, too.
pub fn read(path: &Path, table: &Table, known: Option<&Signature>) -> isograd::Result<Split> {
    let known = known.and_then(|known| known.table.as_ref());
    let all = match known {
        Some(encoding) => encoding.read(path, Targets::Known, &[])?,
        None => csv::Table::read(path, &table.options())?,
    };
    let (train, test) = all.split_every(5)?;
    let encoding = match known {
        Some(encoding) => encoding.clone(),
        None => Encoding::fit(&train, &EncodingOptions { one_hot: columns(&table.one_hot) })?,
    };
    let (train, test) = (encoding.encode(&train)?.with_unknown(UNKNOWN), encoding.encode(&test)?);
    let has_categories = !encoding.categories().is_empty();
    let samples = |rows: csv::Encoded| -> Set {
        Arc::new(rows.map(move |(x, categories, y): (HostTensor, HostTensor, HostTensor), _| {
            Ok(Sample { x, categories: has_categories.then_some(categories), y })
        }))
    };
    let is_of_classes = !encoding.classes().is_empty();
    let (description, warnings) = (all.to_string(), all.warnings().to_vec());
    Ok(Split {
        name: all.name().to_string(),
        train: samples(train),
        validation: None,
        test: samples(test),
        shape: vec![encoding.numbers()],
        outputs: encoding.outputs(),
        objective: if is_of_classes { Objective::Classes } else { Objective::Numbers },
        classes: encoding.classes().to_vec(),
        table: Some(TableSplit { encoding: Arc::new(encoding), description, warnings }),
        mixup: None,
        workers: 1,
        graph: None,
    })
}
