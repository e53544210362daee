//! Batches: shuffled, assembled on a thread ahead of time, and handed out as tensors.

use crate::Source;
use crate::dataset::element_count;
use crate::shuffle::permutation;
use isograd_core::{DType, Device, Element, Error, Result, Tensor, bf16, f16};
use std::fmt;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Samples `[B, ..]` and their labels `[B]` (i64).
pub type Batch = (Tensor, Tensor);

/// Batches that are assembled before they are asked for.
const PREFETCHED: usize = 2;

/// Hands out a [`Source`] in batches, epoch by epoch.
///
/// The order of an epoch depends on the seed and the epoch's number alone, so that a run that is resumed sees what it would have seen.
#[derive(Clone)]
pub struct Loader {
    source: Arc<dyn Source>,
    batch_size: usize,
    seed: Option<u64>,
    keep_last: bool,
    device: Option<Device>,
    dtype: DType,
}

impl Loader {
    /// A loader of `batch_size` samples a batch, in the source's order, with a smaller batch at the end if samples are left over.
    /// Batches are f32 on [`Device::best`] unless [`dtype`](Loader::dtype) and [`to`](Loader::to) say otherwise.
    ///
    /// Errors: `Attr` if `batch_size` is 0; `Shape` if a batch has more values than memory can address.
    pub fn new(source: Arc<dyn Source>, batch_size: usize) -> Result<Loader> {
        if batch_size == 0 {
            return Err(Error::attr("loader", "the batch size is 0, expected at least 1"));
        }
        let values = element_count(source.sample_shape()).and_then(|n| n.checked_mul(batch_size.min(source.len())));
        // Sixteen bytes a value leave room for the batch in its widest dtype.
        if values.and_then(|n| n.checked_mul(16)).is_none_or(|n| n > isize::MAX as usize) {
            let shape = source.sample_shape();
            let message = format!("{batch_size} samples of shape {shape:?} are more than memory can address");
            return Err(Error::shape("loader", message));
        }
        Ok(Loader { source, batch_size, seed: None, keep_last: true, device: None, dtype: DType::F32 })
    }

    /// Shuffles every epoch anew.
    pub fn shuffle(self, seed: u64) -> Loader {
        Loader { seed: Some(seed), ..self }
    }

    /// Leaves out the last batch of an epoch if it is not full.
    pub fn drop_last(self) -> Loader {
        Loader { keep_last: false, ..self }
    }

    /// Puts batches on `device`.
    pub fn to(self, device: &Device) -> Loader {
        Loader { device: Some(device.clone()), ..self }
    }

    /// Converts samples to `dtype`, as a cast of f32 would. Labels stay i64.
    pub fn dtype(self, dtype: DType) -> Loader {
        Loader { dtype, ..self }
    }

