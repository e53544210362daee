//! cuDNN is asked for convolutions and attention, and computes as exactly as our own kernels: `cuda::attention::bf16`.
//!
//! A machine without the library, or without a device, ignores this; `ISOGRAD_REQUIRE=cudnn` makes it a failure.

use crate::is_required;
use isograd_core::ops::{Attention, Causal, Conv, Padding};
use isograd_core::tape::{BackwardOptions, grad_with};
use isograd_core::{DType, Determinism, Device, Result, Rng, Tensor};
use isograd_cpu as _;
use isograd_cuda::{Cuda, Cudnn};
use isograd_gpu::Gpu;
use libtest_mimic::{Failed, Trial};
use std::sync::Arc;

/// A result of three tensors.
type Case = fn(&[Tensor; 3]) -> Result<Tensor>;

/// B, heads, queries, keys and the width, for more scores than the library is asked for at least.
const ATTENTIONS: [[usize; 5]; 4] =
    [[2, 4, 512, 512, 64], [1, 2, 777, 1000, 40], [1, 3, 700, 700, 128], [3, 1, 2048, 512, 96]];
/// Images, and the weight of windows, for more multiplications than the library is asked for at least.
const CONVOLUTIONS: [[[usize; 4]; 2]; 2] = [[[16, 16, 28, 28], [32, 16, 3, 3]], [[4, 3, 64, 65], [40, 3, 7, 5]]];

pub fn trials() -> Vec<Trial> {
    match Cudnn::open().and_then(|_| Cuda::new(0)) {
        Ok(_) => on_device(),
        Err(error) => {
            let fail = move || Err(Failed::from(error.to_string()));
            vec![Trial::test("cudnn::there", fail).with_ignored_flag(!is_required("cudnn"))]
        }
    }
}

fn on_device() -> Vec<Trial> {
    let mut trials = Vec::new();
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        if dtype != DType::F32 {
            let cases: [(&str, Case); 2] =
                [("attention", |x| attend(x, Causal::None)), ("causal", |x| attend(x, Causal::TopLeft))];
            for (name, case) in cases {
                let check = move || {
                    ATTENTIONS.into_iter().try_for_each(|[b, h, q, k, d]| {
                        check(case, dtype, [&[b, h, q, d], &[b, h, k, d], &[b, h, k, d]])
                    })
                };
                trials.push(Trial::test(format!("cuda::{name}::{dtype}"), check));
            }
        }
        let check = move || CONVOLUTIONS.into_iter().try_for_each(|[x, w]| check(convolve, dtype, [&x, &w, &w[..1]]));
        trials.push(Trial::test(format!("cuda::convolution::{dtype}"), check));
    }
    trials
}

fn attend([q, k, v]: &[Tensor; 3], causal: Causal) -> Result<Tensor> {
    q.scaled_dot_product_attention(k, v, &Attention { causal, ..Attention::default() })
}

fn convolve([x, w, bias]: &[Tensor; 3]) -> Result<Tensor> {
    x.conv2d(w, Some(bias), &Conv { stride: [2, 1], padding: Padding::Each([1, 2]), ..Conv::default() })
}

/// The result and the gradients of the operands.
fn all(case: Case, x: &[Tensor; 3]) -> Result<Vec<Tensor>> {
    let [a, b, c] = x.each_ref().map(|t| t.detach().require_grad());
    let x = [a?, b?, c?];
    let y = case(&x)?;
    let dy = Tensor::randn(y.shape(), 0.0, 1.0, DType::F32, &Device::cpu()?, &Rng::new(8))?;
    let gradient = Some(dy.cast(DType::BF16)?.to_device(y.device())?.cast(y.dtype())?);
    let found = grad_with(&y, &x.each_ref(), &BackwardOptions { gradient, ..BackwardOptions::default() })?;
    Ok([y.detach()].into_iter().chain(found).collect())
}

/// The norm of the difference from f64, relative to that of the result.
fn errors(found: &[Tensor], exact: &[Vec<f64>]) -> Result<Vec<f64>> {
    let one = |(found, exact): (&Tensor, &Vec<f64>)| {
        let apart: f64 = found.to_f64_vec()?.iter().zip(exact).map(|(a, b)| (a - b).powi(2)).sum();
        Ok((apart / exact.iter().map(|b| b * b).sum::<f64>()).sqrt())
    };
    found.iter().zip(exact).map(one).collect()
}

/// The library's results and gradients are at most a quarter less exact than those of our own kernels, in either mode of the device. The
/// result of a convolution is rounded once more, before its bias is added: independent errors of the same size add to sqrt(2) of one.
/// Where the device is deterministic, two calls give the same bits.
fn check(case: Case, dtype: DType, shapes: [&[usize]; 3]) -> std::result::Result<(), Failed> {
    let (cpu, rng) = (Device::cpu()?, Rng::new(7));
    let draw = |shape: &[usize]| Tensor::randn(shape, 0.0, 1.0, DType::F32, &cpu, &rng)?.cast(dtype);
    let [a, b, c] = shapes.map(draw);
    let narrow = [a?, b?, c?];
    let [a, b, c] = narrow.each_ref().map(|t| t.cast(DType::F64));
    let exact = all(case, &[a?, b?, c?])?.iter().map(Tensor::to_f64_vec).collect::<Result<Vec<_>>>()?;
    let gpu = Arc::new(Gpu::new(Arc::new(Cuda::new(0)?)));
    let device = Device::from_backend("cuda:0", gpu.clone());
    let [a, b, c] = narrow.each_ref().map(|t| t.to_device(&device));
    let there = [a?, b?, c?];
    gpu.set_dnn(false);
    let own = errors(&all(case, &there)?, &exact)?;
    gpu.set_dnn(true);
    for determinism in [Determinism::SameBits, Determinism::AnyOrder] {
        device.set_determinism(determinism);
        let fail = |why: String| Err(Failed::from(format!("{shapes:?}, {determinism:?}: {why}")));
        gpu.launches();
        let found = all(case, &there)?;
        if !gpu.launches().iter().any(|launch| launch.entry == "vendor") {
            return fail("the library was not asked".into());
        }
        let errors = errors(&found, &exact)?;
        let has_bias = shapes[2].len() == 1;
        let roundings = |i: usize| if i == 0 && has_bias { 2f64.sqrt() } else { 1.0 };
        let bounds = own.iter().enumerate().map(|(i, own)| 1.25 * roundings(i) * own + 1e-6);
        if !errors.iter().zip(bounds).all(|(found, bound)| *found <= bound) {
            return fail(format!("errors are {errors:?}, those of our own kernels {own:?}"));
        }
        let bits = |all: &[Tensor]| all.iter().map(Tensor::to_bytes).collect::<Result<Vec<_>>>();
        if determinism == Determinism::SameBits && bits(&found)? != bits(&all(case, &there)?)? {
            return fail("two calls differ".into());
        }
    }
    Ok(())
}
