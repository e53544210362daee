//! cuBLASLt, or what stands in for it on the emulator, takes every description of ours, and multiplies as exactly as our own kernels:
//! `cuda::gelu_tanh::bf16`.
//!
//! A machine without the library, or without a device, ignores this; `ISOGRAD_REQUIRE=blaslt,cuda` makes it a failure.

use crate::is_required;
use isograd_core::ops::{Activation, Approximate, Gemm, GemmBias, Transpose};
use isograd_core::tape::{BackwardOptions, grad_with};
use isograd_core::{Blas, DType, Device, Error, Precision, Result, Rng, Tensor, no_grad};
use isograd_cpu as _;
use isograd_cuda::{CublasLt, Cuda};
use isograd_gpu::driver::blas::{Epilogue, Factor, MatmulProblem, Matrices, Product};
use isograd_gpu::{Driver, Gpu};
use libtest_mimic::{Failed, Trial};
use std::sync::{Arc, OnceLock};

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// Rows, inner sizes and columns. The library must have a kernel for the first ones, which are enough for it to be asked where a
/// multiprocessor would have more than one of our tiles.
const SHAPES: [[usize; 3]; 7] =
    [[512, 512, 384], [64, 4096, 64], [256, 256, 1024], [129, 257, 66], [16, 1000, 8], [1000, 130, 24], [2, 3, 2]];
const ALIGNED: usize = 3;
/// The same of a device of few multiprocessors, such as what stands in for one.
const SMALL: [[usize; 3]; 4] = [[40, 136, 72], [136, 160, 40], [33, 1032, 48], [17, 129, 26]];
const FEWEST: usize = 16;
/// Of 16 bits, on a device that has our kernel of large tiles: tiles that are cut off below, at the right and along K.
const LARGE: [usize; 3] = [1496, 520, 3080];
/// Rows of 63 elements of 16 bits have no whole words: the library multiplies copies, which so many rows and inner elements pay for.
const PADDED: [usize; 3] = [264, 264, 63];

fn shapes() -> &'static [[usize; 3]] {
    static IS_LARGE: OnceLock<bool> = OnceLock::new();
    let is_large = IS_LARGE.get_or_init(|| Cuda::new(0).is_ok_and(|device| device.limits().units >= FEWEST));
    if *is_large { &SHAPES } else { &SMALL }
}

/// The shapes for a dtype.
fn shapes_of(dtype: DType) -> Result<impl Iterator<Item = [usize; 3]>> {
    let has_large = dtype.size() == 2 && Cuda::new(0)?.limits().has_tile_maps;
    Ok(shapes().iter().copied().chain(has_large.then_some(LARGE)))
}

pub fn trials() -> Vec<Trial> {
    let missing = |what: &str, error: Error| {
        let fail = move || Err(Failed::from(error.to_string()));
        vec![Trial::test(format!("{what}::there"), fail).with_ignored_flag(!is_required(what))]
    };
    let mut trials = match CublasLt::open() {
        Ok(library) => vec![Trial::test("blaslt::describe", move || Ok(describe(library)?))],
        Err(error) => missing("blaslt", error),
    };
    trials.extend(match CublasLt::open().and_then(|_| Cuda::new(0)) {
        Ok(_) => on_device(),
        Err(error) => missing("cuda", error),
    });
    trials
}

