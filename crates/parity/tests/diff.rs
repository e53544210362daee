//! The tape diff.

use isograd_core::ops::Total;
use isograd_core::ops::loss::{CrossEntropy, Reduction, Triplet, TripletNegative};
use isograd_core::ops::{Activation, Approximate, EmbeddingOptions, GemmBias, total, unscale_};
use isograd_core::pointwise::Pointwise;
use isograd_core::{
    Backend, Call, DType, Device, Kernel, Kind, Memory, MemoryStats, Operand, Result, Rng, Tensor, tape,
};
use isograd_nn::{Adam, Optimizer};
use isograd_parity::{Diff, Direction, diff};
use std::sync::Arc;

// Devices register themselves.
use isograd_cuda as _;
use isograd_opencl as _;

fn cpu() -> Device {
    Device::cpu().unwrap()
}

fn draw(shape: &[usize], dtype: DType, device: &Device, rng: &Rng) -> Result<Tensor> {
    Tensor::rand(shape.to_vec(), -1.5, 1.5, dtype, device, rng)
}

/// A step through everything that has a kernel of its own, and some that has none.
fn step(device: &Device, dtype: DType) -> Result<Tensor> {
    let rng = Rng::new(7);
    let draw = |shape: &[usize]| draw(shape, dtype, device, &rng);
    let leaf = |shape: &[usize]| draw(shape)?.require_grad();
    let (table, gamma, beta, w, bias) = (leaf(&[11, 12])?, leaf(&[12])?, leaf(&[12])?, leaf(&[9, 12])?, leaf(&[9])?);
    let index = Tensor::from_vec(vec![3i64, 0, 10, 3, 3, 7], (2, 3), device)?;
    let options = EmbeddingOptions { padding_idx: Some(0), scale_grad_by_freq: true };
    let x = table.embedding(&index, &options)?.dropout(0.3, &rng)?;
    let x = x.layer_norm(1, Some(&gamma), Some(&beta), 1e-5)?.add(&x.rms_norm(1, Some(&gamma), 1e-5)?)?;
    let gelu = GemmBias {
        trans_b: isograd_core::ops::Transpose::Yes,
        activation: Activation::Gelu(Approximate::None),
        ..Default::default()
    };
    let relu = GemmBias { activation: Activation::Relu, ..gelu };
    let z = x.gemm_bias(&w, Some(&bias), &gelu)?.sub(&x.gemm_bias(&w, Some(&bias), &relu)?)?;
    let z = z.add(&x.silu()?.linear(&w, None)?)?;
    let z = z.add(&z.softmax(1)?)?.add(&z.log_softmax(-1)?)?.reshape((6, 9))?;
    let z = z.cumsum(1)?.index_select(0, &Tensor::from_vec(vec![5i64, 2, 2, 1, 0, 4], 6, device)?)?;
    let target = Tensor::from_vec(vec![1i64, 8, -100, 0, 4, 1], 6, device)?;
    let weight = draw(&[9])?.abs()?.add_scalar(0.1)?;
    let each = |reduction, smoothing, weight: Option<&Tensor>| {
        let options =
            CrossEntropy { reduction, label_smoothing: smoothing, weight: weight.cloned(), ..Default::default() };
        z.cross_entropy_with(&target, &options)
    };
    let bytes = CrossEntropy { token_bytes: Some(weight.clone()), ..Default::default() };
    let named = table.embedding_rmsnorm(&index, Some(&gamma), 1e-6)?.reshape((6, 12))?.narrow(1, 0, 9)?;
    let alike = target.gt_scalar(0)?.cast(dtype)?;
    let negative = TripletNegative::Nearest;
    let losses = [
        each(Reduction::Mean, 0.1, Some(&weight))?,
        each(Reduction::Mean, 0.0, None)?,
        each(Reduction::BatchMean, 0.2, None)?,
        each(Reduction::None, 0.0, Some(&weight))?.sum(..)?,
        z.cross_entropy_with(&target, &bytes)?,
        z.var(1, 1.0)?.sqrt()?.mean(..)?,
        z.logsumexp(1)?.mean(..)?,
        z.log_softmax(1)?.nll_loss(&target, &CrossEntropy { weight: Some(weight.clone()), ..Default::default() })?,
        z.contrastive_loss(&named, &alike, 9.0, Reduction::Mean)?,
        z.triplet_loss(&named, &z.neg()?, &Triplet { margin: 30.0, ..Default::default() })?,
        named.triplet_loss(&z, &z.neg()?, &Triplet { margin: 30.0, p: 1.5, negative, ..Default::default() })?,
    ];
    losses[1..].iter().try_fold(losses[0].clone(), |sum, loss| sum.add(loss))?.backward()?;
    let parameters = vec![table, gamma, beta, w, bias];
    let gradients: Vec<Tensor> = parameters.iter().filter_map(Tensor::grad).collect();
    for kind in [Total::Norm, Total::AbsSum, Total::AbsMax, Total::NotFinite] {
        total(kind, &gradients.iter().collect::<Vec<_>>())?;
    }
    let number = |v: f32| Tensor::scalar(v, device);
    unscale_(&gradients.iter().collect::<Vec<_>>(), &number(2.0)?, &number(0.0)?)?;
    Adam::from_parameters(parameters.clone()).lr(1e-2).step()?;
    Ok(parameters[0].detach())
}

