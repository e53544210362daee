//! The engine: visits nodes in reverse order, sums gradients, and frees what it has used.

use super::observe::Visit;
use super::rule::{Rule, Terms};
use super::{
    ANOMALY, Action, Backward, Edge, Gradient, Gradients, HOOKED_LEAVES, MODE, Meta, Mode, Node, OutputHook, Replay,
    check_finite, with_flag,
};
use crate::backend::Kernel;
use crate::pointwise::Pointwise;
use crate::tensor::{Attributes, run};
use crate::{Error, Result, Tensor, no_autocast};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The options of a backward pass.
#[derive(Clone, Debug, Default)]
pub struct BackwardOptions {
    /// The initial gradient. The default is ones, for a tensor of one element only.
    pub gradient: Option<Tensor>,
    /// Retains the tape for another pass.
    pub retain: bool,
    /// Records the pass itself, so that its gradients can be differentiated. Also retains the tape.
    pub create_graph: bool,
}

impl Tensor {
    /// Adds this tensor's gradient with respect to every leaf to the leaf's [`grad`](Tensor::grad) and frees the tape.
    /// Errors: `Shape` unless there is one element; `Value` if the tape is spent or the tensor is not on it.
    pub fn backward(&self) -> Result<()> {
        self.backward_with(&BackwardOptions::default())
    }

    /// [`backward`](Tensor::backward) with options.
    pub fn backward_with(&self, options: &BackwardOptions) -> Result<()> {
        let gradient = starting_gradient("backward", self, options)?;
        no_autocast(|| engine("backward", [(self, gradient)], options, None).map(drop))
    }
}

/// The gradients of `y` with respect to `inputs`. The leaves' [`grad`](Tensor::grad) does not change. Frees the tape. Each result
/// owns its memory. A gradient that is constant along a dimension, such as a mean's, may be an expanded view, which cannot be
/// changed in place. Errors: as [`Tensor::backward`], and `Value` if `y` does not depend on an input.
pub fn grad(y: &Tensor, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    grad_with(y, inputs, &BackwardOptions::default())
}

/// [`grad`] with options. `create_graph` allows higher derivatives.
pub fn grad_with(y: &Tensor, inputs: &[&Tensor], options: &BackwardOptions) -> Result<Vec<Tensor>> {
    let gradient = starting_gradient("grad", y, options)?;
    let found = gradients_from([(y, gradient)], inputs, options)?;
    let unused = |i: usize| Error::value("grad", format!("the result does not depend on input {i}"));
    handed_out(found, options, unused)
}

/// The sum of the gradients of several results with respect to `inputs`; each result is given with its own gradient. Nodes that the
/// results share are visited once. Errors: as [`grad`]; `Value` if `options` has a gradient too.
///
/// ```
/// # use isograd_core::{Result, Tensor, tape::{self, BackwardOptions}};
/// /// `d(sum(u * y) + sum(v * z)) / dx`.
/// fn of_both(y: &Tensor, u: Tensor, z: &Tensor, v: Tensor, x: &Tensor) -> Result<Tensor> {
///     Ok(tape::grad_from(&[(y, u), (z, v)], &[x], &BackwardOptions::default())?.swap_remove(0))
/// }
/// ```
pub fn grad_from(roots: &[(&Tensor, Tensor)], inputs: &[&Tensor], options: &BackwardOptions) -> Result<Vec<Tensor>> {
    if options.gradient.is_some() {
        return Err(Error::value("grad", "each result has a gradient of its own; the options have another"));
    }
    let unused = |i: usize| Error::value("grad", format!("no result depends on input {i}"));
    let found = gradients_from(roots.iter().cloned(), inputs, options)?;
    handed_out(found, options, unused)
}

/// [`grad_from`], with `None` for an input on which no result depends.
pub(crate) fn gradients_from<'r>(
    roots: impl IntoIterator<Item = (&'r Tensor, Tensor)>,
    inputs: &[&Tensor],
    options: &BackwardOptions,
) -> Result<Vec<Option<Tensor>>> {
    let missing = |i: usize| Error::value("grad", format!("input {i} does not require a gradient"));
    let targets: Vec<&Edge> =
        inputs.iter().enumerate().map(|(i, t)| t.edge().ok_or_else(|| missing(i))).collect::<Result<_>>()?;
    no_autocast(|| engine("grad", roots, options, Some(&targets)))
}

