//! What a vendor's library of matrix products is asked for. Matrices are column-major, as they are in all such libraries.

use crate::driver::Address;
use isograd_core::ops::Transpose;
use isograd_core::{DType, Precision, Result};

/// A vendor's library, for the queue of one device.
pub trait Library: Send + Sync {
    /// Bytes of device memory that all its calls share.
    fn workspace(&self) -> usize;

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

/// What is applied to a result in the precision of its sums, before it is rounded.
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

/// All of a product but its addresses and factors: what a library chooses a kernel by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// Of a, b and the bias.
    pub dtype: DType,
    /// Of c, d and a second matrix of elements: `dtype`, or that of its sums.
    pub output: DType,
    /// Of products of f32.
    pub precision: Precision,
    /// Products.
    pub batches: usize,
    /// The left factor as it lies in memory, and how it is read.
    pub a: (Matrices, Transpose),
    /// The right factor.
    pub b: (Matrices, Transpose),
    /// What is added.
    pub c: Matrices,
    /// The result, `[m, n]`.
    pub d: Matrices,
    /// Whether a bias `[m]` is added to each column.
    pub has_bias: bool,
    /// What is applied to all that.
    pub epilogue: Epilogue,
    /// Whether there is a second matrix, and from a column of it to the next: elements of what GELU is applied to, which is
    /// kept there, or of what its derivative is taken at; or bits of a mask, of whose bytes the lowest bits are first.
    pub aux: Option<usize>,
    /// A factor that is summed along the inner dimension too: each row of a, or each column of b. Nothing is added then or applied.
    pub summed: Option<Factor>,
}

/// `d = epilogue(alpha a b + beta c + bias)`, for each of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// All but the rest.
    pub form: Form,
    /// Factor of the product.
    pub alpha: f64,
    /// Factor of c, which is not read if this is 0.
    pub beta: f64,
    /// Of the left factor.
    pub a: Address,
    /// Of the right factor.
    pub b: Address,
    /// Of what is added; d if beta is 0.
    pub c: Address,
    /// Of the result.
    pub d: Address,
    /// Of the bias, a multiple of 16; 0 if there is none.
    pub bias: Address,
    /// Of the second matrix, a multiple of 16; 0 if there is none.
    pub aux: Address,
    /// Where the factor's sums go, a multiple of 16; 0 if there are none.
    pub sums: Address,
    /// [`Library::workspace`] bytes.
    pub workspace: Address,
}
