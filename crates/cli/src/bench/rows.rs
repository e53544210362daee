//! What is measured: the ops of the registry, a launch, and training.

use isograd::nn::{Adam, Forward, Init, Linear, Optimizer};
use isograd::ops::Activation;
use isograd::parity::bench::{self, Action, Bench, Call, Cost, Work, call};
use isograd::parity::registry::OPS;
use isograd::{Precision, Result, Tensor};

/// Whose time is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The device's for one call, with cold caches.
    Device,
    /// The host's for each of many calls, of which none is waited for.
    Launch,
    /// The host's for each of many calls, with the wait for the last.
    Steps,
}

/// A measurement in the tables that follow: one row a dtype and pass.
#[derive(Clone)]
pub struct Op {
    /// The family.
    pub group: &'static str,
    /// The op, with what distinguishes the measurement from others of it.
    pub name: String,
    pub clock: Clock,
    pub bench: Bench,
}

impl Op {
    fn new(group: &'static str, op: &str, bench: Bench) -> Op {
        let name = if bench.variant.is_empty() { op.into() } else { format!("{op}, {}", bench.variant) };
        Op { group, name, clock: Clock::Device, bench }
    }

    /// The copy and the product that the limits of a device are measured with.
    pub fn ceilings() -> [Op; 2] {
        [("copy_", bench::copy_ceiling()), ("matmul", bench::matrix_ceiling())]
            .map(|(op, bench)| Op::new("ceiling", op, bench))
    }
}

/// All rows.
pub fn all() -> Vec<Op> {
    let of_ops = OPS.iter().flat_map(|op| op.bench.iter().map(|bench| Op::new(op.category, op.name, bench.clone())));
    [launch()].into_iter().chain(of_ops).chain(training()).collect()
}

fn launch() -> Op {
    let tiny = call(bench::two, |_, x| x[0].add_(&x[1]).map(|()| x[0].clone()));
    Op { clock: Clock::Launch, ..Op::new("launch", "launch overhead", Bench::new(&[1], tiny, |c| c.whole(3))) }
}

/// Pixels, hidden units and classes of the classifier that is trained.
const MLP: [usize; 3] = [784, 256, 10];

/// A step of the classifier, with products of f32 in this precision: forward, loss, backward and Adam on a batch.
fn mlp_step(c: &Call, precision: Precision) -> Result<impl FnMut((Tensor, Tensor)) -> Result<()> + use<>> {
    let [inputs, hidden, classes] = MLP;
    let init = Init::new(&c.device).dtype(c.dtype);
    let (first, second) = (Linear::new(inputs, hidden, &init)?, Linear::new(hidden, classes, &init)?);
    let parameters = [&first, &second].into_iter().flat_map(|l| [Some(l.weight.clone()), l.bias.clone()]);
    let mut optimizer = Adam::from_parameters(parameters.flatten().collect());
    let device = c.device.clone();
    Ok(move |(x, y): (Tensor, Tensor)| {
        device.set_matmul_precision(precision);
        second.forward(&first.forward_with(&x, Activation::Relu)?)?.cross_entropy(&y)?.backward()?;
        optimizer.step()?;
        device.set_matmul_precision(Precision::Exact);
        Ok(())
    })
}

fn batch(c: &Call) -> Result<(Tensor, Tensor)> {
    Ok((c.normal(&[c.dims[0], MLP[0]])?, c.indices(MLP[2], &c.dims[..1])?))
}

fn training() -> Vec<Op> {
    // The first layer's input has no gradient: two products there, three in the second.
    let cost = |c: &Call| {
        let [inputs, hidden, classes] = MLP;
        let parameters = (inputs + 1) * hidden + (hidden + 1) * classes;
        let flops = 2 * c.dims[0] * (2 * inputs * hidden + 3 * hidden * classes);
        Cost { bytes: c.bytes(7 * parameters + c.dims[0] * inputs), flops: flops as f64 }
    };
    let eager = |c: &Call| -> Result<Work> {
        let (mut step, inputs) = (mlp_step(c, Precision::Exact)?, batch(c)?);
        Ok(Box::new(move || step(inputs.clone())))
    };
    fn captured(c: &Call, precision: Precision) -> Result<Work> {
        let (mut step, inputs) = (c.device.capture(mlp_step(c, precision)?), batch(c)?);
        Ok(Box::new(move || step.run(inputs.clone())))
    }
    let op = |name, dims: &[usize], work| {
        let bench = Bench::new(dims, Action::Work(work), cost).shrinks(1);
        Op { clock: Clock::Steps, ..Op::new("training", name, bench) }
    };
    let of = |b| {
        [
            op("mlp step", &[b], eager),
            op("captured mlp", &[b], |c| captured(c, Precision::Exact)),
            op("captured mlp tf32", &[b], |c| captured(c, Precision::Tf32)),
        ]
    };
    [128, 4096].into_iter().flat_map(of).collect()
}
