//! Convolutions as matrix products: the elements of all windows are copied to columns (im2col). These are the composites of the
//! convolution kernels.

use super::exact;
use super::geometry::Geometry;
use super::phases::phases;
use crate::backend::{Kernel, Reduce};
use crate::ops::image::window::Windows;
use crate::tensor::{Attributes, run};
use crate::{DType, Layout, Result, Shape, Tensor};

/// Bytes of columns that are in memory at once.
const PART: usize = 8 << 20;

/// The number of windows of a sample from which the product of each sample is its own. Products of fewer columns are slow.
const LONG: usize = 256;

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

/// Columns `[G, C k, n Q]` of all samples together.
fn joint_columns(op: &'static str, geometry: &Geometry, x: &Tensor) -> Result<Tensor> {
    let Geometry { groups, channels, windows: ref all, .. } = *geometry;
    let shape = (groups, channels * all.window(), x.dims()[0] * all.outputs());
    windows(op, geometry, x)?.permute(&[1, 2, 3, 4, 0, 5, 6, 7])?.reshape(shape)
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
pub(in crate::ops) fn is_finite(x: &Tensor) -> Result<bool> {
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
    let Geometry { groups, channels, outputs, ref windows, .. } = *geometry;
    let x = volumes(x, windows.input)?;
    if geometry.has_padding() && !is_finite(w)? {
        return exact::conv(op, geometry, &x, w, bias)?.reshape(shape);
    }
    let rows = w.detach().reshape((groups, outputs, channels * windows.window()))?;
    convolve(op, geometry, &x, &rows, bias, &volumes(&y, windows.output)?)?;
    Ok(y)
}

/// Writes the convolution of `x [N, C, D, H, W]` by `rows [G, O / G, C k / G]` to a view `[N, O, D, H, W]`.
fn convolve(
    op: &'static str,
    geometry: &Geometry,
    x: &Tensor,
    rows: &Tensor,
    bias: Option<&Tensor>,
    y: &Tensor,
) -> Result<()> {
    let Geometry { groups, outputs, ref windows, .. } = *geometry;
    let bias = bias.map(|bias| bias.detach().reshape((groups, outputs, 1))).transpose()?;
    let is_each = groups == 1 && y.is_contiguous() && windows.outputs() >= LONG;
    for (first, n) in parts(geometry, x.dtype(), usize::MAX) {
        let (x, y) = (x.narrow(0, first, n)?, y.with_layout(y.layout().narrow(0, first, n, 1)));
        if is_each {
            let to = Shape::from([n, outputs, windows.outputs()]);
            let to = y.with_layout(Layout::contiguous(to).shift(y.layout().offset()));
            let rows = rows.with_layout(rows.layout().expand(&Shape::from([n, outputs, rows.dims()[2]])));
            multiply(op, &rows, &columns(op, geometry, &x)?, bias.as_ref(), &to)?;
        } else {
            let shape = Shape::from([groups, outputs, n * windows.outputs()]);
            let joint = Tensor::allocate(op, &shape, y.dtype(), y.device())?;
            multiply(op, rows, &joint_columns(op, geometry, &x)?, bias.as_ref(), &joint)?;
            let [depth, height, width] = windows.output;
            let joint = joint.reshape((groups * outputs, n, depth, height, width))?;
            copy(op, &joint.with_layout(joint.layout().transpose(0, 1)), &y)?;
        }
    }
    Ok(())
}

/// [`product`] plus a bias `[G, O, 1]`.
fn multiply(op: &'static str, a: &Tensor, b: &Tensor, bias: Option<&Tensor>, y: &Tensor) -> Result<()> {
    let bias = bias.map(|bias| bias.with_layout(bias.layout().expand(y.shape())));
    product(op, a, b, bias.as_ref(), y)
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
    if shape.numel() == 0 {
        return Tensor::allocate(op, shape, g.dtype(), g.device());
    }
    let Some((phases, is_all)) = phases(geometry) else {
        return conv_input_by_sums(op, geometry, g, w, bias, shape);
    };
    if phases.iter().any(|phase| phase.geometry.has_padding()) && !is_finite(w)? {
        return conv_input_by_sums(op, geometry, g, w, bias, shape);
    }
    let dx = if is_all { Tensor::allocate(op, shape, g.dtype(), g.device())? } else { biases(op, g, bias, shape)? };
    let (dx_volumes, g) = (volumes(&dx, geometry.windows.input)?, volumes(g, geometry.windows.output)?);
    for phase in phases {
        let rows = phase.weights(op, w, geometry.windows.kernel)?;
        convolve(op, &phase.geometry, &phase.outputs(&g), &rows, bias, &phase.elements(&dx_volumes))?;
    }
    Ok(dx)
}

/// `[N, C, ..]` with the bias of each channel, or zeros.
fn biases(op: &'static str, g: &Tensor, bias: Option<&Tensor>, shape: &Shape) -> Result<Tensor> {
    let y = Tensor::zeros(shape, g.dtype(), g.device()).map_err(|e| e.of(op))?;
    let Some(bias) = bias else { return Ok(y) };
    let flat = y.reshape((shape[0], shape[1], shape.numel() / (shape[0] * shape[1])))?;
    let bias = bias.detach().reshape((bias.numel(), 1))?;
    copy(op, &bias.with_layout(bias.layout().expand(flat.shape())), &flat)?;
    Ok(y)
}

/// The gradient with respect to the input as sums of the columns of all windows, for weights that are not finite and large strides.
fn conv_input_by_sums(
    op: &'static str,
    geometry: &Geometry,
    g: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    shape: &Shape,
) -> Result<Tensor> {
    let (dtype, acc) = (g.dtype(), g.dtype().acc());
    let dx = Tensor::allocate(op, shape, dtype, g.device())?;
    let Geometry { batch, groups, channels, outputs, .. } = *geometry;
    let (all, wide) = (volumes(&dx, geometry.windows.input)?, w.detach().cast(acc)?);
    let g = g.detach().reshape((batch * groups, outputs, geometry.windows.outputs()))?;
    let bias = bias.map(|bias| bias.detach().cast(acc)?.reshape((groups * channels, 1, 1, 1))).transpose()?;
    let most = if groups == 1 { usize::MAX } else { 1 };
    for (first, n) in parts(geometry, acc, most) {
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
    let g = g.detach().reshape((batch, groups, outputs, windows_of))?;
    // `[G, C k / G, O / G]`: of both factors the gradient of the output, the smaller one, is turned.
    let mut sum: Option<Tensor> = None;
    for (first, n) in parts(geometry, acc, usize::MAX) {
        let part = joint_columns(op, geometry, &x.narrow(0, first, n)?.cast(acc)?)?;
        let g = g.narrow(0, first, n)?.cast(acc)?.permute(&[1, 0, 3, 2])?.reshape((groups, n * windows_of, outputs))?;
        let to = Tensor::allocate(op, &Shape::from([groups, size, outputs]), acc, g.device())?;
        product(op, &part, &g, sum.as_ref(), &to)?;
        sum = Some(to);
    }
    match sum {
        Some(sum) if geometry.has_padding() && !is_finite(&sum)? => {
            exact::conv_weight(op, geometry, &g, &x)?.cast(dtype)?.reshape(shape)
        }
        Some(sum) => sum.t()?.cast(dtype)?.reshape(shape),
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