/// Prepares gradients for the caller: all must exist, and each gets its own memory. A rule may return its given gradient or a saved
/// tensor, and the same gradient for several inputs.
fn handed_out(
    found: Vec<Option<Tensor>>,
    options: &BackwardOptions,
    missing: impl Fn(usize) -> Error,
) -> Result<Vec<Tensor>> {
    let one = |(i, gradient): (usize, Option<Tensor>)| {
        let gradient = gradient.ok_or_else(|| missing(i))?;
        if gradient.is_unique() { Ok(gradient) } else { gradient.copy() }
    };
    let mode = if options.create_graph { Mode::On } else { Mode::Off };
    with_flag(&MODE, mode, || found.into_iter().enumerate().map(one).collect())
}

/// The initial gradient of a pass from `y`.
fn starting_gradient(op: &'static str, y: &Tensor, options: &BackwardOptions) -> Result<Tensor> {
    edge_of(op, y)?;
    match &options.gradient {
        Some(gradient) => Ok(gradient.clone()),
        None if y.numel() == 1 => Tensor::ones(y.shape(), y.dtype(), y.device()),
        None => {
            let message = format!("{} has {} elements; give a gradient to start from", y.shape(), y.numel());
            Err(Error::shape(op, message))
        }
    }
}

fn edge_of<'t>(op: &'static str, y: &'t Tensor) -> Result<&'t Edge> {
    let message = "the tensor is not on the tape: no input of it requires a gradient, or it was made in `no_grad`";
    y.edge().ok_or_else(|| Error::value(op, message))
}

/// The gradients received so far by a node.
struct Pending {
    node: Arc<Node>,
    /// The sum of the gradients of each output.
    outputs: SmallVec<[Option<Tensor>; 1]>,
    /// The part of the only output's gradient to which the prologue of the node's rule has been applied.
    after_prologue: Option<Tensor>,
    /// A further term of the only output's gradient, which the node's rule, or that of the node behind its views, adds.
    further: Option<Tensor>,
}

impl Pending {
    /// With the gradient of a node's only output.
    fn of(node: &Arc<Node>, gradient: Tensor) -> Pending {
        let outputs = SmallVec::from_iter([Some(gradient)]);
        Pending { node: node.clone(), outputs, after_prologue: None, further: None }
    }
}

fn engine<'r>(
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
        due: HashMap::new(),
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
            pass.due = last_uses(&nodes);
        }
        pass.run()
    })?;
    Ok(pass.found)
}

/// For each node after which gradients of hooked leaves are complete: the sequence numbers of these leaves. Leaves are the oldest
/// nodes, and without this their hooks would run at the end of the pass.
fn last_uses(roots: &[&Arc<Node>]) -> HashMap<u64, SmallVec<[u64; 2]>> {
    let mut due: HashMap<u64, SmallVec<[u64; 2]>> = HashMap::new();
    first_users(roots, 0).into_iter().for_each(|(leaf, user)| due.entry(user).or_default().push(leaf));
    due
}

/// The oldest node from `start` on that uses each hooked leaf, by their sequence numbers. A replay uses what it will read.
fn first_users(roots: &[&Arc<Node>], start: u64) -> BTreeMap<u64, u64> {
    let mut first: BTreeMap<u64, u64> = BTreeMap::new();
    let mut seen: HashSet<u64> = roots.iter().map(|node| node.sequence).collect();
    let mut stack: Vec<Arc<Node>> = roots.iter().map(|node| (*node).clone()).collect();
    while let Some(node) = stack.pop() {
        let uses = match &node.state.lock().action {
            Action::Replay(replay) => replay.uses.clone(),
            _ => Arc::default(),
        };
        for input in node.inputs.iter().flatten().map(|edge| &edge.node).chain(&*uses) {
            let state = input.state.lock();
            if !matches!(state.action, Action::Leaf(_)) {
                if input.sequence >= start && seen.insert(input.sequence) {
                    stack.push(input.clone());
                }
            } else if !state.hooks.is_empty() {
                let user = first.entry(input.sequence).or_insert(node.sequence);
                *user = node.sequence.min(*user);
            }
        }
    }
    first
}

