//! Calls of ops that were recorded elsewhere, with the values, gradients or error that they must give: the golden files,
//! and folders that `isograd parity --cases DIR` reads.

use crate::apart::{Processes, Work};
use crate::case::Case;
use crate::check::narrow;
use crate::compare::{Distance, Miss, measure, same_bits};
use crate::golden::CASES;
use crate::registry::{self, Attributes, Class, Name, Op};
use crate::report::{DeviceRun, Finding, Outcome, Report, Worst};
use crate::run::{Check, Options, Progress, caught, describe, is_apart, task};
use crate::tolerance::{Arriving, Measures, Slices, bounds, gradient_bounds};
use crate::watch::private;
use isograd_core::tape::BackwardOptions;
use isograd_core::{DType, Device, Error, Kind, Result, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Instant;

/// What the file of a folder's cases is called.
const FILE: &str = "cases.json";

/// The fields that a case may have.
const FIELDS: [&str; 9] = ["name", "op", "attributes", "inputs", "outputs", "grads", "tolerance", "exact", "error"];

/// The errors that a case may demand.
const KINDS: [Kind; 7] =
    [Kind::Shape, Kind::Dtype, Kind::Device, Kind::Attr, Kind::Index, Kind::Value, Kind::Unsupported];

/// How near f64 results of two libraries come.
const F64: Tolerance = Tolerance { relative: 1e-10, absolute: 1e-12 };

/// A call of an op with what it must give.
#[derive(Debug)]
pub struct Recorded {
    /// The file that has it.
    pub family: String,
    name: String,
    op: String,
    attributes: Value,
    /// On the CPU, as all tensors here.
    inputs: Vec<(String, Tensor)>,
    expected: Expected,
    tolerance: Option<Tolerance>,
    /// The floats that are expected are f64, whatever the dtype of the results.
    exact: bool,
}

#[derive(Debug)]
enum Expected {
    Error(Kind),
    Values { outputs: Vec<Tensor>, cotangents: Vec<Option<Tensor>>, grads: Vec<(String, Tensor)> },
}

#[derive(Clone, Copy, Debug)]
struct Tolerance {
    relative: f64,
    absolute: f64,
}

/// Why a case has not passed.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// It says nothing here, for this reason.
    Skipped(String),
    /// What is wrong.
    Wrong(Miss),
}

impl Fault {
    /// How far off it is; nothing, if it says nothing.
    pub fn distance(&self) -> Distance {
        match self {
            Fault::Skipped(_) => Distance::default(),
            Fault::Wrong(miss) => miss.distance,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Skipped(why) => f.write_str(why),
            Fault::Wrong(miss) => miss.fmt(f),
        }
    }
}

impl From<Miss> for Fault {
    fn from(miss: Miss) -> Fault {
        Fault::Wrong(miss)
    }
}

impl From<String> for Fault {
    fn from(why: String) -> Fault {
        Miss::from(why).into()
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        error.to_string().into()
    }
}

type Checked = std::result::Result<Distance, Fault>;
type Parsed<T> = std::result::Result<T, String>;

/// The cases of a folder.
#[derive(Debug)]
pub struct Folder {
    /// Its path.
    pub path: String,
    /// What it has.
    pub cases: Vec<Recorded>,
}

