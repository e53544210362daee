//! The steps of a recurrent op, forward and backward through time.

use super::TimeOrder;
use super::cell::{Cell, Step};
use super::map::Map;
use crate::backend::Kernel;
use crate::fused::record_fused_outputs;
use crate::ops::factory::fill;
use crate::tape::{Backward, Gradients, Saved, no_grad};
use crate::tensor::{Attributes, run};
use crate::{Dims, Result, Shape, Tensor, autocast, no_autocast};

/// The operands of a recurrent op. The arrays of its functions have their order.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub x: Option<&'a Tensor>,
    pub input: Option<&'a Tensor>,
    pub hidden: Option<&'a Tensor>,
    pub input_bias: Option<&'a Tensor>,
    pub hidden_bias: Option<&'a Tensor>,
    pub h: Option<&'a Tensor>,
    pub c: Option<&'a Tensor>,
    pub projection: Option<&'a Tensor>,
}

const COUNT: usize = 8;
const X: usize = 0;
const INPUT: usize = 1;
const HIDDEN: usize = 2;
const INPUT_BIAS: usize = 3;
const HIDDEN_BIAS: usize = 4;
const H: usize = 5;
const C: usize = 6;
const PROJECTION: usize = 7;

impl<'a> Operands<'a> {
    fn all(&self) -> [Option<&'a Tensor>; COUNT] {
        let Operands { x, input, hidden, input_bias, hidden_bias, h, c, projection } = *self;
        [x, input, hidden, input_bias, hidden_bias, h, c, projection]
    }

    /// The operands that are present: x, the weights of input and hidden state, and others.
    pub fn present(&self) -> Vec<&'a Tensor> {
        self.all().into_iter().flatten().collect()
    }

    /// Which operands are present.
    fn mask(&self) -> [bool; COUNT] {
        self.all().map(|t| t.is_some())
    }

    /// The inverse of [`present`](Operands::present).
    fn new(mask: [bool; COUNT], present: &'a [Tensor]) -> Operands<'a> {
        let mut rest = present.iter();
        let [x, input, hidden, input_bias, hidden_bias, h, c, projection] =
            mask.map(|is_present| if is_present { rest.next() } else { None });
        Operands { x, input, hidden, input_bias, hidden_bias, h, c, projection }
    }

    fn x(&self) -> &'a Tensor {
        self.x.expect("x is always there")
    }

    fn input(&self) -> &'a Tensor {
        self.input.expect("the weight of the input is always there")
    }

    fn hidden(&self) -> &'a Tensor {
        self.hidden.expect("the weight of the hidden state is always there")
    }
}

/// The results of a recurrent op.
pub(super) struct Results {
    /// The hidden states of all steps of a sequence.
    pub states: Option<Tensor>,
    /// The last hidden state.
    pub hidden: Tensor,
    /// The last cell state.
    pub cell: Option<Tensor>,
}

impl Results {
    /// Of a sequence: all hidden states, and the last one.
    pub fn two(self) -> (Tensor, Tensor) {
        (self.states.expect("a sequence has states"), self.hidden)
    }

    /// Of a sequence with cell states: all hidden states, the last one, and the last cell state.
    pub fn three(self) -> (Tensor, Tensor, Tensor) {
        (self.states.expect("a sequence has states"), self.hidden, self.cell.expect("an LSTM has a cell state"))
    }
}

/// A recurrent op: a step where there is no order, otherwise a sequence.
#[derive(Clone)]
pub(super) struct Sequence {
    pub op: &'static str,
    pub cell: Cell,
    pub map: Map,
    pub order: Option<TimeOrder>,
    /// The shape of a hidden state, `[B, ..]`.
    pub state: Shape,
    /// The shape of a cell state, which without a projection is that of a hidden state.
    pub cell_state: Shape,
}

/// The intermediate results that the backward pass reads.
struct Trace {
    /// The arguments of the gates, `[T, B, G H]`: of the input alone for GRU, otherwise sums with the products of the hidden state.
    arguments: Tensor,
    /// For GRU: the products of the hidden state, `[T, B, G H]`.
    hidden_products: Option<Tensor>,
    /// The hidden states in the order of time, `[T + 1, B, ..]`; the initial one is at the end where the op begins. The result is
    /// a part of them.
    states: Tensor,
    /// For LSTM: the cell states in the order of steps, T + 1 times `[B, H]`, in the accumulation dtype.
    cells: Vec<Tensor>,
    /// With a projection: the cells' outputs, `[T, B, H]`.
    unprojected: Option<Tensor>,
}

