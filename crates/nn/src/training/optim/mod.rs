//! Optimizers. Numbers that change from step to step (rate, step count, scale) are on the device, so that a step reads nothing
//! back.

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod asgd;
mod engine;
mod lamb;
mod lars;
mod lbfgs;
mod lion;
mod muon;
mod nadam;
mod radam;
mod rmsprop;
mod rprop;
mod scheduled;
mod sgd;

pub use adadelta::Adadelta;
pub use adafactor::Adafactor;
pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use adamax::Adamax;
pub use asgd::Asgd;
pub use lamb::Lamb;
pub use lars::Lars;
pub use lbfgs::{Lbfgs, LineSearch};
pub use lion::Lion;
pub use muon::{Adjust, Muon};
pub use nadam::Nadam;
pub use radam::Radam;
pub use rmsprop::RmsProp;
pub use rprop::Rprop;
pub use scheduled::Scheduled;
pub use sgd::Sgd;

use crate::{Schedule, StateDict};
use engine::{Options, Own};
use isograd_core::{Error, Result, Tensor};
use std::sync::Arc;

/// The interface of optimizers for a training loop.
pub trait Optimizer: Send {
    /// Updates every parameter that has a gradient, then clears the gradients. A parameter without a gradient is unchanged,
    /// including its step count. Errors: `Attr` for an option out of its range; `Value` for a parameter that is no leaf or is
    /// listed twice, and without parameters.
    fn step(&mut self) -> Result<()> {
        self.step_scaled(None)
    }

    /// [`step`](Optimizer::step) with gradients multiplied by a device scalar. If `found_inf` is not 0, nothing changes, including
    /// step counts.
    fn step_scaled(&mut self, scaling: Option<&Scaling>) -> Result<()>;

    /// The parameters of all groups.
    fn parameters(&self) -> Vec<Tensor>;

    /// Sets the learning rate. Rates of groups keep their ratio to it. Errors: `Attr` if it is negative, or not finite in the dtype
    /// of the arithmetic.
    fn set_lr(&mut self, lr: f64) -> Result<()>;

    /// The learning rate of parameters without a rate of their own.
    fn learning_rate(&self) -> f64;

    /// The optimizer that this one steps, if it is one around another. The provided methods ask that one.
    fn inner(&self) -> Option<&dyn Optimizer> {
        None
    }

    /// With `clip_norm`: the total norm of the last step's gradients before clipping, on the device.
    fn grad_norm(&self) -> Option<Tensor> {
        self.inner()?.grad_norm()
    }

    /// True if a step clips by the total norm of the gradients. A caller that knows the norm passes it as [`Scaling::norm`].
    fn clips_by_norm(&self) -> bool {
        self.inner().is_some_and(|inner| inner.clips_by_norm())
    }

    /// Step count and states of every parameter by name, such as `fc1.weight.step`, `fc1.weight.exp_avg`, which share memory with
    /// the optimizer; the learning rate (`lr`) and the initial one (`initial_lr`); for each group its rate at the initial learning
    /// rate, its options, and the indices of its parameters, such as `group.0.initial_lr`, `group.0.weight_decay`,
    /// `group.0.params`. Errors: as [`step`](Optimizer::step).
    fn state_dict(&self) -> Result<StateDict>;

    /// The part of [`state_dict`](Optimizer::state_dict) without states: rates, and the options and parameters of each group. Errors:
    /// `Unsupported` for an optimizer that has no groups.
    fn options(&self) -> Result<StateDict> {
        match self.inner() {
            Some(inner) => inner.options(),
            None => Err(Error::unsupported("options", "this optimizer has no groups of parameters")),
        }
    }

    /// True if a step changes each element by its own gradient and states alone, apart from clipping by norm. Parts of a parameter can
    /// then be stepped in different places.
    fn is_elementwise(&self) -> bool {
        self.inner().is_some_and(|inner| inner.is_elementwise())
    }

    /// Loads the result of [`state_dict`](Optimizer::state_dict), including the learning rate and the options of all groups.
    /// Options that the state does not have stay as they are. Errors: `Value` for other groups of parameters, in one sentence, or else naming
    /// every tensor that is missing, unexpected or of another shape or dtype; `Attr` for an option out of its range; then nothing has changed.
    fn load_state_dict(&mut self, state: &StateDict) -> Result<()>;

