//! The models that `isograd train` knows, by their names.

use super::batch::{Input, Predict};
use super::config::Config;
use super::networks::{graph, images};
use super::sample::Split;
use super::tasks::ModelName;
use isograd::data::csv::Encoding;
use isograd::models::{Mlp, ResNet, Tabular, TabularOptions};
use isograd::nn::{Forward, Init, Layer, Module};
use isograd::{Error, Result, Tensor};

/// The model of a configuration, for these samples.
pub fn model(config: &Config, split: &Split, init: &Init) -> Result<Box<dyn Predict>> {
    let nodes = || {
        let message = || format!("{} is for graphs, {} is none", config.model.name(), split.name);
        split.graph.as_deref().ok_or_else(|| Error::value("model", message()))
    };
    if let (ModelName::Mlp, Some(table)) = (config.model, &split.table) {
        return Ok(Box::new(OfTable::new(&config.hidden, &table.encoding, init)?));
    }
    if split.table.as_ref().is_some_and(|table| !table.encoding.categories().is_empty()) {
        let message =
            "takes numbers, but the table has categories: --one-hot makes numbers of them, --ignore leaves them out";
        return Err(Error::value(config.model.name(), message));
    }
    let body: Box<dyn Layer> = match config.model {
        ModelName::Mlp => Box::new(Flat { body: Mlp::new(split.inputs(), &config.hidden, split.outputs, init)? }),
        ModelName::Lenet => images::lenet(config, split, init)?,
        ModelName::Resnet18 => images::resnet(ResNet::resnet18, config, split, init)?,
        ModelName::Resnet34 => images::resnet(ResNet::resnet34, config, split, init)?,
        ModelName::Resnet50 => images::resnet(ResNet::resnet50, config, split, init)?,
        ModelName::Mobilenet => images::mobilenet(config, split, init)?,
        ModelName::Gcn => return graph::gcn(config, split, nodes()?, init),
        ModelName::Sage => return graph::sage(config, split, nodes()?, init),
        ModelName::Gat => return graph::gat(config, split, nodes()?, init),
    };
    Ok(Box::new(body))
}

/// A network over flattened samples.
#[derive(Module)]
struct Flat {
    #[module(flatten)]
    body: Mlp,
}

impl Forward for Flat {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = if x.rank() > 2 { x.flatten(1, -1)? } else { x.clone() };
        self.body.forward(&x)
    }
}

/// A network for the rows of a table.
#[derive(Module)]
struct OfTable {
    #[module(flatten)]
    body: Tabular,
}

impl OfTable {
    fn new(hidden: &[usize], encoding: &Encoding, init: &Init) -> Result<OfTable> {
        let (numbers, categories) = (encoding.numbers(), encoding.categories());
        let options = TabularOptions { numbers, categories, hidden: hidden.to_vec(), outputs: encoding.outputs() };
        Ok(OfTable { body: Tabular::new(&options, init)? })
    }
}

impl Predict for OfTable {
    fn predict(&self, input: &Input) -> Result<Tensor> {
        self.body.forward(&input.x, input.categories.as_ref().unwrap_or(&input.x))
    }
}
