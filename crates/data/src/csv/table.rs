//! Tables in memory: what the columns are, and their values.

use super::date::{Date, DateOrder};
use super::dialect::Dialect;
use super::number::Decimal;
use super::records::{Cell, Input, Row};
use super::types::{ColumnType, Survey, decimal_of, index_of, is_header};
use super::{Column, Features, Header, Learn, Options};
use crate::file::invalid;
use crate::{HostTensor, Labelled, Regression};
use isograd_core::{Error, Result};
use std::collections::HashMap;
use std::path::Path;

/// A table in memory, without the columns that are ignored.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) name: String,
    pub(crate) rows: usize,
    pub(crate) dialect: Dialect,
    /// The columns have names of their own.
    pub(crate) is_named: bool,
    pub(crate) columns: Vec<TableColumn>,
    /// The columns to predict.
    pub(crate) targets: Vec<usize>,
    /// Targets are classes.
    pub(crate) are_classes: bool,
    /// Rows that were left out, since they have no target.
    pub(crate) without_target: usize,
    /// Columns whose texts were asked for.
    pub(crate) kept: Vec<(String, Vec<String>)>,
    pub(crate) warnings: Vec<String>,
}

/// A column of a [`Table`].
#[derive(Clone, Debug)]
pub struct TableColumn {
    /// The name in the header, or `column 3` for the fourth without one.
    pub name: String,
    /// The type of the column.
    pub column_type: ColumnType,
    /// The cells without a value, and those that are no numbers or dates in a column of these.
    pub missing: usize,
    /// A model sees the column, or predicts it.
    pub is_used: bool,
    pub(crate) date_order: Option<DateOrder>,
    /// Cells with a value that is no number or date in a column of these: they count as missing.
    pub(crate) others: usize,
    pub(crate) values: Values,
}

/// Whether the rows of a table have targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets {
    /// They have; rows without one are left out.
    Known,
    /// They have none, or it is not read.
    Unknown,
}

/// The values of a column.
#[derive(Clone, Debug, Default)]
pub(crate) enum Values {
    #[default]
    None,
    /// NaN for a missing one.
    Numbers(Vec<f32>),
    Dates(Vec<Option<Date>>),
    /// An index of a text for each row; a missing one is the empty text.
    Categories(Vec<u32>, Vec<String>),
    Texts(Vec<String>),
}

/// How the cells of a column become values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    Number(Allowed),
    Date(DateOrder, Allowed),
    Category,
    Text,
    /// Numbers to predict, or names of classes: rows without one are left out.
    Target,
    Class,
}

/// The cells of a column of numbers or dates that are neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    None,
    /// Cells without a value.
    Missing,
    /// All: they count as missing.
    Others,
}

/// The plan of a column of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub column: usize,
    pub plan: Plan,
}

/// The values of some columns of a file.
pub(crate) struct Read {
    pub rows: usize,
    /// For each step, its values, and how many cells are missing or of another type.
    pub columns: Vec<(Values, usize, usize)>,
    pub without_target: usize,
}

impl Table {
    /// Reads a file: text, gzipped or not, or, with the feature `parquet`, a Parquet file or an Arrow file (IPC, Feather); its content decides. It is
    /// read twice: for the types of the columns, and for their values. Beside these no more than a line is in memory, or a thousand rows of a
    /// Parquet or Arrow file, and hashes of up to 65,536 different values of a column.
    ///
    /// Errors: `Io` if the file cannot be read; `Format`, with line and column counted from 1, if a target is not what is to be predicted, a
    /// listed column has cells that are no numbers, a line is longer or shorter than the first or has more than [`MAX_LINE`](super::MAX_LINE) bytes, a quote
    /// does not end, there is no such column, or there are no samples; `Attr` for options that contradict each other; `Unsupported` for a Parquet or Arrow
    /// file without the feature.
    pub fn read(path: impl AsRef<Path>, options: &Options) -> Result<Table> {
        Table::of(Input::File(path.as_ref()), options)
    }

    /// Reads the bytes of a text, gzipped or not; errors name `path`, and the table is called by its file name.
    pub fn parse(path: &Path, bytes: &[u8], options: &Options) -> Result<Table> {
        Table::of(Input::Bytes(path, bytes), options)
    }

