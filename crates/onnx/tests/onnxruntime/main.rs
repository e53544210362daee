//! Exported models in onnxruntime: their outputs are those of the functions that were exported. A model that `onnx.checker` rejects fails.
//!
//! onnxruntime comes from PyPI, in `target/onnxruntime` (`cargo xtask test` installs it). Without it the cases are ignored;
//! `ISOGRAD_REQUIRE=onnxruntime` makes them fail. One Python runs all models.

mod models;
mod ops;
mod rows;

use isograd_core::{DType, Device, Error, Result, Shape, Tensor, no_grad};
use isograd_cpu as _;
use isograd_nn::{Module, Sequential};
use isograd_onnx::{Batch, Export, Input};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

type F = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// The dimension of an input that has the batch size.
type At = Option<usize>;

/// A function that is exported, and inputs for which its outputs are compared. The first ones are the examples.
pub struct Case {
    name: String,
    module: Box<dyn Module + Send + Sync>,
    batch: Batch,
    at: Vec<At>,
    runs: Vec<Vec<Tensor>>,
    f: F,
}

/// The device of all tensors.
pub fn cpu() -> Device {
    Device::cpu().expect("the CPU backend is linked")
}

/// Numbers from `low` to `high` in no order, of which none is twice for less than 2003 elements.
pub fn fill(shape: impl Into<Shape>, k: usize, [low, high]: [f64; 2]) -> Tensor {
    let shape = shape.into();
    let number = |i: usize| ((7919 * i + 104_729 * k + 17) % 2003) as f64 / 2003.0 * (high - low) + low;
    let values: Vec<f32> = (0..shape.numel()).map(|i| number(i) as f32).collect();
    Tensor::from_vec(values, shape, &cpu()).expect("the values fill the shape")
}

/// Integers from 0 to `below`.
pub fn integers(shape: impl Into<Shape>, k: usize, below: i64) -> Tensor {
    fill(shape, k, [0.0, below as f64]).cast(DType::I64).expect("floats become integers")
}

impl Case {
    /// A function of inputs whose first dimension is the batch.
    pub fn new(
        name: impl Into<String>,
        inputs: Vec<Tensor>,
        f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    ) -> Case {
        let at = inputs.iter().map(|x| (x.rank() > 0).then_some(0)).collect();
        let module = Box::new(Sequential::new());
        Case { name: name.into(), module, batch: Batch::Any, at, runs: vec![inputs], f: Box::new(f) }
    }

    /// With the batch of the examples.
    pub fn fixed(self) -> Case {
        Case { batch: Batch::Fixed, ..self }
    }

    /// Of a module, whose tensors have names.
    pub fn of(self, module: impl Module + Send + Sync + 'static) -> Case {
        Case { module: Box::new(module), ..self }
    }

    /// With the dimensions of inputs that have the batch size.
    pub fn batch_at(self, at: &[At]) -> Case {
        Case { at: at.to_vec(), ..self }
    }

    /// More inputs, such as a batch of another size.
    pub fn run(mut self, inputs: Vec<Tensor>) -> Case {
        self.runs.push(inputs);
        self
    }

    /// Writes the model, and the inputs and outputs of its runs.
    fn write(&self, folder: &Path) -> Result<Value> {
        let names: Vec<String> = (0..self.at.len()).map(|i| format!("x{i}")).collect();
        let mut export = Export::new(&*self.module).batch(self.batch);
        for ((name, x), at) in names.iter().zip(&self.runs[0]).zip(&self.at) {
            let input = Input::new(name, x);
            export = export.input(at.map_or(input.clone().fixed(), |dim| input.batch_at(dim)));
        }
        let model = format!("{}.onnx", self.name);
        export.run(&self.f)?.save(folder.join(&model))?;
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
    let cases: Vec<Case> =
        ops::cases().into_iter().chain(rows::cases()).chain(models::cases()).filter(is_wanted).collect();
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
