//! Tables as numbers and indices, by what the rows to train on are like.

use super::Column;
use super::date::{Date, DateOrder, DatePart};
use super::dialect::{DELIMITERS, Dialect};
use super::records::Input;
use super::table::{Allowed, Plan, Read, Step, Table, TableColumn, Targets, Values, file_name, read};
use super::types::{ColumnType, index_of};
use crate::dataset::no_sample;
use crate::file::invalid;
use crate::{Context, Dataset, HostTensor};
use isograd_core::{Error, Result};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

/// How columns become inputs of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct EncodingOptions {
    /// Categories that become a number for each name, 0 or 1, in place of an index.
    pub one_hot: Vec<Column>,
}

/// How rows become inputs and targets of a model, fitted to the rows to train on. With the feature `serde` it is a value of serde's, which a program
/// keeps with its model.
///
/// | column | inputs |
/// |---|---|
/// | numbers | one, with mean 0 and deviation 1; missing ones are the median, and another input says which |
/// | dates | year, month, day, weekday, and the hour if there are times, each as a number |
/// | categories | an index: 0 for a name that was not there in training, and 1, .. for the others; a missing cell is a name |
/// | categories as one-hot | a number for each name, all 0 for a name that was not there |
/// | numbers to predict | numbers with mean 0 and deviation 1 |
/// | classes to predict | the index of the class |
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Encoding {
    dialect: Dialect,
    /// The columns of the table, by their names.
    columns: Vec<String>,
    /// The columns have names of their own.
    is_named: bool,
    features: Vec<Feature>,
    targets: Vec<Target>,
    /// The classes; none for numbers.
    classes: Vec<String>,
}

/// A column that a model sees.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
struct Feature {
    column: usize,
    #[cfg_attr(feature = "serde", serde(flatten))]
    content: Content,
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(tag = "type", rename_all = "snake_case"))]
enum Content {
    Number {
        input: Scaled,
        /// An input says which values are missing.
        has_indicator: bool,
        /// Cells that are no numbers are missing values, as in training.
        has_others: bool,
    },
    Date {
        order: DateOrder,
        parts: Vec<(DatePart, Scaled)>,
        has_indicator: bool,
        has_others: bool,
    },
    Category {
        names: Vec<String>,
        is_one_hot: bool,
    },
}

/// A number that is scaled: the value in place of a missing one, the mean and the deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
struct Scaled {
    median: f32,
    mean: f64,
    deviation: f64,
}

/// A column that is predicted, with the scale of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
struct Target {
    column: usize,
    mean: f64,
    deviation: f64,
}

impl Scaled {
    /// The scale of numbers. NaN is a missing one.
    fn of(values: &[f32]) -> Scaled {
        let mut present: Vec<f32> = values.iter().copied().filter(|v| !v.is_nan()).collect();
        present.sort_unstable_by(f32::total_cmp);
        let median = match present.len() {
            0 => 0.0,
            n => (f64::midpoint(f64::from(present[(n - 1) / 2]), f64::from(present[n / 2]))) as f32,
        };
        let missing = values.len() - present.len();
        let all = || present.iter().copied().chain(std::iter::repeat_n(median, missing)).map(f64::from);
        let count = values.len().max(1) as f64;
        let mean = all().sum::<f64>() / count;
        let deviation = (all().map(|v| (v - mean).powi(2)).sum::<f64>() / count).sqrt();
        // A column of one value becomes zeros.
        let deviation = if deviation > 1e-9 * mean.abs() { deviation } else { 1.0 };
        Scaled { median, mean, deviation }
    }

    fn of_value(&self, value: f32) -> f32 {
        let value = if value.is_nan() { self.median } else { value };
        ((f64::from(value) - self.mean) / self.deviation) as f32
    }
}

impl Content {
    /// How many numbers a row has.
    fn numbers(&self) -> usize {
        match self {
            Content::Number { has_indicator, .. } => 1 + usize::from(*has_indicator),
            Content::Date { parts, has_indicator, .. } => parts.len() + usize::from(*has_indicator),
            Content::Category { names, is_one_hot: true } => names.len(),
            Content::Category { .. } => 0,
        }
    }

    /// The scaled numbers, each with the place among those of the column.
    fn scaled(&self) -> Vec<Option<Scaled>> {
        let mut all: Vec<Option<Scaled>> = match self {
            Content::Number { input, .. } => vec![Some(*input)],
            Content::Date { parts, .. } => parts.iter().map(|(_, scaled)| Some(*scaled)).collect(),
            Content::Category { .. } => Vec::new(),
        };
        all.resize(self.numbers(), None);
        all
    }
}

