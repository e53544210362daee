//! Runs that end well.

use crate::{FILES, IMAGES, ISOGRAD, bits, checkpoint, files, gzip, isograd, names, run, saved, train, write_mnist};
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
        report["validation_accuracy"].as_f64().unwrap()
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
    let expected = [
        "best_epoch",
        "dataset",
        "device",
        "dtype",
        "epochs",
        "seconds",
        "seed",
        "steps",
        "train_loss",
        "validation_accuracy",
        "validation_loss",
    ];
    assert_eq!(keys, expected);
    let text = |key: &str| report[key].as_str().unwrap();
    assert_eq!((text("dataset"), text("device"), text("dtype")), ("digits", "cpu", "f32"));
    let count = |key: &str| report[key].as_u64().unwrap();
    // 1437 samples in batches of 32 are 45 steps.
    assert_eq!((count("epochs"), count("steps"), count("seed")), (2, 90, 42));
    assert!(report["seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_run_leaves_its_configuration_metrics_curves_and_checkpoints() {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("new/folder");
    let report = train("--epochs 2", &folder);
    assert_eq!(names(&folder), FILES);
    let curves = fs::read_to_string(folder.join("curves.svg")).unwrap();
    assert!(curves.starts_with("<svg") && curves.ends_with("</svg>\n"), "{curves}");
    assert!(curves.contains("digits, f32 on cpu") && curves.contains("accuracy") && curves.contains("validation"));
    let metadata = saved(&folder);
    assert_eq!(metadata["config"]["hidden"], serde_json::json!([16]));
    let history = metadata["progress"]["history"].as_array().unwrap();
    assert_eq!(history.len(), 2);
    let kept = &history[report["best_epoch"].as_u64().unwrap() as usize - 1];
    assert_eq!(kept["train_loss"], report["train_loss"]);
    assert_eq!(kept["validation_loss"], report["validation_loss"]);
    assert_eq!(kept["metrics"]["accuracy"], report["validation_accuracy"]);
    let lines = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(&lines, history);
    let config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    assert_eq!(config, metadata["config"]);
    assert!(history[1]["train_loss"].as_f64() < history[0]["train_loss"].as_f64());
}

#[test]
fn without_json_the_last_line_is_for_people() {
    let out = tempfile::tempdir().unwrap();
    let ended = isograd("train digits --epochs 1 --hidden 16", out.path());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines[0], "digits: 1437 samples to train on; 1210 parameters in f32 on cpu");
    assert!(lines[1].starts_with("epoch 1/1  loss ") && lines[1].ends_with(" s  best"), "{}", lines[1]);
    assert!(lines[2].starts_with("validation accuracy 0."), "{}", lines[2]);
    assert!(lines[2].ends_with(&format!("see {}", out.path().display())), "{}", lines[2]);
    assert_eq!((lines.len(), ended.stderr.as_str()), (3, ""));
    let ended = isograd("train digits --epochs 1 --hidden 16 --quiet", out.path());
    assert_eq!(ended.stdout.lines().count(), 2, "{}", ended.stdout);
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

#[test]
fn every_optimizer_learns_at_its_own_rate() {
    let out = tempfile::tempdir().unwrap();
    let refused = isograd("train digits --optimizer newton", out.path()).stderr;
    let listed = refused.split("possible values: ").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    let optimizers: Vec<&str> = listed.split(", ").collect();
    assert_eq!(optimizers.len(), 16, "{optimizers:?}");
    for optimizer in optimizers {
        let out = tempfile::tempdir().unwrap();
        // The signs of small batches change too often for rprop.
        let steps = if optimizer == "rprop" { "--epochs 40 --batch-size 1437" } else { "--epochs 12" };
        let report = train(&format!("{steps} --optimizer {optimizer}"), out.path());
        let saved = saved(out.path());
        let losses: Vec<f64> = saved["progress"]["history"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["train_loss"].as_f64().unwrap())
            .collect();
        assert!(losses.last() < losses.first().map(|first| 0.8 * first).as_ref(), "{optimizer}: {losses:?}");
        assert!(report["validation_accuracy"].as_f64().unwrap() > 0.5, "{optimizer}: {report}");
    }
}

/// Guessing is right once in ten times.
fn assert_learnt(report: &Value) {
    assert!(report["validation_accuracy"].as_f64().unwrap() > 0.6, "{report}");
}

#[test]
fn mnist_trains_from_plain_and_gzipped_files() {
    let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_mnist(data.path(), [2, 5]);
    let packed = gzip(&fs::read(data.path().join(IMAGES)).unwrap());
    fs::remove_file(data.path().join(IMAGES)).unwrap();
    fs::write(data.path().join(format!("{IMAGES}.gz")), packed).unwrap();
    let arguments = format!("train mnist --epochs 20 --batch-size 5 --lr 0.01 --json --data {}", data.path().display());
    let report = isograd(&arguments, out.path()).json();
    assert_eq!((report["dataset"].as_str(), report["validation_accuracy"].as_f64()), (Some("mnist"), Some(1.0)));
}

#[test]
fn lenet_learns_images() {
    let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_mnist(data.path(), [28, 28]);
    let options = "--model lenet --epochs 8 --batch-size 5 --lr 0.01 --json";
    let report = isograd(&format!("train mnist {options} --data {}", data.path().display()), out.path()).json();
    assert_eq!(report["validation_accuracy"].as_f64(), Some(1.0), "{report}");
    assert!(bits(out.path()).contains_key("model.conv2.weight"));
}

/// A table of points in a plane: a name of each column, and whether the point is in a circle, or its distance to the middle.
fn write_points(path: &std::path::Path, target: impl Fn(f64) -> String) {
    let mut text = "x,y,z\n".to_string();
    for i in 0..300 {
        // Columns of very different scales.
        let (a, b) = (f64::from(i) * 0.618_034 % 1.0 - 0.5, f64::from(i) * 0.754_878 % 1.0 - 0.5);
        text += &format!("{},{},{}\n", 1000.0 + 300.0 * a, 0.001 * b, target(a.hypot(b)));
    }
    fs::write(path, text).unwrap();
}

#[test]
fn tables_of_classes_and_of_numbers_are_learnt() {
    let folder = tempfile::tempdir().unwrap();
    let (table, out) = (folder.path().join("points.csv"), folder.path().join("out"));
    let train = |options: &str| {
        let common = "--epochs 40 --lr 0.01 --hidden 32 --json --data";
        isograd(&format!("train csv {options} {common} {}", table.display()), &out).json()
    };
    write_points(&table, |radius| (radius < 0.35).to_string().replace("true", "1").replace("false", "0"));
    let report = train("--header");
    assert!(report["validation_accuracy"].as_f64().unwrap() > 0.8, "{report}");
    write_points(&table, |radius| (5000.0 + 2000.0 * radius).to_string());
    let report = train("--target z --numbers");
    // In units of their deviation, which is about 290.
    assert!(report["validation_loss"].as_f64().unwrap() < 0.1, "{report}");
    assert!(report.get("validation_accuracy").is_none(), "{report}");
    let evaluated = run(&["eval", out.to_str().unwrap(), "--json", "--data", table.to_str().unwrap()]).json();
    assert_eq!(evaluated["validation_loss"], report["validation_loss"]);
    assert!(evaluated["validation_mean_absolute_error"].as_f64().unwrap() < 100.0, "{evaluated}");
}

#[test]
fn the_column_decides_whether_classes_or_numbers_are_learnt() {
    let folder = tempfile::tempdir().unwrap();
    let (table, out) = (folder.path().join("points.csv"), folder.path().join("out"));
    let train = |options: &str| {
        let common = "--epochs 2 --hidden 16 --json --data";
        isograd(&format!("train csv {options} {common} {}", table.display()), &out)
    };
    let has_accuracy = |options: &str| train(options).json().get("validation_accuracy").is_some();
    write_points(&table, |radius| if radius < 0.35 { "inside" } else { "outside, or at the edge" }.replace(',', ";"));
    assert!(has_accuracy("") && has_accuracy("--target z") && has_accuracy("--header --classes"));
    assert!(train("--target z --numbers").stderr.contains("line 2, column 3: expected a finite number, got \"outside"));
    assert!(train("--target w").stderr.contains("expected a column \"w\", the table has the columns x, y, z"));
    write_points(&table, |radius| radius.to_string());
    assert!(!has_accuracy("") && !has_accuracy("--target z --target x"));
    write_points(&table, |radius| (1000.0 * radius + 900.0).round().to_string());
    assert!(!has_accuracy("--target z") && has_accuracy("--target z --classes"));
    let warned = train("--target z --classes").stderr;
    assert!(warned.is_empty(), "{warned}");
    let warned = isograd(&format!("train csv {} --classes --epochs 1 --quiet", table.display()), &out).stderr;
    assert!(warned.contains("warning: z has ") && warned.contains("each becomes a class"), "{warned}");
    assert!(train("--target z --classes --numbers").stderr.contains("cannot be used with"));
}

#[test]
fn eval_computes_what_training_reported() {
    let out = tempfile::tempdir().unwrap();
    for dtype in ["f32", "bf16"] {
        let report = train(&format!("--epochs 4 --lr 0.03 --dtype {dtype}"), out.path());
        let history = saved(out.path())["progress"]["history"].clone();
        let best = &history[report["best_epoch"].as_u64().unwrap() as usize - 1];
        let evaluate =
            |options: &[&str]| run(&[&["eval", out.path().to_str().unwrap(), "--json"], options].concat()).json();
        let (found, last) = (evaluate(&[]), evaluate(&["--last"]));
        assert_eq!(
            (&found["validation_loss"], &found["validation_accuracy"]),
            (&best["validation_loss"], &best["metrics"]["accuracy"])
        );
        assert_eq!((&found["samples"], &found["epoch"]), (&serde_json::json!(360), &best["epoch"]));
        assert_eq!(found["validation_loss"], report["validation_loss"]);
        assert_eq!((&last["validation_loss"], &last["epoch"]), (&history[3]["validation_loss"], &serde_json::json!(4)));
    }
    let text = run(&["eval", out.path().to_str().unwrap()]).stdout;
    assert!(text.starts_with("digits: validation accuracy 0.") && text.contains("over 360 samples"), "{text}");
}

#[test]
fn patience_ends_a_run_that_no_longer_learns() {
    let out = tempfile::tempdir().unwrap();
    let report = train("--epochs 200 --lr 0.05 --patience 3", out.path());
    let (epochs, best) = (report["epochs"].as_u64().unwrap(), report["best_epoch"].as_u64().unwrap());
    assert!(epochs < 200 && epochs == best + 3, "{report}");
}

#[test]
fn a_run_on_a_part_of_the_test_images_says_so() {
    let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_mnist(data.path(), [2, 5]);
    let ended = isograd(&format!("train mnist --epochs 1 --quiet --data {}", data.path().display()), out.path());
    let expected = "mnist (85 % of the test images: there are no training images): 85 samples to train on; ";
    assert!(ended.stdout.starts_with(expected), "{}", ended.stdout);
}

/// Several devices compute what one computes, but for rounding, and each other's runs go on.
#[test]
fn several_devices_train_together() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let run =
        |options: &str, i: usize| isograd(&format!("train digits --epochs 2 --json {options}"), folders[i].path());
    let [alone, together] = [run("--device cpu", 0).json(), run("--devices cpu,cpu,cpu", 1).json()];
    let number = |report: &serde_json::Value, key: &str| report[key].as_f64().unwrap();
    for key in ["train_loss", "validation_loss"] {
        let (here, there) = (number(&alone, key), number(&together, key));
        assert!((here - there).abs() < 1e-6, "{key} is {there} on three devices, {here} on one");
    }
    assert_eq!(together["steps"], alone["steps"]);
    assert_eq!(together["device"], "cpu and others, 3 ranks");
    assert_eq!(names(folders[1].path()), FILES);
    let resumed = format!("train digits --devices cpu,cpu --json --epochs 3 --resume {}", folders[1].path().display());
    assert_eq!(isograd(&resumed, folders[2].path()).json()["epochs"], 3);
    let refused = isograd("train digits --devices cpu,nowhere", folders[2].path());
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("there is no device \"nowhere\""), "{}", refused.stderr);
}

