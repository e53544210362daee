//! Convolutions and their gradients: products of matrices whose factors are read by `conv_first.h`, or by `conv_last.h` where
//! channels are last in memory. Matrix units read adjacent channels, so other operands in 16 bits are copied for them, and channels of
//! zeros make words whole.

mod depthwise;
mod depthwise_last;
mod extents;
pub(super) mod turn;

use self::depthwise::Depthwise;
use self::depthwise_last::DepthwiseLast;
use self::extents::Over;
use self::turn::Volumes;
use crate::driver::Address;
use crate::driver::dnn::Map;
use crate::launch::device::Gpu;
use crate::launch::operands::start_of;
use crate::memory::block::Block;
use crate::memory::pool::Buffer;
use crate::ops::elementwise::pointwise;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, zeros};
use crate::ops::matrix::matmul::{self, Extents, Loaded, Loading, Side};
use isograd_core::fused::Fused;
use isograd_core::ops::conv::{
    ConvForward, ConvInput, ConvInputInputs, ConvInputs, ConvWeight, ConvWeightInputs, Geometry,
};
use isograd_core::ops::{Conv, Padding};
use isograd_core::{Call, DType, Dims, Kernel, Layout, Operand, Result, Shape};

pub(crate) const FAMILY: Family = Family {
    launchers: &[Launcher::of::<ConvForward>(), Launcher::of::<ConvInput>(), Launcher::of::<ConvWeight>()],
    examples: EXAMPLES,
};

impl FusedLaunch for ConvForward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let ConvInputs { x, w, bias } = self.inputs(call);
        run(gpu, Map::Forward, &self.0, [x, w], bias, self.outputs(call).y)
    }
}

impl FusedLaunch for ConvInput {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let ConvInputInputs { g, w, bias } = self.inputs(call);
        run(gpu, Map::Input, &self.0, [g, w], bias, self.outputs(call).y)
    }
}

impl FusedLaunch for ConvWeight {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let ConvWeightInputs { g, x } = self.inputs(call);
        run(gpu, Map::Weight, &self.0, [g, x], None, self.outputs(call).y)
    }
}

impl Map {
    /// The flag of the loaders.
    fn flag(self) -> &'static str {
        match self {
            Map::Forward => "CONV_FORWARD",
            Map::Input => "CONV_INPUT",
            Map::Weight => "CONV_WEIGHT",
        }
    }

    /// The extents of the product for channels before volumes.
    fn extents(self, geometry: &Geometry) -> Extents {
        let Geometry { batch, groups, channels, outputs, ref windows } = *geometry;
        let (window, volume, count) = (windows.window(), windows.volume(), windows.outputs());
        match self {
            Map::Forward => Extents { batches: batch * groups, m: outputs, n: count, k: channels * window },
            Map::Input => Extents { batches: batch * groups, m: channels, n: volume, k: outputs * window },
            Map::Weight => Extents { batches: groups, m: outputs, n: channels * window, k: batch * count },
        }
    }

    /// The extents of the product for channels that are last in memory, in one group.
    fn extents_last(self, geometry: &Geometry) -> Extents {
        let Geometry { batch, channels, outputs, ref windows, .. } = *geometry;
        let (window, volume, count) = (windows.window(), windows.volume(), windows.outputs());
        match self {
            Map::Forward => Extents { batches: 1, m: batch * count, n: outputs, k: channels * window },
            Map::Input => Extents { batches: 1, m: batch * volume, n: channels, k: outputs * window },
            Map::Weight => Extents { batches: 1, m: outputs, n: channels * window, k: batch * count },
        }
    }
}

/// Bytes of a vector load.
const WORD: usize = 16;
/// 16-bit elements of a vector load.
const MMA_WORD: usize = 8;
/// Multiplications from which on it is worth copying operands to pad their channels with zeros.
const LEAST_PADDED: usize = 1 << 22;

