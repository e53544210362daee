//! A thread that watches collectives of devices: one that fails or does not end is aborted, so that the host does not wait for it.

use isograd_core::collective::{Link, Mark};
use parking_lot::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time between two looks at unfinished collectives.
const PERIOD: Duration = Duration::from_millis(50);

/// A collective that has not ended yet.
struct Watched {
    link: Arc<Link>,
    mark: Mark,
    what: String,
    started: Instant,
}

/// The watchdog of a group. Its thread starts with the first collective of a device.
pub struct Watchdog {
    failed: Arc<Mutex<Option<String>>>,
    timeout: Duration,
    rank: usize,
    thread: OnceLock<Option<(Sender<Watched>, JoinHandle<()>)>>,
}

impl Watchdog {
    /// The watchdog of a rank. `failed` gets the reason of a failure.
    pub fn new(failed: Arc<Mutex<Option<String>>>, timeout: Duration, rank: usize) -> Watchdog {
        Watchdog { failed, timeout, rank, thread: OnceLock::new() }
    }

    /// Watches a collective until it ends.
    pub fn watch(&self, link: &Arc<Link>, mark: &Mark, what: String) {
        let thread = self.thread.get_or_init(|| {
            let (sender, receiver) = channel();
            let (failed, timeout, rank) = (self.failed.clone(), self.timeout, self.rank);
            let thread = thread::Builder::new().name("isograd-watchdog".to_string());
            thread.spawn(move || watch(&receiver, &failed, timeout, rank)).ok().map(|thread| (sender, thread))
        });
        let watched = Watched { link: link.clone(), mark: mark.clone(), what, started: Instant::now() };
        if let Some((sender, _)) = thread {
            // A watchdog that has found a failure watches no more.
            let _ = sender.send(watched);
        }
    }
}

impl Drop for Watchdog {
    /// Waits for the thread: the process must not end while it asks the library.
    fn drop(&mut self) {
        if let Some(Some((sender, thread))) = self.thread.take() {
            drop(sender);
            // The thread has told of its failure.
            let _ = thread.join();
        }
    }
}

fn watch(receiver: &Receiver<Watched>, failed: &Mutex<Option<String>>, timeout: Duration, rank: usize) {
    let mut unfinished: Vec<Watched> = Vec::new();
    loop {
        match receiver.recv_timeout(PERIOD) {
            Ok(watched) => unfinished.push(watched),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        unfinished.extend(receiver.try_iter());
        // They end in the order of their start.
        while let Some(Watched { link, mark, what, started }) = unfinished.first() {
            let why = match link.is_done(mark) {
                Ok(true) => {
                    unfinished.remove(0);
                    continue;
                }
                Ok(false) if started.elapsed() < timeout => break,
                Ok(false) => format!("rank {rank}: {what} did not end within {timeout:?}: a rank hangs or is gone"),
                Err(error) => format!("rank {rank}: {what} failed: {error}"),
            };
            failed.lock().get_or_insert_with(|| why.clone());
            tracing::error!("{why}");
            link.abort();
            return;
        }
    }
}
