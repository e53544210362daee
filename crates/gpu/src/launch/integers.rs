//! Integers that a kernel reads by their names.

use crate::launch::words::divider;
use crate::program::names::{IntegerKind, Names};
use smallvec::SmallVec;
use std::fmt::Debug;

/// The integers of `p`, a kernel's struct, each with its name. The program that is launched defines the names.
#[derive(Clone, Default)]
pub struct Integers {
    pub names: Names,
    values: SmallVec<[i64; 32]>,
}

impl Integers {
    /// No integers.
    pub fn new() -> Integers {
        Integers::default()
    }

    /// Adds integers, `i64` in the kernel.
    #[inline]
    pub fn integers<I: Integer>(mut self, named: impl IntoIterator<Item = (&'static str, I)>) -> Integers {
        named.into_iter().for_each(|(name, value)| self.name(name, IntegerKind::Integer, [value]));
        self
    }

    /// Adds positions, `idx` in the kernel.
    #[inline]
    pub fn positions<I: Integer>(mut self, named: impl IntoIterator<Item = (&'static str, I)>) -> Integers {
        named.into_iter().for_each(|(name, value)| self.name(name, IntegerKind::Position, [value]));
        self
    }

    /// Adds integers of which the kernel reads number `i` as `name(i)`.
    #[inline]
    pub fn list<I: Integer>(mut self, name: &'static str, values: impl IntoIterator<Item = I>) -> Integers {
        self.name(name, IntegerKind::Integers, values);
        self
    }

    /// The same for positions.
    #[inline]
    pub fn position_list<I: Integer>(mut self, name: &'static str, values: impl IntoIterator<Item = I>) -> Integers {
        self.name(name, IntegerKind::Positions, values);
        self
    }

    /// Adds positions that the kernel divides by: `QUOTIENT(n, name, BY_name)`.
    #[inline]
    pub fn divisors(mut self, named: impl IntoIterator<Item = (&'static str, usize)>) -> Integers {
        named.into_iter().for_each(|(name, d)| self.name(name, IntegerKind::Divisor, [d, divider(d)]));
        self
    }

    /// The same for several, of which number `i` is `name(i)` and `BY_name(i)`.
    #[inline]
    pub fn divisor_list(mut self, name: &'static str, values: impl IntoIterator<Item = usize>) -> Integers {
        self.name(name, IntegerKind::Divisors, values.into_iter().flat_map(|d| [d, divider(d)]));
        self
    }

    fn name<I: Integer>(&mut self, name: &'static str, kind: IntegerKind, values: impl IntoIterator<Item = I>) {
        let before = self.values.len();
        self.values.extend(values.into_iter().map(integer));
        self.names.push(name, kind, self.values.len() - before);
    }

    /// Adds others.
    pub fn and(mut self, others: &Integers) -> Integers {
        self.names.extend(&others.names);
        self.values.extend_from_slice(&others.values);
        self
    }

    /// The struct. One without integers has one that is not used: not every dialect has empty structs.
    pub fn bytes(&self) -> &[u8] {
        if self.values.is_empty() { &[0; size_of::<i64>()] } else { bytemuck::cast_slice(&self.values) }
    }
}

/// Types whose values become integers of the kernels' type `i64`.
pub trait Integer: TryInto<i64, Error: Debug> {}
impl<I: TryInto<i64, Error: Debug>> Integer for I {}

/// An integer in the kernels' type. Panics on one beyond it, which no extent, stride or count of a device's memory is.
pub fn integer<I: Integer>(v: I) -> i64 {
    v.try_into().expect("an integer argument fits the kernel's i64")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_defined_by_the_places_of_their_values() {
        let own = Integers::new().positions([("BANDS", 7)]).position_list("EXTENTS", [2, 3]).integers([("LOW", -1)]);
        let all = own.and(&Integers::new().list("STRIDES", [5, 6]).divisors([("ROWS", 4)]).divisor_list("HEADS", [8]));
        let expected = "#define INTS 10\n#define BANDS ((idx)p.v[0])\n#define EXTENTS(i) ((idx)p.v[1 + (i)])\n\
                        #define LOW p.v[3]\n#define STRIDES(i) p.v[4 + (i)]\n\
                        #define ROWS ((idx)p.v[6])\n#define BY_ROWS p.v[7]\n\
                        #define HEADS(i) ((idx)p.v[8 + 2 * (i)])\n#define BY_HEADS(i) p.v[9 + 2 * (i)]\n";
        assert_eq!(all.names.to_string(), expected);
        let [by_4, by_8] = [4, 8].map(|d| divider(d) as i64);
        assert_eq!(all.bytes(), bytemuck::cast_slice::<i64, u8>(&[7, 2, 3, -1, 5, 6, 4, by_4, 8, by_8]));
    }

    #[test]
    fn a_struct_without_integers_has_a_size() {
        let none = Integers::new().list("STRIDES", [0; 0]);
        assert_eq!(none.names.to_string(), "#define INTS 1\n#define STRIDES(i) p.v[0 + (i)]\n");
        assert_eq!(none.bytes(), [0; 8]);
    }
}