/// A map of both of its factors, plus the bias.
fn run(
    gpu: &Gpu,
    map: Map,
    geometry: &Geometry,
    factors: [&Operand<'_>; 2],
    bias: Option<&Operand<'_>>,
    y: &Operand<'_>,
) -> Result<()> {
    let padded = with_whole_words(gpu, geometry, y.dtype);
    let geometry = padded.as_ref().unwrap_or(geometry);
    let is_last = match geometry.groups {
        1 => y.layout.is_channels_last() || has_mma(gpu, geometry, y.dtype),
        _ => is_depthwise_last(geometry, map, [factors[0], factors[1], y]),
    };
    // Which of both inputs and the result have the channels of the input.
    let have_channels = if map == Map::Forward { [true, true, false] } else { [false, true, true] };
    let extents = have_channels.map(|has| padded.as_ref().filter(|_| has).map(|padded| padded.channels));
    let inputs = [0, 1].map(|k| Dense::of(gpu, factors[k], is_last, extents[k]));
    let [first, second] = inputs;
    let (first, second, result) = (first?, second?, Dense::like(gpu, y, is_last, extents[2])?);
    let addresses = [first.address, second.address, result.address];
    multiply(gpu, Multiplied { map, geometry, is_last, dtype: y.dtype, addresses, bias })?;
    result.copy_to(gpu, y, is_last, extents[2])
}

/// The convolution with so many more channels, of zeros, that matrix units read whole words; none if it has whole words, if it has no
/// outputs in whole words, or if it is small.
fn with_whole_words(gpu: &Gpu, geometry: &Geometry, dtype: DType) -> Option<Geometry> {
    let channels = geometry.channels.next_multiple_of(MMA_WORD);
    let padded = Geometry { channels, ..geometry.clone() };
    let Geometry { batch, outputs, ref windows, .. } = padded;
    let counts = [batch, outputs, channels, windows.outputs(), windows.window()];
    let multiplied = counts.into_iter().fold(1, usize::saturating_mul);
    let is_worth_it = geometry.groups == 1 && geometry.channels > 1 && multiplied > LEAST_PADDED;
    (is_worth_it && channels > geometry.channels && has_mma(gpu, &padded, dtype)).then_some(padded)
}

/// Whether matrix units multiply: they read adjacent channels.
fn has_mma(gpu: &Gpu, geometry: &Geometry, dtype: DType) -> bool {
    let has_words = [geometry.channels, geometry.outputs].iter().all(|n| n.is_multiple_of(MMA_WORD));
    gpu.driver().limits().has_mma && !gpu.driver().dialect().mma.is_empty() && dtype.size() == 2 && has_words
}

/// An operand that fills memory in the order that the kernels take: its own memory, or a copy. The layout is that of the operand in
/// the copy, which may have more channels.
struct Dense {
    address: Address,
    copy: Option<(Buffer, Layout)>,
}

impl Dense {
    /// An operand to read. Further channels are zeros.
    fn of(gpu: &Gpu, x: &Operand<'_>, is_last: bool, channels: Option<usize>) -> Result<Dense> {
        let dense = Dense::like(gpu, x, is_last, channels)?;
        if let Some((buffer, layout)) = &dense.copy {
            if let Some(volumes) = volumes(x, is_last, channels) {
                volumes.put_last(gpu, x.dtype, start_of(x)?, buffer.address)?;
                return Ok(dense);
            }
            if channels.is_some() {
                gpu.driver().fill(buffer.address, 0, shape_with(x, channels).numel() * x.dtype.size())?;
            }
            let memory = &Block::at(&gpu.pool, buffer.address);
            copy(gpu, x, &Operand { memory, layout, dtype: x.dtype })?;
        }
        Ok(dense)
    }

    /// An operand to write.
    fn like(gpu: &Gpu, x: &Operand<'_>, is_last: bool, channels: Option<usize>) -> Result<Dense> {
        let is_dense = if is_last { x.layout.has_channels_last() } else { x.layout.is_contiguous() };
        if is_dense && channels.is_none() {
            return Ok(Dense { address: start_of(x)?, copy: None });
        }
        let shape = shape_with(x, channels);
        let buffer = gpu.scratch(shape.numel() * x.dtype.size())?;
        let layout = if is_last { Layout::channels_last(shape) } else { Layout::contiguous(shape) };
        let layout = layout.narrow(1, 0, x.layout.shape()[1], 1);
        Ok(Dense { address: buffer.address, copy: Some((buffer, layout)) })
    }

    /// Copies what was written to the operand, unless it is its own memory.
    fn copy_to(&self, gpu: &Gpu, y: &Operand<'_>, is_last: bool, channels: Option<usize>) -> Result<()> {
        match (&self.copy, volumes(y, is_last, channels)) {
            (None, _) => Ok(()),
            (Some((buffer, _)), Some(volumes)) => volumes.put_first(gpu, y.dtype, buffer.address, start_of(y)?),
            (Some((buffer, layout)), None) => {
                let memory = &Block::at(&gpu.pool, buffer.address);
                copy(gpu, &Operand { memory, layout, dtype: y.dtype }, y)
            }
        }
    }
}

/// A row-major operand whose copy has another number of channels, and has them last; none if elements are copied one by one.
fn volumes(x: &Operand<'_>, is_last: bool, channels: Option<usize>) -> Option<Volumes> {
    let dims = x.layout.shape().dims();
    let volumes = Volumes {
        samples: dims[0],
        channels: dims[1],
        volume: dims[2..].iter().product(),
        last: channels.unwrap_or(dims[1]),
    };
    (is_last && x.layout.is_contiguous() && volumes.are_long(x.dtype)).then_some(volumes)
}

/// The shape of an operand, with another number of channels.
fn shape_with(x: &Operand<'_>, channels: Option<usize>) -> Shape {
    let extents = x.layout.shape().iter().enumerate();
    Shape::from(extents.map(|(d, &extent)| channels.filter(|_| d == 1).unwrap_or(extent)).collect::<Dims>())
}

fn copy(gpu: &Gpu, from: &Operand<'_>, to: &Operand<'_>) -> Result<()> {
    if to.layout.shape().numel() == 0 {
        return Ok(());
    }
    let (inputs, outputs) = (&[*from], &[*to]);
    pointwise::run(gpu, &Call { op: "conv", kernel: Kernel::Copy, inputs, outputs, ints: &[], floats: &[] })
}

/// A map of operands that fill memory in one order.
struct Multiplied<'a> {
    map: Map,
    geometry: &'a Geometry,
    is_last: bool,
    dtype: DType,
    /// The addresses of both factors and of the result.
    addresses: [Address; 3],
    bias: Option<&'a Operand<'a>>,
}

