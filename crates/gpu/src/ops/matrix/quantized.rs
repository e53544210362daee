//! Numbers of quantised weights, and their products with few rows: a launch each.

use crate::driver::{Address, Geometry, Limits};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, groups, in_groups};
use crate::launch::operands::{start_of, start_or, starts, variant};
use crate::launch::words::widest;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, zeros};
use crate::program::source::Variant;
use isograd_core::fused::Fused;
use isograd_core::operands::{Input, Output};
use isograd_core::ops::matrix::quantized::{Dequantize, QuantizedInputs, QuantizedLinear};
use isograd_core::quantized::{BlockFormat, QuantizedWeight};
use isograd_core::{Call, DType, Device, Operand, Result};

/// The most rows of x that are multiplied with blocks. For more, matrix units multiply dequantised numbers faster.
const FEW: usize = 8;
/// Threads of a row of the weight.
const TEAM: usize = 32;
/// Threads of a group, in teams.
const THREADS: usize = 128;
/// Elements of a run, which a thread moves in words.
const RUN: usize = 4;

pub const FAMILY: Family =
    Family { launchers: &[Launcher::of::<Dequantize>(), Launcher::of::<QuantizedLinear>()], examples: EXAMPLES };

/// Numbers of a unit, which a thread computes at once.
fn unit(format: BlockFormat) -> usize {
    if matches!(format, BlockFormat::Q2K | BlockFormat::Q3K) { 4 * RUN } else { 2 * RUN }
}

/// The program for a format, with blocks at an address, and numbers of the dtype of `t` in words.
fn program(format: BlockFormat, t: &Operand<'_>, blocks: Address, words: Address) -> Variant {
    let size = t.dtype.size();
    let vector = widest(RUN.min(16 / size), [], [(words, size)]);
    variant("matrix/quantized.c", t)
        .flag(format.name(), true)
        .define("ALIGNED", widest(4, [format.bytes()], [(blocks, 1)]))
        .words(vector, size)
}

impl FusedLaunch for Dequantize {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (Input { x }, Output { y }) = (self.inputs(call), self.outputs(call));
        let ([blocks, numbers], threads) = (starts([x, y])?, group_size(gpu.driver().limits()));
        let units = y.layout.shape().numel() / unit(self.0);
        if units == 0 {
            return Ok(());
        }
        let program = program(self.0, y, blocks, numbers).define("THREADS", threads);
        let arguments = Arguments::new().pointers([blocks, numbers]).int(units);
        gpu.launch(program, "dequantize", in_groups(units, threads), &arguments)
    }
}

impl FusedLaunch for QuantizedLinear {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (QuantizedInputs { x, weight, bias }, Output { y }) = (self.inputs(call), self.outputs(call));
        let ([of_x, of_weight], of_y) = (starts([x, weight])?, start_of(y)?);
        let [outputs, row] = [0, 1].map(|d| weight.layout.shape()[d]);
        let threads = THREADS.min(group_size(gpu.driver().limits()));
        let team = TEAM.min(threads);
        let program = program(self.format, x, of_weight, of_x)
            .define("THREADS", threads)
            .define("TEAM", team)
            .define("ROWS", self.rows)
            .flag("BIAS", bias.is_some());
        let arguments = Arguments::new()
            .pointers([of_x, of_weight, start_or(bias, of_x)?, of_y])
            .numbers([outputs, row / self.format.bytes()]);
        let geometry: Geometry = groups(outputs.div_ceil(threads / team), threads);
        gpu.launch(program, "quantized_linear", geometry, &arguments)
    }

    fn has_room(&self, _dtype: DType, _limits: &Limits) -> bool {
        self.rows <= FEW
    }
}

/// A weight of zeros, its numbers, and its products with one row and with several.
fn products(device: &Device, dtype: DType, format: BlockFormat) -> Result<()> {
    let width = 1024;
    let bytes = zeros(device, DType::U8, &[256, format.row_bytes(width).unwrap_or(0)])?;
    let weight = QuantizedWeight::new(format, &bytes, width)?;
    weight.dequantize(dtype)?;
    let bias = zeros(device, dtype, &[256])?;
    zeros(device, dtype, &[1, width])?.quantized_linear(&weight, None)?;
    zeros(device, dtype, &[4, width])?.quantized_linear(&weight, Some(&bias)).map(drop)
}

/// Calls that together launch every kernel of the family, for every format.
const EXAMPLES: &[Example] = &[|d, t| BlockFormat::ALL.iter().try_for_each(|&format| products(d, t, format))];
