//! IDX, MNIST and CSV files, whole, damaged and invented.

use flate2::{Compression, write::GzEncoder};
use isograd_core::{Error, Kind};
use isograd_data::{Labelled, csv, idx, mnist};
use proptest::prelude::*;
use std::io::Write;
use std::path::{Path, PathBuf};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// An IDX file of u8 values.
fn idx_u8(shape: &[u32], values: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, shape.len() as u8];
    shape.iter().for_each(|d| bytes.extend(d.to_be_bytes()));
    bytes.extend(values);
    bytes
}

fn written(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn assert_format(error: &Error, path: &Path, expected: &str) {
    assert_eq!(error.kind(), Kind::Format, "{error}");
    assert_eq!(error.op(), path.display().to_string());
    assert!(error.message().contains(expected), "{error} does not say {expected:?}");
}

fn idx_error(bytes: &[u8]) -> Error {
    idx::parse(Path::new("some.idx"), bytes).unwrap_err()
}

#[test]
fn idx_reads_every_type() {
    let file = |kind: u8, body: &[u8]| [&[0, 0, kind, 1, 0, 0, 0, 2][..], body].concat();
    let read = |bytes: Vec<u8>| idx::parse(Path::new("x"), &bytes).unwrap().values;
    assert_eq!(read(file(8, &[1, 255])), idx::Values::U8(vec![1, 255]));
    assert_eq!(read(file(9, &[1, 255])), idx::Values::I8(vec![1, -1]));
    assert_eq!(read(file(11, &[0, 1, 255, 255])), idx::Values::I16(vec![1, -1]));
    assert_eq!(read(file(12, &[0, 0, 0, 1, 255, 255, 255, 255])), idx::Values::I32(vec![1, -1]));
    let floats = [1.5f32.to_be_bytes(), (-2.0f32).to_be_bytes()].concat();
    assert_eq!(read(file(13, &floats)), idx::Values::F32(vec![1.5, -2.0]));
    let doubles = [1.5f64.to_be_bytes(), (-2.0f64).to_be_bytes()].concat();
    assert_eq!(read(file(14, &doubles)), idx::Values::F64(vec![1.5, -2.0]));
}

#[test]
fn idx_content_decides_about_gzip() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = idx_u8(&[2, 1, 3], &[1, 2, 3, 4, 5, 6]);
    let packed = written(dir.path(), "packed-without-suffix", &gzip(&bytes));
    let plain = written(dir.path(), "plain.gz", &bytes);
    let images = idx::read_images(packed).unwrap();
    assert_eq!(images, idx::read_images(plain).unwrap());
    assert_eq!((images.count, images.rows, images.columns), (2, 1, 3));
    assert_eq!(images.pixels, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn idx_errors_say_what_was_expected() {
    let path = Path::new("some.idx");
    assert_format(&idx_error(b""), path, "within the magic number: expected 4 bytes, got 0");
    assert_format(&idx_error(b"PK\x03\x04rest"), path, "the magic number is 504b0304, expected 0000");
    assert_format(&idx_error(&[0, 0, 10, 1, 0, 0, 0, 0]), path, "the magic number is 00000a01");
    assert_format(&idx_error(&[0, 0, 8, 3, 0, 0]), path, "within the extents: expected 12 bytes, got 2");
    assert_format(
        &idx_error(&idx_u8(&[3], &[1, 2])),
        path,
        "truncated: shape [3] needs 3 bytes after the header, got 2",
    );
    assert_format(&idx_error(&idx_u8(&[1], &[1, 2])), path, "goes on after its end");
}

#[test]
fn idx_of_absurd_size_is_refused_before_allocating() {
    for extents in [&[u32::MAX; 3][..], &[u32::MAX], &[u32::MAX; 255]] {
        assert_format(&idx_error(&idx_u8(extents, &[1])), Path::new("some.idx"), "cannot hold");
        assert_format(&idx_error(&gzip(&idx_u8(extents, &[1]))), Path::new("some.idx"), "cannot hold");
    }
}

#[test]
fn a_quote_that_does_not_end_is_an_error_with_its_line() {
    let parse = |text: &str| parse_csv(text, &plain());
    for text in ["1,2,0\n3,\"4,1\n5,6,0\n7,8,1\n", "1,2,0\n\"3,4,1"] {
        assert_format(&parse(text).unwrap_err(), Path::new("some.csv"), "line 2 has a quote that does not end");
    }
    for text in ["1,2,0\n3,4,\"1\"", "1,\"2\",0\n\n", "1,\"2\n\",0"] {
        assert!(parse(text).is_ok(), "{text:?}");
    }
    // The buffers of the parser grow at the end of the file.
    for columns in [2, 63, 64, 65, 128, 600] {
        for end in ["", "\r", "\n", "\r\n"] {
            let text = vec!["\"1\""; columns].join(",") + end;
            assert_eq!(parse(&text).unwrap().sample_len(), columns - 1);
            let text = vec!["11111"; columns].join(",") + end;
            let numbers = csv::Options { learn: csv::Learn::Numbers, ..plain() };
            let table = csv::Table::parse(Path::new("x"), text.as_bytes(), &numbers).unwrap();
            assert_eq!(table.regression().unwrap().len(), 1);
        }
    }
}

#[test]
fn a_text_in_utf_16_is_no_class_of_an_odd_name() {
    for mark in ["", "\u{feff}"] {
        let units = format!("{mark}1,cat\n2,dog\n");
        for bytes in [
            units.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>(),
            units.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        ] {
            let error = csv::Table::parse(Path::new("some.csv"), &bytes, &csv::Options::default()).unwrap_err();
            assert_format(&error, Path::new("some.csv"), "line 1 is no text in UTF-8, but perhaps in UTF-16");
        }
    }
}

#[test]
fn gzip_damage_is_found() {
    let packed = gzip(&idx_u8(&[4], &[1, 2, 3, 4]));
    let path = Path::new("some.idx");
    assert_format(&idx_error(&packed[..packed.len() - 3]), path, "corrupt or truncated");
    let mut wrong_sum = packed.clone();
    let crc = wrong_sum.len() - 8;
    wrong_sum[crc] ^= 1;
    assert_format(&idx_error(&wrong_sum), path, "corrupt or truncated");
    assert_format(&idx_error(&[&packed[..], b"more"].concat()), path, "corrupt or truncated");
}

#[test]
fn images_and_labels_are_not_confused() {
    let dir = tempfile::tempdir().unwrap();
    let labels = written(dir.path(), "labels", &idx_u8(&[2], &[1, 2]));
    assert_format(&idx::read_images(&labels).unwrap_err(), &labels, "rank 3 (magic 00000803), got u8 of shape [2]");
    let images = written(dir.path(), "images", &idx_u8(&[1, 1, 1], &[1]));
    assert_format(
        &idx::read_labels(&images).unwrap_err(),
        &images,
        "rank 1 (magic 00000801), got u8 of shape [1, 1, 1]",
    );
    let missing = dir.path().join("missing");
    let error = idx::read(&missing).unwrap_err();
    assert_eq!((error.kind(), error.op()), (Kind::Io, &*missing.display().to_string()));
}

/// Writes images of 2x2 pixels and labels; sample `i` has the pixels `i`.
fn write_part(dir: &Path, prefix: &str, n: u8) {
    let pixels: Vec<u8> = (0..n).flat_map(|i| [i; 4]).collect();
    let labels: Vec<u8> = (0..n).map(|i| i % 10).collect();
    written(dir, &format!("{prefix}-images-idx3-ubyte.gz"), &gzip(&idx_u8(&[n.into(), 2, 2], &pixels)));
    written(dir, &format!("{prefix}-labels-idx1-ubyte"), &idx_u8(&[n.into()], &labels));
}

#[test]
fn mnist_uses_both_parts_or_splits_the_test_part() {
    let dir = tempfile::tempdir().unwrap();
    let error = mnist(dir.path()).unwrap_err();
    assert_eq!(error.kind(), Kind::Io);
    assert!(error.to_string().contains("expected t10k-images-idx3-ubyte or t10k-images-idx3-ubyte.gz"), "{error}");

    write_part(dir.path(), "t10k", 20);
    let (train, test) = mnist(dir.path()).unwrap();
    assert_eq!((train.len(), test.len()), (17, 3));
    assert_eq!(train.name(), "mnist (85 % of the test images: there are no training images)");
    assert_eq!(test.sample(0), Some((&[17.0 / 255.0; 4][..], &7)));
    assert_eq!(train.with_sample_shape([1, 2, 2]).unwrap().sample_shape(), [1, 2, 2]);

    write_part(dir.path(), "train", 30);
    let (train, test) = mnist(dir.path()).unwrap();
    assert_eq!((train.len(), test.len(), train.classes()), (30, 20, 10));
    assert_eq!((train.name(), test.name()), ("mnist", "mnist"));
}

#[test]
fn mnist_checks_that_labels_fit() {
    let dir = tempfile::tempdir().unwrap();
    write_part(dir.path(), "t10k", 3);
    let labels = written(dir.path(), "t10k-labels-idx1-ubyte", &idx_u8(&[2], &[1, 2]));
    assert_format(&mnist(dir.path()).unwrap_err(), &labels, "2 labels, expected 3, one for each image of");
    written(dir.path(), "t10k-labels-idx1-ubyte", &idx_u8(&[3], &[1, 10, 2]));
    assert_format(&mnist(dir.path()).unwrap_err(), &labels, "label 1 is 10, expected one in 0..10");
    std::fs::remove_file(&labels).unwrap();
    assert_eq!(mnist(dir.path()).unwrap_err().kind(), Kind::Io);
}

#[test]
fn mnist_parts_have_images_of_one_size() {
    let dir = tempfile::tempdir().unwrap();
    write_part(dir.path(), "t10k", 2);
    write_part(dir.path(), "train", 2);
    let images = written(dir.path(), "t10k-images-idx3-ubyte", &idx_u8(&[2, 4, 1], &[1; 8]));
    assert_format(&mnist(dir.path()).unwrap_err(), &images, "images of 4 x 1 pixels, expected 2 x 2 as in");
    written(dir.path(), "t10k-images-idx3-ubyte", &idx_u8(&[2, 0, 2], &[]));
    assert_format(&mnist(dir.path()).unwrap_err(), &images, "2 images of 0 x 2 pixels, expected at least one pixel");
}

/// Numbers with a class in the last column, without a header.
fn plain() -> csv::Options {
    csv::Options {
        learn: csv::Learn::Classes,
        header: csv::Header::Absent,
        features: csv::Features::Numbers,
        ..csv::Options::default()
    }
}

fn parse_csv(text: &str, options: &csv::Options) -> isograd_core::Result<Labelled> {
    csv::Table::parse(Path::new("some.csv"), text.as_bytes(), options)?.labelled()
}

fn csv_error(text: &str) -> Error {
    parse_csv(text, &plain()).unwrap_err()
}

fn named(name: &str) -> csv::Column {
    csv::Column::Name(name.into())
}

#[test]
fn csv_label_is_where_the_options_say() {
    let options = |label| csv::Options { targets: vec![label], ..plain() };
    let read = |label| parse_csv("0,1,2\n1,0,1\n", &options(label)).unwrap();
    assert_eq!(read(csv::Column::Last).features(), [0.0, 1.0, 1.0, 0.0]);
    assert_eq!(read(csv::Column::Last).labels(), [1, 0]);
    assert_eq!(read(csv::Column::Last).class_names(), ["1", "2"]);
    assert_eq!((read(csv::Column::First).labels(), read(csv::Column::First).class_names().len()), (&[0, 1][..], 0));
    assert_eq!(read(csv::Column::Number(1)).features(), [0.0, 2.0, 1.0, 1.0]);
    let error = parse_csv("0,1,2\n", &options(csv::Column::Number(3))).unwrap_err();
    assert_format(&error, Path::new("some.csv"), "the table has 3 columns, expected one with the number 3");
}

#[test]
fn csv_reads_headers_delimiters_spaces_and_gzip() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path(), "flowers", &gzip(b"length;kind\r\n 1.5 ;2.0\r\n\r\n-1e-3;\"1\"\r\n"));
    let table = csv::Table::read(path, &csv::Options::default()).unwrap();
    let flowers = table.labelled().unwrap();
    assert_eq!((flowers.name(), flowers.features(), flowers.labels()), ("flowers", &[1.5, -1e-3][..], &[1, 0][..]));
    assert_eq!(table.columns()[0].name, "length");
}