impl Encoding {
    /// Fits an encoding to the rows of a table. Errors: `Format` if there is no such column; `Attr` if a column is no category, there is no target, or a model would
    /// see no column.
    pub fn fit(table: &Table, options: &EncodingOptions) -> Result<Encoding> {
        if table.targets.is_empty() {
            return Err(Error::attr(table.name.clone(), "0 columns of targets, expected at least 1"));
        }
        let columns: Vec<String> = table.columns.iter().map(|column| column.name.clone()).collect();
        let names = if table.is_named { &columns[..] } else { &[] };
        let mut one_hot = Vec::new();
        for column in &options.one_hot {
            let index = index_of(Path::new(&table.name), column, columns.len(), names)?;
            let column = &table.columns[index];
            if !column.is_used || column.column_type != ColumnType::Category || table.targets.contains(&index) {
                let (name, found) = (&column.name, column.column_type.name());
                let message = format!("{name} is of the type {found}, expected a category of the inputs for one-hot");
                return Err(Error::attr(table.name.clone(), message));
            }
            one_hot.push(index);
        }
        let mut features = Vec::new();
        for (i, column) in table.columns.iter().enumerate() {
            if !column.is_used || table.targets.contains(&i) {
                continue;
            }
            let content = match &column.values {
                Values::Numbers(values) => Content::Number {
                    input: Scaled::of(values),
                    has_indicator: values.iter().any(|v| v.is_nan()),
                    has_others: column.others > 0,
                },
                Values::Dates(values) => dates(column, values),
                Values::Categories(values, names) => {
                    let mut counts = vec![0usize; names.len()];
                    values.iter().for_each(|value| counts[*value as usize] += 1);
                    let mut names: Vec<String> = names
                        .iter()
                        .zip(counts)
                        .filter(|(_, count)| *count > 0)
                        .map(|(name, _)| name.clone())
                        .collect();
                    names.sort_unstable();
                    Content::Category { names, is_one_hot: one_hot.contains(&i) }
                }
                Values::Texts(_) | Values::None => continue,
            };
            features.push(Feature { column: i, content });
        }
        if features.is_empty() {
            let message = "no column is left to learn from: all others are ignored, identifiers or texts";
            return Err(Error::attr(table.name.clone(), message));
        }
        let scale = |column: &usize| match &table.columns[*column].values {
            Values::Numbers(values) => {
                let Scaled { mean, deviation, .. } = Scaled::of(values);
                Target { column: *column, mean, deviation }
            }
            _ => Target { column: *column, mean: 0.0, deviation: 1.0 },
        };
        let targets = table.targets.iter().map(scale).collect();
        let (dialect, classes) = (table.dialect, table.classes().to_vec());
        Ok(Encoding { dialect, columns, is_named: table.is_named, features, targets, classes })
    }

    /// The numbers of a row that a model sees.
    pub fn numbers(&self) -> usize {
        self.features.iter().map(|feature| feature.content.numbers()).sum()
    }

    /// For each category that a model sees as an index, how many indices there are.
    pub fn categories(&self) -> Vec<usize> {
        let indices = |feature: &Feature| match &feature.content {
            Content::Category { names, is_one_hot: false } => Some(names.len() + 1),
            _ => None,
        };
        self.features.iter().filter_map(indices).collect()
    }

    /// The outputs of a model: the classes, or the numbers to predict.
    pub fn outputs(&self) -> usize {
        if self.classes.is_empty() { self.targets.len() } else { self.classes.len() }
    }

    /// The classes in the order of their indices; none for numbers.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The names of the columns that are predicted.
    pub fn targets(&self) -> Vec<&str> {
        self.targets.iter().map(|target| self.columns[target.column].as_str()).collect()
    }

    /// The mean and the deviation of each number that a model sees; 0 and 1 for those that are not scaled.
    pub fn input_scale(&self) -> (Vec<f32>, Vec<f32>) {
        let all = self.features.iter().flat_map(|feature| feature.content.scaled());
        all.map(|scaled| scaled.map_or((0.0, 1.0), |s| (s.mean as f32, s.deviation as f32))).unzip()
    }

    /// The mean and the deviation of each number to predict; none for classes.
    pub fn target_scale(&self) -> (Vec<f32>, Vec<f32>) {
        let all = self.targets.iter().filter(|_| self.classes.is_empty());
        all.map(|target| (target.mean as f32, target.deviation as f32)).unzip()
    }

