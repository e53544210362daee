//! Deformable convolution: windows whose elements are read beside their places.

use crate::check::{check_float, check_same, describe};
use crate::ops::conv::{Conv, Maps, Names, batch, check_channels, check_weight, maps};
use crate::ops::image::grid::linear_samples;
use crate::ops::named;
use crate::{Error, Result, Tensor, autocast, no_autocast};

const OP: &str = "deform_conv2d";
/// The windows are those of a convolution, which is not run.
const NAMES: Names = Names { conv: OP, input: OP, weight: OP };

/// The operands of a deformable convolution of a batch, in the accumulation dtype.
struct Operands {
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Option<Tensor>,
    bias: Option<Tensor>,
}

/// # Deformable convolutions
impl Tensor {
    /// The convolution of `[N, C, H, W]` or `[C, H, W]` by a weight `[O, C / groups, k, l]` and a bias `[O]`, whose windows read elements
    /// beside their places. `offset` has the distances `[N, 2 G k l, h, w]` for each output: for each of G groups of channels and each
    /// element of the window, along H, then along W. `mask` has factors `[N, G k l, h, w]` of the elements. Values between elements are
    /// linear along both dimensions, and 0 outside of the input. G divides C, and follows from the offsets. A sample `[C, H, W]` has
    /// offsets and a mask without the batch. Gradients of all operands. Float dtypes; all operands have the same, and sums are in f32, or
    /// f64. As torchvision's. Dai et al. 2017, arXiv 1703.06211; with a mask Zhu et al. 2018, arXiv 1811.11168.
    ///
    /// Errors: `Dtype`; `Attr` as for [`conv2d`](Tensor::conv2d); `Shape` for operands that do not fit each other, a window that does not
    /// fit, or an input without elements beyond the batch.
    pub fn deform_conv2d(
        &self,
        offset: &Tensor,
        mask: Option<&Tensor>,
        weight: &Tensor,
        bias: Option<&Tensor>,
        conv: &Conv<2>,
    ) -> Result<Tensor> {
        let operands: Vec<&Tensor> = [self, weight, offset].into_iter().chain(mask).chain(bias).collect();
        if let Some(wide) = autocast::wide_each(&operands)? {
            let mut rest = wide[3..].iter();
            let (mask, bias) = (mask.and_then(|_| rest.next()), bias.and_then(|_| rest.next()));
            return no_autocast(|| wide[0].deform_conv2d(&wide[2], mask, &wide[1], bias, conv));
        }
        check_float(OP, self)?;
        check_same(OP, &operands)?;
        named(OP, &operands, || {
            check_weight::<2>(OP, weight)?;
            let (x, is_sample) = batch::<2>(OP, self)?;
            let one = |t: &Tensor| if is_sample { t.unsqueeze(0) } else { Ok(t.clone()) };
            let (offset, mask) = (one(offset)?, mask.map(one).transpose()?);
            let (channels, outputs) = (x.dims()[1], weight.dims()[0]);
            check_channels(OP, [&x, weight], bias, [outputs, channels, outputs], conv.groups)?;
            let maps = maps(NAMES, x.shape(), weight, [false; 2], conv)?;
            let groups = offset_groups(&maps, &x, &offset, mask.as_ref())?;
            let acc = |t: &Tensor| t.cast(t.dtype().acc());
            let y = Operands {
                x: acc(&x)?,
                weight: acc(weight)?.contiguous()?,
                offset: acc(&offset)?,
                mask: mask.as_ref().map(acc).transpose()?,
                bias: bias.map(acc).transpose()?,
            };
            let y = y.convolved(&maps, groups)?.cast(self.dtype())?;
            if is_sample { y.squeeze(0) } else { Ok(y) }
        })
    }
}

