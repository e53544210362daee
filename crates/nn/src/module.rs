//! Models: modules with named parts, parameters and buffers.

use isograd_core::{Error, Result, Tensor, no_grad};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

/// Tensors by name, for saving.
pub type StateDict = BTreeMap<String, Tensor>;

/// A module with parameters. A user's type names its parts; the other methods are derived from this:
///
/// ```
/// # use isograd_nn::{Linear, Module, Visitor};
/// struct Mlp { fc1: Linear, fc2: Linear }
///
/// impl Module for Mlp {
///     fn visit(&self, visitor: &mut Visitor<'_>) {
///         visitor.part("fc1", &self.fc1);
///         visitor.part("fc2", &self.fc2);
///     }
/// }
/// ```
///
/// `#[derive(Module)]` writes this method. A leaf tensor is a parameter, any other tensor a buffer. Vectors, options and boxes of
/// modules are modules, as are maps from names to modules.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no module",
    label = "neither a tensor nor a module",
    note = "in a `#[derive(Module)]`, mark a field that has no parameters with `#[module(skip)]`"
)]
pub trait Module {
    /// Passes this module's parts to the visitor.
    fn visit(&self, visitor: &mut Visitor<'_>);

    /// The type's name, for [`named_modules`](Module::named_modules), which omits modules with an empty name.
    fn type_name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// The parameters, with dotted names such as `fc1.weight`, in the order of the parts. A tensor that occurs twice is listed
    /// once, with its first name.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let mut found: Vec<(String, Tensor)> = Vec::new();
        for (name, t) in tensors_of(self).into_iter().filter(|(_, t)| t.is_leaf()) {
            if !found.iter().any(|(_, known)| same_tensor(known, &t)) {
                found.push((name, t));
            }
        }
        found
    }

    /// The parameters, each once.
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters().into_iter().map(|(_, t)| t).collect()
    }

    /// Tensors that are saved but not trained.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        tensors_of(self).into_iter().filter(|(_, t)| !t.is_leaf()).collect()
    }

    /// The modules within this one, at any depth, with the names of their types. `self` is the first, with an empty name.
    fn named_modules(&self) -> Vec<(String, &'static str)> {
        let mut found = vec![(String::new(), self.type_name())];
        walk(self, &mut |path, item| {
            if let Item::Part(kind) = item
                && !kind.is_empty()
            {
                found.push((path.to_string(), kind));
            }
        });
        found
    }

    /// The number of trained elements. Frozen parameters are not trained.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().filter(|t| t.requires_grad()).map(Tensor::numel).sum()
    }

    /// Freezes all parameters: they get no gradients, ops on them alone are not recorded, and optimizers leave them as they are.
    fn freeze(&self) {
        self.set_trained(&|_| false);
    }

    /// Takes back [`freeze`](Module::freeze).
    fn unfreeze(&self) {
        self.set_trained(&|_| true);
    }

    /// Freezes the parameters for whose names `is_trained` is false, and trains the others: `&|name| name.starts_with("head.")` trains
    /// a head on a frozen trunk.
    fn set_trained(&self, is_trained: &dyn Fn(&str) -> bool) {
        for (name, parameter) in self.named_parameters() {
            // Parameters are leaves, which this accepts.
            let _ = parameter.set_requires_grad(is_trained(&name));
        }
    }

    /// Switches layers such as dropout to training, which is the initial state.
    fn train(&self) {
        walk(self, &mut |_, item| item.set_training(true));
    }

    /// Switches layers such as dropout to evaluation.
    fn eval(&self) {
        walk(self, &mut |_, item| item.set_training(false));
    }

    /// Clears all gradients.
    fn zero_grad(&self) {
        for parameter in self.parameters() {
            // A leaf accepts any gradient, and `None`.
            let _ = parameter.set_grad(None);
        }
    }

    /// Parameters and buffers by name, outside of the tape. They share memory with the module. A tensor that occurs twice has both
    /// names.
    fn state_dict(&self) -> StateDict {
        tensors_of(self).into_iter().map(|(name, t)| (name, t.detach())).collect()
    }

    /// Copies tensors, from any device, into parameters and buffers of the same names. For a tensor with several names in the
    /// module, one is enough. Errors: `Value` naming every missing and unexpected tensor, and every tensor of another shape or
    /// dtype; then nothing has changed.
    fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        self.load_state_dict_with(state, LoadOptions::default()).map(drop)
    }

    /// [`load_state_dict`](Module::load_state_dict) that may accept incomplete states or other float dtypes, according to the
    /// options. Returns the unmatched names. Errors: as there, for differences that the options do not allow.
    fn load_state_dict_with(&self, state: &StateDict, options: LoadOptions) -> Result<Unmatched> {
        let mut own = self.state_dict();
        let given: Vec<Tensor> =
            own.iter().filter(|(name, _)| state.contains_key(*name)).map(|(_, t)| t.clone()).collect();
        own.retain(|name, t| state.contains_key(name) || !given.iter().any(|other| has_same_elements(t, other)));
        let unmatched = compare_states("load_state_dict", &own, state, options)?;
        // Allocations, which may fail, come first.
        let mut copies = Vec::new();
        for (t, s) in own.iter().filter_map(|(name, t)| Some((t, state.get(name)?))) {
            copies.push((t, s.detach().cast(t.dtype())?.to_device(t.device())?.copy()?));
        }
        no_grad(|| copies.iter().try_for_each(|(t, copy)| t.copy_(copy)))?;
        Ok(unmatched)
    }
}

