//! Images: CIFAR's files and folders of classes.

use crate::predicting::assert_alike;
use crate::refusing::assert_refused;
use crate::{bits, isograd, run, saved};
use image::{ImageBuffer, Rgb};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// A colour for each of eight classes, darker or brighter by some noise.
fn color(class: usize, noise: usize) -> [u8; 3] {
    let noise = (noise * 13 % 40) as u8;
    [0, 1, 2].map(|channel| noise + if class >> channel & 1 == 1 { 200 } else { 60 })
}

/// CIFAR-10's files with this many images of each of eight classes in each.
fn write_cifar(folder: &Path, each: usize) {
    let files = (1..6).map(|i| format!("data_batch_{i}.bin")).chain(["test_batch.bin".into()]);
    for (i, name) in files.enumerate() {
        let records = (0..8 * each).flat_map(|k| {
            let pixels = color(k % 8, 7 * i + k).into_iter().flat_map(|value| [value; 32 * 32]);
            [(k % 8) as u8].into_iter().chain(pixels)
        });
        fs::write(folder.join(name), records.collect::<Vec<u8>>()).unwrap();
    }
}

/// A folder of each class, with images of these extents.
fn write_classes(folder: &Path, classes: &[&str], each: u32, [rows, columns]: [u32; 2]) {
    for (class, name) in classes.iter().enumerate() {
        fs::create_dir_all(folder.join(name)).unwrap();
        for i in 0..each {
            let pixel = |x: u32, y: u32| Rgb(color(class + 1, (x + y + 3 * i) as usize));
            let extension = if i % 4 == 0 { "jpg" } else { "png" };
            let path = folder.join(name).join(format!("{i:03}.{extension}"));
            ImageBuffer::from_fn(columns, rows, pixel).save(path).unwrap();
        }
    }
}

/// Trains, and returns the report without its time.
fn train(arguments: &str, data: &Path, out: &Path) -> Value {
    let mut report = isograd(&format!("train {arguments} --json --data {}", data.display()), out).json();
    report.as_object_mut().unwrap().remove("seconds").unwrap();
    report
}

fn accuracy(report: &Value) -> f64 {
    report["validation_accuracy"].as_f64().unwrap()
}

const SMALL: &str = "--model mlp --hidden 32 --batch-size 16 --lr 0.003";

#[test]
fn cifar10_is_learnt_and_evaluated() {
    let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_cifar(data.path(), 4);
    let report = train(&format!("cifar10 {SMALL} --epochs 6"), data.path(), out.path());
    // Guessing is right once in eight times.
    assert!(accuracy(&report) > 0.8, "{report}");
    let config = saved(out.path())["config"].clone();
    assert_eq!(config["images"]["augment"], json!(["crop", "flip"]));
    let [data, out] = [data.path(), out.path()].map(|path| path.to_str().unwrap());
    let evaluated = run(&["eval", out, "--last", "--json", "--data", data]).json();
    assert_eq!(evaluated["validation_loss"], report["validation_loss"]);
    assert_eq!(
        (&evaluated["samples"], &evaluated["validation_accuracy"]),
        (&json!(32), &report["validation_accuracy"])
    );
}

