//! The steps of a recurrent op, forward and backward through time.

use super::cell::{Arriving, Cell, Step};
use super::kernel::{
    Recurrence, RecurrentBackward, RecurrentBackwardInputs, RecurrentForward, RecurrentGradients, RecurrentInputs,
    RecurrentOutputs,
};
use super::map::Map;
use super::{RecurrentLayer, RecurrentLayerInputs, TimeOrder};
use crate::backend::Kernel;
use crate::fused::{has_kernel, has_room, run_fused};
use crate::operands;
use crate::operands::Operands;
use crate::ops::shape::factory::fill;
use crate::tape::{Backward, Gradients, Record, Saved, no_grad, report_as};
use crate::tensor::{Attributes, run};
use crate::thread::within;
use crate::{DType, Dims, Layout, Result, Shape, Tensor, autocast, no_autocast};

operands! {
    /// The operands of a recurrent op.
    pub(super) struct RecurrentOperands {
        x,
        /// The weight of the input.
        input,
        /// The weight of the hidden state.
        hidden,
        input_bias?,
        hidden_bias?,
        /// The initial hidden state.
        h?,
        /// The initial cell state.
        c?,
        /// The weight by which a cell's output becomes the hidden state.
        projection?,
    }
}

impl RecurrentOperands<&Tensor> {
    /// Runs `f` with these operands, cast to the dtype of an [`autocast`](crate::autocast()) if there is one.
    pub fn in_scope<R>(self, f: impl FnOnce(RecurrentOperands<&Tensor>) -> Result<R>) -> Result<R> {
        match autocast::low_each(&self.present())? {
            Some(low) => no_autocast(|| f(RecurrentOperands::of(self.mask(), &mut low.iter()))),
            None => f(self),
        }
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
    /// Reports the op that has these results.
    pub fn report(
        &self,
        op: &'static str,
        layer: RecurrentLayer,
        operands: RecurrentOperands<&Tensor>,
        lengths: Option<&Tensor>,
    ) {
        let RecurrentOperands { x, input, hidden, input_bias, hidden_bias, h, c, projection } = operands;
        let inputs = RecurrentLayerInputs { x, input, hidden, input_bias, hidden_bias, h, c, projection, lengths };
        let outputs: Vec<&Tensor> = self.states.iter().chain([&self.hidden]).chain(&self.cell).collect();
        report_as(op, inputs, &outputs, || layer);
    }

    /// All hidden states of a sequence, and the last one.
    pub fn two(self) -> (Tensor, Tensor) {
        (self.states.expect("a sequence has states"), self.hidden)
    }

    /// All hidden states of a sequence with cell states, the last one, and the last cell state.
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
    /// For LSTM, bool `[T, B, 1]`: the steps that leave the cell state as it is, whose hidden states nobody reads.
    pub is_held: Option<Tensor>,
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
    /// For LSTM: the cell states in the order of steps, T + 1 times `[B, H]`, in the accumulation dtype. From the kernel of all steps
    /// they are one tensor `[T + 1, B, H]`.
    cells: Vec<Tensor>,
    /// Whether the kernel of all steps made this.
    is_at_once: bool,
    /// With a projection: the cells' outputs, `[T, B, H]`.
    unprojected: Option<Tensor>,
}

impl Sequence {
    /// Runs the op, and puts its results on the tape.
    pub fn run(self, operands: RecurrentOperands<&Tensor>) -> Result<Results> {
        let (present, mask) = (operands.present(), operands.mask());
        // Products have the same bits for any strides of the operands.
        let contiguous: Vec<Tensor> = present.iter().map(|t| t.contiguous()).collect::<Result<_>>()?;
        let present: Vec<&Tensor> = contiguous.iter().collect();
        let read: Vec<Tensor> = contiguous.iter().map(plain).collect();
        let compute = || no_grad(|| self.forward(RecurrentOperands::of(mask, &mut read.iter())));
        let (outputs, trace) = within(self.op, compute)?;
        let states = Saved::input(&trace.states);
        let (op, is_sequence, again) = (self.op, self.order.is_some(), self.clone());
        let composite = move |inputs: &[Tensor]| again.composite(RecurrentOperands::of(mask, &mut inputs.iter()));
        let backward = move |t: &Backward<'_>, inputs: &[Tensor]| {
            // Reports a change of the result in place.
            t.get(&states)?;
            let read: Vec<Tensor> = inputs.iter().map(plain).collect();
            self.backward(t, RecurrentOperands::of(mask, &mut read.iter()), &trace)
        };
        let mut outputs = Record::new(op, &present).fused(outputs, composite, backward)?.into_iter();
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

