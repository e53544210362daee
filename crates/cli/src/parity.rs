//! `isograd parity`.

use crate::onnx::Compared;
use crate::{check_writable, progress_bar, report};
use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args};
use isograd::parity::{self, Apart, Extent, Folder, Options, Progress, Repeat, Report, cases, registry};
use isograd::{DType, Device, replace_file};
use regex::Regex;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often what was found until then is written, in case that the run does not end.
const KEPT: Duration = Duration::from_secs(10);

/// The subcommand of the processes that check a part.
pub const WORKER: &str = "parity-worker";

/// What `--cases` says.
#[derive(Clone, Debug)]
enum Cases {
    Drawn(u32),
    Recorded(Arc<Folder>),
}

/// A dtype of numbers that are checked.
fn parse_number(s: &str) -> Result<DType, String> {
    match s.parse::<DType>() {
        Ok(dtype) if dtype.is_float() || matches!(dtype, DType::I64 | DType::I32) => Ok(dtype),
        _ => Err(format!("{s:?} is none of f64, f32, f16, bf16, i64, i32")),
    }
}

/// A number, or a folder that has cases.
fn parse_cases(text: &str) -> Result<Cases, String> {
    match text.parse() {
        Ok(number) => Ok(Cases::Drawn(number)),
        Err(_) => Folder::read(Path::new(text)).map(|folder| Cases::Recorded(Arc::new(folder))),
    }
}

/// The options of `isograd parity`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("pages").multiple(true))]
pub struct Parity {
    /// A device, as `isograd devices` lists it; may be given several times [default: all of them]
    #[arg(long)]
    device: Vec<String>,
    /// Only the ops whose names this regular expression finds
    #[arg(long, value_name = "RE")]
    filter: Option<Regex>,
    /// Only this dtype: f64, f32, f16, bf16, i64 or i32
    #[arg(long, value_parser = parse_number)]
    dtype: Option<DType>,
    /// How many cases of every check are drawn [default: 24, and fewer with --quick]; or a folder with cases.json and
    /// safetensors files, whose cases run instead
    #[arg(long, value_name = "N|DIR", value_parser = parse_cases)]
    cases: Option<Cases>,
    #[command(flatten)]
    onnx: Compared,
    /// What cases are drawn from
    #[arg(long, value_name = "S", default_value_t = 7)]
    seed: u64,
    /// Fewer dtypes and cases: minutes, where kernels are slow to compile
    #[arg(long)]
    quick: bool,
    /// No checks: only how near every op comes to the bandwidth of a copy
    #[arg(long, conflicts_with_all = ["cases", "quick", "status"])]
    speeds: bool,
    /// No speeds: only the checks
    #[arg(long, conflicts_with_all = ["quick", "speeds"])]
    checks: bool,
    /// Print a line for each op, device and dtype [default: the groups of ops, and what failed]
    #[arg(long)]
    all: bool,
    /// Only this case, as the report gives it
    #[arg(long, value_name = "CASE", conflicts_with_all = ["filter", "dtype", "cases", "quick", "speeds", "checks", "pages"])]
    repeat: Option<Repeat>,
    /// Run nothing: print every op with the inputs, attributes, defaults and dtypes that a case may give it
    #[arg(long, conflicts_with_all = ["device", "dtype", "cases", "quick", "speeds", "checks", "repeat", "json", "pages"])]
    list: bool,
    /// Write what the cases of a folder compute to this folder, as <device>/<case>.safetensors
    #[arg(long, value_name = "DIR", requires = "cases")]
    dump: Option<PathBuf>,
    /// Write all results to this file, and every 10 seconds what there is
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the status of every kernel on every backend to this file, as a page of Markdown
    #[arg(long, value_name = "FILE", group = "pages")]
    status: Option<PathBuf>,
    /// Write a page for browsers to this file: a map of kernels by backend, a table, and the worst case of each
    #[arg(long, value_name = "FILE", group = "pages")]
    html: Option<PathBuf>,
    /// Run nothing: take the results of an earlier run from this file; may be given several times
    #[arg(long, value_name = "JSON", requires = "pages",
        conflicts_with_all = ["device", "filter", "dtype", "cases", "quick", "speeds", "checks", "repeat", "json"])]
    from: Vec<PathBuf>,
}