fn multiply(gpu: &Gpu, multiplied: Multiplied<'_>) -> Result<()> {
    let Multiplied { map, geometry, is_last, dtype, addresses, bias } = multiplied;
    if geometry.groups > 1 && is_last {
        let bias = bias.map(|bias| Ok((start_of(bias)?, bias.layout.strides()[0]))).transpose()?;
        return DepthwiseLast { geometry, dtype, addresses, bias }.run(gpu, map);
    }
    if is_depthwise(geometry, map) && !is_last && depthwise(gpu, &multiplied)? {
        return Ok(());
    }
    let e = if is_last { map.extents_last(geometry) } else { map.extents(geometry) };
    let Geometry { batch, groups, channels, outputs, ref windows } = *geometry;
    let sizes = [
        batch * groups * channels * windows.volume(),
        batch * groups * outputs * windows.outputs(),
        groups * channels * outputs * windows.window(),
    ];
    let is_wide = sizes.into_iter().chain([e.m, e.n, e.k]).any(|extent| extent > i32::MAX as usize);
    let [a, b] = if is_last { sides_last(map, geometry, e, dtype, addresses) } else { sides(map, e, dtype, addresses) };
    let strides = |bias: &Operand<'_>| match bias.layout.strides() {
        [_, channel] if is_last => [0, 0, *channel],
        strides => [strides[0], strides[1], 0],
    };
    let c = bias.map(|bias| Ok((start_of(bias)?, strides(bias)))).transpose()?;
    let file = if is_last { "conv/conv_last.h" } else { "conv/conv_first.h" };
    let over = if map == Map::Input { Over::Input } else { Over::Output };
    let [flat, strided] = extents::flags(windows);
    let flags = vec![(map.flag(), true), flat, strided];
    let loading = Loading { file, flags, pointers: Vec::new(), integers: extents::named(geometry, over) };
    let has_words = is_last && has_mma(gpu, geometry, dtype);
    matmul::run_loaded(gpu, Loaded { e, dtype, a, b, c, y: addresses[2], is_wide, has_words, loading })
}

/// Whether groups have one channel each, so that memory bounds the map. Of a single channel, the gradient is a sum over many outputs.
pub fn is_depthwise(geometry: &Geometry, map: Map) -> bool {
    geometry.channels == 1 && (geometry.groups > 1 || map != Map::Input)
}