#[test]
fn csv_targets_are_numbers_in_the_order_of_the_options() {
    let text = b"a, b,price,area\n1,2,3.5,4\n5,6,-7,8\n";
    let read = |targets: &[csv::Column]| {
        let options = csv::Options { targets: targets.to_vec(), learn: csv::Learn::Numbers, ..csv::Options::default() };
        csv::Table::parse(Path::new("some.csv"), text, &options)?.regression()
    };
    let table = read(&[named("price"), named("b")]).unwrap();
    assert_eq!((table.sample_shape(), table.features()), (&[2][..], &[1.0, 4.0, 5.0, 8.0][..]));
    let targets: Vec<Vec<f32>> = table.targets().iter().map(|t| t.to_vec().unwrap()).collect();
    assert_eq!(targets, [[3.5, 2.0], [-7.0, 6.0]]);
    assert_eq!(read(&[csv::Column::Last]).unwrap().targets()[1].to_vec::<f32>().unwrap(), [8.0]);
    let path = Path::new("some.csv");
    let missing = read(&[named("rooms")]).unwrap_err();
    assert_format(&missing, path, "expected a column \"rooms\", the table has the columns a, b, price, area");
    let twice = read(&[named("area"), csv::Column::Last]).unwrap_err();
    assert_eq!(twice.to_string(), "csv: Attr: column 4 is a target twice");
    assert_eq!(read(&[]).unwrap_err().kind(), Kind::Attr);
    let options = csv::Options { targets: vec![named("a")], ..plain() };
    assert_format(&parse_csv("1,2\n", &options).unwrap_err(), path, "the table has no header");
    let options = csv::Options { targets: vec![csv::Column::First, csv::Column::Last], ..plain() };
    assert_eq!(parse_csv("1,2\n", &options).unwrap_err().kind(), Kind::Attr);
    let both = csv::Options { ignore: vec![csv::Column::Last], ..plain() };
    assert_eq!(parse_csv("1,2\n", &both).unwrap_err().to_string(), "csv: Attr: column 2 is a target and ignored");
}

