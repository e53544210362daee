//! Windows over the last one to three dimensions of a tensor, for pooling, convolution and unfolding: their number, and the
//! positions of their elements. One and two dimensions are stored as three, with leading extents of 1.

use crate::{Dims, Error, Result, Shape, host};
use std::iter::zip;
use std::ops::Range;

/// The limit of a window's elements, and of the elements that it spans along a dimension: kernels count them in signed 32-bit
/// integers.
const MOST: usize = i32::MAX as usize;

/// The attributes of windows over the last `N` dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window<const N: usize> {
    /// Elements of a window.
    pub kernel: [usize; N],
    /// Distance between adjacent windows, in elements.
    pub stride: [usize; N],
    /// Elements of the padding before the first element.
    pub low: [usize; N],
    /// Elements of the padding after the last element.
    pub high: [usize; N],
    /// Distance between adjacent elements of a window.
    pub dilation: [usize; N],
}

/// The treatment of a last window that the input cuts off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// It is omitted.
    Whole,
    /// It is kept if it begins before the padding at the end.
    Cut,
}

impl<const N: usize> Window<N> {
    /// Elements from the first to the last of a window, inclusive.
    pub fn span(&self, d: usize) -> usize {
        self.dilation[d].saturating_mul(self.kernel[d] - 1).saturating_add(1)
    }

    /// Errors: `Attr` for a kernel, stride or dilation of 0, a stride, dilation or padding of 2^31 or more, or a window that has or spans
    /// 2^31 elements or more.
    pub fn check(&self, op: &'static str) -> Result<()> {
        let Window { kernel, stride, low, high, dilation } = self;
        let wrong = |message: String| Err(Error::attr(op, message));
        if [kernel, stride, dilation].iter().any(|of| of.contains(&0)) {
            return wrong(format!("kernel {kernel:?}, stride {stride:?} and dilation {dilation:?} must be at least 1"));
        }
        for (name, of) in [("stride", stride), ("padding", low), ("padding", high), ("dilation", dilation)] {
            if of.iter().any(|&v| v > MOST) {
                return wrong(format!("{name} is {of:?}, expected at most {MOST}"));
            }
        }
        if (0..N).any(|d| self.span(d) > MOST) {
            return wrong(format!("a window of {kernel:?}, dilation {dilation:?}, spans more than {MOST} elements"));
        }
        if kernel.iter().try_fold(1, |n: usize, &k| n.checked_mul(k)).is_none_or(|n| n > MOST) {
            return wrong(format!("a window of {kernel:?} has more than {MOST} elements"));
        }
        Ok(())
    }

    /// The padding for errors: one number per dimension if it is the same at both ends.
    pub fn padding(&self) -> String {
        if self.low == self.high { format!("{:?}", self.low) } else { format!("{:?} and {:?}", self.low, self.high) }
    }

    /// The number of windows along `l` elements of dimension `d`; `None` if no window fits.
    fn count(&self, d: usize, l: usize, last: Last) -> Option<usize> {
        let (low, stride) = (self.low[d], i64::try_from(self.stride[d]).ok()?);
        let all = i64::try_from(l.checked_add(low)?.checked_add(self.high[d])?).ok()?;
        let free = all.checked_sub(i64::try_from(self.span(d)).ok()?)?;
        let floor = free.div_euclid(stride);
        let is_cut = last == Last::Cut && free.rem_euclid(stride) != 0 && (floor + 1) * stride < (l + low) as i64;
        usize::try_from(floor + 1 + is_cut as i64).ok().filter(|&n| n > 0)
    }

    /// The extent on which `l` windows of a transposed convolution lie: `(l - 1) stride + span + more - low - high`; `None` if it
    /// is not positive.
    fn transposed(&self, d: usize, l: usize, more: usize) -> Option<usize> {
        let all = l.checked_sub(1)?.checked_mul(self.stride[d])?.checked_add(self.span(d))?.checked_add(more)?;
        all.checked_sub(self.low[d])?.checked_sub(self.high[d]).filter(|&extent| extent > 0)
    }

    /// `[planes, ..]` with windows of these extents.
    fn windows(&self, planes: usize, input: [usize; N], output: [usize; N]) -> Windows {
        Windows {
            planes,
            input: three(input, 1),
            output: three(output, 1),
            kernel: three(self.kernel, 1),
            stride: three(self.stride, 1),
            low: three(self.low, 0),
            high: three(self.high, 0),
            dilation: three(self.dilation, 1),
            is_adaptive: false,
        }
    }
}

/// Pads extents to three dimensions by leading ones.
fn three<const N: usize>(extents: [usize; N], one: usize) -> [usize; 3] {
    let mut all = [one; 3];
    all[3 - N..].copy_from_slice(&extents);
    all
}

