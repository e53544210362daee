//! The families of ops, by which reports and tables group them.

use std::fmt;

/// The family of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// Activations.
    Activation,
    /// Functions of one operand.
    Unary,
    /// Arithmetic of two operands, or of a tensor and a number.
    Binary,
    /// Comparisons and logic.
    Comparison,
    /// Several arithmetic steps as one pointwise function.
    FusedPointwise,
    /// Copies, casts and changes in place.
    Copy,
    /// Other shapes of the same elements.
    View,
    /// Elements in another order, several times, with padding, or of several tensors.
    Arrange,
    /// Tensors without inputs, other than draws.
    Factory,
    /// Gathers, scatters, sorting, tables and sums of rows by index.
    Indexing,
    /// Elements by mask or place, searches and counts.
    Selection,
    /// Reductions, extrema and scans.
    Reduction,
    /// Matrix products.
    Matrix,
    /// Distances and similarities of vectors.
    Similarity,
    /// Softmax, and normalisation of rows and of channels.
    Normalization,
    /// Pooling.
    Pooling,
    /// Interpolation, and other orders of pixels and channels.
    Resampling,
    /// Convolution, and windows as columns.
    Conv,
    /// Attention.
    Attention,
    /// Recurrent ops.
    Recurrent,
    /// Ops of sequence models.
    Sequence,
    /// The softmax over edges, diffusion, and messages along edges.
    Graph,
    /// Convolutions over meshes.
    Mesh,
    /// Sparse matrices.
    Sparse,
    /// Draws.
    Random,
    /// Losses.
    Loss,
    /// Decompositions, linear systems and determinants.
    Linalg,
    /// Steps of optimizers, clipping and loss scaling.
    Optimizer,
    /// Modules, schedules and calls without a kernel.
    Module,
    /// Ops that a program defines.
    Custom,
}

impl Category {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Category::Activation => "activation",
            Category::Unary => "unary",
            Category::Binary => "binary",
            Category::Comparison => "comparison",
            Category::FusedPointwise => "fused pointwise",
            Category::Copy => "copy",
            Category::View => "view",
            Category::Arrange => "arrange",
            Category::Factory => "factory",
            Category::Indexing => "indexing",
            Category::Selection => "selection",
            Category::Reduction => "reduction",
            Category::Matrix => "matrix",
            Category::Similarity => "similarity",
            Category::Normalization => "normalization",
            Category::Pooling => "pooling",
            Category::Resampling => "resampling",
            Category::Conv => "convolution",
            Category::Attention => "attention",
            Category::Recurrent => "recurrent",
            Category::Sequence => "sequence",
            Category::Graph => "graph",
            Category::Mesh => "mesh",
            Category::Sparse => "sparse",
            Category::Random => "random",
            Category::Loss => "loss",
            Category::Linalg => "linalg",
            Category::Optimizer => "optimizer",
            Category::Module => "module",
            Category::Custom => "custom",
        }
    }

    /// True for pointwise functions of several operands, which may be expanded.
    pub(crate) fn has_operands(self) -> bool {
        matches!(self, Category::Binary | Category::FusedPointwise)
    }

    /// True for functions of the pointwise table.
    pub(crate) fn is_pointwise(self) -> bool {
        self.has_operands() || matches!(self, Category::Activation | Category::Unary | Category::Comparison)
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
