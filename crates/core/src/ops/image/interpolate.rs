//! Interpolation: images and volumes of other extents.

use crate::ops::image::pool::check;
use crate::ops::image::resample::{Axis, Filter, Outside, Resampling, Rule, Step};
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
    /// The largest extents with the input's aspect ratio of which none is above these. The factor of all dimensions is the least of the
    /// ratios to the input's extents, and results are rounded to the nearest integer.
    NotLarger([usize; N]),
    /// The smallest extents with the input's aspect ratio of which none is below these, as for `NotLarger`.
    NotSmaller([usize; N]),
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
    /// Four elements along each of two dimensions: bicubic, Keys 1981.
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
    /// True if an output that stands for several elements is computed from all of them: the filter is as many times wider as outputs are
    /// apart, and its weights are divided by their sum. For `Linear` and `Cubic` without `align_corners`.
    pub antialias: bool,
    /// The coefficient a of `Cubic`. `None` is -0.75, or -0.5 with `antialias`, as in PyTorch.
    pub cubic_a: Option<f64>,
    /// True if elements outside of the input are left out, and the weights of the others divided by their sum; otherwise they are copies of
    /// the edge. For `Cubic`; a filter with `antialias` always leaves them out.
    pub excludes_outside: bool,
}

impl<const N: usize> Interpolate<N> {
    /// Nearest elements in these extents.
    pub const fn size(size: [usize; N]) -> Interpolate<N> {
        Interpolate::to(Target::Size(size))
    }

    /// Nearest elements in extents with these factors.
    pub const fn scale(factors: [f64; N]) -> Interpolate<N> {
        Interpolate::to(Target::Scale(factors))
    }

    /// Nearest elements in the extents of a target.
    pub const fn to(target: Target<N>) -> Interpolate<N> {
        Interpolate {
            target,
            mode: Interpolation::Nearest,
            align_corners: false,
            antialias: false,
            cubic_a: None,
            excludes_outside: false,
        }
    }

    /// With another mode.
    pub const fn mode(self, mode: Interpolation) -> Interpolate<N> {
        Interpolate { mode, ..self }
    }

    /// With the centers of corners at the same places.
    pub fn align_corners(self) -> Interpolate<N> {
        Interpolate { align_corners: true, ..self }
    }

    /// With filters that are as wide as outputs are apart.
    pub fn antialias(self) -> Interpolate<N> {
        Interpolate { antialias: true, ..self }
    }

    /// With another coefficient of `Cubic`.
    pub fn cubic_a(self, a: f64) -> Interpolate<N> {
        Interpolate { cubic_a: Some(a), ..self }
    }

    /// Without elements outside of the input.
    pub fn exclude_outside(self) -> Interpolate<N> {
        Interpolate { excludes_outside: true, ..self }
    }

    /// The coefficient of `Cubic`.
    fn a(&self) -> f64 {
        self.cubic_a.unwrap_or(if self.antialias { -0.5 } else { -0.75 })
    }

    fn check(&self) -> Result<()> {
        let is_cubic = self.mode == Interpolation::Cubic;
        let is_between = matches!(self.mode, Interpolation::Linear | Interpolation::Cubic);
        let wrong = |message: String| Err(Error::attr(OP, message));
        match self.target {
            _ if !(1..=3).contains(&N) => wrong(format!("{N} dimensions, expected 1 to 3")),
            _ if is_cubic && N != 2 => wrong(format!("{N} dimensions, bicubic has 2")),
            _ if self.align_corners && !is_between => wrong(format!("align_corners is not for {:?}", self.mode)),
            _ if self.antialias && !is_between => wrong(format!("antialias is not for {:?}", self.mode)),
            _ if self.antialias && self.align_corners => wrong("antialias is not for align_corners".into()),
            _ if self.cubic_a.is_some() && !is_cubic => wrong(format!("cubic_a is not for {:?}", self.mode)),
            _ if self.excludes_outside && !is_cubic => wrong(format!("exclude_outside is not for {:?}", self.mode)),
            _ if !self.a().is_finite() => wrong(format!("cubic_a is {}, expected a finite number", self.a())),
            Target::Scale(factors) if !factors.iter().all(|f| f.is_finite() && *f > 0.0) => {
                wrong(format!("scale factors {factors:?}, expected positive numbers"))
            }
            _ => Ok(()),
        }
    }

