//! Named operands of a kernel.
//!
//! A kernel receives its operands as a list without the absent ones. The struct of an op's operands gives each a name, says which may
//! be absent, and is made from such a list and the mask of the operands that are present.

use smallvec::SmallVec;
use std::ops::{Deref, DerefMut};

/// The operands of a kernel: tensors, buffers, values of a graph, or nothing but their presence (`()`).
pub trait Operands<T>: Sized {
    /// The operands that are present, in order.
    fn present(self) -> List<T>;

    /// Which operands are present.
    fn mask(&self) -> Mask;

    /// The operands of a mask, from those that are present. Panics if there are fewer than the mask says.
    fn of(mask: Mask, present: &mut dyn Iterator<Item = T>) -> Self;
}

/// The operands that are present: a bit for each, the lowest for the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask(u32);

impl Mask {
    /// The mask of operands without names.
    pub const UNNAMED: Mask = Mask(u32::MAX);

    /// The mask of a list of presences.
    pub fn new(present: impl IntoIterator<Item = bool>) -> Mask {
        Mask(present.into_iter().enumerate().fold(0, |bits, (i, is_present)| bits | u32::from(is_present) << i))
    }

    /// True if operand `i` is present.
    pub fn has(self, i: usize) -> bool {
        self.0 >> i & 1 == 1
    }
}

/// Operands without names: of ops that take any number of tensors, or that have no optional operands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct List<T>(pub SmallVec<[T; 8]>);

impl<T> Operands<T> for List<T> {
    fn present(self) -> List<T> {
        self
    }

    fn mask(&self) -> Mask {
        Mask::UNNAMED
    }

    fn of(_: Mask, present: &mut dyn Iterator<Item = T>) -> List<T> {
        List(present.collect())
    }
}

impl<T> Deref for List<T> {
    type Target = SmallVec<[T; 8]>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T> DerefMut for List<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> List<T> {
        List(items.into_iter().collect())
    }
}

impl<T> IntoIterator for List<T> {
    type Item = T;
    type IntoIter = smallvec::IntoIter<[T; 8]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<T: Clone> From<&[T]> for List<T> {
    fn from(items: &[T]) -> List<T> {
        items.iter().cloned().collect()
    }
}

impl<T: Clone, const N: usize> From<&[T; N]> for List<T> {
    fn from(items: &[T; N]) -> List<T> {
        items.as_slice().into()
    }
}

impl<T, const N: usize> From<[T; N]> for List<T> {
    fn from(items: [T; N]) -> List<T> {
        items.into_iter().collect()
    }
}

impl<T: Clone> From<&Vec<T>> for List<T> {
    fn from(items: &Vec<T>) -> List<T> {
        items.as_slice().into()
    }
}

impl<T: Clone, const N: usize> From<&SmallVec<[T; N]>> for List<T>
where
    [T; N]: smallvec::Array<Item = T>,
{
    fn from(items: &SmallVec<[T; N]>) -> List<T> {
        items.as_slice().into()
    }
}

/// Declares the operands of a kernel. A question mark follows the name of one that may be absent.
///
/// ```
/// use isograd_core::operands::{Mask, Operands};
///
/// isograd_core::operands! {
///     /// The operands of a layer.
///     pub struct LayerInputs {
///         /// The input, `[N, C]`.
///         x,
///         /// The weight, `[C]`.
///         weight?,
///         /// The bias, `[C]`.
///         bias?,
///     }
/// }
/// let inputs = LayerInputs { x: 1, weight: None, bias: Some(3) };
/// assert_eq!(inputs.mask(), Mask::new([true, false, true]));
/// assert_eq!(inputs.present()[..], [1, 3]);
/// assert_eq!(LayerInputs::of(inputs.mask(), &mut [1, 3].into_iter()), inputs);
/// ```
#[macro_export]
macro_rules! operands {
    ($(#[$about:meta])* $vis:vis struct $name:ident { $($fields:tt)* }) => {
        $crate::operands! { @fields [$(#[$about])* $vis $name] [] $($fields)* }
    };
    (@fields $head:tt [$($done:tt)*] $(#[$about:meta])* $field:ident ? $(, $($rest:tt)*)?) => {
        $crate::operands! { @fields $head [$($done)* { [$(#[$about])*] $field optional (Option<T>) }] $($($rest)*)? }
    };
    (@fields $head:tt [$($done:tt)*] $(#[$about:meta])* $field:ident $(, $($rest:tt)*)?) => {
        $crate::operands! { @fields $head [$($done)* { [$(#[$about])*] $field always (T) }] $($($rest)*)? }
    };
    (@fields [$(#[$about:meta])* $vis:vis $name:ident] [$({ [$(#[$field_about:meta])*] $field:ident $kind:ident ($type:ty) })*]) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        $vis struct $name<T> {
            $($(#[$field_about])* $vis $field: $type,)*
        }

        impl<T> $crate::operands::Operands<T> for $name<T> {
            fn present(self) -> $crate::operands::List<T> {
                let mut list = $crate::operands::List(Default::default());
                $($crate::operands!(@push $kind list self.$field);)*
                list
            }

            fn mask(&self) -> $crate::operands::Mask {
                $crate::operands::Mask::new([$($crate::operands!(@has $kind self.$field)),*])
            }

            #[allow(unused_assignments, unused_variables)]
            fn of(mask: $crate::operands::Mask, present: &mut dyn Iterator<Item = T>) -> Self {
                let mut next = || present.next().expect("an operand of the mask is there");
                let mut i = 0;
                $(
                    let $field = $crate::operands!(@take $kind mask.has(i), next);
                    i += 1;
                )*
                $name { $($field),* }
            }
        }

        #[allow(dead_code)]
        impl<T> $name<T> {
            /// The operands after `f`.
            $vis fn map<U>(self, mut f: impl FnMut(T) -> U) -> $name<U> {
                $name { $($field: $crate::operands!(@map $kind self.$field, f)),* }
            }

            /// The operands after `f`, or its first error.
            $vis fn try_map<U>(self, mut f: impl FnMut(T) -> $crate::Result<U>) -> $crate::Result<$name<U>> {
                Ok($name { $($field: $crate::operands!(@try_map $kind self.$field, f)),* })
            }

            /// References to the operands.
            $vis fn as_ref(&self) -> $name<&T> {
                $name { $($field: $crate::operands!(@ref $kind self.$field)),* }
            }
        }
    };
    (@push always $list:ident $value:expr) => { $list.push($value) };
    (@push optional $list:ident $value:expr) => { $list.extend($value) };
    (@has always $value:expr) => { true };
    (@has optional $value:expr) => { $value.is_some() };
    (@take always $has:expr, $next:ident) => { $next() };
    (@take optional $has:expr, $next:ident) => { if $has { Some($next()) } else { None } };
    (@map always $value:expr, $f:ident) => { $f($value) };
    (@map optional $value:expr, $f:ident) => { $value.map(&mut $f) };
    (@try_map always $value:expr, $f:ident) => { $f($value)? };
    (@try_map optional $value:expr, $f:ident) => { $value.map(&mut $f).transpose()? };
    (@ref always $value:expr) => { &$value };
    (@ref optional $value:expr) => { $value.as_ref() };
}

operands! {
    /// The operands of a kernel that writes one.
    pub struct Output {
        /// The result.
        y,
    }
}

operands! {
    /// The operands of a kernel that reads one.
    pub struct Input {
        /// The operand.
        x,
    }
}
