//! The check of the first batch, averages of weights, frozen parts, and the search for a rate.

use isograd_core::{DType, Device, Error, Result, Rng, Tensor};
use isograd_cpu as _;
use isograd_data::{Dataset, Items, Loader, digits};
use isograd_nn::{
    AdamW, Averaging, BatchNorm1d, Dropout, Forward, Init, Linear, Module, Relu, Sequential, Sgd, StateDict,
};
use isograd_train::metrics::{Confusion, Mean};
use isograd_train::{End, Epoch, Goal, Logger, Progress, RateSearch, SavedRun, Trainer};
use std::path::Path;
use std::sync::{Arc, Mutex};

fn cpu() -> Device {
    Device::cpu().unwrap()
}

type Batch = (Tensor, Tensor);
type Classifier<'a> = Trainer<'a, Sequential, Batch, Tensor>;

fn model(init: &Init) -> Sequential {
    Sequential::new()
        .push(Linear::new(64, 16, init).unwrap())
        .push(BatchNorm1d::new(16, init).unwrap())
        .push(Relu)
        .push(Dropout::new(0.3, init))
        .push(Linear::new(16, 10, init).unwrap())
}

fn loader() -> Loader<Batch> {
    let (train, _) = digits().unwrap().split_every(5).unwrap();
    Loader::new(train.subset((0..128).collect()).unwrap(), 32).unwrap().shuffle(4).to(&cpu())
}

fn trainer<'a, M: Module + Forward>(model: &'a M) -> Trainer<'a, M, Batch, Tensor> {
    let optimizer = AdamW::new(model).lr(3e-3);
    Trainer::new(model, optimizer, loader(), |model, (x, _)| model.forward(x), |scores, (_, y)| scores.cross_entropy(y))
}

/// Tensors by name.
type Bits = Vec<(String, Vec<u8>)>;

fn bits(state: &StateDict) -> Bits {
    state.iter().map(|(name, t)| (name.clone(), t.to_bytes().unwrap())).collect()
}

/// The weights and the position of the generator after a run.
fn run(
    with: impl for<'a> Fn(Trainer<'a, Sequential, Batch, Tensor>) -> Trainer<'a, Sequential, Batch, Tensor>,
) -> (Bits, u64, Vec<String>) {
    let init = Init::new(&cpu()).seed(3);
    let model = model(&init);
    let mut trainer = with(trainer(&model)).epochs(2);
    trainer.run().unwrap();
    let warnings = trainer.warnings().to_vec();
    (bits(&model.state_dict()), init.rng().state().offset, warnings)
}

#[test]
fn the_check_changes_no_bit_of_the_run() {
    let (checked, plain) = (run(|t| t), run(|t| t.without_check()));
    assert_eq!(checked.0, plain.0);
    assert_eq!(checked.1, plain.1);
    assert_eq!(checked.2, Vec::<String>::new());
}

#[derive(Module)]
struct Odd {
    first: Linear,
    dead: Relu,
    unused: Linear,
    last: Linear,
}

impl Odd {
    fn new() -> Odd {
        let init = Init::new(&cpu()).seed(1);
        let linear = |i, o| Linear::new(i, o, &init).unwrap();
        Odd { first: linear(64, 8), dead: Relu, unused: linear(2, 2), last: linear(8, 10) }
    }
}

impl Forward for Odd {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = self.dead.forward(&self.first.forward(x)?)?;
        self.last.forward(&hidden)
    }
}

#[test]
fn parameters_without_gradients_are_named() {
    let model = Odd::new();
    let mut run = trainer(&model);
    run.run().unwrap();
    assert_eq!(run.warnings(), ["the loss does not depend on unused.weight, unused.bias"]);
}

#[test]
fn parameters_that_the_optimizer_does_not_have_are_named() {
    let mut model = Odd::new();
    let optimizer = Sgd::new(&model);
    model.unused.freeze();
    // Parameters that are cast are other leaves than those of the optimizer.
    model.last.to_dtype(DType::F64).unwrap();
    model.last.to_dtype(DType::F32).unwrap();
    let mut run = Trainer::new(
        &model,
        optimizer,
        loader(),
        |model: &Odd, (x, _): &Batch| model.forward(x),
        |scores, (_, y)| scores.cross_entropy(y),
    );
    run.run().unwrap();
    assert_eq!(run.warnings(), ["the optimizer does not have last.weight, last.bias"]);
}

