//! Rules: the tensors that an op saves for the backward pass, the rule's arguments, and the gradients that it returns.

use super::{ANOMALY, Action, Edge, Node};
use crate::pointwise::{Pointwise, lift};
use crate::{Error, Result, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

/// The gradient of one input, or none where [`Backward::needs`] is false. Converts from a tensor or an `Option`.
pub struct Gradient {
    pub(super) value: Option<Tensor>,
    pub(super) is_past_prologue: bool,
    /// No output with a gradient depends on the input.
    pub(super) is_absent: bool,
}

impl Gradient {
    /// No gradient, for an input that requires none.
    pub const NONE: Gradient = Gradient { value: None, is_past_prologue: false, is_absent: false };

    /// No gradient, for an input on which no output with a gradient depends.
    pub(crate) const ABSENT: Gradient = Gradient { is_absent: true, ..Gradient::NONE };

    /// A gradient to which the [`Prologue`] of the input's own rule has been applied.
    pub(crate) fn after_prologue(value: Tensor) -> Gradient {
        Gradient { value: Some(value), is_past_prologue: true, is_absent: false }
    }
}

impl From<Option<Tensor>> for Gradient {
    fn from(value: Option<Tensor>) -> Gradient {
        Gradient { value, ..Gradient::NONE }
    }
}

impl From<Tensor> for Gradient {
    fn from(value: Tensor) -> Gradient {
        Some(value).into()
    }
}

impl From<Option<Gradient>> for Gradient {
    fn from(gradient: Option<Gradient>) -> Gradient {
        gradient.unwrap_or(Gradient::NONE)
    }
}

/// The gradients that a rule returns, one per input. Arrays and vectors of tensors, or of `Option`s of tensors, convert to it.
#[derive(Default)]
pub struct Gradients(SmallVec<[Gradient; 3]>);

impl Gradients {
    /// Their number.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True for an op without inputs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends the gradient of the next input.
    pub fn push(&mut self, gradient: impl Into<Gradient>) {
        self.0.push(gradient.into());
    }
}

impl<G: Into<Gradient>, const N: usize> From<[G; N]> for Gradients {
    fn from(gradients: [G; N]) -> Gradients {
        gradients.into_iter().collect()
    }
}

impl<G: Into<Gradient>> From<Vec<G>> for Gradients {
    fn from(gradients: Vec<G>) -> Gradients {
        gradients.into_iter().collect()
    }
}

impl<G: Into<Gradient>> FromIterator<G> for Gradients {
    fn from_iter<I: IntoIterator<Item = G>>(gradients: I) -> Gradients {
        Gradients(gradients.into_iter().map(Into::into).collect())
    }
}

impl<G: Into<Gradient>> Extend<G> for Gradients {
    fn extend<I: IntoIterator<Item = G>>(&mut self, gradients: I) {
        self.0.extend(gradients.into_iter().map(Into::into));
    }
}

impl Gradients {
    /// The gradients, one for each input.
    pub(crate) fn into_each(self) -> impl Iterator<Item = Gradient> {
        self.0.into_iter()
    }
}

pub(super) type RuleFn = Arc<dyn Fn(&Backward<'_>) -> Result<Gradients> + Send + Sync>;

/// How a rule takes two terms of its only output's gradient that nobody has added up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Terms {
    /// As their sum.
    Sum,
    /// One after the other, and passes both on: the rule of a view, which computes nothing.
    Each,
    /// Both at once, and adds them itself.
    Both,
}

/// A function that returns the gradients of an op's inputs.
#[derive(Clone)]
pub(super) struct Rule {
    /// Pointwise prologue applied to `dy` before `rest`; skipped with `create_graph`.
    pub prologue: Option<Arc<Prologue>>,
    pub rest: RuleFn,
    /// The rule has saved no tensors. A pass has nothing to free and leaves it usable.
    pub is_stateless: bool,
    pub terms: Terms,
}

/// The pointwise function that a rule applies first. Its arguments are `dy`, in which it is linear, and one saved tensor. It is
/// separate from the rest of the rule, so that the kernel that computes `dy`, such as a matrix product, can apply it.
pub(crate) struct Prologue {
    pub function: Pointwise,
    pub saved: Saved,
    pub attributes: SmallVec<[f64; 2]>,
}

/// A tensor that a rule needs. A change in place between saving and use is an error.
pub struct Saved {
    tensor: Tensor,
    version: u64,
    /// The output of the recorded op that the tensor is. Its edge would form a cycle.
    output: Option<usize>,
}

impl Saved {
    /// Saves an input of the op, or a tensor that has no gradient, such as an index.
    pub fn input(t: &Tensor) -> Saved {
        Saved { tensor: t.clone(), version: t.0.storage.version(), output: None }
    }

    /// Saves the output of an op with one output, or the first of several.
    pub fn output(t: &Tensor) -> Saved {
        Saved::nth_output(t, 0)
    }

    /// Saves an output of an op with several outputs.
    pub fn nth_output(t: &Tensor, output: usize) -> Saved {
        let tensor = t.with_layout(t.layout().clone());
        Saved { tensor, version: t.0.storage.version(), output: Some(output) }
    }

    fn check(&self, op: &'static str) -> Result<()> {
        let (t, now) = (&self.tensor, self.tensor.0.storage.version());
        if now == self.version {
            return Ok(());
        }
        let message = format!("a tensor saved for backward ({} {}) was changed in place since", t.dtype(), t.shape());
        Err(Error::value(op, format!("{message}: version {}, saved at {}", now, self.version)))
    }
}

/// The arguments of a rule: the gradients of the op's outputs, and access to saved tensors.
pub struct Backward<'a> {
    pub(super) node: &'a Arc<Node>,
    /// The gradient of each output, if it has one.
    pub(super) outputs: SmallVec<[Option<Tensor>; 1]>,
    /// A further term of the gradient of the only output, for a rule that adds it itself.
    pub(super) further: Option<Tensor>,
    pub(super) create_graph: bool,
    /// The edges whose gradients are requested.
    pub(super) targets: &'a [&'a Edge],
}

