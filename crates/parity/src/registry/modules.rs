//! Modules by the names of their types. Their options are attributes; their parameters are inputs, with the names in their state
//! dictionaries. Also schedules, and ops without a kernel of the table.

use super::category::Category;
use super::common::{extents, none, one};
use super::conv::{conv_of, transposed_of, unfold_of};
use super::elementwise::activation::APPROXIMATIONS;
use super::image::pooling::{avg_of, lp_of, max_of, output_of};
use super::image::resampling::{interpolate_of, interpolated_dims};
use super::indexing::index::order;
use super::indexing::select::BAGS;
use super::invocation::Invocation;
use super::matrix::matmul::activation;
use super::normalization::response;
use super::op::{Class, Derivative, LayerOf, Op, Slice};
use super::optimizer::{found, with_gradients};
use super::random::rng;
use super::shape::pad::{ends_of, padding_mode};
use crate::case::{Case, Domain};
use isograd_core::ops::EmbeddingOptions;
use isograd_core::{DType, Device, Result, Tensor};
use isograd_nn::schedule::{Constant, Cosine, OneCycle, Schedule, Step};
use isograd_nn::{self as nn, Embedding, Forward, Init, Layer, Linear, NormOptions, Sequential};
use serde_json::{Value, json};

const NO_GRADIENT: Derivative = Derivative::None("no function of float inputs");

/// All modules.
pub(super) fn modules() -> Vec<Op> {
    let layers = LAYERS.iter().map(|&(name, attributes, inputs)| module(name, attributes, inputs));
    let schedules = SCHEDULES.iter().map(|&(name, attributes)| schedule(name, attributes));
    layers
        .chain(schedules)
        .chain(others())
        .chain(super::recurrent::modules())
        .map(|op| Op { category: Category::Module, ..op })
        .collect()
}

