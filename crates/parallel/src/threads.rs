//! Ranks that are threads of one process, and exchange messages through its memory.

use crate::transport::{Message, Received, Transport};
use crate::{Group, Options};
use isograd_core::{Context, Error, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

/// The messages to one rank that it has not received yet, by sender and channel; and the ranks that have left.
#[derive(Default)]
struct Inbox {
    messages: HashMap<(usize, u32), VecDeque<Message>>,
    gone: Vec<usize>,
}

#[derive(Default)]
struct Mailbox {
    inbox: Mutex<Inbox>,
    changed: Condvar,
}

/// A rank among the threads of this process.
struct Thread {
    rank: usize,
    boxes: Arc<Vec<Mailbox>>,
}

impl Transport for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.boxes.len()
    }

    fn send(&self, to: usize, channel: u32, message: Message) -> Result<()> {
        let Mailbox { inbox, changed } = &self.boxes[to];
        inbox.lock().messages.entry((self.rank, channel)).or_default().push_back(message);
        changed.notify_all();
        Ok(())
    }

    fn receive(&self, from: usize, channel: u32, deadline: Instant) -> Result<Received> {
        let Mailbox { inbox, changed } = &self.boxes[self.rank];
        let mut inbox = inbox.lock();
        loop {
            if let Some(message) = inbox.messages.get_mut(&(from, channel)).and_then(VecDeque::pop_front) {
                return Ok(Received::Message(message));
            }
            if inbox.gone.contains(&from) {
                return Ok(Received::Left);
            }
            if changed.wait_until(&mut inbox, deadline).timed_out() {
                return Ok(Received::Late);
            }
        }
    }

    fn leave(&self) {
        for Mailbox { inbox, changed } in self.boxes.iter() {
            inbox.lock().gone.push(self.rank);
            changed.notify_all();
        }
    }

    fn words(&self) -> String {
        format!("{} threads", self.size())
    }

    fn is_of_threads(&self) -> bool {
        true
    }
}

/// The transport of each rank of `n` threads.
fn transports(n: usize) -> Vec<Arc<dyn Transport>> {
    let boxes: Arc<Vec<Mailbox>> = Arc::new((0..n).map(|_| Mailbox::default()).collect());
    (0..n).map(|rank| Arc::new(Thread { rank, boxes: boxes.clone() }) as _).collect()
}

/// Runs `f` on `n` threads, each of which is a rank of one group, and returns their results in the order of the ranks. The threads have the
/// [`Context`] of the caller, such as `no_grad`.
///
/// Errors: `Attr` if `n` is 0; else the error of the rank that failed first. The other ranks get an error from their next collective. A
/// panic of a rank becomes one of the caller.
///
/// ```
/// # use isograd_cpu as _;
/// use isograd_core::{Device, Tensor};
/// use isograd_parallel::{Reduction, threads};
///
/// # fn main() -> isograd_core::Result<()> {
/// let sums = threads(3, |group| {
///     let x = Tensor::scalar(group.rank() as f32, &Device::cpu()?)?;
///     group.all_reduce(&x, Reduction::Sum)?.item::<f64>()
/// })?;
/// assert_eq!(sums, [3.0; 3]);
/// # Ok(())
/// # }
/// ```
pub fn threads<T: Send>(n: usize, f: impl Fn(Group) -> Result<T> + Sync) -> Result<Vec<T>> {
    threads_with(n, &Options::default(), f)
}

/// [`threads`] with options of the group.
pub fn threads_with<T: Send>(n: usize, options: &Options, f: impl Fn(Group) -> Result<T> + Sync) -> Result<Vec<T>> {
    if n == 0 {
        return Err(Error::attr("threads", "there are 0 ranks, expected at least 1"));
    }
    /// Tells the others even if the thread panics.
    struct Leave(Arc<dyn Transport>);
    impl Drop for Leave {
        fn drop(&mut self) {
            self.0.leave();
        }
    }
    let first = AtomicUsize::new(usize::MAX);
    let context = Context::current();
    let failed = |rank| {
        let _ = first.compare_exchange(usize::MAX, rank, Ordering::AcqRel, Ordering::Acquire);
    };
    let one = |transport: Arc<dyn Transport>| {
        let rank = transport.rank();
        let _leave = Leave(transport.clone());
        context.enter(|| f(Group::world(transport, options))).inspect_err(|_| failed(rank))
    };
    let one = &one;
    let ended: Vec<_> = std::thread::scope(|scope| {
        let start = |transport: Arc<dyn Transport>| {
            let of_thread = transport.clone();
            thread::Builder::new().spawn_scoped(scope, move || one(of_thread)).map_err(|e| {
                // The others wait for no rank that is not there.
                failed(transport.rank());
                transport.leave();
                Error::value("threads", format!("no thread could be started: {e}")).with_source(e)
            })
        };
        let threads: Vec<Result<ScopedJoinHandle<'_, Result<T>>>> = transports(n).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.map_or_else(|e| Ok(Err(e)), ScopedJoinHandle::join)).collect()
    });
    let results: Vec<Result<T>> =
        ended.into_iter().map(|end| end.unwrap_or_else(|panic| resume_unwind(panic))).collect();
    let mut results: Vec<Option<Result<T>>> = results.into_iter().map(Some).collect();
    if let Some(Some(Err(error))) = results.get_mut(first.into_inner()).map(Option::take) {
        return Err(error);
    }
    results.into_iter().flatten().collect()
}
