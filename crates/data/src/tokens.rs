//! Token ids in a file, for language models.

use crate::dataset::no_sample;
use crate::file::invalid;
use crate::{Context, Dataset, HostTensor};
use isograd_core::{Error, Result};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

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

/// The place that tokens are read from.
enum Memory {
    /// Not mapped: a program that reads a mapped file which another one has cut is ended by the system.
    File(PathBuf, Mutex<File>),
    Owned(Vec<u8>),
}

impl Memory {
    /// The bytes of a range. Errors: `Io` if the file cannot be read, or has become shorter.
    fn bytes(&self, range: Range<usize>) -> Result<Vec<u8>> {
        match self {
            Memory::Owned(bytes) => Ok(bytes[range].to_vec()),
            Memory::File(path, file) => {
                let mut bytes = vec![0; range.len()];
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let read = file.seek(SeekFrom::Start(range.start as u64)).and_then(|_| file.read_exact(&mut bytes));
                read.map(|()| bytes).map_err(|e| match e.kind() {
                    io::ErrorKind::UnexpectedEof => invalid(path, "the file has become shorter since it was opened"),
                    _ => Error::io(path, "reading", e),
                })
            }
        }
    }
}

/// A long sequence of token ids. Clones and parts share it.
#[derive(Clone)]
pub struct Tokens {
    memory: Arc<Memory>,
    kind: TokenType,
    /// The tokens of this part.
    range: Range<usize>,
}

impl Tokens {
    /// Opens a file, which is read where it is needed; it may be larger than memory. Errors: `Io` if it cannot be opened; `Format` if its size
    /// is no multiple of a token's.
    pub fn open(path: impl AsRef<Path>, kind: TokenType) -> Result<Tokens> {
        let path = path.as_ref();
        let file = isograd_files::open(path)?;
        let bytes = file.metadata().map_err(|e| Error::io(path, "reading", e))?.len() as usize;
        if !bytes.is_multiple_of(kind.size()) {
            let message = format!("{bytes} bytes are not a number of tokens of {} bytes each", kind.size());
            return Err(invalid(path, message));
        }
        Ok(Tokens::whole(Memory::File(path.to_path_buf(), Mutex::new(file)), bytes, kind))
    }

