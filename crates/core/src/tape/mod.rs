//! The tape: which op made which tensor, and how a gradient goes back through it.
//!
//! An op that has an input on the tape appends a [`Node`]. Nodes have sequence numbers; an input's number is always
//! smaller than that of the node that uses it, so visiting in reverse order needs no sorting. A rule only returns
//! gradients; adding them up is the engine's work, in one place.

mod backward;
mod checkpoint;
mod gradcheck;
mod observe;
mod print;

pub use backward::{BackwardOptions, grad, grad_with};
pub use checkpoint::checkpoint;
pub use gradcheck::{GradcheckOptions, gradcheck, gradgradcheck};
pub use observe::{Event, observe};
pub use print::{graphviz, text};

use crate::pointwise::{Pointwise, lift};
use crate::tensor::check_float;
use crate::{DType, Device, Error, Result, Shape, Tensor};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The gradients that a rule returns: one an input, `None` where [`Backward::needs`] said no.
pub type Gradients = SmallVec<[Option<Tensor>; 3]>;

type RuleFn = Arc<dyn Fn(&Backward<'_>) -> Result<Gradients> + Send + Sync>;

/// What returns the gradients of an op's inputs.
#[derive(Clone)]
struct Rule {
    /// What becomes of dy before the rest is given it, unless the pass is itself recorded.
    first: Option<Arc<First>>,
    rest: RuleFn,
}

/// The row that a rule begins with: of dy, in which it is linear, and of what was saved.
pub(crate) struct First {
    pub row: Pointwise,
    pub saved: Saved,
    pub attributes: SmallVec<[f64; 2]>,
}

type Replay = Arc<dyn Fn() -> Result<Tensor> + Send + Sync>;
type HookFn = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;

/// The node that made a tensor.
pub(crate) type Edge = Arc<Node>;

/// One op's entry on the tape.
pub(crate) struct Node {
    sequence: u64,
    op: &'static str,
    inputs: SmallVec<[Option<Edge>; 2]>,
    output: Meta,
    state: Mutex<State>,
}

struct State {
    action: Action,
    hooks: Vec<(u64, HookFn)>,
}

enum Action {
    /// Keeps the gradient.
    Leaf(Option<Tensor>),
    /// Returns the gradients of the inputs.
    Rule(Rule),
    /// Computes the output again, this time on the tape, where the gradient then goes on.
    Replay(Replay),
    /// Was used, and its saved tensors freed.
    Spent,
}

/// What a gradient must look like.
struct Meta {
    shape: Shape,
    dtype: DType,
    device: Device,
}

impl Meta {
    fn of(t: &Tensor) -> Meta {
        Meta { shape: t.shape().clone(), dtype: t.dtype(), device: t.device().clone() }
    }
}

static SEQUENCE: AtomicU64 = AtomicU64::new(0);

impl Node {
    fn new(op: &'static str, inputs: SmallVec<[Option<Edge>; 2]>, output: &Tensor, action: Action) -> Arc<Node> {
        let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        observe::notify(Event::Recorded { node: sequence, op });
        Arc::new(Node {
            sequence,
            op,
            inputs,
            output: Meta::of(output),
            state: Mutex::new(State { action, hooks: Vec::new() }),
        })
    }
}

thread_local! {
    /// What nodes held when they died. One at a time is dropped, so that a chain of any length needs no stack.
    static GRAVEYARD: RefCell<(bool, Vec<Remains>)> = const { RefCell::new((false, Vec::new())) };
}

type Remains = (SmallVec<[Option<Edge>; 2]>, Action);

impl Drop for Node {
    fn drop(&mut self) {
        let inputs = std::mem::take(&mut self.inputs);
        let action = std::mem::replace(&mut self.state.get_mut().action, Action::Spent);
        if inputs.iter().all(Option::is_none) && !matches!(action, Action::Rule(_) | Action::Replay(_)) {
            return;
        }
        bury((inputs, action));
    }
}

/// Drops what a node held without recursion: whoever is first on this thread drops for all.
fn bury(remains: Remains) {
    let mut remains = Some(remains);
    let first = GRAVEYARD.try_with(|graveyard| {
        let mut graveyard = graveyard.borrow_mut();
        graveyard.1.extend(remains.take());
        !std::mem::replace(&mut graveyard.0, true)
    });
    // While a thread ends its graveyard is gone; what is left then is dropped where it stands.
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
    /// Records nothing, but remembers whether it would have.
    Probe,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::On) };
    static PROBED: Cell<bool> = const { Cell::new(false) };
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

