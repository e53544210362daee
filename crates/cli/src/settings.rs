//! Options of `isograd train` from a file: TOML, or the configuration that the folder of a run keeps.

use crate::datasets;
use anyhow::{Context, Result, bail};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// The option that names the file.
const OPTION: &str = "--config";

/// The command line of `isograd train` with the options of the file that --config names. Options that are given on the command line,
/// and those that exclude them, are not taken from the file. Other command lines stay as they are.
pub fn expanded(command: Command, mut arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let is_train = arguments.get(1).is_some_and(|name| name == "train");
    let Some(path) = file(&arguments).filter(|_| is_train) else { return Ok(arguments) };
    let path = Path::new(&path);
    let (settings, is_saved) = read(path)?;
    let shown = path.display();
    if arguments.get(2).is_some_and(|word| word.as_encoded_bytes().starts_with(b"-")) {
        let dataset = settings.iter().find(|(key, _)| key == "dataset").and_then(|(_, value)| value.as_str());
        let dataset =
            dataset.with_context(|| format!("{shown} has no text `dataset`, and the command line names none"))?;
        arguments.insert(2, dataset.into());
    }
    let Some(dataset) = arguments[2].to_str().map(String::from) else { return Ok(arguments) };
    let Some(options) = command.find_subcommand("train").and_then(|train| train.find_subcommand(&dataset)).cloned()
    else {
        // Parsing says which datasets there are.
        return Ok(arguments);
    };
    let mut options = options;
    options.build();
    let given = given(command, &arguments, &dataset);
    let model = settings.iter().find(|(key, _)| key == "model").and_then(|(_, value)| value.as_str());
    let mut added = Vec::new();
    for (key, value) in settings.iter().filter(|(key, _)| key != "dataset") {
        let known =
            |arg: &&Arg| arg.get_long() == Some(key) || arg.get_all_aliases().is_some_and(|all| all.contains(&&**key));
        let Some(arg) = options.get_arguments().find(known) else {
            bail!("{shown}: there is no option {key:?} of {dataset}{}", nearest(&options, key));
        };
        // A saved configuration has the options of every dataset and model.
        if is_saved && !datasets::takes(&dataset, model, key) {
            continue;
        }
        if !is_excluded(&options, arg, &given) {
            added.extend(words(arg, key, value).with_context(|| format!("{shown}: {key}"))?);
        }
    }
    arguments.splice(3..3, added);
    Ok(arguments)
}

/// The file of --config.
fn file(arguments: &[OsString]) -> Option<OsString> {
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if word == OPTION {
            return words.next().cloned();
        }
        if let Some(path) = word.to_str().and_then(|word| word.strip_prefix(OPTION)?.strip_prefix('=')) {
            return Some(path.into());
        }
    }
    None
}

/// The options of a file by their long names, and whether the file is a saved configuration.
fn read(path: &Path) -> Result<(Vec<(String, Value)>, bool)> {
    let content = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let is_saved = content.trim_start().starts_with('{');
    let cannot = || format!("{} cannot be read", path.display());
    let value: Value = match is_saved {
        true => serde_json::from_str(&content).with_context(cannot)?,
        false => toml::from_str(&content).map_err(|error| {
            let line =
                error.span().map_or(1, |span| content[..span.start.min(content.len())].matches('\n').count() + 1);
            anyhow::anyhow!("line {line}: {}", error.message().replace('\n', ", ")).context(cannot())
        })?,
    };
    let mut found = Vec::new();
    for (key, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::Object(_) if key == "samples" => {}
            Value::Object(part) if is_saved => found.extend(part.iter().map(|(key, value)| named(key, value))),
            _ => found.push(named(key, value)),
        }
    }
    // Nothing is said by what a saved configuration does not have.
    found.retain(|(_, value)| !is_saved || !matches!(value, Value::Null));
    found.retain(|(key, value)| !is_saved || key == "augment" || value.as_array().is_none_or(|all| !all.is_empty()));
    Ok((found, is_saved))
}

/// An option by its name on the command line.
fn named(key: &str, value: &Value) -> (String, Value) {
    let value = match value {
        Value::Array(all) if key == "augment" && all.is_empty() => "none".into(),
        other => other.clone(),
    };
    let key = if key == "targets" { "target".into() } else { key.replace('_', "-") };
    (key, value)
}

/// The options of a dataset that the command line gives.
fn given(command: Command, arguments: &[OsString], dataset: &str) -> Vec<String> {
    // Wrong options are reported when all of them are parsed.
    let Ok(matches) = command.ignore_errors(true).try_get_matches_from(arguments) else { return Vec::new() };
    let inner = |matches: &ArgMatches, name: &str| matches.subcommand_matches(name).cloned();
    let Some(matches) = inner(&matches, "train").and_then(|train| inner(&train, dataset)) else { return Vec::new() };
    let is_given = |id: &str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
    matches.ids().map(|id| id.as_str()).filter(|id| is_given(id)).map(String::from).collect()
}

/// True if the command line gives this option, or one that excludes it.
fn is_excluded(options: &Command, arg: &Arg, given: &[String]) -> bool {
    options.get_arguments().filter(|other| given.iter().any(|id| id == other.get_id().as_str())).any(|other| {
        let excludes = |a: &Arg, b: &Arg| options.get_arg_conflicts_with(a).iter().any(|c| c.get_id() == b.get_id());
        other.get_id() == arg.get_id() || excludes(arg, other) || excludes(other, arg)
    })
}

/// An option as words of the command line. Errors: a value that an option cannot have.
fn words(arg: &Arg, key: &str, value: &Value) -> Result<Vec<OsString>> {
    let option = || OsString::from(format!("--{key}"));
    let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
    match value {
        Value::Bool(is_on) if is_flag => Ok(if *is_on { vec![option()] } else { Vec::new() }),
        other if is_flag => bail!("expected true or false, got {other}"),
        Value::Array(all) if arg.get_value_delimiter().is_some() => {
            let all = all.iter().map(scalar).collect::<Result<Vec<_>>>()?;
            Ok(vec![option(), all.join(",").into()])
        }
        Value::Array(all) => {
            let each = |value: &Value| Ok([option(), scalar(value)?.into()]);
            Ok(all.iter().map(each).collect::<Result<Vec<_>>>()?.concat())
        }
        value => Ok(vec![option(), scalar(value)?.into()]),
    }
}

/// A number or a text.
fn scalar(value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => bail!("expected a number or a text, got {other}"),
    }
}

/// The option whose name is the most like this one.
fn nearest(options: &Command, key: &str) -> String {
    let names = options.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long);
    let by_likeness = |a: &&str, b: &&str| strsim::jaro_winkler(a, key).total_cmp(&strsim::jaro_winkler(b, key));
    names.max_by(by_likeness).map_or_else(String::new, |name| format!("; the nearest is {name:?}"))
}
