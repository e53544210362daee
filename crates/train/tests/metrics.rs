//! Metrics against numbers that were computed by hand.

use isograd_core::{Device, Kind, Result, Tensor};
use isograd_cpu as _;
use isograd_train::metrics::{Auc, Confusion, Counts, Mean, Metric, TopK};

fn cpu() -> Device {
    Device::cpu().unwrap()
}

fn classes(values: &[i64]) -> Tensor {
    Tensor::from_slice(values, values.len(), &cpu()).unwrap()
}

#[test]
fn confusions_add_up() -> Result<()> {
    let mut confusion = Confusion::new(3, &cpu())?;
    confusion.update(&classes(&[0, 1, 1, 2]), &classes(&[0, 1, 2, 2]))?;
    confusion.update(&classes(&[0, 0]), &classes(&[0, 1]))?;
    let counts = confusion.counts()?;
    assert_eq!(counts.rows, [[2, 0, 0], [1, 1, 0], [0, 1, 1]]);
    assert_eq!(counts.accuracy(), 4.0 / 6.0);
    assert_eq!(counts.precision(), [2.0 / 3.0, 0.5, 1.0]);
    assert_eq!(counts.recall(), [1.0, 0.5, 0.5]);
    let f1 = counts.f1();
    assert!((f1[0] - 0.8).abs() < 1e-12 && f1[1] == 0.5 && (f1[2] - 2.0 / 3.0).abs() < 1e-12);
    assert_eq!(Counts::mean(&[1.0, 0.5]), 0.75);
    for wrong in [3, -1] {
        assert_eq!(confusion.update(&classes(&[wrong]), &classes(&[0])).unwrap_err().kind(), Kind::Index);
        assert_eq!(confusion.update(&classes(&[0]), &classes(&[wrong])).unwrap_err().kind(), Kind::Index);
    }
    assert_eq!(confusion.counts()?, counts);
    assert_eq!(confusion.update(&classes(&[0, 1]), &classes(&[0])).unwrap_err().kind(), Kind::Shape);
    assert_eq!(Counts { rows: vec![vec![0, 0], vec![0, 0]] }.f1(), [0.0, 0.0]);
    Ok(())
}

#[test]
fn an_ignored_target_counts_nothing() -> Result<()> {
    let mut confusion = Confusion::new(2, &cpu())?.ignore(-100);
    confusion.update(&classes(&[0, 1, 1, 0]), &classes(&[-100, 1, 0, -100]))?;
    let counts = confusion.counts()?;
    assert_eq!(counts.rows, [[0, 1], [0, 1]]);
    assert!((counts.macro_f1() - 1.0 / 3.0).abs() < 1e-12);
    assert_eq!(confusion.update(&classes(&[0]), &classes(&[-1])).unwrap_err().kind(), Kind::Index);
    Ok(())
}

#[test]
fn a_class_that_does_not_occur_is_no_part_of_the_mean() -> Result<()> {
    // Class 0 is padding. scikit-learn's f1_score(average="macro") of the others: (1 + 2 / 3 + 0) / 3.
    let mut confusion = Confusion::new(5, &cpu())?.ignore(0);
    confusion.update(&classes(&[1, 2, 2, 1, 4]), &classes(&[1, 2, 4, 0, 0]))?;
    assert!((confusion.counts()?.macro_f1() - 5.0 / 9.0).abs() < 1e-12);
    // A prediction of padding counts as a wrong one.
    confusion.update(&classes(&[0]), &classes(&[1]))?;
    assert!((confusion.counts()?.macro_f1() - (0.0 + 2.0 / 3.0 + 2.0 / 3.0 + 0.0) / 4.0).abs() < 1e-12);
    Ok(())
}

#[test]
fn precision_is_averaged_over_positive_samples() -> Result<()> {
    let mut auc = Auc::new();
    assert!(auc.average_precision()?.is_nan());
    // scikit-learn's example: 0.5 * 1 + 0.5 * 2 / 3.
    let scores = Tensor::from_slice(&[0.1f32, 0.4, 0.35, 0.8], 4, &cpu())?;
    auc.update(&scores, &classes(&[0, 0, 1, 1]))?;
    assert!((auc.average_precision()? - 5.0 / 6.0).abs() < 1e-12);
    // Equal scores come at once.
    let mut equal = Auc::new();
    equal.update(&scores.zeros_like()?, &classes(&[0, 0, 1, 1]))?;
    assert_eq!(equal.average_precision()?, 0.5);
    Ok(())
}

