//! Events of a thread's tape, reported as they happen.

use crate::thread::{self, Kind, Listener, Outer, listen, tell};

/// An event of the tape. Node numbers are the numbers in [`text`](super::text).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An op is recorded, or a leaf made.
    Recorded {
        /// The node's number.
        node: u64,
        /// Its op.
        op: &'static str,
    },
    /// The backward pass enters a node. Kernels until [`Left`](Event::Left) belong to the node's rule, and to the distribution of
    /// its gradients.
    Entered {
        /// The node's number.
        node: u64,
        /// Its op.
        op: &'static str,
    },
    /// The pass leaves the node that was entered last.
    Left,
}

struct Observer(Box<dyn Fn(Event)>);

impl Listener for Observer {
    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Tape]
    }

    fn hear(&mut self, event: &thread::Event<'_>) {
        if let thread::Event::Tape(event) = event {
            self.0(*event);
        }
    }
}

/// Runs `f` and reports the events of this thread's tape to `observer`. A nested call replaces the outer observer.
/// Ops of the observer itself are not reported.
///
/// ```
/// # use isograd_core::{Result, Tensor, tape};
/// # use std::{cell::Cell, rc::Rc};
/// fn count_nodes(f: impl FnOnce() -> Result<Tensor>) -> Result<usize> {
///     let count = Rc::new(Cell::new(0));
///     let counter = count.clone();
///     let observer = move |event| if let tape::Event::Recorded { .. } = event { counter.set(counter.get() + 1) };
///     tape::observe(observer, f)?;
///     Ok(count.get())
/// }
/// ```
pub fn observe<R>(observer: impl Fn(Event) + 'static, f: impl FnOnce() -> R) -> R {
    listen(Observer(Box::new(observer)), Outer::Pauses, f).0
}

pub(super) fn notify(event: Event) {
    tell(Kind::Tape, || thread::Event::Tape(event));
}

/// Reports that a node was entered and, on drop, that it was left.
pub(super) struct Visit;

impl Visit {
    pub fn new(node: &super::Node) -> Visit {
        notify(Event::Entered { node: node.sequence, op: node.op });
        Visit
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        notify(Event::Left);
    }
}
