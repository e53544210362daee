//! Softmax, and normalisation of rows and of channels.

use super::common::{IN_PLACE, one, with};
use super::invocation::Invocation;
use super::matrix::matmul::{ACTIVATIONS, activation};
use super::op::Class::Stages;
use super::op::{Op, Slice};
use crate::bench::{self, Bench, Call, STORED, call};
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::{Activation, Approximate, LocalResponse, Running, Statistics};
use isograd_core::{DType, Error, Result, Tensor};
use serde_json::json;

/// `x [rows, D]` or `[rows, D1, D2]` with parameters of the normalised shape.
fn norm_case(g: &mut Gen, has_bias: bool) -> Case {
    let (rows, row) = match g.side() {
        _ if g.timed().is_some() => (vec![g.shape[0]], vec![g.shape[1]]),
        // Several short rows per group.
        side @ 4.. => (vec![side], [vec![3, 61], vec![40], vec![7], vec![1009], vec![1024]][g.below(5)].clone()),
        rows => (
            [vec![3], vec![], vec![2, 2], vec![0]][rows].clone(),
            [vec![5], vec![2, 3], vec![1], vec![40]][g.below(4)].clone(),
        ),
    };
    let x = g.tensor(Domain::Real, &[rows, row.clone()].concat());
    let mut inputs = vec![("x", x)];
    if g.coin() {
        inputs.push(("weight", g.tensor(Domain::Positive, &row)));
        if has_bias && g.coin() {
            inputs.push(("bias", g.tensor(Domain::Real, &row)));
        }
    }
    // Rows of one element are 0 after subtraction of the mean. Only a large eps keeps their slope visible.
    Case::new(json!({"dims": row.len(), "eps": 0.5}), inputs)
}

/// A case of [`norm_case`] with an activation. At the kink of relu there is no derivative: a bias determines the sign, because a
/// product of a normalised element and its weight is less than 13.
fn activated_case(g: &mut Gen) -> Case {
    let (mut case, (name, _)) = (norm_case(g, true), g.pick(&ACTIVATIONS));
    case.attributes["activation"] = name.into();
    if name == "relu" {
        let dims = case.attributes["dims"].as_u64().expect("a number") as usize;
        let x = case.inputs[0].1.dims();
        let row = x[x.len() - dims..].to_vec();
        let parameter = |g: &mut Gen, domain| g.tensor(domain, &row);
        let bias = parameter(g, Domain::Real).sign().and_then(|sign| sign.mul_scalar(16)).expect("floats have a sign");
        case.inputs.truncate(1);
        case.inputs.push(("weight".into(), parameter(g, Domain::Positive)));
        case.inputs.push(("bias".into(), bias));
    }
    case
}

/// A case of [`norm_case`] with a residual.
fn residual_case(g: &mut Gen) -> Case {
    let mut case = norm_case(g, true);
    let residual = g.tensor(Domain::Real, case.inputs[0].1.dims());
    case.inputs.insert(1, ("residual".into(), residual));
    case.attributes["wide_sum"] = g.coin().into();
    case
}

/// The number of normalised dimensions: `dims`, or the length of `normalized_shape`, which must match the last dimensions.
fn normalized(c: &Invocation<'_>) -> Result<usize> {
    let Some(shape) = c.optional_of("normalized_shape", Invocation::shape)? else { return c.size("dims") };
    let x = c.input("x")?;
    match x.dims().ends_with(&shape) {
        true => Ok(shape.len()),
        false => Err(Error::shape(c.op.name, format!("normalized_shape is {shape:?}, x has shape {}", x.shape()))),
    }
}

pub(super) fn ops() -> Vec<Op> {
    softmaxes().into_iter().chain(of_rows()).chain(of_channels()).chain(by_norms()).collect()
}

