//! Functions and networks that are exported, with inputs for which they are compared.

mod models;
mod ops;
mod rows;

use isograd_core::{DType, Device, Result, Shape, Tensor};
use isograd_nn::{Module, Sequential};
use isograd_onnx::{Batch, Export, Input, Model};

/// All cases.
pub fn all() -> Vec<Case> {
    ops::cases().into_iter().chain(rows::cases()).chain(models::cases()).collect()
}

type F = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// The dimension of an input that has the batch size.
type At = Option<usize>;

/// A function that is exported, and inputs for which its outputs are compared. The first ones are the examples.
pub struct Case {
    pub name: String,
    pub module: Box<dyn Module + Send + Sync>,
    batch: Batch,
    at: Vec<At>,
    pub runs: Vec<Vec<Tensor>>,
    pub f: F,
}

/// The device of all tensors.
pub fn cpu() -> Device {
    Device::cpu().expect("the CPU backend is linked")
}

/// Numbers from `low` to `high` in no order, of which none is twice for less than 2003 elements.
pub fn fill(shape: impl Into<Shape>, k: usize, [low, high]: [f64; 2]) -> Tensor {
    let shape = shape.into();
    let number = |i: usize| ((7919 * i + 104_729 * k + 17) % 2003) as f64 / 2003.0 * (high - low) + low;
    let values: Vec<f32> = (0..shape.numel()).map(|i| number(i) as f32).collect();
    Tensor::from_vec(values, shape, &cpu()).expect("the values fill the shape")
}

/// Integers from 0 to `below`.
pub fn integers(shape: impl Into<Shape>, k: usize, below: i64) -> Tensor {
    fill(shape, k, [0.0, below as f64]).cast(DType::I64).expect("floats become integers")
}

impl Case {
    /// A function of inputs whose first dimension is the batch.
    pub fn new(
        name: impl Into<String>,
        inputs: Vec<Tensor>,
        f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    ) -> Case {
        let at = inputs.iter().map(|x| (x.rank() > 0).then_some(0)).collect();
        let module = Box::new(Sequential::new());
        Case { name: name.into(), module, batch: Batch::Any, at, runs: vec![inputs], f: Box::new(f) }
    }

    /// With the batch of the examples.
    pub fn fixed(self) -> Case {
        Case { batch: Batch::Fixed, ..self }
    }

    /// Of a module, whose tensors have names.
    pub fn of(self, module: impl Module + Send + Sync + 'static) -> Case {
        Case { module: Box::new(module), ..self }
    }

    /// With the dimensions of inputs that have the batch size.
    pub fn batch_at(self, at: &[At]) -> Case {
        Case { at: at.to_vec(), ..self }
    }

    /// More inputs, such as a batch of another size.
    pub fn run(mut self, inputs: Vec<Tensor>) -> Case {
        self.runs.push(inputs);
        self
    }

    /// The names of the inputs.
    pub fn names(&self) -> Vec<String> {
        (0..self.at.len()).map(|i| format!("x{i}")).collect()
    }

    /// The exported model.
    pub fn export(&self) -> Result<Model> {
        let names = self.names();
        let mut export = Export::new(&*self.module).batch(self.batch);
        for ((name, x), at) in names.iter().zip(&self.runs[0]).zip(&self.at) {
            let input = Input::new(name, x);
            export = export.input(at.map_or(input.clone().fixed(), |dim| input.batch_at(dim)));
        }
        export.run(&self.f)
    }
}
