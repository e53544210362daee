//! Every kernel compiles for five of AMD's architectures in every dtype it runs on, and keeps what it computes with in
//! registers: `amd::gfx90a::softmax.c`.
//!
//! HIPRTC compiles for those that ROCm 5 knows, through the driver's own calls, and clang with ROCm's headers and device
//! libraries for later ones. As this takes minutes and is about the kernels alone, it runs where `ISOGRAD_REQUIRE` names
//! `amd`, as `cargo xtask amd` has it. `ISOGRAD_QUICK=1` compiles a sample: for one architecture of each
//! compiler, in fewer dtypes, for fewer sizes. `ISOGRAD_REPORT=FILE` writes the table that is in `docs/hip-registers.md`.

use crate::is_required;
use isograd_core::DType;
use isograd_gpu::catalogue::{Entry, GENERATED, entries, sample};
use isograd_hip::{DIALECT, Hiprtc};
use libtest_mimic::{Failed, Trial};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::{env, fs};
use tempfile::TempDir;

/// An architecture.
struct Target {
    name: &'static str,
    is_by_hiprtc: bool,
    has_mma: bool,
    /// The dtypes of a sample, and whether pointwise rows are in it.
    sample: (&'static [DType], bool),
}

const TARGETS: [Target; 5] = [
    Target { name: "gfx90a", is_by_hiprtc: true, has_mma: true, sample: (&[DType::F32, DType::I64], true) },
    Target { name: "gfx942", is_by_hiprtc: false, has_mma: true, sample: (&[], false) },
    Target { name: "gfx1030", is_by_hiprtc: true, has_mma: false, sample: (&[], false) },
    Target { name: "gfx1100", is_by_hiprtc: false, has_mma: true, sample: (&[DType::BF16], false) },
    Target { name: "gfx1201", is_by_hiprtc: false, has_mma: true, sample: (&[], false) },
];

const DTYPES: [DType; 8] =
    [DType::F32, DType::BF16, DType::F16, DType::F64, DType::I64, DType::I32, DType::U8, DType::Bool];

/// How many sources of a kernel and dtype a sample has.
const SAMPLED: usize = 3;

/// Kernels that have too few registers for a moment: of how many vector and scalar registers at most, and why.
const SPILLS: &[(&str, [usize; 2], &str)] = &[
    ("softmax_rows", [40, 0], LONG),
    ("softmax_rows_backward", [43, 0], LONG),
    ("edge_softmax_backward", [49, 0], WORDS),
    ("norm", [137, 16], LONG),
    ("norm_backward", [80, 5], LONG),
    ("group_norm_backward", [1, 0], LONG),
    ("cross_entropy_rows_backward", [12, 2], LONG),
    ("lists", [70, 16], LISTS),
    ("buckets", [30, 44], LISTS),
    ("cross_entropy_rows", [0, 20], SCALARS),
    ("focal_loss", [0, 8], SCALARS),
    ("focal_loss_backward", [0, 16], SCALARS),
    ("focal_loss_probability", [0, 8], SCALARS),
    ("focal_loss_probability_backward", [0, 26], SCALARS),
    ("pow_backward", [0, 2], SCALARS),
    ("reduce_columns", [0, 2], SCALARS),
    ("row_loss", [0, 12], SCALARS),
    ("row_loss_backward", [0, 12], SCALARS),
    ("gelu", [0, 2], SCALARS),
    ("gelu_backward", [0, 4], SCALARS),
    ("erf", [0, 2], SCALARS),
    ("sample_logits", [0, 60], SCALARS),
    ("gemm", [430, 155], GEOMETRY),
    ("gemm_outer", [0, 24], SCALARS),
    ("sparse_reduce", [0, 6], SCALARS),
    ("attention", [0, 34], SCALARS),
    ("attention_queries", [0, 74], SCALARS),
    ("attention_keys", [0, 99], SCALARS),
    ("attention_parts", [0, 2], SCALARS),
    ("attention_mma", [0, 16], SCALARS),
    ("attention_queries_mma", [0, 40], SCALARS),
    ("attention_keys_mma", [10, 29], DRAWS),
    ("recurrent_forward", [0, 61], SCALARS),
    ("recurrent_backward", [0, 62], SCALARS),
];
const LONG: &str = "a thread of 1024 has 128 registers, and 64 from ROCm 5 on RDNA, one of 512 has twice as many; it keeps what it can of rows of 50,257 and more";
const WORDS: &str =
    "a thread keeps eight words of 16 bytes of both operands, and computes with four of their rows at once";
const GEOMETRY: &str = "a convolution: its geometry is 30 numbers, put aside in lanes of vector registers; ROCm 5 on RDNA also puts aside the places of all elements that a thread reads, most in f64 (430)";
const DRAWS: &str =
    "on RDNA, draws and a mask beside two sums of rows of 128 elements; elsewhere only what SCALARS says";
const LISTS: &str = "ROCm 5 gives a thread of 1024 on RDNA 64 registers; elsewhere only what SCALARS says";
const SCALARS: &str = "to lanes of a vector register and not to memory: addresses of several rows at once, the state of a search, or the constants of functions";

/// What a kernel takes of a multiprocessor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    /// Vector registers of a thread, with those that only matrix units use.
    vectors: usize,
    accumulators: usize,
    /// Bytes of local memory of a group.
    local: usize,
    /// Bytes of memory of a thread.
    memory: usize,
    /// Vector registers that are put aside to memory, and scalar ones that are put aside to vector registers.
    spills: [usize; 2],
}

