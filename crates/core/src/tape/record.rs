//! Recording: the op that made a tensor, and the rule of its gradients, become a node.

use super::rule::{Prologue, Rule, Term};
use super::{Action, Backward, Edge, Gradient, Gradients, Meta, Node, check_finite, is_recording, trace};
use crate::check::check_float;
use crate::{Result, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

/// Puts an op on the tape: `output` was computed from `inputs`, and `rule` returns their gradients.
///
/// If no input requires a gradient, or within [`no_grad`](super::no_grad), nothing is recorded and `output` is returned as it is.
/// `output` must be fresh: nobody else holds it. The rule returns an array or a vector of `Option<Tensor>`, one for each input. An op
/// defined outside of isograd gets its gradient in this way; check it with [`gradcheck`](super::gradcheck). The rule must keep its
/// tensors as [`Saved`](super::Saved), so that a change in place is detected.
pub fn record<G: Into<Gradients>>(
    op: &'static str,
    inputs: &[&Tensor],
    output: Tensor,
    rule: impl Fn(&Backward<'_>) -> Result<G> + Send + Sync + 'static,
) -> Result<Tensor> {
    Record::new(op, inputs).rule(output, rule)
}

/// [`record`] for an op with several outputs, each fresh. Outputs of integer or bool dtypes have no gradient.
///
/// The rule runs if any output has a gradient. It reads each by [`Backward::dy_of`] or [`Backward::dy_or_zeros`].
///
/// ```
/// # use isograd_core::{Result, Tensor, tape};
/// /// The sum and the difference of two tensors of one shape.
/// fn sum_and_difference(a: &Tensor, b: &Tensor) -> Result<Vec<Tensor>> {
///     let (x, y) = (a.detach(), b.detach());
///     tape::record_outputs("sum_and_difference", &[a, b], vec![x.add(&y)?, x.sub(&y)?], |t| {
///         let (sum, difference) = (t.dy_or_zeros(0)?, t.dy_or_zeros(1)?);
///         Ok([sum.add(&difference)?, sum.sub(&difference)?])
///     })
/// }
/// ```
pub fn record_outputs<G: Into<Gradients>>(
    op: &'static str,
    inputs: &[&Tensor],
    outputs: Vec<Tensor>,
    rule: impl Fn(&Backward<'_>) -> Result<G> + Send + Sync + 'static,
) -> Result<Vec<Tensor>> {
    Record::new(op, inputs).rule(outputs, rule)
}

/// An op to record, for rules that [`record`] does not serve.
pub(crate) struct Record<'a> {
    pub(crate) op: &'static str,
    pub(crate) inputs: &'a [&'a Tensor],
    prologue: Option<Arc<Prologue>>,
    is_stateless: bool,
    reads_terms: bool,
}

/// The outputs of an op: a tensor, or several.
pub(crate) trait Outputs: Sized {
    fn into_each(self) -> SmallVec<[Tensor; 1]>;
    fn from_each(each: SmallVec<[Tensor; 1]>) -> Self;
}

impl Outputs for Tensor {
    fn into_each(self) -> SmallVec<[Tensor; 1]> {
        SmallVec::from_iter([self])
    }

    fn from_each(mut each: SmallVec<[Tensor; 1]>) -> Tensor {
        each.swap_remove(0)
    }
}

impl Outputs for Vec<Tensor> {
    fn into_each(self) -> SmallVec<[Tensor; 1]> {
        self.into()
    }

    fn from_each(each: SmallVec<[Tensor; 1]>) -> Vec<Tensor> {
        each.into_vec()
    }
}

impl<'a> Record<'a> {
    pub fn new(op: &'static str, inputs: &'a [&'a Tensor]) -> Record<'a> {
        Record { op, inputs, prologue: None, is_stateless: false, reads_terms: false }
    }

    /// The rule of the only output begins with a prologue: it reads `dy` after the prologue, or `dy` itself with `create_graph`.
    pub fn prologue(self, prologue: impl Into<Option<Arc<Prologue>>>) -> Record<'a> {
        Record { prologue: prologue.into(), ..self }
    }

    /// The rule has no saved tensors. A pass has nothing to free and leaves the rule usable, as `retain` does.
    pub fn stateless(self) -> Record<'a> {
        Record { is_stateless: true, ..self }
    }

    /// The rule of the only output reads [`Backward::terms`], which it adds itself.
    pub fn reads_terms(self) -> Record<'a> {
        Record { reads_terms: true, ..self }
    }

    /// Records the outputs with the rule of their gradients.
    pub fn rule<O: Outputs, G: Into<Gradients>>(
        self,
        outputs: O,
        rule: impl Fn(&Backward<'_>) -> Result<G> + Send + Sync + 'static,
    ) -> Result<O> {
        let Record { op, inputs, prologue, is_stateless, reads_terms } = self;
        let outputs = outputs.into_each();
        if !is_recorded(op, inputs, &outputs)? {
            return Ok(O::from_each(outputs));
        }
        let rest = Arc::new(move |t: &Backward<'_>| -> Result<Gradients> { Ok(rule(t)?.into()) });
        let action = Action::Rule(Rule { prologue, rest, is_stateless, reads_terms });
        Ok(O::from_each(attach(op, inputs, outputs, action)))
    }

    /// Records the same elements in another order or shape. `f` maps a term of the gradient and computes nothing: the terms of a rule that
    /// adds them itself pass by on their own.
    pub fn view(
        mut self,
        output: Tensor,
        f: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Tensor> {
        self.reads_terms = self.inputs[0].edge().is_some_and(|edge| edge.node.reads_terms);
        let each = move |term: &Term| f(&term.value);
        self.rule(output, move |t| Ok([t.terms().iter().map(&each).collect::<Result<Gradient>>()?]))
    }
}

/// True if the op goes on the tape. Reports it in any case.
fn is_recorded(op: &'static str, inputs: &[&Tensor], outputs: &[Tensor]) -> Result<bool> {
    // A view computes nothing; the memory that an op is about to write may be behind it.
    let is_view = |y: &&Tensor| inputs.iter().any(|x| x.shares_memory(y));
    outputs.iter().filter(|y| !is_view(y)).try_for_each(|y| check_finite(op, "the output", y))?;
    trace::report_recorded(op, inputs, outputs);
    if !is_recording(inputs) {
        return Ok(false);
    }
    if !outputs.iter().any(|y| y.dtype().is_float()) {
        check_float(op, &outputs[0])?;
    }
    Ok(true)
}

/// Makes a node, to which the edges of the outputs lead.
pub(super) fn attach(
    op: &'static str,
    inputs: &[&Tensor],
    outputs: SmallVec<[Tensor; 1]>,
    action: Action,
) -> SmallVec<[Tensor; 1]> {
    let edges = inputs.iter().map(|t| t.edge().cloned()).collect();
    let node = Node::new(op, edges, outputs.iter().map(Meta::of).collect(), action);
    let with_edge = |(output, mut y): (usize, Tensor)| {
        if !y.dtype().is_float() {
            return y;
        }
        let edge = Some(Edge { node: node.clone(), output });
        match Arc::get_mut(&mut y.0) {
            Some(inner) => {
                inner.edge = edge;
                y
            }
            None => y.with_edge(y.layout().clone(), edge),
        }
    };
    outputs.into_iter().enumerate().map(with_edge).collect()
}
