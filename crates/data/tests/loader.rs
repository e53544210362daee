//! The loader: order, completeness, worker threads, errors of a dataset, and the end of the threads.

use isograd_core::{DType, Device, Error, Kind, Result, Tensor};
use isograd_cpu as _;
use isograd_data::sampler::Weighted;
use isograd_data::{Collate, Context, Dataset, HostTensor, Items, Labelled, Loader, Sampler, Staged};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

type Batch = (Tensor, Tensor);

/// Sample `i` is `[i, -i]` with label `i`.
fn counted(n: usize) -> Labelled {
    let features = (0..n).flat_map(|i| [i as f32, -(i as f32)]).collect();
    Labelled::new("counted", features, [2], (0..n as i64).collect(), n).unwrap()
}

fn labels(loader: &Loader<Batch>, epoch: u64, first: usize) -> Vec<Vec<i64>> {
    loader.epoch_from(epoch, first).map(|batch| batch.unwrap().1.to_vec().unwrap()).collect()
}

fn on_cpu<B: Send + 'static>(loader: Loader<B>) -> Loader<B> {
    loader.to(&Device::cpu().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_sample_comes_once_in_an_order_of_seed_and_epoch(
        n in 0usize..60, size in 1usize..20, workers in 1usize..5, seed: u64, epoch: u64,
    ) {
        let loader = on_cpu(Loader::new(counted(n), size).unwrap().shuffle(seed));
        let batches = labels(&loader, epoch, 0);
        prop_assert_eq!(batches.len(), loader.len());
        let sizes: Vec<usize> = (0..loader.len()).map(|i| loader.samples_in(i)).collect();
        prop_assert_eq!(sizes, batches.iter().map(Vec::len).collect::<Vec<_>>());
        prop_assert_eq!(&batches, &labels(&loader.clone().workers(workers).unwrap(), epoch, 0));
        let mut all = batches.concat();
        all.sort_unstable();
        prop_assert!(all.into_iter().eq(0..n as i64));

        let full = labels(&loader.drop_last(), epoch, 0);
        prop_assert_eq!(full.len(), n / size);
        prop_assert_eq!(&full[..], &batches[..n / size]);
    }

    #[test]
    fn the_parts_of_a_batch_are_the_batch(
        n in 0usize..60, size in 1usize..20, parts in 1usize..6, first in 0usize..4, seed: u64, epoch: u64,
    ) {
        let loader = on_cpu(Loader::new(counted(n), size).unwrap().shuffle(seed));
        let first = first.min(loader.len());
        let mut together = vec![Vec::new(); loader.len() - first];
        for rank in 0..parts {
            let part = loader.clone().part(rank, parts).unwrap();
            prop_assert_eq!(part.len(), loader.len());
            for (i, batch) in labels(&part, epoch, first).into_iter().enumerate() {
                prop_assert_eq!(part.samples_in_all(first + i), loader.samples_in(first + i));
                match part.samples_in(first + i) {
                    // One that does not count.
                    0 => prop_assert_eq!(batch.len(), 1),
                    samples => {
                        prop_assert_eq!(batch.len(), samples);
                        together[i].extend(batch);
                    }
                }
            }
        }
        prop_assert_eq!(together, labels(&loader, epoch, first));
        prop_assert!(loader.part(parts, parts).is_err());
    }

    #[test]
    fn an_epoch_goes_on_where_it_was_left(
        n in 0usize..60, size in 1usize..20, first in 0usize..60, workers in 1usize..5, seed: u64,
    ) {
        let loader = on_cpu(Loader::new(counted(n), size).unwrap().shuffle(seed));
        let resumed = loader.clone().workers(workers).unwrap();
        if first <= loader.len() {
            prop_assert_eq!(labels(&resumed, 3, first), labels(&loader, 3, 0).split_off(first));
        } else {
            let mut epoch = resumed.epoch_from(3, first);
            prop_assert_eq!(epoch.next().unwrap().unwrap_err().kind(), Kind::Attr);
            prop_assert!(epoch.next().is_none());
        }
    }
}

#[test]
fn features_follow_their_labels() {
    let loader = on_cpu(Loader::new(counted(10), 4).unwrap().shuffle(1));
    for batch in loader.epoch(0) {
        let (x, y) = batch.unwrap();
        assert_eq!((x.dims(), x.dtype(), y.dtype()), (&[y.numel(), 2][..], DType::F32, DType::I64));
        let expected: Vec<f32> = y.to_vec::<i64>().unwrap().iter().flat_map(|&i| [i as f32, -(i as f32)]).collect();
        assert_eq!(x.to_vec::<f32>().unwrap(), expected);
    }
}

