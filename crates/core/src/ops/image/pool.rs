//! Pooling: the maximum or the average of windows.

use crate::check::{check_float, describe};
use crate::fused::{Fused, gradient_by_ops, has_kernel, run_fused};
use crate::operands::{Input, Output};
use crate::ops::image::window::{Last, Window, Windows};
use crate::ops::reduction::reduce::argmax_last_nan;
use crate::ops::{gradients, in_acc, named};
use crate::tape::{Described, Saved, is_recording, record, report_as};
use crate::{DType, Error, Layout, Result, Shape, Tensor, autocast, host, no_autocast};
use std::iter::zip;

/// As an output extent of an adaptive pooling: the extent of the input.
pub const KEEP: usize = usize::MAX;

/// The windows of a maximum over the last `N` dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPool<const N: usize> {
    /// Elements of a window.
    pub kernel: [usize; N],
    /// Distance between adjacent windows.
    pub stride: [usize; N],
    /// Padding before the first and after the last element. It is never the maximum. At most half a window.
    pub padding: [usize; N],
    /// Padding after the last element, if it differs.
    pub padding_end: Option<[usize; N]>,
    /// Distance between adjacent elements of a window.
    pub dilation: [usize; N],
    /// True if the input may cut off the last window.
    pub ceil_mode: bool,
}

impl<const N: usize> MaxPool<N> {
    /// Adjacent windows, without padding.
    pub fn new(kernel: [usize; N]) -> MaxPool<N> {
        MaxPool { kernel, stride: kernel, padding: [0; N], padding_end: None, dilation: [1; N], ceil_mode: false }
    }
}

/// The windows of an average over the last `N` dimensions, and the divisor of their sums. The average of a window whose sum
/// overflows is infinite. Windows with gaps, and windows that are cut off between paddings that differ at the two ends, are computed in
/// several kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvgPool<const N: usize> {
    /// Elements of a window.
    pub kernel: [usize; N],
    /// Distance between adjacent windows.
    pub stride: [usize; N],
    /// Zeros before the first and after the last element. At most half a window.
    pub padding: [usize; N],
    /// Zeros after the last element, if their number differs.
    pub padding_end: Option<[usize; N]>,
    /// Distance between adjacent elements of a window.
    pub dilation: [usize; N],
    /// True if the input may cut off the last window.
    pub ceil_mode: bool,
    /// True if the zeros of the padding count as elements.
    pub count_include_pad: bool,
    /// The divisor of all sums, instead of the number of elements. Not 0.
    pub divisor_override: Option<i64>,
}

impl<const N: usize> AvgPool<N> {
    /// Adjacent windows, without padding.
    pub fn new(kernel: [usize; N]) -> AvgPool<N> {
        AvgPool {
            kernel,
            stride: kernel,
            padding: [0; N],
            padding_end: None,
            dilation: [1; N],
            ceil_mode: false,
            count_include_pad: true,
            divisor_override: None,
        }
    }
}

/// The largest number of elements of a window that are numbered by a byte.
const BYTE: usize = 256;

