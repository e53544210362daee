//! Kernels by family: which one a call takes, and its launches.

mod batch_norm;
mod cross_entropy;
mod custom;
mod distance;
mod dropout;
mod each;
mod elementwise;
mod gather;
mod group_norm;
mod index;
pub mod matmul;
mod norm;
mod pooling;
mod prod;
mod radix_sort;
mod random;
mod reduce;
mod reduce_prologue;
mod rotary;
mod sample;
mod scan;
mod scatter;
mod segment;
mod softmax;
mod sort;
mod total;

use crate::launch::device::Gpu;
use isograd_core::backend::Fused;
use isograd_core::{Call, DType, Error, Kernel, Result};

/// Launches the kernels of a call.
pub fn run(gpu: &Gpu, call: &Call<'_>) -> Result<()> {
    match call.kernel {
        Kernel::Fill | Kernel::Copy | Kernel::Cast | Kernel::Pointwise(_) => elementwise::run(gpu, call),
        Kernel::Reduce(_) | Kernel::ArgMax | Kernel::ArgMin => reduce::run(gpu, call),
        Kernel::Fused(kernel) => run_fused(gpu, call, kernel),
        Kernel::Scan(kind) => scan::run(gpu, call, kind),
        Kernel::Matmul => matmul::run(gpu, call),
        Kernel::Gather => gather::run(gpu, call),
        Kernel::Scatter(mode) => scatter::run(gpu, call, mode),
        Kernel::Random(kind) => random::run(gpu, call, kind),
        Kernel::Sort => sort::run(gpu, call),
        Kernel::Custom(op) => custom::run(gpu, call, op),
    }
}

/// True for the dtypes of the fused kernels.
pub fn supports(gpu: &Gpu, kernel: Fused, dtype: DType) -> bool {
    let limits = gpu.driver().limits();
    if kernel == Fused::Positions {
        return dtype == DType::Bool;
    }
    let fits = match kernel {
        Fused::ProdBackward => prod::supports(limits),
        // There are all of the norms.
        Fused::Moments => false,
        _ => true,
    };
    fits && dtype.is_float() && (dtype != DType::F64 || limits.has_f64)
}

fn run_fused(gpu: &Gpu, call: &Call<'_>, kernel: Fused) -> Result<()> {
    match kernel {
        Fused::Softmax | Fused::SoftmaxBackward => softmax::run(gpu, call),
        Fused::Norm => norm::norm(gpu, call, None),
        Fused::EmbeddingNorm => norm::norm(gpu, call, call.inputs.last()),
        Fused::NormBackward => norm::norm_backward(gpu, call, None),
        Fused::EmbeddingNormBackward => norm::norm_backward(gpu, call, call.inputs.last()),
        Fused::BatchNorm => batch_norm::batch_norm(gpu, call),
        Fused::BatchNormBackward => batch_norm::batch_norm_backward(gpu, call),
        Fused::GroupNorm => group_norm::group_norm(gpu, call),
        Fused::GroupNormBackward => group_norm::group_norm_backward(gpu, call),
        Fused::CrossEntropy => cross_entropy::cross_entropy(gpu, call),
        Fused::CrossEntropyBackward => cross_entropy::cross_entropy_backward(gpu, call),
        Fused::RowLoss(loss) => distance::run(gpu, call, loss, false),
        Fused::RowLossBackward(loss) => distance::run(gpu, call, loss, true),
        Fused::Dropout => dropout::run(gpu, call),
        Fused::IndexReduce(kind) => segment::reduce(gpu, call, kind),
        Fused::IndexReduceBackward(kind) => segment::reduce_backward(gpu, call, kind),
        Fused::Rotary => rotary::run(gpu, call),
        Fused::SampleLogits => sample::run(gpu, call),
        Fused::GemmBias(_) => matmul::run(gpu, call),
        Fused::MatmulSum => matmul::run_with_sums(gpu, call),
        Fused::MatmulPointwise(row) => matmul::run_with_pointwise(gpu, call, row),
        Fused::Each(row) | Fused::EachNorms(row) | Fused::PointwiseTotal(row) => each::run(gpu, call, row),
        Fused::PointwiseSum(row) => reduce::pointwise_sum(gpu, call, row),
        Fused::Halves(row) => elementwise::halves(gpu, call, row),
        Fused::LogSumExp | Fused::Variance => reduce::run(gpu, call),
        Fused::Moments => Err(Error::unsupported(call.op, "norms have kernels of their own")),
        Fused::ProdBackward => prod::backward(gpu, call),
        Fused::Positions => scan::positions(gpu, call),
        Fused::Total(kind) => total::run(gpu, call, kind),
        Fused::Unscale => total::unscale(gpu, call),
        Fused::MaxPool | Fused::AvgPool => pooling::forward(gpu, call),
        Fused::MaxPoolBackward | Fused::AvgPoolBackward => pooling::backward(gpu, call),
    }
}
