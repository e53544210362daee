//! Recurrent layers, with PyTorch's names, defaults and initial values.

use crate::details::{extent, unless};
use crate::layers::bound;
use crate::{Forward, Init, Mode, Module, Visitor, VisitorMut, called};
use isograd_core::ops::{ConvLstmWeights, Nonlinearity, RecurrentSteps, RecurrentWeights, TimeOrder};
use isograd_core::{Error, Result, Rng, Tensor};

/// The options of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct RecurrentOptions {
    /// The number of layers; each is given the hidden states of the one before.
    pub layers: usize,
    /// True for a layer with biases.
    pub bias: bool,
    /// True for x `[B, T, I]` instead of `[T, B, I]`. States have the same form in both.
    pub batch_first: bool,
    /// The probability of dropout between layers, in training.
    pub dropout: f64,
    /// True for a second direction, backward in time. Its results follow those of the first.
    pub bidirectional: bool,
    /// For LSTM: the size of the hidden state, if a projection shrinks it.
    pub projection: Option<usize>,
}

impl Default for RecurrentOptions {
    fn default() -> Self {
        RecurrentOptions {
            layers: 1,
            bias: true,
            batch_first: false,
            dropout: 0.0,
            bidirectional: false,
            projection: None,
        }
    }
}

/// The weights of a layer in one direction, or of a cell.
#[derive(Debug, Module)]
pub struct RecurrentParameters {
    /// `[G H, I]`: from the input.
    pub weight_ih: Tensor,
    /// `[G H, H]`: from the hidden state.
    pub weight_hh: Tensor,
    /// `[G H]`.
    pub bias_ih: Option<Tensor>,
    /// `[G H]`.
    pub bias_hh: Option<Tensor>,
    /// `[P, H]`: the projection.
    pub weight_hr: Option<Tensor>,
}

impl RecurrentParameters {
    /// Uniform in `±1 / sqrt(H)`.
    fn new(
        gates: usize,
        input: usize,
        hidden: usize,
        bias: bool,
        projection: Option<usize>,
        init: &Init,
    ) -> Result<RecurrentParameters> {
        let (bound, rows) = (bound(hidden), gates * hidden);
        let matrix = |rows: usize, columns: usize| init.uniform((rows, columns), -bound, bound);
        let vector = || bias.then(|| init.uniform(rows, -bound, bound)).transpose();
        Ok(RecurrentParameters {
            weight_ih: matrix(rows, input)?,
            weight_hh: matrix(rows, projection.unwrap_or(hidden))?,
            bias_ih: vector()?,
            bias_hh: vector()?,
            weight_hr: projection.map(|size| matrix(size, hidden)).transpose()?,
        })
    }

    fn weights(&self) -> RecurrentWeights<'_> {
        RecurrentWeights {
            input: &self.weight_ih,
            hidden: &self.weight_hh,
            input_bias: self.bias_ih.as_ref(),
            hidden_bias: self.bias_hh.as_ref(),
            projection: self.weight_hr.as_ref(),
        }
    }

    /// The names end in `suffix`.
    fn visit_as(&self, visitor: &mut Visitor<'_>, suffix: &str) {
        visitor.part(&format!("weight_ih{suffix}"), &self.weight_ih);
        visitor.part(&format!("weight_hh{suffix}"), &self.weight_hh);
        visitor.part(&format!("bias_ih{suffix}"), &self.bias_ih);
        visitor.part(&format!("bias_hh{suffix}"), &self.bias_hh);
        visitor.part(&format!("weight_hr{suffix}"), &self.weight_hr);
    }
}

/// The weights and options of a recurrent layer, which may itself have several layers.
#[derive(Debug)]
pub struct RecurrentStack {
    op: &'static str,
    options: RecurrentOptions,
    hidden: usize,
    /// The weights of each layer, in each direction.
    pub weights: Vec<Vec<RecurrentParameters>>,
    rng: Rng,
    mode: Mode,
}

/// A recurrent op over a sequence: all hidden states, and the last states.
type Run<'f> = &'f dyn Fn(&Tensor, &[Option<Tensor>], RecurrentWeights<'_>, &RecurrentSteps<'_>) -> Result<Vec<Tensor>>;

impl RecurrentStack {
    /// The extents, and those options that are not the default.
    fn text(&self) -> String {
        let RecurrentOptions { layers, bias, batch_first, dropout, bidirectional, projection } = self.options;
        let input = self.weights.first().and_then(|layer| layer.first()).map_or(0, |first| extent(&first.weight_ih, 1));
        format!("{input} -> {}", self.hidden)
            + &unless("layers", layers, 1)
            + &unless("bias", bias, true)
            + &unless("batch_first", batch_first, false)
            + &unless("dropout", dropout, 0.0)
            + &unless("bidirectional", bidirectional, false)
            + &unless("projection", projection.unwrap_or(self.hidden), self.hidden)
    }

