//! Losses of distances between rows: a launch for the losses of all rows, and one for the gradients.

use crate::launch::arguments::Arguments;
use crate::launch::device::Gpu;
use crate::launch::operands::{addresses, variant};
use crate::launch::rows::{Kept, rows};
use crate::ops::family::{Example, Family, FusedLaunch, Launcher, differentiate, zeros};
use isograd_core::ops::loss::distance::{DistanceLoss, DistanceLossBackward, RowLoss};
use isograd_core::ops::loss::{Reduction, Triplet, TripletNegative};
use isograd_core::{Call, DType, Device, Result};

pub const FAMILY: Family =
    Family { launchers: &[Launcher::of::<DistanceLoss>(), Launcher::of::<DistanceLossBackward>()], examples: EXAMPLES };

impl FusedLaunch for DistanceLoss {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call, *self, None)
    }
}

impl FusedLaunch for DistanceLossBackward {
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()> {
        run(gpu, call, self.forward, Some(self.share))
    }
}

/// The losses, or the gradients by which dy is multiplied with a share.
fn run(gpu: &Gpu, call: &Call<'_>, of: DistanceLoss, share: Option<f64>) -> Result<()> {
    let (DistanceLoss { loss, margin, order, eps }, is_backward) = (of, share.is_some());
    let (inputs, outputs) = (addresses(call.inputs)?, addresses(call.outputs)?);
    // Backward, dy comes first and the distances last.
    let first = is_backward as usize;
    let (x, names) = (&call.inputs[first], &inputs[first..]);
    let [count, extent] = [0, 1].map(|d| x.layout.shape()[d]);
    // A kernel does not touch the pointer of an absent operand: any other address stands for it.
    let (a, b, third) = (names[0], names[1], names[2]);
    let (c, like) = if loss == RowLoss::Contrastive { (a, third) } else { (third, a) };
    let pointers = match is_backward {
        false => vec![a, b, c, like, outputs[0], outputs[1]],
        true => vec![inputs[0], a, b, c, like, names[3], outputs[0], outputs[1], outputs[outputs.len() - 1]],
    };
    let acc = x.dtype.acc();
    let arguments = Arguments::new().pointers(pointers).numbers([count, extent]).floats([margin, order, eps], acc);
    let arguments = match share {
        Some(share) => arguments.int(call.inputs[0].layout.shape().numel() == count).float(share, acc),
        None => arguments,
    };
    let program = variant("loss/distance.c", x)
        .flag("LIKE", loss == RowLoss::Contrastive)
        .flag("NEAREST", loss == RowLoss::NearestTriplet)
        .flag("BACKWARD", is_backward)
        .optional("ORDER", (order == 1.0 || order == 2.0).then_some(order as usize));
    let written = if is_backward { &outputs[..] } else { &[] };
    let all = [&[a, b, c], written].concat();
    let (program, geometry) = rows(gpu, program, x.dtype, count, extent, &all, Kept::READ);
    gpu.launch(program, if is_backward { "row_loss_backward" } else { "row_loss" }, geometry, &arguments)
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
