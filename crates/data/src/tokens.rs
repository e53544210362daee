//! Token ids in a memory-mapped file, for language models.

use crate::dataset::no_sample;
use crate::file::invalid;
use crate::{Context, Dataset, HostTensor};
use isograd_core::{Error, Result};
use memmap2::Mmap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// How a file stores a token id: without a header, in little-endian order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenType {
    /// One byte, as for characters.
    U8,
    /// Two bytes.
    #[default]
    U16,
    /// Four bytes.
    U32,
}

impl TokenType {
    /// The bytes of a token.
    pub fn size(self) -> usize {
        match self {
            TokenType::U8 => 1,
            TokenType::U16 => 2,
            TokenType::U32 => 4,
        }
    }
}

/// The memory that tokens are read from.
enum Memory {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Mapped(map) => map,
            Memory::Owned(bytes) => bytes,
        }
    }
}

/// A long sequence of token ids. Clones share it.
#[derive(Clone)]
pub struct Tokens {
    memory: Arc<Memory>,
    kind: TokenType,
}

impl Tokens {
    /// Maps a file, which is read where it is needed; it may be larger than memory. The file must not be changed while it is open.
    /// Errors: `Io` if it cannot be opened; `Format` if its size is no multiple of a token's.
    pub fn open(path: impl AsRef<Path>, kind: TokenType) -> Result<Tokens> {
        let path = path.as_ref();
        let failed = |e| Error::io(path, "reading", e);
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        if size % kind.size() as u64 != 0 {
            let message = format!("{size} bytes are not a number of tokens of {} bytes each", kind.size());
            return Err(invalid(path, message));
        }
        Ok(Tokens { memory: Arc::new(map(&file).map_err(failed)?), kind })
    }

    /// Bytes as tokens: the characters of a text in ASCII, say.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Tokens {
        Tokens { memory: Arc::new(Memory::Owned(bytes.into())), kind: TokenType::U8 }
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.memory.bytes().len() / self.kind.size()
    }

    /// True if there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Up to `count` tokens from `start` on; fewer at the end.
    pub fn get(&self, start: usize, count: usize) -> Vec<i64> {
        let (start, size) = (start.min(self.len()), self.kind.size());
        let end = start.saturating_add(count).min(self.len());
        let bytes = &self.memory.bytes()[start * size..end * size];
        match self.kind {
            TokenType::U8 => bytes.iter().map(|&b| i64::from(b)).collect(),
            TokenType::U16 => bytes.as_chunks().0.iter().map(|&b| i64::from(u16::from_le_bytes(b))).collect(),
            TokenType::U32 => bytes.as_chunks().0.iter().map(|&b| i64::from(u32::from_le_bytes(b))).collect(),
        }
    }

    /// Windows of `length` tokens, each `stride` tokens after the one before, with the tokens that follow.
    /// Errors: `Attr` if `length` or `stride` is 0.
    pub fn windows(&self, length: usize, stride: usize) -> Result<TokenWindows> {
        if length == 0 || stride == 0 {
            let message = format!("windows of {length} tokens every {stride}, expected at least 1 of both");
            return Err(Error::attr("tokens", message));
        }
        Ok(TokenWindows { tokens: self.clone(), length, stride })
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("len", &self.len()).field("kind", &self.kind).finish()
    }
}

#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<Memory> {
    // SAFETY: the mapping is read only, and any byte is a valid token. A file that another program changes or cuts meanwhile breaks
    // this, which `Tokens::open` forbids.
    unsafe { Mmap::map(file) }.map(Memory::Mapped)
}

/// Windows of a sequence of tokens: the samples of a language model. Sample `i` is the window from token `i * stride` on, i64
/// `[length]`, and its targets, the same window one token later. Windows are whole: at the end, tokens that fill none are left out.
#[derive(Clone, Debug)]
pub struct TokenWindows {
    tokens: Tokens,
    length: usize,
    stride: usize,
}

impl Dataset for TokenWindows {
    type Item = (HostTensor, HostTensor);

    fn len(&self) -> usize {
        // A window needs one token more, the last target.
        self.tokens.len().checked_sub(self.length + 1).map_or(0, |rest| rest / self.stride + 1)
    }

    fn get(&self, index: usize, _: &Context) -> Result<Self::Item> {
        if index >= self.len() {
            return Err(no_sample("tokens", index, self.len()));
        }
        let tokens = self.tokens.get(index * self.stride, self.length + 1);
        Ok((HostTensor::vector(&tokens[..self.length]), HostTensor::vector(&tokens[1..])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isograd_core::Kind;
    use std::io::Write;

    #[test]
    fn files_of_every_width_have_the_same_tokens() {
        let ids = [7u32, 0, 250, 3, 9];
        let bytes =
            |kind: TokenType| ids.iter().flat_map(|id| id.to_le_bytes()[..kind.size()].to_vec()).collect::<Vec<u8>>();
        for kind in [TokenType::U8, TokenType::U16, TokenType::U32] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&bytes(kind)).unwrap();
            let tokens = Tokens::open(file.path(), kind).unwrap();
            assert_eq!((tokens.len(), tokens.get(1, 3), tokens.get(3, 9)), (5, vec![0, 250, 3], vec![3, 9]));
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[1, 2, 3]).unwrap();
        let error = Tokens::open(file.path(), TokenType::U16).unwrap_err();
        assert_eq!(error.kind(), Kind::Format);
        assert!(error.message().contains("3 bytes are not a number of tokens of 2 bytes each"), "{error}");
        assert_eq!(Tokens::open("nowhere", TokenType::U16).unwrap_err().kind(), Kind::Io);
    }

    #[test]
    fn windows_are_whole_and_have_the_next_tokens_as_targets() {
        let tokens = Tokens::from_bytes(*b"abcdefgh");
        let windows = tokens.windows(3, 2).unwrap();
        let sample = |i| {
            let (x, y) = windows.get(i, &Context::new(0, 0, i)).unwrap();
            let text =
                |t: HostTensor| t.to_vec::<i64>().unwrap().into_iter().map(|c| c as u8 as char).collect::<String>();
            (text(x), text(y))
        };
        assert_eq!(windows.len(), 3);
        assert_eq!([sample(0), sample(2)], [("abc".into(), "bcd".into()), ("efg".into(), "fgh".into())]);
        assert!(windows.get(3, &Context::new(0, 0, 3)).is_err());
        assert_eq!(tokens.windows(8, 1).unwrap().len(), 0);
        assert_eq!(tokens.windows(7, 1).unwrap().len(), 1);
        assert!(tokens.windows(0, 1).is_err() && tokens.windows(1, 0).is_err());
        assert_eq!(tokens.windows(usize::MAX - 1, 1).unwrap().len(), 0);
    }
}
