//! The models that `isograd train` knows: an entry each.

use super::batch::Input;
use super::config::Config;
use super::graph::{self, Nodes};
use super::networks;
use super::tasks::{Scale, Split};
use isograd::models::ResNet;
use isograd::nn::{Activation, Forward, Init, Layer, Linear, Module, Visitor, VisitorMut};
use isograd::{Error, Result, Tensor};

/// A model by its name on the command line.
pub struct ModelEntry {
    pub name: &'static str,
    /// Options that other models do not have.
    pub options: &'static [&'static str],
    /// Sizes of the hidden layers, if the command line does not say.
    pub hidden: &'static [usize],
    pub make: Make,
}

/// The constructor of a model.
#[derive(Clone, Copy)]
pub enum Make {
    /// A layer of samples.
    OfSamples(fn(&Config, &Split, &Init) -> Result<Box<dyn Layer>>),
    /// A network over the nodes of a graph.
    OfGraph(MakeOfGraph),
}

type MakeOfGraph = fn(&Config, &Split, &Nodes, &Init) -> Result<Box<dyn Predict>>;

/// A model of the command.
pub trait Predict: Module {
    /// The outputs for a batch, `[B, ..]`.
    fn predict(&self, input: &Input) -> Result<Tensor>;
}

impl<L: Layer> Predict for L {
    fn predict(&self, input: &Input) -> Result<Tensor> {
        self.forward(&input.x)
    }
}

/// All models of the command.
pub const MODELS: &[ModelEntry] = &[
    ModelEntry {
        name: "mlp",
        options: &["hidden"],
        hidden: &[256],
        make: Make::OfSamples(|config, split, init| Ok(Box::new(Mlp::new(&config.hidden, split, init)?))),
    },
    ModelEntry { name: "lenet", options: &["channels-last"], hidden: &[], make: Make::OfSamples(networks::lenet) },
    ModelEntry {
        name: "resnet18",
        options: RESNET,
        hidden: &[],
        make: Make::OfSamples(|config, split, init| networks::resnet(ResNet::resnet18, config, split, init)),
    },
    ModelEntry {
        name: "resnet34",
        options: RESNET,
        hidden: &[],
        make: Make::OfSamples(|config, split, init| networks::resnet(ResNet::resnet34, config, split, init)),
    },
    ModelEntry {
        name: "resnet50",
        options: RESNET,
        hidden: &[],
        make: Make::OfSamples(|config, split, init| networks::resnet(ResNet::resnet50, config, split, init)),
    },
    ModelEntry {
        name: "mobilenet",
        options: &["channels-last"],
        hidden: &[],
        make: Make::OfSamples(networks::mobilenet),
    },
    ModelEntry { name: "gcn", options: OF_GRAPH, hidden: &[64], make: Make::OfGraph(graph::gcn) },
    ModelEntry { name: "sage", options: OF_GRAPH, hidden: &[64], make: Make::OfGraph(graph::sage) },
    ModelEntry { name: "gat", options: &["hidden", "dropout", "heads"], hidden: &[8], make: Make::OfGraph(graph::gat) },
];

/// Options of networks over graphs.
const OF_GRAPH: &[&str] = &["hidden", "dropout"];

/// Options of residual networks.
const RESNET: &[&str] = &["channels-last", "stem"];

impl ModelEntry {
    /// The model of this name, or the default.
    pub fn named(name: &str) -> &'static ModelEntry {
        MODELS.iter().find(|entry| entry.name == name).unwrap_or(&MODELS[0])
    }
}

/// The model of a configuration, for these samples.
pub fn model(config: &Config, split: &Split, init: &Init) -> Result<Box<dyn Predict>> {
    let body = match (ModelEntry::named(&config.model).make, &split.graph) {
        (Make::OfSamples(make), _) => make(config, split, init)?,
        (Make::OfGraph(make), Some(nodes)) => return make(config, split, nodes, init),
        (Make::OfGraph(_), None) => {
            return Err(Error::value("model", format!("{} is for graphs, {} is none", config.model, split.name)));
        }
    };
    match &split.scales {
        Some((inputs, outputs)) => Ok(Box::new(Scaled::new(inputs, body, outputs, init)?)),
        None => Ok(Box::new(body)),
    }
}

/// Linear layers with relu between them, over the flattened samples.
struct Mlp {
    hidden: Vec<Linear>,
    last: Linear,
}

impl Mlp {
    fn new(hidden: &[usize], split: &Split, init: &Init) -> Result<Mlp> {
        let mut width = split.inputs();
        let mut layer = |units| Linear::new(std::mem::replace(&mut width, units), units, init);
        let hidden = hidden.iter().map(|&units| layer(units)).collect::<Result<_>>()?;
        Ok(Mlp { hidden, last: layer(split.outputs)? })
    }
}

impl Module for Mlp {
    /// Named as in a sequence of layers in which the activations count.
    fn visit(&self, visitor: &mut Visitor<'_>) {
        let layers = self.hidden.iter().chain([&self.last]);
        layers.enumerate().for_each(|(i, layer)| visitor.part(&(2 * i).to_string(), layer));
    }

    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
        visitor.part(&mut self.hidden);
        visitor.part(&mut self.last);
    }
}

impl Clone for Mlp {
    fn clone(&self) -> Self {
        VisitorMut::cloned(|| Mlp { hidden: self.hidden.clone(), last: self.last.clone() })
    }
}

impl Forward for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = if x.rank() > 2 { x.flatten(1, -1)? } else { x.clone() };
        let hidden = self.hidden.iter().try_fold(x, |x, layer| layer.forward_with(&x, Activation::Relu))?;
        self.last.forward(&hidden)
    }
}

/// A model of data that is not scaled: it sees features with mean 0 and deviation 1, and its outputs get the scale of the targets.
#[derive(Module)]
struct Scaled {
    inputs: Affine,
    body: Box<dyn Layer>,
    outputs: Option<Affine>,
}

impl Scaled {
    fn new(inputs: &Scale, body: Box<dyn Layer>, outputs: &Scale, init: &Init) -> Result<Scaled> {
        let inverse = |d: &f32| 1.0 / d;
        let shift = inputs.means.iter().zip(&inputs.deviations).map(|(mean, deviation)| -mean / deviation).collect();
        let inputs = Affine::new(inputs.deviations.iter().map(inverse).collect(), shift, init)?;
        let outputs = match outputs.means.is_empty() {
            true => None,
            false => Some(Affine::new(outputs.deviations.clone(), outputs.means.clone(), init)?),
        };
        Ok(Scaled { inputs, body, outputs })
    }
}

impl Forward for Scaled {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.body.forward(&self.inputs.forward(x)?)?;
        self.outputs.as_ref().map_or(Ok(y.clone()), |outputs| outputs.forward(&y))
    }
}

/// `x * factor + shift`, which is not trained.
#[derive(Module)]
struct Affine {
    factor: Tensor,
    shift: Tensor,
}

impl Affine {
    fn new(factor: Vec<f32>, shift: Vec<f32>, init: &Init) -> Result<Affine> {
        let n = factor.len();
        let tensor = |values: Vec<f32>| Tensor::from_vec(values, n, init.device())?.cast(init.parameter_dtype());
        Ok(Affine { factor: tensor(factor)?, shift: tensor(shift)? })
    }
}

impl Forward for Affine {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.mul(&self.factor)?.add(&self.shift)
    }
}
