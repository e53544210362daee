//! Archives of files in the format of zip, whose checksums are checked. PKWARE 2022, ".ZIP File Format Specification", 6.3.10.

use crate::Checked;
use flate2::bufread::DeflateDecoder;
use std::collections::HashMap;
use std::io::{self, Read};

/// The first bytes of an archive that has files, which are those of a file's own header.
const MAGIC: &[u8] = b"PK\x03\x04";
/// The first bytes of a file's header in the list at the end.
const LISTED: &[u8] = b"PK\x01\x02";
/// The first bytes of what ends the list, of the same with fields of 64 bits, and of that one's place.
const END: &[u8] = b"PK\x05\x06";
const END_64: &[u8] = b"PK\x06\x06";
const PLACE_64: &[u8] = b"PK\x06\x07";

/// Bytes of a header before the name.
const OWN_BYTES: usize = 30;
const LISTED_BYTES: usize = 46;
/// Bytes of what ends the list.
const END_BYTES: usize = 22;
const END_64_BYTES: usize = 56;
const PLACE_64_BYTES: usize = 20;

/// Flags of a file: it is encrypted; its sizes and its checksum follow it and may be missing in its own header.
const ENCRYPTED: usize = 1;
const SIZES_FOLLOW: usize = 1 << 3;
/// The flag of a name in UTF-8.
const UTF_8: u16 = 1 << 11;

/// Methods of packing.
const STORED: usize = 0;
const DEFLATED: usize = 8;

/// The extra field whose fields of 64 bits take the place of those with this value.
const FIELDS_64: usize = 1;
const LARGE: usize = u32::MAX as usize;

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
    /// In the order of the list.
    files: Vec<Header<'a>>,
    by_name: HashMap<&'a [u8], usize>,
    /// Where the list begins, behind the last file.
    list: usize,
    /// False for an archive whose writer was told to compute no checksums: all of them are 0.
    has_sums: bool,
}

/// The fields of the header of a file.
#[derive(Debug, PartialEq)]
struct Header<'a> {
    name: &'a [u8],
    flags: usize,
    method: usize,
    sum: usize,
    packed: usize,
    size: usize,
    /// Where its own header is; 0 in that header.
    start: usize,
}

/// The little-endian number of `N` bytes at a place.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<usize> {
    let mut word = [0; 8];
    word[..N].copy_from_slice(bytes.get(at..at.checked_add(N)?)?);
    usize::try_from(u64::from_le_bytes(word)).ok()
}

/// `length` bytes from a place.
fn part(bytes: &[u8], at: usize, length: usize) -> Option<&[u8]> {
    bytes.get(at..at.checked_add(length)?)
}

/// The extra field of a kind.
fn extra(mut fields: &[u8], kind: usize) -> Option<&[u8]> {
    while let (Some(found), Some(length)) = (number::<2>(fields, 0), number::<2>(fields, 2)) {
        let field = part(fields, 4, length)?;
        if found == kind {
            return Some(field);
        }
        fields = &fields[4 + length..];
    }
    None
}

impl<'a> Header<'a> {
    /// The header in the list at a place, and its length.
    fn listed(bytes: &'a [u8], at: usize) -> Option<(Header<'a>, usize)> {
        let fixed = part(bytes, at, LISTED_BYTES).filter(|fixed| fixed.starts_with(LISTED))?;
        let [name, extra, comment] = [28, 30, 32].map(|at| number::<2>(fixed, at).unwrap_or(0));
        let mut header = Header::of(&fixed[8..], part(bytes, at + LISTED_BYTES, name)?, number::<4>(fixed, 42)?)?;
        header.widen(part(bytes, at + LISTED_BYTES + name, extra)?)?;
        Some((header, LISTED_BYTES + name + extra + comment))
    }

