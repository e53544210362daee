#![no_main]

use isograd::Error;
use isograd::parity::Folder;
use isograd_fuzz::{FOLDER, LIMIT, read};
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::sync::Once;

static TENSORS: &[u8] = include_bytes!("../../crates/cli/tests/cases/pytorch.safetensors");
static ONCE: Once = Once::new();

fuzz_target!(|bytes: &[u8]| {
    ONCE.call_once(|| fs::write(FOLDER.join("pytorch.safetensors"), TENSORS).expect("the folder of temporary files"));
    fs::write(FOLDER.join("cases.json"), bytes).expect("the folder of temporary files");
    read(LIMIT, &[], || Folder::read(&*FOLDER).map(drop).map_err(|why| Error::format(why, "it is refused")));
});
