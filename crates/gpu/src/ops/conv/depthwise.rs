//! Convolutions whose groups have one channel each, for channels before volumes: the launches of `depthwise.c`.

use super::extents::{self, Over};
use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{THREADS, each, group_size};
use crate::launch::integers::Integers;
use crate::launch::words::divider;
use crate::program::source::{Variant, word};
use isograd_core::ops::conv;
use isograd_core::ops::image::window::Windows;
use isograd_core::{DType, Result};

const FILE: &str = "conv/depthwise.c";
/// Bytes of the widest word.
const WORD: usize = 16;
/// Adjacent outputs per thread, if their inputs fit its registers.
const STRIP: usize = 4;
/// Output lines per thread.
const LINES: usize = 4;
/// Threads per multiprocessor that must have such work; with fewer, a thread computes one line.
const LEAST_BLOCKS: usize = 512;
/// The most weights that a thread of several lines keeps in registers.
const MOST_FACTORS: usize = 25;
/// Elements of an input line that a thread keeps in registers, at most, for a strip of several outputs.
const MOST_SPAN: usize = 24;
/// The same for one output.
const LONGEST_SPAN: usize = 64;
/// Sums of a thread: the elements of a window whose gradients it adds up.
const MOST_SUMS: usize = 32;
/// Elements of the output's gradient that a thread keeps.
const MOST_KEPT: usize = 16;
/// Groups per multiprocessor for the gradient of the weight: samples are split until there are as many.
const GROUPS_A_UNIT: usize = 12;
/// The fewest strips of a thread, where samples are split.
const LEAST_STRIPS: usize = 2;

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
        let integers = self.named(geometry, Over::Input, [("ITEMS", items), ("BY_GROUPS", divider(geometry.groups))]);
        let variant = self.variant(geometry, false, Block::ONE, THREADS, items);
        let [g, w, dx] = self.addresses;
        let pointers = [g, w, self.bias.map_or(dx, |(bias, _)| bias), dx];
        let arguments = Arguments::new().pointers(pointers).named(integers);
        gpu.launch(variant, "depthwise_input", each(items), &arguments)?;
        Ok(true)
    }

    /// The gradient of the weight.
    pub fn weight(&self, gpu: &Gpu) -> Result<bool> {
        let geometry = self.geometry;
        let (windows, window) = (&geometry.windows, geometry.windows.window());
        let [g, x, dw] = self.addresses;
        let block = Block::of(self, gpu, geometry, [x, g]).filter(|_| window <= MOST_SUMS);
        let Some(mut block) = block else { return Ok(false) };
        // With fewer registers per thread a multiprocessor runs more groups, which hides memory latency.
        block.lines = block.lines.min((MOST_KEPT / block.strip).max(1));
        let (threads, all) = (group_size(gpu.driver().limits()), geometry.groups * geometry.outputs);
        let [depth, height, width] = windows.output;
        let (strips, lines) = (width.div_ceil(block.strip), depth * height.div_ceil(block.lines));
        let items = geometry.batch * lines * strips;
        let most = items.div_ceil(threads * LEAST_STRIPS);
        let parts = (GROUPS_A_UNIT * gpu.driver().limits().units.max(1)).div_ceil(all).clamp(1, most.max(1));
        // Parts are multiples of a group's threads, so that no thread idles in a turn.
        let length = items.div_ceil(parts).next_multiple_of(threads);
        let parts = items.div_ceil(length);
        let acc = self.dtype.acc();
        let sums = gpu.scratch(parts * all * window * acc.size())?;
        let blocks = [("PART_BLOCKS", length), ("OUTPUT_BLOCKS", items), ("BY_BLOCKS", divider(strips * lines))];
        let integers = self.named(geometry, Over::Output, blocks);
        let integers = integers.divisors([("N_STRIPS", strips), ("N_LINES", lines), ("N_ALL", all)]);
        let variant = self.variant(geometry, false, block, threads, items.max(all * items / geometry.batch.max(1)));
        let variant = variant.define("KERNEL_Z", windows.kernel[0]);
        let arguments = Arguments::new().pointers([g, x, sums.address]).named(integers);
        let grid = Geometry::new([all, parts, 1], threads);
        gpu.launch(variant.clone(), "depthwise_weight", grid, &arguments)?;
        let weights = all * window;
        let integers = self.named(geometry, Over::Output, [("ITEMS", weights), ("N_PARTS", parts)]);
        let variant = self.variant(geometry, false, Block::ONE, THREADS, weights);
        let arguments = Arguments::new().pointers([sums.address, dw]).named(integers);
        gpu.launch(variant, "depthwise_weight_join", each(weights).following(), &arguments)?;
        Ok(true)
    }

    fn convolve(&self, gpu: &Gpu, geometry: &conv::Geometry, is_turned: bool) -> Result<bool> {
        let windows = &geometry.windows;
        let [x, w, y] = self.addresses;
        let Some(block) = Block::of(self, gpu, geometry, [x, y]) else { return Ok(false) };
        let [depth, height, width] = windows.output;
        let strips = width.div_ceil(block.strip);
        let (lines, all) = (depth * height.div_ceil(block.lines), geometry.groups * geometry.outputs);
        let items = geometry.batch * all * lines * strips;
        let integers = self.named(geometry, Over::Output, [("ITEMS", items)]);
        let integers = integers.divisors([("N_STRIPS", strips), ("N_LINES", lines), ("N_ALL", all)]);
        let elements = items * block.strip * block.lines;
        let variant = self.variant(geometry, is_turned, block, THREADS, elements);
        let pointers = [x, w, self.bias.map_or(y, |(bias, _)| bias), y];
        let arguments = Arguments::new().pointers(pointers).named(integers);
        gpu.launch(variant, "depthwise", each(items), &arguments)?;
        Ok(true)
    }

    /// The integers of `conv.h`, those of one kernel, and the strides of the bias.
    fn named<const N: usize>(
        &self,
        geometry: &conv::Geometry,
        over: Over,
        own: [(&'static str, usize); N],
    ) -> Integers {
        let integers = extents::named(geometry, over).integers(own);
        self.bias.iter().fold(integers, |all, (_, strides)| all.list("BIAS_STRIDES", *strides))
    }

    fn variant(
        &self,
        geometry: &conv::Geometry,
        is_turned: bool,
        block: Block,
        threads: usize,
        elements: usize,
    ) -> Variant {
        let Windows { kernel, stride, dilation, low, .. } = geometry.windows;
        let bytes = block.strip * self.dtype.size();
        let read = geometry.batch * geometry.groups * geometry.windows.volume();
        Variant::new(FILE)
            .define("THREADS", threads)
            .stored(self.dtype)
            .define("STRIP", block.strip)
            .optional("STRIP_WORD", block.is_whole.then(|| word(bytes)))
            .define("LINES", block.lines)
            .define("LOW_W", low[2])
            .optional("LINE_WORD", block.reads_words.then(|| word(bytes)))
            .define("KERNEL_Y", kernel[1])
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

/// The block of the output that a thread computes or reads: a strip in each of some lines.
#[derive(Clone, Copy)]
struct Block {
    strip: usize,
    lines: usize,
    /// Whether lines of the output consist of whole strips, which are words.
    is_whole: bool,
    /// Whether a word of the input is at the place of each strip.
    reads_words: bool,
}

impl Block {
    /// An element.
    const ONE: Block = Block { strip: 1, lines: 1, is_whole: false, reads_words: false };

    /// The block for windows over the memory at the first place, whose output is at the second; none if a thread cannot keep what one
    /// window has of a line.
    fn of(own: &Depthwise<'_>, gpu: &Gpu, geometry: &conv::Geometry, [read, written]: [Address; 2]) -> Option<Block> {
        let (windows, size) = (&geometry.windows, own.dtype.size());
        let ([_, height, width], [_, _, kernel]) = (windows.output, windows.kernel);
        let is_plain = |d: usize| windows.stride[d] == 1 && windows.dilation[d] == 1;
        let span = |strip: usize| {
            let ends = (strip - 1).saturating_mul(windows.stride[2]);
            ends.saturating_add((kernel - 1).saturating_mul(windows.dilation[2])).saturating_add(1)
        };
        let are_words = |strip: usize, extent: usize, place: Address| {
            let bytes = strip * size;
            bytes <= WORD && extent.is_multiple_of(strip) && place.is_multiple_of(bytes as u64)
        };
        let reads_words = |strip: usize| {
            let within = width.next_multiple_of(strip) <= windows.input[2] && windows.low[2] < kernel;
            is_plain(2) && within && are_words(strip, windows.input[2], read)
        };
        let (is_whole, wide) = (|strip: usize| are_words(strip, width, written), WORD / size);
        let strip = match (span(STRIP) <= MOST_SPAN, span(1) <= LONGEST_SPAN) {
            (true, _) if wide > STRIP && span(wide) <= MOST_SPAN && reads_words(wide) && is_whole(wide) => wide,
            (true, _) => STRIP,
            (false, true) => 1,
            _ => return None,
        };
        let [is_flat, _] = extents::flags(windows);
        let blocks =
            geometry.batch * geometry.groups * geometry.outputs * height.div_ceil(LINES) * width.div_ceil(strip);
        let has_blocks = blocks >= gpu.driver().limits().units * LEAST_BLOCKS;
        let is_tall = is_flat.1 && is_plain(1) && windows.kernel[1] * kernel <= MOST_FACTORS && has_blocks;
        let lines = if is_tall { LINES } else { 1 };
        Some(Block { strip, lines, is_whole: is_whole(strip), reads_words: reads_words(strip) })
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
