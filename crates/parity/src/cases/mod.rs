//! Calls of ops recorded elsewhere, with the expected values, gradients or error: the golden files, and the folders of `isograd
//! parity --cases DIR`.

mod call;
mod chain;
mod parse;

pub(crate) use parse::parse;

use crate::apart::{Processes, Work, is_apart, task};
use crate::case::Case;
use crate::check::caught;
use crate::compare::{Distance, Miss, measure, precision, same_bits};
use crate::devices::{describe, opened};
use crate::golden::names::names;
use crate::options::{Check, Options};
use crate::registry::{self, Attributes, Name, Op};
use crate::report::{Finding, Outcome, Progress, Report, Worst};
use call::Call;
use chain::Chain;
use isograd_core::{DType, Device, Error, Kind, Result, Tensor};
use isograd_nn::{Metadata, StateDict, save};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::Path;
use std::time::Instant;
use std::{fmt, io};

/// The name of the file of a folder's cases.
const FILE: &str = "cases.json";

/// The errors of a call that the library refuses. It has computed nothing, neither right nor wrong.
const REFUSALS: [Kind; 6] = [Kind::Shape, Kind::Dtype, Kind::Attr, Kind::Index, Kind::Value, Kind::Unsupported];

/// The word for several calls in the place of an op.
pub(crate) const CALLS: &str = "calls";

/// One call or several, with the expected results.
#[derive(Debug)]
pub struct Recorded {
    /// The file of the case.
    pub family: String,
    name: String,
    /// On the CPU, as are all tensors here.
    inputs: Vec<(String, Tensor)>,
    body: Body,
    /// True if expected floats are f64 for results of any dtype.
    exact: bool,
}

/// The calls of a case.
#[derive(Debug)]
enum Body {
    Call(Call),
    Chain(Chain),
    /// A case with a tensor of a dtype that this library lacks.
    Foreign {
        op: String,
        why: String,
    },
}

impl Body {
    /// The op of the call, or a word for several calls.
    fn op(&self) -> &str {
        match self {
            Body::Call(Call { op, .. }) | Body::Foreign { op, .. } => op,
            Body::Chain(_) => CALLS,
        }
    }
}

/// An expected tensor. Without a tolerance of its own, the bounds of the op's class apply.
#[derive(Debug)]
struct Given {
    tensor: Tensor,
    tolerance: Option<Tolerance>,
}

#[derive(Clone, Copy, Debug)]
struct Tolerance {
    relative: f64,
    absolute: f64,
}

impl Tolerance {
    /// The distance of f64 results of two libraries.
    const F64: Tolerance = Tolerance { relative: 1e-10, absolute: 1e-12 };
}

/// The reason why a case has not passed.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The case does not apply, for this reason.
    Skipped(String),
    /// The library refuses the call, with this error.
    Refused(String),
    /// The result is wrong.
    Wrong(Miss),
}

impl Fault {
    /// The distance from the expected values; 0 if nothing was computed.
    pub fn distance(&self) -> Distance {
        match self {
            Fault::Skipped(_) | Fault::Refused(_) => Distance::default(),
            Fault::Wrong(miss) => miss.distance,
        }
    }