#[test]
fn augmentation_is_the_same_in_a_run_that_is_resumed() {
    let (data, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_cifar(data.path(), 2);
    let path = |name: &str| folder.path().join(name);
    let train = |arguments: &str, out: &str| train(&format!("cifar10 {arguments}"), data.path(), &path(out));
    let all = format!("{SMALL} --augment crop,flip,jitter,cutout,mixup");
    let report = train(&format!("{all} --epochs 4"), "straight");
    train(&format!("{all} --epochs 2"), "first");
    assert_eq!(train(&format!("--epochs 4 --resume {}", path("first").display()), "second"), report);
    assert_eq!(bits(&path("second")), bits(&path("straight")));
    // Without changes, or with some of them, the run is another.
    for augment in ["none", "flip", "crop,flip,jitter,cutout"] {
        let other = train(&format!("{SMALL} --epochs 4 --augment {augment}"), "other");
        assert_ne!(other["train_loss"], report["train_loss"], "{augment}");
    }
}

#[test]
fn resnets_learn_folders_of_images() {
    let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_classes(data.path(), &["green", "red", "yellow"], 15, [11, 9]);
    let options = "--size 8 --batch-size 9 --epochs 10 --lr 0.003";
    let text = format!("train images {} {options}", data.path().display());
    let ended = isograd(&text, out.path());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let expected = format!("{}: 36 samples to train on; ", data.path().display());
    assert!(ended.stdout.starts_with(&expected), "{}", ended.stdout);
    assert_eq!(saved(out.path())["config"]["model"], "resnet18");
    assert!(bits(out.path()).contains_key("model.layer4.1.bn2.running_var"));
    let evaluated =
        run(&["eval", out.path().to_str().unwrap(), "--json", "--data", data.path().to_str().unwrap()]).json();
    assert!(accuracy(&evaluated) > 0.7 && evaluated["samples"] == 9, "{evaluated}");
    // The order in memory changes nothing but the order of sums; each step with norms of few numbers makes the difference larger.
    let one = "images --size 8 --batch-size 36 --epochs 1 --optimizer sgd --lr 0.01";
    let [plain, last] = [one.to_string(), format!("{one} --channels-last")].map(|a| train(&a, data.path(), out.path()));
    let losses = [plain, last].map(|report| report["train_loss"].as_f64().unwrap());
    assert!((losses[0] - losses[1]).abs() < 1e-5, "{losses:?}");
}

#[test]
fn every_network_takes_images_in_colour_and_flat_ones() {
    let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_classes(data.path(), &["a", "b"], 5, [28, 28]);
    for (model, options) in [
        ("lenet", "--size 28 --channels-last"),
        ("mobilenet", "--size 12 --augment cutout,mixup --dtype bf16"),
        ("resnet50", "--size 8 --stem imagenet"),
    ] {
        let report = train(&format!("images --model {model} {options} --epochs 1"), data.path(), out.path());
        assert!(report["validation_loss"].as_f64().unwrap().is_finite(), "{report}");
    }
    // Images of one channel.
    crate::write_mnist(data.path(), [8, 8]);
    let report = train("mnist --model mobilenet --epochs 1 --batch-size 50", data.path(), out.path());
    assert!(report["validation_loss"].as_f64().unwrap().is_finite(), "{report}");
}

#[test]
fn cifar10_trains_a_resnet_unless_a_model_is_named() {
    let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for i in 1..6u8 {
        fs::write(data.path().join(format!("data_batch_{i}.bin")), [i; 3073]).unwrap();
    }
    fs::write(data.path().join("test_batch.bin"), [1u8; 3073]).unwrap();
    train("cifar10 --epochs 1", data.path(), out.path());
    let tensors = crate::checkpoint(out.path()).tensors;
    assert_eq!(tensors["model.conv1.weight"].dims(), [64, 3, 3, 3]);
    assert_eq!(tensors["model.fc.weight"].dims(), [10, 512]);
}

#[test]
fn images_that_cannot_be_read() {
    let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = |name: &str| data.path().join(name).display().to_string();
    let run = |dataset: &str, folder: &str| {
        isograd(&format!("train {dataset} {} --model mlp --epochs 1 --json", path(folder)), out.path())
    };
    assert_refused(&run("images", "missing"), &[&path("missing"), "reading the folder failed"]);
    write_classes(&data.path().join("set/train"), &["a", "b"], 3, [4, 4]);
    write_classes(&data.path().join("set/val"), &["a", "c"], 1, [4, 4]);
    assert_refused(
        &run("images", "set"),
        &[&path("set/val"), "the classes are [\"a\", \"c\"], expected [\"a\", \"b\"]"],
    );
    fs::rename(path("set/val/c"), path("set/val/b")).unwrap();
    run("images", "set").json();
    fs::write(path("set/train/b/001.png"), "no image").unwrap();
    assert_refused(&run("images", "set"), &[&path("set/train/b/001.png"), "the image cannot be decoded"]);
    write_cifar(data.path(), 1);
    fs::remove_file(path("data_batch_4.bin")).unwrap();
    assert_refused(&run("cifar10", "."), &["data_batch_4.bin", "reading failed"]);
    fs::write(path("data_batch_4.bin"), [1u8; 3072]).unwrap();
    assert_refused(&run("cifar10", "."), &["data_batch_4.bin", "3072 bytes are not a number of records of 3073"]);
    assert_refused(
        &isograd(&format!("train images {} --size 32 --model lenet --json", path("set")), out.path()),
        &["lenet", "images have 28 x 28 pixels", "shape [3, 32, 32]"],
    );
}

#[test]
fn images_are_predicted_by_file() {
    let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_classes(data.path(), &["cats", "dogs"], 12, [10, 14]);
    train(&format!("images {SMALL} --size 8 --epochs 8"), data.path(), out.path());
    let folder = out.path().to_str().unwrap();
    let whole = run(&["predict", folder, data.path().to_str().unwrap()]);
    assert_eq!((whole.code, whole.stderr.as_str()), (Some(0), ""));
    let lines: Vec<Vec<&str>> = whole.stdout.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!((lines[0].join(","), lines.len()), ("file,class,cats,dogs".into(), 25));
    let right = lines[1..].iter().filter(|row| row[0].contains(&format!("/{}/", row[1]))).count();
    assert!(right >= 22, "{}", whole.stdout);
    let one = run(&["predict", folder, data.path().join("dogs/003.png").to_str().unwrap()]).stdout;
    assert_alike(one.lines().last().unwrap(), whole.stdout.lines().find(|line| line.contains("dogs/003.png")).unwrap());
    let empty = tempfile::tempdir().unwrap();
    assert_refused(
        &run(&["predict", folder, empty.path().to_str().unwrap()]),
        &["there is no png or jpeg file in this folder"],
    );
}
