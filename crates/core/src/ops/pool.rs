//! Pooling: the maximum or the average of windows. One and two dimensions are three, of which the first have extent 1.

use super::reduce::argmax_last_nan;
use super::{gradients, in_acc};
use crate::fused::{Fused, gradient_by_ops, has_kernel, run_fused};
use crate::tape::{Saved, is_recording, record};
use crate::tensor::check_float;
use crate::{DType, Dims, Error, Result, Shape, Tensor, host};
use std::iter::zip;

/// As an output extent of an adaptive pooling: that of the input.
pub const KEEP: usize = usize::MAX;

/// The windows of a maximum over the last `N` dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPool<const N: usize> {
    /// Elements of a window.
    pub kernel: [usize; N],
    /// From window to window.
    pub stride: [usize; N],
    /// By how much windows begin before the first element and end after the last; what is there never wins. At most half a
    /// window.
    pub padding: [usize; N],
    /// From element to element of a window.
    pub dilation: [usize; N],
    /// Whether a last window may be cut off at the end.
    pub ceil_mode: bool,
}

impl<const N: usize> MaxPool<N> {
    /// Windows side by side.
    pub fn new(kernel: [usize; N]) -> MaxPool<N> {
        MaxPool { kernel, stride: kernel, padding: [0; N], dilation: [1; N], ceil_mode: false }
    }
}

/// The windows of an average over the last `N` dimensions, and what a sum is divided by. The average of a window whose sum is out
/// of range is infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvgPool<const N: usize> {
    /// Elements of a window.
    pub kernel: [usize; N],
    /// From window to window.
    pub stride: [usize; N],
    /// Zeros before the first element and after the last. At most half a window.
    pub padding: [usize; N],
    /// Whether a last window may be cut off at the end.
    pub ceil_mode: bool,
    /// Whether the padding's zeros count as elements.
    pub count_include_pad: bool,
    /// What all sums are divided by, in place of their number of elements. Not 0.
    pub divisor_override: Option<i64>,
}

impl<const N: usize> AvgPool<N> {
    /// Windows side by side.
    pub fn new(kernel: [usize; N]) -> AvgPool<N> {
        let padding = [0; N];
        AvgPool { kernel, stride: kernel, padding, ceil_mode: false, count_include_pad: true, divisor_override: None }
    }
}

/// Elements of a window whose numbers fit into a byte.
const BYTE: usize = 256;
/// The most elements that a window spans along a dimension, and that it has: kernels count them in 32 bits with a sign.
const MOST: usize = i32::MAX as usize;

