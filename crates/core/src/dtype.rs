//! Element types.

use crate::{Error, Result};
use half::{bf16, f16};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum DType {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit float with the exponent range of f32.
    BF16,
    /// 64-bit signed integer.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 8-bit unsigned integer.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Every dtype.
    pub const ALL: [DType; 8] =
        [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8, DType::Bool];

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// True for the four float dtypes. Only float tensors have gradients.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
    }

    /// True for i32 and i64, the dtypes of indices.
    pub fn is_int(self) -> bool {
        matches!(self, DType::I64 | DType::I32)
    }

    /// True for all but bool: floats, i64, i32 and u8. Integer arithmetic wraps.
    pub fn is_number(self) -> bool {
        self != DType::Bool
    }

    /// The dtype in which this dtype's arithmetic is done: f32 for 16-bit floats, i64 for integers.
    pub fn acc(self) -> DType {
        match self {
            DType::F64 => DType::F64,
            DType::F32 | DType::F16 | DType::BF16 => DType::F32,
            _ => DType::I64,
        }
    }

    /// The largest finite number of an element.
    pub fn largest(self) -> f64 {
        match self {
            DType::F64 => f64::MAX,
            DType::F32 => f32::MAX as f64,
            DType::F16 => half::f16::MAX.to_f64(),
            DType::BF16 => half::bf16::MAX.to_f64(),
            _ => *self.integers().end() as f64,
        }
    }

    /// A float as an element holds it; any number for other dtypes.
    pub(crate) fn rounded(self, v: f64) -> f64 {
        match self {
            DType::F32 => v as f32 as f64,
            DType::F16 => half::f16::from_f64(v).to_f64(),
            DType::BF16 => half::bf16::from_f64(v).to_f64(),
            _ => v,
        }
    }

    /// The integers that an element can hold; all of i64 for floats.
    pub(crate) fn integers(self) -> RangeInclusive<i64> {
        match self {
            DType::I32 => i32::MIN as i64..=i32::MAX as i64,
            DType::U8 => 0..=255,
            DType::Bool => 0..=1,
            DType::F64 | DType::F32 | DType::F16 | DType::BF16 | DType::I64 => i64::MIN..=i64::MAX,
        }
    }

    /// The name, as in `"f32"`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        DType::ALL.into_iter().find(|d| d.name() == s).ok_or_else(|| {
            Error::dtype("dtype", format!("no dtype is called {s:?}; there are f64 f32 f16 bf16 i64 i32 u8 bool"))
        })
    }
}

/// A Rust type that is the element of a tensor.
pub trait Element: Copy + Send + Sync + fmt::Debug + PartialEq + 'static {
    /// The dtype that stores this type.
    const DTYPE: DType;
    /// Appends the elements' bytes, in the machine's order.
    fn extend_bytes(values: &[Self], bytes: &mut Vec<u8>);
    /// Appends the elements represented by these bytes.
    fn extend_elements(bytes: &[u8], elements: &mut Vec<Self>);

    /// The elements represented by these bytes.
    fn from_bytes(bytes: &[u8]) -> Vec<Self> {
        let mut elements = Vec::new();
        Self::extend_elements(bytes, &mut elements);
        elements
    }
}

macro_rules! element {
    ($($t:ty => $dtype:ident;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            fn extend_bytes(values: &[Self], bytes: &mut Vec<u8>) {
                bytes.reserve(values.len() * size_of::<$t>());
                values.iter().for_each(|v| bytes.extend_from_slice(&v.to_ne_bytes()));
            }
            fn extend_elements(bytes: &[u8], elements: &mut Vec<Self>) {
                elements.extend(bytes.as_chunks().0.iter().map(|chunk| <$t>::from_ne_bytes(*chunk)));
            }
        }
    )*};
}

element! { f64 => F64; f32 => F32; f16 => F16; bf16 => BF16; i64 => I64; i32 => I32; u8 => U8; }

impl Element for bool {
    const DTYPE: DType = DType::Bool;

    fn extend_bytes(values: &[Self], bytes: &mut Vec<u8>) {
        bytes.extend(values.iter().map(|&v| v as u8));
    }

    fn extend_elements(bytes: &[u8], elements: &mut Vec<Self>) {
        elements.extend(bytes.iter().map(|&b| b != 0));
    }
}

/// A number on the host: an attribute or a scalar operand. It never changes a tensor's dtype. Arithmetic with it is in the accumulation
/// dtype, to which it is rounded. A number that elements are compared with, as in `eq_scalar`, `clamp` or `hardtanh`, is rounded to the
/// tensor's dtype first: an f16 of 0.1 is equal to 0.1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
}

impl Scalar {
    /// The value as f64.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Int(v) => v as f64,
            Scalar::Float(v) => v,
        }
    }

    /// The value as an operand of an integer tensor. Errors: `Dtype` for floats (even integral ones).
    pub fn as_i64(self) -> Result<i64> {
        match self {
            Scalar::Int(v) => Ok(v),
            Scalar::Float(v) => Err(Error::dtype("scalar", format!("scalar {v} is a float, expected an integer"))),
        }
    }
}

macro_rules! scalar_from {
    ($variant:ident as $as:ty: $($t:ty)*) => {$(
        impl From<$t> for Scalar {
            fn from(v: $t) -> Self {
                Scalar::$variant(v as $as)
            }
        }
    )*};
}

scalar_from!(Int as i64: i64 i32 u8 bool);
scalar_from!(Float as f64: f64 f32);
