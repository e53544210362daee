//! Programs that chores start.

use crate::Failure;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The repository.
pub fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// True if `program` starts and succeeds; its output is not shown.
pub fn works(program: &str, arguments: &[&str]) -> bool {
    let status =
        Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|s| s.success())
}

/// Runs `program` in the repository, with its output shown.
pub fn run(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    let command = || format!("{program} {}", arguments.join(" "));
    let status = Command::new(program).args(arguments).current_dir(root()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` failed ({status})", command())),
        Err(error) => Err(format!("`{}` could not be started: {error}", command())),
    }
}

/// Runs `program` in the repository; its stdout is the result, its stderr is shown.
pub fn output(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    let command = || format!("{program} {}", arguments.join(" "));
    let output = Command::new(program).args(arguments).current_dir(root()).stderr(Stdio::inherit()).output();
    match output {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => Err(format!("`{}` failed ({})", command(), output.status)),
        Err(error) => Err(format!("`{}` could not be started: {error}", command())),
    }
}

/// Installs a component of the toolchain unless `cargo <subcommand>` is there.
pub fn ensure_component(subcommand: &str, component: &str) -> Result<(), Failure> {
    if works("cargo", &[subcommand, "--version"]) {
        return Ok(());
    }
    if !works("rustup", &["--version"]) {
        let advice = format!("install {component} as you installed Rust, or Rust through https://rustup.rs");
        return Err(format!("`cargo {subcommand}` is missing and so is rustup; {advice}"));
    }
    println!("xtask: installing {component}");
    run("rustup", &["component", "add", component])
}

/// Installs PoCL, an OpenCL device on the CPU, unless there is a device or it cannot be installed here. The tests of
/// OpenCL are skipped without one; `ISOGRAD_REQUIRE=opencl` makes them fail instead.
pub fn ensure_opencl() {
    let is_there = |folder: &str| std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    if is_there("/etc/OpenCL/vendors") {
        return;
    }
    let packages = ["install", "--yes", "--no-install-recommends", "pocl-opencl-icd", "ocl-icd-libopencl1"];
    for prefix in [&["apt-get"][..], &["sudo", "-n", "apt-get"]] {
        if works(prefix[0], &[&prefix[1..], &["--version"]].concat()) {
            println!("xtask: installing PoCL, an OpenCL device on the CPU");
            let apt = |arguments: &[&str]| run(prefix[0], &[&prefix[1..], arguments].concat());
            if apt(&packages).or_else(|_| apt(&["update"]).and_then(|()| apt(&packages))).is_ok() {
                return;
            }
        }
    }
    println!("xtask: there is no OpenCL device, and PoCL could not be installed: OpenCL is not tested");
}
