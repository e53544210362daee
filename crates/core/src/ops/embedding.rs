//! Rows of a table by index.

use super::fused::has_kernel;
use super::graph::index_reduce;
use super::{gradients, in_acc};
use crate::backend::{Fused, IndexReduce};
use crate::tape::record;
use crate::tensor::{check_device, check_float, check_index};
use crate::{DType, Dims, Error, Result, Shape, Tensor};

/// What [`Tensor::embedding`] does with the gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmbeddingOptions {
    /// The row that receives no gradient; negative ones count from the end.
    pub padding_idx: Option<i64>,
    /// Divide each row's gradient by how often its index occurs.
    pub scale_grad_by_freq: bool,
}

impl Tensor {
    /// Rows of this table `[V, E]` by index (i64 or i32, any shape): `[index.., E]`. Errors: `Shape`, `Dtype`; `Attr` for
    /// a padding index out of range; `Index` for an index outside of `0..V`.
    pub fn embedding(&self, index: &Tensor, options: EmbeddingOptions) -> Result<Tensor> {
        let op = "embedding";
        check_index(op, index)?;
        check_float(op, self)?;
        check_device(op, &[self, index])?;
        if self.rank() != 2 {
            let message = format!("the table of index {} is {}, expected [V, E]", index.shape(), self.shape());
            return Err(Error::shape(op, message));
        }
        let (v, e) = (self.dims()[0], self.dims()[1]);
        let padding = options.padding_idx.map(|p| if p < 0 { p.saturating_add(v as i64) } else { p });
        if padding.is_some_and(|p| !(0..v as i64).contains(&p)) {
            let message = format!("padding_idx {:?} is outside of the table {}", options.padding_idx, self.shape());
            return Err(Error::attr(op, message));
        }
        let mut dims = Dims::from_slice(index.dims());
        dims.push(e);
        let flat = index.reshape(index.numel())?;
        let rows = self.detach().index_select(0, &flat).map_err(|e| e.of(op))?;
        let by_freq = options.scale_grad_by_freq;
        let y = record(op, &[self], rows, move |t| {
            let is_fused = has_kernel(Fused::IndexReduce(reduce(by_freq)), t.dy()) && !t.creates_graph();
            let gradient = if is_fused { fused_gradient } else { table_gradient };
            gradients![Some(gradient(t.dy(), &flat, v, padding, by_freq)?)]
        })?;
        y.reshape(Shape::from(dims))
    }

    /// Rows of this table by index, each divided by its root mean square and scaled by `gamma: [E]`. Errors: as
    /// [`embedding`](Tensor::embedding).
    pub fn embedding_rmsnorm(&self, index: &Tensor, gamma: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        let x = self.embedding(index, EmbeddingOptions::default())?;
        if let Some(gamma) = gamma
            && gamma.dims() != &self.dims()[1..]
        {
            let message = format!("gamma is {}, expected [E] of the table {}", gamma.shape(), self.shape());
            return Err(Error::shape("embedding_rmsnorm", message));
        }
        in_acc(&x, |x| {
            let r = x.square()?.mean_keepdim(-1)?.add_scalar(eps)?.rsqrt()?;
            let y = x.mul(&r)?;
            match gamma {
                Some(gamma) => y.mul(&gamma.cast(y.dtype())?),
                None => Ok(y),
            }
        })
    }
}

/// Sums the gradient's rows by index, leaving out the padding row.
fn table_gradient(dy: &Tensor, index: &Tensor, v: usize, padding: Option<i64>, by_freq: bool) -> Result<Tensor> {
    let zeros = Tensor::zeros((v, dy.dims()[1]), dy.dtype(), dy.device())?;
    let masked = match padding {
        Some(padding) => index.ne_scalar(padding)?.unsqueeze(1)?.where_scalar(dy, 0.0)?,
        None => dy.clone(),
    };
    if !by_freq {
        return zeros.index_add(0, index, &masked, 1);
    }
    // Counts are exact in f32 and above; the division is by the count of the row that an index names.
    let ones = Tensor::ones(index.numel(), DType::F64, dy.device())?;
    let counts = Tensor::zeros(v, DType::F64, dy.device())?.index_add(0, index, &ones, 1)?;
    let counts = counts.index_select(0, index)?.cast(dy.dtype().acc())?.unsqueeze(1)?;
    let scaled = masked.cast(dy.dtype().acc())?.div(&counts)?;
    zeros.cast(dy.dtype().acc())?.index_add(0, index, &scaled, 1)?.cast(dy.dtype())
}

/// What [`table_gradient`] computes, by a kernel.
fn fused_gradient(dy: &Tensor, index: &Tensor, v: usize, padding: Option<i64>, by_freq: bool) -> Result<Tensor> {
    let op = "embedding_backward";
    let table = Tensor::empty(op, &Shape::from((v, dy.dims()[1])), dy.dtype(), dy.device())?;
    index_reduce(op, reduce(by_freq), index, dy, padding, &[&table])?;
    Ok(table)
}

fn reduce(by_freq: bool) -> IndexReduce {
    if by_freq { IndexReduce::Mean } else { IndexReduce::Sum }
}
