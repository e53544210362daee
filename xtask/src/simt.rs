//! `cargo xtask simt`: kernels and host code on the processor, checked. tools/simt/README.md says what is found.

use crate::programs::{self, Program};
use crate::test::Extent;
use crate::{Failure, tools};
use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

type Environment = &'static [(&'static str, &'static str)];

/// A device that the emulator stands in for.
struct Target {
    name: &'static str,
    /// As tests are named.
    device: &'static str,
    /// Folders of kernels.
    folders: &'static [&'static str],
    environment: Environment,
}

impl Target {
    /// What gets the name of every kernel that was launched.
    fn log(&self, folder: &Path) -> PathBuf {
        folder.join(format!("launched on {}", self.name))
    }
}

static CUDA: Target =
    Target { name: "CUDA, waves of 32", device: "cuda", folders: &["kernels", "kernels-cuda"], environment: &[] };
static HIP_64: Target = Target {
    name: "HIP, waves of 64",
    device: "hip",
    folders: &["kernels", "kernels-hip"],
    environment: &[("SIMT_ARCH", "gfx90a")],
};
static HIP_32: Target = Target {
    name: "HIP, waves of 32",
    device: "hip",
    folders: &["kernels", "kernels-hip"],
    environment: &[("SIMT_ARCH", "gfx1100")],
};

/// Its matrix units have layouts of their own.
static HIP_RDNA4: Target = Target {
    name: "HIP, waves of 32, gfx12",
    device: "hip",
    folders: &["kernels", "kernels-hip"],
    environment: &[("SIMT_ARCH", "gfx1201")],
};

type Targets = &'static [&'static Target];
const ALL: Targets = &[&CUDA, &HIP_64, &HIP_32];
const ON_CUDA: Targets = &[&CUDA];
const ON_HIP: Targets = &[&HIP_64, &HIP_32];
const ON_ALL_HIP: Targets = &[&HIP_64, &HIP_32, &HIP_RDNA4];
const ON_HIP_64: Targets = &[&HIP_64];
const ON_HIP_32: Targets = &[&HIP_32];

/// One start of a test program.
struct Run {
    program: &'static str,
    /// A module of the program; empty for all of them.
    module: &'static str,
    what: &'static str,
    /// For which it is started, and for which with `--quick`, too.
    on: Targets,
    quick: Targets,
    /// Tests whose names begin so, with the device for `@`.
    filter: &'static str,
    /// Tests whose names have one of these are left out.
    skipped: &'static [&'static str],
    /// With `--quick`, these too: they take long, and another dtype or another device has the same code.
    slow: &'static [&'static str],
    environment: Environment,
}

impl Run {
    /// The filter of the module's tests whose names begin so.
    fn within(&self, begin: &str) -> String {
        if self.module.is_empty() { begin.to_string() } else { format!("[{}] {begin}", self.module) }
    }
}

const CHECKED: Environment = &[("SIMT_CHECK", "1")];
/// Two devices.
const SEVERAL: Environment = &[("SIMT_CHECK", "1"), ("SIMT_DEVICES", "2")];
/// Without Hopper's matrix units, and with as much local memory as a group of NVIDIA's OpenCL has.
const LITTLE: Environment = &[("SIMT_CHECK", "1"), ("SIMT_ARCH", "sm_80"), ("SIMT_SHARED", "49152")];
/// Every tensor is an allocation of its own, whose bounds are checked exactly.
const UNPOOLED: Environment = &[("SIMT_CHECK", "1"), ("ISOGRAD_POOL", "0")];

const fn run_of(
    program: &'static str,
    module: &'static str,
    what: &'static str,
    quick: Targets,
    environment: Environment,
) -> Run {
    Run { program, module, what, on: ALL, quick, filter: "@::", skipped: &[], slow: &[], environment }
}

