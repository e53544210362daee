//! The types of tensors in GGUF files: a row for each.

use isograd_core::DType;
use isograd_core::quantized::BlockFormat;
use isograd_files::Stored;
use std::fmt;

/// The elements of a type.
#[derive(Clone, Copy)]
pub(super) enum Elements {
    /// Numbers one by one.
    Plain(Stored),
    /// Blocks of quantised numbers.
    Blocks(BlockFormat),
    /// Blocks whose size alone is known.
    Unread,
}

/// A type: its name, the elements of a block, and the bytes.
struct Row {
    name: &'static str,
    block: usize,
    bytes: usize,
    elements: Elements,
}

const fn plain(name: &'static str, bytes: usize, stored: Stored) -> Row {
    Row { name, block: 1, bytes, elements: Elements::Plain(stored) }
}

const fn unread(name: &'static str, block: usize, bytes: usize) -> Row {
    Row { name, block, bytes, elements: Elements::Unread }
}

const fn blocks(format: BlockFormat) -> Row {
    Row { name: format.name(), block: format.elements(), bytes: format.bytes(), elements: Elements::Blocks(format) }
}

macro_rules! types {
    ($($number:literal $type:ident $row:expr;)*) => {
        /// A type of tensors in GGUF files.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum TensorType {
            $($type = $number),*
        }

        impl TensorType {
            /// All types, by their numbers.
            pub const ALL: &[TensorType] = &[$(TensorType::$type),*];

            /// The type with a number in files.
            pub(super) fn numbered(number: u32) -> Option<TensorType> {
                match number {
                    $($number => Some(TensorType::$type),)*
                    _ => None,
                }
            }

            fn row(self) -> &'static Row {
                match self {
                    $(TensorType::$type => {
                        const ROW: Row = $row;
                        &ROW
                    })*
                }
            }
        }
    };
}

types! {
    0 F32 plain("F32", 4, Stored::Same(DType::F32));
    1 F16 plain("F16", 2, Stored::Same(DType::F16));
    2 Q4_0 blocks(BlockFormat::Q4_0);
    3 Q4_1 blocks(BlockFormat::Q4_1);
    6 Q5_0 blocks(BlockFormat::Q5_0);
    7 Q5_1 blocks(BlockFormat::Q5_1);
    8 Q8_0 blocks(BlockFormat::Q8_0);
    9 Q8_1 unread("Q8_1", 32, 40);
    10 Q2K blocks(BlockFormat::Q2K);
    11 Q3K blocks(BlockFormat::Q3K);
    12 Q4K blocks(BlockFormat::Q4K);
    13 Q5K blocks(BlockFormat::Q5K);
    14 Q6K blocks(BlockFormat::Q6K);
    15 Q8K unread("Q8_K", 256, 292);
    16 Iq2Xxs unread("IQ2_XXS", 256, 66);
    17 Iq2Xs unread("IQ2_XS", 256, 74);
    18 Iq3Xxs unread("IQ3_XXS", 256, 98);
    19 Iq1S unread("IQ1_S", 256, 50);
    20 Iq4Nl blocks(BlockFormat::Iq4Nl);
    21 Iq3S unread("IQ3_S", 256, 110);
    22 Iq2S unread("IQ2_S", 256, 82);
    23 Iq4Xs blocks(BlockFormat::Iq4Xs);
    24 I8 plain("I8", 1, Stored::I8);
    25 I16 plain("I16", 2, Stored::I16);
    26 I32 plain("I32", 4, Stored::Same(DType::I32));
    27 I64 plain("I64", 8, Stored::Same(DType::I64));
    28 F64 plain("F64", 8, Stored::Same(DType::F64));
    29 Iq1M unread("IQ1_M", 256, 56);
    30 Bf16 plain("BF16", 2, Stored::Same(DType::BF16));
    34 Tq1_0 unread("TQ1_0", 256, 54);
    35 Tq2_0 unread("TQ2_0", 256, 66);
    39 Mxfp4 blocks(BlockFormat::Mxfp4);
    40 Nvfp4 unread("NVFP4", 64, 36);
    41 Q1_0 unread("Q1_0", 128, 18);
}

impl TensorType {
    /// The name that ggml has for it, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The elements of a block, which follow each other in the last dimension; 1 for types without blocks.
    pub fn block_elements(self) -> usize {
        self.row().block
    }

    /// The bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().bytes
    }

    /// The dtype that its elements are read as without loss: f32 for blocks. `None` for types that are not read: Q8_1 and Q8_K, which files do
    /// not have, codebooks (IQ1 to IQ3), ternary numbers, NVFP4 and Q1_0.
    pub fn dtype(self) -> Option<DType> {
        match self.elements() {
            Elements::Plain(stored) => Some(stored.dtype()),
            Elements::Blocks(..) => Some(DType::F32),
            Elements::Unread => None,
        }
    }

    /// The type of a format of blocks; `None` for NF4, which files do not have.
    pub fn of(format: BlockFormat) -> Option<TensorType> {
        let is_of = |kind: &TensorType| matches!(kind.elements(), Elements::Blocks(own) if own == format);
        TensorType::ALL.iter().copied().find(is_of)
    }

    pub(super) fn elements(self) -> Elements {
        self.row().elements
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_has_the_bytes_of_its_elements() {
        for &kind in TensorType::ALL {
            if let Elements::Plain(stored) = kind.elements() {
                assert_eq!((kind.block_elements(), kind.block_bytes()), (1, stored.size()), "{kind}");
            }
            assert_eq!(TensorType::numbered(kind as u32), Some(kind));
        }
        // Removed from the format.
        assert!([4, 5, 31, 33, 36].into_iter().all(|number| TensorType::numbered(number).is_none()));
    }
}
