//! Activation checkpointing: nothing is saved in the forward pass, and the backward pass computes it again.

use super::{Action, MODE, Mode, PROBED, attach, with_flag};
use crate::random::{journal, replayed};
use crate::{Result, Tensor, autocast};
use std::sync::Arc;

/// `f(inputs)`, of which only `inputs` are kept. The backward pass runs `f` again, with every generator that `f` drew
/// from set back to where it was, so that the second run gives the same bits. Leaves that `f` holds itself get their
/// gradients too.
///
/// Inputs must not be changed in place between forward and backward.
/// Errors: those of `f`. Chen et al. 2016, arXiv 1604.06174.
pub fn checkpoint(
    f: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    inputs: &[&Tensor],
) -> Result<Tensor> {
    if MODE.get() != Mode::On {
        return f(&inputs.iter().map(|&t| t.clone()).collect::<Vec<_>>());
    }
    let inputs: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
    let (output, touched, journal) = with_flag(&PROBED, false, || {
        let (output, journal) = journal(|| with_flag(&MODE, Mode::Probe, || f(&inputs)));
        (output, PROBED.get(), journal)
    });
    let output = output?.detach();
    if !touched {
        return Ok(output);
    }
    let saved: Vec<_> = inputs.iter().map(|t| (t.clone(), t.0.storage.version())).collect();
    let precision = autocast::current();
    let replay = move || {
        if let Some((t, _)) = saved.iter().find(|(t, version)| t.0.storage.version() != *version) {
            let message = format!("an input ({} {}) was changed in place after the forward pass", t.dtype(), t.shape());
            return Err(crate::Error::value("checkpoint", message));
        }
        let inputs: Vec<Tensor> = saved.iter().map(|(t, _)| t.clone()).collect();
        autocast::with(precision, || replayed(&journal, || f(&inputs)))
    };
    let references: Vec<&Tensor> = inputs.iter().collect();
    Ok(attach("checkpoint", &references, output, Action::Replay(Arc::new(replay))))
}
