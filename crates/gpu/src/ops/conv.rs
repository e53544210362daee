//! Convolutions and their gradients: products of matrices whose factors are read by `conv.h`.

use crate::launch::device::Gpu;
use crate::launch::operands::{addresses, place};
use crate::launch::words::divider;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate};
use crate::ops::matmul::{self, Extents, Loaded, Loading, Side};
use isograd_core::ops::conv::{ConvForward, ConvInput, ConvWeight, Geometry};
use isograd_core::ops::window::Windows;
use isograd_core::ops::{Conv, Padding};
use isograd_core::{Call, Operand, Result};

pub(super) const FAMILY: Family = Family {
    launchers: &[Launcher::of::<ConvForward>(), Launcher::of::<ConvInput>(), Launcher::of::<ConvWeight>()],
    examples: EXAMPLES,
};

impl FusedLaunch for ConvForward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call, Map::Forward, &self.0)
    }
}

impl FusedLaunch for ConvInput {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call, Map::Input, &self.0)
    }
}

impl FusedLaunch for ConvWeight {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call, Map::Weight, &self.0)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Map {
    Forward,
    Input,
    Weight,
}

impl Map {
    /// The flag of `conv.h`.
    fn flag(self) -> &'static str {
        match self {
            Map::Forward => "CONV_FORWARD",
            Map::Input => "CONV_INPUT",
            Map::Weight => "CONV_WEIGHT",
        }
    }

    /// The extents of the product.
    fn extents(self, geometry: &Geometry) -> Extents {
        let Geometry { batch, groups, channels, outputs, ref windows } = *geometry;
        let (window, volume, count) = (windows.window(), windows.volume(), windows.outputs());
        match self {
            Map::Forward => Extents { batches: batch * groups, m: outputs, n: count, k: channels * window },
            Map::Input => Extents { batches: batch * groups, m: channels, n: volume, k: outputs * window },
            Map::Weight => Extents { batches: groups, m: outputs, n: channels * window, k: batch * count },
        }
    }
}

fn run(gpu: &Gpu, call: &Call<'_>, map: Map, geometry: &Geometry) -> Result<()> {
    let (inputs, y) = (addresses(call.inputs)?, addresses(call.outputs)?[0]);
    let (e, dtype) = (map.extents(geometry), call.outputs[0].dtype);
    let is_wide = call.inputs.iter().chain(call.outputs).any(|o| o.layout.shape().numel() > i32::MAX as usize);
    let is_wide = is_wide || [e.m, e.n, e.k].iter().any(|&extent| extent > i32::MAX as usize);
    // Only the weight has words: along K, where K is the channel and the element of a window.
    let a = match map {
        Map::Forward => Side::contiguous(inputs[1], dtype, e.m, e.k),
        Map::Input => Side::scattered(inputs[1], dtype, [e.m, e.k], false),
        Map::Weight => Side::scattered(inputs[0], dtype, [e.m, e.k], true),
    };
    let b = match map {
        Map::Forward | Map::Input => Side::scattered(inputs[0], dtype, [e.n, e.k], false),
        Map::Weight => Side::scattered(inputs[1], dtype, [e.n, e.k], true),
    };
    let strides = |bias: &Operand<'_>| [bias.layout.strides()[0], bias.layout.strides()[1], 0];
    let c = call.inputs.get(2).map(|bias| Ok((place(bias)?, strides(bias)))).transpose()?;
    let loading = Loading { file: "conv.h", flags: flags(map, geometry), ints: ints(map, geometry) };
    matmul::run_loaded(gpu, Loaded { e, dtype, a, b, c, y, is_wide, loading })
}

fn flags(map: Map, geometry: &Geometry) -> [(&'static str, bool); 2] {
    let Windows { input, output, kernel, .. } = geometry.windows;
    [(map.flag(), true), ("FLAT", [input, output, kernel].iter().all(|extents| extents[0] == 1))]
}

/// `Extents` of `conv.h`.
fn ints(map: Map, geometry: &Geometry) -> Vec<usize> {
    let Geometry { groups, channels, outputs, ref windows, .. } = *geometry;
    let [_, height, width] = if map == Map::Input { windows.input } else { windows.output };
    let [_, kernel_height, kernel_width] = windows.kernel;
    let by_dimension = [windows.input, windows.output, windows.kernel, windows.stride, windows.low, windows.dilation];
    let divisors = [width, height, windows.outputs(), windows.window(), kernel_height, kernel_width];
    let own = [groups, channels, outputs].into_iter().chain(by_dimension.into_iter().flatten());
    let dividers = divisors.into_iter().chain(windows.stride).map(divider);
    own.chain(dividers).collect()
}

const EXAMPLES: &[Example] = &[|d, t| {
    differentiate(d, t, &[&[2, 16, 14, 14], &[32, 16, 3, 3], &[32]], |x| {
        x[0].conv2d(&x[1], Some(&x[2]), Conv { padding: Padding::Each([1; 2]), ..Conv::default() })
    })
}];