/// The options of a local response, from attributes with the prefix `at`.
pub(super) fn response(c: &Invocation<'_>, at: &str) -> Result<LocalResponse> {
    let default = LocalResponse::new(c.size(&format!("{at}size"))?);
    let float = |name: &str, default: f64| c.float_or(&format!("{at}{name}"), default);
    let (alpha, beta, k) = (float("alpha", default.alpha)?, float("beta", default.beta)?, float("k", default.k)?);
    Ok(LocalResponse { alpha, beta, k, ..default })
}

fn softmaxes() -> Vec<Op> {
    vec![
        with("softmax", |c, x| x.softmax(c.dim("dim")?), Domain::Real, |g| json!({"dim": g.dim()}))
            .class(Stages)
            .slice(Slice::Along)
            .fused()
            .launches(5, 4)
            .bench(softmax_benches(|_, x| x[0].softmax(-1), |_, x| x[0].softmax(-2))),
        with("log_softmax", |c, x| x.log_softmax(c.dim("dim")?), Domain::Real, |g| json!({"dim": g.dim()}))
            .class(Stages)
            .slice(Slice::Along)
            .fused()
            .launches(6, 4)
            .bench(softmax_benches(|_, x| x[0].log_softmax(-1), |_, x| x[0].log_softmax(-2))),
        with("softmax1", |c, x| x.softmax1(c.dim("dim")?), Domain::Real, |g| json!({"dim": g.dim()}))
            .class(Stages)
            .slice(Slice::Along)
            .fused()
            .launches(9, 4),
        with("softmin", |c, x| x.softmin(c.dim("dim")?), Domain::Real, |g| json!({"dim": g.dim()}))
            .class(Stages)
            .slice(Slice::Along)
            .fused()
            .launches(6, 5)
            .also(&["neg", "softmax"]),
    ]
}

/// Batches of rows.
const ROWS: [[usize; 2]; 4] = [[4096, 4096], [16384, 4096], [32768, 1024], [8192, 50257]];
/// Few long columns, many long columns, and channels of images.
const COLUMNS: [&[usize]; 3] = [&[1 << 20, 16], &[65536, 1024], &[8, 21, 512 * 512]];

/// Along the last dimension, and along the one before it.
fn softmax_benches(
    of_rows: fn(&Call, &[Tensor]) -> Result<Tensor>,
    of_columns: fn(&Call, &[Tensor]) -> Result<Tensor>,
) -> Vec<Bench> {
    let of = |dims: &[usize], f| {
        Bench::new(dims, call(bench::one, f), |c| c.whole(2)).dtypes(STORED).backward(|c| c.whole(3))
    };
    let rows = ROWS.iter().map(|dims| of(dims, of_rows));
    rows.chain(COLUMNS.iter().map(|dims| of(dims, of_columns).variant("columns"))).collect()
}

/// Divisions by norms.
fn by_norms() -> Vec<Op> {
    vec![
        with(
            "normalize",
            |c, x| x.normalize(c.float_or("p", 2.0)?, c.dim_or("dim", 1)?, c.float_or("eps", 1e-12)?),
            Domain::Positive,
            |g| json!({"p": g.pick(&[1.0, 2.0, 3.0]), "dim": g.dim()}),
        )
        .class(Stages)
        .fused()
        .launches(22, 40),
        with(
            "local_response_norm",
            |c, x| x.local_response_norm(&response(c, "")?),
            Domain::Real,
            |g| {
                g.at_least_rank(3);
                json!({"size": 1 + g.below(5), "alpha": 0.5})
            },
        )
        .class(Stages)
        .also(&["avg_pool2d"])
        .fused()
        .launches(10, 16),
        Op::new(
            "weight_norm",
            |c| one(c.input("v")?.weight_norm(c.input("g")?, c.optional_of("dim", Invocation::dim)?)),
            |g| {
                g.at_least_rank(1);
                let dim = if g.coin() { Some(g.below(g.shape.len())) } else { None };
                let extents = g.shape.iter().enumerate().map(|(k, &n)| if Some(k) == dim { n } else { 1 });
                let shape = dim.map_or_else(Vec::new, |_| extents.collect());
                let (v, size) = (g.x(Domain::Positive), g.tensor(Domain::Real, &shape));
                Case::new(json!({"dim": dim}), vec![("v", v), ("g", size)])
            },
        )
        .class(Stages)
        .also(&["norm_but"])
        .fused()
        .launches(12, 20),
    ]
}

