//! Images of other extents as layers.

use crate::{Forward, Module, Visitor, VisitorMut, called};
use isograd_core::ops::Interpolate;
use isograd_core::{Result, Tensor};

/// [`Tensor::interpolate`].
pub type Upsample<const N: usize> = Interpolate<N>;

impl<const N: usize> Module for Interpolate<N> {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
}

impl<const N: usize> Forward for Interpolate<N> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || x.interpolate(self))
    }
}

macro_rules! layers {
    ($($name:ident $method:ident $field:ident $what:literal;)*) => {$(
        #[doc = concat!("[`Tensor::", stringify!($method), "`].")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            #[doc = $what]
            pub $field: usize,
        }

        impl Module for $name {
            fn visit(&self, _: &mut Visitor<'_>) {}

            fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}
        }

        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                called(self, &[x], || {
                    x.$method(self.$field)
                })
            }
        }
    )*};
}

layers! {
    PixelShuffle pixel_shuffle factor "Height and width of a square of pixels.";
    PixelUnshuffle pixel_unshuffle factor "Height and width of a square of pixels.";
    ChannelShuffle channel_shuffle groups "Groups of channels.";
}
