//! The ops and lines to which kernel calls belong.

#[cfg(feature = "backtrace")]
use super::lines;
use crate::tape::Event;
use crate::thread;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Runs `f`, and names the origin of its ops, in place of a line of the program: the node of a graph, for a program that runs graphs.
pub fn named<R>(name: &Arc<str>, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Arc<str>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            thread::with(|thread| thread.place.replace(self.0.take()));
        }
    }
    let _restore = Restore(thread::with(|thread| thread.place.replace(Some(name.clone()))));
    f()
}

/// The name of the origin, else the line of the program. Lines need the feature `backtrace`.
fn here() -> Option<String> {
    let name = thread::with(|thread| thread.place.borrow().as_deref().map(String::from));
    #[cfg(feature = "backtrace")]
    let name = name.or_else(lines::here);
    name
}

/// The direction of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// In the forward pass, or outside of the tape.
    Forward,
    /// In the rule of a node's gradient.
    Backward,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        })
    }
}

/// The ops and lines to which kernel calls belong, from the events of a thread's tape.
#[derive(Debug, Default)]
pub struct Origins {
    /// The line of each node.
    lines: HashMap<u64, Option<String>>,
    /// The nodes whose gradients are being computed.
    entered: Vec<(u64, &'static str)>,
}

impl Origins {
    /// Takes an event. A node that a backward pass records has the line of the pass.
    pub fn told(&mut self, event: Event) {
        match event {
            Event::Recorded { node, .. } => {
                let line = here();
                self.lines.insert(node, line);
            }
            Event::Entered { node, op } => self.entered.push((node, op)),
            Event::Left => drop(self.entered.pop()),
        }
    }

    /// Direction, op and line of a call made by `op`. In a backward pass they are those of the node whose gradient is computed.
    pub fn origin(&self, op: &'static str) -> (Direction, &'static str, Option<String>) {
        match self.entered.last() {
            Some((node, op)) => (Direction::Backward, op, self.lines.get(node).cloned().flatten()),
            None => (Direction::Forward, op, here()),
        }
    }
}
