//! Pooling as layers. [`KEEP`](isograd_core::ops::KEEP) as an adaptive extent is PyTorch's `None`. The methods of [`Tensor`] that
//! end in `with_indices` return the positions of a maximum.

use crate::{Forward, Module, Visitor, VisitorMut, called};
use isograd_core::ops::{self, AvgPool, MaxPool};
use isograd_core::{Result, Tensor};

/// The averages of `output` adaptive windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveAvgPool<const N: usize> {
    /// Windows along each dimension.
    pub output: [usize; N],
}

impl<const N: usize> AdaptiveAvgPool<N> {
    /// With these numbers of windows.
    pub fn new(output: [usize; N]) -> AdaptiveAvgPool<N> {
        AdaptiveAvgPool { output }
    }
}

/// The maxima of `output` adaptive windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveMaxPool<const N: usize> {
    /// Windows along each dimension.
    pub output: [usize; N],
}

impl<const N: usize> AdaptiveMaxPool<N> {
    /// With these numbers of windows.
    pub fn new(output: [usize; N]) -> AdaptiveMaxPool<N> {
        AdaptiveMaxPool { output }
    }
}

macro_rules! layers {
    ($($name:ident = $type:ident<$n:literal> => $method:ident $($field:ident)?;)*) => {$(
        #[doc = concat!("[`Tensor::", stringify!($method), "`].")]
        pub type $name = $type<$n>;

        impl Module for $type<$n> {
            fn visit(&self, _: &mut Visitor<'_>) {}

            fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}

            fn type_name(&self) -> &'static str {
                concat!(module_path!(), "::", stringify!($name))
            }
        }

        impl Forward for $type<$n> {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                called(self, &[x], || {
                    x.$method(self$(.$field)?)
                })
            }
        }
    )*};
}

layers! {
    MaxPool1d = MaxPool<1> => max_pool1d;
    MaxPool2d = MaxPool<2> => max_pool2d;
    MaxPool3d = MaxPool<3> => max_pool3d;
    AvgPool1d = AvgPool<1> => avg_pool1d;
    AvgPool2d = AvgPool<2> => avg_pool2d;
    AvgPool3d = AvgPool<3> => avg_pool3d;
    AdaptiveMaxPool1d = AdaptiveMaxPool<1> => adaptive_max_pool1d output;
    AdaptiveMaxPool2d = AdaptiveMaxPool<2> => adaptive_max_pool2d output;
    AdaptiveMaxPool3d = AdaptiveMaxPool<3> => adaptive_max_pool3d output;
    AdaptiveAvgPool1d = AdaptiveAvgPool<1> => adaptive_avg_pool1d output;
    AdaptiveAvgPool2d = AdaptiveAvgPool<2> => adaptive_avg_pool2d output;
    AdaptiveAvgPool3d = AdaptiveAvgPool<3> => adaptive_avg_pool3d output;
}

/// Norms of windows: [`Tensor::lp_pool1d`] and its kin.
#[derive(Clone, Copy, Debug)]
pub struct LpPool<const N: usize> {
    /// The order of the norm.
    pub p: f64,
    /// The windows.
    pub windows: ops::LpPool<N>,
}

impl<const N: usize> LpPool<N> {
    /// Adjacent windows.
    pub fn new(p: f64, kernel: [usize; N]) -> LpPool<N> {
        LpPool { p, windows: ops::LpPool::new(kernel) }
    }
}

macro_rules! norms {
    ($($name:ident $n:literal $method:ident;)*) => {$(
        #[doc = concat!("[`Tensor::", stringify!($method), "`].")]
        pub type $name = LpPool<$n>;

        impl Module for LpPool<$n> {
            fn visit(&self, _: &mut Visitor<'_>) {}

            fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}

            fn type_name(&self) -> &'static str {
                concat!(module_path!(), "::", stringify!($name))
            }
        }

        impl Forward for LpPool<$n> {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                called(self, &[x], || {
                    x.$method(self.p, &self.windows)
                })
            }
        }
    )*};
}

norms! {
    LpPool1d 1 lp_pool1d;
    LpPool2d 2 lp_pool2d;
    LpPool3d 3 lp_pool3d;
}