/// The names of an op and of its gradient.
type Names = [&'static str; 2];

macro_rules! pools {
    ($($n:literal $max:ident $max_indices:ident $avg:ident $adaptive_max:ident $adaptive_max_indices:ident $adaptive_avg:ident
       $names:expr;)*) => {
        impl Tensor {$(
            #[doc = concat!("The largest element of each window over the last ", stringify!($n), " dimensions of ")]
            /// `[N, C, ..]` or `[C, ..]`; NaN is the largest. Float dtypes. The gradient goes to the first of equal elements,
            /// and to the last NaN. Errors: `Dtype`; `Attr` for a kernel, stride or dilation of 0, a padding of more than half
            /// a window, a stride or padding of 2^31 and more, and a window of as many elements or that spans as many;
            /// `Shape` for another rank, no channels, an empty dimension, no window, or one that lies in the padding.
            pub fn $max(&self, pool: MaxPool<$n>) -> Result<Tensor> {
                max_values(self, &of_max($names[0], self, pool)?)
            }

            #[doc = concat!("[`", stringify!($max), "`](Tensor::", stringify!($max), "), and where the elements are (i64),")]
            /// counted row-major over these dimensions.
            pub fn $max_indices(&self, pool: MaxPool<$n>) -> Result<(Tensor, Tensor)> {
                max_pool(self, &of_max($names[0], self, pool)?, Want::Indices)
            }

            #[doc = concat!("The average of each window over the last ", stringify!($n), " dimensions of ")]
            /// `[N, C, ..]` or `[C, ..]`. A window ends with the padding. Float dtypes. Errors: as the maximum's, and
            /// `Attr` for a divisor of 0.
            pub fn $avg(&self, pool: AvgPool<$n>) -> Result<Tensor> {
                let (windows, divisor) = of_avg($names[1], self, pool)?;
                avg_pool(self, &windows, divisor)
            }

            #[doc = concat!("The largest elements of `output` windows over the last ", stringify!($n), " dimensions of ")]
            /// `[N, C, ..]` or `[C, ..]`: window `i` of `O` over `L` elements is `floor(i L / O) .. ceil((i + 1) L / O)`. An
            /// extent may be [`KEEP`]. Otherwise as the maximum of other windows. Errors: `Dtype`, `Shape`.
            pub fn $adaptive_max(&self, output: [usize; $n]) -> Result<Tensor> {
                max_values(self, &adaptive($names[2], self, output)?)
            }

            #[doc = concat!("[`", stringify!($adaptive_max), "`](Tensor::", stringify!($adaptive_max), "), and where the")]
            /// elements are (i64), counted row-major over these dimensions.
            pub fn $adaptive_max_indices(&self, output: [usize; $n]) -> Result<(Tensor, Tensor)> {
                max_pool(self, &adaptive($names[2], self, output)?, Want::Indices)
            }

            #[doc = concat!("The averages of `output` windows over the last ", stringify!($n), " dimensions, which are those of")]
            #[doc = concat!("[`", stringify!($adaptive_max), "`](Tensor::", stringify!($adaptive_max), "). Errors: as there.")]
            pub fn $adaptive_avg(&self, output: [usize; $n]) -> Result<Tensor> {
                avg_pool(self, &adaptive($names[3], self, output)?, Divisor::Inside)
            }
        )*}
    };
}

macro_rules! names {
    ($($name:literal)*) => { [$([$name, concat!($name, "_backward")]),*] };
}

pools! {
    1 max_pool1d max_pool1d_with_indices avg_pool1d
        adaptive_max_pool1d adaptive_max_pool1d_with_indices adaptive_avg_pool1d
        names!("max_pool1d" "avg_pool1d" "adaptive_max_pool1d" "adaptive_avg_pool1d");
    2 max_pool2d max_pool2d_with_indices avg_pool2d
        adaptive_max_pool2d adaptive_max_pool2d_with_indices adaptive_avg_pool2d
        names!("max_pool2d" "avg_pool2d" "adaptive_max_pool2d" "adaptive_avg_pool2d");
    3 max_pool3d max_pool3d_with_indices avg_pool3d
        adaptive_max_pool3d adaptive_max_pool3d_with_indices adaptive_avg_pool3d
        names!("max_pool3d" "avg_pool3d" "adaptive_max_pool3d" "adaptive_avg_pool3d");
}

macro_rules! global_pools {
    ($($n:literal $avg:ident $max:ident $max_indices:ident $all:literal $of:literal $to:literal $names:expr;)*) => {
        impl Tensor {$(
            #[doc = concat!("The averages of all ", $all, " of ", $of, ": ", $to, ". Float dtypes. Errors: `Dtype`; `Shape`")]
            /// for another rank, no channels or nothing to average.
            pub fn $avg(&self) -> Result<Tensor> {
                avg_pool(self, &adaptive($names[0], self, [1; $n])?, Divisor::Inside)
            }

            #[doc = concat!("The largest elements of all ", $all, " of ", $of, ", as windows' are found: ", $to, ".")]
            #[doc = concat!("Errors: as [`", stringify!($avg), "`](Tensor::", stringify!($avg), ").")]
            pub fn $max(&self) -> Result<Tensor> {
                max_values(self, &adaptive($names[1], self, [1; $n])?)
            }

            #[doc = concat!("[`", stringify!($max), "`](Tensor::", stringify!($max), "), and where the elements are (i64),")]
            /// counted row-major over these dimensions.
            pub fn $max_indices(&self) -> Result<(Tensor, Tensor)> {
                max_pool(self, &adaptive($names[1], self, [1; $n])?, Want::Indices)
            }
        )*}
    };
}

global_pools! {
    2 global_avg_pool2d global_max_pool2d global_max_pool2d_with_indices
        "planes" "`[N, C, H, W]` or `[C, H, W]`" "`[.., C, 1, 1]`" names!("global_avg_pool2d" "global_max_pool2d");
    3 global_avg_pool3d global_max_pool3d global_max_pool3d_with_indices
        "volumes" "`[N, C, D, H, W]` or `[C, D, H, W]`" "`[.., C, 1, 1, 1]`"
        names!("global_avg_pool3d" "global_max_pool3d");
}

/// What is asked of a maximum.
#[derive(Clone, Copy, PartialEq)]
enum Want {
    Values,
    Indices,
}

/// What the sum of a window is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divisor {
    /// The number of its elements.
    Inside,
    /// The size of the window, with the padding.
    Window,
    /// This number.
    Number(i64),
}

