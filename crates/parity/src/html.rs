//! The page for browsers: a map of kernels by backend and a table of ops, from which the worst case of each opens.

use crate::kernels::{KERNELS, Kernel, checks, ops};
use crate::report::{Finding, Report};
use crate::run::Check;
use serde::Serialize;
use std::collections::BTreeMap;

const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/style.css");
const SCRIPT: &str = include_str!("html/script.js");

/// What the script shows.
#[derive(Serialize)]
struct Data<'a> {
    reports: &'a [Report],
    /// Of each report, those of its findings.
    commands: Vec<Vec<Option<String>>>,
    /// Of each report; the script's numbers are too short for all of them.
    seeds: Vec<String>,
    kernels: Vec<Row>,
}

/// A kernel of the list.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    category: &'static str,
    /// Those that stand for it, with their checks that run it.
    ops: BTreeMap<&'static str, Vec<Check>>,
}

/// The page, of the results of some runs: one file that needs no other. Where several are of one backend, all of them count.
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
    // A string of JSON may have its characters by number, so that none ends the element.
    let data = data.replace('<', "\\u003c");
    PAGE.replace("/* style.css */", STYLE).replace("/* script.js */", SCRIPT).replace("\"report\"", &data)
}
