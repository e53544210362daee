//! How a text is cut into cells, and how its numbers are written.

use super::number::Decimal;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// Bytes between cells, in the order in which they are tried: a comma may also be a decimal mark.
pub(crate) const DELIMITERS: [u8; 4] = [b'\t', b';', b'|', b','];

/// How a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Dialect {
    /// The byte between cells.
    pub delimiter: u8,
    /// The first line has the names of the columns.
    pub header: bool,
    /// The mark in numbers.
    pub decimal: Decimal,
}

/// The byte that stands equally often, outside of quotes, in each of the first lines.
pub(crate) fn delimiter_of(start: &[u8]) -> u8 {
    let mut lines = vec![[0usize; DELIMITERS.len()]];
    let (mut is_quoted, mut is_blank) = (false, true);
    for &byte in start {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b'\n' if !is_quoted => {
                if !is_blank {
                    lines.push([0; DELIMITERS.len()]);
                }
                is_blank = true;
                continue;
            }
            _ if is_quoted => {}
            _ => {
                if let (Some(place), Some(line)) = (DELIMITERS.iter().position(|d| *d == byte), lines.last_mut()) {
                    line[place] += 1;
                }
            }
        }
        is_blank &= byte == b'\r';
    }
    // The last line may go on behind these bytes.
    if lines.len() > 1 {
        lines.pop();
    }
    let is_regular = |place: &usize| lines[0][*place] > 0 && lines.iter().all(|line| line[*place] == lines[0][*place]);
    (0..DELIMITERS.len()).find(is_regular).map_or(b',', |place| DELIMITERS[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delimiter_is_in_every_line() {
        for (text, delimiter) in [
            ("a,b\n1,2\n", b','),
            ("a;b\n1,5;2,5\n", b';'),
            ("1,5;2,5\n3,5;4,5\n", b';'),
            ("a\tb,c\n1\t2\n", b'\t'),
            ("\u{feff}a|b\r\n\r\n1|2\r\n", b'|'),
            ("a,b\n\"x;y\",2\n\"p;\n;q\",3\n", b','),
            ("a,b\nx;y,2\n", b','),
            ("one\n2\n", b','),
            ("", b','),
            ("a;b", b';'),
        ] {
            assert_eq!(delimiter_of(text.as_bytes()), delimiter, "{text}");
        }
    }
}
