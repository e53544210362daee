//! Linear maps along the last dimensions, one after the other: each output is a weighted sum of a few elements. The borders of a
//! padding and interpolation are such maps.

use crate::fused::{Fused, gradient_by_ops, has_kernel, run_fused};
use crate::host;
use crate::operands::{Input, Output};
use crate::ops::{gradients, in_acc};
use crate::tape::record;
use crate::{DType, Result, Shape, Tensor};

/// The map along one dimension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    /// Elements of the input.
    pub input: usize,
    /// Elements of the output.
    pub output: usize,
    /// The elements that an output reads.
    pub rule: Rule,
}

/// The elements of the input that an output reads, and their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// The element at the same position. Both extents are equal.
    Keep,
    /// This number of elements before the first, and others after the last, mirrored at the first and last element.
    Reflect(isize),
    /// The same, with copies of the first and the last element.
    Replicate(isize),
    /// The same, with the elements of the other end.
    Circular(isize),
    /// The element below the output's position in the input.
    Nearest(Step),
    /// The element whose center is nearest to the output's center. Two equal distances: the one above.
    NearestExact(Step),
    /// The two neighbors of the output's center, by their distances.
    Linear(Step),
    /// The four neighbors of the output's center, by the cubic convolution with the coefficient `a`.
    Cubic(Step, f64, Outside),
    /// All elements that a filter around the output's center covers. Its width is that of the two or four neighbors, times the distance
    /// of outputs where this is above 1. Weights are divided by their sum. No [`Step::Corners`].
    Filter(Step, Filter),
}

/// Neighbors outside of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// Copies of the first or the last element.
    Edge,
    /// They are left out. The weights of the others are divided by their sum.
    Excluded,
}

/// The weights of elements by their distance from an output's center.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Filter {
    /// `1 - |x|`.
    Triangle,
    /// The cubic convolution with the coefficient `a`.
    Cubic(f64),
}

/// The distance in the input between adjacent outputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// `input / output`.
    Extents,
    /// The reciprocal of this factor.
    Factor(f64),
    /// `(input - 1) / (output - 1)`: the centers of the first elements coincide, and those of the last.
    Corners,
}

/// The elements that outputs read.
pub struct Taps {
    /// Output o reads elements `starts[o] .. starts[o + 1]` of the other lists, one at least.
    pub starts: Vec<usize>,
    /// Positions in the input.
    pub positions: Vec<usize>,
    /// Their weights; empty if all are 1.
    pub weights: Vec<f64>,
}

impl Step {
    /// The position in the input of the center of output `o`. Positions of elements are those of their centers.
    fn center(self, axis: &Axis, o: usize) -> f64 {
        let (input, output, o) = (axis.input as f64, axis.output as f64, o as f64);
        match self {
            Step::Extents => input / output * (o + 0.5) - 0.5,
            Step::Factor(factor) => (o + 0.5) / factor - 0.5,
            Step::Corners if axis.output == 1 => 0.0,
            Step::Corners => (input - 1.0) / (output - 1.0) * o,
        }
    }

    /// The element of the input that covers `(o + half / 2) step`.
    fn element(self, axis: &Axis, o: usize, half: usize) -> usize {
        let found = match self {
            Step::Factor(factor) => ((o as f64 + half as f64 / 2.0) / factor) as usize,
            _ => ((2 * o + half) as u128 * axis.input as u128 / (2 * axis.output as u128)) as usize,
        };
        found.min(axis.input - 1)
    }
}

impl Filter {
    /// The distance from which on weights are 0.
    fn reach(self) -> f64 {
        match self {
            Filter::Triangle => 1.0,
            Filter::Cubic(_) => 2.0,
        }
    }

    fn at(self, distance: f64) -> f64 {
        match self {
            Filter::Triangle => (1.0 - distance.abs()).max(0.0),
            Filter::Cubic(a) => cubic(a, distance.abs()),
        }
    }
}