/// The number of groups of channels with offsets of their own. Errors: `Shape`.
fn offset_groups(maps: &Maps, x: &Tensor, offset: &Tensor, mask: Option<&Tensor>) -> Result<usize> {
    let (elements, channels) = (maps.geometry.windows.window(), x.dims()[1]);
    if x.dims()[1..].contains(&0) {
        return Err(Error::shape(OP, format!("the input {} is empty, expected elements beyond the batch", x.shape())));
    }
    let groups = offset.dims().get(1).map_or(0, |rows| rows / (2 * elements));
    let [batch, _, height, width] = maps.output.dims() else { unreachable!("outputs of two dimensions have four") };
    let of = |rows: usize| [*batch, rows * groups * elements, *height, *width];
    let fits = groups > 0 && channels.is_multiple_of(groups) && offset.dims() == of(2);
    if !fits || mask.is_some_and(|mask| mask.dims() != of(1)) {
        let got = describe(&[offset].into_iter().chain(mask).collect::<Vec<_>>());
        let shape = |rows: usize| format!("[{batch}, {} G, {height}, {width}]", rows * elements);
        let expected = format!("offsets {} and a mask {}, where G divides {channels}", shape(2), shape(1));
        return Err(Error::shape(OP, format!("got {got}, expected {expected}")));
    }
    Ok(groups)
}

impl Operands {
    /// `[N, O, h, w]`.
    fn convolved(&self, maps: &Maps, offset_groups: usize) -> Result<Tensor> {
        let (windows, groups) = (&maps.geometry.windows, maps.geometry.groups);
        let ([batch, channels], outputs) = ([self.x.dims()[0], self.x.dims()[1]], self.weight.dims()[0]);
        let ([_, height, width], [_, h, w]) = (windows.input, windows.output);
        let (elements, places) = (windows.window(), h * w);
        if batch * outputs == 0 {
            // Gradients are 0.
            let mut all = [&self.x, &self.weight, &self.offset].into_iter().chain(&self.mask).chain(&self.bias);
            let zero = Tensor::zeros((), self.x.dtype(), self.x.device())?;
            return all.try_fold(zero, |sum, t| sum.add(&t.sum(..)?.mul_scalar(0.0)?))?.broadcast_to(&maps.output);
        }
        // [N G, k l, 2, h w], where an offset along H precedes that along W.
        let offset = self.offset.reshape((batch * offset_groups, elements, 2, places))?;
        let place = |d: usize| {
            let plain = Tensor::from_vec(plain_places(maps, d), (1, elements, places), self.x.device())?;
            let place = offset.select(2, d as isize - 1)?.add(&plain.cast(self.x.dtype())?)?;
            place.reshape((batch * offset_groups, elements * places))
        };
        let rows = self.x.reshape((batch * offset_groups, channels / offset_groups, height * width))?;
        let columns = linear_samples(&rows, &[place(1)?, place(2)?], &[height, width])?;
        let columns = match &self.mask {
            Some(mask) => columns.mul(&mask.reshape((batch * offset_groups, 1, elements * places))?)?,
            None => columns,
        };
        let columns = columns.reshape((batch, groups, channels / groups * elements, places))?;
        let weight = self.weight.reshape((1, groups, outputs / groups, channels / groups * elements))?;
        let y = weight.matmul(&columns)?.reshape((batch, outputs, h, w))?;
        match &self.bias {
            Some(bias) => y.add(&bias.reshape((outputs, 1, 1))?),
            None => Ok(y),
        }
    }
}

/// The places along dimension d (1 for H, 2 for W) of the elements of all windows: `[k l, h w]`.
fn plain_places(maps: &Maps, d: usize) -> Vec<f64> {
    let windows = &maps.geometry.windows;
    let ([_, k, l], [_, h, w]) = (windows.kernel, windows.output);
    let along = |element: [usize; 2], window: [usize; 2]| {
        let inside = window[d - 1] * windows.stride[d] + element[d - 1] * windows.dilation[d];
        inside as f64 - windows.low[d] as f64
    };
    let pairs = |rows: usize, columns: usize| (0..rows).flat_map(move |i| (0..columns).map(move |j| [i, j]));
    pairs(k, l).flat_map(|element| pairs(h, w).map(move |window| along(element, window))).collect()
}
