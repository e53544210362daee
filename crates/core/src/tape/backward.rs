//! The engine: visits nodes in reverse order, adds gradients up, frees what it has used.

use super::observe::Visit;
use super::{ANOMALY, Action, Backward, Edge, MODE, Meta, Mode, Node, check_finite, with_flag};
use crate::backend::Kernel;
use crate::pointwise::Pointwise;
use crate::tensor::{Attributes, run};
use crate::{Error, Result, Tensor};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a backward pass is done.
#[derive(Clone, Debug, Default)]
pub struct BackwardOptions {
    /// The gradient to start from; ones if absent, which needs a tensor of one element.
    pub gradient: Option<Tensor>,
    /// Keep the tape for another pass.
    pub retain: bool,
    /// Record the pass itself, so that its gradients can be differentiated. Retains the tape too.
    pub create_graph: bool,
}

impl Tensor {
    /// Adds this tensor's gradient with respect to every leaf to the leaf's [`grad`](Tensor::grad) and frees the tape.
    /// Errors: `Shape` unless there is one element; `Value` if the tape is spent or the tensor is not on it.
    pub fn backward(&self) -> Result<()> {
        self.backward_with(BackwardOptions::default())
    }

    /// [`backward`](Tensor::backward) with options.
    pub fn backward_with(&self, options: BackwardOptions) -> Result<()> {
        crate::autocast::backward(|| engine("backward", self, &options, None).map(drop))
    }
}

/// The gradients of `y` with respect to `inputs`. No leaf's [`grad`](Tensor::grad) changes. Frees the tape.
/// Errors: as [`Tensor::backward`], and `Value` if `y` does not depend on an input.
pub fn grad(y: &Tensor, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    grad_with(y, inputs, BackwardOptions::default())
}

/// [`grad`] with options; `create_graph` is the way to higher derivatives.
pub fn grad_with(y: &Tensor, inputs: &[&Tensor], options: BackwardOptions) -> Result<Vec<Tensor>> {
    let missing = |i: usize| Error::value("grad", format!("input {i} does not require a gradient"));
    let targets: Vec<&Edge> =
        inputs.iter().enumerate().map(|(i, t)| t.0.edge.as_ref().ok_or_else(|| missing(i))).collect::<Result<_>>()?;
    let found = crate::autocast::backward(|| engine("grad", y, &options, Some(&targets)))?;
    let unused = |i: usize| Error::value("grad", format!("the result does not depend on input {i}"));
    found.into_iter().enumerate().map(|(i, g)| g.ok_or_else(|| unused(i))).collect()
}

/// What a node is going to receive.
struct Pending {
    node: Arc<Node>,
    dy: Option<Tensor>,
    /// What is past the row that the node's rule begins with.
    past: Option<Tensor>,
}

