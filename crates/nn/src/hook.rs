//! Forward hooks: functions that are called when a part of a model has run.

use crate::Module;
use crate::module::{Item, address_of, walk};
use crate::pattern::matches;
use crate::summary::is_list;
use isograd_core::origin::in_part;
use isograd_core::{Device, Error, Profile, Result, Tensor, Tensors};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::rc::Rc;

/// A part of a model that has run.
#[derive(Debug)]
#[non_exhaustive]
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
    parts: HashMap<(usize, &'static str), Place>,
    /// Absent from a hook that only names parts in a profile.
    f: Option<Box<Function>>,
    /// The names of the parts that are running, the innermost last.
    running: RefCell<Vec<Rc<str>>>,
    /// True once the function was called.
    has_run: Cell<bool>,
}

/// The relation of a part of a model to a hook.
enum Place {
    /// A part that the hook is for.
    Hooked(Rc<str>),
    /// A part of one that the hook is for, with the names of both.
    Within { name: Rc<str>, hooked: Rc<str> },
}

thread_local! {
    static IS_HOOKED: Cell<bool> = const { Cell::new(false) };
    /// True if any of the hooks has a function.
    static IS_CALLED: Cell<bool> = const { Cell::new(false) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static HOOKS: RefCell<Vec<Rc<Registered>>> = const { RefCell::new(Vec::new()) };
    /// The addresses of originals, by those of the parts of clones that stand for them.
    static STANDS: RefCell<Vec<HashMap<usize, usize>>> = const { RefCell::new(Vec::new()) };
}

/// A function that this thread calls when parts of a model have run, with their inputs and outputs. A tensor that it returns takes the
/// place of the output, of several of the first. It is removed when this is dropped.
///
/// Layers of this crate, all parts of the networks of `isograd-models`, and all layers of a [`Sequential`](crate::Sequential) tell when they run;
/// other modules do so if their forward functions use [`called`]. A hook whose part does not tell is an error of the forward pass, as soon as a part
/// within it runs. In a captured step a hook runs when the step is captured, and for recomputed activations
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
    /// module itself, so that a hook of one layer is `register(&model.fc1, "", f)`. Errors: `Value` if there is no such part, or if only lists of
    /// parts match, which are never called.
    pub fn register(
        model: &'a (impl Module + ?Sized),
        pattern: &str,
        f: impl Fn(&Called<'_>) -> Result<Option<Tensor>> + 'static,
    ) -> Result<ForwardHook<'a>> {
        ForwardHook::with(model, pattern, Some(Box::new(f)))
    }

    fn with(model: &'a (impl Module + ?Sized), pattern: &str, f: Option<Box<Function>>) -> Result<ForwardHook<'a>> {
        let mut all = vec![((address_of(model), model.type_name()), String::new())];
        walk(model, &mut |path, item| {
            if let Item::Part { kind, address } | Item::Inside { kind, address } = item
                && !kind.is_empty()
                && address != 0
            {
                all.push(((address, kind), path.to_string()));
            }
        });
        all.retain(|((_, kind), name)| name.is_empty() || !is_list(kind));
        let hooked: Vec<Rc<str>> =
            all.iter().filter(|(_, name)| matches(pattern, name)).map(|(_, name)| name.as_str().into()).collect();
        if hooked.is_empty() {
            let names: Vec<&str> = all.iter().skip(1).map(|(_, name)| name.as_str()).collect();
            let message = format!("no part of the model matches {pattern:?}; they are {}", names.join(", "));
            return Err(Error::value("forward_hook", message));
        }
        let mut parts: HashMap<(usize, &'static str), Place> = HashMap::new();
        for (key, name) in all {
            let is_in = |outer: &&Rc<str>| {
                outer.is_empty() || name.strip_prefix(&***outer).is_some_and(|rest| rest.starts_with('.'))
            };
            let place = match hooked.iter().find(|hooked| ***hooked == *name) {
                Some(name) => Place::Hooked(name.clone()),
                None => match hooked.iter().find(is_in) {
                    Some(hooked) => Place::Within { name: name.into(), hooked: hooked.clone() },
                    None => continue,
                },
            };
            parts.entry(key).or_insert(place);
        }
        let id = NEXT.replace(NEXT.get() + 1);
        let registered = Registered { id, parts, f, running: RefCell::default(), has_run: Cell::new(false) };
        HOOKS.with_borrow_mut(|hooks| {
            hooks.push(Rc::new(registered));
            note(hooks);
        });
        Ok(ForwardHook { id, _model: PhantomData })
    }
}

impl Drop for ForwardHook<'_> {
    fn drop(&mut self) {
        // A thread that ends has no hooks any more.
        let _ = HOOKS.try_with(|hooks| {
            let mut hooks = hooks.borrow_mut();
            hooks.retain(|hook| hook.id != self.id);
            note(&hooks);
        });
    }
}

/// Notes whether there are hooks, so that a forward pass without them asks for a flag alone.
fn note(hooks: &[Rc<Registered>]) {
    IS_HOOKED.set(!hooks.is_empty());
    IS_CALLED.set(hooks.iter().any(|hook| hook.f.is_some()));
}

/// The device's times of `f`, as [`isograd_core::profile`] measures them, in which ops have the names of the parts of a model that called them, such as
/// `blocks.0.fc1`. Errors: as there.
///
/// ```
/// # use isograd_core::{DType, Device, Result, Tensor};
/// # use isograd_nn::{Forward, Init, Linear, Sequential, profile_model};
/// # use isograd_cpu as _;
/// # fn main() -> Result<()> {
/// # let device = Device::cpu()?;
/// # let init = Init::new(&device);
/// let model = Sequential::new().push(Linear::new(3, 4, &init)?).push(Tensor::relu).push(Linear::new(4, 2, &init)?);
/// let x = Tensor::ones((2, 3), DType::F32, &device)?;
/// let (_, profile) = profile_model(&model, &device, || model.forward(&x)?.sum(..)?.backward())?;
/// assert!(profile.ops.iter().any(|op| op.origin.as_ref().is_some_and(|origin| origin.starts_with("2"))));
/// # Ok(())
/// # }
/// ```
pub fn profile_model<R>(
    model: &(impl Module + ?Sized),
    device: &Device,
    f: impl FnOnce() -> Result<R>,
) -> Result<(R, Profile)> {
    let _names = ForwardHook::with(model, "*", None)?;
    isograd_core::profile(device, f)
}

/// True if any module of this thread has hooks. A model that computes several of its parts in one kernel runs them one by one then, so that each tells.
pub fn is_hooked() -> bool {
    IS_CALLED.get()
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
    let named = |hook: &Rc<Registered>| match hook.parts.get(&part) {
        Some(Place::Hooked(name)) => {
            hook.has_run.set(true);
            // A box and its content are one part.
            let is_running = hook.running.borrow().last() == Some(name);
            Ok((!is_running).then(|| (hook.clone(), name.clone())))
        }
        Some(Place::Within { name, hooked }) if !hook.has_run.get() => Err(untold(name, hooked)),
        _ => Ok(None),
    };
    let hooks: Vec<(Rc<Registered>, Rc<str>)> =
        HOOKS.with_borrow(|hooks| hooks.iter().filter_map(|hook| named(hook).transpose()).collect::<Result<_>>())?;
    hooks.iter().for_each(|(hook, name)| hook.running.borrow_mut().push(name.clone()));
    let result = match hooks.iter().find(|(hook, name)| hook.f.is_none() && !name.is_empty()) {
        Some((_, name)) => in_part(name, f),
        None => f(),
    };
    hooks.iter().for_each(|(hook, _)| drop(hook.running.borrow_mut().pop()));
    let mut result = result?;
    for (hook, name) in &hooks {
        let Some(f) = &hook.f else { continue };
        let outputs: Vec<Tensor> = result.tensors().into_iter().cloned().collect();
        let mut other = f(&Called { name, kind: part.1, inputs, outputs: &outputs })?;
        if other.is_some() {
            result = result.map(&mut |t| Ok(other.take().unwrap_or_else(|| t.clone())))?;
        }
    }
    Ok(result)
}

/// The error of a hook whose part has not told that it runs.
fn untold(part: &str, hooked: &str) -> Error {
    let hooked = if hooked.is_empty() { "the model" } else { hooked };
    let message = format!("{part} runs, but {hooked}, which has the hook, does not tell that it runs");
    Error::value(
        "forward_hook",
        format!("{message}: call it as a whole, and let its forward function be `called(self, ..)`"),
    )
}

/// The addresses of a module and of all its parts.
pub(crate) fn addresses(module: &(impl Module + ?Sized)) -> Vec<usize> {
    let mut found = vec![address_of(module)];
    walk(module, &mut |_, item| {
        if let Item::Part { address, .. } | Item::Inside { address, .. } = item {
            found.push(address);
        }
    });
    found
}

/// Runs `f`, in which the parts of a clone stand for those at `originals`, the addresses of a model's parts.
pub(crate) fn standing_for<R>(clone: &(impl Module + ?Sized), originals: &[usize], f: impl FnOnce() -> R) -> R {
    struct Pop;
    impl Drop for Pop {
        fn drop(&mut self) {
            STANDS.with_borrow_mut(Vec::pop);
        }
    }
    if originals.is_empty() {
        return f();
    }
    let stand = addresses(clone).into_iter().zip(originals.iter().copied()).collect();
    STANDS.with_borrow_mut(|stands| stands.push(stand));
    let _pop = Pop;
    f()
}

/// The address that a part of a clone stands for.
fn original(address: usize) -> usize {
    STANDS.with_borrow(|stands| stands.iter().rev().find_map(|stand| stand.get(&address).copied()).unwrap_or(address))
}
