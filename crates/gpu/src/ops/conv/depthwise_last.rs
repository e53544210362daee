//! Convolutions whose groups have one channel and one output each, for channels that are last in memory: the launches of
//! `depthwise_last.c`.

use super::extents;
use crate::driver::dnn::Map;
use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{THREADS, each, group_size};
use crate::launch::integers::Integers;
use crate::launch::words::vector_of;
use crate::program::source::Variant;
use isograd_core::ops::conv;
use isograd_core::ops::image::window::Windows;
use isograd_core::{DType, Result};

const FILE: &str = "conv/depthwise_last.c";
/// Elements of the longest window.
const MOST_WINDOW: usize = 64;
/// Bytes of the weights that a thread keeps in registers, unless one channel has more.
const MOST_WEIGHTS: usize = 160;
/// Sums of a thread for the gradient of weights, unless one channel has more.
const MOST_WEIGHT_SUMS: usize = 40;
/// Sums of a thread for the output.
const MOST_SUMS: usize = 32;
/// Columns of a block, if their inputs fit registers.
const STRIP: usize = 4;
/// Most columns of the input that a thread keeps for several columns of the output.
const MOST_SPAN: usize = 12;
/// Most columns of the input that a thread keeps for one column of the output.
const LONGEST_SPAN: usize = 20;
/// Words of channels of a group that adds up the gradients of weights, at most: adjacent bytes for a wave.
const MOST_COLUMNS: usize = 16;
/// Groups for each multiprocessor among which the outputs of a word of channels are divided.
const GROUPS_A_UNIT: usize = 4;
/// Strips of a thread, at least, where outputs are divided.
const LEAST_STRIPS: usize = 4;
/// Weights of a group that joins their parts.
const JOINED: usize = 8;

/// Whether there are kernels for this convolution.
pub(super) fn takes(geometry: &conv::Geometry) -> bool {
    let conv::Geometry { groups, channels, outputs, ref windows, .. } = *geometry;
    let [is_flat, _] = extents::flags(windows);
    let is_there = windows.volume() > 0 && windows.outputs() > 0 && geometry.batch > 0;
    let is_short = windows.window() <= MOST_WINDOW && span(windows, 1) <= LONGEST_SPAN;
    // A thread has its own copy of the code for each line of its block.
    let has_few_lines = windows.stride[1] <= LONGEST_SPAN && windows.stride[2] <= LONGEST_SPAN;
    let is_low = (windows.kernel[1] - 1).saturating_mul(windows.dilation[1]) < LONGEST_SPAN;
    groups > 1 && channels == 1 && outputs == 1 && is_flat.1 && is_there && is_short && has_few_lines && is_low
}

/// Columns of the input that the windows of adjacent outputs have.
fn span(windows: &Windows, strip: usize) -> usize {
    let ends = (strip - 1).saturating_mul(windows.stride[2]);
    ends.saturating_add((windows.kernel[2] - 1).saturating_mul(windows.dilation[2])).saturating_add(1)
}

/// A convolution of operands that are dense, with channels last.
pub(super) struct DepthwiseLast<'a> {
    pub geometry: &'a conv::Geometry,
    pub dtype: DType,
    /// The inputs of the map, and its result.
    pub addresses: [Address; 3],
    /// The address and the stride of the bias `[N groups]`.
    pub bias: Option<(Address, usize)>,
}

