//! Pooling.

use super::window::{Windows, array, of_rank};
use super::{Op, Table};
use crate::import::call::{Call, few, misshapen, sizes};
use crate::import::value::Value;
use isograd_core::ops::{AvgPool, LpPool, MaxPool, Pad, Rounding};
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[
    ("MaxPool", Op::Many(max_pool)),
    ("AveragePool", Op::Tensor(average_pool)),
    ("LpPool", Op::Tensor(lp_pool)),
    ("GlobalMaxPool", Op::Tensor(|c| globally(&c.x(0)?, |x, axes| x.amax(axes)))),
    ("GlobalAveragePool", Op::Tensor(|c| globally(&c.x(0)?, |x, axes| x.mean(axes)))),
    ("GlobalLpPool", Op::Tensor(global_lp_pool)),
    ("MaxUnpool", Op::Tensor(max_unpool)),
];

/// Pooling over a number of dimensions.
trait Pool<const N: usize> {
    fn largest(&self, pool: &MaxPool<N>) -> Result<(Tensor, Tensor)>;
    fn largest_alone(&self, pool: &MaxPool<N>) -> Result<Tensor>;
    fn average(&self, pool: &AvgPool<N>) -> Result<Tensor>;
    fn norm_of(&self, p: f64, pool: &LpPool<N>) -> Result<Tensor>;
    fn spread(&self, index: &Tensor, size: [usize; N]) -> Result<Tensor>;
}

macro_rules! pools {
    ($($n:literal $with_indices:ident $max:ident $avg:ident $lp:ident $unpool:ident;)*) => {$(
        impl Pool<$n> for Tensor {
            fn largest(&self, pool: &MaxPool<$n>) -> Result<(Tensor, Tensor)> {
                self.$with_indices(pool)
            }

            fn largest_alone(&self, pool: &MaxPool<$n>) -> Result<Tensor> {
                self.$max(pool)
            }

            fn average(&self, pool: &AvgPool<$n>) -> Result<Tensor> {
                self.$avg(pool)
            }

            fn norm_of(&self, p: f64, pool: &LpPool<$n>) -> Result<Tensor> {
                self.$lp(p, pool)
            }

            fn spread(&self, index: &Tensor, size: [usize; $n]) -> Result<Tensor> {
                self.$unpool(index, size)
            }
        }
    )*};
}
pools! {
    1 max_pool1d_with_indices max_pool1d avg_pool1d lp_pool1d max_unpool1d;
    2 max_pool2d_with_indices max_pool2d avg_pool2d lp_pool2d max_unpool2d;
    3 max_pool3d_with_indices max_pool3d avg_pool3d lp_pool3d max_unpool3d;
}

/// The extents over which windows lie: all but those of samples and channels.
fn volume(x: &Tensor) -> Result<&[usize]> {
    match x.dims() {
        [_, _, volume @ ..] if !volume.is_empty() => Ok(volume),
        _ => misshapen(format!("{} was given, expected [N, C, ..]", x.shape())),
    }
}

impl Windows {
    /// True if no padding is larger than half a window, as our kernels have it.
    fn is_narrow(&self) -> bool {
        (0..self.rank()).all(|d| self.low[d].max(self.high[d]) <= self.kernel[d] / 2)
    }

    fn unpadded(&self) -> Windows {
        Windows { low: vec![0; self.rank()], high: vec![0; self.rank()], ..self.clone() }
    }
}

