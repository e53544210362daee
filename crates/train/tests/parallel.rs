//! Training on several ranks: the run of one rank, whatever the sizes of batches are, and runs that go on with other ranks.

use isograd_core::{Device, Result, Tensor};
use isograd_cpu as _;
use isograd_data::{Dataset, Loader, digits};
use isograd_nn::{AdamW, Averaging, Checkpoint, Forward, Init, Linear, Module, Optimizer, Sequential, StateDict};
use isograd_parallel::{FullySharded, Group, ParallelOptions, ShardOptions, ShardedOptimizer, threads};
use isograd_train::metrics::{Confusion, TopK};
use isograd_train::{CHECKPOINT, End, Epoch, Goal, SavedRun, Trainer};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn cpu() -> Device {
    Device::cpu().expect("the CPU backend is linked")
}

fn model(seed: u64) -> Result<Sequential> {
    let init = Init::new(&cpu()).seed(seed);
    Ok(Sequential::new().push(Linear::new(64, 16, &init)?).push(Tensor::tanh).push(Linear::new(16, 10, &init)?))
}

/// A run of 100 samples in batches of 24, the last of which has 4, two batches in a step.
fn of_digits<'a>(
    model: &'a Sequential,
    optimizer: Box<dyn Optimizer + 'a>,
) -> Result<Trainer<'a, Sequential, (Tensor, Tensor), Tensor>> {
    let (train, test) = digits()?.split_every(5)?;
    let (train, test) = (train.subset((0..100).collect())?, test.subset((0..35).collect())?);
    Trainer::new(
        model,
        optimizer,
        Loader::new(train, 24)?.shuffle(4).to(&cpu()),
        |model, (x, _)| model.forward(x),
        |scores, (_, y)| scores.cross_entropy(y),
    )
    .validate(Loader::new(test, 16)?.to(&cpu()))
    .metric("accuracy", Goal::Highest, |scores, (_, y)| scores.argmax(-1)?.eq(y))
    .measure(
        "f1",
        Goal::Highest,
        || Confusion::new(10, &cpu()),
        |confusion, scores, (_, y)| confusion.update(&scores.argmax(-1)?, y),
        |confusion| Ok(confusion.counts()?.macro_f1()),
    )
    .measure("top3", Goal::Highest, || TopK::new(3, &cpu()), |top, scores, (_, y)| top.update(scores, y), TopK::value)
    .accumulate(2)
    .map(|trainer| trainer.epochs(4))
}

fn trainer<'a>(
    model: &'a Sequential,
    group: &Group,
    is_sharded: bool,
) -> Result<Trainer<'a, Sequential, (Tensor, Tensor), Tensor>> {
    let optimizer: Box<dyn Optimizer> = match is_sharded {
        true => Box::new(ShardedOptimizer::new(model, group, |part| AdamW::new(part).lr(3e-3))?),
        false => Box::new(AdamW::new(model).lr(3e-3)),
    };
    of_digits(model, optimizer)?.parallel(group, &ParallelOptions::default())
}

/// The results of a run, and its weights.
fn run(group: &Group, is_sharded: bool) -> Result<(Vec<Epoch>, Vec<f64>)> {
    let model = model(group.rank() as u64)?;
    let mut trainer = trainer(&model, group, is_sharded)?;
    assert_eq!(trainer.run()?, End::Finished);
    let weights = model.parameters().iter().map(|t| t.detach().to_f64_vec()).collect::<Result<Vec<_>>>()?;
    Ok((trainer.history().to_vec(), weights.concat()))
}

#[test]
fn a_run_is_that_of_one_rank() {
    let (history, weights) = run(&Group::alone(), false).unwrap();
    for (n, is_sharded) in [(2, false), (3, false), (3, true), (5, false)] {
        let found = threads(n, |group| run(&group, is_sharded)).unwrap();
        for (own, own_weights) in &found {
            assert_eq!(*own_weights, found[0].1);
            assert!(own_weights.iter().zip(&weights).all(|(a, b)| (a - b).abs() < 1e-5), "{n} ranks");
            for (epoch, expected) in own.iter().zip(&history) {
                assert_eq!((epoch.epoch, epoch.steps), (expected.epoch, expected.steps));
                assert!((epoch.train_loss - expected.train_loss).abs() < 1e-6, "{epoch:?}, expected {expected:?}");
                let validation = |epoch: &Epoch| epoch.validation_loss.unwrap();
                assert!((validation(epoch) - validation(expected)).abs() < 1e-6, "{epoch:?}, expected {expected:?}");
                assert_eq!(epoch.metrics, expected.metrics);
            }
        }
    }
}

