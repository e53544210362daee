//! Tables with columns of several types.

use isograd_core::Kind;
use isograd_data::csv::{Column, ColumnType, Encoding, EncodingOptions, Learn, Options, Table, Targets};
use isograd_data::{Context, Dataset};
use std::path::Path;

fn target(name: &str) -> Options {
    Options { targets: vec![Column::Name(name.into())], ..Options::default() }
}

fn parse(text: &str, options: &Options) -> isograd_core::Result<Table> {
    Table::parse(Path::new("some.csv"), text.as_bytes(), options)
}

fn types(table: &Table) -> Vec<ColumnType> {
    table.columns().iter().map(|column| column.column_type).collect()
}

/// Houses in a text: an identifier, a date, numbers, categories, postcodes, descriptions, and a price.
fn houses(count: usize) -> String {
    let mut text = "id,sold,area,kind,postcode,notes,price\n".to_string();
    for i in 0..count {
        let kind = ["flat", "house", "villa"][i % 3];
        let area = if i % 10 == 3 { String::new() } else { format!("{}.5", 50 + i % 17) };
        let (month, day) = (i % 12 + 1, i % 28 + 1);
        text += &format!(
            "{},2020-{month:02}-{day:02},{area},{kind},0{}234,\"Via {i}, \"\"{kind}\"\"\",{}\n",
            i + 1,
            i % 4,
            100_000 + 1000 * i
        );
    }
    text
}

#[test]
fn a_table_of_houses_has_columns_of_all_types() {
    use ColumnType::{Category, Date, Identifier, Number, Text};
    let table = parse(&houses(60), &target("price")).unwrap();
    assert_eq!(types(&table), [Identifier, Date, Number, Category, Category, Text, Number]);
    assert_eq!((table.len(), table.columns()[2].missing, table.targets()), (60, 6, &[6][..]));
    let used: Vec<bool> = table.columns().iter().map(|column| column.is_used).collect();
    assert_eq!(used, [false, true, true, true, true, false, true]);
    let shown = table.to_string();
    assert!(shown.starts_with("some.csv: 60 rows\n  column    type "), "{shown}");
    let lines: Vec<String> = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "id identifier ignored",
        "sold date 2020-01-01 to 2020-12-24",
        "area number 10.0 % 50.5 to 66.5",
        "kind category 3: flat, house, villa",
        "notes text ignored",
        "price target: number 100000 to 159000",
    ] {
        assert!(lines.iter().any(|shown| shown == line), "{line} is not in\n{shown}");
    }
}

#[test]
fn an_encoding_is_fitted_to_the_rows_to_train_on() {
    let table = parse(&houses(60), &target("price")).unwrap();
    let (train, test) = table.split_every(5).unwrap();
    assert_eq!((train.len(), test.len()), (48, 12));
    let encoding = Encoding::fit(&train, &EncodingOptions { one_hot: vec![Column::Name("kind".into())] }).unwrap();
    // Four parts of a date, the area and whether it is missing, and three kinds.
    assert_eq!((encoding.numbers(), encoding.categories(), encoding.outputs()), (9, vec![5], 1));
    assert_eq!(encoding.targets(), ["price"]);
    let encoded = encoding.encode(&train).unwrap();
    let numbers = encoded.numbers();
    assert_eq!(numbers.dims(), [48, 9]);
    let numbers = numbers.to_vec::<f32>().unwrap();
    for column in 0..5 {
        let values: Vec<f64> = numbers.iter().skip(column).step_by(9).map(|v| f64::from(*v)).collect();
        let mean = values.iter().sum::<f64>() / 48.0;
        let deviation = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 48.0).sqrt();
        // All houses were sold in one year.
        assert!(mean.abs() < 1e-5 && (deviation - f64::from(column > 0)).abs() < 1e-4, "{column}: {mean} {deviation}");
    }
    // Row 3 of the table is row 2 of those to train on.
    assert_eq!(numbers[2 * 9 + 5..3 * 9], [1.0, 1.0, 0.0, 0.0]);
    assert_eq!(numbers[5..9], [0.0, 0.0, 1.0, 0.0]);
    let (x, categories, y) = encoded.get(0, &Context::new(0, 0, 0)).unwrap();
    assert_eq!((x.dims(), categories.to_vec::<i64>().unwrap(), y.dims()), (&[9][..], vec![2], &[1][..]));
    let (means, deviations) = encoding.target_scale();
    let price = y.to_vec::<f32>().unwrap()[0] * deviations[0] + means[0];
    assert!((price - 101_000.0).abs() < 0.1, "{price}");
    assert!(encoded.get(48, &Context::new(0, 0, 0)).is_err());
    // A tenth of the categories is unknown in each reading.
    let unknown = encoded.with_unknown(0.1);
    let read = |epoch, i| unknown.get(i, &Context::new(0, epoch, i)).unwrap().1.to_vec::<i64>().unwrap()[0];
    let hidden = (0..20).flat_map(|epoch| (0..48).map(move |i| (epoch, i))).filter(|(e, i)| read(*e, *i) == 0).count();
    assert!((60..140).contains(&hidden), "{hidden}");
    #[cfg(feature = "serde")]
    {
        // It is the same after it was kept.
        let kept: Encoding = serde_json::from_str(&serde_json::to_string(&encoding).unwrap()).unwrap();
        assert_eq!(kept.encode(&test).unwrap().numbers(), encoding.encode(&test).unwrap().numbers());
    }
}

