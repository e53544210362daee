//! The repository's chores: `cargo xtask test`, `cargo xtask check`, `cargo xtask simt`, `cargo xtask mutate`, `cargo xtask bundle`, `cargo
//! xtask deny`, `cargo xtask package`, `cargo xtask publish`, `cargo xtask python`, `cargo xtask release`, `cargo xtask docs`.

/// Prints a line. Where stdout takes nothing, the chore goes on: its exit code says how it ended.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

mod amd;
mod bundle;
mod deny;
mod docs;
mod mutate;
mod nvrtc;
mod package;
mod programs;
mod python;
mod release;
mod simt;
mod test;
mod tools;
mod watched;

use std::io::Write;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <chore>

  test           set up what the tests need, then run all of them
  test --quick   formatting, lints and unit tests only
  check OP       what concerns the ops whose names begin so, on the CPU: their tests, and the quick parity suite
  simt           run the suite on emulated GPUs, which check every access and barrier of the kernels
  simt --quick   less of it
  simt NAME..    only the tests whose names begin so, such as softmax or gelu::f16
  mutate         make single lines of kernels, gradient rules and passes over captured steps wrong, one after the other: the
                 tests must find each; --list: show them, --only N: try one of them
  nvrtc          compile every CUDA kernel in every dtype for three architectures, and see what spills
  amd            compile every HIP kernel in every dtype for five architectures, and see what spills
                 --quick, for both: a sample of dtypes and architectures
  bundle         put the tests, `isograd` and a script that runs them into target/bundle, for machines without Rust;
                 --out DIR: elsewhere
  deny           licences, double versions and sources of all dependencies, by cargo-deny
  package        package all crates, and build each from its package alone
  publish        send the packages to crates.io, each after those that it needs; --dry-run: send none
  python         build the module of the package for Python, and run the tests of the package
  release        the command with all features, in an archive in target/dist; --out DIR: elsewhere
  docs           build the book in docs/";

/// Why a chore stopped, in words for whoever started it.
type Failure = String;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["test"] => test::run(test::Extent::Everything),
        ["test", "--quick"] => test::run(test::Extent::Quick),
        ["check", op] => test::check(op),
        ["simt"] => simt::run(test::Extent::Everything),
        ["simt", "--quick"] => simt::run(test::Extent::Quick),
        ["simt", ref names @ ..] => simt::run_only(names),
        ["mutate"] => mutate::run(None),
        ["mutate", "--list"] => mutate::show(),
        ["mutate", "--only", number] => mutate::run(Some(number)),
        ["nvrtc"] => nvrtc::run(test::Extent::Everything),
        ["nvrtc", "--quick"] => nvrtc::run(test::Extent::Quick),
        ["amd"] => amd::run(test::Extent::Everything),
        ["amd", "--quick"] => amd::run(test::Extent::Quick),
        ["bundle"] => bundle::build(None),
        ["bundle", "--out", folder] => bundle::build(Some(folder)),
        ["deny"] => deny::run(),
        ["package"] => package::run(),
        ["publish"] => package::publish(false),
        ["publish", "--dry-run"] => package::publish(true),
        ["python"] => python::run(),
        ["release"] => release::build(None),
        ["release", "--out", folder] => release::build(Some(folder)),
        ["docs"] => docs::build(),
        ["help" | "--help" | "-h"] => {
            say!("{USAGE}");
            Ok(())
        }
        _ => Err(format!("cannot do {words:?}\n\n{USAGE}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}
