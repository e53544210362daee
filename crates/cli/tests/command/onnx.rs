//! `isograd onnx`.

use crate::predicting::assert_alike;
use crate::refusing::assert_refused;
use crate::{run, train};
use isograd::data::{HostTensor, npy};
use isograd::nn::Sequential;
use isograd::onnx::{Export, Input};
use isograd::{DType, Device, Tensor};
use serde_json::Value;
use std::fs;
use std::path::Path;

#[test]
fn an_exported_model_is_listed_and_run() {
    let out = tempfile::tempdir().unwrap();
    train("--epochs 1", out.path());
    let path = |name: &str| out.path().join(name).display().to_string();
    let file = path("digits.onnx");
    run(&["export", &path(""), &file]);
    let listed = run(&["onnx", "inspect", &file]);
    for expected in ["isograd", "opset 21", "x float [N, 64]", "output float [N, 10]", "Gemm", "0.weight", "parameter"]
    {
        assert!(listed.stdout.contains(expected), "{}{}", listed.stdout, listed.stderr);
    }
    fs::create_dir(path("in")).unwrap();
    npy::write(path("in/x.npy"), &HostTensor::new(&[0.5f32; 192], [3, 64]).unwrap()).unwrap();
    let options = ["onnx", "run", &file, "--inputs", &path("in"), "--outputs", &path("made/out"), "--device", "cpu"];
    let ended = run(&options);
    assert!(ended.stdout.contains("output: f32 [3, 10]"), "{}{}", ended.stdout, ended.stderr);
    let output = npy::read(path("made/out/output.npy")).unwrap();
    assert_eq!(output.dims(), [3, 10]);
    let rows = output.to_vec::<f32>().unwrap();
    assert!(rows[..10] == rows[10..20] && rows.iter().any(|v| *v != rows[0]), "{rows:?}");
    npy::write(path("in/x.npy"), &HostTensor::new(&[0.5f32; 3], [1, 3]).unwrap()).unwrap();
    assert_refused(&run(&options), &["the input is x float [N, 64], f32 [1, 3] was given"]);
    fs::remove_file(path("in/x.npy")).unwrap();
    assert_refused(&run(&options), &["cannot read the input x float [N, 64]"]);
    assert_refused(&run(&["onnx", "inspect", &path("missing.onnx")]), &["missing.onnx"]);
}

#[test]
fn an_opened_model_is_timed_trained_and_written_again() {
    let out = tempfile::tempdir().unwrap();
    train("--epochs 1", out.path());
    let path = |name: &str| out.path().join(name).display().to_string();
    let (file, tuned) = (path("digits.onnx"), path("tuned.onnx"));
    run(&["export", &path(""), &file]);
    fs::create_dir(path("in")).unwrap();
    let pixels: Vec<f32> = (0..8 * 64).map(|i| (i * 37 % 101) as f32 / 101.0).collect();
    npy::write(path("in/x.npy"), &HostTensor::new(&pixels, [8, 64]).unwrap()).unwrap();
    npy::write(path("y.npy"), &HostTensor::new(&[0i64, 1, 2, 3, 4, 5, 6, 7], [8]).unwrap()).unwrap();
    let timed = run(&["onnx", "bench", &file, "--inputs", &path("in"), "--runs", "3", "--device", "cpu"]);
    assert!(timed.stdout.contains("median") && timed.stdout.contains("of 3 runs"), "{}{}", timed.stdout, timed.stderr);
    let (inputs, targets) = (path("in"), path("y.npy"));
    let options = ["onnx", "train", &file, "--inputs", &inputs, "--targets", &targets, "--steps", "40", "--batch", "4"];
    let options = [&options[..], &["--lr", "0.01", "--device", "cpu", "--out"]].concat();
    let trained = run(&[&options[..], &[&tuned]].concat());
    let losses: Vec<f64> =
        trained.stdout.lines().filter_map(|line| line.split("loss ").nth(1)?.trim().parse().ok()).collect();
    assert!(losses.len() >= 20 && losses[losses.len() - 1] < 0.5 * losses[0], "{}{}", trained.stdout, trained.stderr);
    let made = path("made");
    run(&["onnx", "run", &tuned, "--inputs", &inputs, "--outputs", &made, "--device", "cpu"]);
    assert_eq!(npy::read(path("made/output.npy")).unwrap().dims(), [8, 10]);
    // The state alone.
    run(&[&options[..], &[&path("tuned.safetensors")]].concat());
    assert!(fs::metadata(path("tuned.safetensors")).is_ok());
    npy::write(path("y.npy"), &HostTensor::new(&[0i64, 1, 2], [3]).unwrap()).unwrap();
    assert_refused(&run(&[&options[..], &[&tuned]].concat()), &["different numbers of samples"]);
}

/// The exported model of a short training, in a folder.
fn exported(out: &Path) -> String {
    train("--epochs 1", out);
    let file = out.join("digits.onnx").display().to_string();
    run(&["export", out.to_str().unwrap(), &file]);
    file
}