impl Folder {
    /// Reads `cases.json` and all files of safetensors beside it. Errors: a text that names file, case and field of what is
    /// missing, malformed or contradicts itself.
    pub fn read(folder: &Path) -> Parsed<Folder> {
        let of = |path: &Path, error: &dyn fmt::Display| format!("{}: {error}", path.display());
        let json = folder.join(FILE);
        let text = std::fs::read_to_string(&json).map_err(|e| of(&json, &e))?;
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(|e| of(folder, &e))? {
            let path = entry.map_err(|e| of(folder, &e))?.path();
            if path.extension().is_some_and(|e| e == "safetensors") {
                paths.push(path);
            }
        }
        paths.sort();
        let bytes: Vec<Vec<u8>> =
            paths.iter().map(|path| std::fs::read(path).map_err(|e| of(path, &e))).collect::<Parsed<_>>()?;
        let files = paths.iter().zip(&bytes).map(|(path, bytes)| {
            Ok((path.display().to_string(), SafeTensors::deserialize(bytes).map_err(|e| of(path, &e))?))
        });
        let files: Vec<(String, SafeTensors<'_>)> = files.collect::<Parsed<_>>()?;
        Ok(Folder { path: folder.display().to_string(), cases: parse(&json.display().to_string(), &text, &files)? })
    }
}

/// The cases of a file, whose text is JSON, with their tensors. Errors: as [`Folder::read`].
pub(crate) fn parse(family: &str, text: &str, files: &[(String, SafeTensors<'_>)]) -> Parsed<Vec<Recorded>> {
    let json: Value = serde_json::from_str(text).map_err(|e| format!("{family}: {e}"))?;
    let list = json["cases"].as_array().ok_or_else(|| format!("{family}: cases: expected a list"))?;
    let mut tensors = Tensors::new(files)?;
    let (mut cases, mut names) = (Vec::new(), BTreeSet::new());
    for (number, case) in list.iter().enumerate() {
        let case = Entry::new(family, number, case)?.read(&mut tensors)?;
        if !names.insert(case.name.clone()) {
            return Err(format!("{family}: case {}: name: another case has it", case.name));
        }
        cases.push(case);
    }
    match tensors.left.first_key_value() {
        Some((name, (file, _))) => Err(format!("{file}: tensor {name}: no case of {family} lists it")),
        None => Ok(cases),
    }
}

/// The tensors of some files that no case has taken, with their files.
struct Tensors<'a> {
    left: BTreeMap<String, (&'a str, TensorView<'a>)>,
}

impl<'a> Tensors<'a> {
    fn new(files: &'a [(String, SafeTensors<'a>)]) -> Parsed<Tensors<'a>> {
        let mut left = BTreeMap::new();
        for (file, tensors) in files {
            for (name, view) in tensors.tensors() {
                if let Some((other, _)) = left.insert(name.clone(), (&**file, view)) {
                    return Err(format!("{file}: tensor {name}: {other} has it, too"));
                }
            }
        }
        Ok(Tensors { left })
    }

    /// A tensor by name, if it is there.
    fn take(&mut self, name: &str) -> Parsed<Option<Tensor>> {
        let Some((file, view)) = self.left.remove(name) else { return Ok(None) };
        let dtype = match view.dtype() {
            Dtype::F64 => DType::F64,
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::I64 => DType::I64,
            Dtype::I32 => DType::I32,
            Dtype::U8 => DType::U8,
            Dtype::BOOL => DType::Bool,
            other => return Err(format!("{file}: tensor {name}: no tensor is {other:?}")),
        };
        let of = |e: Error| format!("{file}: tensor {name}: {e}");
        Tensor::from_bytes(view.data(), view.shape(), dtype, &Device::cpu().map_err(of)?).map(Some).map_err(of)
    }
}

/// A case as it stands in the file.
struct Entry<'a> {
    family: &'a str,
    /// File and case, for errors.
    at: String,
    fields: &'a Map<String, Value>,
}

