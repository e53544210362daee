//! Convolutions and attention by the vendor's library: which ones it gets, and which of its kernels. A device that must give the same bits
//! in every run takes the library's own choice. Otherwise all its kernels, and our own, are measured once for each problem.

use crate::driver::Address;
use crate::driver::dnn::{Attention, Convolution, Library, Map, Problem, Sizes, View};
use crate::launch::device::Gpu;
use crate::launch::operands::addresses;
use crate::ops;
use crate::vendor::note;
use isograd_core::fused::Fused;
use isograd_core::ops::attention::flash::{
    FlashAttention, FlashAttentionBackward, FlashBackwardInputs, FlashGradients, FlashInputs, FlashOutputs,
};
use isograd_core::ops::attention::sequences::Sequences;
use isograd_core::ops::conv::{
    self, ConvForward, ConvInput, ConvInputInputs, ConvInputs, ConvWeight, ConvWeightInputs,
};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Call, DType, Dims, Error, Kernel, Layout, Operand, Result, Shape};
use smallvec::SmallVec;
use std::sync::atomic::Ordering;

/// Multiplications of a convolution that are worth a library's time to choose a kernel.
const LEAST: usize = 1 << 24;
/// Scores that are worth a library's kernel, whose launch takes longer than that of ours.
const LEAST_SCORES: usize = 1 << 20;
/// The widest rows of attention.
const MOST_WIDTH: usize = 128;
/// Kernels that are measured.
const MOST_KERNELS: usize = 8;
/// Bytes of workspace of a kernel, at most.
const MOST_WORKSPACE: usize = 1 << 30;
/// Measured runs, of which the fastest counts. One more comes before.
const RUNS: usize = 3;

/// The addresses of a problem's operands.
type Addresses = SmallVec<[Address; 8]>;

/// Has the library compute a convolution, or attention; false if it is left to us.
pub fn try_run(gpu: &Gpu, call: &Call<'_>) -> Result<bool> {
    let Kernel::Fused(fused) = call.kernel else { return Ok(false) };
    let (asked, added) = if let Some(of) = fused.downcast_ref::<ConvForward>() {
        let (ConvInputs { x, w, bias }, y) = (of.inputs(call), of.outputs(call).y);
        (convolution(gpu, Map::Forward, &of.0, [x, w, y])?, bias.map(|bias| (bias, y)))
    } else if let Some(of) = fused.downcast_ref::<ConvInput>() {
        let (ConvInputInputs { g, w, bias }, dx) = (of.inputs(call), of.outputs(call).y);
        (convolution(gpu, Map::Input, &of.0, [dx, w, g])?, bias.map(|bias| (bias, dx)))
    } else if let Some(of) = fused.downcast_ref::<ConvWeight>() {
        let (ConvWeightInputs { g, x }, dw) = (of.inputs(call), of.outputs(call).y);
        (convolution(gpu, Map::Weight, &of.0, [x, dw, g])?, None)
    } else if let Some(of) = fused.downcast_ref::<FlashAttention>() {
        let FlashOutputs { o, lse } = of.outputs(call);
        (attention(gpu, of, of.inputs(call), [o, lse], None)?, None)
    } else if let Some(of) = fused.downcast_ref::<FlashAttentionBackward>() {
        let inputs = of.inputs(call);
        let FlashBackwardInputs { dy, dlse, o, lse, .. } = inputs;
        match (dlse, of.outputs(call)) {
            (None, FlashGradients { q: Some(dq), k: Some(dk), v: Some(dv) }) => {
                (attention(gpu, &of.0, inputs.forward(), [o, lse], Some([dy, dq, dk, dv]))?, None)
            }
            _ => (None, None),
        }
    } else {
        (None, None)
    };
    let Some((problem, addresses)) = asked else { return Ok(false) };
    let Some(library) = library(gpu) else { return Ok(false) };
    let asked = Asked { gpu, library, problem, addresses, added };
    match asked.kernel(call)? {
        Some(kernel) => asked.run(kernel, call).map(|()| true),
        None => Ok(false),
    }
}

fn library(gpu: &Gpu) -> Option<&dyn Library> {
    let is_off = gpu.is_dnn_off.load(Ordering::Relaxed);
    gpu.driver().dnn().filter(|_| !is_off)
}

