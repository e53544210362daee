//! Activations as layers.

use crate::{Forward, Init, Module, Visitor, VisitorMut, called};
use isograd_core::ops::Approximate;
use isograd_core::{Result, Tensor};
use std::fmt;

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident => $call:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default)]
        pub struct $name {
            /// Each has an address of its own, by which a hook knows it.
            _place: u8,
        }

        #[doc = concat!("The layer [`", stringify!($name), "`](struct@", stringify!($name), ").")]
        #[allow(non_upper_case_globals)]
        pub const $name: $name = $name { _place: 0 };

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }

        activations!(@layer $name $call);
    )*};
    (@layer $name:ident $call:expr) => {
        impl Module for $name {
            fn visit(&self, _: &mut Visitor<'_>) {}

            fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                called(self, &[x], || {
                    let call: fn(&Self, &Tensor) -> Result<Tensor> = $call;
                    call(self, x)
                })
            }
        }
    };
}

activations! {
    /// [`Tensor::relu`].
    Relu => |_, x| x.relu();
    /// [`Tensor::relu6`].
    Relu6 => |_, x| x.relu6();
    /// [`Tensor::sigmoid`].
    Sigmoid => |_, x| x.sigmoid();
    /// [`Tensor::tanh`].
    Tanh => |_, x| x.tanh();
    /// [`Tensor::silu`].
    Silu => |_, x| x.silu();
    /// [`Tensor::mish`].
    Mish => |_, x| x.mish();
    /// [`Tensor::selu`].
    Selu => |_, x| x.selu();
    /// [`Tensor::softsign`].
    Softsign => |_, x| x.softsign();
    /// [`Tensor::logsigmoid`].
    LogSigmoid => |_, x| x.logsigmoid();
    /// [`Tensor::tanhshrink`].
    Tanhshrink => |_, x| x.tanhshrink();
    /// [`Tensor::hardswish`].
    Hardswish => |_, x| x.hardswish();
    /// [`Tensor::hardsigmoid`].
    Hardsigmoid => |_, x| x.hardsigmoid();
}

macro_rules! with_fields {
    ($($(#[$doc:meta])* $name:ident ($($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr),*) => $call:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type),* }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default),* }
            }
        }

        activations!(@layer $name $call);
    )*};
}

with_fields! {
    /// [`Tensor::gelu`].
    Gelu(
        /// The formula: with the error function, or approximated with tanh.
        approximate: Approximate = Approximate::None
    ) => |l, x| x.gelu(l.approximate);
    /// [`Tensor::leaky_relu`].
    LeakyRelu(
        /// The slope of negative inputs.
        slope: f64 = 0.01
    ) => |l, x| x.leaky_relu(l.slope);
    /// [`Tensor::elu`].
    Elu(
        /// The negated limit of very negative inputs.
        alpha: f64 = 1.0
    ) => |l, x| x.elu(l.alpha);
    /// [`Tensor::celu`].
    Celu(
        /// The negated limit of very negative inputs.
        alpha: f64 = 1.0
    ) => |l, x| x.celu(l.alpha);
    /// [`Tensor::softplus`].
    Softplus(
        /// The sharpness of the bend.
        beta: f64 = 1.0,
        /// The value of `beta x` from which the function is linear.
        threshold: f64 = 20.0
    ) => |l, x| x.softplus(l.beta, l.threshold);
    /// [`Tensor::hardtanh`].
    Hardtanh(
        /// The smallest output.
        min: f64 = -1.0,
        /// The largest output.
        max: f64 = 1.0
    ) => |l, x| x.hardtanh(l.min, l.max);
    /// [`Tensor::threshold`].
    Threshold(
        /// Inputs up to this are replaced.
        threshold: f64 = 0.0,
        /// The replacement.
        value: f64 = 0.0
    ) => |l, x| x.threshold(l.threshold, l.value);
    /// [`Tensor::softshrink`].
    Softshrink(
        /// The distance by which inputs move toward 0.
        lambda: f64 = 0.5
    ) => |l, x| x.softshrink(l.lambda);
    /// [`Tensor::hardshrink`].
    Hardshrink(
        /// Inputs of at most this size become 0.
        lambda: f64 = 0.5
    ) => |l, x| x.hardshrink(l.lambda);
    /// [`Tensor::glu`].
    Glu(
        /// The dimension that is halved.
        dim: isize = -1
    ) => |l, x| x.glu(l.dim);
    /// [`Tensor::softmin`].
    Softmin(
        /// The dimension along which outputs sum to 1.
        dim: isize = -1
    ) => |l, x| x.softmin(l.dim);
    /// [`Tensor::softmax`].
    Softmax(
        /// The dimension along which outputs sum to 1.
        dim: isize = -1
    ) => |l, x| x.softmax(l.dim);
    /// [`Tensor::log_softmax`].
    LogSoftmax(
        /// The dimension along which exponentials of outputs sum to 1.
        dim: isize = -1
    ) => |l, x| x.log_softmax(l.dim);
}

/// [`Tensor::prelu`] with a learned slope of negative inputs.
#[derive(Debug, Module)]
pub struct Prelu {
    /// `[1]`, or `[C]`.
    pub weight: Tensor,
}

impl Prelu {
    /// With `slopes` slopes of 0.25: 1 for all channels, or one for each.
    pub fn new(slopes: usize, init: &Init) -> Result<Prelu> {
        Ok(Prelu { weight: init.constant(slopes, 0.25)? })
    }
}

impl Forward for Prelu {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || x.prelu(&self.weight))
    }
}
