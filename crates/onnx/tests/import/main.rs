//! Models that the export does not write, built from messages, and files that are refused.

#[path = "../../src/proto.rs"]
#[allow(dead_code, missing_docs)]
mod proto;

mod build;
mod graphs;
mod module;
mod refused;
