//! Tests by module, device and op: `[golden] cpu::gelu::backward`. One that hangs ends the program with its name.

use crate::times;
use isograd::{Device, Error, Kind};
use isograd_parity::case::{Case, Gen};
use isograd_parity::check::Found;
use isograd_parity::registry::{Op, find};
use isograd_parity::strategy::{self, Seeded, tally};
use libtest_mimic::{Arguments, Failed, Trial};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// The devices that there must be, and those that are tested where there are any.
const DEVICES: &[&str] = &["cpu", "cuda", "hip", "opencl"];

/// What `ISOGRAD_REQUIRE` also takes: these are for other programs.
const NO_DEVICES: &[&str] =
    &["amd", "chromium", "cudnn", "mpi", "nvrtc", "onnxruntime", "rocblas", "simt", "tensorboard"];

/// What the seeds of the property tests are made from.
const SEED: u64 = 7;

/// A module of a test program, by its name, and what makes its trials for a device.
pub type Module = (&'static str, fn(&Device) -> Vec<Trial>);

/// True with `ISOGRAD_QUICK=1`.
fn is_quick() -> bool {
    std::env::var("ISOGRAD_QUICK").is_ok_and(|quick| quick == "1")
}

/// True where an emulator stands in for GPUs.
fn is_emulated() -> bool {
    std::env::var("ISOGRAD_REQUIRE").is_ok_and(|names| names.split(',').any(|name| name == "simt"))
}

/// The step through a long list of cases: with `ISOGRAD_QUICK=1` every third one is tried.
pub fn step() -> usize {
    if is_quick() { 3 } else { 1 }
}

/// How many cases are drawn for a test of a row on this device.
pub fn drawn(device: &Device) -> u32 {
    if is_quick() && is_emulated() && !device.name().starts_with("cpu") { 8 } else { 24 }
}

/// The trials, of those made from the rows of the registry, that run. With `ISOGRAD_QUICK=1`, devices other than the CPU run a sample.
/// The functions of the pointwise table share the code around the function: an emulator runs the aspects `alone` of these and the other
/// aspects of all other rows, and a device runs the aspects `alone` of all other rows, because `isograd parity --quick` checks the rest.
pub fn sampled(device: &Device, alone: &[&str], trials: impl Iterator<Item = Trial>) -> Vec<Trial> {
    if !is_quick() || device.name().starts_with("cpu") {
        return trials.collect();
    }
    let is_emulated = is_emulated();
    let is_chosen = |trial: &Trial| {
        let mut parts = trial.name().split("::").skip(1);
        let (op, aspect) = (parts.next().and_then(find), parts.next().unwrap_or_default());
        let (is_alone, is_pointwise) = (alone.contains(&aspect), op.is_some_and(Op::is_pointwise));
        if is_emulated { is_alone == is_pointwise } else { is_alone && !is_pointwise }
    };
    trials.filter(is_chosen).collect()
}

/// The trials that run with `ISOGRAD_QUICK=1`: without those of f16 on devices whose other dtype of 16 bits has the same trial. Only the
/// conversions of an element differ.
fn without_doubles(trials: Vec<Trial>) -> Vec<Trial> {
    let key = |kind: &str, name: &str| format!("[{kind}] {name}");
    let all: BTreeSet<String> = trials.iter().map(|trial| key(trial.kind(), trial.name())).collect();
    let is_double = |trial: &Trial| {
        let other = trial.name().strip_suffix("::f16").map(|rest| key(trial.kind(), &format!("{rest}::bf16")));
        !trial.name().starts_with("cpu") && other.is_some_and(|other| all.contains(&other))
    };
    trials.into_iter().filter(|trial| !is_double(trial)).collect()
}

/// Makes the trials of modules for every device and runs them; the harness prints a module's name in front of a trial's. Devices named
/// in `ISOGRAD_REQUIRE` (`cuda,opencl`) must be there.
pub fn main(modules: &[Module]) {
    let arguments = Arguments::from_args();
    Device::expect_few_launches();
    let required = std::env::var("ISOGRAD_REQUIRE").unwrap_or_default();
    // `cuda:0` is `cuda`.
    let names = required.split(',').map(|name| name.trim().trim_end_matches(":0"));
    let mut required: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    required.retain(|name| !NO_DEVICES.contains(name));
    required.push("cpu");
    let mut names: Vec<&str> = DEVICES.iter().chain(&required).copied().collect();
    names.sort();
    names.dedup();
    let (mut trials, mut devices) = (Vec::new(), Vec::new());
    for name in names {
        match name.parse::<Device>() {
            Ok(device) => {
                for (module, make) in modules {
                    trials.extend(make(&device).into_iter().map(|trial| trial.with_kind(*module)));
                }
                devices.push(device);
            }
            Err(error) => {
                let (is_required, error) = (required.contains(&name), error.to_string());
                for (module, _) in modules {
                    let error = error.clone();
                    let missing = Trial::test(format!("{name}::device"), move || Err(Failed::from(error)));
                    trials.push(missing.with_kind(*module).with_ignored_flag(!is_required));
                }
            }
        }
    }
    if is_quick() {
        trials = without_doubles(trials);
    }
    if !arguments.list {
        println!("seed {SEED}");
        times::watch();
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    times::report();
    // What is still in a queue must not run while the process takes its driver down. Its errors were those of a test.
    devices.iter().for_each(|device| drop(device.synchronize()));
    conclusion.exit();
}

/// A trial named `device::op::aspect`; the first device of a kind goes by the kind's name.
pub fn trial(
    device: &Device,
    op: &str,
    aspect: &str,
    run: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> Trial {
    let device = device.name().trim_end_matches(":0");
    let name = format!("{device}::{op}::{aspect}");
    let timed = name.clone();
    Trial::test(name, move || {
        let _running = times::begin(timed);
        run().map_err(Failed::from)
    })
}

/// The result of a check; an error is the text of its failure.
pub type Outcome = Result<(), String>;

/// A check of a device. An error fails it as well.
pub type Check = fn(&Device) -> Result<Outcome, Error>;

/// The trial of a check.
pub fn check(device: &Device, op: &str, aspect: &str, check: Check) -> Trial {
    let at = device.clone();
    trial(device, op, aspect, move || check(&at).map_err(text)?)
}

/// Errors with `otherwise` unless `holds`.
pub fn expect(holds: bool, otherwise: String) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise) }
}

