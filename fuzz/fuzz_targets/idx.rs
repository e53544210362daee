#![no_main]

use isograd::data::idx;
use isograd_fuzz::{LIMIT, read};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    read(LIMIT, &[], || idx::parse(Path::new("changed"), bytes).map(drop));
});
