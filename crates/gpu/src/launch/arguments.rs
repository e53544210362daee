//! Argument lists of launches.

use crate::driver::{Address, Arg};
use isograd_core::DType;
use smallvec::SmallVec;
use std::fmt::Debug;

/// The arguments of a launch: pointers and values in the kernel's order.
#[derive(Default)]
pub struct Arguments {
    bytes: SmallVec<[u8; 512]>,
    /// Where each begins and ends in `bytes`; pointers are marked.
    list: SmallVec<[(usize, usize, bool); 16]>,
    /// Allocations that the kernel reaches through pointers in memory.
    pub reached: Vec<Address>,
}

impl Arguments {
    /// No arguments.
    pub fn new() -> Arguments {
        Arguments::default()
    }

    fn add(mut self, bytes: &[u8], is_pointer: bool) -> Arguments {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.list.push((start, self.bytes.len(), is_pointer));
        self
    }

    /// An address.
    pub fn pointer(self, address: Address) -> Arguments {
        self.add(&address.to_le_bytes(), true)
    }

    /// Several addresses.
    pub fn pointers(self, addresses: impl IntoIterator<Item = Address>) -> Arguments {
        addresses.into_iter().fold(self, Arguments::pointer)
    }

    /// An integer, the kernel's `i64`.
    pub fn int<I: TryInto<i64, Error: Debug>>(self, v: I) -> Arguments {
        self.add(&integer(v).to_le_bytes(), false)
    }

    /// Several integers, each an argument.
    pub fn numbers<I: TryInto<i64, Error: Debug>>(self, values: impl IntoIterator<Item = I>) -> Arguments {
        values.into_iter().fold(self, Arguments::int)
    }

    /// Integers as one value, the kernel's struct of `i64`. An empty list is one unused integer: not every dialect has empty
    /// structs.
    pub fn ints(self, values: &[usize]) -> Arguments {
        let values = if values.is_empty() { &[0] } else { values };
        let integers: SmallVec<[i64; 32]> = values.iter().map(|&v| integer(v)).collect();
        self.add(bytemuck::cast_slice(&integers), false)
    }

    /// A value of any type.
    pub fn bytes(self, bytes: &[u8]) -> Arguments {
        self.add(bytes, false)
    }

    /// Names the allocations that the kernel reaches through pointers in memory.
    pub fn reaching(self, reached: Vec<Address>) -> Arguments {
        Arguments { reached, ..self }
    }

    /// A float of the arithmetic of `dtype`.
    pub fn float(self, v: f64, dtype: DType) -> Arguments {
        match dtype {
            DType::F64 => self.add(&v.to_le_bytes(), false),
            _ => self.add(&(v as f32).to_le_bytes(), false),
        }
    }

    /// Several floats of the arithmetic of `dtype`.
    pub fn floats(self, values: impl IntoIterator<Item = f64>, dtype: DType) -> Arguments {
        values.into_iter().fold(self, |arguments, v| arguments.float(v, dtype))
    }

    /// The list as a driver takes it.
    pub fn list(&self) -> SmallVec<[Arg<'_>; 16]> {
        let arg = |&(start, end, is_pointer): &(usize, usize, bool)| {
            let bytes = &self.bytes[start..end];
            match bytes.first_chunk() {
                Some(address) if is_pointer => Arg::Pointer(u64::from_le_bytes(*address)),
                _ => Arg::Value(bytes),
            }
        };
        self.list.iter().map(arg).collect()
    }
}

/// An integer in the kernels' type. Panics on one beyond it, which no extent, stride or count of a device's memory is.
fn integer<I: TryInto<i64, Error: Debug>>(v: I) -> i64 {
    v.try_into().expect("an integer argument fits the kernel's i64")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_arguments_are_arguments_in_order() {
        let list = Arguments::new().pointers([1, 2]).ints(&[3, 4]).ints(&[]).numbers([5, -6]).int(true);
        let list = list.floats([0.5], DType::F16).floats([0.5], DType::F64);
        let shown: Vec<String> = list.list().iter().map(|argument| format!("{argument:?}")).collect();
        let expected = [
            "pointer",
            "pointer",
            "00000000000000040000000000000003",
            "0000000000000000",
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
