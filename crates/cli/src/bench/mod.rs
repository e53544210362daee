//! `isograd bench`.

mod measure;
mod report;
mod rows;
mod training;

use crate::{check_writable, progress_bar};
use anyhow::{Context, Result, bail};
use clap::Args;
use isograd::parity::bench::Cost;
use isograd::{DType, Determinism, Device, DeviceInfo, Kind, Precision, Tensor, replace_file};
use measure::{Limits, Row, Stand};
use regex::Regex;
use report::{Columns, Outcome, Record, Table};
use rows::{Clock, Op};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Memory of an accelerator that does not tell.
const LEAST_MEMORY: usize = 4 << 30;

/// The options of `isograd bench`.
#[derive(Args, Debug)]
pub struct Bench {
    /// The device, as `isograd devices` lists it [default: the best there is]
    #[arg(long)]
    device: Option<String>,
    /// Only the rows that this regular expression finds in "group name [shape] dtype pass"
    #[arg(long, value_name = "RE")]
    filter: Option<Regex>,
    /// Write one line of JSON a row to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Small shapes and few runs: whether every row works, not how fast
    #[arg(long)]
    quick: bool,
    /// Kernels may add in an order that changes from run to run, and libraries measure theirs once for each shape
    #[arg(long)]
    any_order: bool,
}

/// What the device does at most: bytes and operations a second.
struct Ceilings {
    copy: f64,
    /// The matrix rates of the dtypes that were asked for; `None` for a dtype that the device does not multiply.
    matrix: Vec<(DType, Option<f64>)>,
}

impl Ceilings {
    fn matrix(&self, dtype: DType) -> Option<f64> {
        self.matrix.iter().find(|(d, _)| *d == dtype)?.1
    }

    /// Seconds below which a call cannot be.
    fn floor(&self, cost: Cost, dtype: DType) -> f64 {
        let product = self.matrix(dtype).map_or(0.0, |rate| cost.flops / rate);
        product.max(cost.bytes as f64 / self.copy)
    }
}