/// The windows of a pooling over volumes `[planes, depth, height, width]`, by dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolWindows {
    /// The product of batch and channels.
    pub planes: usize,
    /// The extents of x.
    pub input: [usize; 3],
    /// The numbers of windows.
    pub output: [usize; 3],
    /// The extents of a window, of adaptive ones the largest.
    pub kernel: [usize; 3],
    /// From window to window.
    pub stride: [usize; 3],
    /// By how much windows begin before the first element and end after the last.
    pub padding: [usize; 3],
    /// From element to element of a window.
    pub dilation: [usize; 3],
    /// Whether window `i` of `O` over `L` elements is `floor(i L / O) .. ceil((i + 1) L / O)`.
    pub is_adaptive: bool,
}

/// x to the largest element of each window and, if there is a second output, its position: its number within the window if that is
/// u8, else its position in the volume (i32, i64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPoolForward(pub PoolWindows);

/// dy and the positions of [`MaxPoolForward`] to dx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPoolBackward(pub PoolWindows);

/// x to the sum of each window, divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvgPoolForward {
    /// The windows.
    pub windows: PoolWindows,
    /// What sums are divided by.
    pub divisor: Divisor,
}

/// dy of [`AvgPoolForward`] to dx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvgPoolBackward(pub AvgPoolForward);

impl PoolWindows {
    fn volumes(&self, x: &Tensor) -> Result<Tensor> {
        let [depth, height, width] = self.input;
        x.reshape((self.planes, depth, height, width))
    }

    /// Whether a last window ends behind the padding.
    fn is_cut(&self) -> bool {
        let end = |d: usize| (self.output[d] - 1) * self.stride[d] + self.dilation[d] * (self.kernel[d] - 1) + 1;
        (0..3).any(|d| end(d) > self.input[d] + 2 * self.padding[d])
    }

    fn max_pool(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let (x, PoolWindows { kernel, stride, padding, dilation, .. }) = (self.volumes(x)?, *self);
        if self.is_adaptive {
            return x.adaptive_max_pool3d_with_indices(self.output);
        }
        x.max_pool3d_with_indices(MaxPool { kernel, stride, padding, dilation, ceil_mode: self.is_cut() })
    }

    /// Elements of windows, which an index tells by digits of `from`, by digits of `to`: `f` of one of these, of where the window
    /// begins, and of the step between its elements.
    fn renumbered(
        &self,
        index: &Tensor,
        [from, to]: [[usize; 3]; 2],
        f: impl Fn(i64, i64, i64) -> i64,
    ) -> Result<Tensor> {
        let digits = |v: usize, of: [usize; 3]| [v / of[2] / of[1], v / of[2] % of[1], v % of[2]];
        let outputs = self.output.iter().product::<usize>();
        let one = |(i, &v): (usize, &i64)| {
            let (window, v) = (digits(i % outputs, self.output), digits(v as usize, from));
            let first = |d: usize| (window[d] * self.stride[d]) as i64 - self.padding[d] as i64;
            let found = [0, 1, 2].map(|d| f(v[d] as i64, first(d), self.dilation[d] as i64));
            (found[0] * to[1] as i64 + found[1]) * to[2] as i64 + found[2]
        };
        let values: Vec<i64> = index.cast(DType::I64)?.to_vec::<i64>()?.iter().enumerate().map(one).collect();
        Tensor::from_vec(values, index.shape(), index.device())
    }

    /// The numbers within windows of elements at these positions in volumes.
    fn numbers(&self, index: &Tensor) -> Result<Tensor> {
        self.renumbered(index, [self.input, self.kernel], |at, first, step| (at - first) / step)
    }

    /// The positions in volumes of elements with these numbers within windows.
    fn places(&self, index: &Tensor) -> Result<Tensor> {
        self.renumbered(index, [self.kernel, self.input], |number, first, step| first + number * step)
    }
}

