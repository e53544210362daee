//! The geometry of a convolution: channels, groups and windows.

use super::Padding;
use crate::ops::image::window::{Window, Windows};
use crate::{Error, Result, Tensor};

/// A convolution from `[batch, groups channels, ..]` to `[batch, groups outputs, ..]` by a weight `[groups outputs, channels,
/// kernel]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Samples.
    pub batch: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Input channels of a group.
    pub channels: usize,
    /// Output channels of a group.
    pub outputs: usize,
    /// The windows over each channel of the input.
    pub windows: Windows,
}

/// The map of a convolution whose result is the input's gradient.
pub(super) const INPUT: usize = 0;
/// The map whose result is the weight's gradient.
pub(super) const WEIGHT: usize = 1;
/// The map whose result is the output.
pub(super) const OUTPUT: usize = 2;

impl Geometry {
    /// Elements along a dimension from the start of the padding to the end of the last window.
    pub(super) fn reach(&self, d: usize) -> usize {
        match self.windows.output[d] {
            0 => 0,
            q => (q - 1) * self.windows.stride[d] + self.windows.reach(d) + 1,
        }
    }

    /// True if a window has elements in the padding.
    pub fn has_padding(&self) -> bool {
        let is_inside = |d: usize| self.windows.low[d] == 0 && self.reach(d) <= self.windows.input[d];
        !(0..3).all(is_inside)
    }

    /// True if the windows are the single elements of the input, in order.
    pub fn is_pointwise(&self) -> bool {
        let Windows { input, output, stride, low, .. } = self.windows;
        self.windows.window() == 1 && input == output && stride == [1; 3] && low == [0; 3]
    }
}

/// The last `N` extents.
pub fn extents<const N: usize>(x: &Tensor) -> [usize; N] {
    let mut last = [0; N];
    last.copy_from_slice(&x.dims()[x.rank() - N..]);
    last
}

impl<const N: usize> Padding<N> {
    /// Windows with this padding. Errors: `Attr`.
    pub(super) fn window(
        self,
        op: &'static str,
        kernel: [usize; N],
        stride: [usize; N],
        dilation: [usize; N],
    ) -> Result<Window<N>> {
        let window = Window { kernel, stride, low: [0; N], high: [0; N], dilation };
        window.check(op)?;
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
                for (d, ends) in ends.iter_mut().enumerate() {
                    let all = window.span(d) - 1;
                    *ends = [all / 2, all.div_ceil(2)];
                }
                ends
            }
        };
        Ok(Window { low: ends.map(|[low, _]| low), high: ends.map(|[_, high]| high), ..window })
    }
}
