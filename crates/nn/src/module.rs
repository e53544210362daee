//! Models: modules with named parts, parameters and buffers.

use crate::pattern::matches;
use crate::{Recompute, called, fmt_module};
use isograd_core::ops::Activation;
use isograd_core::{DType, Device, Error, Result, Tensor, TensorKey, no_grad};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
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
/// `#[derive(Module)]` writes this method, [`visit_mut`](Module::visit_mut) and `Clone`. A leaf tensor is a parameter, any other tensor a
/// buffer. Vectors, options and boxes of modules are modules, as are maps from names to modules.
///
/// A clone has parameters and buffers of its own: training one leaves the other as it is. Parameters that are tied in the model are
/// tied in the clone, and frozen ones are frozen; gradients are not cloned, and generators are shared. A clone panics where memory is
/// out, as that of a vector does.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no module",
    label = "neither a tensor nor a module",
    note = "in a `#[derive(Module)]`, mark a field that has no parameters with `#[module(skip)]`"
)]
pub trait Module {
    /// Passes this module's parts to the visitor.
    fn visit(&self, visitor: &mut Visitor<'_>);

    /// Passes this module's parts to the visitor, which may replace their tensors. A module without this method cannot be moved to
    /// another device or dtype, alone or as a part, nor cloned as a part.
    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.refuse(self.type_name());
    }

