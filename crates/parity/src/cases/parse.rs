//! Parsing of case files.

use super::call::Call;
use super::chain::{Arriving, Chain, Pass, Step};
use super::{Body, Given, Parsed, Recorded, Tolerance};
use isograd_core::{DType, Device, Error, Kind, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The fields of a case with one call, and of a case with several.
const OF_CALL: [&str; 9] = ["name", "op", "attributes", "inputs", "outputs", "grads", "tolerance", "exact", "error"];
const OF_CHAIN: [&str; 6] = ["name", "calls", "inputs", "outputs", "tolerance", "exact"];

/// The fields of each kind of call in a chain. The first names the kind.
const OF_STEPS: [&[&str]; 6] = [
    &["op", "module", "attributes", "inputs", "outputs"],
    &["module", "attributes", "inputs", "outputs"],
    &["leaves"],
    &["backward", "cotangents"],
    &["gradients", "outputs"],
    &["grad", "for", "cotangents", "create_graph", "outputs"],
];

/// The most results of a call.
const MOST_OUTPUTS: u64 = 1 << 16;

/// The kinds of errors that a case may expect.
const KINDS: [Kind; 7] =
    [Kind::Shape, Kind::Dtype, Kind::Device, Kind::Attr, Kind::Index, Kind::Value, Kind::Unsupported];

/// The cases of a JSON text, with their tensors. Errors: as [`Folder::read`](super::Folder::read).
pub(crate) fn parse(family: &str, text: &str, files: &[(String, SafeTensors<'_>)]) -> Parsed<Vec<Recorded>> {
    let json: Value = serde_json::from_str(text).map_err(|e| format!("{family}: {e}"))?;
    let list = json["cases"].as_array().ok_or_else(|| format!("{family}: cases: expected a list"))?;
    let mut tensors = Tensors::new(files)?;
    let (mut cases, mut names) = (Vec::new(), BTreeSet::new());
    for (number, case) in list.iter().enumerate() {
        let case = Entry::case(family, number, case)?.read(&mut tensors)?;
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

/// The tensors of some files that are not used by a case yet, with their files.
struct Tensors<'a> {
    left: BTreeMap<String, (&'a str, TensorView<'a>)>,
    /// Name and dtype of the case's first tensor whose dtype this library lacks.
    foreign: Option<String>,
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
        Ok(Tensors { left, foreign: None })
    }

    /// A tensor by name, if it exists. A tensor of a dtype that this library lacks is replaced by an empty one.
    fn take(&mut self, name: &str) -> Parsed<Option<Tensor>> {
        let Some((file, view)) = self.left.remove(name) else { return Ok(None) };
        let of = |e: Error| format!("{file}: tensor {name}: {e}");
        let cpu = Device::cpu().map_err(of)?;
        match dtype_of(view.dtype()) {
            Some(dtype) => Tensor::from_bytes(view.data(), view.shape(), dtype, &cpu).map(Some).map_err(of),
            None => {
                self.foreign.get_or_insert_with(|| format!("no tensor is {:?}, as {name} is", view.dtype()));
                Tensor::zeros(0, DType::U8, &cpu).map(Some).map_err(of)
            }
        }
    }

    /// The names with the prefix `start`, without it, in order.
    fn parts(&self, start: &str) -> Vec<String> {
        let names = self.left.range(start.to_string()..).map(|(name, _)| name);
        names.map_while(|name| name.strip_prefix(start)).map(String::from).collect()
    }
}

fn dtype_of(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool,
        _ => return None,
    })
}

/// A case, or a call of a chain, as JSON.
struct Entry<'a> {
    family: &'a str,
    /// File, case and call, for errors.
    at: String,
    fields: &'a Map<String, Value>,
}