#[test]
fn dead_units_are_named() {
    let model = Odd::new();
    model.unused.freeze();
    isograd_core::no_grad(|| model.first.bias.as_ref().unwrap().detach().fill_(-1e3)).unwrap();
    let mut run = trainer(&model);
    run.run().unwrap();
    assert_eq!(run.warnings(), ["8 of 8 units of dead are 0 for all samples of the first batch"]);
}

/// A run on four samples of which one has this value.
fn run_with(value: f32, label: i64) -> (isograd_core::Error, StateDict) {
    let init = Init::new(&cpu()).seed(3);
    let model = model(&init);
    let mut x = vec![0.5f32; 4 * 64];
    x[2 * 64 + 7] = value;
    let samples: Vec<(Vec<f32>, i64)> = x.chunks(64).map(|row| row.to_vec()).zip([0, 1, label, 3]).collect();
    let batch = (
        Tensor::from_vec(samples.iter().flat_map(|s| s.0.clone()).collect(), (4, 64), &cpu()).unwrap(),
        Tensor::from_vec(samples.iter().map(|s| s.1).collect(), 4, &cpu()).unwrap(),
    );
    // The loader's samples are not read: every step has this batch.
    let mut run = Trainer::new(
        &model,
        AdamW::new(&model),
        loader(),
        move |model: &Sequential, _: &Batch| Ok((model.forward(&batch.0)?, batch.1.clone())),
        |(scores, y): &(Tensor, Tensor), _: &Batch| scores.cross_entropy(y),
    );
    let before = model.state_dict().into_iter().map(|(name, t)| (name, t.copy().unwrap())).collect();
    let error = run.run().unwrap_err();
    assert_eq!(bits(&before), bits(&model.state_dict()), "the model has changed");
    (error, before)
}

#[test]
fn results_that_are_not_finite_are_named_before_the_first_step() {
    let text = run_with(f32::NAN, 2).0.to_string();
    assert!(text.contains("the loss is NaN for the first batch") && text.contains("the output of 0"), "{text}");
    assert!(text.contains("the gradients of 0.weight"), "{text}");
}

#[test]
fn rows_of_the_batch_that_are_not_finite_are_named() {
    let init = Init::new(&cpu()).seed(3);
    let model = Linear::new(2, 3, &init).unwrap();
    let mut x = [1f32; 8];
    x[5] = f32::INFINITY;
    let samples: Vec<([f32; 2], i64)> = (0..4).map(|i| ([x[2 * i], x[2 * i + 1]], i as i64 % 3)).collect();
    let mut run = Trainer::new(
        &model,
        AdamW::new(&model),
        Loader::new(Items(samples), 4).unwrap().to(&cpu()),
        |model: &Linear, (x, _): &Batch| model.forward(x),
        |scores, (_, y)| scores.cross_entropy(y),
    );
    let text = run.run().unwrap_err().to_string();
    assert!(text.contains("tensor 1 of the batch in rows 2"), "{text}");
}

#[test]
fn a_label_out_of_range_is_named() {
    let text = run_with(0.5, 10).0.to_string();
    assert!(text.contains("a class is out of range") && text.contains("10"), "{text}");
    assert!(text.contains("the first batch"), "{text}");
}

#[test]
fn frozen_parts_stay_and_recomputed_activations_change_no_bit() {
    let init = Init::new(&cpu()).seed(3);
    let model = model(&init);
    let before = bits(&model.state_dict());
    trainer(&model).freeze("0.*").unwrap().run().unwrap();
    let after = bits(&model.state_dict());
    for (a, b) in before.iter().zip(&after) {
        assert_eq!(a == b, a.0.starts_with("0."), "{}", a.0);
    }
    assert!(trainer(&model).freeze("nothing").is_err());
    assert_eq!(run(|t| t.recompute_activations().unwrap()).0, run(|t| t).0);
}

