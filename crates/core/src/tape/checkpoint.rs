//! Activation checkpointing: the forward pass saves nothing, and the backward pass recomputes it.

use super::watch::watch;
use super::{Action, Edge, MODE, Mode, Node, Replay, attach, with_flag};
use crate::capture::Tensors;
use crate::random::{journal, replayed};
use crate::thread::{Event, Kind, Listener, Outer, listen};
use crate::{Result, Tensor, autocast};
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
    let inputs: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
    if MODE.get() != Mode::On {
        return f(&inputs);
    }
    let probed = || listen(Probe::default(), Outer::Pauses, || with_flag(&MODE, Mode::Probe, || f(&inputs)));
    let (((outputs, Probe(used)), journal), watched) = watch(|| journal(probed));
    let outputs = outputs?.map(&mut |t| Ok(t.detach()))?;
    if used.is_empty() {
        return Ok(outputs);
    }
    let versions: Vec<u64> = inputs.iter().map(|t| t.0.storage.version()).collect();
    let references: Vec<&Tensor> = inputs.iter().collect();
    let fresh = outputs.tensors().into_iter().map(|t| t.with_layout(t.layout().clone())).collect();
    let (kept, precision) = (inputs.clone(), autocast::current());
    let run = Arc::new(move || {
        watched.check("checkpoint")?;
        if let Some((t, _)) = kept.iter().zip(&versions).find(|(t, version)| t.0.storage.version() != **version) {
            let message = format!("an input ({} {}) was changed in place after the forward pass", t.dtype(), t.shape());
            return Err(crate::Error::value("checkpoint", message));
        }
        let outputs = watched.rewound(|| autocast::with(precision, || replayed(&journal, || f(&kept))))?;
        Ok(outputs.tensors().into_iter().cloned().collect())
    });
    let mut recorded =
        attach("checkpoint", &references, fresh, Action::Replay(Replay { run, uses: Arc::new(used) })).into_iter();
    outputs.map(&mut |_| Ok(recorded.next().expect("each output was recorded")))
}

/// Runs `f` and then undoes what this thread changed in it: tensors that were there before have their values again, and generators their
/// positions. Gradients of leaves are no such tensors. Errors: those of `f`.
pub fn undone<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let ((result, journal), watched) = watch(|| journal(f));
    watched.undo()?;
    journal.iter().for_each(|(rng, state)| rng.set_state(*state));
    result
}
