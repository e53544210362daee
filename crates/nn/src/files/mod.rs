//! Tensors, models and runs in files.

mod checkpoint;
pub mod gguf;
mod pickle;
mod safetensors;
mod shards;
mod torch;

pub use self::safetensors::{Contents, Metadata, load, load_checked, save};
pub use checkpoint::Checkpoint;
pub use shards::{load_part, save_index, shapes};
