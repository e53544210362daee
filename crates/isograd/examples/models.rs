//! Times every network of the library, as JSON lines, one for each network, kind of step, size and dtype: `models DEVICE [small]`.
//! `benches/models.py` times the same networks in PyTorch, and writes a table of both.
//!
//! A step is captured, and for comparison plain. Its kinds are `train` (forward, loss, backward and the optimizer), `infer` (the outputs for
//! a batch) and `infer1` (for a batch of 1). Training in bf16 is an autocast over parameters of f32; inference has parameters of bf16.
//! Each network runs in a process of its own, without kernels from the cache, so that none fails with another, and the first step of the
//! first line of a network is cold.

mod print;

use clap::{Parser, ValueEnum};
use isograd::models::causal::Rotary;
use isograd::models::*;
use isograd::ops::Neighbors;
use isograd::prelude::*;
use print::print;
use std::cell::RefCell;
use std::collections::HashSet;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

#[derive(Parser)]
struct Options {
    /// The device, as `isograd devices` lists it
    device: String,
    /// Networks and inputs of a few elements: whether everything works
    #[arg(value_enum)]
    extent: Option<Extent>,
    /// Networks [default: all]
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[arg(long, value_enum, value_delimiter = ',', default_value = "bf16")]
    dtype: Vec<Precision>,
    #[arg(long, value_enum, value_delimiter = ',', default_value = "train,infer,infer1")]
    kinds: Vec<Kind>,
    /// How many of the two sizes of a network are run
    #[arg(long, default_value_t = 2)]
    sizes: usize,
    /// Starts no network after so many seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// A file of earlier lines, which are not run again
    #[arg(long)]
    done: Option<std::path::PathBuf>,
    /// Runs in this process
    #[arg(long)]
    alone: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Extent {
    Small,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Precision {
    F32,
    /// f32, whose products may be of TF32.
    Tf32,
    Bf16,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Kind {
    Train,
    Infer,
    Infer1,
}

fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().expect("no value is skipped").get_name().to_string()
}

/// A network with an input.
struct Case {
    network: Rc<dyn Module>,
    output: Box<dyn Fn() -> Result<Tensor>>,
    /// The loss of an output.
    loss: Box<dyn Fn(Tensor) -> Result<Tensor>>,
}

impl Case {
    fn new<M: Module + 'static>(
        network: M,
        output: impl Fn(&M) -> Result<Tensor> + 'static,
        loss: impl Fn(Tensor) -> Result<Tensor> + 'static,
    ) -> Case {
        let network = Rc::new(network);
        let own = network.clone();
        Case { network, output: Box::new(move || output(&own)), loss: Box::new(loss) }
    }

    /// Outputs `[N, classes]` or `[B, T, classes]` and the right classes, drawn at random.
    fn classes<M: Module + 'static>(
        network: M,
        output: impl Fn(&M) -> Result<Tensor> + 'static,
        [rows, classes]: [usize; 2],
        init: &Init,
    ) -> Result<Case> {
        let targets = numbers(classes, &[rows], init)?;
        Ok(Case::new(network, output, move |y| y.reshape((rows, classes))?.cross_entropy(&targets)))
    }

    /// Outputs that should be 0.
    fn zeros<M: Module + 'static>(network: M, output: impl Fn(&M) -> Result<Tensor> + 'static) -> Case {
        Case::new(network, output, |y| y.cast(DType::F32)?.square()?.mean(..))
    }
}

/// Integers below n.
fn numbers(n: usize, shape: &[usize], init: &Init) -> Result<Tensor> {
    Tensor::rand(shape, 0.0, n as f64, DType::F32, init.device(), &Rng::new(5))?.cast(DType::I64)
}

/// Normal numbers in the dtype of the parameters.
fn normal(shape: &[usize], init: &Init) -> Result<Tensor> {
    Tensor::randn(shape, 0.0, 1.0, DType::F32, init.device(), &Rng::new(6))?.cast(init.parameter_dtype())
}

/// Where a network is built: at extents whose first is the batch, maybe with few layers and little width.
struct At<'a> {
    size: &'a [usize],
    is_small: bool,
    init: &'a Init,
}

