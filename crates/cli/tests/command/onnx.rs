//! `isograd onnx`.

use crate::refusing::assert_refused;
use crate::{run, train};
use isograd::data::{HostTensor, npy};
use std::fs;

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