struct Pass<'a> {
    op: &'static str,
    retain: bool,
    create_graph: bool,
    targets: Option<&'a [&'a Edge]>,
    found: Vec<Option<Tensor>>,
    pending: BTreeMap<u64, Pending>,
    /// Leaves whose gradients are complete after a node's visit.
    due: HashMap<u64, SmallVec<[u64; 2]>>,
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
            for leaf in self.due.remove(&sequence).into_iter().flatten().rev() {
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
        if self.is_seen(&node) {
            let further = pending.further.take();
            further.map_or(Ok(()), |further| add(&mut pending.outputs[0], further, self.create_graph))?;
        }
        run_hooks(&mut pending)?;
        self.collect(&pending);
        let (action, used) = self.take(&node)?;
        match action {
            Visited::Leaf => self.keep(&node, pending),
            Visited::Rule(rule) => {
                let further = if rule.terms == Terms::Each { pending.further.take() } else { None };
                let second = further.map(|further| Pending::of(&node, further));
                let second = second.map(|second| self.gradients(&node, rule.clone(), second)).transpose()?;
                let gradients = self.gradients(&node, rule, pending)?;
                drop(used);
                self.distribute(&node, gradients)?;
                second.map_or(Ok(()), |gradients| self.distribute(&node, gradients))
            }
            Visited::Replay(replay) => {
                let outputs = with_flag(&MODE, Mode::On, || (replay.run)())?;
                drop((replay, used));
                let mut nodes = Vec::new();
                for (output, dy) in outputs.iter().zip(pending.outputs) {
                    let Some(dy) = dy else { continue };
                    let edge = output.0.edge.as_ref();
                    let edge = edge.ok_or_else(|| Error::value(node.op, "the recomputed output is not on the tape"))?;
                    self.deposit(edge, dy.into())?;
                    nodes.push(&edge.node);
                }
                self.pass_on(node.sequence, &nodes);
                Ok(())
            }
        }
    }

    /// Leaves that are complete after a replay are so after the last of its own nodes that uses them.
    fn pass_on(&mut self, replay: u64, roots: &[&Arc<Node>]) {
        let Some(leaves) = self.due.remove(&replay) else { return };
        let users = first_users(roots, replay + 1);
        for leaf in leaves {
            if let Some(user) = users.get(&leaf) {
                self.due.entry(*user).or_default().push(leaf);
            }
        }
    }

    /// Keeps the gradients of targets.
    fn collect(&mut self, pending: &Pending) {
        for (target, found) in self.targets.unwrap_or_default().iter().zip(&mut self.found) {
            if Arc::ptr_eq(&target.node, &pending.node) {
                found.clone_from(&pending.outputs[target.output]);
            }
        }
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

    fn keep(&self, node: &Node, pending: Pending) -> Result<()> {
        let dy = pending.outputs.into_iter().next().flatten();
        match (&mut node.state.lock().action, dy, self.targets) {
            (Action::Leaf(kept), Some(dy), None) => keep(kept, dy, self.create_graph),
            _ => Ok(()),
        }
    }

    /// Runs a node's rule.
    fn gradients(&self, node: &Arc<Node>, rule: Rule, pending: Pending) -> Result<Gradients> {
        let (mut outputs, further) = (pending.outputs, pending.further);
        if let (Some(prologue), [Some(_)], false) = (&rule.prologue, &outputs[..], self.create_graph) {
            let dy = self.backward(node, std::mem::take(&mut outputs), None).apply(prologue)?;
            outputs = SmallVec::from_iter([Some(dy)]);
        }
        if let Some(gradient) = pending.after_prologue {
            add(&mut outputs[0], gradient, self.create_graph)?;
        }
        (rule.rest)(&self.backward(node, outputs, further))
    }

    fn backward<'n>(
        &'n self,
        node: &'n Arc<Node>,
        outputs: SmallVec<[Option<Tensor>; 1]>,
        further: Option<Tensor>,
    ) -> Backward<'n> {
        let targets = self.targets.unwrap_or_default();
        Backward { node, outputs, further, create_graph: self.create_graph, targets }
    }

    /// True if a hook or the caller reads the gradient of the node's outputs.
    fn is_seen(&self, node: &Arc<Node>) -> bool {
        let is_target = self.targets.unwrap_or_default().iter().any(|target| Arc::ptr_eq(&target.node, node));
        is_target || !node.state.lock().hooks.is_empty()
    }

    /// True if the node takes two terms of its gradient that are not added up.
    fn takes_terms(&self, node: &Arc<Node>) -> bool {
        if self.create_graph || ANOMALY.get() || self.is_seen(node) {
            return false;
        }
        let terms = match &node.state.lock().action {
            Action::Rule(rule) => rule.terms,
            _ => Terms::Sum,
        };
        match (terms, &node.inputs[..]) {
            (Terms::Both, _) => true,
            (Terms::Each, [Some(edge)]) => self.takes_terms(&edge.node),
            _ => false,
        }
    }

    /// Distributes the gradients of a node's inputs.
    fn distribute(&mut self, node: &Node, gradients: Gradients) -> Result<()> {
        if gradients.len() != node.inputs.len() {
            let message = format!("its rule returned {} gradients for {} inputs", gradients.len(), node.inputs.len());
            return Err(Error::value(node.op, message));
        }
        for (i, (edge, gradient)) in node.inputs.iter().zip(gradients.into_each()).enumerate() {
            let Some(edge) = edge else { continue };
            if gradient.is_absent {
                continue;
            }
            let Some(value) = &gradient.value else {
                return Err(Error::value(node.op, format!("its rule returned no gradient for input {i}")));
            };
            check_gradient(node.op, edge.meta(), value)?;
            if ANOMALY.get() {
                check_finite(node.op, &format!("the gradient of input {i}"), value)?;
            }
            self.deposit(edge, gradient)?;
        }
        Ok(())
    }

    /// Adds a contribution to the gradients of a node.
    fn deposit(&mut self, edge: &Edge, gradient: Gradient) -> Result<()> {
        let Gradient { value: Some(value), is_past_prologue, .. } = gradient else { return Ok(()) };
        let is_first = |pending: &Pending| pending.outputs[edge.output].is_none() || pending.further.is_some();
        let is_further = !is_past_prologue
            && self.pending.get(&edge.node.sequence).is_some_and(|pending| !is_first(pending))
            && self.takes_terms(&edge.node);
        let pending = self.pending.entry(edge.node.sequence).or_insert_with(|| Pending {
            node: edge.node.clone(),
            outputs: edge.node.outputs.iter().map(|_| None).collect(),
            after_prologue: None,
            further: None,
        });
        if is_further {
            pending.further = Some(value);
            return Ok(());
        }
        let sum = if is_past_prologue { &mut pending.after_prologue } else { &mut pending.outputs[edge.output] };
        add(sum, value, self.create_graph)
    }
}

