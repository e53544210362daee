//! The models that `isograd train` knows: an entry each.

use super::config::Config;
use super::tasks::{Scale, Split};
use isograd::models::LeNet;
use isograd::nn::{Activation, Forward, Init, Layer, Linear, Module, Visitor};
use isograd::{Error, Result, Tensor};

/// A model by its name on the command line.
pub struct ModelEntry {
    pub name: &'static str,
    /// The model has hidden layers of any sizes: --hidden.
    pub has_hidden: bool,
    make: fn(&Config, &Split, &Init) -> Result<Box<dyn Layer>>,
}

/// All models of the command. The first is the default.
pub const MODELS: &[ModelEntry] = &[
    ModelEntry {
        name: "mlp",
        has_hidden: true,
        make: |config, split, init| Ok(Box::new(Mlp::new(&config.hidden, split, init)?)),
    },
    ModelEntry { name: "lenet", has_hidden: false, make: |_, split, init| Ok(Box::new(Images::new(split, init)?)) },
];

impl ModelEntry {
    /// The model of this name, or the default.
    pub fn named(name: &str) -> &'static ModelEntry {
        MODELS.iter().find(|entry| entry.name == name).unwrap_or(&MODELS[0])
    }
}

/// The model of a configuration, for these samples.
pub fn model(config: &Config, split: &Split, init: &Init) -> Result<Box<dyn Layer>> {
    let body = (ModelEntry::named(&config.model).make)(config, split, init)?;
    match &split.scales {
        Some((inputs, outputs)) => Ok(Box::new(Scaled::new(inputs, body, outputs, init)?)),
        None => Ok(body),
    }
}

/// Linear layers with relu between them, over the flattened samples.
struct Mlp {
    hidden: Vec<Linear>,
    last: Linear,
}

impl Mlp {
    fn new(hidden: &[usize], split: &Split, init: &Init) -> Result<Mlp> {
        let mut width = split.inputs;
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
}

impl Forward for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = self.hidden.iter().try_fold(x.clone(), |x, layer| layer.forward_with(&x, Activation::Relu))?;
        self.last.forward(&hidden)
    }
}

/// Rows and columns of the images of [`LeNet`].
const PIXELS: [usize; 2] = [28, 28];

/// LeNet-5 over samples that are flattened images.
struct Images(LeNet);

impl Images {
    fn new(split: &Split, init: &Init) -> Result<Images> {
        let [rows, columns] = PIXELS;
        if split.inputs != rows * columns {
            let (name, inputs) = (&split.name, split.inputs);
            let message =
                format!("images have {rows} x {columns} pixels, but samples of {name} have {inputs} features");
            return Err(Error::shape("lenet", message));
        }
        Ok(Images(LeNet::new(1, split.outputs, init)?))
    }
}

impl Module for Images {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.0.visit(visitor);
    }
}

impl Forward for Images {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [rows, columns] = PIXELS;
        self.0.forward(&x.reshape((x.dims()[0], 1, rows, columns))?)
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
