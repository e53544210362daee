//! Files, gzipped or not.

use flate2::bufread::MultiGzDecoder;
use isograd_core::{Error, Result};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Deflate cannot shrink data further than this (RFC 1951: 258 bytes in two bits).
const MAX_RATIO: u64 = 1032;

/// The whole file as it is on disk.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| Error::io(path, "reading", e))
}

/// The content of a file's bytes: unpacked, as they are read, if they begin as gzip does.
pub(crate) fn content<'a>(mut bytes: impl BufRead + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
    let is_packed = is_gzip(bytes.fill_buf()?);
    Ok(if is_packed { Box::new(BufReader::new(MultiGzDecoder::new(bytes))) } else { Box::new(bytes) })
}

/// The error of reading content: the system's, or else that of unpacking.
pub(crate) fn failed(path: &Path, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(_) => Error::io(path, "reading", error),
        None => invalid(path, format!("the gzip stream is corrupt or truncated: {error}")).with_source(error),
    }
}

/// The longest content that these bytes can hold, before anything is unpacked.
pub(crate) fn max_content(bytes: &[u8]) -> u64 {
    let len = bytes.len() as u64;
    if is_gzip(bytes) { len.saturating_mul(MAX_RATIO) } else { len }
}

/// An error about the content of the file at `path`.
pub(crate) fn invalid(path: &Path, message: impl Into<String>) -> Error {
    Error::format(path.display().to_string(), message)
}

/// True if the bytes begin as a gzip stream does.
pub(crate) fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&GZIP_MAGIC)
}
