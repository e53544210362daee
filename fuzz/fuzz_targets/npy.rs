#![no_main]

use isograd::data::npy;
use isograd_fuzz::{LIMIT, read, read_file};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    read(LIMIT, &[], || npy::parse(Path::new("changed"), bytes).map(drop));
    // Packed by gzip, if it begins so.
    read_file(bytes, &[], |path| npy::read(path).map(drop));
});
