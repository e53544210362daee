//! `isograd parity`.

use crate::refusing::assert_refused;
use crate::{names, run};
use serde_json::Value;
use std::fs;

fn json(path: &std::path::Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn what_is_right_passes_and_all_of_it_is_in_the_results() {
    let folder = tempfile::tempdir().unwrap();
    let (results, status) = (folder.path().join("results.json"), folder.path().join("status.md"));
    let (file, page) = (results.to_str().unwrap(), status.to_str().unwrap());
    let filter = "^(gelu|softmax|topk)$";
    let ended = run(&["parity", "--device", "cpu", "--quick", "--filter", filter, "--json", file, "--status", page]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let report = json(&results);
    let findings = report["findings"].as_array().unwrap();
    let last = format!("{} passed, 0 failed", findings.iter().filter(|f| f["outcome"] == "passed").count());
    assert_eq!(ended.stdout.lines().last(), Some(&*last));
    for op in ["gelu", "softmax", "topk"] {
        assert!(ended.stdout.contains(&format!("\n{op:<22} cpu       bf16 ")), "{}", ended.stdout);
        let checks: Vec<&str> = findings
            .iter()
            .filter(|f| f["op"] == op && f["dtype"] == "f64")
            .map(|f| f["check"].as_str().unwrap())
            .collect();
        assert_eq!(checks, ["golden", "gradcheck", "gradgradcheck"]);
    }
    let worst = |f: &Value| f["worst"]["bounds"].as_f64().unwrap();
    let forward = findings.iter().filter(|f| f["check"] == "forward");
    assert!(forward.clone().count() > 0 && forward.clone().any(|f| worst(f) > 0.0 && worst(f) <= 1.0), "{report}");
    assert!(findings.iter().all(|f| f["cases"].as_u64() > Some(0) && f["seconds"].is_number()), "{report}");
    assert_eq!(report["devices"][0]["name"], "cpu");
    let text = fs::read_to_string(&status).unwrap();
    let cell = |kernel: &str| text.lines().find(|line| line.starts_with(&format!("| {kernel} |"))).unwrap().to_string();
    assert!(cell("softmax_backward").contains("| \u{2705} ") && cell("relu").contains("| \u{b7} | \u{b7} |"), "{text}");
    // The same page, and nothing run.
    let again = folder.path().join("again.md");
    let ended = run(&["parity", "--from", file, "--status", again.to_str().unwrap()]);
    assert_eq!((ended.code, &*ended.stdout), (Some(0), ""));
    assert_eq!(fs::read_to_string(again).unwrap(), text);
}

#[test]
fn a_case_is_repeated_alone() {
    for (case, cases) in [("softmax:forward:f16:2x3:7", 1), ("gelu:golden:f64:gelu/tanh_2x3", 1)] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("results.json");
        let ended = run(&["parity", "--device", "cpu", "--repeat", case, "--json", file.to_str().unwrap()]);
        assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.ends_with("1 passed, 0 failed\n"), "{}", ended.stdout);
        assert_eq!(json(&file)["findings"][0]["cases"], cases);
    }
}

#[test]
fn what_failed_makes_the_exit_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let (file, page) = (folder.path().join("results.json"), folder.path().join("status.md"));
    let arguments = ["parity", "--device", "cpu", "--quick", "--filter", "^relu$", "--json", file.to_str().unwrap()];
    assert_eq!(run(&arguments).code, Some(0));
    let mut report = json(&file);
    report["findings"][0]["outcome"] = serde_json::json!({"failed": "it is off"});
    fs::write(&file, report.to_string()).unwrap();
    let ended = run(&["parity", "--from", file.to_str().unwrap(), "--status", page.to_str().unwrap()]);
    assert_eq!(ended.code, Some(1));
    assert!(fs::read_to_string(page).unwrap().contains("| relu | \u{274c} |"));
}

#[test]
fn what_cannot_be_checked_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().to_str().unwrap();
    let refused = |arguments: &[&str], expected: &[&str]| {
        assert_refused(&run(&[&["parity", "--quick", "--device"], arguments].concat()), expected);
    };
    refused(&["quantum"], &["there is no device \"quantum\""]);
    refused(&["cpu", "--filter", "frobnicate"], &["--filter finds none of", "relu"]);
    refused(&["cpu", "--json", file], &[file, "is a folder"]);
    refused(&["cpu", "--status", file], &[file, "is a folder"]);
    assert_eq!(names(folder.path()), [""; 0]);
    let wrong = [
        (["--filter", "("], "unclosed group"),
        (["--dtype", "i64"], "none of f32, f64, f16, bf16"),
        (["--cases", "-1"], "unexpected argument"),
        (["--repeat", "softmax"], "no case such as"),
        (["--repeat", "frobnicate:forward:f32:2:1"], "no op \"frobnicate\""),
        (["--repeat", "relu:sideways:f32:2:1"], "\"sideways\" is none of golden, forward"),
        (["--repeat", "relu:golden:f64:none"], "no golden case \"none\""),
        (["--from", "missing.json"], "cannot be used with"),
    ];
    for (arguments, expected) in wrong {
        let ended = run(&[&["parity", "--device", "cpu"], &arguments[..]].concat());
        assert_eq!(ended.code, Some(2), "{arguments:?}");
        assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    }
    let page = folder.path().join("page.md");
    let missing = ["parity", "--from", "missing.json", "--status", page.to_str().unwrap()];
    assert_refused(&run(&missing), &["cannot read missing.json"]);
}
