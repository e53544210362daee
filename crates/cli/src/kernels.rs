//! `isograd kernels`.

use crate::print;
use anyhow::{Result, anyhow, bail};
use clap::Args;
use isograd::pointwise::{Domain, Pointwise};
use isograd::{DType, Kernel};
use isograd_gpu::Dialect;
use isograd_gpu::catalogue::{self, Entry, GENERATED};
use std::process::ExitCode;

/// How alike two names are that somebody may have confused.
const ALIKE: f64 = 0.85;
/// Names that an error offers, at most.
const OFFERED: usize = 8;

/// The options of `isograd kernels`.
#[derive(Args, Debug)]
pub struct Kernels {
    /// The kernel whose source is printed, as in the list or with its file before it: normalization/norm_backward.c/norm_backward
    name: Option<String>,
    /// The dialect: cuda, hip or opencl, where it is in this program [default: the first that is]
    #[arg(long)]
    dialect: Option<String>,
    /// The dtype of the operands [default: f32]
    #[arg(long, requires = "name")]
    dtype: Option<DType>,
}

/// Lists the kernels, or prints one as the dialect's compiler receives it. No device is needed.
pub fn run(options: Kernels) -> Result<ExitCode> {
    let dialect = dialect(options.dialect.as_deref())?;
    let entries = catalogue::entries(dialect)?;
    match &options.name {
        None => list(&entries)?,
        Some(name) => {
            let source = chosen(&entries, name)?.source(dialect, options.dtype.unwrap_or(DType::F32))?;
            print(source.trim_end())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn dialect(name: Option<&str>) -> Result<&'static Dialect> {
    let all = catalogue::dialects();
    let found = all.iter().find(|dialect| name.is_none_or(|name| dialect.name == name));
    let names: Vec<_> = all.iter().map(|dialect| dialect.name).collect();
    found.copied().ok_or_else(|| {
        let wanted = name.map(|name| format!("there is no dialect {name:?}; ")).unwrap_or_default();
        anyhow!("{wanted}this program was built with: {}", names.join(", "))
    })
}

/// The kernel of this name.
fn chosen<'a>(entries: &'a [Entry], name: &str) -> Result<&'a Entry> {
    let found: Vec<&Entry> = entries.iter().filter(|e| e.name == name || qualified(e) == name).collect();
    match found[..] {
        [entry] => Ok(entry),
        [] => bail!("there is no kernel {name:?}; {}", near(entries, name)),
        _ => {
            let names: Vec<String> = found.iter().map(|entry| qualified(entry)).collect();
            bail!("{name:?} is several kernels: {}", names.join(", "))
        }
    }
}

fn qualified(entry: &Entry) -> String {
    format!("{}/{}", entry.file, entry.name)
}

/// What may have been meant.
fn near(entries: &[Entry], name: &str) -> String {
    let likeness = |entry: &Entry| {
        if entry.name.contains(name) { 1.0 } else { strsim::jaro_winkler(&entry.name, name) }
    };
    let mut names: Vec<(f64, &str)> = entries.iter().map(|entry| (likeness(entry), entry.name.as_str())).collect();
    names.retain(|(likeness, _)| *likeness >= ALIKE);
    names.sort_by(|a, b| b.0.total_cmp(&a.0));
    let names: Vec<&str> = names.into_iter().map(|(_, name)| name).take(OFFERED).collect();
    match names.is_empty() {
        true => "`isograd kernels` lists all".to_string(),
        false => format!("near it are {}", names.join(", ")),
    }
}

fn list(entries: &[Entry]) -> Result<()> {
    let written: Vec<&Entry> = entries.iter().filter(|entry| entry.file != GENERATED).collect();
    for file in written.chunk_by(|a, b| a.file == b.file) {
        let names: Vec<&str> = file.iter().map(|entry| entry.name.as_str()).collect();
        print(&format!("{:<12} {}", file[0].file, names.join(" ")))?;
    }
    print(&format!("\n{GENERATED}, generated: name, inputs, attributes, outputs, numbers"))?;
    entries.iter().filter_map(|entry| Some((entry, entry.kernel?))).try_for_each(|(entry, kernel)| match kernel {
        Kernel::Pointwise(row) => print(&described(row)),
        _ => print(&entry.name),
    })
}

fn described(row: Pointwise) -> String {
    let domain = match row.domain() {
        Domain::Real => "floats",
        Domain::Any => "floats, integers",
        Domain::Integer => "integers",
    };
    let kind = if row.is_inout() { ", in place" } else { "" };
    let [inputs, attributes, outputs] = [row.inputs(), row.attributes(), row.outputs()];
    format!("{:<28} {inputs:>2} {attributes:>2} {outputs:>2}  {domain}{kind}", row.name())
}