/// Runs `f` with recording on this thread, within a [`no_grad`].
pub fn enable_grad<R>(f: impl FnOnce() -> R) -> R {
    with_flag(&MODE, Mode::On, f)
}

/// True if ops of this thread are recorded.
pub fn is_grad_enabled() -> bool {
    MODE.get() == Mode::On
}

/// Runs `f` and makes the first op whose output or gradient is not finite an error that names it. Reads every result
/// back, so it is slow.
pub fn detect_anomaly<R>(f: impl FnOnce() -> R) -> R {
    with_flag(&ANOMALY, true, f)
}

/// In anomaly detection, errors if a tensor is not finite.
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
    Node::new("leaf", SmallVec::new(), t, Action::Leaf(None))
}

/// Puts an op on the tape: `output` was computed from `inputs`, and `rule` returns their gradients.
///
/// Nothing is recorded, and `output` comes back as it is, if no input requires a gradient or within [`no_grad`].
/// `output` must be fresh: nobody else holds it. This is how an op from outside of isograd gets its gradient; check it
/// with [`gradcheck`].
pub fn record(
    op: &'static str,
    inputs: &[&Tensor],
    output: Tensor,
    rule: impl Fn(&Backward<'_>) -> Result<Gradients> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_after(op, inputs, output, None, rule)
}

/// [`record`] of a rule that begins with a row. The rest is given what the row makes of dy, or dy itself if the pass is
/// itself recorded.
pub(crate) fn record_after(
    op: &'static str,
    inputs: &[&Tensor],
    output: Tensor,
    first: Option<Arc<First>>,
    rule: impl Fn(&Backward<'_>) -> Result<Gradients> + Send + Sync + 'static,
) -> Result<Tensor> {
    check_finite(op, "the output", &output)?;
    if !is_recording(inputs) {
        return Ok(output);
    }
    check_float(op, &output)?;
    let rule = Rule { first, rest: Arc::new(rule) };
    Ok(attach(op, inputs, output, Action::Rule(rule)))
}

fn attach(op: &'static str, inputs: &[&Tensor], mut output: Tensor, action: Action) -> Tensor {
    let edges = inputs.iter().map(|t| t.0.edge.clone()).collect();
    let edge = Some(Node::new(op, edges, &output, action));
    match Arc::get_mut(&mut output.0) {
        Some(inner) => {
            inner.edge = edge;
            output
        }
        None => output.with_edge(output.layout().clone(), edge),
    }
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
            false
        }
    }
}

/// A tensor that a rule needs. It is checked when used: a change in place since then is an error.
pub struct Saved {
    tensor: Tensor,
    version: u64,
    /// The tensor is the recorded op's own output. Holding its edge would be a cycle.
    is_output: bool,
}

impl Saved {
    /// Saves an input of the op.
    pub fn input(t: &Tensor) -> Saved {
        Saved { tensor: t.clone(), version: t.0.storage.version(), is_output: false }
    }

    /// Saves the output of the op.
    pub fn output(t: &Tensor) -> Saved {
        let tensor = t.with_layout(t.layout().clone());
        Saved { tensor, version: t.0.storage.version(), is_output: true }
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

/// What a rule is given: the gradients of its op's output, and access to what it saved.
pub struct Backward<'a> {
    node: &'a Arc<Node>,
    dy: Tensor,
    create_graph: bool,
    /// The nodes whose gradients are asked for.
    targets: &'a [&'a Edge],
    /// The inputs whose gradients are past the row that their own rules begin with.
    past: RefCell<SmallVec<[usize; 2]>>,
}

