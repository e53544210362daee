//! Runs that cannot be: each ends with one line that says why and leaves every file as it was.

use crate::{Ended, IMAGES, ISOGRAD, LABELS, checkpoint, files, gzip, idx, isograd, names, saved, train, write_mnist};
use isograd::nn::{Metadata, save};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The one line of an error.
#[track_caller]
pub fn assert_refused(ended: &Ended, expected: &[&str]) {
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert_eq!(ended.stdout, "");
    assert!(ended.stderr.starts_with("error: ") && ended.stderr.lines().count() == 1, "{}", ended.stderr);
    for part in expected {
        assert!(ended.stderr.contains(part), "{:?} does not say {part:?}", ended.stderr);
    }
}

#[test]
fn options_out_of_range() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("train cifar", "similar subcommands exist: 'cifar100', 'cifar10'"),
        ("train", "isograd train <DATASET>"),
        ("train digits --epochs 0", "--epochs"),
        ("train digits --batch-size 0", "not a number of at least 1"),
        ("train digits --hidden 16,", "not a number of at least 1"),
        ("train digits --hidden 16,0", "not a number of at least 1"),
        ("train digits --dtype i32", "none of f32, f64, f16, bf16"),
        ("train digits --optimizer newton", "possible values: sgd, adam, adamw"),
        ("train digits --lr fast", "not a number of at least 0"),
        ("train digits --lr -1", "not a number of at least 0"),
        ("train digits --lr nan", "not a number of at least 0"),
        ("train digits --lr inf", "not a number of at least 0"),
        ("train digits --seed -1", "-1"),
        ("train digits --resume somewhere --hidden 16", "cannot be used with"),
        ("train digits --patience 0", "--patience"),
        ("train images --size 0", "not a number of at least 1"),
        ("train images --augment rotate", "possible values: none, crop, flip"),
        ("train images here --data there", "cannot be used with"),
        ("train images --resume somewhere --augment flip", "cannot be used with"),
        ("train digits --model transformer", "invalid value 'transformer'"),
    ];
    for (arguments, expected) in cases {
        let ended = isograd(arguments, &folder.path().join("out"));
        assert_eq!(ended.code, Some(2), "{arguments}: {}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{arguments}: {}", ended.stderr);
    }
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn options_that_do_not_fit_together() {
    let out = tempfile::tempdir().unwrap();
    let refused = |arguments: &str, expected: &str| {
        assert_refused(&isograd(&format!("{arguments} --json"), out.path()), &[expected]);
        assert_eq!(names(out.path()), [""; 0], "{arguments}");
    };
    refused(
        "train digits --device quantum",
        "there is no device \"quantum\"; this program was built with: cuda, hip, opencl, cpu",
    );
    refused("train digits --device cpu:99", "cpu has 1 device(s)");
    refused("train digits --device cpu:x", "the part after the colon is not a number");
    refused("train digits --data .", "--data is for mnist, csv, cifar10, cifar100, images");
    refused("train digits .", "--data is for mnist, csv, cifar10, cifar100, images");
    refused("train digits --model lenet", "images have 28 x 28 pixels, but samples of digits");
    refused("train digits --model lenet --hidden 16", "--hidden is for mlp");
    refused("train mnist --augment flip", "--augment is for cifar10, cifar100, images");
    refused("train cifar10 --size 64", "--size is for images");
    refused("train digits --stem cifar", "--stem is for resnet18, resnet34, resnet50");
    refused("train digits --channels-last", "--channels-last is for lenet, resnet18");
    refused("train digits --header", "--header is for csv");
    refused("train mnist --target label", "--target is for csv");
    refused("train cifar10 --augment none,flip", "none beside other changes");
    refused("train images", "images needs --data DIR with a folder of images for each class");
    refused("train csv", "csv needs --data FILE");
    refused("train mnist", "mnist needs --data DIR");
}

