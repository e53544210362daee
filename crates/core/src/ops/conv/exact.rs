//! Convolutions without products of the padding: one matrix product for each element of the kernel, over the windows in which this
//! element is inside of the input. They are for operands that are not finite, whose products with zeros are no zeros.

use super::geometry::Geometry;
use crate::backend::Kernel;
use crate::tensor::{Attributes, run};
use crate::{Layout, Result, Shape, Tensor};

/// An element of the kernel, and the windows in which it is inside of the input.
struct Place {
    /// Its number in the kernel.
    element: usize,
    /// The first of the windows along each dimension.
    first: [usize; 3],
    /// The number of windows along each dimension.
    count: [usize; 3],
    /// The element's position in the first of the windows.
    at: [usize; 3],
}

/// The elements of the kernel that are inside of the input in some window.
fn places(geometry: &Geometry) -> impl Iterator<Item = Place> {
    let windows = geometry.windows;
    let along = move |d: usize, i: usize| {
        let (low, step) = (windows.low[d], i * windows.dilation[d]);
        let first = low.saturating_sub(step).div_ceil(windows.stride[d]);
        let end = (windows.input[d] + low).saturating_sub(step).div_ceil(windows.stride[d]).min(windows.output[d]);
        (first, end.saturating_sub(first), (first * windows.stride[d] + step).saturating_sub(low))
    };
    let [_, height, width] = windows.kernel;
    let place = move |element: usize| {
        let of = [element / width / height, element / width % height, element % width];
        let found = [0, 1, 2].map(|d| along(d, of[d]));
        Place { element, first: found.map(|f| f.0), count: found.map(|f| f.1), at: found.map(|f| f.2) }
    };
    (0..windows.window()).map(place).filter(|place| place.count.iter().all(|&n| n > 0))
}

impl Place {
    /// The elements of `[n, C, D, H, W]` in the windows.
    fn of_input(&self, x: &Tensor, stride: [usize; 3]) -> Tensor {
        x.with_layout(boxed(x, self.at, self.count, stride))
    }

    /// The windows among the outputs `[n, C, D, H, W]`.
    fn of_output(&self, y: &Tensor) -> Tensor {
        y.with_layout(boxed(y, self.first, self.count, [1; 3]))
    }
}

/// Elements from `first` on of the last three dimensions.
fn boxed(x: &Tensor, first: [usize; 3], count: [usize; 3], step: [usize; 3]) -> Layout {
    (0..3).fold(x.layout().clone(), |layout, d| layout.narrow(d + 2, first[d], count[d], step[d]))
}

/// Adds `part` to a view.
fn add_to(op: &'static str, view: &Tensor, part: &Tensor) -> Result<()> {
    let sum = view.add(&part.reshape(view.shape())?)?;
    run(op, Kernel::Copy, &[&sum], &[view], Attributes::default())
}

/// The weights of an element, `[G, O / G, C / G]`, in the accumulation dtype.
fn weights(geometry: &Geometry, w: &Tensor, element: usize) -> Result<Tensor> {
    let Geometry { groups, channels, outputs, ref windows, .. } = *geometry;
    let all = w.detach().reshape((groups, outputs, channels, windows.window()))?;
    all.select(3, element as isize)?.cast(w.dtype().acc())
}

/// The convolution of `[N, C, D, H, W]`, in the dtype of x.
pub(super) fn conv(
    op: &'static str,
    geometry: &Geometry,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let Geometry { batch, groups, channels, outputs, ref windows } = *geometry;
    let [depth, height, width] = windows.output;
    let shape = (batch, groups * outputs, depth, height, width);
    let mut y = Tensor::zeros(shape, x.dtype().acc(), x.device())?;
    for place in places(geometry) {
        let n = place.count.iter().product::<usize>();
        let x = place.of_input(x, windows.stride).cast(y.dtype())?.reshape((batch, groups, channels, n))?;
        let part = weights(geometry, w, place.element)?.unsqueeze(0)?.matmul(&x)?;
        add_to(op, &place.of_output(&y), &part)?;
    }
    if let Some(bias) = bias {
        y = y.add(&bias.detach().cast(y.dtype())?.reshape((groups * outputs, 1, 1, 1))?)?;
    }
    y.cast(x.dtype())
}

/// The gradient of the weight, `[G, O / G, C / G k]`, from `[N, O, Q]` and `[N, C, D, H, W]`, in the accumulation dtype.
pub(super) fn conv_weight(op: &'static str, geometry: &Geometry, g: &Tensor, x: &Tensor) -> Result<Tensor> {
    let Geometry { batch, groups, channels, outputs, ref windows } = *geometry;
    let [depth, height, width] = windows.output;
    let acc = x.dtype().acc();
    let g = g.reshape((batch, groups * outputs, depth, height, width))?;
    let dw = Tensor::zeros((groups, outputs, channels, windows.window()), acc, x.device())?;
    for place in places(geometry) {
        let n = place.count.iter().product::<usize>();
        // Samples come after channels: they are summed with the windows.
        let of_groups = |t: Tensor, channels: usize| {
            let t = t.cast(acc)?.reshape((batch, groups, channels, n))?.permute(&[1, 2, 0, 3])?;
            t.reshape((groups, channels, batch * n))
        };
        let x = of_groups(place.of_input(x, windows.stride), channels)?;
        let part = of_groups(place.of_output(&g), outputs)?.matmul(&x.t()?)?;
        let to = dw.with_layout(dw.layout().select(3, place.element));
        run(op, Kernel::Copy, &[&part], &[&to], Attributes::default())?;
    }
    dw.reshape(Shape::from([groups, outputs, channels * windows.window()]))
}
