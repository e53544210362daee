//! Generated inputs, determined by a shape and a seed.

use isograd_core::{Device, Result, Shape, Tensor};
use serde_json::Value;

/// The range of an input's elements.
#[derive(Clone, Copy, Debug)]
pub enum Domain {
    /// -2 to 2.
    Real,
    /// 0.2 to 2.2.
    Positive,
    /// 0.05 to 0.95.
    Unit,
    /// -6 to 6, at a distance of at least 0.05 from these points, where a derivative jumps.
    Away(&'static [f64]),
    /// Distinct elements, at least 0.07 apart.
    Distinct,
    /// Multiples of 0.1, plus this phase, plus up to 0.01. Elements of different phases are never equal.
    Grid(f64),
}

/// A call of an op: its attributes (a JSON object) and its inputs.
#[derive(Clone, Debug)]
pub struct Case {
    /// The attributes, a JSON object.
    pub attributes: Value,
    /// The inputs, floats in f64.
    pub inputs: Vec<(String, Tensor)>,
    /// The device of an op without inputs.
    pub device: Option<Device>,
}

impl Case {
    /// A call with these attributes and inputs.
    pub fn new(attributes: Value, inputs: Vec<(&str, Tensor)>) -> Case {
        let inputs = inputs.into_iter().map(|(name, t)| (name.to_string(), t)).collect();
        Case { attributes, inputs, device: None }
    }

    /// A call with these inputs and no attributes.
    pub fn of(inputs: Vec<(&str, Tensor)>) -> Case {
        Case::new(Value::Object(Default::default()), inputs)
    }

    /// The same call on another device.
    pub fn to(&self, device: &Device) -> Result<Case> {
        let case = self.map(|t| t.to_device(device))?;
        Ok(Case { device: self.device.as_ref().map(|_| device.clone()), ..case })
    }

    /// The same call with each input replaced.
    pub fn map(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Case> {
        let inputs = self.inputs.iter().map(|(name, t)| Ok((name.clone(), f(t)?))).collect::<Result<_>>()?;
        Ok(Case { inputs, ..self.clone() })
    }

    /// The same call without the attributes and inputs of these names.
    pub fn without(&self, names: &[&str]) -> Case {
        let mut case = self.clone();
        case.inputs.retain(|(name, _)| !names.contains(&name.as_str()));
        if let Value::Object(attributes) = &mut case.attributes {
            attributes.retain(|name, _| !names.contains(&name.as_str()));
        }
        case
    }

    /// The same call with each float input replaced.
    pub fn map_floats(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Case> {
        self.map(|t| if t.dtype().is_float() { f(t) } else { Ok(t.clone()) })
    }
}

/// Makes cases from a shape and a seed.
pub struct Gen {
    /// The shape around which the case is built.
    pub shape: Vec<usize>,
    device: Device,
    /// True if the extents that ops choose for large shapes are multiples of whole words.
    in_words: bool,
    state: u64,
}

impl Gen {
    /// A generator of cases on `device`.
    pub fn new(shape: &[usize], seed: u64, device: &Device) -> Gen {
        Gen { shape: shape.to_vec(), device: device.clone(), in_words: seed.is_multiple_of(2), state: seed }
    }

    /// The device of the case's tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// SplitMix64: Steele et al. 2014, OOPSLA.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// An integer in `0..n`; 0 if n is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 32) as usize % n.max(1)
    }

    /// True with probability 1/2.
    pub fn coin(&mut self) -> bool {
        self.below(2) == 1
    }

    /// One of the choices.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A float in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn value(&mut self, domain: Domain) -> f64 {
        let u = self.uniform();
        match domain {
            Domain::Real => 4.0 * u - 2.0,
            Domain::Positive => 2.0 * u + 0.2,
            Domain::Unit => 0.9 * u + 0.05,
            Domain::Grid(phase) => 0.1 * (self.below(31) as f64 - 15.0) + phase + 0.01 * u,
            Domain::Distinct => unreachable!("made as a whole"),
            Domain::Away(points) => {
                let v = 12.0 * u - 6.0;
                if points.iter().any(|p| (v - p).abs() < 0.05) { self.value(domain) } else { v }
            }
        }
    }