    /// The type's name, for [`named_modules`](Module::named_modules), which omits modules with an empty name.
    fn type_name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// The extents and options of a layer, which its `Debug` prints behind the type's name: `784 -> 128, bias`. `None` for a module that its
    /// parts describe. `#[module(details = ..)]` writes it.
    fn details(&self) -> Option<String> {
        None
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
            if let Item::Part { kind, .. } = item
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

    /// Freezes all parameters: they get no gradients, ops on them alone are not recorded, and optimizers leave them as they are. A
    /// [`BatchNorm`](crate::BatchNorm) whose parameters are frozen keeps its running statistics and normalises by them, in training too.
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

    /// Freezes the parameters whose names match a pattern, in which `*` stands for any text: `trunk.*`. The others stay as they are.
    /// Errors: `Value` if no name matches.
    fn freeze_matching(&self, pattern: &str) -> Result<()> {
        matching("freeze_matching", self, pattern)?.iter().try_for_each(|t| t.set_requires_grad(false))
    }

    /// Takes back [`freeze_matching`](Module::freeze_matching) for the parameters whose names match a pattern. Errors: `Value` if no name matches.
    fn unfreeze_matching(&self, pattern: &str) -> Result<()> {
        matching("unfreeze_matching", self, pattern)?.iter().try_for_each(|t| t.set_requires_grad(true))
    }

    /// Puts other layers in the places of those whose names match a pattern, in which `*` stands for any text. `f` gets the name and the layer of a
    /// place, with the parameters of the model, and returns the layer that the place gets: an adapter that has the old layer as a part, or one of
    /// its own; of places within each other, the outermost is taken. The places are parts of the type `Box<dyn Layer>`: layers of a [`Sequential`](crate::Sequential), the projections of
    /// transformers, the last layers of networks. Hooks of a model do not see its new layers. Errors: `Value` if no place matches; those of `f`; then nothing has
    /// changed.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # use isograd_nn::{Init, Linear, Module, Sequential};
    /// # use isograd_cpu as _;
    /// # fn main() -> Result<()> {
    /// # let device = Device::cpu()?;
    /// let init = Init::new(&device);
    /// let mut model = Sequential::new().push(Linear::new(8, 4, &init)?).push(Tensor::relu).push(Linear::new(4, 10, &init)?);
    /// model.replace_matching("2", &mut |_, _| Ok(Box::new(Linear::new(4, 2, &init)?)))?;
    /// assert_eq!(model.state_dict()["2.weight"].dims(), [2, 4]);
    /// # Ok(())
    /// # }
    /// ```
    fn replace_matching(&mut self, pattern: &str, f: &mut LayerChange<'_>) -> Result<()> {
        replace_layers(self, pattern, f)
    }

    /// Moves parameters and buffers to another device, in place, with their gradients. Parameters that move are new leaves, so an
    /// optimizer is made afterwards. Tensors that are on the device stay. Errors: `Value` for a part without
    /// [`visit_mut`](Module::visit_mut); `OutOfMemory`; then nothing has changed.
    fn to_device(&mut self, device: &Device) -> Result<()> {
        replace("to_device", self, Gradients::Kept, &|t, _| t.to_device(device))
    }

    /// Casts float parameters and buffers to another float dtype, in place, with their gradients. Integers and tables of constants stay.
    /// Parameters that are cast are new leaves, so an optimizer is made afterwards. Errors: `Dtype` for another dtype than floats; as
    /// [`to_device`](Module::to_device).
    fn to_dtype(&mut self, dtype: DType) -> Result<()> {
        if !dtype.is_float() {
            return Err(Error::dtype("to_dtype", format!("{dtype} was given, expected a float dtype")));
        }
        let is_cast = |t: &Tensor, kind: Kind| kind == Kind::State && t.dtype().is_float();
        replace("to_dtype", self, Gradients::Kept, &|t, kind| {
            if is_cast(t, kind) { t.cast(dtype) } else { Ok(t.clone()) }
        })
    }

    /// Keeps the inputs of parts in the forward pass in place of all that their gradients need, and computes the rest again in the
    /// backward pass: less memory, for the time of another forward pass. The parts are those of [`Recompute`]: stretches of a
    /// [`Sequential`](crate::Sequential), and the layers of transformers. Errors: `Value` if there are none.
    fn recompute_activations(&self, is_wanted: bool) -> Result<()> {
        let mut count = 0;
        walk(self, &mut |_, item| {
            if let Item::Recompute(recompute) = item {
                recompute.set(is_wanted);
                count += 1;
            }
        });
        match count {
            0 => Err(Error::value("recompute_activations", "the model has no part that can be computed again")),
            _ => Ok(()),
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
    /// dtype; `Value` if the state has other values under another name of a tensor; then nothing has changed.
    fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        self.load_state_dict_with(state, &LoadOptions::default()).map(drop)
    }

    /// [`load_state_dict`](Module::load_state_dict) that may accept incomplete states or other float dtypes, according to the
    /// options. Returns the unmatched names. Errors: as there, for differences that the options do not allow.
    fn load_state_dict_with(&self, state: &StateDict, options: &LoadOptions) -> Result<Unmatched> {
        let mut own = self.state_dict();
        let given: Vec<Tensor> =
            own.iter().filter(|(name, _)| state.contains_key(*name)).map(|(_, t)| t.clone()).collect();
        own.retain(|name, t| state.contains_key(name) || !given.iter().any(|other| has_same_elements(t, other)));
        let unmatched = compare_states("load_state_dict", &own, state, options)?;
        // Allocations, which may fail, come first.
        let mut copies = Vec::new();
        for (name, t, s) in own.iter().filter_map(|(name, t)| Some((name, t, state.get(name)?))) {
            copies.push((name, t, s.detach().cast(t.dtype())?.to_device(t.device())?.copy()?));
        }
        check_tied("load_state_dict", &copies)?;
        no_grad(|| copies.iter().try_for_each(|(_, t, copy)| t.copy_(copy)))?;
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
/// let unmatched = model.load_state_dict_with(&file.tensors, &options)?;
/// println!("not in the file: {:?}", unmatched.missing);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct LoadOptions {
    /// The required names.
    pub names: LoadNames,
    /// The required float dtypes.
    pub floats: LoadFloats,
}

/// The names that a loaded state must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LoadNames {
    /// Exactly the names of the module.
    #[default]
    Same,
    /// Any names. Names that both have are loaded.
    Shared,
}

/// The float dtypes that a loaded state must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LoadFloats {
    /// The dtypes of the module.
    #[default]
    Same,
    /// Any float dtypes. They are cast to the dtypes of the module.
    Cast,
}

/// Unmatched names, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unmatched {
    /// Names of the module that the state does not have.
    pub missing: Vec<String>,
    /// Names of the state that the module does not have.
    pub unexpected: Vec<String>,
}

