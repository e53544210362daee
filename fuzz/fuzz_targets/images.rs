#![no_main]

use isograd::data::images::read_image;
use isograd_fuzz::{FOLDER, read};
use libfuzzer_sys::fuzz_target;
use std::fs;

/// The pixels that an image may have at most, and what decoders take.
const PIXELS: usize = 1 << 30;

fuzz_target!(|bytes: &[u8]| {
    let path = FOLDER.join("picture");
    fs::write(&path, bytes).expect("the folder of temporary files");
    read(PIXELS, &[], || read_image(&path, [8, 8]).map(|image| assert_eq!(image.dims(), [3, 8, 8])));
});
