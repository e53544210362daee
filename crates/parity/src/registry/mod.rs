//! Every op by name: its call with attributes from a file, and its properties for the generated tests.

mod attention;
mod category;
mod common;
mod conv;
mod custom;
mod elementwise;
mod graph;
mod image;
mod indexing;
mod linalg;
mod loss;
mod matrix;
mod modules;
mod normalization;
mod optimizer;
mod random;
mod recurrent;
mod reduction;
mod sequence;
mod shape;
mod sparse;

pub use category::Category;
pub use custom::custom;
pub(crate) use elementwise::copy::copies;
pub(crate) use matrix::matmul::squares;

use crate::bench::Bench;
use crate::case::{Case, Gen};
use isograd_core::ops::loss::Reduction;
use isograd_core::{DType, Device, Error, Result, Scalar, Tensor};
use isograd_nn::Layer;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::LazyLock;

/// All ops.
pub static OPS: LazyLock<Vec<Op>> = LazyLock::new(|| {
    let families = [
        (Category::Activation, elementwise::activation::ops()),
        (Category::Unary, elementwise::unary::ops()),
        (Category::Binary, elementwise::binary::ops()),
        (Category::Comparison, elementwise::comparison::ops()),
        (Category::FusedPointwise, elementwise::fused_pointwise::ops()),
        (Category::Copy, elementwise::copy::ops()),
        (Category::View, shape::view::ops()),
        (Category::Arrange, shape::arrange::ops()),
        (Category::Arrange, shape::concat::ops()),
        (Category::Factory, shape::factory::ops()),
        (Category::Indexing, indexing::index::ops()),
        (Category::Indexing, indexing::segment::ops()),
        (Category::Selection, indexing::select::ops()),
        (Category::Reduction, reduction::ops()),
        (Category::Matrix, matrix::matmul::ops()),
        (Category::Matrix, matrix::products::ops()),
        (Category::Similarity, matrix::similarity::ops()),
        (Category::Normalization, normalization::ops()),
        (Category::Pooling, image::pooling::ops()),
        (Category::Resampling, image::resampling::ops()),
        (Category::Conv, conv::ops()),
        (Category::Attention, attention::ops()),
        (Category::Recurrent, recurrent::ops()),
        (Category::Sequence, sequence::ops()),
        (Category::Graph, graph::edges::ops()),
        (Category::Mesh, graph::mesh::ops()),
        (Category::Sparse, sparse::ops()),
        (Category::Random, random::ops()),
        (Category::Loss, loss::ops()),
        (Category::Linalg, linalg::ops()),
        (Category::Optimizer, optimizer::ops()),
    ];
    let named = |(category, ops): (Category, Vec<Op>)| ops.into_iter().map(move |op| Op { category, ..op });
    families.into_iter().flat_map(named).collect()
});

/// Modules, schedules and calls without a kernel of the table. Cases from outside use them by name. They have no generated cases.
pub static MODULES: LazyLock<Vec<Op>> = LazyLock::new(modules::modules);

/// The op or module of this name.
pub fn find(name: &str) -> Option<&'static Op> {
    OPS.iter().chain(MODULES.iter()).find(|op| op.name == name)
}

/// Runs an op by name. Errors: `Value` if there is no such op; `Attr` naming the op and an attribute or input that is missing or of
/// another type; the op's own errors.
pub fn run(op: &str, attributes: &Attributes, inputs: &[(String, Tensor)]) -> Result<Vec<Tensor>> {
    let found = find(op).ok_or_else(|| Error::value(op.to_string(), "the registry has no such op"))?;
    found.invoke(attributes, inputs)
}