    /// The same fault, with a place in front of its message.
    fn at(self, place: &str) -> Fault {
        match self {
            Fault::Skipped(why) => Fault::Skipped(why),
            Fault::Refused(why) => Fault::Refused(format!("{place}: {why}")),
            Fault::Wrong(miss) => Fault::Wrong(miss.told(|why| format!("{place}: {why}"))),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Skipped(why) | Fault::Refused(why) => f.write_str(why),
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
        match REFUSALS.contains(&error.kind()) {
            true => Fault::Refused(error.to_string()),
            false => error.to_string().into(),
        }
    }
}

type Checked = std::result::Result<Distance, Fault>;
type Fallible<T> = std::result::Result<T, Fault>;
type Parsed<T> = std::result::Result<T, String>;

/// Receives the name and the value of every computed result.
type Computed<'a> = &'a mut dyn FnMut(&str, &Tensor);

/// The findings of two checks. The second does not run if the first finds nothing to check.
fn both(first: Checked, second: impl FnOnce() -> Checked) -> Checked {
    match first {
        Ok(distance) => Ok(distance.or(second()?)),
        Err(Fault::Wrong(miss)) => match second() {
            Err(Fault::Wrong(other)) => Err(miss.and(other).into()),
            _ => Err(miss.into()),
        },
        Err(fault) => Err(fault),
    }
}

/// The cases of a folder.
#[derive(Debug)]
pub struct Folder {
    /// Its path.
    pub path: String,
    /// Its cases.
    pub cases: Vec<Recorded>,
}

impl Folder {
    /// Reads `cases.json` and all safetensors files in the same folder. Errors: a text that names file, case and field of a
    /// missing, malformed or contradictory entry.
    pub fn read(folder: &Path) -> Parsed<Folder> {
        let of = |path: &Path, error: &dyn fmt::Display| format!("{}: {error}", path.display());
        let json = folder.join(FILE);
        let text =
            String::from_utf8(isograd_files::read(&json).map_err(|e| e.to_string())?).map_err(|e| of(&json, &e))?;
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(|e| of(folder, &e))? {
            let path = entry.map_err(|e| of(folder, &e))?.path();
            if path.extension().is_some_and(|e| e == "safetensors") {
                paths.push(path);
            }
        }
        paths.sort();
        let bytes: Vec<Vec<u8>> =
            paths.iter().map(|path| isograd_files::read(path).map_err(|e| e.to_string())).collect::<Parsed<_>>()?;
        let files = paths.iter().zip(&bytes).map(|(path, bytes)| {
            Ok((path.display().to_string(), SafeTensors::deserialize(bytes).map_err(|e| of(path, &e))?))
        });
        let files: Vec<(String, SafeTensors<'_>)> = files.collect::<Parsed<_>>()?;
        Ok(Folder { path: folder.display().to_string(), cases: parse(&json.display().to_string(), &text, &files)? })
    }
}

impl Recorded {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The op's name; `calls` for several calls.
    pub fn op(&self) -> &str {
        self.body.op()
    }

    /// The names of all ops of the case.
    fn ops(&self) -> Vec<&str> {
        match &self.body {
            Body::Chain(chain) => chain.ops().collect(),
            body => vec![body.op()],
        }
    }

    /// The dtype of the floats: the dtype of the first float input, or of the first result.
    pub fn dtype(&self) -> Option<DType> {
        let outputs: Vec<&Given> = match &self.body {
            Body::Call(call) => call.outputs.iter().map(|(_, y)| y).collect(),
            Body::Chain(chain) => chain.outputs.iter().map(|(_, y)| y).collect(),
            Body::Foreign { .. } => Vec::new(),
        };
        let all = self.inputs.iter().map(|(_, t)| t).chain(outputs.into_iter().map(|y| &y.tensor));
        all.map(Tensor::dtype).find(|dtype| dtype.is_float())
    }

    /// True if gradients are expected.
    pub fn has_gradients(&self) -> bool {
        matches!(&self.body, Body::Call(call) if !call.grads.is_empty())
    }

    /// The call in the registry's form, for a case with one call.
    pub(crate) fn call(&self) -> Option<Case> {
        let Body::Call(call) = &self.body else { return None };
        call.case(self).ok()
    }

    /// The inputs, each transformed by `f`.
    fn inputs(&self, f: impl Fn(&str, &Tensor) -> Result<Tensor>) -> Result<Vec<(String, Tensor)>> {
        self.inputs.iter().map(|(name, t)| Ok((name.clone(), f(name, t)?))).collect()
    }

    /// Checks the results of a call, or the expected error.
    pub fn forward(&self, device: &Device) -> Checked {
        match &self.body {
            Body::Call(call) => call.forward(self, device, &mut |_, _| ()),
            _ => self.check(device),
        }
    }

    /// Checks the gradients of a call.
    pub fn backward(&self, device: &Device) -> Checked {
        match &self.body {
            Body::Call(call) => call.backward(self, device, &mut |_, _| ()),
            _ => Ok(Distance::default()),
        }
    }

    /// Checks results and gradients.
    pub fn check(&self, device: &Device) -> Checked {
        self.check_and_tell(device, &mut |_, _| ())
    }

    fn check_and_tell(&self, device: &Device, computed: Computed<'_>) -> Checked {
        match &self.body {
            Body::Call(call) => {
                let forward = call.forward(self, device, computed);
                both(forward, || call.backward(self, device, computed))
            }
            Body::Chain(chain) => chain.check(self, device, computed),
            Body::Foreign { why, .. } => Err(Fault::Skipped(why.clone())),
        }
    }