    /// This optimizer with the rates of a schedule: that of step 0 now, and after each step that of the next. Errors: as the schedule's and
    /// [`set_lr`](Optimizer::set_lr).
    ///
    /// ```
    /// # use isograd_core::Result;
    /// # use isograd_nn::{AdamW, Module, Optimizer, schedule::Cosine};
    /// fn optimizer(model: &impl Module) -> Result<impl Optimizer> {
    ///     AdamW::new(model).scheduled(Cosine { lr: 1e-3, min: 1e-5, steps: 1000 })
    /// }
    /// ```
    fn scheduled<S: Schedule>(self, schedule: S) -> Result<Scheduled<Self, S>>
    where
        Self: Sized,
    {
        Scheduled::new(self, schedule)
    }

    /// Clears the gradients of all parameters.
    fn zero_grad(&self) {
        for parameter in self.parameters() {
            // A leaf accepts any gradient, and `None`.
            let _ = parameter.set_grad(None);
        }
    }
}

/// The scaling of a step by a [`GradScaler`](crate::GradScaler), on the device.
pub struct Scaling {
    /// The factor of the gradients; rank 0, f32.
    pub inv_scale: Tensor,
    /// 1 if a gradient was not finite, else 0; rank 0, f32.
    pub found_inf: Tensor,
    /// The total norm of the gradients before scaling, if it is known; rank 0.
    pub norm: Option<Tensor>,
}

impl<O: Optimizer + ?Sized> Optimizer for Box<O> {
    fn step_scaled(&mut self, scaling: Option<&Scaling>) -> Result<()> {
        (**self).step_scaled(scaling)
    }

    fn parameters(&self) -> Vec<Tensor> {
        (**self).parameters()
    }

    fn set_lr(&mut self, lr: f64) -> Result<()> {
        (**self).set_lr(lr)
    }

    fn learning_rate(&self) -> f64 {
        (**self).learning_rate()
    }

    fn inner(&self) -> Option<&dyn Optimizer> {
        (**self).inner()
    }

    fn grad_norm(&self) -> Option<Tensor> {
        (**self).grad_norm()
    }

    fn clips_by_norm(&self) -> bool {
        (**self).clips_by_norm()
    }

    fn state_dict(&self) -> Result<StateDict> {
        (**self).state_dict()
    }

    fn options(&self) -> Result<StateDict> {
        (**self).options()
    }

    fn is_elementwise(&self) -> bool {
        (**self).is_elementwise()
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        (**self).load_state_dict(state)
    }
}

/// An optimizer with options for groups of parameters; see [`Group`].
pub trait Grouped: Optimizer {
    #[doc(hidden)]
    type Rule;
}

/// The options of a group of parameters. Options that a group does not set are the optimizer's, whenever those are set. A group has
/// all options of the optimizer `O`, except clipping, which concerns all gradients.
///
/// ```no_run
/// # use isograd_nn::{AdamW, Init, Linear};
/// # fn main() -> isograd_core::Result<()> {
/// # let model = Linear::new(2, 1, &Init::new(&isograd_core::Device::cpu()?))?;
/// let optimizer = AdamW::new(&model)
///     .lr(3e-4)
///     .group_where(|name, _| name.ends_with("bias"), |g| g.weight_decay(0.0))
///     .group(vec![model.weight.clone()], |g| g.lr(1e-4).betas(0.9, 0.95));
/// # Ok(())
/// # }
/// ```
pub struct Group<O: Grouped>(Own<O::Rule>);

impl<O: Grouped> Default for Group<O> {
    fn default() -> Self {
        Group(Own::default())
    }
}

impl<O: Grouped> Group<O> {
    /// The group's learning rate.
    pub fn lr(mut self, lr: f64) -> Self {
        self.0.lr = Some(lr);
        self
    }

    /// The group's weight decay.
    pub fn weight_decay(self, decay: f64) -> Self {
        self.with(move |options| options.weight_decay = decay)
    }

    /// Gradient ascent instead of descent.
    pub fn maximize(self) -> Self {
        self.with(|options| options.maximize = true)
    }

    fn with(mut self, edit: impl Fn(&mut Options<O::Rule>) + Send + Sync + 'static) -> Self {
        self.0.edits.push(Arc::new(edit));
        self
    }
}

