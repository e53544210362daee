//! Fused kernels have the same bits for any number of threads.

use crate::common::*;
use isograd_core::fused::{Fused, FusedCall};
use isograd_core::operands::{Input, Operands, Output};
use isograd_core::ops::loss::cross_entropy::{CrossEntropyForward, CrossEntropyInputs, CrossEntropyOutputs, LossTotal};
use isograd_core::ops::matrix::gemm_bias::Activation;
use isograd_core::ops::normalization::channel_norm::{
    BatchNorm, BatchNormBackward, BatchNormBackwardInputs, BatchNormBackwardOutputs, BatchNormInputs, BatchNormOutputs,
    Rectified,
};
use isograd_core::ops::normalization::norm::{
    NormBackwardInputs, NormBackwardOutputs, NormInputs, NormOutputs, RowNorm, RowNormBackward,
};
use isograd_core::ops::normalization::softmax::{Softmax, SoftmaxBackward, SoftmaxBackwardInputs, SoftmaxKind};
use isograd_core::{DType, Kernel};

/// Runs a fused kernel.
fn fused<'t, F: Fused>(descriptor: &F, inputs: F::Inputs<&'t T>, outputs: F::Outputs<&'t T>) {
    let kernel = Kernel::Fused(FusedCall::new(descriptor, &inputs, &outputs));
    run(kernel, &inputs.present(), &outputs.present(), &[], &[]);
}

fn reals(dtype: DType, dims: &[usize], seed: u64) -> T {
    T::new(dtype, dims, &Lcg(seed).reals(dims.iter().product()))
}

fn bytes(tensors: &[&T]) -> Vec<u8> {
    tensors.iter().flat_map(|t| t.bytes()).collect()
}

#[test]
fn softmax() {
    for [outer, extent, inner] in [[700, 130, 1], [3, 40_000, 1], [5, 70, 300], [1, 20_000, 3]] {
        for kind in [SoftmaxKind::Plain, SoftmaxKind::Logarithm, SoftmaxKind::PlusOne] {
            for dtype in [DType::F32, DType::BF16] {
                let dims = [outer, extent, inner];
                let (x, dy) = (reals(dtype, &dims, 1), reals(dtype, &dims, 2));
                on_threads(|| {
                    let (y, dx) = (T::out(dtype, &dims), T::out(dtype, &dims));
                    let of = Softmax { outer, extent, inner, kind };
                    fused(&of, Input { x: &x }, Output { y: &y });
                    fused(&SoftmaxBackward(of), SoftmaxBackwardInputs { dy: &dy, y: &y, x: &x }, Output { y: &dx });
                    bytes(&[&y, &dx])
                });
            }
        }
    }
}

#[test]
fn norms_of_rows() {
    for [rows, length] in [[3000, 24], [40, 3000], [2, 70_000]] {
        let [x, dy] = [3, 4].map(|seed| reals(DType::F32, &[rows, length], seed));
        let [weight, bias] = [5, 6].map(|seed| reals(DType::F32, &[length], seed));
        on_threads(|| {
            let [y, dx] = [(); 2].map(|()| T::out(DType::F32, &[rows, length]));
            let [mean, rstd] = [(); 2].map(|()| T::out(DType::F32, &[rows]));
            let [dweight, dbias] = [(); 2].map(|()| T::out(DType::F32, &[length]));
            let of = RowNorm { rows, length, is_centred: true, eps: 1e-5, activation: Activation::Silu };
            let (weight, bias) = (Some(&weight), Some(&bias));
            let outputs = NormOutputs { y: &y, mean: &mean, rstd: &rstd, sum: None };
            fused(&of, NormInputs { x: &x, residual: None, weight, bias }, outputs);
            let (mean, rstd) = (&mean, &rstd);
            let inputs = NormBackwardInputs { dy: &dy, x: &x, mean, rstd, weight, bias, added: None };
            let outputs = NormBackwardOutputs { low: None, dx: Some(&dx), weight: Some(&dweight), bias: Some(&dbias) };
            fused(&RowNormBackward(of), inputs, outputs);
            bytes(&[&y, mean, rstd, &dx, &dweight, &dbias])
        });
    }
}

#[test]
fn norms_of_channels() {
    // Planes, few elements of a channel, and adjacent channels; the last line of two is not full.
    for [batch, channels, inner] in [[7, 20, 900], [9, 33, 49], [5001, 37, 1], [70, 3000, 1]] {
        let [x, dy] = [7, 8].map(|seed| reals(DType::F32, &[batch, channels, inner], seed));
        let [weight, bias] = [9, 10].map(|seed| reals(DType::F32, &[channels], seed));
        on_threads(|| {
            let [y, dx] = [(); 2].map(|()| T::out(DType::F32, &[batch, channels, inner]));
            let [mean, rstd, running_mean, running_var, dweight, dbias] =
                [(); 6].map(|()| T::out(DType::F32, &[channels]));
            let norm =
                BatchNorm { batch, channels, inner, rectified: Rectified::Relu6, momentum: Some(0.1), eps: 1e-5 };
            let (weight, bias) = (Some(&weight), Some(&bias));
            let inputs = BatchNormInputs { x: &x, weight, bias, residual: None, mean: None, var: None };
            let (running_mean, running_var) = (Some(&running_mean), Some(&running_var));
            let outputs =
                BatchNormOutputs { y: &y, mean: &mean, rstd: &rstd, running_mean, running_var, batches: None };
            fused(&norm, inputs, outputs);
            let (mean, rstd) = (&mean, &rstd);
            let inputs = BatchNormBackwardInputs { dy: &dy, x: &x, mean, rstd, weight, y: None, bias, added: None };
            let outputs =
                BatchNormBackwardOutputs { dx: Some(&dx), weight: Some(&dweight), bias: Some(&dbias), residual: None };
            fused(&BatchNormBackward { norm, is_given: false }, inputs, outputs);
            bytes(&[&y, mean, rstd, running_mean.unwrap(), running_var.unwrap(), &dx, &dweight, &dbias])
        });
    }
}

#[test]
fn cross_entropy() {
    for [outer, classes, inner] in [[4000, 10, 1], [3, 50_000, 1], [2, 21, 5000]] {
        let x = reals(DType::F32, &[outer, classes, inner], 11);
        let mut lcg = Lcg(12);
        let targets: Vec<f64> = (0..outer * inner).map(|_| lcg.next(classes as u64) as f64).collect();
        let target = T::new(DType::I64, &[outer, inner], &targets);
        on_threads(|| {
            let (y, divisor) = (T::out(DType::F32, &[]), T::out(DType::F32, &[]));
            let statistics = T::out(DType::F32, &[2, outer * inner]);
            let (total, is_logarithm, smoothing) = (LossTotal::Mean, false, 0.1);
            let of = CrossEntropyForward { outer, classes, inner, ignored: 3, total, is_logarithm, smoothing };
            let inputs = CrossEntropyInputs { x: &x, target: &target, weight: None, bytes: None };
            fused(&of, inputs, CrossEntropyOutputs { y: &y, statistics: &statistics, divisor: Some(&divisor) });
            bytes(&[&y, &statistics, &divisor])
        });
    }
}
