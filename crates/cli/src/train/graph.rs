//! Graphs: their options, and the dataset.

use super::batch::Sample;
use super::sample::{Nodes, Objective, Split, numbered};
use crate::parse;
use anyhow::{Result, bail};
use clap::Args;
use isograd::data::graph::{GraphFolder, HostCsr, NeighborSampler};
use isograd::data::{Context, Dataset, HostTensor};
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
    #[arg(long, visible_alias = "neighbors", value_name = "NUMBERS", value_delimiter = ',', value_parser = parse_fanout, groups = ["graph"])]
    pub neighbours: Option<Vec<String>>,
    /// Draw edges with replacement
    #[arg(long, requires = "neighbours", groups = ["graph"])]
    pub replacement: bool,
    /// Edges count in both directions
    #[arg(long, groups = ["graph"])]
    pub undirected: bool,
    /// The probability of dropout of the features that a layer of a graph gets [default: 0.5]
    #[arg(long, value_parser = parse::share, groups = ["gcn", "sage", "gat"])]
    pub dropout: Option<f64>,
    /// Heads of each layer of a gat but the last [default: 8]
    #[arg(long, value_parser = parse::count, groups = ["gat"])]
    pub heads: Option<usize>,
}

/// A number of edges, or all.
fn parse_fanout(s: &str) -> Result<String, String> {
    match parse::count(s) {
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
        Ok(Sample::new(scalar(self.nodes[index] as i64)?, scalar(self.labels[index])?))
    }
}

/// The folder of a graph. Without nodes to validate with, those to test with serve both ends.
pub fn folder(path: &Path, config: &GraphConfig) -> isograd::Result<Split> {
    let mut folder = GraphFolder::open(path)?;
    if config.undirected {
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
        classes: numbered(folder.classes),
        table: None,
        mixup: None,
        workers: 1,
        graph: Some(Arc::new(Nodes { sampler: config.sampler(&folder)?, folder })),
    })
}