    /// An f64 tensor.
    pub fn tensor(&mut self, domain: Domain, shape: &[usize]) -> Tensor {
        let n = shape.iter().product();
        let values: Vec<f64> = match domain {
            Domain::Distinct => {
                let mut order: Vec<usize> = (0..n).collect();
                (1..n).rev().for_each(|i| order.swap(i, self.below(i + 1)));
                order.into_iter().map(|k| 0.1 * (k as f64 - n as f64 / 2.0) + 0.03 * self.uniform()).collect()
            }
            _ => (0..n).map(|_| self.value(domain)).collect(),
        };
        self.from(values, shape)
    }

    fn from<T: isograd_core::Element>(&self, values: Vec<T>, shape: &[usize]) -> Tensor {
        Tensor::from_vec(values, Shape::new(shape), &self.device).expect("as many values as the shape has")
    }

    /// An f64 tensor of the case's shape.
    pub fn x(&mut self, domain: Domain) -> Tensor {
        let shape = self.shape.clone();
        self.tensor(domain, &shape)
    }

    /// An f64 tensor of a shape that broadcasts to the case's.
    pub fn broadcast(&mut self, domain: Domain) -> Tensor {
        let shape = self.smaller();
        self.tensor(domain, &shape)
    }

    /// A shape that broadcasts to the case's.
    pub fn smaller(&mut self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        for d in &mut shape {
            if self.below(3) == 0 {
                *d = 1;
            }
        }
        while !shape.is_empty() && self.below(4) == 0 {
            shape.remove(0);
        }
        shape
    }

    /// Indices (i64) in `0..n`.
    pub fn indices(&mut self, n: usize, shape: &[usize]) -> Tensor {
        let values: Vec<i64> = (0..shape.iter().product()).map(|_| self.below(n) as i64).collect();
        self.from(values, shape)
    }

    /// [`indices`](Gen::indices) along any dimension.
    pub fn indices_along(&mut self, n: usize, shape: &[usize], _dim: usize) -> Tensor {
        self.indices(n, shape)
    }

    /// Indices in `0..n` along dimension `dim`, for overwriting. Positions may repeat. In a timed case all are different.
    pub fn overwriting_indices(&mut self, n: usize, shape: &[usize], dim: usize) -> Tensor {
        if self.timed().is_none() {
            return self.indices(n, shape);
        }
        let first = self.below(n);
        let inner: usize = shape[dim + 1..].iter().product();
        let values = (0..shape.iter().product()).map(|i: usize| ((first + i / inner % shape[dim]) % n) as i64);
        let values = values.collect();
        self.from(values, shape)
    }

    /// A bool tensor.
    pub fn mask(&mut self, shape: &[usize]) -> Tensor {
        let values: Vec<bool> = (0..shape.iter().product()).map(|_| self.coin()).collect();
        self.from(values, shape)
    }

    /// A dimension of the case's shape, counted from either end.
    pub fn dim(&mut self) -> isize {
        let rank = self.shape.len().max(1);
        let d = self.below(rank) as isize;
        if self.coin() { d } else { d - rank as isize }
    }

    /// Some dimensions of the case's shape, each at most once; sometimes `null` (all).
    pub fn dims(&mut self) -> Value {
        let rank = self.shape.len().max(1);
        let chosen: Vec<usize> = (0..rank).filter(|_| self.coin()).collect();
        if chosen.is_empty() { Value::Null } else { chosen.into() }
    }

    /// Replaces extents of 0 by 1, for ops that need an element.
    pub fn not_empty(&mut self) {
        self.shape.iter_mut().for_each(|d| *d = (*d).max(1));
    }

    /// True if the case's shape is large.
    pub fn is_large(&self) -> bool {
        self.shape.iter().product::<usize>() > 512
    }

    /// The number of elements of an operand in a timed case: the number of elements of the shape.
    pub fn timed(&self) -> Option<usize> {
        Some(self.shape.iter().product()).filter(|&elements| elements >= 1 << 20)
    }

    /// An extent for ops that choose their own: below 4, or up to 150 if the case's shape is large. In a large case with an even
    /// seed it is a multiple of 16.
    pub fn side(&mut self) -> usize {
        match (self.is_large(), self.in_words) {
            (false, _) => self.below(4),
            (true, false) => 1 + self.below(150),
            (true, true) => 16 * (1 + self.below(9)),
        }
    }

    /// Raises the shape's rank to at least this, by leading extents of 2.
    pub fn at_least_rank(&mut self, rank: usize) {
        while self.shape.len() < rank {
            self.shape.insert(0, 2);
        }
    }
}