    /// Reads a file with the same columns. Columns are found by their names, if they had some, and others are not read; without names, the
    /// file has the same columns, or all but those to predict. `keep` are columns of the file whose texts are kept, see [`Table::kept`].
    ///
    /// Errors: as [`Table::read`]; `Format`, with line and column, for a cell that is no number or date in a column that had only these,
    /// and for a class that was not there.
    pub fn read(&self, path: impl AsRef<Path>, targets: Targets, keep: &[Column]) -> Result<Table> {
        self.table(Input::File(path.as_ref()), targets, keep)
    }

    /// Reads the bytes of a text, as [`read`](Encoding::read) a file; errors name `path`.
    pub fn parse(&self, path: &Path, bytes: &[u8], targets: Targets, keep: &[Column]) -> Result<Table> {
        self.table(Input::Bytes(path, bytes), targets, keep)
    }

    fn table(&self, input: Input<'_>, targets: Targets, keep: &[Column]) -> Result<Table> {
        let path = input.path();
        let is_common = DELIMITERS.contains(&self.dialect.delimiter);
        let delimiter = input.open(Some(self.dialect.delimiter).filter(|_| !is_common))?.delimiter();
        let dialect = Dialect { delimiter, ..self.dialect };
        let found = self.found(input, dialect, targets)?;
        let mut steps = Vec::new();
        let allowed = |has_others: bool| if has_others { Allowed::Others } else { Allowed::Missing };
        for feature in &self.features {
            let plan = match &feature.content {
                Content::Number { has_others, .. } => Plan::Number(allowed(*has_others)),
                Content::Date { order, has_others, .. } => Plan::Date(*order, allowed(*has_others)),
                Content::Category { .. } => Plan::Category,
            };
            steps.push((feature.column, plan));
        }
        if targets == Targets::Known {
            let plan = if self.classes.is_empty() { Plan::Target } else { Plan::Class };
            steps.extend(self.targets.iter().map(|target| (target.column, plan)));
        }
        let names = if self.is_named { &found.names[..] } else { &[] };
        let kept = keep.iter().map(|column| index_of(path, column, found.names.len(), names));
        let kept: Vec<usize> = kept.collect::<Result<_>>()?;
        let of_file = |(column, plan): &(usize, Plan)| {
            let column = found.places[*column];
            column.map(|column| Step { column, plan: *plan })
        };
        let all: Vec<Step> = steps.iter().filter_map(of_file).collect();
        let texts = kept.iter().map(|column| Step { column: *column, plan: Plan::Text });
        let all: Vec<Step> = all.into_iter().chain(texts).collect();
        let classes = Some(&self.classes[..]).filter(|classes| !classes.is_empty());
        let Read { rows, columns: read, without_target } = read(input, &dialect, &all, true, classes)?;
        let mut columns: Vec<TableColumn> = self.columns.iter().map(|name| TableColumn::unread(name)).collect();
        let mut read = read.into_iter();
        for ((column, plan), (values, missing, others)) in steps.iter().zip(read.by_ref()) {
            let column_type = match plan {
                Plan::Number(_) | Plan::Target => ColumnType::Number,
                Plan::Date(..) => ColumnType::Date,
                _ => ColumnType::Category,
            };
            let date_order = if let Plan::Date(order, _) = plan { Some(*order) } else { None };
            let name = self.columns[*column].clone();
            columns[*column] = TableColumn { name, column_type, missing, is_used: true, date_order, others, values };
        }
        let name_of = |column: &usize| found.names[*column].clone();
        let texts = read.map(|(values, ..)| if let Values::Texts(texts) = values { texts } else { Vec::new() });
        Ok(Table {
            name: file_name(path),
            rows,
            dialect,
            is_named: self.is_named,
            columns,
            targets: self.targets.iter().map(|target| target.column).collect(),
            are_classes: !self.classes.is_empty(),
            without_target,
            kept: kept.iter().map(name_of).zip(texts).collect(),
            warnings: Vec::new(),
        })
    }