/// Errors unless both are equal.
pub fn equal<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Outcome {
    expect(got == expected, format!("{what}: {got:?}, expected {expected:?}"))
}

/// Errors unless this is refused as `kind`, in words that have `says`.
pub fn refused<T: std::fmt::Debug>(what: &str, result: Result<T, Error>, kind: Kind, says: &str) -> Outcome {
    match result {
        Ok(y) => Err(format!("{what} gave {y:?}")),
        Err(e) if e.kind() == kind && e.message().contains(says) => Ok(()),
        Err(e) => Err(format!("{what}: {e}")),
    }
}

/// Runs `check` on these shapes and on `drawn` others, with the cases that the op makes around them on the CPU, the same ones
/// every time; a failure is shrunk.
pub fn cases(op: &Op, fixed: &[&[usize]], drawn: u32, check: impl Fn(&Case, u64) -> Found) -> Result<(), String> {
    let fixed: Vec<Seeded> = fixed.iter().map(|shape| Seeded { shape: shape.to_vec(), seed: 1 }).collect();
    let tally = tally(&fixed, drawn, SEED, |case| {
        check(&(op.make)(&mut Gen::new(&case.shape, case.seed, &crate::cpu())), case.seed)
    });
    let name = |case: Option<Seeded>| case.map(|case| case.to_string()).unwrap_or_default();
    // Only the start of a message that shows large tensors.
    tally.failure.map_or(Ok(()), |why| Err(format!("{} {why:.500}", name(tally.case))))
}

/// Runs `check` on `cases` shapes and seeds, the same ones every time; a failure is shrunk.
pub fn for_shapes(cases: u32, check: impl Fn(&[usize], u64) -> Result<(), String>) -> Result<(), String> {
    for_all(cases, &(strategy::shapes(), any::<u64>()), |(shape, seed)| check(&shape, seed))
}

/// Runs `check` on `cases` values of a strategy, the same ones every time; a failure is shrunk.
pub fn for_all<S: Strategy>(
    cases: u32,
    strategy: &S,
    check: impl Fn(S::Value) -> Result<(), String>,
) -> Result<(), String> {
    strategy::for_all(cases, SEED, strategy, check).map_err(|(why, value)| {
        format!(
            "{why}
{value:?}"
        )
    })
}

/// A device of the same kind whose memory nobody else uses, so that its statistics are this test's alone.
pub fn private(device: &Device) -> Device {
    isograd_parity::watch::private(device).expect("the device opens twice")
}

/// An error's text, for the trials' results.
pub fn text(error: Error) -> String {
    error.to_string()
}
