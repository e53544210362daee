//! `cargo xtask package`, `cargo xtask publish`: the packages of the crates, and whether each builds from its own alone.

use crate::{Failure, tools};
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// The crate that needs ROCm's headers where it has all features.
const HEADERS: &str = "isograd-hip";

/// A crate that is published.
struct Published {
    name: String,
    version: String,
    folder: PathBuf,
    features: Vec<String>,
    /// The names of dependencies that must be published before it.
    needs: Vec<String>,
}

/// Packages all crates, unpacks them outside of the repository's folders, and checks a workspace of them with all features.
pub fn run() -> Result<(), Failure> {
    let crates = in_order(published()?)?;
    crates.iter().try_for_each(licences)?;
    let mut arguments = vec!["package", "--no-verify", "--allow-dirty"];
    arguments.extend(crates.iter().flat_map(|one| ["--package", &one.name]));
    tools::run("cargo", &arguments)?;
    let target = tools::root().join("target");
    let folder = target.join("packages");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed("cannot remove", &folder))?;
    }
    fs::create_dir_all(&folder).map_err(failed("cannot create", &folder))?;
    for Published { name, version, .. } in &crates {
        let archive = target.join(format!("package/{name}-{version}.crate"));
        tools::run("tar", &["-xzf", &archive.to_string_lossy(), "-C", &folder.to_string_lossy()])?;
    }
    let manifest = folder.join("Cargo.toml");
    fs::write(&manifest, workspace(&crates)?).map_err(failed("cannot write", &manifest))?;
    // The versions with which the repository is tested.
    let (lock, to) = (tools::root().join("Cargo.lock"), folder.join("Cargo.lock"));
    fs::copy(&lock, &to).map_err(failed("cannot copy", &lock))?;
    let features = crates.iter().filter(|one| one.name != HEADERS);
    let features: Vec<String> =
        features.flat_map(|one| one.features.iter().map(|feature| format!("{}/{feature}", one.name))).collect();
    // Dependencies are those that are compiled for the repository's lints.
    tools::run(
        "cargo",
        &[
            "check",
            "--workspace",
            "--features",
            &features.join(","),
            "--manifest-path",
            &manifest.to_string_lossy(),
            "--target-dir",
            &target.to_string_lossy(),
        ],
    )?;
    say!("xtask: {} packages build from themselves alone", crates.len());
    Ok(())
}

/// Publishes all crates, each after those that it needs. A rehearsal sends none.
pub fn publish(is_rehearsal: bool) -> Result<(), Failure> {
    run()?;
    let crates = in_order(published()?)?;
    say!("xtask: the order is");
    for Published { name, version, .. } in &crates {
        say!("    {name} {version}");
    }
    // They are built above. Cargo waits for the registry to list a crate before it sends one that needs it.
    let mut arguments = vec!["publish", "--no-verify"];
    arguments.extend(crates.iter().flat_map(|one| ["--package", &one.name]));
    if is_rehearsal {
        arguments.extend(["--dry-run", "--allow-dirty"]);
    }
    tools::run("cargo", &arguments)
}

/// The crates that are published.
fn published() -> Result<Vec<Published>, Failure> {
    let text = tools::output("cargo", &["metadata", "--no-deps", "--format-version", "1"])?;
    let json: Value = serde_json::from_str(&text).map_err(|e| format!("cargo metadata: {e}"))?;
    let packages = json["packages"].as_array().into_iter().flatten();
    // A package that is not published has an empty list of registries.
    let packages = packages.filter(|package| package["publish"].is_null());
    let text = |json: &Value| json.as_str().unwrap_or_default().to_string();
    let published = packages.map(|package| {
        let needs = package["dependencies"].as_array().into_iter().flatten();
        // A dependency by its path alone is left out of the package.
        let needs = needs.filter(|needed| !needed["path"].is_null() && needed["req"] != "*");
        Published {
            name: text(&package["name"]),
            version: text(&package["version"]),
            folder: Path::new(package["manifest_path"].as_str().unwrap_or_default()).with_file_name(""),
            features: package["features"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect(),
            needs: needs.map(|needed| text(&needed["name"])).collect(),
        }
    });
    Ok(published.collect())
}

/// The crates, each after those that it needs.
fn in_order(mut rest: Vec<Published>) -> Result<Vec<Published>, Failure> {
    let mut ordered: Vec<Published> = Vec::new();
    while !rest.is_empty() {
        let is_ready = |one: &Published| one.needs.iter().all(|name| ordered.iter().any(|first| first.name == *name));
        let Some(next) = rest.iter().position(is_ready) else {
            let names: Vec<&str> = rest.iter().map(|one| one.name.as_str()).collect();
            return Err(format!("crates need each other, or one that is not published: {}", names.join(", ")));
        };
        ordered.push(rest.remove(next));
    }
    Ok(ordered)
}

/// Errors if a crate has not the texts of the licences that the repository has.
fn licences(one: &Published) -> Result<(), Failure> {
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let read = |folder: &Path| fs::read(folder.join(name)).map_err(failed("cannot read", &folder.join(name)));
        if read(&tools::root())? != read(&one.folder)? {
            return Err(format!("{}'s {name} is not the repository's", one.name));
        }
    }
    Ok(())
}

/// The manifest of a workspace of unpacked crates, with the repository's profiles.
fn workspace(crates: &[Published]) -> Result<String, Failure> {
    let root = tools::root().join("Cargo.toml");
    let own = fs::read_to_string(&root).map_err(failed("cannot read", &root))?;
    let mut text = String::from("[workspace]\nresolver = \"3\"\nmembers = [\"isograd*\"]\n\n[patch.crates-io]\n");
    for Published { name, version, .. } in crates {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name} = {{ path = \"{name}-{version}\" }}");
    }
    if let Some(profiles) = own.find("[profile.") {
        text += "\n";
        text += &own[profiles..];
    }
    Ok(text)
}

fn failed(what: &'static str, path: &Path) -> impl Fn(std::io::Error) -> Failure {
    let path = path.display().to_string();
    move |error| format!("{what} {path}: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, needs: &[&str]) -> Published {
        let needs = needs.iter().map(|name| name.to_string()).collect();
        Published { name: name.into(), version: "0.1.0".into(), folder: PathBuf::new(), features: Vec::new(), needs }
    }

    #[test]
    fn a_crate_comes_after_those_that_it_needs() {
        let ordered = in_order(vec![one("c", &["a", "b"]), one("b", &["a"]), one("a", &[])]).unwrap_or_default();
        assert_eq!(ordered.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(in_order(vec![one("a", &["b"]), one("b", &["a"])]).is_err());
    }
}
