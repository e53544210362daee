//! The ops and lines to which kernel calls belong.

#[cfg(feature = "backtrace")]
use super::lines::here;
use crate::tape::Event;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

thread_local! {
    /// The names of the parts of a model that are running, the innermost last.
    static PARTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f`, whose ops a profile names after the part of a model.
pub fn in_part<R>(name: &str, f: impl FnOnce() -> R) -> R {
    struct Left;
    impl Drop for Left {
        fn drop(&mut self) {
            PARTS.with_borrow_mut(Vec::pop);
        }
    }
    PARTS.with_borrow_mut(|parts| parts.push(name.to_string()));
    let _left = Left;
    f()
}

/// The innermost part of a model that is running, and the line that called it.
fn caller() -> Option<String> {
    let part = PARTS.with_borrow(|parts| parts.last().cloned());
    match (part, here()) {
        (Some(part), Some(line)) => Some(format!("{part}, {line}")),
        (part, line) => part.or(line),
    }
}

/// Lines need the feature `backtrace`.
#[cfg(not(feature = "backtrace"))]
fn here() -> Option<String> {
    None
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
    /// The part and the line of each node.
    lines: HashMap<u64, Option<String>>,
    /// The nodes whose gradients are being computed.
    entered: Vec<(u64, &'static str)>,
}

impl Origins {
    /// Takes an event. A node that a backward pass records has the line of the pass.
    pub fn told(&mut self, event: Event) {
        match event {
            Event::Recorded { node, .. } => {
                let line = caller();
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
            None => (Direction::Forward, op, caller()),
        }
    }
}
