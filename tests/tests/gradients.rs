//! Derivatives of every op against finite differences in f64, and linear ops against their adjoints.

use isograd::{DType, Device};
use isograd_parity::case::Case;
use isograd_parity::check::{self, Found};
use isograd_parity::registry::{Derivative, OPS, Op};
use isograd_tests::harness::{self, cases, trial};
use libtest_mimic::Trial;

fn main() {
    harness::main(|device| OPS.iter().flat_map(|op| trials(op, device)).collect());
}

fn trials(op: &'static Op, device: &Device) -> Vec<Trial> {
    let named = |aspect: &str, drawn, check: fn(&Op, &Case, &Device) -> Found| {
        let at = device.clone();
        trial(device, op.name, aspect, move || cases(op, &[], drawn, |case, _| check(op, case, &at)))
    };
    if let Derivative::None(_) = op.derivative {
        return vec![named("not_differentiable", 3, check::unrecorded)];
    }
    let mut trials = vec![
        named("gradcheck", 48, check::gradcheck),
        named("alone", 16, |op, case, device| check::alone(op, case, DType::F64, device)),
        named("twice", 16, |op, case, device| check::twice(op, case, DType::F64, device)),
    ];
    if op.derivative == Derivative::Twice {
        trials.push(named("gradgradcheck", 24, check::gradgradcheck));
    }
    if op.linear {
        trials.push(named("adjoint", 48, |op, case, device| check::adjoint(op, case, DType::F64, device)));
    }
    trials
}
