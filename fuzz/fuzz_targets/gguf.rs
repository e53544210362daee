#![no_main]

use isograd::Device;
use isograd::nn::gguf::Gguf;
use isograd::nn::{load, shapes};
use isograd_fuzz::read_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read_file(bytes, &[], |path| {
        let file = Gguf::open(path)?;
        assert!(file.tensors.values().map(|packed| packed.bytes().len()).sum::<usize>() <= bytes.len());
        assert_eq!(shapes(path)?.len(), file.tensors.len());
        load(path, &Device::cpu()?).map(drop)
    });
});