/// The differences that [`Module::load_state_dict_with`] accepts.
///
/// ```no_run
/// # use isograd_nn::{Init, Linear, LoadFloats, LoadNames, LoadOptions, Module, load};
/// # fn main() -> isograd_core::Result<()> {
/// # let device = isograd_core::Device::best()?;
/// # let model = Linear::new(2, 1, &Init::new(&device))?;
/// let file = load("backbone.safetensors", &device)?;
/// let options = LoadOptions { names: LoadNames::Shared, floats: LoadFloats::Cast };
/// let unmatched = model.load_state_dict_with(&file.tensors, options)?;
/// println!("not in the file: {:?}", unmatched.missing);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// The required names.
    pub names: LoadNames,
    /// The required float dtypes.
    pub floats: LoadFloats,
}

/// The names that a loaded state must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadNames {
    /// Exactly the names of the module.
    #[default]
    Same,
    /// Any names. Names that both have are loaded.
    Shared,
}

/// The float dtypes that a loaded state must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadFloats {
    /// The dtypes of the module.
    #[default]
    Same,
    /// Any float dtypes. They are cast to the dtypes of the module.
    Cast,
}

/// Unmatched names, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmatched {
    /// Names of the module that the state does not have.
    pub missing: Vec<String>,
    /// Names of the state that the module does not have.
    pub unexpected: Vec<String>,
}

