//! What the tape costs: an op recorded, and a node's share of a backward pass, each as the difference to the same op
//! outside of the tape.

use criterion::{Criterion, criterion_group, criterion_main};
use isograd::{Tensor, no_grad};
use isograd_tests::leaf;
use std::time::{Duration, Instant};

const OPS: usize = 1000;

fn chain(x: &Tensor) -> Tensor {
    (0..OPS).fold(x.clone(), |y, _| y.add_scalar(1.0).unwrap())
}

/// Times `f` alone and divides by the number of ops, so that the report reads in time per op.
fn per_op(iterations: u64, mut f: impl FnMut() -> Duration) -> Duration {
    (0..iterations).map(|_| f()).sum::<Duration>() / OPS as u32
}

fn tape(c: &mut Criterion) {
    let x = leaf(&[1.0], 1).unwrap();
    c.bench_function("op outside of the tape", |b| {
        b.iter_custom(|n| {
            per_op(n, || {
                let started = Instant::now();
                let y = no_grad(|| chain(&x));
                let elapsed = started.elapsed();
                drop(y);
                elapsed
            })
        })
    });
    c.bench_function("op on the tape", |b| {
        b.iter_custom(|n| {
            per_op(n, || {
                let started = Instant::now();
                let y = chain(&x);
                let elapsed = started.elapsed();
                drop(y);
                elapsed
            })
        })
    });
    c.bench_function("backward and drop of a node", |b| {
        b.iter_custom(|n| {
            per_op(n, || {
                let y = chain(&x);
                let started = Instant::now();
                y.backward().unwrap();
                drop(y);
                started.elapsed()
            })
        })
    });
}

criterion_group!(benches, tape);
criterion_main!(benches);