/// The names of an op and its gradient.
type Names = [&'static str; 2];

macro_rules! pools {
    ($($n:literal $max:ident $max_indices:ident $avg:ident $adaptive_max:ident $adaptive_max_indices:ident $adaptive_avg:ident
       $names:expr;)*) => {
        impl Tensor {$(
            #[doc = concat!("The largest element of each window over the last ", stringify!($n), " dimensions of ")]
            /// `[N, C, ..]` or `[C, ..]`. NaN is the largest. Float dtypes. The gradient goes to the first of equal elements, and
            /// to the last NaN.
            ///
            /// Errors: `Dtype`; `Attr` for a kernel, stride or dilation of 0, a padding of more than half a window, a stride or
            /// padding of 2^31 or more, or a window that has or spans 2^31 elements or more; `Shape` for another rank, no channels,
            /// an empty dimension, no window, or a window inside the padding.
            pub fn $max(&self, pool: &MaxPool<$n>) -> Result<Tensor> {
                max_values(self, &of_max($names[0], self, pool)?)
            }

            #[doc = concat!("[`", stringify!($max), "`](Tensor::", stringify!($max), "), and the positions of the elements (i64),")]
            /// counted in row-major order over these dimensions.
            pub fn $max_indices(&self, pool: &MaxPool<$n>) -> Result<(Tensor, Tensor)> {
                max_pool(self, &of_max($names[0], self, pool)?, Want::Indices)
            }

            #[doc = concat!("The average of each window over the last ", stringify!($n), " dimensions of ")]
            /// `[N, C, ..]` or `[C, ..]`. The padding bounds the windows. Float dtypes. Errors: as for the maximum, and `Attr` for
            /// a divisor of 0.
            pub fn $avg(&self, pool: &AvgPool<$n>) -> Result<Tensor> {
                let (pooling, divisor) = of_avg($names[1], self, pool)?;
                avg_pool(self, &pooling, divisor)
            }

            #[doc = concat!("The largest elements of `output` windows over the last ", stringify!($n), " dimensions of ")]
            /// `[N, C, ..]` or `[C, ..]`. Window `i` of `O` over `L` elements is `floor(i L / O) .. ceil((i + 1) L / O)`. An extent
            /// may be [`KEEP`]. NaN and gradients are as for other windows. Errors: `Dtype`, `Shape`.
            pub fn $adaptive_max(&self, output: [usize; $n]) -> Result<Tensor> {
                max_values(self, &adaptive($names[2], self, output)?)
            }

            #[doc = concat!("[`", stringify!($adaptive_max), "`](Tensor::", stringify!($adaptive_max), "), and the")]
            /// positions of the elements (i64), counted in row-major order over these dimensions.
            pub fn $adaptive_max_indices(&self, output: [usize; $n]) -> Result<(Tensor, Tensor)> {
                max_pool(self, &adaptive($names[2], self, output)?, Want::Indices)
            }

            #[doc = concat!("The averages of `output` windows over the last ", stringify!($n), " dimensions, with the windows of")]
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
            /// for another rank, no channels or no elements.
            pub fn $avg(&self) -> Result<Tensor> {
                avg_pool(self, &adaptive($names[0], self, [1; $n])?, Divisor::Inside)
            }

            #[doc = concat!("The largest elements of all ", $all, " of ", $of, ": ", $to, ". NaN and gradients are as for other windows.")]
            #[doc = concat!("Errors: as [`", stringify!($avg), "`](Tensor::", stringify!($avg), ").")]
            pub fn $max(&self) -> Result<Tensor> {
                max_values(self, &adaptive($names[1], self, [1; $n])?)
            }

            #[doc = concat!("[`", stringify!($max), "`](Tensor::", stringify!($max), "), and the positions of the elements (i64),")]
            /// counted in row-major order over these dimensions.
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

macro_rules! more_pools {
    ($($n:literal $lp:ident $avg:ident $unpool:ident $lp_name:literal $unpool_name:literal;)*) => {
        impl Tensor {$(
            #[doc = concat!("The norm of order p of each window over the last ", stringify!($n), " dimensions of ")]
            /// `[N, C, ..]` or `[C, ..]`: the p-th root of the sum of p-th powers. A negative sum counts as 0. The average of a window
            /// that the input cuts off is multiplied by the size of a whole one, as in PyTorch. The gradient of a sum of 0 is 0. Float
            /// dtypes. Errors: `Dtype`; `Attr` unless p is positive and finite, and as for the average; `Shape`.
            pub fn $lp(&self, p: f64, pool: &LpPool<$n>) -> Result<Tensor> {
                lp_pool($lp_name, self, p, pool.size(), |x| x.$avg(&pool.windows()))
            }

            #[doc = concat!("Zeros of these extents in the last ", stringify!($n), " dimensions, with the elements of this tensor at")]
            /// the positions (i64 or i32) that a maximum with indices returned. Of several elements for one position the last stays.
            /// Errors: `Shape` unless both have one shape `[N, C, ..]` or `[C, ..]`; `Dtype`; `Index`.
            pub fn $unpool(&self, indices: &Tensor, size: [usize; $n]) -> Result<Tensor> {
                max_unpool($unpool_name, self, indices, &size)
            }
        )*}
    };
}

more_pools! {
    1 lp_pool1d avg_pool1d max_unpool1d "lp_pool1d" "max_unpool1d";
    2 lp_pool2d avg_pool2d max_unpool2d "lp_pool2d" "max_unpool2d";
    3 lp_pool3d avg_pool3d max_unpool3d "lp_pool3d" "max_unpool3d";
}

/// The windows of a norm over the last `N` dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LpPool<const N: usize> {
    /// Elements of a window.
    pub kernel: [usize; N],
    /// Distance between adjacent windows.
    pub stride: [usize; N],
    /// True if the input may cut off the last window.
    pub ceil_mode: bool,
}

impl<const N: usize> LpPool<N> {
    /// Adjacent windows.
    pub fn new(kernel: [usize; N]) -> LpPool<N> {
        LpPool { kernel, stride: kernel, ceil_mode: false }
    }

    fn size(&self) -> f64 {
        self.kernel.iter().map(|&k| k as f64).product()
    }

    fn windows(&self) -> AvgPool<N> {
        AvgPool { stride: self.stride, ceil_mode: self.ceil_mode, ..AvgPool::new(self.kernel) }
    }
}

/// `(size average(x^p))^(1/p)`.
fn lp_pool(
    op: &'static str,
    x: &Tensor,
    p: f64,
    size: f64,
    average: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if let Some(([x], _)) = autocast::wide([x], None)? {
        return lp_pool(op, &x, p, size, average);
    }
    check_float(op, x)?;
    if !(p > 0.0 && p.is_finite()) {
        return Err(Error::attr(op, format!("p is {p}, expected a positive number")));
    }
    named(op, &[x], || {
        in_acc(x, |x| {
            let sums = average(&x.pow_scalar(p)?)?.mul_scalar(size)?;
            let is_positive = sums.gt_scalar(0.0)?;
            let root = is_positive.where_scalar(&sums, 1.0)?.pow_scalar(1.0 / p)?;
            // A NaN sum stays NaN.
            is_positive.where_cond(&root, &sums.clamp(None, Some(0.0.into()))?.mul_scalar(0.0)?)
        })
    })
}

fn max_unpool(op: &'static str, x: &Tensor, indices: &Tensor, size: &[usize]) -> Result<Tensor> {
    let rank = x.rank();
    if x.shape() != indices.shape() || ![size.len() + 1, size.len() + 2].contains(&rank) {
        let message = format!("got {}, expected one shape [N, C, ..] or [C, ..]", describe(&[x, indices]));
        return Err(Error::shape(op, format!("{message} with {} dimensions after C", size.len())));
    }
    named(op, &[x, indices], || {
        let to = Shape::from([&x.dims()[..rank - size.len()], size].concat());
        to.check(op)?;
        let volume: usize = size.iter().product();
        let planes: usize = x.dims()[..rank - size.len()].iter().product();
        let outputs: usize = x.dims()[rank - size.len()..].iter().product();
        let zeros = Tensor::zeros((planes, volume), x.dtype(), x.device())?;
        let rows = |t: &Tensor| t.reshape((planes, outputs));
        zeros.scatter(1, &rows(indices)?, &rows(x)?)?.reshape(to)
    })
}

/// The results of a maximum that are needed.
#[derive(Clone, Copy, PartialEq)]
enum Want {
    Values,
    Indices,
}

/// The divisor of a window's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divisor {
    /// The number of its elements, without padding.
    Inside,
    /// The number of its elements, with padding.
    Window,
    /// A constant.
    Number(i64),
}

/// A pooling of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The number of the dimensions that windows have.
    pub rank: usize,
    /// The windows, in three dimensions. Adaptive ones differ in their extents.
    pub window: Window<3>,
    /// True if the number of windows is given, which together cover the input.
    pub is_adaptive: bool,
    /// True if the input cuts off the last window.
    pub is_cut: bool,
    /// The divisor of sums; `None` for the maximum.
    pub divisor: Option<Divisor>,
}

impl Described for Pool {
    type Inputs<T> = Input<T>;
}

/// The largest element of each window of x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPoolForward(pub Windows);

crate::operands! {
    /// The outputs of [`MaxPoolForward`].
    pub struct MaxPoolOutputs {
        /// The largest elements.
        y,
        /// Their positions: numbers within the windows as u8, or positions in the volume as i32 or i64.
        index?,
    }
}

/// The gradient of [`MaxPoolForward`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPoolBackward(pub Windows);

crate::operands! {
    /// The inputs of [`MaxPoolBackward`].
    pub struct MaxPoolBackwardInputs {
        /// The gradient of y.
        dy,
        /// The positions that the forward kernel wrote.
        index,
    }
}

/// The sum of each window of x over a divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvgPoolForward {
    /// The windows.
    pub windows: Windows,
    /// The divisor of the sums.
    pub divisor: Divisor,
}

/// The gradient of [`AvgPoolForward`], from that of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvgPoolBackward(pub AvgPoolForward);

/// x with batch and channels merged into one dimension.
fn volumes(windows: &Windows, x: &Tensor) -> Result<Tensor> {
    let [depth, height, width] = windows.input;
    x.reshape((windows.planes, depth, height, width))
}

fn max_pool_by_ops(windows: &Windows, x: &Tensor) -> Result<(Tensor, Tensor)> {
    let (x, &Windows { kernel, stride, low: padding, high, dilation, .. }) = (volumes(windows, x)?, windows);
    if windows.is_adaptive {
        return x.adaptive_max_pool3d_with_indices(windows.output);
    }
    let (padding_end, ceil_mode) = (Some(high), !windows.are_whole());
    x.max_pool3d_with_indices(&MaxPool { kernel, stride, padding, padding_end, dilation, ceil_mode })
}

/// Converts positions in an index from digits in `from` to digits in `to`, dimension by dimension. `f` gets a digit, the window's
/// first position, and the step between its elements.
fn renumbered(
    windows: &Windows,
    index: &Tensor,
    [from, to]: [[usize; 3]; 2],
    f: impl Fn(i64, i64, i64) -> i64,
) -> Result<Tensor> {
    let digits = |v: usize, of: [usize; 3]| [v / of[2] / of[1], v / of[2] % of[1], v % of[2]];
    let one = |(i, &v): (usize, &i64)| {
        let (window, v) = (digits(i % windows.outputs(), windows.output), digits(v as usize, from));
        let first = |d: usize| (window[d] * windows.stride[d]) as i64 - windows.low[d] as i64;
        let found = [0, 1, 2].map(|d| f(v[d] as i64, first(d), windows.dilation[d] as i64));
        (found[0] * to[1] as i64 + found[1]) * to[2] as i64 + found[2]
    };
    let values: Vec<i64> = index.cast(DType::I64)?.to_vec::<i64>()?.iter().enumerate().map(one).collect();
    Tensor::from_vec(values, index.shape(), index.device())
}

/// Positions in volumes as numbers within windows.
fn numbers(windows: &Windows, index: &Tensor) -> Result<Tensor> {
    renumbered(windows, index, [windows.input, windows.kernel], |at, first, step| (at - first) / step)
}

/// Numbers within windows as positions in volumes.
fn places(windows: &Windows, index: &Tensor) -> Result<Tensor> {
    renumbered(windows, index, [windows.kernel, windows.input], |number, first, step| first + number * step)
}

impl Fused for MaxPoolForward {
    type Inputs<T> = Input<T>;
    type Outputs<T> = MaxPoolOutputs<T>;

    fn name(&self) -> &'static str {
        "max_pool"
    }

    fn composite(
        &self,
        Input { x }: Input<&Tensor>,
        before: MaxPoolOutputs<&Tensor>,
    ) -> Result<MaxPoolOutputs<Option<Tensor>>> {
        let (y, index) = max_pool_by_ops(&self.0, x)?;
        let index = before.index.map(|before| match before.dtype() {
            DType::U8 => numbers(&self.0, &index).map(Some),
            _ => Ok(Some(index)),
        });
        Ok(MaxPoolOutputs { y: Some(y), index: index.transpose()? })
    }
}