type Run = Box<dyn Fn(&Invocation<'_>) -> Result<Vec<Tensor>> + Send + Sync>;
type Make = Box<dyn Fn(&mut Gen) -> Case + Send + Sync>;
type Companion = fn(&Invocation<'_>) -> Result<Vec<Tensor>>;

/// Builds the layer of a module from a call's attributes and inputs, and returns the results of a call from the layer.
pub struct LayerOf {
    build: Build,
    run: RunLayer,
}

type Build = Box<dyn Fn(&Invocation<'_>) -> Result<Box<dyn Layer>> + Send + Sync>;
type RunLayer = Box<dyn Fn(&Invocation<'_>, &dyn Layer) -> Result<Vec<Tensor>> + Send + Sync>;

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
    /// For a module: builds its layer, and runs a built layer.
    pub layer: Option<LayerOf>,
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
    fn new(
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
            companion: common::result,
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
            layer: None,
        }
    }

    fn class(mut self, class: Class) -> Op {
        self.class = class;
        self
    }

    fn companion(mut self, companion: Companion) -> Op {
        self.companion = companion;
        self
    }

    fn definition(mut self, definition: Companion) -> Op {
        self.definition = Some(definition);
        self
    }

    fn derivative(mut self, derivative: Derivative) -> Op {
        self.derivative = derivative;
        self
    }

    fn constant(mut self, inputs: &'static [&'static str]) -> Op {
        self.constant = inputs;
        self
    }

    fn linear(mut self) -> Op {
        self.linear = true;
        self
    }

    fn picks(mut self) -> Op {
        self.picks = true;
        self
    }

    fn changes(mut self, changes: Changes) -> Op {
        self.changes = Some(changes);
        self
    }

    fn also(mut self, names: &'static [&'static str]) -> Op {
        self.also = names;
        self
    }

    fn kernels(mut self, names: &'static [&'static str]) -> Op {
        self.kernels = names;
        self
    }

    fn collects(mut self) -> Op {
        self.collects = true;
        self
    }

    fn slice(mut self, slice: Slice) -> Op {
        self.slice = slice;
        self
    }

    fn fused(mut self) -> Op {
        self.fused = true;
        self
    }

    /// The largest numbers of launches for the result and for all gradients. They shrink when an op becomes faster, and do not grow
    /// without a reason.
    fn launches(mut self, forward: u64, backward: u64) -> Op {
        self.launches = [forward, backward];
        self
    }

    fn bench(mut self, measured: impl IntoIterator<Item = Bench>) -> Op {
        self.bench.extend(measured);
        self
    }

    fn wide(mut self, why: &'static str) -> Op {
        self.wide = Some(why);
        self
    }

    /// Names attributes and inputs with which the results for NaN and infinities are unspecified.
    fn finite(mut self, names: &'static [&'static str]) -> Op {
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

    /// Runs the op on a case.
    pub fn call(&self, case: &Case) -> Result<Vec<Tensor>> {
        self.invoke(&Attributes::of(case), &case.inputs)
    }

    /// The same, but an op in place changes the case.
    pub fn call_in_place(&self, case: &Case) -> Result<Vec<Tensor>> {
        let attributes = Attributes::of(case);
        (self.run)(&Invocation { is_in_place: true, ..self.invocation(&attributes, &case.inputs) })
    }

    fn invocation<'a>(&'a self, attributes: &'a Attributes, inputs: &'a [(String, Tensor)]) -> Invocation<'a> {
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
    pub(crate) fn examples(&self) -> Result<Vec<Case>> {
        let cpu = Device::cpu()?;
        Ok((0..8).map(|seed| (self.make)(&mut Gen::new(&[2, 3], seed, &cpu))).collect())
    }

    /// The attributes and inputs that a call reads, and whether it succeeds. A failed call has read only names before its error.
    pub(crate) fn parameters(&self, case: &Case) -> (BTreeMap<Name, Parameter>, bool) {
        let attributes = Attributes { is_listing: true, ..Attributes::of(case) };
        let has_run = self.invoke(&attributes, &case.inputs).is_ok();
        (attributes.read.into_inner(), has_run)
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

/// `attribute` or `input`, and the name.
pub type Name = (&'static str, String);

/// An attribute or an input, as read by calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameter {
    /// The expected value, such as `a number`; empty if it is not known.
    pub expected: String,
    /// True if calls may omit it.
    pub is_optional: bool,
    /// Its default, if there is one.
    pub default: Option<Value>,
}

/// Attributes by name.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    values: Map<String, Value>,
    device: Option<Device>,
    /// The names that calls with these attributes have read.
    read: RefCell<BTreeMap<Name, Parameter>>,
    /// True if a call reads every name that it knows.
    is_listing: bool,
}

impl Attributes {
    /// The entries of a JSON object; empty for other values.
    pub fn new(object: &Value) -> Attributes {
        Attributes { values: object.as_object().cloned().unwrap_or_default(), ..Attributes::default() }
    }

    /// The attributes of a case.
    pub fn of(case: &Case) -> Attributes {
        Attributes { device: case.device.clone(), ..Attributes::new(&case.attributes) }
    }

    /// These attributes, with the device of an op without inputs.
    pub fn on(self, device: &Device) -> Attributes {
        Attributes { device: Some(device.clone()), ..self }
    }

    /// The attributes whose names `chooses` accepts.
    pub(crate) fn only(mut self, chooses: impl Fn(&str) -> bool) -> Attributes {
        self.values.retain(|name, _| chooses(name));
        self
    }

