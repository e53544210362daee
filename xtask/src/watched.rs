//! Programs that are stopped when nothing has come from them for long: what hangs is named, and does not hold up the rest.

use crate::Failure;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, IsTerminal, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// A program that prints nothing for so long hangs. The longest silence is a crate that is compiled on a busy machine.
const SILENCE: Duration = Duration::from_secs(15 * 60);
/// How often it is looked at.
const PERIOD: Duration = Duration::from_millis(100);

/// Runs a command, with what it prints shown.
pub fn status(command: &mut Command) -> Result<ExitStatus, Failure> {
    status_within(command, SILENCE)
}

/// What a program has printed, and how it ended.
pub struct Output {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command, with what it prints kept.
pub fn output(command: &mut Command) -> Result<Output, Failure> {
    let [stdout, stderr] = [(); 2].map(|()| Kept::default());
    let result = run(command, SILENCE, stdout.clone(), stderr.clone());
    let [out, err] = [stdout, stderr].map(|kept| String::from_utf8_lossy(&lock(&kept.0)).into_owned());
    match result {
        Ok(status) => Ok(Output { status, stdout: out, stderr: err }),
        Err(failure) => Err(format!("{failure}\n{out}{err}")),
    }
}

/// Bytes that are kept for whoever has a copy.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn status_within(command: &mut Command, silence: Duration) -> Result<ExitStatus, Failure> {
    if io::stderr().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    run(command, silence, io::stdout(), io::stderr())
}

fn run(
    command: &mut Command,
    silence: Duration,
    stdout: impl Write + Send + 'static,
    stderr: impl Write + Send + 'static,
) -> Result<ExitStatus, Failure> {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("could not be started: {error}"))?;
    let seen = Arc::new(Mutex::new(Seen::new()));
    let readers = [
        child.stdout.take().map(|from| forward(from, stdout, seen.clone())),
        child.stderr.take().map(|from| forward(from, stderr, seen.clone())),
    ];
    let result = wait(&mut child, &seen, silence);
    if result.is_ok() {
        readers.into_iter().flatten().for_each(|reader| drop(reader.join()));
    }
    result
}

fn wait(child: &mut Child, seen: &Mutex<Seen>, silence: Duration) -> Result<ExitStatus, Failure> {
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Ok(status);
        }
        if lock(seen).last.elapsed() > silence {
            stop(child);
            return Err(format!("printed nothing for {} s and was stopped; {}", silence.as_secs(), lock(seen)));
        }
        thread::sleep(PERIOD);
    }
}

/// What a program has printed of tests.
struct Seen {
    /// When it printed something.
    last: Instant,
    /// The line that cargo prints when it starts a test program.
    program: String,
    /// Tests that the harness says have been running for long.
    long: BTreeSet<String>,
    /// A test that the harness has named and not yet judged.
    begun: String,
}

impl Seen {
    fn new() -> Seen {
        Seen { last: Instant::now(), program: String::new(), long: BTreeSet::new(), begun: String::new() }
    }

    /// Takes note of a line, which has no end yet if it `is_open`.
    fn line(&mut self, line: &str, is_open: bool) {
        if let Some(program) = line.trim_start().strip_prefix("Running ") {
            (self.program, self.long) = (program.to_string(), BTreeSet::new());
        }
        let Some(rest) = line.strip_prefix("test ") else { return };
        self.begun = String::new();
        if let Some((name, _)) = rest.split_once(" has been running for") {
            self.long.insert(name.to_string());
        } else if let Some((name, _)) = rest.split_once(" ... ") {
            self.long.remove(name.trim_end());
            if is_open {
                self.begun = name.trim_end().to_string();
            }
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut running: Vec<&str> = self.long.iter().map(String::as_str).collect();
        running.extend(Some(self.begun.as_str()).filter(|name| !name.is_empty() && !self.long.contains(*name)));
        match (&*running, &*self.program) {
            ([], "") => f.write_str("it had started no test"),
            ([], program) => write!(f, "a test of {program} hangs"),
            (running, program) => write!(f, "of {program} these were running: {}", running.join(", ")),
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(|e| e.into_inner())
}

/// Shows what comes, as it comes, and takes note of its lines.
fn forward(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    seen: Arc<Mutex<Seen>>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let (mut buffer, mut line) = ([0; 4096], Vec::new());
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            // Whoever reads ours may have gone; the program goes on.
            let _ = to.write_all(&buffer[..n]).and_then(|()| to.flush());
            let mut seen = lock(&seen);
            seen.last = Instant::now();
            for &byte in &buffer[..n] {
                match byte {
                    b'\n' => seen.line(&plain(&std::mem::take(&mut line)), false),
                    _ => line.push(byte),
                }
            }
            seen.line(&plain(&line), true);
        }
    })
}

/// A line without what colours it.
fn plain(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

/// Ends a program with all that it has started.
fn stop(child: &mut Child) {
    let all = descendants(child.id());
    let all = all.iter().map(u32::to_string);
    // Those that have ended meanwhile are not there.
    let _ = Command::new("kill").arg("-KILL").args(all).stderr(Stdio::null()).status();
    let _ = child.kill();
    let _ = child.wait();
}

/// A process and all that it has started, as far as the system tells.
fn descendants(root: u32) -> Vec<u32> {
    // `pid (name) state parent ..`
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = processes.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut all = vec![root];
    let mut next = 0;
    while let Some(&pid) = all.get(next) {
        all.extend(parents.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| *child));
        next += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str, silence: Duration) -> Result<ExitStatus, Failure> {
        status_within(Command::new("sh").args(["-c", script]), silence)
    }

    #[test]
    #[cfg(unix)]
    fn a_program_that_prints_nothing_is_stopped_with_what_it_started() {
        let started = Instant::now();
        let marker = std::env::temp_dir().join(format!("isograd-xtask-{}", std::process::id()));
        let lines = "echo '     Running tests/some.rs (target/some)' >&2; sleep 0.2; echo 'test quick ... ok'";
        let long = "echo 'test slow has been running for over 60 seconds'";
        let hangs = format!("(sleep 3; touch '{}') & wait", marker.display());
        let failure = start(&format!("{lines}; {long}; {hangs}"), Duration::from_secs(1)).unwrap_err();
        assert!(failure.contains("of tests/some.rs (target/some) these were running: slow"), "{failure}");
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
        thread::sleep(Duration::from_secs(3));
        assert!(!marker.exists(), "what the program had started went on");
    }

    #[test]
    #[cfg(unix)]
    fn a_test_that_is_named_before_it_runs_is_named_when_it_hangs() {
        let failure = start("printf 'test alone ... '; sleep 3", Duration::from_secs(1)).unwrap_err();
        assert!(failure.contains("alone"), "{failure}");
    }

    #[test]
    #[cfg(unix)]
    fn a_program_that_prints_now_and_then_may_take_long() {
        let script = "for i in 1 2 3 4; do sleep 0.3; echo $i; done; exit 3";
        assert_eq!(start(script, Duration::from_secs(1)).unwrap().code(), Some(3));
    }

    #[test]
    #[cfg(unix)]
    fn what_a_program_prints_is_kept() {
        let Output { status, stdout, stderr } =
            output(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 2"])).unwrap();
        assert_eq!((status.code(), &*stdout, &*stderr), (Some(2), "one\n", "two\n"));
    }
}
