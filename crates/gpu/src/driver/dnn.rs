//! The interface of a vendor's library of convolutions.

use crate::driver::Address;
use isograd_core::{DType, Precision, Result};
use smallvec::SmallVec;

/// A vendor's library, for the queue of one device. It has several kernels for a convolution, of which the caller chooses one.
pub trait Library: Send + Sync {
    /// The number of kernels for a convolution. The library's own choice is the first. 0 if there are none.
    fn kernels(&self, form: &Form) -> Result<usize>;

    /// Bytes of device memory that a kernel needs while it runs.
    fn workspace(&self, form: &Form, kernel: usize) -> Result<usize>;

    /// Enqueues a kernel. Addresses are those of input, weight and output, of which the form's map says which one is written.
    fn convolve(&self, form: &Form, kernel: usize, addresses: [Address; 3], workspace: Address) -> Result<()>;
}

/// Extents, or strides in elements: one a dimension.
pub type Sizes = SmallVec<[i64; 5]>;

/// A tensor in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Samples or outputs, channels, and the extents of a volume or window.
    pub extents: Sizes,
    /// In elements.
    pub strides: Sizes,
}

/// The map of a convolution that is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Map {
    /// Input and weight to output.
    Forward,
    /// Gradient of the output, and weight, to the gradient of the input.
    Input,
    /// Gradient of the output, and input, to the gradient of the weight.
    Weight,
}

/// All of a convolution but its addresses. A library chooses its kernels by this.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// The map of the convolution.
    pub map: Map,
    /// Of all operands.
    pub dtype: DType,
    /// The precision of products of f32.
    pub precision: Precision,
    /// Whether every run must give the same bits.
    pub is_deterministic: bool,
    /// `[N, C, ..]`
    pub input: View,
    /// `[O, C / groups, ..]`
    pub weight: View,
    /// `[N, O, ..]`
    pub output: View,
    /// Distance between windows.
    pub stride: Sizes,
    /// Padding before the first element, and after the last one.
    pub padding: [Sizes; 2],
    /// Distance between elements of a window.
    pub dilation: Sizes,
}
