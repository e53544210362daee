//! The description of a table in words.

use super::date::DateOrder;
use super::number::Decimal;
use super::table::{Table, TableColumn, Values, shortened};
use super::types::ColumnType;
use std::fmt;

/// Names of categories that are shown.
const SHOWN: usize = 4;

/// The rows, how the text is written, and a line for each column: its type, its missing cells and what it has.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} rows", self.name, self.rows)?;
        match self.dialect.delimiter {
            b',' => {}
            b';' => write!(f, ", semicolons between cells")?,
            b'\t' => write!(f, ", tabs between cells")?,
            other => write!(f, ", {:?} between cells", char::from(other))?,
        }
        if self.dialect.decimal == Decimal::Comma {
            write!(f, ", decimal commas")?;
        }
        if !self.is_named {
            write!(f, ", no header")?;
        }
        if self.without_target > 0 {
            write!(f, "; {} more have no target and are left out", self.without_target)?;
        }
        let mut lines = vec![["column", "type", "missing", "content"].map(String::from)];
        for (i, column) in self.columns.iter().enumerate() {
            lines.push(self.line(column, self.targets.contains(&i)));
        }
        let width = |cell: usize| lines.iter().map(|line| line[cell].chars().count()).max().unwrap_or(0);
        let [first, second, third] = [0, 1, 2].map(width);
        for [name, kind, missing, content] in &lines {
            let line = format!("  {name:first$}  {kind:second$}  {missing:>third$}  {content}");
            write!(f, "\n{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl Table {
    fn line(&self, column: &TableColumn, is_target: bool) -> [String; 4] {
        let missing = match column.missing {
            0 => String::new(),
            some => format!("{:.1} %", 100.0 * some as f64 / self.rows.max(1) as f64),
        };
        let mut content = if column.is_used { content(&column.values) } else { "ignored".to_string() };
        if column.others > 0 {
            let expected = column.column_type.name();
            content += &format!("; {} cells are no {expected} and count as missing", column.others);
        }
        if let (Some(DateOrder::MonthFirst), ColumnType::Date) = (column.date_order, column.column_type) {
            content += ", the month first";
        }
        let kind = match is_target {
            true if self.are_classes => "target: class",
            true => "target: number",
            false => column.column_type.name(),
        };
        let name: String = column.name.chars().take(40).collect();
        [name, kind.to_string(), missing, content]
    }
}

/// The content of a column in words: a range, or names.
fn content(values: &Values) -> String {
    match values {
        Values::Numbers(values) => {
            let present = || values.iter().copied().filter(|v| !v.is_nan());
            let (low, high) = (present().fold(f32::INFINITY, f32::min), present().fold(f32::NEG_INFINITY, f32::max));
            if low > high { "nothing".into() } else { format!("{low} to {high}") }
        }
        Values::Dates(values) => {
            let (low, high) = (values.iter().flatten().min(), values.iter().flatten().max());
            low.zip(high).map_or_else(|| "nothing".into(), |(low, high)| format!("{low} to {high}"))
        }
        Values::Categories(values, names) => {
            let mut counts = vec![0usize; names.len()];
            values.iter().for_each(|value| counts[*value as usize] += 1);
            let mut order: Vec<usize> = (0..names.len()).filter(|i| !names[*i].is_empty()).collect();
            order.sort_by_key(|i| std::cmp::Reverse(counts[*i]));
            let shown: Vec<String> =
                order.iter().take(SHOWN + 1).map(|i| names[*i].chars().take(20).collect()).collect();
            format!("{}: {}", order.len(), shortened(&shown, SHOWN))
        }
        Values::Texts(_) | Values::None => String::new(),
    }
}