impl Fused for MaxPoolBackward {
    type Inputs<T> = MaxPoolBackwardInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "max_pool_backward"
    }

    fn composite(
        &self,
        MaxPoolBackwardInputs { dy, index }: MaxPoolBackwardInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        let index = match index.dtype() {
            DType::U8 => places(&self.0, index)?,
            _ => index.cast(DType::I64)?,
        };
        let shape = (self.0.planes, self.0.outputs());
        let (index, dy) = (index.reshape(shape)?, dy.reshape(shape)?);
        let zeros = Tensor::zeros((self.0.planes, self.0.volume()), dy.dtype(), dy.device())?;
        Ok(Output { y: Some(zeros.scatter_add(1, &index, &dy)?) })
    }
}

impl AvgPoolForward {
    fn output(&self, x: &Tensor) -> Result<Tensor> {
        let (x, windows) = (volumes(&self.windows, x)?, self.windows);
        let Windows { kernel, stride, low: padding, high, dilation, .. } = windows;
        if self.windows.is_adaptive {
            return x.adaptive_avg_pool3d(self.windows.output);
        }
        let divisor_override = if let Divisor::Number(number) = self.divisor { Some(number) } else { None };
        let (ceil_mode, count_include_pad) = (!self.windows.are_whole(), self.divisor == Divisor::Window);
        let padding_end = Some(high);
        x.avg_pool3d(&AvgPool {
            kernel,
            stride,
            padding,
            padding_end,
            dilation,
            ceil_mode,
            count_include_pad,
            divisor_override,
        })
    }
}