fn max_pool(c: &Call<'_>) -> Result<Vec<Value>> {
    fn of<const N: usize>(
        x: &Tensor,
        windows: &Windows,
        ceil_mode: bool,
        wants: bool,
    ) -> Result<(Tensor, Option<Tensor>)>
    where
        Tensor: Pool<N>,
    {
        let pool = MaxPool {
            kernel: array(&windows.kernel),
            stride: array(&windows.stride),
            padding: array(&windows.low),
            padding_end: Some(array(&windows.high)),
            dilation: array(&windows.dilation),
            ceil_mode,
        };
        if wants { x.largest(&pool).map(|(y, i)| (y, Some(i))) } else { Ok((x.largest_alone(&pool)?, None)) }
    }
    let given = c.x(0)?;
    let windows = Windows::of(c, volume(&given)?, None)?;
    let (ceil, wants) = (c.flag("ceil_mode")?, c.node.outputs.get(1).is_some_and(Option::is_some));
    // Small integers are floats for the kernel.
    let x = if given.dtype().is_float() { given.clone() } else { given.cast(DType::F32)? };
    let (y, index) = if windows.is_narrow() {
        of_rank!(windows.rank(), of(&x, &windows, ceil, wants))?
    } else {
        let padded = x.pad(&windows.ends(), Pad::Constant(f64::NEG_INFINITY.into()))?;
        let (y, index) = of_rank!(windows.rank(), of(&padded, &windows.unpadded(), ceil, wants))?;
        (y, index.map(|index| unpadded_places(&index, padded.dims(), x.dims(), &windows)).transpose()?)
    };
    let mut results = vec![c.moved(0, y.cast(given.dtype())?)?];
    if let Some(index) = index {
        results.push(places_in_all(c, &index, x.dims())?.into());
    }
    Ok(results)
}

/// The coordinate along each of the last dimensions of places in these extents.
fn coordinates(places: &Tensor, extents: &[usize]) -> Result<Vec<Tensor>> {
    let mut rest = places.clone();
    let mut found = Vec::new();
    for &extent in extents.iter().rev() {
        let extent = Tensor::full((), extent as i64, DType::I64, places.device())?;
        found.push(rest.remainder(&extent)?);
        rest = rest.div_rounded(&extent, Rounding::Floor)?;
    }
    found.reverse();
    Ok(found)
}

/// Places of a volume with padding as places without it.
fn unpadded_places(index: &Tensor, padded: &[usize], dims: &[usize], windows: &Windows) -> Result<Tensor> {
    let mut places = index.zeros_like()?;
    for (d, at) in coordinates(index, &padded[2..])?.into_iter().enumerate() {
        places = places.mul_scalar(dims[d + 2] as i64)?.add(&at.sub_scalar(windows.low[d] as i64)?)?;
    }
    Ok(places)
}

/// Places of planes as places of the whole tensor, in row-major order, or with the first dimension of a plane running fastest.
fn places_in_all(c: &Call<'_>, index: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let volume: usize = dims[2..].iter().product();
    let mut within = index.clone();
    if c.flag("storage_order")? {
        within = index.zeros_like()?;
        for (at, &extent) in coordinates(index, &dims[2..])?.iter().zip(&dims[2..]).rev() {
            within = within.mul_scalar(extent as i64)?.add(at)?;
        }
    }
    let mut planes = vec![1; dims.len()];
    planes[..2].copy_from_slice(&dims[..2]);
    let first = Tensor::arange(dims[0] * dims[1], index.device())?.mul_scalar(volume as i64)?.reshape(planes)?;
    within.add(&first)
}

fn average_pool(c: &Call<'_>) -> Result<Tensor> {
    fn of<const N: usize>(x: &Tensor, windows: &Windows, ceil_mode: bool, count_include_pad: bool) -> Result<Tensor>
    where
        Tensor: Pool<N>,
    {
        let pool = AvgPool {
            kernel: array(&windows.kernel),
            stride: array(&windows.stride),
            padding: array(&windows.low),
            padding_end: Some(array(&windows.high)),
            dilation: array(&windows.dilation),
            ceil_mode,
            count_include_pad,
            divisor_override: None,
        };
        x.average(&pool)
    }
    let x = c.x(0)?;
    let windows = Windows::of(c, volume(&x)?, None)?;
    let (ceil, counts) = (c.flag("ceil_mode")?, c.flag("count_include_pad")?);
    if windows.is_narrow() {
        return of_rank!(windows.rank(), of(&x, &windows, ceil, counts));
    }
    let (ends, unpadded) = (windows.ends(), windows.unpadded());
    let sums = of_rank!(windows.rank(), of(&x.pad(&ends, Pad::ZEROS)?, &unpadded, ceil, true))?;
    if counts {
        return Ok(sums);
    }
    let mut dims = x.dims().to_vec();
    dims[..2].fill(1);
    let ones = Tensor::ones(dims, x.dtype(), x.device())?.pad(&ends, Pad::ZEROS)?;
    sums.div(&of_rank!(windows.rank(), of(&ones, &unpadded, ceil, true))?)
}

