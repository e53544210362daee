//! The pointwise part of a step, by the kind of cell.

use crate::backend::Kernel;
use crate::ops::fused_pointwise::Blocks;
use crate::pointwise::{Pointwise, lift};
use crate::tensor::{Attributes, run};
use crate::{Layout, Result, Tensor};

/// The kind of a recurrent cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    Lstm,
    Gru,
    Tanh,
    Relu,
}

/// The arguments of a step's gates, and the state before the step.
pub(super) struct Step {
    /// The products of the input and, for all cells but GRU, of the hidden state: `[B, G H]`.
    pub arguments: Tensor,
    /// For GRU: the products of the hidden state, `[B, G H]`.
    pub hidden_products: Option<Tensor>,
    /// The state that the row reads, `[B, H]`: the cell state of LSTM, the hidden state of GRU.
    pub before: Option<Tensor>,
}

/// The gradients that arrive at a step.
pub(super) struct Arriving {
    /// At the hidden state after the step, `[B, H]`.
    pub hidden: Tensor,
    /// For LSTM: at the cell state after the step, from later steps. For GRU: at the hidden state before the step, from the result.
    pub other: Option<Tensor>,
    /// For LSTM, the cell state after the step; for a plain RNN, the hidden state after the step.
    pub after: Option<Tensor>,
}

impl Cell {
    /// The number of gates.
    pub fn gates(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::Gru => 3,
            Cell::Tanh | Cell::Relu => 1,
        }
    }

    fn row(self) -> Pointwise {
        match self {
            Cell::Lstm => Pointwise::LstmStep,
            Cell::Gru => Pointwise::GruStep,
            Cell::Tanh => Pointwise::Tanh,
            Cell::Relu => Pointwise::Relu,
        }
    }

    /// Writes the hidden state and, where there is one, the carried state.
    pub fn forward(self, op: &'static str, step: &Step, outputs: &[&Tensor]) -> Result<()> {
        let inputs = self.inputs(step);
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        run(op, Kernel::Pointwise(self.row()), &inputs, outputs, Attributes::default())
    }

    /// [`forward`](Cell::forward) in tensor ops, in the accumulation dtype.
    pub fn composite(self, step: &Step) -> Result<Vec<Tensor>> {
        let acc = step.arguments.dtype().acc();
        let mut inputs = Vec::new();
        for products in [Some(&step.arguments), step.hidden_products.as_ref()].into_iter().flatten() {
            let width = products.dims()[1] / self.gates();
            for k in 0..self.gates() {
                inputs.push(products.narrow(1, k * width, width)?.cast(acc)?);
            }
        }
        inputs.extend(step.before.as_ref().map(|t| t.cast(acc)).transpose()?);
        lift(self.row(), &inputs, &[])
    }

    /// The inputs of the row.
    fn inputs(self, step: &Step) -> Vec<Tensor> {
        let products = [Some(&step.arguments), step.hidden_products.as_ref()].into_iter().flatten();
        products.flat_map(|products| blocks(products, self.gates())).chain(step.before.clone()).collect()
    }

    /// Writes the gradients of the arguments, of the products of the hidden state for GRU, and of the state before the step.
    pub fn backward(self, op: &'static str, step: &Step, arriving: Arriving, outputs: &[&Tensor]) -> Result<()> {
        let Arriving { hidden, other, after } = arriving;
        let (hidden, inputs) = (Some(hidden).into_iter(), self.inputs(step));
        let (all, row, counts): (Vec<Tensor>, Pointwise, &'static [usize]) = match self {
            Cell::Lstm => {
                (hidden.chain(other).chain(inputs).chain(after).collect(), Pointwise::LstmStepBackward, &[4, 1])
            }
            Cell::Gru => (hidden.chain(inputs).chain(other).collect(), Pointwise::GruStepBackward, &[3, 3, 1]),
            Cell::Tanh => (hidden.chain(after).collect(), Pointwise::TanhBackward, &[]),
            Cell::Relu => (hidden.chain(after).collect(), Pointwise::ReluBackward, &[]),
        };
        let all: Vec<&Tensor> = all.iter().collect();
        match counts {
            [] => run(op, Kernel::Pointwise(row), &all, outputs, Attributes::default()),
            counts => Blocks { row, counts, attributes: &[] }.write(op, &all, outputs),
        }
    }
}

/// The blocks of `[B, count H]`, outside of the tape.
fn blocks(t: &Tensor, count: usize) -> Vec<Tensor> {
    let width = t.dims()[1] / count;
    let block = |k: usize| -> Layout { t.layout().narrow(1, k * width, width, 1) };
    (0..count).map(|k| t.with_layout(block(k))).collect()
}