    /// Where the columns are in a file. Errors: `Format` if it lacks some, or is empty.
    fn found(&self, input: Input<'_>, dialect: Dialect, targets: Targets) -> Result<Found> {
        let path = input.path();
        let source = input.open(Some(dialect.delimiter))?;
        let own = source.names();
        let Some(cells) = source.first()? else {
            return Err(invalid(path, "the table has no samples, expected at least one"));
        };
        let count = cells.len();
        let is_target = |column: &usize| self.targets.iter().any(|target| target.column == *column);
        let needed = |column: &usize| {
            let is_feature = self.features.iter().any(|feature| feature.column == *column);
            is_feature || (targets == Targets::Known && is_target(column))
        };
        if self.is_named {
            let names = own.unwrap_or(cells);
            let is_same = names == self.columns;
            let place = |i: usize| match is_same {
                true => Some(i),
                false => names.iter().position(|name| *name == self.columns[i]),
            };
            let places: Vec<Option<usize>> = (0..self.columns.len()).map(place).collect();
            let lacking = |i: &usize| places[*i].is_none() && needed(i);
            let lacking: Vec<&str> = (0..places.len()).filter(lacking).map(|i| self.columns[i].as_str()).collect();
            return match lacking.is_empty() {
                true => Ok(Found { places, names }),
                false => {
                    let message = format!("lacks the columns {}, it has {}", lacking.join(", "), names.join(", "));
                    Err(invalid(path, message))
                }
            };
        }
        let features: Vec<usize> = (0..self.columns.len()).filter(|i| !is_target(i)).collect();
        let places: Vec<Option<usize>> = match () {
            () if count == self.columns.len() => (0..count).map(Some).collect(),
            () if count == features.len() && targets == Targets::Unknown => {
                (0..self.columns.len()).map(|i| features.iter().position(|feature| *feature == i)).collect()
            }
            () => {
                let (without, with) = (features.len(), self.columns.len());
                let message = format!("has {count} columns, expected {without}, or {with} with those to predict");
                return Err(invalid(path, message));
            }
        };
        Ok(Found { places, names: (0..count).map(|i| format!("column {i}")).collect() })
    }

    /// The inputs and targets of rows of this encoding, or of the table that it was fitted to. Errors: `Attr` if columns are not those of the
    /// encoding.
    pub fn encode(&self, table: &Table) -> Result<Encoded> {
        let width = self.numbers();
        let mut numbers = vec![0.0; width * table.rows];
        let mut categories = Vec::new();
        let mut start = 0;
        for Feature { column, content } in &self.features {
            let values = table.columns.get(*column).map(|column| &column.values);
            let cells = numbers.chunks_mut(width.max(1)).map(|row| &mut row[start..]);
            match (content, values) {
                (Content::Number { input, has_indicator, .. }, Some(Values::Numbers(values))) => {
                    for (cells, value) in cells.zip(values) {
                        cells[0] = input.of_value(*value);
                        if *has_indicator {
                            cells[1] = f32::from(value.is_nan());
                        }
                    }
                }
                (Content::Date { parts, has_indicator, .. }, Some(Values::Dates(values))) => {
                    for (cells, date) in cells.zip(values) {
                        for (cell, (part, scaled)) in cells.iter_mut().zip(parts) {
                            *cell = scaled.of_value(date.map_or(f32::NAN, |date| date.part(*part)));
                        }
                        if *has_indicator {
                            cells[parts.len()] = f32::from(date.is_none());
                        }
                    }
                }
                (Content::Category { names, is_one_hot }, Some(Values::Categories(values, found))) => {
                    let known: HashMap<&str, usize> = names.iter().map(String::as_str).zip(0..).collect();
                    let indices: Vec<Option<usize>> =
                        found.iter().map(|name| known.get(name.as_str()).copied()).collect();
                    let of_rows = values.iter().map(|value| indices[*value as usize]);
                    match is_one_hot {
                        false => categories.push(of_rows.map(|i| i.map_or(0, |i| i as i64 + 1)).collect::<Vec<i64>>()),
                        true => cells.zip(of_rows).for_each(|(cells, i)| {
                            if let Some(i) = i {
                                cells[i] = 1.0;
                            }
                        }),
                    }
                }
                _ => {
                    let name = &self.columns[*column];
                    return Err(Error::attr(
                        table.name.clone(),
                        format!("{name} is not as in the table of the encoding"),
                    ));
                }
            }
            start += content.numbers();
        }
        let row = |row: usize| categories.iter().map(move |column| column[row]);
        let indices = (0..table.rows).flat_map(row).collect();
        Ok(Encoded {
            name: table.name.clone(),
            rows: table.rows,
            width,
            numbers,
            categories: indices,
            category_count: categories.len(),
            targets: self.encoded_targets(table),
            unknown: 0.0,
        })
    }

