//! A training loop: validation, schedules, mixed precision, early stopping, checkpoints, progress and, with the feature `curves`, learning curves.
//!
//! ```
//! # use isograd_cpu as _;
//! use isograd_core::Device;
//! use isograd_data::{Loader, digits};
//! use isograd_nn::{AdamW, Forward, Init, Linear, Sequential};
//! use isograd_train::{Goal, Trainer};
//! # use isograd_core::Tensor;
//!
//! # fn main() -> isograd_core::Result<()> {
//! let device = Device::best()?;
//! let (train, test) = digits()?.split_every(5)?;
//! let init = Init::new(&device).seed(42);
//! let model = Sequential::new().push(Linear::new(64, 32, &init)?).push(Tensor::relu).push(Linear::new(32, 10, &init)?);
//! let mut trainer = Trainer::new(
//!     &model,
//!     AdamW::new(&model).lr(3e-3),
//!     Loader::new(train, 32)?.shuffle(42).to(&device),
//!     |model, (x, _)| model.forward(x),
//!     |scores, (_, y)| scores.cross_entropy(y),
//! )
//! .validate(Loader::new(test, 512)?.to(&device))
//! .metric("accuracy", Goal::Highest, |scores, (_, y)| scores.argmax(-1)?.eq(y))
//! .epochs(2);
//! trainer.run()?;
//! assert!(trainer.history()[1].metrics["accuracy"] > 0.7);
//! # Ok(())
//! # }
//! ```
//!
//! A [`Trainer`] is optional: it uses nothing that a loop of one's own could not.

#![forbid(unsafe_code)]

mod check;
#[cfg(feature = "curves")]
mod curves;
mod display;
mod folder;
mod interrupt;
mod learner;
pub mod metrics;
mod progress;
mod rates;
pub mod tensorboard;
mod trainer;

#[cfg(feature = "curves")]
pub use curves::{Curve, Panel, curve_color, panels_svg, png, svg};
pub use display::{Display, shown_number};
pub use folder::{BEST, CHECKPOINT, CONFIG, CURVES, METRICS, SavedRun, prepare};
pub use interrupt::{INTERRUPTED, interrupts};
pub use progress::{Epoch, Goal, Logger, Progress};
pub use rates::{RateCurve, RatePoint, RateSearch};
pub use trainer::{End, Evaluation, Trainer};
