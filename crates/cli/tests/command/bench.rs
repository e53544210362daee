//! `isograd bench`.

use crate::refusing::assert_refused;
use crate::{names, run};
use serde_json::Value;
use std::fs;

const KEYS: [&str; 20] = [
    "bytes",
    "device",
    "divisor",
    "driver",
    "dtype",
    "flops",
    "fraction",
    "gbps",
    "group",
    "hardware",
    "milliseconds",
    "milliseconds_captured",
    "milliseconds_in_a_row",
    "milliseconds_min",
    "name",
    "outcome",
    "pass",
    "runs",
    "shape",
    "tflops",
];

#[test]
fn rows_are_measured_against_ceilings_of_the_same_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bench.json");
    let filter = "^(launch|normalization rms_norm .* f32|matrix matmul .* f32|optimizer)";
    let file = path.to_str().unwrap();
    let ended = run(&["bench", "--device", "cpu", "--quick", "--filter", filter, "--json", file]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(names(folder.path()), ["bench.json"]);
    let text = fs::read_to_string(path).unwrap();
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for record in &records {
        let keys: Vec<&String> = record.as_object().unwrap().keys().collect();
        let mut sorted = keys.clone();
        sorted.sort();
        assert_eq!(sorted, KEYS);
        let number = |key: &str| record[key].as_f64().unwrap();
        assert!(number("milliseconds") >= number("milliseconds_min") && number("milliseconds_min") > 0.0, "{record}");
        assert!(number("runs") >= 3.0 && record["outcome"] == "measured" && record["device"] == "cpu", "{record}");
        assert!(ended.stdout.contains(record["name"].as_str().unwrap()), "{}", ended.stdout);
    }
    let of = |group: &str| records.iter().filter(|r| r["group"] == group).cloned().collect::<Vec<_>>();
    assert_eq!(of("ceiling").len(), 2);
    assert!(records[0]["gbps"].as_f64() > Some(0.0) && records[1]["tflops"].as_f64() > Some(0.0), "{text}");
    // Both shapes with both passes; a launch has no ceiling.
    let norms = of("normalization");
    assert_eq!(norms.iter().map(|r| r["pass"].as_str().unwrap()).collect::<Vec<_>>(), ["fwd", "bwd", "fwd", "bwd"]);
    assert!(norms.iter().chain(&of("optimizer")).all(|r| r["fraction"].as_f64() > Some(0.0)), "{text}");
    assert!(of("launch")[0]["fraction"].is_null());
    // The fraction is what the ceiling allows over what was needed.
    let [bytes, copy, milliseconds] =
        [&norms[0]["bytes"], &records[0]["gbps"], &norms[0]["milliseconds"]].map(|v| v.as_f64().unwrap());
    let expected = bytes / (copy * 1e9) / (milliseconds * 1e-3);
    assert!((norms[0]["fraction"].as_f64().unwrap() - expected).abs() < 1e-9 * expected, "{}", norms[0]);
    assert!(ended.stdout.lines().last().unwrap().starts_with("optimizer"), "{}", ended.stdout);
}

#[test]
fn shapes_are_divided_alike_for_all_dtypes_and_passes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bench.json");
    let file = path.to_str().unwrap();
    run(&["bench", "--device", "cpu", "--quick", "--filter", "loss cross_entropy", "--json", file]);
    let text = fs::read_to_string(path).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rows: Vec<Value> = records.filter(|r| r["group"] == "loss").collect();
    assert_eq!(rows.len(), 4);
    for row in &rows {
        assert_eq!(row["shape"], rows[0]["shape"]);
        assert_eq!(row["shape"][0].as_u64().unwrap() * row["divisor"].as_u64().unwrap(), 8192);
        assert_eq!(row["shape"][1], 50257);
    }
}

#[test]
fn what_cannot_be_measured_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (file, below) = (folder.path().to_str().unwrap(), folder.path().join("missing/bench.json"));
    let refused = |arguments: &[&str], expected: &[&str]| {
        assert_refused(&run(&[&["bench", "--quick", "--device"], arguments].concat()), expected);
    };
    refused(&["quantum"], &["there is no device \"quantum\""]);
    refused(&["cpu", "--filter", "frobnicate"], &["--filter finds none of", "launch overhead [1] f32 fwd"]);
    refused(&["cpu", "--json", file], &[file, "is a folder"]);
    let below = below.to_str().unwrap();
    refused(&["cpu", "--json", below], &["cannot write to", below, "No such file or directory"]);
    assert_eq!(names(folder.path()), [""; 0]);
    let ended = run(&["bench", "--device", "cpu", "--filter", "("]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("unclosed group"), "{}", ended.stderr);
}
