//! Batches: assembled and uploaded on threads ahead of time, and handed out in order.

use crate::dataset::no_sample;
use crate::sampler::{Sampler, Sequential, Shuffled};
use crate::{Collate, Context, Dataset, Staged};
use isograd_core::{Device, Error, Result};
use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// The least number of batches that are on the device before they are asked for.
const PREFETCHED: usize = 2;

/// Hands out a [`Dataset`] in batches, epoch by epoch. `B` is the batch of the dataset's items, as [`Collate`] lists it.
///
/// The batches of an epoch depend on the dataset, the sampler, the seed and the epoch's number alone. They are the same for every number
/// of worker threads, and a run that is resumed in mid-epoch sees the batches of a run that was not interrupted.
///
/// ```
/// # use isograd_core::{Device, Tensor};
/// # use isograd_data::{Loader, digits};
/// # use isograd_cpu as _;
/// # fn main() -> isograd_core::Result<()> {
/// let (train, _test) = digits()?.split_every(5)?;
/// let loader = Loader::new(train, 64)?.shuffle(42).workers(2)?.to(&Device::cpu()?);
/// assert_eq!(loader.len(), 23);
/// for batch in loader.epoch(0) {
///     let (x, y): (Tensor, Tensor) = batch?;
///     assert_eq!((&x.dims()[1..], y.rank()), (&[64][..], 1));
/// }
/// # Ok(())
/// # }
/// ```
pub struct Loader<B> {
    source: Arc<dyn Source<B>>,
    sampler: Arc<dyn Sampler>,
    batch_size: usize,
    seed: u64,
    workers: usize,
    keep_last: bool,
    device: Option<Device>,
    /// The rank whose parts of batches are loaded, and the number of ranks.
    part: (usize, usize),
}

