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
        let v: i64 = v.try_into().expect("an integer argument fits the kernel's i64");
        self.add(&v.to_le_bytes(), false)
    }

    /// Several integers, each an argument.
    pub fn numbers<I: TryInto<i64, Error: Debug>>(self, values: impl IntoIterator<Item = I>) -> Arguments {
        values.into_iter().fold(self, Arguments::int)
    }

    /// Integers as one value, the kernel's `Ints`; a dialect without empty structs gets one that is not used.
    pub fn ints(self, values: &[i64]) -> Arguments {
        let values = if values.is_empty() { &[0] } else { values };
        self.add(bytemuck::cast_slice(values), false)
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