#[test]
fn a_run_that_diverges_keeps_its_last_checkpoint() {
    let out = tempfile::tempdir().unwrap();
    let ended = isograd("train digits --json --epochs 3 --optimizer sgd --lr 1e30", out.path());
    assert_refused(&ended, &["the loss is", "a smaller learning rate may help"]);
    assert_eq!(names(out.path()), [""; 0]);
}

#[test]
#[cfg(target_os = "linux")]
fn stdout_that_takes_nothing() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    for arguments in [&["devices"][..], &["train", "digits", "--epochs", "1", "--json", "--out", out]] {
        let ended = Command::new(ISOGRAD).args(arguments).stdout(full()).output().unwrap().into();
        assert_refused(&ended, &["cannot write to stdout: No space left"]);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn stderr_that_takes_nothing() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    for arguments in
        [&["train", "digits", "--device", "quantum"][..], &["kernels", "xyzzy"], &["diff", "cpu", "quantum"]]
    {
        let status = Command::new(ISOGRAD).args(arguments).stderr(full()).stdout(full()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{arguments:?}");
    }
}

/// Runs a shell's pipeline whose first part is this command; returns how that one ended, without what it printed.
#[cfg(unix)]
fn piped(arguments: &str, reader: &str) -> Ended {
    let script = format!("\"$0\" {arguments} | {reader} > /dev/null; exit ${{PIPESTATUS[0]}}");
    Command::new("bash").args(["-c", &script, ISOGRAD]).output().unwrap().into()
}

#[test]
#[cfg(unix)]
fn a_pipe_that_is_closed_ends_the_command_quietly() {
    let out = tempfile::tempdir().unwrap();
    let train = format!("train digits --epochs 1 --hidden 4 --device cpu --out {}", out.path().display());
    for arguments in
        ["devices", "kernels", "kernels gelu", &train, "parity --device cpu --filter ^abs$ --dtype f32 --quick"]
    {
        // Closed before anything is written.
        let ended = piped(arguments, "exec 0<&-; sleep 0.2");
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{arguments}");
    }
    let ended = piped("kernels", "head -n 1");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    // A check that fails says so, whoever reads its report.
    let failing = "parity --device cpu --repeat none";
    assert_ne!(piped(failing, "exec 0<&-").code, Some(0));
}

#[test]
fn mnist_folders_that_lack_files() {
    let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let missing = data.path().join("missing");
    let run = |data: &Path| isograd(&format!("train mnist --json --data {}", data.display()), out.path());
    let expected = "expected t10k-images-idx3-ubyte or t10k-images-idx3-ubyte.gz";
    assert_refused(&run(&missing), &[missing.to_str().unwrap(), expected]);
    assert_refused(&run(data.path()), &[data.path().to_str().unwrap(), expected]);
    write_mnist(data.path(), [2, 5]);
    fs::remove_file(data.path().join(LABELS)).unwrap();
    assert_refused(&run(data.path()), &[data.path().to_str().unwrap(), LABELS]);
    assert_eq!(names(out.path()), [""; 0]);
}

#[test]
fn idx_files_that_are_damaged() {
    let out = tempfile::tempdir().unwrap();
    let pixels = [1; 1000];
    let images = idx(&[100, 2, 5], &pixels);
    let packed = gzip(&images);
    let mut wrong_sum = packed.clone();
    let sum = wrong_sum.len() - 8;
    wrong_sum[sum] ^= 1;
    let cases = [
        ("empty", vec![], "within the magic number"),
        ("another rank", [&[0, 0, 8, 2][..], &images[4..]].concat(), "goes on after its end"),
        ("a picture", b"\x89PNG\r\n\x1a\n and more".to_vec(), "the magic number is 89504e47"),
        ("labels", idx(&[100], &[1; 100]), "images are u8 of rank 3"),
        ("cut in the extents", images[..10].to_vec(), "within the extents"),
        ("cut in the pixels", images[..500].to_vec(), "cannot hold"),
        ("a size beyond the file", idx(&[u32::MAX, 28, 28], &pixels), "cannot hold"),
        ("more than it says", idx(&[99, 2, 5], &pixels), "goes on after its end"),
        ("gzip, cut", packed[..packed.len() - 4].to_vec(), "corrupt or truncated"),
        ("gzip, wrong sum", wrong_sum, "corrupt or truncated"),
        ("gzip, nothing but its magic", packed[..2].to_vec(), "corrupt or truncated"),
        ("another number of images", idx(&[50, 4, 5], &pixels), "100 labels, expected 50"),
        ("no images", idx(&[0, 2, 5], &[]), "0 images of 2 x 5 pixels, expected at least one pixel"),
        ("no pixels", idx(&[100, 0, 5], &[]), "100 images of 0 x 5 pixels, expected at least one pixel"),
    ];
    for (name, bytes, expected) in cases {
        println!("{name}");
        let data = tempfile::tempdir().unwrap();
        write_mnist(data.path(), [2, 5]);
        fs::write(data.path().join(IMAGES), bytes).unwrap();
        let ended = isograd(&format!("train mnist --json --data {}", data.path().display()), out.path());
        assert_refused(&ended, &[expected, data.path().to_str().unwrap(), "t10k-"]);
        assert_eq!(names(out.path()), [""; 0]);
    }
}

#[test]
fn mnist_parts_that_do_not_belong_together() {
    let (data, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = |name: &str| data.path().join(name);
    write_mnist(data.path(), [2, 5]);
    let run = || isograd(&format!("train mnist --json --data {}", data.path().display()), out.path());
    fs::write(path("train-images-idx3-ubyte"), idx(&[3, 2, 2], &[1; 12])).unwrap();
    fs::write(path("train-labels-idx1-ubyte"), idx(&[3], &[1, 2, 3])).unwrap();
    assert_refused(&run(), &[path(IMAGES).to_str().unwrap(), "2 x 5", "2 x 2"]);
    // One image cannot be both for training and for testing.
    fs::remove_file(path("train-images-idx3-ubyte")).unwrap();
    fs::remove_file(path("train-labels-idx1-ubyte")).unwrap();
    fs::write(path(IMAGES), idx(&[1, 2, 5], &[1; 10])).unwrap();
    fs::write(path(LABELS), idx(&[1], &[1])).unwrap();
    assert_refused(&run(), &[data.path().to_str().unwrap(), "0 samples to train on and 1 to test with"]);
    assert_eq!(names(out.path()), [""; 0]);
}

/// Resumes the digits from `folder` for more epochs than it has.
fn resume(folder: &Path) -> Ended {
    isograd(&format!("train digits --json --epochs 9 --resume {}", folder.display()), folder)
}

#[test]
fn checkpoints_that_are_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint.safetensors");
    train("--epochs 1", folder.path());
    let whole = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let refused = |bytes: Vec<u8>, what: &str| {
        fs::write(&path, &bytes).unwrap();
        let before = files(folder.path());
        println!("{what}");
        assert_refused(&resume(folder.path()), &[path.to_str().unwrap(), "not a whole safetensors file"]);
        assert_eq!(files(folder.path()), before, "{what}");
    };
    for length in [0, 1, 7, 8, 9, 8 + header / 2, 8 + header - 1, 8 + header, 8 + header + 5, whole.len() - 1] {
        refused(whole[..length].to_vec(), &format!("{length} of {} bytes", whole.len()));
    }
    refused([&whole[..], b"more"].concat(), "longer than it was");
    // In the header's length, in its braces and words, and everywhere in the data.
    let at = |word: &str| whole.windows(word.len()).position(|w| w == word.as_bytes()).unwrap();
    let words = ["epochs", "F32", "data_offsets", "model.0.weight", "seed"].map(at);
    let data = (0..8).map(|i| 8 + header + i * (whole.len() - 8 - header) / 8);
    for position in [0, 1, 7, 8].into_iter().chain(words).chain(data).chain([whole.len() - 1]) {
        let mut flipped = whole.clone();
        flipped[position] ^= 4;
        refused(flipped, &format!("byte {position} flipped"));
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(resume(folder.path()).json()["epochs"], 9);
}

#[test]
fn checkpoints_of_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint.safetensors");
    let missing = isograd(&format!("train digits --json --resume {}", folder.path().display()), folder.path());
    assert_refused(&missing, &[path.to_str().unwrap(), "reading failed"]);
    train("--epochs 1", folder.path());
    let (contents, metadata) = (checkpoint(folder.path()), saved(folder.path()));
    let refused = |change: &dyn Fn(&mut Value), expected: &str| {
        let mut metadata = metadata.clone();
        change(&mut metadata);
        let texts = json!({ "progress": metadata["progress"].to_string(), "config": metadata["config"].to_string() });
        let text = json!({ "rngs": metadata["rngs"], "texts": texts }).to_string();
        save(&path, &contents.tensors, &Metadata::from([("isograd.checkpoint".into(), text)])).unwrap();
        let before = files(folder.path());
        assert_refused(&resume(folder.path()), &[path.to_str().unwrap(), expected]);
        assert_eq!(files(folder.path()), before, "{expected}");
    };
    refused(&|m| m["config"]["hidden"] = json!([17]), "0.weight is f32 [16, 64], expected f32 [17, 64]");
    refused(&|m| m["config"]["hidden"] = json!([16, 16]), "4.weight is missing");
    refused(&|m| m["config"]["dtype"] = json!("f64"), "0.weight is f32 [16, 64], expected f64 [16, 64]");
    refused(&|m| m["config"]["optimizer"] = json!("sgd"), "unexpected");
    refused(&|m| m["config"]["dataset"] = json!("mnist"), "is a run of mnist, not digits");
    refused(&|m| m["config"]["optimizer"] = json!("newton"), "its config cannot be read: unknown variant `newton`");
    refused(&|m| m["rngs"] = json!({}), "it has no generator");
    refused(&|m| m["progress"] = json!({}), "its progress cannot be read: missing field");
    refused(&|m| m["rngs"] = json!([]), "no checkpoint of a training run");
    // The texts of an earlier version.
    let text = json!({ "config": metadata["config"], "progress": metadata["progress"] }).to_string();
    save(&path, &contents.tensors, &Metadata::from([("isograd.train".into(), text)])).unwrap();
    assert_refused(&resume(folder.path()), &[path.to_str().unwrap(), "a checkpoint of an earlier version"]);
    // Weights without this program's texts, and without its checksum.
    save(&path, &contents.tensors, &Metadata::new()).unwrap();
    assert_refused(&resume(folder.path()), &[path.to_str().unwrap(), "no checkpoint of a training run"]);
    let whole = fs::read(&path).unwrap();
    let text = String::from_utf8_lossy(&whole[8..]).find("isograd.crc32").unwrap() + 8;
    let renamed = [&whole[..text], b"isograd.crc3-", &whole[text + 13..]].concat();
    fs::write(&path, renamed).unwrap();
    assert_refused(&resume(folder.path()), &[path.to_str().unwrap(), "it has no checksum (isograd.crc32)"]);
}

#[test]
fn out_that_is_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "kept").unwrap();
    for out in [file.clone(), file.join("below")] {
        let ended = isograd("train digits --json --epochs 1", &out);
        assert_refused(&ended, &["creating the folder failed", out.to_str().unwrap()]);
    }
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
#[cfg(target_os = "linux")]
fn out_that_nobody_can_write_to() {
    // Not even root writes here.
    for (out, expected) in
        [("/proc/isograd", "creating the folder failed"), ("/proc/self", "writing to the folder failed")]
    {
        assert_refused(&isograd("train digits --json --epochs 1", Path::new(out)), &[expected, out]);
    }
}