    fn of(input: Input<'_>, options: &Options) -> Result<Table> {
        let path = input.path();
        let Surveyed { survey, dialect, names } = surveyed(input, options)?;
        let count = survey.columns.len();
        let of = |columns: &[Column]| -> Result<Vec<usize>> {
            columns.iter().map(|column| index_of(path, column, count, &names)).collect()
        };
        let (targets, ignored) = (of(&options.targets)?, of(&options.ignore)?);
        let (categories, numbers) = (of(&options.categories)?, of(&options.numbers)?);
        check_options([&targets, &ignored, &categories, &numbers])?;
        let are_classes = match (options.learn, &targets[..]) {
            (Learn::Classes, [_]) => true,
            (Learn::Classes, _) => {
                let message = format!("{} columns of classes, expected 1", targets.len());
                return Err(Error::attr("csv", message));
            }
            (Learn::Inferred, &[target]) => survey.columns[target].are_classes(dialect.decimal),
            _ => false,
        };
        let mut types: Vec<ColumnType> =
            survey.columns.iter().map(|observed| observed.column_type(dialect.decimal)).collect();
        // Numbers in sequence are all that this table has to learn from.
        let is_input = |i: &usize| !targets.contains(i) && !ignored.contains(i);
        let is_listed = |i: &usize| categories.contains(i) || numbers.contains(i);
        if !(0..count).any(|i| is_input(&i) && (types[i].is_feature() || is_listed(&i))) {
            let is_sequence = |i: &usize| survey.columns[*i].are_numbers(dialect.decimal);
            (0..count).filter(is_sequence).for_each(|i| types[i] = ColumnType::Number);
        }
        let mut warnings = Vec::new();
        let mut columns = Vec::with_capacity(count);
        let mut steps = Vec::new();
        for (i, observed) in survey.columns.iter().enumerate() {
            let is_target = targets.contains(&i);
            let column_type = match () {
                () if categories.contains(&i) || (is_target && are_classes) => ColumnType::Category,
                () if numbers.contains(&i) || is_target => ColumnType::Number,
                () if options.features == Features::Numbers => ColumnType::Number,
                () => types[i],
            };
            let allowed = match () {
                () if numbers.contains(&i) => Allowed::Missing,
                () if options.features == Features::Numbers => Allowed::None,
                () => Allowed::Others,
            };
            let date_order = observed.date_order();
            let is_used = is_target || (column_type.is_feature() && !ignored.contains(&i));
            let plan = match (is_target, column_type, date_order) {
                (true, ..) if are_classes => Some(Plan::Class),
                (true, ..) => Some(Plan::Target),
                _ if !is_used => None,
                (_, ColumnType::Number, _) => Some(Plan::Number(allowed)),
                (_, ColumnType::Date, Some(order)) => Some(Plan::Date(order, allowed)),
                _ => Some(Plan::Category),
            };
            steps.extend(plan.map(|plan| Step { column: i, plan }));
            let name = names.get(i).cloned().unwrap_or_else(|| format!("column {i}"));
            if is_target && are_classes && !observed.are_classes(dialect.decimal) {
                let different = observed.different().map_or_else(|| "more than a thousand".into(), |n| n.to_string());
                warnings.push(format!(
                    "{name} has {different} different numbers, and each becomes a class; as numbers they can be predicted between each other, too"
                ));
            }
            let missing = observed.missing;
            columns.push(TableColumn {
                name,
                column_type,
                missing,
                is_used,
                date_order,
                others: 0,
                values: Values::None,
            });
        }
        let may_drop = options.features == Features::Inferred;
        let read = read(input, &dialect, &steps, may_drop, None)?;
        if read.rows == 0 {
            return Err(invalid(path, "no row has a target"));
        }
        for (step, (values, missing, others)) in steps.iter().zip(read.columns) {
            let column = &mut columns[step.column];
            (column.values, column.missing, column.others) = (values, missing, others);
        }
        Ok(Table {
            name: file_name(path),
            rows: read.rows,
            dialect,
            is_named: !names.is_empty(),
            columns,
            targets,
            are_classes,
            without_target: read.without_target,
            kept: Vec::new(),
            warnings,
        })
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// True if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// All columns.
    pub fn columns(&self) -> &[TableColumn] {
        &self.columns
    }

    /// The columns to predict, by their numbers.
    pub fn targets(&self) -> &[usize] {
        &self.targets
    }

    /// The names of the classes to predict, in their order: numbers by their values, texts by the alphabet. None for numbers to predict.
    pub fn classes(&self) -> &[String] {
        match self.targets.first().map(|target| &self.columns[*target].values) {
            Some(Values::Categories(_, names)) => names,
            _ => &[],
        }
    }

    /// Choices of the reader that the user may not have meant.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Columns whose texts were asked for: names, and a text for each row.
    pub fn kept(&self) -> &[(String, Vec<String>)] {
        &self.kept
    }

    /// These rows, in this order. Errors: `Index` if there is no such row.
    pub fn select(&self, rows: &[usize]) -> Result<Table> {
        if let Some(row) = rows.iter().find(|row| **row >= self.rows) {
            let message = format!("there is no row {row}, expected one in 0..{}", self.rows);
            return Err(Error::index(self.name.clone(), message));
        }
        let column = |column: &TableColumn| TableColumn { values: column.values.select(rows), ..column.clone() };
        let texts = |texts: &Vec<String>| rows.iter().map(|row| texts[*row].clone()).collect();
        Ok(Table {
            rows: rows.len(),
            columns: self.columns.iter().map(column).collect(),
            kept: self.kept.iter().map(|(name, column)| (name.clone(), texts(column))).collect(),
            ..self.clone()
        })
    }

    /// Rows to train on, and rows whose index is divisible by `n`. Errors: `Attr` if `n` is 0.
    pub fn split_every(&self, n: usize) -> Result<(Table, Table)> {
        if n == 0 {
            return Err(Error::attr(self.name.clone(), "cannot split every 0 rows, expected at least 1"));
        }
        let (test, train): (Vec<usize>, Vec<usize>) = (0..self.rows).partition(|row| row.is_multiple_of(n));
        Ok((self.select(&train)?, self.select(&test)?))
    }

    /// Samples of shape `[columns]` with a class each, of a table whose features are all numbers. Classes that are called 0, 1, .. have no names.
    /// Errors: `Attr` if a used column is no number or has missing values, or numbers are to be predicted.
    pub fn labelled(&self) -> Result<Labelled> {
        let (features, width) = self.features()?;
        let Some(Values::Categories(labels, names)) = self.targets.first().map(|i| &self.columns[*i].values) else {
            return Err(Error::attr(self.name.clone(), "the targets are numbers, expected classes"));
        };
        let labels = labels.iter().map(|label| i64::from(*label)).collect();
        let samples = Labelled::new(self.name.clone(), features, [width], labels, names.len())?;
        let are_indices = names.iter().enumerate().all(|(i, name)| *name == i.to_string());
        if are_indices { Ok(samples) } else { samples.with_class_names(names.clone()) }
    }

    /// Samples of shape `[columns]` with numbers to predict, of a table whose features are all numbers. Errors: `Attr` if a used column is no
    /// number or has missing values, or classes are to be predicted.
    pub fn regression(&self) -> Result<Regression> {
        let (features, width) = self.features()?;
        let columns: Vec<&Vec<f32>> = self.target_numbers().collect();
        let targets: Vec<f32> = (0..self.rows).flat_map(|row| columns.iter().map(move |column| column[row])).collect();
        match columns.len() == self.targets.len() && !columns.is_empty() {
            true => Regression::new(self.name.clone(), features, [width], &targets, columns.len()),
            false => Err(Error::attr(self.name.clone(), "the targets are no numbers")),
        }
    }

    /// The used columns that are no targets, `[rows, columns]` f32, of a table in which these are all numbers. Errors: `Attr` if one is no number
    /// or has missing values.
    pub fn numbers(&self) -> Result<HostTensor> {
        let (features, width) = self.features()?;
        HostTensor::new(&features, [self.rows, width])
    }

    /// The columns of numbers to predict.
    pub(crate) fn target_numbers(&self) -> impl Iterator<Item = &Vec<f32>> {
        self.targets.iter().filter_map(|target| match &self.columns[*target].values {
            Values::Numbers(numbers) => Some(numbers),
            _ => None,
        })
    }

    /// The numbers of the used columns that are no targets, row by row, and how many they are.
    fn features(&self) -> Result<(Vec<f32>, usize)> {
        let mut columns = Vec::new();
        for (_, column) in self.columns.iter().enumerate().filter(|(i, c)| c.is_used && !self.targets.contains(i)) {
            match &column.values {
                Values::Numbers(numbers) if column.missing == 0 => columns.push(numbers),
                _ => {
                    let (name, found, missing) = (&column.name, column.column_type.name(), column.missing);
                    let message = format!(
                        "{name} is of the type {found} with {missing} missing values; an Encoding makes numbers of it"
                    );
                    return Err(Error::attr(self.name.clone(), message));
                }
            }
        }
        let row = |row: usize| columns.iter().map(move |column| column[row]);
        Ok(((0..self.rows).flat_map(row).collect(), columns.len()))
    }
}

impl Values {
    fn select(&self, rows: &[usize]) -> Values {
        match self {
            Values::None => Values::None,
            Values::Numbers(values) => Values::Numbers(rows.iter().map(|row| values[*row]).collect()),
            Values::Dates(values) => Values::Dates(rows.iter().map(|row| values[*row]).collect()),
            Values::Categories(values, names) => {
                Values::Categories(rows.iter().map(|row| values[*row]).collect(), names.clone())
            }
            Values::Texts(values) => Values::Texts(rows.iter().map(|row| values[*row].clone()).collect()),
        }
    }
}

/// The name of a file without its folder.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

/// The findings of the first reading of a table.
struct Surveyed {
    survey: Survey,
    dialect: Dialect,
    /// None where the columns have none.
    names: Vec<String>,
}

fn surveyed(input: Input<'_>, options: &Options) -> Result<Surveyed> {
    let path = input.path();
    let source = input.open(options.delimiter)?;
    let (delimiter, own) = (source.delimiter(), source.names());
    let lists = [&options.targets, &options.ignore, &options.categories, &options.numbers];
    let is_by_name = lists.into_iter().flatten().any(|column| matches!(column, Column::Name(_)));
    // None where the cells decide.
    let header = match options.header {
        _ if own.is_some() => Some(false),
        Header::Present => Some(true),
        Header::Absent => Some(false),
        Header::Inferred => is_by_name.then_some(true),
    };
    let is_apart = header != Some(false);
    let mut survey = Survey { first: Vec::new(), columns: Vec::new() };
    let mut strict: Option<Vec<usize>> = None;
    source.each_row(|row| {
        let is_first = strict.is_none();
        survey.add(row, is_apart);
        let columns = match &strict {
            Some(columns) => columns,
            None => {
                let names = own.as_deref().unwrap_or(if header == Some(true) { &survey.first } else { &[] });
                strict.insert(strict_columns(path, options, row.len(), names)?)
            }
        };
        // Wrong cells of listed columns are found before the rest of the file is read.
        let is_checked = !(is_first && is_apart);
        columns.iter().filter(|_| is_checked).try_for_each(|column| {
            let cell = row.cell(*column);
            let is_allowed = cell.is_missing() && options.features == Features::Inferred;
            let is_number = [Decimal::Point, Decimal::Comma].iter().any(|decimal| cell.number(*decimal).is_some());
            if is_allowed || is_number { Ok(()) } else { Err(unfit(path, row, *column, "a finite number")) }
        })
    })?;
    let has_header = header.unwrap_or_else(|| is_header(&survey.first, &survey.columns));
    if is_apart && !has_header {
        let first = std::mem::take(&mut survey.first);
        for (column, text) in survey.columns.iter_mut().zip(&first) {
            column.add(Cell::Text(text.as_bytes()), None);
        }
        survey.first = first;
    }
    if survey.columns.first().is_none_or(|column| column.rows == 0) {
        return Err(invalid(path, "the table has no samples, expected at least one"));
    }
    let names = own.unwrap_or(if has_header { survey.first.clone() } else { Vec::new() });
    let decimal = decimal_of(&survey.columns, delimiter);
    Ok(Surveyed { survey, dialect: Dialect { delimiter, header: has_header, decimal }, names })
}

/// The features that must be numbers.
fn strict_columns(path: &Path, options: &Options, count: usize, names: &[String]) -> Result<Vec<usize>> {
    let of = |columns: &[Column]| -> Result<Vec<usize>> {
        columns.iter().map(|column| index_of(path, column, count, names)).collect()
    };
    let numbers = of(&options.numbers)?;
    if options.features == Features::Inferred {
        return Ok(numbers);
    }
    let others = [of(&options.targets)?, of(&options.ignore)?, of(&options.categories)?].concat();
    Ok((0..count).filter(|column| !others.contains(column)).collect())
}

/// Errors: `Attr` for a column that is listed twice.
fn check_options([targets, ignored, categories, numbers]: [&[usize]; 4]) -> Result<()> {
    let listed = [("a target", targets), ("ignored", ignored), ("a category", categories), ("a number", numbers)];
    let mut seen: HashMap<usize, &str> = HashMap::new();
    for (role, columns) in listed {
        for column in columns {
            match seen.insert(*column, role) {
                Some(before) if before == role => {
                    return Err(Error::attr("csv", format!("column {} is {role} twice", column + 1)));
                }
                Some(before) => {
                    return Err(Error::attr("csv", format!("column {} is {before} and {role}", column + 1)));
                }
                None => {}
            }
        }
    }
    Ok(())
}

/// The error of a cell that is not what was expected.
fn unfit(path: &Path, row: &dyn Row, column: usize, expected: &str) -> Error {
    let shown: String = row.cell(column).text().chars().take(40).collect();
    invalid(path, format!("{}, column {}: expected {expected}, got {shown:?}", row.place(), column + 1))
}

/// Texts and their indices, in the order in which they come.
#[derive(Default)]
struct Names(HashMap<String, u32>);

impl Names {
    fn index(&mut self, text: &str) -> u32 {
        match self.0.get(text) {
            Some(index) => *index,
            None => {
                let index = self.0.len() as u32;
                self.0.insert(text.to_string(), index);
                index
            }
        }
    }

