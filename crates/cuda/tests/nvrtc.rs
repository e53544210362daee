//! Every kernel compiles for three generations of GPUs in every dtype it runs on, and keeps what it computes with in
//! registers: `nvrtc::sm_90a::softmax_rows`.
//!
//! As this takes minutes and is about the kernels alone, it runs where `ISOGRAD_REQUIRE` names `nvrtc`, as `cargo xtask nvrtc` has it.
//! `ISOGRAD_QUICK=1` compiles a sample: every kernel for the first architecture in fewer dtypes, and those of 16 bits for the second,
//! without pointwise rows, and for fewer sizes. `ISOGRAD_REPORT=FILE` writes the table of
//! registers and local memory that is in `docs/cuda-registers.md`.

use crate::is_required;
use isograd_core::DType;
use isograd_cuda::{DIALECT, Nvrtc};
use isograd_gpu::catalogue::{self, Entry, GENERATED, entries};
use libtest_mimic::{Failed, Trial};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;

/// Ampere, Hopper with what it has alone, and Blackwell.
const ARCHITECTURES: [&str; 3] = ["sm_80", HOPPER, "sm_100"];
const HOPPER: &str = "sm_90a";
/// The files of kernels for Hopper alone.
const FOR_HOPPER: [&str; 3] = ["matrix/wgmma.c", "matrix/wgmma_words.c", "attention/attention_wgmma.c"];

const DTYPES: [DType; 8] =
    [DType::F32, DType::BF16, DType::F16, DType::F64, DType::I64, DType::I32, DType::U8, DType::Bool];

/// The dtypes of a sample, for each architecture. On the first, kernels that run in none of them are compiled in all of theirs.
const SAMPLE: [&[DType]; 3] = [&[DType::F32, DType::I64], &[DType::BF16], &[]];

/// How many sources of a kernel and dtype a sample has.
const SAMPLED: usize = 3;

/// Kernels that have too few registers for a moment: for how many bytes at most, and why.
const SPILLS: &[(&str, usize, &str)] = &[
    ("softmax_rows", 116, LONG),
    ("softmax_rows_backward", 72, LONG),
    ("norm", 52, LONG),
    ("norm_backward", 344, LONG),
    ("ctc_scan", 32, SUMS),
    ("cross_entropy_rows", 112, WIDE),
    ("cross_entropy_rows_backward", 152, WIDE),
    ("elu_backward", 8, CALLS),
    ("celu_backward", 8, CALLS),
    ("selu_backward", 8, CALLS),
    ("erf_backward", 8, CALLS),
    ("kl_div_log", 8, CALLS),
    ("kl_div_log_backward", 8, CALLS),
    ("any", 16, WORD),
    ("gemm", 32, PLACES),
    ("gemm_mma", 4, PLACES),
    ("gemm_wgmma_words", 4, TOGETHER),
    ("attention", 12, DRAWS),
    ("attention_queries", 12, DRAWS),
    ("attention_mma", 108, DRAWS),
    ("attention_gradients_wgmma", 44, QUERIES),
    ("attention_parts", 16, FEW),
    ("attention_queries_mma", 40, SEQUENCES),
    ("attention_keys", 60, GRADIENTS),
    ("attention_keys_mma", 104, GRADIENTS),
    ("gemv", 24, FEW),
    ("reduce_rows", 8, FEW),
    ("row_loss_backward", 20, FEW),
    ("lists", 132, KEPT),
    ("buckets", 456, KEPT),
    ("last", 204, KEPT),
    ("softmax_columns_backward", 8, FEW),
    ("group_norm_backward", 4, FEW),
    ("total_parts", 4, FEW),
    ("sparse_reduce", 48, FLIGHT),
    ("sparse_backward", 40, FLIGHT),
    ("edge_softmax", 8, FEW),
    ("row_loss", 16, FEW),
    ("log_softmax_backward", 4, FEW),
    ("batch_norm", 16, FEW),
    ("batch_norm_join", 40, RARE),
    ("gemm_sum", 8, FEW),
    ("sums", 12, FEW),
    ("max_pool", 4, FEW),
    ("move", 8, FEW),
    ("merge", 8, FEW),
    ("maximum", 28, BYTES),
    ("minimum", 28, BYTES),
];
const LONG: &str =
    "a thread of 1024 has 64 registers, and keeps what it can of rows of 50,257 and more; shorter rows spill nothing";
