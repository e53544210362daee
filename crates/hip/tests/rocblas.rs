//! rocBLAS, or what stands in for it on the emulator, multiplies what it is told as our own kernels do: `hip::rocblas::product::f16`.
//!
//! A machine without the library, or without a device, ignores this; `ISOGRAD_REQUIRE=rocblas` makes it a failure.

use crate::is_required;
use isograd_core::ops::{Activation, Gemm, GemmBias};
use isograd_core::{Blas, DType, Device, Result, Rng, Tensor};
use isograd_cpu as _;
use isograd_gpu::{Driver, Gpu};
use isograd_hip::Hip;
use libtest_mimic::{Failed, Trial};
use std::sync::Arc;

/// Rows, inner size and columns: sums so long that their results may take another pass.
const SHAPE: [usize; 3] = [24, 1032, 40];

/// `[m, k]`, `[k, n]`, `[n]` and `[m, n]`.
type Inputs = [Tensor; 4];
type Case = fn(&Inputs) -> Result<Tensor>;

const CASES: [(&str, Case); 6] = [
    ("product", |[a, b, ..]| a.matmul(b)),
    ("transposed", |[a, b, ..]| a.t()?.contiguous()?.t()?.matmul(&b.t()?.contiguous()?.t()?)),
    ("batches", |[a, b, ..]| Tensor::stack(&[a, &a.neg()?], 0)?.matmul(&Tensor::stack(&[b, b], 0)?)?.select(0, 0)),
    ("bias", |[x, w, bias, _]| x.gemm_bias(w, Some(bias), &GemmBias::default())),
    ("relu", |[x, w, bias, _]| {
        x.gemm_bias(w, Some(bias), &GemmBias { activation: Activation::Relu, ..Default::default() })
    }),
    ("added", |[a, b, _, c]| a.gemm(b, Some(c), &Gemm { alpha: 0.5, beta: -2.0 })),
];

pub fn trials() -> Vec<Trial> {
    match Hip::new(0) {
        Ok(hip) if hip.blas().is_some() => of_device(),
        found => {
            let why = found.err().map_or("there is no rocBLAS".into(), |error| error.to_string());
            let missing = move || Err(Failed::from(why));
            vec![Trial::test("hip::rocblas::there", missing).with_ignored_flag(!is_required("rocblas"))]
        }
    }
}

fn of_device() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, case) in CASES {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            trials.push(Trial::test(format!("hip::rocblas::{name}::{dtype}"), move || check(case, dtype)));
        }
    }
    trials
}

fn map(inputs: &Inputs, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Inputs> {
    let [a, b, bias, c] = inputs.each_ref().map(f);
    Ok([a?, b?, bias?, c?])
}

/// Normal draws, so that products have a variance of one.
fn inputs(dtype: DType) -> Result<Inputs> {
    let ([m, k, n], cpu, rng) = (SHAPE, Device::cpu()?, Rng::new(7));
    let draw = |shape: &[usize], deviation| Tensor::randn(shape, 0.0, deviation, DType::F32, &cpu, &rng)?.cast(dtype);
    Ok([draw(&[m, k], 1.0)?, draw(&[k, n], (k as f64).sqrt().recip())?, draw(&[n], 1.0)?, draw(&[m, n], 1.0)?])
}

/// The library's results against f64, within `1.5 u_out |r| + C u_acc a`, where a is what is summed up in absolute values.
fn check(case: Case, dtype: DType) -> std::result::Result<(), Failed> {
    let narrow = inputs(dtype)?;
    let wide = map(&narrow, |t| t.cast(DType::F64))?;
    let exact = case(&wide)?.to_f64_vec()?;
    let [a, b, bias, c] = map(&wide, Tensor::abs)?;
    let sums = a.matmul(&b)?.add(&bias)?.add(&c.mul_scalar(2.0)?)?.to_f64_vec()?;
    let (u_out, u_acc) = match dtype {
        DType::F16 => (2f64.powi(-11), 2f64.powi(-24)),
        DType::BF16 => (2f64.powi(-8), 2f64.powi(-24)),
        DType::F32 => (0.0, 2f64.powi(-24)),
        _ => (0.0, 2f64.powi(-53)),
    };
    // A product of 16-bit factors goes through matrix units; 16 more for what is applied to the sum.
    let root = (SHAPE[1] as f64).sqrt();
    let terms = if dtype.size() == 2 { 32.0 + 8.0 * root } else { 8.0 + 2.0 * root } + 16.0;
    let gpu = Arc::new(Gpu::new(Arc::new(Hip::new(0)?)));
    let device = Device::from_backend("hip:0", gpu.clone());
    device.set_blas(Blas::Vendor);
    gpu.launches();
    let y = case(&map(&narrow, |t| t.to_device(&device))?)?;
    if !gpu.launches().iter().any(|launch| launch.entry == "vendor") {
        return Err("the library was not asked".into());
    }
    for (i, (got, r)) in y.to_f64_vec()?.iter().zip(&exact).enumerate() {
        let bound = 1.5 * u_out * r.abs() + terms * u_acc * (sums[i] + r.abs());
        let fits = (got - r).abs() <= bound;
        if !fits {
            return Err(format!("element {i}: got {got:e}, expected {r:e} within {bound:e}").into());
        }
    }
    Ok(())
}
