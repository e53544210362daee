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

/// The arguments of a step's gates, and its states.
pub(super) struct Step<'a> {
    /// The products of the input and, for all cells but GRU, of the hidden state: `[B, G H]`.
    pub arguments: &'a Tensor,
    /// For GRU: the products of the hidden state, `[B, G H]`.
    pub hidden_products: Option<&'a Tensor>,
    /// The state before the step that the row reads, `[B, H]`: the cell state of LSTM, the hidden state of GRU.
    pub before: Option<&'a Tensor>,
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

    /// True if the row writes a second state, which the next step reads: the cell state, or a copy of the hidden state.
    pub fn carries(self) -> bool {
        matches!(self, Cell::Lstm | Cell::Gru)
    }

    /// Writes the hidden state and, where there is one, the carried state.
    pub fn forward(self, op: &'static str, step: &Step<'_>, outputs: &[&Tensor]) -> Result<()> {
        let inputs = self.inputs(step);
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        run(op, Kernel::Pointwise(self.row()), &inputs, outputs, Attributes::default())
    }

    /// [`forward`](Cell::forward) in tensor ops, in the dtype of the carried state.
    pub fn composite(self, step: &Step<'_>) -> Result<Vec<Tensor>> {
        let (gates, dtype) = (self.gates() as isize, step.arguments.dtype());
        let all = [Some(step.arguments), step.hidden_products];
        let mut inputs = Vec::new();
        for products in all.into_iter().flatten() {
            let width = products.dims()[1] / self.gates();
            for k in 0..gates as usize {
                inputs.push(products.narrow(1, k * width, width)?.cast(dtype.acc())?);
            }
        }
        inputs.extend(step.before.map(|t| t.cast(dtype.acc())).transpose()?);
        match self {
            Cell::Lstm | Cell::Gru => lift(self.row(), &inputs, &[]),
            Cell::Tanh => Ok(vec![inputs[0].tanh()?]),
            Cell::Relu => Ok(vec![inputs[0].relu()?]),
        }
    }

    /// The inputs of the row.
    fn inputs(self, step: &Step<'_>) -> Vec<Tensor> {
        let mut inputs = blocks(step.arguments, self.gates());
        inputs.extend(step.hidden_products.into_iter().flat_map(|u| blocks(u, self.gates())));
        inputs.extend(step.before.cloned());
        inputs
    }

    /// Writes the gradients of the arguments, and the carried gradient of the state before the step. The gradients at the results of
    /// the step are `dh` and, for LSTM, `carried`; for GRU, `carried` arrives at the hidden state before the step. `after` is the
    /// cell state after the step, or the hidden state of a plain RNN.
    pub fn backward(
        self,
        op: &'static str,
        step: &Step<'_>,
        [dh, carried, after]: [Option<&Tensor>; 3],
        outputs: &[&Tensor],
    ) -> Result<()> {
        let inputs = self.inputs(step);
        let first: Vec<&Tensor> = dh.into_iter().collect();
        let middle = inputs.iter();
        match self {
            Cell::Lstm => {
                let all: Vec<&Tensor> = first.into_iter().chain(carried).chain(middle).chain(after).collect();
                Blocks { row: Pointwise::LstmStepBackward, counts: &[4, 1] }.write(op, &all, outputs)
            }
            Cell::Gru => {
                let all: Vec<&Tensor> = first.into_iter().chain(middle).chain(carried).collect();
                Blocks { row: Pointwise::GruStepBackward, counts: &[3, 3, 1] }.write(op, &all, outputs)
            }
            Cell::Tanh | Cell::Relu => {
                let row = if self == Cell::Tanh { Pointwise::TanhBackward } else { Pointwise::ReluBackward };
                let all: Vec<&Tensor> = first.into_iter().chain(after).collect();
                run(op, Kernel::Pointwise(row), &all, outputs, Attributes::default())
            }
        }
    }
}

/// The blocks of `[B, count H]`, outside of the tape.
fn blocks(t: &Tensor, count: usize) -> Vec<Tensor> {
    let width = t.dims()[1] / count;
    let block = |k: usize| -> Layout { t.layout().narrow(1, k * width, width, 1) };
    (0..count).map(|k| t.with_layout(block(k))).collect()
}