/// Runs the checks, or takes what was found, and reports. The exit code is 1 if anything is outside of its bound.
pub fn run(options: Parity) -> Result<ExitCode> {
    if options.list {
        return list(options.filter.as_ref());
    }
    if options.dump.is_some() && !matches!(options.cases, Some(Cases::Recorded(_))) {
        bail!("--dump is of the cases of a folder, which --cases names");
    }
    if let (Some(Cases::Recorded(_)), Some(_)) = (&options.cases, &options.status) {
        bail!("--status is a page of the checks of this program, of which a folder of cases has none");
    }
    [&options.json, &options.status, &options.html].into_iter().flatten().try_for_each(|path| check_writable(path))?;
    let reports = match options.from.is_empty() {
        true => vec![check(&options)?],
        false => options.from.iter().map(|path| read(path)).collect::<Result<_>>()?,
    };
    if let Some(path) = &options.status {
        replace_file(path, &[parity::status(&reports).as_bytes()])?;
    }
    if let Some(path) = &options.html {
        replace_file(path, &[parity::html(&reports).as_bytes()])?;
    }
    if let Some(path) = &options.json {
        write(path, &reports[0])?;
    }
    let has_passed = reports.iter().all(Report::passed);
    match options.from.is_empty() {
        true => report(&if options.all { reports[0].text() } else { reports[0].summary() }, has_passed),
        false => Ok(if has_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
    }
}

/// Prints the ops and modules whose names `filter` finds.
fn list(filter: Option<&Regex>) -> Result<ExitCode> {
    let chosen = registry::OPS.iter().chain(registry::MODULES.iter());
    let chosen = chosen.filter(|op| filter.is_none_or(|re| re.is_match(op.name)));
    let texts = chosen.map(|op| Ok(parity::signature(op)?.text())).collect::<Result<Vec<_>>>()?;
    if texts.is_empty() {
        bail!("--filter finds none of the ops");
    }
    report(&texts.join("\n"), true)
}

/// Does what another process of this program asks for.
pub fn serve() -> Result<ExitCode> {
    Device::expect_few_launches();
    parity::serve()?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Report> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no result of `isograd parity --json`", path.display()))
}

fn write(path: &Path, report: &Report) -> Result<()> {
    Ok(replace_file(path, &[&serde_json::to_vec(report)?, b"\n"])?)
}

fn check(options: &Parity) -> Result<Report> {
    Device::expect_few_launches();
    let environment = std::env::vars_os().collect();
    let names: Vec<String> = match options.device.is_empty() {
        true => Device::list().into_iter().filter_map(|(_, found)| found.ok()).flatten().map(|d| d.name).collect(),
        false => options.device.clone(),
    };
    let mut devices: Vec<Device> = Vec::new();
    for name in &names {
        let device: Device = name.parse()?;
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    let (drawn, folder) = match &options.cases {
        Some(Cases::Drawn(number)) => (Some(*number), None),
        Some(Cases::Recorded(folder)) => (None, Some(folder)),
        None => (None, None),
    };
    let file = options.onnx.file()?;
    if file.is_some() && (drawn.is_some() || folder.is_some() || options.filter.is_some() || options.repeat.is_some()) {
        bail!("--onnx is a case of its own, without --cases, --filter and --repeat");
    }
    if let Some(filter) = &options.filter
        && folder.is_none()
        && !registry::OPS.iter().any(|op| filter.is_match(op.name))
    {
        bail!("--filter finds none of {} ops; one of them is \"{}\"", registry::OPS.len(), registry::OPS[0].name);
    }
    let json = options.json.as_deref();
    // Compilers of OpenCL work for one thread of a process at a time, or do not bear more.
    let apart = devices.iter().map(|device| device.name().to_string()).filter(|name| name.starts_with("opencl"));
    let (program, arguments) = (std::env::current_exe()?, vec![WORKER.into()]);
    let longest = Apart::LONGEST;
    let apart = Apart { program, arguments, environment, devices: apart.collect(), longest };
    let onnx = &options.onnx;
    let options = Options {
        devices,
        filter: options.filter.clone(),
        dtype: options.dtype,
        cases: drawn,
        seed: options.seed,
        extent: match (options.quick, options.speeds, options.checks) {
            (true, ..) => Extent::Quick,
            (_, true, _) => Extent::Speeds,
            (.., true) => Extent::Checks,
            _ => Extent::Whole,
        },
        repeat: options.repeat.clone(),
        dump: options.dump.clone(),
        commit: option_env!("ISOGRAD_COMMIT").map(String::from),
        apart: Some(apart),
    };
    let bar = progress_bar(0)?;
    let mut kept: Option<Instant> = None;
    let mut progress = |progress: Progress<'_>| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(progress.what);
        if let Some(path) = json
            && kept.is_none_or(|when| when.elapsed() >= KEPT)
        {
            // If this fails, so does writing all of it in the end, which says why.
            let _ = write(path, progress.report);
            kept = Some(Instant::now());
        }
    };
    if let Some(file) = file {
        let report = onnx.check(file, &options, &mut progress);
        bar.finish_and_clear();
        return report;
    }
    let report = match folder {
        Some(folder) if !folder.cases.iter().any(|case| cases::is_chosen(case, &options)) => {
            bail!("{} has no case that --filter and --dtype choose", folder.path);
        }
        Some(folder) => parity::run_cases(folder, &options, &mut progress),
        None => parity::run(&options, &mut progress),
    };
    bar.finish_and_clear();
    Ok(report?)
}
