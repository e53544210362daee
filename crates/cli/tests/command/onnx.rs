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