#[test]
fn csv_labels_may_be_names() {
    let table = parse_csv("1,rose\n2, iris\n3,\"7, or so\"\n4,rose\n", &plain()).unwrap();
    assert_eq!((table.labels(), table.classes()), (&[2, 1, 0, 2][..], 3));
    assert_eq!(table.class_names(), ["7, or so", "iris", "rose"]);
    let (train, test) = table.split_every(2).unwrap();
    assert_eq!((train.class_names(), test.classes()), (table.class_names(), 3));
    let missing = csv_error("1,a\n2, \n");
    assert_format(&missing, Path::new("some.csv"), "line 2, column 2: expected the name of a class, got \"\"");
    assert!(table.with_class_names(vec!["a".into()]).is_err());
    // Numbers are sorted by their values.
    assert_eq!(parse_csv("1,10\n2,9.0\n3,2\n", &plain()).unwrap().class_names(), ["2", "9", "10"]);
}

#[test]
fn csv_targets_decide_what_is_predicted() {
    let classes = |text: &str, targets: &[csv::Column]| {
        let options = csv::Options { targets: targets.to_vec(), ..csv::Options::default() };
        let table = csv::Table::parse(Path::new("some.csv"), text.as_bytes(), &options).unwrap();
        table.classes().to_vec()
    };
    let last = [csv::Column::Last];
    assert_eq!(classes("x,0\n,999\n", &last), ["0", "999"]);
    assert_eq!(classes("x,0\n,3.0\n", &last), ["0", "3"]);
    for numbers in ["1,0\n2,1000\n", "1,0\n2,0.5\n", "1,0\n2,-1\n"] {
        assert!(classes(numbers, &last).is_empty(), "{numbers}");
    }
    assert_eq!(classes("1,a\n2,b\n", &last), ["a", "b"]);
    assert!(classes("1,1\n2,2\n", &[csv::Column::First, csv::Column::Last]).is_empty());
    // More different numbers than classes in use have.
    let many: String = (0..60).map(|i| format!("{i}.5,{}\n", i % 30)).collect();
    assert!(classes(&many, &last).is_empty());
}

