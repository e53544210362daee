//! Hidden layers with a gate.

use crate::{Forward, Init, Layer, Linear, Module, called};
use isograd_core::{Result, Tensor};

/// `down(silu(gate(x)) up(x))` for x `[.., E]`, without biases, with LLaMA's names. Shazeer 2020, arXiv 2002.05202.
#[derive(Debug, Module)]
pub struct SwiGlu {
    /// From the width E to the hidden width, before the activation: a [`Linear`] at first.
    pub gate_proj: Box<dyn Layer>,
    /// From the width E to the hidden width.
    pub up_proj: Box<dyn Layer>,
    /// From the hidden width to E.
    pub down_proj: Box<dyn Layer>,
}

impl SwiGlu {
    /// For x of width `width`.
    pub fn new(width: usize, hidden: usize, init: &Init) -> Result<SwiGlu> {
        Ok(SwiGlu {
            gate_proj: Box::new(Linear::without_bias(width, hidden, init)?),
            up_proj: Box::new(Linear::without_bias(width, hidden, init)?),
            down_proj: Box::new(Linear::without_bias(hidden, width, init)?),
        })
    }
}

impl Forward for SwiGlu {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || self.down_proj.forward(&self.gate_proj.forward(x)?.swiglu(&self.up_proj.forward(x)?)?))
    }
}