impl<B: Send + 'static> Loader<B> {
    /// A loader of `batch_size` samples a batch, in the dataset's order, with a smaller batch at the end if samples are left over.
    /// Batches are on [`Device::best`] unless [`to`](Loader::to) says otherwise. Errors: `Attr` if `batch_size` is 0.
    pub fn new<D>(dataset: D, batch_size: usize) -> Result<Loader<B>>
    where
        D: Dataset<Item: Collate<Batch = B>> + 'static,
    {
        if batch_size == 0 {
            return Err(Error::attr("loader", "the batch size is 0, expected at least 1"));
        }
        let (source, sampler) = (Arc::new(Collated(dataset)), Arc::new(Sequential));
        Ok(Loader { source, sampler, batch_size, seed: 0, workers: 1, keep_last: true, device: None, part: (0, 1) })
    }

    /// Shuffles every epoch anew: the sampler [`Shuffled`], and the seed.
    pub fn shuffle(self, seed: u64) -> Loader<B> {
        self.sampler(Shuffled).seed(seed)
    }

    /// Chooses the samples of an epoch and their order.
    pub fn sampler(self, sampler: impl Sampler + 'static) -> Loader<B> {
        Loader { sampler: Arc::new(sampler), ..self }
    }

    /// Decides the order of samples and the numbers that their [`Context`] draws; 0 by default.
    pub fn seed(self, seed: u64) -> Loader<B> {
        Loader { seed, ..self }
    }

    /// The number of threads that read samples, form batches and upload them; 1 by default. Errors: `Attr` if it is 0.
    pub fn workers(self, workers: usize) -> Result<Loader<B>> {
        match workers {
            0 => Err(Error::attr("loader", "there are 0 workers, expected at least 1")),
            _ => Ok(Loader { workers, ..self }),
        }
    }

    /// Omits the last batch of an epoch if it is not full.
    pub fn drop_last(self) -> Loader<B> {
        Loader { keep_last: false, ..self }
    }

    /// Puts batches on `device`.
    pub fn to(self, device: &Device) -> Loader<B> {
        Loader { device: Some(device.clone()), ..self }
    }

    /// Loads part `rank` of `size` equal parts of each batch, which together are the batch: for training on several devices. The order
    /// of samples does not depend on the parts. If a batch has fewer samples than there are parts, some parts have none: such a batch
    /// has one sample, which [`samples_in`](Loader::samples_in) does not count and whose loss must be multiplied by 0. Errors: `Attr`
    /// unless `rank < size`.
    pub fn part(self, rank: usize, size: usize) -> Result<Loader<B>> {
        match rank < size {
            true => Ok(Loader { part: (rank, size), ..self }),
            false => Err(Error::attr("loader", format!("part {rank} of {size} was asked for"))),
        }
    }

    /// The number of batches in an epoch.
    pub fn len(&self) -> usize {
        let samples = self.count();
        if self.keep_last { samples.div_ceil(self.batch_size) } else { samples / self.batch_size }
    }

    /// True if an epoch has no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of samples in a full batch.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// The number of samples in batch `batch < len()` of an epoch: of this loader's [`part`](Loader::part) of the batch.
    pub fn samples_in(&self, batch: usize) -> usize {
        self.places(batch).len()
    }

    /// The number of samples in batch `batch < len()` of an epoch, in all parts.
    pub fn samples_in_all(&self, batch: usize) -> usize {
        self.count().saturating_sub(batch.saturating_mul(self.batch_size)).min(self.batch_size)
    }

    /// The places in an epoch of the samples of a part of a batch.
    fn places(&self, batch: usize) -> Range<usize> {
        let (start, all, (rank, size)) = (batch.saturating_mul(self.batch_size), self.samples_in_all(batch), self.part);
        start + all * rank / size..start + all * (rank + 1) / size
    }

    /// All batches of epoch `epoch`.
    pub fn epoch(&self, epoch: u64) -> Epoch<B> {
        self.epoch_from(epoch, 0)
    }

    /// The batches of epoch `epoch` from batch `first` on, as a run needs them that was stopped after `first` batches.
    /// The only item is an `Attr` error if the epoch has fewer batches than that.
    pub fn epoch_from(&self, epoch: u64, first: usize) -> Epoch<B> {
        self.start(epoch, first).unwrap_or_else(|error| Epoch {
            state: State::Failed(error),
            next: first,
            end: first + 1,
        })
    }

    /// The number of samples in an epoch, before a last batch is omitted.
    fn count(&self) -> usize {
        self.sampler.count(self.source.len())
    }

    fn start(&self, epoch: u64, first: usize) -> Result<Epoch<B>> {
        let end = self.len();
        if first > end {
            let message = format!("epoch {epoch} cannot start at batch {first}, it has {end} batches");
            return Err(Error::attr("loader", message));
        }
        let device = self.device.clone().map_or_else(Device::best, Ok)?;
        let order = Arc::new(Order { loader: self.clone(), device, epoch, samples: self.draw(epoch)? });
        let count = self.workers.min(end - first);
        let workers = (0..count).map(|i| Worker::start(order.clone(), (first + i..end).step_by(count), count));
        Ok(Epoch { state: State::Running { workers: workers.collect::<Result<_>>()?, first }, next: first, end })
    }

    /// The samples of an epoch, in order.
    fn draw(&self, epoch: u64) -> Result<Vec<Drawn>> {
        let (samples, expected) = (self.source.len(), self.count());
        let order = self.sampler.order(samples, self.seed, epoch)?;
        if order.len() != expected {
            let message = format!("the sampler drew {} samples, expected {expected}", order.len());
            return Err(Error::value("loader", message));
        }
        let mut repeats = vec![0; samples];
        let drawn = order.into_iter().map(|index| {
            let times = repeats.get_mut(index).ok_or_else(|| no_sample("loader", index, samples))?;
            *times += 1;
            Ok(Drawn { index, repeat: *times - 1 })
        });
        drawn.collect()
    }
}

impl<B> Clone for Loader<B> {
    fn clone(&self) -> Self {
        Loader { source: self.source.clone(), sampler: self.sampler.clone(), device: self.device.clone(), ..*self }
    }
}

impl<B> fmt::Debug for Loader<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("samples", &self.source.len())
            .field("batch_size", &self.batch_size)
            .field("seed", &self.seed)
            .field("workers", &self.workers)
            .field("keep_last", &self.keep_last)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// A dataset whose batches are `B`, whatever its items are.
trait Source<B>: Send + Sync {
    fn len(&self) -> usize;

    /// A batch of these samples, each with its random numbers.
    fn assemble(&self, samples: &mut dyn Iterator<Item = (usize, Context)>) -> Result<Staged<B>>;
}

struct Collated<D>(D);