impl<'a> Entry<'a> {
    fn new(family: &'a str, number: usize, case: &'a Value) -> Parsed<Entry<'a>> {
        let at = format!("{family}: case {}", case["name"].as_str().map_or(number.to_string(), String::from));
        let fields = case.as_object().ok_or_else(|| format!("{at}: expected an object"))?;
        match fields.keys().find(|field| !FIELDS.contains(&field.as_str())) {
            Some(field) => Err(format!("{at}: {field}: no such field; there are {}", FIELDS.join(", "))),
            None => Ok(Entry { family, at, fields }),
        }
    }

    fn fail<T>(&self, field: &str, what: impl fmt::Display) -> Parsed<T> {
        Err(format!("{}: {field}: {what}", self.at))
    }

    fn word(&self, field: &str) -> Parsed<&'a str> {
        self.fields.get(field).and_then(Value::as_str).map_or_else(|| self.fail(field, "expected a text"), Ok)
    }

    /// A list of names, none if the field is not there.
    fn names(&self, field: &str) -> Parsed<Vec<&'a str>> {
        let Some(value) = self.fields.get(field) else { return Ok(Vec::new()) };
        let names = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        names.map_or_else(|| self.fail(field, "expected a list of names"), Ok)
    }

    fn read(&self, tensors: &mut Tensors<'_>) -> Parsed<Recorded> {
        let name = self.word("name")?;
        let mut tensor = |field: &str, part: &str| -> Parsed<Option<Tensor>> {
            tensors.take(&format!("{name}/{part}")).map_err(|e| format!("{}: {field}: {e}", self.at))
        };
        let mut there = |field: &str, part: String| -> Parsed<Tensor> {
            tensor(field, &part)?.map_or_else(|| self.fail(field, format!("there is no tensor {name}/{part}")), Ok)
        };
        let inputs = self.names("inputs")?.into_iter();
        let inputs: Vec<(String, Tensor)> =
            inputs.map(|x| Ok((x.to_string(), there("inputs", format!("in/{x}"))?))).collect::<Parsed<_>>()?;
        let expected = match self.fields.get("error") {
            Some(_) if self.fields.contains_key("outputs") || self.fields.contains_key("grads") => {
                return self.fail("error", "a call that is refused has no outputs and no grads");
            }
            Some(_) => Expected::Error(self.kind()?),
            None => {
                let Some(count) = self.fields.get("outputs").and_then(Value::as_u64) else {
                    return self.fail("outputs", "expected a number");
                };
                let outputs: Vec<Tensor> =
                    (0..count).map(|k| there("outputs", format!("out/{k}"))).collect::<Parsed<_>>()?;
                let grads = self.names("grads")?.into_iter();
                let grads: Vec<(String, Tensor)> =
                    grads.map(|x| Ok((x.to_string(), there("grads", format!("grad/{x}"))?))).collect::<Parsed<_>>()?;
                let cotangents = (0..count).map(|k| tensor("grads", &format!("cotangent/{k}")));
                Expected::Values { cotangents: cotangents.collect::<Parsed<_>>()?, outputs, grads }
            }
        };
        self.check(&inputs, &expected)?;
        let attributes = match self.fields.get("attributes") {
            None => Value::Object(Map::new()),
            Some(attributes) if attributes.is_object() => attributes.clone(),
            Some(_) => return self.fail("attributes", "expected an object"),
        };
        let exact = match self.fields.get("exact") {
            None => false,
            Some(exact) => exact.as_bool().map_or_else(|| self.fail("exact", "expected a bool"), Ok)?,
        };
        let (family, op) = (self.family.to_string(), self.word("op")?.to_string());
        Ok(Recorded {
            family,
            name: name.into(),
            op,
            attributes,
            inputs,
            expected,
            tolerance: self.tolerance()?,
            exact,
        })
    }

    fn kind(&self) -> Parsed<Kind> {
        let word = self.word("error")?;
        let names = KINDS.map(|kind| format!("{kind:?}"));
        let found = KINDS.into_iter().zip(&names).find(|(_, name)| *name == word);
        found.map_or_else(|| self.fail("error", format!("{word:?} is none of {}", names.join(", "))), |(k, _)| Ok(k))
    }

    /// Shapes that contradict each other are a mistake of the file.
    fn check(&self, inputs: &[(String, Tensor)], expected: &Expected) -> Parsed<()> {
        let Expected::Values { outputs, cotangents, grads } = expected else { return Ok(()) };
        for (k, (y, cotangent)) in outputs.iter().zip(cotangents).enumerate() {
            if let Some(g) = cotangent.as_ref().filter(|g| g.shape() != y.shape()) {
                return self.fail("grads", format!("cotangent/{k} has shape {}, out/{k} {}", g.shape(), y.shape()));
            }
        }
        for (name, g) in grads {
            let Some((_, x)) = inputs.iter().find(|(input, _)| input == name) else {
                return self.fail("grads", format!("{name} is no input"));
            };
            if g.shape() != x.shape() || !x.dtype().is_float() {
                let input = format!("in/{name} is {} {}", x.dtype(), x.shape());
                return self.fail("grads", format!("grad/{name} has shape {}, and {input}", g.shape()));
            }
        }
        match grads.is_empty() || cotangents.iter().any(Option::is_some) {
            true => Ok(()),
            false => self.fail("grads", "no output has a cotangent"),
        }
    }

    /// A factor of what is expected, or `{"rtol": .., "atol": ..}`.
    fn tolerance(&self) -> Parsed<Option<Tolerance>> {
        let Some(value) = self.fields.get("tolerance") else { return Ok(None) };
        let number = |v: Option<&Value>| v.map_or(Some(0.0), |v| v.as_f64().filter(|v| *v >= 0.0));
        let (relative, absolute) = match value.as_object() {
            Some(map) if map.keys().all(|key| key == "rtol" || key == "atol") => {
                (number(map.get("rtol")), number(map.get("atol")))
            }
            Some(_) => (None, None),
            None => (number(Some(value)), Some(F64.absolute)),
        };
        let (Some(relative), Some(absolute)) = (relative, absolute) else {
            return self.fail("tolerance", "expected {\"rtol\": .., \"atol\": ..} of numbers from 0 on");
        };
        Ok(Some(Tolerance { relative, absolute }))
    }
}

