#![no_main]

use isograd::Device;
use isograd::nn::{load, shapes};
use isograd_fuzz::read_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read_file(bytes, &[], |path| {
        let _ = shapes(path);
        load(path, &Device::cpu()?).map(drop)
    });
});
