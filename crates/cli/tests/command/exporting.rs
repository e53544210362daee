//! `isograd export`.

use crate::{isograd, run, train};
use std::fs;

#[test]
fn a_run_of_digits_becomes_a_file_with_its_extents() {
    let out = tempfile::tempdir().unwrap();
    train("--epochs 1", out.path());
    let (folder, file) = (out.path().to_str().unwrap(), out.path().join("digits.onnx"));
    let path = file.to_str().unwrap();
    let ended = run(&["export", folder, path]);
    assert!(ended.stderr.is_empty(), "{}", ended.stderr);
    assert!(ended.stdout.contains("x [N, ") && ended.stdout.contains("output [N, 10]"), "{}", ended.stdout);
    let of_any = fs::read(&file).unwrap();
    let names = ["0.weight", "2.bias", "Gemm", "Relu"];
    assert!(names.iter().all(|name| of_any.windows(name.len()).any(|bytes| bytes == name.as_bytes())));
    let ended = run(&["export", folder, path, "--batch", "3", "--last"]);
    assert!(ended.stdout.contains("output [3, 10]"), "{}{}", ended.stdout, ended.stderr);
}

#[test]
fn a_language_model_takes_tokens() {
    let out = tempfile::tempdir().unwrap();
    let text = out.path().join("text.txt");
    fs::write(&text, "to be or not to be, that is the question. ".repeat(40)).unwrap();
    let folder = out.path().join("run");
    let options = "--steps 2 --layers 1 --width 8 --context 12 --batch-size 2";
    for model in ["gpt2 --heads 2", "lstm"] {
        isograd(&format!("train text {} --model {model} {options}", text.display()), &folder);
        let file = out.path().join("text.onnx");
        let ended = run(&["export", folder.to_str().unwrap(), file.to_str().unwrap()]);
        assert!(ended.stdout.contains("tokens [N, 12] to output [N, 12, "), "{}{}", ended.stdout, ended.stderr);
        fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn a_folder_without_a_run_is_an_error() {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("model.onnx");
    let ended = run(&["export", out.path().to_str().unwrap(), file.to_str().unwrap()]);
    assert!(ended.stderr.contains("cannot export"), "{}", ended.stderr);
    assert!(!file.exists());
}
