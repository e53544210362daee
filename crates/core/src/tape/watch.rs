//! The tensors that a checkpointed closure reads and changes besides its inputs.
//!
//! The tape sees a closure's inputs, but neither the weights that it captures nor the running statistics that it updates. An active
//! watch notes the inputs of each kernel, and each tensor before it is changed in place. Memory allocated after the start of the
//! watch belongs to the closure and is not noted.

use crate::backend::Kernel;
use crate::tensor::{Attributes, Storage, run};
use crate::thread::{Event, Kind, Listener, Outer, listen};
use crate::{Error, Result, Tensor};
use std::sync::{Arc, Weak};

/// The noted tensors, by their memory.
#[derive(Default)]
pub(super) struct Watched {
    /// Memory that was read and not changed, with its version after the closure.
    read: Vec<Read>,
    changed: Vec<Changed>,
}

struct Read {
    storage: Weak<Storage>,
    version: u64,
    what: String,
}

/// A tensor that the closure changed in place.
struct Changed {
    tensor: Tensor,
    /// Its values before the first change.
    before: Tensor,
}

struct Watch {
    /// [`Storage::born`] of the first allocation that belongs to the closure.
    start: u64,
    watched: Watched,
}

impl Listener for Watch {
    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Kernel, Kind::Write]
    }

    fn hear(&mut self, event: &Event<'_>) {
        match event {
            Event::Kernel(run) => run.inputs.iter().for_each(|t| self.watched.note_read(t, self.start)),
            Event::Write { target, error } => {
                let is_known = self.watched.changed.iter().any(|c| c.tensor.is_same(target));
                if target.0.storage.born() >= self.start || is_known {
                    return;
                }
                match crate::no_grad(|| target.detach().copy()) {
                    Ok(before) => self.watched.changed.push(Changed { tensor: target.detach(), before }),
                    Err(e) => drop(error.replace(Err(e))),
                }
            }
            _ => (),
        }
    }
}

/// Runs `f` and notes the tensors that it reads and changes.
pub(super) fn watch<R>(f: impl FnOnce() -> R) -> (R, Watched) {
    let watch = Watch { start: Storage::births(), watched: Watched::default() };
    let (result, watch) = listen(watch, Outer::Hears, f);
    (result, watch.watched.ended())
}

impl Watched {
    fn note_read(&mut self, t: &Tensor, start: u64) {
        let storage = &t.0.storage;
        if storage.born() >= start || self.read.iter().any(|r| r.storage.as_ptr() == Arc::as_ptr(storage)) {
            return;
        }
        let what = format!("{} {}", t.dtype(), t.shape());
        self.read.push(Read { storage: Arc::downgrade(storage), version: 0, what });
    }

    /// At the end of the closure: records versions, and drops memory that the closure changed itself.
    fn ended(mut self) -> Watched {
        let changed = |storage: &Arc<Storage>| self.changed.iter().any(|c| Arc::ptr_eq(&c.tensor.0.storage, storage));
        self.read.retain_mut(|r| match r.storage.upgrade() {
            Some(storage) if !changed(&storage) => {
                r.version = storage.version();
                true
            }
            _ => false,
        });
        self
    }

    /// Returns an error if a tensor that the closure read has changed in place since.
    pub fn check(&self, op: &'static str) -> Result<()> {
        let is_stale = |r: &&Read| r.storage.upgrade().is_some_and(|storage| storage.version() != r.version);
        match self.read.iter().find(is_stale) {
            Some(Read { what, .. }) => {
                let message = format!("a tensor that the closure reads ({what}) was changed in place");
                Err(Error::value(op, format!("{message} after the forward pass")))
            }
            None => Ok(()),
        }
    }

    /// Undoes the closure's changes.
    pub fn undo(&self) -> Result<()> {
        self.changed.iter().rev().try_for_each(|c| {
            write(&c.tensor, &c.before)?;
            c.tensor.touch();
            Ok(())
        })
    }

    /// Runs `f` with the closure's changes undone, then restores the current values.
    pub fn rewound<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let now = self.changed.iter().map(|c| c.tensor.copy()).collect::<Result<Vec<_>>>()?;
        let versions: Vec<u64> = self.changed.iter().map(|c| c.tensor.0.storage.version()).collect();
        // Views may overlap: changes are undone in reverse order.
        let rewind = || self.changed.iter().rev().try_for_each(|c| write(&c.tensor, &c.before));
        let result = rewind().and_then(|()| f());
        for ((changed, now), version) in self.changed.iter().zip(&now).zip(versions) {
            write(&changed.tensor, now)?;
            changed.tensor.0.storage.set_version(version);
        }
        result
    }
}

fn write(target: &Tensor, values: &Tensor) -> Result<()> {
    run("checkpoint", Kernel::Copy, &[values], &[target], Attributes::default())
}
