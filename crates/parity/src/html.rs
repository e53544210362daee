//! The page for browsers: a map of kernels by backend, and a table of ops that links to the worst case of each.

use crate::kernels::{KERNELS, Kernel, checks, ops};
use crate::options::Check;
use crate::report::{Finding, Report};
use serde::Serialize;
use std::collections::BTreeMap;

const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/style.css");
const SCRIPT: &str = include_str!("html/script.js");

/// The data of the script.
#[derive(Serialize)]
struct Data<'a> {
    reports: &'a [Report],
    /// For each report, the commands of its findings.
    commands: Vec<Vec<Option<String>>>,
    /// For each report, its seed as text: the script's numbers cannot represent all seeds.
    seeds: Vec<String>,
    kernels: Vec<Row>,
}

/// A kernel of the list.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    category: &'static str,
    /// The ops that cover it, with their checks that run it.
    ops: BTreeMap<&'static str, Vec<Check>>,
}

/// The page for the results of some runs, as a single file. If several runs are of the same backend, all of them count.
pub fn html(reports: &[Report]) -> String {
    let row = |kernel: &'static Kernel| {
        let ops = ops(kernel).iter().map(|op| (op.name, checks(op, kernel).collect())).collect();
        Row { name: &kernel.name, category: &kernel.category, ops }
    };
    let commands = |report: &Report| report.findings.iter().map(Finding::command).collect();
    let kernels = KERNELS.iter().map(row).collect();
    let seeds = reports.iter().map(|report| report.seed.to_string()).collect();
    let data = Data { reports, commands: reports.iter().map(commands).collect(), seeds, kernels };
    let data = serde_json::to_string(&data).expect("a report has no keys but strings");
    // Characters of a JSON string may be escaped by number, so that none ends the element.
    let data = data.replace('<', "\\u003c");
    PAGE.replace("/* style.css */", STYLE).replace("/* script.js */", SCRIPT).replace("\"report\"", &data)
}
