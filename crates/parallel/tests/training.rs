//! Training on several threads: that of one, and the errors of models and passes that do not fit.

use crate::equality::{JOBS, STEPS, distance, losses};
use isograd_core::{DType, Device, Result, Tensor, checkpoint};
use isograd_cpu as _;
use isograd_nn::{Adam, Forward, Init, Linear, Module, Optimizer, Sgd, StateDict};
use isograd_parallel::{DataParallel, Group, ParallelOptions, ShardedOptimizer, Unused, threads};

fn cpu() -> Device {
    Device::cpu().expect("the CPU backend is linked")
}

#[test]
fn losses_are_those_of_one_rank() {
    for job in &JOBS {
        let alone = losses(job, &Group::alone(), &cpu(), STEPS).unwrap();
        assert!(alone[STEPS - 1] < 0.9 * alone[0], "{} does not learn: {alone:?}", job.name);
        for n in [2, 4] {
            let found = threads(n, |group| losses(job, &group, &cpu(), STEPS)).unwrap();
            assert!(found.iter().all(|losses| *losses == found[0]), "the ranks of {} differ", job.name);
            let distance = distance(&found[0], &alone);
            assert!(distance < 1e-6, "{} on {n} ranks: the losses differ by {distance:e}", job.name);
        }
    }
}

/// Two layers, of which a rank may use one.
#[derive(Module)]
struct Two {
    a: Linear,
    b: Linear,
    c: Linear,
}

fn two() -> Result<Two> {
    let init = Init::new(&cpu());
    Ok(Two { a: Linear::new(2, 1, &init)?, b: Linear::new(2, 1, &init)?, c: Linear::new(2, 1, &init)? })
}

#[test]
fn unused_parameters_are_named() {
    let errors = threads(2, |group| {
        let (model, x) = (two()?, Tensor::ones((1, 2), DType::F32, &cpu())?);
        let parallel = DataParallel::new(&model, &group, &ParallelOptions::default())?;
        model.a.forward(&x)?.sum(..)?.backward()?;
        Ok(parallel.synchronize().unwrap_err().to_string())
    });
    let expected = "data_parallel: Value: no gradient on rank 1 in this pass: b.weight, b.bias, c.weight, c.bias; with \
                    `Unused::Zero`, gradients are 0 there";
    assert_eq!(errors.unwrap()[1], expected);
}

