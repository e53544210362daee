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
mod invocation;
mod linalg;
mod loss;
mod matrix;
mod modules;
mod normalization;
mod op;
mod optimizer;
mod random;
mod recurrent;
mod reduction;
mod sequence;
mod shape;
mod sparse;

pub use category::Category;
pub use custom::{custom, implemented};
pub use invocation::{Attributes, Invocation, Name, Parameter};
pub use op::{Changes, Class, Derivative, LayerOf, Op, Slice};

use isograd_core::{Error, Result, Tensor};
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
        (Category::Arrange, shape::pad::ops()),
        (Category::Factory, shape::factory::ops()),
        (Category::Indexing, indexing::index::ops()),
        (Category::Indexing, indexing::segment::ops()),
        (Category::Selection, indexing::select::ops()),
        (Category::Reduction, reduction::ops()),
        (Category::Matrix, matrix::matmul::ops()),
        (Category::Matrix, matrix::products::ops()),
        (Category::Matrix, matrix::quantized::ops()),
        (Category::Similarity, matrix::similarity::ops()),
        (Category::Normalization, normalization::ops()),
        (Category::Pooling, image::pooling::ops()),
        (Category::Resampling, image::resampling::ops()),
        (Category::Conv, conv::ops()),
        (Category::Attention, attention::ops()),
        (Category::Recurrent, recurrent::ops()),
        (Category::Sequence, sequence::ops()),
        (Category::Graph, graph::edges::ops()),
        (Category::Graph, graph::messages::ops()),
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
