//! Models in parts on several threads: training as on one rank, states, and errors.

use crate::equality::{JOBS, STEPS, Way, distance, losses, losses_by};
use isograd_core::{DType, Device, Result, Tensor, checkpoint};
use isograd_cpu as _;
use isograd_nn::{Adam, AdamW, Forward, Init, Lamb, Linear, Module, Optimizer, Sequential, Sgd, StateDict};
use isograd_parallel::{FullySharded, Group, ShardOptions, Unused, threads, unit_of};

fn cpu() -> Device {
    Device::cpu().expect("the CPU backend is linked")
}

#[test]
fn losses_are_those_of_one_rank() {
    for job in &JOBS {
        let alone = losses(job, &Group::alone(), &cpu(), STEPS).unwrap();
        for n in [1, 2, 4] {
            let found = threads(n, |group| losses_by(Way::FullySharded, job, &group, &cpu(), STEPS)).unwrap();
            assert!(found.iter().all(|losses| *losses == found[0]), "the ranks of {} differ", job.name);
            let distance = distance(&found[0], &alone);
            assert!(distance < 1e-6, "{} on {n} ranks: the losses differ by {distance:e}", job.name);
        }
    }
}

#[test]
fn units_are_blocks_and_modules() {
    assert_eq!(unit_of("transformer.h.3.attn.c_attn.weight"), "transformer.h.3");
    assert_eq!(unit_of("transformer.wte.weight"), "transformer.wte");
    assert_eq!(unit_of("0.weight"), "0");
    assert_eq!(unit_of("scale"), "scale");
}

/// Three layers of other sizes, whose parameters do not divide evenly.
fn layers(init: &Init) -> Result<Sequential> {
    let linear = |a, b| Linear::new(a, b, init);
    Ok(Sequential::new()
        .push(linear(5, 7)?)
        .push(Tensor::tanh)
        .push(linear(7, 11)?)
        .push(Tensor::tanh)
        .push(linear(11, 3)?))
}

fn adam(part: &dyn Module) -> Adam {
    Adam::new(part).lr(0.1).group_where(|name, _| name.ends_with("bias"), |g| g.lr(0.05).weight_decay(0.1))
}

fn batch() -> Result<Tensor> {
    Tensor::arange(20, &cpu())?.cast(DType::F32)?.mul_scalar(0.1)?.reshape((4, 5))
}

fn steps(model: &Sequential, synchronize: &dyn Fn() -> Result<()>, optimizer: &mut dyn Optimizer) -> Result<()> {
    for _ in 0..3 {
        model.forward(&batch()?)?.square()?.mean(..)?.backward()?;
        synchronize()?;
        optimizer.step()?;
    }
    Ok(())
}

fn bits(state: &StateDict) -> Result<Vec<(String, Vec<u8>)>> {
    state.iter().map(|(name, t)| Ok((name.clone(), t.to_bytes()?))).collect()
}

