//! Launches: a device as launchers see it, arguments, grids, and what several kernels share.

pub mod arguments;
pub mod device;
pub mod grid;
pub mod integers;
pub mod layout;
pub mod multi_tensor;
pub mod operands;
pub(crate) mod pitch;
pub mod rows;
pub mod words;