#[test]
fn files_that_are_no_tables_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for (bytes, expected) in [
        (&b"<!DOCTYPE html>\n<p>\n"[..], "; it looks like a web page; download the file itself"),
        (b"version https://git-lfs.github.com/spec/v1\n", "; it looks like a pointer of git LFS"),
        (b"PK\x03\x04\n", "; it looks like a zip archive; unpack it first"),
    ] {
        let path = written(dir.path(), "some.csv", bytes);
        assert_format(&csv::Table::read(&path, &csv::Options::default()).unwrap_err(), &path, expected);
    }
    #[cfg(not(feature = "parquet"))]
    for bytes in [&b"PAR1"[..], b"ARROW1\0\0"] {
        let path = written(dir.path(), "some.csv", bytes);
        let error = csv::Table::read(&path, &csv::Options::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.message().contains("`cargo install --path crates/cli --features parquet`"), "{error}");
    }
}

#[test]
fn csv_errors_name_line_and_column() {
    let path = Path::new("some.csv");
    assert_format(&csv_error("1,0\n2,1\nx y,0\n"), path, "line 3, column 1: expected a finite number, got \"x y\"");
    assert_format(&csv_error("1,0\n\n,1\n"), path, "line 3, column 1: expected a finite number, got \"\"");
    assert_format(&csv_error("1e39,0\n"), path, "expected a finite number");
    assert_format(&csv_error("nan,0\n"), path, "expected a finite number");
    assert_format(&csv_error("1,0\n1,2,0\n"), path, "line 2 has 3 columns, expected 2 as in the first");
    assert_format(&csv_error(""), path, "no samples");
    let numbers = csv::Options { learn: csv::Learn::Numbers, ..csv::Options::default() };
    let words: String = (0..40).map(|i| format!("{i}.5,{i}\n")).collect::<String>() + "1.5,high\n";
    let error = csv::Table::parse(path, words.as_bytes(), &numbers).unwrap_err();
    assert_format(&error, path, "line 41, column 2: expected a finite number, got \"high\"");
    let packed = gzip(b"1,0\n2,1\n");
    let error = csv::Table::parse(path, &packed[..packed.len() - 9], &plain()).unwrap_err();
    assert_format(&error, path, "corrupt or truncated");
}

