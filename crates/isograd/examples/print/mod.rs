//! What the examples print with: `println!` panics where stdout takes nothing.

use std::io::{self, Write};
use std::process::exit;

/// Writes a line to stdout. Ends the program if that cannot be: without a word if stdout is a pipe that nobody reads any more.
pub fn print(line: &str) {
    match writeln!(io::stdout(), "{line}") {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => exit(0),
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: cannot write to stdout: {error}");
            exit(1)
        }
    }
}
