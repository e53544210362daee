#![no_main]

use isograd::data::tokenizer::load;
use isograd_fuzz::read_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read_file(bytes, &[], |path| {
        let tokenizer = load(path)?;
        // A tokenizer with parts that contradict each other refuses a text.
        if let Ok(tokens) = tokenizer.encode("To be, or not to be: été 7") {
            let _ = tokenizer.decode(&tokens);
        }
        tokenizer.to_json().map(drop)
    });
});
