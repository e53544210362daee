//! Operands in device memory.

use crate::driver::Address;
use crate::memory::pool::Buffer;
use crate::program::source::Variant;
use isograd_core::{DType, Error, Memory, Operand, Result};
use smallvec::SmallVec;

/// The buffer behind memory of a GPU.
#[inline]
pub fn buffer(memory: &dyn Memory) -> Result<&Buffer> {
    let found = memory.as_any().downcast_ref();
    found.ok_or_else(|| Error::backend("memory", "the memory belongs to another backend"))
}

#[inline]
pub fn address(memory: &dyn Memory) -> Result<Address> {
    Ok(buffer(memory)?.address)
}

/// Where an operand's elements begin.
pub fn place(operand: &Operand<'_>) -> Result<Address> {
    Ok(element_address(address(operand.memory)?, operand))
}

/// Operands' addresses.
pub fn addresses(operands: &[Operand<'_>]) -> Result<SmallVec<[Address; 8]>> {
    operands.iter().map(|o| Ok(element_address(address(o.memory)?, o))).collect()
}

/// Where an operand's elements begin in memory at `base`.
#[inline]
pub fn element_address(base: Address, operand: &Operand<'_>) -> Address {
    base + (operand.layout.offset() * operand.dtype.size()) as u64
}

/// A program in the dtypes of `x`.
pub fn variant(file: &'static str, x: &Operand<'_>) -> Variant {
    let dtype = x.dtype;
    let variant = Variant::new(file).define("T", dtype.name()).define("ACC", dtype.acc().name());
    let variant = if dtype == DType::F64 { variant.define("NEEDS_F64", true) } else { variant };
    if x.layout.shape().numel() > i32::MAX as usize / 2 { variant.define("WIDE", true) } else { variant }
}