    /// The products of the inputs of all steps, `[T, B, G H]`.
    fn of_inputs(&self, operands: RecurrentOperands<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
        let (x, steps) = (operands.x, self.steps(operands.x));
        let a = self.map.apply(&self.rows(x)?, operands.input, bias)?;
        let a = a.reshape(prepend(steps, &self.gates(self.state[0])))?;
        self.is_held.as_ref().map_or(Ok(a.clone()), |is_held| held(&a, is_held))
    }

    /// A carried state before the first step: the cell state of LSTM in the accumulation dtype, or a copy of GRU's hidden state.
    fn initial(&self, operands: RecurrentOperands<&Tensor>) -> Result<Option<Tensor>> {
        let x = operands.x;
        match self.cell {
            Cell::Lstm => self.carried(operands.c, &self.cell_state, x.dtype().acc(), x).map(Some),
            Cell::Gru => self.carried(operands.h, &self.state, x.dtype(), x).map(Some),
            Cell::Tanh | Cell::Relu => Ok(None),
        }
    }

    /// A state or its gradient, or zeros, as `[B, H]` in this dtype.
    fn carried(&self, given: Option<&Tensor>, shape: &Shape, dtype: DType, x: &Tensor) -> Result<Tensor> {
        match given {
            Some(t) => flat(&t.cast(dtype)?.contiguous()?),
            None => flat(&Tensor::zeros(shape, dtype, x.device())?),
        }
    }

    /// The results, and what the backward pass reads. Outside of the tape.
    fn forward(&self, operands: RecurrentOperands<&Tensor>) -> Result<(Vec<Tensor>, Trace)> {
        let of_inputs = self.of_inputs(operands, self.input_bias(operands)?.as_ref())?;
        if let Some(kernel) = self.kernel(operands) {
            let trace = self.forward_at_once(&kernel, operands, &of_inputs)?;
            return Ok((self.results(operands.x, &trace)?, trace));
        }
        let turned = self.map.turned(operands.hidden)?;
        let operands = RecurrentOperands { hidden: &turned, ..operands };
        let mut trace = self.begin(operands, &of_inputs)?;
        let mut carried = self.initial(operands)?;
        for s in 0..self.steps(operands.x) {
            let next = self.step(operands, &of_inputs, &trace, s, carried.as_ref())?;
            trace.cells.extend(carried.filter(|_| self.cell == Cell::Lstm));
            carried = next;
        }
        trace.cells.extend(carried.filter(|_| self.cell == Cell::Lstm));
        Ok((self.results(operands.x, &trace)?, trace))
    }

    /// The bias of the products of the inputs: both, unless the products of the hidden state are separate.
    fn input_bias(&self, operands: RecurrentOperands<&Tensor>) -> Result<Option<Tensor>> {
        match (operands.input_bias, operands.hidden_bias) {
            (of_input, _) if self.cell == Cell::Gru => Ok(of_input.cloned()),
            (Some(a), Some(b)) => a.add(b).map(Some),
            (a, b) => Ok(a.or(b).cloned()),
        }
    }

