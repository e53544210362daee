//! The ops and modules of the registry, for authors of cases: `isograd parity --list`.

use crate::case::Case;
use crate::cases::Recorded;
use crate::check::caught;
use crate::golden::CASES;
use crate::registry::{Category, Name, Op, Parameter};
use isograd_core::{DType, Result, Tensor};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The parameters of an op in a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    /// The op's name.
    pub name: &'static str,
    /// Its family.
    pub category: Category,
    /// The inputs, with their dtypes if they are not floats. The first input of a numbered list stands for all.
    pub inputs: Vec<(String, Parameter)>,
    /// The attributes.
    pub attributes: Vec<(String, Parameter)>,
    /// The dtypes of float inputs, or of the result of an op without inputs.
    pub dtypes: Vec<DType>,
}

/// The parameters of an op, from the names that its calls read: generated calls, and calls with values from PyTorch. Errors:
/// `Device` if there is no CPU.
pub fn signature(op: &Op) -> Result<Signature> {
    let mut cases = op.examples()?;
    let generated = cases.len();
    cases.extend(CASES.iter().filter(|case| case.op() == op.name).filter_map(Recorded::call));
    let calls: Vec<_> = cases.iter().map(|case| (case, op.parameters(case))).collect();
    let successful: Vec<&Case> = calls.iter().filter(|(_, (_, has_run))| *has_run).map(|(case, _)| *case).collect();
    let mut parameters = BTreeMap::new();
    calls.iter().flat_map(|(_, (found, _))| found).for_each(|(name, found)| add(&mut parameters, name, found));
    parameters.iter_mut().for_each(|(name, parameter)| compare(name, parameter, &successful));
    let dtypes = DType::ALL.into_iter().filter(|&dtype| takes(op, &cases[..generated], dtype)).collect();
    let [inputs, attributes] = ["input", "attribute"].map(|kind| {
        let named =
            parameters.iter().filter(|((what, name), _)| *what == kind && !is_repeated(&parameters, what, name));
        named.map(|((_, name), parameter)| (name.clone(), parameter.clone())).collect()
    });
    Ok(Signature { name: op.name, category: op.category, inputs, attributes, dtypes })
}

/// Adds a call's information about a parameter.
fn add(parameters: &mut BTreeMap<Name, Parameter>, name: &Name, found: &Parameter) {
    let new = || Parameter { order: found.order, ..Parameter::default() };
    let known = parameters.entry(name.clone()).or_insert_with(new);
    known.is_optional |= found.is_optional;
    known.default = known.default.take().or(found.default.clone());
    if known.expected.is_empty() {
        known.expected = found.expected.clone();
    }
}

/// Completes a parameter from calls: it is optional if a call omits it. Inputs that are not floats get their dtypes.
fn compare(name: &Name, parameter: &mut Parameter, successful: &[&Case]) {
    let is_absent = successful.iter().any(|case| !is_given(case, name));
    // Absent tensors of a list look optional; the first one is required.
    parameter.is_optional = is_absent || (parameter.is_optional && !is_numbered(name.0, &name.1));
    let inputs =
        successful.iter().flat_map(|case| &case.inputs).filter(|(input, _)| name.0 == "input" && *input == name.1);
    let dtypes: BTreeSet<String> = inputs.map(|(_, t)| t.dtype().to_string()).collect();
    if !dtypes.is_empty() && !dtypes.iter().any(|dtype| dtype.contains('f')) {
        parameter.expected = dtypes.into_iter().collect::<Vec<_>>().join(" or ");
    }
}

/// True for an input of a list, whose numbers begin at 0.
fn is_numbered(what: &str, name: &str) -> bool {
    what == "input" && name.find(|c: char| c.is_ascii_digit()).is_some_and(|at| name[at..].starts_with('0'))
}

/// True for an input of a list other than the first.
fn is_repeated(parameters: &BTreeMap<Name, Parameter>, what: &str, name: &str) -> bool {
    let kind = |name: &str| name.split(|c: char| c.is_ascii_digit()).map(String::from).collect::<Vec<_>>();
    let first = parameters.keys().find(|(other, first)| *other == what && kind(first) == kind(name));
    first.is_some_and(|(_, first)| first != name && is_numbered(what, first))
}

fn is_given(case: &Case, (what, name): &Name) -> bool {
    match *what {
        "input" => case.inputs.iter().any(|(input, _)| input == name),
        _ => case.attributes.get(name).is_some_and(|value| !value.is_null()),
    }
}

/// True if an op accepts the floats of its generated calls in this dtype.
fn takes(op: &Op, cases: &[Case], dtype: DType) -> bool {
    let narrow = |t: &Tensor| match dtype.is_float() || dtype == DType::Bool {
        true => t.cast(dtype),
        false => t.mul_scalar(8.0)?.abs()?.cast(dtype),
    };
    let in_dtype = |case: &Case| -> Option<Case> {
        let is_source = case.inputs.is_empty() && case.attributes.get("dtype").is_some();
        let mut case = case.map_floats(narrow).ok()?;
        if !dtype.is_float() {
            whole(&mut case.attributes);
        }
        if is_source {
            case.attributes["dtype"] = dtype.to_string().into();
        }
        (is_source || case.inputs.iter().any(|(_, t)| t.dtype() == dtype)).then_some(case)
    };
    let runs = |case: Case| caught(|| op.call(&case).is_ok()).unwrap_or(false);
    let has_floats = |case: &&Case| case.inputs.is_empty() || case.inputs.iter().any(|(_, t)| t.dtype().is_float());
    cases.iter().filter(has_floats).filter_map(in_dtype).any(runs)
}

/// Converts the numbers among attributes to integers.
fn whole(attributes: &mut Value) {
    let values = attributes.as_object_mut().into_iter().flat_map(|map| map.values_mut());
    values.filter(|value| value.is_f64()).for_each(|value| *value = (value.as_f64().unwrap_or(0.0) as i64).into());
}

impl Signature {
    /// A paragraph: the op, its family and dtypes, then a line for each input and attribute.
    pub fn text(&self) -> String {
        let dtypes: Vec<String> = self.dtypes.iter().map(DType::to_string).collect();
        let mut lines = vec![format!("{} ({}) {}", self.name, self.category, dtypes.join(" ")).trim_end().to_string()];
        lines.extend(self.inputs.iter().map(|(name, parameter)| line("input", name, parameter)));
        lines.extend(self.attributes.iter().map(|(name, parameter)| line("attribute", name, parameter)));
        lines.join("\n")
    }
}

fn line(kind: &str, name: &str, parameter: &Parameter) -> String {
    let shown = |value: &Value| value.as_str().map_or(value.to_string(), String::from);
    let default = parameter.default.as_ref().map(|value| format!("default {}", shown(value)));
    let optional = (parameter.is_optional && default.is_none()).then(|| "optional".to_string());
    let several = is_numbered(kind, name).then(|| "one or several".to_string());
    let expected = Some(parameter.expected.clone()).filter(|expected| !expected.is_empty());
    let facts: Vec<String> = [expected, several, default, optional].into_iter().flatten().collect();
    format!("  {kind:<9} {name:<22} {}", facts.join("; ")).trim_end().to_string()
}