impl<B, D: Dataset<Item: Collate<Batch = B>>> Source<B> for Collated<D> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn assemble(&self, samples: &mut dyn Iterator<Item = (usize, Context)>) -> Result<Staged<B>> {
        Collate::collate(samples.map(|(index, context)| self.0.get(index, &context)).collect::<Result<_>>()?)
    }
}

/// The samples of an epoch, in order.
struct Order<B> {
    loader: Loader<B>,
    device: Device,
    epoch: u64,
    samples: Vec<Drawn>,
}

/// A sample of an epoch.
#[derive(Clone, Copy)]
struct Drawn {
    index: usize,
    /// How often the epoch had this sample before.
    repeat: u32,
}

impl<B: Send + 'static> Order<B> {
    /// A batch on the device.
    fn load(&self, batch: usize) -> Result<B> {
        let Loader { source, batch_size, seed, .. } = &self.loader;
        let places = self.loader.places(batch);
        let places = if places.is_empty() { batch * batch_size..batch * batch_size + 1 } else { places };
        let drawn = &self.samples[places];
        let context = |d: &Drawn| (d.index, Context::repeated(*seed, self.epoch, d.index, d.repeat));
        source.assemble(&mut drawn.iter().map(context))?.to(&self.device)
    }
}

/// A thread that loads some batches of an epoch, in order.
struct Worker<B> {
    receiver: Receiver<Result<B>>,
    thread: JoinHandle<()>,
}

impl<B: Send + 'static> Worker<B> {
    /// One of `count` workers.
    fn start(
        order: Arc<Order<B>>,
        batches: impl Iterator<Item = usize> + Send + 'static,
        count: usize,
    ) -> Result<Worker<B>> {
        let (sender, receiver) = sync_channel(PREFETCHED.div_ceil(count));
        let thread = thread::Builder::new()
            .name("isograd-loader".to_string())
            .spawn(move || produce(&order, batches, &sender))
            .map_err(|e| Error::value("loader", format!("no thread could be started: {e}")).with_source(e))?;
        Ok(Worker { receiver, thread })
    }
}

fn produce<B: Send + 'static>(order: &Order<B>, batches: impl Iterator<Item = usize>, sender: &SyncSender<Result<B>>) {
    for batch in batches {
        let loaded = order.load(batch);
        let has_failed = loaded.is_err();
        // Nobody listens any more once the epoch was dropped.
        if sender.send(loaded).is_err() || has_failed {
            return;
        }
    }
}

/// The batches of one epoch, in order. After an error there are no more. Dropping it ends its threads.
pub struct Epoch<B> {
    state: State<B>,
    next: usize,
    end: usize,
}

enum State<B> {
    /// Worker `i` of `n` loads batches `first + i`, `first + i + n` and so on.
    Running {
        workers: Vec<Worker<B>>,
        first: usize,
    },
    Failed(Error),
    Ended,
}

impl<B> Epoch<B> {
    /// Stops the threads and returns an error that the epoch has not reported: its own, or that of a thread that panicked.
    fn stop(&mut self) -> Option<Error> {
        self.next = self.end;
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Running { workers, .. } => {
                // A thread may wait for room in its channel; without a receiver it gives up.
                let threads: Vec<_> = workers.into_iter().map(|worker| worker.thread).collect();
                let ended: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
                ended.into_iter().find_map(|end| end.err().map(panicked))
            }
            State::Failed(error) => Some(error),
            State::Ended => None,
        }
    }

    fn receive(&mut self) -> Option<Result<B>> {
        if let State::Running { workers, first } = &self.state
            && self.next < self.end
        {
            // A thread that ends before its last batch has panicked.
            if let Ok(batch) = workers[(self.next - first) % workers.len()].receiver.recv() {
                return Some(batch);
            }
        }
        self.stop().map(Err)
    }
}

impl<B> Iterator for Epoch<B> {
    type Item = Result<B>;

    fn next(&mut self) -> Option<Result<B>> {
        let item = self.receive();
        match item {
            Some(Ok(_)) => self.next += 1,
            _ => drop(self.stop()),
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.end - self.next))
    }
}

impl<B> FusedIterator for Epoch<B> {}

impl<B> Drop for Epoch<B> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<B> fmt::Debug for Epoch<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch").field("remaining", &(self.end - self.next)).finish_non_exhaustive()
    }
}

fn panicked(payload: Box<dyn std::any::Any + Send>) -> Error {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    Error::value("loader", format!("a thread that reads samples panicked: {text}"))
}
