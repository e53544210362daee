#![no_main]

use isograd::nn::{Metadata, StateDict, load, save};
use isograd::{DType, Device, Kind, Tensor};
use isograd_fuzz::{FOLDER, LIMIT, read};
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::sync::Once;

static ONCE: Once = Once::new();

/// Files that the index of the corpus names.
fn write_parts() -> isograd::Result<()> {
    for (file, names) in [("one.safetensors", &["a.weight"][..]), ("two.safetensors", &["b.bias", "c.mask"])] {
        let part = |name: &&str| Ok((name.to_string(), Tensor::ones(64, DType::F32, &Device::cpu()?)?));
        save(FOLDER.join(file), &names.iter().map(part).collect::<isograd::Result<StateDict>>()?, &Metadata::new())?;
    }
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    ONCE.call_once(|| write_parts().expect("the folder of temporary files"));
    fs::write(FOLDER.join("model.safetensors.index.json"), bytes).expect("the folder of temporary files");
    // A file that the index names and that is not there.
    read(LIMIT, &[Kind::Io], || load(&*FOLDER, &Device::cpu()?).map(drop));
});
