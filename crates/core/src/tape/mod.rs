//! The tape: the op that made each tensor, and the rule that computes its gradients.
//!
//! An op with an input on the tape appends a node. Nodes have sequence numbers. A node's number is larger than its inputs'
//! numbers, so a visit in reverse order needs no sorting. A rule only returns gradients; the engine adds them,
//! unless a rule takes two terms and its kernel adds them.

mod backward;
mod checkpoint;
mod gradcheck;
mod observe;
mod print;
mod rule;
mod trace;
mod watch;

pub use backward::{BackwardOptions, grad, grad_from, grad_with};
pub use checkpoint::{checkpoint, undone};
pub use gradcheck::{GradcheckOptions, gradcheck, gradgradcheck};
pub use observe::{Event, observe};
pub use print::{graphviz, text};
pub use rule::{Backward, Gradient, Gradients, Saved};
pub use trace::{Attribute, Op, Ran, Step, trace};

pub(crate) use backward::gradients_from;
pub(crate) use rule::Prologue;
pub(crate) use trace::{is_traced, report, report_kernel};
pub(crate) use watch::{note_read, note_write};

use crate::check::check_float;
use crate::{DType, Device, Error, Result, Shape, Tensor};
use parking_lot::Mutex;
use rule::{Rule, Terms};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// A computation that a backward pass repeats.
#[derive(Clone)]
struct Replay {
    /// Computes the outputs, on the tape.
    run: Arc<dyn Fn() -> Result<SmallVec<[Tensor; 1]>> + Send + Sync>,
    /// The nodes of all tensors on the tape that it reads, inputs and captured ones.
    uses: Arc<Vec<Arc<Node>>>,
}

type HookFn = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;

/// An output of a node. A tensor's edge leads to the node that made it.
#[derive(Clone)]
pub(crate) struct Edge {
    node: Arc<Node>,
    output: usize,
}

impl Edge {
    /// True for the same output of the same node.
    fn is(&self, other: &Edge) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.output == other.output
    }

    /// True for a leaf that ops treat as a constant.
    pub(crate) fn is_frozen(&self) -> bool {
        self.node.is_frozen.load(Ordering::Relaxed)
    }

    fn meta(&self) -> &Meta {
        &self.node.outputs[self.output]
    }
}

/// One op's entry on the tape.
struct Node {
    sequence: u64,
    op: &'static str,
    inputs: SmallVec<[Option<Edge>; 2]>,
    outputs: SmallVec<[Meta; 1]>,
    is_frozen: AtomicBool,
    state: Mutex<State>,
}

struct State {
    action: Action,
    hooks: Vec<OutputHook>,
}

#[derive(Clone)]
struct OutputHook {
    id: u64,
    output: usize,
    f: HookFn,
}

enum Action {
    /// Keeps the gradient.
    Leaf(Option<Tensor>),
    /// Returns the gradients of the inputs.
    Rule(Rule),
    /// Computes the outputs again, on the tape, and continues with their gradients there.
    Replay(Replay),
    /// Has been used; its saved tensors are freed.
    Spent,
}

/// The expected shape, dtype and device of a gradient.
struct Meta {
    shape: Shape,
    dtype: DType,
    device: Device,
}

impl Meta {
    fn of(t: &Tensor) -> Meta {
        Meta { shape: t.shape().clone(), dtype: t.dtype(), device: t.device().clone() }
    }

    fn zeros(&self) -> Result<Tensor> {
        Tensor::zeros(&self.shape, self.dtype, &self.device)
    }
}

static SEQUENCE: AtomicU64 = AtomicU64::new(0);

/// The number of hooks of living leaves.
static HOOKED_LEAVES: AtomicUsize = AtomicUsize::new(0);

impl Node {
    fn new(
        op: &'static str,
        inputs: SmallVec<[Option<Edge>; 2]>,
        outputs: SmallVec<[Meta; 1]>,
        action: Action,
    ) -> Arc<Node> {
        let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        observe::notify(Event::Recorded { node: sequence, op });
        let state = Mutex::new(State { action, hooks: Vec::new() });
        Arc::new(Node { sequence, op, inputs, outputs, is_frozen: AtomicBool::new(false), state })
    }
}

