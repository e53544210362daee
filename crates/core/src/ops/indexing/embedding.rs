//! Rows of a table by index.

use crate::check::{check_device, check_float, check_index, describe};
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands::Operands;
use crate::ops::indexing::segment::{IndexReduce, RowReduction, index_reduce, only};
use crate::ops::matrix::gemm_bias::Activation;
use crate::ops::normalization::norm::{
    Norm, NormBackwardInputs, NormBackwardOutputs, NormInputs, NormOutputs, RowNorm, RowNormBackward, check_eps,
    memory_if, needed, standardise,
};
use crate::ops::{gradients, in_acc, parts};
use crate::tape::{Record, Saved, record, report};
use crate::{DType, Dims, Error, Result, Shape, Tensor, autocast};

/// The options of the gradient of [`Tensor::embedding`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct EmbeddingOptions {
    /// The row that receives no gradient. A negative index counts from the end.
    pub padding_idx: Option<i64>,
    /// Divides each row's gradient by the number of occurrences of its index.
    pub scale_grad_by_freq: bool,
}

/// [`RowNorm`] of rows of a table by index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingNorm(pub RowNorm);

/// The gradients of [`EmbeddingNorm`]. dx is the gradient of the rows `[rows, length]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingNormBackward(pub RowNorm);

crate::operands! {
    /// The inputs of [`EmbeddingNorm`].
    pub struct EmbeddingNormInputs {
        /// The table `[v, length]`.
        table,
        /// The factor of normalised elements, `[length]`.
        weight?,
        /// The index of each row, `[rows]`.
        index,
    }
}

crate::operands! {
    /// The inputs of [`EmbeddingNormBackward`].
    pub struct EmbeddingNormBackwardInputs {
        /// The gradient of y.
        dy,
        /// The table `[v, length]`.
        table,
        /// The mean of each row; unspecified.
        mean,
        /// `1 / sqrt(var + eps)` of each row.
        rstd,
        /// The weight of the forward kernel.
        weight?,
        /// The index of each row, `[rows]`.
        index,
    }
}

impl Fused for EmbeddingNorm {
    type Inputs<T> = EmbeddingNormInputs<T>;
    type Outputs<T> = NormOutputs<T>;

    fn name(&self) -> &'static str {
        "embedding_norm"
    }

    fn composite(
        &self,
        EmbeddingNormInputs { table, weight, index }: EmbeddingNormInputs<&Tensor>,
        before: NormOutputs<&Tensor>,
    ) -> Result<NormOutputs<Option<Tensor>>> {
        let x = &table.index_select(0, index)?;
        self.0.composite(NormInputs { x, residual: None, weight, bias: None }, before)
    }
}

impl Fused for EmbeddingNormBackward {
    type Inputs<T> = EmbeddingNormBackwardInputs<T>;
    type Outputs<T> = NormBackwardOutputs<T>;

    fn name(&self) -> &'static str {
        "embedding_norm_backward"
    }

    fn composite(
        &self,
        EmbeddingNormBackwardInputs { dy, table, mean, rstd, weight, index }: EmbeddingNormBackwardInputs<&Tensor>,
        before: NormBackwardOutputs<&Tensor>,
    ) -> Result<NormBackwardOutputs<Option<Tensor>>> {
        let x = &table.index_select(0, index)?;
        let inputs = NormBackwardInputs { dy, x, mean, rstd, weight, bias: None, added: None };
        RowNormBackward(self.0).composite(inputs, before)
    }
}

/// # Embeddings
impl Tensor {
    /// Rows of this table `[V, E]` by index (i64 or i32, any shape): `[index.., E]`. Errors: `Shape`, `Dtype`; `Attr` for
    /// a padding index out of range; `Index` for an index outside of `0..V`.
    pub fn embedding(&self, index: &Tensor, options: &EmbeddingOptions) -> Result<Tensor> {
        let op = "embedding";
        check_table(op, self, index)?;
        let (v, e) = (self.dims()[0], self.dims()[1]);
        let padding = options.padding_idx.map(|p| if p < 0 { p.saturating_add(v as i64) } else { p });
        if padding.is_some_and(|p| !(0..v as i64).contains(&p)) {
            let message = format!("padding_idx {:?} is outside of the table {}", options.padding_idx, self.shape());
            return Err(Error::attr(op, message));
        }
        let mut dims = Dims::from_slice(index.dims());
        dims.push(e);
        let flat = index.reshape(index.numel())?;
        let rows = parts(op, || self.detach().index_select(0, &flat))?;
        let (by_freq, saved) = (options.scale_grad_by_freq, Saved::input(&flat));
        let y = record(op, &[self], rows, move |t| {
            let is_fused = has_kernel::<RowReduction>(t.dy()) && !t.creates_graph();
            let gradient = if is_fused { fused_gradient } else { table_gradient };
            gradients![gradient(t.dy(), &t.get(&saved)?, v, padding, by_freq)?]
        })?;
        let y = y.reshape(Shape::from(dims))?;
        report(op, &[self, index], &[&y], || []);
        Ok(y)
    }

