//! Ops one by one.

use super::{Case, cpu, fill, integers};
use isograd_core::ops::{
    Activation, Approximate, Attention, AvgPool, Causal, Conv, ConvTranspose, Gemm, GemmBias, Interpolate,
    Interpolation, MaxPool, Order, Pad, Padding, Rounding, Running, ScanOptions, Statistics, Swiglu, Target, Tie,
    Transpose,
};
use isograd_core::{DType, Result, Tensor};

type Unary = fn(&Tensor) -> Result<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

const ANY: [f64; 2] = [-3.0, 3.0];
const POSITIVE: [f64; 2] = [0.1, 4.0];
const INSIDE: [f64; 2] = [-0.95, 0.95];

/// Functions of one operand, and the range of its elements.
const UNARY: &[(&str, Unary, [f64; 2])] = &[
    ("relu", Tensor::relu, ANY),
    ("sigmoid", Tensor::sigmoid, ANY),
    ("tanh", Tensor::tanh, ANY),
    ("silu", Tensor::silu, ANY),
    ("mish", Tensor::mish, ANY),
    ("hardswish", Tensor::hardswish, [-5.0, 5.0]),
    ("hardsigmoid", Tensor::hardsigmoid, [-5.0, 5.0]),
    ("relu6", Tensor::relu6, [-2.0, 9.0]),
    ("hardsigmoid_with", |x| x.hardsigmoid_with(0.3, 0.4), [-5.0, 5.0]),
    ("selu", Tensor::selu, ANY),
    ("selu_with", |x| x.selu_with(0.9, 1.3), ANY),
    ("softsign", Tensor::softsign, ANY),
    ("logsigmoid", Tensor::logsigmoid, ANY),
    ("tanhshrink", Tensor::tanhshrink, ANY),
    ("relu_squared", Tensor::relu_squared, ANY),
    ("gelu", |x| x.gelu(Approximate::None), ANY),
    ("gelu_tanh", |x| x.gelu(Approximate::Tanh), ANY),
    ("leaky_relu", |x| x.leaky_relu(0.1), ANY),
    ("elu", |x| x.elu(0.7), ANY),
    ("celu", |x| x.celu(0.7), ANY),
    ("softplus", |x| x.softplus(1.0, 20.0), ANY),
    ("softplus_beta", |x| x.softplus(2.0, 3.0), ANY),
    ("hardtanh", |x| x.hardtanh(-1.0, 2.0), ANY),
    ("threshold", |x| x.threshold(0.5, -2.0), ANY),
    ("softshrink", |x| x.softshrink(0.5), ANY),
    ("hardshrink", |x| x.hardshrink(0.5), ANY),
    ("glu", |x| x.glu(1), ANY),
    ("neg", Tensor::neg, ANY),
    ("abs", Tensor::abs, ANY),
    ("sign", Tensor::sign, ANY),
    ("square", Tensor::square, ANY),
    ("exp", Tensor::exp, ANY),
    ("exp2", Tensor::exp2, ANY),
    ("expm1", Tensor::expm1, [-2.0, 2.0]),
    ("expm1_near_0", Tensor::expm1, [-1e-4, 1e-4]),
    ("log", Tensor::log, POSITIVE),
    ("log2", Tensor::log2, POSITIVE),
    ("log10", Tensor::log10, POSITIVE),
    ("log1p", Tensor::log1p, POSITIVE),
    ("log1p_near_0", Tensor::log1p, [-1e-4, 1e-4]),
    ("sqrt", Tensor::sqrt, POSITIVE),
    ("rsqrt", Tensor::rsqrt, POSITIVE),
    ("reciprocal", Tensor::reciprocal, POSITIVE),
    ("sin", Tensor::sin, ANY),
    ("cos", Tensor::cos, ANY),
    ("tan", Tensor::tan, [-1.2, 1.2]),
    ("asin", Tensor::asin, INSIDE),
    ("acos", Tensor::acos, INSIDE),
    ("atan", Tensor::atan, ANY),
    ("sinh", Tensor::sinh, ANY),
    ("cosh", Tensor::cosh, ANY),
    ("asinh", Tensor::asinh, ANY),
    ("acosh", Tensor::acosh, [1.1, 4.0]),
    ("atanh", Tensor::atanh, INSIDE),
    ("erf", Tensor::erf, ANY),
    ("erfc", Tensor::erfc, [-1.0, 1.0]),
    ("erfc_far", |x| x.erfc()?.log(), [0.0, 9.0]),
    ("sinc", Tensor::sinc, ANY),
    ("logit", |x| x.logit(Some(0.1)), [-0.2, 1.2]),
    ("floor", Tensor::floor, ANY),
    ("ceil", Tensor::ceil, ANY),
    ("round", Tensor::round, ANY),
    ("trunc", Tensor::trunc, ANY),
    ("frac", Tensor::frac, ANY),
    ("add_scalar", |x| x.add_scalar(2.0), ANY),
    ("rsub_scalar", |x| x.rsub_scalar(2.0), ANY),
    ("mul_scalar", |x| x.mul_scalar(2.5), ANY),
    ("div_scalar", |x| x.div_scalar(2.5), ANY),
    ("rdiv_scalar", |x| x.rdiv_scalar(2.5), POSITIVE),
    ("pow_scalar", |x| x.pow_scalar(1.7), POSITIVE),
    ("pow_cube", |x| x.pow_scalar(3.0), ANY),
    ("rpow_scalar", |x| x.rpow_scalar(1.7), ANY),
    ("clamp", |x| x.clamp(Some((-0.5).into()), Some(1.5.into())), ANY),
    ("clamp_low", |x| x.clamp(Some((-0.5).into()), None), ANY),
    (
        "in_place",
        |x| {
            let y = x.exp()?;
            y.add_(x)?;
            y.mul_(x)?;
            Ok(y)
        },
        ANY,
    ),
    ("to_i64", |x| x.cast(DType::I64), ANY),
    ("to_f64", |x| x.cast(DType::F64), ANY),
    ("to_bool", |x| x.floor()?.cast(DType::Bool), ANY),
    ("eq_scalar", |x| x.floor()?.eq_scalar(1.0), ANY),
    ("ne_scalar", |x| x.floor()?.ne_scalar(1.0), ANY),
    ("lt_scalar", |x| x.lt_scalar(1.0), ANY),
    ("ge_scalar", |x| x.ge_scalar(1.0), ANY),
    ("isnan", |x| x.log()?.isnan(), ANY),
    ("isfinite", |x| x.floor()?.reciprocal()?.isfinite(), ANY),
    ("isinf", |x| x.floor()?.reciprocal()?.isinf(), ANY),
    ("where_scalar", |x| x.gt_scalar(0.0)?.where_scalar(x, -1.0), ANY),
    (
        "logical",
        |x| {
            let (a, b) = (x.gt_scalar(0.0)?, x.lt_scalar(1.0)?);
            a.logical_and(&b)?.logical_or(&b.logical_not()?)?.logical_xor(&a)
        },
        ANY,
    ),
    ("all_of_rows", |x| x.gt_scalar(-2.0)?.all(1), ANY),
    ("any_of_rows", |x| x.gt_scalar(2.5)?.any(1), ANY),
    ("sum", |x| x.sum(1), ANY),
    ("sum_of_all", |x| x.sum(..), ANY),
    ("sum_of_batch", |x| x.sum(0), ANY),
    ("sum_keepdim", |x| x.sum_keepdim([1, 2]), ANY),
    ("sum_of_bool", |x| x.gt_scalar(0.0)?.sum(-1), ANY),
    ("mean", |x| x.mean([0, 2]), ANY),
    ("prod", |x| x.prod(-1), ANY),
    ("l2_norm", |x| x.l2_norm(1), ANY),
    ("amax", |x| x.amax(1), ANY),
    ("amin", |x| x.amin(..), ANY),
    ("logsumexp", |x| x.logsumexp(2), ANY),
    ("var", |x| x.var(1, 1.0), ANY),
    ("std", |x| x.std(2, 0.0), ANY),
    ("argmax", |x| x.argmax(1), ANY),
    ("argmax_last", |x| x.floor()?.argmax_with(1, Tie::Last), ANY),
    ("argmin_last_of_planes", |x| x.floor()?.argmin_with([1, 2], Tie::Last), ANY),
    ("argmin_of_all", |x| x.argmin(..), ANY),
    ("argmax_of_planes", |x| x.argmax([1, 2]), ANY),
    ("softmax", |x| x.softmax(1), ANY),
    ("log_softmax", |x| x.log_softmax(-1), ANY),
    ("softmin", |x| x.softmin(-1), ANY),
    ("cumsum", |x| x.cumsum(1), ANY),
    ("cumsum_with", |x| x.cumsum_with(2, &ScanOptions { exclusive: true, reverse: true }), ANY),
    ("reshape", |x| x.reshape((x.dims()[0], 30)), ANY),
    ("reshape_batch_away", |x| x.reshape((x.numel() / 5, 5)), ANY),
    ("reshape_twice_batch", |x| x.reshape((x.dims()[0] * 2, 3, 5)), ANY),
    ("flatten", |x| x.flatten(0, -1), ANY),
    ("transpose", |x| x.transpose(0, 2), ANY),
    ("permute", |x| x.permute(&[2, 0, 1]), ANY),
    ("permute_and_reshape", |x| x.permute(&[0, 2, 1])?.reshape((x.dims()[0], 30)), ANY),
    ("narrow", |x| x.narrow(1, 1, 3), ANY),
    ("narrow_from_batch", |x| x.narrow(0, 1, x.dims()[0] - 1), ANY),
    ("slice", |x| x.slice(2, 0, 5, 2), ANY),
    ("select", |x| x.select(1, -2), ANY),
    ("select_of_batch", |x| x.select(0, 0), ANY),
    ("unsqueeze", |x| x.unsqueeze(1)?.unsqueeze(-1), ANY),
    ("squeeze", |x| x.narrow(1, 0, 1)?.squeeze(1), ANY),
    ("broadcast_to", |x| x.unsqueeze(1)?.broadcast_to((x.dims()[0], 3, 6, 5)), ANY),
    ("broadcast_before", |x| x.broadcast_to((2, x.dims()[0], 6, 5)), ANY),
    ("flip", |x| x.flip(&[1, 2]), ANY),
    ("roll", |x| x.roll(2, 1), ANY),
    ("repeat", |x| x.repeat(&[1, 2, 3]), ANY),
    (
        "split_with_sizes",
        |x| Tensor::concat(&x.split_with_sizes(&[1, 2, 3], 1)?.iter().rev().collect::<Vec<_>>(), 1),
        ANY,
    ),
    ("tensor_split", |x| Tensor::concat(&x.tensor_split(4, -1)?.iter().rev().collect::<Vec<_>>(), -1), ANY),
    ("windows", |x| x.windows(1, 3, 2), ANY),
    ("windows_of_last", |x| x.windows(-1, 2, 1)?.sum(-1), ANY),
    ("split", |x| Tensor::concat(&x.split(4, 1)?.iter().rev().collect::<Vec<_>>(), 1), ANY),
    ("stack", |x| Tensor::stack(&[x, &x.neg()?], 1), ANY),
    ("concat_of_batch", |x| Tensor::concat(&[x, x], 0), ANY),
    ("tril", |x| x.tril(1), ANY),
    ("triu", |x| x.triu(-1), ANY),
    ("pad", |x| x.pad(&[[1, 2], [3, 0]], Pad::Constant(1.5.into())), ANY),
    ("pad_reflect", |x| x.pad(&[[1, 2], [2, 1]], Pad::Reflect), ANY),
    ("pad_replicate", |x| x.pad(&[[1, 2]], Pad::Replicate), ANY),
    ("pad_circular", |x| x.pad(&[[1, 2]], Pad::Circular), ANY),
    ("crop", |x| x.pad(&[[-1, 2], [-2, -1]], Pad::ZEROS), ANY),
    ("sort", |x| Ok(x.sort(1, Order::Descending)?.0), ANY),
    ("argsort", |x| x.argsort(2, Order::Ascending), ANY),
    (
        "max_and_index",
        |x| {
            let (y, i) = x.max(1)?;
            y.add(&i.cast(DType::F32)?)
        },
        ANY,
    ),
    ("rms_norm", |x| x.rms_norm(1, None, 1e-5), ANY),
    ("layer_norm", |x| x.layer_norm(2, None, None, 1e-5), ANY),
    ("group_norm", |x| x.group_norm(3, None, None, 1e-5), ANY),
    ("group_norm_of_vectors", |x| x.select(2, 0)?.group_norm(3, None, None, 1e-5), ANY),
    ("cummax", |x| Ok(x.cummax(1)?.0), ANY),
    ("instance_norm", |x| x.instance_norm(None, None, Statistics::Batch, 1e-5), ANY),
    ("batch_norm_of_batch", |x| x.batch_norm(None, None, Statistics::Batch, 1e-5), ANY),
    ("max_pool1d", |x| x.max_pool1d(&MaxPool { padding: [1], ..MaxPool::new([2]) }), ANY),
    ("avg_pool1d", |x| x.avg_pool1d(&AvgPool::new([2])), ANY),
    ("interpolate_1d", |x| x.interpolate(&Interpolate::size([7]).mode(Interpolation::Linear)), ANY),
];

