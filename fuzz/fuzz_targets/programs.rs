#![no_main]

use isograd::{Device, Tensor};
use isograd_fuzz::FOLDER;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

// The tests draw programs by a seed alone.
#[allow(dead_code)]
#[path = "../../tests/src/programs.rs"]
mod programs;

use programs::{Program, equal};

/// `ISOGRAD_FUZZ_DEVICE`, or the CPU.
static DEVICE: LazyLock<Device> = LazyLock::new(|| {
    let name = std::env::var("ISOGRAD_FUZZ_DEVICE").unwrap_or("cpu".into());
    println!("{name}; {}", FOLDER.display());
    name.parse().expect("a device")
});

fuzz_target!(|bytes: &[u8]| {
    let (seed, bytes) = bytes.split_at(bytes.len().min(2));
    let seed = seed.iter().fold(0, |seed, &byte| 256 * seed + u64::from(byte));
    let program = || Program::of_bytes(seed, bytes, &DEVICE).expect("the tensors of a program");
    let (plain, captured) = (program(), program());
    let mut step = DEVICE.capture(|inputs: Vec<Tensor>| captured.run(inputs));
    // The first run compiles a step, the second records it, the third replays it. The CPU calls the closure.
    for run in 0..if DEVICE.name() == "cpu" { 1 } else { 3 } {
        let inputs = || plain.inputs(run).expect("the inputs of a program");
        let (expected, got) = (plain.run(inputs()).expect("a plain run"), step.run(inputs()).expect("a captured run"));
        let states = plain.states.iter().zip(&captured.states);
        for (a, b) in expected.iter().zip(&got).chain(states) {
            assert!(equal(a, b).expect("values"), "run {run}: {b} captured, {a} plain");
        }
    }
});
