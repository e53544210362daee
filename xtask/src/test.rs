//! `cargo xtask test`: everything that must hold before a change goes in.

use crate::programs::{self, Program};
use crate::{Failure, amd, deny, nvrtc, package, python, simt, tools};
use std::ffi::{OsStr, OsString};
use std::process::Command;
use std::time::{Duration, Instant};

/// How much is tested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// What a pull request must pass.
    Everything,
    /// What is worth waiting for while editing.
    Quick,
}

impl Extent {
    /// The value of `ISOGRAD_QUICK`.
    pub fn quick(self) -> &'static str {
        if self == Extent::Quick { "1" } else { "0" }
    }
}

/// Most of PoCL's time would go into optimising kernels that run once.
const OPENCL_OPTIONS: &str = "-cl-opt-disable";

struct Step {
    name: &'static str,
    extent: Extent,
    task: Task,
}

enum Task {
    /// Arguments of cargo.
    Cargo(&'static [&'static str]),
    /// Targets whose test programs run, several at a time.
    Tests(&'static [&'static str]),
    /// The tests within libraries and commands.
    Units,
    /// Arguments of the command `isograd`.
    Isograd(&'static [&'static str]),
    /// Another chore, and what starts it alone.
    Chore(fn() -> Result<(), Failure>, &'static [&'static str]),
}

/// Modules and test programs that take long. They start first, so that none runs alone at the end.
const LONGEST: &[&str] = &[
    "kernels",
    "command",
    "calls",
    "gradients",
    "attention",
    "golden",
    "processes",
    "sizes",
    "properties",
    "changed",
    "extremes",
    "autocast",
];

impl Task {
    /// The arguments of cargo that do the same.
    fn arguments(&self) -> String {
        let (begin, arguments): (&[&str], &[&str]) = match self {
            Task::Cargo(arguments) | Task::Chore(_, arguments) => (&[], arguments),
            Task::Tests(targets) => (&["test", "--workspace", "--no-fail-fast"], targets),
            Task::Units => (&["test", "--workspace", "--no-fail-fast"], &["--lib", "--bins"]),
            Task::Isograd(arguments) => (&["run", "--package", "isograd-cli", "--features", "parity", "--"], arguments),
        };
        [begin, arguments].concat().join(" ")
    }

    fn run(&self) -> Result<(), Failure> {
        match self {
            Task::Cargo(arguments) => tools::run_with("cargo", arguments, &borrowed(&environment())),
            Task::Tests(targets) => run_tests(programs::build(&[TESTS, targets].concat())?),
            Task::Units => {
                let without = programs::without_unit_tests()?;
                let excluded = without.iter().flat_map(|package| ["--exclude", package.as_str()]).collect::<Vec<_>>();
                run_tests(programs::build(&[TESTS, &["--lib", "--bins"], &excluded[..]].concat())?)
            }
            Task::Isograd(arguments) => {
                let programs = programs::build(&[TESTS, &["--test", "command"]].concat())?;
                let isograd = programs.iter().find(|program| program.name().trim_end_matches(".exe") == "isograd");
                let isograd = isograd.ok_or("the build made no `isograd`")?;
                tools::run_with(&isograd.path.to_string_lossy(), arguments, &borrowed(&environment()))
            }
            Task::Chore(chore, _) => chore(),
        }
    }
}

/// Builds test programs. Every build is of the whole workspace with its tests, in the dev profile, so that all share what they build:
/// fewer packages would mean other features of dependencies, and those built again.
const TESTS: &[&str] = &["test", "--workspace", "--no-run"];

/// What concerns the ops whose names begin so, on the CPU: their tests from the registry, and the quick suite.
pub fn check(op: &str) -> Result<(), Failure> {
    let started = Instant::now();
    let programs = programs::build(&["build", "--workspace", "--test", "generated", "--bin", "isograd"])?;
    let program = |name: &str| {
        let found = programs.iter().find(|program| program.name().trim_end_matches(".exe") == name);
        found.map(|program| &program.path).ok_or_else(|| format!("the build made no `{name}`"))
    };
    let (generated, isograd) = (program("generated")?, program("isograd")?);
    say!("{:>7.1} s  building", started.elapsed().as_secs_f64());
    if programs::test("generated", Command::new(generated).arg(format!("cpu::{op}")))? == 0 {
        return Err(format!("no op's name begins with {op}"));
    }
    let filter = format!("^{op}");
    tools::run(&isograd.to_string_lossy(), &["parity", "--quick", "--device", "cpu", "--filter", &filter])?;
    say!("{:>7.1} s  in all", started.elapsed().as_secs_f64());
    Ok(())
}

