//! Rules: the tensors that an op saves for the backward pass, the rule's arguments, and the gradients that it returns.

use super::{ANOMALY, Action, Edge, Node};
use crate::pointwise::{Pointwise, lift};
use crate::{Error, Result, Shape, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

/// A term of a gradient.
pub(crate) struct Term {
    pub value: Tensor,
    /// The [`Prologue`] of the receiving node's rule has been applied to it.
    pub(super) is_past_prologue: bool,
}

impl From<Tensor> for Term {
    fn from(value: Tensor) -> Term {
        Term { value, is_past_prologue: false }
    }
}

/// The terms of an output's gradient. A third is added to the second, or to the one that has passed the prologue as well.
pub(super) type Terms = SmallVec<[Term; 2]>;

/// The gradient of one input, or none where [`Backward::needs`] is false. Converts from a tensor or an `Option`.
pub struct Gradient(pub(super) Given);

pub(super) enum Given {
    None,
    /// No output with a gradient depends on the input.
    Absent,
    Terms(SmallVec<[Term; 1]>),
    Part(Part),
}

/// A gradient that is 0 outside of a slice.
pub(super) struct Part {
    pub value: Tensor,
    shape: Shape,
    dim: usize,
    start: usize,
    step: usize,
}

impl Part {
    /// The gradient with its zeros.
    pub fn whole(&self) -> Result<Tensor> {
        self.value.embed(&self.shape, self.dim, self.start, self.step)
    }

    /// The same slice of another tensor of the shape.
    pub fn slice_of(&self, sum: &Tensor) -> Tensor {
        let extent = self.value.dims()[self.dim];
        sum.with_layout(sum.layout().narrow(self.dim, self.start, extent, self.step))
    }
}

impl Gradient {
    /// No gradient, for an input that requires none.
    pub const NONE: Gradient = Gradient(Given::None);

    /// No gradient, for an input on which no output with a gradient depends.
    pub(crate) const ABSENT: Gradient = Gradient(Given::Absent);

    /// A gradient of this shape: `value` at `start`, `start + step`, ... of dimension `dim`, and 0 elsewhere.
    pub(crate) fn part(value: Tensor, shape: &Shape, dim: usize, [start, step]: [usize; 2]) -> Gradient {
        Gradient(Given::Part(Part { value, shape: shape.clone(), dim, start, step }))
    }

    /// A gradient to which the [`Prologue`] of the input's own rule has been applied.
    pub(crate) fn past_prologue(value: Tensor) -> Gradient {
        Term { value, is_past_prologue: true }.into()
    }
}

impl From<Term> for Gradient {
    fn from(term: Term) -> Gradient {
        Gradient(Given::Terms(SmallVec::from_iter([term])))
    }
}

impl From<Tensor> for Gradient {
    fn from(value: Tensor) -> Gradient {
        Term::from(value).into()
    }
}

impl From<Option<Tensor>> for Gradient {
    fn from(value: Option<Tensor>) -> Gradient {
        value.map_or(Gradient::NONE, Gradient::from)
    }
}

/// The gradient of these terms, which nobody has added up.
impl FromIterator<Tensor> for Gradient {
    fn from_iter<I: IntoIterator<Item = Tensor>>(terms: I) -> Gradient {
        Gradient(Given::Terms(terms.into_iter().map(Term::from).collect()))
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

/// A function that returns the gradients of an op's inputs.
#[derive(Clone)]
pub(super) struct Rule {
    /// Pointwise prologue applied to `dy` before `rest`; skipped with `create_graph`.
    pub prologue: Option<Arc<Prologue>>,
    pub rest: RuleFn,
    /// The rule has saved no tensors. A pass has nothing to free and leaves it usable.
    pub is_stateless: bool,
    /// The rule reads [`Backward::terms`] and adds them itself.
    pub reads_terms: bool,
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
    /// The terms of the gradient of each output: at most one, unless the rule reads terms.
    pub(super) outputs: SmallVec<[Terms; 1]>,
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
        let terms = &self.outputs[output];
        assert!(terms.len() < 2, "{}: a rule that reads terms adds them itself", self.node.op);
        terms.first().map(|sum| &sum.value)
    }

    /// The gradient of an output, or zeros if it has none.
    pub fn dy_or_zeros(&self, output: usize) -> Result<Tensor> {
        match self.dy_of(output) {
            Some(dy) => Ok(dy.clone()),
            None => self.node.outputs[output].zeros(),
        }
    }

    /// The terms of the only output's gradient, one or two, for a rule that adds them itself.
    pub(crate) fn terms(&self) -> &[Term] {
        &self.outputs[0]
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
    pub(crate) fn apply(&self, prologue: &Prologue, dy: &Tensor) -> Result<Tensor> {
        self.row(prologue.function, &[dy, &self.get(&prologue.saved)?], &prologue.attributes)
    }

    /// Applies the rule's prologue to the terms of the only output that are not past it.
    pub(super) fn pass_prologue(&mut self, prologue: &Prologue) -> Result<()> {
        let mut terms = std::mem::take(&mut self.outputs[0]);
        for term in terms.iter_mut().filter(|term| !term.is_past_prologue) {
            *term = Term { value: self.apply(prologue, &term.value)?, is_past_prologue: true };
        }
        self.outputs[0] = terms;
        Ok(())
    }

    /// The function of the prologue of input `i`'s own rule, and the saved tensor that it reads besides dy. A rule whose kernel
    /// applies the prologue returns [`Gradient::past_prologue`]. `None` if a hook or a target needs the gradient before the
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
