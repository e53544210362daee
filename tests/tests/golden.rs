//! Values and gradients against PyTorch's: every case of the golden files, one test an op and direction.

use isograd::{Device, Kind, Tensor};
use isograd_parity::compare::close_values;
use isograd_tests::harness::{self, text, trial};
use isograd_parity::registry::{Attributes, find, run};
use libtest_mimic::Trial;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The cases of one file and their tensors.
struct Family {
    cases: Vec<Value>,
    bytes: Vec<u8>,
}

fn main() {
    harness::main(trials);
}

fn families() -> BTreeMap<String, Arc<Family>> {
    let folder = isograd_tests::golden();
    let mut families = BTreeMap::new();
    for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("golden values in {}: {e}", folder.display())) {
        let path = entry.expect("a folder entry").path();
        if path.extension().is_some_and(|e| e == "json") {
            let json: Value = serde_json::from_slice(&std::fs::read(&path).expect("cases")).expect("JSON");
            let cases = json["cases"].as_array().expect("a list of cases").clone();
            let bytes = std::fs::read(path.with_extension("safetensors")).expect("the cases' tensors");
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            families.insert(name, Arc::new(Family { cases, bytes }));
        }
    }
    families
}

fn trials(device: &Device) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, family) in families() {
        let mut ops: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for case in &family.cases {
            ops.entry(case["op"].as_str().expect("an op").to_string()).or_default().push(case.clone());
        }
        if ops.is_empty() {
            trials.push(trial(device, &name, "forward", || Err("the file has no cases".into())));
        }
        for (op, cases) in ops {
            let backward: Vec<Value> = cases.iter().filter(|c| !list(&c["grads"]).is_empty()).cloned().collect();
            if !backward.is_empty() {
                let (family, at) = (family.clone(), device.clone());
                let check = move || all(&backward, |case| check_backward(&family, case, &at));
                trials.push(trial(device, &op, "backward", check));
            }
            let (family, at) = (family.clone(), device.clone());
            let known = find(&op).is_some();
            let check = move || match known {
                true => all(&cases, |case| check_forward(&family, case, &at)),
                false => Err("the registry has no such op".into()),
            };
            trials.push(trial(device, &op, "forward", check));
        }
    }
    trials
}

fn list(value: &Value) -> Vec<&str> {
    value.as_array().map(|a| a.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

/// Runs every case and reports all that fail.
fn all(cases: &[Value], check: impl Fn(&Value) -> Result<(), String>) -> Result<(), String> {
    let failure = |case: &Value| check(case).err().map(|e| format!("{}: {e}", case["name"]));
    let failures: Vec<String> = cases.iter().filter_map(failure).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// A tensor of a case, if it is there.
fn tensor(family: &Family, case: &Value, part: &str, device: &Device) -> Option<Tensor> {
    let file = SafeTensors::deserialize(&family.bytes).expect("a safetensors file");
    let view = file.tensor(&format!("{}/{part}", case["name"].as_str()?)).ok()?;
    let dtype = match view.dtype() {
        Dtype::F64 => "f64",
        Dtype::F32 => "f32",
        Dtype::F16 => "f16",
        Dtype::BF16 => "bf16",
        Dtype::I64 => "i64",
        Dtype::I32 => "i32",
        Dtype::U8 => "u8",
        Dtype::BOOL => "bool",
        other => panic!("{other:?} in a golden file"),
    };
    let dtype = dtype.parse().expect("a dtype");
    Some(Tensor::from_bytes(view.data(), view.shape(), dtype, device).expect("a tensor of the file"))
}

/// The inputs of a case; those in `leaves` are leaves of the tape.
fn inputs(family: &Family, case: &Value, leaves: &[&str], device: &Device) -> Result<Vec<(String, Tensor)>, String> {
    let one = |name: &str| {
        let t = tensor(family, case, &format!("in/{name}"), device).ok_or("an input is missing in the file")?;
        Ok((name.to_string(), if leaves.contains(&name) { t.leaf().map_err(text)? } else { t }))
    };
    list(&case["inputs"]).into_iter().map(one).collect()
}

fn op<'a>(case: &'a Value, device: &Device) -> (&'a str, Attributes) {
    (case["op"].as_str().unwrap_or_default(), Attributes::new(&case["attributes"]).on(device))
}

/// Checks a result with the file's, which is in f64 or equal in any other dtype.
fn check(what: &str, got: &Tensor, expected: &Tensor, case: &Value) -> Result<(), String> {
    if got.dtype() != expected.dtype() {
        return Err(format!("{what} is {}, expected {}", got.dtype(), expected.dtype()));
    }
    if got.shape() != expected.shape() {
        return Err(format!("{what} has shape {}, expected {}", got.shape(), expected.shape()));
    }
    let tolerance = case["tolerance"].as_f64().unwrap_or(1e-10);
    let values = |t: &Tensor| t.to_f64_vec().map_err(text);
    close_values(what, &values(got)?, &values(expected)?, |r| tolerance * r.abs() + 1e-12)
}

fn check_forward(family: &Family, case: &Value, device: &Device) -> Result<(), String> {
    let (op, attributes) = op(case, device);
    let result = run(op, &attributes, &inputs(family, case, &[], device)?);
    if let Some(kind) = case["error"].as_str() {
        return match result {
            Ok(_) => Err(format!("expected an error of kind {kind}")),
            Err(e) if format!("{:?}", e.kind()) == kind && e.kind() != Kind::Backend => Ok(()),
            Err(e) => Err(format!("expected an error of kind {kind}, got {e}")),
        };
    }
    let outputs = result.map_err(text)?;
    if Some(outputs.len() as u64) != case["outputs"].as_u64() {
        return Err(format!("{} outputs, expected {}", outputs.len(), case["outputs"]));
    }
    for (k, y) in outputs.iter().enumerate() {
        let expected = tensor(family, case, &format!("out/{k}"), device).ok_or("an output is missing in the file")?;
        check(&format!("output {k}"), y, &expected, case)?;
    }
    Ok(())
}

fn check_backward(family: &Family, case: &Value, device: &Device) -> Result<(), String> {
    let (op, attributes) = op(case, device);
    let wanted = list(&case["grads"]);
    let inputs = inputs(family, case, &wanted, device)?;
    let outputs = run(op, &attributes, &inputs).map_err(text)?;
    for (k, y) in outputs.iter().enumerate() {
        if let Some(gradient) = tensor(family, case, &format!("cotangent/{k}"), device) {
            let options = isograd::tape::BackwardOptions { gradient: Some(gradient), ..Default::default() };
            y.backward_with(options).map_err(text)?;
        }
    }
    for (name, x) in inputs.iter().filter(|(name, _)| wanted.contains(&name.as_str())) {
        let expected = tensor(family, case, &format!("grad/{name}"), device).ok_or("a gradient is missing")?;
        let got = x.grad().ok_or_else(|| format!("`{name}` has no gradient"))?;
        check(&format!("the gradient of `{name}`"), &got, &expected, case)?;
    }
    Ok(())
}
