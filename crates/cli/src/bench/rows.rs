//! What is measured: the ops of the registry, a launch, and training.

use isograd::nn::{Adam, Forward, GcnConv, GcnOptions, Graph, Init, Linear, Module, Optimizer};
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
    [launch()].into_iter().chain(of_ops).chain(training()).chain(graph_training()).collect()
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

/// Units and classes of the graph network that is trained.
const GCN: [usize; 2] = [128, 40];

/// A step of two graph convolutions with weights of edges, with products of f32 in this precision, on a shape `[nodes, edges, features]`:
/// forward, loss over all nodes, backward and Adam.
fn gcn_step(c: &Call, precision: Precision) -> Result<impl FnMut(()) -> Result<()> + use<>> {
    let ([nodes, edges, features], [hidden, classes]) = ([0, 1, 2].map(|d| c.dims[d]), GCN);
    let init = Init::new(&c.device).dtype(c.dtype);
    let options = GcnOptions { add_self_loops: false, normalize: false, ..GcnOptions::default() };
    let layer = |input, output| GcnConv::new(input, output, options, &init);
    let layers = [layer(features, hidden)?, layer(hidden, classes)?];
    let graph = Graph::from_edges(&c.indices(nodes, &[edges])?, &c.indices(nodes, &[edges])?, nodes)?;
    let (x, y) = (c.normal(&[nodes, features])?, c.indices(classes, &[nodes])?);
    let weight = Tensor::rand(edges, 0.0, 1.0, c.dtype, &c.device, &c.rng)?;
    let mut optimizer = Adam::from_parameters(layers.parameters());
    let device = c.device.clone();
    Ok(move |()| {
        device.set_matmul_precision(precision);
        let x = layers[0].forward(&x, &graph, Some(&weight))?.relu()?;
        layers[1].forward(&x, &graph, Some(&weight))?.cross_entropy(&y)?.backward()?;
        optimizer.step()?;
        device.set_matmul_precision(Precision::Exact);
        Ok(())
    })
}

fn graph_training() -> Vec<Op> {
    // Each product with the graph reads a row for each edge; the first layer's input has no gradient.
    let cost = |c: &Call| {
        let ([nodes, edges, features], [hidden, classes]) = ([0, 1, 2].map(|d| c.dims[d]), GCN);
        let flops = 2 * nodes * (2 * features * hidden + 3 * hidden * classes) + 4 * edges * (hidden + classes);
        let bytes = c.bytes(nodes * (2 * features + 8 * hidden + 6 * classes) + 4 * edges) + 16 * edges;
        Cost { bytes, flops: flops as f64 }
    };
    let eager = |c: &Call| -> Result<Work> {
        let mut step = gcn_step(c, Precision::Exact)?;
        Ok(Box::new(move || step(())))
    };
    fn captured(c: &Call, precision: Precision) -> Result<Work> {
        let mut step = c.device.capture(gcn_step(c, precision)?);
        Ok(Box::new(move || step.run(())))
    }
    let op = |name, work| {
        let bench = Bench::new(&[100_000, 1_600_000, 128], Action::Work(work), cost).shrinks(2);
        Op { clock: Clock::Steps, ..Op::new("training", name, bench) }
    };
    vec![
        op("gcn step", eager),
        op("captured gcn", |c| captured(c, Precision::Exact)),
        op("captured gcn tf32", |c| captured(c, Precision::Tf32)),
    ]
}