/// Two states with a part of the samples each are joined to the state of all.
fn joined<M: Metric>(begin: impl Fn() -> Result<M>, update: impl Fn(&mut M, usize) -> Result<()>) -> Result<[M; 2]> {
    let (mut all, mut first, mut second) = (begin()?, begin()?, begin()?);
    (0..5).try_for_each(|i| update(&mut all, i))?;
    (0..3).try_for_each(|i| update(&mut first, i))?;
    (3..5).try_for_each(|i| update(&mut second, i))?;
    let ranks = [first.numbers()?, second.numbers()?];
    // A rank may have had no samples.
    let mut last = begin()?;
    last.join(&ranks)?;
    Ok([all, last])
}

#[test]
fn a_joined_infinity_is_no_nan() -> Result<()> {
    for (values, expected) in [
        ([1.0f32, f32::INFINITY, 2.0, 3.0, 4.0], f64::INFINITY),
        ([1.0, 2.0, 3.0, f32::NEG_INFINITY, 4.0], f64::NEG_INFINITY),
        // Each rank has a finite sum, both together have more than f32 holds.
        ([3e38, 0.0, 0.0, 3e38, 0.0], f64::INFINITY),
    ] {
        let update = |mean: &mut Mean, i: usize| mean.update(&Tensor::scalar(values[i], &cpu())?, 1);
        let [_, joined] = joined(|| Mean::new(&cpu()), update)?;
        assert_eq!(joined.value()?, expected, "{values:?}");
    }
    Ok(())
}

#[test]
fn states_of_ranks_are_joined() -> Result<()> {
    let number = |i: usize| Tensor::scalar([0.1f32, 7.5, 3.25, 1e7, 2.0][i], &cpu());
    let class = |i: usize| classes(&[[0, 1, 1, 0, 1][i]]);
    let [all, other] = joined(|| Mean::new(&cpu()), |mean, i| mean.update(&number(i)?, i + 1))?;
    assert!((all.value()? - other.value()?).abs() < 1e-6 * all.value()?);
    let [all, other] = joined(|| Confusion::new(2, &cpu()), |c, i| c.update(&class(i), &class((i + 1) % 5)))?;
    assert_eq!(all.counts()?, other.counts()?);
    let [all, other] = joined(|| Ok(Auc::new()), |auc, i| auc.update(&number(i)?.reshape(1)?, &class(i)))?;
    assert_eq!([all.value()?, all.average_precision()?], [other.value()?, other.average_precision()?]);
    let scores = |i: usize| Tensor::stack(&[&number(i)?, &number((i + 2) % 5)?], 0)?.reshape((1, 2));
    let [all, other] = joined(|| TopK::new(1, &cpu()), |top, i| top.update(&scores(i)?, &class(i)))?;
    assert_eq!(all.value()?, other.value()?);
    assert!((0.1..0.9).contains(&all.value()?));
    assert!(other.numbers().is_ok_and(|n| n[1] == 5.0));
    let mut wrong = TopK::new(1, &cpu())?;
    assert_eq!(wrong.join(&[vec![1.0]]).unwrap_err().kind(), Kind::Value);
    Ok(())
}

#[test]
fn means_have_weights_and_lose_nothing() -> Result<()> {
    let mut mean = Mean::new(&cpu())?;
    assert!(mean.value()?.is_nan());
    mean.update(&Tensor::scalar(1.0f32, &cpu())?, 3)?;
    mean.update(&Tensor::scalar(2.0f32, &cpu())?, 1)?;
    assert_eq!(mean.value()?, 1.25);
    assert_eq!(mean.perplexity()?, 1.25f64.exp());
    let mut long = Mean::new(&cpu())?;
    long.update(&Tensor::scalar(16_777_216.0f32, &cpu())?, 1)?;
    (0..1000).try_for_each(|_| long.update(&Tensor::scalar(1.0f32, &cpu())?, 1))?;
    assert_eq!(long.value()?, 16_778_216.0 / 1001.0);
    assert!(mean.update(&classes(&[1, 2]), 1).is_err());
    Ok(())
}

