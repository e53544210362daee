//! The models that `isograd train` knows, by their names.

use super::batch::Predict;
use super::config::Config;
use super::networks::{graph, images};
use super::sample::{Scale, Split};
use super::tasks::ModelName;
use isograd::models::ResNet;
use isograd::nn::{Activation, Forward, Init, Layer, Linear, Module, Visitor, VisitorMut};
use isograd::{Error, Result, Tensor};

/// The model of a configuration, for these samples.
pub fn model(config: &Config, split: &Split, init: &Init) -> Result<Box<dyn Predict>> {
    let nodes = || {
        let message = || format!("{} is for graphs, {} is none", config.model.name(), split.name);
        split.graph.as_deref().ok_or_else(|| Error::value("model", message()))
    };
    let body: Box<dyn Layer> = match config.model {
        ModelName::Mlp => Box::new(Mlp::new(&config.hidden, split, init)?),
        ModelName::Lenet => images::lenet(config, split, init)?,
        ModelName::Resnet18 => images::resnet(ResNet::resnet18, config, split, init)?,
        ModelName::Resnet34 => images::resnet(ResNet::resnet34, config, split, init)?,
        ModelName::Resnet50 => images::resnet(ResNet::resnet50, config, split, init)?,
        ModelName::Mobilenet => images::mobilenet(config, split, init)?,
        ModelName::Gcn => return graph::gcn(config, split, nodes()?, init),
        ModelName::Sage => return graph::sage(config, split, nodes()?, init),
        ModelName::Gat => return graph::gat(config, split, nodes()?, init),
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