/// Calls `note` with every part, tensor and mode of a module, and its path.
fn walk(module: &(impl Module + ?Sized), note: &mut dyn FnMut(&str, Item<'_>)) {
    module.visit(&mut Visitor { path: String::new(), note });
}

fn tensors_of(module: &(impl Module + ?Sized)) -> Vec<(String, Tensor)> {
    let mut found = Vec::new();
    walk(module, &mut |path, item| {
        if let Item::Tensor(t) = item {
            found.push((path.to_string(), t.clone()));
        }
    });
    found
}

/// True if both are the same elements of the same memory, as clones are.
pub(crate) fn same_tensor(a: &Tensor, b: &Tensor) -> bool {
    a.shares_memory(b) && a.layout() == b.layout()
}

/// True if both have the same elements of the same memory, in any order: one may be the other's transpose.
fn has_same_elements(a: &Tensor, b: &Tensor) -> bool {
    let axes = |t: &Tensor| {
        let axes = t.dims().iter().zip(t.layout().strides()).filter(|(extent, _)| **extent != 1);
        let mut axes: Vec<(usize, usize)> = axes.map(|(&extent, &stride)| (stride, extent)).collect();
        axes.sort_unstable();
        axes
    };
    a.shares_memory(b) && a.layout().offset() == b.layout().offset() && axes(a) == axes(b)
}

/// Checks that no tensor is in a list of parameters twice. Errors: `Value`.
pub(crate) fn check_distinct(op: &'static str, parameters: &[Tensor]) -> Result<()> {
    let mut places = HashMap::new();
    for (i, place) in parameters.iter().map(Tensor::place).enumerate() {
        if let Some(first) = places.insert(place, i) {
            return Err(listed_twice(op, &first.to_string(), &i.to_string()));
        }
    }
    Ok(())
}

/// The error of a parameter that is listed under two names.
pub(crate) fn listed_twice(op: &'static str, first: &str, second: &str) -> Error {
    Error::value(op, format!("a parameter is listed twice, as number {first} and as number {second}"))
}

/// Checks that `state` can be copied into `own`. Errors: `Value`, naming every mismatch.
pub(crate) fn check_state(op: &'static str, own: &StateDict, state: &StateDict) -> Result<()> {
    compare_states(op, own, state, LoadOptions::default()).map(drop)
}

/// The names that only one of the states has. Errors: `Value`, naming every mismatch that the options do not allow.
fn compare_states(op: &'static str, own: &StateDict, state: &StateDict, options: LoadOptions) -> Result<Unmatched> {
    let only = |a: &StateDict, b: &StateDict| a.keys().filter(|k| !b.contains_key(*k)).cloned().collect();
    let unmatched = Unmatched { missing: only(own, state), unexpected: only(state, own) };
    let mut problems = Vec::new();
    if options.names == LoadNames::Same {
        problems.extend(unmatched.missing.iter().map(|name| format!("{name} is missing")));
        problems.extend(unmatched.unexpected.iter().map(|name| format!("{name} is unexpected")));
    }
    for (name, t, s) in own.iter().filter_map(|(name, t)| Some((name, t, state.get(name)?))) {
        let is_cast = options.floats == LoadFloats::Cast && s.dtype().is_float() && t.dtype().is_float();
        if s.shape() != t.shape() || (s.dtype() != t.dtype() && !is_cast) {
            let (got, expected) = (format!("{} {}", s.dtype(), s.shape()), format!("{} {}", t.dtype(), t.shape()));
            problems.push(format!("{name} is {got}, expected {expected}"));
        }
    }
    if problems.is_empty() { Ok(unmatched) } else { Err(Error::value(op, problems.join("; "))) }
}

enum Item<'a> {
    /// Any part, with its type's name.
    Part(&'static str),
    Tensor(&'a Tensor),
    Mode(&'a Mode),
}

impl Item<'_> {
    fn set_training(&self, training: bool) {
        if let Item::Mode(mode) = self {
            mode.0.store(training, Ordering::Relaxed);
        }
    }
}

/// Visits a module's parts.
pub struct Visitor<'a> {
    path: String,
    note: &'a mut dyn FnMut(&str, Item<'_>),
}

impl Visitor<'_> {
    /// A part of the visited module, with its name.
    pub fn part(&mut self, name: &str, part: &(impl Module + ?Sized)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        (self.note)(&self.path, Item::Part(part.type_name()));
        part.visit(self);
        self.path.truncate(length);
    }
}

/// Training or evaluation: a field of layers that distinguish them.
#[derive(Debug)]
pub struct Mode(AtomicBool);

impl Mode {
    /// True in training.
    pub fn is_training(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Default for Mode {
    fn default() -> Self {
        Mode(AtomicBool::new(true))
    }
}

impl Module for Mode {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        (visitor.note)(&visitor.path, Item::Mode(self));
    }

    fn type_name(&self) -> &'static str {
        ""
    }
}

impl Module for Tensor {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        (visitor.note)(&visitor.path, Item::Tensor(self));
    }

    fn type_name(&self) -> &'static str {
        ""
    }
}

impl<M: Module> Module for Option<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(module) = self {
            module.visit(visitor);
        }
    }

    fn type_name(&self) -> &'static str {
        self.as_ref().map_or("", M::type_name)
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.iter().enumerate().for_each(|(i, module)| visitor.part(&i.to_string(), module));
    }
}

impl<M: Module> Module for BTreeMap<String, M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.iter().for_each(|(name, module)| visitor.part(name, module));
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        (**self).visit(visitor);
    }

    fn type_name(&self) -> &'static str {
        (**self).type_name()
    }
}

impl<M: Module + ?Sized> Module for std::sync::Arc<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        (**self).visit(visitor);
    }

    fn type_name(&self) -> &'static str {
        (**self).type_name()
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.iter().enumerate().for_each(|(i, module)| visitor.part(&i.to_string(), module));
    }
}

/// A function of one tensor.
pub trait Forward {
    /// The output for `x`.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;
}

/// A layer of a [`Sequential`](crate::Sequential).
pub trait Layer: Module + Forward + Send + Sync {}

impl<T: Module + Forward + Send + Sync> Layer for T {}

impl<F: Forward + ?Sized> Forward for Box<F> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        (**self).forward(x)
    }
}