/// Forms of every kind are described: the library checks attributes by their sizes, and layouts.
fn describe(library: &'static CublasLt) -> Result<()> {
    let flags = [false, true];
    let matrices = |rows, columns| Matrices { rows, columns, leading: rows + 8, batch: 0 };
    let d = matrices(64, 32);
    let plain = MatmulProblem {
        dtype: DType::F32,
        output: DType::F32,
        precision: Precision::Exact,
        batches: 1,
        a: (matrices(64, 16), Transpose::No),
        b: (matrices(16, 32), Transpose::No),
        c: d,
        d,
        has_bias: false,
        epilogue: Epilogue::Identity,
        aux: None,
        summed: None,
    };
    let mut problems = vec![plain, MatmulProblem { precision: Precision::Tf32, ..plain }];
    problems.push(MatmulProblem { batches: 3, d: Matrices { batch: 4096, ..d }, ..plain });
    problems.push(MatmulProblem {
        a: (matrices(16, 64), Transpose::Yes),
        b: (matrices(32, 16), Transpose::Yes),
        ..plain
    });
    for dtype in FLOATS {
        for (epilogue, has_bias, aux) in [Epilogue::Identity, Epilogue::GeluTanh]
            .into_iter()
            .flat_map(|epilogue| flags.map(|bias| [None, Some(64)].map(|aux| (epilogue, bias, aux))).concat())
        {
            for output in [dtype, dtype.acc()] {
                problems.push(MatmulProblem { dtype, output, epilogue, has_bias, aux, ..plain });
            }
        }
    }
    for (epilogue, aux) in [(Epilogue::Masked, Some(128)), (Epilogue::GeluTanhGradient, Some(64))] {
        problems.extend(FLOATS.map(|dtype| MatmulProblem { dtype, output: dtype, epilogue, aux, ..plain }));
    }
    for summed in [Factor::A, Factor::B] {
        problems.extend(FLOATS.map(|dtype| MatmulProblem { dtype, output: dtype, summed: Some(summed), ..plain }));
    }
    let product = |problem: &MatmulProblem| Product {
        problem: *problem,
        alpha: 1.0,
        beta: 0.0,
        a: 512,
        b: 1024,
        c: 2048,
        d: 2048,
        bias: problem.has_bias as u64 * 4096,
        aux: problem.aux.is_some() as u64 * 8192,
        sums: problem.summed.is_some() as u64 * 12288,
        workspace: 16384,
    };
    for problem in &problems {
        assert!(library.describe(&product(problem))?.is_some(), "{problem:?}");
    }
    let integers = MatmulProblem { dtype: DType::I32, output: DType::I32, ..plain };
    assert!(library.describe(&product(&integers))?.is_none());
    Ok(())
}

/// Factors, a bias and a matrix to add.
type Inputs = [Tensor; 4];
type Case = fn(&Inputs) -> Result<Tensor>;

fn dense([x, w, bias, _]: &Inputs, activation: Activation) -> Result<Tensor> {
    x.gemm_bias(w, Some(bias), &GemmBias { activation, ..Default::default() })
}

/// The gradient `a @ b` of what an activation made of c, before the activation.
fn gradient([a, b, _, c]: &Inputs, activate: fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let x = c.require_grad()?;
    let y = activate(&x)?.matmul(&b.t()?)?;
    let options = BackwardOptions { gradient: Some(a.clone()), ..Default::default() };
    Ok(grad_with(&y, &[&x], &options)?.swap_remove(0))
}

const CASES: [(&str, Case); 11] = [
    ("product", |[a, b, ..]| a.matmul(b)),
    ("transposed", |[a, b, ..]| a.t()?.contiguous()?.t()?.matmul(&b.t()?.contiguous()?.t()?)),
    ("batches", |[a, b, ..]| {
        let (a, b) = (Tensor::stack(&[a, &a.neg()?], 0)?, Tensor::stack(&[b, b], 0)?);
        a.matmul(&b)?.select(0, 1)?.contiguous()
    }),
    ("bias", |inputs| dense(inputs, Activation::Identity)),
    ("added", |[a, b, _, c]| a.gemm(b, Some(c), &Gemm { alpha: 0.5, beta: -2.0 })),
    ("relu", |inputs| dense(inputs, Activation::Relu)),
    ("gelu", |inputs| dense(inputs, Activation::Gelu(Approximate::None))),
    ("gelu_tanh", |inputs| no_grad(|| dense(inputs, Activation::Gelu(Approximate::Tanh)))),
    ("gelu_tanh_recorded", |[x, w, bias, c]| {
        dense(&[x.require_grad()?, w.clone(), bias.clone(), c.clone()], Activation::Gelu(Approximate::Tanh))
    }),
    ("sigmoid", |inputs| dense(inputs, Activation::Sigmoid)),
    ("relu_gradient", |inputs| gradient(inputs, Tensor::relu)),
];

