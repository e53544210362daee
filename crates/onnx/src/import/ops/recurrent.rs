//! LSTM, GRU and plain recurrent networks.
//!
//! Layers with PyTorch's gates run as our ops. Others, with peepholes, limits, other activations or a reset before the product, run step by step.

use super::indexing::reversed;
use super::recurrent_cell::{Cell, Kind};
use super::{Op, Table};
use crate::import::call::{Call, misshapen, wrong};
use crate::import::value::Value;
use isograd_core::ops::{RecurrentSteps, RecurrentWeights, TimeOrder};
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[
    ("LSTM", Op::Many(|c| layer(c, Kind::Lstm))),
    ("GRU", Op::Many(|c| layer(c, Kind::Gru))),
    ("RNN", Op::Many(|c| layer(c, Kind::Rnn))),
];

/// The operands of one direction.
pub struct Direction {
    /// `[G H, I]`, `[G H, H]`.
    pub input: Tensor,
    pub hidden: Tensor,
    /// Of the input and of the hidden state, `[G H]` each.
    pub biases: Option<[Tensor; 2]>,
    /// `[B, H]`.
    pub h: Option<Tensor>,
    pub c: Option<Tensor>,
    /// `[3 H]`: of the input, output and forget gates.
    pub peepholes: Option<Tensor>,
    pub order: TimeOrder,
}

/// The results of one direction: all hidden states `[T, B, H]`, the last one, and the last cell state.
pub type Found = (Tensor, Tensor, Option<Tensor>);

fn layer(c: &Call<'_>, kind: Kind) -> Result<Vec<Value>> {
    let is_batch_first = c.flag("layout")?;
    let turned = |t: Tensor| if is_batch_first { t.transpose(0, 1) } else { Ok(t) };
    let x = turned(c.x(0)?)?;
    if x.rank() != 3 {
        return misshapen(format!("{} was given, expected [T, B, I]", x.shape()));
    }
    let lengths = c.optional(4)?.map(|lengths| lengths.cast(DType::I64)).transpose()?;
    let orders = match c.text("direction", "forward")? {
        "forward" => vec![TimeOrder::Forward],
        "reverse" => vec![TimeOrder::Reverse],
        "bidirectional" => vec![TimeOrder::Forward, TimeOrder::Reverse],
        other => return wrong(format!("the direction is {other:?}")),
    };
    let mut found = Vec::new();
    for (d, &order) in orders.iter().enumerate() {
        let direction = direction(c, kind, d, order, is_batch_first)?;
        let cell = Cell::of(c, kind, d)?;
        found.push(match cell.is_ours() {
            true => ours(&cell, &x, &direction, lengths.as_ref())?,
            false => by_steps(&cell, &x, &direction, lengths.as_ref())?,
        });
    }
    let joined = |part: &dyn Fn(&Found) -> Option<Tensor>, dim: isize| -> Result<Tensor> {
        let parts: Vec<Tensor> = found.iter().filter_map(part).collect();
        Tensor::stack(&parts.iter().collect::<Vec<_>>(), dim)
    };
    let states = joined(&|(y, ..)| Some(y.clone()), 1)?;
    let states = if is_batch_first { states.permute(&[2, 0, 1, 3])? } else { states };
    let mut results = vec![states.into(), turned(joined(&|(_, h, _)| Some(h.clone()), 0)?)?.into()];
    if kind == Kind::Lstm {
        results.push(turned(joined(&|(.., c)| c.clone(), 0)?)?.into());
    }
    Ok(results)
}

fn direction(c: &Call<'_>, kind: Kind, d: usize, order: TimeOrder, is_batch_first: bool) -> Result<Direction> {
    let of = |i: usize| c.optional(i)?.map(|t| t.select(0, d as isize)).transpose();
    let state = |i: usize| {
        let dim = if is_batch_first { 1 } else { 0 };
        c.optional(i)?.map(|t| t.select(dim, d as isize)).transpose()
    };
    let (Some(input), Some(hidden)) = (of(1)?, of(2)?) else { return wrong("the weights are missing") };
    let biases = match of(3)? {
        Some(both) if both.rank() == 1 && both.numel() % 2 == 0 => {
            let half = both.numel() / 2;
            Some([both.narrow(0, 0, half)?, both.narrow(0, half, half)?])
        }
        Some(both) => return misshapen(format!("the biases are {}", both.shape())),
        None => None,
    };
    let is_lstm = kind == Kind::Lstm;
    let (cell, peepholes) = if is_lstm { (state(6)?, of(7)?) } else { (None, None) };
    let h = state(5)?;
    if [Some(&input), Some(&hidden), h.as_ref(), cell.as_ref()].iter().flatten().any(|t| t.rank() != 2) {
        return misshapen("the weights and states of a direction have two dimensions each");
    }
    Ok(Direction { input, hidden, biases, h, c: cell, peepholes, order })
}

