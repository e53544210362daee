//! Networks against PyTorch's, their parts, and language models.

mod golden;
mod language;
mod parts;
mod quantized;