    /// Memory for the intermediate results. It has the initial hidden state.
    fn begin(&self, operands: RecurrentOperands<&Tensor>, of_inputs: &Tensor) -> Result<Trace> {
        let (x, steps) = (operands.x, self.steps(operands.x));
        let states = self.several(steps + 1, &self.state, x)?;
        let first = states.select(0, self.slots(self.time(0, steps))[0] as isize)?;
        match operands.h {
            Some(h) => run(self.op, Kernel::Copy, &[h], &[&first], Attributes::default())?,
            None => fill(self.op, &first, 0.0.into())?,
        }
        let unprojected = operands.projection.map(|_| self.several(steps, &self.cell_state, x)).transpose()?;
        let products = self.several(steps, &self.gates(self.state[0]), x)?;
        let (arguments, hidden_products) = match self.cell {
            Cell::Gru => (of_inputs.clone(), Some(products)),
            _ => (products, None),
        };
        Ok(Trace { arguments, hidden_products, states, cells: Vec::new(), is_at_once: false, unprojected })
    }

    /// The kernel of all steps, if the device has it and room for it.
    fn kernel(&self, operands: RecurrentOperands<&Tensor>) -> Option<RecurrentForward> {
        let (x, order) = (operands.x, self.order?);
        let of = Recurrence {
            cell: self.cell,
            order,
            dtype: x.dtype(),
            extents: [self.steps(x), self.state[0], self.cell_state[1]],
        };
        let kernel = RecurrentForward(of);
        let is_dense = self.map == Map::Dense && operands.projection.is_none() && self.state.numel() > 0;
        (is_dense && has_kernel::<RecurrentForward>(x) && has_room(x, &kernel)).then_some(kernel)
    }

    /// All steps in one launch.
    fn forward_at_once(
        &self,
        kernel: &RecurrentForward,
        operands: RecurrentOperands<&Tensor>,
        of_inputs: &Tensor,
    ) -> Result<Trace> {
        let (x, steps) = (operands.x, self.steps(operands.x));
        let states = self.several(steps + 1, &self.state, x)?;
        let products = self.several(steps, &self.gates(self.state[0]), x)?;
        let acc = x.dtype().acc();
        let of_cells = prepend(steps + 1, &self.cell_state).into();
        let cells = (self.cell == Cell::Lstm).then(|| Tensor::allocate(self.op, &of_cells, acc, x.device()));
        let cells = cells.transpose()?;
        let RecurrentOperands { hidden, hidden_bias, h, c, .. } = operands;
        let bias = hidden_bias.filter(|_| self.cell == Cell::Gru);
        let inputs = RecurrentInputs { a: of_inputs, w: hidden, bias, h, c };
        let outputs = RecurrentOutputs { states: &states, products: &products, cells: cells.as_ref() };
        run_fused(self.op, kernel, inputs, outputs)?;
        let (arguments, hidden_products) = match self.cell {
            Cell::Gru => (of_inputs.clone(), Some(products)),
            _ => (products, None),
        };
        let cells = cells.into_iter().collect();
        Ok(Trace { arguments, hidden_products, states, cells, is_at_once: true, unprojected: None })
    }

    /// Writes the hidden state of step s. The carried state after it, from the one before.
    fn step(
        &self,
        operands: RecurrentOperands<&Tensor>,
        of_inputs: &Tensor,
        trace: &Trace,
        s: usize,
        carried: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        let t = self.time(s, self.steps(operands.x));
        let [before, after] = self.around(trace, t)?;
        let (of_input, product) = (select(of_inputs, t)?, select(trace.products(), t)?);
        let added = if self.cell == Cell::Gru { operands.hidden_bias } else { Some(&of_input) };
        self.map.write(self.op, &before, operands.hidden, added, &product)?;
        let output = trace.unprojected.as_ref().map_or_else(|| Ok(after.clone()), |all| select(all, t))?;
        let next = carried.map(|c| Tensor::allocate(self.op, c.shape(), c.dtype(), c.device())).transpose()?;
        let written = flat(&output)?;
        let outputs: Vec<&Tensor> = [&written].into_iter().chain(&next).collect();
        self.cell.forward(self.op, &trace.step(t, carried)?, &outputs)?;
        if let Some(w) = operands.projection {
            self.map.write(self.op, &output, w, None, &after)?;
        }
        Ok(next)
    }