/// Calls `note` with every part, tensor and mode of a module, and its path.
pub(crate) fn walk(module: &(impl Module + ?Sized), note: &mut dyn FnMut(&str, Item<'_>)) {
    module.visit(&mut Visitor { path: String::new(), note });
}

/// The parameters whose names match a pattern. Errors: `Value` if there are none.
fn matching(op: &'static str, module: &(impl Module + ?Sized), pattern: &str) -> Result<Vec<Tensor>> {
    let (chosen, others): (Vec<_>, Vec<_>) =
        module.named_parameters().into_iter().partition(|(name, _)| matches(pattern, name));
    if chosen.is_empty() {
        let names: Vec<String> = others.into_iter().map(|(name, _)| name).collect();
        return Err(Error::value(op, format!("no parameter matches {pattern:?}; they are {}", names.join(", "))));
    }
    Ok(chosen.into_iter().map(|(_, t)| t).collect())
}

/// [`Module::replace_matching`]: the visit that may change parts has no names, so places are known by their addresses.
fn replace_layers(module: &mut (impl Module + ?Sized), pattern: &str, f: &mut LayerChange<'_>) -> Result<()> {
    let op = "replace_matching";
    let mut names: HashMap<usize, String> = HashMap::new();
    walk(module, &mut |path, item| {
        if let Item::Place(address) = item {
            names.insert(address, path.to_string());
        }
    });
    // New layers first, so that an error changes nothing. A place is visited before those within it; a box in a box is one place.
    let (mut others, mut places, mut chosen, mut failed) = (HashMap::new(), Vec::new(), Vec::new(), None);
    visit_places(module, &mut |place| {
        let (address, old) = (address_of(place), &*place);
        let Some(name) = names.get(&address) else { return };
        if places.last() != Some(name) {
            places.push(name.clone());
        }
        let is_within =
            |outer: &String| name.strip_prefix(&**outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        if failed.is_none() && matches(pattern, name) && !chosen.iter().any(is_within) {
            chosen.push(name.clone());
            match f(name, sharing(|| old.clone())) {
                Ok(new) => drop(others.insert(address, new)),
                Err(e) => failed = Some(e),
            }
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    if others.is_empty() {
        let places =
            if places.is_empty() { "there are none".into() } else { format!("they are {}", places.join(", ")) };
        let message = format!("no layer that can be replaced matches {pattern:?}; {places}");
        return Err(Error::value(op, message));
    }
    visit_places(module, &mut |place| {
        if let Some(new) = others.remove(&address_of(place)) {
            *place = new;
        }
    });
    Ok(())
}

/// Calls `note` with each place of a layer.
fn visit_places(module: &mut (impl Module + ?Sized), note: &mut dyn FnMut(&mut Box<dyn Layer>)) {
    module.visit_mut(&mut VisitorMut { note: &mut |_, _| {}, place: note, refused: None });
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

/// Checks that all names of a tensor have the same values: a copy has a name, the tensor that it is for, and its values. Errors: `Value`.
fn check_tied(op: &'static str, copies: &[(&String, &Tensor, Tensor)]) -> Result<()> {
    // The values in the order of memory, in which a transpose has the axes of its source.
    let in_order = |t: &Tensor, values: &Tensor| {
        let mut axes: Vec<isize> = (0..t.rank() as isize).collect();
        axes.sort_by_key(|&axis| std::cmp::Reverse(t.layout().strides()[axis as usize]));
        values.permute(&axes)?.to_bytes()
    };
    let mut firsts = HashMap::new();
    for (i, (name, t, values)) in copies.iter().enumerate() {
        let (first, of_first, expected) = &copies[*firsts.entry((t.key().memory(), t.layout().offset())).or_insert(i)];
        let is_tied = first != name && has_same_elements(t, of_first);
        if is_tied && in_order(t, values)? != in_order(of_first, expected)? {
            return Err(Error::value(op, format!("{first} and {name} differ, which are one tensor of the module")));
        }
    }
    Ok(())
}

/// Checks that no tensor is in a list of parameters twice. Errors: `Value`.
pub(crate) fn check_distinct(op: &'static str, parameters: &[Tensor]) -> Result<()> {
    let mut keys = HashMap::new();
    for (i, key) in parameters.iter().map(Tensor::key).enumerate() {
        if let Some(first) = keys.insert(key, i) {
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
    compare_states(op, own, state, &LoadOptions::default()).map(drop)
}

/// The names that only one of the states has. Errors: `Value`, naming every mismatch that the options do not allow.
fn compare_states(op: &'static str, own: &StateDict, state: &StateDict, options: &LoadOptions) -> Result<Unmatched> {
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

/// An item that a visit of a module finds.
pub(crate) enum Item<'a> {
    /// Any part, with its type's name and its address.
    Part {
        kind: &'static str,
        address: usize,
    },
    /// The same part at another address, as within a box.
    Inside {
        kind: &'static str,
        address: usize,
    },
    /// The address of a part that any layer may replace.
    Place(usize),
    Tensor(&'a Tensor),
    Mode(&'a Mode),
    Recompute(&'a Recompute),
}

impl Item<'_> {
    pub(crate) fn set_training(&self, training: bool) {
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

/// The name of a layer for `rank` dimensions, 1 to 3.
pub(crate) fn of_rank(rank: usize, names: [&'static str; 3]) -> &'static str {
    names[rank.clamp(1, 3) - 1]
}

/// The address of a module; 0 for one without a size, which has none of its own.
pub(crate) fn address_of(module: &(impl Module + ?Sized)) -> usize {
    if size_of_val(module) == 0 { 0 } else { std::ptr::from_ref(module).cast::<()>() as usize }
}

impl Visitor<'_> {
    /// A part of the visited module, with its name.
    pub fn part(&mut self, name: &str, part: &(impl Module + ?Sized)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        (self.note)(&self.path, Item::Part { kind: part.type_name(), address: address_of(part) });
        part.visit(self);
        self.path.truncate(length);
    }

    /// A tensor of the visited module, which has its name.
    pub(crate) fn tensor(&mut self, tensor: &Tensor) {
        (self.note)(&self.path, Item::Tensor(tensor));
    }

    /// The content of the visited module, which has its name.
    fn inside(&mut self, content: &(impl Module + ?Sized)) {
        (self.note)(&self.path, Item::Inside { kind: content.type_name(), address: address_of(content) });
        content.visit(self);
    }

    /// The switch of the visited module.
    pub(crate) fn recompute(&mut self, switch: &Recompute) {
        (self.note)(&self.path, Item::Recompute(switch));
    }
}

/// The kind of a module's tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A parameter or a buffer.
    State,
    /// A constant, which is not saved.
    Constant,
}

/// Visits a module's parts and may replace their tensors.
pub struct VisitorMut<'a> {
    note: &'a mut dyn FnMut(&mut Tensor, Kind),
    /// Gets each part that any layer may replace.
    place: &'a mut dyn FnMut(&mut Box<dyn Layer>),
    refused: Option<&'static str>,
}

impl VisitorMut<'_> {
    /// A part of the visited module.
    pub fn part(&mut self, part: &mut (impl Module + ?Sized)) {
        part.visit_mut(self);
    }

    /// A tensor that is no part, such as a table of constants: it moves to another device with the module, and keeps its dtype.
    pub fn constant(&mut self, tensor: &mut Tensor) {
        (self.note)(tensor, Kind::Constant);
    }

    /// A tensor of the visited module.
    pub(crate) fn tensor(&mut self, tensor: &mut Tensor, kind: Kind) {
        (self.note)(tensor, kind);
    }

    fn refuse(&mut self, kind: &'static str) {
        self.refused.get_or_insert(kind);
    }

    /// A copy of a module, with tensors of its own, from a function that clones its fields: `Clone` of a module by hand, as
    /// `#[derive(Module)]` writes it. Clones within the function share their tensors.
    pub fn cloned<M: Module>(fields: impl FnOnce() -> M) -> M {
        if IS_SHARING.get() {
            return fields();
        }
        let mut clone = sharing(fields);
        let copy = |t: &Tensor, kind: Kind| if kind == Kind::State { t.copy() } else { Ok(t.clone()) };
        // `Clone` has no errors.
        replace("clone", &mut clone, Gradients::Dropped, &copy).unwrap_or_else(|e| panic!("{e}"));
        clone
    }
}

thread_local! {
    /// Clones of modules share their tensors.
    static IS_SHARING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, in which clones of modules share their tensors.
pub(crate) fn sharing<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_SHARING.set(self.0);
        }
    }
    let _restore = Restore(IS_SHARING.replace(true));
    f()
}

/// The gradients of tensors that are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gradients {
    Kept,
    Dropped,
}

/// Replaces each tensor of a module by `f` of it; leaves by leaves, and tied ones by tied ones. Errors: `Value` for a part without
/// `visit_mut`, those of `f`; then nothing has changed.
fn replace(
    op: &'static str,
    module: &mut (impl Module + ?Sized),
    gradients: Gradients,
    f: &dyn Fn(&Tensor, Kind) -> Result<Tensor>,
) -> Result<()> {
    let mut found: Vec<(Tensor, Kind)> = Vec::new();
    let note = &mut |t: &mut Tensor, kind| found.push((t.clone(), kind));
    let mut visitor = VisitorMut { note, place: &mut |_| {}, refused: None };
    module.visit_mut(&mut visitor);
    if let Some(kind) = visitor.refused {
        let message = format!("the part {kind} has no `visit_mut`, which `#[derive(Module)]` writes");
        return Err(Error::value(op, message));
    }
    let mut values: HashMap<TensorKey, Tensor> = HashMap::new();
    let mut leaves: HashMap<TensorKey, Tensor> = HashMap::new();
    // Tensors of one memory, such as a weight and its transpose.
    let mut of_memory: HashMap<usize, Vec<&Tensor>> = HashMap::new();
    for (t, kind) in &found {
        let key = t.key();
        let value = match values.get(&key) {
            Some(value) => value.clone(),
            None => {
                let beside = of_memory.entry(key.memory()).or_default();
                let tied = beside.iter().find_map(|other| Some((other.key(), order_of(t, other)?)));
                beside.push(t);
                let value = no_grad(|| match tied {
                    Some((other, order)) => values[&other].permute(&order),
                    None => Ok(f(&t.detach(), *kind)?.detach()),
                })?;
                values.insert(key.clone(), value.clone());
                value
            }
        };
        if !t.is_leaf() || leaves.contains_key(&key) {
            continue;
        }
        let is_same = value.shares_memory(t);
        let leaf = if is_same { t.clone() } else { value.require_grad()? };
        if !is_same {
            leaf.set_requires_grad(t.requires_grad())?;
        }
        if let Some(grad) = t.grad().filter(|_| gradients == Gradients::Kept && !is_same) {
            leaf.set_grad(Some(no_grad(|| f(&grad.detach(), *kind))?))?;
        }
        leaves.insert(key, leaf);
    }
    let renew = &mut |t: &mut Tensor, _: Kind| {
        let key = t.key();
        let new = if t.is_leaf() { &leaves[&key] } else { &values[&key] };
        *t = new.clone();
    };
    module.visit_mut(&mut VisitorMut { note: renew, place: &mut |_| {}, refused: None });
    Ok(())
}

/// The order of `other`'s axes in which it is t, if both have the same elements of the same memory.
fn order_of(t: &Tensor, other: &Tensor) -> Option<Vec<isize>> {
    if t.rank() != other.rank() || t.layout().offset() != other.layout().offset() {
        return None;
    }
    let axis = |x: &Tensor, i: usize| (x.dims()[i], if x.dims()[i] == 1 { 0 } else { x.layout().strides()[i] });
    let mut rest: Vec<usize> = (0..other.rank()).collect();
    let taken = (0..t.rank()).map(|i| {
        let at = rest.iter().position(|&j| axis(other, j) == axis(t, i))?;
        Some(rest.remove(at) as isize)
    });
    taken.collect()
}

/// Training or evaluation: a field of layers that distinguish them.
#[derive(Debug)]
pub struct Mode(AtomicBool);

impl Clone for Mode {
    fn clone(&self) -> Self {
        Mode(AtomicBool::new(self.is_training()))
    }
}

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

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}

    fn type_name(&self) -> &'static str {
        ""
    }
}

impl Module for Tensor {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.tensor(self);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.tensor(self, Kind::State);
    }

    fn type_name(&self) -> &'static str {
        ""
    }
}

impl<M: Module> Module for Option<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(module) = self {
            visitor.inside(module);
        }
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.iter_mut().for_each(|module| visitor.part(module));
    }

    fn type_name(&self) -> &'static str {
        self.as_ref().map_or("", M::type_name)
    }

    fn details(&self) -> Option<String> {
        self.as_ref().and_then(M::details)
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.as_slice().visit(visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.as_mut_slice().visit_mut(visitor);
    }
}