#[test]
fn devices_are_compared_on_an_opened_model() {
    let out = tempfile::tempdir().unwrap();
    let file = exported(out.path());
    let results = out.path().join("results.json");
    let checked = run(&["parity", "--onnx", &file, "--all", "--json", results.to_str().unwrap()]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.stdout, checked.stderr);
    assert!(checked.stdout.contains("digits.onnx") && checked.stdout.contains(" 0 failed"), "{}", checked.stdout);
    let report: Value = serde_json::from_slice(&fs::read(&results).unwrap()).unwrap();
    let checks: Vec<&str> =
        report["findings"].as_array().unwrap().iter().filter_map(|finding| finding["check"].as_str()).collect();
    assert_eq!(checks[..2], ["forward", "gradients"]);
    // Four parameters and the input have gradients.
    assert_eq!(report["findings"][1]["cases"], 5);
    let found = run(&["diff", "cpu", "cpu", "--onnx", &file, "--sizes", "N=5"]);
    assert_eq!(found.code, Some(0), "{}{}", found.stdout, found.stderr);
    assert!(found.stdout.contains("Gemm \"") && found.stdout.contains("5, 64]"), "{}", found.stdout);
    assert_eq!(found.stdout.lines().last(), Some("no node is beyond its tolerance"));
    assert_refused(&run(&["diff", "cpu", "cpu", "--sizes", "N=5"]), &["--onnx names"]);
    assert_refused(&run(&["parity", "--onnx", &file, "--filter", "relu"]), &["--onnx is a case of its own"]);
    assert_refused(&run(&["parity", "--onnx", "missing.onnx"]), &["missing.onnx"]);
}

#[test]
fn an_opened_model_predicts_from_tables_and_arrays() {
    let out = tempfile::tempdir().unwrap();
    let file = exported(out.path());
    let path = |name: &str| out.path().join(name).display().to_string();
    let pixels: Vec<f32> = (0..3 * 64).map(|i| (i * 37 % 101) as f32 / 101.0).collect();
    npy::write(path("x.npy"), &HostTensor::new(&pixels, [3, 64]).unwrap()).unwrap();
    let rows = pixels.chunks(64).map(|row| row.iter().map(f32::to_string).collect::<Vec<_>>().join(",") + "\n");
    fs::write(path("x.csv"), rows.collect::<String>()).unwrap();
    let predict = |samples: &str, more: &[&str]| run(&[&["predict", &file, samples, "--device", "cpu"], more].concat());
    let plain = predict(&path("x.npy"), &[]);
    assert_eq!(plain.code, Some(0), "{}", plain.stderr);
    let lines: Vec<&str> = plain.stdout.lines().collect();
    assert!(lines.len() == 4 && lines[0].starts_with("output 0,output 1,"), "{}", plain.stdout);
    assert_alike(&predict(&path("x.csv"), &[]).stdout, &plain.stdout);
    fs::write(path("names.txt"), (0..10).map(|i| format!("digit {i}\n")).collect::<String>()).unwrap();
    let named = predict(&path("x.npy"), &["--labels", &path("names.txt")]);
    let cells: Vec<Vec<&str>> = named.stdout.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(cells[0][..2], ["class", "digit 0"], "{}{}", named.stdout, named.stderr);
    for row in &cells[1..] {
        let shares: Vec<f64> = row[1..].iter().map(|cell| cell.parse().unwrap()).collect();
        let best = (0..10).max_by(|&a, &b| shares[a].total_cmp(&shares[b])).unwrap();
        assert_eq!(row[0], format!("digit {best}"));
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-5);
    }
    fs::write(path("few.txt"), "one\ntwo\n").unwrap();
    assert_refused(&predict(&path("x.npy"), &["--labels", &path("few.txt")]), &["10 scores", "2 labels"]);
    assert_refused(&predict(&path("x.npy"), &["--keep", "id"]), &["--keep"]);
    image::RgbImage::new(8, 8).save(path("a.png")).unwrap();
    assert_refused(&predict(&path("a.png"), &[]), &["x float [N, 64] is no batch of images"]);
    let run_folder = out.path().to_str().unwrap();
    assert_refused(&run(&["predict", run_folder, &path("x.csv"), "--size", "8"]), &["for models of ONNX"]);
}

#[test]
fn an_opened_model_predicts_from_images() {
    let out = tempfile::tempdir().unwrap();
    let device = Device::cpu().unwrap();
    let x = Tensor::zeros((1, 3, 4, 4), DType::F32, &device).unwrap();
    let network = Sequential::new();
    let export = Export::new(&network).input(Input::new("image", &x)).outputs(&["mean"]);
    let file = out.path().join("mean.onnx");
    export.run(|x| Ok(vec![x[0].mean([2, 3])?])).unwrap().save(&file).unwrap();
    let color = |name: &str, rgb: [u8; 3]| {
        let path = out.path().join(name);
        image::RgbImage::from_pixel(6, 6, image::Rgb(rgb)).save(&path).unwrap();
        path.display().to_string()
    };
    let (red, gray) = (color("red.png", [255, 0, 0]), color("gray.png", [51, 51, 51]));
    let plain = ["--mean", "0,0,0", "--std", "1,1,1"];
    let ended = run(&[&["predict", file.to_str().unwrap(), &red, &gray, "--device", "cpu"], &plain[..]].concat());
    let expected = format!("file,mean 0,mean 1,mean 2\n{red},1,0,0\n{gray},0.2,0.2,0.2\n");
    assert_alike(&ended.stdout, &expected);
    // As ImageNet's pixels are normalised.
    let ended = run(&["predict", file.to_str().unwrap(), &red, "--device", "cpu"]);
    let cells: Vec<f64> = ended.stdout.lines().nth(1).unwrap().split(',').skip(1).map(|c| c.parse().unwrap()).collect();
    for (found, expected) in cells.iter().zip([(1.0 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225]) {
        assert!((found - expected).abs() < 1e-5, "{}", ended.stdout);
    }
    let wrong = run(&["predict", file.to_str().unwrap(), &red, "--size", "5", "--device", "cpu"]);
    assert_refused(&wrong, &["--size says 5"]);
}