impl Fused for AvgPoolForward {
    type Inputs<T> = Input<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "avg_pool"
    }

    fn composite(&self, Input { x }: Input<&Tensor>, _before: Output<&Tensor>) -> Result<Output<Option<Tensor>>> {
        Ok(Output { y: Some(self.output(x)?) })
    }
}

impl Fused for AvgPoolBackward {
    type Inputs<T> = Input<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "avg_pool_backward"
    }

    fn composite(&self, Input { x: dy }: Input<&Tensor>, before: Output<&Tensor>) -> Result<Output<Option<Tensor>>> {
        let x = before.y.require_grad()?;
        gradient_by_ops(&x, dy, || self.0.output(&x))
    }
}

/// A pooling: its windows, and the shapes of its input and result.
#[derive(Clone)]
struct Pooling {
    names: Names,
    /// The number of pooled dimensions.
    rank: usize,
    windows: Windows,
    from: Shape,
    to: Shape,
}

/// Checks that a tensor can be pooled over its last `N` dimensions.
pub(crate) fn check<const N: usize>(op: &'static str, x: &Tensor) -> Result<()> {
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
    Ok(())
}

fn of_max<const N: usize>(names: Names, x: &Tensor, pool: &MaxPool<N>) -> Result<Pooling> {
    let MaxPool { kernel, stride, padding, padding_end, dilation, ceil_mode } = *pool;
    let op = names[0];
    check::<N>(op, x)?;
    let window = Window { kernel, stride, low: padding, high: padding_end.unwrap_or(padding), dilation };
    window.check(op)?;
    if (0..N).any(|d| window.low[d].max(window.high[d]) > window.span(d) / 2) {
        let message = format!("padding {} is more than half a window of {kernel:?}", window.padding());
        return Err(Error::attr(op, format!("{message}, dilation {dilation:?}")));
    }
    let windows = Windows::new(op, x.shape(), &window, if ceil_mode { Last::Cut } else { Last::Whole })?;
    let to = windows.output_shape::<N>(op, x.shape())?;
    if windows.have_hollow() {
        let padding = window.padding();
        let message = format!("a window {kernel:?} with dilation {dilation:?} and padding {padding} has no element of");
        return Err(Error::shape(op, format!("{message} {}", x.shape())));
    }
    Ok(Pooling { names, rank: N, windows, from: x.shape().clone(), to })
}

