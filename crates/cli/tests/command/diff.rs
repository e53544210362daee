//! `isograd diff`.

use crate::refusing::assert_refused;
use crate::{Ended, ISOGRAD, names, run};
use serde_json::Value;
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const SMALL: [&str; 4] = ["--hidden", "16", "--batch-size", "8"];

/// Compares two devices on the digits.
fn diff(devices: [&str; 2], options: &[&str]) -> Ended {
    run(&[&["diff"], &devices[..], &SMALL[..], options].concat())
}

#[test]
fn a_device_is_like_itself_and_all_of_it_is_in_the_results() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("found.json");
    for dtype in ["f32", "f16", "bf16", "f64"] {
        let ended = diff(["cpu", "cpu"], &["--dtype", dtype, "--json", file.to_str().unwrap()]);
        assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.stdout.lines().last(), Some("no node is beyond its tolerance"));
        let found: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(found["devices"], serde_json::json!(["cpu", "cpu"]));
        let entries = found["entries"].as_array().unwrap();
        // A head, a verdict, and a line for all calls that differ in their values alone, with their number.
        let lines: Vec<&str> = ended.stdout.lines().collect();
        let keys = ["direction", "op", "kernel", "origin", "inputs", "outputs"];
        let kinds: HashSet<String> = entries.iter().map(|e| keys.map(|key| e[key].to_string()).join(" ")).collect();
        assert_eq!(lines.len(), kinds.len() + 2);
        let calls = lines[1..lines.len() - 1].iter().map(|line| line.split_whitespace().nth(1).unwrap());
        assert_eq!(calls.map(|n| n.parse::<usize>().unwrap()).sum::<usize>(), entries.len(), "{}", ended.stdout);
        let of = |direction: &str, op: &str| {
            let found = entries.iter().find(|e| e["direction"] == direction && e["op"] == op);
            found.unwrap_or_else(|| panic!("{direction} {op}: {}", ended.stdout)).clone()
        };
        // The second layer's, which is the first on the way back.
        let product = entries.iter().rfind(|e| e["direction"] == "forward" && e["op"] == "linear").unwrap();
        assert!(product["origin"].as_str().unwrap().contains(&origin("models")), "{product}");
        assert_eq!(product["inputs"][0], format!("{dtype} [1, 8, 16]"));
        assert_eq!(of("backward", "linear")["origin"], product["origin"]);
        of("forward", "adam_step");
    }
}

/// The text by which a report names a node of this module: its line or, in a build without debug information, its function.
fn origin(module: &str) -> String {
    let here = std::backtrace::Backtrace::force_capture().to_string();
    match here.contains("command/diff.rs:") {
        true => format!("train/{module}.rs:"),
        false => format!("isograd::train::{module}::"),
    }
}

/// Copies a folder with all that is in it.
fn copied(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copied(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A copy of the kernels' sources in which one place of a file is another.
fn mutated(folder: &Path, file: &str, from: &str, to: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for kernels in ["kernels", "kernels-cuda", "kernels-opencl"] {
        copied(&root.join(kernels), &folder.join(kernels));
    }
    let path = folder.join("kernels").join(file);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{file} has no {from:?}");
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// Only with an OpenCL device, of which `ISOGRAD_REQUIRE=opencl` says that there must be one.
#[test]
fn a_mutated_kernel_is_found_and_named() {
    if !run(&["devices"]).stdout.contains("opencl:0") {
        let required = std::env::var("ISOGRAD_REQUIRE").unwrap_or_default();
        assert!(!required.contains("opencl"), "there is no OpenCL device");
        return;
    }
    let ended = diff(["cpu", "opencl:0"], &[]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    for (way, from, to) in
        [("forward", "((A)1)", "((A)1.0001f)"), ("backward", "s.sum = s.own;", "s.sum = s.own * 1.0001f;")]
    {
        let folder = tempfile::tempdir().unwrap();
        mutated(folder.path(), "loss/cross_entropy.c", from, to);
        let arguments = [&["diff", "cpu", "opencl:0"], &SMALL[..]].concat();
        let mut command = Command::new(ISOGRAD);
        let ended = command.args(arguments).env("ISOGRAD_KERNELS", folder.path()).output().unwrap();
        let ended = Ended::from(ended);
        assert_eq!(ended.code, Some(1), "{}{}", ended.stdout, ended.stderr);
        let last = ended.stdout.lines().last().unwrap();
        let start = format!("the first beyond its tolerance: cross_entropy {way} (#");
        let is_named =
            last.starts_with(&start) && last.contains(&origin("sample")) && last.contains(" on opencl:0: element [");
        assert!(is_named, "{last}");
    }
}

/// Without a terminal, the verdict is plain text.
#[test]
fn two_devices_are_enough_of_a_command() {
    let ended = run(&["diff", "cpu", "cpu"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.stdout.lines().last(), Some("no node is beyond its tolerance"));
}

/// Ranks that find each other as those of `srun` do. Rank 0 alone shows what was found.
#[test]
fn ranks_compare_their_devices() {
    let job = (std::process::id() * 2 + 1).to_string();
    let start = |rank: &str| {
        let slurm = [("PROCID", rank), ("LOCALID", rank), ("STEP_NUM_TASKS", "2"), ("NTASKS", "2"), ("STEP_ID", "0")];
        let mut command = Command::new(ISOGRAD);
        command.envs(slurm.map(|(name, value)| (format!("SLURM_{name}"), value)));
        command.env("SLURM_JOB_ID", &job).env("SLURM_STEP_NODELIST", "localhost");
        command.args(["diff", "--ranks", "digits", "--device", "cpu"]).args(SMALL);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let [first, second] = ["0", "1"].map(start).map(|child| Ended::from(child.wait_with_output().unwrap()));
    assert_eq!((first.code, second.code), (Some(0), Some(0)), "{}{}", first.stderr, second.stderr);
    assert!(first.stdout.contains("rank 0 (cpu) rank 1 (cpu)"), "{}", first.stdout);
    assert_eq!(first.stdout.lines().last(), Some("no node is beyond its tolerance"));
    assert_eq!(second.stdout, "");
}

#[test]
fn what_cannot_be_compared_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().to_str().unwrap();
    assert_refused(&diff(["cpu", "quantum"], &[]), &["there is no device \"quantum\""]);
    assert_refused(&diff(["", "cpu"], &[]), &["there is no device \"\""]);
    assert_refused(&diff(["cpu", "cpu"], &["--json", file]), &[file, "is a folder"]);
    assert_refused(&diff(["cpu", "cpu"], &["--data", file]), &["the digits are inside this program"]);
    assert_refused(&run(&["diff", "cpu", "cpu", "mnist"]), &["mnist needs --data DIR"]);
    assert_refused(&run(&["diff", "--ranks", "digits"]), &["--ranks compares ranks, and there is one"]);
    assert_eq!(names(folder.path()), [""; 0]);
    let wrong: [(&[&str], &str); 4] = [
        (&["diff", "cpu"], "<B>"),
        (&["diff", "cpu", "cpu", "cifar"], "possible values: digits, mnist"),
        (&["diff", "cpu", "cpu", "--dtype", "i64"], "none of f32, f64, f16, bf16"),
        (&["diff", "cpu", "cpu", "--epochs", "3"], "unexpected argument"),
    ];
    for (arguments, expected) in wrong {
        let ended = run(arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}");
        assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    }
}
