//! Nodes, edges and meshes.

pub(super) mod edges;
pub(super) mod mesh;
