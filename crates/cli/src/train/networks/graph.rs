//! Networks that convolve over a graph.

use crate::train::batch::{Input, Predict};
use crate::train::config::Config;
use crate::train::sample::{Nodes, Split};
use isograd::Tensor;
use isograd::data::graph::GraphFolder;
use isograd::nn::{Dropout, Forward, GatConv, GatHeads, GatOptions, GcnConv, Graph, Init, Module, SageConv, Visitor};

/// A convolution of a graph.
trait Convolution: Module + Sync {
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
    Network::make(Tensor::relu, config, split, nodes, init, |[input, output], _| GcnConv::new(input, output, init))
}

/// Means of neighbours.
pub fn sage(config: &Config, split: &Split, nodes: &Nodes, init: &Init) -> isograd::Result<Box<dyn Predict>> {
    Network::make(Tensor::relu, config, split, nodes, init, |[input, output], _| SageConv::new(input, output, init))
}

/// Attention to neighbours. A hidden layer has its width in each head.
pub fn gat(config: &Config, split: &Split, nodes: &Nodes, init: &Init) -> isograd::Result<Box<dyn Predict>> {
    let heads = config.reading.graph.heads;
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
            GatConv::with_options(input, output, &GatOptions { heads, combine, ..GatOptions::default() }, init)
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
            dropout: Dropout::new(config.reading.graph.dropout, init),
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