fn of_rows() -> Vec<Op> {
    vec![
        Op::new(
            "layer_norm",
            |c| {
                let (dims, eps) = (normalized(c)?, c.float("eps")?);
                one(c.input("x")?.layer_norm(dims, c.optional("weight"), c.optional("bias"), eps))
            },
            |g| norm_case(g, true),
        )
        .class(Stages)
        .slice(Slice::Rows)
        .fused()
        .kernels(&["layernorm_forward"])
        .launches(1, 2)
        .bench(of_each_row(
            |c| c.normals([&c.dims, &c.dims[1..], &c.dims[1..]]),
            |_, x| x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 1e-5),
        )),
        Op::new(
            "rms_norm",
            |c| one(c.input("x")?.rms_norm(normalized(c)?, c.optional("weight"), c.float("eps")?)),
            |g| norm_case(g, false),
        )
        .class(Stages)
        .slice(Slice::Rows)
        .fused()
        .kernels(&["rmsnorm_forward"])
        .launches(1, 2)
        .bench(of_each_row(|c| c.normals([&c.dims, &c.dims[1..]]), |_, x| x[0].rms_norm(1, Some(&x[1]), 1e-5))),
        Op::new(
            "layer_norm_activation",
            |c| {
                let (dims, eps, activation) = (normalized(c)?, c.float("eps")?, activation(c)?);
                let (weight, bias) = (c.optional("weight"), c.optional("bias"));
                one(c.input("x")?.layer_norm_activation(dims, weight, bias, eps, activation))
            },
            activated_case,
        )
        .class(Stages)
        .slice(Slice::Rows)
        .fused()
        .kernels(&["layernorm_relu", "layernorm_gelu"])
        // Two of the activations are separate kernels.
        .launches(2, 3)
        .bench(of_each_row(
            |c| c.normals([&c.dims, &c.dims[1..], &c.dims[1..]]),
            |_, x| {
                let activation = Activation::Gelu(Approximate::None);
                x[0].layer_norm_activation(1, Some(&x[1]), Some(&x[2]), 1e-5, activation)
            },
        ))
        .bench(
            of_each_row(
                |c| c.normals([&c.dims, &c.dims[1..], &c.dims[1..]]),
                |_, x| x[0].layer_norm_activation(1, Some(&x[1]), Some(&x[2]), 1e-5, Activation::Relu),
            )
            .map(|bench| bench.variant("relu")),
        ),
        Op::new(
            "residual_layer_norm",
            |c| {
                let (x, residual, dims) = (c.input("x")?, c.input("residual")?, normalized(c)?);
                let (weight, bias, eps) = (c.optional("weight"), c.optional("bias"), c.float("eps")?);
                let is_wide = c.flag("wide_sum")? && x.dtype().size() == 2;
                let residual = if is_wide { residual.cast(DType::F32)? } else { residual.clone() };
                let (y, s) = x.residual_layer_norm(&residual, dims, weight, bias, eps)?;
                Ok(vec![y, s.cast(x.dtype())?])
            },
            residual_case,
        )
        .class(Stages)
        .slice(Slice::Rows)
        .fused()
        .kernels(&["residual_layernorm"])
        // Two launches for the gradient of both results together. Here each result is differentiated alone, and the gradients of
        // the operands are added up.
        .launches(1, 9)
        .bench([[16384, 4096], [32768, 768]].map(|dims| {
            let inputs = |c: &Call| c.normals([&c.dims, &c.dims, &c.dims[1..], &c.dims[1..]]);
            let normed =
                |_: &Call, x: &[Tensor]| Ok(x[0].residual_layer_norm(&x[1], 1, Some(&x[2]), Some(&x[3]), 1e-5)?.0);
            Bench::new(&dims, call(inputs, normed), |c| c.whole(4)).dtypes(STORED).backward(|c| c.whole(3))
        })),
    ]
}

