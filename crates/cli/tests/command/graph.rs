//! Graphs from a folder of files.

use crate::refusing::assert_refused;
use crate::{bits, isograd, run, saved};
use isograd::data::karate_club;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Features of nodes as a table or an array.
#[derive(Clone, Copy)]
enum Features {
    Csv,
    Npy,
}

/// The karate club: each pair once, one feature for each member, four members to train with and six to validate with.
fn write_karate(folder: &Path, features: Features) {
    let club = karate_club();
    let lines = |lines: Vec<String>| lines.join("\n") + "\n";
    let edges = lines(club.edges.iter().map(|[a, b]| format!("{a},{b}")).collect());
    fs::write(folder.join("edges.csv"), format!("source,target\n{edges}")).unwrap();
    let split = |member: usize| match member {
        0 | 3 | 31 | 33 => "train",
        1 | 5 | 12 | 23 | 27 | 29 => "valid",
        _ => "test",
    };
    let labels = club.clubs.iter().enumerate().map(|(i, label)| format!("{label},{}", split(i))).collect();
    fs::write(folder.join("labels.csv"), lines(labels)).unwrap();
    let unit = |i: usize| (0..34).map(move |j| f32::from(u8::from(i == j)));
    match features {
        Features::Csv => {
            let rows = (0..34).map(|i| unit(i).map(|v| v.to_string()).collect::<Vec<_>>().join(",")).collect();
            fs::write(folder.join("features.csv"), lines(rows)).unwrap();
        }
        Features::Npy => {
            let header = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (34, 34), }");
            let values: Vec<u8> = (0..34).flat_map(unit).flat_map(f32::to_le_bytes).collect();
            let bytes = [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), &values].concat();
            fs::write(folder.join("features.npy"), bytes).unwrap();
        }
    }
}

fn train(arguments: &str, data: &Path, out: &Path) -> Value {
    let data = data.display();
    isograd(&format!("train graph {data} --undirected --device cpu --json {arguments}"), out).json()
}

fn share(report: &Value, key: &str) -> f64 {
    report[key].as_f64().unwrap_or_else(|| panic!("{report} has no {key}"))
}

#[test]
fn every_network_learns_the_karate_club() {
    let folders = [Features::Csv, Features::Npy].map(|features| {
        let folder = tempfile::tempdir().unwrap();
        write_karate(folder.path(), features);
        folder
    });
    for (model, wrong) in [("gcn", 1), ("gat", 1), ("sage", 3)] {
        let out = tempfile::tempdir().unwrap();
        let found = train(&format!("--model {model} --seed 8"), folders[0].path(), out.path());
        // Of 24 members.
        assert!(share(&found, "test_accuracy") >= f64::from(24 - wrong) / 24.0, "{model}: {found}");
        assert!(share(&found, "validation_accuracy") >= 0.8, "{model}: {found}");
        assert_eq!(found["steps"], 200);
        let last = run(&[
            "eval",
            &out.path().display().to_string(),
            "--json",
            "--device",
            "cpu",
            "--data",
            &folders[0].path().display().to_string(),
        ]);
        assert_eq!(last.json()["test_loss"], found["test_loss"]);
        assert_eq!(last.json()["samples"], 24);
        if model == "gcn" {
            let other = tempfile::tempdir().unwrap();
            assert_eq!(train("--seed 8", folders[1].path(), other.path())["test_loss"], found["test_loss"]);
        }
    }
}

#[test]
fn mini_batches_of_neighbours_learn_and_a_resumed_run_has_the_same_bits() {
    let [data, whole, half] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    write_karate(data.path(), Features::Csv);
    let options = "--neighbours all,4 --batch 3 --hidden 16";
    let found = train(&format!("{options} --epochs 60"), data.path(), whole.path());
    // Four members are two batches.
    assert_eq!(found["steps"], 120);
    assert!(share(&found, "test_accuracy") >= 0.8, "{found}");
    train(&format!("{options} --epochs 25"), data.path(), half.path());
    let data = data.path().display();
    let resume = format!("train graph {data} --device cpu --json --epochs 60 --resume {}", half.path().display());
    assert_eq!(isograd(&resume, half.path()).json()["test_loss"], found["test_loss"]);
    assert_eq!(bits(half.path()), bits(whole.path()));
    let config = &saved(half.path())["config"]["graph"];
    assert_eq!((&config["neighbours"][0], &config["undirected"]), (&Value::from("all"), &Value::from(true)));
}

#[test]
fn graphs_and_options_that_do_not_fit() {
    let [data, out] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    write_karate(data.path(), Features::Csv);
    let refused = |arguments: &str, expected: &str| {
        let arguments = arguments.replace("DIR", &data.path().display().to_string());
        assert_refused(&isograd(&format!("{arguments} --json"), out.path()), &[expected]);
    };
    refused("train graph", "graph needs --data DIR with edges.csv, features.csv or features.npy, and labels.csv");
    refused("train graph DIR --model mlp", "--model mlp is not for graph, but gcn, sage, gat");
    refused("train digits --model gat", "--model gat is not for digits, but mlp, lenet");
    refused("train graph DIR --neighbours 5", "--neighbours has 1 numbers, expected one for each of 2 layers");
    refused("train graph DIR --batch-size 5", "--batch-size of graph needs --neighbours");
    refused("train graph DIR --heads 2", "--heads is for gat");
    refused("train digits --undirected", "--undirected is for graph");
    fs::write(data.path().join("edges.csv"), "0,34\n").unwrap();
    refused("train graph DIR", "edges.csv: Format: line 1: expected a node in 0..34, got \"34\"");
}