    /// The attributes and inputs that no call with these attributes has read.
    pub fn unread(&self, inputs: &[(String, Tensor)]) -> Vec<Name> {
        let attributes = self.values.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| ("attribute", name));
        let all = attributes.chain(inputs.iter().map(|(name, _)| ("input", name)));
        let all = all.map(|(what, name)| (what, name.clone()));
        all.filter(|name| !self.read.borrow().contains_key(name)).collect()
    }

    /// Records that a call has read a name, with the call's information about the parameter.
    fn note(&self, what: &'static str, name: &str, tell: impl FnOnce(&mut Parameter)) {
        tell(self.read.borrow_mut().entry((what, name.to_string())).or_default());
    }
}

/// The reductions of a loss, by the names of the attribute `reduction`.
const REDUCTIONS: [(&str, Reduction); 4] = [
    ("none", Reduction::None),
    ("mean", Reduction::Mean),
    ("sum", Reduction::Sum),
    ("batchmean", Reduction::BatchMean),
];

/// Such as `none, mean or sum`.
fn one_of(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
}

/// A call of an op by name.
pub struct Invocation<'a> {
    op: &'a Op,
    attributes: &'a Attributes,
    inputs: &'a [(String, Tensor)],
    /// True if an op in place may change its input directly.
    is_in_place: bool,
}