/// Access to fields.
impl<'a> Entry<'a> {
    fn new(family: &'a str, at: String, value: &'a Value) -> Parsed<Entry<'a>> {
        let Some(fields) = value.as_object() else { return Err(format!("{at}: expected an object")) };
        Ok(Entry { family, at, fields })
    }

    fn case(family: &'a str, number: usize, case: &'a Value) -> Parsed<Entry<'a>> {
        let at = format!("{family}: case {}", case["name"].as_str().map_or(number.to_string(), String::from));
        let entry = Entry::new(family, at, case)?;
        entry.only(if entry.has("calls") { &OF_CHAIN } else { &OF_CALL })?;
        Ok(entry)
    }

    /// Returns an error if there is any other field.
    fn only(&self, known: &[&str]) -> Parsed<()> {
        match self.fields.keys().find(|field| !known.contains(&field.as_str())) {
            Some(field) => Err(format!("{}: {field}: no such field; there are {}", self.at, known.join(", "))),
            None => Ok(()),
        }
    }

    fn has(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    fn fail<T>(&self, field: &str, what: impl fmt::Display) -> Parsed<T> {
        Err(format!("{}: {field}: {what}", self.at))
    }

    fn word(&self, field: &str) -> Parsed<&'a str> {
        self.fields.get(field).and_then(Value::as_str).map_or_else(|| self.fail(field, "expected a text"), Ok)
    }

    /// A bool; false if the field is missing.
    fn flag(&self, field: &str) -> Parsed<bool> {
        let Some(value) = self.fields.get(field) else { return Ok(false) };
        value.as_bool().map_or_else(|| self.fail(field, "expected a bool"), Ok)
    }

    /// A list of names; empty if the field is missing.
    fn names(&self, field: &str) -> Parsed<Vec<String>> {
        let Some(value) = self.fields.get(field) else { return Ok(Vec::new()) };
        let names = value.as_array().and_then(|list| list.iter().map(|v| Some(v.as_str()?.into())).collect());
        names.map_or_else(|| self.fail(field, "expected a list of names"), Ok)
    }

    fn attributes(&self) -> Parsed<Map<String, Value>> {
        match self.fields.get("attributes") {
            None => Ok(Map::new()),
            Some(Value::Object(attributes)) => Ok(attributes.clone()),
            Some(_) => self.fail("attributes", "expected an object"),
        }
    }

    /// A tensor of the case. Returns an error if it is missing.
    fn tensor(&self, tensors: &mut Tensors<'_>, field: &str, part: &str) -> Parsed<Tensor> {
        let name = format!("{}/{part}", self.word("name")?);
        let found = tensors.take(&name).map_err(|e| format!("{}: {field}: {e}", self.at))?;
        found.map_or_else(|| self.fail(field, format!("there is no tensor {name}")), Ok)
    }

    /// An expected tensor, with its tolerance.
    fn given(&self, tensors: &mut Tensors<'_>, field: &str, part: &str, all: &Tolerances) -> Parsed<Given> {
        Ok(Given { tensor: self.tensor(tensors, field, part)?, tolerance: all.of(part) })
    }
}