/// By kernel and dtype: for each architecture.
type Report = BTreeMap<(String, String), [Option<Usage>; TARGETS.len()]>;

static REPORT: Mutex<Report> = Mutex::new(Report::new());

/// What compiles, and what reads the result.
struct Compilers {
    hiprtc: &'static Hiprtc,
    clang: String,
    readelf: String,
    /// ROCm's device libraries, with what they lack for later architectures.
    libraries: TempDir,
}

/// A source of a kernel for operands of some size, and what it is called among others.
#[derive(Clone)]
struct Unit {
    name: String,
    kernel: String,
    /// What the report calls it, if it is in the report.
    row: Option<(String, String)>,
    /// The name of its entry in the source.
    entry: String,
    source: String,
}

pub fn trials() -> Vec<Trial> {
    if !is_required("amd") {
        return vec![Trial::test("amd::compilers", || Ok(())).with_ignored_flag(true)];
    }
    match Compilers::find() {
        Ok(compilers) => of(Arc::new(compilers)),
        Err(error) => vec![Trial::test("amd::compilers", move || Err(error.into()))],
    }
}

/// Writes the table to the file that `ISOGRAD_REPORT` names.
pub fn report() {
    if let Some(path) = env::var_os("ISOGRAD_REPORT") {
        fs::write(&path, table()).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
    }
}

/// A trial for each architecture and file, or dtype of generated kernels: one call of a compiler costs more than a kernel.
fn of(compilers: Arc<Compilers>) -> Vec<Trial> {
    let is_quick = env::var("ISOGRAD_QUICK").is_ok_and(|quick| quick == "1");
    let mut groups: BTreeMap<String, Vec<(DType, Unit)>> = BTreeMap::new();
    for entry in entries(&DIALECT).expect("the kernels' files are in the program") {
        let most = if is_quick { SAMPLED } else { usize::MAX };
        let units: Vec<(DType, Vec<Unit>)> = DTYPES.map(|dtype| (dtype, units(&entry, dtype, most))).into();
        assert!(units.iter().any(|(_, units)| !units.is_empty()), "{} has no source", entry.name);
        for (dtype, units) in units {
            let group = if entry.kernel.is_some() { format!("{GENERATED}::{dtype}") } else { entry.file.to_string() };
            groups.entry(group).or_default().extend(units.into_iter().map(|unit| (dtype, unit)));
        }
    }
    let mut trials = Vec::new();
    for (group, units) in groups {
        for (place, target) in TARGETS.iter().enumerate() {
            let (sample, has_rows) = target.sample;
            let is_left_out = is_quick && group.starts_with(GENERATED) && !has_rows;
            let is_tried = |dtype: &DType| !is_quick || sample.contains(dtype);
            let units = units.iter().filter(|(dtype, _)| is_tried(dtype)).map(|(_, unit)| unit.clone());
            let (compilers, units) = (compilers.clone(), units.collect::<Vec<_>>());
            if (group.ends_with("matrix/mma.c") && !target.has_mma) || is_left_out || units.is_empty() {
                continue;
            }
            let check = move || check(&compilers, &units, place);
            trials.push(Trial::test(format!("amd::{}::{group}", target.name), check));
        }
    }
    trials
}

fn units(entry: &Entry, dtype: DType, most: usize) -> Vec<Unit> {
    let file = if entry.kernel.is_some() { GENERATED } else { entry.file };
    let unit = |(i, source)| Unit {
        name: format!("{}_{dtype}_{i}", entry.name),
        kernel: entry.name.clone(),
        row: (i == 0).then(|| (format!("{file} {}", entry.name), dtype.to_string())),
        entry: if entry.kernel.is_some() { GENERATED.into() } else { entry.name.clone() },
        source,
    };
    sample(entry.sources(&DIALECT, dtype), most).into_iter().enumerate().map(unit).collect()
}

impl Unit {
    /// What the entry is called in the program.
    fn symbol(&self) -> String {
        format!("{}__{}", self.entry, self.name)
    }

