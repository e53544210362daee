//! Recurrent ops: LSTM, GRU, plain RNN and ConvLSTM, over one step or over a sequence, in one direction.
//!
//! The gates of all steps begin as one product of the inputs. All other products and rows of a sequence are one launch on devices that
//! have this kernel and room for its weights on chip (`kernel.rs`). Elsewhere, a step is a product of the hidden state and one pointwise
//! row. Going back, a step is one row and one product; the gradients of the weights are one product each, over the rows of all
//! steps (`sequence.rs`). Nothing waits for the device. What distinguishes the cells is in `cell.rs`, and dense and convolutional
//! products are in `map.rs`.

mod cell;
pub mod kernel;
mod lengths;
mod map;
mod sequence;

use self::cell::Cell;
use self::lengths::Lengths;
use self::map::Map;
use self::sequence::{RecurrentOperands, Results, Sequence};
use crate::check::{check_float, check_same};
use crate::operands;
use crate::operands::Operands;
use crate::ops::with_shapes;
use crate::tape::Described;
use crate::{Error, Result, Shape, Tensor};

/// The weights of a recurrent layer in one direction, as PyTorch lays them out. G is the number of gates: 4 for LSTM, in the order
/// input, forget, cell, output; 3 for GRU, in the order reset, update, new; 1 for a plain RNN.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentWeights<'a> {
    /// `[G H, I]`: from the input.
    pub input: &'a Tensor,
    /// `[G H, H]`: from the hidden state. `[G H, P]` with a projection.
    pub hidden: &'a Tensor,
    /// `[G H]`: added to the product of the input.
    pub input_bias: Option<&'a Tensor>,
    /// `[G H]`: added to the product of the hidden state.
    pub hidden_bias: Option<&'a Tensor>,
    /// `[P, H]`, for LSTM: the hidden state is the product of this and the cell's output.
    pub projection: Option<&'a Tensor>,
}

impl<'a> RecurrentWeights<'a> {
    /// Without biases and projection.
    pub fn new(input: &'a Tensor, hidden: &'a Tensor) -> RecurrentWeights<'a> {
        RecurrentWeights { input, hidden, input_bias: None, hidden_bias: None, projection: None }
    }
}

/// The weights of a ConvLSTM. Kernels have odd extents.
#[derive(Clone, Copy, Debug)]
pub struct ConvLstmWeights<'a> {
    /// `[4 C, I, kh, kw]`: from the input.
    pub input: &'a Tensor,
    /// `[4 C, C, kh, kw]`: from the hidden state.
    pub hidden: &'a Tensor,
    /// `[4 C]`.
    pub bias: Option<&'a Tensor>,
}

/// The order in which a recurrent op visits the steps of a sequence. Results are in the order of the inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeOrder {
    /// From the first step to the last.
    #[default]
    Forward,
    /// From the last step to the first.
    Reverse,
}

/// The steps of a recurrent op over sequences.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecurrentSteps<'a> {
    /// Their order.
    pub order: TimeOrder,
    /// i64 or i32 `[B]`: the lengths of the sequences, in `1..=T`; all are T by default. Elements after the end of a sequence are
    /// padding: results there are 0, and nothing depends on x there. The last states are those of each sequence's last step.
    /// Backward in time, each sequence begins with its own last element.
    pub lengths: Option<&'a Tensor>,
}

/// The function of a plain RNN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Nonlinearity {
    /// [`Tensor::tanh`].
    #[default]
    Tanh,
    /// [`Tensor::relu`].
    Relu,
}

impl Nonlinearity {
    fn cell(self) -> Cell {
        match self {
            Nonlinearity::Tanh => Cell::Tanh,
            Nonlinearity::Relu => Cell::Relu,
        }
    }
}

/// A dense recurrent op of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentLayer {
    /// The kind of its cell.
    pub cell: Cell,
    /// The order of the steps of a sequence; `None` for a single step.
    pub order: Option<TimeOrder>,
}

operands! {
    /// The operands of a [`RecurrentLayer`]. G is the number of gates.
    pub struct RecurrentLayerInputs {
        /// `[T, B, I]`, or `[B, I]` of a single step.
        x,
        /// The weight of the input, `[G H, I]`.
        input,
        /// The weight of the hidden state, `[G H, H]`.
        hidden,
        /// `[G H]`.
        input_bias?,
        /// `[G H]`.
        hidden_bias?,
        /// The initial hidden state, `[B, H]`.
        h?,
        /// The initial cell state, `[B, H]`.
        c?,
        /// The weight by which a cell's output becomes the hidden state, `[P, H]`.
        projection?,
        /// The lengths of the sequences, `[B]`.
        lengths?,
    }
}