/// False in a build without debug information, where the origin is a function's name.
fn has_lines() -> bool {
    std::backtrace::Backtrace::force_capture().to_string().contains("tests/diff.rs:")
}

#[track_caller]
fn assert_right(found: &Diff) {
    assert!(found.first().is_none(), "{}", found.text());
    assert!(found.text().ends_with("\nno node is beyond its tolerance"));
}

#[test]
fn the_cpu_is_right() {
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let found = diff(&cpu(), &cpu(), |device| step(device, dtype)).unwrap();
        assert_right(&found);
        let has = |kernel| found.entries.iter().any(|entry| entry.kernel.starts_with(kernel));
        // In f64 it computes in parts what other dtypes have kernels for.
        let (least, has_fused) = if dtype == DType::F64 { (200, false) } else { (100, true) };
        assert!(found.entries.len() > least && has("Fused(softmax") == has_fused, "{}", found.text());
    }
}

/// The errors of another host stand beside the own ones, if its calls are the same.
#[test]
fn errors_of_another_host_stand_beside_ours() {
    let of = |dtype| diff(&cpu(), &cpu(), |device| step(device, dtype)).unwrap();
    let (own, other) = (of(DType::F32), of(DType::F64));
    let names = || ["here", "there"].map(String::from);
    let both = own.beside(names(), &own.to_bytes()).unwrap();
    assert_eq!(both.devices, names());
    assert_eq!(both.entries.len(), own.entries.len());
    for (entry, alone) in both.entries.iter().zip(&own.entries) {
        let bounds = |k: usize| entry.found[k].as_ref().map(|off| off.bounds);
        assert_eq!([bounds(0), bounds(1)], [alone.found[0].as_ref().map(|off| off.bounds); 2]);
    }
    let bytes = own.to_bytes();
    for wrong in [&other.to_bytes()[..], &bytes[..bytes.len() - 8]] {
        assert_eq!(own.beside(names(), wrong).unwrap_err().kind(), Kind::Value);
    }
}

#[test]
fn fused_kernels_are_right_and_all_compared() {
    let devices = Device::list().into_iter().filter_map(|(_, found)| found.ok()).flatten();
    for name in devices.map(|info| info.name).filter(|name| name != "cpu") {
        for dtype in [DType::F32, DType::F16] {
            let found = diff(&cpu(), &name.parse().unwrap(), |device| step(device, dtype)).unwrap();
            assert_right(&found);
            let fused = found.entries.iter().filter(|entry| entry.kernel.starts_with("Fused("));
            assert!(fused.clone().all(|entry| entry.found[1].is_some()), "{}", found.text());
            let mut kernels: Vec<&str> = fused.map(|entry| entry.kernel.split(['(', ' ']).nth(1).unwrap()).collect();
            kernels.sort();
            kernels.dedup();
            assert_eq!(kernels.len(), 20, "{kernels:?}");
        }
    }
}

/// The CPU, with one kernel that is off in one element.
struct Wrong {
    function: Pointwise,
    by: f64,
}

impl Backend for Wrong {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        cpu().backend().allocate(bytes)
    }
    fn upload(&self, memory: &dyn Memory, bytes: &[u8]) -> Result<()> {
        cpu().backend().upload(memory, bytes)
    }
    fn download(&self, memory: &dyn Memory, offset: usize, bytes: &mut [u8]) -> Result<()> {
        cpu().backend().download(memory, offset, bytes)
    }
    fn run(&self, call: &Call<'_>) -> Result<()> {
        cpu().backend().run(call)?;
        let Operand { memory, layout, .. } = call.outputs[0];
        if matches!(call.kernel, Kernel::Pointwise(function) if function == self.function) {
            let mut bytes = vec![0; layout.end() * 4];
            self.download(memory, 0, &mut bytes)?;
            let last = bytes.len() - 4;
            let value = f32::from_ne_bytes(bytes[last..].try_into().unwrap()) + self.by as f32;
            bytes[last..].copy_from_slice(&value.to_ne_bytes());
            self.upload(memory, &bytes)?;
        }
        Ok(())
    }
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
    fn memory(&self) -> MemoryStats {
        MemoryStats::default()
    }
    fn reset_peak(&self) {}
}

