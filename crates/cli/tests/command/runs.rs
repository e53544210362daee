//! Runs side by side.

use crate::{ISOGRAD, isograd, run, train};
use std::fs;
use std::process::Command;

#[test]
fn runs_are_compared_in_a_table_and_on_a_page() {
    let out = tempfile::tempdir().unwrap();
    train("--epochs 2 --lr 0.01", &out.path().join("quick"));
    train("--epochs 3 --lr 0.0001", &out.path().join("inner/<slow>"));
    let page = out.path().join("runs.html");
    let runs = |folder: &std::path::Path| {
        Command::new(ISOGRAD).arg("runs").arg(folder).arg("--html").arg(&page).output().unwrap()
    };
    let output = runs(out.path());
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{stdout}");
    assert!(lines[0].starts_with("run ") && lines[0].contains("accuracy") && lines[0].contains("lr"), "{stdout}");
    // The better run comes first. Settings that are the same are not listed.
    assert!(lines[1].starts_with("quick") && lines[1].contains("0.01"), "{stdout}");
    assert!(lines[2].starts_with("inner/<slow>") && lines[2].contains("0.0001"), "{stdout}");
    assert!(!lines[0].contains("seed"), "{stdout}");
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("inner/&lt;slow&gt;") && !text.contains("<slow>"));
    assert!(text.contains("validation loss") && text.matches("<polyline").count() >= 8, "{text}");
    assert!(!text.contains("http"), "the page loads something");
    let picture = out.path().join("runs.svg");
    assert_eq!(run(&["runs", out.path().to_str().unwrap(), "--svg", picture.to_str().unwrap()]).code, Some(0));
    let drawn = fs::read_to_string(&picture).unwrap();
    assert!(drawn.starts_with("<svg xmlns=") && drawn.ends_with("</svg>\n"), "{drawn}");
    // Two losses and an accuracy of two runs, and their names.
    assert_eq!((drawn.matches("<svg ").count(), drawn.matches("<polyline").count()), (4, 6));
    assert!(drawn.contains("prefers-color-scheme: dark") && drawn.contains(">inner/&lt;slow&gt;</text>"), "{drawn}");
    // A folder of one run.
    let one = String::from_utf8(runs(&out.path().join("quick")).stdout).unwrap();
    assert!(one.lines().nth(1).unwrap().starts_with("quick"), "{one}");
    let none = tempfile::tempdir().unwrap();
    let refused = isograd("runs", none.path());
    assert!(!refused.stderr.is_empty());
    assert!(!runs(none.path()).status.success());
}