    /// The source as one of many in a program: its names are in a namespace, its entries have the unit's name behind
    /// theirs, and its definitions end with it.
    fn text(&self) -> String {
        let after = |line: &str, what: &str| {
            let rest = line.strip_prefix(what)?;
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            Some(rest[..end].to_string())
        };
        let lines = || self.source.lines().map(str::trim_start);
        let kernels: BTreeSet<String> = lines().filter_map(|line| after(line, "KERNEL(")).collect();
        let mut defined: BTreeSet<String> = lines().filter_map(|line| after(line, "#define ")).collect();
        let mut text = String::new();
        for kernel in kernels {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "#define isograd_{kernel} {kernel}__{}", self.name);
            defined.insert(format!("isograd_{kernel}"));
        }
        let _ = writeln!(text, "namespace {} {{\n{}\n}}", self.name, self.source);
        for name in defined {
            let _ = writeln!(text, "#undef {name}");
        }
        text
    }
}

/// Compiles units as one program and sees what they take.
fn check(compilers: &Compilers, units: &[Unit], place: usize) -> Result<(), Failed> {
    let target = &TARGETS[place];
    let all: String = units.iter().map(Unit::text).collect();
    let usages = compilers.usages(target, &all).map_err(|log| blame(compilers, target, units).unwrap_or(log))?;
    let mut failures = String::new();
    for unit in units {
        let usage =
            *usages.get(&unit.symbol()).ok_or_else(|| format!("{}: the program does not have it", unit.name))?;
        let allowed = SPILLS.iter().find(|(name, ..)| *name == unit.kernel).map_or([0; 2], |(_, most, _)| *most);
        if usage.spills[0] > allowed[0] || usage.spills[1] > allowed[1] {
            let spills = usage.spills;
            let _ = writeln!(failures, "{}: it spills {spills:?} registers, SPILLS explains {allowed:?}", unit.name);
        }
        if let Some(row) = &unit.row {
            REPORT.lock().map_err(|_| "another test has panicked")?.entry(row.clone()).or_default()[place] =
                Some(usage);
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.into()) }
}

/// The first unit that does not compile alone, with the compiler's log.
fn blame(compilers: &Compilers, target: &Target, units: &[Unit]) -> Option<String> {
    units.iter().find_map(|unit| {
        let log = compilers.usages(target, &unit.text()).err()?;
        Some(format!("{}: {log}", unit.name))
    })
}

/// The first of programs, with one of these ends of its name, that starts.
fn find(program: &str) -> Result<String, String> {
    let versions = ["-19", "-20", "-21", "-22", ""];
    let mut names = versions.iter().map(|version| format!("{program}{version}"));
    let works = |name: &String| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
    names.find(works).ok_or_else(|| format!("there is no {program}, 19 or later"))
}

/// The standard output; if it fails, what was written to standard error.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

impl Compilers {
    fn find() -> Result<Compilers, String> {
        let (clang, readelf) = (find("clang++")?, find("llvm-readelf")?);
        let hiprtc = Hiprtc::open().map_err(|error| error.to_string())?;
        let libraries = tempfile::tempdir().map_err(|error| error.to_string())?;
        let places = ["/usr/lib/x86_64-linux-gnu/amdgcn/bitcode", "/opt/rocm/amdgcn/bitcode"];
        let place = places.iter().map(Path::new).find(|place| place.join("ocml.bc").exists());
        let place = place.ok_or_else(|| format!("ROCm's device libraries are not in {}", places.join(" or ")))?;
        for file in fs::read_dir(place).map_err(|error| error.to_string())?.flatten() {
            copy(&file.path(), libraries.path())?;
        }
        let compilers = Compilers { hiprtc, clang, readelf, libraries };
        TARGETS.iter().filter(|target| !target.is_by_hiprtc).try_for_each(|target| compilers.add(target.name))?;
        Ok(compilers)
    }

    /// Adds what tells the device libraries which architecture they are for, unless it is there: a constant, the decimal
    /// digits of gfx942 with two for the second.
    fn add(&self, architecture: &str) -> Result<(), String> {
        let digits = architecture.trim_start_matches("gfx");
        let file = self.libraries.path().join(format!("oclc_isa_version_{digits}.bc"));
        if file.exists() {
            return Ok(());
        }
        let (major, rest) = digits.split_at(digits.len() - 2);
        let (minor, step) = rest.split_at(1);
        let text = format!(
            "target triple = \"amdgcn-amd-amdhsa\"\n@__oclc_ISA_version = linkonce_odr protected local_unnamed_addr \
             addrspace(4) constant i32 {major}{minor}0{step}, align 4\n"
        );
        let source = file.with_extension("ll");
        fs::write(&source, text).map_err(|error| error.to_string())?;
        let options = ["-target", "amdgcn-amd-amdhsa", "-nogpulib", "-emit-llvm", "-c", "-o"];
        output(Command::new(&self.clang).args(options).arg(file).arg(source)).map(drop)
    }

