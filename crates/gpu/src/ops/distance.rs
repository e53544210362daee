//! Losses of distances between rows: a launch for those of all rows, and one for the gradients.

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
    // A kernel does not touch what is not there: any other address stands for it.
    let (a, b, third) = (names[0], names[1], names[2]);
    let (c, like) = if loss == RowLoss::Contrastive { (a, third) } else { (third, a) };
    let pointers = match is_backward {
        false => vec![a, b, c, like, outputs[0], outputs[1]],
        true => vec![inputs[0], a, b, c, like, names[3], outputs[0], outputs[1], outputs[outputs.len() - 1]],
    };
    let arguments = pointers.iter().copied().fold(Arguments::new(), Arguments::pointer);
    let arguments = arguments.int(count as i64).int(extent as i64);
    let acc = x.dtype.acc();
    let arguments = [margin, order, eps].into_iter().fold(arguments, |list, v| list.float(v, acc));
    let arguments = match share {
        Some(share) => arguments.int(i64::from(call.inputs[0].layout.shape().numel() == count)).float(share, acc),
        None => arguments,
    };
    let flags = [
        (loss == RowLoss::Contrastive, "LIKE"),
        (loss == RowLoss::NearestTriplet, "NEAREST"),
        (is_backward, "BACKWARD"),
    ];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set);
    let program = flags.fold(variant("distance.c", x), |variant, (_, name)| variant.define(name, true));
    let program = if order == 1.0 || order == 2.0 { program.define("ORDER", order as usize) } else { program };
    let written = if is_backward { &outputs[..] } else { &[] };
    let all = [&[a, b, c], written].concat();
    let (program, geometry) = rows(gpu, program, x.dtype, count, extent, &all, Kept::READ);
    gpu.launch(program, if is_backward { "row_loss_backward" } else { "row_loss" }, geometry, &arguments)
}

/// The gradients of a triplet loss.
fn triplet_gradients(device: &Device, dtype: DType, options: Triplet) -> Result<()> {
    let mut x = Vec::new();
    for _ in 0..3 {
        x.push(zeros(device, dtype, &[4096, 1024])?.leaf()?);
    }
    x[0].triplet_loss(&x[1], &x[2], options)?.backward()
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
