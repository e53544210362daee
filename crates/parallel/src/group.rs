//! Groups of ranks, and the collectives by which they exchange tensors.

use crate::reduce::reduce;
use crate::sys::host_name;
use crate::transport::{Bytes, Head, Message, Received, Transport};
use crate::watchdog::Watchdog;
use isograd_core::collective::{Collective, Link, Reduction, Started};
use isograd_core::{DType, Device, Error, Result, Shape, Tensor, is_in_step};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The channels of a group: one for collectives and one for messages from rank to rank.
const CHANNELS: u32 = 2;
/// The world's first channel. Channel 0 is the transport's.
const FIRST_CHANNEL: u32 = 2;
/// Bytes up to which every rank reduces all elements, in one exchange instead of two.
const SMALL: usize = 4096;

/// The options of a group and of those split from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The time that a rank waits in a collective for the others. After it, the collective is an error that names the late ranks.
    pub timeout: Duration,
}

impl Default for Options {
    /// Waits 10 minutes.
    fn default() -> Options {
        Options { timeout: Duration::from_secs(600) }
    }
}

/// Ranks that call the same collectives in the same order. Cheap to clone; clones are one member.
///
/// Every rank of the group must call each collective, with tensors of the same shape and dtype on the same kind of device. If a rank
/// does something else, leaves, or does not come within [`Options::timeout`], the collective is an error on every rank, which names the
/// rank, the collective and the step; the group is then of no more use.
///
/// GPUs of one kind exchange tensors by NCCL or RCCL where it is installed, enqueued like kernels. Other tensors go through host
/// memory: reductions are then sums in the order of the ranks, with the same bits on every rank and in every run.
#[derive(Clone)]
pub struct Group(Arc<Inner>);

/// What a rank's groups share.
struct Shared {
    options: Options,
    /// The first error of a collective of any group.
    failure: Mutex<Option<String>>,
    step: AtomicU64,
    /// The first channel that no group of this rank has.
    next_channel: AtomicU32,
}

struct Inner {
    transport: Arc<dyn Transport>,
    shared: Arc<Shared>,
    /// The ranks of the world that are in the group, in the order of their ranks here.
    members: Vec<usize>,
    rank: usize,
    channel: u32,
    /// The number of collectives so far. Locked while one runs.
    number: Mutex<u64>,
    failed: Arc<Mutex<Option<String>>>,
    /// The memberships of devices, by the name of the device; none if its tensors go through the host.
    links: Mutex<HashMap<String, Option<Arc<Link>>>>,
    watchdog: Watchdog,
}

/// A collective that runs while the caller does other work.
pub(crate) enum Pending {
    Done(Tensor),
    Device(Arc<Link>, Started),
}

impl Group {
    /// The group of all ranks of a transport.
    pub fn world(transport: Arc<dyn Transport>, options: &Options) -> Group {
        let (members, rank) = ((0..transport.size()).collect(), transport.rank());
        let next_channel = AtomicU32::new(FIRST_CHANNEL + CHANNELS);
        let shared =
            Arc::new(Shared { options: *options, failure: Mutex::default(), step: AtomicU64::new(0), next_channel });
        Group::new(transport, shared, members, rank, FIRST_CHANNEL)
    }

    fn new(
        transport: Arc<dyn Transport>,
        shared: Arc<Shared>,
        members: Vec<usize>,
        rank: usize,
        channel: u32,
    ) -> Group {
        let failed = Arc::new(Mutex::new(None));
        let watchdog = Watchdog::new(failed.clone(), shared.options.timeout, members[rank]);
        let (number, links) = (Mutex::new(0), Mutex::default());
        Group(Arc::new(Inner { transport, shared, members, rank, channel, number, failed, links, watchdog }))
    }

    /// The group of one rank, which exchanges nothing.
    pub fn alone() -> Group {
        Group::world(Arc::new(crate::alone::Alone), &Options::default())
    }