impl Fused for MaxPoolForward {
    fn name(&self) -> &'static str {
        "max_pool"
    }

    fn composite(&self, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (y, index) = self.0.max_pool(&inputs[0])?;
        let index = match before.get(1).map(Tensor::dtype) {
            Some(DType::U8) => self.0.numbers(&index)?,
            _ => index,
        };
        Ok(vec![Some(y), Some(index)])
    }
}

impl Fused for MaxPoolBackward {
    fn name(&self) -> &'static str {
        "max_pool_backward"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let PoolWindows { planes, input, output, .. } = self.0;
        let index = match inputs[1].dtype() {
            DType::U8 => self.0.places(&inputs[1])?,
            _ => inputs[1].cast(DType::I64)?,
        };
        let shape = (planes, output.iter().product::<usize>());
        let (index, dy) = (index.reshape(shape)?, inputs[0].reshape(shape)?);
        let zeros = Tensor::zeros((planes, input.iter().product::<usize>()), dy.dtype(), dy.device())?;
        Ok(vec![Some(zeros.scatter_add(1, &index, &dy)?)])
    }
}

impl AvgPoolForward {
    fn output(&self, x: &Tensor) -> Result<Tensor> {
        let (x, PoolWindows { kernel, stride, padding, .. }) = (self.windows.volumes(x)?, self.windows);
        if self.windows.is_adaptive {
            return x.adaptive_avg_pool3d(self.windows.output);
        }
        let divisor_override = if let Divisor::Number(number) = self.divisor { Some(number) } else { None };
        let (ceil_mode, count_include_pad) = (self.windows.is_cut(), self.divisor == Divisor::Window);
        x.avg_pool3d(AvgPool { kernel, stride, padding, ceil_mode, count_include_pad, divisor_override })
    }
}

impl Fused for AvgPoolForward {
    fn name(&self) -> &'static str {
        "avg_pool"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(self.output(&inputs[0])?)])
    }
}

impl Fused for AvgPoolBackward {
    fn name(&self) -> &'static str {
        "avg_pool_backward"
    }

    fn composite(&self, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let x = before[0].leaf()?;
        gradient_by_ops(&x, &inputs[0], || self.0.output(&x))
    }
}

/// All windows of a pooling.
#[derive(Clone)]
struct Windows {
    names: Names,
    /// Batch and channels.
    planes: usize,
    /// The extents of depth, height and width, and of the numbers of windows along these.
    input: [usize; 3],
    output: [usize; 3],
    /// If they are adaptive, a kernel is the most elements of a window, and what follows has no meaning.
    kernel: [usize; 3],
    stride: [usize; 3],
    padding: [usize; 3],
    dilation: [usize; 3],
    is_adaptive: bool,
    /// The shapes of the input and of the result.
    from: Shape,
    to: Shape,
}

/// Extents behind ones.
fn three<const N: usize>(of: [usize; N], one: usize) -> [usize; 3] {
    let mut all = [one; 3];
    all[3 - N..].copy_from_slice(&of);
    all
}

/// The input's planes and extents, if it can be pooled.
fn check<const N: usize>(op: &'static str, x: &Tensor) -> Result<(usize, [usize; N])> {
    check_float(op, x)?;
    let rank = x.rank();
    let wrong = |why: &str| Error::shape(op, format!("the input {} {why}", x.shape()));
    if rank != N + 1 && rank != N + 2 {
        return Err(wrong(&format!("has {rank} dimensions, expected {} or {}", N + 1, N + 2)));
    }
    let (outer, last) = x.dims().split_at(rank - N);
    if outer.last() == Some(&0) || last.contains(&0) {
        return Err(wrong("is empty beyond its batch"));
    }
    let mut extents = [0; N];
    extents.copy_from_slice(last);
    Ok((outer.iter().product(), extents))
}

/// The shape of `x` with other last extents. Errors: `Shape` if its elements cannot be counted.
fn with_extents(op: &'static str, x: &Tensor, last: &[usize]) -> Result<Shape> {
    let outer = &x.dims()[..x.rank() - last.len()];
    let shape = Shape::from(outer.iter().chain(last).copied().collect::<Dims>());
    match shape.check(op) {
        Ok(()) => Ok(shape),
        Err(_) => {
            Err(Error::shape(op, format!("{last:?} windows over {} are more than memory can address", x.shape())))
        }
    }
}

