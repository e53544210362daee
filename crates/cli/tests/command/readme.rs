//! The commands that the README shows for a table.

use crate::{Ended, ISOGRAD};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The price of a house.
fn price(area: f64, age: f64) -> f64 {
    20_000.0 + 3_000.0 * area - 900.0 * age
}

/// A table of houses.
fn write(path: &Path, count: u32, has_price: bool) {
    let mut text = String::from(if has_price { "area,age,price\n" } else { "area,age\n" });
    for i in 0..count {
        let part = |by: f64| f64::from(i) * by % 1.0;
        let (area, age) = ((60.0 + 140.0 * part(0.618_034)).round(), (80.0 * part(0.754_878)).round());
        text += &if has_price { format!("{area},{age},{:.2}\n", price(area, age)) } else { format!("{area},{age}\n") };
    }
    fs::write(path, text).unwrap();
}

#[test]
fn the_three_commands_for_a_table_do_what_they_say() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap();
    let blocks = readme.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let block = blocks.into_iter().find(|block| block.contains("isograd predict")).expect("the README predicts");
    let commands: Vec<&str> = block.lines().map(|line| line.strip_prefix("$ isograd ").expect("a command")).collect();
    assert_eq!(commands.len(), 3, "{block}");
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("houses.csv"), 250, true);
    write(&folder.path().join("new.csv"), 20, false);
    let run = |arguments: &str| {
        let mut command = Command::new(ISOGRAD);
        let ended: Ended =
            command.args(arguments.split_whitespace()).current_dir(folder.path()).output().unwrap().into();
        assert_eq!(ended.code, Some(0), "{arguments}: {}", ended.stderr);
        ended.stdout
    };
    assert!(run(commands[0]).contains("validation mean absolute error"));
    assert!(run(commands[1]).starts_with("run "));
    let said = run(commands[2]);
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("price"));
    let new = fs::read_to_string(folder.path().join("new.csv")).unwrap();
    for (line, row) in lines.by_ref().zip(new.lines().skip(1)) {
        let numbers: Vec<f64> = row.split(',').map(|v| v.parse().unwrap()).collect();
        let (found, expected) = (line.parse::<f64>().unwrap(), price(numbers[0], numbers[1]));
        // Prices have a deviation of 120,000.
        assert!((found - expected).abs() < 30_000.0, "{found}, expected {expected} of {row}");
    }
    assert_eq!(said.lines().count(), 21);
    // The picture that the README has is of such a run.
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/curves.svg");
    let [drawn, committed] =
        [folder.path().join("curves.svg"), committed].map(|path| fs::read_to_string(path).unwrap());
    let titles = ["training loss", "validation loss", "mean absolute error"];
    let is_of_run = |svg: &str| titles.iter().all(|title| svg.contains(&format!("\n{title}\n")));
    assert!(committed.contains("prefers-color-scheme: dark") && is_of_run(&committed) && is_of_run(&drawn), "{drawn}");
    assert!(readme.contains("(docs/curves.svg)"));
}