fn engine(
    op: &'static str,
    root: &Tensor,
    options: &BackwardOptions,
    targets: Option<&[&Edge]>,
) -> Result<Vec<Option<Tensor>>> {
    let edge = root.0.edge.as_ref().ok_or_else(|| {
        Error::value(
            op,
            "the tensor is not on the tape: no input of it requires a gradient, or it was made in `no_grad`",
        )
    })?;
    let dy = match &options.gradient {
        Some(gradient) => gradient.clone(),
        None if root.numel() == 1 => Tensor::ones(root.shape(), root.dtype(), root.device())?,
        None => {
            let message = format!("{} has {} elements; give a gradient to start from", root.shape(), root.numel());
            return Err(Error::shape(op, message));
        }
    };
    check_gradient(op, &edge.output, &dy)?;
    let mut pass = Pass {
        op,
        retain: options.retain || options.create_graph,
        create_graph: options.create_graph,
        targets,
        found: vec![None; targets.map_or(0, <[_]>::len)],
        pending: BTreeMap::new(),
    };
    let mode = if options.create_graph { Mode::On } else { Mode::Off };
    with_flag(&MODE, mode, || {
        pass.deposit(edge, dy, false)?;
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
}

impl Pass<'_> {
    fn run(&mut self) -> Result<()> {
        // Below the oldest target nothing is asked for.
        let oldest = self.targets.and_then(|t| t.iter().map(|e| e.sequence).min()).unwrap_or(0);
        while let Some((sequence, pending)) = self.pending.pop_last() {
            if sequence < oldest {
                break;
            }
            self.visit(pending)?;
        }
        Ok(())
    }

    fn visit(&mut self, Pending { node, mut dy, past }: Pending) -> Result<()> {
        let _visit = Visit::new(&node);
        let hooks = node.state.lock().hooks.clone();
        if past.is_some() && !hooks.is_empty() {
            let message = format!("the pass had come by the result of `{}` when a hook was put on it", node.op);
            return Err(Error::value("register_hook", message));
        }
        if let Some(dy) = &mut dy {
            for (_, hook) in hooks {
                if let Some(replaced) = hook(dy)? {
                    check_gradient("hook", &node.output, &replaced)?;
                    *dy = replaced;
                }
            }
            for (target, found) in self.targets.unwrap_or_default().iter().zip(&mut self.found) {
                if Arc::ptr_eq(target, &node) {
                    *found = Some(dy.clone());
                }
            }
        }
        let mut state = node.state.lock();
        match (&mut state.action, dy) {
            (Action::Leaf(kept), Some(dy)) => {
                if self.targets.is_none() {
                    keep(kept, dy, self.create_graph)?;
                }
                Ok(())
            }
            (Action::Spent, _) => Err(Error::value(
                self.op,
                format!("the tape through `{}` is spent by an earlier pass; set `retain` in that one", node.op),
            )),
            (Action::Rule(rule), dy) => {
                let rule = rule.clone();
                let used = self.spend(&mut state.action);
                drop(state);
                let mut dy = match (&rule.first, dy) {
                    (Some(first), Some(dy)) if !self.create_graph => Some(self.backward(&node, dy).first(first)?),
                    (_, dy) => dy,
                };
                if let Some(past) = past {
                    add(&mut dy, past, self.create_graph)?;
                }
                let Some(dy) = dy else { return Ok(()) };
                let backward = self.backward(&node, dy);
                let gradients = (rule.rest)(&backward)?;
                let past = backward.past.take();
                drop((rule, used, backward));
                self.distribute(&node, gradients, &past)
            }
            (Action::Replay(replay), Some(dy)) => {
                let replay = replay.clone();
                let used = self.spend(&mut state.action);
                drop(state);
                let output = with_flag(&MODE, Mode::On, || replay())?;
                drop((replay, used));
                let edge = output.0.edge.as_ref();
                let edge = edge.ok_or_else(|| Error::value(node.op, "the recomputed output is not on the tape"))?;
                self.deposit(edge, dy, false)
            }
            // What has no rule received nothing past it.
            (Action::Leaf(_) | Action::Replay(_), None) => Ok(()),
        }
    }

    fn backward<'n>(&'n self, node: &'n Arc<Node>, dy: Tensor) -> Backward<'n> {
        let targets = self.targets.unwrap_or_default();
        Backward { node, dy, create_graph: self.create_graph, targets, past: RefCell::default() }
    }

    fn spend(&self, action: &mut Action) -> Option<Action> {
        if self.retain { None } else { Some(std::mem::replace(action, Action::Spent)) }
    }

    /// Hands the gradients of a node's inputs on, of which `past` are past the row that the input's rule begins with.
    fn distribute(&mut self, node: &Arc<Node>, gradients: super::Gradients, past: &[usize]) -> Result<()> {
        if gradients.len() != node.inputs.len() {
            let message = format!("its rule returned {} gradients for {} inputs", gradients.len(), node.inputs.len());
            return Err(Error::value(node.op, message));
        }
        for (i, (edge, gradient)) in node.inputs.iter().zip(gradients).enumerate() {
            let Some(edge) = edge else { continue };
            let gradient = gradient
                .ok_or_else(|| Error::value(node.op, format!("its rule returned no gradient for input {i}")))?;
            check_gradient(node.op, &edge.output, &gradient)?;
            if ANOMALY.get() {
                check_finite(node.op, &format!("the gradient of input {i}"), &gradient)?;
            }
            self.deposit(edge, gradient, past.contains(&i))?;
        }
        Ok(())
    }

    /// Adds a contribution to what a node is going to receive.
    fn deposit(&mut self, edge: &Edge, gradient: Tensor, is_past: bool) -> Result<()> {
        let empty = || Pending { node: edge.clone(), dy: None, past: None };
        let pending = self.pending.entry(edge.sequence).or_insert_with(empty);
        add(if is_past { &mut pending.past } else { &mut pending.dy }, gradient, self.create_graph)
    }
}

/// Adds to a sum that may not have begun.
fn add(sum: &mut Option<Tensor>, term: Tensor, create_graph: bool) -> Result<()> {
    match sum {
        Some(sum) => accumulate(sum, term, create_graph),
        None => {
            *sum = Some(term);
            Ok(())
        }
    }
}

/// `sum += term`, in place where nobody else sees the sum.
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

/// Adds to a leaf's gradient, which owns its memory: an optimizer may change it in place.
fn keep(kept: &mut Option<Tensor>, dy: Tensor, create_graph: bool) -> Result<()> {
    match kept {
        Some(sum) => accumulate(sum, dy, create_graph),
        None if create_graph || (dy.is_unique() && dy.is_contiguous()) => {
            *kept = Some(dy);
            Ok(())
        }
        None => {
            *kept = Some(dy.copy()?);
            Ok(())
        }
    }
}

/// Errors unless a gradient has the shape, dtype and device of what it belongs to.
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