impl Recorded {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The op's name.
    pub fn op(&self) -> &str {
        &self.op
    }

    /// The dtype of its floats: of the first input that is one, else of the first result.
    pub fn dtype(&self) -> Option<DType> {
        let outputs = match &self.expected {
            Expected::Values { outputs, .. } => &outputs[..],
            Expected::Error(_) => &[],
        };
        let all = self.inputs.iter().map(|(_, t)| t).chain(outputs);
        all.map(Tensor::dtype).find(|dtype| dtype.is_float())
    }

    /// True if there are gradients.
    pub fn has_gradients(&self) -> bool {
        matches!(&self.expected, Expected::Values { grads, .. } if !grads.is_empty())
    }

    /// The names of its attributes and inputs.
    fn names(&self) -> impl Iterator<Item = Name> {
        let attributes = self.attributes.as_object().into_iter().flat_map(|map| map.keys());
        let inputs = self.inputs.iter().map(|(name, _)| ("input", name.clone()));
        attributes.map(|name| ("attribute", name.clone())).chain(inputs)
    }

    fn find(&self) -> std::result::Result<&'static Op, Fault> {
        registry::find(&self.op).ok_or_else(|| Fault::Skipped(format!("unknown op {}", self.op)))
    }

    /// The inputs; those in `leaves` are leaves of the tape.
    fn inputs(&self, leaves: &[(String, Tensor)], device: &Device) -> Result<Vec<(String, Tensor)>> {
        let one = |(name, t): &(String, Tensor)| {
            let (t, is_leaf) = (t.to_device(device)?, leaves.iter().any(|(leaf, _)| leaf == name));
            Ok((name.clone(), if is_leaf { t.leaf()? } else { t }))
        };
        self.inputs.iter().map(one).collect()
    }

    /// Runs the op. Errors: `Skipped` if it did not look at an attribute or an input, whose name it does not know, then.
    fn run(&self, inputs: &[(String, Tensor)], device: &Device) -> std::result::Result<Result<Vec<Tensor>>, Fault> {
        let op = self.find()?;
        let attributes = Attributes::new(&self.attributes).on(device);
        // What a kernel finds in its data, a device may tell later.
        let result =
            registry::run(&self.op, &attributes, inputs).and_then(|outputs| device.synchronize().map(|()| outputs));
        let mut unread = attributes.unread(inputs);
        if result.is_err() {
            // It may have failed before it came to look.
            unread.retain(|name| !knows(op, name));
        }
        match unread.first() {
            Some((what, name)) => Err(Fault::Skipped(format!("unknown {what} {name} of {}", self.op))),
            None => Ok(result),
        }
    }

    /// The results, or the error that is demanded.
    pub fn forward(&self, device: &Device) -> Checked {
        let result = self.run(&self.inputs(&[], device)?, device)?;
        let outputs = match &self.expected {
            Expected::Values { outputs, .. } => outputs,
            Expected::Error(kind) => {
                return match result {
                    Ok(_) => Err(format!("expected an error of kind {kind:?}").into()),
                    Err(e) if e.kind() == *kind => Ok(Distance::default()),
                    Err(e) => Err(format!("expected an error of kind {kind:?}, got {e}").into()),
                };
            }
        };
        let got = result?;
        if got.len() != outputs.len() {
            return Err(format!("{} outputs, expected {}", got.len(), outputs.len()).into());
        }
        let mut limits = None;
        let mut worst = Distance::default();
        for (k, (y, r)) in got.iter().zip(outputs).enumerate() {
            let bound = || -> Parsed<Vec<f64>> {
                let all = match limits.take() {
                    Some(all) => all,
                    None => self.bounds(&got, device).map_err(|e| e.to_string())?,
                };
                Ok(limits.insert(all)[k].clone())
            };
            worst = worst.or(self.compare(&format!("output {k}"), y, r, bound)?);
        }
        Ok(worst)
    }

    /// The gradients.
    pub fn backward(&self, device: &Device) -> Checked {
        let Expected::Values { grads, .. } = &self.expected else { return Ok(Distance::default()) };
        let got = self.gradients(&self.inputs(grads, device)?, device)?;
        let mut limits = None;
        let mut worst = Distance::default();
        for (k, ((name, r), g)) in grads.iter().zip(&got).enumerate() {
            let bound = || -> Parsed<Vec<f64>> {
                let all = match limits.take() {
                    Some(all) => all,
                    None => self.bounds_of_gradients().map_err(|e| e.to_string())?,
                };
                Ok(limits.insert(all)[k].clone())
            };
            worst = worst.or(self.compare(&format!("the gradient of `{name}`"), g, r, bound)?);
        }
        Ok(worst)
    }

    /// The gradients that are asked for, of these inputs, which are leaves.
    fn gradients(&self, inputs: &[(String, Tensor)], device: &Device) -> std::result::Result<Vec<Tensor>, Fault> {
        let Expected::Values { cotangents, grads, .. } = &self.expected else { return Ok(Vec::new()) };
        let outputs = self.run(inputs, device)??;
        for (y, cotangent) in outputs.iter().zip(cotangents) {
            if let Some(g) = cotangent {
                if g.dtype() != y.dtype() && !self.exact && y.dtype() != DType::F64 {
                    return Err(format!("a cotangent is {}, expected {}", g.dtype(), y.dtype()).into());
                }
                let gradient = Some(g.to_device(device)?.cast(y.dtype())?);
                y.backward_with(BackwardOptions { gradient, ..Default::default() })?;
            }
        }
        let of = |(name, _): &(String, Tensor)| -> std::result::Result<Tensor, Fault> {
            let (_, x) = inputs.iter().find(|(input, _)| input == name).expect("gradients are of inputs");
            x.grad().ok_or_else(|| format!("`{name}` has no gradient").into())
        };
        grads.iter().map(of).collect()
    }

    /// Checks a result with the file's: by the case's tolerance, that of f64, or the bounds of the op's class.
    fn compare(
        &self,
        what: &str,
        y: &Tensor,
        r: &Tensor,
        limits: impl FnOnce() -> Parsed<Vec<f64>>,
    ) -> std::result::Result<Distance, Miss> {
        let is_wider = self.exact && r.dtype() == DType::F64 && y.dtype().is_float();
        if y.dtype() != r.dtype() && !is_wider {
            return Err(format!("{what} is {}, expected {}", y.dtype(), r.dtype()).into());
        }
        if y.shape() != r.shape() {
            return Err(format!("{what} has shape {}, expected {}", y.shape(), r.shape()).into());
        }
        let cpu = r.device();
        if !y.dtype().is_float() {
            return same_bits(what, &y.to_device(cpu).map_err(|e| e.to_string())?, r);
        }
        let values = |t: &Tensor| t.to_f64_vec().map_err(|e| e.to_string());
        let (y_values, r_values) = (values(y)?, values(r)?);
        let tolerance = self.tolerance.or(if y.dtype() == DType::F64 { Some(F64) } else { None });
        let found = match tolerance {
            Some(t) => {
                let found = measure(&y_values, &r_values, y.dtype(), |i| t.relative * r_values[i].abs() + t.absolute);
                // The bound says nothing about units in the last place.
                found.map(|found| Distance { ulps: 0.0, ..found })
            }
            None => {
                let limits = limits()?;
                // What is expected was rounded as well.
                let own = if self.exact { 0.0 } else { crate::compare::precision(r.dtype()).0 };
                measure(&y_values, &r_values, y.dtype(), |i| limits[i] + own * r_values[i].abs())
            }
        };
        found.map_err(|miss| miss.told(|e| format!("{what}, {e}")))
    }

    /// The call with its inputs on the CPU.
    fn case(&self) -> Result<Case> {
        Ok(Case { attributes: self.attributes.clone(), inputs: self.inputs.clone(), device: Some(Device::cpu()?) })
    }

    /// The bounds of the results, which come from runs of the same call on the CPU, in f64 and in its own dtype.
    fn bounds(&self, got: &[Tensor], device: &Device) -> Result<Vec<Vec<f64>>> {
        let (op, case) = (self.find().map_err(|e| Error::value(self.op.clone(), e.to_string()))?, self.case()?);
        let wide = narrow(&case, DType::F64)?;
        let (exact, companions) = (op.call(&wide)?, op.companion_of(&wide)?);
        let yardsticks = if op.class == Class::Stages { Some(op.call(&case)?) } else { None };
        let of = |(k, y): (usize, &Tensor)| {
            if !y.dtype().is_float() {
                return Ok(Vec::new());
            }
            let errors = yardsticks.as_ref().map(|all| errors(&all[k], &exact[k])).transpose()?;
            let measures = Measures { companion: companions[k].to_f64_vec()?, errors };
            bounds(op, &wide, &exact[k], &measures, y.dtype(), device)
        };
        got.iter().enumerate().map(of).collect()
    }

    fn bounds_of_gradients(&self) -> std::result::Result<Vec<Vec<f64>>, Fault> {
        let Expected::Values { cotangents, grads, .. } = &self.expected else { return Ok(Vec::new()) };
        let (op, cpu) = (self.find()?, Device::cpu()?);
        let mut arriving: f64 = 0.0;
        for g in cotangents.iter().flatten() {
            arriving = g.to_f64_vec()?.into_iter().map(f64::abs).fold(arriving, f64::max);
        }
        let own = self.inputs(grads, &cpu)?;
        let wide = own.iter().map(|(name, t)| {
            let wide = if t.dtype().is_float() { t.detach().cast(DType::F64)? } else { t.clone() };
            Ok((name.clone(), if t.requires_grad() { wide.leaf()? } else { wide }))
        });
        let case = narrow(&self.case()?, DType::F64)?;
        let arriving = Arriving::new(op, &case, arriving)?;
        let exact = self.gradients(&wide.collect::<Result<Vec<_>>>()?, &cpu)?;
        let yardstick = self.gradients(&own, &cpu)?;
        let slices = Slices::of_gradients(op, &case, &exact.iter().map(Tensor::shape).collect::<Vec<_>>())?;
        let of = |((exact, yardstick), slices): ((&Tensor, &Tensor), &Slices)| {
            let errors = errors(yardstick, exact)?;
            Ok(gradient_bounds(op, &exact.to_f64_vec()?, &errors, None, arriving, slices, yardstick.dtype()))
        };
        exact.iter().zip(&yardstick).zip(&slices).map(of).collect()
    }

    /// Results and gradients.
    pub fn check(&self, device: &Device) -> Checked {
        let found = self.forward(device)?;
        if self.has_gradients() { Ok(found.or(self.backward(device)?)) } else { Ok(found) }
    }

    /// What a check finds on a device that [`opened`] gave.
    pub(crate) fn finding(&self, folder: &str, device: &Device, has_f64: bool) -> Finding {
        let begun = Instant::now();
        let checked = match self.reason(has_f64) {
            Some(why) => Err(Fault::Skipped(why)),
            None => caught(|| self.check(device)).unwrap_or_else(|why| Err(why.into())),
        };
        Finding { seconds: begun.elapsed().as_secs_f64(), ..finding(folder, self, device, checked) }
    }

    /// Why it says nothing on a device, or at all.
    fn reason(&self, has_f64: bool) -> Option<String> {
        let wide = registry::find(&self.op).and_then(|op| op.wide).filter(|_| self.tolerance.is_none());
        match self.dtype() {
            Some(DType::F64) if !has_f64 => Some("the device has no f64".into()),
            Some(dtype) if dtype.size() == 2 => wide.map(String::from),
            _ => None,
        }
    }
}