/// Functions of two operands that broadcast, of floats.
const BINARY: &[(&str, Binary, [f64; 2])] = &[
    ("add", Tensor::add, ANY),
    ("sub", Tensor::sub, ANY),
    ("add_scaled", |a, b| a.add_scaled(b, 0.5), ANY),
    ("mul", Tensor::mul, ANY),
    ("div", Tensor::div, POSITIVE),
    ("pow", Tensor::pow, POSITIVE),
    ("maximum", Tensor::maximum, ANY),
    ("minimum", Tensor::minimum, ANY),
    ("fmax", Tensor::fmax, ANY),
    ("hypot", Tensor::hypot, ANY),
    ("logaddexp", Tensor::logaddexp, ANY),
    ("atan2", Tensor::atan2, ANY),
    ("xlogy", Tensor::xlogy, POSITIVE),
    ("remainder", Tensor::remainder, ANY),
    ("fmod", Tensor::fmod, ANY),
    ("div_floor", |a, b| a.div_rounded(b, Rounding::Floor), ANY),
    ("div_trunc", |a, b| a.div_rounded(b, Rounding::Trunc), ANY),
    ("copysign", Tensor::copysign, ANY),
    ("heaviside", Tensor::heaviside, ANY),
    ("eq", |a, b| a.floor()?.eq(&b.floor()?), ANY),
    ("ne", |a, b| a.floor()?.ne(&b.floor()?), ANY),
    ("lt", Tensor::lt, ANY),
    ("gt", Tensor::gt, ANY),
    ("le", Tensor::le, ANY),
    ("ge", Tensor::ge, ANY),
    ("where_cond", |a, b| a.gt(b)?.where_cond(a, b), ANY),
    (
        "swiglu_with",
        |a, b| a.swiglu_with(&b.broadcast_to(a.shape())?, &Swiglu { alpha: 1.702, beta: 1.0, limit: 1.5 }),
        ANY,
    ),
    ("swiglu", |a, b| a.swiglu(&b.broadcast_to(a.shape())?), ANY),
    ("lerp_scalar", |a, b| a.lerp_scalar(b, 0.3), ANY),
    ("addcmul", |a, b| a.addcmul(a, b, 0.5), ANY),
    ("addcdiv", |a, b| a.addcdiv(a, b, 0.5), POSITIVE),
    ("clamp_tensor", |a, b| a.clamp_tensor(Some(&b.sub_scalar(1.0)?), Some(b)), ANY),
];