    fn new(
        op: &'static str,
        gates: usize,
        [input, hidden]: [usize; 2],
        options: &RecurrentOptions,
        init: &Init,
    ) -> Result<RecurrentStack> {
        let RecurrentOptions { layers, bias, dropout, projection, .. } = *options;
        if layers == 0 || hidden == 0 {
            return Err(Error::attr(op, format!("{layers} layers of {hidden} were asked for, expected 1 or more")));
        }
        if !(0.0..=1.0).contains(&dropout) {
            return Err(Error::attr(op, format!("dropout is {dropout}, expected 0 to 1")));
        }
        if projection.is_some_and(|size| gates != 4 || size == 0 || size >= hidden) {
            return Err(Error::attr(
                op,
                format!("a projection of {hidden} to {projection:?}: LSTM has those to 1 .. {hidden}"),
            ));
        }
        let directions = 1 + options.bidirectional as usize;
        let of_layer = |layer: usize| -> Result<Vec<RecurrentParameters>> {
            let input = if layer == 0 { input } else { directions * projection.unwrap_or(hidden) };
            let of_direction = |_| RecurrentParameters::new(gates, input, hidden, bias, projection, init);
            (0..directions).map(of_direction).collect()
        };
        let weights = (0..layers).map(of_layer).collect::<Result<_>>()?;
        Ok(RecurrentStack { op, options: *options, hidden, weights, rng: init.rng().clone(), mode: Mode::default() })
    }

    /// The states of all layers and directions, `[layers directions, B, size]`.
    fn check_state(&self, state: &Tensor, rows: usize, size: usize) -> Result<()> {
        let all = self.weights.len() * self.weights[0].len();
        match state.dims() == [all, rows, size] {
            true => Ok(()),
            false => {
                Err(Error::shape(self.op, format!("a state is {}, expected [{all}, {rows}, {size}]", state.shape())))
            }
        }
    }

    /// The hidden states of the last layer, and the last states of all layers and directions, each `[layers directions, B, ..]`.
    /// x may be one sequence without a batch; states then have no batch either.
    fn run(
        &self,
        x: &Tensor,
        lengths: Option<&Tensor>,
        states: &[Option<&Tensor>],
        f: Run<'_>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        match x.rank() {
            2 => self.run_one(x, lengths, states, f),
            3 => {
                let swap = |x: &Tensor| if self.options.batch_first { x.transpose(0, 1) } else { Ok(x.clone()) };
                let (y, last) = self.run_batch(&swap(x)?, lengths, states, f)?;
                Ok((swap(&y)?, last))
            }
            rank => Err(Error::shape(self.op, format!("x {} has {rank} dimensions, expected 2 or 3", x.shape()))),
        }
    }

    fn run_one(
        &self,
        x: &Tensor,
        lengths: Option<&Tensor>,
        states: &[Option<&Tensor>],
        f: Run<'_>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let batched = |s: &Option<&Tensor>| s.map(|s| s.unsqueeze(1)).transpose();
        let states: Vec<Option<Tensor>> = states.iter().map(batched).collect::<Result<_>>()?;
        let states: Vec<Option<&Tensor>> = states.iter().map(Option::as_ref).collect();
        let (y, last) = self.run_batch(&x.unsqueeze(1)?, lengths, &states, f)?;
        Ok((y.squeeze(1)?, last.iter().map(|s| s.squeeze(1)).collect::<Result<_>>()?))
    }

    /// For x `[T, B, I]`.
    fn run_batch(
        &self,
        x: &Tensor,
        lengths: Option<&Tensor>,
        states: &[Option<&Tensor>],
        f: Run<'_>,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let sizes = [self.options.projection.unwrap_or(self.hidden), self.hidden];
        for (state, size) in states.iter().zip(sizes) {
            state.map_or(Ok(()), |state| self.check_state(state, x.dims()[1], size))?;
        }
        let mut x = x.clone();
        let mut last = vec![Vec::new(); states.len()];
        for layer in 0..self.weights.len() {
            if layer > 0 && self.mode.is_training() && self.options.dropout > 0.0 {
                x = x.dropout(self.options.dropout, &self.rng)?;
            }
            x = self.layer(layer, &x, lengths, states, f, &mut last)?;
        }
        let joined = |all: &Vec<Tensor>| Tensor::stack(&all.iter().collect::<Vec<_>>(), 0);
        Ok((x, last.iter().map(joined).collect::<Result<_>>()?))
    }

    /// The hidden states of a layer, both directions side by side. Its last states are appended to `last`.
    fn layer(
        &self,
        layer: usize,
        x: &Tensor,
        lengths: Option<&Tensor>,
        states: &[Option<&Tensor>],
        f: Run<'_>,
        last: &mut [Vec<Tensor>],
    ) -> Result<Tensor> {
        let (directions, mut found) = (&self.weights[layer], Vec::new());
        for (k, (parameters, order)) in directions.iter().zip([TimeOrder::Forward, TimeOrder::Reverse]).enumerate() {
            let at = (layer * directions.len() + k) as isize;
            let of_direction = |s: &Option<&Tensor>| s.map(|s| s.select(0, at)).transpose();
            let states: Vec<Option<Tensor>> = states.iter().map(of_direction).collect::<Result<_>>()?;
            let mut results = f(x, &states, parameters.weights(), &RecurrentSteps { order, lengths })?.into_iter();
            found.extend(results.next());
            last.iter_mut().zip(results).for_each(|(all, state)| all.push(state));
        }
        match &found[..] {
            [y] => Ok(y.clone()),
            all => Tensor::concat(&all.iter().collect::<Vec<_>>(), -1),
        }
    }
}

