//! The interface of a vendor's library of neural networks: convolutions and attention.

use crate::driver::Address;
use isograd_core::{DType, Precision, Result};
use smallvec::SmallVec;

/// A vendor's library, for the queue of one device. It has several kernels for a problem, of which the caller chooses one.
pub trait Library: Send + Sync {
    /// The number of kernels for a problem. The library's own choice is the first. 0 if there are none.
    fn kernels(&self, problem: &Problem) -> Result<usize>;

    /// Bytes of device memory that a kernel needs while it runs.
    fn workspace(&self, problem: &Problem, kernel: usize) -> Result<usize>;

    /// Enqueues a kernel on operands at addresses, in the order of the problem.
    fn run(&self, problem: &Problem, kernel: usize, addresses: &[Address], workspace: Address) -> Result<()>;
}

/// All of a call but its addresses. A library chooses its kernels by this.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Problem {
    /// Operands: input, weight and output, of which the map says which one is written.
    Convolution(Box<Convolution>),
    /// Operands: those of [`Attention::operands`].
    Attention(Attention),
}

impl Problem {
    /// Whether every run must give the same bits.
    pub fn is_deterministic(&self) -> bool {
        match self {
            Problem::Convolution(problem) => problem.is_deterministic,
            Problem::Attention(problem) => problem.is_deterministic,
        }
    }
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

/// A convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// The map of the convolution.
    pub map: Map,
    /// Dtype of all operands.
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

/// Attention of queries `[B, H, Tq, D]` to keys and values `[B, Hk, Tk, D]`, or its gradients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// The dtype of all operands but the logarithms, which are f32.
    pub dtype: DType,
    /// Whether every run must give the same bits.
    pub is_deterministic: bool,
    /// Whether query i attends to the keys up to i alone.
    pub is_causal: bool,
    /// The bits of the factor of scores, an f32.
    pub scale: u32,
    /// The operands: q, k, v, the result and the logarithms of sums `[B, H, Tq, 1]`; for gradients also the gradients of the result, of
    /// q, of k and of v.
    pub operands: Vec<View>,
}

impl Attention {
    /// Whether gradients are computed.
    pub fn is_backward(&self) -> bool {
        self.operands.len() > 5
    }
}
