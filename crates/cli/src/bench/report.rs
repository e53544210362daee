//! What a measurement says: a line of the table, a line of JSON, and the summary.

use super::measure::{Pass, Row};
use super::rows::Clock;
use crate::print;
use anyhow::Result;
use isograd::DeviceInfo;
use isograd::parity::bench::Cost;
use serde::Serialize;

/// How a row ended.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was measured.
    #[default]
    Measured,
    /// The device lacks what it needs.
    Skipped(String),
    /// It should have run.
    Failed(String),
}

/// One row of the results. What was not measured is `null`.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    pub device: String,
    pub hardware: String,
    pub driver: String,
    pub group: String,
    pub name: String,
    pub shape: Vec<usize>,
    /// By what the first extents were divided for this device.
    pub divisor: usize,
    pub dtype: String,
    pub pass: Pass,
    /// The median.
    pub milliseconds: Option<f64>,
    pub milliseconds_min: Option<f64>,
    /// The time of a short call, one of many in a row, with its launch; and of one in a recording.
    pub milliseconds_in_a_row: Option<f64>,
    pub milliseconds_captured: Option<f64>,
    pub bytes: usize,
    pub flops: f64,
    pub gbps: Option<f64>,
    pub tflops: Option<f64>,
    /// The least time that the ceilings allow, over the median.
    pub fraction: Option<f64>,
    pub runs: usize,
    pub outcome: Outcome,
}

impl Record {
    pub fn new(info: &DeviceInfo, row: &Row, dims: &[usize], cost: Cost, divisor: usize) -> Record {
        Record {
            device: info.name.clone(),
            hardware: info.description.clone(),
            driver: info.driver.clone(),
            group: row.op.group.into(),
            name: row.op.name.clone(),
            shape: dims.to_vec(),
            divisor,
            dtype: row.dtype.to_string(),
            pass: row.pass,
            milliseconds: None,
            milliseconds_min: None,
            milliseconds_in_a_row: None,
            milliseconds_captured: None,
            bytes: cost.bytes,
            flops: cost.flops,
            gbps: None,
            tflops: None,
            fraction: None,
            runs: 0,
            outcome: Outcome::Measured,
        }
    }

    /// Takes the times of all runs, and returns their median. A host's time for a launch says nothing about rates.
    pub fn set_times(&mut self, mut seconds: Vec<f64>, clock: Clock) -> f64 {
        seconds.sort_by(f64::total_cmp);
        let median = seconds[seconds.len() / 2];
        self.runs = seconds.len();
        self.milliseconds = Some(median * 1e3);
        self.milliseconds_min = Some(seconds[0] * 1e3);
        if clock != Clock::Launch && median > 0.0 {
            self.gbps = Some(self.bytes as f64 / median * 1e-9);
            self.tflops = (self.flops > 0.0).then(|| self.flops / median * 1e-12);
        }
        median
    }

    /// Takes the seconds of a call in a row and in a recording.
    pub fn set_in_a_row(&mut self, (in_a_row, captured): (Option<f64>, Option<f64>)) {
        self.milliseconds_in_a_row = in_a_row.map(|seconds| seconds * 1e3);
        self.milliseconds_captured = captured.map(|seconds| seconds * 1e3);
    }

    /// Takes the least time in seconds that the ceilings allow.
    pub fn set_floor(&mut self, seconds: f64) {
        self.fraction = self.milliseconds.filter(|&ms| ms > 0.0).map(|ms| seconds * 1e3 / ms);
    }

    fn what(&self) -> String {
        format!("{} {:?} {} {}", self.name, self.shape, self.dtype, self.pass)
    }
}

/// The columns that not every run has.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Shapes are divided for this device.
    pub divisor: bool,
    /// The device records calls.
    pub captured: bool,
    /// Some rows count operations.
    pub tflops: bool,
}

/// The table on stdout.
pub struct Table {
    info: DeviceInfo,
    columns: Columns,
}

