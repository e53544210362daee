//! The registry against the list of kernels, and against what the dialects have.

use isograd_core::{DType, Device};
use isograd_gpu::driver::null::NullDriver;
use isograd_gpu::{Dialect, Gpu, catalogue};
use isograd_parity::Check;
use isograd_parity::case::Gen;
use isograd_parity::check::{asks_for_fused, budget, launches};
use isograd_parity::kernels::{KERNELS, Kernel, checks, of, ops};
use isograd_parity::registry::{Attributes, Category, Class, Derivative, MODULES, OPS, Op, run};
use isograd_parity::strategy::{Seeded, tally};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

// Their dialects.
use isograd_cuda as _;
use isograd_hip as _;
use isograd_opencl as _;

#[test]
fn a_gradient_has_an_op_where_one_of_its_kernels_has() {
    for kernel in KERNELS.iter().filter(|kernel| !kernel.backward_of.is_empty()) {
        let forward = |name: &String| KERNELS.iter().find(|other| other.name == *name).expect("a kernel of the list");
        let has_forward = kernel.backward_of.iter().any(|name| !ops(forward(name)).is_empty());
        assert_eq!(!ops(kernel).is_empty(), has_forward, "{}", kernel.name);
    }
}

#[test]
fn every_check_of_an_op_is_one_of_a_kernel() {
    for op in OPS.iter().filter(|op| !of(op).is_empty()) {
        for check in Check::ALL {
            let is_of = |kernel: &&Kernel| checks(op, kernel).any(|other| other == check);
            assert!(of(op).iter().any(is_of), "{check} of {} is on no page", op.name);
        }
    }
}

/// The letter of a class in the list.
fn letter(class: Class) -> &'static str {
    match class {
        Class::Exact => "E",
        Class::Arithmetic => "A",
        Class::Transcendental => "T",
        Class::Reduction | Class::Factors => "R",
        Class::Product | Class::Dense => "G",
        Class::Stages => "M",
        Class::Optimizer => "O",
    }
}

/// Ops of another class than a kernel of theirs, and why.
const OF_OTHER_CLASSES: &[(&str, &str, &str)] = &[
    ("prod", "prod", "products of rounded factors are nearer than stages have to be"),
    ("rand", "random_uniform", "the largest number below the upper end stands for it, which f64 does not have"),
    ("clip_grad_norm", "scale_gradient", "the factor comes from a sum"),
];

#[test]
fn ops_are_as_exact_as_the_list_demands() {
    for kernel in KERNELS.iter() {
        for op in OPS.iter().filter(|op| op.name == kernel.name || op.kernels.contains(&&*kernel.name)) {
            let is_other = OF_OTHER_CLASSES.iter().any(|(name, of, _)| *name == op.name && *of == kernel.name);
            let is_as_listed = letter(op.class) == kernel.tolerance_class;
            assert_eq!(is_as_listed, !is_other, "{}: {:?}, {}", op.name, op.class, kernel.name);
        }
    }
}

#[test]
fn names_are_those_of_the_list_and_each_is_there_once() {
    let mut seen = BTreeSet::new();
    for op in OPS.iter() {
        assert!(seen.insert(op.name), "{} has two rows", op.name);
        for name in op.kernels {
            assert!(
                KERNELS.iter().any(|kernel| kernel.name == *name),
                "{} stands for {name}, which is no kernel",
                op.name
            );
        }
    }
    let mut seen = BTreeSet::new();
    for kernel in KERNELS.iter() {
        assert!(seen.insert(&kernel.name), "{} is in kernels.toml twice", kernel.name);
        let backward = kernel.backward.iter().chain(&kernel.backward_of);
        for name in backward {
            assert!(
                KERNELS.iter().any(|other| other.name == *name),
                "{} names {name}, which is no kernel",
                kernel.name
            );
        }
    }
}

#[test]
fn modules_look_at_all_that_their_examples_give() {
    let cpu = Device::cpu().unwrap();
    for module in MODULES.iter() {
        assert!(!OPS.iter().any(|op| op.name == module.name), "{} is also an op", module.name);
        let case = (module.make)(&mut Gen::new(&[2, 3], 7, &cpu));
        let attributes = Attributes::of(&case);
        let outputs = run(module.name, &attributes, &case.inputs).unwrap();
        assert!(!outputs.is_empty() && attributes.unread(&case.inputs).is_empty(), "{}", module.name);
    }
}

#[test]
fn every_op_has_a_gradient_or_a_reason() {
    for op in OPS.iter() {
        if let Derivative::None(why) | Derivative::Once(why) = op.derivative {
            assert!(!why.is_empty(), "{} has no gradient and no reason", op.name);
        }
        let has_gradient = !matches!(op.derivative, Derivative::None(_));
        for kernel in of(op).into_iter().filter(|kernel| kernel.backward_of.is_empty()) {
            assert_eq!(
                has_gradient, kernel.differentiable,
                "the gradient of {}, which stands for {}",
                op.name, kernel.name
            );
        }
    }
}

