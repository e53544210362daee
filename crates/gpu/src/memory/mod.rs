//! A device's memory: the pool that tensors take it from, and the parts of it that launches share.

pub mod block;
pub mod last_group;
pub mod pool;
pub mod status;
pub mod tables;