    /// A file's own header, and where its content begins.
    fn own(bytes: &'a [u8], at: usize) -> Option<(Header<'a>, usize)> {
        let fixed = part(bytes, at, OWN_BYTES).filter(|fixed| fixed.starts_with(MAGIC))?;
        let [name, extra] = [26, 28].map(|at| number::<2>(fixed, at).unwrap_or(0));
        let mut header = Header::of(&fixed[6..], part(bytes, at + OWN_BYTES, name)?, 0)?;
        header.widen(part(bytes, at + OWN_BYTES + name, extra)?)?;
        Some((header, at + OWN_BYTES + name + extra))
    }

    /// From the fields that both have in this order: flags, method, time, date, checksum and sizes.
    fn of(fields: &[u8], name: &'a [u8], start: usize) -> Option<Header<'a>> {
        let [flags, method] = [0, 2].map(|at| number::<2>(fields, at).unwrap_or(0));
        let (sum, packed, size) = (number::<4>(fields, 8)?, number::<4>(fields, 12)?, number::<4>(fields, 16)?);
        Some(Header { name, flags, method, sum, packed, size, start })
    }

    /// Takes the fields of 64 bits from the extra fields, in this order, that were too large for 32.
    fn widen(&mut self, extras: &[u8]) -> Option<()> {
        let Some(wide) = extra(extras, FIELDS_64) else { return Some(()) };
        let narrow = [&mut self.size, &mut self.packed, &mut self.start];
        for (i, field) in narrow.into_iter().filter(|field| **field == LARGE).enumerate() {
            *field = number::<8>(wide, 8 * i)?;
        }
        Some(())
    }

    /// True if a file's own header says the same as the list.
    fn agrees(&self, own: &Header<'_>) -> bool {
        let is_same = (self.name, self.flags, self.method) == (own.name, own.flags, own.method);
        let sums = |header: &Header<'_>| (header.sum, header.packed, header.size);
        is_same && (self.flags & SIZES_FOLLOW != 0 || sums(self) == sums(own))
    }
}

/// The list of files: where it begins and ends, and how many it has.
fn list(bytes: &[u8]) -> Option<(usize, usize, usize)> {
    // Behind the end, a comment reaches to the end of the file.
    let last = bytes.len().checked_sub(END_BYTES)?;
    let first = last.saturating_sub(usize::from(u16::MAX));
    let is_end = |&at: &usize| bytes[at..].starts_with(END) && number::<2>(bytes, at + 20) == Some(last - at);
    let end = (first..=last).rev().find(is_end)?;
    let place = end.checked_sub(PLACE_64_BYTES).filter(|&place| bytes[place..].starts_with(PLACE_64));
    let (end, [this, first, here, count, length, start]) = match place {
        None => {
            let fields = [4, 6, 8, 10].map(|at| number::<2>(bytes, end + at));
            let [this, first, here, count] = fields;
            (end, [this, first, here, count, number::<4>(bytes, end + 12), number::<4>(bytes, end + 16)])
        }
        Some(place) => {
            let end = number::<8>(bytes, place + 8)?;
            let fixed = part(bytes, end, END_64_BYTES).filter(|fixed| fixed.starts_with(END_64))?;
            let length = number::<8>(fixed, 4)?.checked_add(12)?;
            if end.checked_add(length)? != place {
                return None;
            }
            let [this, first] = [16, 20].map(|at| number::<4>(fixed, at));
            let [here, count, length, start] = [24, 32, 40, 48].map(|at| number::<8>(fixed, at));
            (end, [this, first, here, count, length, start])
        }
    };
    // All of it is in this file.
    let is_whole = this? == 0 && first? == 0 && here == count && start?.checked_add(length?)? == end;
    is_whole.then_some((start?, end, count?))
}

impl<'a> Archive<'a> {
    /// Reads the list of files. Errors: a list that is damaged or cut off, and a name that is listed twice.
    pub fn open(bytes: &'a [u8]) -> Checked<Archive<'a>> {
        let damaged = |what: &str| format!("not a whole zip archive: {what}");
        let (list, end, count) = list(bytes).ok_or_else(|| damaged("it has no end"))?;
        let (mut at, mut files, mut by_name) = (list, Vec::new(), HashMap::new());
        while at < end {
            let (header, length) =
                Header::listed(&bytes[..end], at).ok_or_else(|| damaged("its list of files is corrupt"))?;
            if by_name.insert(header.name, files.len()).is_some() {
                return Err(damaged("two files have one name"));
            }
            files.push(header);
            at += length;
        }
        if at != end || files.len() != count {
            return Err(damaged("its list of files is corrupt"));
        }
        let has_sums = files.iter().any(|file| file.sum != 0);
        Ok(Archive { bytes, files, by_name, list, has_sums })
    }

    /// The names of the files, in the order of the list. Errors: a name that is no text.
    pub fn names(&self) -> Checked<Vec<String>> {
        let text =
            |name: &[u8]| String::from_utf8(name.to_vec()).map_err(|_| "the name of a file is no text".to_string());
        self.files.iter().map(|file| text(file.name)).collect()
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
        let failed = |why: &str| format!("{name} cannot be read from the archive: {why}");
        let file = self.by_name.get(name.as_bytes()).ok_or_else(|| format!("the archive has no {name}"))?;
        let file = &self.files[*file];
        let own = Header::own(&self.bytes[..self.list], file.start);
        // A file has a header of its own, which must agree with the list.
        let (_, start) = own.filter(|(own, _)| file.agrees(own)).ok_or_else(|| failed("its header is corrupt"))?;
        let content =
            part(&self.bytes[..self.list], start, file.packed).ok_or_else(|| failed("the archive ends before"))?;
        let is_sum = |sum: u32| !self.has_sums || sum as usize == file.sum;
        match file.method {
            _ if file.flags & ENCRYPTED != 0 => Err(failed("it is encrypted")),
            STORED if file.packed != file.size => Err(failed("it has two sizes")),
            STORED if !is_sum(crc32fast::hash(content)) => Err(failed("its checksum is not that of its content")),
            STORED => f(Content::Stored(content)),
            DEFLATED => {
                let sum = self.has_sums.then_some(file.sum);
                f(Content::Packed(&mut Unpacked {
                    stream: DeflateDecoder::new(content),
                    found: crc32fast::Hasher::new(),
                    sum,
                    left: file.size,
                }))
            }
            other => Err(failed(&format!("it is packed by method {other}, expected 8, deflate"))),
        }
    }
}

/// A file that is unpacked.
struct Unpacked<'a> {
    stream: DeflateDecoder<&'a [u8]>,
    found: crc32fast::Hasher,
    /// The sum of the whole file, if it has one.
    sum: Option<usize>,
    /// Bytes that are not unpacked yet.
    left: usize,
}

impl Read for Unpacked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let corrupt = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        let read = self.stream.read(buffer)?;
        self.found.update(&buffer[..read]);
        let Some(left) = self.left.checked_sub(read) else { return corrupt("it is longer than the archive says") };
        self.left = left;
        if read == 0 && !buffer.is_empty() {
            if left > 0 {
                return corrupt("it is shorter than the archive says");
            }
            if self.sum.is_some_and(|sum| self.found.clone().finalize() as usize != sum) {
                return corrupt("its checksum is not that of its content");
            }
        }
        Ok(read)
    }
}

