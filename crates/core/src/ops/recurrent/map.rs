//! The linear maps of recurrent ops: from inputs and hidden states to the arguments of gates.

use crate::backend::Kernel;
use crate::ops::conv::{Conv, Maps, Names, Padding, maps};
use crate::ops::matrix::matmul::batched;
use crate::pointwise::Pointwise;
use crate::tensor::{Attributes, run};
use crate::{Dims, Result, Shape, Tensor};

/// A product with a weight `[O, I]`, or a convolution with a weight `[O, I, kh, kw]` that keeps the size of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Map {
    Dense,
    Convolution,
}

const NAMES: Names = Names { conv: "conv2d", input: "conv2d_backward_input", weight: "conv2d_backward_weight" };

const CONV: Conv<2> = Conv { stride: [1; 2], padding: Padding::Same, dilation: [1; 2], groups: 1 };

impl Map {
    /// The map of x, whose first dimension are rows, plus a bias. It is on the tape.
    pub fn apply(self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match self {
            Map::Dense => x.linear(w, bias),
            Map::Convolution => x.conv2d(w, bias, &CONV),
        }
    }

    /// The same weight, whose outputs are adjacent in memory if [`write`](Map::write) would otherwise turn it for each step.
    pub fn turned(self, w: &Tensor) -> Result<Tensor> {
        match self {
            Map::Dense => w.t()?.contiguous()?.t(),
            Map::Convolution => Ok(w.clone()),
        }
    }

    /// Writes the map of h, plus `other` of the shape of the result, to `y`. All are outside of the tape.
    pub fn write(self, op: &'static str, h: &Tensor, w: &Tensor, other: Option<&Tensor>, y: &Tensor) -> Result<()> {
        match self {
            Map::Dense => multiply(op, h, &w.t()?, other, y),
            Map::Convolution => add(op, &self.maps(h.shape(), w)?.conv(h, w, None)?, other, y),
        }
    }

    /// The gradient of the input from the gradient `d` of the result, plus `other`, in the shape of an input.
    pub fn input_gradient(
        self,
        op: &'static str,
        d: &Tensor,
        w: &Tensor,
        other: Option<&Tensor>,
        shape: &Shape,
    ) -> Result<Tensor> {
        let dx = Tensor::allocate(op, shape, d.dtype(), d.device())?;
        match self {
            Map::Dense => multiply(op, d, w, other, &dx)?,
            Map::Convolution => {
                let found = self.maps(shape, w)?.input(d, w, None)?;
                if other.is_none() {
                    return Ok(found);
                }
                add(op, &found, other, &dx)?;
            }
        }
        Ok(dx)
    }

    /// The gradient of the weight from the gradient `d` of the result and the input x.
    pub fn weight_gradient(self, d: &Tensor, x: &Tensor, w: &Tensor) -> Result<Tensor> {
        match self {
            Map::Dense => d.t()?.matmul(x),
            Map::Convolution => self.maps(x.shape(), w)?.weight(d, x),
        }
    }

    /// The gradient of a bias: the sum over all dimensions but that of gates.
    pub fn bias_gradient(self, d: &Tensor) -> Result<Tensor> {
        match self {
            Map::Dense => d.sum(0),
            Map::Convolution => d.sum([0, 2, 3]),
        }
    }

    /// The shape of the results for this number of rows and states of this shape.
    pub fn output(self, rows: usize, outputs: usize, state: &Shape) -> Shape {
        let mut dims = Dims::from_slice(state.dims());
        (dims[0], dims[1]) = (rows, outputs);
        Shape::from(dims)
    }

    fn maps(self, x: &Shape, w: &Tensor) -> Result<Maps> {
        maps(NAMES, x, w, [false; 2], &CONV)
    }
}

/// `y = a @ b + c`.
fn multiply(op: &'static str, a: &Tensor, b: &Tensor, c: Option<&Tensor>, y: &Tensor) -> Result<()> {
    let c = c.map(|c| batched(&c.with_layout(c.layout().expand(y.shape()))));
    let (a, b, y) = (batched(a), batched(b), batched(y));
    let inputs: Vec<&Tensor> = [&a, &b].into_iter().chain(&c).collect();
    run(op, Kernel::Matmul, &inputs, &[&y], Attributes::floats(&[1.0, 1.0]))
}

/// `y = a + b`.
fn add(op: &'static str, a: &Tensor, b: Option<&Tensor>, y: &Tensor) -> Result<()> {
    match b {
        Some(b) => run(op, Kernel::Pointwise(Pointwise::Add), &[a, b], &[y], Attributes::floats(&[1.0])),
        None => run(op, Kernel::Copy, &[a], &[y], Attributes::default()),
    }
}
