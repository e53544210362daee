//! A row of the registry: the properties of an op, and its calls on cases.

use super::category::Category;
use super::invocation::{Attributes, Invocation, Name, Parameter};
use crate::bench::Bench;
use crate::case::{Case, Gen};
use isograd_core::{Device, Error, Result, Tensor};
use isograd_nn::{Layer, Optimizer};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

type Run = Box<dyn Fn(&Invocation<'_>) -> Result<Vec<Tensor>> + Send + Sync>;
type Make = Box<dyn Fn(&mut Gen) -> Case + Send + Sync>;
pub(super) type Companion = fn(&Invocation<'_>) -> Result<Vec<Tensor>>;

/// Builds the layer of a module from a call's attributes and inputs, and returns the results of a call from the layer.
pub struct LayerOf {
    pub(super) build: Build,
    pub(super) run: RunLayer,
}

pub type BuildOptimizer = Box<dyn Fn(&Invocation<'_>, Vec<Tensor>) -> Result<Box<dyn Optimizer>> + Send + Sync>;
pub(super) type Build = Box<dyn Fn(&Invocation<'_>) -> Result<Box<dyn Layer>> + Send + Sync>;
pub(super) type RunLayer = Box<dyn Fn(&Invocation<'_>, &dyn Layer) -> Result<Vec<Tensor>> + Send + Sync>;

/// A row of the registry.
pub struct Op {
    /// The name of its method, which is also its name in errors and on the tape.
    pub name: &'static str,
    /// The family.
    pub category: Category,
    /// Kernels of the table that it covers, besides the kernel of its name and their backward kernels.
    pub kernels: &'static [&'static str],
    /// Runs the op.
    pub run: Run,
    /// Makes a valid call for the generated tests.
    pub make: Make,
    /// The class of its tolerance.
    pub class: Class,
    /// The measure of the error of a result.
    pub companion: Companion,
    /// The same function in other ops, where PyTorch's result differs or does not exist.
    pub definition: Option<Companion>,
    /// Its derivatives.
    pub derivative: Derivative,
    /// Float inputs without a gradient.
    pub constant: &'static [&'static str],
    /// True if the op is linear in all its differentiable inputs together.
    pub linear: bool,
    /// True if each element of the result is an element of an input, and no others are read.
    pub picks: bool,
    /// Other names of the op in errors: names in core, or of the op that checks for a composite.
    pub also: &'static [&'static str],
    /// True if an element of the result may have all elements as terms.
    pub collects: bool,
    /// The elements of the result that are reduced together.
    pub slice: Slice,
    /// True if a backend may have a fused kernel, besides the composite.
    pub fused: bool,
    /// The largest numbers of launches on a device, for the result and for all gradients.
    pub launches: [u64; 2],
    /// Its measurements by `isograd bench`.
    pub bench: Vec<Bench>,
    /// The reason why 16-bit results are not compared with f64.
    pub wide: Option<&'static str>,
    /// Attributes and inputs that calls with NaN and infinities leave out, because their results there are unspecified.
    pub finite: &'static [&'static str],
    /// The inputs that it changes in place; by default a call changes copies of them.
    pub changes: Option<Changes>,
    /// For another implementation of an op: the op.
    pub reference: Option<&'static Op>,
    /// For a module: builds its layer, and runs a built layer.
    pub layer: Option<LayerOf>,
    /// For an optimizer: builds it for parameters, with the attributes of a call.
    pub optimizer: Option<BuildOptimizer>,
}

/// The accesses of an in-place op to its first input, or to each input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Changes {
    /// Reads and writes all of it.
    All,
    /// Writes all of it.
    Overwrites,
    /// Reads and writes as many elements as its other inputs have.
    Places,
    /// Reads and writes all of every input.
    Every,
}

/// Elements of a result that are reduced together. An error of several stages spreads over them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slice {
    /// All elements.
    Whole,
    /// Along the attribute `dim`.
    Along,
    /// Along this dimension and all later ones.
    From(usize),
    /// Along the last dimensions; the attribute `dims` is their number, 1 by default.
    Rows,
}

/// Classes of tolerance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Class {
    /// Equal to the rounded exact result.
    Exact,
    /// A few roundings.
    Arithmetic,
    /// A transcendental function.
    Transcendental,
    /// A sum over the inputs of an element of the result.
    Reduction,
    /// A product over the inputs of an element of the result.
    Factors,
    /// Dot products.
    Product,
    /// Dot products and a function of them, whose gradient is rounded before the next product.
    Dense,
    /// Several stages. The error is measured by the largest result.
    Stages,
    /// A step of an optimizer, from equal states.
    Optimizer,
}

