//! Cross entropy with class indices: a launch for the losses of all elements, one or two for their mean, and one for the
//! gradient of the logits.
//!
//! Its constants were tuned on an H100.

use crate::driver::{Address, Geometry};
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::grid::{THREADS, each, group_size};
use crate::launch::operands::{start_of, starts, starts_or, variant};
use crate::launch::rows::{Kept, SHORT, rows};
use crate::memory::status::Check;
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, zeros};
use crate::program::source::Variant;
use isograd_core::backend::{class_error, index_error};
use isograd_core::fused::Fused;
use isograd_core::operands::Output;
use isograd_core::ops::loss::CrossEntropy;
use isograd_core::ops::loss::cross_entropy::{
    CrossEntropyBackward, CrossEntropyBackwardInputs, CrossEntropyForward, CrossEntropyInputs, CrossEntropyOutputs,
    LossTotal,
};
use isograd_core::{Call, DType, Operand, Result};
use std::ops::Deref;

/// Losses per group of the sum.
const PART: usize = 8192;

pub const FAMILY: Family = Family {
    launchers: &[Launcher::of::<CrossEntropyForward>(), Launcher::of::<CrossEntropyBackward>()],
    examples: EXAMPLES,
};

impl FusedLaunch for CrossEntropyForward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (inputs, outputs) = (self.inputs(call), self.outputs(call));
        let numbers = [inputs.weight.is_some(), inputs.bytes.is_some()];
        let loss = Loss { of: self, numbers, acc: outputs.y.dtype.acc(), y: outputs.y.dtype };
        cross_entropy(gpu, call.op, &loss, inputs, outputs)
    }
}

impl FusedLaunch for CrossEntropyBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (inputs, Output { y: dx }) = (self.inputs(call), self.outputs(call));
        let numbers = [inputs.weight.is_some(), inputs.bytes.is_some()];
        let loss = Loss { of: &self.0, numbers, acc: dx.dtype.acc(), y: inputs.dy.dtype };
        cross_entropy_backward(gpu, &loss, inputs, dx)
    }
}

/// The attributes of a call, the dtype of its arithmetic, and that of the result.
struct Loss<'a> {
    of: &'a CrossEntropyForward,
    /// Whether classes have weights, and whether they have bytes.
    numbers: [bool; 2],
    acc: DType,
    y: DType,
}

impl Deref for Loss<'_> {
    type Target = CrossEntropyForward;

    fn deref(&self) -> &CrossEntropyForward {
        self.of
    }
}

impl Loss<'_> {
    /// Targets.
    fn count(&self) -> usize {
        self.outer * self.inner
    }

    fn by_column(&self) -> bool {
        self.inner > 1 || self.classes < SHORT
    }

    fn is_reduced(&self) -> bool {
        self.total != LossTotal::None
    }

    /// The divisor of the sum of losses if it is known before the launch, else 0.
    fn divisor(&self) -> f64 {
        if let LossTotal::Sum { divisor } = self.total { divisor } else { 0.0 }
    }

    fn define(&self, variant: Variant) -> Variant {
        variant.define("Y", self.y).flags([
            ("WEIGHT", self.numbers[0]),
            ("BYTES", self.numbers[1]),
            ("SMOOTHING", self.smoothing > 0.0),
            ("REDUCED", self.is_reduced()),
            ("MEAN", self.total == LossTotal::Mean),
            ("LOGARITHMS", self.is_logarithm),
        ])
    }

    /// The program for these logits and targets.
    fn variant(&self, logits: &Operand<'_>, target: &Operand<'_>) -> Variant {
        let loss = if self.is_reduced() { self.acc } else { self.y };
        self.define(variant("loss/cross_entropy.c", logits).define("I", target.dtype).define("LOSS", loss))
    }

    /// Adds the numbers that all kernels of logits take.
    fn arguments(&self, arguments: Arguments) -> Arguments {
        let shares = [1.0 - self.smoothing, self.smoothing / self.classes as f64];
        arguments.numbers([self.count(), self.classes]).int(self.ignored).floats(shares, self.acc)
    }
}

