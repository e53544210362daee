//! Samples that come one after the other.

use isograd_core::{Device, Error, Result, Tensor};
use isograd_data::StreamLoader;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn numbers(count: i64) -> Result<StreamLoader<Tensor>> {
    Ok(StreamLoader::new(move |_| Ok((0..count).map(Ok)), 4)?.to(&Device::cpu()?))
}

fn seen(loader: &StreamLoader<Tensor>, epoch: u64) -> Result<Vec<Vec<i64>>> {
    loader.epoch(epoch).map(|batch| batch?.to_vec::<i64>()).collect()
}

#[test]
fn samples_keep_their_order_and_the_rest_is_a_batch() -> Result<()> {
    assert_eq!(seen(&numbers(6)?, 0)?, [vec![0, 1, 2, 3], vec![4, 5]]);
    assert_eq!(seen(&numbers(6)?.drop_last(), 0)?, [vec![0, 1, 2, 3]]);
    assert_eq!(seen(&numbers(0)?, 0)?, [[0i64; 0]; 0]);
    Ok(())
}

#[test]
fn a_buffer_shuffles_by_seed_and_epoch_and_no_further_than_it_is_long() -> Result<()> {
    let loader = numbers(50)?.shuffle(8, 1)?;
    let order = |epoch| seen(&loader, epoch).map(|batches| batches.concat());
    let first = order(0)?;
    assert_eq!(order(0)?, first);
    assert!(order(1)? != first && seen(&numbers(50)?.shuffle(8, 2)?, 0)?.concat() != first);
    assert!(first.iter().zip(0..).all(|(&sample, place)| sample < place + 8), "{first:?}");
    let mut sorted = first.clone();
    sorted.sort();
    assert_eq!(sorted, Vec::from_iter(0..50));
    assert!(first != sorted);
    Ok(())
}

#[test]
fn an_error_is_the_last_item() -> Result<()> {
    let failing = |i: i64| if i < 5 { Ok(i) } else { Err(Error::value("sample", "it is damaged")) };
    let loader = StreamLoader::new(move |_| Ok((0..9).map(failing)), 2)?.to(&Device::cpu()?);
    let items: Vec<Result<Tensor>> = loader.epoch(0).collect();
    assert_eq!(items.len(), 3);
    assert!(items[2].as_ref().is_err_and(|error| error.message() == "it is damaged"));
    let unopened = |_| -> Result<std::iter::Empty<Result<i64>>> { Err(Error::value("stream", "there is no file")) };
    let items: Vec<Result<Tensor>> = StreamLoader::new(unopened, 2)?.to(&Device::cpu()?).epoch(0).collect();
    assert!(items.len() == 1 && items[0].is_err());
    assert!(numbers(1)?.shuffle(0, 1).is_err() && StreamLoader::new(|_| Ok((0..1i64).map(Ok)), 0).is_err());
    Ok(())
}

#[test]
fn a_dropped_epoch_reads_no_more_than_it_has_room_for() -> Result<()> {
    let read = Arc::new(AtomicUsize::new(0));
    let counted = read.clone();
    let open = move |_| {
        let counted = counted.clone();
        Ok((0i64..).map(move |i| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(i)
        }))
    };
    let mut epoch = StreamLoader::new(open, 1)?.to(&Device::cpu()?).epoch(0);
    assert!(epoch.next().is_some_and(|batch| batch.is_ok()));
    drop(epoch);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(read.load(Ordering::Relaxed) <= 6, "{read:?}");
    Ok(())
}