/// A run that is watched has the bits of one that is not.
#[test]
fn a_profile_and_event_files_are_left_beside_the_run() {
    let [plain, watched] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    train("--epochs 2", plain.path());
    let ended = isograd("train digits --hidden 16 --epochs 2 --quiet --profile --tensorboard", watched.path());
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(bits(plain.path()), bits(watched.path()));
    let head = ended.stdout.lines().position(|line| line.trim_start().starts_with("share ")).unwrap();
    let rows: Vec<&str> = ended.stdout.lines().skip(head + 1).take_while(|line| line.contains(" % ")).collect();
    for (way, op) in [("forward", "gemm_bias"), ("backward", "gemm_bias"), ("forward", "adam_step")] {
        let is_of = |row: &&str| row.contains(way) && row.split_whitespace().any(|word| word == op);
        assert!(rows.iter().any(is_of), "{way} {op}: {}", ended.stdout);
    }
    let trace: Value = serde_json::from_slice(&fs::read(watched.path().join("profile.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |category: &str| events.iter().filter(|event| event["cat"] == category).count();
    assert!(of("forward") > 5 && of("backward") > 5, "{trace}");
    let left: Vec<String> = names(watched.path()).into_iter().filter(|name| !FILES.contains(&name.as_str())).collect();
    assert!(left.len() == 2 && left[0].starts_with("events.out.tfevents.") && left[1] == "profile.json", "{left:?}");
    // A profile alone prints nothing beside the report.
    assert_eq!(isograd("train digits --epochs 1 --json --profile", watched.path()).stdout.lines().count(), 1);
}
