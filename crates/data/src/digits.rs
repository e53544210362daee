//! The digits that come with the crate.

use crate::Labelled;
use crate::csv::{Features, Header, Learn, Options, Table};
use isograd_core::Result;
use std::path::Path;

const DIGITS: &[u8] = include_bytes!("../assets/digits.csv.gz");

/// 1,797 real handwritten digits of 8x8 pixels, scaled to 0..1: samples of shape `[64]`, ten classes. They are in the crate, so that
/// nothing is downloaded.
///
/// The last samples come from other writers, so split them with `digits()?.split_every(5)?`.
///
/// Source: UCI "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998), CC BY 4.0, as packaged by scikit-learn.
pub fn digits() -> Result<Labelled> {
    let (header, delimiter) = (Header::Absent, Some(b','));
    let options =
        Options { learn: Learn::Classes, features: Features::Numbers, header, delimiter, ..Options::default() };
    // Pixels are counts in 0..=16, and 1/16 is exact.
    Ok(Table::parse(Path::new("digits"), DIGITS, &options)?.labelled()?.scaled(1.0 / 16.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_complete() {
        let digits = digits().unwrap();
        assert_eq!((digits.len(), digits.sample_shape(), digits.classes()), (1797, &[64][..], 10));
        assert!(digits.features().iter().all(|x| (0.0..=1.0).contains(x)));
        assert_eq!(digits.features()[..5], [0.0, 0.0, 5.0 / 16.0, 13.0 / 16.0, 9.0 / 16.0]);
        assert_eq!(digits.labels()[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let (train, test) = digits.split_every(5).unwrap();
        assert_eq!((train.len(), test.len()), (1437, 360));
    }
}
