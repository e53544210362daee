//! Training steps of networks: forward, loss, backward and the optimizer's step, on a batch that is on the device.

use super::rows::{Clock, Op};
use isograd::models::{Gpt2, Gpt2Options, ResNet, ResNetOptions, Stem};
use isograd::nn::{
    Adam, AdamW, Conv2d, Embedding, Flatten, Forward, GcnConv, GcnOptions, Graph, Init, Linear, Lstm, MaxPool2d,
    Module, Optimizer, RecurrentOptions, Relu, Sequential, Sgd,
};
use isograd::ops::{Activation, Conv, Padding};
use isograd::parity::bench::{Action, Bench, Call, Cost, Work};
use isograd::{DType, Precision, Result, Tensor, autocast};

/// A step on inputs and targets.
type Step = Box<dyn FnMut((Tensor, Tensor)) -> Result<()>>;

/// A network's step, and its batch.
type Made = Result<(Step, (Tensor, Tensor))>;

/// Pixels, hidden units and classes of the classifier.
const MLP: [usize; 3] = [784, 256, 10];

/// All rows.
pub fn all() -> Vec<Op> {
    let mlps = [128, 4096].into_iter().flat_map(|b| {
        [
            op("mlp step", &[b], mlp_cost, |c| eager(mlp(c))),
            op("captured mlp", &[b], mlp_cost, |c| captured(c, mlp(c))),
            tf32(op("captured mlp tf32", &[b], mlp_cost, |c| captured(c, mlp(c)))),
        ]
    });
    let others = [
        op("captured small cnn", &[256, 1, 28, 28], cnn_cost, |c| captured(c, cnn(c))),
        tf32(op("captured small cnn tf32", &[256, 1, 28, 28], cnn_cost, |c| captured(c, cnn(c)))),
        op("captured resnet18 bf16", &[256, 3, 32, 32], resnet_cost, |c| captured(c, resnet18(c))),
        op("captured gpt2 bf16", &[16, 1024], gpt2_cost, |c| captured(c, gpt2(c))),
        op("captured lstm", &[128, 64], lstm_cost, |c| captured(c, lstm(c, DType::F32))),
        tf32(op("captured lstm tf32", &[128, 64], lstm_cost, |c| captured(c, lstm(c, DType::F32)))),
        op("captured lstm f16", &[128, 64], lstm_cost, |c| captured(c, lstm(c, DType::F16))),
    ];
    let gcns = [
        op("gcn step", &GCN_DIMS, gcn_cost, |c| eager(gcn(c))),
        op("captured gcn", &GCN_DIMS, gcn_cost, |c| captured(c, gcn(c))),
        tf32(op("captured gcn tf32", &GCN_DIMS, gcn_cost, |c| captured(c, gcn(c)))),
    ];
    // Nodes and edges.
    let gcns = gcns.map(|op| Op { bench: op.bench.shrinks(2), ..op });
    mlps.chain(others).chain(gcns).collect()
}

fn op(name: &str, dims: &[usize], cost: fn(&Call) -> Cost, work: fn(&Call) -> Result<Work>) -> Op {
    let bench = Bench::new(dims, Action::Work(work), cost).shrinks(1);
    Op { group: "training", name: name.into(), clock: Clock::Steps, bench }
}

/// The row with products of f32 in TF32.
fn tf32(op: Op) -> Op {
    Op { bench: op.bench.precision(Precision::Tf32), ..op }
}

fn eager(made: Made) -> Result<Work> {
    let (mut step, batch) = made?;
    Ok(Box::new(move || step(batch.clone())))
}

fn captured(c: &Call, made: Made) -> Result<Work> {
    let (step, batch) = made?;
    let mut step = c.device.capture(step);
    Ok(Box::new(move || step.run(batch.clone())))
}

fn mlp(c: &Call) -> Made {
    let [inputs, hidden, classes] = MLP;
    let init = Init::new(&c.device);
    let (first, second) = (Linear::new(inputs, hidden, &init)?, Linear::new(hidden, classes, &init)?);
    let parameters = [&first, &second].into_iter().flat_map(|l| [Some(l.weight.clone()), l.bias.clone()]);
    let mut optimizer = Adam::from_parameters(parameters.flatten().collect());
    let step: Step = Box::new(move |(x, y)| {
        second.forward(&first.forward_with(&x, Activation::Relu)?)?.cross_entropy(&y)?.backward()?;
        optimizer.step()
    });
    Ok((step, (c.normal(&[c.dims[0], inputs])?, c.indices(classes, &c.dims[..1])?)))
}

