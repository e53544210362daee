//! isograd