impl At<'_> {
    /// One of two numbers: for the network, and for the small one.
    fn either<T>(&self, full: T, small: T) -> T {
        if self.is_small { small } else { full }
    }

    /// Images `[N, channels, size, size]`, with adjacent channels.
    fn images(&self, channels: usize) -> Result<Tensor> {
        let &[n, size, ..] = self.size else { unreachable!("images have two extents") };
        normal(&[n, channels, size, size], self.init)?.to_channels_last()
    }

    /// Tokens `[B, T]`.
    fn tokens(&self, vocab: usize) -> Result<Tensor> {
        numbers(vocab, &self.size[..2], self.init)
    }
}

/// A classifier of images.
fn classifier(network: impl Module + Forward + 'static, channels: usize, classes: usize, at: &At) -> Result<Case> {
    let x = at.images(channels)?;
    Case::classes(network, move |network| network.forward(&x), [at.size[0], classes], at.init)
}

type ResNetOf = fn(&ResNetOptions, &Init) -> Result<ResNet>;

fn resnet(network: ResNetOf, at: &At) -> Result<Case> {
    classifier(network(&ResNetOptions::default(), at.init)?, 3, 1000, at)
}

fn vit(at: &At) -> Result<Case> {
    let layers = at.either(12, 2);
    let options = VitOptions { image: at.size[1], classes: 1000, layers, dropout: 0.0, ..VitOptions::base() };
    classifier(Vit::new(&options, at.init)?, 3, 1000, at)
}

/// Two classes of pixels.
fn unet(at: &At) -> Result<Case> {
    let network = UNet::new(&UNetOptions { width: at.either(64, 8), ..UNetOptions::default() }, at.init)?;
    let (x, targets) = (at.images(1)?, numbers(2, &[at.size[0], at.size[1], at.size[1]], at.init)?);
    Ok(Case::new(network, move |network| network.forward(&x), move |y| y.cross_entropy(&targets)))
}

fn generator(at: &At) -> Result<Case> {
    let x = normal(&[at.size[0], 100, 1, 1], at.init)?;
    Ok(Case::zeros(Generator::new(&Dcgan::default(), at.init)?, move |network| network.forward(&x)))
}

fn discriminator(at: &At) -> Result<Case> {
    let x = at.images(3)?;
    Ok(Case::zeros(Discriminator::new(&Dcgan::default(), at.init)?, move |network| network.forward(&x)))
}

/// A language model. The targets are random tokens.
fn language(network: impl Module + Forward + 'static, vocab: usize, at: &At) -> Result<Case> {
    let (x, rows) = (at.tokens(vocab)?, at.size[0] * at.size[1]);
    Case::classes(network, move |network| network.forward(&x), [rows, vocab], at.init)
}

fn gpt2(at: &At) -> Result<Case> {
    let vocab = at.either(50_257, 99);
    let options = Gpt2Options { vocab, layers: at.either(12, 2), dropout: 0.0, ..Gpt2Options::small() };
    language(Gpt2::new(&options, at.init)?, vocab, at)
}

/// LLaMA 3.2 with 1.24 billion parameters, without the long contexts.
fn llama(at: &At) -> Result<Case> {
    let vocab = at.either(128_256, 99);
    let options = CausalLmOptions {
        vocab,
        context: 4096,
        layers: at.either(16, 2),
        width: at.either(2048, 64),
        heads: at.either(32, 4),
        key_heads: at.either(8, 2),
        head_width: None,
        hidden: at.either(8192, 96),
        rotary: Rotary::new(500_000.0),
        ..CausalLmOptions::llama3_1b()
    };
    language(CausalLm::new(&options, at.init)?, vocab, at)
}

fn recurrent(recurrence: Recurrence, at: &At) -> Result<Case> {
    let (vocab, width) = (at.either(33_278, 99), at.size[2]);
    let options =
        RecurrentModelOptions { recurrence, embedding: width, hidden: width, ..RecurrentModelOptions::new(vocab) };
    language(RecurrentModel::new(&options, at.init)?, vocab, at)
}