/// The cubic convolution at a distance of 0 or more, Keys 1981.
fn cubic(a: f64, x: f64) -> f64 {
    match x {
        ..=1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        ..2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

impl Rule {
    /// True if not all weights are 1.
    pub fn is_weighted(&self) -> bool {
        matches!(self, Rule::Linear(_) | Rule::Cubic(..) | Rule::Filter(..))
    }
}

impl Axis {
    /// A dimension that stays as it is.
    pub fn keep(extent: usize) -> Axis {
        Axis { input: extent, output: extent, rule: Rule::Keep }
    }

    /// The elements that the outputs read. The input is not empty.
    pub fn taps(&self) -> Taps {
        let last = self.input as isize - 1;
        let single = |f: &dyn Fn(usize) -> usize| Taps {
            starts: (0..=self.output).collect(),
            positions: (0..self.output).map(f).collect(),
            weights: Vec::new(),
        };
        match self.rule {
            Rule::Keep => single(&|o| o),
            Rule::Reflect(low) => single(&|o| {
                let at = (o as isize - low).abs();
                if at > last { 2 * last - at } else { at }.unsigned_abs()
            }),
            Rule::Replicate(low) => single(&|o| (o as isize - low).clamp(0, last) as usize),
            Rule::Circular(low) => single(&|o| (o as isize - low).rem_euclid(last + 1) as usize),
            Rule::Nearest(step) => single(&|o| step.element(self, o, 0)),
            Rule::NearestExact(step) => single(&|o| step.element(self, o, 1)),
            Rule::Linear(step) => {
                let center = |o| step.center(self, o).max(0.0);
                self.neighbors(0, center, |t| [1.0 - t, t], Outside::Edge)
            }
            Rule::Cubic(step, a, outside) => {
                let weights = |t: f64| [t + 1.0, t, 1.0 - t, 2.0 - t].map(|x| cubic(a, x));
                self.neighbors(1, |o| step.center(self, o), weights, outside)
            }
            Rule::Filter(step, filter) => self.covered(step, filter),
        }
    }

    /// A bound of the number of all taps.
    fn most_taps(&self) -> usize {
        match self.rule {
            Rule::Filter(..) => self.output.saturating_mul(6).saturating_add(self.input.saturating_mul(4)),
            _ => self.output.saturating_mul(4),
        }
    }

    /// `N` elements from `before` elements below the center of each output, weighted by the distance of the center from the element
    /// below it.
    fn neighbors<const N: usize>(
        &self,
        before: isize,
        center: impl Fn(usize) -> f64,
        weights: impl Fn(f64) -> [f64; N],
        outside: Outside,
    ) -> Taps {
        let last = self.input as isize - 1;
        let mut taps = Taps { starts: vec![0], positions: Vec::new(), weights: Vec::new() };
        for center in (0..self.output).map(center) {
            let below = (center.floor() as isize).min(last);
            let weights = weights((center - below as f64).clamp(0.0, 1.0));
            let places = (0..N as isize).map(|i| below + i - before).zip(weights);
            match outside {
                Outside::Edge => taps.push(places.map(|(at, weight)| (at.clamp(0, last) as usize, weight))),
                Outside::Excluded => {
                    let inside: Vec<_> = places.filter(|(at, _)| (0..=last).contains(at)).collect();
                    let sum: f64 = inside.iter().map(|(_, weight)| weight).sum();
                    taps.push(inside.into_iter().map(|(at, weight)| (at as usize, weight / sum)));
                }
            }
        }
        taps
    }

    /// The elements that a filter covers; those of PyTorch's interpolation with antialiasing, which are Pillow's.
    fn covered(&self, step: Step, filter: Filter) -> Taps {
        let distance = match step {
            Step::Factor(factor) => 1.0 / factor,
            Step::Extents | Step::Corners => self.input as f64 / self.output as f64,
        };
        let (width, mut taps) =
            (distance.max(1.0), Taps { starts: vec![0], positions: Vec::new(), weights: Vec::new() });
        for o in 0..self.output {
            let center = distance * (o as f64 + 0.5);
            let end = |side: f64| ((center + side * filter.reach() * width + 0.5).max(0.0) as usize).min(self.input);
            // A factor may put the last outputs beyond the input.
            let last = end(1.0).max(1);
            let first = end(-1.0).min(last - 1);
            let weights: Vec<f64> = (first..last).map(|i| filter.at((i as f64 - center + 0.5) / width)).collect();
            let sum: f64 = weights.iter().sum();
            let sum = if sum == 0.0 { 1.0 } else { sum };
            taps.push((first..last).zip(weights).map(|(i, weight)| (i, weight / sum)));
        }
        taps
    }

    /// The map along dimension `dim` in tensor ops.
    fn by_ops(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        let Taps { starts, positions, weights } = self.taps();
        let counts: Vec<usize> = starts.windows(2).map(|ends| ends[1] - ends[0]).collect();
        let most = counts.iter().copied().max().unwrap_or(1);
        let term = |t: usize| {
            let has = |o: usize| t < counts[o];
            let tap = |o: usize| if has(o) { starts[o] + t } else { starts[o] };
            let index = (0..self.output).map(|o| positions[tap(o)] as i64).collect();
            let mut elements = x.index_select(dim as isize, &Tensor::from_vec(index, self.output, x.device())?)?;
            if !(0..self.output).all(has) {
                // An element that is not read may be infinite. A sum keeps its sign if -0 is added.
                let is_read =
                    Tensor::from_vec((0..self.output).map(has).collect(), along(self.output, x, dim), x.device())?;
                elements = is_read.broadcast_to(elements.shape())?.where_scalar(&elements, -0.0)?;
            }
            if weights.is_empty() {
                return Ok(elements);
            }
            let weights = (0..self.output).map(|o| if has(o) { weights[tap(o)] } else { 1.0 }).collect();
            elements.mul(&column(weights, x, dim)?)
        };
        (1..most).try_fold(term(0)?, |sum, t| sum.add(&term(t)?))
    }
}

impl Taps {
    /// Adds those of an output.
    fn push(&mut self, taps: impl Iterator<Item = (usize, f64)>) {
        let (positions, weights): (Vec<usize>, Vec<f64>) = taps.unzip();
        self.positions.extend(positions);
        self.weights.extend(weights);
        self.starts.push(self.positions.len());
    }
}

/// The shape of a tensor that broadcasts along dimension `dim` of `x`.
fn along(extent: usize, x: &Tensor, dim: usize) -> Shape {
    let dims: Vec<usize> = (dim..x.rank()).map(|d| if d == dim { extent } else { 1 }).collect();
    Shape::new(&dims)
}

/// Weights along dimension `dim` of `x`, which is f32 or f64.
fn column(weights: Vec<f64>, x: &Tensor, dim: usize) -> Result<Tensor> {
    let shape = along(weights.len(), x, dim);
    match x.dtype() {
        DType::F64 => Tensor::from_vec(weights, shape, x.device()),
        _ => Tensor::from_vec(weights.iter().map(|&w| w as f32).collect(), shape, x.device()),
    }
}

/// A map or its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From `[.., inputs]` to `[.., outputs]`.
    Forward,
    /// From the gradient of the outputs to that of the inputs.
    Backward,
}

/// Maps x `[.., D, H, W]`, which has the inputs' extents, to y, which has the outputs'. The other way round for the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resample {
    /// The maps along the last three dimensions.
    pub axes: [Axis; 3],
    /// The direction.
    pub way: Way,
}