    /// The number of batches in an epoch.
    pub fn len(&self) -> usize {
        let samples = self.source.len();
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

    /// Where samples come from.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// All batches of epoch `epoch`.
    pub fn epoch(&self, epoch: u64) -> Epoch {
        self.epoch_from(epoch, 0)
    }

    /// The batches of epoch `epoch` from batch `first` on, as a run needs them that was stopped after `first` batches.
    /// The only item is an `Attr` error if the epoch has fewer batches than that.
    pub fn epoch_from(&self, epoch: u64, first: usize) -> Epoch {
        self.start(epoch, first)
            .unwrap_or_else(|error| Epoch { state: State::Failed(error), ..Epoch::ended(self.dtype) })
    }

    fn start(&self, epoch: u64, first: usize) -> Result<Epoch> {
        if first > self.len() {
            let message = format!("epoch {epoch} cannot start at batch {first}, it has {} batches", self.len());
            return Err(Error::attr("loader", message));
        }
        if first == self.len() {
            return Ok(Epoch::ended(self.dtype));
        }
        let device = self.device.clone().map_or_else(Device::best, Ok)?;
        let (sender, receiver) = sync_channel(PREFETCHED);
        let loader = self.clone();
        let thread = thread::Builder::new()
            .name("isograd-loader".to_string())
            .spawn(move || loader.produce(epoch, first, &sender))
            .map_err(|e| Error::value("loader", format!("no thread could be started: {e}")).with_source(e))?;
        let remaining = self.len() - first;
        Ok(Epoch { state: State::Running { receiver, thread, device }, remaining, dtype: self.dtype })
    }

    fn produce(&self, epoch: u64, first: usize, sender: &SyncSender<Result<HostBatch>>) {
        let samples = self.source.len();
        let order = self.seed.map(|seed| permutation(samples, seed, epoch));
        for batch in first..self.len() {
            let start = batch * self.batch_size;
            let indices = start..samples.min(start + self.batch_size);
            let host = self.assemble(indices.map(|i| order.as_ref().map_or(i, |order| order[i])));
            let failed = host.is_err();
            // Nobody listens any more once the epoch was dropped.
            if sender.send(host).is_err() || failed {
                return;
            }
        }
    }

    fn assemble(&self, indices: impl ExactSizeIterator<Item = usize>) -> Result<HostBatch> {
        let shape = self.source.sample_shape();
        let sample_len = shape.iter().product::<usize>();
        let mut values = vec![0.0; indices.len() * sample_len];
        let mut labels = Vec::with_capacity(indices.len());
        for (slot, index) in indices.enumerate() {
            let x = &mut values[slot * sample_len..(slot + 1) * sample_len];
            labels.push(self.source.copy_sample(index, x)?);
        }
        let shape = std::iter::once(labels.len()).chain(shape.iter().copied()).collect();
        Ok(HostBatch { shape, bytes: encode(&values, self.dtype), labels })
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("samples", &self.source.len())
            .field("batch_size", &self.batch_size)
            .field("seed", &self.seed)
            .field("keep_last", &self.keep_last)
            .field("device", &self.device)
            .field("dtype", &self.dtype)
            .finish()
    }
}

struct HostBatch {
    shape: Vec<usize>,
    bytes: Vec<u8>,
    labels: Vec<i64>,
}

/// The batches of one epoch, in order. After an error there are no more. Dropping it ends its thread.
pub struct Epoch {
    state: State,
    remaining: usize,
    dtype: DType,
}

enum State {
    Running { receiver: Receiver<Result<HostBatch>>, thread: JoinHandle<()>, device: Device },
    Failed(Error),
    Ended,
}

impl Epoch {
    fn ended(dtype: DType) -> Epoch {
        Epoch { state: State::Ended, remaining: 0, dtype }
    }

    /// Stops the thread and returns the error that it died of, if it did.
    fn stop(&mut self) -> Option<Error> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Running { receiver, thread, .. } => {
                // The thread may wait for room in the channel; without a receiver it gives up.
                drop(receiver);
                thread.join().err().map(panicked)
            }
            State::Failed(error) => Some(error),
            State::Ended => None,
        }
    }

    fn receive(&mut self) -> Option<Result<Batch>> {
        let State::Running { receiver, device, .. } = &self.state else { return self.stop().map(Err) };
        // A thread that ends before its last batch has panicked.
        let Ok(host) = receiver.recv() else { return self.stop().map(Err) };
        Some(host.and_then(|host| upload(&host, self.dtype, device)))
    }
}

impl Iterator for Epoch {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        let item = self.receive();
        self.remaining = self.remaining.saturating_sub(1);
        if !matches!(item, Some(Ok(_))) {
            self.stop();
            self.remaining = 0;
        }
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.remaining.max(matches!(self.state, State::Failed(_)) as usize)))
    }
}

impl FusedIterator for Epoch {}

impl Drop for Epoch {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch").field("remaining", &self.remaining).finish_non_exhaustive()
    }
}

fn upload(host: &HostBatch, dtype: DType, device: &Device) -> Result<Batch> {
    let x = Tensor::from_bytes(&host.bytes, &host.shape, dtype, device)?;
    let y = Tensor::from_slice(&host.labels, host.labels.len(), device)?;
    Ok((x, y))
}

fn panicked(payload: Box<dyn std::any::Any + Send>) -> Error {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    Error::value("loader", format!("the thread that reads samples panicked: {text}"))
}

fn encode(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F64 => converted(values, f64::from),
        DType::F32 => converted(values, |v| v),
        DType::F16 => converted(values, f16::from_f32),
        DType::BF16 => converted(values, bf16::from_f32),
        DType::I64 => converted(values, |v| v as i64),
        DType::I32 => converted(values, |v| v as i32),
        DType::U8 => converted(values, |v| v as u8),
        DType::Bool => converted(values, |v| v != 0.0),
    }
}

fn converted<T: Element>(values: &[f32], convert: impl Fn(f32) -> T) -> Vec<u8> {
    let converted: Vec<T> = values.iter().map(|&v| convert(v)).collect();
    let mut bytes = Vec::new();
    T::extend_bytes(&converted, &mut bytes);
    bytes
}
