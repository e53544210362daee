//! Quantised weights.

use crate::bench::{Action, Bench, Call, Cost, STORED, Work};
use crate::case::{Case, Domain, Gen};
use crate::registry::common::{NO_GRADIENT, one};
use crate::registry::invocation::Invocation;
use crate::registry::op::Class::{Exact, Stages};
use crate::registry::op::Op;
use isograd_core::quantized::{BlockFormat, QuantizedWeight};
use isograd_core::{DType, Error, Result, Tensor};
use serde_json::json;

/// The formats by their names.
const FORMATS: [(&str, BlockFormat); BlockFormat::ALL.len()] = {
    let mut named = [("", BlockFormat::Q4_0); BlockFormat::ALL.len()];
    let mut i = 0;
    while i < named.len() {
        named[i] = (BlockFormat::ALL[i].name(), BlockFormat::ALL[i]);
        i += 1;
    }
    named
};

/// The most rows of x, more than GPUs multiply with blocks.
const ROWS: usize = 16;

/// The places of scales of f16 in a block.
fn scales(format: BlockFormat) -> &'static [usize] {
    match format {
        BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4K | BlockFormat::Q5K => &[0, 2],
        BlockFormat::Q2K => &[80, 82],
        BlockFormat::Q3K => &[108],
        BlockFormat::Q6K => &[208],
        BlockFormat::Mxfp4 | BlockFormat::Nf4 => &[],
        _ => &[0],
    }
}

/// Blocks of any bits, with scales of moderate size: from 2^-10 to 2^-6.
fn blocks(g: &mut Gen, format: BlockFormat, rows: usize, columns: usize) -> Tensor {
    let row = format.row_bytes(columns).expect("rows are whole blocks");
    let mut bytes: Vec<u8> = (0..rows * row).map(|_| g.bits() as u8).collect();
    for block in bytes.chunks_mut(format.bytes()) {
        for &at in scales(format) {
            block[at + 1] = block[at + 1] & 0x83 | (5 + g.below(4) as u8) << 2;
        }
        match format {
            BlockFormat::Mxfp4 => block[0] = 116 + g.below(8) as u8,
            BlockFormat::Nf4 => block[..4].copy_from_slice(&(g.uniform() as f32).to_le_bytes()),
            _ => {}
        }
    }
    Tensor::from_vec(bytes, (rows, row), g.device()).expect("as many values as the shape has")
}

fn weight(c: &Invocation<'_>, columns: usize) -> Result<QuantizedWeight> {
    QuantizedWeight::new(c.choice("format", &FORMATS)?, c.input("weight")?, columns)
}

/// The weight has as many columns as its blocks have.
fn linear(c: &Invocation<'_>) -> Result<Tensor> {
    let (x, format) = (c.input("x")?, c.choice("format", &FORMATS)?);
    let bytes = c.input("weight")?.dims().last().copied().unwrap_or(0);
    let weight = weight(c, bytes / format.bytes() * format.elements());
    let with_x = |e: Error| Error::new(e.kind(), e.op().to_string(), format!("{}; x is {}", e.message(), x.shape()));
    x.quantized_linear(&weight.map_err(with_x)?, c.optional("bias"))
}

/// A row of few blocks: gradients are taken by every number of x.
fn columns(g: &mut Gen, format: BlockFormat) -> usize {
    match format.elements() {
        _ if g.timed().is_some() => 4096,
        elements @ ..64 => elements * (1 + g.below(2)),
        elements => elements,
    }
}

fn linear_case(g: &mut Gen) -> Case {
    g.at_least_rank(1);
    let (name, format) = g.pick(&FORMATS);
    let columns = columns(g, format);
    let (mut shape, outputs) = match g.timed() {
        Some(elements) => (vec![1, 0], elements / columns),
        // Gradients are taken by every number of x.
        None if g.shape[..g.shape.len() - 1].iter().product::<usize>() > ROWS => (vec![ROWS, 0], g.side()),
        None => (g.shape.clone(), g.side()),
    };
    *shape.last_mut().expect("of rank 1 or more") = columns;
    let mut inputs = vec![("x", g.tensor(Domain::Real, &shape)), ("weight", blocks(g, format, outputs, columns))];
    if g.coin() {
        inputs.push(("bias", g.tensor(Domain::Real, &[outputs])));
    }
    Case::new(json!({"format": name}), inputs)
}

fn dequantize_case(g: &mut Gen) -> Case {
    let (name, format) = g.pick(&FORMATS);
    let columns = columns(g, format);
    let rows = g.timed().map_or_else(|| g.side(), |elements| elements / columns);
    let dtype = g.pick(&[DType::F32, DType::F16, DType::BF16]);
    let attributes = json!({"format": name, "columns": columns, "dtype": dtype.name()});
    Case::new(attributes, vec![("weight", blocks(g, format, rows, columns))])
}

pub(crate) fn ops() -> Vec<Op> {
    vec![
        Op::new("dequantize", |c| one(weight(c, c.size("columns")?)?.dequantize(c.dtype("dtype")?)), dequantize_case)
            .class(Exact)
            .derivative(NO_GRADIENT)
            .also(&["quantized_weight", "dtype"])
            .fused(),
        // A GPU dequantises the weight for more than a few rows, and rounds it to the dtype of x.
        Op::new("quantized_linear", |c| one(linear(c)), linear_case)
            .class(Stages)
            .linear()
            .also(&["quantized_weight"])
            .fused()
            .launches(3, 4)
            .bench(vectors()),
    ]
}

/// A product with one row, as a token is generated.
fn vector(format: BlockFormat, c: &Call) -> Result<Work> {
    let [outputs, width] = [c.dims[0], c.dims[1]];
    let bytes = Tensor::zeros((outputs, format.row_bytes(width).unwrap_or(0)), DType::U8, &c.device)?;
    let (weight, x) = (QuantizedWeight::new(format, &bytes, width)?, c.normal(&[1, width])?);
    Ok(Box::new(move || x.quantized_linear(&weight, None).map(drop)))
}

fn cost(format: BlockFormat, c: &Call) -> Cost {
    let [outputs, width] = [c.dims[0], c.dims[1]];
    let bytes = outputs * format.row_bytes(width).unwrap_or(0);
    Cost { bytes: bytes + c.bytes(outputs + width), flops: 2.0 * outputs as f64 * width as f64 }
}

fn vectors() -> [Bench; 2] {
    let of = |work, cost| Bench::new(&[8192, 8192], Action::Work(work), cost).dtypes(STORED);
    [
        of(|c| vector(BlockFormat::Q4K, c), |c| cost(BlockFormat::Q4K, c)).variant("Q4_K"),
        of(|c| vector(BlockFormat::Q8_0, c), |c| cost(BlockFormat::Q8_0, c)).variant("Q8_0"),
    ]
}
