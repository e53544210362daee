//! How much memory a packed table takes while it is read. Alone in its process, whose peak it measures.
#![cfg(target_os = "linux")]

use flate2::{Compression, write::GzEncoder};
use isograd_data::csv;
use std::io::Write;
use std::path::Path;

/// The most memory that this process has had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_packed_table_is_not_unpacked_whole() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let blank = vec![b'\n'; 1 << 20];
    (0..256).for_each(|_| encoder.write_all(&blank).unwrap());
    encoder.write_all(b"1,0\n").unwrap();
    let packed = encoder.finish().unwrap();
    let before = peak();
    let table = csv::parse(Path::new("some.csv"), &packed, &csv::Options::default()).unwrap();
    assert_eq!((table.len(), table.features()), (1, &[1.0][..]));
    let grown = peak() - before;
    assert!(grown < 32 << 20, "{} MiB for one line behind 256 MiB of blank ones", grown >> 20);
    // And from a file that is not packed.
    let file = tempfile::NamedTempFile::new().unwrap();
    (0..256).for_each(|_| file.as_file().write_all(&blank).unwrap());
    file.as_file().write_all(b"1,0\n").unwrap();
    assert_eq!(csv::read(file.path(), &csv::Options::default()).unwrap().len(), 1);
    let grown = peak() - before;
    assert!(grown < 32 << 20, "{} MiB for one line of a file of 256 MiB", grown >> 20);
}
