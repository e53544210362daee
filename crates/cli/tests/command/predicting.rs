//! `isograd predict`.

use crate::refusing::assert_refused;
use crate::{Ended, idx, isograd, run, train, write_mnist};
use std::fs;
use std::path::Path;

fn predict(folder: &Path, file: &Path, options: &[&str]) -> Ended {
    run(&[&["predict", folder.to_str().unwrap(), file.to_str().unwrap(), "--device", "cpu"], options].concat())
}

/// The cells of a table without quotes.
fn cells(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split(',').collect()).collect()
}

/// The same cells, but for the rounding of numbers that were computed in batches of other sizes.
pub fn assert_alike(a: &str, b: &str) {
    let words = |text: &str| text.split([',', '\n']).map(String::from).collect::<Vec<_>>();
    let (a, b) = (words(a), words(b));
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(&b) {
        let is_near = |a: f64, b: f64| (a - b).abs() <= 1e-5 * b.abs().max(1e-3);
        assert!(a == b || is_near(a.parse().unwrap(), b.parse().unwrap()), "{a} is not {b}");
    }
}

/// The first lines of a text.
fn first(text: &str, count: usize) -> String {
    text.lines().take(count).map(|line| format!("{line}\n")).collect()
}

/// Lines of two features of very different scales, and what they say.
fn rows(count: u32, line: impl Fn(f64, f64) -> String) -> String {
    let part = |i: u32, by: f64| f64::from(i) * by % 1.0 - 0.5;
    (0..count).map(|i| line(1000.0 + 300.0 * part(i, 0.618_034), 0.001 * part(i, 0.754_878)) + "\n").collect()
}

/// The class of a line.
fn side(x: f64) -> &'static str {
    if x < 1000.0 { "left" } else { "right" }
}

#[test]
fn classes_of_a_table_have_names_and_probabilities() {
    let folder = tempfile::tempdir().unwrap();
    let (table, new, out) = (folder.path().join("sides.csv"), folder.path().join("new.csv"), folder.path().join("run"));
    fs::write(&table, format!("x,y,side\n{}", rows(200, |x, y| format!("{x},{y},{}", side(x))))).unwrap();
    isograd(&format!("train csv {} --target side --epochs 10 --lr 0.01 --hidden 16 --quiet", table.display()), &out);
    // In another order, with a text that nobody asks for, and without the target.
    fs::write(&new, format!("note,y,x\n{}", rows(50, |x, y| format!("none,{y},{x}")))).unwrap();
    let ended = predict(&out, &new, &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let found = cells(&ended.stdout);
    assert_eq!((found[0].join(","), found.len()), ("class,left,right".into(), 51));
    let expected: Vec<String> = rows(50, |x, _| side(x).into()).lines().map(String::from).collect();
    let right = found[1..].iter().zip(&expected).filter(|(row, side)| row[0] == **side).count();
    assert!(right >= 47, "{right} of 50 are right:\n{}", ended.stdout);
    for row in &found[1..] {
        let [left, right] = [1, 2].map(|i| row[i].parse::<f64>().unwrap());
        assert!((left + right - 1.0).abs() < 1e-5 && (left > right) == (row[0] == "left"), "{row:?}");
    }
    // With the target the features are the same ones.
    let whole = predict(&out, &table, &[]);
    let again = predict(&out, &table, &["--out", folder.path().join("said.csv").to_str().unwrap()]);
    assert_eq!((whole.stdout.lines().count(), again.stdout.as_str()), (201, ""));
    assert_eq!(fs::read_to_string(folder.path().join("said.csv")).unwrap(), whole.stdout);
    assert_alike(&first(&whole.stdout, 51), &ended.stdout);
    fs::write(&new, "y,z\n1,2\n").unwrap();
    assert_refused(&predict(&out, &new, &[]), &[new.to_str().unwrap(), "lacks the columns x, it has y, z"]);
    fs::write(&new, "x,y\n1,high\n").unwrap();
    assert_refused(&predict(&out, &new, &[]), &["line 2, column 2: expected a finite number, got \"high\""]);
}

#[test]
fn numbers_of_a_table_are_in_the_units_of_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let (table, new, out) = (folder.path().join("n.csv"), folder.path().join("new.csv"), folder.path().join("run"));
    let target = |x: f64, y: f64| 5000.0 + 10.0 * (x - 1000.0) + 1e6 * y;
    fs::write(&table, rows(300, |x, y| format!("{},{x},{y}", target(x, y)))).unwrap();
    isograd(&format!("train csv {} --target 0 --epochs 40 --lr 0.01 --hidden 16 --quiet", table.display()), &out);
    // Without names, the columns are found by their number: with the target, or without.
    fs::write(&new, rows(30, |x, y| format!("{x},{y}"))).unwrap();
    let (alone, whole) = (predict(&out, &new, &[]), predict(&out, &table, &[]));
    assert_alike(&first(&whole.stdout, 31), &alone.stdout);
    let mut lines = alone.stdout.lines();
    assert_eq!(lines.next(), Some("column 0"));
    let expected = rows(30, |x, y| target(x, y).to_string());
    for (line, expected) in lines.zip(expected.lines()) {
        let [found, expected] = [line, expected].map(|v| v.parse::<f64>().unwrap());
        // The deviation of the targets is about 900.
        assert!((found - expected).abs() < 200.0, "{found}, expected {expected}");
    }
    fs::write(&new, "1,2,3,4\n").unwrap();
    assert_refused(&predict(&out, &new, &[]), &["has 4 columns, expected 2, or 3 with those to predict"]);
}

