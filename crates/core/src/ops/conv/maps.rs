//! The three maps of a convolution, each with the other two as its gradients.

use super::columns;
use super::geometry::Geometry;
use crate::ops::gradients;
use crate::tape::{Backward, Gradients, Saved, record};
use crate::{Result, Shape, Tensor};

/// What the maps are called on the tape and in errors.
#[derive(Clone, Copy)]
pub(super) struct Names {
    /// Input and weight to output.
    pub conv: &'static str,
    /// Gradient of the output, and weight, to the gradient of the input; or the transposed convolution.
    pub input: &'static str,
    /// Gradient of the output, and input, to the gradient of the weight.
    pub weight: &'static str,
}

/// The maps between the input, the weight and the output of a convolution.
#[derive(Clone)]
pub(super) struct Maps {
    pub names: Names,
    pub geometry: Geometry,
    pub input: Shape,
    pub weight: Shape,
    pub output: Shape,
}

impl Maps {
    /// `y[n, o, q] = b[o] + sum of x[n, c, q stride - padding + i dilation] w[o, c, i]` over the channels c of the group of o
    /// and the elements i of the window.
    pub fn conv(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let op = self.names.conv;
        let y = columns::conv(op, &self.geometry, x, w, bias, &self.output)?;
        let (maps, saved, has_bias) = (self.clone(), [Saved::input(x), Saved::input(w)], bias.is_some());
        record(op, &operands(x, w, bias), y, move |t| {
            let dx = t.want(0, || maps.input(t.dy(), &t.get(&saved[1])?, None))?;
            let dw = t.want(1, || maps.weight(t.dy(), &t.get(&saved[0])?))?;
            with_bias(t, has_bias, [dx, dw])
        })
    }

    /// `dx[n, c, l] = b[c] + sum of g[n, o, q] w[o, c, i]` over the outputs o of the group of c, and what has
    /// `q stride - padding + i dilation = l`.
    pub fn input(&self, g: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let op = self.names.input;
        let dx = columns::conv_input(op, &self.geometry, g, w, bias, &self.input)?;
        let (maps, saved, has_bias) = (self.clone(), [Saved::input(g), Saved::input(w)], bias.is_some());
        record(op, &operands(g, w, bias), dx, move |t| {
            let dg = t.want(0, || maps.conv(t.dy(), &t.get(&saved[1])?, None))?;
            let dw = t.want(1, || maps.weight(&t.get(&saved[0])?, t.dy()))?;
            with_bias(t, has_bias, [dg, dw])
        })
    }

    /// `dw[o, c, i] = sum of g[n, o, q] x[n, c, q stride - padding + i dilation]` over samples n and windows q.
    pub fn weight(&self, g: &Tensor, x: &Tensor) -> Result<Tensor> {
        let op = self.names.weight;
        let dw = columns::conv_weight(op, &self.geometry, g, x, &self.weight)?;
        let (maps, saved) = (self.clone(), [Saved::input(g), Saved::input(x)]);
        record(op, &[g, x], dw, move |t| {
            let dg = t.want(0, || maps.conv(&t.get(&saved[1])?, t.dy(), None))?;
            let dx = t.want(1, || maps.input(&t.get(&saved[0])?, t.dy(), None))?;
            gradients![dg, dx]
        })
    }
}

fn operands<'a>(x: &'a Tensor, w: &'a Tensor, bias: Option<&'a Tensor>) -> Vec<&'a Tensor> {
    [x, w].into_iter().chain(bias).collect()
}

/// Adds the gradient of a bias where there is one: sums over all dimensions but that of the channels.
fn with_bias(t: &Backward<'_>, has_bias: bool, gradients: [Option<Tensor>; 2]) -> Result<Gradients> {
    let mut all: Gradients = gradients.into_iter().collect();
    if has_bias {
        let others = (0..t.dy().rank() as isize).filter(|&d| d != 1).collect::<Vec<_>>();
        all.push(t.want(2, || t.dy().sum(others))?);
    }
    Ok(all)
}
