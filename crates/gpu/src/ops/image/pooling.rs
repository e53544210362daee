//! Pooling by windows. A thread writes neighbours of a line, 16 bytes where lines are whole words, and reads the elements of
//! their windows once. Several threads share a large window. A group reduces the columns of adaptive windows first, then joins
//! them. Gradients are gathered, so that no two threads add to one.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, groups, in_groups};
use crate::launch::integers::Integers;
use crate::launch::operands::start_of;
use crate::launch::words::{fits, widest};
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, zeros};
use crate::ops::image::window::{self, is_one};
use crate::program::source::{Variant, word};
use isograd_core::fused::Fused;
use isograd_core::operands::{Input, Output};
use isograd_core::ops::image::pool::{
    AvgPoolBackward, AvgPoolForward, Divisor, MaxPoolBackward, MaxPoolBackwardInputs, MaxPoolForward, MaxPoolOutputs,
};
use isograd_core::ops::image::window::Windows;
use isograd_core::ops::{AvgPool, MaxPool};
use isograd_core::{Call, DType, Operand, Result};

/// The most elements of a line that a thread keeps in registers.
const HELD: usize = 64;
/// The number of groups up to which each takes one band; with more bands a group takes several.
const GROUPS: usize = 512;
/// The fewest lines or columns of a thread, where several threads share a window.
const FEW: usize = 4;
/// The most windows of a strip whose loop is unrolled.
const UNROLLED: usize = 4;
/// If the starts of a thread's windows span more bytes than this, the thread has fewer windows.
const STEP: usize = 32;
/// Elements of a window from which on `[a wave, a group]` shares it.
const SHARED: [usize; 2] = [64, 2048];
/// The same for a wave, where a single thread could read the window in words.
const SHARED_WORDS: usize = 256;
/// Threads of a wave that shares a window.
const READERS: usize = 32;

pub const FAMILY: Family = Family {
    launchers: &[
        Launcher::of::<MaxPoolForward>(),
        Launcher::of::<MaxPoolBackward>(),
        Launcher::of::<AvgPoolForward>(),
        Launcher::of::<AvgPoolBackward>(),
    ],
    examples: EXAMPLES,
};

impl FusedLaunch for MaxPoolForward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        forward(gpu, self.0, self.inputs(call), self.outputs(call), None)
    }
}

impl FusedLaunch for MaxPoolBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (MaxPoolBackwardInputs { dy, index }, Output { y: dx }) = (self.inputs(call), self.outputs(call));
        backward(gpu, self.0, dy, Some(index), dx, None)
    }
}

impl FusedLaunch for AvgPoolForward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let Output { y } = self.outputs(call);
        forward(gpu, self.windows, self.inputs(call), MaxPoolOutputs { y, index: None }, Some(self.divisor))
    }
}

impl FusedLaunch for AvgPoolBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (Input { x: dy }, Output { y: dx }) = (self.inputs(call), self.outputs(call));
        backward(gpu, self.0.windows, dy, None, dx, Some(self.0.divisor))
    }
}

/// Windows that cover their whole volume, as windows of a line.
fn flattened(windows: Windows) -> Windows {
    if !is_one(&windows) {
        return windows;
    }
    let line = [1, 1, windows.volume()];
    Windows { input: line, kernel: line, ..windows }
}

/// Whether the averages of all windows have one divisor, the size of a window. With `count_include_pad`, padding is counted.
fn have_one_size(windows: &Windows, count_include_pad: bool) -> bool {
    windows.are_whole() && (count_include_pad || windows.is_unpadded())
}

/// How many threads share the elements of a window, of groups of `threads`.
fn readers(windows: &Windows, threads: usize, has_words: bool) -> usize {
    match windows.window() {
        n if n < if has_words { SHARED_WORDS } else { SHARED[0] } => 1,
        n if n < SHARED[1] => READERS.min(threads),
        _ => threads,
    }
}

/// A program for these windows in the dtype of the output.
fn variant(windows: &Windows, dtype: DType, threads: usize) -> Variant {
    window::define(Variant::new("image/pooling.c").define("THREADS", threads).stored(dtype), windows)
}

/// Windows of which a thread makes the results, and the words in which it reads a line.
struct Strip {
    per: usize,
    head: usize,
    span: usize,
    words: usize,
}

