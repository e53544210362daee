//! Checks that every kernel of every backend computes the same function.
//!
//! Each op is a row of the [`registry`]: the way to call it, the generator of its inputs, its tolerance, and the kernels of the
//! list ([`kernels`]) that it covers. [`run`](fn@run) runs the checks of [`check`](mod@check) for every row on the devices. The [`Report`] has
//! the largest error of each check in units of its bound, the case, and the command that repeats it.
//!
//! ```
//! use isograd_parity::{Extent, Options, run};
//!
//! # fn main() -> isograd_core::Result<()> {
//! let devices = vec!["cpu".parse()?];
//! let filter = Some("^gelu$".parse().unwrap());
//! let report = run(&Options { devices, filter, extent: Extent::Quick, ..Options::default() }, &mut |_| ())?;
//! assert!(report.passed(), "{}", report.text());
//! # Ok(())
//! # }
//! ```

mod apart;
pub mod bench;
pub mod case;
pub mod cases;
pub mod check;
pub mod compare;
mod devices;
mod diff;
pub mod finite;
pub mod golden;
mod html;
pub mod kernels;
mod list;
mod model;
mod options;
pub mod registry;
mod report;
mod run;
mod speed;
mod status;
pub mod strategy;
mod tolerance;
pub mod watch;

pub use cases::{Folder, run_cases};
pub use diff::{Diff, Direction, Entry, Off, diff};
pub use html::html;
pub use list::{Signature, signature};
pub use model::{Arithmetic, Model, Results, run_model};
pub use options::{Apart, Check, Extent, Options, Repeat};
pub use report::{DeviceRun, Finding, Outcome, Progress, Report, Worst};
pub use run::{check, run, run_ops, serve};
pub use speed::{Pass, Speed, Timed};
pub use status::status;

// The CPU is the reference of all others.
use isograd_cpu as _;