#[test]
fn launches_are_within_the_budgets() {
    let cpu = Device::cpu().unwrap();
    let large = [[67, 131], [2, 4097]].map(|shape| Seeded { shape: shape.to_vec(), seed: 1 });
    let mut over = Vec::new();
    for dialect in catalogue::dialects() {
        let device = Device::from_backend(
            "null:0",
            Arc::new(Gpu::with_cache(Arc::new(NullDriver::new(dialect, 1 << 40)), None)),
        );
        // A device that runs nothing has zeros alone, and most decompositions refuse a matrix of zeros.
        for op in OPS.iter().filter(|op| op.category != Category::Linalg) {
            let tally = tally(&large, 60, 7, |case| {
                budget(op, &(op.make)(&mut Gen::new(&case.shape, case.seed, &cpu)), DType::F32, &device)
            });
            over.extend(tally.failure.map(|why| format!("{} {}: {why}", dialect.name, op.name)));
        }
    }
    assert!(over.is_empty(), "{}", over.join("\n"));
}

#[test]
fn ops_with_fused_kernels_are_compared_with_composites() {
    let (cpu, dialect) = (Device::cpu().unwrap(), catalogue::dialects()[0]);
    let device =
        Device::from_backend("null:0", Arc::new(Gpu::with_cache(Arc::new(NullDriver::new(dialect, 1 << 40)), None)));
    let asks = |op: &&Op| {
        (0..12).any(|seed| {
            let case = (op.make)(&mut Gen::new(&[3, 5], seed, &cpu));
            asks_for_fused(op, &case, DType::F32, &device).unwrap_or(false)
        })
    };
    let wrong: Vec<&str> = OPS.iter().filter(|op| asks(op) != op.fused).map(|op| op.name).collect();
    assert!(wrong.is_empty(), "`fused` is wrong for {wrong:?}");
}

/// Kernels that one dialect alone has, and why.
const ALONE: &[(&str, &str, &str)] = &[("gemm_wgmma_words", "cuda", NO_LOCAL), ("attention_wgmma", "cuda", NO_LOCAL)];
const NO_LOCAL: &str = "matrix units read local memory on Hopper alone";

/// The kernels of the source files that a row launches where a dialect's compiler runs.
fn launched(op: &isograd_parity::registry::Op, dialect: &'static Dialect) -> BTreeSet<&'static str> {
    let gpu = Arc::new(Gpu::with_cache(Arc::new(NullDriver::new(dialect, 1 << 40)), None));
    let device = Device::from_backend("null:0", gpu.clone());
    let cpu = Device::cpu().unwrap();
    gpu.launches();
    for (shape, dtype) in [(&[67, 131][..], DType::F32), (&[3, 61, 17], DType::F16)] {
        for seed in 1..7 {
            let case = (op.make)(&mut Gen::new(shape, seed, &cpu));
            // What is not accepted launches nothing.
            let _ = launches(op, &case, dtype, &device);
        }
    }
    gpu.launches().iter().map(|launch| launch.entry).collect()
}

#[test]
fn what_a_row_launches_is_in_every_dialect_or_there_is_a_reason() {
    let dialects = catalogue::dialects();
    assert_eq!(dialects.len(), 3);
    let entries: BTreeMap<&str, BTreeSet<String>> = dialects
        .iter()
        .map(|dialect| (dialect.name, catalogue::entries(dialect).unwrap().into_iter().map(|e| e.name).collect()))
        .collect();
    let mut needed = BTreeSet::new();
    for op in OPS.iter() {
        for dialect in &dialects {
            // What no file has is generated for the call, in any dialect.
            let is_written = |entry: &&str| entries.values().any(|of_dialect| of_dialect.contains(*entry));
            for entry in launched(op, dialect).into_iter().filter(is_written) {
                for other in dialects.iter().filter(|other| !entries[other.name].contains(entry)) {
                    let reason = ALONE.iter().find(|(e, d, _)| *e == entry && *d == dialect.name);
                    assert!(
                        reason.is_some_and(|(.., why)| !why.is_empty()),
                        "{} launches {entry} in {}, which {} lacks: say why in ALONE",
                        op.name,
                        dialect.name,
                        other.name
                    );
                    needed.insert((entry, dialect.name));
                }
            }
        }
    }
    let stale: Vec<_> = ALONE.iter().filter(|(e, d, _)| !needed.contains(&(*e, *d))).collect();
    assert!(stale.is_empty(), "every dialect has these, or none launches them: {stale:?}");
}
