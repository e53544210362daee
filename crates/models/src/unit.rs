//! Convolutions as these networks have them.

use isograd_core::Result;
use isograd_core::ops::{Conv, Padding};
use isograd_nn::{BatchNorm2d, Conv2d, Fan, Gain, Init};

/// A square convolution without a bias, whose padding keeps the extents at a stride of 1. Weights are normal, and keep the variance
/// of gradients through a relu.
pub(crate) fn conv(
    [input, output]: [usize; 2],
    kernel: usize,
    stride: usize,
    groups: usize,
    init: &Init,
) -> Result<Conv2d> {
    let padding = Padding::Each([(kernel - 1) / 2; 2]);
    let options = Conv { stride: [stride; 2], padding, groups, ..Conv::default() };
    let conv = Conv2d::without_bias(input, output, [kernel; 2], &options, init)?;
    Ok(Conv2d { weight: init.kaiming_normal(conv.weight.shape(), Fan::Out, Gain::Relu)?, ..conv })
}

/// [`conv`] and the normalisation of its channels.
pub(crate) fn conv_norm(
    channels: [usize; 2],
    kernel: usize,
    stride: usize,
    groups: usize,
    init: &Init,
) -> Result<(Conv2d, BatchNorm2d)> {
    Ok((conv(channels, kernel, stride, groups, init)?, BatchNorm2d::new(channels[1], init)?))
}
