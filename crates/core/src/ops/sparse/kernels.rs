//! The fused ops of sparse matrices and graphs.
//!
//! The term of entry e in head h is `weight[e, h] (x[column of e, h, ..] + attribute[e, h, ..])`. An absent weight is 1, an absent
//! attribute 0. Terms are in the accumulation dtype.

use super::csr::row_of_positions;
use crate::fused::{Fused, of_sizes};
use crate::operands;
use crate::ops::TieGrad;
use crate::ops::indexing::segment::IndexReduce;
use crate::{DType, Result, Tensor};

/// The terms of entries reduced to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseReduce {
    /// The reduction.
    pub reduce: IndexReduce,
}

operands! {
    /// The inputs of [`SparseReduce`].
    pub struct SparseInputs {
        /// The start of each row's list of entries, `[M + 1]`.
        starts,
        /// The column of each entry by position, `[E]`. Those after the last list are not read.
        columns,
        /// `[K, H, F]`.
        x,
        /// The entry at each position, `[E]`, unless entries are at the positions of their numbers.
        entries?,
        /// The weights, `[E, H]`.
        weight?,
        /// The attributes, `[E, H, F]`.
        attribute?,
    }
}

operands! {
    /// The outputs of [`SparseReduce`].
    pub struct SparseOutputs {
        /// The terms reduced to rows, `[M, H, F]`; zeros for a row without entries.
        y,
        /// For a maximum, the number of terms that have it, `[M, H, F]` (i32); 0 if it is NaN.
        ties?,
        /// For a maximum, `[M, H, F]` in the accumulation dtype, where it is not y.
        best?,
    }
}

/// The gradients of [`SparseReduce`]. Terms that have a maximum share its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseBackward {
    /// The reduction.
    pub reduce: IndexReduce,
}

operands! {
    /// The inputs of [`SparseBackward`].
    pub struct SparseBackwardInputs {
        /// The start of each column's list of entries, `[K + 1]`.
        starts,
        /// The row of each entry by position, `[E]`.
        rows,
        /// `[K, H, F]`.
        x,
        /// The entry at each position, `[E]`, unless entries are at the positions of their numbers.
        entries?,
        /// The weights, `[E, H]`.
        weight?,
        /// The attributes, `[E, H, F]`.
        attribute?,
        /// For a mean, the start of each row's list of entries, `[M + 1]`.
        row_starts?,
        /// The gradient of the result, `[M, H, F]`.
        dy,
        /// For a maximum, the maxima as they were compared, `[M, H, F]`.
        best?,
        /// For a maximum, the number of terms that have it, `[M, H, F]` (i32).
        ties?,
    }
}

operands! {
    /// The outputs of [`SparseBackward`], where they are wanted.
    pub struct SparseGradients {
        /// The gradient of x.
        x?,
        /// The gradient of the weights.
        weight?,
        /// The gradient of the attributes.
        attribute?,
    }
}

/// A float operand in the accumulation dtype of `x`.
fn wide(t: &Tensor, x: &Tensor) -> Result<Tensor> {
    t.cast(x.dtype().acc())
}

/// A float operand of entries in the accumulation dtype of `x`, by position.
fn by_position(t: Option<&Tensor>, x: &Tensor, entries: Option<&Tensor>) -> Result<Option<Tensor>> {
    let at = |t: Tensor| entries.map_or_else(|| Ok(t.clone()), |entries| t.index_select(0, entries));
    t.map(|t| at(wide(t, x)?)).transpose()
}

/// The terms, from the row of x for each of them.
pub(super) fn terms_of(x: &Tensor, weight: Option<&Tensor>, attribute: Option<&Tensor>) -> Result<Tensor> {
    let sum = attribute.map_or_else(|| Ok(x.clone()), |a| x.add(a))?;
    weight.map_or_else(|| Ok(sum.clone()), |w| sum.mul(&w.unsqueeze(-1)?))
}

/// The terms `[E, ..]` reduced to `rows` rows.
pub(super) fn reduced(terms: &Tensor, row: &Tensor, rows: usize, reduce: IndexReduce) -> Result<Tensor> {
    match reduce {
        IndexReduce::Sum => terms.scatter_sum(row, Some(rows)),
        IndexReduce::Mean => terms.scatter_mean(row, Some(rows)),
        IndexReduce::Max => Ok(terms.scatter_max(row, Some(rows), TieGrad::Even)?.0),
    }
}

/// The lengths of lists as floats `[lists, 1, 1]`.
fn lengths(starts: &Tensor, dtype: DType) -> Result<Tensor> {
    let (lists, starts) = (starts.numel() - 1, starts.cast(DType::I64)?);
    starts.narrow(0, 1, lists)?.sub(&starts.narrow(0, 0, lists)?)?.reshape((lists, 1, 1))?.cast(dtype)
}

