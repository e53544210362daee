//! The ops and lines to which kernel calls belong.

#[cfg(feature = "backtrace")]
use super::lines;
use crate::tape::Event;
use crate::thread::{self, Place};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Runs `f`, and names the origin of its ops, in place of a line of the program: the node of a graph, for a program that runs graphs.
pub fn named<R>(name: &Arc<str>, f: impl FnOnce() -> R) -> R {
    at(Place { name: name.clone(), is_line: true }, f)
}

/// Runs `f`, whose ops a profile names after the part of a model, beside the line of the program.
pub fn in_part<R>(name: &str, f: impl FnOnce() -> R) -> R {
    at(Place { name: name.into(), is_line: false }, f)
}

fn at<R>(place: Place, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Place>);
    impl Drop for Restore {
        fn drop(&mut self) {
            thread::with(|thread| thread.place.replace(self.0.take()));
        }
    }
    let _restore = Restore(thread::with(|thread| thread.place.replace(Some(place))));
    f()
}

/// The name of the origin and the line of the program, as far as they are known. Lines need the feature `backtrace`.
fn here() -> Option<String> {
    let place = thread::with(|thread| thread.place.borrow().clone());
    let line = || {
        #[cfg(feature = "backtrace")]
        return lines::here();
        #[cfg(not(feature = "backtrace"))]
        None::<String>
    };
    match place {
        Some(Place { name, is_line: true }) => Some(name.to_string()),
        Some(Place { name, .. }) => Some(line().map_or_else(|| name.to_string(), |line| format!("{name}, {line}"))),
        None => line(),
    }
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
