//! Graphs, and layers for graphs and surfaces. Layers have PyTorch Geometric's defaults and names of parameters.

mod convolution;
mod diffusion;
mod gat;
mod message;
mod pool;
mod structure;

pub use convolution::{GcnConv, GcnOptions, GinConv, SageConv, SageOptions};
pub use diffusion::DiffusionConv;
pub use gat::{GatConv, GatHeads, GatOptions};
pub use message::{EdgeEnds, GatedMessagePassing, MessagePassing};
pub use pool::{global_add_pool, global_max_pool, global_mean_pool};
pub use structure::{Graph, SelfLoops};