    /// Checks a result against the file's. The bound is its own tolerance, the tolerance of f64, or `limits`.
    fn compare(&self, what: &str, y: &Tensor, given: &Given, limits: impl FnOnce() -> Fallible<Vec<f64>>) -> Checked {
        let r = &given.tensor;
        let is_wider = self.exact && r.dtype() == DType::F64 && y.dtype().is_float();
        if y.dtype() != r.dtype() && !is_wider {
            return Err(format!("{what} is {}, expected {}", y.dtype(), r.dtype()).into());
        }
        if y.shape() != r.shape() {
            return Err(format!("{what} has shape {}, expected {}", y.shape(), r.shape()).into());
        }
        if !y.dtype().is_float() {
            return Ok(same_bits(what, &y.to_device(r.device())?, r)?);
        }
        let (y_values, r_values) = (y.to_f64_vec()?, r.to_f64_vec()?);
        let tolerance = given.tolerance.or(if y.dtype() == DType::F64 { Some(Tolerance::F64) } else { None });
        let found = match tolerance {
            Some(t) => {
                let found = measure(&y_values, &r_values, y.dtype(), |i| t.relative * r_values[i].abs() + t.absolute);
                // The bound does not concern units in the last place.
                found.map(|found| Distance { ulps: 0.0, ..found })
            }
            None => {
                let limits = limits()?;
                // The expected value is rounded too.
                let own = if self.exact { 0.0 } else { precision(r.dtype()).0 };
                measure(&y_values, &r_values, y.dtype(), |i| limits[i] + own * r_values[i].abs())
            }
        };
        Ok(found.map_err(|miss| miss.told(|e| format!("{what}, {e}")))?)
    }

    /// The finding of a check on a device that [`opened`] returned. Results are written to a file of the folder `dump`.
    pub(crate) fn finding(&self, folder: &str, device: &Device, has_f64: bool, dump: Option<&Path>) -> Finding {
        let begun = Instant::now();
        let mut results = StateDict::new();
        let mut keep = |part: &str, t: &Tensor| {
            if dump.is_some() {
                results.insert(format!("{}/{part}", self.name), t.detach());
            }
        };
        let checked = match self.reason(has_f64) {
            Some(why) => Err(Fault::Skipped(why)),
            None => caught(|| self.check_and_tell(device, &mut keep)).unwrap_or_else(|why| Err(why.into())),
        };
        let checked = match dump.filter(|_| !results.is_empty()).map(|dump| self.dump(dump, device, &results)) {
            Some(Err(error)) => both(checked, || Err(error.into())),
            _ => checked,
        };
        Finding { seconds: begun.elapsed().as_secs_f64(), ..finding(folder, self, device, checked) }
    }

    /// Writes results to `<folder>/<device>/<case>.safetensors`, under the names of the expected results.
    fn dump(&self, folder: &Path, device: &Device, results: &StateDict) -> Result<()> {
        let folder = folder.join(file_name(device.name()));
        std::fs::create_dir_all(&folder).map_err(|e| Error::io(&folder, "creating", e))?;
        save(folder.join(file_name(&self.name) + ".safetensors"), results, &Metadata::new())
    }

    /// The reason why the case does not apply, on a device or in general.
    fn reason(&self, has_f64: bool) -> Option<String> {
        let is_wide = |op: &str| registry::find(op).and_then(|op| op.wide);
        let wide = match &self.body {
            Body::Call(call) if !call.has_tolerance() => is_wide(&call.op),
            _ => None,
        };
        match self.dtype() {
            Some(DType::F64) if !has_f64 => Some("the device has no f64".into()),
            Some(dtype) if dtype.size() == 2 => wide.map(String::from),
            _ => None,
        }
    }
}

/// The content of a slot. `make` fills an empty slot.
fn lazily<T>(slot: &mut Option<T>, make: impl FnOnce() -> Fallible<T>) -> Fallible<&T> {
    let made = match slot.take() {
        Some(made) => made,
        None => make()?,
    };
    Ok(slot.insert(made))
}

/// A file name for a name. Different names give different file names.
fn file_name(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let one = |c: char| if is_plain(c) { c.to_string() } else { format!("%{:x}%", c as u32) };
    // A name of dots alone is a folder.
    match name.strip_prefix('.') {
        Some(rest) => format!("%2e%{}", file_name(rest)),
        None => name.chars().map(one).collect(),
    }
}

fn find(op: &str) -> Fallible<&'static Op> {
    registry::find(op).ok_or_else(|| Fault::Skipped(format!("unknown op {op}")))
}

/// Runs an op. Errors: `Skipped` if the op did not read an attribute or an input, and does not know its name.
fn called(op: &str, attributes: &Value, inputs: &[(String, Tensor)], device: &Device) -> Fallible<Result<Vec<Tensor>>> {
    let (op, attributes) = (find(op)?, Attributes::new(attributes).on(device));
    let result = waited(op.invoke(&attributes, inputs), device);
    match unknown(op, &attributes, inputs, result.is_err()).next() {
        Some(fault) => Err(fault),
        None => Ok(result),
    }
}

/// Also waits for errors that a kernel finds in its data, which a device may report later.
fn waited(result: Result<Vec<Tensor>>, device: &Device) -> Result<Vec<Tensor>> {
    result.and_then(|outputs| device.synchronize().map(|()| outputs))
}

/// The attributes and inputs that a call has not read, as faults. A failed call may not have come to names that other calls read;
/// these are no faults.
fn unknown<'a>(
    op: &'a Op,
    attributes: &Attributes,
    inputs: &[(String, Tensor)],
    has_failed: bool,
) -> impl Iterator<Item = Fault> + use<'a> {
    let unread = attributes.unread(inputs).into_iter().filter(move |name| !has_failed || !knows(op, name));
    unread.map(|(what, name)| Fault::Skipped(format!("unknown {what} {name} of {}", op.name)))
}