fn of_avg<const N: usize>(names: Names, x: &Tensor, pool: &AvgPool<N>) -> Result<(Pooling, Divisor)> {
    let AvgPool { kernel, stride, padding, padding_end, dilation, ceil_mode, count_include_pad, divisor_override } =
        *pool;
    if divisor_override == Some(0) {
        return Err(Error::attr(names[0], "divisor_override is 0"));
    }
    let pooling = of_max(names, x, &MaxPool { kernel, stride, padding, padding_end, dilation, ceil_mode })?;
    let by_size = if count_include_pad { Divisor::Window } else { Divisor::Inside };
    Ok((pooling, divisor_override.map_or(by_size, Divisor::Number)))
}

fn adaptive<const N: usize>(names: Names, x: &Tensor, output: [usize; N]) -> Result<Pooling> {
    check::<N>(names[0], x)?;
    let mut last = output;
    zip(&mut last, &x.dims()[x.rank() - N..]).filter(|(o, _)| **o == KEEP).for_each(|(o, l)| *o = *l);
    let windows = Windows::adaptive(x.shape(), last);
    let to = windows.output_shape::<N>(names[0], x.shape())?;
    Ok(Pooling { names, rank: N, windows, from: x.shape().clone(), to })
}

impl Pooling {
    /// The pooling of `[N, .., C]` that is that of x `[N, C, ..]`, if x has its channels last in memory and a kernel of windows is fastest.
    fn with_channels_at_end(&self, x: &Tensor) -> Option<Pooling> {
        let is_kernels = x.rank() == self.rank + 2 && x.is_channels_last() && self.windows.window() <= BYTE;
        if !is_kernels || !has_kernel::<MaxPoolForward>(x) || self.windows.is_global() {
            return None;
        }
        let at_end = |shape: &Shape| Layout::contiguous(shape.clone()).with_channels_at_end().shape().clone();
        let windows = self.windows.with_channels_at_end(x.dims()[1])?;
        Some(Pooling { windows, from: at_end(&self.from), to: at_end(&self.to), ..self.clone() })
    }

