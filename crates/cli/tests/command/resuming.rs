//! Runs that stop and go on.

use crate::refusing::assert_refused;
use crate::{FILES, ISOGRAD, bits, files, isograd, names, run, saved, train};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Goes on from one folder in another; returns the report without its time.
fn resume(arguments: &str, from: &Path, out: &Path) -> Value {
    let mut report = isograd(&format!("train digits --json {arguments} --resume {}", from.display()), out).json();
    report.as_object_mut().unwrap().remove("seconds").unwrap();
    report
}

#[test]
fn two_epochs_and_two_more_are_four() {
    let adamw = "--optimizer adamw --dtype bf16 --seed 3";
    for options in ["--optimizer adam", "--optimizer sgd --dtype f16", adamw, "--optimizer muon"] {
        let folder = tempfile::tempdir().unwrap();
        let (straight, first, second) =
            (folder.path().join("straight"), folder.path().join("first"), folder.path().join("second"));
        let expected = train(&format!("{options} --epochs 4"), &straight);
        train(&format!("{options} --epochs 2"), &first);
        let before = files(&first);
        // Into another folder, which leaves the first as it was.
        assert_eq!(resume("--epochs 4", &first, &second), expected, "{options}");
        assert_eq!(bits(&second), bits(&straight), "{options}");
        assert_eq!(files(&first), before);
        // And in place.
        assert_eq!(resume("--epochs 4", &first, &first), expected, "{options}");
        assert_eq!(bits(&first), bits(&straight), "{options}");
        assert_eq!(files(&first)["curves.svg"], files(&straight)["curves.svg"]);
    }
}

#[test]
fn a_finished_run_reports_again_what_it_came_to() {
    let folder = tempfile::tempdir().unwrap();
    let report = train("--epochs 1", folder.path());
    let before = files(folder.path());
    assert_eq!(resume("", folder.path(), folder.path()), report);
    assert_eq!(files(folder.path()), before);
}

#[test]
fn a_finished_run_is_saved_to_another_folder_too() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let report = train("--epochs 1", folder.path());
    assert_eq!(resume("", folder.path(), other.path()), report);
    assert_eq!(files(other.path()), files(folder.path()));
}

/// Starts a run that would take long and interrupts it as soon as it has announced itself. Returns the epoch in which
/// it stopped.
#[cfg(unix)]
fn interrupted(arguments: &str, folder: &Path) -> u64 {
    let mut child = Command::new(ISOGRAD)
        .args(arguments.split_whitespace())
        .args(["--epochs", "100000", "--out"])
        .arg(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    lines.find(|line| line.starts_with("digits:")).unwrap();
    let signal = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &signal]).status().unwrap().success());
    let ended: crate::Ended = child.wait_with_output().unwrap().into();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    let progress = &saved(folder)["progress"];
    let expected = format!(
        "stopped after {} steps; go on with: isograd train digits --device cpu --resume {}\n",
        progress["steps"],
        folder.display()
    );
    // The check of the first batch may warn of its small network.
    assert!(ended.stderr.ends_with(&expected), "{}", ended.stderr);
    assert!(progress["batch"].as_u64().unwrap() > 0, "not in mid-epoch: {progress}");
    // Within the first epoch there is no best one.
    let first = if progress["epoch"] == 0 { &FILES[1..] } else { &FILES[..] };
    assert_eq!(names(folder), first);
    progress["epoch"].as_u64().unwrap()
}

#[test]
#[cfg(unix)]
fn a_pipe_in_the_folder_of_a_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Command::new("mkfifo").arg(folder.path().join("checkpoint.safetensors")).status().unwrap().success());
    let resume = folder.path().to_str().unwrap();
    let refused = run(&["train", "digits", "--device", "cpu", "--resume", resume]);
    assert_refused(&refused, &["it is a pipe or a device, expected a file"]);
}