/// Runs the command with files limited to so many KiB, beyond which writing fails as on a full disk.
#[cfg(unix)]
fn with_small_disk(kib: u32, arguments: &str, out: &Path) -> Ended {
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" {arguments} --out \"$1\"");
    Command::new("bash").args(["-c", &script, ISOGRAD]).arg(out).output().unwrap().into()
}

#[test]
#[cfg(unix)]
fn a_full_disk_leaves_the_earlier_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let ended = with_small_disk(1, "train digits --json --epochs 1", folder.path());
    assert_refused(&ended, &[&path("best.safetensors"), "writing failed: File too large"]);
    assert_eq!(names(folder.path()), [""; 0]);

    train("--epochs 1", folder.path());
    let before = files(folder.path());
    let arguments = format!("train digits --json --epochs 2 --resume {}", folder.path().display());
    let ended = with_small_disk(1, &arguments, folder.path());
    assert_refused(&ended, &[&path("best.safetensors"), "writing failed: File too large"]);
    assert_eq!(files(folder.path()), before);

    // Four KiB are enough for this checkpoint, but not for the curves.
    let small = tempfile::tempdir().unwrap();
    let ended = with_small_disk(4, "train digits --json --epochs 1 --hidden 1 --optimizer sgd", small.path());
    let curves = small.path().join("curves.svg").display().to_string();
    assert_refused(&ended, &[&curves, "writing failed: File too large"]);
    assert_eq!(names(small.path()), ["best.safetensors", "checkpoint.safetensors", "config.json", "metrics.jsonl"]);
    assert_eq!(resume(small.path()).json()["epochs"], 9);
}