/// True if a known call of the op reads this attribute or input.
fn knows(op: &Op, name: &Name) -> bool {
    // Tensors of a list are numbered.
    let kind = |(what, name): &Name| (*what, name.split(|c: char| c.is_ascii_digit()).collect::<String>());
    op.names().into_iter().chain(names(op.name).cloned()).any(|known| kind(&known) == kind(name))
}

/// Runs the cases of a folder that match the options (name of case or op, dtype) on every device. Each finished case is reported to
/// `progress`, and is a finding of its own. Errors: `Device` if a device does not open.
pub fn run_cases(folder: &Folder, options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Report> {
    let started = Instant::now();
    let runs = options.devices.iter().map(describe).collect::<Result<Vec<_>>>()?;
    let mut cases: Vec<&Recorded> = folder.cases.iter().filter(|case| is_chosen(case, options)).collect();
    cases.sort_by_key(|case| (case.op(), case.dtype().map(|dtype| dtype.to_string())));
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
            for of_op in cases.chunk_by(|a, b| (a.op(), a.dtype()) == (b.op(), b.dtype())) {
                let ask = &mut |names| {
                    processes
                        .ask(&task(run, Work::Cases { folder: folder.path.clone(), names, dump: options.dump.clone() }))
                };
                let found = elsewhere(folder, of_op, device, ask);
                of_op.iter().zip(found).for_each(|(case, found)| tell(device, case, found));
            }
            continue;
        }
        let device = &opened(device)?;
        cases.iter().for_each(|case| {
            tell(device, case, case.finding(&folder.path, device, run.has_f64, options.dump.as_deref()))
        });
        // Queued work must not run while the device is closed. Its errors belong to a case that has been reported.
        drop(device.synchronize());
    }
    report.complete = true;
    Ok(report)
}

/// Runs cases in another process, through `ask`, by name. If that process ends, each case runs alone.
fn elsewhere(
    folder: &Folder,
    cases: &[&Recorded],
    device: &Device,
    ask: &mut dyn FnMut(Vec<String>) -> io::Result<Vec<Finding>>,
) -> Vec<Finding> {
    match ask(cases.iter().map(|case| case.name.clone()).collect()) {
        Ok(found) if found.len() == cases.len() => found,
        _ if cases.len() > 1 => cases.iter().flat_map(|case| elsewhere(folder, &[case], device, ask)).collect(),
        found => {
            let why = found.err().map_or("the process found nothing".into(), |why| why.to_string());
            cases.iter().map(|case| finding(&folder.path, case, device, Err(why.clone().into()))).collect()
        }
    }
}

/// True if a case matches the options.
pub fn is_chosen(case: &Recorded, options: &Options) -> bool {
    let is_named = options
        .filter
        .as_ref()
        .is_none_or(|re| re.is_match(&case.name) || case.ops().into_iter().any(|op| re.is_match(op)));
    is_named && options.dtype.is_none_or(|dtype| case.dtype() == Some(dtype))
}

fn finding(folder: &str, case: &Recorded, device: &Device, checked: Checked) -> Finding {
    let distance = checked.as_ref().map_or_else(Fault::distance, |&distance| distance);
    let worst = Worst { case: case.name.clone(), ..Worst::from(distance) };
    Finding {
        op: case.op().into(),
        device: device.name().into(),
        dtype: case.dtype().map_or("-".into(), |dtype| dtype.to_string()),
        check: Check::Golden,
        outcome: match checked {
            Ok(_) => Outcome::Passed,
            Err(Fault::Wrong(miss)) => Outcome::Failed(miss.why),
            Err(Fault::Skipped(why)) => Outcome::Skipped(why),
            Err(Fault::Refused(why)) => Outcome::Refused(why),
        },
        cases: 1,
        worst: Some(worst),
        seconds: 0.0,
        folder: Some(folder.into()),
    }
}