/// A convolution of an input, a weight and an output as the library sees it; none if our own kernel is faster.
fn convolution(
    gpu: &Gpu,
    map: Map,
    geometry: &conv::Geometry,
    operands: [&Operand<'_>; 3],
) -> Result<Option<(Problem, Addresses)>> {
    let dtype = operands[0].dtype;
    // Our kernels are faster where memory is the limit, and our products of f32 where windows are single elements.
    let is_row_major = operands.iter().all(|x| x.layout.is_contiguous());
    let [x, w, y] = operands;
    let of_map = match map {
        Map::Forward => [x, w, y],
        Map::Input => [y, w, x],
        Map::Weight => [y, x, w],
    };
    let is_depthwise =
        ops::conv::is_depthwise(geometry, map) && is_row_major || ops::conv::is_depthwise_last(geometry, map, of_map);
    if is_depthwise || (geometry.is_pointwise() && dtype == DType::F32) {
        return Ok(None);
    }
    let multiplied = [geometry.batch, geometry.groups, geometry.channels, geometry.outputs];
    let multiplied = multiplied.into_iter().chain([geometry.windows.outputs(), geometry.windows.window()]);
    if multiplied.fold(1, usize::saturating_mul) < LEAST {
        return Ok(None);
    }
    let windows = &geometry.windows;
    // Operands of one and two dimensions have leading extents of 1 in `windows`, and none themselves.
    let own = |sizes: [usize; 3]| -> Sizes {
        sizes[5 - operands[0].layout.shape().rank()..].iter().map(|&s| s as i64).collect()
    };
    let [input, weight, output] = operands.map(|operand| view(operand.layout));
    let problem = Convolution {
        map,
        dtype,
        precision: gpu.precision(),
        is_deterministic: gpu.is_deterministic.load(Ordering::Relaxed),
        input,
        weight,
        output,
        stride: own(windows.stride),
        padding: [own(windows.low), own(windows.high)],
        dilation: own(windows.dilation),
    };
    Ok(Some((Problem::Convolution(Box::new(problem)), addresses(&operands.map(|x| *x))?)))
}

/// Attention with these outputs, or the gradients of q, k and v from that of the result, as the library sees it; none for what it has no
/// kernel for.
fn attention(
    gpu: &Gpu,
    kernel: &FlashAttention,
    FlashInputs { q, k, v, mask, .. }: FlashInputs<&Operand<'_>>,
    outputs: [&Operand<'_>; 2],
    gradients: Option<[&Operand<'_>; 4]>,
) -> Result<Option<(Problem, Addresses)>> {
    if mask.is_some() || kernel.dropout.is_some() || kernel.sequences != Sequences::Whole {
        return Ok(None);
    }
    let operands = [q, k, v].into_iter().chain(outputs).chain(gradients.into_iter().flatten());
    let operands: Vec<Operand<'_>> = operands.copied().collect();
    let (q, k) = (q.layout.shape().dims(), k.layout.shape().dims());
    let (heads, queries, width, keys) = (q[1], q[2], q[3], k[2]);
    let (is_full, is_causal) = {
        let band = kernel.band;
        let starts = band.low <= 1 - queries as i64;
        (starts && band.high >= keys as i64 - 1, starts && band.high == 0)
    };
    let scores = [q[0], heads, queries, keys].into_iter().fold(1, usize::saturating_mul);
    let has_kernel = operands[0].dtype.size() == 2 && width % 8 == 0 && width <= MOST_WIDTH;
    // Heads that share keys would need the sums of their gradients.
    let is_shared = gradients.is_some() && heads != k[1];
    if !has_kernel || is_shared || !(is_full || is_causal) || scores < LEAST_SCORES || queries == 1 {
        return Ok(None);
    }
    // Words of 16 bytes.
    let is_aligned = |x: &Operand<'_>| x.layout.strides()[..3].iter().all(|stride| stride % 8 == 0);
    if !operands.iter().filter(|x| x.layout.shape().rank() == 4).all(is_aligned) {
        return Ok(None);
    }
    let starts = addresses(&operands)?;
    if starts.iter().any(|place| place % 16 != 0) {
        return Ok(None);
    }
    // Our own gradients in a fixed order are faster on matrix units that read local memory.
    let is_deterministic = gpu.is_deterministic.load(Ordering::Relaxed);
    if gradients.is_some() && is_deterministic && gpu.driver().limits().has_wgmma {
        return Ok(None);
    }
    let problem = Attention {
        dtype: operands[0].dtype,
        is_deterministic,
        is_causal: !is_full,
        scale: (kernel.scale as f32).to_bits(),
        operands: operands.iter().map(|x| view(x.layout)).map(with_four).collect(),
    };
    Ok(Some((Problem::Attention(problem), starts)))
}

/// A view of four dimensions, of which those of one element have the strides of row-major order.
fn with_four(mut view: View) -> View {
    while view.extents.len() < 4 {
        view.extents.push(1);
        view.strides.push(1);
    }
    for d in (0..3).rev() {
        if view.extents[d] == 1 {
            view.strides[d] = view.strides[d + 1] * view.extents[d + 1];
        }
    }
    view
}

/// A call as the library sees it.
struct Asked<'a> {
    gpu: &'a Gpu,
    library: &'a dyn Library,
    problem: Problem,
    addresses: Addresses,
    /// A bias, and the result to which it is added.
    added: Option<(&'a Operand<'a>, &'a Operand<'a>)>,
}

impl Asked<'_> {
    /// The kernel of the library; none if there is none, or if our own is faster.
    fn kernel(&self, call: &Call<'_>) -> Result<Option<usize>> {
        if let Some(&chosen) = self.gpu.chosen_kernels.lock().get(&self.problem) {
            return Ok(chosen);
        }
        if self.gpu.records() {
            // Nothing is measured while work is recorded, and the library may not choose.
            return Ok(None);
        }
        let count = match self.library.kernels(&self.problem) {
            Ok(count) => count.min(MOST_KERNELS),
            Err(error) => {
                tracing::warn!(%error, "our own kernel runs");
                0
            }
        };
        let chosen = match (count, self.problem.is_deterministic()) {
            (0, _) => None,
            (_, true) => {
                Some(0).filter(|_| self.library.workspace(&self.problem, 0).is_ok_and(|n| n <= MOST_WORKSPACE))
            }
            (_, false) => self.fastest(count, call)?,
        };
        self.gpu.chosen_kernels.lock().insert(self.problem.clone(), chosen);
        Ok(chosen)
    }

    fn fastest(&self, count: usize, call: &Call<'_>) -> Result<Option<usize>> {
        let mut best = (self.seconds(|| ops::run(self.gpu, call))?, None);
        for kernel in 0..count {
            if self.library.workspace(&self.problem, kernel)? > MOST_WORKSPACE {
                continue;
            }
            match self.seconds(|| self.run(kernel, call)) {
                Ok(seconds) if seconds < best.0 => best = (seconds, Some(kernel)),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, kernel, "a kernel of the library does not run"),
            }
        }
        Ok(best.1)
    }

    /// The duration of the fastest run.
    fn seconds(&self, run: impl Fn() -> Result<()>) -> Result<f64> {
        run()?;
        let driver = self.gpu.driver();
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            let start = driver.record()?;
            run()?;
            best = best.min(driver.elapsed(&start, &driver.record()?)?);
        }
        Ok(best)
    }

    fn run(&self, kernel: usize, call: &Call<'_>) -> Result<()> {
        let workspace = self.gpu.scratch(self.library.workspace(&self.problem, kernel)?)?;
        self.library.run(&self.problem, kernel, &self.addresses, workspace.address)?;
        note(self.gpu, &self.problem);
        self.added.map_or(Ok(()), |(bias, y)| add(self.gpu, call, bias, y))
    }
}

fn view(layout: &Layout) -> View {
    let sizes = |sizes: &[usize]| sizes.iter().map(|&size| size as i64).collect();
    View { extents: sizes(layout.shape().dims()), strides: sizes(layout.strides()) }
}

/// Adds a bias `[N groups, channels of a group]` to `[N, channels, ..]`.
fn add(gpu: &Gpu, call: &Call<'_>, bias: &Operand<'_>, y: &Operand<'_>) -> Result<()> {
    let shape = y.layout.shape();
    let channels: Dims = shape.iter().enumerate().map(|(d, &extent)| if d < 2 { extent } else { 1 }).collect();
    let layout = bias.layout.reshape(&Shape::from(channels));
    let layout =
        layout.ok_or_else(|| Error::backend(call.op, "the bias of each sample is not in order"))?.expand(shape);
    let inputs = [Operand { layout: &layout, ..*bias }];
    let kernel = Kernel::Pointwise(Pointwise::Accumulate);
    ops::run(gpu, &Call { kernel, inputs: &inputs, ints: &[], floats: &[], ..*call })
}