impl Strip {
    /// A strip, if lines are whole words and a thread can hold the words of a strip.
    fn new(windows: &Windows, size: usize, x: Address) -> Option<Strip> {
        let (vector, stride) = (16 / size, windows.stride[2]);
        let is_whole = !windows.is_adaptive && windows.input[2].is_multiple_of(vector) && x.is_multiple_of(16);
        if !is_whole || windows.reach(2) >= HELD || stride >= HELD {
            return None;
        }
        let mut per = vector;
        let is_much = |per: usize| stride * per * size > STEP || per / 2 >= windows.output[2];
        while per > 1 && is_much(per) && (stride * per / 2).is_multiple_of(vector) {
            per /= 2;
        }
        let head = (vector - windows.low[2] % vector) % vector;
        let span = (per - 1) * stride + windows.reach(2) + 1;
        let words = (head + span).div_ceil(vector);
        (words * vector <= HELD).then_some(Strip { per, head, span, words })
    }

    /// Adds the words in which a program reads lines.
    fn define(&self, variant: Variant, windows: &Windows, size: usize) -> Variant {
        let Strip { per, head, span, words } = *self;
        let last = windows.output[2].next_multiple_of(per) - 1;
        let is_cut = last * windows.stride[2] + windows.reach(2) >= windows.input[2] + windows.low[2];
        variant
            .words(16 / size, size)
            .define("HEAD", head)
            .define("SPAN", span)
            .define("WORDS", words)
            .flag("CUT", is_cut)
    }
}

/// How a group makes adaptive windows of columns.
struct Columns {
    /// Elements of a word of a line, and words of a line.
    vector: usize,
    words: usize,
    /// Bands that a group takes at once, of all.
    bands: usize,
    all: usize,
    /// Threads that share the lines of a word, and threads that share the columns of a window.
    parts: usize,
    members: usize,
}

impl Columns {
    /// If a group has a thread for each word of a line, and windows have several lines.
    fn new(windows: &Windows, size: usize, x: Address, threads: usize) -> Option<Columns> {
        let [depth, height, width] = windows.kernel;
        let vector = widest(16 / size, [windows.input[2]], [(x, size)]);
        let words = windows.input[2] / vector;
        let all = windows.planes * windows.output[0] * windows.output[1];
        if !windows.is_adaptive
            || depth * height == 1
            || words > threads
            || window::is_wide(windows)
            || all * words > 1 << 30
        {
            return None;
        }
        let power = |n: usize| 1 << n.max(1).ilog2();
        let lines = threads / words;
        let bands = lines.min(all.div_ceil(GROUPS));
        let parts = power((lines / bands).min(height / FEW));
        let members = power((threads / (bands * windows.output[2])).min(width / FEW));
        Some(Columns { vector, words, bands, all, parts, members })
    }

    /// The integers of `columns.h`.
    fn named(&self) -> Integers {
        let shift = self.members.ilog2() as usize;
        let own = Integers::new().positions([("BANDS", self.bands), ("N_PARTS", self.parts), ("SHIFT", shift)]);
        own.divisors([("TAKEN", self.bands * self.words)])
    }
}

/// How windows are made.
enum Method {
    /// A thread makes neighbours of a line, and reads the line in words if there is a strip.
    Strips(Option<Strip>),
    /// So many threads share a window.
    Shared(usize),
    /// A group makes adaptive windows of columns.
    Columns(Columns),
}

impl Method {
    fn new(windows: &Windows, size: usize, x: Address, threads: usize) -> Method {
        let strip = Strip::new(windows, size, x);
        match (Columns::new(windows, size, x, threads), readers(windows, threads, strip.is_some())) {
            (Some(columns), _) => Method::Columns(columns),
            (None, 1) => Method::Strips(strip),
            (None, readers) => Method::Shared(readers),
        }
    }

    /// The kernels of a maximum and of an average.
    fn entries(&self) -> [&'static str; 2] {
        match self {
            Method::Strips(_) => ["max_pool", "avg_pool"],
            Method::Shared(_) => ["max_pool_shared", "avg_pool_shared"],
            Method::Columns(_) => ["max_pool_columns", "avg_pool_columns"],
        }
    }

    /// Windows of a line that a thread makes.
    fn per(&self) -> usize {
        if let Method::Strips(Some(strip)) = self { strip.per } else { 1 }
    }

