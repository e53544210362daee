//! Padding as layers. Each pair has the numbers of elements before the first and after the last one of a dimension, in the order of the
//! shape; PyTorch lists the last dimension first.

use crate::{Forward, Module, Visitor, VisitorMut, called};
use isograd_core::ops::Pad;
use isograd_core::{Result, Scalar, Tensor};

/// Adds elements of one value around the last `N` dimensions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConstantPad<const N: usize> {
    /// Elements added at both ends of each dimension; negative numbers remove.
    pub padding: [[isize; 2]; N],
    /// Their value.
    pub value: Scalar,
}

macro_rules! layers {
    ($($name:ident $pad:expr, $what:literal, $($n:literal $alias:ident)*;)*) => {$(
        layers!(struct $name $pad, $what);
        layers!(types $name $($n $alias)*);
    )*};
    (struct ConstantPad $pad:expr, $what:literal) => {};
    (struct $name:ident $pad:expr, $what:literal) => {
        #[doc = $what]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<const N: usize> {
            /// Elements added at both ends of each dimension; negative numbers remove.
            pub padding: [[isize; 2]; N],
        }

        impl<const N: usize> Forward for $name<N> {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                called(self, &[x], || {
                    x.pad(&self.padding, $pad)
                })
            }
        }
    };
    (types $name:ident $($n:literal $alias:ident)*) => {
        impl<const N: usize> Module for $name<N> {
            fn visit(&self, _: &mut Visitor<'_>) {}

            fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
        }

        $(
            #[doc = concat!("[`", stringify!($name), "`] over the last ", stringify!($n), " dimensions.")]
            pub type $alias = $name<$n>;
        )*
    };
}

impl<const N: usize> Forward for ConstantPad<N> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || x.pad(&self.padding, Pad::Constant(self.value)))
    }
}

layers! {
    ConstantPad Pad::ZEROS, "", 1 ConstantPad1d 2 ConstantPad2d 3 ConstantPad3d;
    ZeroPad Pad::ZEROS, "Adds zeros around the last `N` dimensions.", 1 ZeroPad1d 2 ZeroPad2d 3 ZeroPad3d;
    ReflectionPad Pad::Reflect, "Mirrors the last `N` dimensions at their first and last elements.",
        1 ReflectionPad1d 2 ReflectionPad2d 3 ReflectionPad3d;
    ReplicationPad Pad::Replicate, "Repeats the first and last elements of the last `N` dimensions.",
        1 ReplicationPad1d 2 ReplicationPad2d 3 ReplicationPad3d;
    CircularPad Pad::Circular, "Continues the last `N` dimensions with the elements of their other ends.",
        1 CircularPad1d 2 CircularPad2d 3 CircularPad3d;
}
