//! The engine: visits nodes in reverse order, sums gradients, and frees what it has used.

use super::backward::{check_gradient, edge_of};
use super::due::Due;
use super::observe::Visit;
use super::rule::{Given, Part, Rule, Term, Terms};
use super::{
    Action, Backward, BackwardOptions, Edge, Gradients, HOOKED_LEAVES, MODE, Mode, Node, OutputHook, Replay,
    check_finite, detects_anomaly, with_flag, within,
};
use crate::backend::Kernel;
use crate::pointwise::Pointwise;
use crate::tensor::{Attributes, run};
use crate::{Error, Result, Tensor};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A pass from `roots`, each with its gradient. Returns the gradients of `targets`, or adds those of leaves to what they keep.
pub(super) fn engine<'r>(
    op: &'static str,
    roots: impl IntoIterator<Item = (&'r Tensor, Tensor)>,
    options: &BackwardOptions,
    targets: Option<&[&Edge]>,
) -> Result<Vec<Option<Tensor>>> {
    let mut pass = Pass {
        op,
        retain: options.retain || options.create_graph,
        create_graph: options.create_graph,
        targets,
        found: vec![None; targets.map_or(0, <[_]>::len)],
        pending: BTreeMap::new(),
        due: Due::default(),
    };
    let mode = if options.create_graph { Mode::On } else { Mode::Off };
    with_flag(&MODE, mode, || {
        let mut nodes = Vec::new();
        for (root, dy) in roots {
            let edge = edge_of(op, root)?;
            check_gradient(op, edge.meta(), &dy)?;
            pass.deposit(edge, dy.into())?;
            nodes.push(&edge.node);
        }
        if targets.is_none() && HOOKED_LEAVES.load(Ordering::Relaxed) > 0 {
            pass.due = Due::of(&nodes);
        }
        pass.run()
    })?;
    Ok(pass.found)
}

struct Pass<'a> {
    op: &'static str,
    retain: bool,
    create_graph: bool,
    targets: Option<&'a [&'a Edge]>,
    found: Vec<Option<Tensor>>,
    pending: BTreeMap<u64, Pending>,
    due: Due,
}

/// The gradients that a node has received so far.
struct Pending {
    node: Arc<Node>,
    /// The terms of the gradient of each output.
    outputs: SmallVec<[Terms; 1]>,
}

/// The contents of a spent node. They are dropped outside of the node's lock, before its gradients are distributed.
type Used = (Action, Vec<OutputHook>);

/// The action of a visit.
enum Visited {
    Leaf,
    Rule(Rule),
    Replay(Replay),
}

