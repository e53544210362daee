//! `isograd runs`: runs side by side, in a table and on a page.

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use console::Term;
use isograd::replace_file;
use isograd::train::{CONFIG, Curve, Epoch, METRICS, Panel, curve_color, panels_svg, shown_number};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Folders within folders that are searched for runs.
const DEPTH: usize = 3;

/// The folder with the runs, and the page.
#[derive(Args, Debug)]
pub struct Runs {
    /// The folder of a run, or a folder with such folders
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Write a page for browsers to this file: curves and settings of all runs
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the curves of all runs as a picture to this file: SVG, light or dark as its reader
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A finished or unfinished run.
struct Run {
    name: String,
    settings: BTreeMap<String, String>,
    history: Vec<Epoch>,
}

pub fn run(options: Runs) -> Result<ExitCode> {
    [&options.html, &options.svg].into_iter().flatten().try_for_each(|path| crate::check_writable(path))?;
    let mut runs = Vec::new();
    let mut damaged = Vec::new();
    find(&options.folder, &options.folder, DEPTH, &mut |run| match run {
        Ok(run) => runs.push(run),
        Err(error) => damaged.push(error),
    });
    if let (true, [_, ..]) = (runs.is_empty(), &damaged[..]) {
        return Err(damaged.swap_remove(0));
    }
    // One run that is damaged hides no others.
    damaged.iter().for_each(|error| crate::tell(&format!("left out: {error:#}")));
    if runs.is_empty() {
        bail!("no folder of a run, with a file {METRICS}, is in {}", options.folder.display());
    }
    let groups = grouped(runs);
    if let Some(path) = &options.html {
        replace_file(path, &[page(&groups)?.as_bytes()])?;
    }
    if let Some(path) = &options.svg {
        replace_file(path, &[svg(&groups)?.as_bytes()])?;
    }
    crate::report(tables(&groups).trim_end(), true)
}

/// Runs whose results can be compared, the best first.
struct Group {
    /// The dataset, and the name of its file or folder.
    name: String,
    runs: Vec<Run>,
}

/// The runs of each kind of data.
fn grouped(runs: Vec<Run>) -> Vec<Group> {
    let mut groups: BTreeMap<String, Vec<Run>> = BTreeMap::new();
    runs.into_iter().for_each(|run| groups.entry(run.data()).or_default().push(run));
    let group = |(name, mut runs): (String, Vec<Run>)| {
        runs.sort_by(|a, b| a.best_loss().total_cmp(&b.best_loss()).then_with(|| a.name.cmp(&b.name)));
        Group { name, runs }
    };
    groups.into_iter().map(group).collect()
}

/// Reads the runs in a folder.
fn find(top: &Path, folder: &Path, depth: usize, take: &mut dyn FnMut(Result<Run>)) {
    let metrics = folder.join(METRICS);
    if metrics.is_file() {
        take(Run::read(top, folder));
    }
    if depth == 0 {
        return;
    }
    let entries = match fs::read_dir(folder).with_context(|| format!("cannot read the folder {}", folder.display())) {
        Ok(entries) => entries,
        Err(error) => return take(Err(error)),
    };
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders.iter().for_each(|inner| find(top, inner, depth - 1, take));
}

impl Run {
    fn read(top: &Path, folder: &Path) -> Result<Run> {
        let inner = folder.strip_prefix(top).unwrap_or(folder).display().to_string();
        let own = || folder.file_name().map_or_else(|| ".".into(), |name| name.to_string_lossy().into_owned());
        let name = if inner.is_empty() { own() } else { inner };
        let path = folder.join(METRICS);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let parsed = |(i, line): (usize, &str)| {
            serde_json::from_str(line)
                .with_context(|| format!("{}, line {}: not the results of an epoch", path.display(), i + 1))
        };
        let history = text.lines().enumerate().map(parsed).collect::<Result<_>>()?;
        let config = isograd_files::read(folder.join(CONFIG)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let mut config: Value = config.unwrap_or(Value::Null);
        // Nobody has chosen what the samples are like.
        if let Some(config) = config.as_object_mut() {
            config.remove("samples");
        }
        let mut settings = BTreeMap::new();
        flatten("", &config, &mut settings);
        Ok(Run { name, settings, history })
    }

    /// The epoch with the lowest validation loss, or training loss if there is no other.
    fn best(&self) -> Option<&Epoch> {
        self.history.iter().filter(|epoch| !loss(epoch).is_nan()).min_by(|a, b| loss(a).total_cmp(&loss(b)))
    }

    /// The dataset, and the name of its file or folder.
    fn data(&self) -> String {
        let dataset = self.settings.get("dataset").map_or("runs without a dataset", String::as_str);
        match self.settings.get("data").map(|path| Path::new(path).file_name().unwrap_or(path.as_ref())) {
            Some(file) => format!("{dataset} {}", file.to_string_lossy()),
            None => dataset.into(),
        }
    }

    fn best_loss(&self) -> f64 {
        self.best().map_or(f64::INFINITY, loss)
    }
}

fn loss(epoch: &Epoch) -> f64 {
    epoch.validation_loss.unwrap_or(epoch.train_loss)
}

/// The fields of an object within objects, with dotted names.
fn flatten(name: &str, value: &Value, settings: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
                flatten(&name, value, settings);
            }
        }
        Value::Null => {}
        Value::String(text) => drop(settings.insert(name.into(), text.clone())),
        other => drop(settings.insert(name.into(), other.to_string())),
    }
}