/// All windows of volumes `[planes, D, H, W]`. Arrays are by dimension: depth, height, width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Volumes: batch and channels.
    pub planes: usize,
    /// Extents of a volume.
    pub input: [usize; 3],
    /// Numbers of windows along each dimension.
    pub output: [usize; 3],
    /// Elements of a window. For adaptive windows: elements of the longest window; the attributes below are then unused.
    pub kernel: [usize; 3],
    /// Distance between adjacent windows, in elements.
    pub stride: [usize; 3],
    /// Elements of the padding before the first element.
    pub low: [usize; 3],
    /// Elements of the padding after the last element.
    pub high: [usize; 3],
    /// Distance between adjacent elements of a window.
    pub dilation: [usize; 3],
    /// True if window `i` of `O` over `L` elements is `floor(i L / O) .. ceil((i + 1) L / O)`.
    pub is_adaptive: bool,
}

/// The planes and the last `N` extents of a shape, which has at least `N` dimensions.
fn split<const N: usize>(shape: &Shape) -> (usize, [usize; N]) {
    let (outer, last) = shape.dims().split_at(shape.rank() - N);
    let mut extents = [0; N];
    extents.copy_from_slice(last);
    (outer.iter().product(), extents)
}

impl Windows {
    /// Their attributes.
    pub fn attributes(&self) -> Window<3> {
        let Windows { kernel, stride, low, high, dilation, .. } = *self;
        Window { kernel, stride, low, high, dilation }
    }

    /// The windows over the last `N` dimensions of a shape. Errors: `Attr` as in [`Window::check`]; `Shape` if there is no window.
    pub fn new<const N: usize>(op: &'static str, shape: &Shape, window: &Window<N>, last: Last) -> Result<Windows> {
        window.check(op)?;
        let (planes, input) = split(shape);
        let mut output = [0; N];
        for d in 0..N {
            output[d] = window.count(d, input[d], last).ok_or_else(|| {
                let Window { kernel, dilation, .. } = window;
                let padding = window.padding();
                let message =
                    format!("no window {kernel:?} with dilation {dilation:?} and padding {padding} fits into");
                Error::shape(op, format!("{message} {shape}"))
            })?;
        }
        Ok(window.windows(planes, input, output))
    }

    /// The windows of a transposed convolution, which adds windows to volumes. The last `N` extents of `shape` are the numbers of
    /// windows. A volume has `(windows - 1) stride + dilation (kernel - 1) + 1 + more - low - high` elements; `more` selects one of
    /// the extents that a stride above 1 maps to the same number of windows.
    ///
    /// Errors: `Attr` as in [`Window::check`], and if `more` is neither below the stride nor below the dilation; `Shape` if the
    /// volume is empty.
    pub fn transposed<const N: usize>(
        op: &'static str,
        shape: &Shape,
        window: &Window<N>,
        more: [usize; N],
    ) -> Result<Windows> {
        window.check(op)?;
        let Window { kernel, stride, dilation, .. } = window;
        if (0..N).any(|d| more[d] >= stride[d].max(dilation[d])) {
            let expected = format!("expected less than the stride {stride:?} or the dilation {dilation:?}");
            return Err(Error::attr(op, format!("output_padding is {more:?}, {expected}")));
        }
        let (planes, output) = split(shape);
        let mut input = [0; N];
        for d in 0..N {
            input[d] = window.transposed(d, output[d], more[d]).ok_or_else(|| {
                let padding = window.padding();
                let message = format!("padding {padding} leaves nothing of windows {kernel:?}, stride {stride:?}");
                Error::shape(op, format!("{message}, dilation {dilation:?}, of {shape}"))
            })?;
        }
        Ok(window.windows(planes, input, output))
    }

    /// `output` adaptive windows over the last `N` extents of a shape. If they divide all extents, they are stored as windows that
    /// are not adaptive.
    pub fn adaptive<const N: usize>(shape: &Shape, output: [usize; N]) -> Windows {
        let (planes, input) = split::<N>(shape);
        let (input, output) = (three(input, 1), three(output, 1));
        let is_even = zip(&input, &output).all(|(l, &o)| o == 0 || l.is_multiple_of(o));
        let kernel =
            [0, 1, 2].map(|d| if is_even { input[d] / output[d].max(1) } else { longest(input[d], output[d]) });
        Windows {
            planes,
            input,
            output,
            kernel,
            stride: kernel.map(|k| k.max(1)),
            low: [0; 3],
            high: [0; 3],
            dilation: [1; 3],
            is_adaptive: !is_even,
        }
    }

