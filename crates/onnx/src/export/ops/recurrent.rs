//! LSTM, GRU and plain recurrent networks over sequences, and their cells: sequences of one step.

use crate::export::graph::{Value, int, text, texts};
use crate::export::translation::{Found, Translation, absent};
use isograd_core::ops::TimeOrder;
use isograd_core::ops::recurrent::RecurrentLayer;
use isograd_core::ops::recurrent::kernel::Cell;
use isograd_core::{DType, Result};

pub fn translate(t: &mut Translation<'_>) -> Found {
    let (layer, of) = t.described::<RecurrentLayer>()?;
    if of.projection.is_some() {
        return absent("ONNX has no projection of hidden states");
    }
    let is_cell = layer.order.is_none();
    // The blocks of ours in the order of ONNX: i, o, f, g of i, f, g, o, and z, r, n of r, z, n.
    let (op, order): (_, &[usize]) = match layer.cell {
        Cell::Lstm => ("LSTM", &[0, 3, 1, 2]),
        Cell::Gru => ("GRU", &[1, 0, 2]),
        Cell::Tanh | Cell::Relu => ("RNN", &[0]),
    };
    let width = t.tensors::<RecurrentLayer>()?.input.0.dims()[0] / order.len();
    let rows: Vec<i64> = order.iter().flat_map(|&block| block * width..(block + 1) * width).map(|r| r as i64).collect();
    let rows = t.graph.ints(&rows)?;
    let w = blocks(t, of.input, rows, op)?;
    let r = blocks(t, of.hidden, rows, op)?;
    let bias = match (of.input_bias, of.hidden_bias) {
        (None, None) => None,
        (input, hidden) => {
            let zeros = t.graph.full(&[order.len() * width], 0.0, t.x().dtype())?;
            let (input, hidden) = (input.unwrap_or(zeros), hidden.unwrap_or(zeros));
            let (input, hidden) = (blocks(t, input, rows, op)?, blocks(t, hidden, rows, op)?);
            Some(t.graph.node("Concat", &[input, hidden], &[int("axis", 1)]))
        }
    };
    let lengths = of.lengths.map(|lengths| t.cast(lengths, DType::I32));
    let h = of.h.map(|h| t.unsqueeze(h, &[0])).transpose()?;
    let c = of.c.map(|c| t.unsqueeze(c, &[0])).transpose()?;
    let x = if is_cell { t.unsqueeze(of.x, &[0])? } else { of.x };
    let direction = if layer.order == Some(TimeOrder::Reverse) { "reverse" } else { "forward" };
    let mut attributes = vec![int("hidden_size", width as i64), text("direction", direction)];
    match layer.cell {
        Cell::Gru => attributes.push(int("linear_before_reset", 1)),
        Cell::Relu => attributes.push(texts("activations", &["Relu"])),
        Cell::Lstm | Cell::Tanh => {}
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

/// A parameter with its blocks of rows in the order of ONNX, and a dimension for the direction.
fn blocks(t: &mut Translation<'_>, parameter: Value, rows: Value, op: &str) -> Result<Value> {
    let ordered = match op {
        "RNN" => parameter,
        _ => t.graph.node("Gather", &[parameter, rows], &[int("axis", 0)]),
    };
    t.unsqueeze(ordered, &[0])
}
