#![no_main]

use isograd::parity::case::Gen;
use isograd::parity::check::{composite, forward, gradients};
use isograd::parity::registry::{Derivative, OPS, Op};
use isograd::{DType, Device};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

/// Ops with fused kernels, which are compared with f64, and so are their composites.
static FUSED: LazyLock<Vec<&Op>> = LazyLock::new(|| OPS.iter().filter(|op| op.fused).collect());

fuzz_target!(|bytes: &[u8]| {
    let [op, dtype, seed, extents @ ..] = bytes else { return };
    let device = Device::cpu().expect("the CPU");
    let op = FUSED[*op as usize % FUSED.len()];
    let dtype = [DType::F64, DType::F32, DType::F16, DType::BF16][*dtype as usize % 4];
    let shape: Vec<usize> = extents.iter().take(4).map(|&extent| extent as usize % 5).collect();
    if shape.iter().product::<usize>() > 24 {
        return;
    }
    let case = (op.make)(&mut Gen::new(&shape, u64::from(*seed), &device));
    let has_gradient = !matches!(op.derivative, Derivative::None(_));
    for check in [forward, composite, gradients].into_iter().take(if has_gradient { 3 } else { 2 }) {
        if let Err(miss) = check(op, &case, dtype, &device) {
            panic!("{} {dtype} {shape:?}, seed {seed}: {miss:?}", op.name);
        }
    }
});