/// The gradient of the terms of a maximum: equal parts for those that have it.
fn of_largest(terms: &Tensor, row: &Tensor, dy: &Tensor, best: &Tensor, ties: &Tensor) -> Result<Tensor> {
    let part = dy.div(&ties.cast(dy.dtype())?)?.index_select(0, row)?;
    part.mul(&terms.eq(&best.index_select(0, row)?)?.cast(dy.dtype())?)
}

impl Fused for SparseReduce {
    type Inputs<T> = SparseInputs<T>;
    type Outputs<T> = SparseOutputs<T>;

    fn name(&self) -> &'static str {
        "sparse_reduce"
    }

    fn composite(
        &self,
        inputs: SparseInputs<&Tensor>,
        before: SparseOutputs<&Tensor>,
    ) -> Result<SparseOutputs<Option<Tensor>>> {
        let SparseInputs { starts, columns, x, entries, weight, attribute } = inputs;
        let (weight, attribute) = (by_position(weight, x, entries)?, by_position(attribute, x, entries)?);
        let (rows, row) = (starts.numel() - 1, row_of_positions(starts, columns.numel())?);
        let terms = terms_of(&wide(x, x)?.index_select(0, columns)?, weight.as_ref(), attribute.as_ref())?;
        // The last row has the positions after the last list.
        let all = reduced(&terms, &row, rows + 1, self.reduce)?;
        let y = all.narrow(0, 0, rows)?;
        let count = || {
            let is_largest = terms.eq(&all.index_select(0, &row)?)?.cast(DType::I64)?;
            is_largest.scatter_sum(&row, Some(rows + 1))?.narrow(0, 0, rows)
        };
        let ties = before.ties.map(|_| count()).transpose()?.map(Some);
        Ok(SparseOutputs { best: before.best.map(|_| Some(y.clone())), y: Some(y), ties })
    }

    fn companions(
        &self,
        inputs: SparseInputs<&Tensor>,
        before: SparseOutputs<&Tensor>,
    ) -> Result<Option<SparseOutputs<Tensor>>> {
        if self.reduce == IndexReduce::Max { Ok(None) } else { of_sizes(self, inputs, before) }
    }
}

impl Fused for SparseBackward {
    type Inputs<T> = SparseBackwardInputs<T>;
    type Outputs<T> = SparseGradients<T>;

    fn name(&self) -> &'static str {
        "sparse_backward"
    }

    fn composite(
        &self,
        inputs: SparseBackwardInputs<&Tensor>,
        before: SparseGradients<&Tensor>,
    ) -> Result<SparseGradients<Option<Tensor>>> {
        let SparseBackwardInputs { starts, rows, x, entries, weight, attribute, row_starts, dy, best, ties } = inputs;
        let (weight, attribute) = (by_position(weight, x, entries)?, by_position(attribute, x, entries)?);
        let dy = wide(dy, x)?;
        let column = row_of_positions(starts, rows.numel())?;
        let plain = terms_of(&wide(x, x)?.index_select(0, &column)?, None, attribute.as_ref())?;
        let dterms = match (row_starts, best.zip(ties)) {
            (Some(starts), _) => dy.div(&lengths(starts, dy.dtype())?)?.index_select(0, rows)?,
            (None, Some((best, ties))) => {
                let terms = terms_of(&plain, weight.as_ref(), None)?;
                of_largest(&terms, rows, &dy, &wide(best, x)?, ties)?
            }
            (None, None) => dy.index_select(0, rows)?,
        };
        // From the order of positions to that of entries.
        let by_entry = |t: Tensor| match entries {
            Some(entries) => t.zeros_like()?.index_add(0, entries, &t, 1),
            None => Ok(t),
        };
        let weighted = terms_of(&dterms, weight.as_ref(), None)?;
        let dx = before.x.map(|_| weighted.scatter_sum(&column, Some(starts.numel() - 1)));
        let dweight = before.weight.map(|_| by_entry(dterms.mul(&plain)?.sum(-1)?));
        let dattribute = before.attribute.map(|_| by_entry(weighted.clone()));
        Ok(SparseGradients {
            x: dx.transpose()?.map(Some),
            weight: dweight.transpose()?.map(Some),
            attribute: dattribute.transpose()?.map(Some),
        })
    }

    fn companions(
        &self,
        inputs: SparseBackwardInputs<&Tensor>,
        before: SparseGradients<&Tensor>,
    ) -> Result<Option<SparseGradients<Tensor>>> {
        if self.reduce == IndexReduce::Max { Ok(None) } else { of_sizes(self, inputs, before) }
    }
}