    /// Reports the pooling of x.
    fn report(&self, x: &Tensor, outputs: &[&Tensor], divisor: Option<Divisor>) {
        report_as(self.names[0], Input { x }, outputs, || {
            let is_adaptive = self.windows.is_adaptive;
            let is_cut = !is_adaptive && !self.windows.are_whole();
            Pool { rank: self.rank, window: self.windows.attributes(), is_adaptive, is_cut, divisor }
        });
    }

    /// Positions as an index `[outputs, window]`. A position in the padding is replaced by the element before it in the window, or
    /// by the window's first. This keeps the first of equal elements, and the last NaN.
    fn table(&self, x: &Tensor) -> Result<Tensor> {
        let window = self.windows.window();
        let positions = self.windows.positions(self.names[0])?;
        let mut table = host::with_room(self.names[0], positions.len())?;
        for positions in positions.chunks(window) {
            let mut last = positions.iter().flatten().next().copied().unwrap_or(0);
            for position in positions {
                last = position.unwrap_or(last);
                table.push(last as i64);
            }
        }
        Tensor::from_vec(table, (self.windows.outputs(), window), x.device())
    }

    /// The divisor of each window's sum, `[outputs]`.
    fn divisors(&self, divisor: Divisor) -> Result<Vec<f64>> {
        let (op, windows) = (self.names[0], &self.windows);
        let [_, height, width] = windows.output;
        let size = |i: usize| {
            let at = [i / width / height, i / width % height, i % width];
            (0..3).map(|d| windows.size(d, at[d])).product::<usize>() as f64
        };
        let inside = |all: &[Option<usize>]| all.iter().flatten().count() as f64;
        match divisor {
            Divisor::Number(number) => host::repeated(op, number as f64, windows.outputs()),
            Divisor::Window => host::collect(op, (0..windows.outputs()).map(size)),
            Divisor::Inside => host::collect(op, windows.positions(op)?.chunks(windows.window()).map(inside)),
        }
    }
}

/// An empty result.
fn nothing(x: &Tensor, pooling: &Pooling) -> Result<Tensor> {
    x.reshape(x.numel())?.narrow(0, 0, 0)?.reshape(&pooling.to)
}

/// The largest elements. Their positions are computed only if the gradient needs them.
fn max_values(x: &Tensor, pooling: &Pooling) -> Result<Tensor> {
    if is_recording(&[x]) || pooling.to.numel() == 0 || !is_by_windows(x, pooling) {
        return Ok(max_pool(x, pooling, Want::Values)?.0);
    }
    let y = match pooling.with_channels_at_end(x) {
        Some(last) => values_of_windows(&x.with_channels_at_end()?, &last)?.with_channels_second()?,
        None => values_of_windows(x, pooling)?,
    };
    pooling.report(x, &[&y], None);
    Ok(y)
}

/// The largest elements, outside of the tape.
fn values_of_windows(x: &Tensor, pooling: &Pooling) -> Result<Tensor> {
    let (op, x) = (pooling.names[0], x.contiguous()?);
    let y = Tensor::allocate(op, &pooling.to, x.dtype(), x.device())?;
    run_fused(op, &MaxPoolForward(pooling.windows), Input { x: &x }, MaxPoolOutputs { y: &y, index: None })?;
    Ok(y)
}

/// True if a kernel over windows computes the maximum. It has one thread per window, so a reduction is faster for a long row.
fn is_by_windows(x: &Tensor, pooling: &Pooling) -> bool {
    has_kernel::<MaxPoolForward>(x) && !(pooling.windows.is_global() && pooling.windows.volume() > BYTE)
}

