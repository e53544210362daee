//! Datasets, file formats and the loader of isograd.
//!
//! A [`Dataset`] holds samples on the host, a [`Loader`] turns it (or any [`Source`]) into shuffled batches of tensors.
//!
//! ```
//! # use isograd_cpu as _;
//! use isograd_core::Device;
//! use isograd_data::{Loader, digits};
//! use std::sync::Arc;
//!
//! # fn main() -> isograd_core::Result<()> {
//! let (train, test) = digits()?.split_every(5)?;
//! let loader = Loader::new(Arc::new(train), 128)?.shuffle(42).to(&Device::best()?);
//! for epoch in 0..2 {
//!     for batch in loader.epoch(epoch) {
//!         let (x, y) = batch?;
//!         assert_eq!(x.dims()[1..], [64]);
//!         assert_eq!(x.dims()[0], y.dims()[0]);
//!     }
//! }
//! # assert_eq!(test.len(), 360);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod csv;
mod dataset;
mod digits;
mod file;
pub mod idx;
mod loader;
mod mnist;
mod shuffle;

pub use dataset::{Dataset, Source};
pub use digits::digits;
pub use loader::{Batch, Epoch, Loader};
pub use mnist::mnist;
