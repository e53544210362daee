//! Reads `rows.txt`, and makes the inputs of a row.

use isograd::prelude::*;

/// The passes that a row computes of its function: see `rows.txt`.
#[derive(Clone, Copy, PartialEq)]
pub enum Pass {
    Fwd,
    Bwd,
    Sum,
    Step,
    Own,
}

impl Pass {
    fn read(word: &str) -> Pass {
        match word {
            "fwd" => Pass::Fwd,
            "bwd" => Pass::Bwd,
            "sum" => Pass::Sum,
            "step" => Pass::Step,
            "own" => Pass::Own,
            _ => panic!("pass {word}"),
        }
    }

    fn label(self) -> &'static str {
        match self {
            Pass::Fwd => " fwd",
            Pass::Bwd | Pass::Sum => " fwd+bwd",
            Pass::Step | Pass::Own => "",
        }
    }
}

/// One line of results: a function, its inputs, a dtype and a pass.
pub struct Row {
    pub name: String,
    pub function: &'static str,
    pub pass: Pass,
    pub dtype: DType,
    pub inputs: Vec<Input>,
}

/// An input of a row: its shape, and how its elements are made.
#[derive(Clone)]
pub struct Input {
    shape: Vec<usize>,
    scale: f64,
    kind: &'static str,
}

/// Where elements come from.
#[derive(Clone, Copy)]
pub enum Source {
    /// The generator of the device.
    Random,
    /// A hash of position and input, the same in every program.
    Formula,
}

/// All rows, with large or small shapes.
pub fn rows(is_small: bool) -> Vec<Row> {
    let text = include_str!("rows.txt");
    let mut rows: Vec<Row> = Vec::new();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    let starts = (0..lines.len()).filter(|&i| lines[i].contains('|'));
    for start in starts {
        let (head, first) = lines[start].rsplit_once('|').expect("a line has columns");
        let others = lines[start + 1..].iter().take_while(|line| !line.contains('|'));
        let words = first.split_whitespace().chain(others.flat_map(|line| line.split_whitespace()));
        let inputs = inputs(&mut words.into_iter(), is_small);
        let [name, dtypes, passes] = head.split('|').collect::<Vec<_>>()[..] else { panic!("columns of {head}") };
        for tag in dtypes.split_whitespace() {
            for pass in passes.split_whitespace().map(Pass::read) {
                rows.push(Row {
                    name: format!("{}{} {tag}", name.trim(), pass.label()),
                    function: name.trim().trim_end_matches(|c: char| c.is_ascii_digit() || c == '_'),
                    pass,
                    dtype: if tag == "f32" { DType::F32 } else { DType::BF16 },
                    inputs: inputs.clone(),
                });
            }
        }
    }
    rows
}

/// The size of `8192/32`.
fn size(word: &str, is_small: bool) -> usize {
    let (large, small) = word.split_once('/').unwrap_or((word, word));
    (if is_small { small } else { large }).parse().expect("a size is a number")
}

/// The inputs up to the end or a brace.
fn inputs(words: &mut dyn Iterator<Item = &'static str>, is_small: bool) -> Vec<Input> {
    let mut all = Vec::new();
    while let Some(word) = words.next() {
        if word == "}" {
            break;
        }
        if let Some(times) = word.strip_suffix('{') {
            let repeated = inputs(words, is_small);
            (0..size(times, is_small)).for_each(|_| all.extend_from_slice(&repeated));
            continue;
        }
        let (names, rest) = word.split_once('[').expect("an input has extents");
        let (extents, rest) = rest.split_once(']').expect("extents end");
        let (scale, kind) = rest.split_once(':').unwrap_or((rest, ""));
        let input = Input {
            shape: extents.split(',').map(|extent| size(extent, is_small)).collect(),
            scale: scale.strip_prefix('*').map_or(1.0, |scale| scale.parse().expect("a scale is a number")),
            kind,
        };
        all.extend(names.split('+').map(|_| input.clone()));
    }
    all
}

/// Uniform in `[-1, 1)`, in f32, of input number `k`.
pub fn uniform(shape: &[usize], k: usize, source: Source, device: &Device) -> Result<Tensor> {
    let of = |i: usize| {
        let mut h = (i as u32).wrapping_mul(2654435761).wrapping_add((k as u32 + 1).wrapping_mul(40503));
        h = (h ^ h >> 16).wrapping_mul(0x45d9f3b);
        h = (h ^ h >> 16).wrapping_mul(0x45d9f3b);
        ((h ^ h >> 16) >> 8) as f32 / 8388608.0 - 1.0
    };
    match source {
        Source::Random => Tensor::rand(shape, -1.0, 1.0, DType::F32, device, &Rng::new(k as u64 + 1)),
        Source::Formula => Tensor::from_vec((0..shape.iter().product()).map(of).collect::<Vec<f32>>(), shape, device),
    }
}

impl Input {
    /// The tensor of input number `k`.
    pub fn make(&self, k: usize, dtype: DType, source: Source, is_small: bool, device: &Device) -> Result<Tensor> {
        let above = || Tensor::ones(&self.shape, DType::F32, device)?.triu(1);
        let u = uniform(&self.shape, k, source, device)?;
        let scaled = u.mul_scalar(self.scale)?;
        match self.kind {
            "" => scaled.cast(dtype)?.require_grad(),
            "const" => scaled.cast(dtype),
            "positive" => scaled.abs()?.cast(dtype),
            "bit" => u.gt_scalar(0.0)?.cast(dtype),
            "causal" => above()?.mul_scalar(-1e4)?.cast(dtype),
            "later" => above()?.gt_scalar(0.0),
            classes => (u + 1.0).mul_scalar(size(classes, is_small) as f64 / 2.0)?.floor()?.cast(DType::I64),
        }
    }
}
