//! A thread that runs collectives through the host while the caller computes.

use crate::Group;
use crate::group::Pending;
use isograd_core::collective::Collective;
use isograd_core::{Error, Result, Tensor, no_grad};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

struct Job {
    collective: Collective,
    x: Tensor,
    answer: Sender<Result<Tensor>>,
}

/// Collectives of a group, in the order in which they are started. Those of devices with a library of collectives are enqueued; others
/// run on a thread.
pub struct Worker {
    group: Group,
    /// Until the worker is dropped.
    thread: Option<(Sender<Job>, JoinHandle<()>)>,
}

/// A collective that was started.
pub enum Started {
    Pending(Pending),
    Job(Receiver<Result<Tensor>>),
}

impl Worker {
    /// A worker of a group that no other thread uses.
    pub fn new(group: Group) -> Result<Worker> {
        let (sender, jobs) = channel::<Job>();
        let own = group.clone();
        let run = move || {
            for Job { collective, x, answer } in jobs {
                // Nobody listens any more once the pass was dropped.
                let _ = answer.send(no_grad(|| own.run(collective, &x)));
            }
        };
        let thread = thread::Builder::new().name("isograd-parallel".to_string()).spawn(run);
        let failed = |e| Error::value("parallel", format!("no thread could be started: {e}")).with_source(e);
        Ok(Worker { group, thread: Some((sender, thread.map_err(failed)?)) })
    }

    /// Starts a collective.
    pub fn start(&self, collective: Collective, x: Tensor) -> Result<Started> {
        if self.group.size() == 1 || self.group.is_enqueued(x.device())? {
            return Ok(Started::Pending(self.group.start(collective, &x)?));
        }
        let (answer, receiver) = channel();
        let ended = || Error::value("parallel", "the thread of collectives has ended");
        let (sender, _) = self.thread.as_ref().ok_or_else(ended)?;
        sender.send(Job { collective, x, answer }).map_err(|_| ended())?;
        Ok(Started::Job(receiver))
    }

    /// The result of a collective, for work that is enqueued from now on.
    pub fn wait(&self, started: Started) -> Result<Tensor> {
        match started {
            Started::Pending(pending) => pending.wait(&self.group),
            Started::Job(receiver) => {
                receiver.recv().unwrap_or_else(|_| Err(Error::value("parallel", "the thread of collectives has ended")))
            }
        }
    }
}

impl Drop for Worker {
    /// Waits for the thread, whose group ends with it: the process must not end meanwhile.
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            // A panic of the thread was told when its answer was missing.
            let _ = thread.join();
        }
    }
}