/// The largest elements and their positions.
fn max_pool(x: &Tensor, pooling: &Pooling, want: Want) -> Result<(Tensor, Tensor)> {
    // Positions count elements in row-major order.
    let last = pooling.with_channels_at_end(x).filter(|_| want == Want::Values && pooling.to.numel() > 0);
    let (y, index) = match last {
        Some(last) => {
            let (y, index) = largest_of_windows(&x.with_channels_at_end()?, &last, want)?;
            (y.with_channels_second()?, index)
        }
        None => largest_of_windows(x, pooling, want)?,
    };
    match want {
        Want::Indices => pooling.report(x, &[&y, &index], None),
        Want::Values => pooling.report(x, &[&y], None),
    }
    Ok((y, index))
}

fn largest_of_windows(x: &Tensor, pooling: &Pooling, want: Want) -> Result<(Tensor, Tensor)> {
    let op = pooling.names[0];
    let shape = &pooling.to;
    if shape.numel() == 0 {
        return Ok((nothing(x, pooling)?, Tensor::zeros(shape, DType::I64, x.device())?));
    }
    if !is_by_windows(x, pooling) {
        let rows = x.reshape((pooling.windows.planes, pooling.windows.volume()))?;
        let index = largest(&rows.detach(), pooling)?;
        let found = index.reshape(shape)?;
        if !has_kernel::<MaxPoolForward>(x) {
            return Ok((rows.gather(1, &index)?.reshape(shape)?, found));
        }
        let y = x.detach().reshape(rows.shape())?.gather(1, &index)?.reshape(shape)?;
        return Ok((on_tape(x, pooling, y, &found)?, found));
    }
    let x = x.contiguous()?;
    let window = pooling.windows.window();
    let dtype = match want {
        Want::Indices => DType::I64,
        // The number of an element within its window takes fewer bits than its position.
        Want::Values if window <= BYTE && !pooling.windows.is_adaptive => DType::U8,
        Want::Values if pooling.windows.volume() <= i32::MAX as usize => DType::I32,
        Want::Values => DType::I64,
    };
    let y = Tensor::allocate(op, shape, x.dtype(), x.device())?;
    let index = Tensor::allocate(op, shape, dtype, x.device())?;
    let outputs = MaxPoolOutputs { y: &y, index: Some(&index) };
    run_fused(op, &MaxPoolForward(pooling.windows), Input { x: &x }, outputs)?;
    Ok((on_tape(&x, pooling, y, &index)?, index))
}

/// The position `[planes, outputs]` of each window's largest element in rows `[planes, volume]`.
fn largest(rows: &Tensor, pooling: &Pooling) -> Result<Tensor> {
    let op = pooling.names[0];
    if pooling.windows.is_global() {
        return argmax_last_nan(op, rows)?.unsqueeze(1);
    }
    let table = pooling.table(rows)?;
    let (planes, outputs, window) = (pooling.windows.planes, table.dims()[0], table.dims()[1]);
    let elements = rows.index_select(1, &table.reshape(outputs * window)?)?.reshape((planes * outputs, window))?;
    let number = argmax_last_nan(op, &elements)?.reshape((planes, outputs, 1))?;
    in_table(&table, &number)
}

/// The positions of the elements with these numbers `[planes, outputs, 1]` within their windows.
fn in_table(table: &Tensor, number: &Tensor) -> Result<Tensor> {
    let (planes, outputs) = (number.dims()[0], number.dims()[1]);
    let table = table.unsqueeze(0)?.broadcast_to((planes, outputs, table.dims()[1]))?;
    table.gather(2, number)?.squeeze(2)
}

/// Puts the result of a kernel on the tape. The index gives the destinations of the gradient.
fn on_tape(x: &Tensor, pooling: &Pooling, y: Tensor, index: &Tensor) -> Result<Tensor> {
    let (pooling, saved) = (pooling.clone(), Saved::input(index));
    record(pooling.names[0], &[x], y, move |t| gradients![max_gradient(&pooling, t.dy(), &t.get(&saved)?)?])
}