impl<M: Module> Module for BTreeMap<String, M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.iter().for_each(|(name, module)| visitor.part(name, module));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.values_mut().for_each(|module| visitor.part(module));
    }
}

impl<M: Module> Module for Box<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.inside(&**self);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.part(&mut **self);
    }

    fn type_name(&self) -> &'static str {
        (**self).type_name()
    }

    fn details(&self) -> Option<String> {
        (**self).details()
    }
}

impl Module for Box<dyn Layer> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        (visitor.note)(&visitor.path, Item::Place(address_of(self)));
        visitor.inside(&**self);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        (visitor.place)(self);
        visitor.part(&mut **self);
    }

    fn type_name(&self) -> &'static str {
        (**self).type_name()
    }

    fn details(&self) -> Option<String> {
        (**self).details()
    }
}

impl<M: Module + Clone> Module for Arc<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.inside(&**self);
    }

    /// Others that share this module keep it as it is.
    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.part(sharing(|| Arc::make_mut(self)));
    }

    fn type_name(&self) -> &'static str {
        (**self).type_name()
    }

    fn details(&self) -> Option<String> {
        (**self).details()
    }
}

impl<M: Module> Module for [M] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.iter().enumerate().for_each(|(i, module)| visitor.part(&i.to_string(), module));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.iter_mut().for_each(|module| visitor.part(module));
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.as_slice().visit(visitor);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        self.as_mut_slice().visit_mut(visitor);
    }
}