/// Cases with one call.
impl Entry<'_> {
    fn read(&self, tensors: &mut Tensors<'_>) -> Parsed<Recorded> {
        let name = self.word("name")?;
        tensors.foreign = None;
        let mut inputs = Vec::new();
        for x in self.names("inputs")? {
            let tensor = self.tensor(tensors, "inputs", &format!("in/{x}"))?;
            inputs.push((x, tensor));
        }
        let body = match self.has("calls") {
            true => Body::Chain(self.chain(tensors, &inputs)?),
            false => Body::Call(self.call(tensors)?),
        };
        let body = match (tensors.foreign.take(), body) {
            (Some(why), body) => Body::Foreign { op: body.op().into(), why },
            (None, Body::Call(call)) => self.checked(&inputs, call).map(Body::Call)?,
            (None, body) => body,
        };
        Ok(Recorded { family: self.family.into(), name: name.into(), inputs, body, exact: self.flag("exact")? })
    }

    fn call(&self, tensors: &mut Tensors<'_>) -> Parsed<Call> {
        let (op, attributes, error) = (self.word("op")?.to_string(), Value::Object(self.attributes()?), self.kind()?);
        let mut call = Call { op, attributes, error, ..Call::default() };
        if error.is_some() {
            return match self.has("outputs") || self.has("grads") {
                true => self.fail("error", "a call that is refused has no outputs and no grads"),
                false => Ok(call),
            };
        }
        let tolerances = self.tolerances()?;
        let (count, wanted) = self.outputs()?;
        call.count = count;
        for k in wanted {
            call.outputs.push((k, self.given(tensors, "outputs", &format!("out/{k}"), &tolerances)?));
        }
        for x in self.names("grads")? {
            let gradient = self.given(tensors, "grads", &format!("grad/{x}"), &tolerances)?;
            call.grads.push((x, gradient));
        }
        for k in tensors.parts(&format!("{}/cotangent/", self.word("name")?)) {
            let Ok(output) = k.parse() else { return self.fail("grads", format!("cotangent/{k} is of no output")) };
            call.cotangents.push((output, self.tensor(tensors, "grads", &format!("cotangent/{k}"))?));
        }
        let outputs = call.outputs.iter().map(|(k, _)| format!("out/{k}"));
        tolerances.check(self, outputs.chain(call.grads.iter().map(|(x, _)| format!("grad/{x}"))))?;
        Ok(call)
    }

    /// The number of results, if the file has it, and the numbers of the expected results.
    fn outputs(&self) -> Parsed<(Option<usize>, Vec<usize>)> {
        let size = |v: &Value| v.as_u64().filter(|k| *k <= MOST_OUTPUTS).map(|k| k as usize);
        let found = match self.fields.get("outputs") {
            Some(Value::Array(list)) => list.iter().map(size).collect::<Option<_>>().map(|list| (None, list)),
            field => field.and_then(size).map(|count| (Some(count), (0..count).collect())),
        };
        let expected = || format!("expected a number up to {MOST_OUTPUTS}, or a list of numbers of results");
        found.map_or_else(|| self.fail("outputs", expected()), Ok)
    }

    /// The expected error, if any.
    fn kind(&self) -> Parsed<Option<Kind>> {
        if !self.has("error") {
            return Ok(None);
        }
        let (word, names) = (self.word("error")?, KINDS.map(|kind| format!("{kind:?}")));
        match names.iter().position(|name| name == word) {
            Some(k) => Ok(Some(KINDS[k])),
            None => self.fail("error", format!("{word:?} is none of {}", names.join(", "))),
        }
    }

    /// Contradictory shapes are errors of the file.
    fn checked(&self, inputs: &[(String, Tensor)], call: Call) -> Parsed<Call> {
        call.cotangents.iter().try_for_each(|(k, g)| self.check_cotangent(&call, *k, g))?;
        call.grads.iter().try_for_each(|(name, g)| self.check_gradient(inputs, name, &g.tensor))?;
        match call.grads.is_empty() || !call.cotangents.is_empty() {
            true => Ok(call),
            false => self.fail("grads", "no output has a cotangent"),
        }
    }

    fn check_cotangent(&self, call: &Call, k: usize, g: &Tensor) -> Parsed<()> {
        if call.count.is_some_and(|count| k >= count) {
            return self.fail("grads", format!("cotangent/{k} is of no output"));
        }
        let output = call.outputs.iter().find(|(output, _)| *output == k).map(|(_, y)| y.tensor.shape());
        match output.filter(|shape| *shape != g.shape()) {
            Some(shape) => self.fail("grads", format!("cotangent/{k} has shape {}, out/{k} {shape}", g.shape())),
            None => Ok(()),
        }
    }

    fn check_gradient(&self, inputs: &[(String, Tensor)], name: &str, g: &Tensor) -> Parsed<()> {
        let Some((_, x)) = inputs.iter().find(|(input, _)| input == name) else {
            return self.fail("grads", format!("{name} is no input"));
        };
        if g.shape() == x.shape() && x.dtype().is_float() {
            return Ok(());
        }
        let input = format!("in/{name} is {} {}", x.dtype(), x.shape());
        self.fail("grads", format!("grad/{name} has shape {}, and {input}", g.shape()))
    }
}

