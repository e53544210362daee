//! Graphs: their options, the dataset, and networks that convolve over it.

use super::batch::Input;
use super::config::Config;
use super::models::Predict;
use super::tasks::{Names, Objective, Sample, Split};
use anyhow::{Result, bail};
use clap::Args;
use isograd::Tensor;
use isograd::data::graph::{GraphFolder, HostCsr, NeighborSampler};
use isograd::data::{Context, Dataset, HostTensor};
use isograd::nn::{
    Dropout, Forward, GatConv, GatHeads, GatOptions, GcnConv, GcnOptions, Graph, Init, Module, SageConv, SageOptions,
    Visitor,
};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// The value of --neighbours that takes every edge.
const ALL: &str = "all";

/// The options of graphs, and of networks for them.
#[derive(Args, Debug)]
pub struct GraphOptions {
    /// Learn from mini-batches of --batch-size nodes: the number of edges, or `all`, to draw for each node, for each layer from the
    /// last, separated by commas [default: the whole graph in each step]
    #[arg(long, visible_alias = "neighbors", value_name = "NUMBERS", value_delimiter = ',', value_parser = parse_fanout)]
    pub neighbours: Option<Vec<String>>,
    /// Draw edges with replacement
    #[arg(long, requires = "neighbours")]
    pub replacement: bool,
    /// Edges count in both directions
    #[arg(long)]
    pub undirected: bool,
    /// The probability of dropout of the features that a layer of a graph gets [default: 0.5]
    #[arg(long, value_parser = crate::text::parse_share)]
    pub dropout: Option<f64>,
    /// Heads of each layer of a gat but the last [default: 8]
    #[arg(long, value_parser = super::parse_count)]
    pub heads: Option<usize>,
}

/// A number of edges, or all.
fn parse_fanout(s: &str) -> Result<String, String> {
    match super::parse_count(s) {
        Err(_) if s != ALL => Err(format!("{s:?} is neither a number of at least 1 nor {ALL}")),
        _ => Ok(s.into()),
    }
}

/// The part of a configuration that only graphs have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GraphConfig {
    /// Edges to draw for each node, for each layer; none for the whole graph.
    pub neighbours: Vec<String>,
    /// Edges are drawn with replacement.
    pub replacement: bool,
    /// Edges count in both directions.
    pub undirected: bool,
    /// The probability of dropout.
    pub dropout: f64,
    /// Heads of a gat.
    pub heads: usize,
}

impl GraphConfig {
    /// The options with their defaults, for a network of `layers` layers. Errors: another number of --neighbours.
    pub fn new(options: &GraphOptions, layers: usize) -> Result<GraphConfig> {
        let GraphOptions { replacement, undirected, dropout, heads, .. } = *options;
        let neighbours = options.neighbours.clone().unwrap_or_default();
        if options.neighbours.is_some() && neighbours.len() != layers {
            bail!("--neighbours has {} numbers, expected one for each of {layers} layers", neighbours.len());
        }
        Ok(GraphConfig {
            neighbours,
            replacement,
            undirected,
            dropout: dropout.unwrap_or(0.5),
            heads: heads.unwrap_or(8),
        })
    }

    /// Draws neighbours in this graph; none if each step has the whole graph.
    fn sampler(&self, graph: &GraphFolder) -> isograd::Result<Option<NeighborSampler>> {
        if self.neighbours.is_empty() {
            return Ok(None);
        }
        let fanouts: Vec<usize> =
            self.neighbours.iter().map(|number| number.parse().unwrap_or(NeighborSampler::ALL)).collect();
        let sampler = NeighborSampler::new(HostCsr::from_edges(&graph.src, &graph.dst, graph.nodes())?, &fanouts);
        Ok(Some(if self.replacement { sampler.with_replacement() } else { sampler }))
    }
}

/// A graph and how mini-batches are drawn from it.
pub struct Nodes {
    folder: GraphFolder,
    pub sampler: Option<NeighborSampler>,
}

/// The nodes of a split and their classes.
struct Labelled {
    nodes: Vec<usize>,
    labels: Vec<i64>,
}

impl Dataset for Labelled {
    type Item = Sample;

    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn get(&self, index: usize, _: &Context) -> isograd::Result<Sample> {
        let scalar = |value: i64| HostTensor::new(&[value], []);
        Ok((scalar(self.nodes[index] as i64)?, scalar(self.labels[index])?))
    }
}

/// The folder of a graph. Without nodes to validate with, those to test with serve both ends.
pub fn folder(path: &Path, config: &Config) -> isograd::Result<Split> {
    let mut folder = GraphFolder::open(path)?;
    if config.graph.undirected {
        let back = (folder.dst.clone(), folder.src.clone());
        folder.src.extend(back.0);
        folder.dst.extend(back.1);
    }
    let part = |nodes: &Vec<usize>| {
        let labels = nodes.iter().map(|&node| folder.labels[node]).collect();
        Arc::new(Labelled { nodes: nodes.clone(), labels })
    };
    let (train, valid, test) = (part(&folder.train), part(&folder.valid), part(&folder.test));
    Ok(Split {
        name: path.display().to_string(),
        train,
        validation: if valid.is_empty() { None } else { Some(valid) },
        test,
        shape: vec![folder.features.dims()[1]],
        outputs: folder.classes,
        objective: Objective::Classes,
        names: Names::numbered(folder.classes),
        scales: None,
        mixup: None,
        workers: 1,
        graph: Some(Arc::new(Nodes { sampler: config.graph.sampler(&folder)?, folder })),
    })
}

