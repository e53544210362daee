//! `cargo xtask simt`: kernels and host code on the processor, checked. tools/simt/README.md says what is found.

use crate::test::Extent;
use crate::{Failure, tools};
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use std::{fs, thread};

type Environment = &'static [(&'static str, &'static str)];

/// A device that the emulator stands in for.
struct Target {
    name: &'static str,
    /// As tests are named.
    device: &'static str,
    environment: Environment,
}

const TARGETS: &[Target] = &[Target { name: "CUDA, waves of 32", device: "cuda", environment: &[] }];

/// One start of a test program.
struct Run {
    program: &'static str,
    what: &'static str,
    extent: Extent,
    /// Tests whose names have one of these are left out.
    skipped: &'static [&'static str],
    environment: Environment,
}

const CHECKED: Environment = &[("SIMT_CHECK", "1")];
/// Every tensor is an allocation of its own, whose bounds are checked exactly.
const UNPOOLED: Environment = &[("SIMT_CHECK", "1"), ("ISOGRAD_POOL", "0")];

const fn run_of(program: &'static str, what: &'static str, extent: Extent, environment: Environment) -> Run {
    Run { program, what, extent, skipped: &[], environment }
}

/// The longest first, so that the last one does not run alone.
const RUNS: &[Run] = &[
    Run { skipped: &["f16", "strided"], ..run_of("dtypes", "checked, exact bounds, f32", Extent::Quick, UNPOOLED) },
    Run { skipped: &["f32"], ..run_of("dtypes", "checked, exact bounds, others", Extent::Everything, UNPOOLED) },
    run_of("sizes", "checked, exact bounds", Extent::Quick, UNPOOLED),
    run_of("golden", "checked", Extent::Quick, CHECKED),
    run_of("gradients", "checked", Extent::Everything, CHECKED),
    run_of("golden", "fast, threads descending", Extent::Everything, &[("SIMT_ORDER", "1")]),
    run_of("golden", "fast, threads shuffled", Extent::Everything, &[("SIMT_ORDER", "7")]),
    run_of("devices", "checked", Extent::Quick, CHECKED),
];

/// Builds the emulator, tests it, and runs the suite on it. Without clang it says so; `ISOGRAD_REQUIRE=simt` makes that a
/// failure.
pub fn run(extent: Extent) -> Result<(), Failure> {
    let Some(folder) = build()? else { return Ok(()) };
    tools::run(&folder.join("test").to_string_lossy(), &[])?;
    let log = folder.join("launched");
    let _ = fs::remove_file(&log);
    let chosen = RUNS.iter().filter(|run| extent == Extent::Everything || run.extent == Extent::Quick);
    let jobs = TARGETS.iter().flat_map(|target| chosen.clone().map(move |run| (target, run)));
    start(&folder, jobs.map(|(target, run)| Job { target, run, filter: format!("{}::", target.device) }).collect())?;
    all_launched(&log)
}

/// Runs the checked tests whose names begin like this, `softmax` or `softmax::f16`.
pub fn run_only(filters: &[&str]) -> Result<(), Failure> {
    let Some(folder) = build()? else { return Ok(()) };
    let mut jobs = Vec::new();
    for target in TARGETS {
        for run in RUNS.iter().filter(|run| run.environment.contains(&CHECKED[0])) {
            let filter = |name: &&str| format!("{}::{name}", target.device);
            jobs.extend(filters.iter().map(|name| Job { target, run, filter: filter(name) }));
        }
    }
    match start(&folder, jobs.into())? {
        0 => Err(format!("no test's name begins with {}", filters.join(" or "))),
        _ => Ok(()),
    }
}

/// The emulator's folder; none if there is no clang.
fn build() -> Result<Option<PathBuf>, Failure> {
    if !cfg!(target_os = "linux") || !tools::ensure_clang() {
        let missing = "the SIMT emulator needs Linux and clang, which could not be installed: it is not used";
        if tools::is_required("simt") {
            return Err(missing.to_string());
        }
        println!("xtask: {missing}");
        return Ok(None);
    }
    let folder = tools::root().join("target/simt");
    tools::run("sh", &["tools/simt/build.sh", &folder.to_string_lossy()])?;
    Ok(Some(folder))
}