impl Backward<'_> {
    /// The gradient of the output of an op with one output; its strides may be anything. Panics for an op with several outputs if
    /// the first has no gradient: use [`dy_of`](Backward::dy_of) there.
    pub fn dy(&self) -> &Tensor {
        self.dy_of(0).expect("a rule runs when the only output has a gradient")
    }

    /// The gradient of an output; `None` means zeros.
    pub fn dy_of(&self, output: usize) -> Option<&Tensor> {
        self.outputs[output].as_ref()
    }

    /// The gradient of an output, or zeros if it has none.
    pub fn dy_or_zeros(&self, output: usize) -> Result<Tensor> {
        match self.dy_of(output) {
            Some(dy) => Ok(dy.clone()),
            None => self.node.outputs[output].zeros(),
        }
    }

    /// The term of the only output's gradient that is not part of [`dy`](Backward::dy), of a rule that takes both.
    pub(crate) fn further(&self) -> Option<&Tensor> {
        self.further.as_ref()
    }

    /// True if input `i` requires a gradient.
    pub fn needs(&self, i: usize) -> bool {
        self.node.inputs[i].is_some()
    }

    /// True if this backward pass is itself recorded.
    pub fn creates_graph(&self) -> bool {
        self.create_graph
    }

    /// A saved tensor. Errors: `Value` if it was changed in place after it was saved.
    pub fn get(&self, saved: &Saved) -> Result<Tensor> {
        saved.check(self.node.op)?;
        match saved.output {
            Some(output) if self.create_graph => {
                let edge = Edge { node: self.node.clone(), output };
                Ok(saved.tensor.with_edge(saved.tensor.layout().clone(), Some(edge)))
            }
            _ => Ok(saved.tensor.clone()),
        }
    }

    /// `f()` if input `i` requires a gradient.
    pub fn want<G>(&self, i: usize, f: impl FnOnce() -> Result<G>) -> Result<Option<G>> {
        if self.needs(i) { f().map(Some) } else { Ok(None) }
    }

    /// `dy` after a prologue.
    pub(crate) fn apply(&self, prologue: &Prologue) -> Result<Tensor> {
        self.row(prologue.function, &[self.dy(), &self.get(&prologue.saved)?], &prologue.attributes)
    }

    /// The function of the prologue of input `i`'s own rule, and the saved tensor that it reads besides dy. A rule whose kernel
    /// applies the prologue returns [`Gradient::after_prologue`]. `None` if a hook or a target needs the gradient before the
    /// prologue, or if the function has attributes.
    pub(crate) fn prologue_of(&self, i: usize) -> Result<Option<(Pointwise, Tensor)>> {
        let Some(edge) = self.node.inputs[i].as_ref().filter(|_| !self.create_graph && !ANOMALY.get()) else {
            return Ok(None);
        };
        let state = edge.node.state.lock();
        let is_seen = !state.hooks.is_empty() || self.targets.iter().any(|target| target.is(edge));
        let Action::Rule(Rule { prologue: Some(prologue), .. }) = &state.action else { return Ok(None) };
        if is_seen || !prologue.attributes.is_empty() {
            return Ok(None);
        }
        prologue.saved.check(edge.node.op)?;
        Ok(Some((prologue.function, prologue.saved.tensor.clone())))
    }

    /// The first output of a backward row. It is one kernel, or tensor ops with `create_graph`.
    pub(crate) fn row(&self, row: Pointwise, inputs: &[&Tensor], attributes: &[f64]) -> Result<Tensor> {
        Ok(self.rows(row, inputs, attributes)?.swap_remove(0))
    }

    /// All outputs of a backward row.
    pub(crate) fn rows(&self, row: Pointwise, inputs: &[&Tensor], attributes: &[f64]) -> Result<Vec<Tensor>> {
        if self.create_graph {
            let inputs: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
            return lift(row, &inputs, attributes);
        }
        crate::ops::pointwise(row.name(), row, inputs, attributes)
    }
}
