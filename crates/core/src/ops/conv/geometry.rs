//! Which elements of the input a window has: extents, strides and padding in three dimensions.

use super::{ConvTranspose, Padding};
use crate::{Error, Result, Tensor};

/// What kernels count in 32 bits with a sign: strides, padding, what a window spans, and its elements.
const MOST: usize = i32::MAX as usize;

/// A convolution in three dimensions: window `q` of `output` has the elements `q stride - padding + i dilation` for `i` of
/// `kernel`; outside of `input` there is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Samples.
    pub batch: usize,
    /// Parts of the channels.
    pub groups: usize,
    /// Input channels of a group.
    pub channels: usize,
    /// Output channels of a group.
    pub outputs: usize,
    /// Extents of the input: depth, height, width.
    pub input: [usize; 3],
    /// Windows along each.
    pub output: [usize; 3],
    /// Elements of a window along each.
    pub kernel: [usize; 3],
    /// From window to window.
    pub stride: [usize; 3],
    /// By how much the first window begins before the first element.
    pub padding: [usize; 3],
    /// From element to element of a window.
    pub dilation: [usize; 3],
}

impl Geometry {
    /// Elements of a window in one channel.
    pub fn window(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Windows of a channel.
    pub fn windows(&self) -> usize {
        self.output.iter().product()
    }

    /// Elements that the windows reach over along a dimension, with the padding before the first.
    pub(super) fn reach(&self, d: usize) -> usize {
        match self.output[d] {
            0 => 0,
            q => (q - 1) * self.stride[d] + self.dilation[d] * (self.kernel[d] - 1) + 1,
        }
    }

    /// True if windows are single elements of the input, in its order.
    pub(super) fn is_pointwise(&self) -> bool {
        self.window() == 1 && self.input == self.output && self.stride == [1; 3] && self.padding == [0; 3]
    }
}

/// Extents behind others.
pub(super) fn three<const N: usize>(of: [usize; N], other: usize) -> [usize; 3] {
    let mut all = [other; 3];
    all[3 - N..].copy_from_slice(&of);
    all
}

/// The last extents.
pub fn extents<const N: usize>(x: &Tensor) -> [usize; N] {
    let mut last = [0; N];
    last.copy_from_slice(&x.dims()[x.rank() - N..]);
    last
}

impl<const N: usize> Padding<N> {
    /// The zeros before and behind each dimension. Errors: `Attr`.
    pub(in crate::ops) fn ends(
        self,
        op: &'static str,
        kernel: [usize; N],
        stride: [usize; N],
        dilation: [usize; N],
    ) -> Result<[[usize; 2]; N]> {
        check_windows(op, kernel, stride, dilation)?;
        let ends = match self {
            Padding::Valid => [[0; 2]; N],
            Padding::Each(padding) => padding.map(|p| [p; 2]),
            Padding::Ends(ends) => ends,
            Padding::Same if stride != [1; N] => {
                let message = format!("padding that keeps the extents is for a stride of 1, which is {stride:?}");
                return Err(Error::attr(op, message));
            }
            Padding::Same => {
                let mut ends = [[0; 2]; N];
                for d in 0..N {
                    let all = dilation[d] * (kernel[d] - 1);
                    ends[d] = [all / 2, all.div_ceil(2)];
                }
                ends
            }
        };
        if ends.iter().flatten().any(|&p| p > MOST) {
            return Err(Error::attr(op, format!("padding is {ends:?}, expected at most {MOST}")));
        }
        Ok(ends)
    }
}

/// Errors unless windows can be made, and kernels can count their elements.
fn check_windows<const N: usize>(
    op: &'static str,
    kernel: [usize; N],
    stride: [usize; N],
    dilation: [usize; N],
) -> Result<()> {
    if [kernel, stride, dilation].iter().any(|of| of.contains(&0)) {
        let message = format!("kernel {kernel:?}, stride {stride:?} and dilation {dilation:?} must be at least 1");
        return Err(Error::attr(op, message));
    }
    let span = |d: usize| dilation[d].saturating_mul(kernel[d] - 1).saturating_add(1);
    let elements = kernel.iter().try_fold(1, |n: usize, &k| n.checked_mul(k));
    if (0..N).any(|d| span(d) > MOST || stride[d] > MOST || dilation[d] > MOST) || elements.is_none_or(|n| n > MOST) {
        let message = format!("kernel {kernel:?}, stride {stride:?} and dilation {dilation:?} go beyond {MOST}");
        return Err(Error::attr(op, message));
    }
    Ok(())
}

/// How many windows there are along each dimension. Errors: `Shape` if a window does not fit.
pub fn outputs<const N: usize>(
    op: &'static str,
    input: [usize; N],
    kernel: [usize; N],
    stride: [usize; N],
    ends: [[usize; 2]; N],
    dilation: [usize; N],
) -> Result<[usize; N]> {
    let mut output = [0; N];
    for d in 0..N {
        let all = input[d].saturating_add(ends[d][0] + ends[d][1]);
        let span = dilation[d] * (kernel[d] - 1) + 1;
        output[d] = match all.checked_sub(span) {
            Some(free) => free / stride[d] + 1,
            None => {
                let message = format!("a window {kernel:?} with dilation {dilation:?} does not fit into {input:?}");
                return Err(Error::shape(op, format!("{message} with padding {ends:?}")));
            }
        };
    }
    Ok(output)
}

/// The extents of a transposed convolution's output. Errors: `Attr`; `Shape` if there is none.
pub(super) fn transposed<const N: usize>(
    op: &'static str,
    input: [usize; N],
    kernel: [usize; N],
    conv: &ConvTranspose<N>,
) -> Result<[usize; N]> {
    let ConvTranspose { stride, padding, output_padding, dilation, .. } = *conv;
    check_windows(op, kernel, stride, dilation)?;
    if padding.iter().any(|&p| p > MOST) {
        return Err(Error::attr(op, format!("padding is {padding:?}, expected at most {MOST}")));
    }
    if (0..N).any(|d| output_padding[d] >= stride[d].max(dilation[d])) {
        let message = format!("output_padding is {output_padding:?}, expected less than stride {stride:?}");
        return Err(Error::attr(op, format!("{message} or dilation {dilation:?}")));
    }
    let mut output = [0; N];
    for d in 0..N {
        let extent = || {
            let steps = input[d].checked_sub(1)?.checked_mul(stride[d])?;
            let all = steps.checked_add(dilation[d] * (kernel[d] - 1) + output_padding[d] + 1)?;
            all.checked_sub(2 * padding[d]).filter(|&extent| extent > 0)
        };
        output[d] = extent().ok_or_else(|| {
            let message = format!("{input:?} with kernel {kernel:?}, stride {stride:?} and padding {padding:?}");
            Error::shape(op, format!("{message} has an output without elements, or more than can be counted"))
        })?;
    }
    Ok(output)
}
