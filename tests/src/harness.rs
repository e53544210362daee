//! Tests by name, device and op: `cpu::gelu::backward`.

use isograd::{Device, Error, Provider};
use libtest_mimic::{Arguments, Failed, Trial};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// The devices that there must be, and those that are tested where there are any.
const DEVICES: &[&str] = &["cpu", "cuda", "hip", "opencl"];

/// What `ISOGRAD_REQUIRE` also takes: these are for other programs.
const NO_DEVICES: &[&str] = &["amd", "nvrtc", "rocblas", "simt"];

/// What the seeds of the property tests are made from.
const SEED: u8 = 7;

/// Makes trials for every device and runs them. Devices named in `ISOGRAD_REQUIRE` (`cuda,opencl`) must be there.
pub fn main(make: impl Fn(&Device) -> Vec<Trial>) {
    let arguments = Arguments::from_args();
    let required = std::env::var("ISOGRAD_REQUIRE").unwrap_or_default();
    let mut required: Vec<&str> = required.split(',').map(str::trim).filter(|s| !s.is_empty()).collect();
    required.retain(|name| !NO_DEVICES.contains(name));
    required.push("cpu");
    let mut names: Vec<&str> = DEVICES.iter().chain(&required).copied().collect();
    names.sort();
    names.dedup();
    let (mut trials, mut devices) = (Vec::new(), Vec::new());
    for name in names {
        match name.parse::<Device>() {
            Ok(device) => {
                trials.extend(make(&device));
                devices.push(device);
            }
            Err(error) => {
                let is_required = required.contains(&name);
                let missing = move || Err(Failed::from(error.to_string()));
                trials.push(Trial::test(format!("{name}::device"), missing).with_ignored_flag(!is_required));
            }
        }
    }
    if !arguments.list {
        println!("seed {SEED}");
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
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
    Trial::test(format!("{device}::{op}::{aspect}"), || run().map_err(Failed::from))
}

/// Extents of rank 0 to 4 with at most 24 elements; 0 and 1 among them.
pub fn shapes() -> impl Strategy<Value = Vec<usize>> {
    let extent = prop_oneof![1 => Just(0usize), 4 => Just(1usize), 8 => 2..5usize];
    prop::collection::vec(extent, 0..5).prop_filter("small", |s| s.iter().product::<usize>() <= 24)
}

/// Runs `check` on `cases` shapes and seeds, the same ones every time; a failure is shrunk.
pub fn for_shapes(cases: u32, check: impl Fn(&[usize], u64) -> Result<(), String>) -> Result<(), String> {
    for_all(cases, &(shapes(), any::<u64>()), |(shape, seed)| check(&shape, seed))
}

/// Runs `check` on `cases` values of a strategy, the same ones every time; a failure is shrunk.
pub fn for_all<S: Strategy>(
    cases: u32,
    strategy: &S,
    check: impl Fn(S::Value) -> Result<(), String>,
) -> Result<(), String> {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[SEED; 32]);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let checked = |value| check(value).map_err(TestCaseError::fail);
    runner.run(strategy, checked).map_err(|e| e.to_string())
}

/// A device of the same kind whose memory nobody else uses, so that its statistics are this test's alone.
pub fn private(device: &Device) -> Device {
    let mut parts = device.name().split(':');
    let (kind, ordinal) = (parts.next(), parts.next().and_then(|n| n.parse().ok()).unwrap_or(0));
    let providers = isograd::inventory::iter::<Provider>;
    let provider = providers.into_iter().find(|p| Some(p.name) == kind).expect("the device has a provider");
    Device::from_backend(device.name(), (provider.open)(ordinal).expect("the device opens twice"))
}

/// An error's text, for the trials' results.
pub fn text(error: Error) -> String {
    error.to_string()
}