impl Sequence {
    /// Runs the op, and puts its results on the tape.
    pub fn run(self, operands: &Operands<'_>) -> Result<Results> {
        let (present, mask) = (operands.present(), operands.mask());
        if let Some(low) = autocast::low_each(&present)? {
            let is_changed = low.iter().zip(&present).any(|(a, b)| a.dtype() != b.dtype());
            debug_assert!(is_changed, "operands of the scope's dtype are left alone");
            return no_autocast(|| self.run(&Operands::new(mask, &low)));
        }
        let detached: Vec<Tensor> = present.iter().map(|t| t.detach()).collect();
        let (outputs, trace) = no_grad(|| self.forward(&Operands::new(mask, &detached)))?;
        let states = Saved::input(&trace.states);
        let (op, is_sequence, again) = (self.op, self.order.is_some(), self.clone());
        let composite = move |inputs: &[Tensor]| again.composite(&Operands::new(mask, inputs));
        let backward = move |t: &Backward<'_>, inputs: &[Tensor]| {
            // Reports a change of the result in place.
            t.get(&states)?;
            self.backward(t, &Operands::new(mask, inputs), mask, &trace)
        };
        let mut outputs = record_fused_outputs(op, &present, outputs, composite, backward)?.into_iter();
        let states = if is_sequence { outputs.next() } else { None };
        let hidden = outputs.next().expect("there is a hidden state");
        Ok(Results { states, hidden, cell: outputs.next() })
    }

    fn steps(&self, x: &Tensor) -> usize {
        if self.order.is_some() { x.dims()[0] } else { 1 }
    }

    /// The place in time of step `s` of `steps`.
    fn time(&self, s: usize, steps: usize) -> usize {
        if self.order == Some(TimeOrder::Reverse) { steps - 1 - s } else { s }
    }

    /// The places among [`Trace::states`] of the hidden states before and after the step at time t.
    fn slots(&self, t: usize) -> [usize; 2] {
        if self.order == Some(TimeOrder::Reverse) { [t + 1, t] } else { [t, t + 1] }
    }

    /// x with the rows of all steps, `[T B, ..]`.
    fn rows(&self, x: &Tensor) -> Result<Tensor> {
        let first = if self.order.is_some() { 2 } else { 1 };
        let dims: Dims = [self.steps(x) * self.state[0]].into_iter().chain(x.dims()[first..].iter().copied()).collect();
        x.reshape(dims)
    }

    /// The shape of the arguments of gates for a number of rows.
    fn gates(&self, rows: usize) -> Shape {
        self.map.output(rows, self.cell.gates() * self.cell_state[1], &self.cell_state)
    }

    /// Memory for `n` tensors of a shape.
    fn several(&self, n: usize, shape: &Shape, like: &Tensor) -> Result<Tensor> {
        let dims: Dims = [n].into_iter().chain(shape.dims().iter().copied()).collect();
        Tensor::allocate(self.op, &dims.into(), like.dtype(), like.device())
    }

    fn zeros(&self, shape: &Shape, like: &Tensor) -> Result<Tensor> {
        Tensor::zeros(shape, like.dtype(), like.device())
    }

    /// A carried state before the first step: the cell state of LSTM in the accumulation dtype, or a copy of GRU's hidden state.
    fn initial(&self, operands: &Operands<'_>) -> Result<Option<Tensor>> {
        let (given, shape, dtype) = match self.cell {
            Cell::Lstm => (operands.c, &self.cell_state, operands.x().dtype().acc()),
            Cell::Gru => (operands.h, &self.state, operands.x().dtype()),
            Cell::Tanh | Cell::Relu => return Ok(None),
        };
        match given {
            Some(t) => flat(&t.cast(dtype)?.contiguous()?).map(Some),
            None => flat(&Tensor::zeros(shape, dtype, operands.x().device())?).map(Some),
        }
    }

    /// The results, and what the backward pass reads. Outside of the tape.
    fn forward(&self, operands: &Operands<'_>) -> Result<(Vec<Tensor>, Trace)> {
        let (x, steps, is_gru) = (operands.x(), self.steps(operands.x()), self.cell == Cell::Gru);
        let (rows, gates) = (self.state[0], self.gates(self.state[0]));
        let joint = [operands.input_bias, operands.hidden_bias];
        let bias = match joint {
            [Some(a), Some(b)] if !is_gru => Some(a.add(b)?),
            [a, b] => a.or(b.filter(|_| !is_gru)).cloned(),
        };
        let of_inputs = self.map.apply(&self.rows(x)?, operands.input(), bias.as_ref())?;
        let of_inputs = of_inputs.reshape(prepend(steps, &gates))?;
        let products = self.several(steps, &gates, x)?;
        let states = self.several(steps + 1, &self.state, x)?;
        let unprojected = operands.projection.map(|_| self.several(steps, &self.cell_state, x)).transpose()?;
        let first = states.select(0, self.slots(self.time(0, steps))[0] as isize)?;
        match operands.h {
            Some(h) => run(self.op, Kernel::Copy, &[h], &[&first], Attributes::default())?,
            None => fill(self.op, &first, 0.0.into())?,
        }
        let mut carried: Vec<Tensor> = self.initial(operands)?.into_iter().collect();
        for s in 0..steps {
            let t = self.time(s, steps) as isize;
            let [before, after] = self.slots(t as usize).map(|slot| states.select(0, slot as isize));
            let (before, after, of_input, product) = (before?, after?, of_inputs.select(0, t)?, products.select(0, t)?);
            let added = if is_gru { operands.hidden_bias } else { Some(&of_input) };
            self.map.write(self.op, &before, operands.hidden(), added, &product)?;
            let written = unprojected.as_ref().map(|all| all.select(0, t)).transpose()?;
            let next =
                carried.last().map(|c| Tensor::allocate(self.op, c.shape(), c.dtype(), c.device())).transpose()?;
            let (product, of_input) = (flat(&product)?, flat(&of_input)?);
            let step = Step {
                arguments: if is_gru { &of_input } else { &product },
                hidden_products: is_gru.then_some(&product),
                before: carried.last(),
            };
            let output = flat(written.as_ref().unwrap_or(&after))?;
            let outputs: Vec<&Tensor> = [&output].into_iter().chain(&next).collect();
            self.cell.forward(self.op, &step, &outputs)?;
            if let (Some(output), Some(w)) = (&written, operands.projection) {
                self.map.write(self.op, output, w, None, &after)?;
            }
            // A GRU's states are all in `states`.
            if is_gru {
                carried.clear();
            }
            carried.extend(next);
        }
        debug_assert_eq!(rows, self.cell_state[0]);
        let trace = match is_gru {
            true => {
                Trace { arguments: of_inputs, hidden_products: Some(products), states, cells: Vec::new(), unprojected }
            }
            false => Trace { arguments: products, hidden_products: None, states, cells: carried, unprojected },
        };
        Ok((self.results(x, &trace)?, trace))
    }

    /// The results of a trace, in memory of their own, but for hidden states of which a trace is made.
    fn results(&self, x: &Tensor, trace: &Trace) -> Result<Vec<Tensor>> {
        let steps = self.steps(x);
        let last = trace.states.select(0, self.slots(self.time(steps - 1, steps))[1] as isize)?;
        let mut all = match self.order {
            Some(order) => vec![trace.states.narrow(0, (order == TimeOrder::Forward) as usize, steps)?, last.copy()?],
            None => vec![last],
        };
        if let Some(c) = trace.cells.last() {
            let c = if c.dtype() == x.dtype() { c.copy()? } else { c.cast(x.dtype())? };
            all.push(c.reshape(self.cell_state.clone())?);
        }
        Ok(all)
    }

    /// The op in tensor ops.
    fn composite(&self, operands: &Operands<'_>) -> Result<Vec<Tensor>> {
        let (x, steps) = (operands.x(), self.steps(operands.x()));
        let of_inputs = self.map.apply(&self.rows(x)?, operands.input(), operands.input_bias)?;
        let of_inputs = of_inputs.reshape(prepend(steps, &self.gates(self.state[0])))?;
        let mut h = operands.h.map_or_else(|| self.zeros(&self.state, x), |h| Ok(h.clone()))?;
        let mut cell = if self.cell == Cell::Lstm { self.initial(operands)? } else { None };
        let mut states = Vec::new();
        for s in 0..steps {
            let a = of_inputs.select(0, self.time(s, steps) as isize)?;
            let u = self.map.apply(&h, operands.hidden(), operands.hidden_bias)?;
            let is_gru = self.cell == Cell::Gru;
            let (arguments, u) = (flat(&if is_gru { a } else { a.add(&u)? })?, flat(&u)?);
            let before = if is_gru { Some(flat(&h)?) } else { cell.clone() };
            let step = Step { arguments: &arguments, hidden_products: is_gru.then_some(&u), before: before.as_ref() };
            let found = self.cell.composite(&step)?;
            let output = found[0].cast(x.dtype())?;
            let output = if let Some(w) = operands.projection { output.linear(w, None)? } else { output };
            h = output.reshape(self.state.clone())?;
            cell = if self.cell == Cell::Lstm { Some(found[1].clone()) } else { None };
            states.push(h.clone());
        }
        if self.order == Some(TimeOrder::Reverse) {
            states.reverse();
        }
        let all = if self.order.is_some() { Some(Tensor::stack(&states.iter().collect::<Vec<_>>(), 0)?) } else { None };
        let cell = cell.map(|c| c.cast(x.dtype())?.reshape(self.cell_state.clone())).transpose()?;
        Ok(all.into_iter().chain([h]).chain(cell).collect())
    }

    /// The gradients of the operands that are present.
    fn backward(
        &self,
        t: &Backward<'_>,
        operands: &Operands<'_>,
        mask: [bool; COUNT],
        trace: &Trace,
    ) -> Result<Gradients> {
        let place = |k: usize| mask[..k].iter().filter(|&&is_present| is_present).count();
        let needs = mask.map(|is_present| is_present);
        let needs: [bool; COUNT] = std::array::from_fn(|k| needs[k] && t.needs(place(k)));
        let passed = self.through_time(t, operands, needs[H], trace)?;
        let (x, steps, rows) = (self.rows(operands.x())?, self.steps(operands.x()), self.state[0]);
        let all = |t: &Tensor, shape: Shape| t.reshape(shape);
        let of_inputs = all(&passed.arguments, self.gates(steps * rows))?;
        let of_hidden = match &passed.hidden_products {
            Some(found) => all(found, self.gates(steps * rows))?,
            None => of_inputs.clone(),
        };
        let first = usize::from(self.order == Some(TimeOrder::Reverse));
        let before =
            trace.states.narrow(0, first, steps)?.reshape(self.map.output(steps * rows, self.state[1], &self.state))?;
        let want = |k: usize, f: &dyn Fn() -> Result<Tensor>| if needs[k] { f().map(Some) } else { Ok(None) };
        let map = self.map;
        let mut found: [Option<Tensor>; COUNT] = Default::default();
        found[X] = want(X, &|| {
            let dx = map.input_gradient(self.op, &of_inputs, operands.input(), None, x.shape())?;
            dx.reshape(operands.x().shape().clone())
        })?;
        found[INPUT] = want(INPUT, &|| map.weight_gradient(&of_inputs, &x, operands.input()))?;
        found[HIDDEN] = want(HIDDEN, &|| map.weight_gradient(&of_hidden, &before, operands.hidden()))?;
        let is_joint = passed.hidden_products.is_none();
        if needs[INPUT_BIAS] || (needs[HIDDEN_BIAS] && is_joint) {
            let sum = map.bias_gradient(&of_inputs)?;
            found[INPUT_BIAS] = needs[INPUT_BIAS].then(|| sum.clone());
            found[HIDDEN_BIAS] = (needs[HIDDEN_BIAS] && is_joint).then_some(sum);
        }
        if !is_joint {
            found[HIDDEN_BIAS] = want(HIDDEN_BIAS, &|| map.bias_gradient(&of_hidden))?;
        }
        found[H] = passed.h;
        found[C] = match (needs[C], passed.c) {
            (true, Some(c)) => Some(c.cast(operands.x().dtype())?.reshape(self.cell_state.clone())?),
            _ => None,
        };
        if let (true, Some(outputs), Some(states)) = (needs[PROJECTION], &trace.unprojected, &passed.states) {
            let [outputs, states] = [outputs, states].map(|t| t.reshape((steps * rows, t.dims()[2])));
            found[PROJECTION] = Some(states?.t()?.matmul(&outputs?)?);
        }
        Ok(found.into_iter().zip(mask).filter(|(_, is_present)| *is_present).map(|(g, _)| g).collect())
    }

    /// Goes back over the steps.
    fn through_time(&self, t: &Backward<'_>, operands: &Operands<'_>, needs_h: bool, trace: &Trace) -> Result<Passed> {
        let (x, steps, rows) = (operands.x(), self.steps(operands.x()), self.state[0]);
        let (is_gru, is_lstm) = (self.cell == Cell::Gru, self.cell == Cell::Lstm);
        let first = usize::from(self.order.is_some());
        let dy = if self.order.is_some() { t.dy_of(0).map(Tensor::contiguous).transpose()? } else { None };
        let dy_at = |s: usize| dy.as_ref().map(|dy| dy.select(0, self.time(s, steps) as isize)).transpose();
        let like_gates = || self.several(steps, &self.gates(rows), x);
        let arguments = like_gates()?;
        let hidden_products = if is_gru { Some(like_gates()?) } else { None };
        let arriving = operands.projection.map(|_| self.several(steps, &self.state, x)).transpose()?;
        let mut dh = match (t.dy_of(first), dy_at(steps - 1)?) {
            (Some(a), Some(b)) => a.add(&b)?,
            (Some(a), None) => a.contiguous()?,
            (None, Some(b)) => b,
            (None, None) => self.zeros(&self.state, x)?,
        };
        let dtype = x.dtype().acc();
        let mut carried = match t_cell(t, first, is_lstm) {
            _ if !is_lstm => None,
            Some(dc) => Some(flat(&dc.cast(dtype)?.contiguous()?)?),
            None => Some(flat(&Tensor::zeros(&self.cell_state, dtype, x.device())?)?),
        };
        let nothing = if is_gru { Some(self.zeros(&self.state, x)?) } else { None };
        for s in (0..steps).rev() {
            let t = self.time(s, steps) as isize;
            let [before, after] = self.slots(t as usize).map(|slot| trace.states.select(0, slot as isize));
            let (before, after) = (flat(&before?)?, flat(&after?)?);
            let of_output = match (operands.projection, &arriving) {
                (Some(w), Some(all)) => {
                    run(self.op, Kernel::Copy, &[&dh], &[&all.select(0, t)?], Attributes::default())?;
                    self.map.input_gradient(self.op, &dh, w, None, &self.cell_state)?
                }
                _ => dh.clone(),
            };
            let earlier = if s > 0 { dy_at(s - 1)? } else { None };
            let (of_step, of_products) = (
                flat(&trace.arguments.select(0, t)?)?,
                trace.hidden_products.as_ref().map(|all| flat(&all.select(0, t)?)).transpose()?,
            );
            let step = Step {
                arguments: &of_step,
                hidden_products: of_products.as_ref(),
                before: if is_gru { Some(&before) } else { trace.cells.get(s) },
            };
            let read = [
                Some(flat(&of_output)?),
                if is_gru { earlier.as_ref().or(nothing.as_ref()).map(flat).transpose()? } else { carried.take() },
                if is_lstm { trace.cells.get(s + 1).cloned() } else { Some(after) },
            ];
            let written = [Some(&arguments), hidden_products.as_ref()];
            let written: Vec<Tensor> =
                written.into_iter().flatten().map(|all| flat(&all.select(0, t)?)).collect::<Result<_>>()?;
            let next = match self.cell.carries() {
                true => {
                    let dtype = if is_gru { x.dtype() } else { dtype };
                    let width = self.cell_state.dims()[1..].iter().product();
                    Some(Tensor::allocate(self.op, &[rows, width].into(), dtype, x.device())?)
                }
                false => None,
            };
            let outputs: Vec<&Tensor> = written.iter().chain(&next).collect();
            self.cell.backward(self.op, &step, read.each_ref().map(Option::as_ref), &outputs)?;
            let of_hidden = hidden_products.as_ref().unwrap_or(&arguments).select(0, t)?;
            if s > 0 || needs_h {
                let direct =
                    if is_gru { next.as_ref().map(|t| t.reshape(self.state.clone())).transpose()? } else { earlier };
                dh = self.map.input_gradient(self.op, &of_hidden, operands.hidden(), direct.as_ref(), &self.state)?;
            }
            carried = if is_lstm { next } else { None };
        }
        Ok(Passed { arguments, hidden_products, states: arriving, h: needs_h.then_some(dh), c: carried })
    }
}

/// The gradient that arrives at the last cell state.
fn t_cell<'a>(t: &'a Backward<'_>, first: usize, is_lstm: bool) -> Option<&'a Tensor> {
    if is_lstm { t.dy_of(first + 1) } else { None }
}

/// The gradients that a pass through time leaves.
struct Passed {
    /// Of [`Trace::arguments`].
    arguments: Tensor,
    /// Of [`Trace::hidden_products`].
    hidden_products: Option<Tensor>,
    /// With a projection: of the hidden states, `[T, B, P]`.
    states: Option<Tensor>,
    /// Of the initial hidden state, if it is wanted.
    h: Option<Tensor>,
    /// Of the initial cell state, in the accumulation dtype.
    c: Option<Tensor>,
}

/// `[B, ..]` as `[B, all others]`.
fn flat(t: &Tensor) -> Result<Tensor> {
    t.reshape((t.dims()[0], t.dims()[1..].iter().product()))
}

/// A shape with a dimension in front.
fn prepend(n: usize, shape: &Shape) -> Dims {
    [n].into_iter().chain(shape.dims().iter().copied()).collect()
}