#[test]
fn a_loader_without_a_batch_is_an_error_and_not_the_best_epoch() {
    let init = Init::new(&cpu()).seed(3);
    let model = model(&init);
    let (train, _) = digits().unwrap().split_every(5).unwrap();
    let none = || Loader::new(train.clone().subset(vec![]).unwrap(), 32).unwrap().to(&cpu());
    let few = || Loader::new(train.clone().subset((0..9).collect()).unwrap(), 32).unwrap().drop_last().to(&cpu());
    for loader in [none(), few()] {
        let error = trainer(&model).validate(loader).run().unwrap_err();
        assert!(error.message().contains("the samples to validate with are no batch"), "{error}");
    }
    for loader in [none(), few()] {
        let mut trainer = Trainer::new(
            &model,
            AdamW::new(&model),
            loader,
            |m, (x, _)| m.forward(x),
            |s, (_, y): &Batch| s.cross_entropy(y),
        );
        let error = trainer.run().unwrap_err();
        assert!(error.message().contains("the samples to train with are no batch"), "{error}");
    }
    // A metric of no values is no number.
    let (samples, _) = digits().unwrap().split_every(5).unwrap();
    let validation = Loader::new(samples.subset((0..32).collect()).unwrap(), 32).unwrap().to(&cpu());
    let mut trainer = trainer(&model)
        .validate(validation)
        .metric("none", isograd_train::Goal::Lowest, |scores, _| scores.flatten(0, 1)?.narrow(0, 0, 0));
    trainer.run().unwrap();
    assert!(trainer.evaluate().unwrap().metrics["none"].is_nan());
}

#[test]
fn the_validation_and_the_best_epoch_use_the_average() {
    let folder = tempfile::tempdir().unwrap();
    let averaging = Averaging::Exponential { decay: 0.9 };
    let make = |model: &Sequential| -> Result<f64> {
        model.eval();
        let (x, y) = loader().epoch(0).next().unwrap()?;
        let loss = isograd_core::no_grad(|| model.forward(&x)?.cross_entropy(&y))?.item::<f64>();
        model.train();
        loss
    };
    let init = Init::new(&cpu()).seed(3);
    let model = model(&init);
    let mut run = trainer(&model).average(averaging).unwrap().validate(loader()).epochs(2).rng("init", init.rng());
    run = run.folder(folder.path()).unwrap();
    run.run().unwrap();
    let own = bits(&model.state_dict());
    let validated = run.evaluate().unwrap().loss;
    assert_eq!(run.history()[1].validation_loss, Some(validated));
    assert_eq!(bits(&model.state_dict()), own, "an evaluation gives the weights back");
    let averaged = run.averaged().unwrap();
    assert_eq!(averaged.updates(), 8);
    let of_average = averaged.applied(&model, || make(&model)).unwrap();
    assert_ne!(of_average, make(&model).unwrap());
    run.restore_best().unwrap();
    assert_ne!(bits(&model.state_dict()), own);

    // A run that goes on has the same average.
    let resumed = |epochs: u64| {
        let init = Init::new(&cpu()).seed(9);
        let model = self::model(&init);
        let run = trainer(&model).average(averaging).unwrap().validate(loader()).epochs(epochs).rng("init", init.rng());
        let mut run = run.resume(SavedRun::load(folder.path(), &cpu()).unwrap()).unwrap();
        run.run().unwrap();
        bits(run.averaged().unwrap().state_dict())
    };
    let straight = {
        let init = Init::new(&cpu()).seed(3);
        let model = self::model(&init);
        let mut run = trainer(&model).average(averaging).unwrap().validate(loader()).epochs(3);
        run.run().unwrap();
        bits(run.averaged().unwrap().state_dict())
    };
    assert_eq!(resumed(3), straight);
    let init = Init::new(&cpu()).seed(9);
    let model = self::model(&init);
    assert!(trainer(&model).resume(SavedRun::load(folder.path(), &cpu()).unwrap()).is_err());
}