    /// These windows over `[N, H, W, C]`, whose channels are last: they have one channel each. None for windows over three dimensions.
    pub fn with_channels_at_end(&self, channels: usize) -> Option<Windows> {
        let Windows { input, output, kernel, stride, low, high, dilation, .. } = *self;
        let is_flat = input[0] == 1 && output[0] == 1 && kernel[0] == 1 && low[0] == 0 && high[0] == 0;
        let with = |of: [usize; 3], last: usize| [of[1], of[2], last];
        is_flat.then(|| Windows {
            planes: self.planes / channels,
            input: with(input, channels),
            output: with(output, channels),
            kernel: with(kernel, 1),
            stride: with(stride, 1),
            low: with(low, 0),
            high: with(high, 0),
            dilation: with(dilation, 1),
            ..*self
        })
    }

    /// `shape` with its last `N` extents replaced by the numbers of windows. Errors: `Shape` if the number of elements overflows.
    pub fn output_shape<const N: usize>(&self, op: &'static str, shape: &Shape) -> Result<Shape> {
        let (outer, last) = (&shape.dims()[..shape.rank() - N], &self.output[3 - N..]);
        let output = Shape::from(outer.iter().chain(last).copied().collect::<Dims>());
        match output.check(op) {
            Ok(()) => Ok(output),
            Err(_) => Err(Error::shape(op, format!("{last:?} windows over {shape} are more than memory can address"))),
        }
    }

    /// Elements of a volume.
    pub fn volume(&self) -> usize {
        self.input.iter().product()
    }

