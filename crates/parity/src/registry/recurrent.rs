//! Recurrent ops: single steps and sequences.

use super::common::{one, two};
use super::invocation::Invocation;
use super::op::{Class, Op, Slice};
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::{ConvLstmWeights, Nonlinearity, RecurrentSteps, RecurrentWeights, TimeOrder};
use isograd_core::{Result, Tensor};
use isograd_nn::{self as nn, Init, RecurrentOptions};
use serde_json::json;

pub(super) fn ops() -> Vec<Op> {
    // Launches are those of the longest case and, where a vendor's library multiplies, a copy before each product that adds to its
    // output.
    vec![
        step("lstm_cell", LSTM, |c| two(c.input("x")?.lstm_cell(c.input("h")?, c.input("c")?, weights(c)?)))
            .kernels(&["lstm_cell_forward"])
            .launches(9, 35),
        sequence("lstm", LSTM, |c| {
            three(c.input("x")?.lstm(c.optional("h"), c.optional("c"), weights(c)?, &steps(c)?))
        })
        .kernels(&["lstm_forward"])
        .launches(38, 89),
        step("gru_cell", GRU, |c| one(c.input("x")?.gru_cell(c.input("h")?, weights(c)?)))
            .kernels(&["gru_cell_forward"])
            .launches(6, 10),
        sequence("gru", GRU, |c| two(c.input("x")?.gru(c.optional("h"), weights(c)?, &steps(c)?)))
            .kernels(&["gru_forward"])
            .launches(25, 47),
        step("rnn_cell", RNN, |c| one(c.input("x")?.rnn_cell(c.input("h")?, weights(c)?, function(c)?))).launches(7, 8),
        sequence("rnn", RNN, |c| two(c.input("x")?.rnn(c.optional("h"), weights(c)?, function(c)?, &steps(c)?)))
            .launches(25, 44),
        of(
            "conv_lstm_cell",
            |g| images(g, false),
            |c| two(c.input("x")?.conv_lstm_cell(c.input("h")?, c.input("c")?, conv_weights(c)?)),
        )
        .fused()
        .kernels(&["convlstm_cell_forward"])
        .launches(6, 24),
        of(
            "conv_lstm",
            |g| images(g, true),
            |c| three(c.input("x")?.conv_lstm(c.optional("h"), c.optional("c"), conv_weights(c)?, order(c)?)),
        )
        .fused()
        .kernels(&["convlstm_forward"])
        .slice(Slice::From(1))
        .launches(11, 44),
    ]
}

/// The layers. Their options are attributes; their parameters are inputs, with the names in their state dictionaries.
pub(super) fn modules() -> Vec<Op> {
    let of = |name: &'static str, run: Run, gates: usize| {
        let make = move |g: &mut Gen| layered(g, gates);
        Op::new(name, run, make).class(Class::Stages).slice(Slice::Whole)
    };
    let lstm = |c: &Invocation<'_>| {
        let mut layer = nn::Lstm::with_options(c.input("x")?.dims()[2], hidden(c, 4)?, &options(c)?, &init(c)?)?;
        given(c, &mut layer.stack)?;
        let state = match (c.optional("h"), c.optional("c")) {
            (Some(h), Some(c)) => Some((h.clone(), c.clone())),
            _ => None,
        };
        let (y, (h, cell)) = layer.run(c.input("x")?, c.optional("lengths"), state.as_ref())?;
        Ok(vec![y, h, cell])
    };
    let gru = |c: &Invocation<'_>| {
        let mut layer = nn::Gru::with_options(c.input("x")?.dims()[2], hidden(c, 3)?, &options(c)?, &init(c)?)?;
        given(c, &mut layer.stack)?;
        two(layer.run(c.input("x")?, c.optional("lengths"), c.optional("h")))
    };
    let rnn = |c: &Invocation<'_>| {
        let (x, f) = (c.input("x")?, function(c)?);
        let mut layer = nn::Rnn::with_options(x.dims()[2], hidden(c, 1)?, f, &options(c)?, &init(c)?)?;
        given(c, &mut layer.stack)?;
        two(layer.run(x, c.optional("lengths"), c.optional("h")))
    };
    vec![of("Lstm", lstm, 4), of("Gru", gru, 3), of("Rnn", rnn, 1)]
}

