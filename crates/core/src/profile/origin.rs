//! The ops and lines to which kernel calls belong.

#[cfg(feature = "backtrace")]
use super::lines::here;
use crate::tape::Event;
use std::collections::HashMap;
use std::fmt;

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
