//! The memory that the reader of a file may take, by the bytes of the file. Every reader asks here before it allocates what a file announces, so
//! that a small file cannot fill the memory.

use crate::Checked;

/// The most bytes of a line of text, 16 MiB; a longer one is an error.
pub const MAX_LINE: usize = 1 << 24;

/// The most pixels of an image: 10,000 rows and columns, say.
pub const MAX_PIXELS: u64 = 100_000_000;

/// The rows for each byte of a file of columns: a packed bit of each.
const ROWS_OF_BYTE: usize = 64;

/// Ids below this are allowed in a vocabulary of any size.
const LEAST_IDS: usize = 1 << 16;

/// How a part of a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Not at all.
    None,
    /// By Snappy.
    Snappy,
    /// By LZ4.
    Lz4,
    /// By deflate: gzip, zlib, zip.
    Deflate,
}

impl Packing {
    /// The longest content that so many packed bytes can hold.
    pub fn most_unpacked(self, bytes: usize) -> usize {
        let ratio = match self {
            Packing::None => 1,
            // A copy of 64 bytes takes three.
            Packing::Snappy => 32,
            // A byte of a length stands for 255.
            Packing::Lz4 => 256,
            // RFC 1951: 258 bytes in two bits.
            Packing::Deflate => 1032,
        };
        bytes.saturating_mul(ratio)
    }
}

/// The number of announced items. Errors: `bytes` hold fewer, of `least` bytes each.
pub fn held(count: u64, least: usize, bytes: usize) -> Checked<usize> {
    let most = bytes.checked_div(least).unwrap_or(0);
    let fits = usize::try_from(count).ok().filter(|&count| count <= most);
    fits.ok_or_else(|| format!("{count} items of {least} bytes or more, and the file has {bytes} bytes for them"))
}

/// The most rows of a file of columns with so many bytes.
pub fn most_rows(bytes: usize) -> usize {
    bytes.saturating_mul(ROWS_OF_BYTE)
}

/// The most ids of a vocabulary in a file of so many bytes. A model has a row for each id below the largest, so a single large id is refused.
pub fn most_ids(bytes: usize) -> usize {
    bytes.max(LEAST_IDS)
}

/// The bytes that a reader may still allocate: a small multiple of the file, so that a small file cannot fill the memory.
#[derive(Clone, Debug)]
pub struct Budget {
    left: usize,
    file: usize,
}

impl Budget {
    /// The most bytes for each byte of a file.
    const TIMES: usize = 32;
    /// The bytes that any file may take.
    const BASE: usize = 1 << 20;

    /// The budget of a file of so many bytes.
    pub fn new(file: usize) -> Budget {
        Budget { left: file.saturating_mul(Budget::TIMES).saturating_add(Budget::BASE), file }
    }

    /// Takes the bytes of `count` values of `size` bytes each. Errors: they are more than what is left.
    pub fn spend(&mut self, count: usize, size: usize) -> Checked<()> {
        let left = count.checked_mul(size).and_then(|bytes| self.left.checked_sub(bytes));
        self.left = left.ok_or_else(|| {
            format!("its content would take more than {} times the {} bytes of the file", Budget::TIMES, self.file)
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends() {
        let mut budget = Budget::new(10);
        budget.spend(Budget::BASE, 1).unwrap();
        budget.spend(10, Budget::TIMES).unwrap();
        assert!(budget.spend(1, 1).unwrap_err().contains("more than 32 times the 10 bytes"));
        assert!(budget.spend(usize::MAX, 2).is_err());
    }

    #[test]
    fn what_a_file_holds_is_bounded_by_its_bytes() {
        assert_eq!(held(3, 4, 12), Ok(3));
        assert!(held(4, 4, 12).unwrap_err().contains("4 items of 4 bytes or more, and the file has 12 bytes"));
        assert!(held(u64::MAX, 1, usize::MAX / 2).is_err() && held(1, 0, 12).is_err());
        assert_eq!((Packing::Deflate.most_unpacked(2), Packing::Lz4.most_unpacked(usize::MAX)), (2064, usize::MAX));
        assert_eq!((most_rows(2), most_ids(2), most_ids(1 << 20)), (128, 1 << 16, 1 << 20));
    }
}