fn hidden(c: &Invocation<'_>, gates: usize) -> Result<usize> {
    Ok(c.input("weight_ih_l0")?.dims()[0] / gates)
}

fn init(c: &Invocation<'_>) -> Result<Init> {
    let x = c.input("x")?;
    Ok(Init::new(x.device()).dtype(x.dtype()))
}

fn options(c: &Invocation<'_>) -> Result<RecurrentOptions> {
    Ok(RecurrentOptions {
        layers: c.size_or("num_layers", 1)?,
        bias: c.optional("bias_ih_l0").is_some(),
        batch_first: c.flag("batch_first")?,
        bidirectional: c.flag("bidirectional")?,
        projection: c.optional("weight_hr_l0").map(|w| w.dims()[0]),
        ..Default::default()
    })
}

/// Replaces the parameters of a layer by inputs.
fn given(c: &Invocation<'_>, stack: &mut nn::RecurrentStack) -> Result<()> {
    for (layer, directions) in stack.weights.iter_mut().enumerate() {
        for (of, end) in directions.iter_mut().zip(["", "_reverse"]) {
            let name = |what: &str| format!("{what}_l{layer}{end}");
            of.weight_ih = c.input(&name("weight_ih"))?.clone();
            of.weight_hh = c.input(&name("weight_hh"))?.clone();
            of.bias_ih = c.optional(&name("bias_ih")).cloned();
            of.bias_hh = c.optional(&name("bias_hh")).cloned();
            of.weight_hr = c.optional(&name("weight_hr")).cloned();
        }
    }
    Ok(())
}

/// A layer in one direction.
fn layered(g: &mut Gen, gates: usize) -> Case {
    let inputs = vec![
        ("x", g.tensor(Domain::Real, &[2, 3, 2])),
        ("weight_ih_l0", weight(g, 2 * gates, 2)),
        ("weight_hh_l0", weight(g, 2 * gates, 2)),
    ];
    Case::new(json!({"num_layers": 1, "batch_first": true}), inputs)
}