    /// The hidden states before and after the step at time t.
    fn around(&self, trace: &Trace, t: usize) -> Result<[Tensor; 2]> {
        let [before, after] = self.slots(t);
        Ok([select(&trace.states, before)?, select(&trace.states, after)?])
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
            let c = &if trace.is_at_once { select(c, steps)? } else { c.clone() };
            let c = if c.dtype() == x.dtype() { c.copy()? } else { c.cast(x.dtype())? };
            all.push(c.reshape(self.cell_state.clone())?);
        }
        Ok(all)
    }

    /// The op in tensor ops.
    fn composite(&self, operands: RecurrentOperands<&Tensor>) -> Result<Vec<Tensor>> {
        let (x, steps) = (operands.x, self.steps(operands.x));
        let of_inputs = self.of_inputs(operands, operands.input_bias)?;
        let zeros = || Tensor::zeros(&self.state, x.dtype(), x.device());
        let mut h = operands.h.map_or_else(zeros, |h| Ok(h.clone()))?;
        let mut cell = if self.cell == Cell::Lstm { self.initial(operands)? } else { None };
        let mut states = Vec::new();
        for s in 0..steps {
            let of_input = select(&of_inputs, self.time(s, steps))?;
            (h, cell) = self.composite_step(operands, &of_input, &h, cell)?;
            states.push(h.clone());
        }
        if self.order == Some(TimeOrder::Reverse) {
            states.reverse();
        }
        let all = if self.order.is_some() { Some(Tensor::stack(&states.iter().collect::<Vec<_>>(), 0)?) } else { None };
        let cell = cell.map(|c| c.cast(x.dtype())?.reshape(&self.cell_state)).transpose()?;
        Ok(all.into_iter().chain([h]).chain(cell).collect())
    }

    /// The hidden state after a step and, for LSTM, the cell state.
    fn composite_step(
        &self,
        operands: RecurrentOperands<&Tensor>,
        of_input: &Tensor,
        h: &Tensor,
        cell: Option<Tensor>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let u = self.map.apply(h, operands.hidden, operands.hidden_bias)?;
        let step = match self.cell {
            Cell::Gru => Step { arguments: flat(of_input)?, hidden_products: Some(flat(&u)?), before: Some(flat(h)?) },
            _ => Step { arguments: flat(&of_input.add(&u)?)?, hidden_products: None, before: cell },
        };
        let mut found = self.cell.composite(&step)?.into_iter();
        let output = found.next().expect("a row has a result").cast(h.dtype())?;
        let output = operands.projection.map_or(Ok(output.clone()), |w| output.linear(w, None))?;
        Ok((output.reshape(&self.state)?, found.next().filter(|_| self.cell == Cell::Lstm)))
    }

