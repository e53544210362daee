#![no_main]

use isograd::data::csv::{Encoding, EncodingOptions, Features, Learn, Options, Table};
use isograd_fuzz::{LIMIT, read};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    for features in [Features::Numbers, Features::Inferred] {
        let options = Options { features, learn: Learn::Classes, ..Options::default() };
        read(LIMIT, &[], || {
            let table = Table::parse(Path::new("changed"), bytes, &options)?;
            if let Ok(encoding) = Encoding::fit(&table, &EncodingOptions::default()) {
                let numbers = encoding.encode(&table)?.numbers();
                assert_eq!(numbers.dims(), [table.len(), encoding.numbers()]);
                assert!(numbers.to_vec::<f32>()?.iter().all(|x| x.is_finite()));
            }
            Ok(())
        });
    }
});
