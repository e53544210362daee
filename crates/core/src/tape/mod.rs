//! The tape: the op that made each tensor, and the rule that computes its gradients.
//!
//! An op with an input on the tape appends a node. Nodes have sequence numbers. A node's number is larger than its inputs'
//! numbers, so a visit in reverse order needs no sorting. A rule only returns gradients. The engine adds the terms that arrive at a
//! node, unless the node's rule reads terms, which its kernel adds.

mod backward;
mod checkpoint;
mod due;
mod engine;
mod fuse;
mod gradcheck;
mod observe;
mod print;
mod record;
mod rule;
mod trace;
mod watch;

pub use backward::{BackwardOptions, grad, grad_allow_unused, grad_from, grad_with};
pub use checkpoint::{checkpoint, undone};
pub use fuse::fuse;
pub use gradcheck::{GradcheckOptions, gradcheck, gradgradcheck};
pub use observe::{Event, observe};
pub use print::{graphviz, text};
pub use record::{record, record_outputs};
pub use rule::{Backward, Gradient, Gradients, Saved};
pub use trace::{Attribute, Described, Op, Ran, Step, trace};

pub(crate) use backward::gradients_from;
pub(crate) use record::{Outputs, Record};
pub(crate) use rule::Prologue;
pub(crate) use trace::{Descriptor, report, report_as};

use crate::thread::{self, ANOMALY, Kind, MODE, Mode, PART_OF, with_flag, within};
use crate::{DType, Device, Error, Result, Shape, Tensor};
use parking_lot::Mutex;
use record::attach;
use rule::Rule;
use smallvec::SmallVec;
use std::cell::RefCell;
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
    /// The rule's, outside of the lock.
    reads_terms: bool,
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
#[derive(Clone)]
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
        let reads_terms = matches!(&action, Action::Rule(rule) if rule.reads_terms);
        let state = Mutex::new(State { action, hooks: Vec::new() });
        Arc::new(Node { sequence, op, inputs, outputs, reads_terms, is_frozen: AtomicBool::new(false), state })
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
/// and is slow. The parts of an op are not looked at, such as the scores of masked keys in attention, which are -infinity.
pub fn detect_anomaly<R>(f: impl FnOnce() -> R) -> R {
    with_flag(&ANOMALY, true, f)
}

/// True in anomaly detection, outside of the parts of an op: they may be infinite where the op's results are not.
fn detects_anomaly() -> bool {
    ANOMALY.get() && PART_OF.get().is_none()
}

/// In anomaly detection, returns an error if a tensor is not finite.
pub(crate) fn check_finite(op: &'static str, what: &str, t: &Tensor) -> Result<()> {
    if !detects_anomaly() || !t.dtype().is_float() {
        return Ok(());
    }
    let values = within(op, || t.to_f64_vec())?;
    match values.iter().position(|v| !v.is_finite()) {
        Some(i) => Err(Error::value(op, format!("{what} is {} at element {i} of {}", values[i], t.shape()))),
        None => Ok(()),
    }
}

pub(crate) fn leaf_edge(t: &Tensor) -> Edge {
    let node = Node::new("leaf", SmallVec::new(), SmallVec::from_iter([Meta::of(t)]), Action::Leaf(None));
    Edge { node, output: 0 }
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
            thread::tell(Kind::Probe, || thread::Event::Probe(inputs));
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

/// # The tape
impl Tensor {
    /// True if a hook waits for this tensor's gradient.
    pub(crate) fn is_hooked(&self) -> bool {
        self.edge().is_some_and(|edge| !edge.node.state.lock().hooks.is_empty())
    }

    /// The gradient that `backward` has accumulated for this leaf, if any. It has the leaf's dtype, unless it was
    /// [set](Tensor::set_grad) in a wider one.
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

    /// Replaces the accumulated gradient; `None` clears it. The gradient of a 16-bit leaf may be f32, for numbers that its dtype does not
    /// hold; later gradients are added to it in f32. Errors: `Value` if this is no leaf; `Shape` or `Dtype` if the gradient does not fit.
    pub fn set_grad(&self, grad: Option<Tensor>) -> Result<()> {
        let edge = self.0.edge.as_ref().ok_or_else(|| Error::value("set_grad", "this tensor is no leaf"))?;
        if let Some(g) = &grad {
            let is_wide = g.dtype() == edge.meta().dtype.acc();
            let dtype = if is_wide { g.dtype() } else { edge.meta().dtype };
            backward::check_gradient("set_grad", &Meta { dtype, ..edge.meta().clone() }, g)?;
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
