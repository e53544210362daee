//! The gradient of a convolution with respect to its input, as convolutions with a stride of 1. Elements of the input whose positions
//! agree modulo the stride depend on the same elements of the kernel: they are the outputs of one convolution of the gradient.

use super::geometry::Geometry;
use crate::backend::Kernel;
use crate::ops::image::window::Windows;
use crate::tensor::{Attributes, run};
use crate::{Layout, Result, Tensor};

/// The largest number of phases for which convolutions are used. Each is a product of its own.
const MOST: usize = 8;

/// Elements of the input that are `stride` apart.
pub(super) struct Phase {
    /// The convolution, from the gradient of the output to these elements.
    pub geometry: Geometry,
    sides: [Side; 3],
}

/// A phase along one dimension.
#[derive(Clone, Copy)]
struct Side {
    /// The first element of the input, the number of its elements, and their distance.
    element: [usize; 3],
    /// The first element of the kernel, the number of its elements, and their distance.
    kernel: [usize; 3],
    /// The distance of adjacent elements of the kernel, in outputs.
    dilation: usize,
    /// Zeros before the first output.
    low: usize,
    /// Outputs before the first that is used.
    skipped: usize,
}

impl Side {
    /// The phase that begins at an element of the input; `None` if it depends on no element of the kernel.
    ///
    /// Output q and element i of the kernel add to element `l = q stride + i dilation - low`. With `i = first + j step`, where `step
    /// dilation` is the smallest multiple of the stride, this is `q = (l + low - first dilation) / stride - j (step dilation / stride)`.
    fn new(windows: &Windows, d: usize, start: usize) -> Option<Side> {
        let (stride, dilation, kernel) = (windows.stride[d], windows.dilation[d], windows.kernel[d]);
        let common = gcd(stride, dilation);
        let (step, apart) = (stride / common, dilation / common);
        let rest = (start + windows.low[d]) % stride;
        let first = (0..kernel.min(step)).find(|i| i * dilation % stride == rest)?;
        let count = (kernel - first).div_ceil(step);
        // Of the first element: the first output of the flipped kernel, and its last.
        let (end, reach) = (start + windows.low[d], first * dilation + (count - 1) * apart * stride);
        Some(Side {
            element: [start, (windows.input[d] - start).div_ceil(stride), stride],
            kernel: [first, count, step],
            dilation: apart,
            low: reach.saturating_sub(end) / stride,
            skipped: (end.saturating_sub(reach) / stride).min(windows.output[d]),
        })
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The phases that depend on the kernel, and whether these are all; `None` if there are too many.
pub(super) fn phases(geometry: &Geometry) -> Option<(Vec<Phase>, bool)> {
    let windows = &geometry.windows;
    let starts = [0, 1, 2].map(|d| windows.stride[d].min(windows.input[d]));
    let count = starts.iter().try_fold(1, |n: usize, &k| n.checked_mul(k)).filter(|&n| n <= MOST)?;
    let [_, height, width] = starts;
    let starts = (0..count).map(|i| [i / width / height, i / width % height, i % width]);
    let found: Vec<Phase> = starts.filter_map(|starts| Phase::new(geometry, starts)).collect();
    let is_all = found.len() == count;
    Some((found, is_all))
}

impl Phase {
    fn new(geometry: &Geometry, starts: [usize; 3]) -> Option<Phase> {
        let windows = &geometry.windows;
        let side = |d: usize| Side::new(windows, d, starts[d]);
        let sides = [side(0)?, side(1)?, side(2)?];
        let of = |f: fn(&Side) -> usize| sides.each_ref().map(f);
        let skipped = of(|side| side.skipped);
        let windows = Windows {
            input: [0, 1, 2].map(|d| windows.output[d] - skipped[d]),
            output: of(|side| side.element[1]),
            kernel: of(|side| side.kernel[1]),
            stride: [1; 3],
            low: of(|side| side.low),
            high: [0; 3],
            dilation: of(|side| side.dilation),
            ..*windows
        };
        let Geometry { channels, outputs, .. } = *geometry;
        Some(Phase { geometry: Geometry { channels: outputs, outputs: channels, windows, ..geometry.clone() }, sides })
    }

    /// The outputs `[N, O, ..]` that are used.
    pub fn outputs(&self, g: &Tensor) -> Tensor {
        let used =
            |layout: Layout, d: usize| layout.narrow(d + 2, self.sides[d].skipped, self.geometry.windows.input[d], 1);
        g.with_layout((0..3).fold(g.layout().clone(), used))
    }

    /// The elements of an input `[N, C, ..]`.
    pub fn elements(&self, x: &Tensor) -> Tensor {
        let apart = |layout: Layout, d: usize| {
            let [first, count, step] = self.sides[d].element;
            layout.narrow(d + 2, first, count, step)
        };
        x.with_layout((0..3).fold(x.layout().clone(), apart))
    }

    /// The weights of the convolution, `[G, C / G, O k / G]`, whose kernel is flipped, from those of `[O, C / G, ..]`.
    pub fn weights(&self, op: &'static str, w: &Tensor, kernel: [usize; 3]) -> Result<Tensor> {
        let Geometry { groups, channels: outputs, outputs: channels, ref windows, .. } = self.geometry;
        let [depth, height, width] = kernel;
        let w = w.detach().reshape((groups * outputs, channels, depth, height, width))?;
        let apart = |layout: Layout, d: usize| {
            let [first, count, step] = self.sides[d].kernel;
            layout.narrow(d + 2, first, count, step)
        };
        let layout = (0..3).fold(w.layout().clone(), apart);
        let elements = windows.window();
        let turned = w.with_layout(layout.permute(&[0, 2, 3, 4, 1])).contiguous()?;
        let turned = turned.reshape((groups * outputs, elements, channels))?;
        flipped(op, &turned)?.reshape((groups, outputs * elements, channels))?.t()
    }
}

/// `x [O, k, C]` with its second dimension in reverse.
fn flipped(op: &'static str, x: &Tensor) -> Result<Tensor> {
    let count = x.dims()[1];
    if count == 1 {
        return Ok(x.clone());
    }
    let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
    for i in 0..count {
        let at = |t: &Tensor, i: usize| t.with_layout(t.layout().select(1, i));
        run(op, Kernel::Copy, &[&at(x, i)], &[&at(&y, count - 1 - i)], Attributes::default())?;
    }
    Ok(y)
}