fn bert(at: &At) -> Result<Case> {
    let (vocab, layers) = (at.either(30_522, 99), at.either(12, 2));
    let options = BertOptions { vocab, layers, dropout: 0.0, has_pooler: false, ..BertOptions::base() };
    let x = at.tokens(vocab)?;
    Ok(Case::zeros(Bert::new(&options, at.init)?, move |network| network.forward(&x)))
}

/// Two layers of a kind, the second without an activation before its result.
struct OfGraph<L>([L; 2]);

impl<L: Module> Module for OfGraph<L> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part("layers", &self.0);
    }
}

/// The width of a hidden layer for graphs.
const HIDDEN: usize = 128;

/// A classifier of the nodes of a random graph: of `[nodes, edges, features, classes]`.
fn graph<L: Module + 'static>(
    at: &At,
    layer: impl Fn(usize, usize, usize) -> Result<L>,
    forward: impl Fn(&L, &Tensor, &Graph) -> Result<Tensor> + 'static,
) -> Result<Case> {
    let &[nodes, edges, features, classes] = at.size else { unreachable!("graphs have four extents") };
    let ends = numbers(nodes, &[2, edges], at.init)?;
    let graph = Graph::from_edges(&ends.select(0, 0)?.contiguous()?, &ends.select(0, 1)?.contiguous()?, nodes)?;
    let x = normal(&[nodes, features], at.init)?;
    let network = OfGraph([layer(features, HIDDEN, 8)?, layer(HIDDEN, classes, 1)?]);
    let output =
        move |OfGraph([first, second]): &OfGraph<L>| forward(second, &forward(first, &x, &graph)?.relu()?, &graph);
    Case::classes(network, output, [nodes, classes], at.init)
}

fn gcn(at: &At) -> Result<Case> {
    let layer = |input, output, _| GcnConv::new(input, output, at.init);
    graph(at, layer, |layer, x, graph| layer.forward(x, graph, None))
}

fn sage(at: &At) -> Result<Case> {
    let layer = |input, output, _| SageConv::new(input, output, at.init);
    graph(at, layer, |layer, x, graph| layer.forward(x, graph))
}

fn gat(at: &At) -> Result<Case> {
    let layer = |input, output, heads| {
        GatConv::with_options(input, output / heads, &GatOptions { heads, ..GatOptions::default() }, at.init)
    };
    graph(at, layer, |layer, x, graph| layer.forward(x, graph, None))
}

/// Predicts each next image of 10, of one channel.
fn conv_lstm(at: &At) -> Result<Case> {
    #[derive(Module)]
    struct Next {
        lstm: ConvLstm,
        image: Conv2d,
    }
    let hidden = at.either(64, 4);
    let network =
        Next { lstm: ConvLstm::new(1, hidden, [5, 5], at.init)?, image: Conv2d::new(hidden, 1, [1, 1], at.init)? };
    let &[b, size] = at.size else { unreachable!("films have two extents") };
    let x = normal(&[at.either(10, 2), b, 1, size, size], at.init)?;
    Ok(Case::zeros(network, move |network| network.image.forward(&network.lstm.forward(&x)?.flatten(0, 1)?)))
}

/// Layers over a mesh whose neighbours are random.
struct OfMesh<L>(Vec<L>);

impl<L: Module> Module for OfMesh<L> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part("layers", &self.0);
    }
}

fn mesh<L: Module + 'static>(
    at: &At,
    neighbors: usize,
    widths: [usize; 5],
    layer: impl Fn(usize, usize) -> Result<L>,
    forward: impl Fn(&L, &Tensor, &Neighbors) -> Result<Tensor> + 'static,
) -> Result<Case> {
    let &[b, rows] = at.size else { unreachable!("meshes have two extents") };
    let table = Neighbors::new(&numbers(rows, &[rows, neighbors], at.init)?)?;
    let x = normal(&[b, rows, widths[0]], at.init)?;
    let network = OfMesh(widths.windows(2).map(|widths| layer(widths[0], widths[1])).collect::<Result<_>>()?);
    Ok(Case::zeros(network, move |OfMesh(layers)| {
        layers.iter().try_fold(x.clone(), |x, layer| forward(layer, &x, &table)?.relu())
    }))
}