#[test]
#[cfg(unix)]
fn a_second_interrupt_ends_a_command_that_waits() {
    let folder = tempfile::tempdir().unwrap();
    // A pipe that nobody writes to: whoever opens it to read waits for ever.
    let text = folder.path().join("text");
    assert!(Command::new("mkfifo").arg(&text).status().unwrap().success());
    let mut command = Command::new(ISOGRAD);
    command.args(["train", "text", "--device", "cpu", "--out"]).arg(folder.path().join("out")).arg(text);
    let mut child = command.spawn().unwrap();
    let interrupt = || {
        // Until it waits.
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    };
    interrupt();
    interrupt();
    let ended = (0..100).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        child.try_wait().unwrap()
    });
    child.kill().unwrap();
    assert_eq!(ended.and_then(|status| status.code()), Some(130));
}

#[test]
#[cfg(unix)]
fn what_a_killed_run_left_is_removed_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(".isograd-killed.tmp"), "half of a checkpoint").unwrap();
    let ended = isograd("train digits --device cpu --epochs 1 --data nowhere", folder.path());
    assert_eq!(ended.code, Some(1));
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
#[cfg(unix)]
fn interrupted_runs_end_with_the_same_bits() {
    for options in ["--batch-size 2", "--batch-size 2 --dtype f16 --optimizer sgd"] {
        let folder = tempfile::tempdir().unwrap();
        let (straight, stopped) = (folder.path().join("straight"), folder.path().join("stopped"));
        interrupted(&format!("train digits --device cpu --hidden 16 {options}"), &stopped);
        // Once more, from the middle of an epoch.
        let again = format!("train digits --device cpu --resume {}", stopped.display());
        let epochs = interrupted(&again, &stopped) + 1;
        let report = resume(&format!("--epochs {epochs}"), &stopped, &stopped);
        assert_eq!(train(&format!("{options} --epochs {epochs}"), &straight), report, "{options}");
        assert_eq!(bits(&stopped), bits(&straight), "{options}");
        assert_eq!(files(&stopped)["curves.svg"], files(&straight)["curves.svg"]);
    }
}

#[test]
#[cfg(unix)]
fn the_epoch_that_was_interrupted_cannot_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let stopped = folder.path();
    train("--epochs 1 --batch-size 2", stopped);
    let arguments = format!("train digits --device cpu --resume {}", stopped.display());
    let begun = interrupted(&arguments, stopped) + 1;
    let before = files(stopped);
    let ended = isograd(&format!("{arguments} --epochs {}", begun - 1), stopped);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains(&format!("is in epoch {begun} already")), "{}", ended.stderr);
    assert_eq!(files(stopped), before);
}

/// A number below `bound` that looks random.
#[cfg(unix)]
fn scattered(i: u64, bound: u64) -> u64 {
    ((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % bound
}

#[test]
#[cfg(unix)]
fn runs_killed_at_random_moments_resume_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (straight, killed) = (folder.path().join("straight"), folder.path().join("killed"));
    let options = "--epochs 20 --batch-size 8 --dtype f16 --optimizer adamw";
    let expected = train(options, &straight);
    let command = format!("train digits --device cpu --hidden 16 --json {options}");
    let resumed = format!("train digits --device cpu --json --resume {}", killed.display());
    let kills = std::env::var("ISOGRAD_KILLS").map_or(30, |n| n.parse().unwrap());
    for i in 0..kills {
        let begins = !killed.join("checkpoint.safetensors").exists();
        let arguments = if begins { &command } else { &resumed };
        let mut child = Command::new(ISOGRAD)
            .args(arguments.split_whitespace())
            .arg("--out")
            .arg(&killed)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20 + scattered(i, 130)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // The run's files are whole, and the run resumes to its end.
    let last = if killed.join("checkpoint.safetensors").exists() { &resumed } else { &command };
    let mut report = isograd(last, &killed).json();
    report.as_object_mut().unwrap().remove("seconds").unwrap();
    assert_eq!(report, expected);
    assert_eq!(bits(&killed), bits(&straight));
    for file in ["best.safetensors", "curves.svg", "config.json"] {
        assert_eq!(files(&killed)[file], files(&straight)[file], "{file}");
    }
    assert_eq!(names(&killed), names(&straight));
}
