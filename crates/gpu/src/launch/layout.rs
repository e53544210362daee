//! Layouts as kernels see them: as few dimensions as the strides allow.

use crate::launch::integers::Integers;
use isograd_core::Operand;
use smallvec::SmallVec;

/// Extents, and the strides of several operands along them. Dimensions of size 1 are dropped, and neighbouring dimensions
/// that all operands step through uniformly are merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joint {
    pub extents: SmallVec<[usize; 8]>,
    /// The strides of each operand.
    pub strides: SmallVec<[SmallVec<[usize; 8]>; 4]>,
}

impl Joint {
    /// The joint dimensions of operands with one shape.
    pub fn new<'a>(operands: impl Iterator<Item = &'a Operand<'a>> + Clone) -> Joint {
        let dims = operands.clone().next().map_or(&[][..], |o| o.layout.shape().dims());
        Joint::of(dims, operands.map(|o| o.layout.strides()))
    }

    /// The joint dimensions of strides along the same extents.
    pub fn of<'a>(dims: &[usize], operands: impl Iterator<Item = &'a [usize]>) -> Joint {
        let all: SmallVec<[&[usize]; 4]> = operands.collect();
        let mut extents: SmallVec<[usize; 8]> = SmallVec::new();
        let mut strides: SmallVec<[SmallVec<[usize; 8]>; 4]> = all.iter().map(|_| SmallVec::new()).collect();
        for (d, &extent) in dims.iter().enumerate().filter(|&(_, &extent)| extent != 1) {
            let last = extents.len().wrapping_sub(1);
            let joins = !extents.is_empty() && strides.iter().zip(&all).all(|(s, of)| s[last] == of[d] * extent);
            if joins {
                extents[last] *= extent;
                strides.iter_mut().zip(&all).for_each(|(s, of)| s[last] = of[d]);
            } else {
                extents.push(extent);
                strides.iter_mut().zip(&all).for_each(|(s, of)| s.push(of[d]));
            }
        }
        Joint { extents, strides }
    }

    /// These dimensions, or one of size 1 if there are none.
    pub fn at_least_one(mut self) -> Joint {
        if self.extents.is_empty() {
            self.extents.push(1);
            self.strides.iter_mut().for_each(|s| s.push(0));
        }
        self
    }

    pub fn rank(&self) -> usize {
        self.extents.len()
    }

    pub fn numel(&self) -> usize {
        self.extents.iter().product()
    }

    /// The extents, and the strides of each operand, as positions by these names.
    pub fn named(&self, names: &[&'static str]) -> Integers {
        let lists = names.iter().zip(std::iter::once(&self.extents).chain(&self.strides));
        lists.fold(Integers::new(), |all, (name, values)| all.position_list(name, values.iter().copied()))
    }

    /// Whether a position needs more than 31 bits.
    pub fn is_wide(&self) -> bool {
        let end = |s: &SmallVec<[usize; 8]>| s.iter().zip(&self.extents).map(|(s, d)| s * d).sum::<usize>();
        self.numel() > i32::MAX as usize || self.strides.iter().any(|s| end(s) > i32::MAX as usize)
    }
}