    fn encoded_targets(&self, table: &Table) -> EncodedTargets {
        let first = self.targets.first().and_then(|target| table.columns.get(target.column));
        match first.map(|column| &column.values) {
            Some(Values::Categories(labels, _)) if !self.classes.is_empty() => {
                EncodedTargets::Classes(labels.iter().map(|label| i64::from(*label)).collect())
            }
            Some(Values::Numbers(_)) => {
                let scaled = |(target, values): (&Target, &Vec<f32>)| -> Vec<f32> {
                    values.iter().map(|v| ((f64::from(*v) - target.mean) / target.deviation) as f32).collect()
                };
                let columns: Vec<Vec<f32>> = self.targets.iter().zip(table.target_numbers()).map(scaled).collect();
                let row = |row: usize| columns.iter().map(move |column| column[row]);
                EncodedTargets::Numbers((0..table.rows).flat_map(row).collect(), columns.len())
            }
            _ => EncodedTargets::None,
        }
    }
}

/// The content of a column of dates.
fn dates(column: &TableColumn, values: &[Option<Date>]) -> Content {
    let has_time = values.iter().flatten().any(|date| date.has_time());
    let parts = [DatePart::Year, DatePart::Month, DatePart::Day, DatePart::Weekday, DatePart::Hour];
    let parts = parts.into_iter().filter(|part| *part != DatePart::Hour || has_time);
    let scaled = |part: DatePart| {
        let numbers: Vec<f32> = values.iter().map(|date| date.map_or(f32::NAN, |date| date.part(part))).collect();
        (part, Scaled::of(&numbers))
    };
    Content::Date {
        order: column.date_order.unwrap_or(DateOrder::YearFirst),
        parts: parts.map(scaled).collect(),
        has_indicator: values.iter().any(Option::is_none),
        has_others: column.others > 0,
    }
}

/// The columns of a file.
struct Found {
    /// Where each column of the encoding is.
    places: Vec<Option<usize>>,
    names: Vec<String>,
}

impl TableColumn {
    /// A column that is not read.
    fn unread(name: &str) -> TableColumn {
        TableColumn {
            name: name.to_string(),
            column_type: ColumnType::Text,
            missing: 0,
            is_used: false,
            date_order: None,
            others: 0,
            values: Values::None,
        }
    }
}

/// Rows as a model sees them: a dataset of scaled numbers `[N]` f32, indices of categories `[K]` i64, and a target, which is a class index or numbers `[T]` f32
/// with mean 0 and deviation 1.
#[derive(Clone, Debug)]
pub struct Encoded {
    name: String,
    rows: usize,
    width: usize,
    numbers: Vec<f32>,
    categories: Vec<i64>,
    category_count: usize,
    targets: EncodedTargets,
    unknown: f64,
}

#[derive(Clone, Debug)]
enum EncodedTargets {
    None,
    Classes(Vec<i64>),
    /// Numbers of all rows, and those of each.
    Numbers(Vec<f32>, usize),
}

impl Encoded {
    /// All rows' numbers, `[rows, N]` f32.
    pub fn numbers(&self) -> HostTensor {
        let bytes = self.numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
        HostTensor::from_bytes(bytes, [self.rows, self.width], isograd_core::DType::F32)
    }

    /// All rows' indices of categories, `[rows, K]` i64.
    pub fn categories(&self) -> HostTensor {
        let bytes = self.categories.iter().flat_map(|v| v.to_le_bytes()).collect();
        HostTensor::from_bytes(bytes, [self.rows, self.category_count], isograd_core::DType::I64)
    }

    /// The same rows, of which each category is the unknown one with this probability whenever the row is read: a model learns so what
    /// names that it never saw are worth.
    pub fn with_unknown(self, probability: f64) -> Encoded {
        Encoded { unknown: probability, ..self }
    }
}

impl Dataset for Encoded {
    type Item = (HostTensor, HostTensor, HostTensor);

    fn len(&self) -> usize {
        self.rows
    }

    /// Errors: `Index` behind the last row; `Value` for rows without targets.
    fn get(&self, index: usize, context: &Context) -> Result<Self::Item> {
        if index >= self.rows {
            return Err(no_sample(&self.name, index, self.rows));
        }
        let target = match &self.targets {
            EncodedTargets::Classes(labels) => HostTensor::new(&[labels[index]], [])?,
            EncodedTargets::Numbers(values, each) => HostTensor::vector(&values[index * each..(index + 1) * each]),
            EncodedTargets::None => {
                return Err(Error::value(self.name.clone(), "the rows were read without their targets"));
            }
        };
        let (from, count) = (index * self.category_count, self.category_count);
        let mut indices = self.categories[from..from + count].to_vec();
        if self.unknown > 0.0 {
            indices.iter_mut().for_each(|index| *index = if context.chance(self.unknown) { 0 } else { *index });
        }
        let numbers = HostTensor::vector(&self.numbers[index * self.width..(index + 1) * self.width]);
        Ok((numbers, HostTensor::vector(&indices), target))
    }
}
