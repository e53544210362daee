//! Nodes, edges, messages and meshes.

pub(super) mod edges;
pub(super) mod mesh;
pub(super) mod messages;
