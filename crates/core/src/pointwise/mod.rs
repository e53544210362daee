//! The pointwise table and the number types that evaluate it.
//!
//! A row is evaluated in any type that implements [`Real`] (or [`Integer`]): a [`Visitor`] receives the row as a type, and calls
//! [`Row::eval`] with its numbers. Another crate adds an algebra in the same way, as that of ONNX does.
//!
//! ```
//! use isograd_core::pointwise::{Pointwise, Row, Visitor};
//!
//! /// A row in f64.
//! struct Evaluate<'a> {
//!     x: &'a [f64],
//!     attributes: &'a [f64],
//! }
//!
//! impl Visitor<f64, bool> for Evaluate<'_> {
//!     type Output = Vec<f64>;
//!
//!     fn visit<R: Row<f64, bool, N, K, M>, const N: usize, const K: usize, const M: usize>(self) -> Vec<f64> {
//!         R::eval(std::array::from_fn(|i| self.x[i]), std::array::from_fn(|i| self.attributes[i])).to_vec()
//!     }
//! }
//!
//! let y = Pointwise::LeakyRelu.visit_real(Evaluate { x: &[-2.0], attributes: &[0.5] });
//! assert_eq!(y, Some(vec![-1.0]));
//! ```

mod c_text;
mod elementary;
mod lift;
pub mod rows;
mod value;

pub use c_text::{CText, c_source};
pub use lift::{evaluate, lift};
pub use rows::{Domain, Pointwise, Row, Visitor};
pub use value::{Int, Integer, Real, Value};
