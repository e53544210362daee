//! Convolutions as matrix products: the elements of all windows are copied to columns (im2col). These are the composites of the
//! convolution kernels.

use super::exact;
use super::geometry::Geometry;
use crate::backend::{Kernel, Reduce};
use crate::ops::window::Windows;
use crate::tensor::{Attributes, run};
use crate::{DType, Result, Shape, Tensor};

/// Bytes of columns that are in memory at once.
const PART: usize = 16 << 20;

/// `[N, C, ..]` as `[N, C, D, H, W]`, outside of the tape.
fn volumes(x: &Tensor, extents: [usize; 3]) -> Result<Tensor> {
    let [depth, height, width] = extents;
    x.detach().reshape((x.dims()[0], x.dims()[1], depth, height, width))
}

/// Ranges of samples whose columns fit into `PART` bytes.
fn parts(geometry: &Geometry, dtype: DType, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let columns =
        geometry.groups * geometry.channels * geometry.windows.window() * geometry.windows.outputs() * dtype.size();
    let (batch, n) = (geometry.batch, (PART / columns.max(1)).clamp(1, most));
    (0..batch).step_by(n).map(move |first| (first, n.min(batch - first)))
}

/// The largest number of samples of a product, whose batch dimension covers samples and groups.
fn most(geometry: &Geometry) -> usize {
    if geometry.groups == 1 { usize::MAX } else { 1 }
}

fn copy(op: &'static str, from: &Tensor, to: &Tensor) -> Result<()> {
    run(op, Kernel::Copy, &[from], &[to], Attributes::default())
}

/// `x [n, C, D, H, W]` with its padding of zeros, without elements that no window reaches.
fn padded(op: &'static str, geometry: &Geometry, x: &Tensor) -> Result<Tensor> {
    if !geometry.has_padding() {
        return Ok(x.clone());
    }
    let reach = [0, 1, 2].map(|d| geometry.reach(d));
    let shape = (x.dims()[0], x.dims()[1], reach[0], reach[1], reach[2]);
    let to = Tensor::zeros(shape, x.dtype(), x.device()).map_err(|e| e.of(op))?;
    let (mut source, mut target) = (x.layout().clone(), to.layout().clone());
    for (d, &reach) in reach.iter().enumerate() {
        let padding = geometry.windows.low[d].min(reach);
        let length = geometry.windows.input[d].min(reach - padding);
        source = source.narrow(d + 2, 0, length, 1);
        target = target.narrow(d + 2, padding, length, 1);
    }
    copy(op, &x.with_layout(source), &to.with_layout(target))?;
    Ok(to)
}

/// The elements of all windows of `x [n, C, D, H, W]`, a view `[n, C, kernel, output]`.
fn windows(op: &'static str, geometry: &Geometry, x: &Tensor) -> Result<Tensor> {
    let x = padded(op, geometry, x)?;
    let mut layout = x.layout().clone();
    for d in (0..3).rev() {
        let (k, q) = (geometry.windows.kernel[d], geometry.windows.output[d]);
        layout = layout.split(d + 2, [(k, geometry.windows.dilation[d]), (q, geometry.windows.stride[d])]);
    }
    Ok(x.with_layout(layout.permute(&[0, 1, 2, 4, 6, 3, 5, 7])))
}

/// Columns `[n G, C k, Q]` of samples.
fn columns(op: &'static str, geometry: &Geometry, x: &Tensor) -> Result<Tensor> {
    let Geometry { groups, channels, .. } = *geometry;
    let shape = (x.dims()[0] * groups, channels * geometry.windows.window(), geometry.windows.outputs());
    if geometry.is_pointwise() {
        return x.reshape(shape);
    }
    windows(op, geometry, x)?.contiguous()?.reshape(shape)
}

/// `[O, C / G, k..]` as `[n G, O / G, C k / G]`.
fn rows(geometry: &Geometry, w: &Tensor, n: usize) -> Result<Tensor> {
    let Geometry { groups, channels, outputs, .. } = *geometry;
    let w = w.detach().reshape((groups, outputs, channels * geometry.windows.window()))?;
    let shape = Shape::from([n * groups, outputs, channels * geometry.windows.window()]);
    Ok(w.with_layout(w.layout().expand(&shape)))
}