thread_local! {
    /// Contents of dead nodes. They are dropped one at a time, so that a chain of any length needs no stack.
    static GRAVEYARD: RefCell<(bool, Vec<Remains>)> = const { RefCell::new((false, Vec::new())) };
}

type Remains = (SmallVec<[Option<Edge>; 2]>, Action);

impl Drop for Node {
    fn drop(&mut self) {
        let inputs = std::mem::take(&mut self.inputs);
        let state = self.state.get_mut();
        let action = std::mem::replace(&mut state.action, Action::Spent);
        if matches!(action, Action::Leaf(_)) {
            HOOKED_LEAVES.fetch_sub(state.hooks.len(), Ordering::Relaxed);
        }
        if inputs.iter().all(Option::is_none) && !matches!(action, Action::Rule(_) | Action::Replay(_)) {
            return;
        }
        bury((inputs, action));
    }
}

/// Drops the contents of a node without recursion: the outermost call on this thread drops for all.
fn bury(remains: Remains) {
    let mut remains = Some(remains);
    let first = GRAVEYARD.try_with(|graveyard| {
        let mut graveyard = graveyard.borrow_mut();
        graveyard.1.extend(remains.take());
        !std::mem::replace(&mut graveyard.0, true)
    });
    // The graveyard of an ending thread is gone; its contents are then dropped directly.
    if first != Ok(true) {
        return;
    }
    while let Ok(Some(next)) = GRAVEYARD.try_with(|graveyard| graveyard.borrow_mut().1.pop()) {
        drop(next);
    }
    let _ = GRAVEYARD.try_with(|graveyard| graveyard.borrow_mut().0 = false);
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    On,
    Off,
    /// Records nothing, but notes whether an op would have been recorded.
    Probe,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::On) };
    static PROBED: Cell<bool> = const { Cell::new(false) };
    /// The nodes of the operands of ops that a probe would have recorded, each once.
    static USED: RefCell<Vec<Arc<Node>>> = const { RefCell::new(Vec::new()) };
    static ANOMALY: Cell<bool> = const { Cell::new(false) };
}

/// Restores a thread-local flag even if the closure panics.
struct Restore<T: Copy + 'static>(&'static std::thread::LocalKey<Cell<T>>, T);

impl<T: Copy> Drop for Restore<T> {
    fn drop(&mut self) {
        let _ = self.0.try_with(|cell| cell.set(self.1));
    }
}

pub(crate) fn with_flag<T: Copy, R>(
    key: &'static std::thread::LocalKey<Cell<T>>,
    value: T,
    f: impl FnOnce() -> R,
) -> R {
    let _restore = Restore(key, key.replace(value));
    f()
}

/// Runs `f` without recording on this thread.
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    with_flag(&MODE, Mode::Off, f)
}

/// Runs `f` with recording on this thread, inside a [`no_grad`].
pub fn enable_grad<R>(f: impl FnOnce() -> R) -> R {
    with_flag(&MODE, Mode::On, f)
}

/// True if ops of this thread are recorded.
pub fn is_grad_enabled() -> bool {
    MODE.get() == Mode::On
}

/// Runs `f`, and turns the first op whose output or gradient is not finite into an error that names it. It reads every result back
/// and is slow.
pub fn detect_anomaly<R>(f: impl FnOnce() -> R) -> R {
    with_flag(&ANOMALY, true, f)
}

/// In anomaly detection, returns an error if a tensor is not finite.
fn check_finite(op: &'static str, what: &str, t: &Tensor) -> Result<()> {
    if !ANOMALY.get() || !t.dtype().is_float() {
        return Ok(());
    }
    let values = with_flag(&ANOMALY, false, || t.to_f64_vec())?;
    match values.iter().position(|v| !v.is_finite()) {
        Some(i) => Err(Error::value(op, format!("{what} is {} at element {i} of {}", values[i], t.shape()))),
        None => Ok(()),
    }
}

pub(crate) fn leaf_edge(t: &Tensor) -> Edge {
    let node = Node::new("leaf", SmallVec::new(), SmallVec::from_iter([Meta::of(t)]), Action::Leaf(None));
    Edge { node, output: 0 }
}

