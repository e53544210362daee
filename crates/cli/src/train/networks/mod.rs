//! Networks for images and graphs.

pub mod graph;
pub mod images;