/// Defines the options of an optimizer, for itself and for its groups.
macro_rules! options {
    ($name:ident { $($(#[$doc:meta])* $option:ident($($value:ident: $kind:ty),*) |$rule:ident| $set:expr;)+ }) => {
        impl $name {
            $($(#[$doc])*
            pub fn $option(mut self, $($value: $kind),*) -> Self {
                let $rule = &mut self.0.options_mut().rule;
                $set;
                self
            })+
        }

        impl Group<$name> {
            $($(#[$doc])*
            pub fn $option(self, $($value: $kind),*) -> Self {
                self.with(move |options| {
                    let $rule = &mut options.rule;
                    $set;
                })
            })+
        }
    };
}
pub(crate) use options;

/// Defines the common part of all optimizers: constructors, the options of the engine, and [`Optimizer`].
macro_rules! optimizer {
    ($name:ident of $kind:ty, lr $lr:literal, weight_decay $decay:literal, rule $rule:expr) => {
        impl Grouped for $name {
            type Rule = $kind;
        }

        impl $name {
            /// For the parameters of `model`.
            pub fn new(model: &(impl crate::Module + ?Sized)) -> Self {
                $name(Engine::new(model.named_parameters(), $rule, $lr, $decay))
            }

            /// For any leaf tensors, which are named by their numbers.
            pub fn from_parameters(parameters: Vec<Tensor>) -> Self {
                let named = parameters.into_iter().enumerate().map(|(i, t)| (i.to_string(), t)).collect();
                $name(Engine::new(named, $rule, $lr, $decay))
            }

            /// The learning rate, at least 0.
            pub fn lr(mut self, lr: f64) -> Self {
                self.0.start_lr(lr);
                self
            }

            /// The weight decay, at least 0.
            pub fn weight_decay(mut self, decay: f64) -> Self {
                self.0.options_mut().weight_decay = decay;
                self
            }

            /// Scales the gradients of all groups before each step, so that their total norm is at most `max_norm`.
            pub fn clip_norm(mut self, max_norm: f64) -> Self {
                self.0.clip_norm = Some(max_norm);
                self.0.options_mut();
                self
            }

            /// Clips each element of the gradients to `-limit` .. `limit` as a step reads it, after `clip_norm` if both are set;
            /// NaN stays. The step is that after [`clip_grad_value`](crate::clip_grad_value), without a separate pass. The
            /// gradients themselves do not change.
            pub fn clip_value(mut self, limit: f64) -> Self {
                self.0.clip_value = Some(limit);
                self.0.options_mut();
                self
            }

            /// Gradient ascent instead of descent.
            pub fn maximize(mut self) -> Self {
                self.0.options_mut().maximize = true;
                self
            }

            /// Gives `parameters` options of their own. New parameters are added to the optimizer. Parameters that have stepped
            /// keep their states. Parameters from another group keep its options, unless this group sets them.
            pub fn group(mut self, parameters: Vec<Tensor>, options: impl FnOnce(Group<Self>) -> Group<Self>) -> Self {
                self.0.add_group(parameters, &options(Group::default()).0);
                self
            }

            /// Gives the parameters that `chooses` accepts, by name and tensor, options of their own, such as no weight decay for
            /// biases.
            pub fn group_where(
                self,
                chooses: impl Fn(&str, &Tensor) -> bool,
                options: impl FnOnce(Group<Self>) -> Group<Self>,
            ) -> Self {
                let chosen = self.0.parameters_where(chooses);
                self.group(chosen, options)
            }
        }

        impl Optimizer for $name {
            fn step_scaled(&mut self, scaling: Option<&Scaling>) -> Result<()> {
                self.0.step(scaling)?;
                self.zero_grad();
                Ok(())
            }

            fn parameters(&self) -> Vec<Tensor> {
                self.0.parameters_where(|_, _| true)
            }

            fn set_lr(&mut self, lr: f64) -> Result<()> {
                self.0.set_lr(lr)
            }

            fn learning_rate(&self) -> f64 {
                self.0.lr()
            }

            fn grad_norm(&self) -> Option<Tensor> {
                self.0.grad_norm.clone()
            }

            fn clips_by_norm(&self) -> bool {
                self.0.clip_norm.is_some()
            }

            fn state_dict(&self) -> Result<StateDict> {
                self.0.state_dict()
            }

            fn options(&self) -> Result<StateDict> {
                self.0.saved_options()
            }

            fn is_elementwise(&self) -> bool {
                self.0.is_elementwise()
            }

            fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
                self.0.load_state_dict(state)
            }
        }
    };
}
pub(crate) use optimizer;