    /// Bytes as tokens: the characters of a text in ASCII, say.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Tokens {
        Tokens::owned(bytes.into(), TokenType::U8)
    }

    /// Token ids in memory, each in as few bytes as the largest needs. Errors: `Value` for an id outside of 0 .. 2^32.
    pub fn from_ids(ids: &[i64]) -> Result<Tokens> {
        if let Some((i, id)) = ids.iter().enumerate().find(|(_, id)| u32::try_from(**id).is_err()) {
            return Err(Error::value("tokens", format!("token {i} is {id}, expected 0 to {}", u32::MAX)));
        }
        let kind = match ids.iter().max().unwrap_or(&0) {
            0..=0xff => TokenType::U8,
            0x100..=0xffff => TokenType::U16,
            _ => TokenType::U32,
        };
        let bytes = ids.iter().flat_map(|id| id.to_le_bytes().into_iter().take(kind.size())).collect();
        Ok(Tokens::owned(bytes, kind))
    }

    fn owned(bytes: Vec<u8>, kind: TokenType) -> Tokens {
        let count = bytes.len();
        Tokens::whole(Memory::Owned(bytes), count, kind)
    }

    fn whole(memory: Memory, bytes: usize, kind: TokenType) -> Tokens {
        Tokens { memory: Arc::new(memory), kind, range: 0..bytes / kind.size() }
    }

    /// Two parts: all but the last `share` of the tokens, to train on, and these, to validate with.
    /// Errors: `Attr` unless the share is from 0 to 1.
    pub fn split_end(&self, share: f64) -> Result<(Tokens, Tokens)> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::attr("tokens", format!("the share of the last part is {share}, expected 0 to 1")));
        }
        let Range { start, end } = self.range;
        let middle = end - (share * self.len() as f64).round() as usize;
        let part = |range| Tokens { range, ..self.clone() };
        Ok((part(start..middle), part(middle..end)))
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// True if there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Up to `count` tokens from `start` on; fewer at the end. Errors: `Io` if the file cannot be read; `Format` if it has become shorter.
    pub fn get(&self, start: usize, count: usize) -> Result<Vec<i64>> {
        let (start, size) = (start.min(self.len()), self.kind.size());
        let end = start.saturating_add(count).min(self.len());
        let at = |token| (self.range.start + token) * size;
        let bytes = self.memory.bytes(at(start)..at(end))?;
        Ok(match self.kind {
            TokenType::U8 => bytes.iter().map(|&b| i64::from(b)).collect(),
            TokenType::U16 => bytes.as_chunks().0.iter().map(|&b| i64::from(u16::from_le_bytes(b))).collect(),
            TokenType::U32 => bytes.as_chunks().0.iter().map(|&b| i64::from(u32::from_le_bytes(b))).collect(),
        })
    }

    /// `length` tokens, and the same window one token later.
    fn window(&self, start: usize, length: usize) -> Result<(HostTensor, HostTensor)> {
        let tokens = self.get(start, length + 1)?;
        Ok((HostTensor::vector(&tokens[..length]), HostTensor::vector(&tokens[1..])))
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

    /// `count` windows of `length` tokens an epoch, each at a place of its own that is drawn, with the tokens that follow.
    /// Errors: `Attr` if `length` is 0, or if there are not more tokens than that.
    pub fn drawn_windows(&self, length: usize, count: usize) -> Result<DrawnWindows> {
        if length == 0 || length >= self.len() {
            let message =
                format!("windows of {length} of {} tokens, expected 1 or more, and fewer than all", self.len());
            return Err(Error::attr("tokens", message));
        }
        Ok(DrawnWindows { tokens: self.clone(), length, count })
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("len", &self.len()).field("kind", &self.kind).finish()
    }
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
        self.tokens.window(index * self.stride, self.length)
    }
}

/// Windows of a sequence of tokens at places that are drawn: samples as in [`TokenWindows`]. The place depends on the loader's seed, the
/// epoch and the sample's index; all places are equally likely, and windows may overlap. Nothing is kept in memory for it, so that
/// a file may have any size.
#[derive(Clone, Debug)]
pub struct DrawnWindows {
    tokens: Tokens,
    length: usize,
    count: usize,
}

impl Dataset for DrawnWindows {
    type Item = (HostTensor, HostTensor);

    fn len(&self) -> usize {
        self.count
    }