/// How far the elements of two tensors are apart.
fn errors(y: &Tensor, exact: &Tensor) -> Result<Vec<f64>> {
    Ok(y.to_f64_vec()?.iter().zip(exact.to_f64_vec()?).map(|(y, r)| (y - r).abs()).collect())
}

/// Whether an op looks at such an attribute or input in any call that is known.
fn knows(op: &Op, name: &Name) -> bool {
    // Tensors of a list have numbers.
    let kind = |(what, name): &Name| (*what, name.split(|c: char| c.is_ascii_digit()).collect::<String>());
    let recorded = CASES.iter().filter(|case| case.op == op.name).flat_map(Recorded::names);
    op.names().into_iter().chain(recorded).any(|known| kind(&known) == kind(name))
}

/// Runs the cases of a folder that the options choose, by the name of case or op and by dtype, on every device, and tells
/// `progress` of each that is done. Every case is a finding of its own. Errors: `Device` if a device does not open.
pub fn run_cases(folder: &Folder, options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Report> {
    let started = Instant::now();
    let runs = options.devices.iter().map(describe).collect::<Result<Vec<_>>>()?;
    let mut cases: Vec<&Recorded> = folder.cases.iter().filter(|case| is_chosen(case, options)).collect();
    cases.sort_by_key(|case| (&case.op, case.dtype().map(|dtype| dtype.to_string())));
    let total = cases.len() * runs.len();
    let mut report = Report::new(options, runs.clone());
    let mut tell = |device: &Device, case: &Recorded, found: Finding| {
        report.findings.push(found);
        report.set_time(started);
        let what = format!("{device} {}", case.name);
        progress(Progress { done: report.findings.len(), total, what, report: &report });
    };
    for (run, device) in runs.iter().zip(&options.devices) {
        if let Some(apart) = options.apart.as_ref().filter(|_| is_apart(options, run)) {
            let mut processes = Processes::new(apart);
            for of_op in cases.chunk_by(|a, b| (&a.op, a.dtype()) == (&b.op, b.dtype())) {
                let found = elsewhere(folder, of_op, run, device, &mut processes);
                of_op.iter().zip(found).for_each(|(case, found)| tell(device, case, found));
            }
            continue;
        }
        let device = &opened(device)?;
        cases.iter().for_each(|case| tell(device, case, case.finding(&folder.path, device, run.has_f64)));
        // What is still in a queue must not run while the device goes away. Its errors were those of a case.
        drop(device.synchronize());
    }
    report.complete = true;
    Ok(report)
}

/// A device with a queue of its own, whose errors have the kinds that an op gives them.
pub(crate) fn opened(device: &Device) -> Result<Device> {
    let device = private(device)?;
    device.set_checked(true);
    Ok(device)
}

/// Some cases in another process; if that ends, each alone.
fn elsewhere(
    folder: &Folder,
    cases: &[&Recorded],
    run: &DeviceRun,
    device: &Device,
    processes: &mut Processes<'_>,
) -> Vec<Finding> {
    let mut ask = |cases: &[&Recorded]| {
        let names = cases.iter().map(|case| case.name.clone()).collect();
        processes.ask(&task(run, Work::Cases { folder: folder.path.clone(), names }))
    };
    match ask(cases) {
        Ok(found) if found.len() == cases.len() => found,
        _ if cases.len() > 1 => {
            cases.iter().flat_map(|case| elsewhere(folder, &[case], run, device, processes)).collect()
        }
        found => {
            let why = found.err().map_or("the process found nothing".into(), |why| why.to_string());
            cases.iter().map(|case| finding(&folder.path, case, device, Err(why.clone().into()))).collect()
        }
    }
}

/// Whether the options choose a case.
pub fn is_chosen(case: &Recorded, options: &Options) -> bool {
    let is_named = options.filter.as_ref().is_none_or(|re| re.is_match(&case.name) || re.is_match(&case.op));
    is_named && options.dtype.is_none_or(|dtype| case.dtype() == Some(dtype))
}

fn finding(folder: &str, case: &Recorded, device: &Device, checked: Checked) -> Finding {
    let distance = checked.as_ref().map_or_else(Fault::distance, |&distance| distance);
    let worst = Worst { case: case.name.clone(), ..Worst::from(distance) };
    Finding {
        op: case.op.clone(),
        device: device.name().into(),
        dtype: case.dtype().map_or("-".into(), |dtype| dtype.to_string()),
        check: Check::Golden,
        outcome: match checked {
            Ok(_) => Outcome::Passed,
            Err(Fault::Wrong(miss)) => Outcome::Failed(miss.why),
            Err(Fault::Skipped(why)) => Outcome::Skipped(why),
        },
        cases: 1,
        worst: Some(worst),
        seconds: 0.0,
        folder: Some(folder.into()),
    }
}