#[test]
fn a_mean_with_an_infinite_number_is_infinite() -> Result<()> {
    for infinite in [f32::INFINITY, f32::NEG_INFINITY] {
        let mut mean = Mean::new(&cpu())?;
        for value in [1.0, infinite, 2.0] {
            mean.update(&Tensor::scalar(value, &cpu())?, 1)?;
        }
        assert_eq!(mean.value()?, f64::from(infinite));
        mean.update(&Tensor::scalar(f32::NAN, &cpu())?, 1)?;
        assert!(mean.value()?.is_nan());
    }
    Ok(())
}

#[test]
fn scores_of_an_area_are_not_rounded() -> Result<()> {
    let mut auc = Auc::new();
    let scores = Tensor::from_slice(&[1.0f64, 1.0 + 1e-12], 2, &cpu())?;
    auc.update(&scores, &classes(&[0, 1]))?;
    assert_eq!(auc.value()?, 1.0);
    Ok(())
}

#[test]
fn targets_among_the_highest_scores() -> Result<()> {
    let scores = Tensor::from_slice(&[0.1f32, 0.5, 0.4, 0.7, 0.2, 0.1], (2, 3), &cpu())?;
    for (k, expected) in [(1, 0.0), (2, 1.0), (3, 1.0)] {
        let mut top = TopK::new(k, &cpu())?;
        top.update(&scores, &classes(&[2, 1]))?;
        assert_eq!(top.value()?, expected, "{k}");
    }
    assert!(TopK::new(4, &cpu())?.update(&scores, &classes(&[2, 1])).is_err());
    Ok(())
}

#[test]
fn an_area_counts_pairs() -> Result<()> {
    let scores = |v: &[f32]| Tensor::from_slice(v, v.len(), &cpu());
    let mut auc = Auc::new();
    assert!(auc.value()?.is_nan());
    auc.update(&scores(&[0.1, 0.4])?, &classes(&[0, 0]))?;
    auc.update(&scores(&[0.35, 0.8])?, &classes(&[1, 1]))?;
    assert_eq!(auc.value()?, 0.75);
    // Of six pairs four are in order, and one is equal.
    auc.update(&scores(&[0.4])?, &classes(&[1]))?;
    assert!((auc.value()? - 4.5 / 6.0).abs() < 1e-12);
    auc.update(&scores(&[f32::NAN])?, &classes(&[1]))?;
    assert!(auc.value().is_err());
    Ok(())
}

/// A captured step refuses whatever waits for the device.
#[test]
fn updates_wait_for_nothing() -> Result<()> {
    let device = cpu();
    let (mut mean, mut top) = (Mean::new(&device)?, TopK::new(2, &device)?);
    let (mut confusion, mut auc) = (Confusion::new(3, &device)?, Auc::new());
    let mut step = device.capture(|(scores, targets): (Tensor, Tensor)| {
        mean.update(&scores.mean(..)?, targets.numel())?;
        top.update(&scores, &targets)?;
        confusion.update(&scores.argmax(-1)?, &targets)?;
        auc.update(&scores.select(1, 0)?, &targets.eq_scalar(0)?)
    });
    let scores = Tensor::from_slice(&[0.1f32, 0.5, 0.4, 0.7, 0.2, 0.1], (2, 3), &device)?;
    step.run((scores.clone(), classes(&[2, 0])))?;
    drop(step);
    assert_eq!((top.value()?, confusion.counts()?.accuracy(), auc.value()?), (1.0, 0.5, 1.0));
    assert!((mean.value()? - 1.0 / 3.0).abs() < 1e-6);
    let mut reads = device.capture(|_: Tensor| top.value().map(drop));
    assert!(reads.run(scores).unwrap_err().message().contains("waits for the device"));
    Ok(())
}
