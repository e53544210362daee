//! The host code that the GPU backends of isograd share.
//!
//! A backend is a [`Driver`]: it allocates, copies, compiles and launches. [`Gpu`] makes a
//! [`Backend`](isograd_core::Backend) of it: it chooses a kernel for each call, assembles its source, has it compiled once, and
//! owns the memory.
//!
//! Each folder imports only those before it: `driver`, `memory` and `program`, `launch`, `ops`, `vendor`, `step`.

mod backend;
pub mod catalogue;
pub mod driver;
mod launch;
mod memory;
mod ops;
mod program;
mod step;
mod sys;
pub mod vendor;

pub use driver::{Address, Arg, Dialect, Driver, Geometry, Handle, Limits, Registered, Tile, TileMap, TileView};
pub use launch::device::{Gpu, Launch};
pub use ops::matrix::matmul;
pub use program::names::Names;
pub use program::source::{self, Variant};
