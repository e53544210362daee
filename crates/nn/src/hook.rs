//! Forward hooks: functions that are called when a part of a model has run.

use crate::Module;
use crate::module::{Item, address_of, walk};
use crate::pattern::matches;
use isograd_core::{Error, Result, Tensor, Tensors};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::rc::Rc;

/// A part of a model that has run.
#[derive(Debug)]
pub struct Called<'a> {
    /// Its name in the model, such as `blocks.0.fc1`; empty for the model itself.
    pub name: &'a str,
    /// The name of its type.
    pub kind: &'static str,
    /// The tensors that it was called with.
    pub inputs: &'a [&'a Tensor],
    /// The tensors that it returned.
    pub outputs: &'a [Tensor],
}

impl Called<'_> {
    /// The output; the first of several.
    pub fn output(&self) -> &Tensor {
        &self.outputs[0]
    }
}

type Function = dyn Fn(&Called<'_>) -> Result<Option<Tensor>>;

struct Registered {
    id: u64,
    /// Parts by address and type.
    parts: HashMap<(usize, &'static str), Rc<str>>,
    f: Box<Function>,
    /// The names of the parts that are running, the innermost last.
    running: RefCell<Vec<Rc<str>>>,
}

/// Clones that stand for parts of a model.
struct Stand {
    clone: usize,
    length: usize,
    original: usize,
}

thread_local! {
    static IS_HOOKED: Cell<bool> = const { Cell::new(false) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static HOOKS: RefCell<Vec<Rc<Registered>>> = const { RefCell::new(Vec::new()) };
    static STANDS: RefCell<Vec<Stand>> = const { RefCell::new(Vec::new()) };
}

/// A function that this thread calls when parts of a model have run, with their inputs and outputs. A tensor that it returns takes the
/// place of the output, of several of the first. It is removed when this is dropped.
///
/// Layers of this crate, and all layers of a [`Sequential`](crate::Sequential), are parts that tell when they run; other modules do so if
/// their forward functions use [`called`]. In a captured step a hook runs when the step is captured, and for recomputed activations
/// in both runs.
///
/// ```
/// # use isograd_core::{DType, Device, Result, Tensor};
/// # use isograd_nn::{Forward, ForwardHook, Init, Linear, Sequential};
/// # use isograd_cpu as _;
/// # use std::{cell::RefCell, rc::Rc};
/// # fn main() -> Result<()> {
/// # let device = Device::cpu()?;
/// # let init = Init::new(&device);
/// let model = Sequential::new().push(Linear::new(3, 4, &init)?).push(Tensor::relu);
/// let shapes = Rc::new(RefCell::new(Vec::new()));
/// let kept = shapes.clone();
/// let hook = ForwardHook::register(&model, "*", move |call| {
///     kept.borrow_mut().push((call.name.to_string(), call.output().shape().clone()));
///     Ok(None)
/// })?;
/// model.forward(&Tensor::ones((2, 3), DType::F32, &device)?)?;
/// drop(hook);
/// assert_eq!(shapes.borrow()[0], ("0".to_string(), (2, 4).into()));
/// # Ok(())
/// # }
/// ```
#[must_use = "a hook is removed when it is dropped"]
pub struct ForwardHook<'a> {
    id: u64,
    // The parts stay where they are while the model is borrowed. The hook is one of this thread.
    _model: PhantomData<(&'a (), *const ())>,
}

impl<'a> ForwardHook<'a> {
    /// Calls `f` for the parts whose names match a pattern, in which `*` stands for any text: `blocks.*.fc1`. The empty pattern is the
    /// module itself, so that a hook of one layer is `register(&model.fc1, "", f)`. Errors: `Value` if there is no such part.
    pub fn register(
        model: &'a (impl Module + ?Sized),
        pattern: &str,
        f: impl Fn(&Called<'_>) -> Result<Option<Tensor>> + 'static,
    ) -> Result<ForwardHook<'a>> {
        let mut parts: HashMap<(usize, &'static str), Rc<str>> = HashMap::new();
        if matches(pattern, "") {
            parts.insert((address_of(model), model.type_name()), "".into());
        }
        walk(model, &mut |path, item| {
            if let Item::Part { kind, address } | Item::Inside { kind, address } = item
                && !kind.is_empty()
                && address != 0
                && matches(pattern, path)
            {
                parts.entry((address, kind)).or_insert_with(|| path.into());
            }
        });
        if parts.is_empty() {
            let names: Vec<String> = model.named_modules().into_iter().map(|(name, _)| name).collect();
            let message = format!("no part of the model matches {pattern:?}; they are {}", names[1..].join(", "));
            return Err(Error::value("forward_hook", message));
        }
        let id = NEXT.replace(NEXT.get() + 1);
        let registered = Registered { id, parts, f: Box::new(f), running: RefCell::default() };
        HOOKS.with_borrow_mut(|hooks| hooks.push(Rc::new(registered)));
        IS_HOOKED.set(true);
        Ok(ForwardHook { id, _model: PhantomData })
    }
}

impl Drop for ForwardHook<'_> {
    fn drop(&mut self) {
        // A thread that ends has no hooks any more.
        let _ = HOOKS.try_with(|hooks| {
            let mut hooks = hooks.borrow_mut();
            hooks.retain(|hook| hook.id != self.id);
            IS_HOOKED.set(!hooks.is_empty());
        });
    }
}

/// Whether any module of this thread has hooks.
pub(crate) fn is_hooked() -> bool {
    IS_HOOKED.get()
}

/// Runs the forward function `f` of a module, which may be a part of a model with hooks: these are called with the inputs and the result.
/// A model of one's own has hooks if its forward function is `called(self, &[x], || ..)`. Errors: those of `f` and of the hooks.
pub fn called<O: Tensors>(
    module: &(impl Module + ?Sized),
    inputs: &[&Tensor],
    f: impl FnOnce() -> Result<O>,
) -> Result<O> {
    match IS_HOOKED.get() {
        false => f(),
        true => hooked((original(address_of(module)), module.type_name()), inputs, f),
    }
}

fn hooked<O: Tensors>(part: (usize, &'static str), inputs: &[&Tensor], f: impl FnOnce() -> Result<O>) -> Result<O> {
    let named = |hook: &Rc<Registered>| {
        let name = hook.parts.get(&part)?.clone();
        // A box and its content are one part.
        let is_running = hook.running.borrow().last() == Some(&name);
        (!is_running).then(|| (hook.clone(), name))
    };
    let hooks: Vec<(Rc<Registered>, Rc<str>)> = HOOKS.with_borrow(|hooks| hooks.iter().filter_map(named).collect());
    hooks.iter().for_each(|(hook, name)| hook.running.borrow_mut().push(name.clone()));
    let result = f();
    hooks.iter().for_each(|(hook, _)| drop(hook.running.borrow_mut().pop()));
    let mut result = result?;
    for (hook, name) in &hooks {
        let outputs: Vec<Tensor> = result.tensors().into_iter().cloned().collect();
        let mut other = (hook.f)(&Called { name, kind: part.1, inputs, outputs: &outputs })?;
        if other.is_some() {
            result = result.map(&mut |t| Ok(other.take().unwrap_or_else(|| t.clone())))?;
        }
    }
    Ok(result)
}

/// Runs `f`, in which a clone of a part, and the fields within it, stand for the original at `address`.
pub(crate) fn standing_for<R>(clone: &impl ?Sized, address: usize, f: impl FnOnce() -> R) -> R {
    struct Pop;
    impl Drop for Pop {
        fn drop(&mut self) {
            STANDS.with_borrow_mut(Vec::pop);
        }
    }
    let stand = Stand { clone: start(clone), length: size_of_val(clone), original: address };
    STANDS.with_borrow_mut(|stands| stands.push(stand));
    let _pop = Pop;
    f()
}

/// The address of a value.
pub(crate) fn start(value: &impl ?Sized) -> usize {
    std::ptr::from_ref(value).cast::<()>() as usize
}

/// The address that a part of a clone stands for.
fn original(address: usize) -> usize {
    STANDS.with_borrow(|stands| {
        let stand = stands.iter().rev().find(|s| (s.clone..s.clone + s.length).contains(&address));
        stand.map_or(address, |s| s.original + (address - s.clone))
    })
}
