//! `cargo xtask python`: the package for Python beside its compiled module, and its tests.

use crate::{Failure, programs, simt, tools};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Builds the module with the features and the profile of all tests, and runs the tests of the package. Those that compare with PyTorch are skipped
/// where it is not installed: its wheel with what it needs has gigabytes. Without Python 3.11 or a newer one there is nothing to do;
/// `ISOGRAD_REQUIRE=python` makes that a failure.
pub fn run() -> Result<(), Failure> {
    let is_new = "import sys; assert sys.version_info >= (3, 11)";
    let python = tools::works("python3", &["-c", is_new])
        .then(|| tools::ensure_python("python", "import numpy, pytest", &["numpy", "pytest"]))
        .and_then(Result::ok);
    let Some(python) = python else {
        let missing = "Python 3.11 or newer, with NumPy and pytest, is not there: its package is not tested";
        if tools::is_required("python") {
            return Err(missing.to_string());
        }
        say!("xtask: {missing}");
        return Ok(());
    };
    programs::build(&["build", "--workspace", "--lib", "--test", "generated"])?;
    let package = tools::root().join("python");
    let module = module();
    let to = package.join("isograd").join(if cfg!(windows) { "_isograd.pyd" } else { "_isograd.abi3.so" });
    fs::copy(&module, &to).map_err(|error| format!("{} to {}: {error}", module.display(), to.display()))?;
    let python = python.to_string_lossy();
    let run = |arguments: &[&str], more: &[(&str, &OsStr)]| {
        let own: [(&str, &OsStr); 2] = [("PYTHONPATH", package.as_os_str()), ("PYTHONDONTWRITEBYTECODE", "1".as_ref())];
        tools::run_with(&python, arguments, &[&own, more].concat())
    };
    run(&[&package.join("generate.py").to_string_lossy(), "--check"], &[])?;
    let tests = package.join("tests");
    let pytest = |tests: &Path, more: &[(&str, &OsStr)]| {
        run(&["-m", "pytest", "-q", "-p", "no:cacheprovider", &tests.to_string_lossy()], more)
    };
    pytest(&tests, &[])?;
    // On GPUs that the emulator stands for.
    let Some(folder) = simt::build()? else { return Ok(()) };
    let environment = simt::environment(&folder);
    pytest(&tests.join("test_devices.py"), &environment.each_ref().map(|(name, value)| (*name, value.as_os_str())))
}

/// The module as cargo builds it.
fn module() -> PathBuf {
    let name = format!("{}_isograd{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    tools::root().join("target/debug").join(name)
}