#[test]
fn a_search_for_a_rate_leaves_the_run_as_it_was() {
    let train = |is_searched: bool| {
        let init = Init::new(&cpu()).seed(3);
        let model = model(&init);
        let mut run = trainer(&model).rng("init", init.rng()).epochs(1);
        let mut curve = None;
        if is_searched {
            curve = Some(run.find_learning_rate(&RateSearch { from: 1e-5, to: 10.0, steps: 60, limit: 4.0 }).unwrap());
        }
        run.run().unwrap();
        (bits(&model.state_dict()), run.history()[0].train_loss, run.history()[0].learning_rate, curve)
    };
    let (found, plain) = (train(true), train(false));
    assert_eq!((found.0, found.1, found.2), (plain.0, plain.1, plain.2));
    let curve = found.3.unwrap();
    assert!(curve.points.len() > 20 && curve.points[0].rate == 1e-5);
    let rate = curve.suggestion.unwrap();
    assert!((1e-4..3.0).contains(&rate), "{rate}");
    #[cfg(feature = "curves")]
    assert!(curve.svg().unwrap().contains("suggestion"));
}

/// Counts calls.
#[derive(Default)]
struct Counted(Arc<Mutex<[usize; 2]>>);

impl Logger for Counted {
    fn step(&mut self, progress: &Progress, losses: &[Tensor]) -> Result<()> {
        assert!(losses.len() == 1 && losses[0].item::<f64>()?.is_finite() && progress.steps > 0);
        self.0.lock().unwrap()[0] += 1;
        Ok(())
    }

    fn epoch(&mut self, _: &Epoch) -> Result<()> {
        self.0.lock().unwrap()[1] += 1;
        Ok(())
    }
}

#[test]
fn a_run_validates_within_epochs_and_ends_after_its_steps() {
    let folder = tempfile::tempdir().unwrap();
    // Four batches an epoch.
    let run = |path: Option<&Path>, most: u64, saved: Option<SavedRun>| {
        let init = Init::new(&cpu()).seed(3);
        let model = model(&init);
        let counted = Counted::default();
        let calls = counted.0.clone();
        let mut run = trainer(&model).validate(loader()).epochs(3).max_steps(most).validate_every(3).unwrap();
        run = run.rng("init", init.rng()).logger(counted);
        if let Some(path) = path {
            run = run.folder(path).unwrap();
        }
        if let Some(saved) = saved {
            run = run.resume(saved).unwrap();
        }
        assert_eq!(run.run().unwrap(), End::Finished);
        let steps: Vec<(u64, u64)> = run.history().iter().map(|e| (e.epoch, e.steps)).collect();
        assert!(run.history().iter().all(|e| e.train_loss.is_finite() && e.validation_loss.unwrap().is_finite()));
        let calls = *calls.lock().unwrap();
        (bits(&model.state_dict()), steps, calls)
    };
    let whole = run(None, 10, None);
    assert_eq!(whole.1, [(1, 3), (1, 4), (2, 6), (2, 8), (3, 9), (3, 10)]);
    assert_eq!(whole.2, [10, 6]);
    // A run that ended within an epoch goes on there.
    let first = run(Some(folder.path()), 5, None);
    assert_eq!((first.1.as_slice(), first.2), (&[(1, 3), (1, 4), (2, 5)][..], [5, 3]));
    let saved = SavedRun::load(folder.path(), &cpu()).unwrap();
    assert_eq!((saved.progress.epoch, saved.progress.batch), (1, 1));
    let second = run(None, 10, Some(saved));
    assert_eq!(second.0, whole.0);
    assert_eq!(second.1[3..], [(2, 6), (2, 8), (3, 9), (3, 10)]);
}

#[test]
fn a_trainer_runs_on_another_thread_with_the_same_bits() {
    let weights = |run: &dyn Fn(Classifier<'_>) -> Result<End>| {
        let init = Init::new(&cpu()).seed(3);
        let model = model(&init);
        let count =
            |confusion: &mut Confusion, scores: &Tensor, (_, y): &Batch| confusion.update(&scores.argmax(-1)?, y);
        let trainer = trainer(&model)
            .validate(loader())
            .measure("f1", Goal::Highest, || Confusion::new(10, &cpu()), count, |c| Ok(c.counts()?.macro_f1()))
            .on_step(|progress, _| if progress.steps < 9 { Ok(()) } else { Err(Error::value("test", "nine steps")) })
            .epochs(2);
        assert_eq!(run(trainer).unwrap(), End::Finished);
        bits(&model.state_dict())
    };
    let here = weights(&|mut trainer| trainer.run());
    let there = weights(&|mut trainer| std::thread::scope(|scope| scope.spawn(move || trainer.run()).join().unwrap()));
    assert_eq!(here, there);
}