    /// Rows of this table by index, each divided by its root mean square and scaled by `gamma: [E]`, which has the table's
    /// dtype or f32. Errors: as [`embedding`](Tensor::embedding), and `Attr` for a negative eps.
    pub fn embedding_rmsnorm(&self, index: &Tensor, gamma: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        let op = "embedding_rmsnorm";
        check_table(op, self, index)?;
        check_eps(op, eps)?;
        if let Some(gamma) = gamma {
            check_device(op, &[self, gamma])?;
            if gamma.dims() != &self.dims()[1..] {
                let message = format!("gamma is {}, expected [E] of the table {}", gamma.shape(), self.shape());
                return Err(Error::shape(op, message));
            }
        }
        if autocast::current().is_some() && matches!(self.dtype(), DType::F16 | DType::BF16) {
            // A norm is in f32. Casting the rows is cheaper than casting the table.
            return self.embedding(index, &EmbeddingOptions::default())?.rms_norm(1, gamma, eps);
        }
        if let Some(gamma) = gamma.filter(|gamma| ![self.dtype(), DType::F32].contains(&gamma.dtype())) {
            let message = format!("gamma must have the dtype of the table or f32: {}", describe(&[self, gamma]));
            return Err(Error::dtype(op, message));
        }
        if !has_kernel::<EmbeddingNorm>(self) || index.numel() == 0 {
            return embedding_norm(self, index, gamma, eps);
        }
        let (table, flat) = (self.contiguous()?, index.reshape(index.numel())?.contiguous()?);
        let (rows, v, length) = (flat.numel(), table.dims()[0], table.dims()[1]);
        let norm = RowNorm { rows, length, is_centred: false, eps, activation: Activation::Identity };
        let empty = |shape: Shape, dtype| Tensor::allocate(op, &shape, dtype, table.device());
        let acc = table.dtype().acc();
        let y = empty((rows, length).into(), table.dtype())?;
        let (mean, rstd) = (empty(rows.into(), acc)?, empty(rows.into(), acc)?);
        let gamma = gamma.map(Tensor::contiguous).transpose()?;
        let inputs = EmbeddingNormInputs { table: &table, weight: gamma.as_ref(), index: &flat };
        let outputs = NormOutputs { y: &y, mean: &mean, rstd: &rstd, sum: None };
        run_fused(op, &EmbeddingNorm(norm), inputs, outputs)?;
        let mask = inputs.mask();
        let again = move |inputs: &[Tensor]| {
            let EmbeddingNormInputs { table, weight, index } = EmbeddingNormInputs::of(mask, &mut inputs.iter());
            embedding_norm(table, index, weight, eps)
        };
        let y = Record::new(op, &inputs.present()).fused(y, again, move |t, inputs| {
            let EmbeddingNormInputs { table, weight, index } = EmbeddingNormInputs::of(mask, &mut inputs.iter());
            let (dy, mean, rstd) = (&t.dy().contiguous()?, &mean, &rstd);
            let dx = memory_if(op, t.needs(0), Some(dy))?;
            let dweight = memory_if(op, weight.is_some() && t.needs(1), weight)?;
            let inputs = EmbeddingNormBackwardInputs { dy, table, mean, rstd, weight, index };
            let outputs = NormBackwardOutputs { low: None, dx: dx.as_ref(), weight: dweight.as_ref(), bias: None };
            run_fused(op, &EmbeddingNormBackward(norm), inputs, outputs)?;
            let table = dx.map(|dx| fused_gradient(&dx, index, v, None, false)).transpose()?;
            Ok(needed(t, EmbeddingNormInputs { table, weight: weight.map(|_| dweight), index: None }))
        })?;
        let mut dims = Dims::from_slice(index.dims());
        dims.push(length);
        y.reshape(Shape::from(dims))
    }
}

/// Checks that the index can select rows of a table.
fn check_table(op: &'static str, table: &Tensor, index: &Tensor) -> Result<()> {
    check_index(op, index)?;
    check_float(op, table)?;
    check_device(op, &[table, index])?;
    if table.rank() != 2 {
        let message = format!("the table of index {} is {}, expected [V, E]", index.shape(), table.shape());
        return Err(Error::shape(op, message));
    }
    Ok(())
}

/// The kernel's composite.
fn embedding_norm(table: &Tensor, index: &Tensor, gamma: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    in_acc(&table.embedding(index, &EmbeddingOptions::default())?, |x| {
        let y = standardise("embedding_rmsnorm", Norm::Rms, x, &[-1], eps)?;
        match gamma {
            Some(gamma) => y.mul(&gamma.cast(y.dtype())?),
            None => Ok(y),
        }
    })
}

/// Sums the gradient's rows by index, without the padding row.
pub(crate) fn table_gradient(
    dy: &Tensor,
    index: &Tensor,
    v: usize,
    padding: Option<i64>,
    by_freq: bool,
) -> Result<Tensor> {
    let zeros = Tensor::zeros((v, dy.dims()[1]), dy.dtype(), dy.device())?;
    let masked = match padding {
        Some(padding) => index.ne_scalar(padding)?.unsqueeze(1)?.where_scalar(dy, 0.0)?,
        None => dy.clone(),
    };
    if !by_freq {
        return zeros.index_add(0, index, &masked, 1);
    }
    // Counts are exact in f32 and above. Each gradient is divided by the count of its index.
    let ones = Tensor::ones(index.numel(), DType::F64, dy.device())?;
    let counts = Tensor::zeros(v, DType::F64, dy.device())?.index_add(0, index, &ones, 1)?;
    let counts = counts.index_select(0, index)?.cast(dy.dtype().acc())?.unsqueeze(1)?;
    let scaled = masked.cast(dy.dtype().acc())?.div(&counts)?;
    zeros.cast(dy.dtype().acc())?.index_add(0, index, &scaled, 1)?.cast(dy.dtype())
}

/// [`table_gradient`] by a kernel.
fn fused_gradient(dy: &Tensor, index: &Tensor, v: usize, padding: Option<i64>, by_freq: bool) -> Result<Tensor> {
    let op = "embedding_backward";
    let table = Tensor::allocate(op, &Shape::from((v, dy.dims()[1])), dy.dtype(), dy.device())?;
    index_reduce(op, reduce(by_freq), index, dy, padding, only(&table))?;
    Ok(table)
}

fn reduce(by_freq: bool) -> IndexReduce {
    if by_freq { IndexReduce::Mean } else { IndexReduce::Sum }
}
