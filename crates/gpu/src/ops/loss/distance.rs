//! Losses of distances between rows: a launch for the losses of all rows, and one for the gradients.

use crate::driver::Address;
use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::operands::{start_of, starts, starts_or, variant};
use crate::launch::rows::{Kept, rows};
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, zeros};
use crate::program::source::Variant;
use isograd_core::fused::Fused;
use isograd_core::ops::loss::distance::{
    DistanceBackwardInputs, DistanceBackwardOutputs, DistanceInputs, DistanceLoss, DistanceLossBackward,
    DistanceOutputs, RowLoss,
};
use isograd_core::ops::loss::{Reduction, Triplet, TripletNegative};
use isograd_core::{Call, DType, Device, Operand, Result};

pub const FAMILY: Family =
    Family { launchers: &[Launcher::of::<DistanceLoss>(), Launcher::of::<DistanceLossBackward>()], examples: EXAMPLES };

impl FusedLaunch for DistanceLoss {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let (inputs, DistanceOutputs { losses, distances }) = (self.inputs(call), self.outputs(call));
        let (x, read) = (inputs.a, read(inputs)?);
        let arguments = Arguments::new().pointers(read).pointers(starts([losses, distances])?);
        launch(gpu, program(self, x), "row_loss", x, &read[..3], &numbers(self, x, arguments))
    }
}

impl FusedLaunch for DistanceLossBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        let DistanceBackwardInputs { dy, a, b, c, like, distances } = self.inputs(call);
        let DistanceBackwardOutputs { a: da, b: db, c: dc } = self.outputs(call);
        let ([dy_at, distances], read) = (starts([dy, distances])?, read(DistanceInputs { a, b, c, like })?);
        let written = starts([da, db, dc.unwrap_or(db)])?;
        let arguments = Arguments::new().pointer(dy_at).pointers(read).pointer(distances).pointers(written);
        let is_each = dy.layout.shape().numel() == a.layout.shape()[0];
        let arguments = numbers(&self.forward, a, arguments).int(is_each).float(self.share, a.dtype.acc());
        let program = program(&self.forward, a).define("BACKWARD", true);
        launch(gpu, program, "row_loss_backward", a, &[&read[..3], &written].concat(), &arguments)
    }
}

/// The addresses of the inputs.
fn read(DistanceInputs { a, b, c, like }: DistanceInputs<&Operand<'_>>) -> Result<[Address; 4]> {
    starts_or([Some(a), Some(b), c, like], start_of(a)?)
}

/// The program for rows x.
fn program(loss: &DistanceLoss, x: &Operand<'_>) -> Variant {
    let is_known = loss.order == 1.0 || loss.order == 2.0;
    variant("loss/distance.c", x)
        .flag("LIKE", loss.loss == RowLoss::Contrastive)
        .flag("NEAREST", loss.loss == RowLoss::NearestTriplet)
        .optional("ORDER", is_known.then_some(loss.order as usize))
}

/// Adds the numbers that both kernels take.
fn numbers(loss: &DistanceLoss, x: &Operand<'_>, arguments: Arguments) -> Arguments {
    let [count, extent] = [0, 1].map(|d| x.layout.shape()[d]);
    arguments.numbers([count, extent]).floats([loss.margin, loss.order, loss.eps], x.dtype.acc())
}

/// Launches an entry for rows x. The arrays of rows are `moved` in words.
fn launch(
    gpu: &Gpu,
    program: Variant,
    entry: &'static str,
    x: &Operand<'_>,
    moved: &[Address],
    arguments: &Arguments,
) -> Result<()> {
    let [count, extent] = [0, 1].map(|d| x.layout.shape()[d]);
    let (program, geometry) = rows(gpu, program, x.dtype, count, extent, moved, Kept::READ);
    gpu.launch(program, entry, geometry, arguments)
}

/// The gradients of a triplet loss.
fn triplet_gradients(device: &Device, dtype: DType, options: Triplet) -> Result<()> {
    let mut x = Vec::new();
    for _ in 0..3 {
        x.push(zeros(device, dtype, &[4096, 1024])?.require_grad()?);
    }
    x[0].triplet_loss(&x[1], &x[2], &options)?.backward()
}

/// Calls that together launch every kernel of the family.
const EXAMPLES: &[Example] = &[
    |d, t| {
        differentiate(d, t, &[&[4096, 1024], &[4096, 1024]], |x| {
            x[0].contrastive_loss(&x[1], &zeros(x[0].device(), x[0].dtype(), &[4096])?, 1.0, Reduction::Mean)
        })
    },
    |d, t| triplet_gradients(d, t, Triplet::default()),
    |d, t| triplet_gradients(d, t, Triplet { negative: TripletNegative::Nearest, p: 1.5, ..Triplet::default() }),
];
