//! Activations that the backward pass computes again.

use crate::hook::{addresses, is_hooked, standing_for};
use crate::module::sharing;
use crate::{Module, Visitor, VisitorMut};
use isograd_core::{Result, Tensor, Tensors, checkpoint};
use std::borrow::Borrow;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// A switch, off at first, for parts of a model whose forward pass keeps their inputs only, so that the backward pass runs them again:
/// [`checkpoint`]. [`Module::recompute_activations`] sets all of a model.
///
/// ```
/// # use isograd_core::{Result, Tensor};
/// # use isograd_nn::{Forward, Linear, Module, Recompute};
/// #[derive(Module)]
/// struct Tower {
///     layers: Vec<Linear>,
///     recompute: Recompute,
/// }
///
/// impl Forward for Tower {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         let step = |x: Tensor, layer| self.recompute.run(layer, &[&x], |layer: &Linear, x| layer.forward(&x[0])?.gelu(Default::default()));
///         self.layers.iter().try_fold(x.clone(), step)
///     }
/// }
/// ```
#[derive(Debug, Default)]
pub struct Recompute(AtomicBool);

thread_local! {
    /// A part that is recomputed is running.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Recompute {
    /// Turns it on or off.
    pub fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::Relaxed);
    }

    /// True if parts are computed again.
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// `f(part, inputs)`, which the backward pass runs again if the switch is on. Within a part that is recomputed, others run as if it
    /// were off. Errors: as [`checkpoint`].
    pub fn run<L, O>(
        &self,
        part: &L,
        inputs: &[&Tensor],
        f: impl Fn(&L, &[Tensor]) -> Result<O> + Send + Sync + 'static,
    ) -> Result<O>
    where
        L: Module + ToOwned + ?Sized,
        L::Owned: Send + Sync + 'static,
        O: Tensors,
    {
        if !self.is_on() || IS_INSIDE.get() {
            let inputs: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
            return f(part, &inputs);
        }
        // The clone shares the parameters.
        let clone = sharing(|| part.to_owned());
        let originals = if is_hooked() { addresses(part) } else { Vec::new() };
        let again = move |inputs: &[Tensor]| {
            let part: &L = clone.borrow();
            inside(|| standing_for(part, &originals, || f(part, inputs)))
        };
        checkpoint(again, inputs)
    }
}

fn inside<R>(f: impl FnOnce() -> R) -> R {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            IS_INSIDE.set(false);
        }
    }
    IS_INSIDE.set(true);
    let _leave = Leave;
    f()
}

impl Clone for Recompute {
    fn clone(&self) -> Self {
        Recompute(AtomicBool::new(self.is_on()))
    }
}

impl Module for Recompute {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.recompute(self);
    }

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}

    fn type_name(&self) -> &'static str {
        ""
    }
}