struct Job {
    target: &'static Target,
    run: &'static Run,
    filter: String,
}

/// Runs jobs, as many at once as there are processors: a program's kernels are compiled one after another. Returns how many
/// tests passed.
fn start(folder: &Path, jobs: VecDeque<Job>) -> Result<usize, Failure> {
    let tests = ["golden", "gradients", "dtypes", "sizes", "devices"].map(|test| ["--test", test]).concat();
    let programs = tools::programs(&[&["test", "--workspace", "--no-run"], &tests[..]].concat())?;
    let jobs = Mutex::new(jobs);
    let passed = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some(job) = jobs.lock().unwrap_or_else(|e| e.into_inner()).pop_front() else { return };
            match job.start(folder, &programs) {
                Ok(tests) => drop(passed.fetch_add(tests, Ordering::Relaxed)),
                Err(failure) => failures.lock().unwrap_or_else(|e| e.into_inner()).push(failure),
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let failures = failures.into_inner().unwrap_or_else(|e| e.into_inner());
    if failures.is_empty() { Ok(passed.into_inner()) } else { Err(failures.join("\n")) }
}

impl Job {
    /// How many tests passed, if none failed.
    fn start(&self, folder: &Path, programs: &[PathBuf]) -> Result<usize, Failure> {
        let Job { target, run, filter } = self;
        let name = format!("{}: {} {filter} ({})", target.name, run.program, run.what);
        let program = programs.iter().find(|path| tools::program_name(path) == run.program);
        let program = program.ok_or_else(|| format!("there is no test program {}", run.program))?;
        let mut command = Command::new(program);
        // A report belongs to the test that waits for the device: one at a time.
        command.arg(filter).arg("--test-threads=1").current_dir(tools::root());
        command.args(run.skipped.iter().flat_map(|part| ["--skip", part]));
        command.envs(run.environment.iter().chain(target.environment).copied());
        command.env("ISOGRAD_REQUIRE", target.device).env("ISOGRAD_CACHE", "").env("ISOGRAD_KERNELS", tools::root());
        command.env("SIMT_CACHE", folder.join("cache")).env("SIMT_LOG", folder.join("launched"));
        // Before the vendor's, if this machine has them; what multiplies matrices there needs the real driver.
        command.env("LD_LIBRARY_PATH", folder).env("ISOGRAD_CUDA_LIB", folder).env("ISOGRAD_BLAS", "own");
        let started = Instant::now();
        let output = command.output().map_err(|error| format!("{name}: could not be started: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let result = text.lines().rfind(|line| line.starts_with("test result")).unwrap_or("it ended early").to_string();
        println!("{:>7.1} s  {name}: {result}", started.elapsed().as_secs_f64());
        if output.status.success() {
            let words: Vec<&str> = result.split_whitespace().collect();
            let passed = words.windows(2).find(|pair| pair[1] == "passed;").and_then(|pair| pair[0].parse().ok());
            return passed.ok_or_else(|| format!("{name}: {result}"));
        }
        let failures = text.find("\nfailures:").map_or(&*text, |at| &text[at..]);
        Err(format!("{name} failed ({}):\n{failures}{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }
}

/// Every entry of a kernel file must have run: an emulator that runs nothing finds nothing.
fn all_launched(log: &Path) -> Result<(), Failure> {
    let launched = fs::read_to_string(log).map_err(|error| format!("{}: {error}", log.display()))?;
    let launched: BTreeSet<&str> = launched.lines().filter_map(|line| line.strip_prefix("isograd_")).collect();
    let mut files = Vec::new();
    for folder in ["kernels", "kernels-cuda"].map(|name| tools::root().join(name)) {
        files.extend(fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?.flatten());
    }
    let mut idle = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(file.path()).map_err(|error| format!("{}: {error}", file.path().display()))?;
        let entries = text.lines().filter_map(|line| line.strip_prefix("KERNEL(")?.split_once(')'));
        idle.extend(entries.filter(|(entry, _)| !launched.contains(entry)).map(|(entry, _)| entry.to_string()));
    }
    let idle: Vec<String> = idle.into_iter().collect();
    if idle.is_empty() { Ok(()) } else { Err(format!("no test has launched {}", idle.join(", "))) }
}