impl DepthwiseLast<'_> {
    pub fn run(&self, gpu: &Gpu, map: Map) -> Result<()> {
        match map {
            Map::Forward => self.forward(gpu),
            Map::Input => self.input(gpu),
            Map::Weight => self.weight(gpu),
        }
    }

    fn forward(&self, gpu: &Gpu) -> Result<()> {
        let windows = &self.geometry.windows;
        let (vector, strip) = (self.vector(MOST_WEIGHTS / self.dtype.size()), self.strip());
        let lines = (MOST_SUMS / (strip * vector)).clamp(1, 2).min(windows.output[1]);
        let blocks = [windows.output[1].div_ceil(lines), windows.output[2].div_ceil(strip)];
        let (variant, integers, items) = self.blocks(vector, strip, blocks);
        self.launch(gpu, variant.define("LINES", lines), "depthwise_last", integers, items)
    }

    fn input(&self, gpu: &Gpu) -> Result<()> {
        let Windows { input, stride, low, .. } = self.geometry.windows;
        let vector = self.vector(MOST_WEIGHTS / self.dtype.size());
        let strip = (self.strip() / stride[2]).max(1);
        // Blocks begin where the window does that is over the first element, or the last one before it.
        let blocks = [
            (input[1] + low[1] % stride[1]).div_ceil(stride[1]),
            (input[2] + low[2] % stride[2]).div_ceil(strip * stride[2]),
        ];
        let (variant, integers, items) = self.blocks(vector, strip, blocks);
        let integers = integers.positions([("FIRST_Y", low[1] / stride[1]), ("FIRST_W", low[2] / stride[2])]);
        self.launch(gpu, variant, "depthwise_last_input", integers, items)
    }

    fn weight(&self, gpu: &Gpu) -> Result<()> {
        let conv::Geometry { batch, groups, ref windows, .. } = *self.geometry;
        let [g, x, dw] = self.addresses;
        let (vector, strip, window) = (self.vector(MOST_WEIGHT_SUMS), self.strip(), windows.window());
        let (words, strips) = (groups / vector, windows.output[2].div_ceil(strip));
        let threads = group_size(gpu.driver().limits());
        let columns = MOST_COLUMNS.min(words.next_power_of_two()).min(threads);
        let (members, tiles) = (threads / columns, words.div_ceil(columns));
        let all = batch * windows.output[1] * strips;
        let most = all.div_ceil(members * LEAST_STRIPS);
        let parts = (GROUPS_A_UNIT * gpu.driver().limits().units.max(1)).div_ceil(tiles).clamp(1, most);
        // Each thread of a part has a strip in every turn.
        let part = all.div_ceil(parts).next_multiple_of(members);
        let parts = all.div_ceil(part);
        let sums = gpu.scratch(parts * groups * window * self.dtype.acc().size())?;
        let integers = self.extents().positions([("N_WORDS", words)]).integers([("PART", part), ("ALL", all)]);
        let integers = integers.divisors([("N_STRIPS", strips)]);
        let variant = self.variant(vector, strip, threads).define("COLUMNS", columns);
        let arguments = Arguments::new().pointers([g, x, sums.address]).named(integers);
        gpu.launch(variant, "depthwise_last_weight", Geometry::new([tiles, parts, 1], threads), &arguments)?;
        let weights = groups * window;
        let columns = JOINED.min(threads);
        let integers = Integers::new().integers([("ITEMS", weights), ("N_PARTS", parts)]);
        let variant = self.variant(1, 1, threads).define("COLUMNS", columns);
        let arguments = Arguments::new().pointers([sums.address, dw]).named(integers);
        let grid = Geometry::new([weights.div_ceil(columns), 1, 1], threads).following();
        gpu.launch(variant, "depthwise_last_weight_join", grid, &arguments)
    }

    /// Channels of a word, of which a thread has no more than so many numbers for a whole window.
    fn vector(&self, most: usize) -> usize {
        let window = self.geometry.windows.window();
        let vector = vector_of(self.dtype, self.geometry.groups, &self.addresses);
        vector.min(1 << (most / window).max(1).ilog2())
    }

    fn strip(&self) -> usize {
        if span(&self.geometry.windows, STRIP) <= MOST_SPAN { STRIP } else { 1 }
    }

    /// For blocks along height and width: the program, its integers, and the number of threads.
    fn blocks(&self, vector: usize, strip: usize, [lines, strips]: [usize; 2]) -> (Variant, Integers, usize) {
        let words = self.geometry.groups / vector;
        let items = self.geometry.batch * lines * strips * words;
        let integers = self.extents().integers([("ITEMS", items)]);
        let integers = integers.divisors([("N_WORDS", words), ("N_STRIPS", strips), ("N_LINES", lines)]);
        (self.variant(vector, strip, THREADS).flag("BIAS", self.bias.is_some()), integers, items)
    }

    fn launch(
        &self,
        gpu: &Gpu,
        variant: Variant,
        kernel: &'static str,
        integers: Integers,
        items: usize,
    ) -> Result<()> {
        let [a, b, result] = self.addresses;
        let (bias, stride) = self.bias.unwrap_or((result, 0));
        let integers = integers.integers([("BIAS_STRIDE", stride)]);
        let arguments = Arguments::new().pointers([a, b, bias, result]).named(integers);
        gpu.launch(variant, kernel, each(items), &arguments)
    }

    fn extents(&self) -> Integers {
        let Windows { input, output, low, .. } = self.geometry.windows;
        Integers::new()
            .positions([("IN_HEIGHT", input[1]), ("IN_WIDTH", input[2]), ("OUT_WIDTH", output[2])])
            .positions([("LOW_Y", low[1]), ("LOW_W", low[2])])
            .divisors([("OUT_HEIGHT", output[1])])
    }

    fn variant(&self, vector: usize, strip: usize, threads: usize) -> Variant {
        let conv::Geometry { batch, groups, ref windows, .. } = *self.geometry;
        let Windows { input, output, kernel, stride, dilation, .. } = *windows;
        // Blocks may reach beyond the last element.
        let most = [input, output].map(|[_, height, width]| (height + stride[1]) * (width + STRIP * stride[2]));
        let elements = batch * groups * most[0].max(most[1]);
        Variant::new(FILE)
            .define("THREADS", threads)
            .stored(self.dtype)
            .words(vector, self.dtype.size())
            .define("STRIP", strip)
            .define("KERNEL_Y", kernel[1])
            .define("KERNEL_W", kernel[2])
            .define("STRIDE_Y", stride[1])
            .define("STRIDE_W", stride[2])
            .define("DILATION_Y", dilation[1])
            .define("DILATION_W", dilation[2])
            .flag("WIDE", elements > i32::MAX as usize)
    }
}
