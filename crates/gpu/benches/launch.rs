//! What a launch costs the host: calls on a driver that runs nothing, so that all of the time is ours.
//!
//! `cargo bench -p isograd-gpu`

use criterion::{Criterion, criterion_group, criterion_main};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Backend, Call, DType, Kernel, Layout, Memory, Operand};
use isograd_gpu::null::NullDriver;
use isograd_gpu::{Dialect, Gpu};
use std::hint::black_box;

static DIALECT: Dialect = Dialect { name: "null", files: &[("prelude.h", "")], mma: &[] };

fn launches(c: &mut Criterion) {
    let gpu = Gpu::with_cache(NullDriver::new(&DIALECT, 1 << 30), None);
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

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots();
    targets = launches
}
criterion_main!(benches);
