//! The loader: order, completeness, errors of a source, and the end of its thread.

use isograd_core::{DType, Device, Error, Kind, Result};
use isograd_cpu as _;
use isograd_data::{Dataset, Loader, Source};
use proptest::prelude::*;
use std::sync::Arc;

/// Sample `i` is `[i, -i]` with label `i`.
fn counted(n: usize) -> Arc<Dataset> {
    let features = (0..n).flat_map(|i| [i as f32, -(i as f32)]).collect();
    Arc::new(Dataset::new("counted", features, [2], (0..n as i64).collect(), n).unwrap())
}

fn labels(loader: &Loader, epoch: u64, first: usize) -> Vec<Vec<i64>> {
    loader.epoch_from(epoch, first).map(|batch| batch.unwrap().1.to_vec().unwrap()).collect()
}

fn on_cpu(loader: Loader) -> Loader {
    loader.to(&Device::cpu().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_sample_comes_once_in_an_order_of_seed_and_epoch(n in 0usize..60, size in 1usize..20, seed: u64, epoch: u64) {
        let loader = on_cpu(Loader::new(counted(n), size).unwrap().shuffle(seed));
        let batches = labels(&loader, epoch, 0);
        prop_assert_eq!(batches.len(), loader.len());
        prop_assert_eq!(&batches, &labels(&loader.clone(), epoch, 0));
        let mut all = batches.concat();
        all.sort_unstable();
        prop_assert!(all.into_iter().eq(0..n as i64));

        let full = labels(&loader.drop_last(), epoch, 0);
        prop_assert_eq!(full.len(), n / size);
        prop_assert_eq!(&full[..], &batches[..n / size]);
    }

    #[test]
    fn an_epoch_goes_on_where_it_was_left(n in 0usize..60, size in 1usize..20, first in 0usize..60, seed: u64) {
        let loader = on_cpu(Loader::new(counted(n), size).unwrap().shuffle(seed));
        if first <= loader.len() {
            prop_assert_eq!(labels(&loader, 3, first), labels(&loader, 3, 0).split_off(first));
        } else {
            let mut epoch = loader.epoch_from(3, first);
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
        assert_eq!(x.dims(), [y.numel(), 2]);
        let expected: Vec<f32> = y.to_vec::<i64>().unwrap().iter().flat_map(|&i| [i as f32, -(i as f32)]).collect();
        assert_eq!(x.to_vec::<f32>().unwrap(), expected);
    }
}

#[test]
fn without_a_seed_samples_keep_their_order() {
    let loader = on_cpu(Loader::new(counted(5), 2).unwrap());
    assert_eq!(labels(&loader, 7, 0), [vec![0, 1], vec![2, 3], vec![4]]);
}

#[test]
fn every_dtype_is_that_of_a_cast() {
    for dtype in DType::ALL {
        let loader = on_cpu(Loader::new(counted(3), 3).unwrap().dtype(dtype));
        let (x, y) = loader.epoch(0).next().unwrap().unwrap();
        assert_eq!((x.dtype(), y.dtype()), (dtype, DType::I64));
        let (expected, _) = counted(3).to_tensors(&Device::cpu().unwrap()).unwrap();
        assert_eq!(x.to_f64_vec().unwrap(), expected.cast(dtype).unwrap().to_f64_vec().unwrap(), "{dtype}");
    }
}

#[test]
fn impossible_batches_are_refused() {
    let error = Loader::new(counted(3), 0).unwrap_err();
    assert_eq!(error.to_string(), "loader: Attr: the batch size is 0, expected at least 1");
    assert!(Loader::new(counted(0), usize::MAX).unwrap().is_empty());
    assert_eq!(Loader::new(counted(3), usize::MAX).unwrap().len(), 1);
    let huge = Arc::new(Faulty { shape: [usize::MAX], fault: |_| Ok(0) });
    assert_eq!(Loader::new(huge, 1).unwrap_err().kind(), Kind::Shape);
}

/// A hundred samples, of which some cannot be read.
struct Faulty {
    shape: [usize; 1],
    fault: fn(usize) -> Result<i64>,
}

impl Source for Faulty {
    fn len(&self) -> usize {
        100
    }

    fn sample_shape(&self) -> &[usize] {
        &self.shape
    }

    fn copy_sample(&self, index: usize, _: &mut [f32]) -> Result<i64> {
        (self.fault)(index)
    }
}

fn faulty(fault: fn(usize) -> Result<i64>) -> (Vec<Result<()>>, Arc<Faulty>) {
    let source = Arc::new(Faulty { shape: [1], fault });
    let loader = on_cpu(Loader::new(source.clone(), 10).unwrap());
    (loader.epoch(0).map(|batch| batch.map(|_| ())).collect(), source)
}

#[test]
fn an_error_of_the_source_is_the_last_item() {
    let (items, _) = faulty(|i| if i == 35 { Err(Error::format("sample 35", "damaged")) } else { Ok(0) });
    assert_eq!(items.len(), 4);
    assert_eq!(items[3].as_ref().unwrap_err().to_string(), "sample 35: Format: damaged");
}

#[test]
fn a_panic_of_the_source_is_the_last_item() {
    let (items, source) = faulty(|i| if i == 35 { panic!("no sample {i}") } else { Ok(0) });
    assert_eq!(items.len(), 4);
    assert!(items[3].as_ref().unwrap_err().message().contains("panicked: no sample 35"));
    assert_eq!(Arc::strong_count(&source), 1);
}

#[test]
fn dropping_an_epoch_early_ends_its_thread() {
    let source = counted(1000);
    let loader = on_cpu(Loader::new(source.clone(), 1).unwrap());
    let mut epoch = loader.epoch(0);
    epoch.next().unwrap().unwrap();
    drop(epoch);
    // The loader and this function hold the source; the thread's clone is gone.
    assert_eq!(Arc::strong_count(&source), 2);
    drop(loader.epoch(1));
    assert_eq!(Arc::strong_count(&source), 2);
}
