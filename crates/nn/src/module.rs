//! What a model is: parts with names, some of which are parameters.

use isograd_core::{Error, Result, Tensor, no_grad};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tensors by name, as they are saved.
pub type StateDict = BTreeMap<String, Tensor>;

/// Something with parameters. A user's type names its parts; everything else follows:
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
/// `#[derive(Module)]` writes just that. A leaf tensor is a parameter, any other tensor a buffer; vectors, options and
/// boxes of modules are modules.
pub trait Module {
    /// Shows the visitor this module's parts.
    fn visit(&self, visitor: &mut Visitor<'_>);

    /// The parameters, with dotted names such as `fc1.weight`, in the order of the parts.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        self.tensors(|t| t.is_leaf())
    }

    /// The parameters.
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters().into_iter().map(|(_, t)| t).collect()
    }

    /// Tensors that are saved but not learnt.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        self.tensors(|t| !t.is_leaf())
    }

    /// How many numbers are learnt.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(Tensor::numel).sum()
    }

    /// Lets layers such as dropout behave as in training.
    fn train(&self) {
        self.set_mode(true);
    }

    /// Lets layers such as dropout behave as in use.
    fn eval(&self) {
        self.set_mode(false);
    }

    /// Forgets all gradients.
    fn zero_grad(&self) {
        for parameter in self.parameters() {
            // A leaf takes any gradient, and none.
            let _ = parameter.set_grad(None);
        }
    }

    /// Parameters and buffers by name. They share memory with the module.
    fn state_dict(&self) -> StateDict {
        self.tensors(|_| true).into_iter().collect()
    }

    /// Copies tensors into parameters and buffers of the same names. Errors: `Value` naming every missing and unexpected
    /// tensor and every one of another shape, dtype or device; then nothing has changed.
    fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        let own = self.state_dict();
        let mut problems = Vec::new();
        for (name, t) in &own {
            match state.get(name) {
                None => problems.push(format!("{name} is missing")),
                Some(s) if (s.shape(), s.dtype(), s.device()) != (t.shape(), t.dtype(), t.device()) => {
                    let (got, expected) = ((s.dtype(), s.shape(), s.device()), (t.dtype(), t.shape(), t.device()));
                    problems.push(format!(
                        "{name} is {} {} on {}, expected {} {} on {}",
                        got.0, got.1, got.2, expected.0, expected.1, expected.2
                    ));
                }
                Some(_) => {}
            }
        }
        problems.extend(state.keys().filter(|k| !own.contains_key(*k)).map(|k| format!("{k} is not in the model")));
        if !problems.is_empty() {
            return Err(Error::value("load_state_dict", problems.join("; ")));
        }
        no_grad(|| own.iter().try_for_each(|(name, t)| t.copy_(&state[name].detach())))
    }

    /// The tensors that fit, with their names.
    #[doc(hidden)]
    fn tensors(&self, fits: fn(&Tensor) -> bool) -> Vec<(String, Tensor)> {
        let mut found = Vec::new();
        let mut note = |path: &str, item: Item<'_>| {
            if let Item::Tensor(t) = item
                && fits(t)
            {
                found.push((path.to_string(), t.clone()));
            }
        };
        self.visit(&mut Visitor { path: String::new(), note: &mut note });
        found
    }

    #[doc(hidden)]
    fn set_mode(&self, training: bool) {
        let mut note = |_: &str, item: Item<'_>| {
            if let Item::Mode(mode) = item {
                mode.0.store(training, Ordering::Relaxed);
            }
        };
        self.visit(&mut Visitor { path: String::new(), note: &mut note });
    }
}

enum Item<'a> {
    Tensor(&'a Tensor),
    Mode(&'a Mode),
}

/// Walks through a module's parts.
pub struct Visitor<'a> {
    path: String,
    note: &'a mut dyn FnMut(&str, Item<'_>),
}

impl Visitor<'_> {
    /// A part of the module that is visited, under its name.
    pub fn part(&mut self, name: &str, part: &(impl Module + ?Sized)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        part.visit(self);
        self.path.truncate(length);
    }
}

/// Whether a layer is in training or in use; a field of layers that differ.
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
}

impl Module for Tensor {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        (visitor.note)(&visitor.path, Item::Tensor(self));
    }
}

impl<M: Module> Module for Option<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(module) = self {
            module.visit(visitor);
        }
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.iter().enumerate().for_each(|(i, module)| visitor.part(&i.to_string(), module));
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        (**self).visit(visitor);
    }
}

/// A function of one tensor.
pub trait Forward {
    /// The output for `x`.
    fn forward(&self, x: &Tensor) -> Result<Tensor>;
}

/// What goes into a [`Sequential`](crate::Sequential).
pub trait Layer: Module + Forward + Send + Sync {}

impl<T: Module + Forward + Send + Sync> Layer for T {}