fn lp_pool(c: &Call<'_>) -> Result<Tensor> {
    fn of<const N: usize>(x: &Tensor, p: f64, windows: &Windows, ceil_mode: bool) -> Result<Tensor>
    where
        Tensor: Pool<N>,
    {
        x.norm_of(p, &LpPool { kernel: array(&windows.kernel), stride: array(&windows.stride), ceil_mode })
    }
    let (x, p) = (c.x(0)?, c.int("p", 2)? as f64);
    let windows = Windows::of(c, volume(&x)?, None)?;
    // Powers are those of absolute values.
    let (padded, ceil) = (x.abs()?.pad(&windows.ends(), Pad::ZEROS)?, c.flag("ceil_mode")?);
    if windows.dilation.iter().all(|&d| d == 1) {
        return of_rank!(windows.rank(), of(&padded, p, &windows.unpadded(), ceil));
    }
    // Windows with gaps: the mean of powers, times the number of elements.
    fn mean<const N: usize>(x: &Tensor, windows: &Windows, ceil_mode: bool) -> Result<Tensor>
    where
        Tensor: Pool<N>,
    {
        let (kernel, stride, dilation) = (array(&windows.kernel), array(&windows.stride), array(&windows.dilation));
        x.average(&AvgPool { stride, dilation, ceil_mode, divisor_override: Some(1), ..AvgPool::new(kernel) })
    }
    let powers = padded.pow_scalar(p)?;
    of_rank!(windows.rank(), mean(&powers, &windows, ceil))?.pow_scalar(1.0 / p)
}

/// A function of all elements of a channel, whose dimensions stay with the extent 1.
fn globally(x: &Tensor, f: impl Fn(&Tensor, Vec<isize>) -> Result<Tensor>) -> Result<Tensor> {
    let axes: Vec<isize> = (2..x.rank() as isize).collect();
    if axes.is_empty() {
        return misshapen(format!("{} was given, expected [N, C, ..]", x.shape()));
    }
    let mut dims = vec![1; x.rank()];
    dims[..2].copy_from_slice(&x.dims()[..2]);
    f(x, axes)?.reshape(dims)
}

fn global_lp_pool(c: &Call<'_>) -> Result<Tensor> {
    let p = c.int("p", 2)? as f64;
    globally(&c.x(0)?, |x, axes| x.norm(p, axes))
}

fn max_unpool(c: &Call<'_>) -> Result<Tensor> {
    fn of<const N: usize>(x: &Tensor, index: &Tensor, size: &[usize]) -> Result<Tensor>
    where
        Tensor: Pool<N>,
    {
        x.spread(index, array(size))
    }
    let (x, index) = (c.x(0)?, c.x(1)?);
    let windows = Windows::of(c, volume(&x)?, None)?;
    let extent = |d: usize| {
        let whole = (x.dims()[d + 2].max(1) - 1).saturating_mul(windows.stride[d]).saturating_add(windows.kernel[d]);
        whole.saturating_sub(windows.low[d]).saturating_sub(windows.high[d])
    };
    let size: Vec<usize> = (0..windows.rank()).map(extent).collect();
    let count = size.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)).unwrap_or(usize::MAX);
    let volume = Tensor::full((), few(count)?.max(1) as i64, DType::I64, x.device())?;
    let y = of_rank!(windows.rank(), of(&x, &index.remainder(&volume)?, &size))?;
    let Some(wanted) = c.optional_ints(2)? else { return Ok(y) };
    let wanted = sizes(&wanted)?;
    if wanted.len() != y.rank() {
        return misshapen(format!("the output is {wanted:?}, expected {} dimensions", y.rank()));
    }
    let ends: Vec<[isize; 2]> =
        wanted.iter().zip(y.dims()).map(|(&to, &from)| [0, to as isize - from as isize]).collect();
    y.pad(&ends, Pad::ZEROS)
}
