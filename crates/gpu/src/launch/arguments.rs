//! Argument lists of launches.

use crate::driver::{Address, Arg};
use crate::launch::integers::{Integer, Integers, integer};
use isograd_core::DType;
use smallvec::SmallVec;

/// The arguments of a launch: pointers and values in the kernel's order.
#[derive(Default)]
pub struct Arguments {
    bytes: SmallVec<[u8; 256]>,
    list: SmallVec<[Argument; 16]>,
    /// Integers with names, which the program defines.
    pub integers: Integers,
    /// Allocations that the kernel reaches through pointers in memory.
    pub reached: Vec<Address>,
}

/// An argument.
enum Argument {
    /// In `bytes`, an address.
    Pointer(usize),
    /// In `bytes`, from the first position to the second.
    Value(usize, usize),
    /// The integers with names.
    Named,
}

impl Arguments {
    /// No arguments.
    pub fn new() -> Arguments {
        Arguments::default()
    }

    // Methods that add several arguments change the list in place: it is large, and a move of it for each argument is slow.
    fn push_value(&mut self, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.list.push(Argument::Value(start, self.bytes.len()));
    }

    fn push_pointer(&mut self, address: Address) {
        self.list.push(Argument::Pointer(self.bytes.len()));
        self.bytes.extend_from_slice(&address.to_le_bytes());
    }

    fn push_float(&mut self, v: f64, dtype: DType) {
        match dtype {
            DType::F64 => self.push_value(&v.to_le_bytes()),
            _ => self.push_value(&(v as f32).to_le_bytes()),
        }
    }

    /// A value of any type.
    #[inline]
    pub fn bytes(mut self, bytes: &[u8]) -> Arguments {
        self.push_value(bytes);
        self
    }

    /// An address.
    #[inline]
    pub fn pointer(mut self, address: Address) -> Arguments {
        self.push_pointer(address);
        self
    }

    /// Several addresses.
    #[inline]
    pub fn pointers(mut self, addresses: impl IntoIterator<Item = Address>) -> Arguments {
        addresses.into_iter().for_each(|address| self.push_pointer(address));
        self
    }

    /// An integer, the kernel's `i64`.
    #[inline]
    pub fn int<I: Integer>(mut self, v: I) -> Arguments {
        self.push_value(&integer(v).to_le_bytes());
        self
    }

    /// Several integers, each an argument.
    #[inline]
    pub fn numbers<I: Integer>(mut self, values: impl IntoIterator<Item = I>) -> Arguments {
        values.into_iter().for_each(|v| self.push_value(&integer(v).to_le_bytes()));
        self
    }

    /// Integers with names, `p` of the kernel.
    #[inline]
    pub fn named(mut self, integers: Integers) -> Arguments {
        debug_assert!(self.integers.names.is_empty(), "a kernel has one `p`");
        self.list.push(Argument::Named);
        self.integers = integers;
        self
    }

    /// Names the allocations that the kernel reaches through pointers in memory.
    pub fn reaching(mut self, reached: Vec<Address>) -> Arguments {
        self.reached = reached;
        self
    }

    /// A float of the arithmetic of `dtype`.
    #[inline]
    pub fn float(mut self, v: f64, dtype: DType) -> Arguments {
        self.push_float(v, dtype);
        self
    }

    /// Several floats of the arithmetic of `dtype`.
    #[inline]
    pub fn floats(mut self, values: impl IntoIterator<Item = f64>, dtype: DType) -> Arguments {
        values.into_iter().for_each(|v| self.push_float(v, dtype));
        self
    }

    /// The list as a driver takes it.
    pub fn list(&self) -> SmallVec<[Arg<'_>; 16]> {
        let arg = |argument: &Argument| match *argument {
            Argument::Pointer(start) => {
                let address = self.bytes[start..].first_chunk().expect("an address was added");
                Arg::Pointer(u64::from_le_bytes(*address))
            }
            Argument::Value(start, end) => Arg::Value(&self.bytes[start..end]),
            Argument::Named => Arg::Value(self.integers.bytes()),
        };
        self.list.iter().map(arg).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_arguments_are_arguments_in_order() {
        let list = Arguments::new().pointers([1, 2]).named(Integers::new().list("STRIDES", [3, 4])).numbers([5, -6]);
        let list = list.int(true).floats([0.5], DType::F16).floats([0.5], DType::F64);
        let shown: Vec<String> = list.list().iter().map(|argument| format!("{argument:?}")).collect();
        let expected = [
            "pointer",
            "pointer",
            "00000000000000040000000000000003",
            "0000000000000005",
            "fffffffffffffffa",
            "0000000000000001",
            "3f000000",
            "3fe0000000000000",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    #[should_panic(expected = "fits the kernel's i64")]
    fn an_integer_beyond_a_kernels_i64_is_refused() {
        Arguments::new().int(usize::MAX);
    }
}