/// Cases with several calls.
impl Entry<'_> {
    fn chain(&self, tensors: &mut Tensors<'_>, inputs: &[(String, Tensor)]) -> Parsed<Chain> {
        let Some(list) = self.fields["calls"].as_array() else { return self.fail("calls", "expected a list") };
        let mut names = Names { tensors: inputs.iter().map(|(name, _)| name.clone()).collect(), ..Names::default() };
        let mut steps = Vec::new();
        for (number, value) in list.iter().enumerate() {
            let entry = Entry::new(self.family, format!("{}: call {}", self.at, number + 1), value)?;
            steps.push(entry.step(&mut names)?);
        }
        let (tolerances, mut outputs) = (self.tolerances()?, Vec::new());
        for name in self.names("outputs")? {
            if !names.tensors.contains(&name) {
                return self.fail("outputs", format!("{name} is a result of no call"));
            }
            let given = self.given(tensors, "outputs", &format!("out/{name}"), &tolerances)?;
            outputs.push((name, given));
        }
        if outputs.is_empty() {
            return self.fail("outputs", "expected names of results");
        }
        tolerances.check(self, outputs.iter().map(|(name, _)| format!("out/{name}")))?;
        Ok(Chain { steps, outputs })
    }

    /// A call of a chain. It may read the given names.
    fn step(&self, names: &mut Names) -> Parsed<Step> {
        let Some(fields) = OF_STEPS.into_iter().find(|fields| self.has(fields[0])) else {
            let kinds = OF_STEPS.map(|fields| fields[0]);
            return Err(format!("{}: expected one of {}", self.at, kinds.join(", ")));
        };
        self.only(fields)?;
        let pass = self.pass(fields[0])?;
        if let Some(name) = pass.reads().into_iter().find(|name| !names.tensors.contains(*name)) {
            return self.fail("inputs", format!("{name} is no input of the case and no result of a call before"));
        }
        match &pass {
            Pass::Op { module: Some(module), .. } => drop(names.modules.insert(module.clone())),
            Pass::Module { module, .. } if !names.modules.contains(module) => {
                return self.fail("module", format!("no call before has built {module}"));
            }
            _ => {}
        }
        let outputs = self.results()?;
        names.tensors.extend(outputs.iter().flatten().cloned());
        Ok(Step { pass, outputs })
    }

    fn pass(&self, kind: &str) -> Parsed<Pass> {
        Ok(match kind {
            "op" => Pass::Op {
                op: self.word("op")?.into(),
                attributes: self.attributes()?,
                inputs: self.named_inputs()?,
                module: if self.has("module") { Some(self.word("module")?.into()) } else { None },
            },
            "module" => Pass::Module {
                module: self.word("module")?.into(),
                attributes: self.attributes()?,
                inputs: self.named_inputs()?,
            },
            "leaves" => Pass::Leaves { names: self.names("leaves")? },
            "backward" => Pass::Backward { of: self.arriving("backward")? },
            "gradients" => Pass::Gradients { of: self.names("gradients")? },
            _ => Pass::Grad {
                of: self.arriving("grad")?,
                with_respect_to: self.names("for")?,
                create_graph: self.flag("create_graph")?,
            },
        })
    }

    /// The inputs of a call, by the op's names: `{"x": "h0"}`, or a list of tensors whose names are the op's.
    fn named_inputs(&self) -> Parsed<Vec<(String, String)>> {
        let Some(Value::Object(map)) = self.fields.get("inputs") else {
            return Ok(self.names("inputs")?.into_iter().map(|name| (name.clone(), name)).collect());
        };
        let pair = |(input, name): (&String, &Value)| Some((input.clone(), name.as_str()?.to_string()));
        let pairs: Option<Vec<_>> = map.iter().map(pair).collect();
        pairs.map_or_else(|| self.fail("inputs", "expected names of tensors"), Ok)
    }

    /// Tensors with incoming gradients, each with the name of its gradient, if given.
    fn arriving(&self, field: &str) -> Parsed<Arriving> {
        let (of, cotangents) = (self.names(field)?, self.names("cotangents")?);
        if !cotangents.is_empty() && cotangents.len() != of.len() {
            return self.fail("cotangents", format!("{} names for {} tensors", cotangents.len(), of.len()));
        }
        let cotangents = cotangents.into_iter().map(Some).chain(std::iter::repeat(None));
        Ok(of.into_iter().zip(cotangents).collect())
    }

    /// The names of a call's results; `null` for a result without a name.
    fn results(&self) -> Parsed<Vec<Option<String>>> {
        let Some(value) = self.fields.get("outputs") else { return Ok(Vec::new()) };
        let name = |v: &Value| if v.is_null() { Some(None) } else { v.as_str().map(|name| Some(name.to_string())) };
        let names = value.as_array().and_then(|list| list.iter().map(name).collect());
        names.map_or_else(|| self.fail("outputs", "expected a list of names"), Ok)
    }
}

