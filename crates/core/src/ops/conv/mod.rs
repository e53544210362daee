//! Convolution and transposed convolution. One and two dimensions are computed as three, with leading extents of 1.
//!
//! A convolution is linear in its input and in its weight. Three maps are therefore enough for gradients of every order: the
//! convolution, its gradient with respect to the input (also the transposed convolution), and its gradient with respect to the
//! weight. The gradients of each are the other two (`maps.rs`).

pub(super) mod columns;
mod deformable;
mod exact;
mod geometry;
mod maps;
mod phases;
mod products;
mod unfold;

pub use self::geometry::Geometry;
pub use self::maps::{ConvForward, ConvInput, ConvInputInputs, ConvInputs, ConvWeight, ConvWeightInputs, Convolution};
pub use self::unfold::Unfold;

use self::geometry::extents;
pub(in crate::ops) use self::maps::{Maps, Names};
use crate::check::{check_float, check_same};
use crate::ops::image::window::{Last, Window, Windows};
use crate::ops::with_shapes;
use crate::{Dims, Error, Result, Shape, Tensor, autocast, no_autocast};
use std::array;

/// Zeros around the input of a convolution over `N` dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding<const N: usize> {
    /// No zeros.
    Valid,
    /// The output has the extents of the input. An odd zero is at the end. For a stride of 1.
    Same,
    /// The same number of zeros at both ends of a dimension.
    Each([usize; N]),
    /// Numbers of zeros before the first and after the last element of a dimension.
    Ends([[usize; 2]; N]),
}

/// A convolution over the last `N` dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv<const N: usize> {
    /// Distance between adjacent windows.
    pub stride: [usize; N],
    /// Zeros around the input.
    pub padding: Padding<N>,
    /// Distance between adjacent elements of a window.
    pub dilation: [usize; N],
    /// Groups of channels. The outputs of a group depend on its own inputs only.
    pub groups: usize,
}

impl<const N: usize> Default for Conv<N> {
    fn default() -> Conv<N> {
        Conv { stride: [1; N], padding: Padding::Valid, dilation: [1; N], groups: 1 }
    }
}

impl<const N: usize> Conv<N> {
    /// The numbers of zeros before the first and after the last element of each dimension, for a weight of `N + 2` dimensions.
    /// Errors of `op`: `Attr` as for a convolution; `Shape` for another weight.
    pub fn ends(&self, op: &'static str, weight: &Tensor) -> Result<[[usize; 2]; N]> {
        check_weight::<N>(op, weight)?;
        let window = self.padding.window(op, extents(weight), self.stride, self.dilation)?;
        Ok(array::from_fn(|d| [window.low[d], window.high[d]]))
    }
}

/// A transposed convolution over the last `N` dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTranspose<const N: usize> {
    /// Distance between adjacent windows, in the output.
    pub stride: [usize; N],
    /// Elements removed from both ends of the output.
    pub padding: [usize; N],
    /// Elements added to the end of the output; less than the stride or the dilation.
    pub output_padding: [usize; N],
    /// Distance between adjacent elements of a window.
    pub dilation: [usize; N],
    /// Groups of channels. The outputs of a group depend on its own inputs only.
    pub groups: usize,
}

impl<const N: usize> Default for ConvTranspose<N> {
    fn default() -> ConvTranspose<N> {
        ConvTranspose { stride: [1; N], padding: [0; N], output_padding: [0; N], dilation: [1; N], groups: 1 }
    }
}

