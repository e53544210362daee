//! `cargo xtask bundle`: what another machine needs to test and measure its devices, without a toolchain.

use crate::programs::{self, Program};
use crate::{Failure, tools};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the programs are, all in one: each holds the CPU backend, which the dictionary of `XZ` keeps once.
const ARCHIVE: &str = "programs.tar.xz";
const XZ: &str = "xz -6 --lzma2=dict=128MiB";
/// What runs the programs of a bundle.
const SCRIPT: &str = include_str!("run.sh");

/// Programs of one cargo command, and their folder in the archive.
struct Programs {
    folder: &'static str,
    arguments: &'static [&'static str],
}

/// `tests` has the programs that take a device's name, and a backend's folder those that are for it alone.
const PROGRAMS: &[Programs] = &[
    Programs { folder: "bin", arguments: &["build", "-p", "isograd-cli", "--features", "parity", "--bin", "isograd"] },
    Programs {
        folder: "tests",
        arguments: &["test", "--no-run", "-p", "isograd-tests", "--test", "generated", "--test", "devices"],
    },
    Programs { folder: "cuda", arguments: &["test", "--no-run", "-p", "isograd-cuda", "--test", "cuda"] },
    Programs { folder: "hip", arguments: &["test", "--no-run", "-p", "isograd-hip", "--test", "hip"] },
];

/// Builds the bundle in `out`, or in target/bundle. What was there of an earlier bundle is replaced.
pub fn build(out: Option<&str>) -> Result<(), Failure> {
    let out = out.map_or_else(|| tools::root().join("target/bundle"), PathBuf::from);
    // Tools start in the root, and the path may be of another folder.
    let out = std::path::absolute(&out).map_err(failed("no path to", &out))?;
    let is_bundle = out.join("run.sh").exists();
    if out.exists() && !is_bundle && fs::read_dir(&out).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(format!("{} holds something that is no bundle", out.display()));
    }
    if is_bundle {
        fs::remove_dir_all(&out).map_err(failed("cannot remove", &out))?;
    }
    // The script is what shows later that this is a bundle.
    fs::create_dir_all(&out).map_err(failed("cannot create", &out))?;
    write_script(&out.join("run.sh"))?;
    let unpacked = out.join("programs");
    for programs in PROGRAMS {
        let folder = unpacked.join(programs.folder);
        fs::create_dir_all(&folder).map_err(failed("cannot create", &folder))?;
        for program in compile(programs.arguments)? {
            copy(&program.path, &folder.join(program.name()))?;
        }
    }
    let archive = out.join(ARCHIVE);
    let (from, to) = (unpacked.to_string_lossy(), archive.to_string_lossy());
    tools::run("tar", &["-C", &from, "--use-compress-program", XZ, "-cf", &to, "."])?;
    fs::remove_dir_all(&unpacked).map_err(failed("cannot remove", &unpacked))?;
    let bytes = fs::metadata(&archive).map_err(failed("cannot read", &archive))?.len();
    say!("xtask: {} has {:.1} MiB; copy it and start its run.sh", out.display(), bytes as f64 / (1 << 20) as f64);
    Ok(())
}

fn failed(what: &'static str, path: &Path) -> impl Fn(std::io::Error) -> Failure {
    let path = path.display().to_string();
    move |error| format!("{what} {path}: {error}")
}

/// The programs that a cargo command makes, stripped.
fn compile(arguments: &[&str]) -> Result<Vec<Program>, Failure> {
    let options = ["--release", "--config", "profile.release.strip=\"symbols\""];
    programs::build(&[arguments, &options].concat())
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::copy(from, to).map(drop).map_err(failed("cannot write", to))
}

fn write_script(path: &Path) -> Result<(), Failure> {
    fs::write(path, SCRIPT).map_err(failed("cannot write", path))?;
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .map_err(failed("cannot make a program of", path))?;
    Ok(())
}