    /// Adds how a program reads x.
    fn define(&self, variant: Variant, windows: &Windows, size: usize) -> Variant {
        let variant = variant.define("STRIP", self.per());
        match self {
            Method::Strips(strip) => match strip {
                Some(strip) => strip.define(variant, windows, size),
                None => variant,
            },
            Method::Shared(readers) => variant.define("READERS", *readers),
            Method::Columns(Columns { vector, .. }) => variant.define("COLUMNS", true).words(*vector, size),
        }
    }

    /// Strips of a line, windows or bands, as the kernel counts them; its integers; and the launch.
    fn launch(&self, windows: &Windows, threads: usize) -> (usize, Integers, Geometry) {
        let strips = windows.output[2].div_ceil(self.per());
        let count = windows.planes * windows.output[0] * windows.output[1] * strips;
        let named = |strips: usize| window::named(windows, strips, windows.output);
        match self {
            Method::Strips(_) => (count, named(strips), in_groups(count, threads)),
            Method::Shared(readers) => (count, named(strips), in_groups(count * readers, threads)),
            Method::Columns(columns) => {
                let named = named(columns.words).and(&columns.named());
                (columns.all, named, groups(columns.all.div_ceil(columns.bands), threads))
            }
        }
    }
}

/// The type of a strip's results, if every strip of the output is an aligned word of them.
fn strip_word(windows: &Windows, method: &Method, address: Address, size: usize) -> Option<&'static str> {
    let (per, width) = (method.per(), windows.output[2]);
    let is_word = per * size <= 16 && fits(per, [width], [(address, size)]);
    (matches!(method, Method::Strips(_)) && is_word).then(|| word(per * size))
}

/// The largest elements and, if wanted, their positions; or averages.
fn forward(
    gpu: &Gpu,
    windows: Windows,
    Input { x }: Input<&Operand<'_>>,
    MaxPoolOutputs { y, index }: MaxPoolOutputs<&Operand<'_>>,
    divisor: Option<Divisor>,
) -> Result<()> {
    let (dtype, threads) = (y.dtype, group_size(gpu.driver().limits()));
    let (x, y) = (start_of(x)?, start_of(y)?);
    let method = Method::new(&windows, dtype.size(), x, threads);
    let (count, named, geometry) = method.launch(&windows, threads);
    let [max, avg] = method.entries();
    let variant = method.define(variant(&windows, dtype, threads), &windows, dtype.size());
    let variant = variant.optional("Y_WORD", strip_word(&windows, &method, y, dtype.size()));
    let positions = index.map(start_of).transpose()?;
    let arguments = Arguments::new().pointers([x, y].into_iter().chain(positions)).named(named).int(count);
    if let Some(divisor) = divisor {
        let (variant, divisor) = divided(variant, &windows, divisor);
        return gpu.launch(variant, avg, geometry, &arguments.float(divisor, dtype.acc()));
    }
    let mut variant = variant.define("MAX", true);
    if let (Some(index), Some(positions)) = (index, positions) {
        let word = strip_word(&windows, &method, positions, index.dtype.size());
        variant = indexed(variant, index.dtype).optional("INDEX_WORD", word);
    }
    gpu.launch(variant, max, geometry, &arguments)
}