    fn get(&self, index: usize, context: &Context) -> Result<Self::Item> {
        if index >= self.count {
            return Err(no_sample("tokens", index, self.count));
        }
        self.tokens.window(context.below(self.tokens.len() - self.length), self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isograd_core::Kind;
    use std::io::Write;

    fn get(tokens: &Tokens, start: usize, count: usize) -> Vec<i64> {
        tokens.get(start, count).unwrap()
    }

    #[test]
    fn a_file_that_becomes_shorter_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; 100_000]).unwrap();
        let windows = Tokens::open(file.path(), TokenType::U8).unwrap().windows(50_000, 1).unwrap();
        let sample = |i| windows.get(i, &Context::new(0, 0, i)).map(|(x, _)| x.to_vec::<i64>().unwrap());
        assert_eq!(sample(9).unwrap(), [7; 50_000]);
        // Another program writes the file anew.
        std::fs::write(file.path(), [1; 60_000]).unwrap();
        assert_eq!(sample(9).unwrap(), [1; 50_000]);
        let error = sample(20_000).unwrap_err();
        assert!(error.message().contains("the file has become shorter since it was opened"), "{error}");
    }

    #[test]
    fn files_of_every_width_have_the_same_tokens() {
        let ids = [7u32, 0, 250, 3, 9];
        let bytes =
            |kind: TokenType| ids.iter().flat_map(|id| id.to_le_bytes()[..kind.size()].to_vec()).collect::<Vec<u8>>();
        for kind in [TokenType::U8, TokenType::U16, TokenType::U32] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&bytes(kind)).unwrap();
            let tokens = Tokens::open(file.path(), kind).unwrap();
            assert_eq!((tokens.len(), get(&tokens, 1, 3), get(&tokens, 3, 9)), (5, vec![0, 250, 3], vec![3, 9]));
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

    #[test]
    fn ids_are_kept_in_as_few_bytes_as_they_need() {
        for (ids, kind) in [
            (&[0, 255][..], TokenType::U8),
            (&[256, 0], TokenType::U16),
            (&[70_000, 1], TokenType::U32),
            (&[], TokenType::U8),
        ] {
            let tokens = Tokens::from_ids(ids).unwrap();
            assert_eq!((tokens.kind, get(&tokens, 0, 9)), (kind, ids.to_vec()));
        }
        for id in [-1, 1 << 32] {
            let error = Tokens::from_ids(&[5, id]).unwrap_err();
            assert_eq!(error.message(), format!("token 1 is {id}, expected 0 to 4294967295"));
        }
    }

    #[test]
    fn the_last_share_is_a_part_of_its_own() {
        let tokens = Tokens::from_ids(&(0..1000).collect::<Vec<_>>()).unwrap();
        let (train, rest) = tokens.split_end(0.25).unwrap();
        assert_eq!(
            (train.len(), get(&train, 749, 5), rest.len(), get(&rest, 0, 2)),
            (750, vec![749], 250, vec![750, 751])
        );
        let (a, b) = rest.split_end(0.1).unwrap();
        assert_eq!(
            (get(&a, 224, 2), get(&b, 0, 1), get(&b, 24, 9), get(&b, 25, 1)),
            (vec![974], vec![975], vec![999], vec![])
        );
        assert_eq!((tokens.split_end(0.0).unwrap().1.len(), tokens.split_end(1.0).unwrap().0.len()), (0, 0));
        for share in [-0.1, 1.1, f64::NAN] {
            assert_eq!(tokens.split_end(share).unwrap_err().kind(), Kind::Attr);
        }
        // Windows of a part stay within it.
        let windows = train.windows(10, 10).unwrap();
        let (_, y) = windows.get(windows.len() - 1, &Context::new(0, 0, 0)).unwrap();
        assert_eq!((windows.len(), y.to_vec::<i64>().unwrap()[9]), (74, 740));
    }

    #[test]
    fn drawn_windows_depend_on_seed_epoch_and_sample_and_have_every_place() {
        let tokens = Tokens::from_ids(&(0..20).collect::<Vec<_>>()).unwrap();
        let windows = tokens.drawn_windows(16, 400).unwrap();
        let place = |seed, epoch, i| {
            let (x, y) = windows.get(i, &Context::new(seed, epoch, i)).unwrap();
            let (x, y) = (x.to_vec::<i64>().unwrap(), y.to_vec::<i64>().unwrap());
            assert!(x.len() == 16 && x[1..] == y[..15] && y[15] == x[15] + 1);
            x[0] as usize
        };
        let places = |seed, epoch| (0..windows.len()).map(|i| place(seed, epoch, i)).collect::<Vec<_>>();
        assert_eq!(places(1, 0), places(1, 0));
        assert!(places(1, 0) != places(2, 0) && places(1, 0) != places(1, 1));
        // Places 0 to 3, 100 times each; the deviation is 9.
        let mut counts = [0; 4];
        places(1, 0).into_iter().for_each(|place| counts[place] += 1);
        assert!(counts.iter().all(|n| (60..140).contains(n)), "{counts:?}");
        assert!(windows.get(400, &Context::new(0, 0, 0)).is_err());
        assert_eq!(tokens.drawn_windows(19, 1).unwrap().len(), 1);
        for length in [0, 20] {
            assert_eq!(tokens.drawn_windows(length, 1).unwrap_err().kind(), Kind::Attr);
        }
    }
}