/// A convolution of a graph.
trait Convolution: Module {
    fn convolve(&self, x: &Tensor, graph: &Graph) -> isograd::Result<Tensor>;
}

impl Convolution for GcnConv {
    fn convolve(&self, x: &Tensor, graph: &Graph) -> isograd::Result<Tensor> {
        self.forward(x, graph, None)
    }
}

impl Convolution for SageConv {
    fn convolve(&self, x: &Tensor, graph: &Graph) -> isograd::Result<Tensor> {
        self.forward(x, graph)
    }
}

impl Convolution for GatConv {
    fn convolve(&self, x: &Tensor, graph: &Graph) -> isograd::Result<Tensor> {
        self.forward(x, graph, None)
    }
}

/// Graph convolutions.
pub fn gcn(config: &Config, split: &Split, nodes: &Nodes, init: &Init) -> isograd::Result<Box<dyn Predict>> {
    Network::make(Tensor::relu, config, split, nodes, init, |[input, output], _| {
        GcnConv::new(input, output, &GcnOptions::default(), init)
    })
}

/// Means of neighbours.
pub fn sage(config: &Config, split: &Split, nodes: &Nodes, init: &Init) -> isograd::Result<Box<dyn Predict>> {
    Network::make(Tensor::relu, config, split, nodes, init, |[input, output], _| {
        SageConv::new(input, output, &SageOptions::default(), init)
    })
}

/// Attention to neighbours. A hidden layer has its width in each head.
pub fn gat(config: &Config, split: &Split, nodes: &Nodes, init: &Init) -> isograd::Result<Box<dyn Predict>> {
    let heads = config.graph.heads;
    Network::make(
        |x| x.elu(1.0),
        config,
        split,
        nodes,
        init,
        |[input, output], number| {
            let (is_first, is_last) = (number == 0, number == config.hidden.len());
            let input = if is_first { input } else { heads * input };
            let (heads, combine) = if is_last { (1, GatHeads::Mean) } else { (heads, GatHeads::Concat) };
            GatConv::new(input, output, &GatOptions { heads, combine, ..GatOptions::default() }, init)
        },
    )
}

/// Convolutions over a graph, each of features with dropout, and an activation between them.
struct Network<C> {
    layers: Vec<C>,
    activation: fn(&Tensor) -> isograd::Result<Tensor>,
    dropout: Dropout,
    graph: Graph,
    features: Tensor,
}

impl<C: Convolution + 'static> Network<C> {
    /// `layer` makes a layer of a width of inputs and outputs, and a number.
    fn make(
        activation: fn(&Tensor) -> isograd::Result<Tensor>,
        config: &Config,
        split: &Split,
        nodes: &Nodes,
        init: &Init,
        layer: impl Fn([usize; 2], usize) -> isograd::Result<C>,
    ) -> isograd::Result<Box<dyn Predict>> {
        let widths: Vec<usize> = split.shape.iter().chain(&config.hidden).copied().chain([split.outputs]).collect();
        let layers = widths.windows(2).enumerate().map(|(number, pair)| layer([pair[0], pair[1]], number));
        let (layers, device) = (layers.collect::<isograd::Result<_>>()?, init.device());
        let GraphFolder { src, dst, features, .. } = &nodes.folder;
        let [src, dst] = [src, dst].map(|ends| Tensor::from_slice(ends, ends.len(), device));
        let graph = Graph::from_edges(&src?, &dst?, nodes.folder.nodes())?;
        // A captured step may not wait for the device, as the first call does.
        graph.with_self_loops()?;
        Ok(Box::new(Network {
            layers,
            activation,
            dropout: Dropout::new(config.graph.dropout, init),
            graph,
            features: features.to(device)?.cast(init.parameter_dtype())?,
        }))
    }
}

impl<C: Convolution> Module for Network<C> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part("layers", &self.layers);
        visitor.part("dropout", &self.dropout);
    }
}

impl<C: Convolution> Predict for Network<C> {
    fn predict(&self, input: &Input) -> isograd::Result<Tensor> {
        let (graph, mut x) = match &input.around {
            None => (self.graph.clone(), self.features.clone()),
            Some(part) => (Graph::from_adjacency(part.adjacency()?)?, self.features.index_select(0, &part.nodes)?),
        };
        for (number, layer) in self.layers.iter().enumerate() {
            x = if number == 0 { x } else { (self.activation)(&x)? };
            x = layer.convolve(&self.dropout.forward(&x)?, &graph)?;
        }
        match &input.around {
            None => x.index_select(0, &input.x),
            Some(part) => x.narrow(0, 0, part.seeds),
        }
    }
}