#[test]
fn frozen_parameters_are_left_out() {
    threads(2, |group| {
        let (model, x) = (two()?, Tensor::full((1, 2), (group.rank() + 1) as f64, DType::F32, &cpu())?);
        model.a.weight.set_requires_grad(false)?;
        let parallel = DataParallel::new(&model, &group, &ParallelOptions::default())?;
        let pass = || -> Result<()> {
            model.zero_grad();
            let y = model.a.forward(&x)?.add(&model.b.forward(&x)?)?.add(&model.c.forward(&x)?)?;
            y.sum(..)?.backward()?;
            parallel.synchronize()
        };
        let gradient = |t: &Tensor| t.grad().map(|dx| dx.to_vec::<f32>()).transpose();
        for _ in 0..2 {
            pass()?;
            assert_eq!((gradient(&model.a.weight)?, gradient(&model.b.weight)?), (None, Some(vec![1.5; 2])));
        }
        // Others are frozen later, and the first one is taken back.
        model.a.weight.set_requires_grad(true)?;
        model.c.parameters().iter().try_for_each(|p| p.set_requires_grad(false))?;
        for _ in 0..2 {
            pass()?;
            assert_eq!((gradient(&model.a.weight)?, gradient(&model.c.weight)?), (Some(vec![1.5; 2]), None));
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn unused_parameters_have_gradient_zero() {
    threads(2, |group| {
        let (model, x) = (two()?, Tensor::ones((1, 2), DType::F32, &cpu())?);
        let options = ParallelOptions { unused: Unused::Zero, ..ParallelOptions::default() };
        let parallel = DataParallel::new(&model, &group, &options)?;
        for _ in 0..2 {
            let layer = if group.rank() == 0 { &model.a } else { &model.b };
            layer.forward(&x)?.sum(..)?.backward()?;
            parallel.synchronize()?;
            for layer in [&model.a, &model.b] {
                assert_eq!(layer.weight.grad().unwrap().to_vec::<f32>()?, [0.5, 0.5]);
            }
            assert!(model.c.weight.grad().is_none());
            model.zero_grad();
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn gradients_are_accumulated() {
    threads(2, |group| {
        let (model, x) = (Linear::new(2, 1, &Init::new(&cpu()))?, Tensor::ones((1, 2), DType::F32, &cpu())?);
        let parallel = DataParallel::new(&model, &group, &ParallelOptions::default())?;
        let pass = |factor: f64| model.forward(&x.mul_scalar(factor)?)?.sum(..)?.backward();
        let rank = group.rank() as f64;
        parallel.accumulate(|| pass(1.0 + rank).and_then(|()| pass(3.0)))?;
        // Not reduced yet.
        assert_eq!(model.weight.grad().unwrap().to_vec::<f32>()?, [4.0 + rank as f32; 2]);
        pass(10.0 * rank)?;
        parallel.synchronize()?;
        assert_eq!(model.weight.grad().unwrap().to_vec::<f32>()?, [9.5; 2]);
        pass(1.0)?;
        let error = pass(1.0).unwrap_err();
        assert!(error.message().contains("has a second gradient before `synchronize`; use `accumulate`"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn models_that_differ() {
    let errors = threads(2, |group| {
        let model = Linear::new(2, 1 + group.rank(), &Init::new(&cpu()))?;
        Ok(DataParallel::new(&model, &group, &ParallelOptions::default()).err().map(|e| e.to_string()))
    });
    let expected =
        "data_parallel: Value: the models differ: tensor 0 is weight f32 [1, 2] on rank 0, weight f32 [2, 2] on rank 1";
    assert_eq!(errors.unwrap(), [Some(expected.to_string()), Some(expected.to_string())]);
}

#[test]
fn weights_that_drift_are_found() {
    let errors = threads(2, |group| {
        let (model, x) = (Linear::new(2, 1, &Init::new(&cpu()))?, Tensor::ones((1, 2), DType::F32, &cpu())?);
        let options = ParallelOptions { check_every: Some(3), ..ParallelOptions::default() };
        let parallel = DataParallel::new(&model, &group, &options)?;
        // A rate of its own.
        let mut optimizer = Sgd::new(&model).lr(0.1 + group.rank() as f64);
        let mut step = || {
            model.forward(&x)?.sum(..)?.backward()?;
            parallel.synchronize()?;
            optimizer.step()
        };
        step()?;
        step()?;
        Ok(step().unwrap_err().to_string())
    });
    assert_eq!(errors.unwrap()[0], "data_parallel: Value: weight of rank 1 differs from that of rank 0");
}

/// A pass has not ended when the gradients of its last layers are there.
#[test]
fn gradients_of_leaves_come_during_the_pass() {
    use std::sync::{Arc, Mutex};
    let model: Vec<Linear> = (0..3).map(|_| Linear::new(2, 2, &Init::new(&cpu())).unwrap()).collect();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut hooks = Vec::new();
    for (i, layer) in model.iter().enumerate() {
        let note = order.clone();
        hooks.push(layer.weight.register_hook(move |_| {
            note.lock().unwrap().push(format!("weight {i}"));
            Ok(None)
        }));
    }
    let mut x = Tensor::ones((1, 2), DType::F32, &cpu()).unwrap();
    for (i, layer) in model.iter().enumerate() {
        x = layer.forward(&x).unwrap();
        let note = order.clone();
        hooks.push(x.register_hook(move |_| {
            note.lock().unwrap().push(format!("output {i}"));
            Ok(None)
        }));
    }
    x.sum(..).unwrap().backward().unwrap();
    let expected = ["output 2", "weight 2", "output 1", "weight 1", "output 0", "weight 0"];
    assert_eq!(*order.lock().unwrap(), expected);
}

/// Nor when blocks are computed again, in which leaves are used that the pass cannot see in advance.
#[test]
fn gradients_of_recomputed_leaves_come_during_the_pass() {
    use std::sync::{Arc, Mutex};
    let model: Arc<Vec<Linear>> = Arc::new((0..3).map(|_| Linear::new(2, 2, &Init::new(&cpu())).unwrap()).collect());
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |t: &Tensor, name: String| {
        let order = order.clone();
        t.register_hook(move |_| {
            order.lock().unwrap().push(name.clone());
            Ok(None)
        })
        .unwrap()
    };
    let mut hooks: Vec<_> = (0..3).map(|i| note(&model[i].weight, format!("weight {i}"))).collect();
    let mut x = Tensor::ones((1, 2), DType::F32, &cpu()).unwrap();
    for i in 0..2 {
        // The second block uses a layer of the first too, and has a checkpoint in a checkpoint.
        let (outer, inner) = (model.clone(), model.clone());
        let block = move |x: &[Tensor]| {
            let inner = inner.clone();
            let y = checkpoint(move |x: &[Tensor]| inner[i + 1].forward(&x[0])?.tanh(), &[&x[0]])?;
            outer[i].forward(&y)
        };
        x = checkpoint(block, &[&x]).unwrap();
        hooks.push(note(&x, format!("output {i}")));
    }
    x.sum(..).unwrap().backward().unwrap();
    let expected = ["output 1", "weight 2", "output 0", "weight 0", "weight 1"];
    assert_eq!(*order.lock().unwrap(), expected);
}

/// One step of three with gradients by a rule, from weights by a seed. Returns weights and states.
fn steps(optimizer: &mut dyn Optimizer, model: &Two, from: usize) -> Result<()> {
    for step in from..from + 3 {
        for (i, t) in model.parameters().iter().enumerate() {
            let values: Vec<f32> = (0..t.numel()).map(|k| ((3 * k + 5 * i + 7 * step) % 13) as f32 - 6.0).collect();
            t.set_grad(Some(Tensor::from_vec(values, t.shape(), &cpu())?))?;
        }
        optimizer.step()?;
    }
    Ok(())
}

fn bits(state: &StateDict) -> Result<Vec<(String, Vec<u8>)>> {
    state.iter().map(|(name, t)| Ok((name.clone(), t.to_bytes()?))).collect()
}

/// States and weights are those of one rank, and go from one number of ranks to another, bit for bit.
#[test]
fn states_are_distributed() {
    let adam = |part: &dyn Module| Adam::new(part).lr(0.1).weight_decay(0.01).clip_norm(5.0);
    let (model, after) = (two().unwrap(), two().unwrap());
    let mut alone = adam(&model);
    steps(&mut alone, &model, 0).unwrap();
    let (weights, states) = (bits(&model.state_dict()).unwrap(), bits(&alone.state_dict().unwrap()).unwrap());
    let saved: Vec<(String, Tensor)> =
        alone.state_dict().unwrap().into_iter().map(|(k, t)| (k, t.copy().unwrap())).collect();
    let saved: StateDict = saved.into_iter().collect();
    after.load_state_dict(&model.state_dict()).unwrap();
    steps(&mut alone, &model, 3).unwrap();
    let (weights_after, states_after) =
        (bits(&model.state_dict()).unwrap(), bits(&alone.state_dict().unwrap()).unwrap());
    for n in [1, 2, 3, 6] {
        threads(n, |group| {
            let own = two()?;
            let mut optimizer = ShardedOptimizer::new(&own, &group, adam)?;
            steps(&mut optimizer, &own, 0)?;
            assert_eq!(bits(&own.state_dict())?, weights);
            assert_eq!(bits(&optimizer.state_dict()?)?, states);
            // From one rank to n.
            let other = two()?;
            other.load_state_dict(&after.state_dict())?;
            let mut optimizer = ShardedOptimizer::new(&other, &group, adam)?;
            optimizer.load_state_dict(&saved)?;
            steps(&mut optimizer, &other, 3)?;
            assert_eq!(bits(&other.state_dict())?, weights_after);
            assert_eq!(bits(&optimizer.state_dict()?)?, states_after);
            Ok(())
        })
        .unwrap();
    }
    let error = threads(7, |group| ShardedOptimizer::new(&two()?, &group, adam).map(drop)).unwrap_err();
    assert_eq!(error.to_string(), "sharded_optimizer: Value: 6 parameters for 7 ranks, expected one for each");
}

/// Groups are those of the whole model, though a rank has only some of them.
#[test]
fn groups_of_options_are_distributed() {
    let make = |part: &dyn Module| {
        let biases = |name: &str, _: &Tensor| name.ends_with("bias");
        Adam::new(part)
            .lr(0.1)
            .group_where(biases, |g| g.lr(0.01).weight_decay(0.5))
            .group_where(|name, _| name == "a.weight", |g| g.betas(0.5, 0.9))
    };
    let model = two().unwrap();
    let mut alone = make(&model);
    steps(&mut alone, &model, 0).unwrap();
    alone.set_lr(0.05).unwrap();
    let copies = |state: StateDict| -> StateDict { state.into_iter().map(|(k, t)| (k, t.copy().unwrap())).collect() };
    let (weights, states) = (copies(model.state_dict()), copies(alone.state_dict().unwrap()));
    steps(&mut alone, &model, 3).unwrap();
    let (after, states_after) = (copies(model.state_dict()), copies(alone.state_dict().unwrap()));
    for n in [1, 2, 3, 6] {
        threads(n, |group| {
            let own = two()?;
            let mut optimizer = ShardedOptimizer::new(&own, &group, make)?;
            steps(&mut optimizer, &own, 0)?;
            optimizer.set_lr(0.05)?;
            assert_eq!(bits(&own.state_dict())?, bits(&weights)?);
            assert_eq!(bits(&optimizer.state_dict()?)?, bits(&states)?);
            let other = two()?;
            other.load_state_dict(&weights)?;
            // Options come from the state.
            let others = |part: &dyn Module| make(part).lr(0.2);
            let mut optimizer = ShardedOptimizer::new(&other, &group, others)?;
            optimizer.load_state_dict(&states)?;
            steps(&mut optimizer, &other, 3)?;
            assert_eq!(bits(&other.state_dict())?, bits(&after)?);
            assert_eq!(bits(&optimizer.state_dict()?)?, bits(&states_after)?);
            let plain = |part: &dyn Module| Adam::new(part);
            let error = ShardedOptimizer::new(&other, &group, plain)?.load_state_dict(&states).unwrap_err();
            assert!(error.message().contains("the state has 3 groups of parameters"), "{error}");
            Ok(())
        })
        .unwrap();
    }
}