/// `y = a @ b`, plus `c` if there is one.
fn product(op: &'static str, a: &Tensor, b: &Tensor, c: Option<&Tensor>, y: &Tensor) -> Result<()> {
    let inputs: Vec<&Tensor> = [a, b].into_iter().chain(c).collect();
    run(op, Kernel::Matmul, &inputs, &[y], Attributes::floats(&[1.0, 1.0]))
}

/// False if an element is infinite or NaN, or the sum overflows. A product of such a number with the zeros of a padding is no zero.
fn is_finite(x: &Tensor) -> Result<bool> {
    let sum = x.detach().sum_as(.., x.dtype().acc())?.cast(DType::F64)?.read()?;
    Ok(sum.first_chunk().is_some_and(|&bytes| f64::from_ne_bytes(bytes).is_finite()))
}

/// The convolution.
pub(super) fn conv(
    op: &'static str,
    geometry: &Geometry,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    shape: &Shape,
) -> Result<Tensor> {
    let y = Tensor::allocate(op, shape, x.dtype(), x.device())?;
    let Geometry { groups, outputs, .. } = *geometry;
    let x = volumes(x, geometry.windows.input)?;
    if geometry.has_padding() && !is_finite(w)? {
        return exact::conv(op, geometry, &x, w, bias)?.reshape(shape);
    }
    let all = y.reshape((geometry.batch * groups, outputs, geometry.windows.outputs()))?;
    for (first, n) in parts(geometry, x.dtype(), most(geometry)) {
        let columns = columns(op, geometry, &x.narrow(0, first, n)?)?;
        let part = all.with_layout(all.layout().narrow(0, first * groups, n * groups, 1));
        let bias = bias.map(|bias| bias.detach().reshape((groups, outputs, 1))).transpose()?;
        let bias = bias.map(|bias| bias.with_layout(bias.layout().expand(part.shape())));
        product(op, &rows(geometry, w, n)?, &columns, bias.as_ref(), &part)?;
    }
    Ok(y)
}

/// The gradient of a convolution with respect to its input, which is also the transposed convolution.
pub(super) fn conv_input(
    op: &'static str,
    geometry: &Geometry,
    g: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    shape: &Shape,
) -> Result<Tensor> {
    let (dtype, acc) = (g.dtype(), g.dtype().acc());
    let dx = Tensor::allocate(op, shape, dtype, g.device())?;
    if dx.numel() == 0 {
        return Ok(dx);
    }
    let Geometry { batch, groups, channels, outputs, .. } = *geometry;
    let (all, wide) = (volumes(&dx, geometry.windows.input)?, w.detach().cast(acc)?);
    let g = g.detach().reshape((batch * groups, outputs, geometry.windows.outputs()))?;
    let bias = bias.map(|bias| bias.detach().cast(acc)?.reshape((groups * channels, 1, 1, 1))).transpose()?;
    for (first, n) in parts(geometry, acc, most(geometry)) {
        let g = g.narrow(0, first * groups, n * groups)?.cast(acc)?;
        let shape = Shape::from([n * groups, channels * geometry.windows.window(), geometry.windows.outputs()]);
        let columns = Tensor::allocate(op, &shape, acc, g.device())?;
        product(op, &rows(geometry, &wide, n)?.t()?, &g, None, &columns)?;
        let mut part = sums(op, geometry, &columns, n)?;
        if let Some(bias) = &bias {
            part = part.add(bias)?;
        }
        copy(op, &part.cast(dtype)?, &all.with_layout(all.layout().narrow(0, first, n, 1)))?;
    }
    Ok(dx)
}

