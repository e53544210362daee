//! Networks against PyTorch's, their parts, and language models.

mod decoding;
mod golden;
mod language;
mod parts;
mod quantized;
