//! Convolutions over meshes.

use crate::layers::bound;
use crate::{Init, Module, called};
use isograd_core::ops::Neighbors;
use isograd_core::{Result, Tensor};

/// Convolves features of edges by those of their neighbours: [`Tensor::mesh_conv`].
#[derive(Debug, Module)]
pub struct MeshConv {
    /// `[out, (1 + K) in]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
}

impl MeshConv {
    /// For edges of triangles, which have K = 4 neighbours. Weight and bias are uniform in `±1 / sqrt((1 + K) in)`, as in
    /// [`Linear`](crate::Linear).
    pub fn new(input: usize, output: usize, init: &Init) -> Result<MeshConv> {
        MeshConv::with_neighbors(input, output, 4, init)
    }

    /// For edges with K = `neighbors` neighbours.
    pub fn with_neighbors(input: usize, output: usize, neighbors: usize, init: &Init) -> Result<MeshConv> {
        let (weight, bias) = parameters((1 + neighbors) * input, output, init)?;
        Ok(MeshConv { weight, bias: Some(bias) })
    }

    /// Maps x `[.., E, in]` to `[.., E, out]` by neighbours `[E, K]`. Errors: `Shape`, `Dtype`, `Device`.
    pub fn forward(&self, x: &Tensor, neighbors: &Neighbors) -> Result<Tensor> {
        called(self, &[x], || x.mesh_conv(neighbors, &self.weight, self.bias.as_ref()))
    }
}

/// Convolves features of vertices along spirals: [`Tensor::spiral_conv`].
#[derive(Debug, Module)]
pub struct SpiralConv {
    /// `[out, S in]`.
    pub weight: Tensor,
    /// `[out]`.
    pub bias: Option<Tensor>,
}

impl SpiralConv {
    /// For spirals of S = `length` vertices. Weight and bias are uniform in `±1 / sqrt(S in)`, as in [`Linear`](crate::Linear).
    pub fn new(input: usize, output: usize, length: usize, init: &Init) -> Result<SpiralConv> {
        let (weight, bias) = parameters(length * input, output, init)?;
        Ok(SpiralConv { weight, bias: Some(bias) })
    }

    /// Maps x `[.., V, in]` to `[.., V, out]` along spirals `[V, S]`. Errors: `Shape`, `Dtype`, `Device`.
    pub fn forward(&self, x: &Tensor, spirals: &Neighbors) -> Result<Tensor> {
        called(self, &[x], || x.spiral_conv(spirals, &self.weight, self.bias.as_ref()))
    }
}

fn parameters(input: usize, output: usize, init: &Init) -> Result<(Tensor, Tensor)> {
    let bound = bound(input);
    Ok((init.uniform((output, input), -bound, bound)?, init.uniform(output, -bound, bound)?))
}
