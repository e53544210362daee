//! A whole model as a case: its outputs and gradients on a device against those of the CPU.

use crate::check::caught;
use crate::compare::{Distance, Miss, measure, same_bits};
use crate::devices::{describe, opened};
use crate::options::{Check, Options};
use crate::report::{Finding, Outcome, Progress, Report, Worst};
use crate::tolerance::stage_bounds;
use isograd_core::{DType, Device, Result, Tensor};
use std::time::Instant;

/// The dtypes in which a model computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Its own.
    Own,
    /// All floats in f64: the reference.
    F64,
}

/// The results of a model, by name.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// The outputs.
    pub outputs: Vec<(String, Tensor)>,
    /// The gradients of a loss with respect to parameters and inputs.
    pub gradients: Vec<(String, Tensor)>,
}

/// A model that is run and compared.
pub struct Model<'a> {
    /// Its name in the report.
    pub name: &'a str,
    /// The number of its ops: each adds a rounding to the bounds.
    pub calls: usize,
    /// Runs it on a device. The inputs are the same ones on each.
    pub run: &'a dyn Fn(&Device, Arithmetic) -> Result<Results>,
}

/// The CPU's results in the model's dtypes and in f64.
struct Expected {
    near: Results,
    exact: Results,
}

/// Runs a model on every device, and compares outputs and gradients with those of the CPU in f64; where the model does not run in f64, with those of
/// the CPU in its own dtypes.
///
/// The bound of an element is that of an op of as many stages as the model has ops: `1.5 u |r| + max(8 E, 32 n u_acc rho) + eta`, with the CPU's largest
/// error E and the largest result rho. Results that are no floats have the same bits. Errors: `Device` if a device does not open; those of the model
/// on the CPU in its own dtypes.
pub fn run_model(model: &Model<'_>, options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Report> {
    let started = Instant::now();
    let cpu = Device::cpu()?;
    let near = (model.run)(&cpu, Arithmetic::Own)?;
    let exact = (model.run)(&cpu, Arithmetic::F64).unwrap_or_else(|_| near.clone());
    let expected = Expected { near, exact };
    let runs = options.devices.iter().map(describe).collect::<Result<Vec<_>>>()?;
    let mut report = Report::new(options, runs);
    for device in &options.devices {
        report.findings.extend(findings(model, &opened(device)?, &expected));
        report.set_time(started);
        let (done, total, what) =
            (report.findings.len(), 2 * options.devices.len(), format!("{device} {}", model.name));
        progress(Progress { done, total, what, report: &report });
    }
    report.complete = true;
    Ok(report)
}

/// A part of the results.
#[derive(Clone, Copy)]
enum Part {
    Outputs,
    Gradients,
}

impl Part {
    fn of(self, results: &Results) -> &[(String, Tensor)] {
        match self {
            Part::Outputs => &results.outputs,
            Part::Gradients => &results.gradients,
        }
    }
}

/// The findings of a device: of outputs, and of gradients if there are any.
fn findings(model: &Model<'_>, device: &Device, expected: &Expected) -> Vec<Finding> {
    let begun = Instant::now();
    let run = || -> std::result::Result<Results, String> {
        let found = (model.run)(device, Arithmetic::Own).map_err(|e| e.to_string())?;
        device.synchronize().map_err(|e| e.to_string())?;
        Ok(found)
    };
    let found = caught(run).unwrap_or_else(Err);
    let parts = [(Check::Forward, Part::Outputs), (Check::Gradients, Part::Gradients)];
    let checked = parts.into_iter().filter(|(_, part)| !part.of(&expected.near).is_empty()).map(|(check, part)| {
        let (near, exact) = (part.of(&expected.near), part.of(&expected.exact));
        let compared = match &found {
            Ok(found) => worst(part.of(found), near, exact, model.calls),
            Err(why) => Err((Miss::from(why.clone()), String::new())),
        };
        let (outcome, distance, case) = match compared {
            Ok((distance, case)) => (Outcome::Passed, distance, case),
            Err((miss, case)) => (Outcome::Failed(miss.why), miss.distance, case),
        };
        let float = near.iter().map(|(_, t)| t.dtype()).find(|dtype| dtype.is_float());
        Finding {
            op: model.name.into(),
            device: device.name().into(),
            dtype: float.map_or("-".into(), |dtype| dtype.to_string()),
            check,
            outcome,
            cases: near.len(),
            worst: Some(Worst { case, ..Worst::from(distance) }),
            seconds: begun.elapsed().as_secs_f64(),
            folder: None,
        }
    });
    checked.collect()
}

/// The largest distance of results, and the name of the result that has it.
fn worst(
    found: &[(String, Tensor)],
    near: &[(String, Tensor)],
    exact: &[(String, Tensor)],
    calls: usize,
) -> std::result::Result<(Distance, String), (Miss, String)> {
    if found.len() != near.len() || exact.len() != near.len() {
        let why = format!("{} results, expected {}", found.len(), near.len().min(exact.len()));
        return Err((Miss::from(why), String::new()));
    }
    let mut worst = (Distance::default(), String::new());
    let mut missed: Option<(Miss, String)> = None;
    for (((name, y), (_, near)), (_, exact)) in found.iter().zip(near).zip(exact) {
        match compare(name, y, near, exact, calls) {
            Ok(distance) if distance.bounds >= worst.0.bounds => worst = (distance, name.clone()),
            Ok(_) => (),
            Err(miss) => {
                missed = Some(match missed {
                    Some((first, name)) => (first.and(miss), name),
                    None => (miss, name.clone()),
                });
            }
        }
    }
    missed.map_or(Ok(worst), Err)
}

fn compare(name: &str, y: &Tensor, near: &Tensor, exact: &Tensor, calls: usize) -> std::result::Result<Distance, Miss> {
    if y.dtype() != near.dtype() || y.shape() != near.shape() {
        let [found, expected] = [y, near].map(|t| format!("{} {}", t.dtype(), t.shape()));
        return Err(Miss::from(format!("{name} is {found}, expected {expected}")));
    }
    let cpu = Device::cpu().map_err(|e| e.to_string())?;
    if !y.dtype().is_float() {
        return same_bits(name, &y.to_device(&cpu).map_err(|e| e.to_string())?, near);
    }
    let values = |t: &Tensor| t.detach().cast(DType::F64).and_then(|t| t.to_f64_vec()).map_err(|e| e.to_string());
    let (r, own, got) = (values(exact)?, values(near)?, y.to_f64_vec().map_err(|e| e.to_string())?);
    let bounds = stage_bounds(&r, &own, y.dtype(), calls);
    measure(&got, &r, y.dtype(), |i| bounds[i]).map_err(|miss| miss.told(|why| format!("{name}, {why}")))
}