/// The names of settings that differ between runs, and all names.
fn settings(runs: &[Run]) -> (Vec<&str>, BTreeSet<&str>) {
    let all: BTreeSet<&str> = runs.iter().flat_map(|run| run.settings.keys()).map(String::as_str).collect();
    let differs = |name: &&&str| runs.iter().any(|run| run.settings.get(**name) != runs[0].settings.get(**name));
    (all.iter().filter(differs).copied().collect(), all)
}

/// The cells of a table: a head and a row for each run, the best first.
fn cells(runs: &[Run]) -> Vec<Vec<String>> {
    let (differing, _) = settings(runs);
    let metrics: BTreeSet<&String> = runs.iter().filter_map(Run::best).flat_map(|epoch| epoch.metrics.keys()).collect();
    let mut head: Vec<String> = ["run", "epochs", "best", "loss"].map(String::from).into();
    head.extend(metrics.iter().map(|name| name.to_string()));
    head.push("seconds".into());
    head.extend(differing.iter().map(|name| name.to_string()));
    let row = |run: &Run| {
        let best = run.best();
        let number = |v: Option<f64>| v.map_or("-".into(), shown_number);
        let mut row = vec![run.name.clone(), run.history.len().to_string()];
        row.push(best.map_or("-".into(), |epoch| epoch.epoch.to_string()));
        row.push(number(best.map(loss)));
        row.extend(metrics.iter().map(|name| number(best.and_then(|epoch| epoch.metrics.get(*name).copied()))));
        row.push(run.history.last().map_or("-".into(), |epoch| format!("{:.1}", epoch.seconds)));
        row.extend(differing.iter().map(|name| run.settings.get(*name).cloned().unwrap_or_else(|| "-".into())));
        row
    };
    std::iter::once(head).chain(runs.iter().map(row)).collect()
}

/// Tables, one for each kind of data, as wide as the terminal, or as what they say where there is none.
fn tables(groups: &[Group]) -> String {
    let terminal = Term::stdout();
    let width = terminal.is_term().then(|| terminal.size().1);
    let table = |group: &Group| {
        let mut table = Table::new();
        table.load_style(NOTHING);
        match width {
            Some(width) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
            None => table.set_content_arrangement(ContentArrangement::Disabled),
        };
        table.add_rows(cells(&group.runs));
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let rows: String = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        if groups.len() > 1 { format!("{}\n{rows}", group.name) } else { rows }
    };
    groups.iter().map(table).collect::<Vec<_>>().join("\n")
}