fn on_device() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, case) in CASES {
        for dtype in FLOATS {
            let name = format!("cuda::{name}::{dtype}");
            trials.push(Trial::test(name, move || shapes_of(dtype)?.try_for_each(|shape| check(case, dtype, shape))));
        }
    }
    for dtype in FLOATS {
        trials.push(Trial::test(format!("cuda::special_values::{dtype}"), move || special_values(dtype)));
    }
    for dtype in FLOATS {
        let check = move || shapes_of(dtype)?.try_for_each(|shape| bias_gradient(dtype, shape));
        trials.push(Trial::test(format!("cuda::bias_gradient::{dtype}"), check));
    }
    for dtype in [DType::F16, DType::BF16] {
        trials.push(Trial::test(format!("cuda::reduced::{dtype}"), move || reduced(dtype)));
        trials.push(Trial::test(format!("cuda::padded::{dtype}"), move || padded(dtype)));
    }
    trials.push(Trial::test("cuda::tf32", tf32));
    trials
}

/// A device whose settings and launches are this test's alone.
fn open(blas: Blas) -> Result<(Arc<Gpu>, Device)> {
    let gpu = Arc::new(Gpu::new(Arc::new(Cuda::new(0)?)));
    let device = Device::from_backend("cuda:0", gpu.clone());
    device.set_blas(blas);
    gpu.launches();
    Ok((gpu, device))
}

/// Normal draws, so that products have a variance of one.
fn inputs([m, k, n]: [usize; 3], dtype: DType) -> Result<Inputs> {
    let (cpu, rng) = (Device::cpu()?, Rng::new(7));
    let draw = |shape: &[usize], deviation| Tensor::randn(shape, 0.0, deviation, DType::F32, &cpu, &rng)?.cast(dtype);
    Ok([draw(&[m, k], 1.0)?, draw(&[k, n], (k as f64).sqrt().recip())?, draw(&[n], 1.0)?, draw(&[m, n], 1.0)?])
}

