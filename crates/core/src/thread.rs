//! The state of a thread: how its ops run, and who listens to them.

use crate::autocast::{self, Casts};
use crate::backend::Call;
use crate::capture::Capture;
use crate::random::RngState;
use crate::tape::{self, Attribute, Descriptor};
use crate::tensor::Storage;
use crate::{DType, Device, Result, Rng, Tensor};
use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// How the ops of a thread run: whether they are recorded ([`no_grad`](crate::no_grad)), their dtypes within
/// [`autocast`](crate::autocast()), and the checks of [`detect_anomaly`](tape::detect_anomaly).
///
/// A new thread records, without mixed precision and without checks. [`enter`](Context::enter) hands the context of another thread on to it:
///
/// ```
/// # use isograd_core::{Context, no_grad, tape::is_grad_enabled};
/// no_grad(|| {
///     let context = Context::current();
///     std::thread::scope(|scope| {
///         scope.spawn(|| assert!(is_grad_enabled()));
///         scope.spawn(|| context.enter(|| assert!(!is_grad_enabled())));
///     })
/// });
/// ```
///
/// All else is a thread's own, and is not handed on. A trace, a profile, an observer of the tape and a checkpoint do not hear of ops on
/// another thread; a captured step does not record them; and a thread makes the casts of its scope of `autocast` itself.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    mode: Mode,
    autocast: Option<DType>,
    detects_anomaly: bool,
    kernels: Kernels,
    /// The op whose parts run.
    part_of: Option<&'static str>,
}

/// The ops that go on the tape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mode {
    On,
    Off,
    /// None. The listener is told of those that would have been recorded.
    Probe,
}

/// The kernels that a device is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kernels {
    All,
    /// No fused ones: fused ops compute their composites.
    Primitives,
}

impl Context {
    const NEW: Context =
        Context { mode: Mode::On, autocast: None, detects_anomaly: false, kernels: Kernels::All, part_of: None };

    /// The context of this thread.
    pub fn current() -> Context {
        // A thread that ends may still drop tensors.
        THREAD.try_with(|thread| thread.context.get()).unwrap_or(Context::NEW)
    }

    /// Runs `f`, on this thread, in this context. Afterwards the thread has its own one again.
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        autocast::with(self.autocast, || self.within(f))
    }

    fn within<R>(self, f: impl FnOnce() -> R) -> R {
        struct Restore(Context);
        impl Drop for Restore {
            fn drop(&mut self) {
                THREAD.with(|thread| thread.context.set(self.0));
            }
        }
        let _restore = Restore(THREAD.with(|thread| thread.context.replace(self)));
        f()
    }
}

/// A field of this thread's context.
pub(crate) struct Field<T>(fn(&mut Context) -> &mut T);

pub(crate) static MODE: Field<Mode> = Field(|context| &mut context.mode);
pub(crate) static AUTOCAST: Field<Option<DType>> = Field(|context| &mut context.autocast);
pub(crate) static ANOMALY: Field<bool> = Field(|context| &mut context.detects_anomaly);
pub(crate) static KERNELS: Field<Kernels> = Field(|context| &mut context.kernels);
pub(crate) static PART_OF: Field<Option<&'static str>> = Field(|context| &mut context.part_of);

impl<T: Copy> Field<T> {
    pub fn get(&self) -> T {
        *(self.0)(&mut Context::current())
    }
}

/// Runs `f` with a value of a field.
pub(crate) fn with_flag<T, R>(field: &Field<T>, value: T, f: impl FnOnce() -> R) -> R {
    let mut context = Context::current();
    *(field.0)(&mut context) = value;
    context.within(f)
}

/// Runs a part of an op.
pub(crate) fn within<R>(op: &'static str, f: impl FnOnce() -> R) -> R {
    match PART_OF.get() {
        Some(_) => f(),
        None => with_flag(&PART_OF, Some(op), f),
    }
}

/// The name of what ops come from.
#[derive(Clone)]
pub(crate) struct Place {
    pub name: Arc<str>,
    /// Whether it stands for a line of the program, as the node of a graph does, or beside it.
    pub is_line: bool,
}

/// The state of a thread.
pub(crate) struct Thread {
    context: Cell<Context>,
    pub casts: RefCell<Casts>,
    pub capture: RefCell<Capture>,
    /// The place that ops come from, if it has a name.
    pub place: RefCell<Option<Place>>,
    /// The kinds of events for which there is a listener, a bit each.
    heard: Cell<u8>,
    /// From the outermost to the innermost.
    listeners: RefCell<Vec<Listening>>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            context: Cell::new(Context::NEW),
            casts: RefCell::new(Casts::NEW),
            capture: RefCell::new(Capture::None),
            place: RefCell::new(None),
            heard: Cell::new(0),
            listeners: RefCell::new(Vec::new()),
        }
    };
}

/// Runs `f` on the state of this thread.
pub(crate) fn with<R>(f: impl FnOnce(&Thread) -> R) -> R {
    THREAD.with(f)
}

