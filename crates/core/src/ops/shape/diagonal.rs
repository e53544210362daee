//! Diagonals and triangles of matrices.

use crate::backend::Kernel;
use crate::ops::gradients;
use crate::tape::{record, report};
use crate::tensor::{Attributes, run};
use crate::{Dims, Error, Layout, Result, Shape, Tensor};

/// The side of a diagonal.
#[derive(Clone, Copy)]
enum Triangle {
    Lower,
    Upper,
}

/// # Diagonals
impl Tensor {
    /// The elements `[.., i, i + offset]` of the last two dimensions, which become one at the end. A view. Errors: `Shape` below
    /// rank 2.
    pub fn diagonal(&self, offset: isize) -> Result<Tensor> {
        let layout = diagonal("diagonal", self.layout(), offset)?;
        let shape = self.shape().clone();
        let y = self.with_layout(layout);
        report("diagonal", &[self], &[&y], || [("offset", (offset as i64).into())]);
        record("diagonal", &[self], y, move |t| gradients![Some(t.dy().on_diagonal(&shape, offset)?)])
    }

    /// Matrices with these vectors on the diagonal `offset`, and 0 elsewhere: `[.., n]` to `[.., n + |offset|, n + |offset|]`.
    /// Errors: `Shape` for a scalar.
    pub fn diag_embed(&self, offset: isize) -> Result<Tensor> {
        let &n = self
            .dims()
            .last()
            .ok_or_else(|| Error::shape("diag_embed", format!("{} was given, expected a vector", self.shape())))?;
        let mut dims = Dims::from_slice(&self.dims()[..self.rank() - 1]);
        dims.extend([n.saturating_add(offset.unsigned_abs()); 2]);
        let shape = Shape::from(dims);
        let too_large = |_| Error::shape("diag_embed", format!("diagonal {offset} of {} is too far", self.shape()));
        shape.check("diag_embed").map_err(too_large)?;
        self.on_diagonal(&shape, offset).map_err(|e| e.of("diag_embed"))
    }

    /// Zeros of `shape` with this tensor on the diagonal of its last two dimensions: the adjoint of a diagonal.
    fn on_diagonal(&self, shape: &Shape, offset: isize) -> Result<Tensor> {
        let op = "diag_embed";
        let y = Tensor::zeros(shape, self.dtype(), self.device())?;
        let place = y.with_layout(diagonal(op, y.layout(), offset)?);
        if self.numel() > 0 {
            run(op, Kernel::Copy, &[self], &[&place], Attributes::default())?;
        }
        drop(place);
        record(op, &[self], y, move |t| gradients![Some(t.dy().diagonal(offset)?)])
    }

    /// The diagonal of a matrix, or the matrix of a diagonal. Errors: `Shape` for other ranks than 1 and 2.
    pub fn diag(&self, offset: isize) -> Result<Tensor> {
        match self.rank() {
            1 => self.diag_embed(offset),
            2 => self.diagonal(offset),
            _ => Err(Error::shape("diag", format!("{} was given, expected a vector or a matrix", self.shape()))),
        }
    }

    /// The sum of the diagonal of the last two dimensions. Errors: `Shape` below rank 2.
    pub fn trace(&self) -> Result<Tensor> {
        self.diagonal(0).map_err(|e| e.of("trace"))?.sum(-1)
    }

    /// The elements on and below the diagonal of the last two dimensions; 0 above it. Errors: `Shape` below rank 2.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
    /// assert_eq!(x.tril(0)?.to_vec::<f32>()?, [1.0, 0.0, 3.0, 6.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn tril(&self, offset: isize) -> Result<Tensor> {
        triangle("tril", self, Triangle::Lower, offset)
    }

    /// The elements on and above the diagonal of the last two dimensions; 0 below it. Errors: `Shape` below rank 2.
    pub fn triu(&self, offset: isize) -> Result<Tensor> {
        triangle("triu", self, Triangle::Upper, offset)
    }
}

/// The layout of a diagonal of the last two dimensions.
fn diagonal(op: &'static str, layout: &Layout, offset: isize) -> Result<Layout> {
    let rank = layout.shape().rank();
    if rank < 2 {
        return Err(Error::shape(op, format!("{} has rank {rank}, expected at least 2", layout.shape())));
    }
    Ok(layout.diagonal(offset))
}

fn triangle(op: &'static str, x: &Tensor, side: Triangle, offset: isize) -> Result<Tensor> {
    let &[.., rows, columns] = x.dims() else {
        return Err(Error::shape(op, format!("{} has rank {}, expected at least 2", x.shape(), x.rank())));
    };
    let [i, j] = [Tensor::arange(rows, x.device())?.reshape((rows, 1))?, Tensor::arange(columns, x.device())?];
    let distance = j.sub(&i)?;
    let kept = match side {
        Triangle::Lower => distance.le_scalar(offset as i64)?,
        Triangle::Upper => distance.ge_scalar(offset as i64)?,
    };
    let y = kept.broadcast_to(x.shape())?.where_scalar(x, 0).map_err(|e| e.of(op))?;
    report(op, &[x], &[&y], || [("offset", (offset as i64).into())]);
    Ok(y)
}