#[test]
fn without_a_sampler_samples_keep_their_order() {
    let loader = on_cpu(Loader::new(counted(5), 2).unwrap());
    assert_eq!(labels(&loader, 7, 0), [vec![0, 1], vec![2, 3], vec![4]]);
}

/// Epochs of numbers to which each sample adds one of its own.
fn augmented(loader: impl Fn(Loader<Tensor>) -> Loader<Tensor>, epoch: u64, first: usize) -> Vec<f64> {
    let data = Items((0..20).map(f64::from).collect::<Vec<_>>()).map(|x, context| Ok(x + context.uniform()));
    let loader = loader(on_cpu(Loader::new(data, 3).unwrap()));
    loader.epoch_from(epoch, first).flat_map(|batch| batch.unwrap().to_vec::<f64>().unwrap()).collect()
}

#[test]
fn augmentation_is_new_in_each_epoch_and_the_same_after_resuming() {
    let plain = |loader: Loader<Tensor>| loader.shuffle(5);
    let known = augmented(plain, 2, 0);
    assert_eq!(augmented(|loader| plain(loader).workers(3).unwrap(), 2, 0), known);
    assert_eq!(augmented(plain, 2, 4), known[12..]);
    let sample = |values: &[f64], i: f64| *values.iter().find(|x| x.floor() == i).unwrap();
    for other in [augmented(plain, 3, 0), augmented(|loader| loader.shuffle(6), 2, 0)] {
        assert!((0..20).all(|i| sample(&other, f64::from(i)) != sample(&known, f64::from(i))));
    }
}

#[test]
fn a_sample_that_an_epoch_has_twice_is_augmented_anew() {
    let weighted = |loader: Loader<Tensor>| {
        let mut weights = [0.0; 20];
        weights[7] = 1.0;
        loader.sampler(Weighted::new(&weights, 10).unwrap())
    };
    let mut values = augmented(weighted, 0, 0);
    assert!(values.len() == 10 && values.iter().all(|x| x.floor() == 7.0), "{values:?}");
    assert_eq!(augmented(weighted, 0, 2), values[6..]);
    values.sort_by(f64::total_cmp);
    values.dedup();
    assert_eq!(values.len(), 10);
}

struct Wrong(Vec<usize>);

impl Sampler for Wrong {
    fn order(&self, _: usize, _: u64, _: u64) -> Result<Vec<usize>> {
        Ok(self.0.clone())
    }
}

#[test]
fn samplers_that_draw_what_is_not_there_are_refused() {
    for (order, expected) in [
        (vec![0, 1, 3], "loader: Index: there is no sample 3, expected one in 0..3"),
        (vec![0, 1], "loader: Value: the sampler drew 2 samples, expected 3"),
    ] {
        let loader = on_cpu(Loader::new(counted(3), 2).unwrap().sampler(Wrong(order)));
        let mut epoch = loader.epoch(0);
        assert_eq!(epoch.next().unwrap().unwrap_err().to_string(), expected);
        assert!(epoch.next().is_none());
    }
}

#[test]
fn impossible_batches_are_refused() {
    let error = Loader::new(counted(3), 0).unwrap_err();
    assert_eq!(error.to_string(), "loader: Attr: the batch size is 0, expected at least 1");
    let error = Loader::new(counted(3), 1).unwrap().workers(0).unwrap_err();
    assert_eq!(error.to_string(), "loader: Attr: there are 0 workers, expected at least 1");
    assert!(Loader::new(counted(0), usize::MAX).unwrap().is_empty());
    assert_eq!(labels(&on_cpu(Loader::new(counted(3), usize::MAX).unwrap()), 0, 0), [[0, 1, 2]]);
}

/// A hundred samples, of which some cannot be read.
struct Faulty(fn(usize) -> Result<i64>);

impl Dataset for Faulty {
    type Item = i64;

    fn len(&self) -> usize {
        100
    }

    fn get(&self, index: usize, _: &Context) -> Result<i64> {
        (self.0)(index)
    }
}

