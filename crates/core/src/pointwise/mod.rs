//! The pointwise table and the number types that evaluate it.

mod c_text;
mod elementary;
mod lift;
pub mod rows;
mod value;

pub use c_text::{CText, c_source};
pub use lift::lift;
pub use rows::{Domain, Pointwise, Row, Visitor};
pub use value::{Int, Integer, Real, Value};
