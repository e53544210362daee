//! The types of elements in files, of which the library has some; the others are converted where that is exact.

use crate::Checked;
use isograd_core::{DType, f16};
use std::borrow::Cow;

/// The order of an element's bytes in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The lowest byte first.
    Little,
    /// The highest byte first.
    Big,
}

impl Order {
    /// This machine's.
    const NATIVE: Order = if cfg!(target_endian = "little") { Order::Little } else { Order::Big };
}

/// A type of elements in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// A dtype of this library.
    Same(DType),
    /// Signed, of 8 bits. Read as i32.
    I8,
    /// Signed, of 16 bits. Read as i32.
    I16,
    /// Unsigned, of 16 bits. Read as i32.
    U16,
    /// Unsigned, of 32 bits. Read as i64.
    U32,
    /// Unsigned, of 64 bits. Read as i64, where no element is larger.
    U64,
    /// Floats of 8 bits. Read as f16, and powers of two as f32.
    F8(Float8),
}

/// The layout of a float of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float8 {
    /// 4 bits of exponent; no infinity. Micikevicius et al. 2022, arXiv 2209.05433.
    E4M3,
    /// 5 bits of exponent: the upper half of an f16.
    E5M2,
    /// As E4M3, with half the values, one zero and one NaN. Noune et al. 2022, arXiv 2206.02915.
    E4M3Fnuz,
    /// As E5M2, with half the values, one zero and one NaN, and no infinity.
    E5M2Fnuz,
    /// A power of two. Open Compute Project, "Microscaling Formats", version 1.0.
    E8M0,
}

impl Stored {
    /// The type of this name, as safetensors writes it, if it can be read.
    pub fn named(name: &str) -> Option<Stored> {
        Some(match name {
            "F64" => Stored::Same(DType::F64),
            "F32" => Stored::Same(DType::F32),
            "F16" => Stored::Same(DType::F16),
            "BF16" => Stored::Same(DType::BF16),
            "I64" => Stored::Same(DType::I64),
            "I32" => Stored::Same(DType::I32),
            "U8" => Stored::Same(DType::U8),
            "BOOL" => Stored::Same(DType::Bool),
            "I8" => Stored::I8,
            "I16" => Stored::I16,
            "U16" => Stored::U16,
            "U32" => Stored::U32,
            "U64" => Stored::U64,
            "F8_E4M3" => Stored::F8(Float8::E4M3),
            "F8_E5M2" => Stored::F8(Float8::E5M2),
            "F8_E4M3FNUZ" => Stored::F8(Float8::E4M3Fnuz),
            "F8_E5M2FNUZ" => Stored::F8(Float8::E5M2Fnuz),
            "F8_E8M0" => Stored::F8(Float8::E8M0),
            _ => return None,
        })
    }

    /// The bytes of an element in a file.
    pub fn size(self) -> usize {
        match self {
            Stored::Same(dtype) => dtype.size(),
            Stored::I8 | Stored::F8(_) => 1,
            Stored::I16 | Stored::U16 => 2,
            Stored::U32 => 4,
            Stored::U64 => 8,
        }
    }

    /// The dtype that elements are read as.
    pub fn dtype(self) -> DType {
        match self {
            Stored::Same(dtype) => dtype,
            Stored::I8 | Stored::I16 | Stored::U16 => DType::I32,
            Stored::U32 | Stored::U64 => DType::I64,
            Stored::F8(Float8::E8M0) => DType::F32,
            Stored::F8(_) => DType::F16,
        }
    }

    /// The bytes of elements of [`dtype`](Stored::dtype) in this machine's order, of elements in a file. Errors: a bool that is neither 0
    /// nor 1, and an unsigned number that an i64 does not have.
    pub fn read(self, bytes: &[u8], order: Order) -> Checked<Cow<'_, [u8]>> {
        let bytes = swapped(bytes, self.size(), order);
        let narrow = bytes.iter();
        Ok(Cow::Owned(match self {
            Stored::Same(DType::Bool) if bytes.iter().any(|&b| b > 1) => {
                return Err("is bool, but has bytes other than 0 and 1".into());
            }
            Stored::Same(_) => return Ok(bytes),
            Stored::I8 => narrow.flat_map(|&b| i32::from(b as i8).to_ne_bytes()).collect(),
            Stored::I16 => pairs(&bytes).flat_map(|b| i32::from(i16::from_ne_bytes(b)).to_ne_bytes()).collect(),
            Stored::U16 => pairs(&bytes).flat_map(|b| i32::from(u16::from_ne_bytes(b)).to_ne_bytes()).collect(),
            Stored::U32 => {
                let words = bytes.as_chunks().0.iter();
                words.flat_map(|b| i64::from(u32::from_ne_bytes(*b)).to_ne_bytes()).collect()
            }
            Stored::U64 => {
                let mut words = bytes.as_chunks().0.iter().map(|b| u64::from_ne_bytes(*b));
                match words.find(|&v| i64::try_from(v).is_err()) {
                    Some(v) => return Err(format!("is unsigned, of 64 bits, and has {v}, which i64 does not have")),
                    None => return Ok(bytes),
                }
            }
            Stored::F8(Float8::E8M0) => narrow.flat_map(|&b| power_of_two(b).to_ne_bytes()).collect(),
            Stored::F8(kind) => narrow.flat_map(|&b| f16::from_f32(kind.value(b)).to_bits().to_ne_bytes()).collect(),
        }))
    }
}

fn pairs(bytes: &[u8]) -> impl Iterator<Item = [u8; 2]> {
    bytes.as_chunks().0.iter().copied()
}

