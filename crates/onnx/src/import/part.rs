//! The nodes of a model as parts of the module, so that forward hooks find them by name.

use isograd_nn::{Module, Visitor, VisitorMut};

/// A node of a model, by name. Its address tells it from others, so that it has a size.
#[derive(Debug, Clone)]
pub struct NodePart {
    pub name: String,
    op: &'static str,
}

impl NodePart {
    pub fn new(name: String, op: &'static str) -> NodePart {
        NodePart { name, op }
    }
}

impl Module for NodePart {
    fn visit(&self, _: &mut Visitor<'_>) {}

    fn visit_mut(&mut self, _: &mut VisitorMut<'_>) {}

    fn type_name(&self) -> &'static str {
        self.op
    }
}