/// Whether groups have one channel and one output each, and tensors of all channels are channels last. The operands of the map are its
/// factors and its result.
pub fn is_depthwise_last(geometry: &Geometry, map: Map, [_, second, result]: [&Operand<'_>; 3]) -> bool {
    let of_channels = if map == Map::Weight { second } else { result };
    depthwise_last::takes(geometry) && of_channels.layout.is_channels_last()
}

/// Runs a map of groups that have one channel each by a kernel for them; false if there is none.
fn depthwise(gpu: &Gpu, multiplied: &Multiplied<'_>) -> Result<bool> {
    let Multiplied { map, geometry, dtype, addresses, bias, .. } = *multiplied;
    let strides = |bias: &Operand<'_>| [bias.layout.strides()[0], bias.layout.strides()[1]];
    let bias = bias.map(|bias| Ok((start_of(bias)?, strides(bias)))).transpose()?;
    let depthwise = Depthwise { geometry, dtype, addresses, bias };
    match map {
        Map::Forward => depthwise.forward(gpu),
        Map::Input => depthwise.input(gpu),
        Map::Weight => depthwise.weight(gpu),
    }
}

/// The factors for channels before volumes. Only the weight has words: along K, where K is the channel and the element of a window.
fn sides(map: Map, e: Extents, dtype: DType, [first, second, _]: [Address; 3]) -> [Side; 2] {
    match map {
        Map::Forward => [Side::contiguous(second, dtype, e.m, e.k), Side::scattered(first, dtype, [e.n, e.k], false)],
        Map::Input => {
            [Side::scattered(second, dtype, [e.m, e.k], false), Side::scattered(first, dtype, [e.n, e.k], false)]
        }
        Map::Weight => {
            [Side::scattered(first, dtype, [e.m, e.k], true), Side::scattered(second, dtype, [e.n, e.k], true)]
        }
    }
}

/// The factors for channels that are last in memory. Words are adjacent channels or outputs.
fn sides_last(map: Map, geometry: &Geometry, e: Extents, dtype: DType, [first, second, _]: [Address; 3]) -> [Side; 2] {
    let word = WORD / dtype.size();
    let has_words = [geometry.channels, geometry.outputs].iter().all(|n| n.is_multiple_of(word));
    let side = |address, rows, is_along_k| match (has_words, is_along_k) {
        (false, _) => Side::scattered(address, dtype, [rows, e.k], is_along_k),
        (true, true) => Side::contiguous(address, dtype, rows, e.k),
        (true, false) => Side::turned(address, dtype, rows, e.k),
    };
    match map {
        Map::Forward => [side(first, e.m, true), side(second, e.n, true)],
        Map::Input => [side(first, e.m, true), side(second, e.n, false)],
        Map::Weight => [side(first, e.m, false), side(second, e.n, false)],
    }
}

const EXAMPLES: &[Example] = &[
    |d, t| {
        differentiate(d, t, &[&[2, 16, 14, 14], &[32, 16, 3, 3], &[32]], |x| x[0].conv2d(&x[1], Some(&x[2]), &PADDED))
    },
    // A copy to another order.
    |d, t| zeros(d, t, &[16, 64, 28, 28])?.to_channels_last().map(drop),
    // Channels last, where matrix units read words.
    |d, t| {
        differentiate(d, t, &[&[2, 16, 14, 14], &[32, 16, 3, 3], &[32]], |x| {
            x[0].to_channels_last()?.conv2d(&x[1].to_channels_last()?, Some(&x[2]), &PADDED)
        })
    },
    // The same for large tiles, and channels that are no whole words.
    |d, t| {
        differentiate(d, t, &[&[8, 64, 28, 28], &[64, 64, 3, 3], &[64]], |x| {
            x[0].to_channels_last()?.conv2d(&x[1].to_channels_last()?, Some(&x[2]), &PADDED)
        })
    },
    |d, t| differentiate(d, t, &[&[8, 3, 28, 28], &[64, 3, 3, 3]], |x| x[0].conv2d(&x[1], None, &PADDED)),
    // Long windows of a weight in row-major order.
    |d, t| {
        differentiate(d, t, &[&[2, 16, 14, 14], &[32, 16, 7, 7]], |x| {
            x[0].to_channels_last()?.conv2d(&x[1], None, &PADDED)
        })
    },
    // One channel.
    |d, t| differentiate(d, t, &[&[2, 1, 14, 14], &[32, 1, 3, 3], &[32]], |x| x[0].conv2d(&x[1], Some(&x[2]), &PADDED)),
    // Groups of one channel, so many that a thread takes several lines, and such with a stride.
    |d, t| {
        differentiate(d, t, &[&[64, 128, 56, 56], &[128, 1, 3, 3]], |x| {
            x[0].conv2d(&x[1], None, &Conv { groups: 128, ..PADDED })
        })
    },
    |d, t| {
        differentiate(d, t, &[&[2, 16, 14, 14], &[16, 1, 3, 3], &[16]], |x| {
            x[0].conv2d(&x[1], Some(&x[2]), &Conv { groups: 16, ..PADDED })
        })
    },
    |d, t| {
        differentiate(d, t, &[&[2, 16, 14, 14], &[16, 1, 3, 3], &[16]], |x| {
            x[0].conv2d(&x[1], Some(&x[2]), &Conv { groups: 16, stride: [2; 2], ..PADDED })
        })
    },
    // The same with channels last.
    |d, t| {
        differentiate(d, t, &[&[2, 16, 14, 14], &[16, 1, 3, 3], &[16]], |x| {
            let conv = Conv { groups: 16, ..PADDED };
            x[0].to_channels_last()?.conv2d(&x[1], Some(&x[2]), &conv)
        })
    },
    |d, t| {
        differentiate(d, t, &[&[2, 16, 14, 14], &[16, 1, 3, 3], &[16]], |x| {
            let conv = Conv { groups: 16, stride: [2; 2], ..PADDED };
            x[0].to_channels_last()?.conv2d(&x[1], Some(&x[2]), &conv)
        })
    },
];

const PADDED: Conv<2> = Conv { stride: [1; 2], padding: Padding::Each([1; 2]), dilation: [1; 2], groups: 1 };