/// `dx[j] = sum of dy[q] over windows q whose largest element is j`; linear in dy.
fn max_gradient(pooling: &Pooling, dy: &Tensor, index: &Tensor) -> Result<Tensor> {
    let op = pooling.names[1];
    let dx = Tensor::allocate(op, &pooling.from, dy.dtype(), dy.device())?;
    let inputs = MaxPoolBackwardInputs { dy: &dy.contiguous()?, index };
    run_fused(op, &MaxPoolBackward(pooling.windows), inputs, Output { y: &dx })?;
    let (pooling, saved) = (pooling.clone(), Saved::input(index));
    record(op, &[dy], dx, move |t| {
        let (index, planes, outputs) = (t.get(&saved)?, pooling.windows.planes, pooling.windows.outputs());
        let index = match index.dtype() {
            DType::U8 => {
                let number = index.cast(DType::I64)?.reshape((planes, outputs, 1))?;
                in_table(&pooling.table(&index)?, &number)?
            }
            _ => index.reshape((planes, outputs))?,
        };
        gradients![Some(t.dy().reshape((planes, pooling.windows.volume()))?.gather(1, &index)?.reshape(&pooling.to)?)]
    })
}

fn avg_pool(x: &Tensor, pooling: &Pooling, divisor: Divisor) -> Result<Tensor> {
    let y = averages(x, pooling, divisor)?;
    pooling.report(x, &[&y], Some(divisor));
    Ok(y)
}

fn averages(x: &Tensor, pooling: &Pooling, divisor: Divisor) -> Result<Tensor> {
    let shape = &pooling.to;
    if shape.numel() == 0 {
        return nothing(x, pooling);
    }
    // The mean of each volume is a reduction, in the dtype of x as that of other windows. Its gradient is an expanded view.
    if pooling.windows.is_global() && !matches!(divisor, Divisor::Number(_)) {
        let volume = shape.dims().iter().rev().take_while(|&&extent| extent == 1).count() as isize;
        return no_autocast(|| x.mean_keepdim((-volume..0).collect::<Vec<_>>()));
    }
    if has_kernel::<AvgPoolForward>(x) && is_by_kernel(&pooling.windows) {
        return match pooling.with_channels_at_end(x) {
            Some(last) => linear(&x.with_channels_at_end()?, &last, divisor, Way::Forward)?.with_channels_second(),
            None => linear(x, pooling, divisor, Way::Forward),
        };
    }
    let rows = x.reshape((pooling.windows.planes, pooling.windows.volume()))?;
    // The composite of the kernels.
    let (outputs, device) = (pooling.windows.outputs(), x.device());
    let table = pooling.table(x)?;
    let is_inside =
        host::collect(pooling.names[0], pooling.windows.positions(pooling.names[0])?.iter().map(Option::is_some))?;
    let is_inside = Tensor::from_vec(is_inside, table.shape(), device)?;
    in_acc(&rows, |rows| {
        let elements = rows.index_select(1, &table.reshape(table.numel())?)?;
        let elements = elements.reshape((pooling.windows.planes, outputs, table.dims()[1]))?;
        let sums = is_inside.where_scalar(&elements, 0.0)?.sum(2)?;
        let divisors = Tensor::from_vec(pooling.divisors(divisor)?, outputs, device)?.cast(sums.dtype())?;
        sums.div(&divisors)
    })?
    .reshape(shape)
}

/// True for windows of an average that the kernels know: without gaps, and with one padding at both ends if one is cut off.
fn is_by_kernel(windows: &Windows) -> bool {
    windows.dilation == [1; 3] && (windows.low == windows.high || windows.are_whole())
}

/// The average, or its gradient.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Forward,
    Backward,
}

/// The kernel of an average or of its gradient. Each is the gradient of the other.
fn linear(x: &Tensor, pooling: &Pooling, divisor: Divisor, way: Way) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (op, shape, back) = match way {
        Way::Forward => (pooling.names[0], &pooling.to, Way::Backward),
        Way::Backward => (pooling.names[1], &pooling.from, Way::Forward),
    };
    let y = Tensor::allocate(op, shape, x.dtype(), x.device())?;
    let (kernel, from, to) = (AvgPoolForward { windows: pooling.windows, divisor }, Input { x: &x }, Output { y: &y });
    match way {
        Way::Forward => run_fused(op, &kernel, from, to)?,
        Way::Backward => run_fused(op, &AvgPoolBackward(kernel), from, to)?,
    }
    let pooling = pooling.clone();
    record(op, &[&x], y, move |t| gradients![Some(linear(t.dy(), &pooling, divisor, back)?)])
}