impl Module for RecurrentStack {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (layer, directions) in self.weights.iter().enumerate() {
            for (parameters, end) in directions.iter().zip(["", "_reverse"]) {
                parameters.visit_as(visitor, &format!("_l{layer}{end}"));
            }
        }
        visitor.part("mode", &self.mode);
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.part(&mut self.weights);
    }
}

impl Clone for RecurrentStack {
    fn clone(&self) -> Self {
        VisitorMut::cloned(|| RecurrentStack {
            op: self.op,
            options: self.options,
            hidden: self.hidden,
            weights: self.weights.clone(),
            rng: self.rng.clone(),
            mode: self.mode.clone(),
        })
    }
}

/// The hidden and cell states of an LSTM, each `[layers directions, B, ..]`. Detached, they begin the next part of a sequence in
/// truncated backpropagation.
pub type LstmState = (Tensor, Tensor);

/// Long short-term memory: [`Tensor::lstm`] in layers.
///
/// ```
/// # use isograd_core::{Result, Tensor};
/// # use isograd_nn::{Init, Lstm, RecurrentOptions};
/// /// The hidden states of both directions, `[T, B, 64]`, of sequences `x: [T, B, 16]` of these lengths.
/// fn encode(x: &Tensor, lengths: &Tensor, init: &Init) -> Result<Tensor> {
///     let options = RecurrentOptions { bidirectional: true, ..Default::default() };
///     let lstm = Lstm::with_options(16, 32, &options, init)?;
///     let (y, _last) = lstm.run(x, Some(lengths), None)?;
///     Ok(y)
/// }
/// ```
#[derive(Module)]
#[module(details = self.stack.text())]
pub struct Lstm {
    /// The weights and options.
    #[module(flatten)]
    pub stack: RecurrentStack,
}

impl Lstm {
    /// One layer. Parameters are uniform in `±1 / sqrt(hidden)`. Errors: `Attr` if `hidden` is 0.
    pub fn new(input: usize, hidden: usize, init: &Init) -> Result<Lstm> {
        Lstm::with_options(input, hidden, &RecurrentOptions::default(), init)
    }

    /// With options. Errors: `Attr` for 0 layers, a `hidden` of 0, a dropout outside of 0 to 1, and a projection that is not smaller
    /// than `hidden`.
    pub fn with_options(input: usize, hidden: usize, options: &RecurrentOptions, init: &Init) -> Result<Lstm> {
        RecurrentStack::new("lstm", 4, [input, hidden], options, init).map(|stack| Lstm { stack })
    }

    /// The hidden states of the last layer for `x: [T, B, I]`, and the last states, from a state that is zeros by default. x may be
    /// `[T, I]`, with states without B. Lengths are i64 or i32 `[B]`, as in [`RecurrentSteps`]. Errors: as [`Tensor::lstm`].
    pub fn run(&self, x: &Tensor, lengths: Option<&Tensor>, state: Option<&LstmState>) -> Result<(Tensor, LstmState)> {
        called(self, &[x], || {
            let states = [state.map(|(h, _)| h), state.map(|(_, c)| c)];
            let (y, mut last) = self.stack.run(x, lengths, &states, &|x, states, weights, steps| {
                let (y, h, c) = x.lstm(states[0].as_ref(), states[1].as_ref(), weights, steps)?;
                Ok(vec![y, h, c])
            })?;
            let (c, h) = (last.remove(1), last.remove(0));
            Ok((y, (h, c)))
        })
    }
}