/// Edges with four neighbours.
fn mesh_edges(at: &At) -> Result<Case> {
    let layer = |input, output| MeshConv::new(input, output, at.init);
    mesh(at, 4, [5, 32, 64, 128, 128], layer, |layer, x, table| layer.forward(x, table))
}

/// Vertices with spirals of 9.
fn spirals(at: &At) -> Result<Case> {
    let layer = |input, output| SpiralConv::new(input, output, 9, at.init);
    mesh(at, 9, [3, 16, 32, 64, 64], layer, |layer, x, table| layer.forward(x, table))
}

#[derive(Clone, Copy)]
enum Rule {
    Sgd,
    Adam,
    AdamW,
}

impl Rule {
    fn of(self, network: &dyn Module) -> Box<dyn Optimizer> {
        match self {
            Rule::Sgd => Box::new(Sgd::new(network).lr(0.1).momentum(0.9)),
            Rule::Adam => Box::new(Adam::new(network).lr(1e-3)),
            Rule::AdamW => Box::new(AdamW::new(network).lr(1e-4)),
        }
    }
}

/// A network, its optimizer, and its extents: two sizes, and a small one.
struct Entry {
    name: &'static str,
    rule: Rule,
    sizes: [&'static [usize]; 2],
    small: &'static [usize],
    /// False if the first extent is no batch.
    has_batch: bool,
    /// Whether it makes something in its first step that waits for the device, as the loops of a graph.
    waits: bool,
    build: fn(&At) -> Result<Case>,
}

const fn entry(
    name: &'static str,
    rule: Rule,
    sizes: [&'static [usize]; 2],
    small: &'static [usize],
    build: fn(&At) -> Result<Case>,
) -> Entry {
    Entry { name, rule, sizes, small, has_batch: true, waits: false, build }
}

/// Of networks for images: batch, rows and columns.
const IMAGES: [&[usize]; 2] = [&[64, 224], &[16, 160]];
/// Of networks for text: batch, length, width.
const TEXTS: [&[usize]; 2] = [&[64, 128, 650], &[20, 35, 200]];
/// Of graphs: nodes, edges, features, classes. Those of ogbn-arxiv, and of Cora.
const GRAPHS: [&[usize]; 2] = [&[169_343, 1_166_243, 128, 40], &[2708, 10_556, 1433, 7]];

const ENTRIES: &[Entry] = &[
    entry("mobilenet_v2", Rule::Sgd, IMAGES, &[2, 32], |at| {
        classifier(MobileNetV2::new(&MobileNetV2Options::default(), at.init)?, 3, 1000, at)
    }),
    entry("resnet50", Rule::Sgd, IMAGES, &[2, 32], |at| resnet(ResNet::resnet50, at)),
    entry("resnet34", Rule::Sgd, IMAGES, &[2, 32], |at| resnet(ResNet::resnet34, at)),
    entry("resnet18", Rule::Sgd, IMAGES, &[2, 32], |at| resnet(ResNet::resnet18, at)),
    entry("vit_b16", Rule::AdamW, IMAGES, &[2, 32], vit),
    entry("unet", Rule::Sgd, [&[8, 256], &[2, 384]], &[2, 32], unet),
    entry("dcgan_generator", Rule::Adam, [&[128, 64], &[16, 64]], &[2, 64], generator),
    entry("dcgan_discriminator", Rule::Adam, [&[128, 64], &[16, 64]], &[2, 64], discriminator),
    entry("lenet", Rule::Sgd, [&[1024, 28], &[64, 28]], &[2, 28], |at| {
        classifier(LeNet::new(1, 10, at.init)?, 1, 10, at)
    }),
    entry("gpt2", Rule::AdamW, [&[8, 1024], &[4, 256]], &[2, 8], gpt2),
    entry("bert_base", Rule::AdamW, [&[32, 512], &[8, 128]], &[2, 8], bert),
    entry("lstm", Rule::Adam, TEXTS, &[2, 5, 12], |at| recurrent(Recurrence::Lstm, at)),
    entry("gru", Rule::Adam, TEXTS, &[2, 5, 12], |at| recurrent(Recurrence::Gru, at)),
    Entry { has_batch: false, waits: true, ..entry("gcn", Rule::Adam, GRAPHS, &[20, 50, 9, 3], gcn) },
    Entry { has_batch: false, waits: true, ..entry("sage", Rule::Adam, GRAPHS, &[20, 50, 9, 3], sage) },
    Entry { has_batch: false, waits: true, ..entry("gat", Rule::Adam, GRAPHS, &[20, 50, 9, 3], gat) },
    entry("conv_lstm", Rule::Adam, [&[16, 64], &[4, 32]], &[2, 8], conv_lstm),
    Entry { waits: true, ..entry("mesh", Rule::Adam, [&[16, 2250], &[1, 7500]], &[2, 30], mesh_edges) },
    Entry { waits: true, ..entry("spiral", Rule::Adam, [&[16, 5023], &[1, 2562]], &[2, 30], spirals) },
    entry("llama_1b", Rule::AdamW, [&[4, 1024], &[1, 512]], &[2, 8], llama),
];

/// The network, kind, size and dtype of a line, which begins with `key`.
struct Row<'a> {
    entry: &'a Entry,
    size: Vec<usize>,
    kind: Kind,
    precision: Precision,
    is_small: bool,
}

impl Row<'_> {
    fn key(&self) -> String {
        let size = self.size.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
        let (name, kind, dtype) = (self.entry.name, name_of(&self.kind), name_of(&self.precision));
        format!(r#"{{"model": "{name}", "kind": "{kind}", "size": "{size}", "dtype": "{dtype}""#)
    }

    fn run(&self, device: &Device) -> Result<String> {
        let started = Instant::now();
        let (is_bf16, is_training) = (self.precision == Precision::Bf16, self.kind == Kind::Train);
        let dtype = if is_bf16 && !is_training { DType::BF16 } else { DType::F32 };
        device.set_matmul_precision(match self.precision {
            Precision::Tf32 => isograd::Precision::Tf32,
            _ => isograd::Precision::Exact,
        });
        let init = Init::new(device).dtype(dtype).seed(1).channels_last();
        let case = (self.entry.build)(&At { size: &self.size, is_small: self.is_small, init: &init })?;
        if !is_training {
            case.network.eval();
            return self.measure(device, started, &mut || no_grad(|| (case.output)()));
        }
        let mut optimizer = self.entry.rule.of(&*case.network);
        let forward = || (case.loss)((case.output)()?);
        self.measure(device, started, &mut || {
            let loss = if is_bf16 { autocast(DType::BF16, forward)? } else { forward()? };
            loss.backward()?;
            optimizer.step()?;
            Ok(loss)
        })
    }

    /// The rest of the line, of a step that returns its loss or its output.
    fn measure(&self, device: &Device, started: Instant, step: &mut dyn FnMut() -> Result<Tensor>) -> Result<String> {
        let round = if self.is_small { Duration::ZERO } else { Duration::from_millis(300) };
        let step = RefCell::new(step);
        if self.entry.waits {
            (step.borrow_mut())()?;
        }
        let mut captured = device.capture(|_: ()| (step.borrow_mut())());
        let y = captured.run(())?;
        // A loss, or an element of the output.
        let first = y.reshape(y.numel())?.narrow(0, 0, 1)?.item::<f64>()?;
        let first_step = started.elapsed().as_secs_f64();
        if !first.is_finite() {
            return Err(Error::value("models", format!("the first result is {first}")));
        }
        drop(y);
        captured.run(())?;
        device.synchronize()?;
        let second_step = started.elapsed().as_secs_f64() - first_step;
        let (is_recorded, memory) = (captured.is_recorded(), device.memory());
        let captured_ms = least(device, round, &mut || captured.run(()).map(drop))?;
        drop(captured);
        device.backend().reset_peak();
        let plain_ms = least(device, round, &mut || (step.borrow_mut())().map(drop))?;
        let plain_peak = device.memory().peak;
        // A number of bytes is 0 where the device does not count them.
        let or_null = |known: bool, value: String| if known { value } else { "null".into() };
        Ok(format!(
            r#""captured_ms": {}, "plain_ms": {plain_ms:.4}, "first_step_s": {first_step:.3}, "second_step_s": {second_step:.3}, "peak_bytes": {}, "plain_peak_bytes": {}, "result": {first}"#,
            or_null(is_recorded, format!("{captured_ms:.4}")),
            or_null(is_recorded && memory.in_use > 0, (memory.in_use + memory.captured).to_string()),
            or_null(plain_peak > 0, plain_peak.to_string()),
        ))
    }
}

/// The mean time of a step in the best of three rounds, in milliseconds.
fn least(device: &Device, round: Duration, step: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    let mut mean = |times: u32| -> Result<Duration> {
        let started = Instant::now();
        (0..times).try_for_each(|_| step())?;
        device.synchronize()?;
        Ok(started.elapsed() / times)
    };
    mean(1)?;
    let one = mean(1)?.as_secs_f64();
    let times = (round.as_secs_f64() / one).clamp(1.0, 300.0) as u32;
    let means = [mean(times)?, mean(times)?, mean(times)?];
    Ok(1e3 * means.iter().min().expect("three rounds").as_secs_f64())
}

/// The lines of a network, each once: sizes may differ in the batch alone, which `infer1` does not have.
fn rows<'a>(entry: &'a Entry, options: &Options) -> Vec<Row<'a>> {
    let is_small = options.extent.is_some();
    let sizes: &[&[usize]] = if is_small { &[entry.small] } else { &entry.sizes[..options.sizes.min(2)] };
    let (mut rows, mut known) = (Vec::new(), HashSet::new());
    for &precision in &options.dtype {
        for size in sizes {
            for &kind in &options.kinds {
                let mut size = size.to_vec();
                match kind {
                    Kind::Infer1 if !entry.has_batch => continue,
                    Kind::Infer1 => size[0] = 1,
                    _ => {}
                }
                let row = Row { entry, size, kind, precision, is_small };
                if known.insert(row.key()) {
                    rows.push(row);
                }
            }
        }
    }
    rows
}