    /// The names in the order of their indices.
    fn listed(self) -> Vec<String> {
        let mut names: Vec<(u32, String)> = self.0.into_iter().map(|(name, index)| (index, name)).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name).collect()
    }
}

/// The values of a column while they are read.
struct Reading {
    values: Values,
    names: Names,
    missing: usize,
    others: usize,
}

/// The name of a class: tools that write every cell as a float write indices so too, and 3.0 is class 3.
fn class_name(cell: Cell<'_>, decimal: Decimal) -> String {
    match cell.number(decimal).filter(|v| v.fract() == 0.0 && v.abs() < 1e6) {
        Some(v) => format!("{v:.0}"),
        None => cell.text().into_owned(),
    }
}

/// Reads columns of a file. `may_drop` says that rows without a target are left out, else they are errors; `classes` are those that there are.
pub(crate) fn read(
    input: Input<'_>,
    dialect: &Dialect,
    steps: &[Step],
    may_drop: bool,
    classes: Option<&[String]>,
) -> Result<Read> {
    let (path, decimal) = (input.path(), dialect.decimal);
    let source = input.open(Some(dialect.delimiter))?;
    let mut is_header = dialect.header && source.names().is_none();
    let empty = |step: &Step| match step.plan {
        Plan::Number(_) | Plan::Target => Values::Numbers(Vec::new()),
        Plan::Date(..) => Values::Dates(Vec::new()),
        Plan::Category | Plan::Class => Values::Categories(Vec::new(), Vec::new()),
        Plan::Text => Values::Texts(Vec::new()),
    };
    let mut columns: Vec<Reading> = steps
        .iter()
        .map(|step| Reading { values: empty(step), names: Names::default(), missing: 0, others: 0 })
        .collect();
    let known: Option<HashMap<&str, u32>> =
        classes.map(|classes| classes.iter().zip(0..).map(|(name, i)| (name.as_str(), i)).collect());
    let (mut rows, mut without_target) = (0, 0);
    source.each_row(|row| {
        if std::mem::take(&mut is_header) {
            return Ok(());
        }
        let is_target = |step: &&Step| matches!(step.plan, Plan::Target | Plan::Class);
        if may_drop && steps.iter().filter(is_target).any(|step| row.cell(step.column).is_missing()) {
            without_target += 1;
            return Ok(());
        }
        rows += 1;
        for (step, column) in steps.iter().zip(&mut columns) {
            let cell = row.cell(step.column);
            let unfit = |expected: &str| unfit(path, row, step.column, expected);
            let is_missing = cell.is_missing();
            // An absent value where one is allowed; other cells are counted.
            let mut absent = |allowed: Allowed, expected: &str| match (allowed, is_missing) {
                (Allowed::Missing | Allowed::Others, true) | (Allowed::Others, false) => {
                    column.missing += 1;
                    column.others += usize::from(!is_missing);
                    Ok(())
                }
                _ => Err(unfit(expected)),
            };
            match (&mut column.values, step.plan) {
                (Values::Numbers(values), Plan::Number(allowed)) => {
                    let number = if is_missing { None } else { cell.number(decimal) };
                    if number.is_none() {
                        absent(allowed, "a finite number")?;
                    }
                    values.push(number.unwrap_or(f32::NAN));
                }
                (Values::Numbers(values), _) => {
                    values.push(cell.number(decimal).ok_or_else(|| unfit("a finite number"))?);
                }
                (Values::Dates(values), Plan::Date(order, allowed)) => {
                    let date = if is_missing { None } else { Date::parse(&cell.text(), order) };
                    if date.is_none() {
                        absent(allowed, "a date")?;
                    }
                    values.push(date);
                }
                (Values::Categories(values, _), Plan::Class) => {
                    if is_missing {
                        return Err(unfit("the name of a class"));
                    }
                    let name = class_name(cell, decimal);
                    values.push(match &known {
                        None => column.names.index(&name),
                        Some(known) => *known.get(name.as_str()).ok_or_else(|| {
                            let classes = classes.unwrap_or_default();
                            unfit(&format!("one of the classes {}", shortened(classes, 8)))
                        })?,
                    });
                }
                (Values::Categories(values, _), _) => {
                    column.missing += usize::from(is_missing);
                    let text = cell.text();
                    values.push(column.names.index(if is_missing { "" } else { &text }));
                }
                (Values::Texts(values), _) => values.push(cell.text().into_owned()),
                (Values::Dates(_) | Values::None, _) => {}
            }
        }
        Ok(())
    })?;
    let finished = |(column, step): (Reading, &Step)| {
        let values = match (column.values, step.plan) {
            (Values::Categories(values, _), Plan::Class) => match classes {
                Some(classes) => Values::Categories(values, classes.to_vec()),
                None => sorted(&values, column.names.listed()),
            },
            (Values::Categories(values, _), _) => Values::Categories(values, column.names.listed()),
            (values, _) => values,
        };
        (values, column.missing, column.others)
    };
    let columns = columns.into_iter().zip(steps).map(finished).collect();
    Ok(Read { rows, columns, without_target })
}

/// Indices of sorted names: by their values if all are numbers.
fn sorted(values: &[u32], names: Vec<String>) -> Values {
    let numbers: Option<Vec<f64>> = names.iter().map(|name| name.parse().ok()).collect();
    let mut order: Vec<usize> = (0..names.len()).collect();
    match numbers {
        Some(numbers) => order.sort_by(|a, b| numbers[*a].total_cmp(&numbers[*b])),
        None => order.sort_by(|a, b| names[*a].cmp(&names[*b])),
    }
    let mut places = vec![0; names.len()];
    (0..).zip(&order).for_each(|(sorted, index)| places[*index] = sorted);
    let names = order.iter().map(|index| names[*index].clone()).collect();
    Values::Categories(values.iter().map(|value| places[*value as usize]).collect(), names)
}

/// The first names, separated by commas, with two dots for others.
pub(crate) fn shortened(names: &[String], most: usize) -> String {
    let shown: Vec<&str> = names.iter().take(most).map(String::as_str).collect();
    format!("{}{}", shown.join(", "), if names.len() > most { ", .." } else { "" })
}