/// Bits of exponent only, with a bias of 127.
fn power_of_two(bits: u8) -> f32 {
    if bits == 0xff { f32::NAN } else { (f64::from(bits) - 127.0).exp2() as f32 }
}

impl Float8 {
    /// The value of these bits. f16 has all values.
    fn value(self, bits: u8) -> f32 {
        let (fraction_bits, bias) = match self {
            Float8::E4M3 => (3, 7),
            Float8::E4M3Fnuz => (3, 8),
            Float8::E5M2 => return f16::from_bits(u16::from(bits) << 8).to_f32(),
            Float8::E5M2Fnuz => (2, 16),
            Float8::E8M0 => return power_of_two(bits),
        };
        let is_nan = match self {
            Float8::E4M3 => bits & 0x7f == 0x7f,
            _ => bits == 0x80,
        };
        if is_nan {
            return f32::NAN;
        }
        let exponent = i32::from((bits & 0x7f) >> fraction_bits);
        let fraction = f32::from(bits & ((1 << fraction_bits) - 1)) / f32::from(1u8 << fraction_bits);
        // An exponent of 0 stands for that of 1, without the leading one of the fraction.
        let leading = if exponent == 0 { 0.0 } else { 1.0 };
        let value = (leading + fraction) * ((exponent.max(1) - bias) as f32).exp2();
        if bits & 0x80 != 0 { -value } else { value }
    }
}

/// Elements of `size` bytes in this machine's order.
fn swapped(bytes: &[u8], size: usize, order: Order) -> Cow<'_, [u8]> {
    if order == Order::NATIVE || size == 1 {
        return Cow::Borrowed(bytes);
    }
    let mut swapped = bytes.to_vec();
    swapped.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    Cow::Owned(swapped)
}

/// Converts between this machine's order of the bytes of an element and little endian.
pub fn little_endian(bytes: &[u8], size: usize) -> Cow<'_, [u8]> {
    swapped(bytes, size, Order::Little)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isograd_core::Element;

    fn read<T: Element>(stored: Stored, bytes: &[u8], order: Order) -> Vec<T> {
        assert_eq!(stored.dtype(), T::DTYPE);
        T::from_bytes(&stored.read(bytes, order).unwrap())
    }

    #[test]
    fn elements_of_other_types_are_read_exactly() {
        let (little, big) = (Order::Little, Order::Big);
        assert_eq!(read::<i32>(Stored::I8, &[0, 127, 128, 255], little), [0, 127, -128, -1]);
        assert_eq!(read::<i32>(Stored::I16, &[0x00, 0x80, 0xff, 0x7f], little), [-32768, 32767]);
        assert_eq!(read::<i32>(Stored::U16, &[0x80, 0x01, 0x00, 0xff], big), [0x8001, 0xff]);
        assert_eq!(read::<i64>(Stored::U32, &[0xff, 0xff, 0xff, 0xfe], big), [0xffff_fffe]);
        assert_eq!(read::<i64>(Stored::U64, &(1u64 << 62).to_le_bytes(), little), [1 << 62]);
        assert!(Stored::U64.read(&(1u64 << 63).to_le_bytes(), little).unwrap_err().contains("9223372036854775808"));
        assert_eq!(read::<f64>(Stored::Same(DType::F64), &(-1.5f64).to_be_bytes(), big), [-1.5]);
        assert!(Stored::Same(DType::Bool).read(&[0, 1, 2], little).is_err());
        assert_eq!(read::<bool>(Stored::Same(DType::Bool), &[0, 1], little), [false, true]);
    }

    #[test]
    fn floats_of_8_bits_are_their_values() {
        let f8 = |kind, bits: u8| read::<f16>(Stored::F8(kind), &[bits], Order::Little)[0].to_f32();
        // Largest, smallest and special values of the papers.
        for (kind, bits, value) in [
            (Float8::E4M3, 0x7e, 448.0),
            (Float8::E4M3, 0x01, 2f32.powi(-9)),
            (Float8::E4M3, 0xb8, -1.0),
            (Float8::E5M2, 0x7b, 57344.0),
            (Float8::E5M2, 0x01, 2f32.powi(-16)),
            (Float8::E5M2, 0xfc, f32::NEG_INFINITY),
            (Float8::E4M3Fnuz, 0x7f, 240.0),
            (Float8::E4M3Fnuz, 0x01, 2f32.powi(-10)),
            (Float8::E5M2Fnuz, 0x7f, 57344.0),
            (Float8::E5M2Fnuz, 0x01, 2f32.powi(-17)),
        ] {
            assert_eq!(f8(kind, bits), value, "{kind:?} {bits:#x}");
        }
        for (kind, bits) in
            [(Float8::E4M3, 0xff), (Float8::E5M2, 0x7e), (Float8::E4M3Fnuz, 0x80), (Float8::E5M2Fnuz, 0x80)]
        {
            assert!(f8(kind, bits).is_nan(), "{kind:?}");
        }
        let powers = read::<f32>(Stored::F8(Float8::E8M0), &[0, 127, 254], Order::Little);
        assert_eq!(powers, [2f32.powi(-127), 1.0, 2f32.powi(127)]);
        // No two finite values round to one f16.
        for kind in [Float8::E4M3, Float8::E5M2, Float8::E4M3Fnuz, Float8::E5M2Fnuz] {
            assert!((0..=255).map(|bits| kind.value(bits)).all(|v| v.is_nan() || f16::from_f32(v).to_f32() == v));
        }
    }
}
