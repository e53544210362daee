//! The three maps of a convolution. The other two are the gradients of each.

use super::geometry::{Geometry, INPUT, OUTPUT, WEIGHT};
use super::{columns, products};
use crate::fused::{Fused, has_kernel, of_sizes, run_fused};
use crate::operands;
use crate::operands::Output;
use crate::ops::gradients;
use crate::ops::image::window::Window;
use crate::tape::{Backward, Described, Gradients, Saved, record, report_as};
use crate::{Layout, Result, Shape, Tensor};

/// Output: y `[N, O, ..]`. Operands but the bias are contiguous, or their channels are last in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvForward(pub Geometry);

operands! {
    /// The inputs of [`ConvForward`].
    pub struct ConvInputs {
        /// `[N, C, ..]`.
        x,
        /// The weight, `[O, C / groups, kernel]`.
        w,
        /// `[N groups, O / groups]`. The first dimension may be expanded.
        bias?,
    }
}

/// A convolution of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Its windows over the last dimensions, in three dimensions.
    pub window: Window<3>,
    /// Groups of channels.
    pub groups: usize,
    /// The elements that a transposed convolution adds at the end of each dimension; `None` for another.
    pub output_padding: Option<Vec<usize>>,
}

impl Described for Convolution {
    type Inputs<T> = ConvInputs<T>;
}

/// Output: the gradient `[N, C, ..]` of x, plus the bias. Operands but the bias are contiguous, or their channels are last in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvInput(pub Geometry);

operands! {
    /// The inputs of [`ConvInput`].
    pub struct ConvInputInputs {
        /// The gradient of the output, `[N, O, ..]`.
        g,
        /// The weight, `[O, C / groups, kernel]`.
        w,
        /// `[N groups, C / groups]`. The first dimension may be expanded.
        bias?,
    }
}

/// Output: the gradient `[O, C / groups, kernel]` of the weight. Operands are contiguous, or their channels are last in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvWeight(pub Geometry);

operands! {
    /// The inputs of [`ConvWeight`].
    pub struct ConvWeightInputs {
        /// The gradient of the output, `[N, O, ..]`.
        g,
        /// `[N, C, ..]`.
        x,
    }
}

impl Geometry {
    /// The shapes of input, weight and output in three dimensions.
    fn shapes(&self) -> [Shape; 3] {
        let Geometry { batch, groups, channels, outputs, ref windows } = *self;
        let shape = |a: usize, b: usize, last: [usize; 3]| Shape::from([a, b, last[0], last[1], last[2]]);
        [
            shape(batch, groups * channels, windows.input),
            shape(groups * outputs, channels, windows.kernel),
            shape(batch, groups * outputs, windows.output),
        ]
    }
}

/// A result plus a bias `[N groups, channels of a group]`.
fn plus(y: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let Some(bias) = bias else { return Ok(y) };
    let bias = bias.reshape((y.dims()[0], y.dims()[1], 1, 1, 1))?;
    y.add(&bias)
}

impl Fused for ConvForward {
    type Inputs<T> = ConvInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "conv"
    }

    fn composite(
        &self,
        ConvInputs { x, w, bias }: ConvInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        let [_, _, shape] = self.0.shapes();
        let y = columns::conv(self.name(), &self.0, x, w, None, &shape)?;
        Ok(Output { y: Some(plus(y, bias)?) })
    }

    fn companions(&self, inputs: ConvInputs<&Tensor>, before: Output<&Tensor>) -> Result<Option<Output<Tensor>>> {
        of_sizes(self, inputs, before)
    }
}

impl Fused for ConvInput {
    type Inputs<T> = ConvInputInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "conv_input"
    }

    fn composite(
        &self,
        ConvInputInputs { g, w, bias }: ConvInputInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        let [shape, ..] = self.0.shapes();
        let dx = columns::conv_input(self.name(), &self.0, g, w, None, &shape)?;
        Ok(Output { y: Some(plus(dx, bias)?) })
    }

    fn companions(&self, inputs: ConvInputInputs<&Tensor>, before: Output<&Tensor>) -> Result<Option<Output<Tensor>>> {
        of_sizes(self, inputs, before)
    }
}