/// Name, attributes and inputs (a name ending in `?` is an index) of an example.
type Example = (&'static str, &'static str, &'static [(&'static str, &'static [usize])]);

const LAYERS: &[Example] = &[
    ("Linear", r#"{"activation": "relu"}"#, &[("x", &[2, 3]), ("weight", &[4, 3]), ("bias", &[4])]),
    ("Embedding", r#"{"padding_idx": 1, "scale_grad_by_freq": true}"#, &[("x?", &[2, 3]), ("weight", &[4, 3])]),
    ("Dropout", r#"{"p": 0.5, "training": false, "seed": 1, "offset": 0, "stream": 0}"#, &[("x", &[2, 3])]),
    ("Flatten", r#"{"start_dim": 0, "end_dim": 1}"#, &[("x", &[2, 3, 2])]),
    (
        "Sequential",
        r#"{"layers": ["Linear", "Gelu", "Sequential"], "1.approximate": "tanh", "2.layers": ["Linear"]}"#,
        &[("x", &[2, 3]), ("0.weight", &[4, 3]), ("0.bias", &[4]), ("2.0.weight", &[5, 4])],
    ),
    ("Relu", "{}", &[("x", &[2, 3])]),
    ("Relu6", "{}", &[("x", &[2, 3])]),
    ("Sigmoid", "{}", &[("x", &[2, 3])]),
    ("Tanh", "{}", &[("x", &[2, 3])]),
    ("Silu", "{}", &[("x", &[2, 3])]),
    ("Mish", "{}", &[("x", &[2, 3])]),
    ("Selu", "{}", &[("x", &[2, 3])]),
    ("Softsign", "{}", &[("x", &[2, 3])]),
    ("LogSigmoid", "{}", &[("x", &[2, 3])]),
    ("Tanhshrink", "{}", &[("x", &[2, 3])]),
    ("Hardswish", "{}", &[("x", &[2, 3])]),
    ("Hardsigmoid", "{}", &[("x", &[2, 3])]),
    ("Gelu", r#"{"approximate": "tanh"}"#, &[("x", &[2, 3])]),
    ("LeakyRelu", r#"{"slope": 0.1}"#, &[("x", &[2, 3])]),
    ("Elu", r#"{"alpha": 0.5}"#, &[("x", &[2, 3])]),
    ("Celu", r#"{"alpha": 0.5}"#, &[("x", &[2, 3])]),
    ("Softplus", r#"{"beta": 2.0, "threshold": 5.0}"#, &[("x", &[2, 3])]),
    ("Hardtanh", r#"{"min": -0.5, "max": 0.5}"#, &[("x", &[2, 3])]),
    ("Threshold", r#"{"threshold": 0.5, "value": 2.0}"#, &[("x", &[2, 3])]),
    ("Softshrink", r#"{"lambda": 0.2}"#, &[("x", &[2, 3])]),
    ("Hardshrink", r#"{"lambda": 0.2}"#, &[("x", &[2, 3])]),
    ("Glu", r#"{"dim": 0}"#, &[("x", &[2, 3])]),
    ("Prelu", "{}", &[("x", &[2, 3]), ("weight", &[3])]),
    ("Softmin", r#"{"dim": 0}"#, &[("x", &[2, 3])]),
    ("Softmax", r#"{"dim": 0}"#, &[("x", &[2, 3])]),
    ("LogSoftmax", r#"{"dim": 0}"#, &[("x", &[2, 3])]),
    ("MaxPool1d", r#"{"kernel_size": 2, "stride": 1, "dilation": 2}"#, &[("x", &[2, 3, 5])]),
    ("MaxPool2d", r#"{"kernel_size": 3, "stride": 2, "padding": 1}"#, &[("x", &[2, 3, 5, 4])]),
    ("MaxPool3d", r#"{"kernel_size": [2, 1, 2], "ceil_mode": true}"#, &[("x", &[2, 3, 3, 2])]),
    ("AvgPool1d", r#"{"kernel_size": 2}"#, &[("x", &[2, 3, 4])]),
    ("AvgPool2d", r#"{"kernel_size": 3, "padding": 1, "count_include_pad": false}"#, &[("x", &[2, 3, 5, 4])]),
    ("AvgPool3d", r#"{"kernel_size": 2, "stride": 1, "divisor_override": 3}"#, &[("x", &[2, 3, 3, 2])]),
    ("LpPool1d", r#"{"norm_type": 2.0, "kernel_size": 2}"#, &[("x", &[2, 3, 4])]),
    ("LpPool2d", r#"{"norm_type": 3.0, "kernel_size": 2, "stride": 1}"#, &[("x", &[2, 3, 5, 4])]),
    ("LpPool3d", r#"{"norm_type": 2.0, "kernel_size": 2, "ceil_mode": true}"#, &[("x", &[2, 3, 3, 3, 2])]),
    ("AdaptiveMaxPool1d", r#"{"output_size": 2}"#, &[("x", &[2, 3, 5])]),
    ("AdaptiveMaxPool2d", r#"{"output_size": [2, null]}"#, &[("x", &[2, 3, 5, 4])]),
    ("AdaptiveMaxPool3d", r#"{"output_size": 2}"#, &[("x", &[2, 3, 3, 2])]),
    ("AdaptiveAvgPool1d", r#"{"output_size": 2}"#, &[("x", &[2, 3, 5])]),
    ("AdaptiveAvgPool2d", r#"{"output_size": [2, null]}"#, &[("x", &[2, 3, 5, 4])]),
    ("AdaptiveAvgPool3d", r#"{"output_size": 2}"#, &[("x", &[2, 3, 3, 2])]),
    ("Conv1d", r#"{"stride": 2, "padding": "valid"}"#, &[("x", &[2, 3, 7]), ("weight", &[4, 3, 3]), ("bias", &[4])]),
    (
        "Conv2d",
        r#"{"padding": [1, 2], "padding_mode": "reflect", "groups": 2}"#,
        &[("x", &[2, 4, 5, 4]), ("weight", &[6, 2, 3, 2]), ("bias", &[6])],
    ),
    ("Conv3d", r#"{"padding": "same", "dilation": 2}"#, &[("x", &[2, 2, 3, 4, 3]), ("weight", &[3, 2, 2, 3, 1])]),
    ("ConvTranspose1d", r#"{"stride": 2, "output_padding": 1}"#, &[("x", &[2, 3, 4]), ("weight", &[3, 2, 3])]),
    (
        "ConvTranspose2d",
        r#"{"stride": [2, 1], "padding": 1, "groups": 2}"#,
        &[("x", &[2, 4, 3, 4]), ("weight", &[4, 1, 3, 3]), ("bias", &[2])],
    ),
    ("ConvTranspose3d", r#"{"dilation": 2}"#, &[("x", &[1, 2, 2, 2, 3]), ("weight", &[2, 3, 2, 1, 2]), ("bias", &[3])]),
    ("Unfold", r#"{"kernel_size": [2, 3], "padding": 1}"#, &[("x", &[2, 3, 4, 3])]),
    ("Fold", r#"{"output_size": [3, 4], "kernel_size": 2}"#, &[("x", &[2, 12, 6])]),
    ("ConstantPad1d", r#"{"padding": [[1, 2]], "value": 0.5}"#, &[("x", &[2, 3, 4])]),
    ("ConstantPad2d", r#"{"padding": [[1, 2], [-1, 0]], "value": 2}"#, &[("x", &[2, 3, 4, 3])]),
    ("ConstantPad3d", r#"{"padding": [[1, 0], [0, 1], [2, 2]], "value": -1.5}"#, &[("x", &[1, 2, 2, 3, 2])]),
    ("ZeroPad1d", r#"{"padding": [[1, 2]]}"#, &[("x", &[2, 3, 4])]),
    ("ZeroPad2d", r#"{"padding": [[1, 2], [0, 3]]}"#, &[("x", &[2, 3, 4, 3])]),
    ("ZeroPad3d", r#"{"padding": [[1, 0], [0, 1], [2, 2]]}"#, &[("x", &[1, 2, 2, 3, 2])]),
    ("ReflectionPad1d", r#"{"padding": [[3, 2]]}"#, &[("x", &[2, 3, 4])]),
    ("ReflectionPad2d", r#"{"padding": [[1, 2], [0, 2]]}"#, &[("x", &[2, 3, 4, 3])]),
    ("ReflectionPad3d", r#"{"padding": [[1, 0], [0, 1], [1, 1]]}"#, &[("x", &[1, 2, 2, 3, 2])]),
    ("ReplicationPad1d", r#"{"padding": [[5, 2]]}"#, &[("x", &[2, 3, 4])]),
    ("ReplicationPad2d", r#"{"padding": [[1, 2], [0, 4]]}"#, &[("x", &[2, 3, 4, 3])]),
    ("ReplicationPad3d", r#"{"padding": [[1, 0], [0, 3], [1, 1]]}"#, &[("x", &[1, 2, 2, 3, 2])]),
    ("CircularPad1d", r#"{"padding": [[4, 2]]}"#, &[("x", &[2, 3, 4])]),
    ("CircularPad2d", r#"{"padding": [[1, 2], [0, 3]]}"#, &[("x", &[2, 3, 4, 3])]),
    ("CircularPad3d", r#"{"padding": [[1, 0], [0, 3], [1, 1]]}"#, &[("x", &[1, 2, 2, 3, 2])]),
    ("Upsample", r#"{"scale_factor": [2.0, 1.5], "mode": "bilinear", "align_corners": true}"#, &[("x", &[2, 3, 4, 3])]),
    ("PixelShuffle", r#"{"upscale_factor": 2}"#, &[("x", &[2, 8, 3, 2])]),
    ("PixelUnshuffle", r#"{"downscale_factor": 2}"#, &[("x", &[2, 3, 4, 2])]),
    ("ChannelShuffle", r#"{"groups": 2}"#, &[("x", &[2, 6, 2, 2])]),
    ("LayerNorm", r#"{"eps": 0.1}"#, &[("x", &[2, 3]), ("weight", &[3]), ("bias", &[3])]),
    ("RmsNorm", r#"{"eps": 0.1}"#, &[("x", &[2, 3]), ("weight", &[3])]),
    ("LocalResponseNorm", r#"{"size": 2, "alpha": 0.5}"#, &[("x", &[2, 4, 3])]),
    ("Identity", "{}", &[("x", &[2, 3])]),
    ("EmbeddingBag", r#"{"mode": "sum", "padding_idx": 1}"#, &[("x?", &[2, 3]), ("weight", &[4, 3])]),
    ("GroupNorm", r#"{"num_groups": 2, "eps": 0.1}"#, &[("x", &[2, 4, 3]), ("weight", &[4]), ("bias", &[4])]),
    ("BatchNorm1d", r#"{"eps": 0.1, "momentum": 0.5}"#, &[("x", &[2, 3]), ("weight", &[3]), ("bias", &[3])]),
    (
        "BatchNorm2d",
        r#"{"eps": 0.1, "momentum": null, "returns": ["y", "running_mean", "running_var", "num_batches_tracked"]}"#,
        &[("x", &[2, 3, 2, 2]), ("running_mean", &[3]), ("running_var", &[3]), ("num_batches_tracked?", &[])],
    ),
    ("BatchNorm3d", r#"{"eps": 0.1}"#, &[("x", &[2, 3, 2, 2, 1]), ("weight", &[3]), ("bias", &[3])]),
    ("InstanceNorm1d", r#"{"eps": 0.1}"#, &[("x", &[2, 3, 4]), ("running_mean", &[3]), ("running_var", &[3])]),
    ("InstanceNorm2d", r#"{"eps": 0.1}"#, &[("x", &[3, 2, 2]), ("weight", &[3]), ("bias", &[3])]),
    ("InstanceNorm3d", r#"{"eps": 0.1}"#, &[("x", &[2, 3, 2, 2, 1])]),
];

const SCHEDULES: &[(&str, &str)] = &[
    ("Constant", r#"{"lr": 0.1, "count": 3, "warm_up": 2}"#),
    ("Step", r#"{"lr": 0.1, "every": 2, "gamma": 0.5, "count": 5}"#),
    ("Cosine", r#"{"lr": 0.1, "min": 0.01, "steps": 4, "count": 6}"#),
    ("OneCycle", r#"{"max": 0.1, "steps": 9, "rise": 0.3, "start_divisor": 25.0, "end_divisor": 1e4, "count": 9}"#),
];

fn parsed(attributes: &str) -> Value {
    serde_json::from_str(attributes).expect("an example is JSON")
}

fn module(name: &'static str, attributes: &'static str, inputs: &'static [(&'static str, &'static [usize])]) -> Op {
    let build = move |c: &Invocation<'_>| layer(c, name, "");
    let run = move |c: &Invocation<'_>, layer: &dyn Layer| {
        if c.flag_or("training", true)? {
            layer.train()
        } else {
            layer.eval()
        }
        let y = match name == "Linear" && c.has("activation") {
            true => linear(c, "")?.forward_with(c.input("x")?, activation(c)?)?,
            false => layer.forward(c.input("x")?)?,
        };
        returned(c, y, layer)
    };
    let layer = Some(LayerOf { build: Box::new(build), run: Box::new(run) });
    let op = Op::new(
        name,
        move |c| run(c, &*build(c)?),
        move |g| {
            let inputs = inputs.iter().map(|&(name, shape)| match name.strip_suffix('?') {
                Some(name) => (name, g.indices(2, shape)),
                None => (name, g.tensor(Domain::Real, shape)),
            });
            Case::new(parsed(attributes), inputs.collect())
        },
    )
    .class(Class::Stages)
    .slice(Slice::Whole);
    Op { layer, ..op }
}

/// `y`, or the tensors that `returns` lists: `y`, parameters and buffers.
fn returned(c: &Invocation<'_>, y: Tensor, layer: &dyn Layer) -> Result<Vec<Tensor>> {
    let Some(names) = c.optional_of("returns", Invocation::words)? else { return one(Ok(y)) };
    let mut all = layer.state_dict();
    all.insert("y".into(), y);
    // A copy, because a later call of the layer changes its buffers.
    let value = |t: &Tensor| if t.is_leaf() { t.detach().copy() } else { Ok(t.clone()) };
    names.iter().map(|name| found(c, &all, name).and_then(value)).collect()
}

/// The layer of this type, from attributes and tensors whose names have the prefix `at`.
fn layer(c: &Invocation<'_>, kind: &str, at: &str) -> Result<Box<dyn Layer>> {
    let of = |name: &str| format!("{at}{name}");
    let float = |name: &str, default: f64| c.float_or(&of(name), default);
    let dim = || c.dim_or(&of("dim"), -1);
    Ok(match kind {
        "Linear" => Box::new(linear(c, at)?),
        "Embedding" => Box::new(embedding(c, at)?),
        "Sequential" => Box::new(sequential(c, at)?),
        "Dropout" => {
            let init = Init::new(&Device::cpu()?);
            init.rng().set_state(rng(c)?.state());
            Box::new(nn::Dropout::new(float("p", 0.5)?, &init))
        }
        "Flatten" => Box::new(flatten(c, at)?),
        "Relu" => Box::new(nn::Relu),
        "Relu6" => Box::new(nn::Relu6),
        "Sigmoid" => Box::new(nn::Sigmoid),
        "Tanh" => Box::new(nn::Tanh),
        "Silu" => Box::new(nn::Silu),
        "Mish" => Box::new(nn::Mish),
        "Selu" => Box::new(nn::Selu),
        "Softsign" => Box::new(nn::Softsign),
        "LogSigmoid" => Box::new(nn::LogSigmoid),
        "Tanhshrink" => Box::new(nn::Tanhshrink),
        "Hardswish" => Box::new(nn::Hardswish),
        "Hardsigmoid" => Box::new(nn::Hardsigmoid),
        "Gelu" => Box::new(nn::Gelu { approximate: c.choice_or_first(&of("approximate"), &APPROXIMATIONS)? }),
        "LeakyRelu" => Box::new(nn::LeakyRelu { slope: float("slope", 0.01)? }),
        "Elu" => Box::new(nn::Elu { alpha: float("alpha", 1.0)? }),
        "Celu" => Box::new(nn::Celu { alpha: float("alpha", 1.0)? }),
        "Softplus" => Box::new(nn::Softplus { beta: float("beta", 1.0)?, threshold: float("threshold", 20.0)? }),
        "Hardtanh" => Box::new(nn::Hardtanh { min: float("min", -1.0)?, max: float("max", 1.0)? }),
        "Threshold" => Box::new(nn::Threshold { threshold: float("threshold", 0.0)?, value: float("value", 0.0)? }),
        "Softshrink" => Box::new(nn::Softshrink { lambda: float("lambda", 0.5)? }),
        "Hardshrink" => Box::new(nn::Hardshrink { lambda: float("lambda", 0.5)? }),
        "Glu" => Box::new(nn::Glu { dim: dim()? }),
        "Prelu" => Box::new(nn::Prelu { weight: c.input(&of("weight"))?.clone() }),
        "Softmin" => Box::new(nn::Softmin { dim: dim()? }),
        "Softmax" => Box::new(nn::Softmax { dim: dim()? }),
        "LogSoftmax" => Box::new(nn::LogSoftmax { dim: dim()? }),
        "MaxPool1d" => Box::new(max_of::<1>(c, at)?),
        "MaxPool2d" => Box::new(max_of::<2>(c, at)?),
        "MaxPool3d" => Box::new(max_of::<3>(c, at)?),
        "AvgPool1d" => Box::new(avg_of::<1>(c, at)?),
        "AvgPool2d" => Box::new(avg_of::<2>(c, at)?),
        "AvgPool3d" => Box::new(avg_of::<3>(c, at)?),
        "LpPool1d" => Box::new(lp_of::<1>(c, at)?),
        "LpPool2d" => Box::new(lp_of::<2>(c, at)?),
        "LpPool3d" => Box::new(lp_of::<3>(c, at)?),
        "AdaptiveMaxPool1d" => Box::new(nn::AdaptiveMaxPool1d::new(output_of(c, at)?)),
        "AdaptiveMaxPool2d" => Box::new(nn::AdaptiveMaxPool2d::new(output_of(c, at)?)),
        "AdaptiveMaxPool3d" => Box::new(nn::AdaptiveMaxPool3d::new(output_of(c, at)?)),
        "AdaptiveAvgPool1d" => Box::new(nn::AdaptiveAvgPool1d::new(output_of(c, at)?)),
        "AdaptiveAvgPool2d" => Box::new(nn::AdaptiveAvgPool2d::new(output_of(c, at)?)),
        "AdaptiveAvgPool3d" => Box::new(nn::AdaptiveAvgPool3d::new(output_of(c, at)?)),
        "Conv1d" => Box::new(convolution::<1>(c, at)?),
        "Conv2d" => Box::new(convolution::<2>(c, at)?),
        "Conv3d" => Box::new(convolution::<3>(c, at)?),
        "ConvTranspose1d" => Box::new(transposed::<1>(c, at)?),
        "ConvTranspose2d" => Box::new(transposed::<2>(c, at)?),
        "ConvTranspose3d" => Box::new(transposed::<3>(c, at)?),
        "Unfold" => Box::new(unfold_of(c, at)?),
        "Fold" => Box::new(nn::Fold { size: extents(c, &of("output_size"), None)?, windows: unfold_of(c, at)? }),
        "ConstantPad1d" => Box::new(constant_pad::<1>(c, at)?),
        "ConstantPad2d" => Box::new(constant_pad::<2>(c, at)?),
        "ConstantPad3d" => Box::new(constant_pad::<3>(c, at)?),
        "ZeroPad1d" => Box::new(nn::ZeroPad1d { padding: ends_of(c, at)? }),
        "ZeroPad2d" => Box::new(nn::ZeroPad2d { padding: ends_of(c, at)? }),
        "ZeroPad3d" => Box::new(nn::ZeroPad3d { padding: ends_of(c, at)? }),
        "ReflectionPad1d" => Box::new(nn::ReflectionPad1d { padding: ends_of(c, at)? }),
        "ReflectionPad2d" => Box::new(nn::ReflectionPad2d { padding: ends_of(c, at)? }),
        "ReflectionPad3d" => Box::new(nn::ReflectionPad3d { padding: ends_of(c, at)? }),
        "ReplicationPad1d" => Box::new(nn::ReplicationPad1d { padding: ends_of(c, at)? }),
        "ReplicationPad2d" => Box::new(nn::ReplicationPad2d { padding: ends_of(c, at)? }),
        "ReplicationPad3d" => Box::new(nn::ReplicationPad3d { padding: ends_of(c, at)? }),
        "CircularPad1d" => Box::new(nn::CircularPad1d { padding: ends_of(c, at)? }),
        "CircularPad2d" => Box::new(nn::CircularPad2d { padding: ends_of(c, at)? }),
        "CircularPad3d" => Box::new(nn::CircularPad3d { padding: ends_of(c, at)? }),
        "Upsample" => upsample(c, at)?,
        "PixelShuffle" => Box::new(nn::PixelShuffle { factor: c.size(&of("upscale_factor"))? }),
        "PixelUnshuffle" => Box::new(nn::PixelUnshuffle { factor: c.size(&of("downscale_factor"))? }),
        "ChannelShuffle" => Box::new(nn::ChannelShuffle { groups: c.size(&of("groups"))? }),
        "LocalResponseNorm" => Box::new(nn::LocalResponseNorm(response(c, at)?)),
        "Identity" => Box::new(nn::Identity),
        "EmbeddingBag" => Box::new(nn::EmbeddingBag {
            weight: c.input(&of("weight"))?.clone(),
            mode: c.choice_or_first(&of("mode"), &BAGS)?,
            padding_idx: c.optional_of(&of("padding_idx"), Invocation::int)?,
        }),
        "LayerNorm" => {
            let mut norm = nn::LayerNorm::without_parameters(normalized(c, at)?);
            norm.eps = float("eps", norm.eps)?;
            norm.weight = c.optional(&of("weight")).cloned();
            norm.bias = c.optional(&of("bias")).cloned();
            Box::new(norm)
        }
        "RmsNorm" => {
            let mut norm = nn::RmsNorm::without_parameters(normalized(c, at)?);
            norm.eps = float("eps", norm.eps)?;
            norm.weight = c.optional(&of("weight")).cloned();
            Box::new(norm)
        }
        "GroupNorm" => {
            let channels = c.input("x")?.dims().get(1).copied().unwrap_or(0);
            let mut norm = nn::GroupNorm::without_parameters(c.size(&of("num_groups"))?, channels)?;
            norm.eps = float("eps", norm.eps)?;
            norm.weight = c.optional(&of("weight")).cloned();
            norm.bias = c.optional(&of("bias")).cloned();
            Box::new(norm)
        }
        "BatchNorm1d" => Box::new(batch_norm::<1>(c, at)?),
        "BatchNorm2d" => Box::new(batch_norm::<2>(c, at)?),
        "BatchNorm3d" => Box::new(batch_norm::<3>(c, at)?),
        "InstanceNorm1d" => Box::new(instance_norm::<1>(c, at)?),
        "InstanceNorm2d" => Box::new(instance_norm::<2>(c, at)?),
        "InstanceNorm3d" => Box::new(instance_norm::<3>(c, at)?),
        _ => return c.fail("of types of layers", &of("layers")),
    })
}

/// The shape of the weight, or the attribute `normalized_shape`.
fn normalized(c: &Invocation<'_>, at: &str) -> Result<Vec<usize>> {
    match c.optional(&format!("{at}weight")) {
        Some(weight) => Ok(weight.dims().to_vec()),
        None => c.shape(&format!("{at}normalized_shape")),
    }
}

/// Options of a layer before its tensors exist: given options replace the defaults. A `momentum` of null is none.
fn norm_options(c: &Invocation<'_>, at: &str, default: NormOptions) -> Result<NormOptions> {
    let momentum = format!("{at}momentum");
    let momentum = if c.is_null(&momentum) { None } else { Some(c.float_or(&momentum, 0.1)?) };
    let eps = c.float_or(&format!("{at}eps"), default.eps)?;
    Ok(NormOptions { eps, momentum, affine: false, track_running_stats: false })
}

macro_rules! channel_norm {
    ($function:ident, $name:ident, $options:ident) => {
        /// Running statistics are copies of the given ones.
        fn $function<const D: usize>(c: &Invocation<'_>, at: &str) -> Result<nn::$name<D>> {
            let x = c.input("x")?;
            let options = norm_options(c, at, NormOptions::$options)?;
            let unbatched = (x.rank() == D + 1 && stringify!($name) == "InstanceNorm") as usize;
            let channels = x.dims().get(1 - unbatched).copied().unwrap_or(0);
            let mut norm = nn::$name::with_options(channels, &options, &Init::new(x.device()))?;
            let find = |name: &str| c.optional(&format!("{at}{name}"));
            let kept = |name: &str| find(name).map(|t| t.detach().copy()).transpose();
            norm.weight = find("weight").cloned();
            norm.bias = find("bias").cloned();
            norm.running_mean = kept("running_mean")?;
            norm.running_var = kept("running_var")?;
            norm.num_batches_tracked = kept("num_batches_tracked")?;
            Ok(norm)
        }
    };
}

channel_norm!(batch_norm, BatchNorm, BATCH);
channel_norm!(instance_norm, InstanceNorm, INSTANCE);

fn convolution<const N: usize>(c: &Invocation<'_>, at: &str) -> Result<nn::Convolution<N>> {
    Ok(nn::Convolution {
        weight: c.input(&format!("{at}weight"))?.clone(),
        bias: c.optional(&format!("{at}bias")).cloned(),
        options: conv_of(c, at)?,
        padding_mode: padding_mode(c, at)?,
    })
}

fn transposed<const N: usize>(c: &Invocation<'_>, at: &str) -> Result<nn::TransposedConvolution<N>> {
    Ok(nn::TransposedConvolution {
        weight: c.input(&format!("{at}weight"))?.clone(),
        bias: c.optional(&format!("{at}bias")).cloned(),
        options: transposed_of(c, at)?,
    })
}

fn constant_pad<const N: usize>(c: &Invocation<'_>, at: &str) -> Result<nn::ConstantPad<N>> {
    Ok(nn::ConstantPad { padding: ends_of(c, at)?, value: c.scalar_or(&format!("{at}value"), 0)? })
}

/// An interpolation of as many dimensions as the size or the factors have.
fn upsample(c: &Invocation<'_>, at: &str) -> Result<Box<dyn Layer>> {
    Ok(match interpolated_dims(c, at)? {
        1 => Box::new(interpolate_of::<1>(c, at)?),
        2 => Box::new(interpolate_of::<2>(c, at)?),
        _ => Box::new(interpolate_of::<3>(c, at)?),
    })
}

fn linear(c: &Invocation<'_>, at: &str) -> Result<Linear> {
    let weight = c.input(&format!("{at}weight"))?.clone();
    Ok(Linear { weight, bias: c.optional(&format!("{at}bias")).cloned() })
}

fn embedding(c: &Invocation<'_>, at: &str) -> Result<Embedding> {
    let (padding, scale) = (format!("{at}padding_idx"), format!("{at}scale_grad_by_freq"));
    let padding_idx = c.optional_of(&padding, Invocation::int)?;
    let options = EmbeddingOptions { padding_idx, scale_grad_by_freq: c.flag(&scale)? };
    Embedding::from_pretrained(c.input(&format!("{at}weight"))?.clone(), &options)
}

fn flatten(c: &Invocation<'_>, at: &str) -> Result<nn::Flatten> {
    let of = |name: &str, default: isize| c.dim_or(&format!("{at}{name}"), default);
    let whole = nn::Flatten::default();
    Ok(nn::Flatten { start: of("start_dim", whole.start)?, end: of("end_dim", whole.end)? })
}

/// Layers of the types that the attribute `layers` lists. Names of their attributes and tensors have the layer's number as prefix,
/// such as `0.weight`.
fn sequential(c: &Invocation<'_>, at: &str) -> Result<Sequential> {
    let names = c.words(&format!("{at}layers"))?;
    let mut layers = names.iter().enumerate();
    layers.try_fold(Sequential::new(), |all, (i, name)| Ok(all.push(layer(c, name, &format!("{at}{i}."))?)))
}

/// The rates of the first `count` steps, f64, after a warm-up of `warm_up` steps.
fn schedule(name: &'static str, attributes: &'static str) -> Op {
    let run = move |c: &Invocation<'_>| {
        let number = |name: &str| Ok(c.size(name)? as u64);
        let schedule: Box<dyn Schedule> = match name {
            "Constant" => Box::new(Constant(c.float("lr")?)),
            "Step" => Box::new(Step { lr: c.float("lr")?, every: number("every")?, gamma: c.float("gamma")? }),
            "Cosine" => Box::new(Cosine { lr: c.float("lr")?, min: c.float("min")?, steps: number("steps")? }),
            _ => {
                let default = OneCycle::new(c.float("max")?, number("steps")?);
                Box::new(OneCycle {
                    rise: c.float_or("rise", default.rise)?,
                    start_divisor: c.float_or("start_divisor", default.start_divisor)?,
                    end_divisor: c.float_or("end_divisor", default.end_divisor)?,
                    ..default
                })
            }
        };
        let schedule = match c.optional_of("warm_up", Invocation::size)? {
            Some(steps) => Box::new(schedule.after_warm_up(steps as u64)),
            None => schedule,
        };
        let rates = (0..number("count")?).map(|step| schedule.lr(step)).collect::<Result<Vec<f64>>>()?;
        one(Tensor::from_slice(&rates, rates.len(), &Device::cpu()?))
    };
    Op::new(name, run, move |_| Case::new(parsed(attributes), vec![])).class(Class::Arithmetic).derivative(NO_GRADIENT)
}

fn others() -> Vec<Op> {
    vec![
        Op::new(
            "eye",
            |c| one(Tensor::eye(c.size("n")?, c.dtype_or("dtype", DType::F32)?, &c.device()?)),
            |g| Case { device: Some(g.device().clone()), ..Case::new(json!({"n": 3, "dtype": "f64"}), vec![]) },
        )
        .derivative(NO_GRADIENT),
        Op::new(
            "argsort",
            |c| one(c.input("x")?.argsort(c.dim("dim")?, order(c.flag("descending")?))),
            |g| Case::new(json!({"dim": 0, "descending": true}), vec![("x", g.x(Domain::Distinct))]),
        )
        .derivative(NO_GRADIENT),
        Op::new(
            "Bilinear",
            |c| {
                let layer = nn::Bilinear { weight: c.input("weight")?.clone(), bias: c.optional("bias").cloned() };
                one(layer.forward(c.input("x1")?, c.input("x2")?))
            },
            |g| {
                let shapes: [(&str, &[usize]); 4] =
                    [("x1", &[2, 3]), ("x2", &[2, 4]), ("weight", &[5, 3, 4]), ("bias", &[5])];
                Case::of(shapes.iter().map(|&(name, shape)| (name, g.tensor(Domain::Real, shape))).collect())
            },
        )
        .class(Class::Stages),
        Op::new(
            "grad_norm",
            |c| {
                let norm_type = c.float_or("norm_type", 2.0)?;
                one(nn::grad_norm(&with_gradients(c)?, norm_type))
            },
            |g| Case::new(none(), vec![("g0", g.x(Domain::Real)), ("g1", g.x(Domain::Real))]),
        )
        .class(Class::Stages)
        .derivative(NO_GRADIENT),
    ]
}