    /// The gradients of the operands that are present.
    fn backward(&self, t: &Backward<'_>, operands: RecurrentOperands<&Tensor>, trace: &Trace) -> Result<Gradients> {
        let needs = RecurrentOperands::of(operands.mask(), &mut (0..)).map(|place| t.needs(place));
        let needs_h = needs.h == Some(true);
        let mut passed = if trace.is_at_once {
            self.through_time_at_once(t, operands, needs_h, trace)?
        } else {
            self.through_time(t, operands, needs_h, trace)?
        };
        let (x, map) = (self.rows(operands.x)?, self.map);
        let all = |t: &Tensor| t.reshape(self.gates(t.dims()[0] * t.dims()[1]));
        let of_inputs = all(&passed.arguments)?;
        let of_hidden = passed.hidden_products.as_ref().map(all).transpose()?;
        let of_hidden = of_hidden.as_ref().unwrap_or(&of_inputs);
        let before = self.states_before(trace, operands.x)?;
        let want = |needs: bool, f: &dyn Fn() -> Result<Tensor>| if needs { f().map(Some) } else { Ok(None) };
        let want_if =
            |needs: Option<bool>, f: &dyn Fn() -> Result<Tensor>| needs.map(|needs| want(needs, f)).transpose();
        let dx = want(needs.x, &|| {
            let dx = map.input_gradient(self.op, &of_inputs, operands.input, None, x.shape())?;
            dx.reshape(operands.x.shape())
        })?;
        let input = want(needs.input, &|| map.weight_gradient(&of_inputs, &x, operands.input))?;
        let hidden = want(needs.hidden, &|| map.weight_gradient(of_hidden, &before, operands.hidden))?;
        let input_bias = want_if(needs.input_bias, &|| map.bias_gradient(&of_inputs))?;
        let hidden_bias = match &input_bias {
            Some(Some(sum)) if self.cell != Cell::Gru => want_if(needs.hidden_bias, &|| Ok(sum.clone()))?,
            _ => want_if(needs.hidden_bias, &|| map.bias_gradient(of_hidden))?,
        };
        let dc = |c: Tensor| c.cast(operands.x.dtype())?.reshape(&self.cell_state);
        let found = RecurrentOperands {
            x: dx,
            input,
            hidden,
            input_bias,
            hidden_bias,
            h: want_if(needs.h, &|| Ok(passed.hidden.clone()))?,
            c: needs.c.map(|needs| passed.other.take().filter(|_| needs).map(dc).transpose()).transpose()?,
            projection: want_if(needs.projection, &|| self.projection_gradient(trace, &passed))?,
        };
        Ok(found.present().into_iter().collect())
    }

    /// The hidden states before all steps, `[T B, ..]`.
    fn states_before(&self, trace: &Trace, x: &Tensor) -> Result<Tensor> {
        let (first, steps) = (usize::from(self.order == Some(TimeOrder::Reverse)), self.steps(x));
        let before = trace.states.narrow(0, first, steps)?;
        before.reshape(self.map.output(steps * self.state[0], self.state[1], &self.state))
    }

    fn projection_gradient(&self, trace: &Trace, passed: &Passed) -> Result<Tensor> {
        let rows = |t: &Option<Tensor>| {
            let t = t.as_ref().expect("an op with a projection keeps what it projects");
            t.reshape((t.dims()[0] * t.dims()[1], t.dims()[2]))
        };
        rows(&passed.states)?.t()?.matmul(&rows(&trace.unprojected)?)
    }

    /// Goes back over the steps.
    fn through_time(
        &self,
        t: &Backward<'_>,
        operands: RecurrentOperands<&Tensor>,
        needs_h: bool,
        trace: &Trace,
    ) -> Result<Passed> {
        let steps = self.steps(operands.x);
        let dy = if self.order.is_some() { t.dy_of(0).map(Tensor::contiguous).transpose()? } else { None };
        let dy = |s: usize| dy.as_ref().map(|dy| select(dy, self.time(s, steps))).transpose();
        let mut passed = self.arrive(t, operands, dy(steps - 1)?)?;
        for s in (0..steps).rev() {
            let earlier = if s > 0 { dy(s - 1)? } else { None };
            let next = self.step_back(operands, trace, &passed, s, earlier.as_ref())?;
            if s > 0 || needs_h {
                let products =
                    select(passed.hidden_products.as_ref().unwrap_or(&passed.arguments), self.time(s, steps))?;
                let direct = match &next {
                    Some(next) if self.cell == Cell::Gru => Some(next.reshape(&self.state)?),
                    _ => earlier,
                };
                let w = operands.hidden;
                passed.hidden = self.map.input_gradient(self.op, &products, w, direct.as_ref(), &self.state)?;
            }
            passed.other = next;
        }
        Ok(passed)
    }