#[test]
fn digits_come_in_a_table_and_mnists_images_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (new, out) = (folder.path().join("new"), folder.path().join("run"));
    train("--epochs 6 --lr 0.01", &out);
    // A vertical line of full ink in the middle is a one.
    let pixels: Vec<&str> = (0..64).map(|i| if [3, 4].contains(&(i % 8)) { "16" } else { "0" }).collect();
    fs::write(&new, pixels.join(",")).unwrap();
    let found = predict(&out, &new, &[]).stdout;
    assert!(found.starts_with("class,0,1,2,3,4,5,6,7,8,9\n1,"), "{found}");
    write_mnist(folder.path(), [2, 5]);
    let data = folder.path().display();
    isograd(&format!("train mnist {data} --epochs 20 --batch-size 5 --lr 0.01 --quiet"), &out);
    let bright = |tenth: usize| (0..10).map(move |i| if i == tenth { 255 } else { 0 });
    fs::write(&new, idx(&[2, 2, 5], &bright(7).chain(bright(3)).collect::<Vec<u8>>())).unwrap();
    let found = predict(&out, &new, &["--last"]).stdout;
    assert_eq!(cells(&found).iter().map(|row| row[0]).collect::<Vec<_>>(), ["class", "7", "3"]);
    fs::write(&new, idx(&[1, 3, 5], &[0; 15])).unwrap();
    assert_refused(&predict(&out, &new, &[]), &["images of 3 x 5 pixels, expected 10 pixels as in training"]);
}

#[test]
fn what_cannot_predict_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (text, out) = (folder.path().join("text.txt"), folder.path().join("run"));
    assert_refused(&predict(&out, &text, &[]), &["cannot predict with", out.to_str().unwrap()]);
    fs::write(&text, "to be or not to be, ".repeat(50)).unwrap();
    let options = "--steps 2 --layers 1 --width 8 --context 12 --batch-size 2 --quiet";
    isograd(&format!("train text {} --model lstm {options}", text.display()), &out);
    assert_refused(&predict(&out, &text, &[]), &["is a run of text, which `isograd generate` continues"]);
}

