//! The training loop, its metrics, and training on several threads.

mod metrics;
mod parallel;
mod trainer;
