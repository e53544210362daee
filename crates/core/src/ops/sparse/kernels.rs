//! The fused ops of sparse matrices and graphs.
//!
//! The term of entry e in head h is `weight[e, h] (x[column of e, h, ..] + attribute[e, h, ..])`. An absent weight is 1, an absent
//! attribute 0. Terms are in the accumulation dtype.

use super::csr::row_of_positions;
use crate::fused::FlatFused;
use crate::ops::TieGrad;
use crate::ops::indexing::segment::IndexReduce;
use crate::{DType, Result, Tensor};

/// The terms of entries, and their reduction to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The reduction.
    pub reduce: IndexReduce,
    /// True if entries have weights `[E, H]`.
    pub has_weight: bool,
    /// True if entries have attributes `[E, H, F]`.
    pub has_attribute: bool,
}

/// Inputs: the start of each row's list of entries `[M + 1]`; the column of each entry by position `[E]`, of which those after the last
/// list are not read; x `[K, H, F]`; and where present, in this order, the entry at each position `[E]`, the weights and the attributes.
/// Output: the terms reduced to rows `[M, H, F]`; zeros for a row without entries. `Max` has a second output, the number of terms that
/// have the maximum, 0 if it is NaN (i32), and may have a third, the maxima in the accumulation dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseReduce {
    /// The terms.
    pub terms: Terms,
    /// True if entries are not at the positions of their numbers.
    pub is_permuted: bool,
}

/// Inputs: the start of each column's list of entries `[K + 1]`; the row of each entry by position `[E]`; x; where present the entry at
/// each position, the weights and the attributes; for a mean the start of each row's list `[M + 1]`; dy `[M, H, F]`; and for a maximum
/// the maxima and their numbers, as [`SparseReduce`] returns them. Outputs: the gradients of x, of the weights and of the attributes,
/// where wanted. Terms that have a maximum share its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseBackward {
    /// The terms.
    pub terms: Terms,
    /// True if entries are not at the positions of their numbers.
    pub is_permuted: bool,
    /// True if the gradient of x is wanted.
    pub wants_input: bool,
    /// True if the gradient of the weights is wanted.
    pub wants_weight: bool,
    /// True if the gradient of the attributes is wanted.
    pub wants_attribute: bool,
}

impl SparseBackward {
    /// Which gradients are wanted: of x, of the weights, of the attributes.
    pub fn wanted(&self) -> [bool; 3] {
        [self.wants_input, self.wants_weight, self.wants_attribute]
    }
}

/// The operands of a composite, in order. Floats are in the accumulation dtype.
struct Operands<'a> {
    rest: std::slice::Iter<'a, Tensor>,
    acc: DType,
}

impl Operands<'_> {
    fn new(inputs: &[Tensor]) -> Operands<'_> {
        Operands { rest: inputs.iter(), acc: inputs[2].dtype().acc() }
    }

    fn next(&mut self) -> Result<Tensor> {
        let t = self.rest.next().ok_or_else(|| crate::Error::value("sparse", "a kernel has too few operands"))?;
        if t.dtype().is_float() { t.cast(self.acc) } else { Ok(t.clone()) }
    }

    fn optional(&mut self, is_there: bool) -> Result<Option<Tensor>> {
        is_there.then(|| self.next()).transpose()
    }
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

/// The outputs of a kernel for the absolute values of its floats; none for a maximum.
fn of_sizes(fused: &impl FlatFused, terms: Terms, inputs: &[Tensor], before: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
    if terms.reduce == IndexReduce::Max {
        return Ok(None);
    }
    let size = |t: &Tensor| if t.dtype().is_float() { t.abs() } else { Ok(t.clone()) };
    let sizes: Vec<Tensor> = inputs.iter().map(size).collect::<Result<_>>()?;
    Ok(Some(fused.composite(&sizes, before)?.into_iter().flatten().collect()))
}

impl FlatFused for SparseReduce {
    fn name(&self) -> &'static str {
        "sparse_reduce"
    }

    fn composite(&self, inputs: &[Tensor], before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let mut operands = Operands::new(inputs);
        let (starts, others, x) = (operands.next()?, operands.next()?, operands.next()?);
        let entries = operands.optional(self.is_permuted)?;
        let at = |t: Tensor| entries.as_ref().map_or_else(|| Ok(t.clone()), |entries| t.index_select(0, entries));
        let weight = operands.optional(self.terms.has_weight)?.map(at).transpose()?;
        let attribute = operands.optional(self.terms.has_attribute)?.map(at).transpose()?;
        let (rows, row) = (starts.numel() - 1, row_of_positions(&starts, others.numel())?);
        let terms = terms_of(&x.index_select(0, &others)?, weight.as_ref(), attribute.as_ref())?;
        // The last row has the positions after the last list.
        let all = reduced(&terms, &row, rows + 1, self.terms.reduce)?;
        let y = all.narrow(0, 0, rows)?;
        let mut found = vec![Some(y.clone())];
        if before.len() > 1 {
            let is_largest = terms.eq(&all.index_select(0, &row)?)?.cast(DType::I64)?;
            found.push(Some(is_largest.scatter_sum(&row, Some(rows + 1))?.narrow(0, 0, rows)?));
        }
        found.extend((before.len() > 2).then_some(Some(y)));
        Ok(found)
    }

    fn companions(&self, inputs: &[Tensor], before: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
        of_sizes(self, self.terms, inputs, before)
    }
}

impl FlatFused for SparseBackward {
    fn name(&self) -> &'static str {
        "sparse_backward"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let mut operands = Operands::new(inputs);
        let (starts, row, x) = (operands.next()?, operands.next()?, operands.next()?);
        let entries = operands.optional(self.is_permuted)?;
        let at = |t: Tensor| entries.as_ref().map_or_else(|| Ok(t.clone()), |entries| t.index_select(0, entries));
        let weight = operands.optional(self.terms.has_weight)?.map(at).transpose()?;
        let attribute = operands.optional(self.terms.has_attribute)?.map(at).transpose()?;
        let row_starts = operands.optional(self.terms.reduce == IndexReduce::Mean)?;
        let dy = operands.next()?;
        let column = row_of_positions(&starts, row.numel())?;
        let plain = terms_of(&x.index_select(0, &column)?, None, attribute.as_ref())?;
        let dterms = match row_starts {
            Some(starts) => dy.div(&lengths(&starts, operands.acc)?)?.index_select(0, &row)?,
            None if self.terms.reduce == IndexReduce::Max => {
                let terms = terms_of(&plain, weight.as_ref(), None)?;
                of_largest(&terms, &row, &dy, &operands.next()?, &operands.next()?)?
            }
            None => dy.index_select(0, &row)?,
        };
        // From the order of positions to that of entries.
        let by_entry = |t: Tensor| match &entries {
            Some(entries) => t.zeros_like()?.index_add(0, entries, &t, 1),
            None => Ok(t),
        };
        let weighted = terms_of(&dterms, weight.as_ref(), None)?;
        let mut found = Vec::new();
        if self.wants_input {
            found.push(Some(weighted.scatter_sum(&column, Some(starts.numel() - 1))?));
        }
        if self.wants_weight {
            found.push(Some(by_entry(dterms.mul(&plain)?.sum(-1)?)?));
        }
        if self.wants_attribute {
            found.push(Some(by_entry(weighted)?));
        }
        Ok(found)
    }

    fn companions(&self, inputs: &[Tensor], before: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
        of_sizes(self, self.terms, inputs, before)
    }
}
