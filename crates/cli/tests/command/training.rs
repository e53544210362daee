//! Runs that end well.

use crate::{IMAGES, ISOGRAD, bits, checkpoint, files, gzip, isograd, names, saved, train, write_mnist};
use isograd::DType;
use serde_json::Value;
use std::fs;
use std::process::Command;

#[test]
fn devices_lists_the_cpu() {
    let output = Command::new(ISOGRAD).arg("devices").output().unwrap();
    assert!(output.status.success());
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.lines().any(|line| line.split_whitespace().next() == Some("cpu")), "{stdout}");
}

#[test]
fn opencl_gives_the_cpus_accuracy() {
    gives_the_cpus_accuracy("opencl", "--epochs 5");
}

/// A few steps: this also runs on an emulator.
#[test]
fn hip_gives_the_cpus_accuracy() {
    gives_the_cpus_accuracy("hip", "--epochs 2 --batch-size 128 --hidden 32 --lr 0.01");
}

/// Skipped without such a device, unless `ISOGRAD_REQUIRE` names it.
fn gives_the_cpus_accuracy(kind: &str, options: &str) {
    let is_required = std::env::var("ISOGRAD_REQUIRE").is_ok_and(|list| list.contains(kind));
    if !is_required && kind.parse::<isograd::Device>().is_err() {
        return println!("skipped: there is no device {kind}:0");
    }
    let accuracy = |device: &str| {
        let out = tempfile::tempdir().unwrap();
        let report = isograd(&format!("train digits {options} --json --device {device}"), out.path()).json();
        report["test_accuracy"].as_f64().unwrap()
    };
    let (there, here) = (accuracy(kind), accuracy("cpu"));
    assert!(here > 0.5, "{here} on the CPU");
    assert!((there - here).abs() <= 0.005, "{there} on {kind}:0, {here} on the CPU");
}

#[test]
fn the_json_report_has_exactly_these_keys() {
    let out = tempfile::tempdir().unwrap();
    let ended = isograd("train digits --epochs 2 --json", out.path());
    assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    let report = ended.json();
    let mut keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    keys.sort();
    let expected = ["dataset", "device", "dtype", "epochs", "seconds", "seed", "steps", "test_accuracy", "train_loss"];
    assert_eq!(keys, expected);
    let text = |key: &str| report[key].as_str().unwrap();
    assert_eq!((text("dataset"), text("device"), text("dtype")), ("digits", "cpu", "f32"));
    let count = |key: &str| report[key].as_u64().unwrap();
    // 1437 samples in batches of 32 are 45 steps.
    assert_eq!((count("epochs"), count("steps"), count("seed")), (2, 90, 42));
    assert!(report["seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_run_leaves_curves_and_a_checkpoint_of_each_epoch() {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("new/folder");
    let report = train("--epochs 2", &folder);
    assert_eq!(names(&folder), ["checkpoint.safetensors", "curves.svg"]);
    let curves = fs::read_to_string(folder.join("curves.svg")).unwrap();
    assert!(curves.starts_with("<svg") && curves.ends_with("</svg>\n"), "{curves}");
    assert!(curves.contains("digits, f32 on cpu") && curves.contains("test accuracy"));
    let metadata = saved(&folder);
    assert_eq!(metadata["config"]["hidden"], serde_json::json!([16]));
    let history = metadata["progress"]["history"].as_array().unwrap();
    assert_eq!(history.len(), 2);
    for key in ["train_loss", "test_accuracy"] {
        assert_eq!(history[1][key], report[key]);
    }
    assert!(history[1]["train_loss"].as_f64() < history[0]["train_loss"].as_f64());
}

#[test]
fn without_json_the_last_line_is_for_people() {
    let out = tempfile::tempdir().unwrap();
    let ended = isograd("train digits --epochs 1 --hidden 16", out.path());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines[0], "digits: 1437 samples to train on; 1210 parameters in f32 on cpu");
    assert!(lines[1].starts_with("test accuracy 0."), "{}", lines[1]);
    assert!(lines[1].ends_with(&format!("see {}", out.path().display())), "{}", lines[1]);
}

#[test]
fn the_seed_decides_every_bit() {
    let runs = [7, 7, 8].map(|seed| {
        let out = tempfile::tempdir().unwrap();
        let mut report = train(&format!("--epochs 2 --seed {seed}"), out.path());
        report.as_object_mut().unwrap().remove("seed").unwrap();
        (report, bits(out.path()), files(out.path()).remove("curves.svg"))
    });
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0].0["train_loss"], runs[2].0["train_loss"]);
    assert_ne!(runs[0].1["model.0.weight"], runs[2].1["model.0.weight"]);
}

#[test]
fn every_dtype_learns() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let out = tempfile::tempdir().unwrap();
        let report = train(&format!("--epochs 2 --lr 0.01 --dtype {dtype}"), out.path());
        assert_eq!(report["dtype"], dtype.to_string());
        let tensors = checkpoint(out.path()).tensors;
        assert_eq!(tensors["model.0.weight"].dtype(), dtype);
        assert_eq!(tensors.contains_key("scaler.scale"), dtype == DType::F16);
        assert_learnt(&report);
    }
}

#[test]
fn every_optimizer_learns() {
    for (optimizer, state) in [("sgd", "momentum_buffer"), ("adam", "exp_avg"), ("adamw", "exp_avg_sq")] {
        let out = tempfile::tempdir().unwrap();
        let report = train(&format!("--epochs 4 --lr 0.01 --optimizer {optimizer}"), out.path());
        let saved = bits(out.path());
        assert!(saved.contains_key(&format!("optimizer.0.weight.{state}")), "{optimizer}: {:?}", saved.keys());
        assert_learnt(&report);
    }
}

/// Guessing is right once in ten times.
fn assert_learnt(report: &Value) {
    assert!(report["test_accuracy"].as_f64().unwrap() > 0.6, "{report}");
}

#[test]
fn mnist_trains_from_plain_and_gzipped_files() {
    let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_mnist(data.path());
    let packed = gzip(&fs::read(data.path().join(IMAGES)).unwrap());
    fs::remove_file(data.path().join(IMAGES)).unwrap();
    fs::write(data.path().join(format!("{IMAGES}.gz")), packed).unwrap();
    let arguments = format!("train mnist --epochs 20 --batch-size 5 --lr 0.01 --json --data {}", data.path().display());
    let report = isograd(&arguments, out.path()).json();
    assert_eq!((report["dataset"].as_str(), report["test_accuracy"].as_f64()), (Some("mnist"), Some(1.0)));
}
