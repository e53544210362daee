//! Networks against PyTorch's, and language models.

mod golden;
mod language;
