//! Values and gradients from PyTorch, which are a part of this program.

use crate::compare::{Distance, close_values};
use crate::registry::{Attributes, run};
use isograd_core::tape::BackwardOptions;
use isograd_core::{Device, Kind, Tensor};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::sync::LazyLock;

macro_rules! families {
    ($($name:literal)*) => {
        /// Name, cases and tensors of each family.
        const FILES: &[(&str, &str, &[u8])] = &[$((
            $name,
            include_str!(concat!("../golden/", $name, ".json")),
            include_bytes!(concat!("../golden/", $name, ".safetensors")),
        )),*];
    };
}

families! {
    "activation" "binary" "embedding" "fused_pointwise" "gemm_bias" "indexing" "loss" "matmul" "normalization" "optimizer"
    "reduction" "table28" "unary" "utility"
}

/// All cases.
pub static CASES: LazyLock<Vec<Golden>> = LazyLock::new(|| {
    let of = |(&(family, cases, _), tensors): (&'static (&'static str, &str, &[u8]), &'static SafeTensors<'static>)| {
        let cases: Value = serde_json::from_str(cases).expect("a golden file is JSON");
        let cases = cases["cases"].as_array().expect("a list of cases").clone();
        cases.into_iter().map(move |case| Golden { family, case, tensors })
    };
    FILES.iter().zip(TENSORS.iter()).flat_map(of).collect()
});

static TENSORS: LazyLock<Vec<SafeTensors<'static>>> = LazyLock::new(|| {
    let of =
        |(.., bytes): &(&str, &str, &'static [u8])| SafeTensors::deserialize(bytes).expect("a file of safetensors");
    FILES.iter().map(of).collect()
});

/// One call of an op with what it must give.
pub struct Golden {
    /// The file that has it.
    pub family: &'static str,
    case: Value,
    tensors: &'static SafeTensors<'static>,
}

type Found = Result<Distance, String>;

fn list(value: &Value) -> Vec<&str> {
    value.as_array().map(|a| a.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

impl Golden {
    /// Its name.
    pub fn name(&self) -> &str {
        self.case["name"].as_str().unwrap_or_default()
    }

    /// The op's name.
    pub fn op(&self) -> &str {
        self.case["op"].as_str().unwrap_or_default()
    }

    /// True if there are gradients.
    pub fn has_gradients(&self) -> bool {
        !list(&self.case["grads"]).is_empty()
    }

    /// A tensor of the case, if it is there.
    fn tensor(&self, part: &str, device: &Device) -> Result<Option<Tensor>, String> {
        let Ok(view) = self.tensors.tensor(&format!("{}/{part}", self.name())) else { return Ok(None) };
        let dtype = match view.dtype() {
            Dtype::F64 => "f64",
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::BF16 => "bf16",
            Dtype::I64 => "i64",
            Dtype::I32 => "i32",
            Dtype::U8 => "u8",
            Dtype::BOOL => "bool",
            other => return Err(format!("{part} is {other:?}, which no tensor is")),
        };
        let dtype = dtype.parse().map_err(|e: isograd_core::Error| e.to_string())?;
        Tensor::from_bytes(view.data(), view.shape(), dtype, device).map(Some).map_err(|e| e.to_string())
    }

    fn expected(&self, part: &str, device: &Device) -> Result<Tensor, String> {
        self.tensor(part, device)?.ok_or_else(|| format!("{part} is missing in the file"))
    }

    /// The inputs; those in `leaves` are leaves of the tape.
    fn inputs(&self, leaves: &[&str], device: &Device) -> Result<Vec<(String, Tensor)>, String> {
        let one = |name: &str| {
            let t = self.expected(&format!("in/{name}"), device)?;
            Ok((name.to_string(), if leaves.contains(&name) { t.leaf().map_err(|e| e.to_string())? } else { t }))
        };
        list(&self.case["inputs"]).into_iter().map(one).collect()
    }

    fn attributes(&self, device: &Device) -> Attributes {
        Attributes::new(&self.case["attributes"]).on(device)
    }

    /// Checks a result with the file's, which is in f64 or equal in any other dtype.
    fn check(&self, what: &str, got: &Tensor, expected: &Tensor) -> Found {
        if got.dtype() != expected.dtype() {
            return Err(format!("{what} is {}, expected {}", got.dtype(), expected.dtype()));
        }
        if got.shape() != expected.shape() {
            return Err(format!("{what} has shape {}, expected {}", got.shape(), expected.shape()));
        }
        let tolerance = self.case["tolerance"].as_f64().unwrap_or(1e-10);
        let values = |t: &Tensor| t.to_f64_vec().map_err(|e| e.to_string());
        let found = close_values(what, &values(got)?, &values(expected)?, |r| tolerance * r.abs() + 1e-12)?;
        // The bound is PyTorch's own precision, of which units in the last place say nothing.
        Ok(Distance { ulps: 0.0, ..found })
    }

    /// The results, or the error that is demanded.
    pub fn forward(&self, device: &Device) -> Found {
        // What a kernel finds in its data, a device may tell later.
        let result = run(self.op(), &self.attributes(device), &self.inputs(&[], device)?)
            .and_then(|outputs| device.synchronize().map(|()| outputs));
        if let Some(kind) = self.case["error"].as_str() {
            return match result {
                Ok(_) => Err(format!("expected an error of kind {kind}")),
                Err(e) if format!("{:?}", e.kind()) == kind && e.kind() != Kind::Backend => Ok(Distance::default()),
                Err(e) => Err(format!("expected an error of kind {kind}, got {e}")),
            };
        }
        let outputs = result.map_err(|e| e.to_string())?;
        if Some(outputs.len() as u64) != self.case["outputs"].as_u64() {
            return Err(format!("{} outputs, expected {}", outputs.len(), self.case["outputs"]));
        }
        let mut worst = Distance::default();
        for (k, y) in outputs.iter().enumerate() {
            let expected = self.expected(&format!("out/{k}"), device)?;
            worst = worst.or(self.check(&format!("output {k}"), y, &expected)?);
        }
        Ok(worst)
    }

    /// The gradients.
    pub fn backward(&self, device: &Device) -> Found {
        let wanted = list(&self.case["grads"]);
        let inputs = self.inputs(&wanted, device)?;
        let outputs = run(self.op(), &self.attributes(device), &inputs).map_err(|e| e.to_string())?;
        for (k, y) in outputs.iter().enumerate() {
            if let Some(gradient) = self.tensor(&format!("cotangent/{k}"), device)? {
                let options = BackwardOptions { gradient: Some(gradient), ..Default::default() };
                y.backward_with(options).map_err(|e| e.to_string())?;
            }
        }
        let mut worst = Distance::default();
        for (name, x) in inputs.iter().filter(|(name, _)| wanted.contains(&name.as_str())) {
            let expected = self.expected(&format!("grad/{name}"), device)?;
            let got = x.grad().ok_or_else(|| format!("`{name}` has no gradient"))?;
            worst = worst.or(self.check(&format!("the gradient of `{name}`"), &got, &expected)?);
        }
        Ok(worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_file_is_included_and_has_cases() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut there: Vec<String> = files
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        there.sort();
        assert_eq!(there, FILES.iter().map(|(name, ..)| *name).collect::<Vec<_>>());
        for name in there {
            assert!(CASES.iter().any(|case| case.family == name), "{name}");
        }
    }
}