/// All ranks have the same batch, so that means of gradients are those of one rank, bit for bit for powers of two.
#[test]
fn states_are_those_of_the_whole_model() {
    let model = layers(&Init::new(&cpu()).seed(4)).unwrap();
    let mut alone = adam(&model);
    steps(&model, &|| Ok(()), &mut alone).unwrap();
    let copied = |state: StateDict| -> StateDict { state.into_iter().map(|(k, t)| (k, t.copy().unwrap())).collect() };
    let (weights, states) = (copied(model.state_dict()), copied(alone.state_dict().unwrap()));
    steps(&model, &|| Ok(()), &mut alone).unwrap();
    let (after, states_after) = (copied(model.state_dict()), copied(alone.state_dict().unwrap()));
    for n in [1, 2, 4] {
        threads(n, |group| {
            let init = Init::new(&cpu()).seed(4 + group.rank() as u64);
            let (model, sharded) = FullySharded::build(&group, &ShardOptions::default(), &init, layers)?;
            let mut optimizer = sharded.optimizer(adam)?;
            steps(&model, &|| sharded.synchronize(), &mut optimizer)?;
            assert_eq!(bits(&optimizer.state_dict()?)?, bits(&states)?);
            let found = sharded.state_dict()?;
            assert_eq!(bits(&found)?, if group.is_first() { bits(&weights)? } else { Vec::new() });
            // The model is read by all ranks as any other.
            assert_eq!(bits(&model.state_dict())?, bits(&weights)?);
            // From one rank to n.
            let (model, sharded) = FullySharded::build(&group, &ShardOptions::default(), &init.seed(99), layers)?;
            let mut optimizer = sharded.optimizer(adam)?;
            sharded.load_state_dict(&weights)?;
            optimizer.load_state_dict(&states)?;
            steps(&model, &|| sharded.synchronize(), &mut optimizer)?;
            assert_eq!(bits(&model.state_dict())?, bits(&after)?);
            assert_eq!(bits(&optimizer.state_dict()?)?, bits(&states_after)?);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_state_is_written_in_parallel() {
    let folder = std::env::temp_dir().join(format!("isograd-sharded-{}", std::process::id()));
    threads(3, |group| {
        let init = Init::new(&cpu()).seed(4);
        let (_model, sharded) = FullySharded::build(&group, &ShardOptions::default(), &init, layers)?;
        sharded.save(&folder)
    })
    .unwrap();
    let found = isograd_nn::load_part(&folder, &cpu(), |_| true).unwrap();
    let expected = layers(&Init::new(&cpu()).seed(4)).unwrap().state_dict();
    assert_eq!(bits(&found).unwrap(), bits(&expected).unwrap());
    assert!(folder.join("model-00003-of-00003.safetensors").exists());
    std::fs::remove_dir_all(folder).unwrap();
}

/// Values that are written into a model go to the parts.
#[test]
fn parameters_can_be_changed() {
    threads(2, |group| {
        let (model, sharded) = FullySharded::build(&group, &ShardOptions::default(), &Init::new(&cpu()), layers)?;
        let other = layers(&Init::new(&cpu()).seed(9))?;
        model.load_state_dict(&other.state_dict())?;
        let expected = other.forward(&batch()?)?.to_vec::<f32>()?;
        assert_eq!(model.forward(&batch()?)?.to_vec::<f32>()?, expected);
        let found = sharded.state_dict()?;
        assert!(!group.is_first() || bits(&found)? == bits(&other.state_dict())?);
        Ok(())
    })
    .unwrap();
}

/// With checkpoints, a pass computes each block again, and its gradients are reduced when the block is done.
#[test]
fn blocks_are_recomputed() {
    let run = |group: &Group, is_checkpointed: bool| -> Result<Vec<f32>> {
        let make = |init: &Init| (0..4).map(|_| Linear::new(6, 6, init)).collect::<Result<Vec<Linear>>>();
        let init = Init::new(&cpu()).seed(2);
        let (blocks, sharded) = FullySharded::build(group, &ShardOptions::default(), &init, make)?;
        let blocks = std::sync::Arc::new(blocks);
        let mut optimizer = sharded.optimizer(|parts| Sgd::new(parts).lr(0.1).momentum(0.9))?;
        let mut found = Vec::new();
        for _ in 0..5 {
            let mut x = Tensor::ones((2, 6), DType::F32, &cpu())?.mul_scalar(1.0 + group.rank() as f64)?;
            for i in 0..4 {
                let own = blocks.clone();
                let block = move |x: &[Tensor]| own[i].forward(&x[0])?.tanh();
                x = if is_checkpointed { checkpoint(block, &[&x])? } else { block(&[x])? };
            }
            let loss = x.square()?.mean(..)?;
            loss.backward()?;
            sharded.synchronize()?;
            optimizer.step()?;
            found.push(loss.item::<f64>()? as f32);
        }
        Ok(found)
    };
    for n in [1, 2] {
        let plain = threads(n, |group| run(&group, false)).unwrap();
        assert!(plain[0][4] < plain[0][0]);
        assert_eq!(threads(n, |group| run(&group, true)).unwrap(), plain);
    }
}

/// Parameters in use are bf16, their parts and the states f32.
#[test]
fn parameters_are_used_in_another_dtype() {
    threads(2, |group| {
        let options = ShardOptions { compute: Some(DType::BF16), reduce: Some(DType::F32), ..ShardOptions::default() };
        let (model, sharded) = FullySharded::build(&group, &options, &Init::new(&cpu()).seed(4), layers)?;
        assert!(model.parameters().iter().all(|p| p.dtype() == DType::BF16));
        let mut optimizer = sharded.optimizer(|parts| AdamW::new(parts).lr(1e-3))?;
        assert!(optimizer.parameters().iter().all(|p| p.dtype() == DType::F32));
        let mut losses = Vec::new();
        for _ in 0..20 {
            let loss = model.forward(&batch()?.cast(DType::BF16)?)?.square()?.mean(..)?;
            loss.backward()?;
            sharded.synchronize()?;
            optimizer.step()?;
            losses.push(loss.item::<f64>()?);
        }
        assert!(losses[19] < 0.8 * losses[0], "{losses:?}");
        let state = sharded.state_dict()?;
        assert!(state.values().all(|t| t.dtype() == DType::F32));
        Ok(())
    })
    .unwrap();
}

#[test]
fn passes_add_up() {
    let run = |group: &Group, passes: usize| -> Result<Vec<u8>> {
        let (model, sharded) = FullySharded::build(group, &ShardOptions::default(), &Init::new(&cpu()), layers)?;
        let mut optimizer = sharded.optimizer(|parts| Sgd::new(parts).lr(0.5))?;
        for _ in 0..passes {
            // Halves are exact.
            model.forward(&batch()?)?.square()?.mean(..)?.mul_scalar(1.0 / passes as f64)?.backward()?;
            sharded.synchronize()?;
        }
        optimizer.step()?;
        Ok(bits(&model.state_dict())?.into_iter().flat_map(|(_, bytes)| bytes).collect())
    };
    let found = threads(2, |group| Ok((run(&group, 1)?, run(&group, 2)?))).unwrap();
    assert!(found.iter().all(|(once, twice)| once == twice));
}

#[derive(Module)]
struct Two {
    a: Linear,
    b: Linear,
}

fn two(init: &Init) -> Result<Two> {
    Ok(Two { a: Linear::new(2, 1, init)?, b: Linear::new(2, 1, init)? })
}

#[test]
fn errors_name_what_is_wrong() {
    let options = |unused| ShardOptions { unused, unit: |_| "all", ..ShardOptions::default() };
    let build = |group: &Group, unused| FullySharded::build(group, &options(unused), &Init::new(&cpu()), two);
    let error = threads(1, |group| {
        let (model, sharded) = build(&group, Unused::Error)?;
        model.a.forward(&Tensor::ones((1, 2), DType::F32, &cpu())?)?.sum(..)?.backward()?;
        sharded.synchronize()
    });
    let message = "fully_sharded: Value: no gradient on rank 0 in this pass: b.weight, b.bias; with `Unused::Zero`, gradients are 0 there";
    assert_eq!(error.unwrap_err().to_string(), message);
    threads(1, |group| {
        let (model, sharded) = build(&group, Unused::Zero)?;
        model.a.forward(&Tensor::ones((1, 2), DType::F32, &cpu())?)?.sum(..)?.backward()?;
        let mut optimizer = sharded.optimizer(|parts| Sgd::new(parts))?;
        let error = optimizer.step().unwrap_err();
        assert!(error.message().contains("gradients are not reduced; call `synchronize`"), "{error}");
        sharded.synchronize()?;
        let before = model.b.weight.to_vec::<f32>()?;
        optimizer.step()?;
        assert_eq!(model.b.weight.to_vec::<f32>()?, before);
        let error = sharded.optimizer(|parts| Lamb::new(parts)).err().map(|e| e.to_string());
        assert!(error.is_some_and(|e| e.contains("Unsupported") && e.contains("use `ShardedOptimizer`")));
        let by_shape = |parts: &dyn Module| Adam::new(parts).group_where(|_, t| t.rank() > 1, |g| g.lr(1.0));
        let error = sharded.optimizer(by_shape).err().map(|e| e.to_string());
        assert!(error.is_some_and(|e| e.contains("choose them by name")));
        drop((sharded, optimizer));
        let error = model.a.weight.to_vec::<f32>().unwrap_err();
        assert!(error.message().contains("what has its parts was dropped"), "{error}");
        Ok(())
    })
    .unwrap();
    // 16 elements are the least of a part.
    let error = threads(5, |group| build(&group, Unused::Error).map(drop)).unwrap_err();
    assert_eq!(error.to_string(), "fully_sharded: Value: the model is too small: rank 4 has no part of a parameter");
    let error = threads(1, |group| {
        let outside = Linear::new(2, 1, &Init::new(&cpu()))?;
        let make = |init: &Init| Ok(Two { a: Linear::new(2, 1, init)?, b: outside });
        FullySharded::build(&group, &ShardOptions::default(), &Init::new(&cpu()), make).map(drop)
    });
    let message = "fully_sharded: Value: b.weight was not made by the init that was given, and is not distributed";
    assert_eq!(error.unwrap_err().to_string(), message);
}

/// The tape of a step that has been taken cannot be used any more.
#[test]
fn an_old_tape_is_refused() {
    threads(1, |group| {
        let (model, sharded) = FullySharded::build(&group, &ShardOptions::default(), &Init::new(&cpu()), layers)?;
        let mut optimizer = sharded.optimizer(|parts| Sgd::new(parts))?;
        let old = model.forward(&batch()?)?.square()?.mean(..)?;
        steps(&model, &|| sharded.synchronize(), &mut optimizer)?;
        let error = old.backward().unwrap_err();
        assert!(error.message().contains("was changed in place since"), "{error}");
        Ok(())
    })
    .unwrap();
}