impl Described for RecurrentLayer {
    type Inputs<T> = RecurrentLayerInputs<T>;
}

/// # Recurrent layers
impl Tensor {
    /// A step of an LSTM from `x: [B, I]` and the states `h: [B, H]` and `c: [B, H]` to h' and c':
    /// `i, f, o = sigmoid(a)`, `g = tanh(a)` of their blocks of `a = x w_ih^T + b_ih + h w_hh^T + b_hh`; `c' = f c + i g`,
    /// `h' = o tanh(c')`. With a projection h is `[B, P]`. Float dtypes; all operands have the same. Errors: `Shape`; `Dtype`;
    /// `Device`. Hochreiter and Schmidhuber 1997; Gers et al. 2000.
    pub fn lstm_cell(&self, h: &Tensor, c: &Tensor, weights: RecurrentWeights<'_>) -> Result<(Tensor, Tensor)> {
        let results = dense("lstm_cell", Cell::Lstm, self, [Some(h), Some(c)], weights, None)?;
        Ok((results.hidden, results.cell.expect("an LSTM has a cell state")))
    }

    /// An LSTM over `x: [T, B, I]` from the states `h0: [B, H]` and `c0: [B, H]`, by default zeros: the hidden states `[T, B, H]`,
    /// the last one, and the last cell state. The cell state is carried in the accumulation dtype. With a projection, hidden states
    /// have P elements instead of H. Errors: `Attr` if T is 0; `Index` for a length outside of `1..=T`; else as [`lstm_cell`](Tensor::lstm_cell), which has the formula.
    pub fn lstm(
        &self,
        h0: Option<&Tensor>,
        c0: Option<&Tensor>,
        weights: RecurrentWeights<'_>,
        steps: &RecurrentSteps<'_>,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        dense("lstm", Cell::Lstm, self, [h0, c0], weights, Some(*steps)).map(Results::three)
    }

    /// A step of a GRU from `x: [B, I]` and the state `h: [B, H]` to `h' = (1 - z) n + z h`, where `r, z = sigmoid(a + u)` and
    /// `n = tanh(a + r u)` of their blocks of `a = x w_ih^T + b_ih` and `u = h w_hh^T + b_hh`. Float dtypes; all operands have the
    /// same. Errors: `Attr` for a projection; `Shape`; `Dtype`; `Device`. Cho et al. 2014, arXiv 1406.1078; as in PyTorch, the
    /// reset gate multiplies the product.
    pub fn gru_cell(&self, h: &Tensor, weights: RecurrentWeights<'_>) -> Result<Tensor> {
        Ok(dense("gru_cell", Cell::Gru, self, [Some(h), None], weights, None)?.hidden)
    }

    /// A GRU over `x: [T, B, I]` from the state `h0: [B, H]`, by default zeros: the hidden states `[T, B, H]`, and the last one.
    /// Errors: `Attr` if T is 0; `Index` for a length outside of `1..=T`; else as [`gru_cell`](Tensor::gru_cell), which has the formula.
    pub fn gru(
        &self,
        h0: Option<&Tensor>,
        weights: RecurrentWeights<'_>,
        steps: &RecurrentSteps<'_>,
    ) -> Result<(Tensor, Tensor)> {
        dense("gru", Cell::Gru, self, [h0, None], weights, Some(*steps)).map(Results::two)
    }

    /// A step of a plain RNN from `x: [B, I]` and the state `h: [B, H]` to `h' = f(x w_ih^T + b_ih + h w_hh^T + b_hh)`. Float
    /// dtypes; all operands have the same. Errors: `Attr` for a projection; `Shape`; `Dtype`; `Device`. Elman 1990.
    pub fn rnn_cell(&self, h: &Tensor, weights: RecurrentWeights<'_>, f: Nonlinearity) -> Result<Tensor> {
        Ok(dense("rnn_cell", f.cell(), self, [Some(h), None], weights, None)?.hidden)
    }

    /// A plain RNN over `x: [T, B, I]` from the state `h0: [B, H]`, by default zeros: the hidden states `[T, B, H]`, and the last
    /// one. Errors: `Attr` if T is 0; `Index` for a length outside of `1..=T`; else as [`rnn_cell`](Tensor::rnn_cell), which has the formula.
    pub fn rnn(
        &self,
        h0: Option<&Tensor>,
        weights: RecurrentWeights<'_>,
        f: Nonlinearity,
        steps: &RecurrentSteps<'_>,
    ) -> Result<(Tensor, Tensor)> {
        dense("rnn", f.cell(), self, [h0, None], weights, Some(*steps)).map(Results::two)
    }

