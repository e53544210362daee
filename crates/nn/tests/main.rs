//! Modules, losses, optimizers, hooks and files.

mod attention;
mod clip;
mod common;
mod conv;
mod copies;
mod files;
mod gguf;
mod graph;
mod hooks;
mod init;
mod launches;
mod loss;
mod module;
mod norm;
mod numbers;
mod optim;
mod recurrent;
mod scaler;
mod schedule;
mod torch;