#[test]
fn frozen_parameters_are_left_out() {
    type Weights = Vec<Vec<f64>>;
    let run = |group: &Group| -> Result<(Weights, Weights, Vec<Epoch>)> {
        let model = model(group.rank() as u64)?;
        model.freeze_matching("0.*")?;
        let mut trainer = trainer(&model, group, false)?;
        let read = || model.parameters().iter().map(|t| t.detach().to_f64_vec()).collect::<Result<Vec<_>>>();
        let before = read()?;
        assert_eq!(trainer.run()?, End::Finished);
        Ok((before, read()?, trainer.history().to_vec()))
    };
    let (before, weights, history) = run(&Group::alone()).unwrap();
    assert!(before[..2] == weights[..2] && before[2] != weights[2] && before[3] != weights[3]);
    for (own_before, own_weights, own) in threads(2, |group| run(&group)).unwrap() {
        // The frozen weights are the first rank's, which sends them to the other.
        assert!(own_before == before && own_weights[..2] == before[..2]);
        let pairs = own_weights.concat().into_iter().zip(weights.concat());
        assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-5));
        assert_eq!(own.len(), history.len());
    }
}

/// Weights and states of a run in a folder.
fn saved(folder: &Path) -> Result<(StateDict, StateDict)> {
    let checkpoint = Checkpoint::load(folder.join(CHECKPOINT), &cpu())?;
    Ok((checkpoint.model, checkpoint.optimizer))
}

fn bits(state: &StateDict) -> Vec<(String, Vec<u8>)> {
    state.iter().map(|(name, t)| (name.clone(), t.to_bytes().unwrap())).collect()
}

/// A run that is interrupted on two ranks goes on with three, and with one: from the same weights and states, bit for bit.
#[test]
fn a_run_goes_on_with_other_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    threads(2, |group| {
        let model = model(0)?;
        let trainer = trainer(&model, &group, true)?.folder(folder.path())?.stop_when(stop.clone());
        let steps = AtomicUsize::new(0);
        let flag = stop.clone();
        let mut trainer = trainer.on_epoch(move |_| {
            if steps.fetch_add(1, Ordering::Relaxed) == 1 {
                flag.store(true, Ordering::Relaxed);
            }
            Ok(())
        });
        assert_eq!(trainer.run()?, End::Interrupted);
        Ok(())
    })
    .unwrap();
    let (weights, states) = saved(folder.path()).unwrap();
    assert!(states.contains_key("0.weight.exp_avg") && states.contains_key("2.bias.exp_avg"), "{:?}", states.keys());
    for n in [1, 2, 3] {
        threads(n, |group| {
            let (model, copy) =
                (model(9)?, tempfile::tempdir().map_err(|e| isograd_core::Error::io(folder.path(), "copying", e))?);
            // One that is distributed on more than one rank, and loads the same.
            let mut trainer = trainer(&model, &group, n > 1)?.folder(copy.path())?;
            trainer = trainer.resume(SavedRun::load(folder.path(), &cpu())?)?;
            trainer.save()?;
            if group.is_first() {
                let (own_weights, own_states) = saved(copy.path())?;
                assert_eq!(bits(&own_weights), bits(&weights));
                assert_eq!(bits(&own_states), bits(&states));
            }
            assert_eq!(trainer.run()?, End::Finished);
            assert_eq!(trainer.history().len(), 4);
            Ok(())
        })
        .unwrap();
    }
}

/// The run of [`trainer`] with a model that is distributed from its beginning.
fn in_parts(group: &Group) -> Result<(Sequential, FullySharded)> {
    let init = Init::new(&cpu()).seed(group.rank() as u64);
    FullySharded::build(group, &ShardOptions::default(), &init, |init| {
        Ok(Sequential::new().push(Linear::new(64, 16, init)?).push(Tensor::tanh).push(Linear::new(16, 10, init)?))
    })
}