/// A table as people have it: a mark of byte order, ends of lines as on Windows, texts in quotes, dates, categories, empty cells, an identifier.
fn write_houses(path: &Path, from: u32, count: u32, has_price: bool) {
    let head = if has_price { ";price" } else { "" };
    let mut text = format!("\u{feff}id;sold;area;kind;notes{head}\r\n");
    for i in from..from + count {
        let part = |by: f64| f64::from(i) * by % 1.0;
        let (area, kind) = (60.0 + 140.0 * part(0.618_034), ["flat", "house", "villa"][(i % 3) as usize]);
        let shown = if i % 11 == 5 { String::new() } else { format!("{area:.2}").replace('.', ",") };
        let price = 200_000.0 + 3_000.0 * area + 80_000.0 * f64::from(i % 3);
        let price = if has_price { format!(";{price:.2}").replace('.', ",") } else { String::new() };
        text += &format!(
            "H-{i:04};2020-{:02}-{:02};{shown};{kind};\"Via {i}; \"\"{kind}\"\"\"{price}\r\n",
            i % 12 + 1,
            i % 28 + 1
        );
    }
    fs::write(path, text).unwrap();
}

#[test]
fn a_table_as_people_have_it_needs_no_option_but_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let (table, new, out) =
        (folder.path().join("houses.csv"), folder.path().join("new.csv"), folder.path().join("run"));
    write_houses(&table, 0, 300, true);
    let trained =
        isograd(&format!("train csv {} --target price --epochs 60 --lr 0.005 --hidden 32", table.display()), &out);
    assert_eq!((trained.code, trained.stderr.as_str()), (Some(0), ""));
    let shown = trained.stdout.split("houses.csv: 240 samples").next().unwrap();
    let lines: Vec<String> = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "houses.csv: 300 rows, semicolons between cells, decimal commas",
        "id identifier ignored",
        "sold date 2020-01-01 to 2020-12-28",
        "area number 9.0 % 60 to 1",
        "kind category 3: flat, house, villa",
        "notes text ignored",
        "price target: number 3",
    ] {
        assert!(lines.iter().any(|shown| shown.starts_with(line)), "{line} is not in\n{shown}");
    }
    write_houses(&new, 300, 60, false);
    let ended = predict(&out, &new, &["--keep", "id,kind"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let found = cells(&ended.stdout);
    assert_eq!((found[0].join(","), found.len()), ("id,kind,price".into(), 61));
    for (i, row) in (300u32..).zip(&found[1..]) {
        let area = 60.0 + 140.0 * (f64::from(i) * 0.618_034 % 1.0);
        let expected = 200_000.0 + 3_000.0 * area + 80_000.0 * f64::from(i % 3);
        assert_eq!(row[0], format!("H-{i:04}"));
        let price = row[2].parse::<f64>().unwrap();
        // Prices have a deviation of 140,000; a missing area is the median.
        assert!(i % 11 == 5 || (price - expected).abs() < 40_000.0, "{price}, expected {expected} of {row:?}");
    }
    // Prices are above what f16 holds, and what is unknown is no error.
    let half = folder.path().join("half");
    let options = "--target price --epochs 5 --dtype f16 --one-hot kind --ignore sold --json";
    let report = isograd(&format!("train csv {} {options}", table.display()), &half).json();
    assert!(report["validation_loss"].as_f64().unwrap() < 1.5, "{report}");
    let text = fs::read_to_string(&new).unwrap().replace("villa", "castle");
    fs::write(&new, text).unwrap();
    for run in [&out, &half] {
        let found = predict(run, &new, &[]);
        assert_eq!((found.code, found.stdout.lines().count()), (Some(0), 61), "{}", found.stderr);
    }
    let file = folder.path().join("model.onnx");
    let exported = run(&["export", out.to_str().unwrap(), file.to_str().unwrap()]);
    assert!(
        exported.stdout.contains("x [N, 6], categories [N, 1] to output [N, 1]"),
        "{}{}",
        exported.stdout,
        exported.stderr
    );
    assert_refused(
        &predict(&out, &new, &["--keep", "street"]),
        &["expected a column \"street\", the table has the columns id, sold"],
    );
    // The encoding in the configuration of the run serves `eval` and `--resume` too.
    let evaluated = run(&["eval", out.to_str().unwrap(), "--data", table.to_str().unwrap()]).stdout;
    assert!(
        evaluated.starts_with("csv: validation mean absolute error ") && evaluated.contains("over 60 samples"),
        "{evaluated}"
    );
    let resumed = format!("train csv {} --epochs 61 --quiet --resume {}", table.display(), out.display());
    assert_eq!(isograd(&resumed, &out).code, Some(0));
}