/// Runs the hooks of a node's outputs on their gradients.
fn run_hooks(pending: &mut Pending) -> Result<()> {
    let node = &pending.node;
    let hooks = node.state.lock().hooks.clone();
    if pending.after_prologue.is_some() && !hooks.is_empty() {
        let message = format!("the pass had come by the result of `{}` when a hook was put on it", node.op);
        return Err(Error::value("register_hook", message));
    }
    for OutputHook { output, f, .. } in hooks {
        if let Some(dy) = &mut pending.outputs[output]
            && let Some(replaced) = f(dy)?
        {
            check_gradient("hook", &node.outputs[output], &replaced)?;
            *dy = replaced;
        }
    }
    Ok(())
}

/// Adds a term to a sum that may be empty.
fn add(sum: &mut Option<Tensor>, term: Tensor, create_graph: bool) -> Result<()> {
    match sum {
        Some(sum) => accumulate(sum, term, create_graph),
        None => {
            *sum = Some(term);
            Ok(())
        }
    }
}

/// `sum += term`, in place if nobody else holds the sum.
fn accumulate(sum: &mut Tensor, term: Tensor, create_graph: bool) -> Result<()> {
    if create_graph || !sum.is_unique() || !sum.is_contiguous() {
        *sum = sum.add(&term)?;
        return Ok(());
    }
    let row = Kernel::Pointwise(Pointwise::Accumulate);
    run("accumulate_grad", row, &[&term], &[sum], Attributes::default())?;
    sum.touch();
    Ok(())
}

/// Adds to a leaf's gradient. It owns its memory, in any order without gaps, so that an optimizer may change it in place.
fn keep(kept: &mut Option<Tensor>, dy: Tensor, create_graph: bool) -> Result<()> {
    match kept {
        Some(sum) => accumulate(sum, dy, create_graph),
        None => {
            *kept = Some(if dy.is_unique() && dy.layout().is_dense() { dy } else { dy.copy()? });
            Ok(())
        }
    }
}

/// Checks that a gradient has the expected shape, dtype and device.
pub(super) fn check_gradient(op: &'static str, expected: &Meta, gradient: &Tensor) -> Result<()> {
    if *gradient.shape() != expected.shape {
        let message = format!("a gradient has shape {}, expected {}", gradient.shape(), expected.shape);
        return Err(Error::shape(op, message));
    }
    if gradient.dtype() != expected.dtype {
        let message = format!("a gradient is {}, expected {}", gradient.dtype(), expected.dtype);
        return Err(Error::dtype(op, message));
    }
    if *gradient.device() != expected.device {
        let message = format!("a gradient is on {}, expected {}", gradient.device(), expected.device);
        return Err(Error::device(op, message));
    }
    Ok(())
}