const STATISTICS: &[&str] = &["running_mean", "running_var"];

fn of_channels() -> Vec<Op> {
    vec![
        Op::new("batch_norm", |c| one(Kept::of(c)?.batch_norm(c)), |g| channels_case(g, Kind::Batch))
            .class(Stages)
            .constant(STATISTICS)
            .kernels(&["batchnorm_forward"])
            .fused()
            // Copies of both running statistics, then two kernels, or three where channels are adjacent. So is the gradient.
            .launches(5, 3)
            .bench([of_images(|_, x| x[0].batch_norm(Some(&x[1]), Some(&x[2]), Statistics::Batch, 1e-5))]),
        Op::new("batch_norm_relu", |c| one(Kept::of(c)?.batch_norm_relu(c)), batch_norm_relu_case)
            .class(Stages)
            .constant(STATISTICS)
            .also(&["batch_norm"])
            .fused()
            .launches(5, 3)
            .bench([of_images(|_, x| {
                x[0].batch_norm_relu(Some(&x[1]), Some(&x[2]), Statistics::Batch, 1e-5, Some(&x[0].detach()))
            })]),
        Op::new("batch_norm_relu6", |c| one(Kept::of(c)?.batch_norm_relu6(c)), batch_norm_relu6_case)
            .class(Stages)
            .constant(STATISTICS)
            .also(&["batch_norm"])
            .fused()
            .launches(5, 3)
            .bench([of_images(|_, x| x[0].batch_norm_relu6(Some(&x[1]), Some(&x[2]), Statistics::Batch, 1e-5))]),
        Op::new("group_norm", group_norm, |g| channels_case(g, Kind::Group))
            .class(Stages)
            .slice(Slice::From(1))
            .kernels(&["groupnorm_forward"])
            .fused()
            .launches(1, 2)
            .bench([of_images(|_, x| x[0].group_norm(32, Some(&x[1]), Some(&x[2]), 1e-5))]),
        Op::new("instance_norm", |c| one(Kept::of(c)?.instance_norm(c)), |g| channels_case(g, Kind::Instance))
            .class(Stages)
            .constant(STATISTICS)
            .slice(Slice::From(2))
            .kernels(&["instancenorm_forward"])
            .fused()
            // Copies of both running statistics, then two kernels.
            .launches(4, 2)
            .bench([of_images(|_, x| x[0].instance_norm(Some(&x[1]), Some(&x[2]), Statistics::Batch, 1e-5))]),
        // The running statistics after both ops, and the number of batches.
        Op::new("batch_norm_running", |c| Kept::of(c)?.after(c, Kept::batch_norm), |g| running_case(g, Kind::Batch))
            .class(Stages)
            .derivative(IN_PLACE)
            .also(&["batch_norm"])
            .fused()
            .launches(6, 0),
        Op::new(
            "instance_norm_running",
            |c| Kept::of(c)?.after(c, Kept::instance_norm),
            |g| running_case(g, Kind::Instance),
        )
        .class(Stages)
        .derivative(IN_PLACE)
        .also(&["instance_norm"])
        .fused()
        // Copies, two kernels, and two that count the batch.
        .launches(7, 0),
    ]
}

/// Running statistics; copies, for a case that updates them.
struct Kept {
    mean_and_var: Option<(Tensor, Tensor)>,
    batches: Option<Tensor>,
    momentum: Option<f64>,
    /// True if x is normalised by its own statistics.
    is_own: bool,
}

