//! Programs that cargo builds, and test programs that run several at a time.

use crate::{Failure, tools, watched};
use serde_json::Value;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// A program that cargo has built.
pub struct Program {
    /// The file.
    pub path: PathBuf,
    /// The folder of its package, in which cargo runs tests.
    pub folder: PathBuf,
    /// False for a program that a test starts.
    pub is_test: bool,
}

impl Program {
    /// Its name without the hash that cargo adds to a test's.
    pub fn name(&self) -> String {
        name_of(&self.path)
    }
}

impl Program {
    /// The modules into which its tests are divided, in the order in which the program lists them. None if they are not.
    pub fn modules(&self, command: &mut Command) -> Result<Vec<String>, Failure> {
        let listed = command.arg("--list").output();
        let listed = listed.map_err(|error| format!("{} could not be started: {error}", self.path.display()))?;
        let mut modules: Vec<String> = Vec::new();
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            let module = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            if let Some((module, _)) = module.filter(|(module, _)| !modules.iter().any(|known| known == module)) {
                modules.push(module.to_string());
            }
        }
        Ok(modules)
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    let plain = match name.rsplit_once('-') {
        Some((plain, hash)) if hash.len() == 16 && hash.chars().all(|c| c.is_ascii_hexdigit()) => plain,
        _ => &name,
    };
    format!("{plain}{extension}")
}

/// The programs that a cargo command makes.
pub fn build(arguments: &[&str]) -> Result<Vec<Program>, Failure> {
    let messages = tools::output("cargo", &[arguments, &[MESSAGES]].concat())?;
    let programs = made(&messages);
    if programs.is_empty() { Err(format!("`cargo {}` made no program", arguments.join(" "))) } else { Ok(programs) }
}

/// The argument by which cargo says what it makes, while the compiler's errors go to stderr.
pub const MESSAGES: &str = "--message-format=json-render-diagnostics";

/// The programs in the messages of cargo.
pub fn made(messages: &str) -> Vec<Program> {
    let program = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        Some(Program {
            path: message["executable"].as_str()?.into(),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.into(),
            is_test: message["profile"]["test"].as_bool()?,
        })
    };
    messages.lines().filter_map(program).collect()
}

/// The packages whose manifest says that their library has no tests. `cargo test --lib` would compile these libraries once more.
pub fn without_unit_tests() -> Result<Vec<String>, Failure> {
    let metadata = tools::output("cargo", &["metadata", "--no-deps", "--format-version", "1"])?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| format!("cargo's metadata: {error}"))?;
    let is_without = |package: &&Value| {
        let targets = package["targets"].as_array().into_iter().flatten();
        let mut libraries = targets.filter(|target| target["kind"][0] == "lib");
        libraries.any(|library| library["test"] == false)
    };
    let packages = metadata["packages"].as_array().into_iter().flatten().filter(is_without);
    Ok(packages.filter_map(|package| Some(package["name"].as_str()?.to_string())).collect())
}

/// Runs jobs in their order, as many at once as there are processors: the kernels of a program are compiled one after another. A job
/// returns how many tests passed; the result is the sum, or the failures of all jobs.
pub fn at_once<T: Send>(jobs: VecDeque<T>, run: impl Fn(T) -> Result<usize, Failure> + Sync) -> Result<usize, Failure> {
    let jobs = Mutex::new(jobs);
    let passed = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some(job) = jobs.lock().unwrap_or_else(|e| e.into_inner()).pop_front() else { return };
            match run(job) {
                Ok(tests) => drop(passed.fetch_add(tests, Ordering::Relaxed)),
                Err(failure) => failures.lock().unwrap_or_else(|e| e.into_inner()).push(failure),
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        (1..workers).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, work)));
        work();
    });
    let failures = failures.into_inner().unwrap_or_else(|e| e.into_inner());
    if failures.is_empty() { Ok(passed.into_inner()) } else { Err(failures.join("\n")) }
}

/// Runs a test program, and prints a line about its end. Returns how many tests passed; the failure has what those that failed printed.
pub fn test(name: &str, command: &mut Command) -> Result<usize, Failure> {
    let started = Instant::now();
    let output = watched::output(command).map_err(|failure| format!("{name} {failure}"))?;
    let text = &output.stdout;
    let result = text.lines().rfind(|line| line.starts_with("test result")).unwrap_or("it ended early").to_string();
    let words: Vec<&str> = result.split_whitespace().collect();
    let passed = words.windows(2).find(|pair| pair[1] == "passed;").and_then(|pair| pair[0].parse().ok());
    if passed != Some(0) || !output.status.success() {
        say!("{:>7.1} s  {name}: {result}", started.elapsed().as_secs_f64());
    }
    if output.status.success() {
        return passed.ok_or_else(|| format!("{name}: {result}"));
    }
    let failures = text.find("\nfailures:").map_or(&**text, |at| &text[at..]);
    Err(format!("{name} failed ({}):\n{failures}{}", output.status, output.stderr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_lose_their_hash_and_other_programs_nothing() {
        let named = |path: &str| name_of(Path::new(path));
        assert_eq!(named("target/release/deps/golden-0123456789abcdef"), "golden");
        assert_eq!(named("target/release/isograd"), "isograd");
        assert_eq!(named("target/release/deps/dtypes-0123456789abcdef.exe"), "dtypes.exe");
        assert_eq!(named("target/release/cargo-deps"), "cargo-deps");
    }

    #[test]
    fn every_job_runs_and_all_failures_are_told() {
        let run = |n: usize| if n % 4 == 3 { Err(format!("{n} failed")) } else { Ok(n) };
        assert_eq!(at_once([1, 2, 4].into(), run), Ok(7));
        let failure = at_once([3, 1, 7].into(), run).unwrap_err();
        assert!(failure.contains("3 failed") && failure.contains("7 failed"), "{failure}");
    }

    #[test]
    #[cfg(unix)]
    fn passed_tests_are_counted_and_failures_shown() {
        let run = |script: &str| test("some", Command::new("sh").args(["-c", script]));
        assert_eq!(run("echo 'test result: ok. 3 passed; 0 failed'"), Ok(3));
        let failure =
            run("printf 'a line\n\nfailures:\nbroken: 1 is not 2\ntest result: FAILED. 2 passed;\n'; exit 101");
        let failure = failure.unwrap_err();
        assert!(failure.contains("broken: 1 is not 2") && !failure.contains("a line"), "{failure}");
        assert!(run("true").is_err());
    }
}
