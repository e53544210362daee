//! Datasets, file formats and the loader of isograd.
//!
//! A [`Dataset`] has samples of any type, a [`Loader`] forms batches of tensors of them on worker threads. [`Collate`] says which
//! batches belong to which samples.
//!
//! ```
//! # use isograd_cpu as _;
//! use isograd_core::Device;
//! use isograd_data::{Loader, digits};
//!
//! # fn main() -> isograd_core::Result<()> {
//! let (train, test) = digits()?.split_every(5)?;
//! let loader = Loader::new(train, 128)?.shuffle(42).to(&Device::best()?);
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

#![deny(unsafe_code)]

#[cfg(feature = "chat")]
pub mod chat;
mod collate;
#[cfg(feature = "parquet")]
mod columns;
mod context;
pub mod csv;
mod dataset;
mod digits;
mod draws;
mod file;
pub mod graph;
mod host;
pub mod idx;
pub mod images;
mod karate;
mod loader;
pub mod mesh;
mod mnist;
pub mod npy;
pub mod sampler;
mod samples;
mod stream;
pub mod tokenizer;
mod tokens;

pub use collate::{Collate, Padded, Staged};
pub use context::Context;
pub use dataset::{Concat, Dataset, Items, Map, Subset};
pub use digits::digits;
pub use host::HostTensor;
pub use isograd_derive::Collate;
pub use karate::{KarateClub, karate_club};
pub use loader::{Epoch, Loader};
pub use mnist::mnist;
pub use sampler::Sampler;
pub use samples::{Labelled, Regression, Samples};
pub use stream::{StreamEpoch, StreamLoader};
pub use tokenizer::{Bytes, Characters, StopStrings, TextStream, Tokenizer};
#[cfg(feature = "tokenizers")]
pub use tokenizer::{GgmlVocabulary, Pretrained};
pub use tokens::{DrawnWindows, TokenType, TokenWindows, Tokens};