fn of_max<const N: usize>(names: Names, x: &Tensor, pool: MaxPool<N>) -> Result<Windows> {
    let MaxPool { kernel, stride, padding, dilation, ceil_mode } = pool;
    let op = names[0];
    let (planes, input) = check::<N>(op, x)?;
    check_attributes(op, &pool)?;
    let mut output = [0; N];
    for d in 0..N {
        let reach = dilation[d] * (kernel[d] - 1);
        output[d] = extent(input[d], reach, stride[d], padding[d], ceil_mode).filter(|&q| q > 0).ok_or_else(|| {
            let message = format!("no window {kernel:?} with dilation {dilation:?} and padding {padding:?} fits into");
            Error::shape(op, format!("{message} {}", x.shape()))
        })?;
    }
    let to = with_extents(op, x, &output)?;
    let windows = Windows {
        names,
        planes,
        input: three(input, 1),
        output: three(output, 1),
        kernel: three(kernel, 1),
        stride: three(stride, 1),
        padding: three(padding, 0),
        dilation: three(dilation, 1),
        is_adaptive: false,
        from: x.shape().clone(),
        to,
    };
    if (0..3).any(|d| windows.has_hollow(d)) {
        let message =
            format!("a window {kernel:?} with dilation {dilation:?} and padding {padding:?} has no element of");
        return Err(Error::shape(op, format!("{message} {}", x.shape())));
    }
    Ok(windows)
}

/// Errors unless windows can be made, and kernels can count their elements.
fn check_attributes<const N: usize>(op: &'static str, pool: &MaxPool<N>) -> Result<()> {
    let MaxPool { kernel, stride, padding, dilation, .. } = pool;
    let wrong = |message: String| Err(Error::attr(op, message));
    if [kernel, stride, dilation].iter().any(|of| of.contains(&0)) {
        return wrong(format!("kernel {kernel:?}, stride {stride:?} and dilation {dilation:?} must be at least 1"));
    }
    for (name, of) in [("stride", stride), ("padding", padding)] {
        if of.iter().any(|&v| v > MOST) {
            return wrong(format!("{name} is {of:?}, expected at most {MOST}"));
        }
    }
    let span = |d: usize| dilation[d].saturating_mul(kernel[d] - 1).saturating_add(1);
    if (0..N).any(|d| span(d) > MOST) {
        return wrong(format!("a window of {kernel:?}, dilation {dilation:?}, spans more than {MOST} elements"));
    }
    if (0..N).any(|d| padding[d] > span(d) / 2) {
        return wrong(format!("padding {padding:?} is more than half a window of {kernel:?}, dilation {dilation:?}"));
    }
    if kernel.iter().try_fold(1, |n: usize, &k| n.checked_mul(k)).is_none_or(|n| n > MOST) {
        return wrong(format!("a window of {kernel:?} has more than {MOST} elements"));
    }
    Ok(())
}

/// How many windows there are along `l` elements, if any.
fn extent(l: usize, reach: usize, stride: usize, padding: usize, ceil_mode: bool) -> Option<usize> {
    let all = l.checked_add(padding.checked_mul(2)?)?;
    let free = i64::try_from(all).ok()?.checked_sub(i64::try_from(reach).ok()?)? - 1;
    let stride = i64::try_from(stride).ok()?;
    let floor = free.div_euclid(stride);
    // With what is cut off, the last window must begin before the end.
    let is_cut = ceil_mode && free.rem_euclid(stride) != 0 && ((floor + 1) * stride) < (l + padding) as i64;
    usize::try_from(floor + 1 + is_cut as i64).ok()
}

fn of_avg<const N: usize>(names: Names, x: &Tensor, pool: AvgPool<N>) -> Result<(Windows, Divisor)> {
    let AvgPool { kernel, stride, padding, ceil_mode, count_include_pad, divisor_override } = pool;
    if divisor_override == Some(0) {
        return Err(Error::attr(names[0], "divisor_override is 0"));
    }
    let windows = of_max(names, x, MaxPool { kernel, stride, padding, dilation: [1; N], ceil_mode })?;
    let by_size = if count_include_pad { Divisor::Window } else { Divisor::Inside };
    Ok((windows, divisor_override.map_or(by_size, Divisor::Number)))
}