impl Kept {
    fn of(c: &Invocation<'_>) -> Result<Kept> {
        let name = if c.op.name.starts_with("instance") { "use_input_stats" } else { "training" };
        let is_own = c.flag_or(name, true)?;
        let kept = |t: &Tensor| if is_own && !c.is_in_place { t.detach().copy() } else { Ok(t.clone()) };
        let find = |name| c.optional(name).map(kept).transpose();
        let mean_and_var = find("running_mean")?.zip(find("running_var")?);
        let momentum = c.optional_of("momentum", Invocation::float)?;
        Ok(Kept { mean_and_var, batches: find("num_batches")?, momentum, is_own })
    }

    fn statistics(&self, c: &Invocation<'_>) -> Result<Statistics<'_>> {
        let running = self.mean_and_var.as_ref().map(|(mean, var)| Running {
            mean,
            var,
            batches: self.batches.as_ref(),
            momentum: self.momentum,
        });
        match (running, self.is_own) {
            (None, true) => Ok(Statistics::Batch),
            (None, false) => Err(Error::value(c.op.name, "there are no running statistics")),
            (Some(running), true) => Ok(Statistics::Update(running)),
            (Some(running), false) => Ok(Statistics::Running(running)),
        }
    }

    fn batch_norm(&self, c: &Invocation<'_>) -> Result<Tensor> {
        let (weight, bias) = (c.optional("weight"), c.optional("bias"));
        c.input("x")?.batch_norm(weight, bias, self.statistics(c)?, c.float("eps")?)
    }

    fn batch_norm_relu(&self, c: &Invocation<'_>) -> Result<Tensor> {
        let (weight, bias, residual) = (c.optional("weight"), c.optional("bias"), c.optional("residual"));
        c.input("x")?.batch_norm_relu(weight, bias, self.statistics(c)?, c.float("eps")?, residual)
    }

    fn batch_norm_relu6(&self, c: &Invocation<'_>) -> Result<Tensor> {
        let (weight, bias) = (c.optional("weight"), c.optional("bias"));
        c.input("x")?.batch_norm_relu6(weight, bias, self.statistics(c)?, c.float("eps")?)
    }

    fn instance_norm(&self, c: &Invocation<'_>) -> Result<Tensor> {
        let (weight, bias) = (c.optional("weight"), c.optional("bias"));
        c.input("x")?.instance_norm(weight, bias, self.statistics(c)?, c.float("eps")?)
    }

    /// The statistics after a call.
    fn after(self, c: &Invocation<'_>, call: fn(&Kept, &Invocation<'_>) -> Result<Tensor>) -> Result<Vec<Tensor>> {
        call(&self, c)?;
        let (mean, var) = self.mean_and_var.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        Ok(mean.into_iter().chain(var).chain(self.batches).collect())
    }
}

fn group_norm(c: &Invocation<'_>) -> Result<Vec<Tensor>> {
    let (x, groups) = (c.input("x")?, c.size("num_groups")?);
    one(x.group_norm(groups, c.optional("weight"), c.optional("bias"), c.float("eps")?))
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Batch,
    Group,
    Instance,
}

/// x `[N, C, ..]`.
fn channels_shape(g: &mut Gen, kind: Kind) -> Vec<usize> {
    let mut shape = match g.side() {
        _ if g.timed().is_some() => vec![g.shape.iter().product::<usize>() >> 18, 64, 64, 64],
        side @ 4.. => match g.below(6) {
            0 => vec![side, 40],
            1 => vec![2, 4, 33, 31],
            2 => vec![1, 6, side, 32],
            3 => vec![3, 2, 4097],
            4 => vec![side, 3, 7],
            _ => vec![2, 70, 8],
        },
        n => {
            let channels = [1, 2, 4, 6][g.below(4)];
            let rest = [vec![], vec![5], vec![2, 3], vec![1], vec![4, 2, 2]][g.below(5)].clone();
            [vec![[3, 1, 2, 5][n], channels], rest].concat()
        }
    };
    // The variance of a single value is an error.
    let inner: usize = shape[2..].iter().product();
    if kind == Kind::Instance && inner == 1 {
        shape = vec![shape[0], shape[1], 3];
    } else if shape[0] * inner == 1 {
        shape[0] = 2;
    }
    shape
}

