//! LSTM, GRU and plain recurrent networks over sequences, and their cells: sequences of one step.

use crate::graph::{Value, int, text, texts};
use crate::translation::{Found, Translation, absent};
use isograd_core::{DType, Result};

/// The operands of an op, by name.
struct Operands {
    x: Value,
    input: Value,
    hidden: Value,
    input_bias: Option<Value>,
    hidden_bias: Option<Value>,
    h: Option<Value>,
    c: Option<Value>,
    lengths: Option<Value>,
}

pub fn translate(t: &mut Translation<'_>) -> Found {
    if t.flag("has_projection")? {
        return absent("ONNX has no projection of hidden states");
    }
    let of = operands(t)?;
    let is_cell = t.op.name.ends_with("_cell");
    // The blocks of ours in the order of ONNX: i, o, f, g of i, f, g, o, and z, r, n of r, z, n.
    let (op, order): (_, &[usize]) = match t.op.name {
        "lstm" | "lstm_cell" => ("LSTM", &[0, 3, 1, 2]),
        "gru" | "gru_cell" => ("GRU", &[1, 0, 2]),
        _ => ("RNN", &[0]),
    };
    let width = t.op.inputs[1].dims()[0] / order.len();
    let rows: Vec<i64> = order.iter().flat_map(|&block| block * width..(block + 1) * width).map(|r| r as i64).collect();
    let rows = t.graph.ints(&rows)?;
    let w = blocks(t, of.input, rows, op)?;
    let r = blocks(t, of.hidden, rows, op)?;
    let bias = match (of.input_bias, of.hidden_bias) {
        (None, None) => None,
        (input, hidden) => {
            let zeros = t.graph.full(&[order.len() * width], 0.0, t.op.inputs[0].dtype())?;
            let (input, hidden) = (input.unwrap_or(zeros), hidden.unwrap_or(zeros));
            let (input, hidden) = (blocks(t, input, rows, op)?, blocks(t, hidden, rows, op)?);
            Some(t.graph.node("Concat", &[input, hidden], &[int("axis", 1)]))
        }
    };
    let lengths = of.lengths.map(|lengths| t.cast(lengths, DType::I32));
    let h = of.h.map(|h| t.unsqueeze(h, &[0])).transpose()?;
    let c = of.c.map(|c| t.unsqueeze(c, &[0])).transpose()?;
    let x = if is_cell { t.unsqueeze(of.x, &[0])? } else { of.x };
    let direction = if t.flag("reverse")? { "reverse" } else { "forward" };
    let mut attributes = vec![int("hidden_size", width as i64), text("direction", direction)];
    match op {
        "GRU" => attributes.push(int("linear_before_reset", 1)),
        "RNN" if t.flag("is_relu")? => attributes.push(texts("activations", &["Relu"])),
        _ => {}
    }
    let outputs = if op == "LSTM" { 3 } else { 2 };
    let inputs = [Some(x), Some(w), Some(r), bias, lengths, h, c];
    let inputs = if op == "LSTM" { &inputs[..] } else { &inputs[..6] };
    let found = t.graph.node_of(op, inputs, &attributes, outputs);
    // Y is [T, 1, B, H], the last states are [1, B, H].
    let states = t.squeeze(found[0], &[1])?;
    let last: Vec<Value> = found[1..].iter().map(|&v| t.squeeze(v, &[0])).collect::<Result<_>>()?;
    Ok(if is_cell { last } else { [vec![states], last].concat() })
}

fn operands(t: &Translation<'_>) -> Found<Operands> {
    let mut rest = t.inputs[3..].iter().copied();
    let mut next = |name: &str| Found::Ok(if t.flag(name)? { rest.next() } else { None });
    let (input_bias, hidden_bias) = (next("has_input_bias")?, next("has_hidden_bias")?);
    let (h, c, lengths) = (next("has_state")?, next("has_cell_state")?, next("has_lengths")?);
    Ok(Operands { x: t.inputs[0], input: t.inputs[1], hidden: t.inputs[2], input_bias, hidden_bias, h, c, lengths })
}

/// A parameter with its blocks of rows in the order of ONNX, and a dimension for the direction.
fn blocks(t: &mut Translation<'_>, parameter: Value, rows: Value, op: &str) -> Result<Value> {
    let ordered = match op {
        "RNN" => parameter,
        _ => t.graph.node("Gather", &[parameter, rows], &[int("axis", 0)]),
    };
    t.unsqueeze(ordered, &[0])
}
