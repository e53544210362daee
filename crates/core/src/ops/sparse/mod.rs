//! Sparse matrices and graphs: products, and messages along edges.

pub(super) mod csr;
pub mod kernels;

pub use csr::{Csr, EntryLists};

use self::kernels::{
    SparseBackward, SparseBackwardInputs, SparseGradients, SparseInputs, SparseOutputs, SparseReduce, reduced, terms_of,
};
use crate::check::{check_float, check_same, describe};
use crate::fused::{has_kernel, run_fused};
use crate::operands;
use crate::operands::{Mask, Operands};
use crate::ops::indexing::segment::IndexReduce;
use crate::tape::{Backward, Gradient, Gradients, Record, Saved};
use crate::{DType, Dims, Error, Result, Shape, Tensor, autocast, no_autocast};

/// # Products with sparse matrices
impl Tensor {
    /// The product of a sparse matrix `[M, K]` and this matrix: `y[i] = sum of val[e] x[column of e]` over the entries e of row i. For x
    /// `[K, F]` and the values `val` `[E]`, which are 1 by default, y is `[M, F]`; for x `[K, H, F]` and values `[E, H]` it is `[M, H, F]`.
    /// A row without entries is 0, and only entries are multiplied: NaN in other rows of x does not matter. Float dtypes; sums are in
    /// the accumulation dtype, in the order of entries. Errors: `Shape`, `Dtype`, `Device`.
    pub fn sparse_mm(&self, pattern: &Csr, val: Option<&Tensor>) -> Result<Tensor> {
        let op = "sparse_mm";
        if let Some(([x], val)) = autocast::low([self], val)? {
            return no_autocast(|| x.sparse_mm(pattern, val.as_ref()));
        }
        reduce_terms(op, pattern, self, val, None, IndexReduce::Sum)
    }
}

operands! {
    /// The operands of the terms `weight (x + attribute)` of entries.
    struct TermInputs {
        /// `[K, H, F]`.
        x,
        /// `[E, H]`.
        weight?,
        /// `[E, H, F]`.
        attribute?,
    }
}

/// A reduction of terms.
#[derive(Clone)]
struct Reduction {
    op: &'static str,
    pattern: Csr,
    reduce: IndexReduce,
    /// The operands of the terms that are present.
    mask: Mask,
}

/// Reduces the terms `weight (x + attribute)` of entries to rows. `x` is `[K, F]` or `[K, H, F]`, the weight `[E]` or `[E, H]`, the
/// attribute `[E, F]` or `[E, H, F]`.
pub(crate) fn reduce_terms(
    op: &'static str,
    pattern: &Csr,
    x: &Tensor,
    weight: Option<&Tensor>,
    attribute: Option<&Tensor>,
    reduce: IndexReduce,
) -> Result<Tensor> {
    check(op, pattern, x, weight, attribute)?;
    let mut dims = Dims::from_slice(x.dims());
    dims[0] = pattern.rows();
    let heads = if x.rank() == 3 { x.dims()[1] } else { 1 };
    let whole = |t: &Tensor| t.reshape((t.dims()[0], heads, x.dims()[x.rank() - 1]));
    let (x, attribute) = (whole(x)?, attribute.map(whole).transpose()?);
    let weight = weight.map(|w| w.reshape((pattern.entries(), heads))).transpose()?;
    let terms = TermInputs { x: &x, weight: weight.as_ref(), attribute: attribute.as_ref() };
    let y = Reduction { op, pattern: pattern.clone(), reduce, mask: terms.mask() }.run(terms)?;
    y.reshape(Shape::from(dims))
}

fn check(
    op: &'static str,
    pattern: &Csr,
    x: &Tensor,
    weight: Option<&Tensor>,
    attribute: Option<&Tensor>,
) -> Result<()> {
    let operands: Vec<&Tensor> = [x].into_iter().chain(weight).chain(attribute).collect();
    check_float(op, x)?;
    check_same(op, &operands)?;
    if x.device() != pattern.device() {
        return Err(Error::device(op, format!("{pattern:?} and {} are on two devices", describe(&operands))));
    }
    let mut of_entries = Dims::from_slice(x.dims());
    let fits = matches!(x.rank(), 2 | 3) && x.dims()[0] == pattern.columns() && {
        of_entries[0] = pattern.entries();
        weight.is_none_or(|w| w.dims() == &of_entries[..x.rank() - 1])
            && attribute.is_none_or(|a| a.dims() == &of_entries[..])
    };
    if fits {
        return Ok(());
    }
    let expected = "expected x [columns, F] or [columns, H, F], weights [entries] or [entries, H], and attributes [entries, ..] like x";
    Err(Error::shape(op, format!("{pattern:?} and {}: {expected}", describe(&operands))))
}

