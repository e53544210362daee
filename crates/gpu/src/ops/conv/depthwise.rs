//! Convolutions whose groups have one channel each, for channels before volumes: the launches of `depthwise.c`.

use super::extents::{self, Over};
use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{THREADS, each, group_size};
use crate::launch::words::divider;
use crate::program::source::{Variant, word};
use isograd_core::ops::conv;
use isograd_core::ops::window::Windows;
use isograd_core::{DType, Result};

const FILE: &str = "depthwise.c";
/// Bytes of the widest word.
const WORD: usize = 16;
/// Elements of a strip, where a thread can keep what its windows have of a line.
const STRIP: usize = 4;
/// Elements of a line that a thread keeps: for a strip of several elements, and of one.
const MOST_SPAN: usize = 24;
const LONGEST_SPAN: usize = 64;
/// Sums of a thread: the elements of a window whose gradients it adds up.
const MOST_SUMS: usize = 32;
/// Groups for each multiprocessor among which the samples of one weight are divided.
const GROUPS_A_UNIT: usize = 8;
/// Strips of a thread, at least, where samples are divided.
const LEAST_STRIPS: usize = 4;

/// A depthwise convolution of operands that are contiguous, with addresses.
pub(super) struct Depthwise<'a> {
    pub geometry: &'a conv::Geometry,
    pub dtype: DType,
    /// The inputs of the map, and its result.
    pub addresses: [Address; 3],
    /// The address and the strides of sample and channel.
    pub bias: Option<(Address, [usize; 2])>,
}

