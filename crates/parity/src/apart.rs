//! Checks in separate processes. They allow several compilations at once where a driver compiles in one thread of a process at a
//! time, and a driver's crash ends only one process.

use crate::devices::lasting;
use crate::options::{Apart, Extent, Options};
use crate::report::{DeviceRun, Finding, Outcome};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// A request to a process: one line of JSON. The answer is another line: findings, or the reason why there are none.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    pub device: String,
    /// The hardware of the device, because another process may see other devices.
    pub hardware: String,
    pub has_f64: bool,
    pub work: Work,
}

/// The work on the device.
#[derive(Serialize, Deserialize)]
pub(crate) enum Work {
    /// Checks of an op of the registry.
    Op { op: String, dtype: String, extent: Extent, cases: Option<u32>, seed: u64 },
    /// Cases of a folder, by name.
    Cases { folder: String, names: Vec<String>, dump: Option<PathBuf> },
}

/// True if other processes run the work of a device.
pub(crate) fn is_apart(options: &Options, run: &DeviceRun) -> bool {
    options.apart.as_ref().is_some_and(|apart| apart.devices.contains(&run.name))
}

/// The task of another process on a device of this run.
pub(crate) fn task(run: &DeviceRun, work: Work) -> Task {
    let hardware = lasting(&run.hardware, &run.driver);
    Task { device: run.name.clone(), hardware, has_f64: run.has_f64, work }
}

/// The largest number of tasks of one process, whose device keeps every program that they compile.
const MOST_TASKS: usize = 32;

/// Processes, one after another.
pub(crate) struct Processes<'a> {
    apart: &'a Apart,
    running: Option<Process>,
}

impl<'a> Processes<'a> {
    pub fn new(apart: &'a Apart) -> Processes<'a> {
        Processes { apart, running: None }
    }

    /// Runs a task in the current process, or in a new one. An error describes how the process ended.
    pub fn ask(&mut self, task: &Task) -> io::Result<Vec<Finding>> {
        self.running.take_if(|process| process.left == 0);
        let asked = match &mut self.running {
            Some(process) => process.ask(task),
            None => Process::start(self.apart).and_then(|process| self.running.insert(process).ask(task)),
        };
        // A failed check may have left the device unusable.
        let is_failed = |found: &Finding| matches!(found.outcome, Outcome::Failed(_));
        if asked.as_ref().map_or(true, |found| found.iter().any(is_failed)) {
            self.running = None;
        }
        asked
    }
}

/// The time in which a process ends that gets no more tasks.
const ENDING: Duration = Duration::from_secs(60);

/// A running process. A thread writes tasks and reads answers, so that a process that hangs does not keep this one waiting.
struct Process {
    child: Child,
    /// The number of further tasks that it may get.
    left: usize,
    longest: Duration,
    /// Lines for the process; none at its end.
    tasks: Option<Sender<String>>,
    /// Lines of the process, of which an empty one is the end.
    answers: Receiver<io::Result<String>>,
}

impl Process {
    fn start(apart: &Apart) -> io::Result<Process> {
        let mut command = Command::new(&apart.program);
        command.args(&apart.arguments).env_clear().envs(apart.environment.iter().cloned());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("it has no input or output"));
        };
        let ((tasks, received), (sender, answers)) = (mpsc::channel::<String>(), mpsc::channel());
        let exchange = move || {
            let mut output = BufReader::new(output);
            for line in received {
                // If the write fails, the process has ended, which reading the answer reports.
                let _ = input.write_all(line.as_bytes());
                let mut answer = String::new();
                let _ = sender.send(output.read_line(&mut answer).map(|_| answer));
            }
        };
        let process = Process { child, left: MOST_TASKS, longest: apart.longest, tasks: Some(tasks), answers };
        thread::Builder::new().name("isograd-apart".into()).spawn(exchange)?;
        Ok(process)
    }

    /// Runs a task. An error describes how the process ended, or that it was ended because it gave no answer in time.
    fn ask(&mut self, task: &Task) -> io::Result<Vec<Finding>> {
        self.left = self.left.saturating_sub(1);
        let line = serde_json::to_string(task)? + "\n";
        let _ = self.tasks.as_ref().map(|tasks| tasks.send(line));
        let answer = match self.answers.recv_timeout(self.longest) {
            Ok(answer) => answer?,
            Err(RecvTimeoutError::Disconnected) => String::new(),
            Err(RecvTimeoutError::Timeout) => {
                self.child.kill()?;
                let message = format!("the process hangs: it gave no answer in {:?}, and was ended", self.longest);
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
        };
        if answer.is_empty() {
            return Err(io::Error::other(format!("the process ended: {}", self.end()?)));
        }
        serde_json::from_str::<Result<_, String>>(&answer)?.map_err(io::Error::other)
    }

    /// Waits for the end of the process, which gets no more tasks.
    fn end(&mut self) -> io::Result<ExitStatus> {
        drop(self.tasks.take());
        let started = Instant::now();
        while started.elapsed() < ENDING {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nobody is left to report an error to.
        let _ = self.end();
    }
}

/// Answers tasks until there are no more.
pub(crate) fn answer(
    input: impl BufRead,
    mut output: impl Write,
    mut run: impl FnMut(Task) -> Result<Vec<Finding>, String>,
) -> io::Result<()> {
    for line in input.lines() {
        serde_json::to_writer(&mut output, &run(serde_json::from_str(&line?)?))?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}