fn cross_entropy(
    gpu: &Gpu,
    op: &'static str,
    a: &Loss<'_>,
    CrossEntropyInputs { x, target, weight, bytes }: CrossEntropyInputs<&Operand<'_>>,
    CrossEntropyOutputs { y, statistics, divisor }: CrossEntropyOutputs<&Operand<'_>>,
) -> Result<()> {
    let size = a.acc.size() * if a.is_reduced() { a.count() } else { 0 };
    let (losses, counts) = (gpu.scratch(size)?, gpu.scratch(size)?);
    let slot = gpu.status(op, Check::Class(a.classes))?;
    let [logits, targets, y, statistics] = starts([x, target, y, statistics])?;
    let [weight, bytes] = starts_or([weight, bytes], logits)?;
    let (loss, count) = if a.is_reduced() { (losses.address, counts.address) } else { (y, statistics) };
    let pointers = [logits, targets, weight, bytes, loss, count, statistics];
    let arguments = a.arguments(Arguments::new().pointers(pointers)).pointer(slot.address);
    let variant = a.variant(x, target);
    if a.by_column() || a.is_logarithm {
        let variant = variant.define("THREADS", THREADS);
        gpu.launch(variant, "cross_entropy_columns", each(a.count()), &arguments.int(a.inner))?;
    } else {
        let (variant, geometry) = rows(gpu, variant, x.dtype, a.outer, a.classes, &[logits], Kept::READ);
        gpu.launch(variant, "cross_entropy_rows", geometry, &arguments)?;
    }
    gpu.checked(slot, |i| {
        let class = gpu.element(target, target.layout.shape().rank(), i)?.as_i64()?;
        Ok(class_error(op, &index_error(op, i as i64, class, a.classes)))
    })?;
    match divisor {
        Some(divisor) => total(gpu, a, x, [losses.address, counts.address], [y, start_of(divisor)?]),
        None => Ok(()),
    }
}

/// Sums losses up. `outputs` are the loss and the divisor.
fn total(
    gpu: &Gpu,
    a: &Loss<'_>,
    logits: &Operand<'_>,
    [losses, counts]: [Address; 2],
    outputs: [Address; 2],
) -> Result<()> {
    let threads = group_size(gpu.driver().limits());
    let program = a.define(variant("loss/cross_entropy.c", logits)).define("TOTAL", true).define("THREADS", threads);
    let geometry = |groups: usize| Geometry::new([groups, 1, 1], threads);
    let (n, parts) = (a.count(), a.count().div_ceil(PART));
    let finish = |[losses, counts]: [Address; 2], n: usize| {
        let pointers = [losses, counts, outputs[0], outputs[1]];
        let arguments = Arguments::new().pointers(pointers).int(n).float(a.divisor(), a.acc);
        gpu.launch(program.clone(), "cross_entropy_total", geometry(1).following(), &arguments)
    };
    if parts == 1 {
        return finish([losses, counts], n);
    }
    let (loss_parts, count_parts) = (gpu.scratch(parts * a.acc.size())?, gpu.scratch(parts * a.acc.size())?);
    let of_parts = [loss_parts.address, count_parts.address];
    let sums = Arguments::new().pointers([losses, counts, of_parts[0], of_parts[1]]).numbers([n, PART]);
    gpu.launch(program.clone(), "cross_entropy_parts", geometry(parts), &sums)?;
    finish(of_parts, parts)
}

fn cross_entropy_backward(
    gpu: &Gpu,
    a: &Loss<'_>,
    inputs: CrossEntropyBackwardInputs<&Operand<'_>>,
    dx: &Operand<'_>,
) -> Result<()> {
    let CrossEntropyBackwardInputs { dy, x, target, statistics, weight, bytes, divisor, all_weights } = inputs;
    let variant = a.variant(x, target);
    let [dy, logits, target, statistics, dx] = starts([dy, x, target, statistics, dx])?;
    let [weight, bytes, divisor, all_weights] = starts_or([weight, bytes, divisor, all_weights], dy)?;
    let pointers = [dy, divisor, logits, target, weight, all_weights, bytes, statistics, dx];
    let arguments = a.arguments(Arguments::new().pointers(pointers));
    if a.by_column() {
        let geometry = each(a.count() * a.classes);
        let arguments = arguments.int(a.inner);
        return gpu.launch(variant.define("THREADS", THREADS), "cross_entropy_columns_backward", geometry, &arguments);
    }
    let (variant, geometry) = rows(gpu, variant, x.dtype, a.outer, a.classes, &[logits, dx], Kept::NONE);
    gpu.launch(variant, "cross_entropy_rows_backward", geometry, &arguments)
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    // More targets than one group sums up, and classes that are not neighbours.
    |d, t| differentiate(d, t, &[&[16384, 1024]], |x| x[0].cross_entropy(&zeros(x[0].device(), DType::I64, &[16384])?)),
    |d, t| differentiate(d, t, &[&[64, 16, 64]], |x| x[0].cross_entropy(&zeros(x[0].device(), DType::I64, &[64, 64])?)),
    |d, t| {
        differentiate(d, t, &[&[4096, 1024]], |x| {
            x[0].nll_loss(&zeros(x[0].device(), DType::I64, &[4096])?, &CrossEntropy::default())
        })
    },
    |d, t| differentiate(d, t, &[&[64, 50257]], |x| x[0].cross_entropy(&zeros(x[0].device(), DType::I64, &[64])?)),
];