impl Fused for ConvWeight {
    type Inputs<T> = ConvWeightInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "conv_weight"
    }

    fn composite(
        &self,
        ConvWeightInputs { g, x }: ConvWeightInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        let [_, shape, _] = self.0.shapes();
        Ok(Output { y: Some(columns::conv_weight(self.name(), &self.0, g, x, &shape)?) })
    }

    fn companions(&self, inputs: ConvWeightInputs<&Tensor>, before: Output<&Tensor>) -> Result<Option<Output<Tensor>>> {
        of_sizes(self, inputs, before)
    }
}

/// The names of the maps on the tape and in errors.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Names {
    /// Input and weight to output.
    pub conv: &'static str,
    /// Gradient of the output, and weight, to the gradient of the input. Also the transposed convolution.
    pub input: &'static str,
    /// Gradient of the output, and input, to the gradient of the weight.
    pub weight: &'static str,
}

/// The maps between the input, the weight and the output of a convolution.
#[derive(Clone)]
pub(in crate::ops) struct Maps {
    pub names: Names,
    pub geometry: Geometry,
    pub input: Shape,
    pub weight: Shape,
    pub output: Shape,
    /// Whether the channels of input, weight and output are last in memory. A gradient has the order of its tensor.
    pub are_last: [bool; 3],
}

impl Maps {
    /// `y[n, o, q] = b[o] + sum of x[n, c, q stride - padding + i dilation] w[o, c, i]` over the channels c of the group of o
    /// and the elements i of the window.
    pub fn conv(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let op = self.names.conv;
        let y = if has_kernel::<ConvForward>(x) {
            self.by_kernel(op, [x, w], bias, OUTPUT, |[x, w], bias, y| {
                run_fused(op, &ConvForward(self.geometry.clone()), ConvInputs { x, w, bias }, Output { y })
            })?
        } else {
            self.ordered(columns::conv(op, &self.geometry, x, w, bias, &self.output)?, OUTPUT)?
        };
        let (maps, saved, has_bias) = (self.clone(), [Saved::input(x), Saved::input(w)], bias.is_some());
        record(op, &operands(x, w, bias), y, move |t| {
            let dy = t.dy().dense()?;
            let dx = t.want(0, || maps.input(&dy, &t.get(&saved[1])?, None))?;
            let dw = t.want(1, || maps.weight(&dy, &t.get(&saved[0])?))?;
            with_bias(t, has_bias, [dx, dw])
        })
    }

    /// `dx[n, c, l] = b[c] + sum of g[n, o, q] w[o, c, i]` over the outputs o of the group of c, and all q and i with `q stride -
    /// padding + i dilation = l`.
    pub fn input(&self, g: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let op = self.names.input;
        let dx = if has_kernel::<ConvInput>(g) {
            self.by_kernel(op, [g, w], bias, INPUT, |[g, w], bias, y| {
                run_fused(op, &ConvInput(self.geometry.clone()), ConvInputInputs { g, w, bias }, Output { y })
            })?
        } else {
            self.ordered(columns::conv_input(op, &self.geometry, g, w, bias, &self.input)?, INPUT)?
        };
        let (maps, saved, has_bias) = (self.clone(), [Saved::input(g), Saved::input(w)], bias.is_some());
        record(op, &operands(g, w, bias), dx, move |t| {
            let dy = t.dy().dense()?;
            let dg = t.want(0, || maps.conv(&dy, &t.get(&saved[1])?, None))?;
            let dw = t.want(1, || maps.weight(&t.get(&saved[0])?, &dy))?;
            with_bias(t, has_bias, [dg, dw])
        })
    }