fn adaptive<const N: usize>(names: Names, x: &Tensor, output: [usize; N]) -> Result<Windows> {
    let (planes, input) = check::<N>(names[0], x)?;
    let mut last = output;
    zip(&mut last, &input).filter(|(o, _)| **o == KEEP).for_each(|(o, l)| *o = *l);
    let to = with_extents(names[0], x, &last)?;
    let (input, output) = (three(input, 1), three(last, 1));
    let is_even = zip(&input, &output).all(|(l, &o)| o == 0 || l.is_multiple_of(o));
    let kernel = if is_even {
        [0, 1, 2].map(|d| input[d] / output[d].max(1))
    } else {
        [0, 1, 2].map(|d| longest(input[d], output[d]))
    };
    Ok(Windows {
        names,
        planes,
        input,
        output,
        kernel,
        stride: kernel.map(|k| k.max(1)),
        padding: [0; 3],
        dilation: [1; 3],
        is_adaptive: !is_even,
        from: x.shape().clone(),
        to,
    })
}

/// The elements of window `q` of `o` over `l`.
fn between(q: usize, l: usize, o: usize) -> std::ops::Range<usize> {
    let product = |q: usize| q as u128 * l as u128;
    (product(q) / o as u128) as usize..product(q + 1).div_ceil(o as u128) as usize
}

/// The elements of the longest window of `o` over `l`, 1 if there is none.
fn longest(l: usize, o: usize) -> usize {
    let (mut divisor, mut rest) = (l, o);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    // Windows begin at every fraction of an element, in steps of `1 / o`; the longest begins at the last.
    let (l, o) = (l / divisor.max(1), o / divisor.max(1));
    if o == 0 { 1 } else { (o - 1).saturating_add(l).div_ceil(o) }
}

impl Windows {
    fn geometry(&self) -> PoolWindows {
        let Windows { planes, input, output, kernel, stride, padding, dilation, is_adaptive, .. } = *self;
        PoolWindows { planes, input, output, kernel, stride, padding, dilation, is_adaptive }
    }

    fn volume(&self) -> usize {
        self.input.iter().product()
    }

    /// Elements of a window.
    fn window(&self) -> usize {
        self.kernel.iter().product()
    }

    fn outputs(&self) -> usize {
        self.output.iter().product()
    }

    /// Whether there is one window, of all elements.
    fn is_global(&self) -> bool {
        self.outputs() == 1 && self.kernel == self.input && self.padding == [0; 3] && self.dilation == [1; 3]
    }

    /// The positions along a dimension of the elements of window `q`, as many for all windows: none in the padding.
    fn elements(&self, d: usize, q: usize) -> impl Iterator<Item = Option<usize>> {
        let (l, s, p, step) = (self.input[d], self.stride[d], self.padding[d], self.dilation[d]);
        let range = self.is_adaptive.then(|| between(q, l, self.output[d]));
        (0..self.kernel[d]).map(move |i| match &range {
            Some(range) => range.clone().nth(i),
            None => (q * s + i * step).checked_sub(p).filter(|&at| at < l),
        })
    }

    /// Whether a window has no element along a dimension: if they are farther apart than there are elements, all may lie in the
    /// padding. Only what begins before the first element can be such a window.
    fn has_hollow(&self, d: usize) -> bool {
        let before = self.padding[d].div_ceil(self.stride[d]).min(self.output[d]);
        let is_hollow = |q| self.elements(d, q).all(|at| at.is_none());
        self.dilation[d] > self.input[d] && (0..before).any(is_hollow)
    }

    /// How many elements window `q` has along a dimension, with the padding.
    fn size(&self, d: usize, q: usize) -> usize {
        let (l, s, p) = (self.input[d], self.stride[d], self.padding[d]);
        (l + 2 * p).saturating_sub(q * s).min(self.kernel[d])
    }