    /// A step of a ConvLSTM from `x: [B, I, H, W]` and the states `h: [B, C, H, W]` and `c: [B, C, H, W]` to h' and c': as
    /// [`lstm_cell`](Tensor::lstm_cell) of `a = conv2d(x, w_x) + b + conv2d(h, w_h)`, with zeros around images and a stride of 1.
    /// Float dtypes; all operands have the same. Errors: `Attr` for a kernel with an even extent; `Shape`; `Dtype`; `Device`. Shi et
    /// al. 2015, arXiv 1506.04214, without peepholes.
    pub fn conv_lstm_cell(&self, h: &Tensor, c: &Tensor, weights: ConvLstmWeights<'_>) -> Result<(Tensor, Tensor)> {
        let results = convolutional("conv_lstm_cell", self, [Some(h), Some(c)], weights, None)?;
        Ok((results.hidden, results.cell.expect("an LSTM has a cell state")))
    }

    /// A ConvLSTM over `x: [T, B, I, H, W]` from the states `h0: [B, C, H, W]` and `c0: [B, C, H, W]`, by default zeros: the hidden
    /// states `[T, B, C, H, W]`, the last one, and the last cell state, which is carried in the accumulation dtype. Errors: `Attr`
    /// if T is 0; else as [`conv_lstm_cell`](Tensor::conv_lstm_cell).
    pub fn conv_lstm(
        &self,
        h0: Option<&Tensor>,
        c0: Option<&Tensor>,
        weights: ConvLstmWeights<'_>,
        order: TimeOrder,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        convolutional("conv_lstm", self, [h0, c0], weights, Some(order)).map(Results::three)
    }
}

/// A step, where there is no order, or a sequence of x.
fn dense(
    op: &'static str,
    cell: Cell,
    x: &Tensor,
    [h, c]: [Option<&Tensor>; 2],
    weights: RecurrentWeights<'_>,
    steps: Option<RecurrentSteps<'_>>,
) -> Result<Results> {
    let RecurrentWeights { input, hidden, input_bias, hidden_bias, projection } = weights;
    if projection.is_some() && cell != Cell::Lstm {
        return Err(Error::attr(op, "a projection was given, which LSTM alone has"));
    }
    let operands = RecurrentOperands { x, input, hidden, input_bias, hidden_bias, h, c, projection };
    let lengths = steps.and_then(|steps| steps.lengths);
    with_shapes(op, &operands.present().into_iter().chain(lengths).map(Some).collect::<Vec<_>>(), || {
        operands.in_scope(|operands| {
            let (state, cell_state) = check_dense(op, cell, operands, steps.is_some())?;
            let order = steps.map(|steps| steps.order);
            let sequence = Sequence { op, cell, map: Map::Dense, order, state, cell_state, is_held: None };
            let results = match (lengths, order) {
                (Some(lengths), Some(order)) => padded(sequence, operands, lengths, order),
                _ => sequence.run(operands),
            }?;
            results.report(op, RecurrentLayer { cell, order }, operands, lengths);
            Ok(results)
        })
    })
}

/// Checks operands. The shapes of a hidden and of a cell state.
fn check_dense(
    op: &'static str,
    cell: Cell,
    operands: RecurrentOperands<&Tensor>,
    is_sequence: bool,
) -> Result<(Shape, Shape)> {
    check(op, operands, if is_sequence { 3 } else { 2 }, 2)?;
    let RecurrentOperands { x, input, hidden, input_bias, hidden_bias, h, c, projection } = operands;
    let gates = cell.gates();
    let width = input.dims()[0] / gates;
    let state = projection.map_or(width, |p| p.dims()[0]);
    let (rows, features) = (x.dims()[x.rank() - 2], x.dims()[x.rank() - 1]);
    let expected: [(&str, Option<&Tensor>, &[usize]); 7] = [
        ("w_ih", Some(input), &[gates * width, features]),
        ("w_hh", Some(hidden), &[gates * width, state]),
        ("b_ih", input_bias, &[gates * width]),
        ("b_hh", hidden_bias, &[gates * width]),
        ("h", h, &[rows, state]),
        ("c", c, &[rows, width]),
        ("w_hr", projection, &[state, width]),
    ];
    check_shapes(op, x, &expected)?;
    Ok(([rows, state].into(), [rows, width].into()))
}

