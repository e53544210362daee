//! Files, gzipped or not.

use flate2::bufread::MultiGzDecoder;
use isograd_core::Error;
use isograd_files::Packing;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

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
pub(crate) fn max_content(bytes: &[u8]) -> usize {
    let packing = if is_gzip(bytes) { Packing::Deflate } else { Packing::None };
    packing.most_unpacked(bytes.len())
}

/// An error about the content of the file at `path`.
pub(crate) fn invalid(path: &Path, message: impl Into<String>) -> Error {
    Error::format(path.display().to_string(), message)
}

/// True if the bytes begin as a gzip stream does.
pub(crate) fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&GZIP_MAGIC)
}

/// The result of a foreign reader, whose panics are errors.
#[cfg(any(feature = "parquet", feature = "tokenizers"))]
pub(crate) fn guarded<T, E: std::fmt::Display>(
    f: impl FnOnce() -> std::result::Result<T, E>,
) -> isograd_files::Checked<T> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => Err(words(&*panic)),
    }
}

#[cfg(any(feature = "parquet", feature = "tokenizers"))]
fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("its reader gave up: {}", text.unwrap_or("no words"))
}
