//! What a launch costs the host: calls on a driver that runs nothing, so that all of the time is ours.
//!
//! `cargo bench -p isograd-gpu`

use criterion::{Criterion, criterion_group, criterion_main};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Backend, Call, DType, Device, Kernel, Layout, Memory, Operand, Tensor};
use isograd_gpu::driver::null::NullDriver;
use isograd_gpu::{Dialect, Gpu};
use isograd_nn::optim::{AdamW, Optimizer};
use std::hint::black_box;
use std::sync::Arc;

static DIALECT: Dialect = Dialect { name: "null", folders: &[], files: &[("prelude.h", "")], mma: &[] };

fn launches(c: &mut Criterion) {
    let gpu = Gpu::with_cache(Arc::new(NullDriver::new(&DIALECT, 1 << 30)), None);
    let memory: Vec<Box<dyn Memory>> = (0..3).map(|_| gpu.allocate(4 << 20).expect("there is room")).collect();
    let mut measure = |name: &str, kernel: Kernel, layouts: [Layout; 3], floats: &[f64]| {
        let operands: Vec<Operand<'_>> = memory
            .iter()
            .zip(&layouts)
            .map(|(memory, layout)| Operand { memory: &**memory, layout, dtype: DType::F32 })
            .collect();
        let (inputs, outputs) = operands.split_at(2);
        let call = Call { op: "launch", kernel, inputs, outputs, ints: &[], floats };
        c.bench_function(name, |b| b.iter(|| gpu.run(black_box(&call)).expect("it runs")));
    };
    let matrix = || Layout::contiguous((1024, 1024).into());
    let add = Kernel::Pointwise(Pointwise::Add);
    measure("launch/add", add, [matrix(), matrix(), matrix()], &[1.0]);
    measure("launch/add transposed", add, [matrix().permute(&[1, 0]), matrix(), matrix()], &[1.0]);
    let product = || Layout::contiguous((1, 1024, 1024).into());
    measure("launch/matmul", Kernel::Matmul, [product(), product(), product()], &[1.0, 0.0]);
}

/// A step over many parameters, whose gradients are where they were in the last one.
fn steps(c: &mut Criterion) {
    let gpu = Gpu::with_cache(Arc::new(NullDriver::new(&DIALECT, 1 << 30)), None);
    let device = Device::from_backend("null:0", Arc::new(gpu));
    let zeros = |_| Tensor::zeros(1000, DType::F32, &device).expect("there is room");
    let parameters: Vec<Tensor> = (0..300).map(|i| zeros(i).require_grad().expect("it is a float")).collect();
    let gradients: Vec<Tensor> = (0..300).map(zeros).collect();
    let mut optimizer = AdamW::from_parameters(parameters.clone());
    c.bench_function("step/adamw of 300", |b| {
        b.iter(|| {
            for (parameter, gradient) in parameters.iter().zip(&gradients) {
                parameter.set_grad(Some(gradient.clone())).expect("it is a leaf");
            }
            optimizer.step().expect("it runs")
        })
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots();
    targets = launches, steps
}
criterion_main!(benches);
