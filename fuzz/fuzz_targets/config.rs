#![no_main]

use isograd::models::{BertOptions, CausalLm, Pretrained, VitOptions};
use isograd::nn::Init;
use isograd::{Device, Kind};
use isograd_fuzz::{FOLDER, LIMIT, read, small_model};
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::sync::Once;

static ONCE: Once = Once::new();

/// A folder with weights, whose `config.json` changes.
fn write_model(init: &Init) -> isograd::Result<()> {
    CausalLm::new(&small_model(), init)?.save(&*FOLDER)
}

fuzz_target!(|bytes: &[u8]| {
    let init = Init::new(&Device::cpu().expect("the CPU"));
    ONCE.call_once(|| write_model(&init).expect("the folder of temporary files"));
    fs::write(FOLDER.join("config.json"), bytes).expect("the folder of temporary files");
    let _ = (BertOptions::read(&*FOLDER), VitOptions::read(&*FOLDER));
    // Options that the weights do not have.
    read(LIMIT, &[Kind::Value, Kind::Attr], || CausalLm::load(&*FOLDER, &init).map(drop));
});
