//! Convolutions.

use super::window::{Windows, array, of_rank};
use super::{Op, Table};
use crate::import::call::{Call, few, misshapen, sizes};
use isograd_core::ops::{Conv, ConvTranspose, Pad, Padding};
use isograd_core::{Result, Tensor};

pub const OPS: Table = &[
    ("Conv", Op::Tensor(|c| conv(c, &c.x(0)?, &c.x(1)?, c.optional(2)?.as_ref()))),
    ("ConvTranspose", Op::Tensor(conv_transpose)),
    ("DeformConv", Op::Tensor(deform_conv)),
    ("Col2Im", Op::Tensor(col2im)),
];

/// Convolutions of a number of dimensions.
trait Convolve<const N: usize> {
    fn convolve(&self, w: &Tensor, bias: Option<&Tensor>, conv: &Conv<N>) -> Result<Tensor>;
    fn transposed(&self, w: &Tensor, bias: Option<&Tensor>, conv: &ConvTranspose<N>) -> Result<Tensor>;
}

macro_rules! convolve {
    ($($n:literal $conv:ident $transposed:ident;)*) => {$(
        impl Convolve<$n> for Tensor {
            fn convolve(&self, w: &Tensor, bias: Option<&Tensor>, conv: &Conv<$n>) -> Result<Tensor> {
                self.$conv(w, bias, conv)
            }

            fn transposed(&self, w: &Tensor, bias: Option<&Tensor>, conv: &ConvTranspose<$n>) -> Result<Tensor> {
                self.$transposed(w, bias, conv)
            }
        }
    )*};
}
convolve! {
    1 conv1d conv_transpose1d;
    2 conv2d conv_transpose2d;
    3 conv3d conv_transpose3d;
}

fn groups(c: &Call<'_>) -> Result<usize> {
    Ok(sizes(&[c.int("group", 1)?])?[0])
}

/// The windows of a weight over x.
fn windows(c: &Call<'_>, x: &Tensor, w: &Tensor) -> Result<Windows> {
    if x.rank() < 3 || w.rank() != x.rank() {
        return misshapen(format!("{} was given with the weight {}, expected [N, C, ..]", x.shape(), w.shape()));
    }
    Windows::of(c, &x.dims()[2..], Some(w.dims()[2..].to_vec()))
}

/// The convolution that the attributes of a call describe.
pub fn conv(c: &Call<'_>, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    fn of<const N: usize>(x: [&Tensor; 2], bias: Option<&Tensor>, windows: &Windows, groups: usize) -> Result<Tensor>
    where
        Tensor: Convolve<N>,
    {
        let padding = Padding::Ends(std::array::from_fn(|d| [windows.low[d], windows.high[d]]));
        let conv = Conv { stride: array(&windows.stride), padding, dilation: array(&windows.dilation), groups };
        x[0].convolve(x[1], bias, &conv)
    }
    let (windows, groups) = (windows(c, x, w)?, groups(c)?);
    of_rank!(windows.rank(), of([x, w], bias, &windows, groups))
}

fn conv_transpose(c: &Call<'_>) -> Result<Tensor> {
    fn of<const N: usize>(
        x: [&Tensor; 2],
        bias: Option<&Tensor>,
        windows: &Windows,
        (padding, output_padding): (&[usize], &[usize]),
        groups: usize,
    ) -> Result<Tensor>
    where
        Tensor: Convolve<N>,
    {
        let conv = ConvTranspose {
            stride: array(&windows.stride),
            padding: array(padding),
            output_padding: array(output_padding),
            dilation: array(&windows.dilation),
            groups,
        };
        x[0].transposed(x[1], bias, &conv)
    }
    let (x, w, bias) = (c.x(0)?, c.x(1)?, c.optional(2)?);
    let (windows, groups) = (windows(c, &x, &w)?, groups(c)?);
    let rank = windows.rank();
    let more = sizes(&c.list("output_padding")?.unwrap_or_else(|| vec![0; rank]))?;
    if more.len() != rank {
        return misshapen(format!("output_padding is {more:?} for {rank} dimensions"));
    }
    let ends = removed(c, &x, &windows, &more)?;
    let is_even = |d: usize| ends[d][0] == ends[d][1] && ends[d][0] >= 0;
    let fits = |d: usize| more[d] < windows.stride[d] || more[d] < windows.dilation[d];
    if (0..rank).all(|d| is_even(d) && fits(d)) {
        let padding: Vec<usize> = ends.iter().map(|ends| ends[0] as usize).collect();
        return of_rank!(rank, of([&x, &w], bias.as_ref(), &windows, (&padding, &more), groups));
    }
    let none = vec![0; rank];
    let whole = of_rank!(rank, of([&x, &w], None, &windows, (&none, &none), groups))?;
    let ends: Vec<[isize; 2]> = (0..rank).map(|d| [-ends[d][0], more[d] as isize - ends[d][1]]).collect();
    // Elements that nothing is added to have the bias as well.
    let y = whole.pad(&ends, Pad::ZEROS)?;
    match bias {
        None => Ok(y),
        Some(bias) => {
            let mut dims = vec![1; y.rank()];
            dims[1] = bias.numel();
            y.add(&bias.reshape(dims)?)
        }
    }
}

