//! The types of elements that ONNX has, of which the library has some: the others are kept in a wider dtype.

use crate::proto::TensorProto;
use isograd_core::{DType, Result, Tensor};
use isograd_files::{Checked, Order, Stored};
use std::borrow::Cow;

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// A dtype of the library, or one that is read as another.
    Whole(Stored),
    /// Integers of 4 bits, two in a byte. Kept as i32.
    Nibble { is_signed: bool },
}

/// The numbers of `TensorProto.DataType`, ONNX's names, and those of safetensors.
const TYPES: &[(i32, &str, &str)] = &[
    (1, "float", "F32"),
    (2, "uint8", "U8"),
    (3, "int8", "I8"),
    (4, "uint16", "U16"),
    (5, "int16", "I16"),
    (6, "int32", "I32"),
    (7, "int64", "I64"),
    (9, "bool", "BOOL"),
    (10, "float16", "F16"),
    (11, "double", "F64"),
    (12, "uint32", "U32"),
    (13, "uint64", "U64"),
    (16, "bfloat16", "BF16"),
    (17, "float8e4m3fn", "F8_E4M3"),
    (18, "float8e4m3fnuz", "F8_E4M3FNUZ"),
    (19, "float8e5m2", "F8_E5M2"),
    (20, "float8e5m2fnuz", "F8_E5M2FNUZ"),
    (21, "uint4", ""),
    (22, "int4", ""),
    (24, "float8e8m0", "F8_E8M0"),
];

/// Types that are not read.
const OTHERS: &[(i32, &str)] =
    &[(8, "string"), (14, "complex64"), (15, "complex128"), (23, "float4e2m1"), (25, "uint2"), (26, "int2")];

impl Element {
    pub const I64: Element = Element::of(DType::I64);
    pub const F32: Element = Element::of(DType::F32);
    pub const BOOL: Element = Element::of(DType::Bool);
    pub const U8: Element = Element::of(DType::U8);
    pub const I32: Element = Element::of(DType::I32);

    /// The type of a dtype's elements.
    pub const fn of(dtype: DType) -> Element {
        Element::Whole(Stored::Same(dtype))
    }

    /// The type with this number. Errors: a type that is not read.
    pub fn numbered(number: i32) -> Checked<Element> {
        match TYPES.iter().find(|(known, ..)| *known == number) {
            Some((21, ..)) => Ok(Element::Nibble { is_signed: false }),
            Some((22, ..)) => Ok(Element::Nibble { is_signed: true }),
            Some((.., name)) => Ok(Element::Whole(Stored::named(name).expect("the table has names of safetensors"))),
            None => {
                let known = OTHERS.iter().find(|(other, _)| *other == number).map_or("unknown", |(_, name)| name);
                Err(format!("has elements of the type {number} ({known}), which are not read"))
            }
        }
    }

    /// The type that holds these elements in a wide model: f64 for floats.
    pub fn wide(self) -> Element {
        if self.dtype().is_float() && !self.is_float8() { Element::of(DType::F64) } else { self }
    }

    /// ONNX's number of the type that a wide model has in the place of another: that of f64 for floats.
    pub fn wide_number(number: i64) -> i64 {
        if [1, 10, 16].contains(&number) { 11 } else { number }
    }

    /// ONNX's name.
    pub fn name(self) -> &'static str {
        let is_own = |(number, ..): &&(i32, &str, &str)| Element::numbered(*number) == Ok(self);
        TYPES.iter().find(is_own).map_or("unknown", |(_, name, _)| name)
    }

    /// The dtype that holds the elements.
    pub fn dtype(self) -> DType {
        match self {
            Element::Whole(stored) => stored.dtype(),
            Element::Nibble { .. } => DType::I32,
        }
    }

    /// The bytes of so many elements in a file; `None` if they overflow.
    pub fn bytes(self, count: usize) -> Option<usize> {
        match self {
            Element::Whole(stored) => count.checked_mul(stored.size()),
            Element::Nibble { .. } => Some(count.div_ceil(2)),
        }
    }

    /// The integers of a type that has fewer than its dtype.
    pub fn range(self) -> Option<[i64; 2]> {
        Some(match self {
            Element::Whole(Stored::I8) => [-128, 127],
            Element::Whole(Stored::I16) => [-32768, 32767],
            Element::Whole(Stored::U16) => [0, 65535],
            Element::Whole(Stored::U32) => [0, u32::MAX as i64],
            Element::Nibble { is_signed: true } => [-8, 7],
            Element::Nibble { is_signed: false } => [0, 15],
            _ => return None,
        })
    }

    /// The smallest and the largest integer; none of floats.
    pub fn limits(self) -> Option<[i64; 2]> {
        self.range().or(match self {
            Element::Whole(Stored::Same(DType::I32)) => Some([i32::MIN as i64, i32::MAX as i64]),
            Element::Whole(Stored::Same(DType::U8)) => Some([0, 255]),
            Element::Whole(Stored::Same(DType::I64) | Stored::U64) => Some([i64::MIN, i64::MAX]),
            _ => None,
        })
    }

    /// True for floats of 8 bits, which are read and not computed.
    pub fn is_float8(self) -> bool {
        matches!(self, Element::Whole(Stored::F8(_)))
    }

    /// An integer with the bits that the type has.
    pub fn wrap_number(self, v: i64) -> i64 {
        match (self.range(), self) {
            (Some([low, high]), _) => (v - low).rem_euclid(high - low + 1) + low,
            (None, Element::Whole(Stored::Same(DType::I32))) => v as i32 as i64,
            (None, Element::Whole(Stored::Same(DType::U8))) => v as u8 as i64,
            (None, _) => v,
        }
    }

    /// The results of integer arithmetic, with the bits that the type has.
    pub fn wrap(self, t: Tensor) -> Result<Tensor> {
        let Some([low, high]) = self.range() else { return Ok(t) };
        let wide = t.cast(DType::I64)?.sub_scalar(low)?;
        let extent = Tensor::full((), high - low + 1, DType::I64, t.device())?;
        wide.remainder(&extent)?.add_scalar(low)?.cast(self.dtype())
    }

    /// The bytes of elements of the dtype in this machine's order, of `count` elements in a file.
    pub fn read(self, bytes: &[u8], count: usize) -> Checked<Cow<'_, [u8]>> {
        match self {
            Element::Whole(stored) => stored.read(bytes, Order::Little),
            Element::Nibble { is_signed } => {
                let nibbles = bytes.iter().flat_map(|&b| [b & 15, b >> 4]).take(count);
                let number = |v: u8| if is_signed && v > 7 { i32::from(v) - 16 } else { i32::from(v) };
                Ok(Cow::Owned(nibbles.flat_map(|v| number(v).to_ne_bytes()).collect()))
            }
        }
    }

    /// The bytes in a file of the elements that a message has as numbers.
    pub fn typed(self, tensor: &TensorProto) -> Vec<u8> {
        let low = |size: usize| tensor.int32_data.iter().flat_map(move |v| v.to_le_bytes().into_iter().take(size));
        match self {
            Element::Whole(Stored::Same(DType::F32)) => {
                tensor.float_data.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            Element::Whole(Stored::Same(DType::F64)) => {
                tensor.double_data.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            Element::Whole(Stored::Same(DType::I64)) => {
                tensor.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            Element::Whole(Stored::U64) => tensor.uint64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Element::Whole(Stored::U32) => tensor.uint64_data.iter().flat_map(|&v| (v as u32).to_le_bytes()).collect(),
            Element::Whole(stored) => low(stored.size()).collect(),
            Element::Nibble { .. } => low(1).collect(),
        }
    }
}