fn trainer_in_parts(
    model: &Sequential,
    sharded: FullySharded,
) -> Result<Trainer<'_, Sequential, (Tensor, Tensor), Tensor>> {
    let optimizer = sharded.optimizer(|parts| AdamW::new(parts).lr(3e-3))?;
    of_digits(model, Box::new(optimizer))?.fully_sharded(sharded)
}

#[test]
fn a_run_in_parts_is_that_of_one_rank() {
    let (history, weights) = run(&Group::alone(), false).unwrap();
    for n in [1, 2, 3, 5] {
        let found = threads(n, |group| {
            let (model, sharded) = in_parts(&group)?;
            let mut trainer = trainer_in_parts(&model, sharded)?;
            assert_eq!(trainer.run()?, End::Finished);
            // Every rank reads, and each read gathers.
            let read = || model.parameters().iter().map(|t| t.detach().to_f64_vec()).collect::<Result<Vec<_>>>();
            let last = read()?.concat();
            trainer.restore_best()?;
            let error = trainer.evaluate()?.loss - trainer.best().unwrap().validation_loss.unwrap();
            assert!(error.abs() < 1e-9, "{error}");
            Ok((trainer.history().to_vec(), last))
        })
        .unwrap();
        for (own, own_weights) in &found {
            assert_eq!(*own_weights, found[0].1);
            assert!(own_weights.iter().zip(&weights).all(|(a, b)| (a - b).abs() < 1e-5), "{n} ranks");
            for (epoch, expected) in own.iter().zip(&history) {
                assert!((epoch.train_loss - expected.train_loss).abs() < 1e-6, "{epoch:?}, expected {expected:?}");
                let validation = |epoch: &Epoch| epoch.validation_loss.unwrap();
                assert!((validation(epoch) - validation(expected)).abs() < 1e-6, "{epoch:?}, expected {expected:?}");
                assert_eq!(epoch.metrics, expected.metrics);
            }
        }
    }
}

/// A run in two parts goes on in three, and on one rank that has all of the model.
#[test]
fn a_run_in_parts_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    threads(2, |group| {
        let (model, sharded) = in_parts(&group)?;
        let flag = stop.clone();
        let trainer = trainer_in_parts(&model, sharded)?.folder(folder.path())?.stop_when(stop.clone());
        let mut trainer = trainer.on_epoch(move |epoch| {
            flag.fetch_or(epoch.epoch == 2, Ordering::Relaxed);
            Ok(())
        });
        assert_eq!(trainer.run()?, End::Interrupted);
        Ok(())
    })
    .unwrap();
    let (weights, states) = saved(folder.path()).unwrap();
    let expected = |copy: &Path| {
        let (own_weights, own_states) = saved(copy)?;
        assert_eq!(bits(&own_weights), bits(&weights));
        assert_eq!(bits(&own_states), bits(&states));
        Ok(())
    };
    let copies: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    threads(3, |group| {
        let (model, sharded) = in_parts(&group)?;
        let mut trainer = trainer_in_parts(&model, sharded)?.folder(copies[0].path())?;
        trainer = trainer.resume(SavedRun::load(folder.path(), &cpu())?)?;
        trainer.save()?;
        if group.is_first() {
            expected(copies[0].path())?;
        }
        assert_eq!(trainer.run()?, End::Finished);
        assert_eq!(trainer.history().len(), 4);
        Ok(())
    })
    .unwrap();
    let whole = model(9).unwrap();
    let mut trainer = trainer(&whole, &Group::alone(), false).unwrap().folder(copies[1].path()).unwrap();
    trainer = trainer.resume(SavedRun::load(folder.path(), &cpu()).unwrap()).unwrap();
    trainer.save().unwrap();
    expected(copies[1].path()).unwrap();
}

#[test]
fn a_model_in_parts_has_no_average() {
    let (model, sharded) = in_parts(&Group::alone()).unwrap();
    let trainer = trainer_in_parts(&model, sharded).unwrap();
    let error = trainer.average(Averaging::Exponential { decay: 0.9 }).err().unwrap();
    assert!(error.message().contains("each rank has a part"), "{error}");
}
