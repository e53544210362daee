//! Interpolation: images and volumes of other extents.

use crate::ops::image::pool::check;
use crate::ops::image::resample::{Axis, Resampling, Rule, Step};
use crate::ops::with_shapes;
use crate::tape::report;
use crate::{Dims, Error, Result, Shape, Tensor};
use std::array;

/// The extents of an interpolation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target<const N: usize> {
    /// These extents.
    Size([usize; N]),
    /// The input's extents times these factors, rounded down. Outputs are the reciprocal of the factor apart in the input.
    Scale([f64; N]),
}

/// The elements from which an output is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// The element below the output's position: `floor(o input / output)`, or `floor(o / factor)`.
    Nearest,
    /// The element whose center is nearest.
    NearestExact,
    /// The neighbors along each dimension: linear, bilinear or trilinear.
    Linear,
    /// Four elements along each of two dimensions: bicubic, Keys 1981 with `a = -0.75`.
    Cubic,
    /// The average of the elements that the output covers, as `adaptive_avg_pool`.
    Area,
}

/// An interpolation over the last `N` dimensions, up to three.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interpolate<const N: usize> {
    /// The extents of the output.
    pub target: Target<N>,
    /// The elements from which an output is computed.
    pub mode: Interpolation,
    /// True if the centers of the first elements of input and output coincide, and those of the last; otherwise their outer edges
    /// do. For `Linear` and `Cubic`.
    pub align_corners: bool,
}

impl<const N: usize> Interpolate<N> {
    /// Nearest elements in these extents.
    pub fn size(size: [usize; N]) -> Interpolate<N> {
        Interpolate { target: Target::Size(size), mode: Interpolation::Nearest, align_corners: false }
    }

    /// Nearest elements in extents with these factors.
    pub fn scale(factors: [f64; N]) -> Interpolate<N> {
        Interpolate { target: Target::Scale(factors), ..Interpolate::size([0; N]) }
    }

    /// With another mode.
    pub fn mode(self, mode: Interpolation) -> Interpolate<N> {
        Interpolate { mode, ..self }
    }

    /// With the centers of corners at the same places.
    pub fn align_corners(self) -> Interpolate<N> {
        Interpolate { align_corners: true, ..self }
    }

    fn check(&self) -> Result<()> {
        let is_between = matches!(self.mode, Interpolation::Linear | Interpolation::Cubic);
        let wrong = |message: String| Err(Error::attr(OP, message));
        match self.target {
            _ if !(1..=3).contains(&N) => wrong(format!("{N} dimensions, expected 1 to 3")),
            _ if self.mode == Interpolation::Cubic && N != 2 => wrong(format!("{N} dimensions, bicubic has 2")),
            _ if self.align_corners && !is_between => wrong(format!("align_corners is not for {:?}", self.mode)),
            Target::Scale(factors) if !factors.iter().all(|f| f.is_finite() && *f > 0.0) => {
                wrong(format!("scale factors {factors:?}, expected positive numbers"))
            }
            _ => Ok(()),
        }
    }

    /// The extents of the output.
    fn output(&self, input: [usize; N]) -> [usize; N] {
        match self.target {
            Target::Size(size) => size,
            Target::Scale(factors) => array::from_fn(|d| (input[d] as f64 * factors[d]) as usize),
        }
    }

    fn axis(&self, d: usize, input: usize, output: usize) -> Axis {
        let step = match self.target {
            _ if self.align_corners => Step::Corners,
            Target::Size(_) => Step::Extents,
            Target::Scale(factors) => Step::Factor(factors[d]),
        };
        let rule = match self.mode {
            // PyTorch ignores the factor where the extent stays the same.
            Interpolation::Nearest | Interpolation::Linear if input == output => Rule::Keep,
            _ if input == output && !matches!(step, Step::Factor(_)) => Rule::Keep,
            Interpolation::NearestExact => Rule::NearestExact(step),
            Interpolation::Linear => Rule::Linear(step),
            Interpolation::Cubic => Rule::Cubic(step),
            Interpolation::Nearest | Interpolation::Area => Rule::Nearest(step),
        };
        Axis { input, output, rule }
    }
}

const OP: &str = "interpolate";

impl Tensor {
    /// Other extents of the last `N` dimensions, up to three, of `[N, C, ..]` or `[C, ..]`, with interpolated elements. Float dtypes.
    /// Positions and weights are computed in f64, and positions of `Nearest` from extents in integers.
    ///
    /// Errors: `Dtype`; `Attr` for other numbers of dimensions, `align_corners` of a mode without weights, or a factor that is not
    /// positive; `Shape` for another rank, an empty dimension beyond the batch, or an output extent of 0.
    pub fn interpolate<const N: usize>(&self, options: &Interpolate<N>) -> Result<Tensor> {
        options.check()?;
        check::<N>(OP, self)?;
        let first = self.rank() - N;
        let input: [usize; N] = array::from_fn(|d| self.dims()[first + d]);
        let output = options.output(input);
        let mut dims = Dims::from_slice(self.dims());
        dims[first..].copy_from_slice(&output);
        let to = Shape::from(dims);
        if output.contains(&0) {
            return Err(Error::shape(OP, format!("{} becomes {to}, expected extents of 1 or more", self.shape())));
        }
        with_shapes(OP, &[Some(self)], || to.check(OP))?;
        let y = self.interpolated(options, input, output, to)?;
        report(OP, &[self], &[&y], || {
            let mode = match options.mode {
                Interpolation::Nearest => "nearest",
                Interpolation::NearestExact => "nearest_exact",
                Interpolation::Linear => "linear",
                Interpolation::Cubic => "cubic",
                Interpolation::Area => "area",
            };
            let scale = match &options.target {
                Target::Size(_) => &[][..],
                Target::Scale(factors) => factors,
            };
            let corners = options.align_corners.into();
            [("dims", N.into()), ("mode", mode.into()), ("scale", scale.into()), ("align_corners", corners)]
        });
        Ok(y)
    }

    fn interpolated<const N: usize>(
        &self,
        options: &Interpolate<N>,
        input: [usize; N],
        output: [usize; N],
        to: Shape,
    ) -> Result<Tensor> {
        if options.mode == Interpolation::Area {
            return averages(self, &output);
        }
        let mut axes = [Axis::keep(1); 3];
        (0..N).for_each(|d| axes[3 - N + d] = options.axis(d, input[d], output[d]));
        Resampling { names: [OP, "interpolate_backward"], axes, from: self.shape().clone(), to }.apply(self)
    }
}

fn averages(x: &Tensor, output: &[usize]) -> Result<Tensor> {
    let pooled = match *output {
        [length] => x.adaptive_avg_pool1d([length]),
        [height, width] => x.adaptive_avg_pool2d([height, width]),
        [depth, height, width] => x.adaptive_avg_pool3d([depth, height, width]),
        _ => unreachable!("there are one to three dimensions"),
    };
    pooled.map_err(|e| e.of(OP))
}