/// The names that calls of a chain may read: inputs, results of earlier calls, and modules.
#[derive(Default)]
struct Names {
    tensors: BTreeSet<String>,
    modules: BTreeSet<String>,
}

/// The tolerance of all results, or of single results by name.
#[derive(Default)]
struct Tolerances {
    all: Option<Tolerance>,
    each: BTreeMap<String, Tolerance>,
}

impl Tolerances {
    fn of(&self, result: &str) -> Option<Tolerance> {
        self.each.get(result).copied().or(self.all)
    }

    /// Returns an error for a tolerance without a result.
    fn check(&self, entry: &Entry<'_>, results: impl Iterator<Item = String>) -> Parsed<()> {
        let results: Vec<String> = results.collect();
        match self.each.keys().find(|name| !results.contains(name)) {
            Some(name) => entry.fail("tolerance", format!("{name} is none of {}", results.join(", "))),
            None => Ok(()),
        }
    }
}

impl Entry<'_> {
    /// A tolerance for all results, or an object of tolerances by the names of results.
    fn tolerances(&self) -> Parsed<Tolerances> {
        let Some(value) = self.fields.get("tolerance") else { return Ok(Tolerances::default()) };
        let one = |(name, v): (&String, &Value)| Some((name.clone(), tolerance(v)?));
        let parsed = match value.as_object().filter(|map| map.keys().any(|key| key.contains('/'))) {
            Some(map) => map.iter().map(one).collect::<Option<_>>().map(|each| Tolerances { all: None, each }),
            None => tolerance(value).map(|all| Tolerances { all: Some(all), ..Tolerances::default() }),
        };
        let expected = "expected {\"rtol\": .., \"atol\": ..} of numbers from 0 on, or such for names as out/0";
        parsed.map_or_else(|| self.fail("tolerance", expected), Ok)
    }
}

/// A relative tolerance, or `{"rtol": .., "atol": ..}`.
fn tolerance(value: &Value) -> Option<Tolerance> {
    let number = |v: Option<&Value>| v.map_or(Some(0.0), |v| v.as_f64().filter(|v| *v >= 0.0));
    match value.as_object() {
        Some(map) if map.keys().all(|key| key == "rtol" || key == "atol") => {
            Some(Tolerance { relative: number(map.get("rtol"))?, absolute: number(map.get("atol"))? })
        }
        Some(_) => None,
        None => Some(Tolerance { relative: number(Some(value))?, absolute: Tolerance::F64.absolute }),
    }
}