type Run = fn(&Invocation<'_>) -> Result<Vec<Tensor>>;

/// A kind of cell, for its cases.
#[derive(Clone, Copy)]
struct Kind {
    gates: usize,
    has_cell_state: bool,
    has_function: bool,
}

const LSTM: Kind = Kind { gates: 4, has_cell_state: true, has_function: false };
const GRU: Kind = Kind { gates: 3, has_cell_state: false, has_function: false };
const RNN: Kind = Kind { gates: 1, has_cell_state: false, has_function: true };

fn of(name: &'static str, make: impl Fn(&mut Gen) -> Case + Send + Sync + 'static, run: Run) -> Op {
    Op::new(name, run, make).class(Class::Stages)
}

/// A plain RNN's step back is a row like others.
fn step(name: &'static str, kind: Kind, run: Run) -> Op {
    let op = of(name, move |g| case(g, kind, false), run);
    if kind.gates > 1 { op.fused() } else { op }
}

/// The elements of a step are reduced together.
fn sequence(name: &'static str, kind: Kind, run: Run) -> Op {
    of(name, move |g| case(g, kind, true), run).slice(Slice::From(1)).fused()
}

fn three(found: Result<(Tensor, Tensor, Tensor)>) -> Result<Vec<Tensor>> {
    found.map(|(a, b, c)| vec![a, b, c])
}

fn weights<'a>(c: &'a Invocation<'_>) -> Result<RecurrentWeights<'a>> {
    let is_lstm = c.op.name.starts_with("lstm");
    Ok(RecurrentWeights {
        input: c.input("w_ih")?,
        hidden: c.input("w_hh")?,
        input_bias: c.optional("b_ih"),
        hidden_bias: c.optional("b_hh"),
        projection: if is_lstm { c.optional("w_hr") } else { None },
    })
}

fn conv_weights<'a>(c: &'a Invocation<'_>) -> Result<ConvLstmWeights<'a>> {
    Ok(ConvLstmWeights { input: c.input("w_x")?, hidden: c.input("w_h")?, bias: c.optional("b") })
}

fn order(c: &Invocation<'_>) -> Result<TimeOrder> {
    Ok(if c.flag("reverse")? { TimeOrder::Reverse } else { TimeOrder::Forward })
}

fn steps<'a>(c: &'a Invocation<'_>) -> Result<RecurrentSteps<'a>> {
    Ok(RecurrentSteps { order: order(c)?, lengths: c.optional("lengths") })
}

fn function(c: &Invocation<'_>) -> Result<Nonlinearity> {
    c.choice_or_first("nonlinearity", &[("tanh", Nonlinearity::Tanh), ("relu", Nonlinearity::Relu)])
}

/// Up to 3 steps and rows. Few features: second derivatives are checked by differences at every element.
fn case(g: &mut Gen, kind: Kind, is_sequence: bool) -> Case {
    let (steps, rows) = (1 + g.below(3), g.pick(&[0, 1, 1, 2, 3]));
    let [width, features] = [(); 2].map(|()| if g.is_large() { g.side() } else { g.pick(&[1, 1, 2]) });
    let gates = kind.gates * width;
    let state = if kind.has_cell_state && g.below(4) == 0 { Some(1 + g.below(2)) } else { None };
    let hidden = state.unwrap_or(width);
    let x: Vec<usize> = is_sequence.then_some(steps).into_iter().chain([rows, features]).collect();
    let mut inputs = vec![
        ("x", g.tensor(Domain::Real, &x)),
        ("w_ih", weight(g, gates, features)),
        ("w_hh", weight(g, gates, hidden)),
    ];
    for name in ["b_ih", "b_hh"] {
        if g.coin() {
            inputs.push((name, g.tensor(Domain::Real, &[gates])));
        }
    }
    if !is_sequence || g.coin() {
        inputs.push(("h", g.tensor(Domain::Real, &[rows, hidden])));
    }
    if kind.has_cell_state && (!is_sequence || g.coin()) {
        inputs.push(("c", g.tensor(Domain::Real, &[rows, width])));
    }
    if state.is_some() {
        inputs.push(("w_hr", weight(g, hidden, width)));
    }
    if is_sequence && g.below(3) == 0 {
        let lengths: Vec<i64> = (0..rows).map(|_| 1 + g.below(steps) as i64).collect();
        inputs.push(("lengths", Tensor::from_vec(lengths, rows, g.device()).expect("as many as rows")));
    }
    let mut attributes = json!({});
    if is_sequence {
        attributes["reverse"] = g.coin().into();
    }
    if kind.has_function {
        // The derivative of relu jumps.
        attributes["nonlinearity"] = if g.is_large() { g.pick(&["tanh", "relu"]) } else { "tanh" }.into();
    }
    Case::new(attributes, inputs)
}

/// Uniform, with sums of the size of an element.
fn weight(g: &mut Gen, outputs: usize, inputs: usize) -> Tensor {
    let w = g.tensor(Domain::Real, &[outputs, inputs]);
    w.mul_scalar(0.5 / (inputs.max(1) as f64).sqrt()).expect("a factor")
}

fn images(g: &mut Gen, is_sequence: bool) -> Case {
    let (steps, rows) = (1 + g.below(2), g.pick(&[0, 1, 1, 2]));
    let (inputs, channels) = (1 + g.below(2), if g.is_large() { 1 + g.below(5) } else { 1 });
    let [height, width] = [(); 2].map(|()| if g.is_large() { 1 + g.below(9) } else { 1 + g.below(2) });
    let kernels = if g.is_large() { [1, 3, 5] } else { [1, 1, 3] };
    let image = |channels: usize| [rows, channels, height, width];
    let x: Vec<usize> = is_sequence.then_some(steps).into_iter().chain(image(inputs)).collect();
    let filter = |g: &mut Gen, from: usize| {
        let shape = [4 * channels, from, g.pick(&kernels), g.pick(&[1, 1, 3])];
        g.tensor(Domain::Real, &shape).mul_scalar(0.5).expect("a factor")
    };
    let mut all = vec![("x", g.tensor(Domain::Real, &x)), ("w_x", filter(g, inputs)), ("w_h", filter(g, channels))];
    if g.coin() {
        all.push(("b", g.tensor(Domain::Real, &[4 * channels])));
    }
    for name in ["h", "c"] {
        if !is_sequence || g.coin() {
            all.push((name, g.tensor(Domain::Real, &image(channels))));
        }
    }
    Case::new(if is_sequence { json!({"reverse": g.coin()}) } else { json!({}) }, all)
}
