//! Optimizers. Everything that changes from step to step (rate, step count, scale) lives on the device, so that a step
//! reads nothing back.

mod adagrad;
mod adam;
mod engine;
mod lamb;
mod lars;
mod muon;
mod rmsprop;
mod sgd;

pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use lamb::Lamb;
pub use lars::Lars;
pub use muon::{Adjust, Muon};
pub use rmsprop::RmsProp;
pub use sgd::Sgd;

use crate::StateDict;
use engine::{Options, Own};
use isograd_core::{Result, Tensor};
use std::sync::Arc;

/// What a training loop needs of an optimizer.
pub trait Optimizer {
    /// Updates every parameter that has a gradient, then forgets the gradients. A parameter without one stays as it is,
    /// its step count included. Errors: `Attr` for an option out of its range, `Value` for a parameter that is no leaf or that was
    /// listed twice, and where there is no parameter.
    fn step(&mut self) -> Result<()> {
        self.step_scaled(None)
    }

    /// [`step`](Optimizer::step) with gradients multiplied by a device scalar; where `found_inf` is not 0 nothing
    /// changes, step counts included.
    fn step_scaled(&mut self, scaling: Option<&Scaling>) -> Result<()>;

    /// The parameters of all groups.
    fn parameters(&self) -> Vec<Tensor>;

    /// Sets the learning rate; groups with a rate of their own keep its ratio to this one. Errors: `Attr` if it is negative, or not
    /// finite in the dtype of the arithmetic.
    fn set_lr(&mut self, lr: f64) -> Result<()>;

    /// The learning rate of the parameters without a rate of their own.
    fn learning_rate(&self) -> f64;

    /// With `clip_norm`: the total norm of the last step's gradients before they were clipped, on the device.
    fn grad_norm(&self) -> Option<Tensor>;

    /// Whether a step clips by the total norm of the gradients, which whoever has it passes on as [`Scaling::norm`].
    fn clips_by_norm(&self) -> bool {
        false
    }

    /// Step count and states of every parameter by name, `fc1.weight.step`, `fc1.weight.exp_avg`, which share memory with the
    /// optimizer; the learning rate (`lr`) and the one it was built with (`initial_lr`); and of each group the rate while
    /// that one was set, its options and the numbers of its parameters, `group.0.initial_lr`, `group.0.weight_decay`,
    /// `group.0.params`. Errors: as [`step`](Optimizer::step).
    fn state_dict(&self) -> Result<StateDict>;

    /// Takes over what [`state_dict`](Optimizer::state_dict) gave, learning rate and options of all groups included; where a
    /// state has no options, those of the optimizer stay. Errors: `Value` naming all that is missing, unexpected or of
    /// another shape or dtype, `Attr` for an option out of its range; then nothing has changed.
    fn load_state_dict(&mut self, state: &StateDict) -> Result<()>;

    /// Forgets the gradients of all parameters.
    fn zero_grad(&self) {
        for parameter in self.parameters() {
            // A leaf takes any gradient, and none.
            let _ = parameter.set_grad(None);
        }
    }
}

/// What a [`GradScaler`](crate::GradScaler) tells an optimizer, on the device.
pub struct Scaling {
    /// Multiplies the gradients; rank 0, f32.
    pub inv_scale: Tensor,
    /// 1 if a gradient was not finite, else 0; rank 0, f32.
    pub found_inf: Tensor,
    /// The total norm of the gradients before they are multiplied, if it is known; rank 0.
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

    fn grad_norm(&self) -> Option<Tensor> {
        (**self).grad_norm()
    }

    fn clips_by_norm(&self) -> bool {
        (**self).clips_by_norm()
    }

    fn state_dict(&self) -> Result<StateDict> {
        (**self).state_dict()
    }

    fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        (**self).load_state_dict(state)
    }
}

/// An optimizer whose groups of parameters have options of their own, as [`Group`] has them.
pub trait Grouped: Optimizer {
    #[doc(hidden)]
    type Rule;
}

/// What a group of parameters has of its own; the rest is the optimizer's, whenever that is given. It has all options of the
/// optimizer `O` but those that are about all gradients, which are to clip.
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

    /// Goes up the gradient instead of down.
    pub fn maximize(self) -> Self {
        self.with(|options| options.maximize = true)
    }

    fn with(mut self, edit: impl Fn(&mut Options<O::Rule>) + Send + Sync + 'static) -> Self {
        self.0.edits.push(Arc::new(edit));
        self
    }
}

/// Writes the options of an optimizer, for itself and for its groups.
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

/// Writes what all optimizers have in common: constructors, the options of the engine, and [`Optimizer`].
macro_rules! optimizer {
    ($name:ident of $kind:ty, lr $lr:literal, weight_decay $decay:literal, rule $rule:expr) => {
        impl Grouped for $name {
            type Rule = $kind;
        }

        impl $name {
            /// Over the parameters of `model`.
            pub fn new(model: &(impl crate::Module + ?Sized)) -> Self {
                $name(Engine::new(model.named_parameters(), $rule, $lr, $decay))
            }

            /// Over any leaf tensors, which are named by their numbers.
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

            /// Before each step scales the gradients of all groups so that their total norm is at most `max_norm`.
            pub fn clip_norm(mut self, max_norm: f64) -> Self {
                self.0.clip_norm = Some(max_norm);
                self.0.options_mut();
                self
            }

            /// Holds each element of the gradients between `-limit` and `limit` as a step reads it, after `clip_norm` if both are
            /// set; NaN stays. What [`clip_grad_value`](crate::clip_grad_value) does before the step, without a pass of its own;
            /// the gradients stay as they are.
            pub fn clip_value(mut self, limit: f64) -> Self {
                self.0.clip_value = Some(limit);
                self.0.options_mut();
                self
            }

            /// Goes up the gradient instead of down.
            pub fn maximize(mut self) -> Self {
                self.0.options_mut().maximize = true;
                self
            }

            /// Gives `parameters` options of their own. Those that the optimizer does not have yet are added, those that have
            /// stepped keep their states, and those that were in another group keep its options where this one has none.
            pub fn group(mut self, parameters: Vec<Tensor>, options: impl FnOnce(Group<Self>) -> Group<Self>) -> Self {
                self.0.add_group(parameters, &options(Group::default()).0);
                self
            }

            /// Gives the parameters that `chooses` accepts by name and tensor options of their own, such as no weight
            /// decay for biases.
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

            fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
                self.0.load_state_dict(state)
            }
        }
    };
}
pub(crate) use optimizer;