    /// Elements of a window.
    pub fn window(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Windows of a volume.
    pub fn outputs(&self) -> usize {
        self.output.iter().product()
    }

    /// Distance between the first and the last element of a window.
    pub fn reach(&self, d: usize) -> usize {
        self.dilation[d] * (self.kernel[d] - 1)
    }

    /// True if there is no padding.
    pub fn is_unpadded(&self) -> bool {
        self.low == [0; 3] && self.high == [0; 3]
    }

    /// True if there is one window, of all elements.
    pub fn is_global(&self) -> bool {
        self.outputs() == 1 && self.kernel == self.input && self.is_unpadded() && self.dilation == [1; 3]
    }

    /// True if no window extends beyond the padding.
    pub fn are_whole(&self) -> bool {
        let end = |d: usize| (self.output[d] - 1) * self.stride[d] + self.reach(d) + 1;
        let is_within = |d: usize| end(d) <= self.input[d] + self.low[d] + self.high[d];
        !self.is_adaptive && (self.outputs() == 0 || (0..3).all(is_within))
    }

    /// The positions along a dimension of the elements of window `q`; `None` in the padding. All windows have the same number of
    /// elements, unless they are adaptive.
    pub fn elements(&self, d: usize, q: usize) -> impl Iterator<Item = Option<usize>> {
        let (l, s, p, step) = (self.input[d], self.stride[d], self.low[d], self.dilation[d]);
        let range = self.is_adaptive.then(|| between(q, l, self.output[d]));
        (0..self.kernel[d]).map(move |i| match &range {
            Some(range) => range.clone().nth(i),
            None => (q * s + i * step).checked_sub(p).filter(|&at| at < l),
        })
    }

    /// True if a window has no element outside of the padding. This needs a dilation larger than the extent, and a window that
    /// begins before the first element.
    pub fn have_hollow(&self) -> bool {
        let is_hollow = |d: usize, q| self.elements(d, q).all(|at| at.is_none());
        let before = |d: usize| self.low[d].div_ceil(self.stride[d]).min(self.output[d]);
        (0..3).any(|d| self.dilation[d] > self.input[d] && (0..before(d)).any(|q| is_hollow(d, q)))
    }

    /// The number of elements of window `q` along a dimension, including the padding.
    pub fn size(&self, d: usize, q: usize) -> usize {
        let left = (self.input[d] + self.low[d] + self.high[d]).saturating_sub(q * self.stride[d]);
        left.div_ceil(self.dilation[d]).min(self.kernel[d])
    }

    /// For all windows, the positions of all their elements in the volume; `None` in the padding. Errors: `OutOfMemory`.
    pub fn positions(&self, op: &'static str) -> Result<Vec<Option<usize>>> {
        let [_, height, width] = self.input;
        let mut all = host::with_room(op, self.outputs().saturating_mul(self.window()))?;
        // The elements of each window along a dimension, one window after the other.
        let along = |d: usize| -> Result<Vec<Option<usize>>> {
            let mut all = host::with_room(op, self.output[d].saturating_mul(self.kernel[d]))?;
            (0..self.output[d]).for_each(|q| all.extend(self.elements(d, q)));
            Ok(all)
        };
        let (depths, rows, columns) = (along(0)?, along(1)?, along(2)?);
        let [per_depth, per_row, per_column] = self.kernel;
        for depths in depths.chunks(per_depth) {
            for rows in rows.chunks(per_row) {
                for columns in columns.chunks(per_column) {
                    for z in depths {
                        for y in rows {
                            let row = z.zip(*y).map(|(z, y)| (z * height + y) * width);
                            all.extend(columns.iter().map(|x| row.zip(*x).map(|(row, x)| row + x)));
                        }
                    }
                }
            }
        }
        Ok(all)
    }
}

/// The range of adaptive window `q` of `o` over `l`.
fn between(q: usize, l: usize, o: usize) -> Range<usize> {
    let product = |q: usize| q as u128 * l as u128;
    (product(q) / o as u128) as usize..product(q + 1).div_ceil(o as u128) as usize
}

/// Elements of the longest adaptive window of `o` over `l`; 1 if there is no window.
fn longest(l: usize, o: usize) -> usize {
    let (mut divisor, mut rest) = (l, o);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    // The starts of windows have fractional parts that are multiples of `1 / o`. The longest window has the largest fractional
    // part.
    let (l, o) = (l / divisor.max(1), o / divisor.max(1));
    if o == 0 { 1 } else { (o - 1).saturating_add(l).div_ceil(o) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Window<1> = Window { kernel: [3], stride: [1], low: [0], high: [0], dilation: [1] };

    fn windows(l: usize, window: Window<1>) -> Result<Windows> {
        Windows::new("test", &(2, l).into(), &window, Last::Whole)
    }

    /// The positions of window `q`, with -1 for the padding.
    fn elements(windows: &Windows, q: usize) -> Vec<i64> {
        windows.elements(2, q).map(|at| at.map_or(-1, |at| at as i64)).collect()
    }

    #[test]
    fn padding_may_differ_at_the_two_ends() {
        let causal = windows(5, Window { low: [2], ..PLAIN }).unwrap();
        assert_eq!((causal.planes, causal.output), (2, [1, 1, 5]));
        assert_eq!([0, 4].map(|q| elements(&causal, q)), [[-1, -1, 0], [2, 3, 4]]);
        let even = windows(5, Window { kernel: [4], low: [1], high: [2], ..PLAIN }).unwrap();
        assert_eq!(even.output, [1, 1, 5]);
        assert_eq!([0, 4].map(|q| elements(&even, q)), [[-1, 0, 1, 2], [3, 4, -1, -1]]);
        assert_eq!([0, 3, 4].map(|q| even.size(2, q)), [4, 4, 4]);
    }

    #[test]
    fn a_last_window_is_cut_off_if_it_begins_before_the_padding() {
        let count = |kernel, l: usize, last| {
            let window = Window { kernel: [kernel], stride: [2], low: [1], high: [1], ..PLAIN };
            Windows::new("test", &(1, l).into(), &window, last).unwrap().output[2]
        };
        assert_eq!([3, 4, 5].map(|l| count(3, l, Last::Whole)), [2, 2, 3]);
        assert_eq!([3, 4, 5].map(|l| count(3, l, Last::Cut)), [2, 3, 3]);
        // Another window of 2 would begin in the padding.
        assert_eq!([count(2, 3, Last::Whole), count(2, 3, Last::Cut)], [2, 2]);
    }

    #[test]
    fn a_transposed_convolution_has_the_windows_that_it_is_given() {
        for (kernel, stride, dilation) in [(3, 2, 1), (1, 3, 1), (4, 2, 3)] {
            for (low, high, more) in [(0, 0, 0), (1, 0, 1), (0, 1, 0)] {
                let window =
                    Window { kernel: [kernel], stride: [stride], low: [low], high: [high], dilation: [dilation] };
                let added = Windows::transposed("test", &(2, 7).into(), &window, [more]).unwrap();
                let span = dilation * (kernel - 1) + 1;
                assert_eq!(added.input[2], 6 * stride + span + more - low - high);
                assert_eq!(windows(added.input[2], window).unwrap(), added);
            }
        }
    }

    #[test]
    fn a_transposed_convolution_refuses_padding_that_its_windows_do_not_have() {
        let strided = Window { stride: [2], ..PLAIN };
        let error = Windows::transposed("test", &(1, 4).into(), &strided, [2]).unwrap_err();
        assert!(error.to_string().contains("output_padding is [2]"), "{error}");
        let eaten = Window { low: [2], high: [1], ..PLAIN };
        let error = Windows::transposed("test", &(1, 1).into(), &eaten, [0]).unwrap_err();
        assert!(error.to_string().contains("padding [2] and [1] leaves nothing"), "{error}");
    }
}
