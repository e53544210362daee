//! Rows of a table, reduced over the entries of bags.

use crate::check::{check_index, describe};
use crate::ops::{EmbeddingOptions, Side, TieGrad, named};
use crate::{Error, Result, Tensor, no_grad};

/// The reduction of the rows of a bag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BagMode {
    /// Their mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// The maximum, for each element. The gradient goes to the first row that has it.
    Max,
}

/// The options of [`Tensor::embedding_bag`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Bag<'a> {
    /// The reduction.
    pub mode: BagMode,
    /// Factors of the rows, in the index's shape, for sums.
    pub weights: Option<&'a Tensor>,
    /// An index whose rows are left out. Negative values count from the end.
    pub padding_idx: Option<i64>,
}

/// # Bags of embeddings
impl Tensor {
    /// Rows of this table `[V, E]` by index, reduced over bags: `[B, E]`, 0 for an empty bag. The index (i64 or i32) is `[B, L]`, or `[N]`
    /// with the `offsets: [B]` at which bags begin, of which the first is 0. Errors: `Shape`; `Dtype`; `Attr` for weights of means or
    /// maxima; `Index`.
    pub fn embedding_bag(&self, index: &Tensor, offsets: Option<&Tensor>, bag: &Bag<'_>) -> Result<Tensor> {
        let op = "embedding_bag";
        check_index(op, index)?;
        let wrong = |expected: &str| {
            let operands: Vec<&Tensor> = [self, index].into_iter().chain(offsets).chain(bag.weights).collect();
            Err(Error::shape(op, format!("got {}, expected {expected}", describe(&operands))))
        };
        if self.rank() != 2 {
            return wrong("a table [V, E]");
        }
        if bag.weights.is_some_and(|w| w.shape() != index.shape()) {
            return wrong("weights in the shape of the index");
        }
        if bag.weights.is_some() && bag.mode != BagMode::Sum {
            return Err(Error::attr(op, format!("weights are for sums, not for {:?}", bag.mode)));
        }
        let rows = self.dims()[0] as i64;
        let padding = bag.padding_idx.map(|p| if p < 0 { p.saturating_add(rows) } else { p });
        if padding.is_some_and(|p| !(0..rows).contains(&p)) {
            let message = format!("padding_idx {:?} is outside of the table {}", bag.padding_idx, self.shape());
            return Err(Error::attr(op, message));
        }
        let (bags, entries) = match (index.rank(), offsets) {
            (2, None) => (index.dims()[0], index.numel()),
            (1, Some(offsets)) if offsets.rank() == 1 => (offsets.numel(), index.numel()),
            _ => return wrong("an index [B, L], or [N] with offsets [B]"),
        };
        let operands: Vec<&Tensor> = [self, index].into_iter().chain(offsets).collect();
        named(op, &operands, || {
            let flat = index.reshape(entries)?;
            let group = no_grad(|| match offsets {
                Some(offsets) => {
                    let numbers = Tensor::arange(entries, self.device())?.cast(offsets.dtype())?;
                    offsets.searchsorted(&numbers, Side::Right)?.sub_scalar(1)
                }
                None => {
                    let numbers = Tensor::arange(bags, self.device())?.reshape((bags, 1))?;
                    numbers.broadcast_to(index.shape())?.reshape(entries)
                }
            })?;
            // Rows that are left out go to a bag of their own, which is cut off.
            let group = match padding {
                Some(p) => flat.ne_scalar(p)?.where_scalar(&group, bags as i64)?,
                None => group,
            };
            let found = self.embedding(&flat, &EmbeddingOptions::default())?;
            let found = match bag.weights {
                Some(weights) => found.mul(&weights.reshape((entries, 1))?)?,
                None => found,
            };
            let all = match bag.mode {
                BagMode::Sum => found.scatter_sum(&group, Some(bags + 1)),
                BagMode::Mean => found.scatter_mean(&group, Some(bags + 1)),
                BagMode::Max => found.scatter_max(&group, Some(bags + 1), TieGrad::First).map(|(y, _)| y),
            };
            all?.narrow(0, 0, bags)
        })
    }
}