const WIDE: &str = "a thread of 1024 has 64 registers, and f64 takes two for each number; other dtypes spill nothing";
const SUMS: &str = "compute 9.0: a thread of 1024 has 64 registers for three calls of exp and one of log";
const KEPT: &str =
    "a thread of 1024 has 64 registers, and keeps 32 bytes of rows with their indices, or 64 indices in 32 registers";
const CALLS: &str = "f64: exp and division are functions that are called, with what is live put aside";
const PLACES: &str = "compute 8.0: a convolution has the places of its elements beside the sums of a tile";
const TOGETHER: &str =
    "of several meshes: two groups share a multiprocessor, and a thread has the places of eight words";
const DRAWS: &str = "dropout: the rounds of Philox beside a tile of scores and its results";
const SEQUENCES: &str = "the first row and the end of a packed sequence beside two tiles of scores";
const GRADIENTS: &str = "sums of two gradients beside two tiles of scores; more with dropout";
const QUERIES: &str = "sums of two gradients and a part of a third beside two tiles of scores: addresses are put aside";
const FLIGHT: &str = "four entries in flight, with their weights and attributes, beside the sums of a word";
const WORD: &str = "f32 on compute 10.0: a word of 16 bytes on its way to memory";
const FEW: &str = "up to six words, on one or two of the architectures";
const RARE: &str = "around the sums of numbers whose squares leave the range, which are rare";
const BYTES: &str = "u8 on compute 10.0: the sixteen elements of a word are taken apart";

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

pub fn trials() -> Vec<Trial> {
    if !is_required("nvrtc") {
        return vec![Trial::test("nvrtc::library", || Ok(())).with_ignored_flag(true)];
    }
    match Nvrtc::open() {
        Ok(nvrtc) => of(nvrtc),
        Err(error) => vec![Trial::test("nvrtc::library", move || Err(Failed::from(error.to_string())))],
    }
}

/// Writes the table to the file that `ISOGRAD_REPORT` names.
pub fn report() {
    if let Some(path) = std::env::var_os("ISOGRAD_REPORT") {
        std::fs::write(&path, table()).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
    }
}

fn of(nvrtc: &'static Nvrtc) -> Vec<Trial> {
    let all = entries(&DIALECT).expect("the kernels' files are in the program");
    let mut trials = Vec::new();
    let is_quick = std::env::var("ISOGRAD_QUICK").is_ok_and(|quick| quick == "1");
    for (place, architecture) in ARCHITECTURES.into_iter().enumerate() {
        let sample = if is_quick { SAMPLE[place] } else { &DTYPES };
        let most = if is_quick { SAMPLED } else { usize::MAX };
        let is_sampled = |entry: &Entry| sample.iter().any(|&dtype| !entry.sources(&DIALECT, dtype).is_empty());
        let runs = |entry: &&Entry| match entry.kernel {
            Some(_) => place == 0 || !is_quick,
            None if architecture != HOPPER && FOR_HOPPER.contains(&entry.file) => false,
            // The first architecture has every kernel.
            None => place == 0 || is_sampled(entry),
        };
        trials.extend(all.iter().filter(runs).cloned().map(|entry| {
            let name = format!("nvrtc::{architecture}::{}", entry.name);
            Trial::test(name, move || compile(nvrtc, &entry, place, (sample, most)))
        }));
    }
    trials
}