    /// Compiles a program: what each entry takes, or the compiler's log.
    fn usages(&self, target: &Target, source: &str) -> Result<BTreeMap<String, Usage>, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let object = folder.path().join("kernels.co");
        match target.is_by_hiprtc {
            true => {
                let code = self.hiprtc.compile(source, target.name).map_err(|error| error.message().to_string())?;
                fs::write(&object, code).map_err(|error| error.to_string())?;
            }
            false => self.clang(target, source, &object, &folder)?,
        }
        Ok(read(&output(Command::new(&self.readelf).arg("--notes").arg(object))?))
    }

    fn clang(&self, target: &Target, source: &str, object: &Path, folder: &TempDir) -> Result<(), String> {
        let file = folder.path().join("kernels.hip");
        fs::write(&file, source).map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.clang);
        command.args(["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-O3", "-std=c++17", "-w"]);
        command.arg(format!("--offload-arch={}", target.name));
        command.arg(format!("--rocm-device-lib-path={}", self.libraries.path().display()));
        // As the driver asks HIPRTC.
        if source.lines().any(|line| line == "CONTRACT_OFF") {
            command.arg("-ffp-contract=off");
        }
        output(command.args(["-include", "hip/hip_runtime.h", "-o"]).arg(object).arg(file)).map(drop)
    }
}

fn copy(file: &Path, folder: &Path) -> Result<(), String> {
    let to: PathBuf = folder.join(file.file_name().unwrap_or_default());
    fs::copy(file, to).map(drop).map_err(|error| format!("{}: {error}", file.display()))
}

/// What a code object's notes say of its entries, by name: lists begin with a dash, values of a kernel are four columns in.
fn read(notes: &str) -> BTreeMap<String, Usage> {
    let mut all = BTreeMap::new();
    let (mut name, mut usage) = (String::new(), Usage::default());
    for line in notes.lines().chain(["  - .end: 0"]) {
        if line.starts_with("  - .") && !name.is_empty() {
            all.insert(std::mem::take(&mut name), std::mem::take(&mut usage));
        }
        let own = line.strip_prefix("  - .").or_else(|| line.strip_prefix("    ."));
        let Some((key, value)) = own.and_then(|own| own.split_once(':')) else { continue };
        let (value, number) = (value.trim(), value.trim().parse().unwrap_or(0));
        match key {
            "name" => name = value.to_string(),
            "vgpr_count" => usage.vectors = number,
            "agpr_count" => usage.accumulators = number,
            "group_segment_fixed_size" => usage.local = number,
            "private_segment_fixed_size" => usage.memory = number,
            "vgpr_spill_count" => usage.spills[0] = number,
            "sgpr_spill_count" => usage.spills[1] = number,
            _ => {}
        }
    }
    all
}

fn table() -> String {
    let mut text = String::from("# Registers and local memory of the HIP kernels\n\n");
    text += "Each kernel is compiled for large contiguous operands. A cell has the vector registers of a thread (`144 (64)`: 144, of which 64 are for matrix\n";
    text += "units only), the bytes of local memory of a group, and, if there are any, the bytes of a thread's own memory and the numbers of spilled\n";
    text += "vector (`v`) and scalar (`s`) registers. The list `SPILLS` of `crates/hip/tests/amd.rs` has the reasons, also for operands of other sizes.\n";
    text += "HIPRTC of ROCm 5.2 compiled for gfx90a and gfx1030, clang 19 for the others.\n\n";
    let names = TARGETS.map(|target| target.name);
    let _ =
        writeln!(text, "| kernel | dtype | {} |\n| --- | --- |{}", names.join(" | "), " ---: |".repeat(names.len()));
    let Ok(report) = REPORT.lock() else { return text };
    for ((kernel, dtype), usages) in report.iter() {
        let cell = |usage: &Option<Usage>| {
            let Some(usage) = usage else { return "-".to_string() };
            let some = |n: usize, before: &str, after: &str| match n {
                0 => String::new(),
                n => format!("{before}{n}{after}"),
            };
            let own = some(usage.accumulators, " (", ")");
            let memory = some(usage.memory, ", ", "");
            let [vectors, scalars] = [some(usage.spills[0], ", ", "v"), some(usage.spills[1], ", ", "s")];
            format!("{}{own}, {}{memory}{vectors}{scalars}", usage.vectors, usage.local)
        };
        let cells: Vec<String> = usages.iter().map(cell).collect();
        let _ = writeln!(text, "| {kernel} | {dtype} | {} |", cells.join(" | "));
    }
    text
}
