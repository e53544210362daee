//! Graphs and meshes: messages along edges, convolutions over neighbours.

pub(crate) mod diffusion;
pub mod edge_softmax;
pub mod mesh;
pub(crate) mod messages;