/// The longest first, so that the last one does not run alone.
const RUNS: &[Run] = &[
    Run {
        skipped: &["f16", "strided"],
        ..run_of("generated", "dtypes", "checked, exact bounds, f32", ON_HIP_64, UNPOOLED)
    },
    Run { skipped: &["f32"], ..run_of("generated", "dtypes", "checked, exact bounds, others", &[], UNPOOLED) },
    // Products of windows in tiles take long where every access is checked.
    Run {
        skipped: &["::conv2d::", "::mesh_conv::"],
        ..run_of("generated", "sizes", "checked, exact bounds", ON_HIP_32, UNPOOLED)
    },
    Run { on: ON_CUDA, filter: "@::conv2d::", ..run_of("generated", "sizes", "fast, tiles of words", ON_CUDA, &[]) },
    run_of("generated", "golden", "checked", ON_CUDA, CHECKED),
    run_of("generated", "gradients", "checked", &[], CHECKED),
    run_of("generated", "golden", "fast, threads descending", &[], &[("SIMT_ORDER", "1")]),
    run_of("generated", "golden", "fast, threads shuffled", &[], &[("SIMT_ORDER", "7")]),
    run_of("devices", "everywhere", "checked", ALL, CHECKED),
    // The others have sizes that take an emulator too long.
    Run {
        skipped: &["::index::", "::matmul::", "::reduce::", "::rows::"],
        ..run_of("devices", "kernels", "checked, the shorter ones", &[], CHECKED)
    },
    run_of("devices", "programs", "checked", ON_CUDA, CHECKED),
    Run {
        on: ON_HIP_64,
        filter: "@::programs::captured_and_plain::00",
        ..run_of("devices", "programs", "checked, exact bounds", &[], UNPOOLED)
    },
    run_of("devices", "passes", "checked", ON_HIP_32, CHECKED),
    run_of("devices", "printing", "checked", ON_CUDA, CHECKED),
    run_of("devices", "scaling", "checked", ON_CUDA, CHECKED),
    run_of("devices", "recurrent", "checked", ON_HIP_32, CHECKED),
    Run {
        on: ON_CUDA,
        filter: "@::lstm::gradients_of_an_odd_width",
        ..run_of("devices", "recurrent", "checked, on copies for matrix units", ON_CUDA, CHECKED)
    },
    run_of("devices", "attention", "checked", ON_CUDA, CHECKED),
    Run {
        on: ON_CUDA,
        filter: "@::scaled_dot_product_attention::tiles",
        ..run_of("devices", "attention", "checked, little local memory", ON_CUDA, LITTLE)
    },
    Run {
        on: ON_ALL_HIP,
        filter: "@::scaled_dot_product_attention::tiles::bf16",
        ..run_of("devices", "attention", "checked, each kind of matrix units", ON_ALL_HIP, CHECKED)
    },
    run_of("devices", "training", "checked", ON_CUDA, CHECKED),
    run_of("devices", "foreign", "checked", ON_HIP_32, CHECKED),
    run_of("devices", "in_place", "checked", ON_CUDA, CHECKED),
    run_of("devices", "channels_last", "checked", ON_CUDA, CHECKED),
    run_of("devices", "limits", "checked", ON_CUDA, CHECKED),
    run_of("devices", "cases", "checked", ON_CUDA, CHECKED),
    Run { slow: &["norm::squares_out_of_range"], ..run_of("devices", "extremes", "checked", ON_CUDA, CHECKED) },
    run_of("ranks", "gpus", "checked, two devices", ON_CUDA, SEVERAL),
    Run { filter: "training::hip", on: ON_HIP, ..run_of("command", "", "checked", ON_HIP, CHECKED) },
    Run { on: ON_HIP_64, ..run_of("hip", "failures", "checked", ON_HIP_64, CHECKED) },
    Run { on: ON_HIP_64, ..run_of("hip", "rocblas", "checked", ON_HIP_64, CHECKED) },
    Run { on: ON_CUDA, slow: &["::f16", "::f64"], ..run_of("cuda", "blaslt", "checked", ON_CUDA, CHECKED) },
    Run { on: ON_CUDA, ..run_of("cuda", "failures", "checked", ON_CUDA, CHECKED) },
];

/// Builds the emulator, tests it, and runs the suite on it. Without clang it says so; `ISOGRAD_REQUIRE=simt` makes that a
/// failure.
pub fn run(extent: Extent) -> Result<(), Failure> {
    let Some(folder) = build()? else { return Ok(()) };
    tools::run(&folder.join("test").to_string_lossy(), &[])?;
    ALL.iter().chain(ON_ALL_HIP).for_each(|target| drop(fs::remove_file(target.log(&folder))));
    let mut jobs = VecDeque::new();
    for run in RUNS {
        let targets = if extent == Extent::Everything { run.on } else { run.quick };
        let filter = |target: &Target| run.within(&run.filter.replace('@', target.device));
        jobs.extend(targets.iter().map(|target| Job { target, run, filter: filter(target), extent }));
    }
    start(&folder, jobs)?;
    match extent {
        Extent::Everything => ALL.iter().try_for_each(|target| all_launched(&folder, &[target])),
        Extent::Quick => all_launched(&folder, ALL),
    }
}

/// Runs the checked tests whose names begin like this, `softmax` or `softmax::f16`.
pub fn run_only(filters: &[&str]) -> Result<(), Failure> {
    let Some(folder) = build()? else { return Ok(()) };
    let mut jobs = Vec::new();
    for run in RUNS.iter().filter(|run| run.filter == "@::" && run.environment.contains(&CHECKED[0])) {
        for target in run.on {
            let filter = |name: &&str| run.within(&format!("{}::{name}", target.device));
            jobs.extend(filters.iter().map(|name| Job {
                target,
                run,
                filter: filter(name),
                extent: Extent::Everything,
            }));
        }
    }
    match start(&folder, jobs.into())? {
        0 => Err(format!("no test's name begins with {}", filters.join(" or "))),
        _ => Ok(()),
    }
}