#[test]
fn metrics_with_a_state_are_monitored() {
    let init = Init::new(&cpu()).seed(3);
    let model = model(&init);
    let add = |confusion: &mut Confusion, scores: &Tensor, (_, y): &Batch| confusion.update(&scores.argmax(-1)?, y);
    let mut run = trainer(&model)
        .validate(loader())
        .measure("f1", Goal::Highest, || Confusion::new(10, &cpu()), add, |c| Ok(c.counts()?.macro_f1()))
        .measure(
            "perplexity",
            Goal::Lowest,
            || Mean::new(&cpu()),
            |mean, scores: &Tensor, (_, y): &Batch| mean.update(&scores.cross_entropy(y)?, y.numel()),
            Mean::perplexity,
        )
        .monitor("f1")
        .epochs(3);
    run.run().unwrap();
    let f1 = |epoch: &Epoch| epoch.metrics["f1"];
    let highest = run.history().iter().map(f1).fold(0.0, f64::max);
    assert_eq!(f1(run.best().unwrap()), highest);
    assert!(highest > 0.2, "{highest}");
    for epoch in run.history() {
        let expected = epoch.validation_loss.unwrap().exp();
        assert!((epoch.metrics["perplexity"] - expected).abs() < 1e-5 * expected, "{epoch:?}");
    }
}

/// A run on rows of two numbers, in batches of two, without shuffling.
fn run_on(rows: Vec<[f32; 2]>, with: impl Fn(&Linear) -> Sgd, epochs: u64) -> (Result<End>, Vec<String>) {
    let model = Linear::new(2, 1, &Init::new(&cpu()).seed(3)).unwrap();
    let samples: Vec<([f32; 2], i64)> = rows.into_iter().map(|row| (row, 1)).collect();
    let mut run = Trainer::new(
        &model,
        with(&model),
        Loader::new(Items(samples), 2).unwrap().to(&cpu()),
        |model: &Linear, (x, _): &Batch| model.forward(x),
        |y, (_, target): &Batch| y.squeeze(1)?.sub(&target.cast(DType::F32)?)?.square()?.mean(..),
    )
    .epochs(epochs);
    let end = run.run();
    (end, run.warnings().to_vec())
}

#[test]
fn a_later_batch_that_is_not_finite_is_named_with_its_rows() {
    let rows = vec![[0.5, 1.0], [1.0, 0.5], [0.0, 1.0], [1.0, f32::NAN], [1.0, 1.0], [0.0, 0.0]];
    let text = run_on(rows, |m| Sgd::new(m).lr(1e-2), 1).0.unwrap_err().to_string();
    assert!(text.contains("the loss is NaN for batch 2 of epoch 1"), "{text}");
    assert!(text.contains("not finite are tensor 1 of the batch in rows 1"), "{text}");
}

#[test]
fn a_loss_that_grows_without_end_is_a_warning_and_then_an_error() {
    let rows = vec![[0.5, 1.0], [1.0, 0.5]];
    let (end, warnings) = run_on(rows.clone(), |m| Sgd::new(m).lr(2.0), 12);
    assert_eq!(end.unwrap(), End::Finished);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("a smaller learning rate may help"), "{warnings:?}");
    let text = run_on(rows, |m| Sgd::new(m).lr(2.0), 100).0.unwrap_err().to_string();
    assert!(text.contains("its inputs are finite, and a smaller learning rate may help"), "{text}");
}

#[test]
fn weights_that_are_not_finite_already_are_named() {
    let model = Odd::new();
    isograd_core::no_grad(|| model.last.bias.as_ref().unwrap().detach().fill_(f64::NAN)).unwrap();
    let text = trainer(&model).run().unwrap_err().to_string();
    assert!(text.contains("not finite are the parameter last.bias, "), "{text}");
}

#[test]
fn a_generator_that_the_trainer_does_not_know_goes_on_where_it_was() {
    let rng = Rng::new(5);
    let position = rng.state();
    isograd_core::tape::undone(|| Tensor::randn(4, 0.0, 1.0, DType::F32, &cpu(), &rng)).unwrap();
    assert_eq!(rng.state(), position);
}