/// The derivatives of an op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Derivative {
    /// First and second derivatives.
    Twice,
    /// First derivatives. There are no second derivatives, for this reason.
    Once(&'static str),
    /// None, for this reason.
    None(&'static str),
}

impl Op {
    pub(super) fn new(
        name: &'static str,
        run: impl Fn(&Invocation<'_>) -> Result<Vec<Tensor>> + Send + Sync + 'static,
        make: impl Fn(&mut Gen) -> Case + Send + Sync + 'static,
    ) -> Op {
        Op {
            name,
            category: Category::Custom,
            kernels: &[],
            run: Box::new(run),
            make: Box::new(make),
            class: Class::Exact,
            companion: result,
            definition: None,
            derivative: Derivative::Twice,
            constant: &[],
            linear: false,
            picks: false,
            also: &[],
            collects: false,
            slice: Slice::Whole,
            fused: false,
            launches: [1, 1],
            bench: Vec::new(),
            wide: None,
            finite: &[],
            changes: None,
            reference: None,
            layer: None,
            optimizer: None,
        }
    }

    pub(super) fn class(mut self, class: Class) -> Op {
        self.class = class;
        self
    }

    pub(super) fn companion(mut self, companion: Companion) -> Op {
        self.companion = companion;
        self
    }

    pub(super) fn definition(mut self, definition: Companion) -> Op {
        self.definition = Some(definition);
        self
    }

    pub(super) fn derivative(mut self, derivative: Derivative) -> Op {
        self.derivative = derivative;
        self
    }

    pub(super) fn constant(mut self, inputs: &'static [&'static str]) -> Op {
        self.constant = inputs;
        self
    }

    pub(super) fn linear(mut self) -> Op {
        self.linear = true;
        self
    }

    pub(super) fn picks(mut self) -> Op {
        self.picks = true;
        self
    }

    pub(super) fn changes(mut self, changes: Changes) -> Op {
        self.changes = Some(changes);
        self
    }

    pub(super) fn also(mut self, names: &'static [&'static str]) -> Op {
        self.also = names;
        self
    }

    pub(super) fn kernels(mut self, names: &'static [&'static str]) -> Op {
        self.kernels = names;
        self
    }

    pub(super) fn collects(mut self) -> Op {
        self.collects = true;
        self
    }

    pub(super) fn slice(mut self, slice: Slice) -> Op {
        self.slice = slice;
        self
    }

    pub(super) fn fused(mut self) -> Op {
        self.fused = true;
        self
    }

    /// The largest numbers of launches for the result and for all gradients. They shrink when an op becomes faster, and do not grow
    /// without a reason.
    pub(super) fn launches(mut self, forward: u64, backward: u64) -> Op {
        self.launches = [forward, backward];
        self
    }

    pub(super) fn bench(mut self, measured: impl IntoIterator<Item = Bench>) -> Op {
        self.bench.extend(measured);
        self
    }

    pub(super) fn wide(mut self, why: &'static str) -> Op {
        self.wide = Some(why);
        self
    }

    /// Names attributes and inputs with which the results for NaN and infinities are unspecified.
    pub(super) fn finite(mut self, names: &'static [&'static str]) -> Op {
        self.finite = names;
        self
    }

    /// True for a function of the pointwise table. All of these share the code around the function.
    pub fn is_pointwise(&self) -> bool {
        let is_elementwise = matches!(self.class, Class::Exact | Class::Arithmetic | Class::Transcendental);
        is_elementwise && self.category.is_pointwise()
    }

    /// The dimensions of a result of `rank` along which elements are reduced together.
    pub fn slice_of(&self, case: &Case, rank: usize) -> Result<Range<usize>> {
        let attributes = Attributes::of(case);
        let c = self.invocation(&attributes, &case.inputs);
        match self.slice {
            Slice::Along if rank > 0 => {
                let dim = c.dim("dim")?;
                let dim = if dim < 0 { dim + rank as isize } else { dim } as usize;
                Ok(dim..dim + 1)
            }
            Slice::From(first) => Ok(first.min(rank)..rank),
            Slice::Rows => {
                let given = c.given("normalized_shape").and_then(Value::as_array).map(Vec::len);
                let dims = if c.has("dims") { c.size("dims")? } else { given.unwrap_or(1) };
                Ok(rank - dims.min(rank)..rank)
            }
            _ => Ok(0..rank),
        }
    }

    /// The op whose results are right.
    pub fn reference(&self) -> &Op {
        self.reference.unwrap_or(self)
    }

    /// Runs the op on a case.
    pub fn call(&self, case: &Case) -> Result<Vec<Tensor>> {
        self.invoke(&Attributes::of(case), &case.inputs)
    }

    /// The same, but an op in place changes the case.
    pub fn call_in_place(&self, case: &Case) -> Result<Vec<Tensor>> {
        let attributes = Attributes::of(case);
        (self.run)(&Invocation { is_in_place: true, ..self.invocation(&attributes, &case.inputs) })
    }

    pub(super) fn invocation<'a>(
        &'a self,
        attributes: &'a Attributes,
        inputs: &'a [(String, Tensor)],
    ) -> Invocation<'a> {
        Invocation { op: self, attributes, inputs, is_in_place: false }
    }

    pub(crate) fn invoke(&self, attributes: &Attributes, inputs: &[(String, Tensor)]) -> Result<Vec<Tensor>> {
        (self.run)(&self.invocation(attributes, inputs))
    }

    /// The expected results of a case in f64 on the CPU.
    pub fn exact(&self, case: &Case) -> Result<Vec<Tensor>> {
        let Some(definition) = self.definition else { return self.call(case) };
        definition(&self.invocation(&Attributes::of(case), &case.inputs))
    }

    /// The companion of a call: the unit of its error bound.
    pub fn companion_of(&self, case: &Case) -> Result<Vec<Tensor>> {
        let attributes = Attributes::of(case);
        (self.companion)(&self.invocation(&attributes, &case.inputs))
    }

    /// The attributes and inputs that its generated calls read.
    pub fn names(&self) -> BTreeSet<Name> {
        let cases = self.examples().unwrap_or_default();
        cases.iter().flat_map(|case| self.parameters(case).0.into_keys()).collect()
    }

    /// Generated calls of a small shape.
    pub fn examples(&self) -> Result<Vec<Case>> {
        let cpu = Device::cpu()?;
        Ok((0..8).map(|seed| (self.make)(&mut Gen::new(&[2, 3], seed, &cpu))).collect())
    }

    /// The attributes and inputs that a call reads, and whether it succeeds. A failed call has read only names before its error.
    pub(crate) fn parameters(&self, case: &Case) -> (BTreeMap<Name, Parameter>, bool) {
        let attributes = Attributes { is_listing: true, ..Attributes::of(case) };
        let has_run = self.invoke(&attributes, &case.inputs).is_ok();
        (attributes.read.into_inner(), has_run)
    }

    /// Builds an optimizer for parameters.
    pub fn optimize(&self, attributes: &Attributes, parameters: Vec<Tensor>) -> Result<Box<dyn Optimizer>> {
        let build = self.optimizer.as_ref().ok_or_else(|| Error::attr(self.name, "it is no optimizer"))?;
        build(&self.invocation(attributes, &[]), parameters)
    }

    /// Builds the layer of a module from a call's attributes and inputs.
    pub(crate) fn build(&self, attributes: &Attributes, inputs: &[(String, Tensor)]) -> Result<Box<dyn Layer>> {
        let layer = self.layer.as_ref().ok_or_else(|| Error::attr(self.name, "it is no module"))?;
        (layer.build)(&self.invocation(attributes, inputs))
    }

    /// Runs the layer of a module.
    pub(crate) fn forward(
        &self,
        layer: &dyn Layer,
        attributes: &Attributes,
        inputs: &[(String, Tensor)],
    ) -> Result<Vec<Tensor>> {
        let run = self.layer.as_ref().ok_or_else(|| Error::attr(self.name, "it is no module"))?.run.as_ref();
        run(&self.invocation(attributes, inputs), layer)
    }

    /// The positions of the inputs of a case that have gradients.
    pub fn differentiable(&self, case: &Case) -> Vec<usize> {
        let has = |(name, t): &(String, Tensor)| t.dtype().is_float() && !self.constant.contains(&name.as_str());
        if matches!(self.derivative, Derivative::None(_)) {
            return Vec::new();
        }
        (0..case.inputs.len()).filter(|&i| has(&case.inputs[i])).collect()
    }
}

/// The result itself, for ops without cancellation.
pub(super) fn result(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let y = c.op.invoke(c.attributes, c.inputs)?;
    y.iter().map(|t| if t.dtype().is_float() { t.abs() } else { Ok(t.clone()) }).collect()
}