#[test]
fn a_packed_table_is_judged_line_by_line() {
    // The first line is wrong, and all of the stream behind it cut off: whoever unpacks it whole does not come to the line.
    let lines = "3,1\n".repeat(1 << 16);
    let packed = gzip(format!("x,1\n{lines}").as_bytes());
    let error = csv::Table::parse(Path::new("some.csv"), &packed[..packed.len() - 9], &plain()).unwrap_err();
    assert_format(&error, Path::new("some.csv"), "line 1, column 1: expected a finite number, got \"x\"");
}

#[test]
fn a_line_that_does_not_end_is_refused() {
    let long = vec![b'1'; (csv_limit() + 10) as usize];
    let quoted = [b"2,1\n\"", "\n".repeat(csv_limit() as usize).as_bytes(), b"\",1\n"].concat();
    for (bytes, line) in
        [(long.clone(), 1), (gzip(&long), 1), (gzip(&quoted), 2), ([b"\n\n5,1\n\r\n", &long[..]].concat(), 5)]
    {
        let error = csv::Table::parse(Path::new("some.csv"), &bytes, &plain()).unwrap_err();
        let expected = format!("line {line} is longer than {} bytes", csv_limit());
        assert_format(&error, Path::new("some.csv"), &expected);
    }
    // Blank lines are no part of one.
    let blank = ["\n".repeat(csv_limit() as usize).as_bytes(), b"7,0\n"].concat();
    let table = csv::Table::parse(Path::new("some.csv"), &gzip(&blank), &plain()).unwrap();
    assert_eq!(table.labelled().unwrap().features(), [7.0]);
}