/// The emulator's folder; none if there is no clang.
pub fn build() -> Result<Option<PathBuf>, Failure> {
    if !cfg!(target_os = "linux") || !tools::ensure_clang() {
        let missing = "the SIMT emulator needs Linux and clang, which could not be installed: it is not used";
        if tools::is_required("simt") {
            return Err(missing.to_string());
        }
        say!("xtask: {missing}");
        return Ok(None);
    }
    let folder = tools::root().join("target/simt");
    tools::run("sh", &["tools/simt/build.sh", &folder.to_string_lossy()])?;
    Ok(Some(folder))
}

/// The environment of programs that find the emulator of this folder in place of drivers.
pub fn environment(folder: &Path) -> [(&'static str, OsString); 7] {
    let own = || folder.as_os_str().to_owned();
    [
        ("ISOGRAD_CACHE", "".into()),
        ("SIMT_CACHE", folder.join("cache").into()),
        // Before the vendor's, if this machine has them; what multiplies matrices there needs the real driver.
        ("LD_LIBRARY_PATH", own()),
        ("ISOGRAD_CUDA_LIB", own()),
        ("ISOGRAD_HIP_LIB", own()),
        ("ISOGRAD_BLAS", "own".into()),
        ("ISOGRAD_KERNELS", tools::root().into()),
    ]
}

struct Job {
    target: &'static Target,
    run: &'static Run,
    filter: String,
    extent: Extent,
}

/// Runs jobs. Returns how many tests passed.
fn start(folder: &Path, jobs: VecDeque<Job>) -> Result<usize, Failure> {
    let tests = RUNS.iter().map(|run| run.program).collect::<BTreeSet<_>>();
    let tests: Vec<&str> = tests.into_iter().flat_map(|test| ["--test", test]).collect();
    let programs = programs::build(&[&["test", "--workspace", "--no-run"], &tests[..]].concat())?;
    programs::at_once(jobs, |job| job.start(folder, &programs))
}

impl Job {
    /// How many tests passed, if none failed.
    fn start(&self, folder: &Path, programs: &[Program]) -> Result<usize, Failure> {
        let Job { target, run, filter, extent } = self;
        let name = format!("{}: {} {filter} ({})", target.name, run.program, run.what);
        let program = programs.iter().find(|program| program.name() == run.program);
        let program = program.ok_or_else(|| format!("there is no test program {}", run.program))?;
        let mut command = Command::new(&program.path);
        // A report belongs to the test that waits for the device: one at a time.
        command.arg(filter).arg("--test-threads=1").current_dir(tools::root());
        let slow = if *extent == Extent::Quick { run.slow } else { &[] };
        command.args(run.skipped.iter().chain(slow).flat_map(|part| ["--skip", part]));
        command.env("ISOGRAD_REQUIRE", format!("{},simt,rocblas", target.device));
        command.envs(environment(folder)).env("SIMT_LOG", target.log(folder));
        command.env("ISOGRAD_QUICK", extent.quick());
        command.envs(run.environment.iter().chain(target.environment).copied());
        programs::test(&name, &mut command)
    }
}

/// Kernels that only one device is given; nothing emulates the copies of Hopper's engine.
const ALONE: &[(&str, &str)] = &[("any", "cuda"), ("gemm_mask", "cuda"), ("gemm_wgmma", "hopper"), ("pitch", "cuda")];

/// The files of a folder and of those in it.
fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { all.extend(files(&path)?) } else { all.push(path) }
    }
    Ok(all)
}

/// Every entry of a kernel file must have run on one of these: an emulator that runs nothing finds nothing.
fn all_launched(folder: &Path, targets: &[&Target]) -> Result<(), Failure> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let (mut launched, mut idle) = (BTreeSet::new(), BTreeSet::new());
    for target in targets {
        launched.extend(read(&target.log(folder))?.lines().map(str::to_string));
        for name in target.folders {
            let sources = tools::root().join(name);
            for file in files(&sources).map_err(|error| format!("{}: {error}", sources.display()))? {
                let text = read(&file)?;
                let entries = text.lines().filter_map(|line| Some(line.strip_prefix("KERNEL(")?.split_once(')')?.0));
                let is_given = |entry: &&str| ALONE.iter().all(|(name, on)| name != entry || *on == target.device);
                idle.extend(entries.filter(is_given).map(str::to_string));
            }
        }
    }
    idle.retain(|entry| !launched.contains(&format!("isograd_{entry}")));
    let idle: Vec<String> = idle.into_iter().collect();
    let names: Vec<&str> = targets.iter().map(|target| target.name).collect();
    if idle.is_empty() {
        Ok(())
    } else {
        Err(format!("{}: no test has launched {}", names.join(" or "), idle.join(", ")))
    }
}