fn wrong(function: Pointwise, by: f64) -> Device {
    Device::from_backend("wrong", Arc::new(Wrong { function, by }))
}

fn small(device: &Device) -> Result<Tensor> {
    let x = draw(&[2, 3], DType::F32, device, &Rng::new(1))?.require_grad()?;
    x.gelu(Approximate::None)?.exp()?.sum(..)
}

#[test]
fn what_is_off_is_named_on_the_device_where_it_is() {
    for (function, direction) in [(Pointwise::Gelu, Direction::Forward), (Pointwise::GeluBackward, Direction::Backward)]
    {
        for (a, b, k) in [(cpu(), wrong(function, 1e-4), 1), (wrong(function, 1e-4), cpu(), 0)] {
            let found = diff(&a, &b, small).unwrap();
            let first = found.first().unwrap();
            assert_eq!((first.direction, &*first.op, &*first.kernel), (direction, "gelu", function.name()));
            assert_eq!(
                (&*first.outputs[0], first.inputs.len()),
                ("f32 [2, 3]", 1 + (direction == Direction::Backward) as usize)
            );
            let [right, off] = [1 - k, k].map(|k| first.found[k].clone().unwrap());
            assert!(right.bounds <= 1.0 && off.bounds > 1.0, "{}", found.text());
            assert_eq!(off.element, [1, 2]);
            assert!((off.got - off.expected - 1e-4).abs() < 1e-6);
            let origin = first.origin.as_deref().unwrap();
            assert!(origin.contains(if has_lines() { "tests/diff.rs:" } else { "diff::small" }), "{origin}");
            let beyond = found.entries.iter().filter(|e| e.found.iter().flatten().any(|off| off.bounds > 1.0));
            assert_eq!(beyond.count(), 1, "an error is not carried on: {}", found.text());
            let last = found.text().lines().last().unwrap().to_string();
            let name = if k == 0 { &a } else { &b }.name().to_string();
            let start = format!("the first beyond its tolerance: gelu {direction} (#");
            assert!(last.starts_with(&start) && last.contains(&format!("on {name}: element [1, 2] of f32 [2, 3] is ")));
        }
    }
}

#[test]
fn not_a_number_is_beyond_every_tolerance() {
    let found = diff(&cpu(), &wrong(Pointwise::Exp, f64::NAN), small).unwrap();
    assert_eq!(
        (&*found.first().unwrap().op, found.first().unwrap().found[1].clone().unwrap().bounds),
        ("exp", f64::INFINITY)
    );
}

#[test]
fn errors_of_the_step_and_of_its_result() {
    let kind = |step: fn(&Device) -> Result<Tensor>| diff(&cpu(), &cpu(), step).unwrap_err().kind();
    assert_eq!(kind(|device| Tensor::zeros(3, DType::F32, device)?.require_grad()?.exp()), Kind::Shape);
    assert_eq!(kind(|device| Tensor::zeros(3, DType::F32, device)?.reshape(2)), Kind::Shape);
    assert_eq!(
        kind(|device| Tensor::zeros(3, DType::F32, device)?.add(&Tensor::zeros(3, DType::F32, &cpu())?)),
        Kind::Device
    );
    let bad = |device: &Device| {
        let x = Tensor::zeros((2, 3), DType::F32, device)?;
        x.index_select(0, &Tensor::from_vec(vec![5i64], 1, device)?)
    };
    assert_eq!(kind(bad), Kind::Index);
}

#[test]
fn nodes_in_a_checkpoint_have_their_places() {
    let found = diff(&cpu(), &wrong(Pointwise::TanhBackward, 1e-3), |device| {
        let x = draw(&[2, 3], DType::F32, device, &Rng::new(1))?.require_grad()?;
        tape::checkpoint(|x| x[0].tanh(), &[&x])?.sum(..)
    });
    let found = found.unwrap();
    let first = found.first().unwrap();
    assert_eq!((&*first.op, first.direction), ("tanh", Direction::Backward));
    let is_here = first.origin.as_deref().is_some_and(|origin| origin.contains("tests/diff.rs:"));
    assert!(is_here || !has_lines(), "{first:?}");
}
