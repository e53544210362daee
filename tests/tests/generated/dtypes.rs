//! Every op in f32, f16 and bf16 against f64 on the CPU, and strided, expanded and special inputs against plain ones.

use isograd::{DType, Device};
use isograd_parity::check;
use isograd_parity::registry::{Derivative, OPS, Op};
use isograd_tests::cpu;
use isograd_tests::harness::{self, cases, drawn, trial};
use libtest_mimic::Trial;

/// Primes, above the elements of a group's threads and of several groups; in f32, since the narrower dtypes run the same
/// code around other loads and stores.
const LARGE: [&[usize]; 3] = [&[1009], &[67, 131], &[3, 61, 17]];
const NARROW: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

pub fn trials(device: &Device) -> Vec<Trial> {
    harness::sampled(device, &[], OPS.iter().flat_map(|op| of(op, device)))
}

fn of(op: &'static Op, device: &Device) -> Vec<Trial> {
    let (at, drawn) = (device.clone(), drawn(device));
    let strided = move || cases(op, &[], drawn, |case, _| check::strided(op, case, DType::F64, &at));
    let mut trials = vec![trial(device, op.name, "strided", strided)];
    for dtype in NARROW.into_iter().filter(|&dtype| dtype == DType::F32 || op.wide.is_none()) {
        let large: &[&[usize]] = if dtype == DType::F32 { &LARGE } else { &[] };
        let at = device.clone();
        let forward = move || {
            cases(op, large, drawn, |case, _| check::forward(op, case, dtype, &at))?;
            cases(op, &[], drawn, |case, seed| check::special(op, case, dtype, &at, seed))
        };
        trials.push(trial(device, op.name, dtype.name(), forward));
        if *device != cpu() && !matches!(op.derivative, Derivative::None(_)) {
            let at = device.clone();
            let gradients = move || cases(op, large, drawn, |case, _| check::gradients(op, case, dtype, &at));
            trials.push(trial(device, op.name, &format!("{dtype}_gradient"), gradients));
        }
    }
    trials
}