impl Depthwise<'_> {
    /// The output: forward.
    pub fn forward(&self, gpu: &Gpu) -> Result<bool> {
        self.convolve(gpu, self.geometry, false)
    }

    /// The gradient of the input. Windows without a stride are turned; for others there is a kernel of its own.
    pub fn input(&self, gpu: &Gpu) -> Result<bool> {
        if let Some(turned) = turned(self.geometry)
            && self.convolve(gpu, &turned, true)?
        {
            return Ok(true);
        }
        let geometry = self.geometry;
        let items = geometry.batch * geometry.groups * geometry.windows.volume();
        let own = [0, 0, 0, 0, 0, divider(geometry.groups), items, self.bias.map_or(0, |(_, strides)| strides[0]), 0];
        let variant = self.variant(geometry, false, 1, THREADS, items);
        let [g, w, dx] = self.addresses;
        let pointers = [g, w, self.bias.map_or(dx, |(bias, _)| bias), dx];
        let arguments = Arguments::new().pointers(pointers).ints(&own).ints(&extents::ints(geometry, Over::Input));
        gpu.launch(variant.define("INTS", own.len()), "depthwise_input", each(items), &arguments)?;
        Ok(true)
    }

    /// The gradient of the weight.
    pub fn weight(&self, gpu: &Gpu) -> Result<bool> {
        let geometry = self.geometry;
        let (windows, window) = (&geometry.windows, geometry.windows.window());
        let Some(strip) = strip(windows).filter(|_| window <= MOST_SUMS) else { return Ok(false) };
        let (threads, all) = (group_size(gpu.driver().limits()), geometry.groups * geometry.outputs);
        let [depth, height, width] = windows.output;
        let (strips, lines) = (width.div_ceil(strip), depth * height);
        let items = geometry.batch * lines * strips;
        let most = items.div_ceil(threads * LEAST_STRIPS);
        let parts = (GROUPS_A_UNIT * gpu.driver().limits().units.max(1)).div_ceil(all).clamp(1, most.max(1));
        let length = items.div_ceil(parts);
        let parts = items.div_ceil(length);
        let acc = self.dtype.acc();
        let sums = gpu.scratch(parts * all * window * acc.size())?;
        let dividers = [strips, lines, all].map(divider);
        let own = [strips, lines, all, dividers[0], dividers[1], dividers[2], length, items, divider(strips * lines)];
        let [kernel_z, kernel_y, _] = windows.kernel;
        let variant = self.variant(geometry, false, strip, threads, items.max(all * items / geometry.batch.max(1)));
        let variant = variant.define("KERNEL_Z", kernel_z).define("KERNEL_Y", kernel_y).define("INTS", own.len());
        let [g, x, dw] = self.addresses;
        let arguments =
            Arguments::new().pointers([g, x, sums.address]).ints(&own).ints(&extents::ints(geometry, Over::Output));
        let grid = Geometry::new([all, parts, 1], threads);
        gpu.launch(variant.clone(), "depthwise_weight", grid, &arguments)?;
        let weights = all * window;
        let own = [0, 0, 0, 0, 0, 0, weights, parts, 0];
        let variant = self.variant(geometry, false, 1, THREADS, weights).define("INTS", own.len());
        let arguments = Arguments::new().pointers([sums.address, dw]).ints(&own);
        gpu.launch(variant, "depthwise_weight_join", each(weights), &arguments)?;
        Ok(true)
    }

    fn convolve(&self, gpu: &Gpu, geometry: &conv::Geometry, is_turned: bool) -> Result<bool> {
        let windows = &geometry.windows;
        let Some(strip) = strip(windows) else { return Ok(false) };
        let [depth, height, width] = windows.output;
        let (strips, lines, all) = (width.div_ceil(strip), depth * height, geometry.groups * geometry.outputs);
        let items = geometry.batch * all * lines * strips;
        let dividers = [strips, lines, all].map(divider);
        let strides = self.bias.map_or([0; 2], |(_, strides)| strides);
        let own = [strips, lines, all, dividers[0], dividers[1], dividers[2], items, strides[0], strides[1]];
        let [x, w, y] = self.addresses;
        let bytes = strip * self.dtype.size();
        let is_whole = bytes <= WORD && width.is_multiple_of(strip) && y.is_multiple_of(bytes as u64);
        let variant = self
            .variant(geometry, is_turned, strip, THREADS, items * strip)
            .define("INTS", own.len())
            .optional("STRIP_WORD", is_whole.then(|| word(bytes)));
        let pointers = [x, w, self.bias.map_or(y, |(bias, _)| bias), y];
        let arguments = Arguments::new().pointers(pointers).ints(&own).ints(&extents::ints(geometry, Over::Output));
        gpu.launch(variant, "depthwise", each(items), &arguments)?;
        Ok(true)
    }

    fn variant(
        &self,
        geometry: &conv::Geometry,
        is_turned: bool,
        strip: usize,
        threads: usize,
        elements: usize,
    ) -> Variant {
        let Windows { kernel, stride, dilation, .. } = geometry.windows;
        let read = geometry.batch * geometry.groups * geometry.windows.volume();
        Variant::new(FILE)
            .define("THREADS", threads)
            .stored(self.dtype)
            .define("STRIP", strip)
            .define("KERNEL_W", kernel[2])
            .define("STRIDE_W", stride[2])
            .define("DILATION_W", dilation[2])
            .flags(extents::flags(&geometry.windows))
            .flags([
                ("TURNED", is_turned),
                ("BIAS", self.bias.is_some()),
                ("WIDE", elements.max(read) > i32::MAX as usize),
            ])
    }
}

/// Elements of a strip; none if a thread cannot keep what one window has of a line.
fn strip(windows: &Windows) -> Option<usize> {
    let span = |strip: usize| {
        let ends = (strip - 1).saturating_mul(windows.stride[2]);
        ends.saturating_add((windows.kernel[2] - 1).saturating_mul(windows.dilation[2])).saturating_add(1)
    };
    match (span(STRIP) <= MOST_SPAN, span(1) <= LONGEST_SPAN) {
        (true, _) => Some(STRIP),
        (false, true) => Some(1),
        _ => None,
    }
}

/// The convolution of the output's gradient that gives the input's, by turned windows. None for windows with a stride, for several
/// outputs of a channel, and for padding by more than a window.
fn turned(geometry: &conv::Geometry) -> Option<conv::Geometry> {
    let windows = &geometry.windows;
    if geometry.outputs > 1 || windows.stride != [1; 3] {
        return None;
    }
    let mut low = [0; 3];
    for (d, low) in low.iter_mut().enumerate() {
        *low = ((windows.kernel[d] - 1) * windows.dilation[d]).checked_sub(windows.low[d])?;
    }
    let windows = Windows { input: windows.output, output: windows.input, low, high: [0; 3], ..*windows };
    Some(conv::Geometry { windows, ..geometry.clone() })
}
