#![no_main]

use isograd::Device;
use isograd::nn::{load, load_checked, shapes};
use isograd_fuzz::read_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read_file(bytes, &[], |path| {
        let device = Device::cpu()?;
        let _ = (load_checked(path, &device), shapes(path));
        load(path, &device).map(drop)
    });
});
