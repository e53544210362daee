//! Collectives on the tape, each with its gradient.

use crate::Group;
use isograd_core::collective::{Collective, Reduction};
use isograd_core::tape::{self, Backward, Gradients, Saved};
use isograd_core::{Error, Result, Tensor};

impl Group {
    /// The reduction of the tensors of all ranks, on every rank. x: any shape, the same on all ranks; any dtype, floats for the mean.
    ///
    /// The gradient of a sum is the sum of all ranks' gradients, that of a mean their mean. That of a maximum is the sum of all ranks'
    /// gradients, shared evenly among the ranks that have the maximum. Errors: `Dtype`; `Value` or `Backend` as the group's.
    pub fn all_reduce(&self, x: &Tensor, reduction: Reduction) -> Result<Tensor> {
        let y = self.run(Collective::AllReduce(reduction), x)?;
        let group = self.clone();
        if reduction != Reduction::Max {
            return tape::record("all_reduce", &[x], y, move |t| one(group.all_reduce(t.dy(), reduction)?));
        }
        let (input, output) = (Saved::input(x), Saved::output(&y));
        tape::record("all_reduce", &[x], y, move |t| {
            let is_largest = t.get(&input)?.detach().eq(&t.get(&output)?.detach())?.cast(t.dy().dtype())?;
            let count = group.all_reduce(&is_largest, Reduction::Sum)?;
            one(group.all_reduce(t.dy(), Reduction::Sum)?.mul(&is_largest.div(&count)?)?)
        })
    }

    /// The tensor of rank `root`, on every rank. x: any shape and dtype, the same on all ranks.
    ///
    /// The gradient of the root is the sum of all ranks' gradients, that of the others 0. Errors: `Index` if there is no such rank.
    pub fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        let y = self.run(Collective::Broadcast(root), x)?;
        let group = self.clone();
        tape::record("broadcast", &[x], y, move |t| {
            let sum = group.all_reduce(t.dy(), Reduction::Sum)?;
            one(if group.rank() == root { sum } else { sum.mul_scalar(0.0)? })
        })
    }

    /// The tensors of all ranks: x `[..]` to `[size, ..]`, on every rank.
    ///
    /// The gradient is the sum over the ranks of their gradients of this rank's part.
    pub fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.run(Collective::AllGather, x)?;
        let group = self.clone();
        tape::record("all_gather", &[x], y, move |t| one(group.reduce_scatter(t.dy(), Reduction::Sum)?))
    }

    /// The reduction of all ranks' parts with this rank's number: x `[size, ..]` to `[..]`.
    ///
    /// The gradient is all ranks' gradients, in the order of the ranks; divided by their number for a mean. Errors: `Shape`;
    /// `Unsupported` for a maximum of a tensor on the tape.
    pub fn reduce_scatter(&self, x: &Tensor, reduction: Reduction) -> Result<Tensor> {
        if reduction == Reduction::Max && x.requires_grad() && tape::is_grad_enabled() {
            return Err(Error::unsupported(
                "reduce_scatter",
                "a maximum has no gradient; use `all_reduce`, or `detach`",
            ));
        }
        let y = self.run(Collective::ReduceScatter(reduction), x)?;
        let group = self.clone();
        tape::record("reduce_scatter", &[x], y, move |t| {
            let dx = group.all_gather(t.dy())?;
            one(if reduction == Reduction::Mean { dx.mul_scalar(1.0 / group.size() as f64)? } else { dx })
        })
    }

    /// The parts of all ranks with this rank's number: x `[size, ..]` to y `[size, ..]`, where y\[i\] is part `rank` of rank i.
    ///
    /// The gradient goes back in the same way. Errors: `Shape`.
    pub fn all_to_all(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.run(Collective::AllToAll, x)?;
        let group = self.clone();
        tape::record("all_to_all", &[x], y, move |t: &Backward<'_>| one(group.all_to_all(t.dy())?))
    }
}

/// The gradients of an op with one input.
fn one(dx: Tensor) -> Result<Gradients> {
    Ok([dx].into())
}

impl isograd_nn::Across for Group {
    fn sum(&self, x: &Tensor) -> Result<Tensor> {
        self.all_reduce(x, Reduction::Sum)
    }
}