/// A function of one tensor.
pub trait Forward {
    /// The output for `x`.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;

    /// `activation(forward(x))`, which some layers compute in one kernel. Errors: as [`forward`](Forward::forward).
    fn forward_with(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        activation.of(&self.forward(x)?)
    }
}

/// A function of the name and the layer of a place, which returns the layer that the place gets: [`Module::replace_matching`].
pub type LayerChange<'a> = dyn FnMut(&str, Box<dyn Layer>) -> Result<Box<dyn Layer>> + 'a;

/// A layer of a [`Sequential`](crate::Sequential), and of each place of a model that other layers may take:
/// [`Module::replace_matching`]. Modules with [`Forward`] and `Clone` are layers.
pub trait Layer: Module + Forward + Send + Sync {
    /// The clone of the layer.
    #[doc(hidden)]
    fn boxed(&self) -> Box<dyn Layer>;
}

impl<T: Module + Forward + Clone + Send + Sync + 'static> Layer for T {
    fn boxed(&self) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Layer> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

impl fmt::Debug for dyn Layer {
    /// The type with its [`details`](Module::details), or with the shapes of the parameters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_module(self, f)
    }
}

impl<F: Forward> Forward for Box<F> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        (**self).forward(x)
    }

    fn forward_with(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        (**self).forward_with(x, activation)
    }
}

impl Forward for Box<dyn Layer> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || (**self).forward(x))
    }

    fn forward_with(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        called(self, &[x], || (**self).forward_with(x, activation))
    }
}