/// The first layer's input has no gradient: two products there, three in the second.
fn mlp_cost(c: &Call) -> Cost {
    let [inputs, hidden, classes] = MLP;
    let parameters = (inputs + 1) * hidden + (hidden + 1) * classes;
    let flops = 2 * c.dims[0] * (2 * inputs * hidden + 3 * hidden * classes);
    Cost { bytes: c.bytes(7 * parameters + c.dims[0] * inputs), flops: flops as f64 }
}

/// Two convolutions with 32 and 64 channels, each with a pool, and a linear layer, for `[B, 1, 28, 28]`.
fn cnn(c: &Call) -> Made {
    let init = Init::new(&c.device);
    let padded = Conv { padding: Padding::Each([1; 2]), ..Conv::default() };
    let model = Sequential::new()
        .push(Conv2d::with_options(1, 32, [3, 3], &padded, &init)?)
        .push(Relu)
        .push(MaxPool2d::new([2, 2]))
        .push(Conv2d::with_options(32, 64, [3, 3], &padded, &init)?)
        .push(Relu)
        .push(MaxPool2d::new([2, 2]))
        .push(Flatten::default())
        .push(Linear::new(64 * 49, 10, &init)?);
    let mut optimizer = Adam::new(&model);
    let step: Step = Box::new(move |(x, y)| {
        model.forward(&x)?.cross_entropy(&y)?.backward()?;
        optimizer.step()
    });
    Ok((step, (c.normal(&c.dims)?, c.indices(10, &c.dims[..1])?)))
}

fn cnn_cost(c: &Call) -> Cost {
    let products = 2 * 784 * 32 * 9 + 3 * (196 * 64 * 288 + 3136 * 10);
    let elements = 784 + 4 * 32 * 784 + 4 * 64 * 196;
    Cost { bytes: c.bytes(c.dims[0] * elements), flops: (2 * c.dims[0] * products) as f64 }
}

/// ResNet-18 for 32 x 32 pixels with channels last, in bf16, and SGD with momentum.
fn resnet18(c: &Call) -> Made {
    let init = Init::new(&c.device).channels_last();
    let model = ResNet::resnet18(&ResNetOptions { classes: 10, stem: Stem::Cifar, ..ResNetOptions::default() }, &init)?;
    let mut optimizer = Sgd::new(&model).lr(0.1).momentum(0.9);
    let step = Box::new(move |(x, y): (Tensor, Tensor)| {
        autocast(DType::BF16, || model.forward(&x)?.cross_entropy(&y))?.backward()?;
        optimizer.step()
    });
    Ok((step, (c.normal(&c.dims)?.to_channels_last()?, c.indices(10, &c.dims[..1])?)))
}

/// 0.56 G multiplications a sample, three times; 1.2 million activations in bf16, each moved six times.
fn resnet_cost(c: &Call) -> Cost {
    Cost { bytes: c.dims[0] * 15_000_000, flops: c.dims[0] as f64 * 6.0 * 0.56e9 }
}

/// GPT-2 with 124 million parameters without dropout, its vocabulary padded to a multiple of 128, in bf16, and AdamW.
fn gpt2(c: &Call) -> Made {
    let options = Gpt2Options { vocab: GPT2_VOCAB, dropout: 0.0, ..Gpt2Options::small() };
    let model = Gpt2::new(&options, &Init::new(&c.device))?;
    let mut optimizer = AdamW::new(&model).lr(6e-4).weight_decay(0.1);
    let step = Box::new(move |(x, y): (Tensor, Tensor)| {
        let loss = autocast(DType::BF16, || model.forward(&x)?.flatten(0, 1)?.cross_entropy(&y.flatten(0, 1)?))?;
        loss.backward()?;
        optimizer.step()
    });
    Ok((step, (c.indices(GPT2_VOCAB, &c.dims)?, c.indices(GPT2_VOCAB, &c.dims)?)))
}

const GPT2_VOCAB: usize = 50_304;