/// Sequences of different lengths.
fn padded(
    sequence: Sequence,
    operands: RecurrentOperands<&Tensor>,
    lengths: &Tensor,
    order: TimeOrder,
) -> Result<Results> {
    let lengths = Lengths::new(sequence.op, operands.x, lengths, order)?;
    let x = lengths.ordered(operands.x)?;
    // A cell state does not change after the end; the last hidden state is looked up.
    let is_held = (sequence.cell == Cell::Lstm).then(|| lengths.is_element.logical_not()).transpose()?;
    let sequence = Sequence { order: Some(TimeOrder::Forward), is_held, ..sequence };
    let results = sequence.run(RecurrentOperands { x: &x, ..operands })?;
    let states = results.states.expect("a sequence has states");
    Ok(Results { hidden: lengths.last(&states)?, states: Some(lengths.ordered(&states)?), cell: results.cell })
}

fn convolutional(
    op: &'static str,
    x: &Tensor,
    [h, c]: [Option<&Tensor>; 2],
    weights: ConvLstmWeights<'_>,
    order: Option<TimeOrder>,
) -> Result<Results> {
    let ConvLstmWeights { input, hidden, bias } = weights;
    let operands = RecurrentOperands { x, input, hidden, input_bias: bias, hidden_bias: None, h, c, projection: None };
    with_shapes(op, &operands.present().into_iter().map(Some).collect::<Vec<_>>(), || {
        operands.in_scope(|operands| {
            let state = check_convolutional(op, operands, order.is_some())?;
            let (map, cell_state) = (Map::Convolution, state.clone());
            Sequence { op, cell: Cell::Lstm, map, order, state, cell_state, is_held: None }.run(operands)
        })
    })
}

/// Checks operands. The shape of a state.
fn check_convolutional(op: &'static str, operands: RecurrentOperands<&Tensor>, is_sequence: bool) -> Result<Shape> {
    check(op, operands, if is_sequence { 5 } else { 4 }, 4)?;
    let RecurrentOperands { x, input, hidden, .. } = operands;
    let &[rows, inputs, height, width] = &x.dims()[x.rank() - 4..] else { unreachable!("x has 4 dimensions or more") };
    let (channels, kernel, of_state) = (input.dims()[0] / 4, &input.dims()[2..], &hidden.dims()[2..]);
    if kernel.iter().chain(of_state).any(|extent| extent % 2 == 0) {
        let message = format!("the kernels {} and {} must have odd extents", input.shape(), hidden.shape());
        return Err(Error::attr(op, message));
    }
    let state = [rows, channels, height, width];
    let expected: [(&str, Option<&Tensor>, &[usize]); 5] = [
        ("w_x", Some(input), &[4 * channels, inputs, kernel[0], kernel[1]]),
        ("w_h", Some(hidden), &[4 * channels, channels, of_state[0], of_state[1]]),
        ("b", operands.input_bias, &[4 * channels]),
        ("h", operands.h, &state),
        ("c", operands.c, &state),
    ];
    check_shapes(op, x, &expected)?;
    Ok(state.into())
}

/// Checks dtypes, devices, the rank of x and of the weight of the input, and that there are steps and gates.
fn check(op: &'static str, operands: RecurrentOperands<&Tensor>, rank: usize, weight_rank: usize) -> Result<()> {
    let RecurrentOperands { x, input, hidden, .. } = operands;
    check_float(op, x)?;
    check_same(op, &operands.present())?;
    if x.rank() != rank {
        return Err(Error::shape(op, format!("x {} has {} dimensions, expected {rank}", x.shape(), x.rank())));
    }
    if let Some(w) = [input, hidden].into_iter().find(|w| w.rank() != weight_rank) {
        let message = format!("the weight {} has {} dimensions, expected {weight_rank}", w.shape(), w.rank());
        return Err(Error::shape(op, message));
    }
    if operands.projection.is_some_and(|p| p.rank() != 2) {
        return Err(Error::shape(op, "the projection must have 2 dimensions"));
    }
    if rank % 2 == 1 && x.dims()[0] == 0 {
        return Err(Error::attr(op, format!("x {} has no steps, expected 1 or more", x.shape())));
    }
    Ok(())
}

/// Checks that operands have these shapes.
fn check_shapes(op: &'static str, x: &Tensor, expected: &[(&str, Option<&Tensor>, &[usize])]) -> Result<()> {
    for (name, operand, dims) in expected {
        if let Some(t) = operand.filter(|t| t.dims() != *dims) {
            let message = format!("{name} is {}, expected {dims:?} for x {}", t.shape(), x.shape());
            return Err(Error::shape(op, message));
        }
    }
    Ok(())
}