/// An archive of files, by name and content, none of which is compressed. Equal files give equal bytes. Errors: a name of more than 65,535 bytes.
pub fn pack<'a>(files: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Checked<Vec<u8>> {
    pack_with(files, LARGE)
}

/// [`pack`] with fields of 64 bits for sizes and places from `large` on.
fn pack_with<'a>(files: impl IntoIterator<Item = (&'a str, Vec<u8>)>, large: usize) -> Checked<Vec<u8>> {
    let (mut bytes, mut list, mut count) = (Vec::new(), Vec::new(), 0);
    for (name, content) in files {
        let length =
            u16::try_from(name.len()).map_err(|_| format!("a name of {} bytes, expected at most 65535", name.len()))?;
        let (start, size) = (bytes.len(), content.len());
        // `places` are the sizes, and in the list where the file is.
        let header = |magic: &[u8], places: &[usize]| {
            let wide: Vec<u8> =
                places.iter().filter(|&&n| n >= large).flat_map(|&n| (n as u64).to_le_bytes()).collect();
            let narrow = |n: usize| (if n >= large { LARGE } else { n } as u32).to_le_bytes();
            let version: u16 = if wide.is_empty() { 20 } else { 45 };
            let extra = if wide.is_empty() {
                Vec::new()
            } else {
                [&(FIELDS_64 as u16).to_le_bytes()[..], &(wide.len() as u16).to_le_bytes(), &wide].concat()
            };
            let flags = if name.is_ascii() { 0 } else { UTF_8 };
            // The first day that the format has.
            let words = [version, flags, STORED as u16, 0, 1 << 5 | 1];
            let mut made = magic.to_vec();
            if magic == LISTED {
                made.extend(version.to_le_bytes());
            }
            made.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            made.extend(crc32fast::hash(&content).to_le_bytes());
            made.extend([narrow(size), narrow(size)].concat());
            made.extend([length, extra.len() as u16].iter().flat_map(|word| word.to_le_bytes()));
            if let [_, _, start] = *places {
                // No comment, the first disk, and no attributes.
                made.extend([0; 10]);
                made.extend(narrow(start));
            }
            [&made, name.as_bytes(), &extra].concat()
        };
        bytes.extend(header(MAGIC, &[size, size]));
        list.extend(header(LISTED, &[size, size, start]));
        bytes.extend(content);
        count += 1;
    }
    let (start, length) = (bytes.len(), list.len());
    bytes.append(&mut list);
    if start.max(length) >= large || count >= usize::from(u16::MAX) {
        let (end, fields) = (bytes.len(), [count, count, length, start]);
        bytes.extend([END_64, &(END_64_BYTES as u64 - 12).to_le_bytes(), &[45, 0, 45, 0], &[0; 8]].concat());
        bytes.extend(fields.iter().flat_map(|&n| (n as u64).to_le_bytes()));
        bytes.extend([PLACE_64, &[0; 4], &(end as u64).to_le_bytes(), &[1, 0, 0, 0]].concat());
    }
    let short = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_le_bytes();
    let narrow = |n: usize| (if n >= large { LARGE } else { n } as u32).to_le_bytes();
    bytes.extend([END, &[0; 4], &short(count), &short(count), &narrow(length), &narrow(start), &[0; 2]].concat());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_back_and_damage_is_noticed() {
        let files = [("a/b.txt", b"some text".to_vec()), ("c", vec![7; 1000])];
        let bytes = pack(files.clone()).unwrap();
        assert_eq!(bytes, pack(files.clone()).unwrap());
        damage_is_noticed(&bytes, &files);
        // With fields of 64 bits.
        damage_is_noticed(&pack_with(files.clone(), 0).unwrap(), &files);
        damage_is_noticed(&pack_with(files.clone(), 500).unwrap(), &files);
    }

    fn damage_is_noticed(bytes: &[u8], files: &[(&str, Vec<u8>)]) {
        let mut archive = Archive::open(bytes).unwrap();
        assert_eq!(archive.names().unwrap(), ["a/b.txt", "c"]);
        for (name, content) in files {
            assert_eq!(archive.stored(name).unwrap(), content);
        }
        assert_eq!(archive.stored("d").unwrap_err(), "the archive has no d");
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let Ok(mut archive) = Archive::open(&damaged) else { continue };
            for (name, content) in files {
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