/// The environment of programs that test.
pub fn environment() -> [(&'static str, OsString); 3] {
    // These tests are the chores'.
    let required = tools::required().filter(|name| !["amd", "deny", "nvrtc"].contains(&name.as_str()));
    let required = required.collect::<Vec<_>>().join(",");
    let options = std::env::var_os("ISOGRAD_OPENCL_OPTIONS").unwrap_or(OPENCL_OPTIONS.into());
    [
        ("ISOGRAD_REQUIRE", required.into()),
        ("ISOGRAD_OPENCL_OPTIONS", options),
        ("ISOGRAD_QUICK", Extent::Quick.quick().into()),
    ]
}

fn borrowed<'a>(environment: &'a [(&'static str, OsString); 3]) -> [(&'static str, &'a OsStr); 3] {
    environment.each_ref().map(|(name, value)| (*name, &**value))
}

/// Runs test programs, several at a time, and those whose tests are divided into modules a module at a time: what a process compiles for
/// an OpenCL device it compiles on one core.
fn run_tests(mut programs: Vec<Program>) -> Result<(), Failure> {
    programs.retain(|program| program.is_test);
    let environment = environment();
    let command = |program: &Program| {
        let mut command = Command::new(&program.path);
        command.current_dir(&program.folder).envs(borrowed(&environment));
        command
    };
    let mut jobs = Vec::new();
    for program in &programs {
        let modules = program.modules(&mut command(program))?;
        let is_whole = modules.is_empty().then_some((program, None));
        jobs.extend(is_whole.into_iter().chain(modules.into_iter().map(|module| (program, Some(module)))));
    }
    jobs.sort_by_key(|(program, module)| {
        let name = module.clone().unwrap_or(program.name());
        LONGEST.iter().position(|long| *long == name).unwrap_or(LONGEST.len())
    });
    let passed = programs::at_once(jobs.into(), |(program, module)| {
        let folder = program.folder.file_name().unwrap_or_default().to_string_lossy();
        let filter = module.map(|module| format!("[{module}]"));
        let name = [format!("{folder}: {}", program.name())].into_iter().chain(filter.clone()).collect::<Vec<_>>();
        programs::test(&name.join(" "), command(program).args(filter))
    })?;
    say!("{passed} tests passed");
    Ok(())
}

const STEPS: &[Step] = &[
    Step { name: "formatting", extent: Extent::Quick, task: Task::Cargo(&["fmt", "--all", "--check"]) },
    Step {
        name: "lints",
        extent: Extent::Quick,
        task: Task::Cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    },
    Step {
        name: "licences, versions and sources of dependencies",
        extent: Extent::Everything,
        task: Task::Chore(deny::run, &["xtask", "deny"]),
    },
    Step {
        name: "compiling and linking the tests",
        extent: Extent::Everything,
        task: Task::Cargo(&["test", "--workspace", "--no-run", "--bins", "--test", "*"]),
    },
    Step { name: "unit tests", extent: Extent::Quick, task: Task::Units },
    Step {
        name: "golden, gradient, property and command-line tests",
        extent: Extent::Everything,
        task: Task::Tests(&["--test", "*"]),
    },
    Step {
        name: "each crate from its package",
        extent: Extent::Everything,
        task: Task::Chore(package::run, &["xtask", "package"]),
    },
    Step {
        name: "the package for Python",
        extent: Extent::Everything,
        task: Task::Chore(python::run, &["xtask", "python"]),
    },
    Step { name: "parity of the devices", extent: Extent::Everything, task: Task::Isograd(&["parity", "--quick"]) },
    Step {
        name: "documentation and the book's code",
        extent: Extent::Everything,
        task: Task::Cargo(&["test", "--workspace", "--doc"]),
    },
    Step {
        name: "CUDA kernels by NVRTC",
        extent: Extent::Everything,
        task: Task::Chore(|| nvrtc::run(Extent::Quick), &["xtask", "nvrtc", "--quick"]),
    },
    Step {
        name: "HIP kernels by AMD's compilers",
        extent: Extent::Everything,
        task: Task::Chore(|| amd::run(Extent::Quick), &["xtask", "amd", "--quick"]),
    },
    Step {
        name: "kernels on emulated GPUs",
        extent: Extent::Everything,
        task: Task::Chore(|| simt::run(Extent::Quick), &["xtask", "simt", "--quick"]),
    },
];

/// Sets up what the steps need and runs all of them in order: one that fails does not hide what fails after it.
pub fn run(extent: Extent) -> Result<(), Failure> {
    tools::ensure_component("fmt", "rustfmt")?;
    tools::ensure_component("clippy", "clippy")?;
    tools::ensure_opencl();
    if extent == Extent::Everything {
        tools::ensure_chromium();
        tools::ensure_mpi();
        tools::ensure_onnxruntime();
        tools::ensure_tensorboard();
    }
    let mut done = Vec::new();
    let mut failures = Vec::new();
    for step in STEPS.iter().filter(|step| extent == Extent::Everything || step.extent == Extent::Quick) {
        say!("\n== {}: cargo {}", step.name, step.task.arguments());
        let started = Instant::now();
        let result = step.task.run();
        done.push((step.name, started.elapsed(), result.is_ok()));
        say!("== {}: {}", step.name, seconds(started.elapsed()));
        if let Err(failure) = result {
            say!("== {} FAILED: {failure}", step.name);
            failures.push(format!("{}: {failure}\nrepeat it with: cargo {}", step.name, step.task.arguments()));
        }
    }
    summarize(&done);
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n\n")) }
}

fn summarize(done: &[(&str, Duration, bool)]) {
    say!();
    for (name, time, passed) in done {
        say!("{} {:>8}  {name}", if *passed { "passed" } else { "FAILED" }, seconds(*time));
    }
    let total = done.iter().map(|(_, time, _)| *time).sum();
    say!("       {:>8}  in all", seconds(total));
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
