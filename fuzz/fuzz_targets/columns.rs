#![no_main]

use isograd::data::csv::{Learn, Options, Table};
use isograd_fuzz::read_file;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // The first bytes say which format it is: Parquet, Arrow, or text.
    let options = Options { learn: Learn::Classes, ..Options::default() };
    read_file(bytes, &[], |path| Table::read(path, &options).map(drop));
});
