//! Checks in processes of their own: several at once where a driver compiles for one thread of a process at a time, and
//! where a driver that crashes ends no more than one of them.

use crate::report::Finding;
use crate::run::Extent;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// How such a process is started, and for which devices. It calls [`serve`](crate::serve).
#[derive(Clone, Debug)]
pub struct Apart {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its environment, as it was before a device was opened: loaders of OpenCL cut variables of their process.
    pub environment: Vec<(OsString, OsString)>,
    /// The names of the devices.
    pub devices: Vec<String>,
}

/// What a process is asked for: one line of JSON. The answer is another, of findings, or of why there are none.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    pub device: String,
    /// What the device is: another process may see other ones.
    pub hardware: String,
    pub has_f64: bool,
    pub work: Work,
}

/// What is to be done on the device.
#[derive(Serialize, Deserialize)]
pub(crate) enum Work {
    /// The checks of an op of the registry.
    Op { op: String, dtype: String, extent: Extent, cases: Option<u32>, seed: u64 },
    /// Cases of a folder, by their names.
    Cases { folder: String, names: Vec<String>, dump: Option<PathBuf> },
}

/// Tasks of one process: NVIDIA's OpenCL has no memory left for a queue after some forty.
const MOST_TASKS: usize = 8;

/// One process after another.
pub(crate) struct Processes<'a> {
    apart: &'a Apart,
    running: Option<Process>,
}

impl<'a> Processes<'a> {
    pub fn new(apart: &'a Apart) -> Processes<'a> {
        Processes { apart, running: None }
    }

    /// Has a task done by the process that runs, or by a new one. Errors say how it ended.
    pub fn ask(&mut self, task: &Task) -> io::Result<Vec<Finding>> {
        self.running.take_if(|process| process.left == 0);
        let asked = match &mut self.running {
            Some(process) => process.ask(task),
            None => Process::start(self.apart).and_then(|process| self.running.insert(process).ask(task)),
        };
        asked.inspect_err(|_| self.running = None)
    }
}

/// A process that runs.
struct Process {
    child: Child,
    /// How many tasks it has still to be asked for.
    left: usize,
    // Taken when it is to end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(apart: &Apart) -> io::Result<Process> {
        let mut command = Command::new(&apart.program);
        command.args(&apart.arguments).env_clear().envs(apart.environment.iter().cloned());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (input @ Some(_), Some(output)) => {
                Ok(Process { child, left: MOST_TASKS, input, output: BufReader::new(output) })
            }
            _ => Err(io::Error::other("it has no input or output")),
        }
    }

    /// Has a task done. Errors say how the process ended.
    fn ask(&mut self, task: &Task) -> io::Result<Vec<Finding>> {
        self.left = self.left.saturating_sub(1);
        let mut line = serde_json::to_string(task)? + "\n";
        // What is not read has ended, which the answer tells.
        let _ = self.input.as_mut().map(|input| input.write_all(line.as_bytes()));
        line.clear();
        if self.output.read_line(&mut line)? == 0 {
            return Err(io::Error::other(format!("the process ended: {}", self.end()?)));
        }
        serde_json::from_str::<Result<_, String>>(&line)?.map_err(io::Error::other)
    }

    fn end(&mut self) -> io::Result<std::process::ExitStatus> {
        drop(self.input.take());
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nobody is left to tell.
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