#[test]
fn new_rows_are_found_by_names_and_may_have_what_training_had_not() {
    let table = parse(&houses(60), &target("price")).unwrap();
    let encoding = Encoding::fit(&table, &EncodingOptions::default()).unwrap();
    let parse =
        |text: &str, targets, keep: &[Column]| encoding.parse(Path::new("new.csv"), text.as_bytes(), targets, keep);
    let text = "note;postcode;kind;sold;area;id\nx;01234;castle;2021-03-04;;a 1\ny;;flat;2020-01-01;70;b 2\n";
    let new = parse(text, Targets::Unknown, &[Column::Name("id".into())]).unwrap();
    assert_eq!(new.kept(), [("id".to_string(), vec!["a 1".to_string(), "b 2".into()])]);
    let encoded = encoding.encode(&new).unwrap();
    assert_eq!(encoded.categories().to_vec::<i64>().unwrap(), [0, 2, 1, 0]);
    assert_eq!(encoded.get(0, &Context::new(0, 0, 0)).unwrap_err().kind(), Kind::Value);
    let refused = |text: &str, targets, expected: &str| {
        let error = parse(text, targets, &[]).unwrap_err().to_string();
        assert!(error.starts_with("new.csv: Format: ") && error.contains(expected), "{error}");
    };
    refused("kind,area\nflat,1\n", Targets::Unknown, "lacks the columns sold, postcode, it has kind, area");
    let one = |cells: &str| format!("sold,area,kind,postcode,price\n{cells}\n");
    refused(
        &one("2020-01-01,large,flat,01234,1"),
        Targets::Unknown,
        "line 2, column 2: expected a finite number, got \"large\"",
    );
    refused(&one("yesterday,1,flat,01234,1"), Targets::Unknown, "line 2, column 1: expected a date, got \"yesterday\"");
    refused(
        &one("2020-01-01,1,flat,01234,dear"),
        Targets::Known,
        "line 2, column 5: expected a finite number, got \"dear\"",
    );
    // Rows without a target are left out where it is read.
    assert_eq!(parse(&one("2020-01-01,1,flat,01234,"), Targets::Known, &[]).unwrap().len(), 0);
    refused("", Targets::Unknown, "no samples");
}

#[test]
fn classes_of_new_rows_are_those_of_training() {
    let text: String = (0..40).map(|i| format!("{}.5,{}\n", i, ["yes", "no"][i % 2])).collect();
    let table = parse(&format!("x,y\n{text},yes\n3.5,\n"), &target("y")).unwrap();
    // The last row has no class, the one before it no number.
    assert_eq!((table.len(), table.classes()), (41, &["no".to_string(), "yes".into()][..]));
    assert!(table.to_string().contains("; 1 more have no target and are left out"));
    let encoding = Encoding::fit(&table, &EncodingOptions::default()).unwrap();
    let read = |text: &str| encoding.parse(Path::new("new.csv"), text.as_bytes(), Targets::Known, &[]);
    let encoded = encoding.encode(&read("y,x\nyes,1\nno,2\n").unwrap()).unwrap();
    let label = |i| encoded.get(i, &Context::new(0, 0, 0)).unwrap().2.to_vec::<i64>().unwrap()[0];
    assert_eq!([label(0), label(1)], [1, 0]);
    let error = read("y,x\nmaybe,1\n").unwrap_err();
    assert!(
        error.message().contains("line 2, column 1: expected one of the classes no, yes, got \"maybe\""),
        "{error}"
    );
}

