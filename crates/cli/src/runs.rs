//! `isograd runs`: runs side by side, in a table and on a page.

use anyhow::{Context, Result, bail};
use clap::Args;
use isograd::replace_file;
use isograd::train::{CONFIG, Epoch, METRICS};
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
    runs.sort_by(|a, b| a.best_loss().total_cmp(&b.best_loss()).then_with(|| a.name.cmp(&b.name)));
    if let Some(path) = &options.html {
        replace_file(path, &[page(&runs).as_bytes()])?;
    }
    if let Some(path) = &options.svg {
        replace_file(path, &[svg(&runs).as_bytes()])?;
    }
    crate::report(table(&runs).trim_end(), true)
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
        let number = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.4}"));
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

fn table(runs: &[Run]) -> String {
    let rows = cells(runs);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Colours that are told apart on a light and on a dark ground.
const COLORS: [&str; 8] = ["#3b82f6", "#ef4444", "#22a559", "#d97706", "#a855f7", "#0ea5b7", "#db2777", "#7c8698"];
/// Width and height of a picture, and the room at its left and below it.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const BELOW: f64 = 26.0;

/// One self-contained page: the table, a picture of each number over the epochs, and all settings.
fn page(runs: &[Run]) -> String {
    let mut text = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>isograd runs</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>\n\
         :root { color-scheme: light dark; }\n\
         body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem; }\n\
         table { border-collapse: collapse; margin: 1rem 0; }\n\
         th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; font-variant-numeric: tabular-nums; }\n\
         svg { max-width: 100%; height: auto; margin: .5rem 1.5rem .5rem 0; }\n\
         text { font: 12px system-ui, sans-serif; fill: currentColor; }\n\
         .grid { stroke: #8884; } .key { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }\n\
         </style></head><body>\n<h1>Runs</h1>\n",
    );
    let rows = cells(runs);
    text.push_str("<table><tr>");
    rows[0].iter().for_each(|cell| element(&mut text, "th", cell, ""));
    text.push_str("</tr>\n");
    for (i, row) in rows[1..].iter().enumerate() {
        text.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let key = format!("<span class=\"key\" style=\"background:{}\"></span>", COLORS[i % COLORS.len()]);
            element(&mut text, "td", cell, if column == 0 { &key } else { "" });
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</table>\n");
    pictures(runs).iter().for_each(|picture| text.push_str(picture));
    picture(&mut text, "learning rate", runs, |epoch| Some(epoch.learning_rate));
    let (differing, all) = settings(runs);
    text.push_str("<h2>Settings</h2>\n<table><tr><th></th>");
    runs.iter().for_each(|run| element(&mut text, "th", &run.name, ""));
    text.push_str("</tr>\n");
    for name in all {
        text.push_str("<tr>");
        element(&mut text, "th", name, if differing.contains(&name) { "&#9679; " } else { "" });
        runs.iter().for_each(|run| element(&mut text, "td", run.settings.get(name).map_or("-", String::as_str), ""));
        text.push_str("</tr>\n");
    }
    text.push_str("</table>\n");
    if !differing.is_empty() {
        text.push_str("<p>&#9679; differs between runs.</p>\n");
    }
    text.push_str("</body></html>\n");
    text
}

/// A picture of the losses and of each metric.
fn pictures(runs: &[Run]) -> Vec<String> {
    let metrics: BTreeSet<&String> =
        runs.iter().flat_map(|run| &run.history).flat_map(|epoch| epoch.metrics.keys()).collect();
    let drawn = |title: &str, value: &dyn Fn(&Epoch) -> Option<f64>| {
        let mut text = String::new();
        picture(&mut text, title, runs, value);
        text
    };
    let mut all =
        vec![drawn("training loss", &|epoch| Some(epoch.train_loss)), drawn("validation loss", &|e| e.validation_loss)];
    all.extend(
        metrics.into_iter().map(|name| drawn(&name.replace('_', " "), &|epoch| epoch.metrics.get(name).copied())),
    );
    all.retain(|picture| !picture.is_empty());
    all
}