fn csv_limit() -> u64 {
    1 << 24
}

fn is_named(error: &Error) -> bool {
    error.kind() == Kind::Format && error.op() == "some file"
}

proptest! {
    #[test]
    fn idx_round_trips_and_every_truncation_fails(
        values in prop::collection::vec(any::<u8>(), 1..200), packed: bool, cut in any::<prop::sample::Index>(),
    ) {
        let plain = idx_u8(&[values.len() as u32], &values);
        let bytes = if packed { gzip(&plain) } else { plain };
        let whole = idx::parse(Path::new("some file"), &bytes).unwrap();
        prop_assert_eq!(whole.values, idx::Values::U8(values));
        let error = idx::parse(Path::new("some file"), &bytes[..cut.index(bytes.len())]).unwrap_err();
        prop_assert!(is_named(&error), "{}", error);
    }

    #[test]
    fn idx_with_a_flipped_byte_never_panics(at in any::<prop::sample::Index>(), to: u8, packed: bool) {
        let plain = idx_u8(&[5, 4, 3], &[7; 60]);
        let mut bytes = if packed { gzip(&plain) } else { plain };
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Err(error) = idx::parse(Path::new("some file"), &bytes) {
            prop_assert!(is_named(&error), "{}", error);
        }
    }

    #[test]
    fn random_bytes_never_panic(
        start in prop::sample::select(vec![&[][..], &[0, 0, 8, 1], &[0, 0, 14, 3, 0, 0, 0, 1], &[0x1f, 0x8b, 8, 0]]),
        rest in prop::collection::vec(any::<u8>(), 0..100),
        delimiter: u8,
    ) {
        let bytes = [start, &rest].concat();
        if let Err(error) = idx::parse(Path::new("some file"), &bytes) {
            prop_assert!(is_named(&error), "{}", error);
        }
        let options = csv::Options { delimiter: Some(delimiter), ..plain() };
        if let Err(error) = csv::Table::parse(Path::new("some file"), &bytes, &options) {
            prop_assert!(is_named(&error), "{}", error);
        }
    }

    #[test]
    fn random_tables_never_panic(text in "([0-9.e\",x\r\n -]|nan){0,60}", header: bool, column in 0usize..4) {
        let header = if header { csv::Header::Present } else { csv::Header::Absent };
        let targets = vec![csv::Column::Number(column)];
        for options in [
            csv::Options { header, targets: targets.clone(), ..plain() },
            csv::Options { header, targets: targets.clone(), ..csv::Options::default() },
            csv::Options { targets, ..csv::Options::default() },
        ] {
            match csv::Table::parse(Path::new("some file"), text.as_bytes(), &options) {
                Err(error) => prop_assert!(is_named(&error), "{}", error),
                Ok(table) => {
                    let _ = table.to_string();
                    if let Ok(encoding) = csv::Encoding::fit(&table, &csv::EncodingOptions::default()) {
                        let encoded = encoding.encode(&table).unwrap();
                        prop_assert!(encoded.numbers().to_vec::<f32>().unwrap().iter().all(|v| v.is_finite()));
                    }
                }
            }
        }
    }
}