macro_rules! convolutions {
    ($($n:literal $conv:ident $transpose:ident $extents:literal $names:expr, $transposed:expr;)*) => {
        impl Tensor {$(
            #[doc = concat!("The convolution, without a flip, of `[N, C, ", $extents, "]` or `[C, ", $extents, "]` with a weight")]
            #[doc = concat!("`[O, C / groups, k..]`, plus a bias `[O]`: `[N, O, ..]`, where an extent `L` becomes")]
            /// `floor((L + padding - dilation (k - 1) - 1) / stride) + 1`. Float dtypes; all operands have the same. Elements of the
            /// padding add nothing, not even with an infinite weight. Where the channels of the input or of the weight are last in
            /// memory ([`to_channels_last`](Tensor::to_channels_last)), those of the output are, and gradients have the order of their
            /// tensors.
            ///
            /// Errors: `Dtype`; `Device`; `Attr` for a stride, dilation, kernel or number of groups of 0, for sizes that exceed
            /// the kernels' 32-bit indices, and for [`Padding::Same`] with a stride other than 1; `Shape` for ranks, channels or
            /// a bias that do not fit each other, and for a window that does not fit.
            pub fn $conv(&self, weight: &Tensor, bias: Option<&Tensor>, conv: &Conv<$n>) -> Result<Tensor> {
                convolution($names, self, weight, bias, &conv)
            }

            #[doc = concat!("The transposed convolution of `[N, C, ", $extents, "]` or `[C, ", $extents, "]` with a weight")]
            #[doc = concat!("`[C, O / groups, k..]`, plus a bias `[O]`: `[N, O, ..]`, where an extent `L` becomes")]
            /// `(L - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1`. It is the gradient of a convolution
            /// with respect to its input. Float dtypes; all operands have the same.
            ///
            /// Errors: `Dtype`; `Device`; `Attr` for a stride, dilation, kernel or number of groups of 0, for sizes that exceed
            /// the kernels' 32-bit indices, and for an output padding that is neither less than the stride nor less than the
            /// dilation; `Shape` for ranks, channels or a bias that do not fit each other, and for an empty output.
            pub fn $transpose(&self, weight: &Tensor, bias: Option<&Tensor>, conv: &ConvTranspose<$n>) -> Result<Tensor> {
                transposed($transposed, self, weight, bias, &conv)
            }
        )*}
    };
}

macro_rules! names {
    ($name:literal) => {
        Names { conv: $name, input: concat!($name, "_backward_input"), weight: concat!($name, "_backward_weight") }
    };
    (transposed $name:literal) => {
        Names { conv: concat!($name, "_backward_input"), input: $name, weight: concat!($name, "_backward_weight") }
    };
}

convolutions! {
    1 conv1d conv_transpose1d "L" names!("conv1d"), names!(transposed "conv_transpose1d");
    2 conv2d conv_transpose2d "H, W" names!("conv2d"), names!(transposed "conv_transpose2d");
    3 conv3d conv_transpose3d "D, H, W" names!("conv3d"), names!(transposed "conv_transpose3d");
}

/// A batch, and whether x was a single sample without a batch dimension.
pub(crate) fn batch<const N: usize>(op: &'static str, x: &Tensor) -> Result<(Tensor, bool)> {
    match x.rank() {
        rank if rank == N + 1 => Ok((x.unsqueeze(0)?, true)),
        rank if rank == N + 2 => Ok((x.clone(), false)),
        rank => {
            let message = format!("the input {} has {rank} dimensions, expected {} or {}", x.shape(), N + 1, N + 2);
            Err(Error::shape(op, message))
        }
    }
}

/// Checks that a weight is `[outer, inner / groups, k..]`, and that a bias has one number per output.
fn check_channels(
    op: &'static str,
    [x, weight]: [&Tensor; 2],
    bias: Option<&Tensor>,
    [outer, inner, outputs]: [usize; 3],
    groups: usize,
) -> Result<()> {
    if groups == 0 {
        return Err(Error::attr(op, "groups is 0, expected 1 or more"));
    }
    let fits = outer.is_multiple_of(groups) && inner.is_multiple_of(groups);
    let fits = fits && weight.dims()[..2] == [outer, inner / groups];
    if !fits {
        let message =
            format!("the weight {} does not fit the input {} in groups of {groups}", weight.shape(), x.shape());
        return Err(Error::shape(op, message));
    }
    match bias {
        Some(bias) if bias.dims() != [outputs] => {
            Err(Error::shape(op, format!("the bias is {}, expected [{outputs}]", bias.shape())))
        }
        _ => Ok(()),
    }
}

fn check_operands<const N: usize>(op: &'static str, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<()> {
    let operands: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
    check_float(op, x)?;
    check_same(op, &operands)?;
    check_weight::<N>(op, weight)
}

fn check_weight<const N: usize>(op: &'static str, weight: &Tensor) -> Result<()> {
    if weight.rank() != N + 2 {
        let message = format!("the weight {} has {} dimensions, expected {}", weight.shape(), weight.rank(), N + 2);
        return Err(Error::shape(op, message));
    }
    Ok(())
}

