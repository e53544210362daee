//! The fused ops that compute all steps of a sequence in one launch, forward and backward through time.

pub use super::cell::Cell;

use super::TimeOrder;
use super::cell::Step;
use crate::fused::FlatFused;
use crate::{DType, Result, Tensor};

/// A recurrence over the steps of sequences. G is the number of gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrence {
    /// The kind of its cell.
    pub cell: Cell,
    /// The order of its steps.
    pub order: TimeOrder,
    /// The dtype to which states and products are rounded.
    pub dtype: DType,
    /// Steps T, rows B and hidden units H.
    pub extents: [usize; 3],
}

impl Recurrence {
    /// The place in time of a step.
    fn time(self, step: usize) -> usize {
        if self.order == TimeOrder::Reverse { self.extents[0] - 1 - step } else { step }
    }

    fn rounded(self, t: &Tensor) -> Result<Tensor> {
        if t.dtype() == self.dtype { Ok(t.clone()) } else { t.cast(self.dtype)?.cast(t.dtype()) }
    }

    /// Tensors of all steps, stacked in the order of time.
    fn stacked(self, mut of_steps: Vec<Tensor>) -> Result<Tensor> {
        if self.order == TimeOrder::Reverse {
            of_steps.reverse();
        }
        Tensor::stack(&of_steps.iter().collect::<Vec<_>>(), 0)
    }

    fn zeros(self, like: &Tensor) -> Result<Tensor> {
        Tensor::zeros(&self.extents[1..], like.dtype(), like.device())
    }
}

/// Inputs: the products of the inputs of all steps `[T, B, G H]`, the weight of the hidden state `[G H, H]`, for GRU its bias `[G H]`, and
/// the initial states `[B, H]`, hidden and cell, which are 0 where they are absent. Outputs: the hidden states `[T + 1, B, H]` in the
/// order of time, with the initial one; `[T, B, G H]`: for GRU the products of the hidden states, otherwise their sums with the products
/// of the inputs; for LSTM the cell states `[T + 1, B, H]` in the order of steps, in the accumulation dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentForward {
    /// The recurrence.
    pub of: Recurrence,
    /// Whether there is a bias.
    pub has_bias: bool,
    /// Whether there is an initial hidden state.
    pub has_state: bool,
    /// Whether there is an initial cell state.
    pub has_cell: bool,
}

impl FlatFused for RecurrentForward {
    fn name(&self) -> &'static str {
        "recurrent"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (of, mut rest) = (self.of, inputs[2..].iter());
        let mut optional = |is_present: bool| if is_present { rest.next() } else { None };
        let [bias, h, c] = [self.has_bias, self.has_state, self.has_cell].map(&mut optional);
        let (a, w) = (&inputs[0], inputs[1].t()?);
        let initial = |t: Option<&Tensor>| t.map_or_else(|| of.zeros(a), |t| Ok(t.clone()));
        let (mut h, mut c) = (initial(h)?, initial(c)?.cast(a.dtype().acc())?);
        let (mut states, mut cells, mut products) = (vec![h.clone()], vec![c.clone()], Vec::new());
        for s in 0..of.extents[0] {
            let (x, mut u) = (a.select(0, of.time(s) as isize)?, h.matmul(&w)?);
            if let Some(bias) = bias {
                u = u.add(bias)?;
            }
            let product = of.rounded(&if of.cell == Cell::Gru { u } else { u.add(&x)? })?;
            let step = match of.cell {
                Cell::Gru => Step { arguments: x, hidden_products: Some(product.clone()), before: Some(h.clone()) },
                Cell::Lstm => Step { arguments: product.clone(), hidden_products: None, before: Some(c.clone()) },
                Cell::Tanh | Cell::Relu => Step { arguments: product.clone(), hidden_products: None, before: None },
            };
            let found = of.cell.composite(&step)?;
            h = of.rounded(&found[0].cast(a.dtype())?)?;
            c = found.into_iter().nth(1).unwrap_or(c);
            states.push(h.clone());
            cells.push(c.clone());
            products.push(product);
        }
        let cells = (of.cell == Cell::Lstm).then(|| Tensor::stack(&cells.iter().collect::<Vec<_>>(), 0)).transpose()?;
        Ok([Some(of.stacked(states)?), Some(of.stacked(products)?)].into_iter().chain(cells.map(Some)).collect())
    }
}