/// Runs a network in a process of its own, and says how that ended if it failed.
fn spawn(entry: &Entry) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    // Neither this library nor CUDA's driver finds what an earlier process compiled.
    let command = Command::new(program)
        .args(std::env::args().skip(1))
        .args(["--alone", "--only", entry.name])
        .env("ISOGRAD_CACHE", "")
        .env("CUDA_CACHE_DISABLE", "1")
        .status();
    match command {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the process ended with {status}")),
        Err(error) => Err(error.to_string()),
    }
}

fn main() -> Result<()> {
    let started = Instant::now();
    let mut options = Options::parse();
    // A network that is run alone is named last.
    let only = if options.alone { options.only.split_off(options.only.len() - 1) } else { options.only.clone() };
    let done = options.done.as_ref().map(std::fs::read_to_string).transpose().unwrap_or_default().unwrap_or_default();
    let is_wanted = |entry: &&Entry| only.is_empty() || only.iter().any(|name| name == entry.name);
    if let Some(name) = only.iter().find(|name| ENTRIES.iter().all(|entry| entry.name != **name)) {
        let names: Vec<_> = ENTRIES.iter().map(|entry| entry.name).collect();
        return Err(Error::attr("models", format!("there is no {name}, expected one of {}", names.join(", "))));
    }
    for entry in ENTRIES.iter().filter(is_wanted) {
        let rows: Vec<_> =
            rows(entry, &options).into_iter().filter(|row| !done.contains(&(row.key() + ", \"captured"))).collect();
        let is_late = options.seconds.is_some_and(|seconds| started.elapsed() > Duration::from_secs(seconds));
        if rows.is_empty() || is_late {
            continue;
        }
        if !options.alone {
            if let Err(error) = spawn(entry) {
                print(&format!(r#"{{"model": "{}", "error": {error:?}}}"#, entry.name));
            }
            continue;
        }
        let device: Device = options.device.parse()?;
        for row in rows {
            let rest = row.run(&device).unwrap_or_else(|error| format!(r#""error": {:?}"#, error.to_string()));
            print(&format!("{}, {rest}}}", row.key()));
        }
    }
    Ok(())
}
