//! What follows from the registry: every op is tested by each of these modules.

mod dtypes;
mod golden;
mod gradients;
mod properties;
mod sizes;

use isograd_tests::harness;

fn main() {
    harness::main(&[
        ("golden", golden::trials),
        ("properties", properties::trials),
        ("dtypes", dtypes::trials),
        ("gradients", gradients::trials),
        ("sizes", sizes::trials),
    ]);
}