    /// The factor of all dimensions of an input, none of which is empty; `None` if there are others.
    fn common_factor(&self, input: [usize; N]) -> Option<f64> {
        let ratios = |size: [usize; N]| (0..N).map(move |d| size[d] as f64 / input[d] as f64);
        match self.target {
            Target::NotLarger(size) => Some(ratios(size).fold(f64::INFINITY, f64::min)),
            Target::NotSmaller(size) => Some(ratios(size).fold(0.0, f64::max)),
            Target::Size(_) | Target::Scale(_) => None,
        }
    }

    /// The extents of the output.
    fn output(&self, input: [usize; N]) -> [usize; N] {
        let rounded = |factor: f64| array::from_fn(|d| (input[d] as f64 * factor).round() as usize);
        match self.target {
            Target::Size(size) => size,
            Target::Scale(factors) => array::from_fn(|d| (input[d] as f64 * factors[d]) as usize),
            Target::NotLarger(size) | Target::NotSmaller(size) => self.common_factor(input).map_or(size, rounded),
        }
    }

    fn axis(&self, d: usize, from: [usize; N], output: usize) -> Axis {
        let input = from[d];
        let step = match self.target {
            _ if self.align_corners => Step::Corners,
            Target::Scale(factors) => Step::Factor(factors[d]),
            _ => self.common_factor(from).map_or(Step::Extents, Step::Factor),
        };
        // PyTorch ignores the factor where the extent stays the same, except for a cubic convolution of four elements.
        let is_ignored = matches!(self.target, Target::Scale(_)) && input == output;
        let rule = match self.mode {
            Interpolation::Nearest | Interpolation::Linear if is_ignored => Rule::Keep,
            Interpolation::Cubic if is_ignored && self.antialias => Rule::Keep,
            _ if input == output && !matches!(step, Step::Factor(factor) if factor != 1.0) => Rule::Keep,
            Interpolation::NearestExact => Rule::NearestExact(step),
            Interpolation::Linear if self.antialias => Rule::Filter(step, Filter::Triangle),
            Interpolation::Linear => Rule::Linear(step),
            Interpolation::Cubic if self.antialias => Rule::Filter(step, Filter::Cubic(self.a())),
            Interpolation::Cubic if self.excludes_outside => Rule::Cubic(step, self.a(), Outside::Excluded),
            Interpolation::Cubic => Rule::Cubic(step, self.a(), Outside::Edge),
            Interpolation::Nearest | Interpolation::Area => Rule::Nearest(step),
        };
        Axis { input, output, rule }
    }
}

const OP: &str = "interpolate";

/// # Interpolation
impl Tensor {
    /// Other extents of the last `N` dimensions, up to three, of `[N, C, ..]` or `[C, ..]`, with interpolated elements. Float dtypes.
    /// Positions and weights are computed in f64, and positions of `Nearest` from extents in integers.
    ///
    /// Errors: `Dtype`; `Attr` for other numbers of dimensions, options of another mode, or a factor that is not
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
                Target::Scale(factors) => &factors[..],
                _ => &[],
            };
            let (policy, size) = match &options.target {
                Target::NotLarger(size) => ("not_larger", &size[..]),
                Target::NotSmaller(size) => ("not_smaller", &size[..]),
                _ => ("stretch", &[][..]),
            };
            [
                ("dims", N.into()),
                ("mode", mode.into()),
                ("scale", scale.into()),
                ("policy", policy.into()),
                ("size", size.into()),
                ("align_corners", options.align_corners.into()),
                ("antialias", options.antialias.into()),
                ("cubic_a", options.a().into()),
                ("excludes_outside", (options.excludes_outside || options.antialias).into()),
            ]
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
        (0..N).for_each(|d| axes[3 - N + d] = options.axis(d, input, output[d]));
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
