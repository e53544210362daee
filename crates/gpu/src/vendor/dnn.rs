//! Convolutions by the vendor's library: which ones it gets, and which of its kernels. A device that must give the same bits in every run
//! takes the library's own choice. Otherwise all its kernels, and our own, are measured once for each form.

use crate::driver::Address;
use crate::driver::dnn::{Form, Library, Map, Sizes, View};
use crate::launch::device::Gpu;
use crate::launch::operands::place;
use crate::ops;
use crate::vendor::note;
use isograd_core::ops::conv::{self, ConvForward, ConvInput, ConvWeight};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Call, DType, Dims, Error, Kernel, Layout, Operand, Result, Shape};
use std::sync::atomic::Ordering;

/// Multiplications of a convolution that are worth a library's time to choose a kernel.
const LEAST: usize = 1 << 24;
/// Kernels that are measured.
const MOST_KERNELS: usize = 8;
/// Bytes of workspace of a kernel that is measured, at most.
const MOST_WORKSPACE: usize = 1 << 30;
/// Measured runs, of which the fastest counts. One more comes before.
const RUNS: usize = 3;

/// Has the library compute a convolution; false if it is left to us.
pub fn try_run(gpu: &Gpu, call: &Call<'_>) -> Result<bool> {
    let Kernel::Fused(fused) = call.kernel else { return Ok(false) };
    let found = if let Some(ConvForward(geometry)) = fused.downcast_ref() {
        (Map::Forward, geometry)
    } else if let Some(ConvInput(geometry)) = fused.downcast_ref() {
        (Map::Input, geometry)
    } else if let Some(ConvWeight(geometry)) = fused.downcast_ref() {
        (Map::Weight, geometry)
    } else {
        return Ok(false);
    };
    let Some(library) = library(gpu) else { return Ok(false) };
    let (map, geometry) = found;
    // Our kernels are faster where memory is the limit, and our products of f32 where windows are single elements.
    let is_depthwise = geometry.channels == 1 && geometry.groups > 1 && call.inputs[0].layout.is_contiguous();
    if is_depthwise || (geometry.is_pointwise() && call.outputs[0].dtype == DType::F32) {
        return Ok(false);
    }
    let multiplied = [geometry.batch, geometry.groups, geometry.channels, geometry.outputs];
    let multiplied = multiplied.into_iter().chain([geometry.windows.outputs(), geometry.windows.window()]);
    if multiplied.fold(1, usize::saturating_mul) < LEAST {
        return Ok(false);
    }
    let convolution = Convolution::new(gpu, library, call, map, geometry)?;
    match convolution.kernel(call)? {
        Some(kernel) => convolution.run(kernel, call).map(|()| true),
        None => Ok(false),
    }
}

fn library(gpu: &Gpu) -> Option<&dyn Library> {
    let is_off = gpu.is_dnn_off.load(Ordering::Relaxed);
    gpu.driver().dnn().filter(|_| !is_off)
}

/// A call as the library sees it.
struct Convolution<'a> {
    gpu: &'a Gpu,
    library: &'a dyn Library,
    form: Form,
    /// Of input, weight and output.
    addresses: [Address; 3],
}

impl<'a> Convolution<'a> {
    fn new(
        gpu: &'a Gpu,
        library: &'a dyn Library,
        call: &Call<'_>,
        map: Map,
        geometry: &conv::Geometry,
    ) -> Result<Convolution<'a>> {
        let [first, second, result] = [&call.inputs[0], &call.inputs[1], &call.outputs[0]];
        let operands = match map {
            Map::Forward => [first, second, result],
            Map::Input => [result, second, first],
            Map::Weight => [second, result, first],
        };
        let windows = &geometry.windows;
        // Operands of one and two dimensions have leading extents of 1 in `windows`, and none themselves.
        let own = |sizes: [usize; 3]| -> Sizes {
            sizes[5 - operands[0].layout.shape().rank()..].iter().map(|&s| s as i64).collect()
        };
        let [input, weight, output] = operands.map(|operand| view(operand.layout));
        let form = Form {
            map,
            dtype: result.dtype,
            precision: gpu.precision(),
            is_deterministic: gpu.is_deterministic.load(Ordering::Relaxed),
            input,
            weight,
            output,
            stride: own(windows.stride),
            padding: [own(windows.low), own(windows.high)],
            dilation: own(windows.dilation),
        };
        let [x, w, y] = operands;
        Ok(Convolution { gpu, library, form, addresses: [place(x)?, place(w)?, place(y)?] })
    }

    /// The kernel of the library; none if there is none, or if our own is faster.
    fn kernel(&self, call: &Call<'_>) -> Result<Option<usize>> {
        if let Some(&chosen) = self.gpu.convolutions.lock().get(&self.form) {
            return Ok(chosen);
        }
        if self.gpu.records() {
            // Nothing is measured while work is recorded, and the library may not choose.
            return Ok(None);
        }
        let count = match self.library.kernels(&self.form) {
            Ok(count) => count.min(MOST_KERNELS),
            Err(error) => {
                tracing::warn!(%error, "our own kernel convolves");
                0
            }
        };
        let chosen = match (count, self.form.is_deterministic) {
            (0, _) => None,
            (_, true) => Some(0),
            (_, false) => self.fastest(count, call)?,
        };
        self.gpu.convolutions.lock().insert(self.form.clone(), chosen);
        Ok(chosen)
    }

    fn fastest(&self, count: usize, call: &Call<'_>) -> Result<Option<usize>> {
        let mut best = (self.seconds(|| ops::run(self.gpu, call))?, None);
        for kernel in 0..count {
            if self.library.workspace(&self.form, kernel)? > MOST_WORKSPACE {
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
        let workspace = self.gpu.scratch(self.library.workspace(&self.form, kernel)?)?;
        self.library.convolve(&self.form, kernel, self.addresses, workspace.address)?;
        note(self.gpu, &self.form);
        match call.inputs.get(2) {
            Some(bias) => add(self.gpu, call, bias, &call.outputs[0]),
            None => Ok(()),
        }
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