impl Pass<'_> {
    fn run(&mut self) -> Result<()> {
        // No gradient below the oldest target is needed.
        let oldest = self.targets.and_then(|t| t.iter().map(|e| e.node.sequence).min()).unwrap_or(0);
        while let Some((sequence, pending)) = self.pending.pop_last() {
            if sequence < oldest {
                break;
            }
            self.visit(pending)?;
            for leaf in self.due.after(sequence) {
                if let Some(pending) = self.pending.remove(&leaf) {
                    self.visit(pending)?;
                }
            }
        }
        Ok(())
    }

    fn visit(&mut self, mut pending: Pending) -> Result<()> {
        let node = pending.node.clone();
        let _visit = Visit::new(&node);
        self.show(&mut pending)?;
        let (action, used) = self.take(&node)?;
        match action {
            Visited::Leaf => self.keep(&node, pending),
            Visited::Rule(rule) => {
                let gradients = within(node.op, || self.gradients(&node, rule, pending.outputs))?;
                drop(used);
                self.distribute(&node, gradients)
            }
            Visited::Replay(replay) => {
                let outputs = with_flag(&MODE, Mode::On, || (replay.run)())?;
                drop((replay, used));
                let mut nodes = Vec::new();
                for (output, mut terms) in outputs.iter().zip(pending.outputs) {
                    let Some(dy) = terms.pop() else { continue };
                    let edge = output.0.edge.as_ref();
                    let edge = edge.ok_or_else(|| Error::value(node.op, "the recomputed output is not on the tape"))?;
                    self.deposit(edge, dy)?;
                    nodes.push(&edge.node);
                }
                self.due.pass_on(node.sequence, &nodes);
                Ok(())
            }
        }
    }

    /// Runs the hooks of a node's outputs on their gradients, and keeps the gradients of targets.
    fn show(&mut self, Pending { node, outputs }: &mut Pending) -> Result<()> {
        let hooks = node.state.lock().hooks.clone();
        let targets = self.targets.unwrap_or_default();
        if hooks.is_empty() && !targets.iter().any(|target| Arc::ptr_eq(&target.node, node)) {
            return Ok(());
        }
        if outputs.iter().flatten().any(|term| term.is_past_prologue) {
            let message = format!("the pass had come by the result of `{}` when a hook was put on it", node.op);
            return Err(Error::value("register_hook", message));
        }
        outputs.iter_mut().try_for_each(|terms| add_up(terms, self.create_graph))?;
        for OutputHook { output, f, .. } in hooks {
            if let Some(Term { value: dy, .. }) = outputs[output].first_mut()
                && let Some(replaced) = f(dy)?
            {
                check_gradient("hook", &node.outputs[output], &replaced)?;
                *dy = replaced;
            }
        }
        for (target, found) in targets.iter().zip(&mut self.found) {
            if Arc::ptr_eq(&target.node, node) {
                *found = outputs[target.output].first().map(|sum| sum.value.clone());
            }
        }
        Ok(())
    }

    /// The action of a node. Unless the tape is retained, the node is spent, and its contents are returned as well.
    fn take(&self, node: &Node) -> Result<(Visited, Option<Used>)> {
        let mut state = node.state.lock();
        let (visited, is_spent) = match &state.action {
            Action::Leaf(_) => return Ok((Visited::Leaf, None)),
            Action::Rule(rule) => (Visited::Rule(rule.clone()), !rule.is_stateless),
            Action::Replay(replay) => (Visited::Replay(replay.clone()), true),
            Action::Spent => {
                let message = format!("the tape through `{}` is spent by an earlier pass", node.op);
                return Err(Error::value(self.op, format!("{message}; set `retain` in that one")));
            }
        };
        if self.retain {
            return Ok((visited, None));
        }
        let hooks = std::mem::take(&mut state.hooks);
        let action = if is_spent { std::mem::replace(&mut state.action, Action::Spent) } else { Action::Spent };
        Ok((visited, Some((action, hooks))))
    }

    /// Adds to a leaf's gradient. It owns its memory, in any order without gaps, so that an optimizer may change it in place.
    fn keep(&self, node: &Node, pending: Pending) -> Result<()> {
        let dy = pending.outputs.into_iter().flatten().next();
        let mut state = node.state.lock();
        let (Action::Leaf(kept), Some(Term { value: dy, .. }), None) = (&mut state.action, dy, self.targets) else {
            return Ok(());
        };
        match kept {
            Some(sum) => return accumulate(sum, dy, self.create_graph),
            None if dy.is_unique() && dy.layout().is_dense() => *kept = Some(dy),
            None => *kept = Some(dy.copy()?),
        }
        Ok(())
    }

    /// Runs a node's rule.
    fn gradients(&self, node: &Arc<Node>, rule: Rule, outputs: SmallVec<[Terms; 1]>) -> Result<Gradients> {
        let targets = self.targets.unwrap_or_default();
        let mut t = Backward { node, outputs, create_graph: self.create_graph, targets };
        if let Some(prologue) = rule.prologue.as_ref().filter(|_| !self.create_graph) {
            t.pass_prologue(prologue)?;
        }
        if self.create_graph || !rule.reads_terms {
            t.outputs.iter_mut().try_for_each(|terms| add_up(terms, self.create_graph))?;
        }
        (rule.rest)(&t)
    }

    /// Distributes the gradients of a node's inputs.
    fn distribute(&mut self, node: &Node, gradients: Gradients) -> Result<()> {
        if gradients.len() != node.inputs.len() {
            let message = format!("its rule returned {} gradients for {} inputs", gradients.len(), node.inputs.len());
            return Err(Error::value(node.op, message));
        }
        for (i, (edge, gradient)) in node.inputs.iter().zip(gradients.into_each()).enumerate() {
            let Some(edge) = edge else { continue };
            let terms = match gradient.0 {
                Given::Terms(terms) => terms,
                Given::Part(part) if self.adds_part(edge, &part)? => continue,
                Given::Part(part) => SmallVec::from_iter([part.whole()?.into()]),
                Given::Absent => continue,
                Given::None => {
                    return Err(Error::value(node.op, format!("its rule returned no gradient for input {i}")));
                }
            };
            for term in terms {
                check_gradient(node.op, edge.meta(), &term.value)?;
                if detects_anomaly() {
                    check_finite(node.op, &format!("the gradient of input {i}"), &term.value)?;
                }
                self.deposit(edge, term)?;
            }
        }
        Ok(())
    }

    /// Adds a gradient that is 0 outside of a slice to the slice of an earlier term, if that may change in place.
    fn adds_part(&mut self, edge: &Edge, part: &Part) -> Result<bool> {
        let node = &edge.node;
        let pending = self.pending.get_mut(&node.sequence).filter(|_| !self.create_graph && !node.reads_terms);
        let Some([sum]) = pending.map(|pending| &mut pending.outputs[edge.output][..]) else { return Ok(false) };
        if sum.is_past_prologue || !sum.value.is_unique() || !sum.value.layout().is_dense() {
            return Ok(false);
        }
        let sum = &sum.value;
        if detects_anomaly() {
            check_finite(node.op, "the gradient of a slice", &part.value)?;
        }
        if part.value.numel() > 0 {
            let row = Kernel::Pointwise(Pointwise::Accumulate);
            run("accumulate_grad", row, &[&part.value], &[&part.slice_of(sum)], Attributes::default())?;
            sum.touch();
        }
        Ok(true)
    }

    /// Adds a term to the gradient of a node's output. A second term stays for itself if the node's rule reads terms, or if only one of the
    /// two is past the prologue of the rule.
    fn deposit(&mut self, edge: &Edge, term: Term) -> Result<()> {
        let node = &edge.node;
        let pending = self.pending.entry(node.sequence).or_insert_with(|| Pending {
            node: node.clone(),
            outputs: node.outputs.iter().map(|_| Terms::new()).collect(),
        });
        let terms = &mut pending.outputs[edge.output];
        let is_second = node.reads_terms && terms.len() < 2;
        match terms.iter_mut().rfind(|sum| sum.is_past_prologue == term.is_past_prologue) {
            Some(sum) if !is_second => accumulate(&mut sum.value, term.value, self.create_graph),
            _ => {
                terms.push(term);
                Ok(())
            }
        }
    }
}

/// Leaves the sum of the terms.
fn add_up(terms: &mut Terms, create_graph: bool) -> Result<()> {
    while terms.len() > 1 {
        let term = terms.remove(1);
        accumulate(&mut terms[0].value, term.value, create_graph)?;
    }
    Ok(())
}

/// `sum += term`, in place if nobody else holds the sum, whose dtype may be wider.
fn accumulate(sum: &mut Tensor, term: Tensor, create_graph: bool) -> Result<()> {
    if create_graph || !sum.is_unique() || !sum.layout().is_dense() {
        *sum = sum.add(&term.cast(sum.dtype())?)?;
        return Ok(());
    }
    let is_last = sum.is_channels_last();
    let ordered = |t: &Tensor| if is_last { t.with_layout(t.layout().with_channels_at_end()) } else { t.clone() };
    let row = Kernel::Pointwise(Pointwise::Accumulate);
    run("accumulate_grad", row, &[&ordered(&term)], &[&ordered(sum)], Attributes::default())?;
    sum.touch();
    Ok(())
}