/// Puts an op on the tape: `output` was computed from `inputs`, and `rule` returns their gradients.
///
/// If no input requires a gradient, or within [`no_grad`], nothing is recorded and `output` is returned as it is. `output` must be
/// fresh: nobody else holds it. The rule returns an array or a vector of `Option<Tensor>`, one for each input. An op defined outside of isograd gets its gradient in this way; check it with [`gradcheck`]. The
/// rule must keep its tensors as [`Saved`], so that a change in place is detected.
pub fn record<G: Into<Gradients>>(
    op: &'static str,
    inputs: &[&Tensor],
    output: Tensor,
    rule: impl Fn(&Backward<'_>) -> Result<G> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_after(op, inputs, output, None, rule)
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
    record_several(op, inputs, outputs, rule, false)
}

/// [`record_outputs`] for a rule without saved tensors, as [`record_stateless`].
pub(crate) fn record_stateless_outputs<G: Into<Gradients>>(
    op: &'static str,
    inputs: &[&Tensor],
    outputs: Vec<Tensor>,
    rule: impl Fn(&Backward<'_>) -> Result<G> + Send + Sync + 'static,
) -> Result<Vec<Tensor>> {
    record_several(op, inputs, outputs, rule, true)
}

fn record_several<G: Into<Gradients>>(
    op: &'static str,
    inputs: &[&Tensor],
    outputs: Vec<Tensor>,
    rule: impl Fn(&Backward<'_>) -> Result<G> + Send + Sync + 'static,
    is_stateless: bool,
) -> Result<Vec<Tensor>> {
    Ok(record_rule(op, inputs, outputs.into(), rule_of(rule, is_stateless, Terms::Sum))?.into_vec())
}

fn rule_of<G: Into<Gradients>>(
    rule: impl Fn(&Backward<'_>) -> Result<G> + Send + Sync + 'static,
    is_stateless: bool,
    terms: Terms,
) -> Rule {
    Rule { prologue: None, rest: Arc::new(move |t: &Backward<'_>| Ok(rule(t)?.into())), is_stateless, terms }
}

/// [`record`] for a rule without saved tensors. A pass has nothing to free and leaves the rule usable, as `retain` does.
pub(crate) fn record_stateless<G: Into<Gradients>>(
    op: &'static str,
    inputs: &[&Tensor],
    output: Tensor,
    rule: impl Fn(&Backward<'_>) -> Result<G> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_one(op, inputs, output, rule_of(rule, true, Terms::Sum))
}

/// [`record`] for the same elements in another order or shape, whose rule computes nothing: terms of the gradient pass without being added
/// up.
pub(crate) fn record_view<G: Into<Gradients>>(
    op: &'static str,
    input: &Tensor,
    output: Tensor,
    rule: impl Fn(&Backward<'_>) -> Result<G> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_one(op, &[input], output, rule_of(rule, false, Terms::Each))
}

/// [`record`] for a rule that adds a term of its gradient to another, [`Backward::further`], itself.
pub(crate) fn record_adding<G: Into<Gradients>>(
    op: &'static str,
    inputs: &[&Tensor],
    output: Tensor,
    rule: impl Fn(&Backward<'_>) -> Result<G> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_one(op, inputs, output, rule_of(rule, false, Terms::Both))
}

/// [`record`] for a rule with a prologue. `rule` receives `dy` after the prologue, or `dy` itself with `create_graph`.
pub(crate) fn record_after<G: Into<Gradients>>(
    op: &'static str,
    inputs: &[&Tensor],
    output: Tensor,
    prologue: Option<Arc<Prologue>>,
    rule: impl Fn(&Backward<'_>) -> Result<G> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_one(op, inputs, output, Rule { prologue, ..rule_of(rule, false, Terms::Sum) })
}

fn record_one(op: &'static str, inputs: &[&Tensor], output: Tensor, rule: Rule) -> Result<Tensor> {
    Ok(record_rule(op, inputs, SmallVec::from_iter([output]), rule)?.swap_remove(0))
}

fn record_rule(
    op: &'static str,
    inputs: &[&Tensor],
    outputs: SmallVec<[Tensor; 1]>,
    rule: Rule,
) -> Result<SmallVec<[Tensor; 1]>> {
    outputs.iter().try_for_each(|y| check_finite(op, "the output", y))?;
    trace::report_recorded(op, inputs, &outputs);
    if !is_recording(inputs) {
        return Ok(outputs);
    }
    if !outputs.iter().any(|y| y.dtype().is_float()) {
        check_float(op, &outputs[0])?;
    }
    Ok(attach(op, inputs, outputs, Action::Rule(rule)))
}

fn attach(
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

/// True if an op on these inputs is recorded.
pub(crate) fn is_recording(inputs: &[&Tensor]) -> bool {
    if !inputs.iter().any(|t| t.requires_grad()) {
        return false;
    }
    match MODE.get() {
        Mode::On => true,
        Mode::Off => false,
        Mode::Probe => {
            PROBED.set(true);
            USED.with_borrow_mut(|used| {
                for Edge { node, .. } in inputs.iter().filter_map(|t| t.edge()) {
                    if !used.iter().any(|known| Arc::ptr_eq(known, node)) {
                        used.push(node.clone());
                    }
                }
            });
            false
        }
    }
}

/// A registered hook, which can be removed.
pub struct Hook {
    edge: Edge,
    id: u64,
}

impl Hook {
    /// Removes the hook.
    pub fn remove(self) {
        let mut state = self.edge.node.state.lock();
        let before = state.hooks.len();
        state.hooks.retain(|hook| hook.id != self.id);
        if matches!(state.action, Action::Leaf(_)) {
            HOOKED_LEAVES.fetch_sub(before - state.hooks.len(), Ordering::Relaxed);
        }
    }
}

impl Tensor {
    /// True if a hook waits for this tensor's gradient.
    pub(crate) fn is_hooked(&self) -> bool {
        self.edge().is_some_and(|edge| !edge.node.state.lock().hooks.is_empty())
    }

    /// The gradient that `backward` has accumulated for this leaf, if any.
    pub fn grad(&self) -> Option<Tensor> {
        match &self.0.edge.as_ref()?.node.state.lock().action {
            Action::Leaf(grad) => grad.clone(),
            _ => None,
        }
    }

    /// True if this is a leaf: its gradient is accumulated.
    pub fn is_leaf(&self) -> bool {
        self.0.edge.as_ref().is_some_and(|e| matches!(e.node.state.lock().action, Action::Leaf(_)))
    }

    /// Freezes a leaf, or takes it back: ops treat a frozen leaf as a constant, so that it gets no gradient, and nothing is recorded for
    /// it. Its gradient so far stays. A captured step remains as it was captured. Errors: `Value` if this is no leaf.
    pub fn set_requires_grad(&self, is_wanted: bool) -> Result<()> {
        match &self.0.edge {
            Some(edge) if self.is_leaf() => {
                edge.node.is_frozen.store(!is_wanted, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(Error::value("set_requires_grad", "this tensor is no leaf")),
        }
    }

    /// Replaces the accumulated gradient; `None` clears it. Errors: `Value` if this is no leaf; `Shape` or `Dtype` if the gradient
    /// does not fit.
    pub fn set_grad(&self, grad: Option<Tensor>) -> Result<()> {
        let edge = self.0.edge.as_ref().ok_or_else(|| Error::value("set_grad", "this tensor is no leaf"))?;
        if let Some(g) = &grad {
            backward::check_gradient("set_grad", edge.meta(), g)?;
        }
        match &mut edge.node.state.lock().action {
            Action::Leaf(kept) => *kept = grad,
            _ => return Err(Error::value("set_grad", "this tensor is no leaf")),
        }
        Ok(())
    }

    /// Calls `f` with this tensor's gradient during every backward pass. A returned tensor replaces the gradient. Hooks run in the
    /// order of registration, as soon as all contributions are summed. Their ops are recorded with `create_graph` only.
    ///
    /// A pass that spends the tape drops the hooks of its nodes. Hooks of a leaf stay until they are removed, so a hook that holds
    /// its own leaf keeps the leaf alive. Errors: `Value` if the tensor is not on the tape.
    pub fn register_hook(&self, f: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static) -> Result<Hook> {
        let edge = self.0.edge.clone();
        let edge = edge.ok_or_else(|| Error::value("register_hook", "this tensor does not require a gradient"))?;
        let id = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        let mut state = edge.node.state.lock();
        state.hooks.push(OutputHook { id, output: edge.output, f: Arc::new(f) });
        if matches!(state.action, Action::Leaf(_)) {
            HOOKED_LEAVES.fetch_add(1, Ordering::Relaxed);
        }
        drop(state);
        Ok(Hook { edge, id })
    }
}
