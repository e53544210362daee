//! Ranks that are threads: collectives, training, and a simulation of its schedule.

mod collectives;
mod equality;
mod fully_sharded;
mod schedule;
mod training;
