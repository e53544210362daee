//! Options from a file, and the help of each dataset.

use crate::refusing::assert_refused;
use crate::{Ended, files, isograd, names, run, saved};
use std::fs;
use std::path::Path;

/// Trains on the digits as a file says, and then as the command line does.
fn train(settings: &str, folder: &Path, arguments: &str) -> Ended {
    let file = folder.join("settings.toml");
    fs::write(&file, settings).unwrap();
    isograd(&format!("train {arguments} --config {}", file.display()), &folder.join("out"))
}

const SMALL: &str =
    "epochs = 1\nbatch_size = 64\nhidden = [8, 4]\nlr = 0.01\noptimizer = \"sgd\"\njson = true\nseed = 7\n";

#[test]
fn a_file_gives_options_and_the_command_line_wins() {
    let folder = tempfile::tempdir().unwrap();
    let report = train(SMALL, folder.path(), "digits").json();
    let config = saved(&folder.path().join("out"))["config"].clone();
    assert_eq!((&report["epochs"], &report["seed"]), (&1.into(), &7.into()));
    assert_eq!((&config["hidden"], &config["optimizer"]), (&serde_json::json!([8, 4]), &"sgd".into()));
    assert_eq!((&config["batch_size"], &config["lr"]), (&64.into(), &0.01.into()));
    // In the other spelling, with the dataset in the file.
    let settings = SMALL.replace("batch_size", "batch-size") + "dataset = \"digits\"\ndevice = \"cpu\"\n";
    let report = train(&settings, folder.path(), "--seed 8 --hidden 5 --devices cpu,cpu").json();
    let config = saved(&folder.path().join("out"))["config"].clone();
    assert_eq!(
        (&report["seed"], &config["hidden"], &config["batch_size"]),
        (&8.into(), &serde_json::json!([5]), &64.into())
    );
    assert_eq!(report["device"], "cpu and others, 2 ranks");
}

#[test]
fn a_table_has_its_options_and_its_path_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("t.csv");
    let lines: String = (0..60).map(|i| format!("{i},{},{}\n", i % 7, i * 2)).collect();
    fs::write(&table, format!("a,b,c\n{lines}")).unwrap();
    let settings =
        format!("{SMALL}data = {table:?}\nheader = true\nnumbers = true\nclasses = false\ntarget = [\"c\", \"b\"]\n");
    assert!(train(&settings, folder.path(), "csv").json()["validation_loss"].is_number());
    let config = saved(&folder.path().join("out"))["config"].clone();
    assert_eq!(config["table"]["targets"], serde_json::json!(["c", "b"]));
    assert_eq!(config["samples"]["table"]["columns"], serde_json::json!(["a", "b", "c"]));
    // The configuration of this run, again.
    let (again, config) = (folder.path().join("again"), folder.path().join("out/config.json"));
    isograd(&format!("train csv {} --config {} --json", table.display(), config.display()), &again).json();
    let [mut first, mut second] = [files(&folder.path().join("out")), files(&again)];
    for file in ["metrics.jsonl", "checkpoint.safetensors", "curves.png", "curves.svg"] {
        // These files have the time of the run.
        assert!(first.remove(file).is_some() && second.remove(file).is_some());
    }
    assert_eq!(first, second);
    assert_eq!(first.keys().collect::<Vec<_>>(), ["best.safetensors", "config.json"]);
}

#[test]
fn the_configuration_of_a_text_is_taken_too() {
    let folder = tempfile::tempdir().unwrap();
    let (text, out) = (folder.path().join("text.txt"), folder.path().join("out"));
    fs::write(&text, "to be or not to be, ".repeat(50)).unwrap();
    let settings = "steps = 2\nlayers = 1\nwidth = 8\ncontext = 12\nbatch-size = 2\nmodel = \"lstm\"\njson = true\n";
    train(&format!("{settings}dataset = \"text\"\ndata = {text:?}\n"), folder.path(), "").json();
    let config = out.join("config.json");
    let again = folder.path().join("again");
    let ended = isograd(&format!("train text {} --config {} --quiet", text.display(), config.display()), &again);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(fs::read(config).unwrap(), fs::read(again.join("config.json")).unwrap());
}

#[test]
fn files_that_cannot_be_options() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |settings: &str, arguments: &str, expected: &str| {
        let file = folder.path().join("settings.toml");
        assert_refused(&train(settings, folder.path(), arguments), &[file.to_str().unwrap(), expected]);
        assert_eq!(names(folder.path()), ["settings.toml"]);
    };
    refused("hiden = [8]", "digits", "there is no option \"hiden\" of digits; the nearest is \"hidden\"");
    refused("learning_rate = 1", "digits", "there is no option \"learning-rate\" of digits");
    refused("quiet = true\nepochs = ", "digits", "cannot be read: line 2: ");
    refused("quiet = 3", "digits", "quiet: expected true or false, got 3");
    refused("[hidden]\nlayers = 3", "digits", "hidden: expected a number or a text");
    refused("epochs = 3", "", "has no text `dataset`, and the command line names none");
    let missing = isograd("train digits --config nowhere.toml", &folder.path().join("out"));
    assert_refused(&missing, &["cannot read nowhere.toml"]);
    // Values of the file are checked as those of the command line are.
    let ended = train("epochs = 0", folder.path(), "digits");
    assert!(ended.code == Some(2) && ended.stderr.contains("--epochs"), "{}", ended.stderr);
    let ended = train("dataset = \"cifar\"", folder.path(), "");
    assert!(ended.code == Some(2) && ended.stderr.contains("'cifar10'"), "{}", ended.stderr);
}

#[test]
fn the_help_of_a_dataset_has_its_options_and_no_others() {
    let help = |dataset: &str| run(&["train", dataset, "--help"]).stdout;
    let all =
        ["--target", "--size", "--neighbours", "--hidden", "--stem", "--heads", "--context", "--data", "--epochs"];
    let of = |dataset: &str| {
        let text = help(dataset);
        let line = |option: &&&str| text.lines().any(|line| line.trim_start().starts_with(&format!("{option} ")));
        all.iter().filter(|option| line(option)).copied().collect::<Vec<_>>()
    };
    // Networks for images are models of tables as well, as far as a row is a square.
    assert_eq!(of("csv"), ["--target", "--hidden", "--stem", "--data", "--epochs"]);
    assert_eq!(of("digits"), ["--hidden", "--stem", "--epochs"]);
    assert_eq!(of("images"), ["--size", "--hidden", "--stem", "--data", "--epochs"]);
    assert_eq!(of("graph"), ["--neighbours", "--hidden", "--heads", "--data", "--epochs"]);
    assert_eq!(of("text"), ["--heads", "--context", "--data"]);
    assert!(help("csv").contains("[default: mlp]") && help("cifar10").contains("[default: resnet18]"));
    assert!(help("graph").contains("gcn, sage, gat") && !help("csv").contains("gcn"));
    let datasets = run(&["train", "--help"]).stdout;
    assert!(
        ["digits", "mnist", "csv", "cifar100", "images", "graph", "text"].iter().all(|name| datasets.contains(name))
    );
}