impl Invocation<'_> {
    fn fail<T>(&self, what: &str, name: &str) -> Result<T> {
        Err(Error::attr(self.op.name, format!("`{name}` is missing or not {what}")))
    }

    fn given(&self, name: &str) -> Option<&Value> {
        self.attributes.note("attribute", name, |_| ());
        self.attributes.values.get(name).filter(|v| !v.is_null())
    }

    /// True if an optional attribute is given.
    fn has(&self, name: &str) -> bool {
        self.attributes.note("attribute", name, |parameter| parameter.is_optional = true);
        self.given(name).is_some()
    }

    /// True if it is given as null, where null differs from absence.
    fn is_null(&self, name: &str) -> bool {
        self.attributes.note("attribute", name, |parameter| parameter.is_optional = true);
        self.attributes.values.get(name).is_some_and(Value::is_null)
    }

    /// Records the expected value of an attribute.
    fn expect(&self, name: &str, what: &str) {
        self.attributes.note("attribute", name, |parameter| parameter.expected = what.to_string());
    }

    fn get<T>(&self, name: &str, what: &str, convert: impl Fn(&Value) -> Option<T>) -> Result<T> {
        self.expect(name, what);
        self.given(name).and_then(convert).map_or_else(|| self.fail(what, name), Ok)
    }

    /// The value of an attribute, converted by `read`, or its default.
    fn or<T: Clone + Into<Value>>(
        &self,
        name: &str,
        default: T,
        read: impl FnOnce(&Self, &str) -> Result<T>,
    ) -> Result<T> {
        let given = self.optional_of(name, read)?;
        self.defaults_to(name, default.clone());
        Ok(given.unwrap_or(default))
    }

    /// Records the default of an attribute.
    fn defaults_to(&self, name: &str, default: impl Into<Value>) {
        self.attributes.note("attribute", name, |parameter| parameter.default = Some(default.into()));
    }

    /// `defaults_to`, if this call has read the attribute. A flag is 0 or 1.
    fn suppose(&self, name: &str, default: f64) {
        let looked = self.attributes.read.borrow().get(&("attribute", name.to_string())).cloned();
        match looked {
            Some(parameter) if parameter.expected == "a bool" => self.defaults_to(name, default != 0.0),
            Some(_) => self.defaults_to(name, default),
            None => {}
        }
    }

    /// The value of an attribute, converted by `read`; `None` if it is absent. An absent attribute is read only to list its
    /// expected value.
    fn optional_of<T>(&self, name: &str, read: impl FnOnce(&Self, &str) -> Result<T>) -> Result<Option<T>> {
        let is_given = self.has(name);
        match is_given || self.attributes.is_listing {
            true => read(self, name).map(Some).or_else(|e| if is_given { Err(e) } else { Ok(None) }),
            false => Ok(None),
        }
    }

    /// A number, or `"inf"`, `"-inf"` or `"nan"`.
    fn float(&self, name: &str) -> Result<f64> {
        self.get(name, "a number", |v| v.as_f64().or_else(|| v.as_str()?.parse().ok()))
    }

    fn float_or(&self, name: &str, default: f64) -> Result<f64> {
        self.or(name, default, Self::float)
    }

    fn scalar(&self, name: &str) -> Result<Scalar> {
        match self.given(name).and_then(Value::as_i64) {
            Some(v) => self.get(name, "a number", |_| Some(v.into())),
            None => Ok(self.float(name)?.into()),
        }
    }

    /// An integer or a number; `default` if it is absent.
    fn scalar_or(&self, name: &str, default: i64) -> Result<Scalar> {
        let given = self.optional_of(name, Self::scalar)?;
        self.defaults_to(name, default);
        Ok(given.unwrap_or_else(|| default.into()))
    }

    /// The value of an attribute that names one of several choices.
    fn choice<T: Clone>(&self, name: &str, choices: &[(&str, T)]) -> Result<T> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let found = |v: &Value| choices.iter().find(|(name, _)| v.as_str() == Some(name)).map(|(_, t)| t.clone());
        self.get(name, &one_of(&names), found)
    }

    /// The same; the first choice if the attribute is absent.
    fn choice_or_first<T: Clone>(&self, name: &str, choices: &[(&str, T)]) -> Result<T> {
        let (first, value) = &choices[0];
        let read = |c: &Self, name: &str| c.choice(name, choices);
        let chosen = self.optional_of(name, read)?;
        self.defaults_to(name, *first);
        Ok(chosen.unwrap_or_else(|| value.clone()))
    }

    fn int(&self, name: &str) -> Result<i64> {
        self.get(name, "an integer", Value::as_i64)
    }

    fn int_or(&self, name: &str, default: i64) -> Result<i64> {
        self.or(name, default, Self::int)
    }

    fn dim(&self, name: &str) -> Result<isize> {
        Ok(self.int(name)? as isize)
    }

    fn dim_or(&self, name: &str, default: isize) -> Result<isize> {
        Ok(self.int_or(name, default as i64)? as isize)
    }

    fn size(&self, name: &str) -> Result<usize> {
        self.get(name, "a size", |v| v.as_u64().map(|v| v as usize))
    }

    fn size_or(&self, name: &str, default: usize) -> Result<usize> {
        self.or(name, default, Self::size)
    }

    fn flag(&self, name: &str) -> Result<bool> {
        self.flag_or(name, false)
    }

    fn flag_or(&self, name: &str, default: bool) -> Result<bool> {
        self.or(name, default, |c, name| c.get(name, "a bool", Value::as_bool))
    }

    fn words(&self, name: &str) -> Result<Vec<String>> {
        let words = |v: &Value| v.as_array()?.iter().map(|word| Some(word.as_str()?.to_string())).collect();
        self.get(name, "a list of names", words)
    }

    fn list<T>(&self, name: &str, convert: impl Fn(&Value) -> Option<T>) -> Result<Vec<T>> {
        self.get(name, "a list of integers", |v| v.as_array()?.iter().map(&convert).collect())
    }

    fn list_or_empty<T>(&self, name: &str, convert: impl Fn(&Value) -> Option<T>) -> Result<Vec<T>> {
        Ok(self.optional_of(name, |c, name| c.list(name, convert))?.unwrap_or_default())
    }

    fn dims(&self, name: &str) -> Result<Vec<isize>> {
        self.list(name, |v| Some(v.as_i64()? as isize))
    }

    fn shape(&self, name: &str) -> Result<Vec<usize>> {
        self.list(name, |v| Some(v.as_u64()? as usize))
    }

    fn dtype(&self, name: &str) -> Result<DType> {
        self.get(name, "a dtype", |v| v.as_str().map(String::from))?.parse()
    }

    fn dtype_or(&self, name: &str, default: DType) -> Result<DType> {
        self.or(name, default.to_string(), |c, name| Ok(c.dtype(name)?.to_string()))?.parse()
    }

    /// The device of an op without inputs: the case's, or the CPU.
    fn device(&self) -> Result<Device> {
        self.attributes.device.clone().map_or_else(Device::cpu, Ok)
    }

    fn reduction(&self) -> Result<Reduction> {
        self.choice("reduction", &REDUCTIONS)
    }

    fn optional(&self, name: &str) -> Option<&Tensor> {
        self.attributes.note("input", name, |parameter| parameter.is_optional = true);
        self.inputs.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }

    fn input(&self, name: &str) -> Result<&Tensor> {
        self.attributes.note("input", name, |_| ());
        let found = self.inputs.iter().find(|(n, _)| n == name);
        found.map_or_else(|| self.fail("a tensor", name), |(_, t)| Ok(t))
    }

    /// The input that an op in place changes.
    fn changed(&self, name: &str) -> Result<Tensor> {
        let x = self.input(name)?.detach();
        if self.is_in_place { Ok(x) } else { x.copy() }
    }

    fn all(&self) -> Vec<&Tensor> {
        self.inputs.iter().for_each(|(name, _)| self.attributes.note("input", name, |_| ()));
        self.inputs.iter().map(|(_, t)| t).collect()
    }
}