/// Compiles a kernel in the dtypes of the sample, or in all if it runs on none of those; one that runs on none is a failure.
fn compile(nvrtc: &Nvrtc, entry: &Entry, place: usize, (sample, most): (&[DType], usize)) -> Result<(), Failed> {
    let mut compiled = 0;
    let mut excess = Vec::new();
    let is_sampled = sample.iter().any(|&dtype| !entry.sources(&DIALECT, dtype).is_empty());
    for &dtype in if is_sampled { sample } else { &DTYPES } {
        for (i, source) in catalogue::sample(entry.sources(&DIALECT, dtype), most).iter().enumerate() {
            let log = nvrtc.compile(source, ARCHITECTURES[place]).map_err(|error| format!("{dtype}: {error}"))?.log;
            let usage = usage(&log, &entry.name, entry.kernel.is_some());
            let usage = usage.ok_or_else(|| format!("{dtype}: the compiler does not say what it uses: {log}"))?;
            let allowed = SPILLS.iter().find(|(name, ..)| *name == entry.name).map_or(0, |(_, bytes, _)| *bytes);
            if usage.spills > allowed {
                excess.push(format!("{dtype}: it spills {} bytes, SPILLS explains {allowed}", usage.spills));
            }
            compiled += 1;
            if i > 0 {
                continue;
            }
            let file = if entry.kernel.is_some() { GENERATED } else { entry.file };
            let mut report = REPORT.lock().map_err(|_| "another test has panicked")?;
            report.entry((format!("{file} {}", entry.name), dtype.to_string())).or_default()[place] = Some(usage);
        }
    }
    match compiled {
        0 => Err("it has no source".into()),
        _ if excess.is_empty() => Ok(()),
        _ => Err(excess.join("\n").into()),
    }
}

/// What the assembler's log says of a kernel.
fn usage(log: &str, name: &str, is_generated: bool) -> Option<Usage> {
    let entry = format!("'isograd_{}'", if is_generated { GENERATED } else { name });
    let (_, own) = log.split_once(&format!("entry function {entry}"))?;
    let own = own.split_once("entry function").map_or(own, |(own, _)| own);
    let before = |what: &str| {
        let words: Vec<&str> = own.split([' ', ',', '\n']).filter(|word| !word.is_empty()).collect();
        let parts: Vec<&str> = what.split(' ').collect();
        let at = words.windows(parts.len()).position(|window| window == parts)?;
        words.get(at.checked_sub(1)?)?.parse().ok()
    };
    let (stack, spills) = (before("bytes stack frame")?, before("bytes spill stores")?);
    Some(Usage { registers: before("registers")?, shared: before("bytes smem").unwrap_or(0), stack, spills })
}

fn table() -> String {
    let mut text = String::from("# Registers and local memory of the CUDA kernels\n\n");
    text += "Each kernel is compiled for large contiguous operands. A cell has the registers of a thread, the bytes of local memory of a group, and,\n";
    text += "if there are any, the bytes of a thread's own memory: arrays with a variable index, the stack of functions such as sin, and spilled\n";
    text += "registers, whose bytes follow with an `s`. The list `SPILLS` of `crates/cuda/tests/nvrtc.rs` has the reasons, also for operands of other\n";
    text += "sizes.\n\n";
    text += &format!("| kernel | dtype | {} |\n| --- | --- |{}\n", ARCHITECTURES.join(" | "), " ---: |".repeat(3));
    let Ok(report) = REPORT.lock() else { return text };
    for ((kernel, dtype), usages) in report.iter() {
        let cell = |usage: &Option<Usage>| match usage {
            None => "-".to_string(),
            Some(Usage { registers, shared, stack: 0, .. }) => format!("{registers}, {shared}"),
            Some(Usage { registers, shared, stack, spills: 0 }) => format!("{registers}, {shared}, {stack}"),
            Some(Usage { registers, shared, stack, spills }) => format!("{registers}, {shared}, {stack}, {spills}s"),
        };
        let cells: Vec<String> = usages.iter().map(cell).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {kernel} | {dtype} | {} |", cells.join(" | "));
    }
    text
}
