//! Exported models in onnxruntime: their outputs are those of the functions that were exported. A model that `onnx.checker` rejects fails.
//!
//! onnxruntime comes from PyPI, in `target/onnxruntime` (`cargo xtask test` installs it). Without it the cases are ignored;
//! `ISOGRAD_REQUIRE=onnxruntime` makes them fail. One Python runs all models.

#[path = "../cases/mod.rs"]
mod cases;

use cases::Case;
use isograd_core::{Error, Result, Tensor, no_grad};
use isograd_cpu as _;
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

impl Case {
    /// Writes the model, and the inputs and outputs of its runs.
    fn write(&self, folder: &Path) -> Result<Value> {
        let (names, model) = (self.names(), format!("{}.onnx", self.name));
        self.export()?.save(folder.join(&model))?;
        let mut runs = Vec::new();
        for (r, inputs) in self.runs.iter().enumerate() {
            let tensor = |name: String, t: &Tensor| -> Result<Value> {
                let file = format!("{}.{r}.{name}", self.name);
                let error = |e| Error::io(&folder.join(&file), "write", e);
                fs::write(folder.join(&file), t.to_bytes()?).map_err(error)?;
                Ok(json!({ "file": file, "dtype": t.dtype().to_string(), "shape": t.dims() }))
            };
            let outputs = no_grad(|| (self.f)(inputs))?;
            let inputs: Map<String, Value> = names
                .iter()
                .zip(inputs)
                .map(|(name, x)| Ok((name.clone(), tensor(name.clone(), x)?)))
                .collect::<Result<_>>()?;
            let outputs: Vec<Value> =
                outputs.iter().enumerate().map(|(i, y)| tensor(format!("y{i}"), y)).collect::<Result<_>>()?;
            runs.push(json!({ "inputs": inputs, "outputs": outputs }));
        }
        Ok(json!({ "name": self.name, "model": model, "runs": runs }))
    }
}

/// The Python that has onnxruntime.
fn python() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/onnxruntime");
    let programs = ["bin/python", "Scripts/python.exe"].map(|program| target.join(program));
    programs.into_iter().find(|program| program.exists())
}

/// Why cases fail, by their names.
fn failures(cases: &[Case], python: &Path) -> std::result::Result<HashMap<String, String>, String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let (mut found, mut written) = (HashMap::new(), Vec::new());
    for case in cases {
        match case.write(folder.path()) {
            Ok(described) => written.push(described),
            Err(error) => drop(found.insert(case.name.clone(), error.to_string())),
        }
    }
    fs::write(folder.path().join("cases.json"), Value::from(written).to_string()).map_err(|e| e.to_string())?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnxruntime/check.py");
    let output = Command::new(python).arg(script).arg(folder.path()).output().map_err(|e| e.to_string())?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let checked: HashMap<String, String> = serde_json::from_str(printed.trim())
        .map_err(|e| format!("{e}: {printed}{}", String::from_utf8_lossy(&output.stderr)))?;
    found.extend(checked);
    Ok(found)
}

fn main() {
    let arguments = Arguments::from_args();
    let python = python();
    let required = std::env::var("ISOGRAD_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').any(|name| name.trim() == "onnxruntime");
    let is_wanted = |case: &Case| match &arguments.filter {
        Some(filter) if arguments.exact => case.name == *filter,
        Some(filter) => case.name.contains(filter.as_str()),
        None => true,
    };
    let cases: Vec<Case> = cases::all().into_iter().filter(is_wanted).collect();
    let names: Vec<String> = cases.iter().map(|case| case.name.clone()).collect();
    let (is_missing, found) = (python.is_none(), Arc::new(OnceLock::new()));
    let (cases, python) = (Arc::new(cases), python.map(Arc::new));
    let trial = |name: String| {
        let (cases, python, found, key) = (cases.clone(), python.clone(), found.clone(), name.clone());
        let run = move || -> std::result::Result<(), Failed> {
            let python = python.as_ref().ok_or("onnxruntime is missing: `cargo xtask test` installs it")?;
            match found.get_or_init(|| failures(&cases, python)) {
                Ok(failures) => failures.get(&key).map_or(Ok(()), |why| Err(why.into())),
                Err(why) => Err(why.into()),
            }
        };
        Trial::test(name, run).with_ignored_flag(is_missing && !is_required)
    };
    libtest_mimic::run(&arguments, names.into_iter().map(trial).collect()).exit();
}
