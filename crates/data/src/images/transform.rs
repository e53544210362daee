//! Changes of images.

use crate::{Context, HostTensor};
use isograd_core::Result;

/// A change of an image `[C, H, W]` as it is read. Tuples and vectors of transforms apply one after the other.
pub trait Transform: Send + Sync {
    /// The changed image. Random numbers are drawn from the context alone. Errors: `Shape` or `DType` for an image that does not fit.
    fn apply(&self, image: HostTensor, context: &Context) -> Result<HostTensor>;
}

/// A function for [`Dataset::map`](crate::Dataset::map) that changes the image of a sample, and keeps its target.
pub fn augment<T>(
    transform: impl Transform,
) -> impl Fn((HostTensor, T), &Context) -> Result<(HostTensor, T)> + Send + Sync {
    move |(image, target), context| Ok((transform.apply(image, context)?, target))
}

impl<T: Transform + ?Sized> Transform for Box<T> {
    fn apply(&self, image: HostTensor, context: &Context) -> Result<HostTensor> {
        (**self).apply(image, context)
    }
}

impl<T: Transform> Transform for Vec<T> {
    fn apply(&self, image: HostTensor, context: &Context) -> Result<HostTensor> {
        self.iter().try_fold(image, |image, transform| transform.apply(image, context))
    }
}

macro_rules! tuples {
    ($(($($name:ident $i:tt),*))*) => {$(
        impl<$($name: Transform),*> Transform for ($($name,)*) {
            fn apply(&self, image: HostTensor, context: &Context) -> Result<HostTensor> {
                $(let image = self.$i.apply(image, context)?;)*
                Ok(image)
            }
        }
    )*};
}
tuples! { (A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3) (A 0, B 1, C 2, D 3, E 4) }
