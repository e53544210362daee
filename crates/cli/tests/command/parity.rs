//! `isograd parity`.

use crate::refusing::assert_refused;
use crate::{ISOGRAD, names, run};
use isograd::Device;
use isograd::parity::{self, Apart, Extent, Options};
use serde_json::{Value, json as json_of};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn speeds_are_measured_without_checks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("speeds.json");
    let arguments = ["parity", "--device", "cpu", "--speeds", "--all", "--filter", "^(neg|relu)$", "--json"];
    let ended = run(&[&arguments[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let rows: Vec<&str> = ended.stdout.lines().skip(1).take_while(|row| !row.is_empty()).collect();
    let names: Vec<&str> = rows.iter().filter_map(|row| row.split(' ').next()).collect();
    assert_eq!(names, ["relu", "relu", "neg", "neg"], "{}", ended.stdout);
    let report = json(&file);
    assert_eq!((&report["findings"], &report["filter"]), (&json_of!([]), &json_of!("^(neg|relu)$")));
    assert!(report["speeds"].as_array().unwrap().iter().all(|s| s["fraction"].as_f64() > Some(0.0)));
}

#[test]
fn whole_checks_run_without_speeds() {
    let folder = tempfile::tempdir().unwrap();
    let (results, status) = (folder.path().join("results.json"), folder.path().join("status.md"));
    let arguments = ["parity", "--device", "cpu", "--checks", "--filter", "^neg$"];
    let files = ["--json", results.to_str().unwrap(), "--status", status.to_str().unwrap()];
    let ended = run(&[&arguments[..], &files].concat());
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let report = json(&results);
    assert_eq!((&report["speeds"], &report["complete"]), (&json_of!([]), &json_of!(true)));
    let forward =
        report["findings"].as_array().unwrap().iter().find(|f| f["check"] == "forward" && f["dtype"] == "f32");
    // Sizes around powers of two are part of whole runs alone.
    assert!(forward.unwrap()["cases"].as_u64() > Some(60), "{report}");
    assert!(fs::read_to_string(&status).unwrap().contains("| whole, of `^neg$` |"));
    let ended = run(&[&arguments[..], &["--speeds"]].concat());
    assert_eq!(ended.code, Some(2));
}

#[test]
fn what_is_right_passes_and_all_of_it_is_in_the_results() {
    let folder = tempfile::tempdir().unwrap();
    let (results, status) = (folder.path().join("results.json"), folder.path().join("status.md"));
    let (file, page) = (results.to_str().unwrap(), status.to_str().unwrap());
    let html = folder.path().join("report.html");
    let arguments = ["parity", "--device", "cpu", "--quick", "--all", "--filter", "^(gelu|softmax|topk)$"];
    let files = ["--json", file, "--status", page, "--html", html.to_str().unwrap()];
    let ended = run(&[&arguments[..], &files].concat());
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
        assert_eq!(checks, ["golden", "gradcheck", "gradgradcheck", "singular"]);
    }
    let worst = |f: &Value| f["worst"]["bounds"].as_f64().unwrap();
    let forward = findings.iter().filter(|f| f["check"] == "forward");
    assert!(forward.clone().count() > 0 && forward.clone().any(|f| worst(f) > 0.0 && worst(f) <= 1.0), "{report}");
    assert!(findings.iter().all(|f| f["cases"].as_u64() > Some(0) && f["seconds"].is_number()), "{report}");
    assert_eq!(report["devices"][0]["name"], "cpu");
    let text = fs::read_to_string(&status).unwrap();
    let cell = |kernel: &str| text.lines().find(|line| line.starts_with(&format!("| {kernel} |"))).unwrap().to_string();
    assert!(cell("softmax_backward").contains("| \u{2705} ") && cell("relu").contains("| \u{b7} | \u{b7} |"), "{text}");
    assert_eq!(report["complete"], true);
    let browsers = fs::read_to_string(&html).unwrap();
    assert!(
        browsers.starts_with("<!doctype html>")
            && browsers.contains("isograd parity --device cpu --repeat gelu:forward:f16:")
    );
    // The same pages, and nothing run.
    let (again, html_again) = (folder.path().join("again.md"), folder.path().join("again.html"));
    let files = ["--status", again.to_str().unwrap(), "--html", html_again.to_str().unwrap()];
    let ended = run(&[&["parity", "--from", file], &files[..]].concat());
    assert_eq!((ended.code, &*ended.stdout), (Some(0), ""));
    assert_eq!(fs::read_to_string(again).unwrap(), text);
    assert!(fs::read_to_string(html_again).unwrap() == browsers);
    // Two of them.
    let ended = run(&["parity", "--from", file, "--from", file, "--html", html.to_str().unwrap()]);
    assert_eq!((ended.code, &*ended.stdout), (Some(0), ""));
    assert!(fs::read_to_string(html).unwrap().len() > browsers.len() + fs::read(&results).unwrap().len() / 2);
}

#[test]
fn a_report_has_the_groups_of_ops_and_what_failed() {
    let arguments = ["parity", "--device", "cpu", "--quick", "--filter", "^(gelu|relu|topk)$", "--dtype", "f32"];
    let ended = run(&arguments);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(lines[0].starts_with("group           device     ops  checks  worst  of"), "{}", ended.stdout);
    assert!(lines[1].starts_with("activation      cpu          2 "), "{}", ended.stdout);
    assert!(lines[2].starts_with("indexing        cpu          1 ") && lines[3].is_empty(), "{}", ended.stdout);
    // The row of one op is in the whole table alone.
    let is_of_gelu = |line: &&str| line.starts_with("gelu ");
    assert!(!lines.iter().any(is_of_gelu));
    assert!(run(&[&arguments[..], &["--all"]].concat()).stdout.lines().any(|line| is_of_gelu(&line)));
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
fn a_run_that_is_killed_leaves_what_it_found() {
    let folder = tempfile::tempdir().unwrap();
    let (file, page) = (folder.path().join("results.json"), folder.path().join("status.md"));
    let arguments = ["parity", "--device", "cpu", "--json", file.to_str().unwrap()];
    let mut child = Command::new(ISOGRAD).args(arguments).stderr(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while !file.exists() && started.elapsed() < Duration::from_secs(100) {
        sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let report = json(&file);
    assert_eq!(report["complete"], false);
    let findings = report["findings"].as_array().unwrap();
    assert!(!findings.is_empty() && findings.iter().all(|f| f["outcome"] != "failed"), "{report}");
    assert!(report["date"].as_str().unwrap().starts_with("20"), "{report}");
    // It is no pass; a file of an earlier version, which was written at the end, is.
    let from = ["parity", "--from", file.to_str().unwrap(), "--status", page.to_str().unwrap()];
    assert_eq!(run(&from).code, Some(1));
    assert!(fs::read_to_string(&page).unwrap().contains("| whole, did not end |"));
    let mut report = report;
    report.as_object_mut().unwrap().remove("complete");
    fs::write(&file, report.to_string()).unwrap();
    assert_eq!(run(&from).code, Some(0));
}

/// What a run finds that has its checks done by a program.
fn found_by(program: &str, arguments: &[&str]) -> Vec<Value> {
    found(Some(apart(program, arguments)))
}

pub fn apart(program: &str, arguments: &[&str]) -> Apart {
    let arguments = arguments.iter().map(|argument| argument.to_string()).collect();
    let environment = std::env::vars_os().collect();
    let (devices, longest) = (vec!["cpu".into()], Apart::LONGEST);
    Apart { program: program.into(), arguments, environment, devices, longest }
}

fn found(apart: Option<Apart>) -> Vec<Value> {
    let (devices, filter) = (vec![Device::cpu().unwrap()], Some("^(gelu|pow)$".parse().unwrap()));
    let options = Options { devices, filter, extent: Extent::Quick, seed: u64::MAX, apart, ..Options::default() };
    let report = parity::run(&options, &mut |_| ()).unwrap();
    let without_time = |finding| match json_of!(finding) {
        Value::Object(mut fields) => fields.remove("seconds").map(|_| fields.into()).unwrap(),
        other => other,
    };
    report.findings.iter().map(without_time).collect()
}

#[test]
fn other_processes_find_the_same() {
    let here = found(None);
    assert!(here.len() > 20, "{here:?}");
    assert_eq!(found_by(ISOGRAD, &["parity-worker"]), here);
}

#[cfg(unix)]
#[test]
fn a_process_that_sees_other_hardware_checks_nothing() {
    let other = format!(r#"sed -u 's/"hardware":"/&other /' | {ISOGRAD} parity-worker"#);
    for finding in found_by("sh", &["-c", &other]) {
        let outcome = finding["outcome"]["failed"].as_str().unwrap();
        assert!(outcome.contains("in this process, and \"other "), "{finding}");
    }
}

#[cfg(unix)]
#[test]
fn a_process_that_crashes_is_a_failure_of_its_checks_alone() {
    // One that has been asked for something ends, and the next is asked for the rest.
    for finding in found_by("sh", &["-c", "read task; kill -SEGV $$"]) {
        let outcome = finding["outcome"]["failed"].as_str().unwrap();
        assert!(outcome.contains("the process ended: signal: 11"), "{finding}");
    }
    let ops: Vec<Value> = found_by("false", &[]).iter().map(|finding| finding["op"].clone()).collect();
    assert_eq!(ops, [["gelu"; 4], ["pow"; 4]].concat());
    let absent = found_by("/no/such/program", &[]);
    assert!(absent.iter().all(|finding| finding["outcome"]["failed"].is_string()), "{absent:?}");
}

#[cfg(unix)]
#[test]
fn a_process_that_hangs_is_a_failure_of_its_checks_alone() {
    let started = Instant::now();
    let findings =
        found(Some(Apart { longest: Duration::from_secs(1), ..apart("sh", &["-c", "read task; exec sleep 1000"]) }));
    assert!(started.elapsed() < Duration::from_secs(100));
    assert!(!findings.is_empty());
    for finding in findings {
        let outcome = finding["outcome"]["failed"].as_str().unwrap();
        assert!(outcome.contains("the process hangs: it gave no answer in 1s, and was ended"), "{finding}");
    }
}

#[test]
fn numbers_that_are_not_finite_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let (file, page) = (folder.path().join("results.json"), folder.path().join("report.html"));
    let arguments = ["parity", "--device", "cpu", "--quick", "--filter", "^relu$", "--json", file.to_str().unwrap()];
    assert_eq!(run(&arguments).code, Some(0));
    let mut report = json(&file);
    report["findings"][0]["worst"]["bounds"] = Value::Null;
    report["findings"][0]["worst"]["case"] = "</script><b>".into();
    fs::write(&file, report.to_string()).unwrap();
    let ended = run(&["parity", "--from", file.to_str().unwrap(), "--html", page.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains(r#""bounds":null"#) && page.contains(r"\u003c/script>\u003cb>"));
    assert_eq!(page.matches("</script>").count(), 2);
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
    refused(&["cpu", "--dtype", "i64"], &["no op is left to check", "those of the CPU"]);
    refused(&["cpu", "--json", file], &[file, "is a folder"]);
    refused(&["cpu", "--status", file], &[file, "is a folder"]);
    refused(&["cpu", "--html", file], &[file, "is a folder"]);
    refused(&["cpu", "--html", "missing/page.html"], &["cannot write to missing/page.html"]);
    assert_eq!(names(folder.path()), [""; 0]);
    let wrong = [
        (["--filter", "("], "unclosed group"),
        (["--dtype", "u8"], "none of f64, f32, f16, bf16, i64, i32"),
        (["--cases", "-1"], "unexpected argument"),
        (["--cases", "missing"], "missing/cases.json: Io: reading failed: No such file"),
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