/// Measures the ceilings, then every row that the filter finds.
pub fn run(options: Bench) -> Result<ExitCode> {
    let device: Device = match &options.device {
        Some(name) => name.parse()?,
        None => Device::best()?,
    };
    let rows = chosen(options.filter.as_ref())?;
    options.json.as_deref().map(check_writable).transpose()?;
    let info = info(&device)?;
    if options.any_order {
        device.set_determinism(Determinism::AnyOrder);
    }
    let stand = Stand::new(&device, limits(&info, options.quick))?;
    let rows = stand.distinct(rows);
    let table = Table::new(&info, columns(&rows, &stand)?)?;
    let mut session = Session { table, stand, records: Vec::new(), json: options.json };
    let ceilings = session.ceilings(&rows)?;
    let bar = progress_bar(rows.len())?;
    for row in &rows {
        bar.set_message(row.label());
        let record = session.record(row, Some(&ceilings));
        bar.suspend(|| session.keep(record))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    session.finish()
}

/// The rows whose label the filter finds.
fn chosen(filter: Option<&Regex>) -> Result<Vec<Row>> {
    let rows: Vec<Row> = rows::all().iter().flat_map(Row::of).collect();
    let found = |row: &Row| filter.is_none_or(|re| re.is_match(&format!("{} {}", row.op.group, row.label())));
    let chosen: Vec<Row> = rows.iter().filter(|row| found(row)).cloned().collect();
    if let (true, Some(first)) = (chosen.is_empty(), rows.first()) {
        bail!("--filter finds none of {} rows; one of them is \"{} {}\"", rows.len(), first.op.group, first.label());
    }
    Ok(chosen)
}

/// The columns that these rows have on this device.
fn columns(rows: &[Row], stand: &Stand) -> Result<Columns> {
    let fits: Vec<(Cost, usize)> = rows
        .iter()
        .map(|row| {
            let (case, divisor) = row.fit(&stand.device, &stand.limits);
            (row.cost(&case), divisor)
        })
        .collect();
    let (divisor, tflops) = (fits.iter().any(|fit| fit.1 > 1), fits.iter().any(|fit| fit.0.flops > 0.0));
    let [x, y] = [(); 2].map(|()| Tensor::zeros(1, DType::F32, &stand.device));
    let (x, y) = (x?, y?);
    let mut step = stand.device.capture(|()| x.add_(&y));
    (0..3).try_for_each(|_| step.run(()))?;
    Ok(Columns { divisor, tflops, captured: step.is_recorded() })
}

fn info(device: &Device) -> Result<DeviceInfo> {
    let all = Device::list().into_iter().filter_map(|(_, found)| found.ok()).flatten();
    all.into_iter().find(|info| info.name == device.name()).with_context(|| format!("{device} is not listed any more"))
}

/// What fits: on an accelerator, calls whose temporaries its memory holds; elsewhere what takes milliseconds.
fn limits(info: &DeviceInfo, quick: bool) -> Limits {
    let memory = info.memory.unwrap_or(LEAST_MEMORY);
    let milliseconds = Duration::from_millis;
    match (info.is_accelerator, quick) {
        (true, false) => Limits {
            bytes: memory / 16,
            flops: f64::INFINITY,
            flush: (memory / 16).min(512 << 20),
            time: milliseconds(1000),
        },
        (true, true) => Limits { bytes: 64 << 20, flops: 1e10, flush: 64 << 20, time: milliseconds(50) },
        (false, false) => Limits { bytes: 64 << 20, flops: 1e9, flush: 32 << 20, time: milliseconds(300) },
        (false, true) => Limits { bytes: 1 << 20, flops: 1e7, flush: 4 << 20, time: milliseconds(20) },
    }
}

/// A run of the command.
struct Session {
    stand: Stand,
    table: Table,
    records: Vec<Record>,
    json: Option<PathBuf>,
}

impl Session {
    /// Measures the copy bandwidth, and the matrix rates of the dtypes in which `rows` are products of matrices.
    fn ceilings(&mut self, rows: &[Row]) -> Result<Ceilings> {
        let [copy, product] = Op::ceilings();
        let copy = self.ceiling(copy, DType::F32)?;
        let copy = copy.and_then(|record| record.gbps).context("the device cannot copy")? * 1e9;
        let mut matrix: Vec<(DType, Option<f64>)> = Vec::new();
        for row in rows.iter().filter(|row| matches!(row.op.group, "matrix" | "mesh")) {
            if matrix.iter().all(|(dtype, _)| *dtype != row.dtype) {
                let record = self.ceiling(product.clone(), row.dtype)?;
                matrix.push((row.dtype, record.and_then(|record| record.tflops).map(|rate| rate * 1e12)));
            }
        }
        Ok(Ceilings { copy, matrix })
    }

    fn ceiling(&mut self, op: Op, dtype: DType) -> Result<Option<&Record>> {
        let row = Row { op, dtype, pass: measure::Pass::Forward };
        let record = self.record(&row, None);
        self.keep(record)?;
        Ok(self.records.last())
    }

    /// Measures a row.
    fn record(&self, row: &Row, ceilings: Option<&Ceilings>) -> Record {
        let (case, divisor) = row.fit(&self.stand.device, &self.stand.limits);
        let cost = row.cost(&case);
        let mut record = Record::new(self.table.info(), row, &case.dims, cost, divisor);
        if row.op.clock == Clock::Steps && cost.flops > self.stand.limits.flops {
            record.outcome = Outcome::Skipped("a step takes too long here".into());
            return record;
        }
        self.stand.device.set_matmul_precision(row.op.bench.precision);
        let measured = row.measure(case, &self.stand).and_then(|seconds| {
            let median = record.set_times(seconds, row.op.clock);
            row.measure_in_a_row(&self.stand, median)
        });
        self.stand.device.set_matmul_precision(Precision::Exact);
        match measured {
            Ok(times) => {
                record.set_in_a_row(times);
                if let (Some(ceilings), Clock::Device) = (ceilings, row.op.clock) {
                    record.set_floor(ceilings.floor(cost, row.dtype));
                }
            }
            Err(error) => record.outcome = outcome(&error),
        }
        record
    }

    /// Prints a record and adds it to the file, so that a run that is stopped leaves what it has measured.
    fn keep(&mut self, record: Record) -> Result<()> {
        self.table.row(&record)?;
        self.records.push(record);
        let Some(path) = &self.json else { return Ok(()) };
        let lines: Vec<String> = self.records.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        Ok(replace_file(path, &[lines.join("\n").as_bytes(), b"\n"])?)
    }

    fn finish(self) -> Result<ExitCode> {
        self.table.summary(&self.records)?;
        let failed = self.records.iter().filter(|record| matches!(record.outcome, Outcome::Failed(_))).count();
        if failed > 0 {
            bail!("{failed} of {} rows failed", self.records.len());
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What a device lacks is skipped; anything else is a failure.
fn outcome(error: &anyhow::Error) -> Outcome {
    let kind = error.downcast_ref::<isograd::Error>().map(|error| error.kind());
    match kind {
        Some(Kind::Unsupported | Kind::OutOfMemory) => Outcome::Skipped(error.to_string()),
        _ => Outcome::Failed(error.to_string()),
    }
}