#[test]
fn decimal_commas_marks_of_byte_order_and_ends_of_lines_are_found() {
    let rows: String =
        (0..30).map(|i| format!("{},{};1.{:03},5;{}\r\n", i, i % 7, i, ["rosé", "red"][i % 2])).collect();
    let table = parse(&format!("\u{feff}\"sugar\";density;kind\r\n{rows}"), &Options::default()).unwrap();
    assert_eq!(table.columns()[0].name, "sugar");
    assert_eq!(table.numbers().unwrap().to_vec::<f32>().unwrap()[..4], [0.0, 1000.5, 1.1, 1001.5]);
    assert_eq!(table.classes(), ["red", "rosé"]);
    assert!(table.to_string().starts_with("some.csv: 30 rows, semicolons between cells, decimal commas\n"));
}

#[test]
fn the_first_line_is_a_header_if_it_looks_so() {
    let names = |text: &str| {
        parse(text, &Options { learn: Learn::Classes, ..Options::default() }).unwrap().columns()[0].name.clone()
    };
    for text in ["a,b\n1,x\n2,y\n", "a,b\n2020-01-01,x\n2020-01-02,y\n", "a,b\nu,x\nu,y\nv,x\n", ",b\n0,1\n1,1\n"] {
        assert_eq!(names(text), text.split(',').next().unwrap(), "{text}");
    }
    for text in ["1,x\n2,y\n", "u,x\nu,y\nv,x\n", "NA,x\n1,y\n2,x\n", "2020-01-01,x\n2020-01-02,y\n"] {
        assert_eq!(names(text), "column 0", "{text}");
    }
}

#[test]
fn options_decide_against_appearance() {
    let rows: String = (0..40).map(|i| format!("{},{},{},{}.5\n", i + 7, i % 3, i % 2, i)).collect();
    let text = format!("row,rank,side,y\n{rows}");
    let of = |options: Options| types(&parse(&text, &options).unwrap());
    use ColumnType::{Category, Identifier, Number};
    assert_eq!(of(target("y")), [Identifier, Number, Number, Number]);
    let column = |name: &str| vec![Column::Name(name.into())];
    let options = Options { numbers: column("row"), categories: column("rank"), ignore: column("side"), ..target("y") };
    let table = parse(&text, &options).unwrap();
    assert_eq!(types(&table), [Number, Category, Number, Number]);
    assert!(table.columns()[1].is_used && !table.columns()[2].is_used);
    assert_eq!(parse(&text, &Options { learn: Learn::Classes, ..target("y") }).unwrap().warnings().len(), 1);
    // Numbers in sequence are used if there is nothing else.
    let counted: String = (0..40).map(|i| format!("{i},{}.5\n", 2 * i)).collect();
    assert_eq!(types(&parse(&format!("x,y\n{counted}"), &target("y")).unwrap()), [Number, Number]);
    let options = Options { numbers: column("side"), ..target("y") };
    let wrong = text.replace("7,0,0,0.5", "7,0,left,0.5");
    let error = parse(&wrong, &options).unwrap_err();
    assert!(error.message().contains("line 2, column 3: expected a finite number, got \"left\""), "{error}");
}

#[test]
fn some_words_among_numbers_are_missing_values() {
    let rows: String = (0..60)
        .map(|i| format!("{},{}.5\n", if i == 31 { "unknown".into() } else { (i * 3 % 50).to_string() }, i))
        .collect();
    let table = parse(&format!("x,y\n{rows}"), &target("y")).unwrap();
    assert_eq!((table.columns()[0].column_type, table.columns()[0].missing), (ColumnType::Number, 1));
    assert!(table.to_string().contains("1 cells are no number and count as missing"), "{table}");
    // The table of the training can be predicted again.
    let encoding = Encoding::fit(&table, &EncodingOptions::default()).unwrap();
    assert!(encoding.parse(Path::new("some.csv"), format!("x,y\n{rows}").as_bytes(), Targets::Unknown, &[]).is_ok());
}

#[test]
fn a_table_that_has_nothing_to_learn_from_says_so() {
    let rows: String = (0..40).map(|i| format!("a text of its own {i},{i}.5\n")).collect();
    let table = parse(&format!("x,y\n{rows}"), &target("y")).unwrap();
    let error = Encoding::fit(&table, &EncodingOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::Attr);
    assert!(error.message().starts_with("no column is left to learn from"), "{error}");
    let error = parse("x,y\n1,\n2,\n", &target("y")).unwrap_err();
    assert!(error.message().contains("no row has a target"), "{error}");
}