fn channels_case(g: &mut Gen, kind: Kind) -> Case {
    let shape = channels_shape(g, kind);
    let channels = [shape[1]];
    let mut inputs = vec![("x", g.tensor(Domain::Real, &shape))];
    if g.coin() {
        inputs.push(("weight", g.tensor(Domain::Positive, &channels)));
    }
    if g.coin() {
        inputs.push(("bias", g.tensor(Domain::Real, &channels)));
    }
    if kind == Kind::Group {
        let groups: Vec<usize> = (1..=shape[1]).filter(|&groups| shape[1].is_multiple_of(groups)).collect();
        return Case::new(json!({"num_groups": g.pick(&groups), "eps": 0.5}), inputs);
    }
    let is_own = g.below(3) > 0;
    if !is_own || g.coin() {
        inputs.push(("running_mean", g.tensor(Domain::Real, &channels)));
        inputs.push(("running_var", g.tensor(Domain::Positive, &channels)));
    }
    let name = if kind == Kind::Batch { "training" } else { "use_input_stats" };
    Case::new(json!({name: is_own, "momentum": 0.1, "eps": 0.5}), inputs)
}

fn batch_norm_relu_case(g: &mut Gen) -> Case {
    let mut case = channels_case(g, Kind::Batch);
    if g.coin() {
        let shape = case.inputs[0].1.dims().to_vec();
        case.inputs.push(("residual".into(), g.tensor(Domain::Real, &shape)));
    }
    case
}

/// A case of which some results are 6.
fn batch_norm_relu6_case(g: &mut Gen) -> Case {
    let mut case = channels_case(g, Kind::Batch);
    for (_, t) in case.inputs.iter_mut().filter(|(name, _)| name == "weight") {
        *t = t.mul_scalar(6.0).expect("a product");
    }
    case
}

/// A case that updates running statistics, with a momentum or by the average over batches.
fn running_case(g: &mut Gen, kind: Kind) -> Case {
    let shape = channels_shape(g, kind);
    let channels = [shape[1]];
    let mut inputs = vec![
        ("x", g.tensor(Domain::Real, &shape)),
        ("running_mean", g.tensor(Domain::Real, &channels)),
        ("running_var", g.tensor(Domain::Positive, &channels)),
    ];
    let momentum = g.coin().then(|| g.pick(&[0.1, 0.5, 1.0]));
    if momentum.is_none() || g.coin() {
        let batches = g.indices(5, &[1]).reshape(()).expect("one element");
        inputs.push(("num_batches", batches));
    }
    Case::new(json!({"momentum": momentum, "eps": 0.5}), inputs)
}

fn of_each_row(inputs: fn(&Call) -> Result<Vec<Tensor>>, f: fn(&Call, &[Tensor]) -> Result<Tensor>) -> [Bench; 2] {
    let of =
        |dims: [usize; 2]| Bench::new(&dims, call(inputs, f), |c| c.whole(2)).dtypes(STORED).backward(|c| c.whole(3));
    [[16384, 4096], [32768, 768]].map(of)
}

fn of_images(f: fn(&Call, &[Tensor]) -> Result<Tensor>) -> Bench {
    let inputs = |c: &Call| c.normals([&c.dims, &c.dims[1..2], &c.dims[1..2]]);
    Bench::new(&[64, 256, 56, 56], call(inputs, f), |c| c.whole(2)).dtypes(STORED).backward(|c| c.whole(3))
}