impl Reduction {
    fn run(&self, terms: TermInputs<&Tensor>) -> Result<Tensor> {
        if !has_kernel::<SparseReduce>(terms.x) || self.pattern.entries() == 0 || self.pattern.rows() == 0 {
            return self.composite(terms);
        }
        let inputs: Vec<Tensor> = terms.present().into_iter().map(Tensor::contiguous).collect::<Result<_>>()?;
        let (y, largest) = self.forward(self.terms(&inputs))?;
        let (composite, backward) = (self.clone(), self.clone());
        // The gradient of a maximum compares terms with the result.
        let result = largest.is_some().then(|| Saved::output(&y));
        Record::new(self.op, &inputs.iter().collect::<Vec<_>>()).fused(
            y,
            move |x| composite.composite(composite.terms(x)),
            move |t, x| {
                result.as_ref().map(|y| t.get(y)).transpose()?;
                backward.backward(t, backward.terms(x), largest.as_ref())
            },
        )
    }

    /// The operands of the terms, from those that are present.
    fn terms<'a>(&self, present: &'a [Tensor]) -> TermInputs<&'a Tensor> {
        TermInputs::of(self.mask, &mut present.iter())
    }

    /// The specification, in the accumulation dtype.
    fn composite(&self, TermInputs { x, weight, attribute }: TermInputs<&Tensor>) -> Result<Tensor> {
        let wide = |t: &Tensor| t.cast(x.dtype().acc());
        let (weight, attribute) = (weight.map(wide).transpose()?, attribute.map(wide).transpose()?);
        let of_entries = wide(x)?.index_select(0, self.pattern.column_index())?;
        let terms = terms_of(&of_entries, weight.as_ref(), attribute.as_ref())?;
        let y = reduced(&terms, self.pattern.row_index()?, self.pattern.rows(), self.reduce);
        y.map_err(|e| e.of(self.op))?.cast(x.dtype())
    }

    /// The result, and for a maximum the maxima as compared, and the number of terms that have each.
    fn forward(&self, terms: TermInputs<&Tensor>) -> Result<(Tensor, Option<[Tensor; 2]>)> {
        let TermInputs { x, weight, attribute } = terms;
        let lists = self.pattern.by_row()?;
        let shape = Shape::from((self.pattern.rows(), x.dims()[1], x.dims()[2]));
        let empty = |dtype: DType| Tensor::allocate(self.op, &shape, dtype, x.device());
        let y = empty(x.dtype())?;
        let entries = lists.entries.as_ref();
        let inputs = SparseInputs { starts: &lists.starts, columns: &lists.others, x, entries, weight, attribute };
        let (is_max, acc) = (self.reduce == IndexReduce::Max, x.dtype().acc());
        // Without other operands, or in this dtype, the results are the maxima as they were compared.
        let is_best = acc == x.dtype() || (weight.is_none() && attribute.is_none());
        let ties = is_max.then(|| empty(DType::I32)).transpose()?;
        let best = (is_max && !is_best).then(|| empty(acc)).transpose()?;
        let outputs = SparseOutputs { y: &y, ties: ties.as_ref(), best: best.as_ref() };
        run_fused(self.op, &SparseReduce { reduce: self.reduce }, inputs, outputs)?;
        let largest = ties.map(|ties| [best.unwrap_or_else(|| y.detach()), ties]);
        Ok((y, largest))
    }

    fn backward(
        &self,
        t: &Backward<'_>,
        terms: TermInputs<&Tensor>,
        largest: Option<&[Tensor; 2]>,
    ) -> Result<Gradients> {
        let TermInputs { x, weight, attribute } = terms;
        let (lists, dy) = (self.pattern.by_column()?, t.dy().contiguous()?);
        let row_starts = match self.reduce {
            IndexReduce::Mean => Some(&self.pattern.by_row()?.starts),
            _ => None,
        };
        let inputs = SparseBackwardInputs {
            starts: &lists.starts,
            rows: &lists.others,
            x,
            entries: lists.entries.as_ref(),
            weight,
            attribute,
            row_starts,
            dy: &dy,
            best: largest.map(|[best, _]| best),
            ties: largest.map(|[_, ties]| ties),
        };
        let made = |x: &Tensor| Tensor::allocate(self.op, x.shape(), x.dtype(), x.device());
        let wanted = terms.present().into_iter().enumerate().map(|(i, x)| t.needs(i).then(|| made(x)).transpose());
        let found: Vec<Option<Tensor>> = wanted.collect::<Result<_>>()?;
        let of = TermInputs::of(self.mask, &mut found.iter().map(Option::as_ref));
        let outputs = SparseGradients { x: of.x, weight: of.weight.flatten(), attribute: of.attribute.flatten() };
        run_fused(self.op, &SparseBackward { reduce: self.reduce }, inputs, outputs)?;
        Ok(found.into_iter().map(Gradient::from).collect())
    }
}
