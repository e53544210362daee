//! Activation checkpointing: the forward pass saves nothing, and the backward pass recomputes it.

use super::watch::{Watched, watch};
use super::{Action, Edge, MODE, Mode, Node, Replay, attach, with_flag};
use crate::autocast;
use crate::capture::Tensors;
use crate::random::{Journal, journal, replayed};
use crate::thread::{Event, Kind, Listener, Outer, listen};
use crate::{DType, Error, Result, Tensor};
use smallvec::SmallVec;
use std::iter::zip;
use std::sync::Arc;

/// The nodes of the operands of ops that would have been recorded, each once.
#[derive(Default)]
struct Probe(Vec<Arc<Node>>);

impl Listener for Probe {
    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Probe]
    }

    fn hear(&mut self, event: &Event<'_>) {
        let Event::Probe(inputs) = event else { return };
        for Edge { node, .. } in inputs.iter().filter_map(|t| t.edge()) {
            if !self.0.iter().any(|known| Arc::ptr_eq(known, node)) {
                self.0.push(node.clone());
            }
        }
    }
}

/// A function that has run without saving anything, and what a second run with the same bits needs.
pub(super) struct Forgotten<F> {
    f: F,
    pub inputs: Vec<Tensor>,
    versions: Vec<u64>,
    journal: Journal,
    watched: Watched,
    precision: Option<DType>,
}

impl<O: Tensors, F: Fn(&[Tensor]) -> Result<O>> Forgotten<F> {
    /// `f(inputs)` outside of the tape, and the nodes of the tensors that it read.
    pub fn run(f: F, inputs: &[&Tensor]) -> Result<(O, Vec<Arc<Node>>, Forgotten<F>)> {
        let inputs: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
        let probed = || listen(Probe::default(), Outer::Pauses, || with_flag(&MODE, Mode::Probe, || f(&inputs)));
        let (((outputs, Probe(used)), journal), watched) = watch(|| journal(probed));
        let outputs = outputs?.map(&mut |t| Ok(t.detach()))?;
        let versions = inputs.iter().map(|t| t.0.storage.version()).collect();
        Ok((outputs, used, Forgotten { f, inputs, versions, journal, watched, precision: autocast::current() }))
    }

    /// The outputs of a second run, whose `inputs` have the values of those of the first.
    pub fn run_again(&self, op: &'static str, inputs: &[Tensor]) -> Result<SmallVec<[Tensor; 1]>> {
        self.watched.check(op)?;
        let changed = zip(&self.inputs, &self.versions).find(|(t, version)| t.0.storage.version() != **version);
        if let Some((t, _)) = changed {
            let message = format!("an input ({} {}) was changed in place after the forward pass", t.dtype(), t.shape());
            return Err(Error::value(op, message));
        }
        let again = || autocast::with(self.precision, || replayed(&self.journal, || (self.f)(inputs)));
        Ok(self.watched.rewound(again)?.tensors().into_iter().cloned().collect())
    }
}

/// `f(inputs)`, a tensor or a structure of tensors. Only `inputs` are kept. The backward pass runs `f` again. Before that, it
/// restores every generator that `f` drew from and every tensor that `f` changed in place (running statistics, counters). The
/// second run therefore gives the same bits and has no side effects. Leaves that `f` captures get their gradients too.
///
/// Tensors that `f` reads, both inputs and captured ones, must not be changed in place between forward and backward: the backward
/// pass then returns a `Value` error. Errors: the errors of `f`. Chen et al. 2016, arXiv 1604.06174.
pub fn checkpoint<O: Tensors>(
    f: impl Fn(&[Tensor]) -> Result<O> + Send + Sync + 'static,
    inputs: &[&Tensor],
) -> Result<O> {
    if MODE.get() != Mode::On {
        return f(&inputs.iter().map(|&t| t.clone()).collect::<Vec<_>>());
    }
    let (outputs, used, forgotten) = Forgotten::run(f, inputs)?;
    if used.is_empty() {
        return Ok(outputs);
    }
    let fresh = fresh(&outputs).into();
    let run = Arc::new(move || forgotten.run_again("checkpoint", &forgotten.inputs));
    let replay = Replay { run, uses: Arc::new(used) };
    with_each(&outputs, attach("checkpoint", inputs, fresh, Action::Replay(replay)))
}

/// Tensors of the same memory that nobody else holds.
pub(super) fn fresh(outputs: &impl Tensors) -> Vec<Tensor> {
    outputs.tensors().into_iter().map(|t| t.with_layout(t.layout().clone())).collect()
}

/// The structure with other tensors.
pub(super) fn with_each<O: Tensors>(outputs: &O, tensors: impl IntoIterator<Item = Tensor>) -> Result<O> {
    let mut tensors = tensors.into_iter();
    outputs.map(&mut |_| Ok(tensors.next().expect("each output was recorded")))
}

/// Runs `f` and then undoes what this thread changed in it: tensors that were there before have their values again, and generators their
/// positions. Gradients of leaves are no such tensors. Errors: those of `f`.
pub fn undone<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let ((result, journal), watched) = watch(|| journal(f));
    watched.undo()?;
    journal.iter().for_each(|(rng, state)| rng.set_state(*state));
    result
}
