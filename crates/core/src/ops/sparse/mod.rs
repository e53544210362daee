//! Sparse matrices and graphs: products, and messages along edges.

pub(super) mod csr;
pub mod kernels;

pub use csr::{Csr, EntryLists};

use self::kernels::{SparseBackward, SparseReduce, Terms, reduced, terms_of};
use crate::check::{check_float, check_same, describe};
use crate::fused::{has_kernel, run_fused};
use crate::ops::indexing::segment::IndexReduce;
use crate::tape::{Backward, Gradient, Gradients, Record, Saved};
use crate::{DType, Dims, Error, Result, Shape, Tensor, autocast, no_autocast};

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

/// The operands of one call.
#[derive(Clone)]
struct Operands {
    op: &'static str,
    pattern: Csr,
    terms: Terms,
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
    let terms = Terms { reduce, has_weight: weight.is_some(), has_attribute: attribute.is_some() };
    let call = Operands { op, pattern: pattern.clone(), terms };
    let y = call.run(&x, weight.as_ref(), attribute.as_ref())?;
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

impl Operands {
    fn run(&self, x: &Tensor, weight: Option<&Tensor>, attribute: Option<&Tensor>) -> Result<Tensor> {
        let inputs: Vec<&Tensor> = [x].into_iter().chain(weight).chain(attribute).collect();
        if !has_kernel::<SparseReduce>(x) || self.pattern.entries() == 0 || self.pattern.rows() == 0 {
            let inputs: Vec<Tensor> = inputs.into_iter().cloned().collect();
            return self.composite(&inputs);
        }
        let inputs: Vec<Tensor> = inputs.into_iter().map(Tensor::contiguous).collect::<Result<_>>()?;
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let (y, largest) = self.forward(&inputs)?;
        let (composite, backward) = (self.clone(), self.clone());
        // The gradient of a maximum compares terms with the result.
        let result = largest.is_some().then(|| Saved::output(&y));
        Record::new(self.op, &inputs).fused(
            y,
            move |x| composite.composite(x),
            move |t, x| {
                result.as_ref().map(|y| t.get(y)).transpose()?;
                backward.backward(t, x, largest.as_ref())
            },
        )
    }

    /// The weight and the attribute among the inputs x, weight, attribute.
    fn split<'a>(&self, inputs: &'a [Tensor]) -> (Option<&'a Tensor>, Option<&'a Tensor>) {
        let mut rest = inputs[1..].iter();
        let weight = if self.terms.has_weight { rest.next() } else { None };
        (weight, if self.terms.has_attribute { rest.next() } else { None })
    }

    /// The specification, in the accumulation dtype.
    fn composite(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let (x, (weight, attribute)) = (&inputs[0], self.split(inputs));
        let wide = |t: &Tensor| t.cast(x.dtype().acc());
        let (weight, attribute) = (weight.map(wide).transpose()?, attribute.map(wide).transpose()?);
        let of_entries = wide(x)?.index_select(0, self.pattern.column_index())?;
        let terms = terms_of(&of_entries, weight.as_ref(), attribute.as_ref())?;
        let y = reduced(&terms, self.pattern.row_index()?, self.pattern.rows(), self.terms.reduce);
        y.map_err(|e| e.of(self.op))?.cast(x.dtype())
    }

    /// The result, and for a maximum the maxima as compared, and the number of terms that have each.
    fn forward(&self, inputs: &[&Tensor]) -> Result<(Tensor, Option<[Tensor; 2]>)> {
        let (x, lists) = (inputs[0], self.pattern.by_row()?);
        let shape = Shape::from((self.pattern.rows(), x.dims()[1], x.dims()[2]));
        let empty = |dtype: DType| Tensor::allocate(self.op, &shape, dtype, x.device());
        let y = empty(x.dtype())?;
        let kernel = SparseReduce { terms: self.terms, is_permuted: lists.entries.is_some() };
        let operands: Vec<&Tensor> = [&lists.starts, &lists.others, x]
            .into_iter()
            .chain(&lists.entries)
            .chain(inputs[1..].iter().copied())
            .collect();
        if self.terms.reduce != IndexReduce::Max {
            run_fused(self.op, &kernel, &operands, &[&y])?;
            return Ok((y, None));
        }
        let ties = empty(DType::I32)?;
        let acc = x.dtype().acc();
        if acc == x.dtype() || inputs.len() == 1 {
            // The results are the maxima as they were compared.
            run_fused(self.op, &kernel, &operands, &[&y, &ties])?;
            let best = y.detach();
            return Ok((y, Some([best, ties])));
        }
        let best = empty(acc)?;
        run_fused(self.op, &kernel, &operands, &[&y, &ties, &best])?;
        Ok((y, Some([best, ties])))
    }

    fn backward(&self, t: &Backward<'_>, inputs: &[Tensor], largest: Option<&[Tensor; 2]>) -> Result<Gradients> {
        let Terms { reduce, has_weight, has_attribute } = self.terms;
        let (lists, last) = (self.pattern.by_column()?, inputs.len() - 1);
        let kernel = SparseBackward {
            terms: self.terms,
            is_permuted: lists.entries.is_some(),
            wants_input: t.needs(0),
            wants_weight: has_weight && t.needs(1),
            wants_attribute: has_attribute && t.needs(last),
        };
        let (dy, row_starts) = (
            t.dy().contiguous()?,
            match reduce {
                IndexReduce::Mean => Some(&self.pattern.by_row()?.starts),
                _ => None,
            },
        );
        let (weight, attribute) = self.split(inputs);
        let found = [Some(&inputs[0]), weight, attribute].into_iter().zip(kernel.wanted()).map(|(x, is_wanted)| {
            let made = x.filter(|_| is_wanted).map(|x| Tensor::allocate(self.op, x.shape(), x.dtype(), x.device()));
            made.transpose()
        });
        let found: Vec<Option<Tensor>> = found.collect::<Result<_>>()?;
        let operands: Vec<&Tensor> = [&lists.starts, &lists.others, &inputs[0]]
            .into_iter()
            .chain(&lists.entries)
            .chain(&inputs[1..])
            .chain(row_starts)
            .chain([&dy])
            .chain(largest.into_iter().flatten())
            .collect();
        run_fused(self.op, &kernel, &operands, &found.iter().flatten().collect::<Vec<_>>())?;
        let are_there = [true, has_weight, has_attribute];
        Ok(found
            .into_iter()
            .zip(are_there)
            .filter(|(_, is_there)| *is_there)
            .map(|(dx, _)| Gradient::from(dx))
            .collect())
    }
}
