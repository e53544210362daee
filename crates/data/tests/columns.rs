//! Tables in Parquet and Arrow files, which `tables.py` writes.
#![cfg(feature = "parquet")]

use isograd_core::Kind;
use isograd_data::csv::{Column, ColumnType, Options, Table};
use std::path::{Path, PathBuf};

fn at(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tables").join(name)
}

fn target(name: &str) -> Options {
    Options { targets: vec![Column::Name(name.into())], ..Options::default() }
}

#[test]
fn tables_of_every_kind_have_the_same_rows() {
    for name in ["none.parquet", "snappy.parquet", "gzip.parquet", "lz4.parquet", "lz4.feather", "plain.arrow"] {
        let path = at(name);
        let classes = |name| Table::read(&path, &target(name)).unwrap().classes().len();
        assert_eq!((classes("kind"), classes("count"), classes("length")), (2, 7, 0), "{name}");
        let flowers = Table::read(&path, &target("kind")).unwrap().labelled().unwrap();
        assert_eq!(
            (flowers.name(), flowers.len(), flowers.class_names()),
            (name, 3000, &["iris".into(), "rose".into()][..])
        );
        for i in [0, 1, 1023, 1024, 2999] {
            let row = [i as f32 / 4.0, (i % 7) as f32, f32::from(i % 2 == 0)];
            assert_eq!(flowers.sample(i), Some((&row[..], &i64::from(i % 2 == 0))), "{name}, row {i}");
        }
        let table = Table::read(&path, &target("length")).unwrap();
        assert_eq!(table.columns()[3].column_type, ColumnType::Category, "{name}");
        assert_eq!(table.regression().unwrap_err().kind(), Kind::Attr, "{name}");
    }
}

#[test]
fn values_that_are_absent_or_lists_are_refused() {
    let refused = |name: &str, expected: &str| {
        let options = Options { features: isograd_data::csv::Features::Numbers, ..target("y") };
        let error = Table::read(at(name), &options).unwrap_err();
        assert_eq!((error.kind(), error.op()), (Kind::Format, at(name).display().to_string().as_str()));
        assert!(error.message().contains(expected), "{error}");
    };
    refused("absent.parquet", "row 2, column 1: expected a finite number, got \"\"");
    refused("lists.parquet", "the column x is List(");
    let error = Table::read(at("none.parquet"), &target("z")).unwrap_err();
    assert!(error.message().contains("expected a column \"z\", the table has the columns length, count, open, kind"));
    let folder = tempfile::tempdir().unwrap();
    for (name, length) in [("none.parquet", 1000), ("plain.arrow", 1000), ("plain.arrow", 6)] {
        let path = folder.path().join(name);
        std::fs::write(&path, &std::fs::read(at(name)).unwrap()[..length]).unwrap();
        let error = Table::read(&path, &target("count")).unwrap_err();
        assert!(error.kind() == Kind::Format && error.message().contains("not a whole table"), "{error}");
    }
}
