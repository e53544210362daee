//! The `isograd` command as a user starts it: what it prints, what it writes, and what it says when it cannot go on.

use safetensors::SafeTensors;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

fn isograd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isograd"));
    command.stdin(Stdio::null()).env("NO_COLOR", "1");
    command
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// `isograd train digits` on the CPU with these options.
fn train(out: &Path, options: &[&str]) -> Output {
    let fixed = ["train", "digits", "--device", "cpu", "--hidden", "16", "--out"];
    isograd().args(fixed).arg(out).args(options).output().expect("the command starts")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_str(stdout(output).lines().last().expect("a line")).expect("JSON")
}

/// The report without how long it took.
fn numbers(output: &Output) -> Value {
    let mut report = json(output);
    report["seconds"].take();
    report
}

/// All tensors of a run's checkpoint, by name.
fn tensors(out: &Path) -> Vec<(String, Vec<u8>)> {
    let bytes = fs::read(out.join("checkpoint.safetensors")).expect("a checkpoint");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut all: Vec<_> = file.iter().map(|(name, view)| (name.to_string(), view.data().to_vec())).collect();
    all.sort();
    assert!(all.len() > 4, "weights, optimizer state and random state");
    all
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut all: Vec<_> = entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    all.sort();
    all
}

/// Checks that the command fails with one line that contains all of `expected`.
fn assert_fails(output: &Output, expected: &[&str]) {
    let message = stderr(output);
    let code = output.status.code();
    assert!(code.is_some_and(|code| code != 0 && code != 101), "{code:?}: {message}");
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    for part in expected {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

#[test]
fn devices_lists_the_cpu() {
    let text = stdout(&isograd().arg("devices").output().expect("the command starts"));
    assert!(text.lines().any(|line| line.starts_with("cpu ") && line.contains("threads")), "{text}");
}

#[test]
fn json_is_one_object_and_the_same_every_time() {
    let (first, second, other) = (folder(), folder(), folder());
    let options = ["--epochs", "2", "--json"];
    let a = train(first.path(), &options);
    assert_eq!(stdout(&a).lines().count(), 1);
    let mut keys: Vec<String> = json(&a).as_object().expect("an object").keys().cloned().collect();
    keys.sort();
    let expected = ["dataset", "device", "dtype", "epochs", "seconds", "seed", "steps", "test_accuracy", "train_loss"];
    assert_eq!(keys, expected);
    let report = json(&a);
    assert_eq!(
        (&report["dataset"], &report["device"], &report["dtype"]),
        (&"digits".into(), &"cpu".into(), &"f32".into())
    );
    assert_eq!(
        (report["epochs"].as_u64(), report["steps"].as_u64(), report["seed"].as_u64()),
        (Some(2), Some(90), Some(42))
    );
    assert!(report["test_accuracy"].as_f64().is_some_and(|v| v > 0.5 && v <= 1.0), "{report}");
    assert_eq!(names(first.path()), ["checkpoint.safetensors", "curves.svg"]);
    let curves = fs::read_to_string(first.path().join("curves.svg")).expect("curves");
    assert!(curves.contains("<svg") && curves.contains("digits"), "{curves}");

    let b = train(second.path(), &options);
    assert_eq!(numbers(&a), numbers(&b));
    assert_eq!(tensors(first.path()), tensors(second.path()));
    let c = train(other.path(), &["--epochs", "2", "--json", "--seed", "43"]);
    assert_ne!(json(&a)["train_loss"], json(&c)["train_loss"]);
    assert_ne!(tensors(first.path()), tensors(other.path()));
}

#[test]
fn every_dtype_and_optimizer_learns() {
    let cases = [("f32", "sgd"), ("f64", "adamw"), ("f16", "adam"), ("bf16", "adamw")];
    for (dtype, optimizer) in cases {
        let out = folder();
        let report = json(&train(out.path(), &["--epochs", "8", "--json", "--dtype", dtype, "--optimizer", optimizer]));
        assert_eq!(report["dtype"], dtype);
        assert!(report["test_accuracy"].as_f64().is_some_and(|v| v > 0.85), "{dtype} {optimizer}: {report}");
    }
}

#[test]
fn a_resumed_run_ends_with_the_same_bits() {
    for dtype in ["f32", "f16"] {
        let (whole, parts) = (folder(), folder());
        let at_once = train(whole.path(), &["--epochs", "4", "--json", "--dtype", dtype]);
        stdout(&train(parts.path(), &["--epochs", "2", "--dtype", dtype]));
        let rest = isograd()
            .args(["train", "digits", "--device", "cpu", "--epochs", "4", "--json", "--resume"])
            .arg(parts.path())
            .output()
            .expect("the command starts");
        assert_eq!(numbers(&at_once), numbers(&rest));
        assert_eq!(tensors(whole.path()), tensors(parts.path()));
    }
}

/// Starts a long run, and interrupts it once its first checkpoint is there.
#[cfg(unix)]
fn interrupted(out: &Path, epochs: &str) -> Output {
    let mut command = isograd();
    command.args(["train", "digits", "--device", "cpu", "--hidden", "256,256", "--epochs", epochs, "--out"]).arg(out);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    for _ in 0..600 {
        if out.join("checkpoint.safetensors").exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill starts");
    assert!(killed.success());
    child.wait_with_output().expect("the command ends")
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_saves_says_how_to_go_on_and_ends_with_the_same_bits() {
    // Where it is interrupted is chance; within an epoch, nearly always.
    let parts = folder();
    let output = interrupted(parts.path(), "100000");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(message.contains(&format!("--resume {}", parts.path().display())), "{message}");
    let done = |out: &Path| {
        let bytes = fs::read(out.join("checkpoint.safetensors")).expect("a checkpoint");
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a header");
        let text = header.metadata().clone().expect("metadata")["isograd"].clone();
        serde_json::from_str::<Value>(&text).expect("JSON")["progress"]["epoch"].as_u64().expect("an epoch")
    };
    let epochs = (done(parts.path()) + 1).to_string();
    let rest = isograd()
        .args(["train", "digits", "--device", "cpu", "--json", "--epochs", &epochs, "--resume"])
        .arg(parts.path())
        .output()
        .expect("the command starts");
    let whole = folder();
    let at_once = isograd()
        .args(["train", "digits", "--device", "cpu", "--json", "--hidden", "256,256", "--epochs", &epochs, "--out"])
        .arg(whole.path())
        .output()
        .expect("the command starts");
    assert_eq!(numbers(&at_once), numbers(&rest));
    assert_eq!(tensors(whole.path()), tensors(parts.path()));
}

#[test]
fn wrong_options_are_refused() {
    let out = folder();
    assert_fails(&train(out.path(), &["--dtype", "f32", "--data", "somewhere"]), &["digits", "--data"]);
    let unknown = isograd().args(["train", "digits", "--device", "gpu:7", "--out"]).arg(out.path()).output();
    assert_fails(&unknown.expect("the command starts"), &["gpu:7", "cpu"]);
    let nothing = isograd().args(["train", "mnist", "--out"]).arg(out.path()).output().expect("the command starts");
    assert_fails(&nothing, &["mnist", "--data"]);
    for bad in [
        ["--epochs", "x"],
        ["--batch-size", "0"],
        ["--hidden", "0"],
        ["--dtype", "i32"],
        ["--optimizer", "x"],
        ["--lr", "-1"],
        ["--lr", "inf"],
    ] {
        let output = train(out.path(), &bad);
        assert_eq!(output.status.code(), Some(2), "{bad:?}");
        assert!(stderr(&output).contains(bad[1]), "{}", stderr(&output));
    }
    assert_eq!(names(out.path()), [] as [String; 0]);
}

/// A folder with MNIST's four files, tiny.
fn tiny_mnist() -> TempDir {
    let folder = folder();
    for (part, count) in [("train", 20u32), ("t10k", 10)] {
        let header =
            |magic: u32, dims: &[u32]| [&[magic], dims].concat().iter().flat_map(|v| v.to_be_bytes()).collect();
        let mut images: Vec<u8> = header(0x803, &[count, 28, 28]);
        images.extend((0..count * 784).map(|i| (i % 251) as u8));
        let mut labels: Vec<u8> = header(0x801, &[count]);
        labels.extend((0..count).map(|i| (i % 10) as u8));
        fs::write(folder.path().join(format!("{part}-images-idx3-ubyte")), images).expect("a file");
        fs::write(folder.path().join(format!("{part}-labels-idx1-ubyte")), labels).expect("a file");
    }
    folder
}

fn train_mnist(data: &Path, out: &Path) -> Output {
    let fixed = ["train", "mnist", "--device", "cpu", "--hidden", "4", "--epochs", "1", "--json", "--data"];
    isograd().args(fixed).arg(data).arg("--out").arg(out).output().expect("the command starts")
}

#[test]
fn damaged_data_is_refused_by_name() {
    let out = folder();
    let data = tiny_mnist();
    assert_eq!(json(&train_mnist(data.path(), out.path()))["dataset"], "mnist");
    assert_fails(&train_mnist(&data.path().join("nowhere"), out.path()), &["nowhere"]);

    let path = data.path().join("train-images-idx3-ubyte");
    let whole = fs::read(&path).expect("images");
    let changed = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        bytes
    };
    let gzip_cut = [&[0x1f, 0x8b, 8, 0][..], &whole[..40]].concat();
    let damaged = [
        whole[..whole.len() - 1].to_vec(),
        whole[..3].to_vec(),
        Vec::new(),
        [&whole[..], &[0]].concat(),
        changed(0, 7),
        changed(4, 255),
        gzip_cut,
    ];
    for bytes in damaged {
        let before = names(out.path());
        fs::write(&path, bytes).expect("images");
        assert_fails(&train_mnist(data.path(), out.path()), &["train-images-idx3-ubyte"]);
        assert_eq!(names(out.path()), before);
    }
}

fn resume(out: &Path) -> Output {
    let fixed = ["train", "digits", "--device", "cpu", "--epochs", "3", "--json", "--resume"];
    isograd().args(fixed).arg(out).output().expect("the command starts")
}

#[test]
fn a_damaged_or_foreign_checkpoint_is_refused() {
    let out = folder();
    stdout(&train(out.path(), &["--epochs", "1"]));
    let path = out.path().join("checkpoint.safetensors");
    let whole = fs::read(&path).expect("a checkpoint");
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().expect("8 bytes")) as usize;
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let mut damaged: Vec<Vec<u8>> =
        [0, 4, 8, header / 2, header, header + 100, whole.len() - 1].map(|n| whole[..n].to_vec()).to_vec();
    damaged.extend([7, 20, header + 5, whole.len() - 1].map(flipped));
    for bytes in damaged {
        fs::write(&path, &bytes).expect("a checkpoint");
        assert_fails(&resume(out.path()), &["checkpoint.safetensors"]);
        assert_eq!(fs::read(&path).expect("a checkpoint"), bytes, "what cannot be read is left alone");
    }
    // A checkpoint of something else.
    let mnist = folder();
    json(&train_mnist(tiny_mnist().path(), mnist.path()));
    assert_fails(&resume(mnist.path()), &["mnist", "digits"]);
    assert_fails(&resume(&out.path().join("nowhere")), &["nowhere"]);
    let conflict = train(out.path(), &["--resume", "somewhere", "--hidden", "8"]);
    assert_eq!(conflict.status.code(), Some(2));
}

#[test]
fn a_folder_that_cannot_be_written_is_refused_before_training() {
    let place = folder();
    let file = place.path().join("file");
    fs::write(&file, "mine").expect("a file");
    for out in [file.clone(), file.join("below"), PathBuf::from("/proc/isograd")] {
        assert_fails(&train(&out, &["--epochs", "1"]), &[&out.display().to_string()]);
    }
    assert_eq!(fs::read_to_string(&file).expect("a file"), "mine");
}

/// A limit on the size of files stands for a full disk: writing fails half way.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_earlier_checkpoint() {
    let out = folder();
    stdout(&train(out.path(), &["--epochs", "1"]));
    let before = tensors(out.path());
    let full = |arguments: &str| {
        let script = format!("trap '' XFSZ; ulimit -f 8; exec {} {arguments}", env!("CARGO_BIN_EXE_isograd"));
        Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).output().expect("bash starts")
    };
    let there = out.path().display();
    let resumed = full(&format!("train digits --device cpu --epochs 2 --json --resume {there}"));
    assert_fails(&resumed, &["checkpoint.safetensors"]);
    assert_eq!(names(out.path()), ["checkpoint.safetensors", "curves.svg"]);
    assert_eq!(tensors(out.path()), before);
    let fresh = folder();
    let started = full(&format!("train digits --device cpu --epochs 1 --json --out {}", fresh.path().display()));
    assert_fails(&started, &["checkpoint.safetensors"]);
    assert_eq!(names(fresh.path()), [] as [String; 0]);
}
