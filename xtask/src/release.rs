//! `cargo xtask release`: the command for machines without Rust, in an archive.

use crate::{Failure, programs, tools};
use std::fs;
use std::path::{Path, PathBuf};

/// All features of the command.
const COMMAND: &[&str] = &[
    "build",
    "--release",
    "--config",
    "profile.release.strip=\"symbols\"",
    "-p",
    "isograd-cli",
    "--features",
    "chat,parity,parquet,serve,tokenizers",
    "--bin",
    "isograd",
];

/// Files of the repository that the archive has beside the command.
const TEXTS: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT", "README.md", "CHANGELOG.md"];

/// Builds the command in `out`, or in target/dist, and an archive of it with its licences.
pub fn build(out: Option<&str>) -> Result<(), Failure> {
    let root = tools::root();
    let out = out.map_or_else(|| root.join("target/dist"), PathBuf::from);
    // Tools start in the root, and the path may be of another folder.
    let out = std::path::absolute(&out).map_err(failed("no path to", &out))?;
    let name = format!("isograd-{}-{}", env!("CARGO_PKG_VERSION"), host()?);
    let folder = out.join(&name);
    fs::create_dir_all(&folder).map_err(failed("cannot create", &folder))?;
    let built = programs::build(COMMAND)?;
    let built = built.iter().find(|program| program.name().trim_end_matches(".exe") == "isograd");
    let built = &built.ok_or("the build made no `isograd`")?.path;
    let file = built.file_name().unwrap_or_default();
    for to in [folder.join(file), out.join(file)] {
        fs::copy(built, &to).map_err(failed("cannot write", &to))?;
    }
    for text in TEXTS {
        fs::copy(root.join(text), folder.join(text)).map_err(failed("cannot copy", Path::new(text)))?;
    }
    // Relative names: some programs take what is before a colon for another machine.
    let archive = format!("{name}.tar.gz");
    tools::run("tar", &["-C", &out.to_string_lossy(), "-czf", &archive, &name])?;
    let (made, to) = (root.join(&archive), out.join(&archive));
    fs::rename(&made, &to)
        .or_else(|_| fs::copy(&made, &to).and_then(|_| fs::remove_file(&made)))
        .map_err(failed("cannot write", &to))?;
    fs::remove_dir_all(&folder).map_err(failed("cannot remove", &folder))?;
    let bytes = fs::metadata(&to).map_err(failed("cannot read", &to))?.len();
    say!("xtask: {} has {:.1} MiB", to.display(), bytes as f64 / (1 << 20) as f64);
    Ok(())
}

/// The target for which cargo builds.
fn host() -> Result<String, Failure> {
    let text = tools::output("rustc", &["-vV"])?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_string).ok_or_else(|| "rustc names no host".into())
}

fn failed(what: &'static str, path: &Path) -> impl Fn(std::io::Error) -> Failure {
    let path = path.display().to_string();
    move |error| format!("{what} {path}: {error}")
}
