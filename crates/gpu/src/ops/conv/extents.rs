//! Extents, strides and padding of a convolution, as kernels take them.

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

/// `Extents` of `conv.h`.
pub(super) fn ints(geometry: &Geometry, over: Over) -> Vec<usize> {
    let Geometry { groups, channels, outputs, ref windows, .. } = *geometry;
    let [_, height, width] = if over == Over::Input { windows.input } else { windows.output };
    let [_, kernel_height, kernel_width] = windows.kernel;
    let by_dimension = [windows.input, windows.output, windows.kernel, windows.stride, windows.low, windows.dilation];
    let divisors = [width, height, windows.outputs(), windows.window(), kernel_height, kernel_width];
    let own = [groups, channels, outputs].into_iter().chain(by_dimension.into_iter().flatten());
    let last = [windows.volume(), channels, outputs];
    let dividers = divisors.into_iter().chain(windows.stride).chain(last).map(divider);
    own.chain(dividers).chain([windows.volume(), windows.outputs(), windows.window()]).collect()
}

/// `FLAT` and `STRIDED` of `conv.h`.
pub(super) fn flags(windows: &Windows) -> [(&'static str, bool); 2] {
    let Windows { input, output, kernel, stride, low, .. } = *windows;
    let is_flat = low[0] == 0 && [input, output, kernel].iter().all(|extents| extents[0] == 1);
    [("FLAT", is_flat), ("STRIDED", stride != [1; 3])]
}