    /// `dw[o, c, i] = sum of g[n, o, q] x[n, c, q stride - padding + i dilation]` over samples n and windows q.
    pub fn weight(&self, g: &Tensor, x: &Tensor) -> Result<Tensor> {
        let op = self.names.weight;
        let dw = if has_kernel::<ConvWeight>(x) {
            self.by_kernel(op, [g, x], None, WEIGHT, |[g, x], _, y| {
                run_fused(op, &ConvWeight(self.geometry.clone()), ConvWeightInputs { g, x }, Output { y })
            })?
        } else {
            self.ordered(columns::conv_weight(op, &self.geometry, g, x, &self.weight)?, WEIGHT)?
        };
        let (maps, saved) = (self.clone(), [Saved::input(g), Saved::input(x)]);
        record(op, &[g, x], dw, move |t| {
            let dg = t.want(0, || maps.conv(&t.get(&saved[1])?, t.dy(), None))?;
            let dx = t.want(1, || maps.input(&t.get(&saved[0])?, t.dy(), None))?;
            gradients![dg, dx]
        })
    }
}

impl Maps {
    /// Reports a convolution, or a transposed one, of x to y.
    pub fn report<const N: usize>(
        &self,
        op: &'static str,
        x: [&Tensor; 2],
        bias: Option<&Tensor>,
        y: &Tensor,
        output_padding: Option<[usize; N]>,
    ) {
        let [x, w] = x;
        report_as(op, ConvInputs { x, w, bias }, &[y], || Convolution {
            window: self.geometry.windows.attributes(),
            groups: self.geometry.groups,
            output_padding: output_padding.map(|padding| padding.to_vec()),
        });
    }

    /// The result of a product, or else of the kernel that `run` runs. Outside of the tape.
    fn by_kernel(
        &self,
        op: &'static str,
        inputs: [&Tensor; 2],
        bias: Option<&Tensor>,
        output: usize,
        run: impl FnOnce([&Tensor; 2], Option<&Tensor>, &Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        let shape = [&self.input, &self.weight, &self.output][output];
        let y = Tensor::allocate(op, shape, inputs[0].dtype(), inputs[0].device())?;
        let y = if self.are_last[output] { y.with_layout(Layout::channels_last(shape.clone())) } else { y };
        let [a, b] = [inputs[0].detach().dense()?, inputs[1].detach().dense()?];
        let bias = bias.map(|bias| self.of_batches(&bias.detach())).transpose()?;
        if !products::try_run(op, &self.geometry, output, [&a, &b], bias.as_ref(), &y)? {
            run([&a, &b], bias.as_ref(), &y)?;
        }
        Ok(y)
    }

    /// A result in the order of its tensor.
    fn ordered(&self, y: Tensor, output: usize) -> Result<Tensor> {
        if self.are_last[output] { y.to_channels_last() } else { Ok(y) }
    }

    /// The bias of each sample and group, `[N groups, channels of a group]`.
    fn of_batches(&self, bias: &Tensor) -> Result<Tensor> {
        let Geometry { batch, groups, .. } = self.geometry;
        let own = bias.reshape((groups, bias.numel() / groups))?;
        if groups == 1 || batch == 1 {
            let shape = Shape::from([batch * groups, own.dims()[1]]);
            return Ok(own.with_layout(own.layout().expand(&shape)));
        }
        own.unsqueeze(0)?
            .broadcast_to((batch, groups, own.dims()[1]))?
            .contiguous()?
            .reshape((batch * groups, own.dims()[1]))
    }
}

fn operands<'a>(x: &'a Tensor, w: &'a Tensor, bias: Option<&'a Tensor>) -> Vec<&'a Tensor> {
    [x, w].into_iter().chain(bias).collect()
}

/// Adds the gradient of a bias, if there is one: the sum over all dimensions except channels.
fn with_bias(t: &Backward<'_>, has_bias: bool, gradients: [Option<Tensor>; 2]) -> Result<Gradients> {
    let mut all: Gradients = gradients.into_iter().collect();
    if has_bias {
        let others = (0..t.dy().rank() as isize).filter(|&d| d != 1).collect::<Vec<_>>();
        all.push(t.want(2, || t.dy().sum(others))?);
    }
    Ok(all)
}