    /// This member's number in the group, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.0.members.len()
    }

    /// True for rank 0, which prints and writes files.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// The transport in words, such as `4 threads`.
    pub fn transport(&self) -> String {
        self.0.transport.words()
    }

    /// The number of the training step, for errors.
    pub fn set_step(&self, step: u64) {
        self.0.shared.step.store(step, Ordering::Relaxed);
    }

    /// The ranks with the same color as a group, in the order of `key`, then of their ranks here. A rank without a color is in none.
    pub fn split(&self, color: Option<usize>, key: usize) -> Result<Option<Group>> {
        let own = [color.map_or(u64::MAX, |color| color as u64), key as u64, self.next_channel().into()];
        let all = self.gather_bytes("split", &own.map(u64::to_le_bytes).concat())?;
        let words =
            |bytes: &Bytes| -> Vec<u64> { bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect() };
        let all: Vec<Vec<u64>> = all.iter().map(words).collect();
        let mut colors: Vec<u64> = all.iter().map(|words| words[0]).filter(|color| *color != u64::MAX).collect();
        colors.sort_unstable();
        colors.dedup();
        // Two groups of a pair of ranks never have the same channel, because both ranks count past it here.
        let start = all.iter().map(|words| words[2] as u32).max().unwrap_or(FIRST_CHANNEL);
        let next = start + CHANNELS * colors.len() as u32;
        self.0.shared.next_channel.fetch_max(next, Ordering::AcqRel);
        let Some(place) = colors.iter().position(|color| *color == own[0]) else { return Ok(None) };
        let mut chosen: Vec<(u64, usize)> =
            all.iter().enumerate().filter(|(_, words)| words[0] == own[0]).map(|(i, words)| (words[1], i)).collect();
        chosen.sort_unstable();
        let rank = chosen.iter().position(|(_, i)| *i == self.rank()).unwrap_or(0);
        let members = chosen.into_iter().map(|(_, i)| self.0.members[i]).collect();
        let (transport, shared) = (self.0.transport.clone(), self.0.shared.clone());
        Ok(Some(Group::new(transport, shared, members, rank, start + CHANNELS * place as u32)))
    }

    /// A group of the same ranks, whose collectives may run at the same time as this one's.
    pub fn duplicate(&self) -> Result<Group> {
        let copy = self.split(Some(0), self.rank())?;
        copy.ok_or_else(|| Error::value("split", "a rank with a color is in no group"))
    }

    /// The ranks on this host.
    pub fn node(&self) -> Result<Group> {
        let names = self.gather_bytes("node", &host_name())?;
        let color = names.iter().position(|name| *name == names[self.rank()]);
        let node = self.split(color, self.rank())?;
        node.ok_or_else(|| Error::value("split", "a rank with a color is in no group"))
    }

    /// Waits until every rank has come here.
    pub fn barrier(&self) -> Result<()> {
        self.agree("barrier", "barrier").map(drop)
    }

    /// True if `flag` is on any rank.
    pub fn any(&self, flag: bool) -> Result<bool> {
        Ok(self.gather_bytes("any", &[flag.into()])?.iter().any(|other| other[..] == [1]))
    }

    /// This rank's part of all samples, times the number of ranks: a mean over ranks of losses with these factors is the mean over
    /// all samples. Errors: `Value` if no rank has a sample.
    pub fn share(&self, samples: usize) -> Result<f64> {
        let all = self.gather_bytes("share", &(samples as u64).to_le_bytes())?;
        let counts = all.iter().map(|count| count.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
        match counts.sum::<u64>() {
            0 => Err(Error::value("share", "no rank has a sample")),
            all => Ok(samples as f64 * self.size() as f64 / all as f64),
        }
    }

    /// The bytes of all ranks, which may differ in number. They do not pass through a device.
    pub fn gather_bytes(&self, what: &'static str, bytes: &[u8]) -> Result<Vec<Bytes>> {
        let own: Bytes = bytes.into();
        self.exchange(what, what.to_string(), |_| own.clone())
    }

    fn next_channel(&self) -> u32 {
        self.0.shared.next_channel.load(Ordering::Acquire)
    }

    /// The head of a message.
    fn head(&self, number: u64, what: String) -> Head {
        Head { number, step: self.0.shared.step.load(Ordering::Relaxed), what }
    }

    /// Sends `part(i)` to each rank i, and returns what all sent to this one. Its own part comes back. Ranks that exchange something
    /// else are an error.
    fn exchange(&self, op: &'static str, what: String, part: impl Fn(usize) -> Bytes) -> Result<Vec<Bytes>> {
        let mut number = self.0.number.lock();
        let head = self.head(*number, what);
        *number += 1;
        self.guarded(op, || {
            let n = self.size();
            for i in (1..n).map(|distance| (self.rank() + distance) % n) {
                let message = Message { head: head.clone(), body: part(i) };
                self.0.transport.send(self.0.members[i], self.0.channel, message)?;
            }
            self.received(op, &head, (0..n).filter(|i| *i != self.rank()).collect()).map(|mut parts| {
                parts.insert(self.rank(), part(self.rank()));
                parts
            })
        })
    }

    /// Makes sure that all ranks are at the same call.
    fn agree(&self, op: &'static str, what: &str) -> Result<()> {
        let nothing: Bytes = [].into();
        self.exchange(op, what.to_string(), |_| nothing.clone()).map(drop)
    }

    /// Runs a part of a collective. Its error is that of the group from now on.
    fn guarded<T>(&self, op: &'static str, f: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some(why) = &*self.0.failed.lock() {
            self.0.shared.failure.lock().get_or_insert_with(|| why.clone());
            return Err(Error::backend(op, format!("the group has failed before: {why}")));
        }
        f().inspect_err(|error| {
            *self.0.failed.lock() = Some(error.to_string());
            self.0.shared.failure.lock().get_or_insert_with(|| error.to_string());
        })
    }

    /// The first error of a collective of this rank, in this group or another.
    pub(crate) fn failure(&self) -> Option<String> {
        self.0.shared.failure.lock().clone()
    }

    /// The bodies of the messages of these ranks, which must have this head.
    fn received(&self, op: &'static str, head: &Head, from: Vec<usize>) -> Result<Vec<Bytes>> {
        let timeout = self.0.shared.options.timeout;
        let deadline = Instant::now() + timeout;
        let (mut bodies, mut late) = (Vec::with_capacity(from.len()), Vec::new());
        for i in from {
            let world = self.0.members[i];
            match self.0.transport.receive(world, self.0.channel, deadline)? {
                Received::Message(Message { head: other, body }) => {
                    if (other.number, &other.what) != (head.number, &head.what) {
                        return Err(self.mismatch(op, world, head, &other));
                    }
                    bodies.push(body);
                }
                Received::Left => {
                    let message = format!("rank {world} has left; {}", self.here(head));
                    return Err(Error::backend(op, message));
                }
                Received::Late => late.push(world.to_string()),
            }
        }
        match late.is_empty() {
            true => Ok(bodies),
            false => {
                let (ranks, verb) = (late.join(", "), if late.len() == 1 { "rank" } else { "ranks" });
                let message = format!("{verb} {ranks} did not come within {timeout:?}; {}", self.here(head));
                Err(Error::backend(op, message))
            }
        }
    }

    /// The place of this rank in its program, for errors.
    fn here(&self, head: &Head) -> String {
        let rank = self.0.members[self.rank()];
        format!("rank {rank} is at {} in step {} (call {})", head.what, head.step, head.number)
    }

    fn mismatch(&self, op: &'static str, world: usize, head: &Head, other: &Head) -> Error {
        let Head { what, step, number } = other;
        let message = format!("rank {world} is at {what} in step {step} (call {number}), but {}", self.here(head));
        Error::value(op, message)
    }

    /// The result of a collective, outside of the tape.
    pub(crate) fn run(&self, collective: Collective, x: &Tensor) -> Result<Tensor> {
        self.start(collective, x)?.wait(self)
    }

    /// Starts a collective. On devices with a library of collectives it runs beside the device's queue; otherwise it is done at the
    /// end of the call.
    pub(crate) fn start(&self, collective: Collective, x: &Tensor) -> Result<Pending> {
        let x = &x.detach();
        let shape = self.result_shape(collective, x)?;
        if self.size() == 1 {
            return Ok(Pending::Done(x.copy()?.reshape(&shape)?));
        }
        let what = format!("{collective} of {} {} on {}", x.dtype(), x.shape(), kind(x.device()));
        let Some(link) = self.link(x.device())? else {
            return self.on_host(collective, &what, x, &shape).map(Pending::Done);
        };
        self.agree(collective.name(), &what)?;
        self.guarded(collective.name(), || {
            let (x, y) = (x.contiguous()?, Tensor::empty(&shape, x.dtype(), x.device())?);
            let started = link.start(collective, &x, &y)?;
            // A recording has not been enqueued.
            if !is_in_step() {
                let step = self.0.shared.step.load(Ordering::Relaxed);
                self.0.watchdog.watch(&link, &started.mark, format!("{what} in step {step}"));
            }
            Ok(Pending::Device(link, started))
        })
    }

    /// The shape of the result. Errors: `Shape`, `Dtype`, `Index`.
    fn result_shape(&self, collective: Collective, x: &Tensor) -> Result<Shape> {
        let (op, n) = (collective.name(), self.size());
        if let Collective::AllReduce(Reduction::Mean) | Collective::ReduceScatter(Reduction::Mean) = collective
            && !x.dtype().is_float()
        {
            return Err(Error::dtype(op, format!("the mean of {} was asked for, expected a float dtype", x.dtype())));
        }
        match collective {
            Collective::Broadcast(root) if root >= n => {
                Err(Error::index(op, format!("there is no rank {root} among {n}")))
            }
            Collective::ReduceScatter(_) | Collective::AllToAll if x.dims().first() != Some(&n) => {
                let message = format!("x has shape {}, expected [{n}, ..] for {n} ranks", x.shape());
                Err(Error::shape(op, message))
            }
            Collective::AllGather => Ok(Shape::from([&[n], x.dims()].concat())),
            Collective::ReduceScatter(_) => Ok(Shape::from(x.dims()[1..].to_vec())),
            _ => Ok(x.shape().clone()),
        }
    }

    fn on_host(&self, collective: Collective, what: &str, x: &Tensor, shape: &Shape) -> Result<Tensor> {
        let (op, n, dtype) = (collective.name(), self.size(), x.dtype());
        let own: Bytes = x.to_bytes()?.into();
        let exchange = |part: &dyn Fn(usize) -> Bytes| self.exchange(op, what.to_string(), part);
        // Part i of n, in whole elements.
        let size = dtype.size();
        let cut = |i: usize| i * x.numel() / n * size;
        let part = |i: usize| -> Bytes { own[cut(i)..cut(i + 1)].into() };
        let reduced = |parts: &[Bytes], reduction| {
            reduce(dtype, reduction, &parts.iter().map(|part| &**part).collect::<Vec<_>>())
        };
        let bytes = match collective {
            Collective::AllReduce(reduction) if own.len() <= SMALL => reduced(&exchange(&|_| own.clone())?, reduction),
            Collective::AllReduce(reduction) => {
                let mine: Bytes = reduced(&exchange(&part)?, reduction).into();
                exchange(&|_| mine.clone())?.concat()
            }
            Collective::Broadcast(root) => self.tree(op, what, root, own)?.to_vec(),
            Collective::AllGather => exchange(&|_| own.clone())?.concat(),
            Collective::ReduceScatter(reduction) => reduced(&exchange(&part)?, reduction),
            Collective::AllToAll => exchange(&part)?.concat(),
            Collective::Send(_) | Collective::Receive(_) => {
                return Err(Error::unsupported(op, "a message between two ranks is no collective"));
            }
        };
        Tensor::from_bytes(&bytes, shape, dtype, x.device())
    }

    /// The bytes of the root, which pass from rank to rank in a tree.
    fn tree(&self, op: &'static str, what: &str, root: usize, own: Bytes) -> Result<Bytes> {
        self.agree(op, what)?;
        let mut number = self.0.number.lock();
        let head = self.head(*number, what.to_string());
        *number += 1;
        self.guarded(op, || {
            let (n, mut bytes) = (self.size(), own);
            let place = (self.rank() + n - root) % n;
            let rank_at = |place: usize| (place + root) % n;
            // The parent's place lacks the lowest bit of this one.
            let lowest = if place == 0 { n.next_power_of_two() } else { 1 << place.trailing_zeros() };
            if place > 0 {
                let bodies = self.received(op, &head, vec![rank_at(place - lowest)])?;
                bytes = bodies.into_iter().next().unwrap_or(bytes);
            }
            let bits = (0..lowest.trailing_zeros()).rev().map(|bit| 1 << bit);
            for child in bits.map(|bit: usize| place + bit).filter(|child| *child < n) {
                let message = Message { head: head.clone(), body: bytes.clone() };
                self.0.transport.send(self.0.members[rank_at(child)], self.0.channel, message)?;
            }
            Ok(bytes)
        })
    }

    /// The membership of a device in this group; `None` if its tensors go through the host.
    fn link(&self, device: &Device) -> Result<Option<Arc<Link>>> {
        if kind(device) == "cpu" {
            return Ok(None);
        }
        let mut links = self.0.links.lock();
        if let Some(link) = links.get(device.name()) {
            return Ok(link.clone());
        }
        let link = self.join(device)?;
        links.insert(device.name().to_string(), link.clone());
        Ok(link)
    }

    /// Joins the devices of all ranks, if all have a library of collectives and no two ranks share a device.
    fn join(&self, device: &Device) -> Result<Option<Arc<Link>>> {
        let op = "join";
        let what = format!("the first collective on {}", kind(device));
        let is_off = std::env::var("ISOGRAD_CCL").is_ok_and(|value| value == "host");
        let has = !is_off && device.backend().collectives().is_some();
        let own: Bytes = [&[has.into()], &host_name()[..], device.name().as_bytes()].concat().into();
        let all = self.exchange(op, what.clone(), |_| own.clone())?;
        let is_shared = (1..all.len()).any(|i| all[..i].contains(&all[i]));
        if is_shared || all.iter().any(|one| one[0] == 0) {
            tracing::debug!(device = device.name(), "tensors go through the host");
            return Ok(None);
        }
        let identity = if self.is_first() { Link::identity(device) } else { Ok(None) };
        let given: Bytes = identity.as_ref().ok().cloned().flatten().unwrap_or_default().into();
        let identity_of = self.exchange(op, what.clone(), |_| given.clone())?;
        let identity = &identity_of[0];
        let joined = match identity.is_empty() {
            true => Err(Error::backend(op, "rank 0 got no identity for the group")),
            false => Link::join(device, identity, self.rank(), self.size(), self.0.shared.options.timeout),
        };
        let is_joined: Bytes = [u8::from(joined.is_ok())].into();
        let all = self.exchange(op, what, |_| is_joined.clone())?;
        match joined {
            Ok(link) if all.iter().all(|one| one[..] == [1]) => Ok(Some(Arc::new(link))),
            Ok(_) => Ok(None),
            Err(error) => {
                tracing::warn!("{error}; tensors on {device} go through the host");
                Ok(None)
            }
        }
    }

    /// True if tensors of this device are exchanged by NCCL or RCCL: their collectives are enqueued, and do not make the host wait. Every
    /// rank asks at once, with its own device of the same kind.
    pub fn is_enqueued(&self, device: &Device) -> Result<bool> {
        Ok(self.size() > 1 && self.link(device)?.is_some())
    }

    /// True if a captured step may have collectives of this device: they are enqueued, and each rank is a process, because a recording
    /// keeps the other threads of its process waiting. A group of one rank has none. Every rank asks at once.
    pub fn is_captured(&self, device: &Device) -> Result<bool> {
        Ok(self.size() == 1 || (!self.0.transport.is_of_threads() && self.is_enqueued(device)?))
    }

    /// Sends x to rank `to`, which calls [`receive`](Group::receive). Errors: `Value` if x is on the tape, because no gradient would come
    /// back; `Index` if there is no such rank, or it is this one.
    pub fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        let op = "send";
        self.check_peer(op, to)?;
        if x.requires_grad() {
            return Err(Error::value(op, "x is on the tape, and no gradient would come back; use `detach`"));
        }
        let link = self.link_of_pair(x.device())?;
        let head = self.head(0, format!("{} {} on {}", x.dtype(), x.shape(), kind(x.device())));
        self.guarded(op, || {
            let body = if link.is_some() { [].into() } else { x.to_bytes()?.into() };
            self.0.transport.send(self.0.members[to], self.0.channel + 1, Message { head: head.clone(), body })?;
            let Some(link) = link else { return Ok(()) };
            let x = x.contiguous()?;
            link.finish(link.start(Collective::Send(to), &x, &x)?).map(drop)
        })
    }

    /// The tensor that rank `from` sends, which must have this shape and dtype. Errors: `Value` if it has another; `Index`.
    pub fn receive(&self, from: usize, shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        let (op, shape) = ("receive", shape.into());
        self.check_peer(op, from)?;
        let link = self.link_of_pair(device)?;
        let (world, timeout) = (self.0.members[from], self.0.shared.options.timeout);
        let expected = format!("{dtype} {shape} on {}", kind(device));
        self.guarded(op, || {
            let failed = |why: String| {
                let step = self.0.shared.step.load(Ordering::Relaxed);
                Err(Error::backend(op, format!("rank {world} {why}; expected {expected} in step {step}")))
            };
            let message = match self.0.transport.receive(world, self.0.channel + 1, Instant::now() + timeout)? {
                Received::Message(message) => message,
                Received::Left => return failed("has left".into()),
                Received::Late => return failed(format!("sent nothing within {timeout:?}")),
            };
            if message.head.what != expected {
                return failed(format!("sent {} in step {}", message.head.what, message.head.step));
            }
            let Some(link) = link else { return Tensor::from_bytes(&message.body, &shape, dtype, device) };
            let y = Tensor::empty(&shape, dtype, device)?;
            link.finish(link.start(Collective::Receive(from), &y, &y)?)
        })
    }

    /// The membership that a pair of ranks uses: none is made for them, because the other ranks would not know.
    fn link_of_pair(&self, device: &Device) -> Result<Option<Arc<Link>>> {
        Ok(self.0.links.lock().get(device.name()).cloned().flatten())
    }

    fn check_peer(&self, op: &'static str, rank: usize) -> Result<()> {
        if rank >= self.size() || rank == self.rank() {
            let message = format!("{rank} was given, expected another rank of {} than {}", self.size(), self.rank());
            return Err(Error::index(op, message));
        }
        Ok(())
    }
}

impl Pending {
    /// The result, for work that is enqueued from now on.
    pub fn wait(self, group: &Group) -> Result<Tensor> {
        match self {
            Pending::Done(y) => Ok(y),
            Pending::Device(link, started) => group.guarded("collective", || link.finish(started)),
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("rank", &self.rank()).field("members", &self.0.members).finish_non_exhaustive()
    }
}

/// The kind of a device: the name before the colon.
fn kind(device: &Device) -> &str {
    device.name().split(':').next().unwrap_or_default()
}
