//! Collectives among threads: values, gradients, sub-groups and errors.

use isograd_core::tape::{BackwardOptions, grad_with};
use isograd_core::{DType, Device, Kind, Result, Tensor};
use isograd_cpu as _;
use isograd_parallel::{Group, Options, Reduction, threads, threads_with};
use std::time::{Duration, Instant};

fn cpu() -> Device {
    Device::cpu().expect("the CPU backend is linked")
}

fn f64s(values: &[f64]) -> Result<Tensor> {
    Tensor::from_slice(values, values.len(), &cpu())
}

/// The elements of a rank: 1 to `n`, plus ten times the rank.
fn elements(group: &Group, n: usize) -> Vec<f64> {
    (0..n).map(|i| (i + 1 + 10 * group.rank()) as f64).collect()
}

const DTYPES: [DType; 8] = DType::ALL;

#[test]
fn values_in_every_dtype() {
    for n in [1, 2, 3, 4] {
        threads(n, |group| {
            for dtype in DTYPES.into_iter().filter(|dtype| *dtype != DType::Bool) {
                let x = f64s(&elements(&group, 3))?.cast(dtype)?;
                let all: Vec<f64> = (0..n).flat_map(|rank| (1..=3).map(move |i| (i + 10 * rank) as f64)).collect();
                let sums: Vec<f64> = (0..3).map(|i| all.iter().skip(i).step_by(3).sum()).collect();
                assert_eq!(group.all_reduce(&x, Reduction::Sum)?.to_f64_vec()?, sums);
                assert_eq!(group.all_reduce(&x, Reduction::Max)?.to_f64_vec()?, all[3 * n - 3..]);
                assert_eq!(group.broadcast(&x, n - 1)?.to_f64_vec()?, all[3 * n - 3..]);
                let gathered = group.all_gather(&x)?;
                assert_eq!((gathered.dims(), gathered.to_f64_vec()?), (&[n, 3][..], all));
                let scattered = group.reduce_scatter(&f64s(&elements(&group, n))?.cast(dtype)?, Reduction::Sum)?;
                let sum: usize = (0..n).map(|rank| group.rank() + 1 + 10 * rank).sum();
                assert_eq!((scattered.rank(), scattered.item::<f64>()?), (0, sum as f64));
                let turned = group.all_to_all(&f64s(&elements(&group, n))?.cast(dtype)?)?;
                let expected: Vec<f64> = (0..n).map(|rank| (group.rank() + 1 + 10 * rank) as f64).collect();
                assert_eq!(turned.to_f64_vec()?, expected);
                if dtype.is_float() {
                    let mean: Vec<f64> = sums.iter().map(|sum| sum / n as f64).collect();
                    assert_eq!(group.all_reduce(&x, Reduction::Mean)?.to_f64_vec()?, mean);
                } else {
                    assert_eq!(group.all_reduce(&x, Reduction::Mean).unwrap_err().kind(), Kind::Dtype);
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Large tensors are reduced in parts, one on each rank.
#[test]
fn large_tensors() {
    threads(3, |group| {
        let x = Tensor::arange(10_007, &cpu())?.cast(DType::F32)?.add_scalar(group.rank() as f64)?;
        let expected = Tensor::arange(10_007, &cpu())?.cast(DType::F32)?.mul_scalar(3.0)?.add_scalar(3.0)?;
        assert_eq!(group.all_reduce(&x, Reduction::Sum)?.to_vec::<f32>()?, expected.to_vec::<f32>()?);
        // A view of other strides.
        let square = x.narrow(0, 0, 10_000)?.reshape((100, 100))?.t()?;
        let sum = group.all_reduce(&square, Reduction::Sum)?;
        assert_eq!(sum.select(0, 1)?.select(0, 0)?.item::<f64>()?, 6.0);
        assert_eq!(group.broadcast(&square, 1)?.select(0, 0)?.select(0, 1)?.item::<f64>()?, 101.0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn empty_tensors() {
    threads(2, |group| {
        let x = Tensor::zeros((0, 4), DType::F32, &cpu())?;
        assert_eq!(group.all_reduce(&x, Reduction::Mean)?.dims(), [0, 4]);
        assert_eq!(group.all_gather(&x)?.dims(), [2, 0, 4]);
        Ok(())
    })
    .unwrap();
}

/// The gradient of `sum over ranks of sum(w_rank * f(x_rank))`, by finite differences of every rank's every element.
fn check_gradient(n: usize, length: usize, f: impl Fn(&Group, &Tensor) -> Result<Tensor> + Sync) {
    let objective = |group: &Group, x: &Tensor| -> Result<Tensor> {
        let y = f(group, x)?;
        let weights: Vec<f64> = (0..y.numel()).map(|i| 0.5 + i as f64 + 0.25 * group.rank() as f64).collect();
        y.mul(&Tensor::from_vec(weights, y.shape(), &cpu())?)?.sum(..)
    };
    let start = |rank: usize| -> Vec<f64> { (0..length).map(|i| ((7 * i + 5 * rank) % 11) as f64 * 0.3).collect() };
    let total = |moved: Option<(usize, usize, f64)>| -> f64 {
        let values = threads(n, |group| {
            let mut x = start(group.rank());
            if let Some((rank, i, by)) = moved
                && rank == group.rank()
            {
                x[i] += by;
            }
            objective(&group, &f64s(&x)?)?.item::<f64>()
        });
        values.unwrap().iter().sum()
    };
    let found = threads(n, |group| {
        let x = f64s(&start(group.rank()))?.require_grad()?;
        objective(&group, &x)?.backward()?;
        x.grad().unwrap().to_f64_vec()
    });
    for (rank, gradient) in found.unwrap().into_iter().enumerate() {
        for (i, found) in gradient.into_iter().enumerate() {
            let expected = (total(Some((rank, i, 1e-4))) - total(Some((rank, i, -1e-4)))) / 2e-4;
            // Squares of sums have exact difference quotients, but for rounding; quartics are right to the square of the step.
            assert!(
                (found - expected).abs() < 1e-7 * expected.abs().max(1.0),
                "rank {rank}, element {i}: {found}, expected {expected}"
            );
        }
    }
}

#[test]
fn gradients() {
    for n in [2, 3] {
        check_gradient(n, 4, |group, x| group.all_reduce(&x.square()?, Reduction::Sum)?.square());
        check_gradient(n, 4, |group, x| group.all_reduce(x, Reduction::Mean)?.square());
        check_gradient(n, 4, |group, x| group.all_reduce(x, Reduction::Max)?.square());
        check_gradient(n, 3, |group, x| group.broadcast(x, 1)?.square());
        check_gradient(n, 3, |group, x| group.all_gather(x)?.square());
        check_gradient(n, n, |group, x| group.reduce_scatter(x, Reduction::Sum)?.square());
        check_gradient(n, n, |group, x| group.reduce_scatter(x, Reduction::Mean)?.square());
        check_gradient(n, n, |group, x| group.all_to_all(x)?.square());
    }
}

#[test]
fn ties_of_a_maximum_share_the_gradient() {
    let found = threads(2, |group| {
        let x = f64s(&[1.0, group.rank() as f64])?.require_grad()?;
        group.all_reduce(&x, Reduction::Max)?.sum(..)?.backward()?;
        x.grad().unwrap().to_f64_vec()
    });
    assert_eq!(found.unwrap(), [[1.0, 0.0], [1.0, 2.0]]);
}

#[test]
fn second_derivatives() {
    threads(2, |group| {
        let x = f64s(&[3.0 + group.rank() as f64])?.require_grad()?;
        // The ranks' sum is s = x0 + x1 = 7; the objective of each is s^3, and of both 2 s^3.
        let s = group.all_reduce(&x, Reduction::Sum)?;
        let y = s.mul(&s)?.mul(&s)?.sum(..)?;
        let options = BackwardOptions { create_graph: true, ..Default::default() };
        let first = grad_with(&y, &[&x], &options)?.swap_remove(0);
        assert_eq!(first.item::<f64>()?, 2.0 * 3.0 * 49.0);
        first.sum(..)?.backward()?;
        // Each rank's first gradient is 6 s^2, and the objective of both is 12 s^2: 24 s.
        assert_eq!(x.grad().unwrap().item::<f64>()?, 24.0 * 7.0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn groups_are_split() {
    threads(5, |world| {
        // 0, 2 and 4, in descending order; 1 and 3 in none.
        let even = world.rank() % 2 == 0;
        let group = world.split(even.then_some(7), 10 - world.rank())?;
        assert_eq!(group.is_some(), even);
        let Some(group) = group else { return Ok(()) };
        assert_eq!((group.size(), group.rank()), (3, 2 - world.rank() / 2));
        let x = Tensor::scalar(world.rank() as f32, &cpu())?;
        assert_eq!(group.all_gather(&x)?.to_vec::<f32>()?, [4.0, 2.0, 0.0]);
        assert_eq!(group.duplicate()?.all_reduce(&x, Reduction::Sum)?.item::<f64>()?, 6.0);
        assert_eq!(group.node()?.size(), 3);
        Ok(())
    })
    .unwrap();
}

#[test]
fn tensors_are_sent() {
    threads(2, |group| {
        let x = Tensor::from_vec(vec![1i64, 2, 3], 3, &cpu())?;
        if group.rank() == 0 {
            group.send(&x, 1)?;
            let on_tape = Tensor::scalar(1.0f32, &cpu())?.require_grad()?;
            assert!(group.send(&on_tape, 1).unwrap_err().message().contains("no gradient would come back"));
            assert_eq!(group.send(&x, 0).unwrap_err().kind(), Kind::Index);
        } else {
            assert_eq!(group.receive(0, 3, DType::I64, &cpu())?.to_vec::<i64>()?, [1, 2, 3]);
        }
        group.barrier()
    })
    .unwrap();
    let errors = threads(2, |group| match group.rank() {
        0 => group.send(&Tensor::scalar(1.0f32, &cpu())?, 1).map(|()| String::new()),
        _ => Ok(group.receive(0, 3, DType::I64, &cpu()).unwrap_err().to_string()),
    });
    let expected = "receive: Backend: rank 0 sent f32 [] on cpu in step 0; expected i64 [3] on cpu in step 0";
    assert_eq!(errors.unwrap()[1], expected);
}

#[test]
fn parts_of_all_samples() {
    let found = threads(3, |group| group.share([4, 4, 1][group.rank()])).unwrap();
    assert_eq!(found, [12.0 / 9.0, 12.0 / 9.0, 3.0 / 9.0]);
}

/// Every rank's error names the rank that has another shape, the collective and the step.
#[test]
fn another_shape() {
    let errors = threads(3, |group| {
        group.set_step(12);
        let x = Tensor::zeros(if group.rank() == 2 { 4 } else { 3 }, DType::F32, &cpu())?;
        let error = group.all_reduce(&x, Reduction::Sum).unwrap_err();
        // The group is of no more use.
        assert!(group.barrier().unwrap_err().message().contains("the group has failed before: all_reduce"));
        Ok(error.to_string())
    });
    let errors = errors.unwrap();
    let (three, four) =
        ("all_reduce (sum) of f32 [3] on cpu in step 12", "all_reduce (sum) of f32 [4] on cpu in step 12");
    for rank in [0, 1] {
        assert_eq!(
            errors[rank],
            format!("all_reduce: Value: rank 2 is at {four} (call 0), but rank {rank} is at {three} (call 0)")
        );
    }
    assert_eq!(
        errors[2],
        format!("all_reduce: Value: rank 0 is at {three} (call 0), but rank 2 is at {four} (call 0)")
    );
}

#[test]
fn another_collective() {
    let errors = threads(2, |group| {
        let x = Tensor::zeros(2, DType::F32, &cpu())?;
        let done = if group.rank() == 0 { group.all_gather(&x) } else { group.broadcast(&x, 0) };
        Ok(done.unwrap_err().to_string())
    });
    assert!(errors.unwrap()[0].contains("rank 1 is at broadcast from rank 0 of f32 [2] on cpu in step 0"));
}

/// A rank that fails ends the others' waiting at once.
#[test]
fn a_rank_that_leaves() {
    let started = Instant::now();
    let failed = threads(3, |group| {
        group.set_step(5);
        if group.rank() == 1 {
            return Err(isograd_core::Error::value("data", "a file is damaged"));
        }
        let error = group.barrier().unwrap_err();
        let message =
            format!("barrier: Backend: rank 1 has left; rank {} is at barrier in step 5 (call 0)", group.rank());
        assert_eq!(error.to_string(), message);
        Err::<(), _>(error)
    });
    assert_eq!(failed.unwrap_err().to_string(), "data: Value: a file is damaged");
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_rank_that_hangs() {
    let options = Options { timeout: Duration::from_secs(1) };
    let errors = threads_with(3, &options, |group| {
        if group.rank() == 2 {
            std::thread::sleep(Duration::from_secs(3));
            return Ok(String::new());
        }
        Ok(group.all_reduce(&Tensor::zeros(2, DType::F32, &cpu())?, Reduction::Max).unwrap_err().to_string())
    });
    let expected = "all_reduce: Backend: rank 2 did not come within 1s; rank 0 is at all_reduce (max) of f32 [2] on cpu in step 0 (call 0)";
    assert_eq!(errors.unwrap()[0], expected);
}

#[test]
#[should_panic(expected = "a rank's own words")]
fn a_panic_of_a_rank() {
    let _ = threads(2, |group| match group.rank() {
        0 => panic!("a rank's own words"),
        _ => group.barrier(),
    });
}
