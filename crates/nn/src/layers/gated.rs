//! Hidden layers with a gate.

use crate::{Forward, Init, Layer, Linear, Module, called};
use isograd_core::ops::Approximate;
use isograd_core::{Result, Tensor};

/// The function of a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// SwiGLU, as in LLaMA.
    #[default]
    Silu,
    /// GEGLU, as in Gemma.
    Gelu(Approximate),
}

impl Gate {
    /// The function of `gate`, times `up`, of one shape.
    pub fn apply(self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        match self {
            Gate::Silu => gate.swiglu(up),
            Gate::Gelu(approximate) => gate.gelu(approximate)?.mul(up),
        }
    }
}

/// `down(f(gate(x)) up(x))` for x `[.., E]`, without biases, with LLaMA's names. Shazeer 2020, arXiv 2002.05202.
#[derive(Debug, Module)]
pub struct GatedMlp {
    /// From the width E to the hidden width, before the function f: a [`Linear`] at first.
    pub gate_proj: Box<dyn Layer>,
    /// From the width E to the hidden width.
    pub up_proj: Box<dyn Layer>,
    /// From the hidden width to E.
    pub down_proj: Box<dyn Layer>,
    /// The function f.
    #[module(skip)]
    pub gate: Gate,
}

impl GatedMlp {
    /// For x of width `width`.
    pub fn new(width: usize, hidden: usize, gate: Gate, init: &Init) -> Result<GatedMlp> {
        Ok(GatedMlp {
            gate_proj: Box::new(Linear::without_bias(width, hidden, init)?),
            up_proj: Box::new(Linear::without_bias(width, hidden, init)?),
            down_proj: Box::new(Linear::without_bias(hidden, width, init)?),
            gate,
        })
    }
}

impl Forward for GatedMlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        called(self, &[x], || {
            self.down_proj.forward(&self.gate.apply(&self.gate_proj.forward(x)?, &self.up_proj.forward(x)?)?)
        })
    }
}