/// Functions of two operands of integers, of which the second has no 0.
const INTEGERS: &[(&str, Binary)] = &[
    ("i64_add", Tensor::add),
    ("i64_mul", Tensor::mul),
    ("i64_maximum", Tensor::maximum),
    ("i64_remainder", |a, b| a.sub_scalar(9)?.remainder(b)),
    ("i64_fmod", |a, b| a.sub_scalar(9)?.fmod(b)),
    ("i64_div_floor", |a, b| a.sub_scalar(9)?.div_rounded(b, Rounding::Floor)),
    ("i64_div_trunc", |a, b| a.sub_scalar(9)?.div_rounded(b, Rounding::Trunc)),
    ("i64_and", Tensor::bitwise_and),
    ("i64_or", Tensor::bitwise_or),
    ("i64_xor", Tensor::bitwise_xor),
    ("i64_not", |a, _| a.bitwise_not()),
    ("i64_left_shift", |a, b| a.sub_scalar(9)?.bitwise_left_shift(&b.mul_scalar(14)?)),
    ("i64_right_shift", |a, b| a.sub_scalar(9)?.bitwise_right_shift(&b.sub_scalar(2)?)),
    ("i64_pow", |a, _| a.pow_scalar(2)),
    ("i64_sum", |a, _| a.sum(1)),
    ("i64_clamp", |a, _| a.clamp(Some(3.into()), Some(9.into()))),
    ("i64_lt", Tensor::lt),
    ("i64_cumsum", |a, _| a.cumsum(1)),
    ("i64_neg", |a, _| a.neg()),
    ("one_hot", |a, _| a.one_hot(20)),
];