/// The gradient of either.
fn backward(
    gpu: &Gpu,
    windows: Windows,
    dy: &Operand<'_>,
    index: Option<&Operand<'_>>,
    dx: &Operand<'_>,
    divisor: Option<Divisor>,
) -> Result<()> {
    let windows = flattened(windows);
    let (dtype, dx) = (dx.dtype, start_of(dx)?);
    // The arrays that are read, and the bytes of their elements.
    let mut read = vec![(start_of(dy)?, dtype.size())];
    if let Some(index) = index {
        read.push((start_of(index)?, index.dtype.size()));
    }
    let index = index.map(|index| index.dtype);
    let threads = group_size(gpu.driver().limits());
    let (vector, width) = (16 / dtype.size(), windows.input[2]);
    let per = widest(vector, [width], [(dx, dtype.size())]);
    let strips = width / per;
    let mut variant = variant(&windows, dtype, threads)
        .define("STRIP", per)
        .define("BACKWARD", true)
        .define("WORD", word(per * dtype.size()));
    if let Some(dtype) = index {
        variant = indexed(variant.define("MAX", true), dtype);
    }
    let (stride, padding, reach) = (windows.stride[2], windows.low[2], windows.reach(2));
    let piece = per / stride.min(per + 1);
    let has_first = !windows.is_adaptive && per.is_multiple_of(stride) && reach < HELD;
    if has_first {
        let (stride, padding, reach) = (stride as i64, padding as i64, reach as i64);
        let first = -(reach - padding).div_euclid(stride);
        let most = (per as i64 - 1 + padding) / stride - first + 1;
        let is_present = strips * piece <= windows.output[2];
        variant = variant.define("FIRST", first).define("MOST", most).define("IS_WHOLE", is_present);
        let are_words =
            read.iter().all(|(_, size)| piece * size <= 16) && fits(piece, [windows.output[2]], read.iter().copied());
        if piece > 1 && is_present && are_words {
            variant = variant
                .define("PIECE", piece)
                .define("G_WORD", word(piece * dtype.size()))
                .optional("INDEX_WORD", index.map(|index| word(piece * index.size())));
        }
    }
    // At most so many windows have elements of a strip.
    let most = match windows.is_adaptive {
        true => (windows.output[2] + strips - 1).div_ceil(strips),
        false => (per - 1 + reach) / stride + 1,
    };
    let count = windows.planes * windows.input[0] * windows.input[1] * strips;
    let is_unrolled = !has_first && most <= UNROLLED;
    let variant = variant.optional("MOST", is_unrolled.then_some(most));
    let named = window::named(&windows, strips, windows.input);
    let arguments = Arguments::new().pointers(read.iter().map(|(from, _)| *from).chain([dx])).named(named).int(count);
    let Some(divisor) = divisor else {
        return gpu.launch(variant, "max_pool_backward", in_groups(count, threads), &arguments);
    };
    let (variant, divisor) = divided(variant, &windows, divisor);
    gpu.launch(variant, "avg_pool_backward", in_groups(count, threads), &arguments.float(divisor, dtype.acc()))
}

/// Adds the dtype of the positions of the largest elements.
fn indexed(variant: Variant, index: DType) -> Variant {
    variant.define("INDEX", index).flag("LOCAL_INDEX", index == DType::U8)
}

/// Adds the kind of divisor to a program of averages. Returns the divisor if it is the same for all windows, else 1.
fn divided(variant: Variant, windows: &Windows, divisor: Divisor) -> (Variant, f64) {
    let is_size = divisor == Divisor::Window;
    let constant = match divisor {
        Divisor::Number(number) => Some(number as f64),
        _ if have_one_size(windows, is_size) => Some(windows.window() as f64),
        _ => None,
    };
    let flags = [("CONSTANT", constant.is_some()), ("INCLUDE_PAD", constant.is_none() && is_size)];
    (variant.flags(flags), constant.unwrap_or(1.0))
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| {
        differentiate(d, t, &[&[64, 64, 112, 112]], |x| {
            x[0].max_pool2d(&MaxPool { stride: [2, 2], padding: [1, 1], ..MaxPool::new([3, 3]) })
        })
    },
    // Without a gradient, for which positions are found.
    |d, t| zeros(d, t, &[64, 64, 112, 112])?.max_pool2d(&MaxPool::new([2, 2])).map(drop),
    |d, t| differentiate(d, t, &[&[64, 64, 112, 112]], |x| x[0].avg_pool2d(&AvgPool::new([2, 2]))),
    // Windows that the kernel finds.
    |d, t| differentiate(d, t, &[&[64, 64, 112, 112]], |x| x[0].adaptive_max_pool2d([13, 13])),
    |d, t| differentiate(d, t, &[&[64, 64, 112, 112]], |x| x[0].adaptive_avg_pool2d([13, 13])),
    // Large windows, that several threads read.
    |d, t| zeros(d, t, &[64, 64, 112, 112])?.max_pool2d(&MaxPool::new([16, 16])).map(drop),
    |d, t| zeros(d, t, &[64, 64, 112, 112])?.avg_pool2d(&AvgPool::new([16, 16])).map(drop),
    // Large windows that are made of columns.
    |d, t| differentiate(d, t, &[&[64, 64, 112, 112]], |x| x[0].adaptive_max_pool2d([3, 3])),
    |d, t| differentiate(d, t, &[&[64, 64, 112, 112]], |x| x[0].adaptive_avg_pool2d([3, 1])),
];
