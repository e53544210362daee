//! The commit of the sources, for reports: of the repository, or what a package says of it.

use std::path::Path;
use std::process::Command;

/// The file in which `cargo package` writes the commit.
const PACKAGED: &str = ".cargo_vcs_info.json";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if Path::new(PACKAGED).exists() {
        println!("cargo::rerun-if-changed={PACKAGED}");
        if let Some(commit) = packaged() {
            println!("cargo::rustc-env=ISOGRAD_COMMIT={commit}");
        }
        return;
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    // It is another one when the log of HEAD grows.
    if let (Some(commit), Some(log)) =
        (git(&["rev-parse", "--short", "HEAD"]), git(&["rev-parse", "--git-path", "logs/HEAD"]))
    {
        println!("cargo::rustc-env=ISOGRAD_COMMIT={commit}");
        println!("cargo::rerun-if-changed={log}");
    }
}

/// The first digits of the commit of a package.
fn packaged() -> Option<String> {
    let text = std::fs::read_to_string(PACKAGED).ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    let commit: String = rest.chars().skip_while(|c| !c.is_ascii_hexdigit()).take(8).collect();
    Some(commit)
}
