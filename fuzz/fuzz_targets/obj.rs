#![no_main]

use isograd::data::mesh::parse_obj;
use isograd_fuzz::{LIMIT, read};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    read(LIMIT, &[], || parse_obj(Path::new("changed"), bytes).map(drop));
});
