//! Operands in device memory.

use crate::driver::Address;
use crate::launch::words::is_wide;
use crate::memory::block::Block;
use crate::program::source::Variant;
use isograd_core::{Error, Memory, Operand, Result};
use smallvec::SmallVec;

/// The block behind memory of a GPU.
#[inline]
pub fn block(memory: &dyn Memory) -> Result<&Block> {
    let found = memory.as_any().downcast_ref();
    found.ok_or_else(|| Error::backend("memory", "the memory belongs to another backend"))
}

#[inline]
pub fn address(memory: &dyn Memory) -> Result<Address> {
    block(memory)?.address()
}

/// The start of the allocation in which memory lies.
pub fn allocation(memory: &dyn Memory) -> Result<Address> {
    block(memory)?.allocation()
}

/// Where an operand's elements begin.
pub fn start_of(operand: &Operand<'_>) -> Result<Address> {
    Ok(element_address(address(operand.memory)?, operand))
}

/// Where an operand's elements begin. A kernel does not touch the pointer of an absent operand: `other` stands for it.
pub fn start_or(operand: Option<&Operand<'_>>, other: Address) -> Result<Address> {
    operand.map_or(Ok(other), start_of)
}

/// Where the elements of each operand begin.
pub fn starts<const N: usize>(operands: [&Operand<'_>; N]) -> Result<[Address; N]> {
    starts_or(operands.map(Some), 0)
}

/// [`start_or`] of each operand.
pub fn starts_or<const N: usize>(operands: [Option<&Operand<'_>>; N], other: Address) -> Result<[Address; N]> {
    let mut found = [other; N];
    for (address, operand) in found.iter_mut().zip(operands) {
        *address = start_or(operand, other)?;
    }
    Ok(found)
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
    Variant::new(file).stored(x.dtype).flag("WIDE", is_wide(x.layout.shape().numel()))
}
