//! What the GPU backends of isograd share.
//!
//! A backend is a [`Driver`]: it allocates, copies, compiles and launches. [`Gpu`] makes a [`Backend`] of it: it chooses a
//! kernel for each call, assembles its source, has it compiled once, and owns the memory.

mod backend;
mod batch_norm;
pub mod catalogue;
mod cross_entropy;
mod custom;
mod distance;
pub mod driver;
mod each;
mod elementwise;
mod front;
mod fused;
mod group_norm;
mod index;
mod launch;
mod memory;
mod ops;
mod order;
mod prod;
mod program;
mod random;
mod reduce;
mod rotary;
mod sample;
mod scan;
mod softmax;
mod sort;
mod total;
pub mod vendor;
mod window;

pub use driver::{Address, Arg, Dialect, Driver, Geometry, Handle, Limits, Registered, Tile, TileMap, TileView};
pub use launch::device::{Gpu, Launch};
pub use ops::matmul;
pub use program::source::{self, Variant};
