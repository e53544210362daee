//! The pointwise part of a step, by the kind of cell.

use crate::backend::Kernel;
use crate::ops::elementwise::fused_pointwise::Blocks;
use crate::pointwise::{Pointwise, lift};
use crate::tensor::{Attributes, run};
use crate::{Layout, Result, Tensor};

/// The kind of a recurrent cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// An LSTM.
    Lstm,
    /// A GRU.
    Gru,
    /// A plain RNN with tanh.
    Tanh,
    /// A plain RNN with relu.
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

    /// The row of a step.
    pub fn row(self) -> Pointwise {
        match self {
            Cell::Lstm => Pointwise::LstmStep,
            Cell::Gru => Pointwise::GruStep,
            Cell::Tanh => Pointwise::Tanh,
            Cell::Relu => Pointwise::Relu,
        }
    }

    /// The row of the gradients of a step.
    pub fn backward_row(self) -> Pointwise {
        match self {
            Cell::Lstm => Pointwise::LstmStepBackward,
            Cell::Gru => Pointwise::GruStepBackward,
            Cell::Tanh => Pointwise::TanhBackward,
            Cell::Relu => Pointwise::ReluBackward,
        }
    }

    /// Writes the hidden state and, where there is one, the carried state.
    pub(super) fn forward(self, op: &'static str, step: &Step, outputs: &[&Tensor]) -> Result<()> {
        let inputs = self.inputs(step);
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        run(op, Kernel::Pointwise(self.row()), &inputs, outputs, Attributes::default())
    }

    /// [`forward`](Cell::forward) in tensor ops, in the accumulation dtype.
    pub(super) fn composite(self, step: &Step) -> Result<Vec<Tensor>> {
        lift(self.row(), &self.wide_inputs(step)?, &[])
    }

    /// The inputs of the row in the accumulation dtype, on the tape.
    fn wide_inputs(self, step: &Step) -> Result<Vec<Tensor>> {
        let acc = step.arguments.dtype().acc();
        let mut inputs = Vec::new();
        for products in [Some(&step.arguments), step.hidden_products.as_ref()].into_iter().flatten() {
            let width = products.dims()[1] / self.gates();
            for k in 0..self.gates() {
                inputs.push(products.narrow(1, k * width, width)?.cast(acc)?);
            }
        }
        inputs.extend(step.before.as_ref().map(|t| t.cast(acc)).transpose()?);
        Ok(inputs)
    }

    /// [`backward`](Cell::backward) in tensor ops, in the accumulation dtype. For LSTM `carried` is the gradient of the cell state
    /// after the step; nothing is added to the gradient of GRU's hidden state before the step.
    pub(super) fn composite_backward(
        self,
        step: &Step,
        hidden: &Tensor,
        carried: &Tensor,
        after: Option<&Tensor>,
    ) -> Result<Vec<Tensor>> {
        let acc = step.arguments.dtype().acc();
        let hidden = hidden.cast(acc)?;
        let after = after.map(|t| t.cast(acc)).transpose()?;
        let inputs = match self {
            Cell::Lstm => [hidden, carried.clone()].into_iter().chain(self.wide_inputs(step)?).chain(after).collect(),
            Cell::Gru => {
                let none = hidden.zeros_like()?;
                [hidden].into_iter().chain(self.wide_inputs(step)?).chain([none]).collect()
            }
            Cell::Tanh | Cell::Relu => [hidden].into_iter().chain(after).collect::<Vec<_>>(),
        };
        lift(self.backward_row(), &inputs, &[])
    }

    /// The inputs of the row.
    fn inputs(self, step: &Step) -> Vec<Tensor> {
        let products = [Some(&step.arguments), step.hidden_products.as_ref()].into_iter().flatten();
        products.flat_map(|products| blocks(products, self.gates())).chain(step.before.clone()).collect()
    }

    /// Writes the gradients of the arguments, of the products of the hidden state for GRU, and of the state before the step.
    pub(super) fn backward(self, op: &'static str, step: &Step, arriving: Arriving, outputs: &[&Tensor]) -> Result<()> {
        let Arriving { hidden, other, after } = arriving;
        let (hidden, inputs) = (Some(hidden).into_iter(), self.inputs(step));
        let (all, counts): (Vec<Tensor>, &'static [usize]) = match self {
            Cell::Lstm => (hidden.chain(other).chain(inputs).chain(after).collect(), &[4, 1]),
            Cell::Gru => (hidden.chain(inputs).chain(other).collect(), &[3, 3, 1]),
            Cell::Tanh | Cell::Relu => (hidden.chain(after).collect(), &[]),
        };
        let (all, row): (Vec<&Tensor>, _) = (all.iter().collect(), self.backward_row());
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
