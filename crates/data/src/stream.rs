//! Batches of samples that come one after the other, without a number and without positions.

use crate::{Collate, Context, Staged};
use isograd_core::{Device, Error, Result};
use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// The batches that are on the device before they are asked for.
const PREFETCHED: usize = 2;

/// Hands out samples of an iterator in batches: lines of a file that no memory holds, messages of a network, or what a program generates. A
/// [`Dataset`](crate::Dataset), whose samples have positions, is shuffled as a whole by a [`Loader`](crate::Loader), which a trainer takes; samples of a
/// stream are drawn from a [buffer](StreamLoader::shuffle), and the loop is one of your own.
///
/// ```
/// # use isograd_core::Device;
/// # use isograd_data::StreamLoader;
/// # use isograd_cpu as _;
/// # fn main() -> isograd_core::Result<()> {
/// let numbers = |epoch: u64| Ok((0..10i64).map(move |i| Ok((i, [epoch as f32, i as f32]))));
/// let loader = StreamLoader::new(numbers, 4)?.shuffle(5, 42)?.to(&Device::cpu()?);
/// let mut seen = Vec::new();
/// for batch in loader.epoch(0) {
///     let (i, x) = batch?;
///     assert_eq!(x.dims(), [i.dims()[0], 2]);
///     seen.extend(i.to_vec::<i64>()?);
/// }
/// seen.sort();
/// assert_eq!(seen, Vec::from_iter(0..10));
/// # Ok(())
/// # }
/// ```
pub struct StreamLoader<B> {
    source: Arc<dyn Source<B>>,
    plan: Plan,
    device: Option<Device>,
}

/// The batches of a loader on a thread of their own.
trait Source<B>: Send + Sync {
    fn produce(&self, plan: Plan, epoch: u64, device: &Device, sender: &SyncSender<Result<B>>) -> Result<()>;
}

/// The batches of every epoch.
#[derive(Clone, Copy, Debug)]
struct Plan {
    batch_size: usize,
    /// The samples from which the next one is drawn.
    buffer: usize,
    seed: u64,
    keep_last: bool,
}

struct Opened<F>(F);

impl<T, I, F> Source<T::Batch> for Opened<F>
where
    T: Collate,
    I: Iterator<Item = Result<T>>,
    F: Fn(u64) -> Result<I> + Send + Sync,
{
    fn produce(&self, plan: Plan, epoch: u64, device: &Device, sender: &SyncSender<Result<T::Batch>>) -> Result<()> {
        let draws = Context::new(plan.seed, epoch, 0);
        let (mut buffer, mut batch) = (Vec::new(), Vec::new());
        let mut samples = (self.0)(epoch)?;
        loop {
            let sample = samples.next().transpose()?;
            let has_ended = sample.is_none();
            buffer.extend(sample);
            if buffer.len() < plan.buffer && !has_ended {
                continue;
            }
            if !buffer.is_empty() {
                batch.push(buffer.swap_remove(draws.below(buffer.len())));
            }
            let is_full = batch.len() == plan.batch_size;
            let is_last = has_ended && buffer.is_empty();
            if is_full || (is_last && plan.keep_last && !batch.is_empty()) {
                let staged: Staged<T::Batch> = Collate::collate(std::mem::take(&mut batch))?;
                // Nobody listens any more once the epoch was dropped.
                if sender.send(Ok(staged.to(device)?)).is_err() {
                    return Ok(());
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }
}

impl<B: Send + 'static> StreamLoader<B> {
    /// A loader of `batch_size` samples a batch, in their order, with a smaller batch at the end if samples are left over. `open` begins an epoch, of
    /// which it gets the number; it and its samples run on a thread of the loader. Batches are on [`Device::best`] unless [`to`](StreamLoader::to)
    /// says otherwise. Errors: `Attr` if `batch_size` is 0.
    pub fn new<T, I, F>(open: F, batch_size: usize) -> Result<StreamLoader<B>>
    where
        T: Collate<Batch = B> + 'static,
        I: Iterator<Item = Result<T>> + 'static,
        F: Fn(u64) -> Result<I> + Send + Sync + 'static,
    {
        if batch_size == 0 {
            return Err(Error::attr("stream_loader", "the batch size is 0, expected at least 1"));
        }
        let plan = Plan { batch_size, buffer: 1, seed: 0, keep_last: true };
        Ok(StreamLoader { source: Arc::new(Opened(open)), plan, device: None })
    }

    /// Draws each sample from a buffer of so many, which the following samples fill again. The draws depend on the seed and the epoch. A sample comes
    /// at most `buffer - 1` places earlier than in the stream. Errors: `Attr` if `buffer` is 0.
    pub fn shuffle(self, buffer: usize, seed: u64) -> Result<StreamLoader<B>> {
        match buffer {
            0 => Err(Error::attr("stream_loader", "the buffer has room for 0 samples, expected at least 1")),
            _ => Ok(StreamLoader { plan: Plan { buffer, seed, ..self.plan }, ..self }),
        }
    }

    /// Omits the last batch of an epoch if it is not full.
    pub fn drop_last(self) -> StreamLoader<B> {
        StreamLoader { plan: Plan { keep_last: false, ..self.plan }, ..self }
    }

    /// Puts batches on `device`.
    pub fn to(self, device: &Device) -> StreamLoader<B> {
        StreamLoader { device: Some(device.clone()), ..self }
    }

    /// The batches of epoch `epoch`. An error of `open`, of a sample or of a batch is the last item.
    pub fn epoch(&self, epoch: u64) -> StreamEpoch<B> {
        let (sender, receiver) = sync_channel(PREFETCHED);
        let failed = sender.clone();
        if let Err(error) = self.start(epoch, sender) {
            // There is room for it.
            let _ = failed.try_send(Err(error));
        }
        StreamEpoch(Some(receiver))
    }

    fn start(&self, epoch: u64, sender: SyncSender<Result<B>>) -> Result<()> {
        let device = self.device.clone().map_or_else(Device::best, Ok)?;
        let (source, plan) = (self.source.clone(), self.plan);
        let produce = move || {
            if let Err(error) = source.produce(plan, epoch, &device, &sender) {
                let _ = sender.send(Err(error));
            }
        };
        let thread = thread::Builder::new().name("isograd-stream".to_string()).spawn(produce);
        thread
            .map(drop)
            .map_err(|e| Error::value("stream_loader", format!("no thread could be started: {e}")).with_source(e))
    }
}

impl<B> fmt::Debug for StreamLoader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamLoader").field("plan", &self.plan).field("device", &self.device).finish_non_exhaustive()
    }
}

/// The batches of one epoch of a [`StreamLoader`]. After an error there are no more. Once it is dropped, its thread ends with the next batch.
#[derive(Debug)]
pub struct StreamEpoch<B>(Option<Receiver<Result<B>>>);

impl<B> Iterator for StreamEpoch<B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        let item = self.0.as_ref()?.recv().ok();
        if !matches!(item, Some(Ok(_))) {
            self.0 = None;
        }
        item
    }
}

impl<B> FusedIterator for StreamEpoch<B> {}