fn one(name: &str, x: Tensor, f: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Case {
    Case::new(name, vec![x], move |x| Ok(vec![f(&x[0])?]))
}

fn two(
    name: &str,
    a: Tensor,
    b: Tensor,
    f: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Case {
    Case::new(name, vec![a, b], move |x| Ok(vec![f(&x[0], &x[1])?]))
}

/// Images `[4, 3, 9, 8]`.
fn images() -> Tensor {
    fill((4, 3, 9, 8), 1, ANY)
}

pub fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = UNARY.iter().map(|&(name, f, range)| one(name, fill((4, 6, 5), 1, range), f)).collect();
    for &(name, f, range) in BINARY {
        all.push(two(name, fill((4, 3, 5), 1, range), fill((4, 1, 5), 2, range), f));
    }
    for &(name, f) in INTEGERS {
        let b = integers((4, 3), 2, 5).add_scalar(1).expect("integers add");
        all.push(two(name, integers((4, 3), 1, 20), b, f));
    }
    all.extend(linear());
    all.extend(images_and_volumes());
    all.extend(indices());
    all
}

fn linear() -> Vec<Case> {
    let (x, w) = (fill((4, 5), 1, ANY), fill((6, 5), 2, ANY));
    let bias = fill(6, 3, ANY);
    let (q, k) = (fill((4, 4, 6, 8), 1, ANY), fill((4, 2, 7, 8), 2, ANY));
    let attention = |name: &str, attention: Attention| {
        let same = k.clone();
        Case::new(name, vec![q.clone(), k.clone()], move |x| {
            let _ = &same;
            let (y, lse) = x[0].scaled_dot_product_attention_with_lse(&x[1], &x[1].neg()?, &attention)?;
            Ok(vec![y, lse])
        })
    };
    let linear = |activation| {
        let (w, bias) = (w.clone(), bias.clone());
        move |x: &Tensor| {
            x.gemm_bias(&w, Some(&bias), &GemmBias { trans_b: Transpose::Yes, activation, ..GemmBias::default() })
        }
    };
    let mask = fill((7,), 5, ANY).lt_scalar(1.0).expect("a mask");
    let (w2, w3, bias3) = (w.clone(), w.clone(), bias.clone());
    vec![
        two("matmul", x.clone(), fill((4, 5, 3), 2, ANY), |a, b| a.matmul(b)).batch_at(&[None, Some(0)]),
        two("matmul_of_batches", fill((4, 2, 5), 1, ANY), fill((4, 5, 3), 2, ANY), |a, b| a.matmul(b)),
        one("matmul_of_a_matrix", fill((4, 2, 5), 1, ANY), move |x| x.matmul(&w2.t()?)),
        two("matmul_of_vectors", x.clone(), fill((5,), 2, ANY), |a, b| a.matmul(b)).batch_at(&[Some(0), None]),
        one("linear", x.clone(), linear(Activation::Identity)),
        one("linear_relu", x.clone(), linear(Activation::Relu)),
        one("linear_gelu", x.clone(), linear(Activation::Gelu(Approximate::None))),
        one("linear_of_batches", fill((4, 2, 5), 1, ANY), move |x| x.linear(&w3, Some(&bias3))),
        two("gemm", x.clone(), fill((5, 3), 2, ANY), |a, b| {
            a.gemm(b, Some(&fill((1, 3), 4, ANY)), &Gemm { alpha: 0.5, beta: 2.0 })
        })
        .batch_at(&[Some(0), None]),
        two("gemm_of_batches", fill((4, 2, 5), 1, ANY), fill((4, 5, 3), 2, ANY), |a, b| {
            a.gemm(b, Some(&fill((1, 3), 4, ANY)), &Gemm { alpha: 0.5, beta: 2.0 })
        }),
        one("layer_norm_of_weights", fill((4, 3, 6), 1, ANY), |x| {
            x.layer_norm(1, Some(&fill((6,), 2, ANY)), Some(&fill((6,), 3, ANY)), 1e-5)
        }),
        one("rms_norm_of_weights", fill((4, 3, 6), 1, ANY), |x| x.rms_norm(1, Some(&fill((6,), 2, ANY)), 1e-5)),
        two("residual_layer_norm", fill((4, 6), 1, ANY), fill((4, 6), 2, ANY), |x, r| {
            let (y, s) = x.residual_layer_norm(r, 1, None, Some(&fill((6,), 3, ANY)), 1e-5)?;
            y.add(&s)
        }),
        two("residual_layer_norm_of_16_bits", fill((4, 6), 1, ANY), fill((4, 6), 2, ANY), |x, r| {
            let (y, s) = x.cast(DType::F16)?.residual_layer_norm(r, 1, None, Some(&fill((6,), 3, ANY)), 1e-5)?;
            y.cast(DType::F32)?.add(&s)
        }),
        attention("attention", Attention::default()),
        attention("attention_causal", Attention { causal: Causal::BottomRight, ..Attention::default() }),
        attention("attention_window", Attention { window: Some([1, 2]), scale: Some(0.3), ..Attention::default() }),
        attention("attention_mask", Attention { mask: Some(mask), ..Attention::default() }),
        attention("attention_bias", Attention { mask: Some(fill((6, 7), 4, ANY)), ..Attention::default() }),
    ]
}

/// `f` of the running statistics of some channels.
fn by_running(channels: usize, f: impl Fn(Statistics<'_>) -> Result<Tensor>) -> Result<Tensor> {
    let (mean, var) = (fill((channels,), 5, ANY), fill((channels,), 6, POSITIVE));
    f(Statistics::Running(Running { mean: &mean, var: &var, batches: None, momentum: None }))
}

fn images_and_volumes() -> Vec<Case> {
    let conv = |name: &str, weight: [usize; 4], conv: Conv<2>| {
        let (w, bias) = (fill(weight, 2, INSIDE), fill((weight[0],), 3, ANY));
        one(name, images(), move |x| x.conv2d(&w, Some(&bias), &conv))
    };
    let ends = Padding::Ends([[1, 0], [2, 1]]);
    let max = MaxPool { stride: [2, 1], padding: [1, 1], ..MaxPool::new([3, 2]) };
    let avg = AvgPool { stride: [2, 1], padding: [1, 1], ..AvgPool::new([3, 2]) };
    let to = |mode| Interpolate::size([13, 5]).mode(mode);
    let by = |mode| Interpolate::scale([2.0, 1.5]).mode(mode);
    vec![
        one("conv1d", fill((4, 3, 9), 1, ANY), |x| x.conv1d(&fill((2, 3, 3), 2, INSIDE), None, &Conv::default())),
        conv("conv2d", [4, 3, 3, 2], Conv::default()),
        conv(
            "conv2d_strided",
            [4, 3, 3, 2],
            Conv { stride: [2, 1], padding: Padding::Each([1, 2]), ..Conv::default() },
        ),
        conv("conv2d_dilated", [4, 3, 3, 2], Conv { dilation: [2, 3], padding: ends, ..Conv::default() }),
        conv("conv2d_same", [4, 3, 4, 2], Conv { padding: Padding::Same, ..Conv::default() }),
        conv("conv2d_depthwise", [6, 1, 3, 3], Conv { groups: 3, ..Conv::default() }),
        one("conv3d", fill((2, 2, 4, 5, 6), 1, ANY), |x| {
            x.conv3d(&fill((3, 2, 2, 3, 3), 2, INSIDE), Some(&fill((3,), 3, ANY)), &Conv::default())
        }),
        one("conv2d_of_a_sample", fill((3, 9, 8), 1, ANY), |x| {
            x.conv2d(&fill((4, 3, 3, 3), 2, INSIDE), None, &Conv::default())
        })
        .fixed(),
        one("conv2d_channels_last", images(), |x| {
            let x = x.to_channels_last()?.conv2d(&fill((4, 3, 3, 3), 2, INSIDE), None, &Conv::default())?;
            by_running(4, |statistics| x.relu()?.batch_norm(None, None, statistics, 1e-5))
        }),
        one("conv_transpose1d", fill((4, 3, 6), 1, ANY), |x| {
            x.conv_transpose1d(
                &fill((3, 2, 3), 2, INSIDE),
                None,
                &ConvTranspose { stride: [2], ..ConvTranspose::default() },
            )
        }),
        one("conv_transpose2d", images(), |x| {
            let conv =
                ConvTranspose { stride: [2, 3], padding: [1, 0], output_padding: [1, 2], ..ConvTranspose::default() };
            x.conv_transpose2d(&fill((3, 4, 3, 3), 2, INSIDE), Some(&fill((4,), 3, ANY)), &conv)
        }),
        one("conv_transpose2d_groups", images(), |x| {
            let conv = ConvTranspose { groups: 3, dilation: [2, 1], ..ConvTranspose::default() };
            x.conv_transpose2d(&fill((3, 2, 2, 3), 2, INSIDE), None, &conv)
        }),
        one("max_pool2d", images(), move |x| x.max_pool2d(&max)),
        one("max_pool2d_dilated", images(), move |x| x.max_pool2d(&MaxPool { dilation: [2, 2], ..max })),
        one("max_pool2d_ceil", images(), move |x| x.max_pool2d(&MaxPool { ceil_mode: true, ..MaxPool::new([2, 3]) })),
        Case::new("max_pool2d_with_indices", vec![images()], move |x| {
            let (y, index) = x[0].max_pool2d_with_indices(&max)?;
            Ok(vec![y, index])
        }),
        one("max_pool2d_of_a_sample", fill((3, 9, 8), 1, ANY), move |x| x.max_pool2d(&max)).fixed(),
        one("max_pool3d", fill((2, 2, 4, 5, 6), 1, ANY), |x| x.max_pool3d(&MaxPool::new([2, 2, 3]))),
        one("avg_pool2d", images(), move |x| x.avg_pool2d(&avg)),
        one("avg_pool2d_without_padding", images(), move |x| {
            x.avg_pool2d(&AvgPool { count_include_pad: false, ..avg })
        }),
        one("avg_pool2d_ceil", images(), move |x| x.avg_pool2d(&AvgPool { ceil_mode: true, ..AvgPool::new([2, 3]) })),
        one("avg_pool2d_divisor", images(), move |x| x.avg_pool2d(&AvgPool { divisor_override: Some(5), ..avg })),
        one("avg_pool3d", fill((2, 2, 4, 5, 6), 1, ANY), |x| x.avg_pool3d(&AvgPool::new([2, 2, 3]))),
        one("global_avg_pool2d", images(), Tensor::global_avg_pool2d),
        one("global_max_pool2d", images(), Tensor::global_max_pool2d),
        one("adaptive_avg_pool2d", images(), |x| x.adaptive_avg_pool2d([3, 4])),
        one("adaptive_avg_pool2d_uneven", images(), |x| x.adaptive_avg_pool2d([4, 3])),
        one("adaptive_max_pool2d", images(), |x| x.adaptive_max_pool2d([3, 4])),
        one("adaptive_max_pool2d_uneven", images(), |x| x.adaptive_max_pool2d([4, 3])),
        one("interpolate_nearest", images(), move |x| x.interpolate(&to(Interpolation::Nearest))),
        one("interpolate_nearest_exact", images(), move |x| x.interpolate(&to(Interpolation::NearestExact))),
        one("interpolate_linear", images(), move |x| x.interpolate(&to(Interpolation::Linear))),
        one("interpolate_corners", images(), move |x| x.interpolate(&to(Interpolation::Linear).align_corners())),
        one("interpolate_cubic", images(), move |x| x.interpolate(&to(Interpolation::Cubic))),
        one("interpolate_cubic_a", images(), move |x| x.interpolate(&to(Interpolation::Cubic).cubic_a(-0.6))),
        one("interpolate_inside", images(), move |x| x.interpolate(&to(Interpolation::Cubic).exclude_outside())),
        one("interpolate_antialias", images(), move |x| x.interpolate(&to(Interpolation::Linear).antialias())),
        one("interpolate_antialias_cubic", images(), move |x| x.interpolate(&to(Interpolation::Cubic).antialias())),
        one("interpolate_not_larger", images(), |x| {
            x.interpolate(&Interpolate::to(Target::NotLarger([13, 5])).mode(Interpolation::Linear))
        }),
        one("interpolate_not_smaller", images(), |x| {
            x.interpolate(&Interpolate::to(Target::NotSmaller([13, 5])).mode(Interpolation::Linear))
        }),
        one("interpolate_area", images(), move |x| x.interpolate(&to(Interpolation::Area))),
        one("interpolate_twice", images(), |x| x.interpolate(&Interpolate::scale([2.0, 2.0]))),
        one("interpolate_by", images(), move |x| x.interpolate(&by(Interpolation::Linear))),
        one("interpolate_volume", fill((2, 2, 4, 5, 6), 1, ANY), |x| {
            x.interpolate(&Interpolate::size([5, 7, 3]).mode(Interpolation::Linear))
        }),
        one("batch_norm", images(), |x| {
            by_running(3, |statistics| {
                x.batch_norm(Some(&fill((3,), 2, ANY)), Some(&fill((3,), 3, ANY)), statistics, 1e-5)
            })
        }),
        one("batch_norm_relu", images(), |x| {
            by_running(3, |statistics| x.batch_norm_relu(Some(&fill((3,), 2, ANY)), None, statistics, 1e-5, None))
        }),
        two("batch_norm_relu_of_a_sum", images(), images(), |x, r| {
            by_running(3, |statistics| x.batch_norm_relu(None, Some(&fill((3,), 3, ANY)), statistics, 1e-5, Some(r)))
        }),
        one("batch_norm_relu6", images(), |x| {
            let weight = fill((3,), 2, ANY).mul_scalar(6.0)?;
            by_running(3, |statistics| x.batch_norm_relu6(Some(&weight), None, statistics, 1e-5))
        }),
        one("group_norm_of_weights", fill((4, 6, 3, 3), 1, ANY), |x| {
            x.group_norm(3, Some(&fill((6,), 2, ANY)), Some(&fill((6,), 3, ANY)), 1e-5)
        }),
        one("prelu", images(), |x| x.prelu(&fill((3,), 2, POSITIVE))),
    ]
}

fn indices() -> Vec<Case> {
    let x = fill((4, 6, 5), 1, ANY);
    let along = |shape: [usize; 3]| integers(shape, 2, 6);
    vec![
        two("gather", x.clone(), along([4, 3, 5]), |x, i| x.gather(1, i)),
        two("index_select", x.clone(), integers((7,), 2, 6), |x, i| x.index_select(1, i)).batch_at(&[Some(0), None]),
        two("take_rows", x.clone(), integers((4,), 2, 2), |x, i| x.index_select(0, i)).batch_at(&[Some(0), None]),
        two("embedding_table", fill((9, 3), 1, ANY), integers((4, 2), 2, 9), |table, i| {
            table.embedding(i, &Default::default())
        })
        .batch_at(&[None, Some(0)]),
        two("scatter_add", x.clone(), along([4, 3, 5]), |x, i| x.scatter_add(1, i, &x.narrow(1, 0, 4)?.exp()?)),
        two("scatter", x.clone(), integers((4, 1, 5), 2, 6), |x, i| x.scatter(1, i, &x.narrow(1, 0, 1)?.exp()?)),
        Case::new("topk", vec![x.clone()], |x| {
            let (values, index) = x[0].topk(3, 1, Order::Descending)?;
            Ok(vec![values, index])
        }),
        Case::new("outputs_that_are_inputs_and_constants", vec![x], |x| {
            Ok(vec![x[0].clone(), x[0].clone(), Tensor::arange(5, &cpu())?])
        }),
    ]
}
