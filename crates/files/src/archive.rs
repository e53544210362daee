//! Archives of files in the format of zip, whose checksums are checked.

use crate::Checked;
use std::io::{Cursor, Read, Write};
use zip::read::ZipReadOptions;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// The first bytes of an archive that has files.
const MAGIC: &[u8] = b"PK\x03\x04";

/// True if the bytes begin as an archive does.
pub fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// The content of a file in an archive.
pub enum Content<'a, 'b> {
    /// As it lies in the archive.
    Stored(&'a [u8]),
    /// It is unpacked as it is read, and its checksum is that of the end: who reads all of it gets an error if it differs.
    Packed(&'b mut dyn Read),
}

/// An archive in memory.
#[derive(Debug)]
pub struct Archive<'a> {
    bytes: &'a [u8],
    zip: ZipArchive<Cursor<&'a [u8]>>,
    /// False for an archive whose writer was told to compute no checksums: all of them are 0.
    has_sums: bool,
}

impl<'a> Archive<'a> {
    /// Reads the list of files. Errors: a list that is damaged or cut off, and a name that is listed twice.
    pub fn open(bytes: &'a [u8]) -> Checked<Archive<'a>> {
        let zip = ZipArchive::new(Cursor::new(bytes)).map_err(|e| format!("not a whole zip archive: {e}"))?;
        let has_sums = (0..zip.len()).any(|i| zip.by_index_data(i).is_ok_and(|file| file.crc32() != 0));
        match zip.has_duplicate_names() {
            true => Err("not a whole zip archive: two files have one name".into()),
            false => Ok(Archive { bytes, zip, has_sums }),
        }
    }

    /// The names of the files, in the order of the list. Errors: a name that is no text.
    pub fn names(&self) -> Checked<Vec<String>> {
        let names = self.zip.file_names().map(|name| Ok(name.map_err(|e| e.to_string())?.into_owned()));
        names.collect()
    }

    /// The content of a file that is not compressed, without a copy. Errors: no such file, one that is compressed, and a damaged one.
    pub fn stored(&mut self, name: &str) -> Checked<&'a [u8]> {
        self.with(name, |content| match content {
            Content::Stored(bytes) => Ok(bytes),
            Content::Packed(_) => Err(format!("{name} is compressed")),
        })
    }

    /// Calls a function with the content of a file. Errors: those of the function, no such file, a damaged one, and one that is encrypted or
    /// packed by another method than deflate.
    pub fn with<T>(&mut self, name: &str, f: impl FnOnce(Content<'a, '_>) -> Checked<T>) -> Checked<T> {
        let bytes = self.bytes;
        let failed = |e: &dyn std::fmt::Display| format!("{name} cannot be read from the archive: {e}");
        let index = self.zip.index_for_name(name).ok_or_else(|| format!("the archive has no {name}"))?;
        // A file has a header of its own, which must agree with the list.
        let options = ZipReadOptions::new().enforce_header_consistency(true);
        let mut file = self.zip.by_index_with_options(index, options).map_err(|e| failed(&e))?;
        if file.encrypted() {
            return Err(failed(&"it is encrypted"));
        }
        if file.compression() != CompressionMethod::Stored {
            return f(Content::Packed(&mut file));
        }
        let (start, size, sum) = (file.data_start(), file.size(), file.crc32());
        let range = start.and_then(|start| {
            let start = usize::try_from(start).ok()?;
            Some(start..start.checked_add(usize::try_from(size).ok()?)?)
        });
        let content = range.and_then(|range| bytes.get(range)).ok_or_else(|| failed(&"the archive ends before"))?;
        match !self.has_sums || crc32fast::hash(content) == sum {
            true => f(Content::Stored(content)),
            false => Err(failed(&"its checksum is not that of its content")),
        }
    }
}

/// An archive of files, by name and content, none of which is compressed. Equal files give equal bytes.
pub fn pack<'a>(files: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Checked<Vec<u8>> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in files {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(u32::try_from(content.len()).is_err());
        let written = zip.start_file(name, options).map(|()| zip.write_all(&content));
        written.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    }
    zip.finish().map(Cursor::into_inner).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_back_and_damage_is_noticed() {
        let files = [("a/b.txt", b"some text".to_vec()), ("c", vec![7; 1000])];
        let bytes = pack(files.clone()).unwrap();
        assert_eq!(bytes, pack(files.clone()).unwrap());
        let mut archive = Archive::open(&bytes).unwrap();
        assert_eq!(archive.names().unwrap(), ["a/b.txt", "c"]);
        for (name, content) in &files {
            assert_eq!(archive.stored(name).unwrap(), content);
        }
        assert_eq!(archive.stored("d").unwrap_err(), "the archive has no d");
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let Ok(mut archive) = Archive::open(&damaged) else { continue };
            for (name, content) in &files {
                let found = archive.with(name, |found| match found {
                    Content::Stored(bytes) => Ok(bytes.to_vec()),
                    Content::Packed(stream) => {
                        let mut bytes = Vec::new();
                        stream.read_to_end(&mut bytes).map(|_| bytes).map_err(|e| e.to_string())
                    }
                });
                assert!(found.map_or(true, |found| found == *content), "bit {bit}");
            }
        }
    }
}
