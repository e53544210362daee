//! Every kernel compiles for three generations of GPUs in every dtype it runs on, and keeps what it computes with in
//! registers: `nvrtc::sm_90::softmax_rows`.
//!
//! A machine without NVRTC ignores this; `ISOGRAD_REQUIRE=nvrtc` makes it a failure. `ISOGRAD_REPORT=FILE` writes the table of
//! registers and local memory that is in `docs/cuda-registers.md`.

use isograd_core::DType;
use isograd_cuda::{DIALECT, Nvrtc};
use isograd_gpu::table::{Entry, GENERATED, entries};
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;

/// Ampere, Hopper and Blackwell.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100"];

const DTYPES: [DType; 8] =
    [DType::F32, DType::BF16, DType::F16, DType::F64, DType::I64, DType::I32, DType::U8, DType::Bool];

/// Kernels that have too few registers, and why that must be.
const SPILLS: &[(&str, &str)] = &[];

/// What a kernel takes of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    registers: usize,
    /// Bytes of local memory of a group.
    shared: usize,
    /// Bytes of memory of a thread: what it indexes by a variable, and what functions as sin keep there.
    stack: usize,
    /// Bytes that it stores for lack of registers.
    spills: usize,
}

/// By kernel and dtype: for each architecture.
type Report = BTreeMap<(String, String), [Option<Usage>; ARCHITECTURES.len()]>;

static REPORT: Mutex<Report> = Mutex::new(Report::new());

fn main() {
    let arguments = Arguments::from_args();
    let trials = match Nvrtc::open() {
        Ok(nvrtc) => trials(nvrtc),
        Err(error) => {
            let required = std::env::var("ISOGRAD_REQUIRE").unwrap_or_default();
            let is_required = required.split(',').any(|name| name.trim() == "nvrtc");
            let missing = move || Err(Failed::from(error.to_string()));
            vec![Trial::test("nvrtc::library", missing).with_ignored_flag(!is_required)]
        }
    };
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(path) = std::env::var_os("ISOGRAD_REPORT") {
        std::fs::write(&path, table()).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
    }
    conclusion.exit();
}

fn trials(nvrtc: &'static Nvrtc) -> Vec<Trial> {
    let all = entries(&DIALECT).expect("the kernels' files are in the program");
    let mut trials = Vec::new();
    for (place, architecture) in ARCHITECTURES.into_iter().enumerate() {
        trials.extend(all.iter().cloned().map(|entry| {
            let name = format!("nvrtc::{architecture}::{}", entry.name);
            Trial::test(name, move || compile(nvrtc, &entry, place))
        }));
    }
    trials
}

/// Compiles a kernel in the dtypes that it runs on; one that runs on none is a failure.
fn compile(nvrtc: &Nvrtc, entry: &Entry, place: usize) -> Result<(), Failed> {
    let mut compiled = 0;
    for dtype in DTYPES {
        let Ok(source) = entry.source(&DIALECT, dtype) else { continue };
        let log = nvrtc.compile(&source, ARCHITECTURES[place]).map_err(|error| format!("{dtype}: {error}"))?.log;
        let usage = usage(&log).ok_or_else(|| format!("{dtype}: the compiler does not say what it uses: {log}"))?;
        if usage.spills > 0 && SPILLS.iter().all(|(name, _)| *name != entry.name) {
            return Err(format!("{dtype}: it spills {} bytes, which SPILLS does not explain", usage.spills).into());
        }
        let key = (if entry.kernel.is_some() { GENERATED } else { entry.file }, &entry.name);
        let mut report = REPORT.lock().map_err(|_| "another test has panicked")?;
        report.entry((format!("{} {}", key.0, key.1), dtype.to_string())).or_default()[place] = Some(usage);
        compiled += 1;
    }
    if compiled == 0 { Err("it has no source".into()) } else { Ok(()) }
}

/// What the assembler's log says of the only kernel.
fn usage(log: &str) -> Option<Usage> {
    let before = |what: &str| {
        let words: Vec<&str> = log.split([' ', ',', '\n']).filter(|word| !word.is_empty()).collect();
        let parts: Vec<&str> = what.split(' ').collect();
        let at = words.windows(parts.len()).position(|window| window == parts)?;
        words.get(at.checked_sub(1)?)?.parse().ok()
    };
    let stack = before("bytes stack frame")?;
    let spills = before("bytes spill stores")?;
    Some(Usage { registers: before("registers")?, shared: before("bytes smem").unwrap_or(0), stack, spills })
}

fn table() -> String {
    let mut text = String::from("# Registers and local memory of the CUDA kernels\n\n");
    text += "Of each kernel as it is compiled for large contiguous operands: registers of a thread, bytes of local memory of a group,\n";
    text += "and, if there are any, bytes of memory of a thread: what it indexes by a variable, and what functions as sin keep there.\n";
    text += "No kernel spills registers.\n\n";
    text += &format!("| kernel | dtype | {} |\n| --- | --- |{}\n", ARCHITECTURES.join(" | "), " ---: |".repeat(3));
    let Ok(report) = REPORT.lock() else { return text };
    for ((kernel, dtype), usages) in report.iter() {
        let cell = |usage: &Option<Usage>| match usage {
            None => "-".to_string(),
            Some(Usage { registers, shared, stack: 0, .. }) => format!("{registers}, {shared}"),
            Some(Usage { registers, shared, stack, .. }) => format!("{registers}, {shared}, {stack}"),
        };
        let cells: Vec<String> = usages.iter().map(cell).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {kernel} | {dtype} | {} |", cells.join(" | "));
    }
    text
}