fn faulty(workers: usize, fault: fn(usize) -> Result<i64>) -> (Vec<Result<()>>, Arc<Faulty>) {
    let source = Arc::new(Faulty(fault));
    let loader = on_cpu(Loader::new(source.clone(), 10).unwrap().workers(workers).unwrap());
    (loader.epoch(0).map(|batch| batch.map(|_| ())).collect(), source)
}

#[test]
fn an_error_of_the_dataset_is_the_last_item() {
    for workers in [1, 3] {
        let (items, _) = faulty(workers, |i| if i == 35 { Err(Error::format("sample 35", "damaged")) } else { Ok(0) });
        assert_eq!(items.len(), 4);
        assert_eq!(items[3].as_ref().unwrap_err().to_string(), "sample 35: Format: damaged");
    }
}

#[test]
fn a_panic_of_the_dataset_is_the_last_item() {
    for workers in [1, 3] {
        let (items, source) = faulty(workers, |i| if i == 35 { panic!("no sample {i}") } else { Ok(0) });
        assert_eq!(items.len(), 4);
        assert!(items[3].as_ref().unwrap_err().message().contains("panicked: no sample 35"));
        assert_eq!(Arc::strong_count(&source), 1);
    }
}

#[test]
fn dropping_an_epoch_early_ends_its_threads() {
    let source = Arc::new(counted(1000));
    for workers in [1, 4] {
        let loader = on_cpu(Loader::new(source.clone(), 1).unwrap().workers(workers).unwrap());
        let mut epoch = loader.epoch(0);
        epoch.next().unwrap().unwrap();
        drop(epoch);
        // The loader and this function hold the source; the threads have none.
        assert_eq!(Arc::strong_count(&source), 2);
        drop(loader.epoch(1));
        assert_eq!(Arc::strong_count(&source), 2);
    }
}

#[test]
fn batches_of_slow_workers_come_in_order() {
    // The later a sample, the sooner it is ready.
    let slow = Items((0..24).collect::<Vec<i64>>()).map(|x, _| {
        std::thread::sleep(Duration::from_millis(24 - x as u64));
        Ok(x)
    });
    let loader = on_cpu(Loader::new(slow, 2).unwrap().workers(4).unwrap());
    let seen: Vec<i64> = loader.epoch(0).flat_map(|batch| batch.unwrap().to_vec::<i64>().unwrap()).collect();
    assert!(seen.into_iter().eq(0..24));
}

/// A number whose batches are counted as they are uploaded. Batches that begin with a negative number do not reach the device.
struct Counted(i64, Arc<AtomicUsize>);

impl Collate for Counted {
    type Batch = Tensor;

    fn collate(items: Vec<Counted>) -> Result<Staged<Tensor>> {
        let values: Vec<i64> = items.iter().map(|item| item.0).collect();
        let uploads = items[0].1.clone();
        Ok(Staged::new(move |device| {
            if values[0] < 0 {
                return Err(Error::value("upload", "the device is full"));
            }
            uploads.fetch_add(1, Ordering::SeqCst);
            HostTensor::vector(&values).to(device)
        }))
    }
}

#[test]
fn batches_are_uploaded_before_they_are_asked_for() {
    for workers in [1, 3] {
        let uploads = Arc::new(AtomicUsize::new(0));
        let counter = uploads.clone();
        let data = Items((0..20i64).collect::<Vec<_>>()).map(move |x, _| Ok(Counted(x, counter.clone())));
        let mut epoch = on_cpu(Loader::new(data, 2).unwrap().workers(workers).unwrap()).epoch(0);
        epoch.next().unwrap().unwrap();
        // The first batch, which this thread has, and two more.
        let is_ahead = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            uploads.load(Ordering::SeqCst) >= 3
        });
        assert!(is_ahead, "{uploads:?} uploads with {workers} workers");
        assert_eq!(epoch.flat_map(|batch| batch.unwrap().to_vec::<i64>().unwrap()).count(), 18);
    }
}

#[test]
fn an_error_of_an_upload_is_the_last_item() {
    let data = Items(vec![0i64, 1, -1, 3]).map(|x, _| Ok(Counted(x, Arc::default())));
    let items: Vec<_> = on_cpu(Loader::new(data, 1).unwrap()).epoch(0).collect();
    assert_eq!(items.len(), 3);
    assert_eq!(items[2].as_ref().unwrap_err().to_string(), "upload: Value: the device is full");
}
