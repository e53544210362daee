//! `cargo xtask mutate`: lines of kernels, gradient rules and passes over captured steps, each wrong for once, which the tests find.

use crate::{Failure, programs, simt, test, tools};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{fs, io};

/// Characters in a row that a mutation changes, at most: a word.
const LONGEST: usize = 8;

/// A line of a file that a few other characters make wrong.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutation {
    /// Within the repository.
    file: String,
    /// The line, without the spaces around it; no other is the same.
    line: String,
    /// What takes its place.
    becomes: String,
    /// The tests that must find it.
    by: By,
}

/// Tests that must find a mutation.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum By {
    /// The quick parity suite. This regular expression finds the ops that are tried first; the others follow if these do not find it.
    Ops(String),
    /// The same for kernels that no OpenCL device of this machine may run: on an emulated GPU, for these ops alone.
    Emulated(String),
    /// Tests of the program `devices`: those whose names, as it prints them, contain this.
    Devices(String),
    /// The same of the program `generated`.
    Generated(String),
}

impl By {
    /// A test program, and what the names of its tests contain.
    fn tests(&self) -> Option<(&'static str, &str)> {
        match self {
            By::Devices(filter) => Some(("devices", filter)),
            By::Generated(filter) => Some(("generated", filter)),
            By::Ops(_) | By::Emulated(_) => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutation: Vec<Mutation>,
}

fn list() -> Result<Vec<Mutation>, Failure> {
    let list: List = toml::from_str(include_str!("../mutations.toml")).map_err(|e| format!("mutations.toml: {e}"))?;
    Ok(list.mutation)
}

impl Mutation {
    /// A change of kernels needs no build.
    fn is_kernel(&self) -> bool {
        self.file.starts_with("kernels")
    }

    /// The number of the line in a file's text, and the text with it changed.
    fn apply(&self, text: &str) -> Result<(usize, String), Failure> {
        let Mutation { file, line, becomes, .. } = self;
        let (old, new): (Vec<char>, Vec<char>) = (line.chars().collect(), becomes.chars().collect());
        let start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
        let end = old[start..].iter().rev().zip(new[start..].iter().rev()).take_while(|(a, b)| a == b).count();
        if old == new || old.len().max(new.len()) - start - end > LONGEST {
            return Err(format!("{file}: {becomes:?} is not {line:?} with another word"));
        }
        let found: Vec<usize> = (1..).zip(text.lines()).filter(|(_, l)| l.trim() == line).map(|(n, _)| n).collect();
        let [number] = found[..] else { return Err(format!("{file} has {line:?} {} times", found.len())) };
        let changed = (1..).zip(text.split_inclusive('\n'));
        let changed = changed.map(|(n, l)| if n == number { l.replacen(line, becomes, 1) } else { l.to_string() });
        Ok((number, changed.collect()))
    }

    /// The mutation in words, from the text of its file.
    fn shown(&self, text: &str) -> Result<String, Failure> {
        Ok(format!("{}:{}: {} -> {}", self.file, self.apply(text)?.0, self.line, self.becomes))
    }
}

/// What became of a mutation.
enum Verdict {
    /// By this check.
    Caught(String),
    Survived,
    /// It says nothing about the suite.
    Bad(String),
}

/// Prints the list.
pub fn show() -> Result<(), Failure> {
    for (k, mutation) in (1..).zip(list()?) {
        say!("{k:>2} {}", mutation.shown(&read(&tools::root().join(&mutation.file))?)?);
    }
    Ok(())
}

/// Tries all mutations, or the one of this number in the list. Errors unless the suite passes without them and catches
/// each.
pub fn run(only: Option<&str>) -> Result<(), Failure> {
    let mut chosen: Vec<Mutation> = list()?;
    if let Some(only) = only {
        let number = only.parse().ok().filter(|k| (1..=chosen.len()).contains(k));
        let number: usize = number.ok_or_else(|| format!("{only} is none of 1 to {}", chosen.len()))?;
        chosen = vec![chosen.swap_remove(number - 1)];
    }
    for mutation in &chosen {
        mutation.apply(&read(&tools::root().join(&mutation.file))?)?;
    }
    tools::ensure_opencl();
    let (mut ops, mut emulated, mut tests) = (Vec::new(), Vec::new(), BTreeSet::new());
    for mutation in &chosen {
        match &mutation.by {
            By::Ops(filter) => ops.push(filter.as_str()),
            By::Emulated(filter) => emulated.push(filter.as_str()),
            By::Devices(_) | By::Generated(_) => tests.extend(mutation.by.tests()),
        }
    }
    let stand = Stand::new(tests.iter().map(|(program, _)| *program).collect())?;
    if !ops.is_empty() {
        Stand::baseline(stand.suite(&stand.unchanged.isograd, Some(&ops.join("|")))?)?;
    }
    if !emulated.is_empty() {
        Stand::baseline(stand.emulated(&stand.unchanged.isograd, &emulated.join("|"))?)?;
    }
    for (program, filter) in tests {
        Stand::baseline(stand.tests(&stand.unchanged, program, filter)?)?;
    }
    let mut caught = 0;
    for mutation in &chosen {
        let started = Instant::now();
        let verdict = match stand.judge(mutation)? {
            Verdict::Caught(by) => {
                caught += 1;
                format!("caught by {by}")
            }
            Verdict::Survived => "NOT CAUGHT".to_string(),
            Verdict::Bad(why) => format!("BAD: {why}"),
        };
        let shown = mutation.shown(&read(&tools::root().join(&mutation.file))?)?;
        say!("{shown}: {verdict} ({:.1} s)", started.elapsed().as_secs_f64());
    }
    say!("{caught} of {} caught", chosen.len());
    if caught == chosen.len() { Ok(()) } else { Err("the tests have holes, or the list has bad mutations".into()) }
}

/// A copy of the repository that is changed, and what is built of it. The copy goes away at the end; what is built stays,
/// so that the next build is shorter.
struct Stand {
    folder: PathBuf,
    /// The test programs that are built as well.
    tests: BTreeSet<&'static str>,
    /// The programs of the sources as they were.
    unchanged: Programs,
}

/// The programs that a build makes.
#[derive(Default)]
struct Programs {
    isograd: PathBuf,
    /// The test programs by their names.
    tests: BTreeMap<&'static str, PathBuf>,
}

impl Drop for Stand {
    fn drop(&mut self) {
        let _ = self.clear();
    }
}

impl Stand {
    /// With the programs built from the sources as they are.
    fn new(tests: BTreeSet<&'static str>) -> Result<Stand, Failure> {
        let folder = tools::root().join("target/mutate");
        let mut stand = Stand { folder, tests, unchanged: Programs::default() };
        stand.clear().map_err(|e| format!("{}: {e}", stand.folder.display()))?;
        let files = tools::output("git", &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
        for file in files.split_terminator('\0') {
            copy(&tools::root().join(file), &stand.source().join(file)).map_err(|e| format!("{file}: {e}"))?;
        }
        say!("xtask: building isograd and its tests in {}", stand.folder.display());
        let built = stand.build()?.map_err(|log| format!("isograd does not compile:\n{log}"))?;
        let keep = |program: &Path, name: &str| {
            let kept = stand.folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
            fs::copy(program, &kept).map_err(|e| format!("{}: {e}", kept.display()))?;
            Ok::<_, Failure>(kept)
        };
        let isograd = keep(&built.isograd, "isograd")?;
        let tests = built.tests.iter().map(|(name, program)| Ok((*name, keep(program, name)?)));
        stand.unchanged = Programs { isograd, tests: tests.collect::<Result<_, Failure>>()? };
        Ok(stand)
    }

    fn clear(&self) -> io::Result<()> {
        [self.source(), self.cache()].iter().filter(|folder| folder.exists()).try_for_each(fs::remove_dir_all)
    }

    fn source(&self) -> PathBuf {
        self.folder.join("source")
    }

    /// The folder of compiled kernels, whose names depend on their whole text.
    fn cache(&self) -> PathBuf {
        self.folder.join("cache")
    }

    /// The programs, or the compiler's log.
    fn build(&self) -> Result<Result<Programs, String>, Failure> {
        let mut cargo = Command::new("cargo");
        // The whole workspace decides about features, so that all programs share what is built.
        cargo.args(["build", "--workspace", "--bin", "isograd", programs::MESSAGES]).current_dir(self.source());
        cargo.args(self.tests.iter().flat_map(|name| ["--test", name]));
        // Most of what a few characters change is found as it was.
        cargo.env("CARGO_TARGET_DIR", self.folder.join("target")).env("CARGO_INCREMENTAL", "1");
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
        let output = cargo.output().map_err(|e| format!("cargo could not be started: {e}"))?;
        if !output.status.success() {
            return Ok(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let made = programs::made(&String::from_utf8_lossy(&output.stdout));
        let find = |name: &str| {
            let found = made.iter().find(|program| program.name().trim_end_matches(".exe") == name);
            found.map(|program| program.path.clone())
        };
        let isograd = find("isograd").ok_or("the build made no `isograd`")?;
        let tests = self.tests.iter().filter_map(|name| Some((*name, find(name)?)));
        Ok(Ok(Programs { isograd, tests: tests.collect() }))
    }

    /// Errors if the tests fail without any mutation.
    fn baseline(verdict: Verdict) -> Result<(), Failure> {
        match verdict {
            Verdict::Survived => Ok(()),
            Verdict::Caught(by) | Verdict::Bad(by) => Err(format!("the tests fail without a mutation: {by}")),
        }
    }

    fn judge(&self, mutation: &Mutation) -> Result<Verdict, Failure> {
        let path = self.source().join(&mutation.file);
        let text = read(&path)?;
        write(&path, &mutation.apply(&text)?.1)?;
        let verdict = self.judge_changed(mutation);
        write(&path, &text)?;
        verdict
    }

    fn judge_changed(&self, mutation: &Mutation) -> Result<Verdict, Failure> {
        let built;
        let programs = if mutation.is_kernel() {
            &self.unchanged
        } else {
            match self.build()? {
                Ok(programs) => built = programs,
                Err(log) => return Ok(Verdict::Bad(format!("it does not compile:\n{log}"))),
            }
            &built
        };
        match &mutation.by {
            By::Devices(filter) => self.tests(programs, "devices", filter),
            By::Generated(filter) => self.tests(programs, "generated", filter),
            By::Ops(filter) => match self.suite(&programs.isograd, Some(filter))? {
                Verdict::Survived => self.suite(&programs.isograd, None),
                verdict => Ok(verdict),
            },
            By::Emulated(filter) => self.emulated(&programs.isograd, filter),
        }
    }

    /// Runs the tests of a program whose names contain this.
    fn tests(&self, programs: &Programs, name: &str, filter: &str) -> Result<Verdict, Failure> {
        let program = programs.tests.get(name).ok_or_else(|| format!("the build made no `{name}`"))?;
        let mut command = Command::new(program);
        command.arg(filter).current_dir(self.source().join("tests")).envs(test::environment());
        command.env("ISOGRAD_KERNELS", self.source()).env("ISOGRAD_CACHE", self.cache());
        let output = command.output().map_err(|e| format!("{} could not be started: {e}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let failed = text.lines().find_map(|line| line.strip_suffix(" ... FAILED"));
        let result = text.lines().rfind(|line| line.starts_with("test result: ")).unwrap_or_default();
        match (failed, output.status.success()) {
            (Some(test), false) if !result.is_empty() => {
                Ok(Verdict::Caught(test.trim_start_matches("test ").trim_end().to_string()))
            }
            (None, true) if !result.contains(" 0 passed") => Ok(Verdict::Survived),
            (None, true) => Ok(Verdict::Bad(format!("no test of `{name}` ran for {filter:?}: {result}"))),
            _ => {
                let errors = String::from_utf8_lossy(&output.stderr);
                Ok(Verdict::Bad(format!("the tests ended early ({}): {errors}", output.status)))
            }
        }
    }

    /// Runs the quick suite for the ops that a regular expression finds, or for all. A mutation that no check sees has
    /// survived.
    fn suite(&self, program: &Path, filter: Option<&str>) -> Result<Verdict, Failure> {
        let mut command = Command::new(program);
        command.args(["parity", "--quick", "--device", "cpu", "--device", "opencl:0"]);
        command.args(filter.iter().flat_map(|filter| ["--filter", filter]));
        command.env("ISOGRAD_CACHE", self.cache());
        self.verdict(command)
    }

    /// The same for these ops on an emulated GPU.
    fn emulated(&self, program: &Path, filter: &str) -> Result<Verdict, Failure> {
        let Some(emulator) = simt::build()? else { return Err("there is no clang, which the emulator needs".into()) };
        let mut command = Command::new(program);
        command.args(["parity", "--quick", "--device", "hip:0", "--filter", filter]);
        command.envs(simt::environment(&emulator));
        self.verdict(command)
    }

    /// The verdict of a run of the suite with the changed kernels.
    fn verdict(&self, mut command: Command) -> Result<Verdict, Failure> {
        let output = command.env("ISOGRAD_KERNELS", self.source()).output();
        let output = output.map_err(|e| format!("{} could not be started: {e}", command.get_program().display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut failed = text.lines().filter_map(|line| line.strip_prefix("FAILED "));
        if let Some(line) = failed.clone().find(|line| line.contains("compile: Backend")) {
            return Ok(Verdict::Bad(format!("it does not compile: {line}")));
        }
        let counted = text.lines().last().is_some_and(|line| line.contains(" passed, "));
        match (failed.next(), output.status.code()) {
            (Some(line), Some(1)) if counted => {
                Ok(Verdict::Caught(line.split(':').take(2).collect::<Vec<_>>().join(":")))
            }
            (None, Some(0)) if counted => Ok(Verdict::Survived),
            _ => {
                let errors = String::from_utf8_lossy(&output.stderr);
                Ok(Verdict::Bad(format!("the suite ended early ({}): {errors}", output.status)))
            }
        }
    }
}

/// Copies a file; a link to a folder of the repository becomes the folder.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_dir() {
        return fs::read_dir(from)?.try_for_each(|entry| {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))
        });
    }
    // One that is deleted, but not yet from the index.
    if !from.exists() {
        return Ok(());
    }
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map(drop)
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutation(line: &str, becomes: &str) -> Mutation {
        let by = By::Ops(String::new());
        Mutation { file: "f.c".into(), line: line.into(), becomes: becomes.into(), by }
    }

    #[test]
    fn a_word_of_one_line_changes() {
        let text = "if (a) {\n    a += 1;\n}\na += 11;\n";
        let changed = "if (a) {\n    a -= 1;\n}\na += 11;\n";
        assert_eq!(mutation("a += 1;", "a -= 1;").apply(text), Ok((2, changed.to_string())));
        assert!(mutation("a += 1;", "a += 11;").apply(text).is_ok());
        assert!(mutation("a += 11;", "a += 1;").apply(text).is_ok());
        assert!(mutation("a += 1;", "a += 1;").apply(text).is_err());
        assert!(mutation("a += 1;", "a += much_longer;").apply(text).is_err());
        assert!(mutation("a += 1;", "b := 1 + a;").apply(text).is_err());
        assert!(mutation("b += 1;", "b -= 1;").apply(text).is_err());
        assert!(mutation("a += 1;", "a -= 1;").apply("a += 1;\na += 1;").is_err());
    }

    #[test]
    fn the_list_is_of_lines_that_are_there() {
        let list = list().unwrap();
        assert!(!list.is_empty());
        let stale = list.iter().filter_map(|mutation| {
            let text = read(&tools::root().join(&mutation.file)).unwrap();
            mutation.apply(&text).err()
        });
        assert_eq!(stale.collect::<Vec<_>>(), [""; 0]);
    }
}
