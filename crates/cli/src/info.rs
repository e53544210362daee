//! `isograd info`: what a file of weights has, without its numbers.

use crate::print;
use anyhow::Result;
use clap::Args;
use isograd::Shape;
use isograd::nn::gguf::{Gguf, is_gguf};
use isograd::nn::shapes;
use std::path::PathBuf;
use std::process::ExitCode;

/// The options of `isograd info`.
#[derive(Args, Debug)]
pub struct Info {
    /// A safetensors file, one of PyTorch, a GGUF file, an index of several files, or a folder with one of them
    path: PathBuf,
}

/// Prints the metadata and the tensors, each on a line, and their number.
pub fn run(options: Info) -> Result<ExitCode> {
    let path = &options.path;
    if !is_gguf(path)? {
        let tensors = shapes(path)?;
        table(tensors.iter().map(|(name, shape)| [printable(name), shape.to_string()]).collect())?;
        total(tensors.values())?;
        return Ok(ExitCode::SUCCESS);
    }
    let file = Gguf::open(path)?;
    table(file.metadata.iter().map(|(key, value)| [printable(key), shortened(&value.to_string())]).collect())?;
    print("")?;
    let mut tensors: Vec<_> = file.tensors.iter().collect();
    tensors.sort_by_key(|(_, packed)| packed.offset());
    let rows = tensors.iter().map(|(name, packed)| {
        [
            printable(name),
            packed.kind().to_string(),
            packed.shape().to_string(),
            format!("{} bytes", packed.bytes().len()),
        ]
    });
    table(rows.collect())?;
    total(tensors.iter().map(|(_, packed)| packed.shape()))?;
    Ok(ExitCode::SUCCESS)
}

/// The characters of a value that are printed.
const SHOWN: usize = 200;

/// A text on one line, without characters that a terminal obeys.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.into() }).collect()
}

/// A printable text that is cut if it is long, such as the template of a chat.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}.. ({} characters)", printable(&text[..end]), text.chars().count()),
        None => printable(text),
    }
}

/// Prints rows with columns below each other.
pub fn table<const N: usize>(rows: Vec<[String; N]>) -> Result<()> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        print(cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

fn total<'a>(shapes: impl ExactSizeIterator<Item = &'a Shape>) -> Result<()> {
    let count = shapes.len();
    let numbers: usize = shapes.map(Shape::numel).sum();
    print(&format!("{count} tensors, {numbers} numbers"))
}