    /// Goes back over the steps in one launch.
    fn through_time_at_once(
        &self,
        t: &Backward<'_>,
        operands: RecurrentOperands<&Tensor>,
        needs_h: bool,
        trace: &Trace,
    ) -> Result<Passed> {
        let kernel = self.kernel(operands).expect("the kernel that made the trace is still there");
        let given = |k: usize| t.dy_of(k).map(Tensor::contiguous).transpose();
        let (dy, dh) = (given(0)?, given(1)?);
        let dc = if self.cell == Cell::Lstm { given(2)? } else { None };
        let (x, steps) = (operands.x, self.steps(operands.x));
        let like_gates = || self.several(steps, &self.gates(self.state[0]), x);
        let (arguments, hidden) = (like_gates()?, Tensor::allocate(self.op, &self.state, x.dtype(), x.device())?);
        let hidden_products = (self.cell == Cell::Gru).then(like_gates).transpose()?;
        let acc = x.dtype().acc();
        let other = (self.cell == Cell::Lstm).then(|| Tensor::allocate(self.op, &self.state, acc, x.device()));
        let other = other.transpose()?;
        let inputs = RecurrentBackwardInputs {
            a: &trace.arguments,
            u: trace.hidden_products.as_ref(),
            states: &trace.states,
            cells: trace.cells.first(),
            w: operands.hidden,
            dy: dy.as_ref(),
            dh: dh.as_ref(),
            dc: dc.as_ref(),
        };
        let outputs = RecurrentGradients {
            a: &arguments,
            u: hidden_products.as_ref(),
            c: other.as_ref(),
            h: needs_h.then_some(&hidden),
        };
        run_fused(self.op, &RecurrentBackward(kernel.0), inputs, outputs)?;
        Ok(Passed { arguments, hidden_products, states: None, hidden, other })
    }

    /// Memory for the gradients, and those that arrive at the last states. `dy` is that of the last step's result.
    fn arrive(&self, t: &Backward<'_>, operands: RecurrentOperands<&Tensor>, dy: Option<Tensor>) -> Result<Passed> {
        let (x, steps, first) = (operands.x, self.steps(operands.x), usize::from(self.order.is_some()));
        let hidden = match (t.dy_of(first), dy) {
            (Some(a), Some(b)) => a.add(&b)?,
            (Some(a), None) => a.contiguous()?,
            (None, Some(b)) => b,
            (None, None) => Tensor::zeros(&self.state, x.dtype(), x.device())?,
        };
        let other = match self.cell {
            Cell::Lstm => Some(self.carried(t.dy_of(first + 1), &self.cell_state, x.dtype().acc(), x)?),
            _ => None,
        };
        let like_gates = || self.several(steps, &self.gates(self.state[0]), x);
        Ok(Passed {
            arguments: like_gates()?,
            hidden_products: (self.cell == Cell::Gru).then(like_gates).transpose()?,
            states: operands.projection.map(|_| self.several(steps, &self.state, x)).transpose()?,
            hidden,
            other,
        })
    }

    /// Writes the gradients of the arguments of step s. The gradient that is carried to the step before.
    fn step_back(
        &self,
        operands: RecurrentOperands<&Tensor>,
        trace: &Trace,
        passed: &Passed,
        s: usize,
        earlier: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        let (x, t) = (operands.x, self.time(s, self.steps(operands.x)));
        let [before, after] = self.around(trace, t)?;
        let hidden = flat(&self.unprojected_gradient(operands, passed, t)?)?;
        let (before, other, after, dtype) = match self.cell {
            Cell::Lstm => {
                let cell = |s: usize| Some(trace.cells[s].clone());
                (cell(s), passed.other.clone(), cell(s + 1), Some(x.dtype().acc()))
            }
            Cell::Gru => {
                let other = self.carried(earlier, &self.state, x.dtype(), x)?;
                (Some(flat(&before)?), Some(other), None, Some(x.dtype()))
            }
            Cell::Tanh | Cell::Relu => (None, None, Some(flat(&after)?), None),
        };
        let next = dtype.map(|dtype| Tensor::allocate(self.op, hidden.shape(), dtype, x.device())).transpose()?;
        let products = [Some(&passed.arguments), passed.hidden_products.as_ref()].into_iter().flatten();
        let written: Vec<Tensor> = products.map(|all| flat(&select(all, t)?)).collect::<Result<_>>()?;
        let outputs: Vec<&Tensor> = written.iter().chain(&next).collect();
        let arriving = Arriving { hidden, other, after };
        self.cell.backward(self.op, &trace.step(t, before.as_ref())?, arriving, &outputs)?;
        Ok(next)
    }

