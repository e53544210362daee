#![no_main]

use isograd::onnx::load;
use isograd::{DType, Device, Kind, Tensor};
use isograd_fuzz::read_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read_file(bytes, &[Kind::Unsupported], |path| {
        let device = Device::cpu()?;
        device.limit_memory(Some(32 << 20))?;
        let model = load(path, &device)?;
        // Nodes whose numbers do not fit are errors of their run.
        let _ = model.run(&[("x", Tensor::ones((1, 16), DType::F32, &device)?)]);
        Ok(())
    });
});