impl Backward<'_> {
    /// The gradient of the output; its strides may be anything.
    pub fn dy(&self) -> &Tensor {
        &self.dy
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
        if saved.is_output && self.create_graph {
            return Ok(saved.tensor.with_edge(saved.tensor.layout().clone(), Some(self.node.clone())));
        }
        Ok(saved.tensor.clone())
    }

    /// `f()` if input `i` requires a gradient.
    pub fn want(&self, i: usize, f: impl FnOnce() -> Result<Tensor>) -> Result<Option<Tensor>> {
        if self.needs(i) { f().map(Some) } else { Ok(None) }
    }

    /// What a rule's first row makes of dy.
    pub(crate) fn first(&self, first: &First) -> Result<Tensor> {
        self.row(first.row, &[&self.dy, &self.get(&first.saved)?], &first.attributes)
    }

    /// The row that the rule of input `i` begins with, and what it reads beside dy. A rule that applies it to the gradient itself
    /// calls [`mark_past`](Backward::mark_past). None where somebody asks for the gradient before it, or where it has attributes.
    pub(crate) fn first_of(&self, i: usize) -> Result<Option<(Pointwise, Tensor)>> {
        let Some(edge) = self.node.inputs[i].as_ref().filter(|_| !self.create_graph && !ANOMALY.get()) else {
            return Ok(None);
        };
        let state = edge.state.lock();
        let is_seen = !state.hooks.is_empty() || self.targets.iter().any(|target| Arc::ptr_eq(target, edge));
        let Action::Rule(Rule { first: Some(first), .. }) = &state.action else { return Ok(None) };
        if is_seen || !first.attributes.is_empty() {
            return Ok(None);
        }
        first.saved.check(edge.op)?;
        Ok(Some((first.row, first.saved.tensor.clone())))
    }

    /// Says that the gradient of input `i` is past the row that its rule begins with.
    pub(crate) fn mark_past(&self, i: usize) {
        self.past.borrow_mut().push(i);
    }

    /// The first output of a backward row: one kernel, or tensor ops if this pass is itself recorded.
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

/// A hook that can be taken off again.
pub struct Hook {
    edge: Edge,
    id: u64,
}

impl Hook {
    /// Takes the hook off.
    pub fn remove(self) {
        self.edge.state.lock().hooks.retain(|(id, ..)| *id != self.id);
    }
}

impl Tensor {
    /// The gradient that `backward` has kept for this leaf, if any.
    pub fn grad(&self) -> Option<Tensor> {
        match &self.0.edge.as_ref()?.state.lock().action {
            Action::Leaf(grad) => grad.clone(),
            _ => None,
        }
    }

    /// True if this is a leaf: its gradient is kept.
    pub fn is_leaf(&self) -> bool {
        self.0.edge.as_ref().is_some_and(|e| matches!(e.state.lock().action, Action::Leaf(_)))
    }

    /// Replaces the kept gradient; `None` forgets it. Errors: `Value` if this is no leaf, `Shape` or `Dtype` if it does
    /// not fit.
    pub fn set_grad(&self, grad: Option<Tensor>) -> Result<()> {
        let edge = self.0.edge.as_ref().ok_or_else(|| Error::value("set_grad", "this tensor is no leaf"))?;
        if let Some(g) = &grad {
            backward::check_gradient("set_grad", &edge.output, g)?;
        }
        match &mut edge.state.lock().action {
            Action::Leaf(kept) => *kept = grad,
            _ => return Err(Error::value("set_grad", "this tensor is no leaf")),
        }
        Ok(())
    }

    /// Calls `f` with this tensor's gradient during every backward pass; a tensor that it returns replaces the
    /// gradient. Hooks run in the order of their registration, once all contributions are added up.
    /// Errors: `Value` if the tensor is not on the tape.
    pub fn register_hook(&self, f: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static) -> Result<Hook> {
        let edge = self.0.edge.clone();
        let edge = edge.ok_or_else(|| Error::value("register_hook", "this tensor does not require a gradient"))?;
        let id = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        edge.state.lock().hooks.push((id, Arc::new(f)));
        Ok(Hook { edge, id })
    }
}