impl Fused for Resample {
    type Inputs<T> = Input<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        match self.way {
            Way::Forward => "resample",
            Way::Backward => "resample_backward",
        }
    }

    fn composite(&self, Input { x }: Input<&Tensor>, before: Output<&Tensor>) -> Result<Output<Option<Tensor>>> {
        if self.way == Way::Forward {
            return Ok(Output { y: Some(by_ops(&self.axes, x)?) });
        }
        let from = before.y.require_grad()?;
        gradient_by_ops(&from, x, || by_ops(&self.axes, &from))
    }
}

/// The maps in tensor ops, from the last dimension to the first: `[planes, D, H, W]`.
fn by_ops(axes: &[Axis; 3], x: &Tensor) -> Result<Tensor> {
    let [depth, height, width] = axes.map(|axis| axis.input);
    let x = x.reshape((x.numel() / (depth * height * width), depth, height, width))?;
    let all = |x: &Tensor| {
        let mut mapped = axes.iter().enumerate().rev().filter(|(_, axis)| axis.rule != Rule::Keep);
        mapped.try_fold(x.clone(), |x, (d, axis)| axis.by_ops(&x, d + 1))
    };
    if x.dtype().is_float() { in_acc(&x, all) } else { all(&x) }
}

/// Maps of the last dimensions of a tensor.
#[derive(Clone)]
pub(crate) struct Resampling {
    /// The names of the op and of its gradient.
    pub names: [&'static str; 2],
    /// The maps.
    pub axes: [Axis; 3],
    /// The shape of the input.
    pub from: Shape,
    /// The shape of the output.
    pub to: Shape,
}

impl Resampling {
    /// Maps the last dimensions of `x`, none of which is empty.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        if self.axes.iter().all(|axis| axis.rule == Rule::Keep) {
            return Ok(x.clone());
        }
        // Results and tables that no memory holds are errors before anything is computed.
        let most = self.axes.iter().map(Axis::most_taps).max().unwrap_or(0);
        drop(host::with_room::<f64>(self.names[0], self.to.numel())?);
        drop(host::with_room::<[f64; 2]>(self.names[0], most)?);
        match has_kernel::<Resample>(x) {
            true => self.by_kernel(x, Way::Forward),
            false => by_ops(&self.axes, x)?.reshape(&self.to),
        }
    }

    /// Each way is the gradient of the other.
    fn by_kernel(&self, x: &Tensor, way: Way) -> Result<Tensor> {
        let (x, axes) = (x.contiguous()?, self.axes);
        let (op, shape, back) = match way {
            Way::Forward => (self.names[0], &self.to, Way::Backward),
            Way::Backward => (self.names[1], &self.from, Way::Forward),
        };
        let y = Tensor::allocate(op, shape, x.dtype(), x.device())?;
        run_fused(op, &Resample { axes, way }, Input { x: &x }, Output { y: &y })?;
        let maps = self.clone();
        record(op, &[&x], y, move |t| gradients![Some(maps.by_kernel(t.dy(), back)?)])
    }
}