/// Checks operands and runs `f` on a batch of them, within the dtype of `autocast`.
fn on_batch<const N: usize>(
    op: &'static str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    f: impl FnOnce(&Tensor, &Tensor, Option<&Tensor>) -> Result<Tensor>,
) -> Result<Tensor> {
    let run = |x: &Tensor, weight: &Tensor, bias: Option<&Tensor>| {
        with_shapes(op, &[Some(x), Some(weight), bias], || {
            check_operands::<N>(op, x, weight, bias)?;
            let (x, is_sample) = batch::<N>(op, x)?;
            let y = f(&x, weight, bias)?;
            if is_sample { y.squeeze(0) } else { Ok(y) }
        })
    };
    match autocast::low([x, weight], bias)? {
        Some(([x, weight], bias)) => no_autocast(|| run(&x, &weight, bias.as_ref())),
        None => run(x, weight, bias),
    }
}

fn convolution<const N: usize>(
    names: Names,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    conv: &Conv<N>,
) -> Result<Tensor> {
    let op = names.conv;
    on_batch::<N>(op, x, weight, bias, |x, weight, bias| {
        let (channels, outputs) = (x.dims()[1], weight.dims()[0]);
        check_channels(op, [x, weight], bias, [outputs, channels, outputs], conv.groups)?;
        let are_last = [x.is_channels_last(), weight.is_channels_last()];
        let maps = maps(names, x.shape(), weight, are_last, conv)?;
        let y = maps.conv(x, weight, bias)?;
        maps.report::<N>(op, [x, weight], bias, &y, None);
        Ok(y)
    })
}

/// The maps of a convolution of inputs `[N, C, ..]` of this shape, whose channels fit the weight. `are_last`: whether input and
/// weight have their channels last in memory.
pub(in crate::ops) fn maps<const N: usize>(
    names: Names,
    x: &Shape,
    weight: &Tensor,
    [x_last, w_last]: [bool; 2],
    conv: &Conv<N>,
) -> Result<Maps> {
    let Conv { stride, dilation, groups, .. } = *conv;
    let window = conv.padding.window(names.conv, extents(weight), stride, dilation)?;
    let windows = Windows::new(names.conv, x, &window, Last::Whole)?;
    let outputs = weight.dims()[0];
    let output = with_extents::<N>(names.conv, x, outputs, windows.output)?;
    let (batch, channels, outputs) = (x[0], x[1] / groups, outputs / groups);
    let geometry = Geometry { batch, groups, channels, outputs, windows };
    let are_last = [x_last, w_last, x_last || w_last];
    Ok(Maps { names, geometry, input: x.clone(), weight: weight.shape().clone(), output, are_last })
}

fn transposed<const N: usize>(
    names: Names,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    conv: &ConvTranspose<N>,
) -> Result<Tensor> {
    let op = names.input;
    on_batch::<N>(op, x, weight, bias, |x, weight, bias| {
        let (inputs, per_group) = (x.dims()[1], weight.dims()[1]);
        let ConvTranspose { stride, padding, output_padding, dilation, groups } = *conv;
        let channels = per_group.saturating_mul(groups);
        check_channels(op, [x, weight], bias, [inputs, channels, channels], groups)?;
        let window = Window { kernel: extents(weight), stride, low: padding, high: padding, dilation };
        let windows = Windows::transposed(op, x.shape(), &window, output_padding)?;
        let input = with_extents::<N>(op, x.shape(), channels, windows.input)?;
        let geometry = Geometry { batch: x.dims()[0], groups, channels: per_group, outputs: inputs / groups, windows };
        let [x_last, w_last] = [x.is_channels_last(), weight.is_channels_last()];
        let are_last = [x_last || w_last, w_last, x_last];
        let maps = Maps { names, geometry, input, weight: weight.shape().clone(), output: x.shape().clone(), are_last };
        let y = maps.input(x, weight, bias)?;
        maps.report(op, [x, weight], bias, &y, Some(output_padding));
        Ok(y)
    })
}

/// `[n, channels, ..]` for the samples of an input `x` and the last `N` of `extents`. Errors: `Shape` if the number of elements overflows.
fn with_extents<const N: usize>(op: &'static str, x: &Shape, channels: usize, extents: [usize; 3]) -> Result<Shape> {
    let dims = [x[0], channels].into_iter().chain(extents[3 - N..].iter().copied());
    let shape = Shape::from(dims.collect::<Dims>());
    // Windows are counted where there are no samples, too.
    Shape::from(extents).check(op)?;
    shape.check(op)?;
    Ok(shape)
}