    /// For all windows, the positions of all their elements in the volume, none in the padding. Errors: `OutOfMemory`.
    fn positions(&self) -> Result<Vec<Option<usize>>> {
        let [_, height, width] = self.input;
        let op = self.names[0];
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

    /// Positions as an index `[outputs, window]`. In place of what is padding, a window has the element before it again, or
    /// its first, so that which is the first of equals and which is the last of all remains.
    fn table(&self, x: &Tensor) -> Result<Tensor> {
        let window = self.window();
        let positions = self.positions()?;
        let mut table = host::with_room(self.names[0], positions.len())?;
        for positions in positions.chunks(window) {
            let mut last = positions.iter().flatten().next().copied().unwrap_or(0);
            for position in positions {
                last = position.unwrap_or(last);
                table.push(last as i64);
            }
        }
        Tensor::from_vec(table, (self.outputs(), window), x.device())
    }

    /// What the sum of each window is divided by, `[outputs]`.
    fn divisors(&self, divisor: Divisor) -> Result<Vec<f64>> {
        let (op, outputs) = (self.names[0], self.outputs());
        let [_, height, width] = self.output;
        let size = |i: usize| {
            let at = [i / width / height, i / width % height, i % width];
            (0..3).map(|d| self.size(d, at[d])).product::<usize>() as f64
        };
        let inside = |all: &[Option<usize>]| all.iter().flatten().count() as f64;
        match divisor {
            Divisor::Number(number) => host::repeated(op, number as f64, outputs),
            Divisor::Window => host::collect(op, (0..outputs).map(size)),
            Divisor::Inside => host::collect(op, self.positions()?.chunks(self.window()).map(inside)),
        }
    }
}

/// A result without elements.
fn nothing(x: &Tensor, windows: &Windows) -> Result<Tensor> {
    x.reshape(x.numel())?.narrow(0, 0, 0)?.reshape(&windows.to)
}

/// The largest elements. Where they are is not found unless their gradient needs it.
fn max_values(x: &Tensor, windows: &Windows) -> Result<Tensor> {
    if is_recording(&[x]) || windows.to.numel() == 0 || !is_by_windows(x, windows) {
        return Ok(max_pool(x, windows, Want::Values)?.0);
    }
    let op = windows.names[0];
    let y = Tensor::allocate(op, &windows.to, x.dtype(), x.device())?;
    run_fused(op, &MaxPoolForward(windows.geometry()), &[&x.contiguous()?], &[&y])?;
    Ok(y)
}

/// Whether a kernel finds the largest elements of windows. What a thread does for a window, a reduction does better for a long
/// row.
fn is_by_windows(x: &Tensor, windows: &Windows) -> bool {
    has_kernel::<MaxPoolForward>(x) && !(windows.is_global() && windows.volume() > BYTE)
}

/// The largest elements, and where they are.
fn max_pool(x: &Tensor, windows: &Windows, want: Want) -> Result<(Tensor, Tensor)> {
    let op = windows.names[0];
    let shape = &windows.to;
    if shape.numel() == 0 {
        return Ok((nothing(x, windows)?, Tensor::zeros(shape, DType::I64, x.device())?));
    }
    if !is_by_windows(x, windows) {
        let rows = x.reshape((windows.planes, windows.volume()))?;
        let index = largest(&rows.detach(), windows)?;
        let found = index.reshape(shape)?;
        if !has_kernel::<MaxPoolForward>(x) {
            return Ok((rows.gather(1, &index)?.reshape(shape)?, found));
        }
        let y = x.detach().reshape(rows.shape())?.gather(1, &index)?.reshape(shape)?;
        return Ok((on_tape(x, windows, y, &found)?, found));
    }
    let x = x.contiguous()?;
    let window = windows.window();
    let dtype = match want {
        Want::Indices => DType::I64,
        // The number of an element within its window has fewer bits than its position.
        Want::Values if window <= BYTE && !windows.is_adaptive => DType::U8,
        Want::Values if windows.volume() <= i32::MAX as usize => DType::I32,
        Want::Values => DType::I64,
    };
    let y = Tensor::allocate(op, shape, x.dtype(), x.device())?;
    let index = Tensor::allocate(op, shape, dtype, x.device())?;
    run_fused(op, &MaxPoolForward(windows.geometry()), &[&x], &[&y, &index])?;
    Ok((on_tape(&x, windows, y, &index)?, index))
}

/// For each window the position `[planes, outputs]` of its largest element in rows `[planes, volume]`.
fn largest(rows: &Tensor, windows: &Windows) -> Result<Tensor> {
    let op = windows.names[0];
    if windows.is_global() {
        return argmax_last_nan(op, rows)?.unsqueeze(1);
    }
    let table = windows.table(rows)?;
    let (planes, outputs, window) = (windows.planes, table.dims()[0], table.dims()[1]);
    let elements = rows.index_select(1, &table.reshape(outputs * window)?)?.reshape((planes * outputs, window))?;
    let number = argmax_last_nan(op, &elements)?.reshape((planes, outputs, 1))?;
    in_table(&table, &number)
}

/// The positions of elements that are told by their numbers `[planes, outputs, 1]` within windows.
fn in_table(table: &Tensor, number: &Tensor) -> Result<Tensor> {
    let (planes, outputs) = (number.dims()[0], number.dims()[1]);
    let table = table.unsqueeze(0)?.broadcast_to((planes, outputs, table.dims()[1]))?;
    table.gather(2, number)?.squeeze(2)
}

/// The result of a kernel, whose gradient goes where the index says.
fn on_tape(x: &Tensor, windows: &Windows, y: Tensor, index: &Tensor) -> Result<Tensor> {
    let (windows, saved) = (windows.clone(), Saved::input(index));
    record(windows.names[0], &[x], y, move |t| gradients![max_gradient(&windows, t.dy(), &t.get(&saved)?)?])
}

/// `dx[j] = sum of dy[q] over windows q whose largest element is j`; linear in dy.
fn max_gradient(windows: &Windows, dy: &Tensor, index: &Tensor) -> Result<Tensor> {
    let op = windows.names[1];
    let dx = Tensor::allocate(op, &windows.from, dy.dtype(), dy.device())?;
    run_fused(op, &MaxPoolBackward(windows.geometry()), &[&dy.contiguous()?, index], &[&dx])?;
    let (windows, saved) = (windows.clone(), Saved::input(index));
    record(op, &[dy], dx, move |t| {
        let (index, planes, outputs) = (t.get(&saved)?, windows.planes, windows.outputs());
        let index = match index.dtype() {
            DType::U8 => {
                let number = index.cast(DType::I64)?.reshape((planes, outputs, 1))?;
                in_table(&windows.table(&index)?, &number)?
            }
            _ => index.reshape((planes, outputs))?,
        };
        gradients![Some(t.dy().reshape((planes, windows.volume()))?.gather(1, &index)?.reshape(&windows.to)?)]
    })
}

fn avg_pool(x: &Tensor, windows: &Windows, divisor: Divisor) -> Result<Tensor> {
    let shape = &windows.to;
    if shape.numel() == 0 {
        return nothing(x, windows);
    }
    // The mean of each volume: a reduction, whose gradient is not written.
    if windows.is_global() && !matches!(divisor, Divisor::Number(_)) {
        let volume = shape.dims().iter().rev().take_while(|&&extent| extent == 1).count() as isize;
        return x.mean_keepdim((-volume..0).collect::<Vec<_>>());
    }
    if has_kernel::<AvgPoolForward>(x) {
        return linear(x, windows, divisor, Way::Forward);
    }
    let rows = x.reshape((windows.planes, windows.volume()))?;
    // What the kernels compute, in tensor ops.
    let (outputs, device) = (windows.outputs(), x.device());
    let table = windows.table(x)?;
    let is_inside = host::collect(windows.names[0], windows.positions()?.iter().map(Option::is_some))?;
    let is_inside = Tensor::from_vec(is_inside, table.shape(), device)?;
    in_acc(&rows, |rows| {
        let elements = rows.index_select(1, &table.reshape(table.numel())?)?;
        let elements = elements.reshape((windows.planes, outputs, table.dims()[1]))?;
        let sums = is_inside.where_scalar(&elements, 0.0)?.sum(2)?;
        let divisors = Tensor::from_vec(windows.divisors(divisor)?, outputs, device)?.cast(sums.dtype())?;
        sums.div(&divisors)
    })?
    .reshape(shape)
}

/// The average, or its gradient.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Forward,
    Backward,
}

/// The kernel of an average or of its gradient, each of which is the other's gradient.
fn linear(x: &Tensor, windows: &Windows, divisor: Divisor, way: Way) -> Result<Tensor> {
    let x = x.contiguous()?;
    let forward = AvgPoolForward { windows: windows.geometry(), divisor };
    let backward = AvgPoolBackward(forward);
    let (op, kernel, shape, back): (_, &dyn Fused, _, _) = match way {
        Way::Forward => (windows.names[0], &forward, &windows.to, Way::Backward),
        Way::Backward => (windows.names[1], &backward, &windows.from, Way::Forward),
    };
    let y = Tensor::allocate(op, shape, x.dtype(), x.device())?;
    run_fused(op, kernel, &[&x], &[&y])?;
    let windows = windows.clone();
    record(op, &[&x], y, move |t| gradients![Some(linear(t.dy(), &windows, divisor, back)?)])
}
