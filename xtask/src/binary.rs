//! `cargo xtask binary`: the command as an archive for machines of this kind, tried first.

use crate::{Failure, programs, tools};
use serde_json::Value;
use std::fs;

/// Beside the program.
const TEXTS: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Builds the command for the host, trains with it, and packs it into target/binary. Whatever was there is replaced.
pub fn build() -> Result<(), Failure> {
    let arguments =
        ["build", "--release", "--locked", "--config", "profile.release.strip=true", "--package", "isograd-cli"];
    let features = ["--features", "parity,parquet,tokenizers", "--bin", "isograd"];
    let built = programs::build(&[&arguments[..], &features].concat())?;
    let program = &built.first().ok_or("the build made no program")?.path;
    let out = tools::root().join("target/binary");
    let name = format!("isograd-{}-{}", version()?, host()?);
    let folder = out.join(&name);
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if out.exists() {
        fs::remove_dir_all(&out).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    let copy = folder.join(program.file_name().ok_or("the program has no name")?);
    fs::copy(program, &copy).map_err(failed)?;
    for text in TEXTS {
        fs::copy(tools::root().join(text), folder.join(text)).map_err(failed)?;
    }
    let run = out.join("tried").to_string_lossy().into_owned();
    tools::run(&copy.to_string_lossy(), &["train", "digits", "--epochs", "2", "--device", "cpu", "--out", &run])?;
    fs::remove_dir_all(&run).map_err(failed)?;
    let archive = out.join(format!("{name}.tar.gz")).to_string_lossy().into_owned();
    tools::run("tar", &["-C", &out.to_string_lossy(), "-czf", &archive, &name])?;
    fs::remove_dir_all(&folder).map_err(failed)?;
    let bytes = fs::metadata(&archive).map_err(|error| format!("{archive}: {error}"))?.len();
    say!("xtask: {archive} has {:.1} MiB", bytes as f64 / (1 << 20) as f64);
    Ok(())
}

/// The version of the workspace's packages.
fn version() -> Result<String, Failure> {
    let metadata = tools::output("cargo", &["metadata", "--no-deps", "--format-version", "1"])?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| format!("cargo's metadata: {error}"))?;
    metadata["packages"][0]["version"].as_str().map(str::to_string).ok_or_else(|| "cargo names no version".to_string())
}

/// The target of the host's compiler.
fn host() -> Result<String, Failure> {
    let described = tools::output("rustc", &["--version", "--verbose"])?;
    let host = described.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_string).ok_or_else(|| "rustc names no host".to_string())
}
