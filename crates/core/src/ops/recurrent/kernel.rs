//! The fused ops that compute all steps of a sequence in one launch, forward and backward through time.

pub use super::cell::Cell;

use super::TimeOrder;
use super::cell::Step;
use crate::fused::Fused;
use crate::operands;
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

/// All steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentForward(pub Recurrence);

operands! {
    /// The inputs of [`RecurrentForward`].
    pub struct RecurrentInputs {
        /// The products of the inputs of all steps, `[T, B, G H]`.
        a,
        /// The weight of the hidden state, `[G H, H]`.
        w,
        /// For GRU, the bias of the hidden state's products, `[G H]`.
        bias?,
        /// The initial hidden state, `[B, H]`; 0 where it is absent.
        h?,
        /// The initial cell state, `[B, H]`; 0 where it is absent.
        c?,
    }
}

operands! {
    /// The outputs of [`RecurrentForward`].
    pub struct RecurrentOutputs {
        /// The hidden states, `[T + 1, B, H]`, in the order of time, with the initial one.
        states,
        /// `[T, B, G H]`: for GRU the products of the hidden states, otherwise their sums with the products of the inputs.
        products,
        /// For LSTM, the cell states, `[T + 1, B, H]`, in the order of steps, in the accumulation dtype.
        cells?,
    }
}

impl Fused for RecurrentForward {
    type Inputs<T> = RecurrentInputs<T>;
    type Outputs<T> = RecurrentOutputs<T>;

    fn name(&self) -> &'static str {
        "recurrent"
    }

    fn composite(
        &self,
        RecurrentInputs { a, w, bias, h, c }: RecurrentInputs<&Tensor>,
        before: RecurrentOutputs<&Tensor>,
    ) -> Result<RecurrentOutputs<Option<Tensor>>> {
        let (of, w) = (self.0, w.t()?);
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
        let cells = before.cells.map(|_| Tensor::stack(&cells.iter().collect::<Vec<_>>(), 0)).transpose()?;
        let (states, products) = (of.stacked(states)?, of.stacked(products)?);
        Ok(RecurrentOutputs { states: Some(states), products: Some(products), cells: cells.map(Some) })
    }
}

/// All steps, backward through time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentBackward(pub Recurrence);

operands! {
    /// The inputs of [`RecurrentBackward`].
    pub struct RecurrentBackwardInputs {
        /// The arguments of gates, `[T, B, G H]`.
        a,
        /// For GRU, the products of the hidden states, `[T, B, G H]`.
        u?,
        /// The hidden states of [`RecurrentForward`].
        states,
        /// For LSTM, the cell states of [`RecurrentForward`].
        cells?,
        /// The weight of the hidden state, `[G H, H]`.
        w,
        /// The gradients of all hidden states, `[T, B, H]`.
        dy?,
        /// A further gradient of the last hidden state, `[B, H]`.
        dh?,
        /// The gradient of the last cell state, `[B, H]`.
        dc?,
    }
}

operands! {
    /// The outputs of [`RecurrentBackward`].
    pub struct RecurrentGradients {
        /// The gradients of the arguments, `[T, B, G H]`.
        a,
        /// For GRU, the gradients of the products of the hidden states, `[T, B, G H]`.
        u?,
        /// For LSTM, the gradient of the initial cell state, `[B, H]`, in the accumulation dtype.
        c?,
        /// The gradient of the initial hidden state, `[B, H]`, if it is wanted.
        h?,
    }
}

impl Fused for RecurrentBackward {
    type Inputs<T> = RecurrentBackwardInputs<T>;
    type Outputs<T> = RecurrentGradients<T>;

    fn name(&self) -> &'static str {
        "recurrent_backward"
    }

    fn composite(
        &self,
        RecurrentBackwardInputs { a, u, states, cells, w, dy, dh, dc }: RecurrentBackwardInputs<&Tensor>,
        wanted: RecurrentGradients<&Tensor>,
    ) -> Result<RecurrentGradients<Option<Tensor>>> {
        let of = self.0;
        let is = |cell: Cell| of.cell == cell;
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
        Ok(RecurrentGradients {
            a: stacked(of_arguments)?,
            u: wanted.u.map(|_| stacked(of_products)).transpose()?,
            c: wanted.c.map(|_| Some(carried)),
            h: wanted.h.map(|_| Some(arriving)),
        })
    }
}