impl Table {
    /// Prints what the columns are.
    pub fn new(info: &DeviceInfo, columns: Columns) -> Result<Table> {
        let table = Table { info: info.clone(), columns };
        print(&format!("{}: {}", info.name, info.description))?;
        print("Medians with cold caches; `of ceiling` is the least time that the ceilings allow, over the median.")?;
        if columns.divisor {
            print("`/` is by what the first extents were divided for this device.")?;
        }
        print("`in a row` is the time of one of many short calls, with its launch.")?;
        if columns.captured {
            print("`captured` is that of one of a recording, with cold caches.")?;
        }
        print("")?;
        let names = ["ms", "min", "in a row", "captured", "GB/s", "TFLOP/s", "of ceiling", "runs"].map(String::from);
        print(&format!("{}{}", table.head("name", "shape", "/", "", ""), table.cells(names)))?;
        Ok(table)
    }

    /// The device of this table.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The columns before the numbers.
    fn head(&self, name: &str, shape: &str, divisor: &str, dtype: &str, pass: &str) -> String {
        let divisor = if self.columns.divisor { format!(" {divisor:>4}") } else { String::new() };
        format!("{name:<31} {shape:<22}{divisor} {dtype:<4} {pass:<3}")
    }

    /// The columns of numbers.
    fn cells(&self, [ms, min, in_a_row, captured, gbps, tflops, fraction, runs]: [String; 8]) -> String {
        let only = |is_shown: bool, cell: String| if is_shown { format!(" {cell:>8}") } else { String::new() };
        let (captured, tflops) = (only(self.columns.captured, captured), only(self.columns.tflops, tflops));
        format!(" {ms:>10} {min:>10} {in_a_row:>8}{captured} {gbps:>8}{tflops} {fraction:>10} {runs:>4}")
    }

    /// Prints one line.
    pub fn row(&self, record: &Record) -> Result<()> {
        let Record { name, shape, divisor, dtype, pass, runs, .. } = record;
        let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
        let divisor = if *divisor > 1 { divisor.to_string() } else { String::new() };
        let head = self.head(name, &shape.join("x"), &divisor, dtype, &pass.to_string());
        let number = |v: Option<f64>, digits: usize| v.map_or("-".to_string(), |v| format!("{v:.digits$}"));
        match &record.outcome {
            Outcome::Measured => {
                let cells = self.cells([
                    number(record.milliseconds, 4),
                    number(record.milliseconds_min, 4),
                    number(record.milliseconds_in_a_row, 4),
                    number(record.milliseconds_captured, 4),
                    number(record.gbps, 1),
                    number(record.tflops, 3),
                    number(record.fraction, 3),
                    runs.to_string(),
                ]);
                print(&format!("{head}{cells}"))
            }
            Outcome::Skipped(why) => print(&format!("{head} skipped: {why}")),
            Outcome::Failed(why) => print(&format!("{head} FAILED: {why}")),
        }
    }

    /// Prints for each group how near its rows come to the ceilings, and which is the farthest.
    pub fn summary(&self, records: &[Record]) -> Result<()> {
        let mut groups: Vec<&str> = records.iter().map(|record| record.group.as_str()).collect();
        groups.dedup();
        print(&format!("\n{:<15} {:>4} {:>6} {:>6}  fractions of the ceilings", "group", "rows", "median", "worst"))?;
        for group in groups {
            let of = |record: &&Record| record.group == group && record.fraction.is_some();
            let mut measured: Vec<&Record> = records.iter().filter(of).collect();
            measured.sort_by(|a, b| a.fraction.unwrap_or(0.0).total_cmp(&b.fraction.unwrap_or(0.0)));
            let Some(worst) = measured.first() else { continue };
            let fraction = |record: &Record| record.fraction.unwrap_or(0.0);
            let (count, median) = (measured.len(), fraction(measured[measured.len() / 2]));
            print(&format!("{group:<15} {count:>4} {median:>6.3} {:>6.3}  {}", fraction(worst), worst.what()))?;
        }
        Ok(())
    }
}