/// One self-contained page: for each kind of data the table, a picture of each number over the epochs, and all settings.
fn page(groups: &[Group]) -> Result<String> {
    let mut text = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>isograd runs</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>\n\
         :root { color-scheme: light dark; }\n\
         body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem; }\n\
         div { overflow-x: auto; }\n\
         table { border-collapse: collapse; margin: 1rem 0; }\n\
         th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; font-variant-numeric: tabular-nums; }\n\
         svg { max-width: 100%; height: auto; }\n\
         .key { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }\n\
         @media (prefers-color-scheme: dark) { svg, .key { filter: invert(0.91) hue-rotate(180deg); } }\n\
         </style></head><body>\n<h1>Runs</h1>\n",
    );
    for Group { name, runs } in groups {
        element(&mut text, "h2", name, "");
        let rows = cells(runs);
        text.push_str("<div><table><tr>");
        rows[0].iter().for_each(|cell| element(&mut text, "th", cell, ""));
        text.push_str("</tr>\n");
        for (i, row) in rows[1..].iter().enumerate() {
            text.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let key = format!("<span class=\"key\" style=\"background:{}\"></span>", curve_color(i));
                element(&mut text, "td", cell, if column == 0 { &key } else { "" });
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</table></div>\n");
        let mut panels = panels(runs, "");
        panels.extend(panel("learning rate", runs, &|epoch| Some(epoch.learning_rate)));
        for panel in panels {
            // A picture within a page needs no namespace.
            text.push_str(&panels_svg("", &[panel], 1)?.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1));
        }
        let (differing, all) = settings(runs);
        text.push_str("<h3>Settings</h3>\n<div><table><tr><th></th>");
        runs.iter().for_each(|run| element(&mut text, "th", &run.name, ""));
        text.push_str("</tr>\n");
        for name in all {
            text.push_str("<tr>");
            element(&mut text, "th", name, if differing.contains(&name) { "&#9679; " } else { "" });
            let value = |run: &Run| run.settings.get(name).map_or("-", String::as_str).to_string();
            runs.iter().for_each(|run| element(&mut text, "td", &value(run), ""));
            text.push_str("</tr>\n");
        }
        text.push_str("</table></div>\n");
        if !differing.is_empty() {
            text.push_str("<p>&#9679; differs between runs.</p>\n");
        }
    }
    text.push_str("</body></html>\n");
    Ok(text)
}

/// The curves of a number of several runs, if there are any.
fn panel(title: &str, runs: &[Run], value: &dyn Fn(&Epoch) -> Option<f64>) -> Option<Panel> {
    let of = |(color, run): (usize, &Run)| {
        let point = |epoch: &Epoch| Some((epoch.epoch as f64, value(epoch).filter(|v| v.is_finite())?));
        Curve { name: run.name.clone(), points: run.history.iter().filter_map(point).collect(), color }
    };
    let curves: Vec<Curve> = runs.iter().enumerate().map(of).filter(|curve| !curve.points.is_empty()).collect();
    (!curves.is_empty()).then(|| Panel { title: title.into(), curves, best: None })
}

/// The losses and each metric; `before` stands in front of their titles.
fn panels(runs: &[Run], before: &str) -> Vec<Panel> {
    let metrics: BTreeSet<&String> =
        runs.iter().flat_map(|run| &run.history).flat_map(|epoch| epoch.metrics.keys()).collect();
    let title = |title: &str| format!("{before}{title}");
    let losses = [
        panel(&title("training loss"), runs, &|epoch| Some(epoch.train_loss)),
        panel(&title("validation loss"), runs, &|epoch| epoch.validation_loss),
    ];
    let others = metrics
        .into_iter()
        .map(|name| panel(&title(&name.replace('_', " ")), runs, &|epoch| epoch.metrics.get(name).copied()));
    losses.into_iter().chain(others).flatten().collect()
}

/// All pictures in one, up to three in a row.
fn svg(groups: &[Group]) -> Result<String> {
    let before = |group: &Group| if groups.len() > 1 { format!("{}: ", group.name) } else { String::new() };
    let all: Vec<Panel> = groups.iter().flat_map(|group| panels(&group.runs, &before(group))).collect();
    Ok(panels_svg("", &all, all.len().clamp(1, 3))?)
}

/// Adds an element with this text, after `before`, which is HTML.
fn element(page: &mut String, tag: &str, text: &str, before: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    // Writing to a string does not fail.
    let _ = write!(page, "<{tag}>{before}{text}</{tag}>");
}