/// Adds columns `[n G, C k, Q]` to `[n, C, D, H, W]`: each element gets the sum of its copies (col2im).
fn sums(op: &'static str, geometry: &Geometry, columns: &Tensor, n: usize) -> Result<Tensor> {
    let Windows { input, output, kernel, stride, low: padding, dilation, .. } = geometry.windows;
    let c = geometry.groups * geometry.channels;
    let shape = Shape::from([n, c, input[0], input[1], input[2]]);
    if geometry.is_pointwise() {
        return columns.reshape(shape);
    }
    // Windows are `stride` apart. For element l of the volume, the term of element i of a window is at l + padding - i dilation,
    // and may be a zero.
    let before = [0, 1, 2].map(|d| (dilation[d] * (kernel[d] - 1)).saturating_sub(padding[d]));
    let extents = [0, 1, 2].map(|d| {
        let windows = output[d].saturating_sub(1) * stride[d] + 1;
        before[d] + windows.max(input[d] + padding[d])
    });
    let dims = [n, c].into_iter().chain(kernel).chain(extents);
    let apart = Tensor::zeros(Shape::from(dims.collect::<crate::Dims>()), columns.dtype(), columns.device());
    let apart = apart.map_err(|e| e.of(op))?;
    let dims = [n, c].into_iter().chain(kernel).chain(output);
    let columns = columns.reshape(Shape::from(dims.collect::<crate::Dims>()))?;
    let target = (0..3).fold(apart.layout().clone(), |to, d| to.narrow(d + 5, before[d], output[d], stride[d]));
    copy(op, &columns, &apart.with_layout(target))?;
    let layout = apart.layout().gathered(before, padding, dilation, input);
    let y = Tensor::allocate(op, &shape, columns.dtype(), columns.device())?;
    run(op, Kernel::Reduce(Reduce::Sum), &[&apart.with_layout(layout)], &[&y], Attributes::ints(&[3]))?;
    Ok(y)
}

/// The gradient of a convolution with respect to its weight.
pub(super) fn conv_weight(
    op: &'static str,
    geometry: &Geometry,
    g: &Tensor,
    x: &Tensor,
    shape: &Shape,
) -> Result<Tensor> {
    let (dtype, acc) = (g.dtype(), g.dtype().acc());
    let Geometry { batch, groups, channels, outputs, .. } = *geometry;
    let (size, windows_of) = (channels * geometry.windows.window(), geometry.windows.outputs());
    let x = volumes(x, geometry.windows.input)?;
    let g = g.detach().reshape((batch, groups * outputs, windows_of))?;
    let mut sum: Option<Tensor> = None;
    for (first, n) in parts(geometry, acc, usize::MAX) {
        let part = windows(op, geometry, &x.narrow(0, first, n)?.cast(acc)?)?;
        let part = part.permute(&[1, 2, 3, 4, 0, 5, 6, 7])?.reshape((groups, size, n * windows_of))?;
        let g = g.narrow(0, first, n)?.cast(acc)?.transpose(0, 1)?.reshape((groups, outputs, n * windows_of))?;
        let to = Tensor::allocate(op, &Shape::from([groups, outputs, size]), acc, g.device())?;
        product(op, &g, &part.t()?, sum.as_ref(), &to)?;
        sum = Some(to);
    }
    match sum {
        Some(sum) if geometry.has_padding() && !is_finite(&sum)? => {
            exact::conv_weight(op, geometry, &g, &x)?.cast(dtype)?.reshape(shape)
        }
        Some(sum) => sum.cast(dtype)?.reshape(shape),
        None => Tensor::zeros(shape, dtype, g.device()),
    }
}

/// The elements of the windows of `x [N, C, ..]` as columns `[N, C k, Q]`.
pub(crate) fn unfold(op: &'static str, geometry: &Geometry, x: &Tensor) -> Result<Tensor> {
    own(columns(op, geometry, &volumes(x, geometry.windows.input)?)?, x)
}

/// Adds columns `[N, C k, Q]` to `[N, C, D, H, W]`: each element gets the sum of its copies.
pub(crate) fn fold(op: &'static str, geometry: &Geometry, columns: &Tensor) -> Result<Tensor> {
    let acc = columns.dtype().acc();
    own(sums(op, geometry, &columns.detach().cast(acc)?, geometry.batch)?.cast(columns.dtype())?, columns)
}

/// A result that does not share memory with the input.
fn own(y: Tensor, x: &Tensor) -> Result<Tensor> {
    if y.shares_memory(x) { y.copy() } else { Ok(y) }
}
