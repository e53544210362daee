//! `cargo xtask mutate`: single characters of kernels and gradient rules, each wrong for once, which the quick suite finds.

use crate::{Failure, tools};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{fs, io};

/// A line of a file with one character that makes it wrong.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutation {
    /// Within the repository.
    file: String,
    /// The line, without the spaces around it; no other is the same.
    line: String,
    /// What takes its place.
    becomes: String,
    /// Finds the ops that are tried first; all others follow if these do not catch it.
    likely: String,
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
        let differs = line.chars().zip(becomes.chars()).filter(|(a, b)| a != b).count();
        if differs != 1 || line.chars().count() != becomes.chars().count() {
            return Err(format!("{file}: {becomes:?} is not {line:?} with one other character"));
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
    let stand = Stand::new()?;
    let likely: Vec<&str> = chosen.iter().map(|mutation| mutation.likely.as_str()).collect();
    stand.baseline(Some(&likely.join("|")))?;
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
    if caught == chosen.len() { Ok(()) } else { Err("the quick suite has holes, or the list has bad mutations".into()) }
}

/// A copy of the repository that is changed, and what is built of it. The copy goes away at the end; what is built stays,
/// so that the next build is shorter.
struct Stand {
    folder: PathBuf,
}

impl Drop for Stand {
    fn drop(&mut self) {
        let _ = self.clear();
    }
}

impl Stand {
    /// With the program built from the sources as they are.
    fn new() -> Result<Stand, Failure> {
        let stand = Stand { folder: tools::root().join("target/mutate") };
        stand.clear().map_err(|e| format!("{}: {e}", stand.folder.display()))?;
        let files = tools::output("git", &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
        for file in files.split_terminator('\0') {
            copy(&tools::root().join(file), &stand.source().join(file)).map_err(|e| format!("{file}: {e}"))?;
        }
        say!("xtask: building isograd in {}", stand.folder.display());
        let built = stand.build()?.map_err(|log| format!("isograd does not compile:\n{log}"))?;
        fs::copy(built, stand.unchanged()).map_err(|e| format!("{}: {e}", stand.unchanged().display()))?;
        Ok(stand)
    }

    fn clear(&self) -> io::Result<()> {
        [self.source(), self.cache()].iter().filter(|folder| folder.exists()).try_for_each(fs::remove_dir_all)
    }

    fn source(&self) -> PathBuf {
        self.folder.join("source")
    }

    /// Of compiled kernels, whose names depend on their whole text.
    fn cache(&self) -> PathBuf {
        self.folder.join("cache")
    }

    /// The program of the sources as they were.
    fn unchanged(&self) -> PathBuf {
        self.folder.join(format!("isograd{}", std::env::consts::EXE_SUFFIX))
    }

    /// The program, or the compiler's log.
    fn build(&self) -> Result<Result<PathBuf, String>, Failure> {
        let built = self.folder.join("target");
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--quiet", "--package", "isograd-cli", "--features", "parity"]).current_dir(self.source());
        // Most of what one character changes is found as it was.
        cargo.env("CARGO_TARGET_DIR", &built).env("CARGO_INCREMENTAL", "1").env("CARGO_PROFILE_DEV_DEBUG", "0");
        let output = cargo.output().map_err(|e| format!("cargo could not be started: {e}"))?;
        let program = built.join("debug").join(format!("isograd{}", std::env::consts::EXE_SUFFIX));
        let log = || String::from_utf8_lossy(&output.stderr).into_owned();
        Ok(if output.status.success() { Ok(program) } else { Err(log()) })
    }

    /// Errors if the suite fails without any mutation.
    fn baseline(&self, filter: Option<&str>) -> Result<(), Failure> {
        match self.suite(&self.unchanged(), filter)? {
            Verdict::Survived => Ok(()),
            Verdict::Caught(by) | Verdict::Bad(by) => Err(format!("the suite fails without a mutation: {by}")),
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
        let program = if mutation.is_kernel() { Ok(self.unchanged()) } else { self.build()? };
        let program = match program {
            Ok(program) => program,
            Err(log) => return Ok(Verdict::Bad(format!("it does not compile:\n{log}"))),
        };
        match self.suite(&program, Some(&mutation.likely))? {
            Verdict::Survived => self.suite(&program, None),
            verdict => Ok(verdict),
        }
    }

    /// Runs the quick suite for the ops that a regular expression finds, or for all. A mutation that no check sees has
    /// survived.
    fn suite(&self, program: &Path, filter: Option<&str>) -> Result<Verdict, Failure> {
        let mut command = Command::new(program);
        command.args(["parity", "--quick", "--device", "cpu", "--device", "opencl:0"]);
        command.args(filter.iter().flat_map(|filter| ["--filter", filter]));
        command.env("ISOGRAD_KERNELS", self.source()).env("ISOGRAD_CACHE", self.cache());
        let output = command.output().map_err(|e| format!("{} could not be started: {e}", program.display()))?;
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
        Mutation { file: "f.c".into(), line: line.into(), becomes: becomes.into(), likely: String::new() }
    }

    #[test]
    fn one_character_of_one_line_changes() {
        let text = "if (a) {\n    a += 1;\n}\na += 11;\n";
        let changed = "if (a) {\n    a -= 1;\n}\na += 11;\n";
        assert_eq!(mutation("a += 1;", "a -= 1;").apply(text), Ok((2, changed.to_string())));
        assert!(mutation("a += 1;", "a -= 2;").apply(text).is_err());
        assert!(mutation("a += 1;", "a += 1;").apply(text).is_err());
        assert!(mutation("a += 1;", "a += 11;").apply(text).is_err());
        assert!(mutation("b += 1;", "b -= 1;").apply(text).is_err());
        assert!(mutation("a += 1;", "a -= 1;").apply("a += 1;\na += 1;").is_err());
    }

    #[test]
    fn the_list_is_of_lines_that_are_there() {
        let list = list().unwrap();
        assert!(!list.is_empty());
        for mutation in &list {
            mutation.apply(&read(&tools::root().join(&mutation.file)).unwrap()).unwrap();
        }
    }
}
