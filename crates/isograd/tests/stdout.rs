//! What the examples print with, where stdout takes nothing. A program without the test harness, which prints to stdout itself.

#[path = "../examples/print/mod.rs"]
mod print;

use std::process::{Command, Output, Stdio};

/// Set in the process that prints.
const PRINTS: &str = "ISOGRAD_TEST_PRINTS";

fn main() {
    if std::env::var_os(PRINTS).is_some() {
        // More than a pipe holds.
        return (0..100_000).for_each(|i| print::print(&format!("line {i}")));
    }
    a_closed_pipe_ends_an_example_quietly();
    #[cfg(target_os = "linux")]
    a_full_disk_ends_an_example_with_an_error();
    // As the harness ends, for whoever counts tests.
    print::print("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
}

/// How a process ended that prints to this, and what it said on stderr.
fn printing(stdout: Stdio) -> (Option<i32>, String) {
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program).env(PRINTS, "1").stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

fn a_closed_pipe_ends_an_example_quietly() {
    assert_eq!(printing(Stdio::piped()), (Some(0), String::new()));
}

#[cfg(target_os = "linux")]
fn a_full_disk_ends_an_example_with_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let (code, stderr) = printing(full.into());
    assert_eq!(code, Some(1));
    assert!(stderr.starts_with("error: cannot write to stdout: No space left"), "{stderr}");
}