/// `6 N + 6 L E T` operations a token for N parameters, without positions; 28 bytes a parameter
/// for AdamW, and the sums of each layer in f32.
fn gpt2_cost(c: &Call) -> Cost {
    let (tokens, t) = (c.dims[0] * c.dims[1], c.dims[1]);
    let parameters = GPT2_VOCAB * 768 + 12 * 12 * 768 * 768;
    let flops = 6.0 * (parameters as f64 + (12 * 768 * t) as f64) * tokens as f64;
    Cost { bytes: 28 * parameters + tokens * 768 * 12 * 4, flops }
}

/// A language model of two layers of LSTM for tokens `[T, B]`, in f32 or with autocast to f16, and Adam.
fn lstm(c: &Call, dtype: DType) -> Made {
    let init = Init::new(&c.device);
    let [vocab, width, layers] = LSTM;
    let embedding = Embedding::new(vocab, width, &init)?;
    let options = RecurrentOptions { layers, ..RecurrentOptions::default() };
    let lstm = Lstm::with_options(width, width, &options, &init)?;
    let output = Linear::new(width, vocab, &init)?;
    let parameters = embedding.parameters().into_iter().chain(lstm.parameters()).chain(output.parameters());
    let mut optimizer = Adam::from_parameters(parameters.collect());
    let step: Step = Box::new(move |(x, y)| {
        let loss = |x: &Tensor| {
            let (states, _) = lstm.run(&embedding.forward(x)?, None, None)?;
            output.forward(&states.flatten(0, 1)?)?.cross_entropy(&y.flatten(0, 1)?)
        };
        if dtype == DType::F32 { loss(&x)? } else { autocast(dtype, || loss(&x))? }.backward()?;
        optimizer.step()
    });
    Ok((step, (c.indices(vocab, &c.dims)?, c.indices(vocab, &c.dims)?)))
}

/// Words, width and layers of the recurrent network.
const LSTM: [usize; 3] = [10_000, 512, 2];

fn lstm_cost(c: &Call) -> Cost {
    let [vocab, width, layers] = LSTM;
    let rows = c.dims[0] * c.dims[1];
    let parameters = 2 * vocab * width + layers * 8 * width * width;
    let flops = 3 * rows * (2 * 8 * width * width * layers + 2 * width * vocab);
    Cost { bytes: c.bytes(7 * parameters + 6 * rows * width * 4 * layers + 3 * rows * vocab), flops: flops as f64 }
}

/// Nodes, edges and features of a graph.
const GCN_DIMS: [usize; 3] = [100_000, 1_600_000, 128];
/// Units and classes of the graph network.
const GCN: [usize; 2] = [128, 40];

/// Two graph convolutions with weights of edges; the loss is over all nodes. The features stay where they are, and the batch has the
/// targets twice.
fn gcn(c: &Call) -> Made {
    let ([nodes, edges, features], [hidden, classes]) = ([0, 1, 2].map(|d| c.dims[d]), GCN);
    let init = Init::new(&c.device);
    let options = GcnOptions { add_self_loops: false, normalize: false, ..GcnOptions::default() };
    let layer = |input, output| GcnConv::with_options(input, output, &options, &init);
    let layers = [layer(features, hidden)?, layer(hidden, classes)?];
    let graph = Graph::from_edges(&c.indices(nodes, &[edges])?, &c.indices(nodes, &[edges])?, nodes)?;
    let (x, y) = (c.normal(&[nodes, features])?, c.indices(classes, &[nodes])?);
    let weight = Tensor::rand(edges, 0.0, 1.0, c.dtype, &c.device, &c.rng)?;
    let mut optimizer = Adam::from_parameters(layers.parameters());
    let step: Step = Box::new(move |(y, _)| {
        let x = layers[0].forward(&x, &graph, Some(&weight))?.relu()?;
        layers[1].forward(&x, &graph, Some(&weight))?.cross_entropy(&y)?.backward()?;
        optimizer.step()
    });
    Ok((step, (y.clone(), y)))
}

/// Each product with the graph reads a row for each edge; the first layer's input has no gradient.
fn gcn_cost(c: &Call) -> Cost {
    let ([nodes, edges, features], [hidden, classes]) = ([0, 1, 2].map(|d| c.dims[d]), GCN);
    let flops = 2 * nodes * (2 * features * hidden + 3 * hidden * classes) + 4 * edges * (hidden + classes);
    let bytes = c.bytes(nodes * (2 * features + 8 * hidden + 6 * classes) + 4 * edges) + 16 * edges;
    Cost { bytes, flops: flops as f64 }
}