/// The command as a user who may have this many threads: root's threads are not counted. `None` where no such user can be had.
#[cfg(target_os = "linux")]
fn with_threads(count: usize, arguments: &str) -> Option<Ended> {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let command = folder.path().join("isograd");
    if fs::hard_link(ISOGRAD, &command).is_err() {
        fs::copy(ISOGRAD, &command).unwrap();
    }
    // A user of no other process.
    let user = (1_000_000_000 + std::process::id()).to_string();
    let run = |count: usize, what: &str| {
        let script = format!("ulimit -u {count}; exec setpriv --reuid {user} --regid {user} --clear-groups {what}");
        Command::new("bash").current_dir(&folder).args(["-c", &script]).output().unwrap()
    };
    // A subshell is a process more. (Bash tries again for half a minute.)
    let (plain, forks) = (run(1, "sh -c :"), run(1, "sh -c '(:) & wait $!'"));
    if !plain.status.success() || (forks.status.success() && forks.stderr.is_empty()) {
        let said = String::from_utf8_lossy(&plain.stderr);
        eprintln!("skipped: this user cannot become one that may have few threads: {said}");
        return None;
    }
    Some(run(count, &format!("./isograd {arguments}")).into())
}

#[test]
#[cfg(target_os = "linux")]
fn a_system_that_starts_no_thread() {
    let train = "train digits --device cpu --json --epochs 1 --out out";
    for (count, arguments, expected) in [
        (1, train, "cpu: Device: no thread can be started"),
        (1, "eval out", "cpu: Device: no thread can be started"),
        (2, train, "loader: Value: no thread could be started"),
    ] {
        let Some(ended) = with_threads(count, arguments) else { return };
        assert_refused(&ended, &[expected]);
    }
}

#[test]
fn more_threads_than_a_system_has_room_for_are_not_started() {
    let output = Command::new(ISOGRAD).arg("devices").env("RAYON_NUM_THREADS", "5000").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let cores = std::thread::available_parallelism().unwrap().get();
    assert!(said.contains(&format!(", {} threads", (4 * cores).max(64))), "{said}");
}
