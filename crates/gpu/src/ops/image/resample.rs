//! Linear maps along dimensions, and their gradients. The taps of all outputs are in a table on the device.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{group_size, in_groups};
use crate::launch::integers::Integers;
use crate::launch::operands::start_of;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate};
use crate::ops::indexing::index::is_wide;
use crate::program::source::Variant;
use isograd_core::fused::Fused;
use isograd_core::operands::{Input, Output};
use isograd_core::ops::image::resample::{Axis, Resample, Rule, Taps, Way};
use isograd_core::ops::{Interpolate, Interpolation, Pad};
use isograd_core::{Call, DType, Result};

pub const FAMILY: Family = Family { launchers: &[Launcher::of::<Resample>()], examples: EXAMPLES };

impl FusedLaunch for Resample {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call, self)
    }
}

/// The taps of each output: `starts[o] .. starts[o + 1]`.
struct Rows {
    starts: Vec<usize>,
    positions: Vec<usize>,
    weights: Vec<f64>,
}

impl Rows {
    fn new(axis: &Axis, way: Way) -> Rows {
        let Taps { starts, positions, weights } = axis.taps();
        let weights = if weights.is_empty() { vec![1.0; positions.len()] } else { weights };
        match way {
            Way::Forward => Rows { starts, positions, weights },
            Way::Backward => {
                // The outputs that read an element, in order.
                let outputs: Vec<usize> =
                    (0..axis.output).flat_map(|o| (starts[o]..starts[o + 1]).map(move |_| o)).collect();
                let mut order: Vec<usize> = (0..positions.len()).collect();
                order.sort_by_key(|&tap| positions[tap]);
                let before = |l: usize| order.partition_point(|&tap| positions[tap] < l);
                Rows {
                    starts: (0..=axis.input).map(before).collect(),
                    positions: order.iter().map(|&tap| outputs[tap]).collect(),
                    weights: order.iter().map(|&tap| weights[tap]).collect(),
                }
            }
        }
    }
}

/// The bits of a weight, as the kernel's arithmetic reads them.
fn bits(weight: f64, acc: DType) -> i64 {
    match acc {
        DType::F64 => weight.to_bits() as i64,
        _ => i64::from((weight as f32).to_bits()),
    }
}

fn run(gpu: &Gpu, call: &Call<'_>, resample: &Resample) -> Result<()> {
    let (Input { x }, Output { y }) = (resample.inputs(call), resample.outputs(call));
    let (n, acc) = (y.layout.shape().numel(), y.dtype.acc());
    let is_weighted = resample.axes.iter().any(|axis| axis.rule.is_weighted());
    let planes = resample.axes[..2].iter().take_while(|axis| axis.rule == Rule::Keep).count();
    let (mut words, mut starts, mut positions, mut weights) = (Vec::new(), [0; 3], [0; 3], [0; 3]);
    for (d, axis) in resample.axes.iter().enumerate().skip(planes) {
        let rows = Rows::new(axis, resample.way);
        let as_words = |values: &[usize]| values.iter().map(|&v| v as i64).collect::<Vec<_>>();
        starts[d] = words.len();
        words.extend(as_words(&rows.starts));
        positions[d] = words.len();
        words.extend(as_words(&rows.positions));
        weights[d] = words.len();
        if is_weighted {
            words.extend(rows.weights.iter().map(|&w| bits(w, acc)));
        }
    }
    let (inputs, outputs) = (resample.axes.map(|axis| axis.input), resample.axes.map(|axis| axis.output));
    let (inputs, outputs) = if resample.way == Way::Forward { (inputs, outputs) } else { (outputs, inputs) };
    let threads = group_size(gpu.driver().limits());
    let variant = Variant::new("image/resample.c")
        .define("THREADS", threads)
        .stored(y.dtype)
        .define("AXES", 3 - planes)
        .flag("SINGLE", resample.way == Way::Forward && !is_weighted)
        .flag("WEIGHTED", is_weighted)
        .flag("WIDE", is_wide(&[x, y]));
    let table = gpu.tables.get(&gpu.pool, words)?;
    let integers = Integers::new()
        .divisor_list("OUTPUTS", outputs)
        .position_list("INPUTS", inputs)
        .list("STARTS", starts)
        .list("POSITIONS", positions)
        .list("WEIGHTS", weights);
    let arguments =
        Arguments::new().pointers([start_of(x)?, start_of(y)?, table.buffer.address]).named(integers).int(n);
    gpu.launch(variant, "resample", in_groups(n, threads), &arguments)
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| {
        const LARGER: Interpolate<2> = Interpolate::size([28, 28]).mode(Interpolation::Linear);
        differentiate(d, t, &[&[2, 16, 14, 14]], |x| x[0].interpolate(&LARGER))
    },
    |d, t| differentiate(d, t, &[&[2, 16, 14, 14]], |x| x[0].pad(&[[1, 1], [1, 1]], Pad::Reflect)),
];