/// The elements that are removed from both ends of the output of a transposed convolution; negative ones are added.
fn removed(c: &Call<'_>, x: &Tensor, windows: &Windows, more: &[usize]) -> Result<Vec<[isize; 2]>> {
    let rank = windows.rank();
    let automatic = c.text("auto_pad", "NOTSET")?;
    let is_same = automatic.starts_with("SAME");
    let wanted = c.list("output_shape")?;
    if !is_same && wanted.is_none() {
        return Ok(windows.ends());
    }
    let wanted = match wanted {
        Some(list) => sizes(&list[list.len().saturating_sub(rank)..])?,
        None => (0..rank).map(|d| x.dims()[d + 2].saturating_mul(windows.stride[d])).collect(),
    };
    if wanted.len() != rank {
        return misshapen(format!("output_shape is {wanted:?} for {rank} dimensions"));
    }
    let ends = |d: usize| {
        let natural = (x.dims()[d + 2].max(1) - 1).saturating_mul(windows.stride[d]);
        let natural = natural.saturating_add(windows.span(d)).saturating_add(more[d]);
        let total = (natural as isize).saturating_sub(wanted[d] as isize);
        let half = total.div_euclid(2);
        if automatic == "SAME_UPPER" { [half, total - half] } else { [total - half, half] }
    };
    Ok((0..rank).map(ends).collect())
}

fn deform_conv(c: &Call<'_>) -> Result<Tensor> {
    let (x, w, offset) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let (bias, mask) = (c.optional(3)?, c.optional(4)?);
    let windows = windows(c, &x, &w)?;
    if windows.rank() != 2 {
        return misshapen(format!("{} was given, expected [N, C, H, W]", x.shape()));
    }
    let padding = Padding::Ends(std::array::from_fn(|d| [windows.low[d], windows.high[d]]));
    let (stride, dilation) = (array(&windows.stride), array(&windows.dilation));
    let conv = Conv { stride, padding, dilation, groups: groups(c)? };
    x.deform_conv2d(&offset, mask.as_ref(), &w, bias.as_ref(), &conv)
}

/// The sums of blocks that overlap, of any number of dimensions: columns `[N, C block, L]` to images `[N, C, ..]`.
fn col2im(c: &Call<'_>) -> Result<Tensor> {
    let (x, image, block) = (c.x(0)?, sizes(&c.ints(1)?)?, sizes(&c.ints(2)?)?);
    let list = |name: &str, default: i64, n: usize| sizes(&c.list(name)?.unwrap_or_else(|| vec![default; n]));
    let rank = image.len();
    let (pads, strides, dilations) =
        (list("pads", 0, 2 * rank)?, list("strides", 1, rank)?, list("dilations", 1, rank)?);
    let volume = block.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)).unwrap_or(0);
    if x.rank() != 3
        || [block.len(), strides.len(), dilations.len(), pads.len() / 2].iter().any(|&n| n != rank)
        || volume == 0
        || strides.contains(&0)
        || x.dims()[1] % volume != 0
    {
        return misshapen(format!("{} was given for an image {image:?} and blocks {block:?}", x.shape()));
    }
    let whole: Vec<usize> =
        (0..rank).map(|d| image[d].saturating_add(pads[d]).saturating_add(pads[rank + d])).collect();
    let counts = (0..rank).map(|d| {
        let span = dilations[d].saturating_mul(block[d] - 1).saturating_add(1);
        Some(whole[d].checked_sub(span)? / strides[d] + 1)
    });
    let counts: Vec<usize> = counts.map(Option::unwrap_or_default).collect();
    if counts.iter().try_fold(1usize, |n, &count| n.checked_mul(count)) != Some(x.dims()[2]) {
        return misshapen(format!("{} was given for an image {image:?} and blocks {block:?}", x.shape()));
    }
    few(volume.saturating_mul(x.dims()[2]))?;
    let places = block_places(&whole, [&block, &dilations], [&counts, &strides]);
    let (batch, channels) = (x.dims()[0], x.dims()[1] / volume);
    let columns = x.reshape([batch, channels, places.len()])?;
    let index = Tensor::from_slice(&places, places.len(), x.device())?;
    let index = index.broadcast_to([batch, channels, places.len()])?;
    let zeros = Tensor::zeros([batch, channels, whole.iter().product()], x.dtype(), x.device())?;
    let sums = zeros.scatter_add(2, &index, &columns)?.reshape([&[batch, channels][..], &whole].concat())?;
    let cut: Vec<[isize; 2]> = (0..rank).map(|d| [-(pads[d] as isize), -(pads[rank + d] as isize)]).collect();
    sums.pad(&cut, Pad::ZEROS)
}

/// The place in a volume of each element of each block, elements first: of both, their numbers and distances.
fn block_places(whole: &[usize], elements: [&[usize]; 2], blocks: [&[usize]; 2]) -> Vec<i64> {
    let places = |[counts, steps]: [&[usize]; 2]| {
        (0..whole.len()).fold(vec![0i64], |all, d| {
            let each = |&at: &i64| (0..counts[d]).map(move |k| at * whole[d] as i64 + (k * steps[d]) as i64);
            all.iter().flat_map(each).collect()
        })
    };
    let first = places(blocks);
    places(elements).iter().flat_map(|at| first.iter().map(move |first| at + first)).collect()
}
