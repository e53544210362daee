//! The interface of a vendor's library of matrix products. Matrices are column-major, as they are in all such libraries.

use crate::driver::Address;
use isograd_core::ops::Transpose;
use isograd_core::{DType, Precision, Result};

/// A vendor's library, for the queue of one device.
pub trait Library: Send + Sync {
    /// Bytes of device memory that all its calls share.
    fn workspace(&self) -> usize;

    /// Bytes of which the columns of 16-bit matrices have a multiple in the library's fast kernels.
    fn pitch(&self) -> usize {
        1
    }

    /// Whether the library has a kernel for a product.
    fn has(&self, product: &Product) -> Result<bool>;

    /// Enqueues a product. False if the library has no kernel for it: then nothing is enqueued.
    fn multiply(&self, product: &Product) -> Result<bool>;
}

/// A batch of matrices in memory, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrices {
    /// Neighbours in memory.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// From a column to the next, at least `rows`.
    pub leading: usize,
    /// From a matrix to the next; 0 if they are all the same one.
    pub batch: usize,
}

/// The function that is applied to a result, in the precision of its sums, before it is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    Identity,
    /// GELU in its approximation by tanh.
    GeluTanh,
    /// 0 where a bit of the second matrix is not set.
    Masked,
    /// Multiplied with the derivative of [`GeluTanh`](Epilogue::GeluTanh) at the second matrix.
    GeluTanhGradient,
}

/// One of the two factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Factor {
    /// The left one.
    A,
    /// The right one.
    B,
}

/// All of a product but its addresses and scalars. A library chooses its kernel by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatmulProblem {
    /// The dtype of a, b and the bias.
    pub dtype: DType,
    /// The dtype of c, d and a second matrix of elements: `dtype`, or the dtype of sums.
    pub output: DType,
    /// The precision of products of f32.
    pub precision: Precision,
    /// Products.
    pub batches: usize,
    /// The left factor as it lies in memory, and how it is read.
    pub a: (Matrices, Transpose),
    /// The right factor.
    pub b: (Matrices, Transpose),
    /// The matrix c, which is added.
    pub c: Matrices,
    /// The result, `[m, n]`.
    pub d: Matrices,
    /// Whether a bias `[m]` is added to each column.
    pub has_bias: bool,
    /// The function that is applied to the sum.
    pub epilogue: Epilogue,
    /// The distance between columns of the second matrix, if there is one. It is the input of GELU, written by the forward product
    /// and read for the derivative; or the bits of a mask, the lowest bit of a byte first.
    pub aux: Option<usize>,
    /// The factor whose rows (of a) or columns (of b) are also summed along the inner dimension, if any. Such a product has no c, bias
    /// or epilogue.
    pub summed: Option<Factor>,
}

/// `d = epilogue(alpha a b + beta c + bias)`, for each of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// The problem.
    pub problem: MatmulProblem,
    /// Factor of the product.
    pub alpha: f64,
    /// Factor of c, which is not read if this is 0.
    pub beta: f64,
    /// Address of the left factor.
    pub a: Address,
    /// Address of the right factor.
    pub b: Address,
    /// Address of c; of d if beta is 0.
    pub c: Address,
    /// Address of the result.
    pub d: Address,
    /// Address of the bias, a multiple of 16; 0 if there is none.
    pub bias: Address,
    /// Address of the second matrix, a multiple of 16; 0 if there is none.
    pub aux: Address,
    /// Address of the sums of a factor, a multiple of 16; 0 if there are none.
    pub sums: Address,
    /// Address of [`Library::workspace`] bytes.
    pub workspace: Address,
}
