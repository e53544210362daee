//! Training on several devices: ranks that exchange tensors, and data parallelism on top of them.
//!
//! A [`Group`] is a set of ranks: threads of one process ([`threads`]), or processes that a launcher has started ([`World::start`]).

mod alone;
mod data_parallel;
mod fully_sharded;
mod group;
mod mpi;
mod ops;
mod reduce;
mod server;
mod sharded;
mod start;
mod states;
mod store;
mod sys;
mod threads;
pub mod transport;
mod watchdog;
mod worker;

pub use data_parallel::{DataParallel, ParallelOptions, Unused};
pub use fully_sharded::{FullySharded, FullyShardedOptimizer, ShardOptions, unit_of};
pub use group::{Group, Options};
pub use isograd_core::collective::Reduction;
pub use sharded::ShardedOptimizer;
pub use start::{Launcher, World};
pub use threads::{threads, threads_with};