fn map(inputs: &Inputs, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Inputs> {
    let [a, b, bias, c] = inputs.each_ref().map(f);
    Ok([a?, b?, bias?, c?])
}

/// Results in f64, and what is summed up for each in absolute values.
fn exact(case: Case, inputs: &Inputs) -> Result<[Vec<f64>; 2]> {
    let wide = map(inputs, |t| t.cast(DType::F64))?;
    let [a, b, bias, c] = map(&wide, Tensor::abs)?;
    let sums = a.matmul(&b)?.add(&bias)?.add(&c.mul_scalar(2.0)?)?;
    Ok([case(&wide)?.detach().to_f64_vec()?, sums.to_f64_vec()?])
}

/// The library's results and those of our own kernels against f64, within `1.5 u_out |r| + C u_acc a + eta`, and the same
/// bits twice.
fn check(case: Case, dtype: DType, shape: [usize; 3]) -> std::result::Result<(), Failed> {
    let narrow = inputs(shape, dtype)?;
    let [exact, sums] = exact(case, &narrow)?;
    for blas in [Blas::Vendor, Blas::Own] {
        let (gpu, device) = open(blas)?;
        let there = map(&narrow, |t| t.to_device(&device))?;
        let y = case(&there)?.detach();
        let launches = gpu.launches();
        let [is_served, is_large] =
            ["vendor", "gemm_wgmma"].map(|entry| launches.iter().any(|launch| launch.entry == entry));
        let fail = |why: String| Err(Failed::from(format!("{shape:?}, by {blas:?}: {why}")));
        if is_served != (blas == Blas::Vendor) && shapes()[..ALIGNED].contains(&shape) {
            return fail(format!("the library was {}asked", if is_served { "" } else { "not " }));
        }
        if shape == LARGE && blas == Blas::Own && !is_large {
            return fail("the kernel of large tiles was not launched".into());
        }
        if let Some(why) = outside(dtype, shape[1], &y.to_f64_vec()?, &exact, &sums) {
            return fail(why);
        }
        if y.to_bytes()? != case(&there)?.to_bytes()? {
            return fail("two calls differ".into());
        }
    }
    Ok(())
}

/// Products of rows without whole words, which go through copies of the matrices.
fn padded(dtype: DType) -> std::result::Result<(), Failed> {
    let cases: [Case; 2] = [|[a, b, ..]| a.matmul(b), |inputs| dense(inputs, Activation::Identity)];
    for case in cases {
        check(case, dtype, PADDED)?;
        let (gpu, device) = open(Blas::Vendor)?;
        case(&map(&inputs(PADDED, dtype)?, |t| t.to_device(&device))?)?;
        let launches = gpu.launches();
        for entry in ["pitch", "vendor"] {
            if launches.iter().all(|launch| launch.entry != entry) {
                return Err(format!("{entry} was not launched").into());
            }
        }
    }
    Ok(())
}

/// The first result of sums of `k` terms that is not within the bound, of which `sums` has the absolute values.
fn outside(dtype: DType, k: usize, found: &[f64], exact: &[f64], sums: &[f64]) -> Option<String> {
    let (u_out, u_acc, eta) = match dtype {
        DType::F16 => (2f64.powi(-11), 2f64.powi(-24), 6e-8),
        DType::BF16 => (2f64.powi(-8), 2f64.powi(-24), 1.2e-38),
        DType::F32 => (0.0, 2f64.powi(-24), 1.2e-38),
        _ => (0.0, 2f64.powi(-53), f64::MIN_POSITIVE),
    };
    let root = (k as f64).sqrt();
    // A product of 16-bit factors may go through matrix units; 16 more for what is applied to the sum.
    let terms = if dtype.size() == 2 { 32.0 + 8.0 * root } else { 8.0 + 2.0 * root } + 16.0;
    found.iter().zip(exact).zip(sums).enumerate().find_map(|(i, ((got, r), sum))| {
        let bound = 1.5 * u_out * r.abs() + terms * u_acc * (sum + r.abs()) + eta;
        let fits = (got - r).abs() <= bound;
        (!fits).then(|| format!("element {i}: got {got:e}, expected {r:e} within {bound:e}"))
    })
}

/// The gradients of a dense layer's weight and bias, for a weight that is read as it lies and one that is read transposed.
fn bias_gradient(dtype: DType, [m, k, n]: [usize; 3]) -> std::result::Result<(), Failed> {
    let [x, w, bias, dy] = inputs([m, k, n], dtype)?;
    let flat = |found: Vec<Tensor>| found.iter().map(Tensor::to_f64_vec).collect::<Result<Vec<_>>>();
    for (trans_b, w) in [(Transpose::No, w.clone()), (Transpose::Yes, w.t()?.contiguous()?)] {
        let gradients = |[x, w, bias, dy]: &Inputs| {
            let (w, bias) = (w.require_grad()?, bias.require_grad()?);
            let y = x.gemm_bias(&w, Some(&bias), &GemmBias { trans_b, ..Default::default() })?;
            grad_with(&y, &[&w, &bias], &BackwardOptions { gradient: Some(dy.clone()), ..Default::default() })
        };
        let narrow = [x.clone(), w, bias.clone(), dy.clone()];
        let wide = map(&narrow, |t| t.cast(DType::F64))?;
        let (exact, sums) = (flat(gradients(&wide)?)?, flat(gradients(&map(&wide, Tensor::abs)?)?)?);
        for blas in [Blas::Vendor, Blas::Own] {
            let (gpu, device) = open(blas)?;
            let there = map(&narrow, |t| t.to_device(&device))?;
            let found = gradients(&there)?;
            let is_served = gpu.launches().iter().any(|launch| launch.program.contains("summed: Some"));
            let fail = |why: String| Err(Failed::from(format!("{:?}, {trans_b:?}, by {blas:?}: {why}", [m, k, n])));
            if !is_served && blas == Blas::Vendor && dtype.size() == 2 && shapes()[..ALIGNED].contains(&[m, k, n]) {
                return fail("the library does not sum".into());
            }
            let bits = |found: &[Tensor]| found.iter().map(Tensor::to_bytes).collect::<Result<Vec<_>>>();
            if bits(&found)? != bits(&gradients(&there)?)? {
                return fail("two calls differ".into());
            }
            for (name, (found, (exact, sums))) in
                ["weight", "bias"].iter().zip(flat(found)?.iter().zip(exact.iter().zip(&sums)))
            {
                if let Some(why) = outside(dtype, m, found, exact, sums) {
                    return fail(format!("{name}, {why}"));
                }
            }
        }
    }
    Ok(())
}

/// The library's own gelu and its derivative are within the bound of the setting that allows them; of gelu that is also what
/// backward starts from.
fn reduced(dtype: DType) -> std::result::Result<(), Failed> {
    let cases: [(&str, Case); 2] = [
        ("GeluTanh,", |inputs| dense(inputs, Activation::Gelu(Approximate::Tanh))),
        ("GeluTanhGradient,", |inputs| gradient(inputs, |x| x.gelu(Approximate::Tanh))),
    ];
    let narrow = inputs(shapes()[0], dtype)?;
    let [product, _] = exact(|[a, b, ..]| a.matmul(b), &narrow)?;
    for (epilogue, case) in cases {
        let [exact, sums] = exact(case, &narrow)?;
        let (gpu, device) = open(Blas::Vendor)?;
        device.set_matmul_precision(Precision::Reduced);
        let there = map(&narrow, |t| t.to_device(&device))?;
        let y = case(&there)?;
        if !gpu.launches().iter().any(|launch| launch.entry == "vendor" && launch.program.contains(epilogue)) {
            return Err(format!("the library was not asked for {epilogue}").into());
        }
        let u_out = if dtype == DType::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
        // Where the slope is near 0, the error of tanh, 2^-11, is that of the product's multiple.
        let of_slope = if epilogue == "GeluTanh," { 0.0 } else { 2f64.powi(-10) };
        for (i, (got, r)) in y.to_f64_vec()?.iter().zip(&exact).enumerate() {
            let bound = 4.0 * u_out * r.abs() + 2f64.powi(-19) * sums[i] + of_slope * product[i].abs();
            if (got - r).abs() > bound {
                return Err(format!("{epilogue} element {i}: got {got:e}, expected {r:e} within {bound:e}").into());
            }
        }
    }
    Ok(())
}

/// NaN and infinities are where our own kernels have them.
fn special_values(dtype: DType) -> std::result::Result<(), Failed> {
    let cpu = Device::cpu()?;
    let [a, b, bias, c] = inputs([64, 128, 64], DType::F32)?;
    let mut values = a.to_f64_vec()?;
    for (row, special) in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().enumerate() {
        values[row * 128 + row] = special;
    }
    let a = Tensor::from_vec(values, (64, 128), &cpu)?;
    let inputs = map(&[a, b, bias, c], |t| t.cast(dtype))?;
    for (name, case) in CASES {
        let kinds = |blas| -> Result<Vec<_>> {
            let device = open(blas)?.1;
            let y = case(&map(&inputs, |t| t.to_device(&device))?)?.detach().to_f64_vec()?;
            // Not finite, and if not NaN, where.
            Ok(y.into_iter().map(|v| (v.is_nan(), if v.is_infinite() { v.signum() } else { 0.0 })).collect())
        };
        let [vendor, own] = [kinds(Blas::Vendor)?, kinds(Blas::Own)?];
        if let Some(i) = (0..own.len()).find(|&i| vendor[i] != own[i]) {
            return Err(format!("{name}, element {i}: the library has {:?}, we have {:?}", vendor[i], own[i]).into());
        }
    }
    Ok(())
}

/// TF32 rounds both factors to 11 bits, and only if it is asked for.
fn tf32() -> std::result::Result<(), Failed> {
    let (gpu, device) = open(Blas::Vendor)?;
    let narrow = inputs(shapes()[0], DType::F32)?;
    let [exact, sums] = exact(|[a, b, ..]| a.matmul(b), &narrow)?;
    let [a, b, ..] = map(&narrow, |t| t.to_device(&device))?;
    let plain = a.matmul(&b)?.to_f64_vec()?;
    device.set_matmul_precision(Precision::Tf32);
    let rounded = a.matmul(&b)?.to_f64_vec()?;
    device.set_matmul_precision(Precision::Exact);
    if plain != a.matmul(&b)?.to_f64_vec()? {
        return Err("the setting stays".into());
    }
    if let Some(i) = (0..exact.len()).find(|&i| (rounded[i] - exact[i]).abs() > 2f64.powi(-10) * sums[i]) {
        return Err(format!("element {i}: got {:e}, expected {:e}", rounded[i], exact[i]).into());
    }
    // Turing has no TF32.
    if rounded == plain && !gpu.driver().limits().driver.contains("capability 7.") {
        return Err("the setting changes nothing".into());
    }
    Ok(())
}