/// The hidden states of the last layer.
impl Forward for Lstm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.run(x, None, None)?.0)
    }
}

macro_rules! stacks {
    ($($(#[$doc:meta])* $name:ident $lower:literal $gates:literal [$($field:ident: $type:ty)?] |$x:ident, $h:ident, $weights:ident, $steps:ident $(, $f:ident)?| $call:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Module)]
        #[module(details = self.stack.text())]
        pub struct $name {
            /// The weights and options.
            #[module(flatten)]
            pub stack: RecurrentStack,
            $(#[module(skip)] $field: $type,)?
        }

        impl $name {
            /// One layer. Parameters are uniform in `±1 / sqrt(hidden)`. Errors: `Attr` if `hidden` is 0.
            pub fn new(input: usize, hidden: usize, $($field: $type,)? init: &Init) -> Result<$name> {
                $name::with_options(input, hidden, $($field,)? &RecurrentOptions::default(), init)
            }

            /// With options. Errors: `Attr` for 0 layers, a `hidden` of 0, a dropout outside of 0 to 1, and a projection.
            pub fn with_options(
                input: usize,
                hidden: usize,
                $($field: $type,)?
                options: &RecurrentOptions,
                init: &Init,
            ) -> Result<$name> {
                Ok($name { stack: RecurrentStack::new($lower, $gates, [input, hidden], options, init)?, $($field,)? })
            }

            /// The hidden states of the last layer for `x: [T, B, I]`, and the last states `[layers directions, B, H]`, from a state
            /// of that shape that is zeros by default. x may be `[T, I]`, with states without B. Lengths are i64 or i32 `[B]`, as
            /// in [`RecurrentSteps`].
            #[doc = concat!("Errors: as [`Tensor::", $lower, "`].")]
            pub fn run(
                &self,
                x: &Tensor,
                lengths: Option<&Tensor>,
                state: Option<&Tensor>,
            ) -> Result<(Tensor, Tensor)> {
                called(self, &[x], || {
                    $(let $f = self.$field;)?
                    let (y, mut last) = self.stack.run(x, lengths, &[state], &|$x, states, $weights, $steps| {
                        let $h = states[0].as_ref();
                        let (y, h) = $call?;
                        Ok(vec![y, h])
                    })?;
                    Ok((y, last.remove(0)))
                })
            }
        }

        /// The hidden states of the last layer.
        impl Forward for $name {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                Ok(self.run(x, None, None)?.0)
            }
        }
    )*};
}

stacks! {
    /// Gated recurrent units: [`Tensor::gru`] in layers.
    Gru "gru" 3 [] |x, h, weights, steps| x.gru(h, weights, steps);
    /// Plain recurrent layers: [`Tensor::rnn`] in layers.
    Rnn "rnn" 1 [nonlinearity: Nonlinearity] |x, h, weights, steps, f| x.rnn(h, weights, f, steps);
}

macro_rules! cells {
    ($($(#[$doc:meta])* $name:ident $gates:literal [$($field:ident: $type:ty)?];)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Module)]
        pub struct $name {
            /// The weights, named as in the layers without a number.
            #[module(flatten)]
            pub parameters: RecurrentParameters,
            $(
                #[doc = concat!("The ", stringify!($field), ".")]
                #[module(skip)]
                pub $field: $type,
            )?
        }

        impl $name {
            /// Parameters are uniform in `±1 / sqrt(hidden)`.
            pub fn new(input: usize, hidden: usize, $($field: $type,)? init: &Init) -> Result<$name> {
                let parameters = RecurrentParameters::new($gates, input, hidden, true, None, init)?;
                Ok($name { parameters, $($field,)? })
            }

            /// Without biases.
            pub fn without_bias(input: usize, hidden: usize, $($field: $type,)? init: &Init) -> Result<$name> {
                let parameters = RecurrentParameters::new($gates, input, hidden, false, None, init)?;
                Ok($name { parameters, $($field,)? })
            }
        }
    )*};
}

cells! {
    /// [`Tensor::lstm_cell`].
    LstmCell 4 [];
    /// [`Tensor::gru_cell`].
    GruCell 3 [];
    /// [`Tensor::rnn_cell`].
    RnnCell 1 [nonlinearity: Nonlinearity];
}

impl LstmCell {
    /// The states h' and c' after a step, for `x: [B, I]` and states `[B, H]`. Errors: as [`Tensor::lstm_cell`].
    pub fn run(&self, x: &Tensor, (h, c): (&Tensor, &Tensor)) -> Result<LstmState> {
        called(self, &[x], || x.lstm_cell(h, c, self.parameters.weights()))
    }
}

impl GruCell {
    /// The state after a step, for `x: [B, I]` and the state `[B, H]`. Errors: as [`Tensor::gru_cell`].
    pub fn run(&self, x: &Tensor, h: &Tensor) -> Result<Tensor> {
        called(self, &[x, h], || x.gru_cell(h, self.parameters.weights()))
    }
}

impl RnnCell {
    /// The state after a step, for `x: [B, I]` and the state `[B, H]`. Errors: as [`Tensor::rnn_cell`].
    pub fn run(&self, x: &Tensor, h: &Tensor) -> Result<Tensor> {
        called(self, &[x, h], || x.rnn_cell(h, self.parameters.weights(), self.nonlinearity))
    }
}

/// A step of a ConvLSTM: [`Tensor::conv_lstm_cell`].
#[derive(Debug, Module)]
pub struct ConvLstmCell {
    /// `[4 C, I, kh, kw]`: from the input.
    pub weight_ih: Tensor,
    /// `[4 C, C, kh, kw]`: from the hidden state.
    pub weight_hh: Tensor,
    /// `[4 C]`.
    pub bias: Option<Tensor>,
}

impl ConvLstmCell {
    /// Weights uniform in `±1 / sqrt(fan)`, and the bias as that of the input; the fan is the product of a weight's extents except
    /// the first. Errors (in `run`): `Attr` for a kernel with an even extent.
    pub fn new(input: usize, hidden: usize, kernel: [usize; 2], init: &Init) -> Result<ConvLstmCell> {
        let cell = ConvLstmCell::without_bias(input, hidden, kernel, init)?;
        let bound = bound(input * kernel[0] * kernel[1]);
        Ok(ConvLstmCell { bias: Some(init.uniform(4 * hidden, -bound, bound)?), ..cell })
    }

    /// Without a bias.
    pub fn without_bias(input: usize, hidden: usize, kernel: [usize; 2], init: &Init) -> Result<ConvLstmCell> {
        let weight = |from: usize| {
            let bound = bound(from * kernel[0] * kernel[1]);
            init.uniform((4 * hidden, from, kernel[0], kernel[1]), -bound, bound)
        };
        Ok(ConvLstmCell { weight_ih: weight(input)?, weight_hh: weight(hidden)?, bias: None })
    }

    fn weights(&self) -> ConvLstmWeights<'_> {
        ConvLstmWeights { input: &self.weight_ih, hidden: &self.weight_hh, bias: self.bias.as_ref() }
    }

    /// The states h' and c' after a step, for `x: [B, I, H, W]` and states `[B, C, H, W]`. Errors: as [`Tensor::conv_lstm_cell`].
    pub fn run(&self, x: &Tensor, (h, c): (&Tensor, &Tensor)) -> Result<LstmState> {
        called(self, &[x], || x.conv_lstm_cell(h, c, self.weights()))
    }
}

/// A ConvLSTM over sequences of images: [`Tensor::conv_lstm`].
#[derive(Debug, Module)]
pub struct ConvLstm(#[module(flatten)] pub ConvLstmCell);

impl ConvLstm {
    /// Initial values as in [`ConvLstmCell::new`].
    pub fn new(input: usize, hidden: usize, kernel: [usize; 2], init: &Init) -> Result<ConvLstm> {
        ConvLstmCell::new(input, hidden, kernel, init).map(ConvLstm)
    }

    /// The hidden states `[T, B, C, H, W]` for `x: [T, B, I, H, W]`, and the last states, from a state that is zeros by default.
    /// Errors: as [`Tensor::conv_lstm`].
    pub fn run(&self, x: &Tensor, state: Option<&LstmState>) -> Result<(Tensor, LstmState)> {
        called(self, &[x], || {
            let (h, c) = (state.map(|(h, _)| h), state.map(|(_, c)| c));
            let (y, h, c) = x.conv_lstm(h, c, self.0.weights(), TimeOrder::Forward)?;
            Ok((y, (h, c)))
        })
    }
}

/// The hidden states of all steps.
impl Forward for ConvLstm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.run(x, None)?.0)
    }
}
