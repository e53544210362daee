//! Derivatives of every op against finite differences in f64, linear ops against their adjoints, fused kernels against their composites, and what is not
//! finite.

use isograd::{DType, Device, tape};
use isograd_parity::case::Case;
use isograd_parity::check::{self, Found};
use isograd_parity::compare::Distance;
use isograd_parity::finite;
use isograd_parity::registry::{Derivative, OPS, Op};
use isograd_tests::harness::{self, cases, text, trial};
use libtest_mimic::Trial;

pub fn trials(device: &Device) -> Vec<Trial> {
    harness::sampled(device, &["stale", "anomalies"], OPS.iter().flat_map(|op| of(op, device)))
}

fn of(op: &'static Op, device: &Device) -> Vec<Trial> {
    let named = |aspect: &str, drawn, check: fn(&Op, &Case, &Device) -> Found| {
        let at = device.clone();
        trial(device, op.name, aspect, move || cases(op, &[], drawn, |case, _| check(op, case, &at)))
    };
    let anomalies = named("anomalies", 8, finite::anomalies);
    if let Derivative::None(_) = op.derivative {
        return vec![named("not_differentiable", 3, check::unrecorded), anomalies];
    }
    let at = device.clone();
    let undefined = move || cases(op, &[], 16, |case, seed| finite::undefined(op, case, &at, seed));
    let mut trials = vec![
        anomalies,
        trial(device, op.name, "undefined", undefined),
        named("gradcheck", 48, check::gradcheck),
        named("alone", 16, |op, case, device| check::alone(op, case, DType::F64, device)),
        named("twice", 16, |op, case, device| check::twice(op, case, DType::F64, device)),
        named("composites", 6, check::composites),
        named("stale", 12, check::stale),
        named("names", 12, |op, case, device| names(op, case, device).map_err(Into::into)),
    ];
    if op.derivative == Derivative::Twice {
        trials.push(named("gradgradcheck", 24, check::gradgradcheck));
        let at = device.clone();
        let singular = move || cases(op, &[], 16, |case, seed| finite::singular(op, case, &at, seed));
        trials.push(trial(device, op.name, "singular", singular));
    }
    if op.linear {
        trials.push(named("adjoint", 48, |op, case, device| check::adjoint(op, case, DType::F64, device)));
    }
    trials
}

/// Methods that are on the tape under their own names, and are calls of other ops of the registry.
const METHODS: &[&str] = &["add_scaled", "pow_scalar"];

/// Every node on the tape of a result has the name of an op: of this one, or of those that it is made of.
fn names(op: &Op, case: &Case, device: &Device) -> Result<Distance, String> {
    let mut case = case.to(device).map_err(text)?;
    for i in op.differentiable(&case) {
        case.inputs[i].1 = case.inputs[i].1.require_grad().map_err(text)?;
    }
    let is_op = |name: &str| name == "leaf" || METHODS.contains(&name) || OPS.iter().any(|op| op.name == name);
    for y in op.call(&case).map_err(text)?.iter().filter(|y| y.requires_grad()) {
        let tape = tape::text(y);
        let mut nodes = tape.lines().filter_map(|line| line.split([' ', '(']).nth(1));
        if let Some(node) = nodes.find(|name| !is_op(name)) {
            return Err(format!("{node} is no op: {} of {}", op.name, case.attributes));
        }
    }
    Ok(Distance::default())
}