/// An event on a thread, such as an op or an allocation.
pub(crate) enum Event<'a> {
    /// An op has returned. It has attributes or a descriptor, unless it only goes on the tape.
    Op {
        name: &'static str,
        inputs: &'a [&'a Tensor],
        outputs: &'a [&'a Tensor],
        attributes: Option<&'a [(&'static str, Attribute)]>,
        descriptor: Option<&'a Descriptor>,
    },
    /// A kernel starts.
    Kernel(&'a Run<'a>),
    /// The kernel that was started last has been enqueued, or has failed.
    Ran(&'a Run<'a>),
    /// A tensor is about to be changed in place. An error that is left here prevents it.
    Write { target: &'a Tensor, error: &'a RefCell<Result<()>> },
    /// A generator has drawn; its state before.
    Draw(&'a Rng, RngState),
    /// An op has allocated memory.
    Allocation { op: &'static str, storage: &'a Arc<Storage>, bytes: usize },
    /// There is no more memory. Those who know what holds it say so here.
    Refusal { device: &'a Device, holders: &'a RefCell<Vec<String>> },
    /// An op on these inputs would have been recorded.
    Probe(&'a [&'a Tensor]),
    /// An event of the tape.
    Tape(tape::Event),
}

/// The kinds of events.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Op,
    Kernel,
    Write,
    Draw,
    Memory,
    Probe,
    Tape,
}

fn bit(kind: Kind) -> u8 {
    1 << kind as u8
}

impl Event<'_> {
    fn kind(&self) -> Kind {
        match self {
            Event::Op { .. } => Kind::Op,
            Event::Kernel(_) | Event::Ran(_) => Kind::Kernel,
            Event::Write { .. } => Kind::Write,
            Event::Draw(..) => Kind::Draw,
            Event::Allocation { .. } | Event::Refusal { .. } => Kind::Memory,
            Event::Probe(_) => Kind::Probe,
            Event::Tape(_) => Kind::Tape,
        }
    }
}

/// A call of a kernel, and the tensors that are its operands. They may be pages, whose elements `call` has in memory.
pub(crate) struct Run<'a> {
    pub device: &'a Device,
    pub call: &'a Call<'a>,
    pub inputs: &'a [&'a Tensor],
    pub outputs: &'a [&'a Tensor],
}

/// A receiver of the events of a thread. Events that a listener causes do not reach it.
pub(crate) trait Listener: Any {
    /// The kinds of events that it hears.
    fn kinds(&self) -> &'static [Kind];

    fn hear(&mut self, event: &Event<'_>);
}

#[derive(Clone)]
struct Listening {
    of: TypeId,
    kinds: u8,
    listener: Rc<RefCell<dyn Listener>>,
}

/// Whether listeners of the same type that are registered further out hear the events within.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Outer {
    Hears,
    Pauses,
}

/// Runs `f` and tells a listener of its events.
pub(crate) fn listen<L: Listener, R>(listener: L, outer: Outer, f: impl FnOnce() -> R) -> (R, L) {
    struct Restore(Vec<Listening>);
    impl Drop for Restore {
        fn drop(&mut self) {
            set_listeners(std::mem::take(&mut self.0));
        }
    }
    let (of, kinds) = (TypeId::of::<L>(), listener.kinds().iter().fold(0, |all, kind| all | bit(*kind)));
    let listener = Rc::new(RefCell::new(listener));
    let before = with(|thread| thread.listeners.borrow().clone());
    let mut all = before.clone();
    all.retain(|other| outer == Outer::Hears || other.of != of);
    all.push(Listening { of, kinds, listener: listener.clone() });
    let restore = Restore(before);
    set_listeners(all);
    let result = f();
    drop(restore);
    let listener = Rc::into_inner(listener).expect("a listener is told within `listen` only");
    (result, listener.into_inner())
}

fn set_listeners(listeners: Vec<Listening>) {
    with(|thread| {
        thread.heard.set(listeners.iter().fold(0, |heard, listening| heard | listening.kinds));
        thread.listeners.replace(listeners)
    });
}

/// Tells those who listen to events of this kind.
#[inline]
pub(crate) fn tell<'a>(kind: Kind, event: impl FnOnce() -> Event<'a>) {
    // A thread that ends has no listener.
    if THREAD.try_with(|thread| thread.heard.get()).is_ok_and(|heard| heard & bit(kind) != 0) {
        deliver(&event());
    }
}

/// Runs a kernel, and tells of its start and of its end.
#[inline]
pub(crate) fn run(run: &Run<'_>) -> Result<()> {
    tell(Kind::Kernel, || Event::Kernel(run));
    let result = run.device.backend().run(run.call);
    tell(Kind::Kernel, || Event::Ran(run));
    result
}

#[cold]
fn deliver(event: &Event<'_>) {
    let count = with(|thread| thread.listeners.borrow().len());
    for i in 0..count {
        let Listening { kinds, listener, .. } = with(|thread| thread.listeners.borrow()[i].clone());
        if kinds & bit(event.kind()) != 0
            && let Ok(mut listener) = listener.try_borrow_mut()
        {
            listener.hear(event);
        }
    }
}