    /// The gradient of the cell's output at time t. With a projection, that of the hidden state is kept for the weight's.
    fn unprojected_gradient(&self, operands: RecurrentOperands<&Tensor>, passed: &Passed, t: usize) -> Result<Tensor> {
        let (Some(w), Some(all)) = (operands.projection, &passed.states) else { return Ok(passed.hidden.clone()) };
        run(self.op, Kernel::Copy, &[&passed.hidden], &[&select(all, t)?], Attributes::default())?;
        self.map.input_gradient(self.op, &passed.hidden, w, None, &self.cell_state)
    }
}

/// The gradients of a pass through time.
struct Passed {
    /// The gradient of [`Trace::arguments`].
    arguments: Tensor,
    /// The gradient of [`Trace::hidden_products`].
    hidden_products: Option<Tensor>,
    /// With a projection: the gradient of the hidden states, `[T, B, P]`.
    states: Option<Tensor>,
    /// The gradient of the hidden state that the pass has reached; in the end the initial one, if that is wanted.
    hidden: Tensor,
    /// For LSTM: the gradient of the cell state that the pass has reached, in the accumulation dtype.
    other: Option<Tensor>,
}

impl Trace {
    /// The products of the hidden state, or sums with them.
    fn products(&self) -> &Tensor {
        self.hidden_products.as_ref().unwrap_or(&self.arguments)
    }

    /// The step at time t, from the state before it.
    fn step(&self, t: usize, before: Option<&Tensor>) -> Result<Step> {
        let at = |all: &Tensor| flat(&select(all, t)?);
        Ok(Step {
            arguments: at(&self.arguments)?,
            hidden_products: self.hidden_products.as_ref().map(at).transpose()?,
            before: before.cloned(),
        })
    }
}

/// A contiguous tensor outside of the tape, with the strides of its shape. Extents of 1 may have others, by which a product would
/// choose another order of terms.
fn plain(t: &Tensor) -> Tensor {
    t.with_layout(Layout::contiguous(t.shape().clone()).shift(t.layout().offset()))
}

/// Element t of the first dimension.
fn select(all: &Tensor, t: usize) -> Result<Tensor> {
    all.select(0, t as isize)
}

/// Arguments `[T, B, 4 H]` with which held steps have an input gate of 0 and a forget gate of 1.
fn held(a: &Tensor, is_held: &Tensor) -> Result<Tensor> {
    let of = |value: f64| Tensor::full((1, 1), value, a.dtype(), a.device());
    let zero = of(0.0)?;
    let gates = Tensor::concat(&[&of(f64::NEG_INFINITY)?, &of(f64::INFINITY)?, &zero, &zero], 0)?;
    let blocks = a.reshape((a.dims()[0], a.dims()[1], 4, a.dims()[2] / 4))?;
    is_held.unsqueeze(-1)?.where_cond(&gates, &blocks)?.reshape(a.shape().clone())
}

/// `[B, ..]` as `[B, all others]`.
fn flat(t: &Tensor) -> Result<Tensor> {
    t.reshape((t.dims()[0], t.dims()[1..].iter().product()))
}

/// A shape with a dimension in front.
fn prepend(n: usize, shape: &Shape) -> Dims {
    [n].into_iter().chain(shape.dims().iter().copied()).collect()
}
