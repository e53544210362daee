//! Extents, strides and padding of a convolution, as kernels take them.

use crate::launch::integers::Integers;
use crate::launch::words::divider;
use isograd_core::ops::conv::Geometry;
use isograd_core::ops::image::window::Windows;

/// The volume over which a kernel counts.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Over {
    /// Counts input elements.
    Input,
    /// Counts output elements, which are windows.
    Output,
}

/// The integers of `conv.h`.
pub(super) fn named(geometry: &Geometry, over: Over) -> Integers {
    let Geometry { groups, channels, outputs, ref windows, .. } = *geometry;
    let [_, height, width] = if over == Over::Input { windows.input } else { windows.output };
    let [_, kernel_height, kernel_width] = windows.kernel;
    let dividers = [
        ("BY_WIDTH", width),
        ("BY_HEIGHT", height),
        ("BY_IN", windows.volume()),
        ("BY_OUT", windows.outputs()),
        ("BY_KERNEL_HEIGHT", kernel_height),
        ("BY_KERNEL_WIDTH", kernel_width),
    ];
    Integers::new()
        .integers([("N_GROUPS", groups), ("IN", windows.volume()), ("OUT", windows.outputs())])
        .divisors([("N_CHANNELS", channels), ("N_OUTPUTS", outputs), ("WINDOW", windows.window())])
        .position_list("IN_ALONG", windows.input)
        .position_list("OUT_ALONG", windows.output)
        .position_list("KERNEL_ALONG", windows.kernel)
        .divisor_list("STRIDE_ALONG", windows.stride)
        .position_list("PADDING_ALONG", windows.low)
        .position_list("DILATION_ALONG", windows.dilation)
        .integers(dividers.map(|(name, d)| (name, divider(d))))
}

/// `FLAT` and `STRIDED` of `conv.h`.
pub(super) fn flags(windows: &Windows) -> [(&'static str, bool); 2] {
    let Windows { input, output, kernel, stride, low, .. } = *windows;
    let is_flat = low[0] == 0 && [input, output, kernel].iter().all(|extents| extents[0] == 1);
    [("FLAT", is_flat), ("STRIDED", stride != [1; 3])]
}
