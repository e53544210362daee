//! Graphs and meshes.

pub(crate) mod edge_softmax;
pub(crate) mod mesh;