/// All pictures in one, up to three in a row, and under them the runs by their colours, if there are several.
fn svg(runs: &[Run]) -> String {
    let pictures = pictures(runs);
    let columns = pictures.len().clamp(1, 3);
    let rows = pictures.len().div_ceil(columns);
    let names = if runs.len() > 1 { runs } else { &[] };
    let (width, height) = (WIDTH * columns as f64, HEIGHT * rows as f64 + 20.0 * names.len() as f64);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <style>:root {{ background: #fff; color: #1b1f24; }} text {{ font: 12px system-ui, sans-serif; fill: currentColor; }}\n\
         .grid {{ stroke: #8884; }} @media (prefers-color-scheme: dark) {{ :root {{ background: #12161b; color: #e4e8ec; }} }}</style>\n",
    );
    for (i, picture) in pictures.iter().enumerate() {
        let (x, y) = (WIDTH * (i % columns) as f64, HEIGHT * (i / columns) as f64);
        text.push_str(&picture.replacen("<svg ", &format!("<svg x=\"{x}\" y=\"{y}\" "), 1));
    }
    for (i, run) in names.iter().enumerate() {
        let (y, color) = (HEIGHT * rows as f64 + 20.0 * i as f64, COLORS[i % COLORS.len()]);
        let name = escaped(&run.name);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "<rect x=\"{LEFT}\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{color}\"/><text x=\"{}\" y=\"{}\">{name}</text>",
            LEFT + 16.0,
            y + 10.0
        );
    }
    text + "</svg>\n"
}

/// Adds an element with this text, after `before`, which is HTML.
fn element(page: &mut String, tag: &str, text: &str, before: &str) {
    let _ = write!(page, "<{tag}>{before}{}</{tag}>", escaped(text));
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Adds the curves of a number over the epochs. The axis is logarithmic if the largest is at least 20 times the smallest.
fn picture(page: &mut String, title: &str, runs: &[Run], value: impl Fn(&Epoch) -> Option<f64>) {
    let points = |run: &Run| -> Vec<(f64, f64)> {
        let of = |epoch: &Epoch| Some((epoch.epoch as f64, value(epoch).filter(|v| v.is_finite())?));
        run.history.iter().filter_map(of).collect()
    };
    let curves: Vec<Vec<(f64, f64)>> = runs.iter().map(points).collect();
    let all = || curves.iter().flatten();
    let (low, high) = all().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), p| (low.min(p.1), high.max(p.1)));
    let last = all().map(|p| p.0).fold(1.0, f64::max);
    if low > high {
        return;
    }
    let is_log = low > 0.0 && high >= 20.0 * low;
    let scaled = |v: f64| if is_log { v.ln() } else { v };
    let (from, to) = (scaled(low), scaled(high));
    let range = if to > from { to - from } else { 1.0 };
    let x = |epoch: f64| LEFT + (WIDTH - LEFT - 10.0) * if last > 1.0 { (epoch - 1.0) / (last - 1.0) } else { 0.5 };
    let y = |v: f64| HEIGHT - BELOW - (HEIGHT - BELOW - 30.0) * (scaled(v) - from) / range;
    // Writing to a string does not fail.
    let _ = write!(
        page,
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\">\
         <text x=\"{LEFT}\" y=\"16\">{0}{1}</text>",
        escaped(title),
        if is_log { " (logarithmic)" } else { "" }
    );
    for step in 0..=4 {
        let at = from + range * step as f64 / 4.0;
        let v = if is_log { at.exp() } else { at };
        let line = y(v);
        let _ = write!(
            page,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{line:.1}\" y2=\"{line:.1}\"/><text x=\"4\" y=\"{:.1}\">{}</text>",
            WIDTH - 10.0,
            line + 4.0,
            short(v)
        );
    }
    let _ = write!(
        page,
        "<text x=\"{LEFT}\" y=\"{0}\">1</text><text x=\"{1}\" y=\"{0}\" text-anchor=\"end\">epoch {last}</text>",
        HEIGHT - 8.0,
        WIDTH - 10.0
    );
    for (i, curve) in curves.iter().enumerate().filter(|(_, curve)| !curve.is_empty()) {
        let places: Vec<String> = curve.iter().map(|&(epoch, v)| format!("{:.1},{:.1}", x(epoch), y(v))).collect();
        let color = COLORS[i % COLORS.len()];
        let _ = write!(
            page,
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.6\" points=\"{}\"><title>{}</title></polyline>",
            places.join(" "),
            escaped(&runs[i].name)
        );
    }
    page.push_str("</svg>\n");
}

/// A number in few digits.
fn short(v: f64) -> String {
    if v != 0.0 && (v.abs() < 1e-3 || v.abs() >= 1e5) {
        format!("{v:.1e}")
    } else {
        let digits = [1.0, 10.0, 100.0, 1000.0].iter().filter(|from| v.abs() < **from).count();
        let text = format!("{v:.digits$}");
        if digits > 0 { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
    }
}