/// Inputs: the arguments of gates `[T, B, G H]`, for GRU the products of the hidden states; the hidden states and, for LSTM, cell states
/// of [`RecurrentForward`]; the weight of the hidden state; and the gradients of all hidden states `[T, B, H]`, the last one and the last
/// cell state `[B, H]` that are present. Outputs: the gradients of the arguments and, for GRU, of the products of the hidden states; for
/// LSTM that of the initial cell state, in the accumulation dtype; that of the initial hidden state, if it is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentBackward {
    /// The recurrence.
    pub of: Recurrence,
    /// Whether there is a gradient of all hidden states.
    pub has_dy: bool,
    /// Whether there is a further gradient of the last hidden state.
    pub has_dh: bool,
    /// Whether there is a gradient of the last cell state.
    pub has_dc: bool,
    /// Whether the gradient of the initial hidden state is wanted.
    pub is_state_wanted: bool,
}

impl FlatFused for RecurrentBackward {
    fn name(&self) -> &'static str {
        "recurrent_backward"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (of, mut rest) = (self.of, inputs.iter());
        let mut optional = |is_present: bool| if is_present { rest.next() } else { None };
        let is = |cell: Cell| of.cell == cell;
        let present = [true, is(Cell::Gru), true, is(Cell::Lstm), true, self.has_dy, self.has_dh, self.has_dc];
        let [a, u, states, cells, w, dy, dh, dc] = present.map(&mut optional);
        let [a, states, w] = [a, states, w].map(|t| t.expect("is always there"));
        let steps = of.extents[0];
        let at = |all: Option<&Tensor>, k: usize| all.map(|all| all.select(0, k as isize)).transpose();
        let given = |t: Option<&Tensor>| t.map_or_else(|| of.zeros(a), |t| Ok(t.clone()));
        // For LSTM the gradient of the cell state, for GRU that of the hidden state without the product.
        let (mut arriving, mut carried) = (given(dh)?, given(dc)?.cast(a.dtype().acc())?);
        let [mut of_arguments, mut of_products] = [const { Vec::new() }; 2];
        for s in (0..steps).rev() {
            let t = of.time(s);
            let (before, after) = if of.order == TimeOrder::Reverse { (t + 1, t) } else { (t, t + 1) };
            if let Some(dy) = at(dy, t)? {
                arriving = arriving.add(&dy)?;
            }
            let (before, after) = match of.cell {
                Cell::Lstm => (at(cells, s)?, at(cells, s + 1)?),
                Cell::Gru => (at(Some(states), before)?, None),
                Cell::Tanh | Cell::Relu => (None, at(Some(states), after)?),
            };
            let step = Step { arguments: a.select(0, t as isize)?, hidden_products: at(u, t)?, before };
            let mut found = of.cell.composite_backward(&step, &arriving, &carried, after.as_ref())?.into_iter();
            let mut gates = || -> Result<Tensor> {
                let gates: Vec<Tensor> = found.by_ref().take(of.cell.gates()).collect();
                of.rounded(&Tensor::concat(&gates.iter().collect::<Vec<_>>(), 1)?.cast(a.dtype())?)
            };
            of_arguments.push(gates()?);
            if is(Cell::Gru) {
                of_products.push(gates()?);
            }
            let multiplied = of_products.last().or(of_arguments.last()).expect("was pushed above");
            arriving = multiplied.matmul(w)?;
            carried = found.next().unwrap_or(carried);
            if is(Cell::Gru) {
                arriving = arriving.add(&carried.cast(a.dtype())?)?;
            }
        }
        let stacked = |all: Vec<Tensor>| of.stacked(all.into_iter().rev().collect()).map(Some);
        let mut all = vec![stacked(of_arguments)?];
        if is(Cell::Gru) {
            all.push(stacked(of_products)?);
        }
        if is(Cell::Lstm) {
            all.push(Some(carried));
        }
        if self.is_state_wanted {
            all.push(Some(arriving));
        }
        Ok(all)
    }
}
