//! Softmax, normalisations of rows and of channels, and statistics.

pub mod channels;
pub mod moments;
pub mod rows;
pub mod softmax;
