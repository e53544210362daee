//! Values and gradients against PyTorch's: every case of the golden files, one test an op and direction.

use isograd::Device;
use isograd_parity::cases::{Fault, Recorded};
use isograd_parity::compare::Distance;
use isograd_parity::golden::CASES;
use isograd_parity::registry::find;
use isograd_tests::harness::{self, trial};
use libtest_mimic::Trial;
use std::collections::BTreeMap;

type Check = fn(&Recorded, &Device) -> Result<Distance, Fault>;

pub fn trials(device: &Device) -> Vec<Trial> {
    let mut ops: BTreeMap<(&str, &str), Vec<&Recorded>> = BTreeMap::new();
    for case in CASES.iter() {
        ops.entry((&case.family, case.op())).or_default().push(case);
    }
    let of = |((_, op), cases): ((&'static str, &'static str), Vec<&'static Recorded>)| {
        let backward: Vec<&Recorded> = cases.iter().copied().filter(|case| case.has_gradients()).collect();
        let passes = [("forward", cases, Recorded::forward as Check), ("backward", backward, Recorded::backward)];
        let trials = passes.into_iter().filter(|(_, cases, _)| !cases.is_empty()).map(move |(aspect, cases, check)| {
            let at = device.clone();
            trial(device, op, aspect, move || match find(op) {
                Some(_) => all(&cases, |case| check(case, &at)),
                None => Err("the registry has no such op".into()),
            })
        });
        trials.collect::<Vec<_>>()
    };
    harness::sampled(device, &["forward", "backward"], ops.into_iter().flat_map(of))
}

/// Runs every case and reports all that fail.
fn all(cases: &[&Recorded], check: impl Fn(&Recorded) -> Result<Distance, Fault>) -> Result<(), String> {
    let failure = |case: &&Recorded| check(case).err().map(|e| format!("{}: {e}", case.name()));
    let failures: Vec<String> = cases.iter().filter_map(failure).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}