/// A parameter with its blocks of rows in our order.
fn blocks(kind: Kind, t: &Tensor) -> Result<Tensor> {
    // i, f, g, o of i, o, f, g; and r, z, n of z, r, n.
    let order: &[usize] = match kind {
        Kind::Lstm => &[0, 2, 3, 1],
        Kind::Gru => &[1, 0, 2],
        Kind::Rnn => return Ok(t.clone()),
    };
    let width = t.dims()[0] / order.len();
    let parts: Vec<Tensor> = order.iter().map(|&k| t.narrow(0, k * width, width)).collect::<Result<_>>()?;
    Tensor::concat(&parts.iter().collect::<Vec<_>>(), 0)
}

fn ours(cell: &Cell, x: &Tensor, direction: &Direction, lengths: Option<&Tensor>) -> Result<Found> {
    let (input, hidden) = (blocks(cell.kind, &direction.input)?, blocks(cell.kind, &direction.hidden)?);
    let [input_bias, hidden_bias] = match &direction.biases {
        Some([a, b]) => [Some(blocks(cell.kind, a)?), Some(blocks(cell.kind, b)?)],
        None => [None, None],
    };
    let weights = RecurrentWeights {
        input_bias: input_bias.as_ref(),
        hidden_bias: hidden_bias.as_ref(),
        ..RecurrentWeights::new(&input, &hidden)
    };
    let steps = RecurrentSteps { order: direction.order, lengths };
    let h = direction.h.as_ref();
    match cell.kind {
        Kind::Lstm => x.lstm(h, direction.c.as_ref(), weights, &steps).map(|(y, h, c)| (y, h, Some(c))),
        Kind::Gru => x.gru(h, weights, &steps).map(|(y, h)| (y, h, None)),
        Kind::Rnn => x.rnn(h, weights, cell.nonlinearity(), &steps).map(|(y, h)| (y, h, None)),
    }
}

fn by_steps(cell: &Cell, x: &Tensor, direction: &Direction, lengths: Option<&Tensor>) -> Result<Found> {
    let backwards = |t: &Tensor| match (direction.order, lengths) {
        (TimeOrder::Forward, _) => Ok(t.clone()),
        (TimeOrder::Reverse, Some(lengths)) => reversed(t, lengths, 0, 1),
        (TimeOrder::Reverse, None) => t.flip(&[0]),
    };
    let x = backwards(x)?;
    let (batch, width) = (x.dims()[1], direction.hidden.dims()[1]);
    let zeros = || Tensor::zeros([batch, width], x.dtype(), x.device());
    let mut h = direction.h.clone().map_or_else(zeros, Ok)?;
    let mut c = direction.c.clone().map_or_else(zeros, Ok)?;
    let mut states = Vec::new();
    for t in 0..x.dims()[0] {
        let (new_h, new_c) = cell.step(&x.select(0, t as isize)?, &h, &c, direction)?;
        let Some(lengths) = lengths else {
            (h, c) = (new_h.clone(), new_c);
            states.push(new_h);
            continue;
        };
        let is_element = lengths.gt_scalar(t as i64)?.unsqueeze(1)?;
        (h, c) = (is_element.where_cond(&new_h, &h)?, is_element.where_cond(&new_c, &c)?);
        states.push(is_element.where_scalar(&new_h, 0.0)?);
    }
    let states = match states.is_empty() {
        true => Tensor::zeros([0, batch, width], x.dtype(), x.device())?,
        false => Tensor::stack(&states.iter().collect::<Vec<_>>(), 0)?,
    };
    Ok((backwards(&states)?, h, (cell.kind == Kind::Lstm).then_some(c)))
}
