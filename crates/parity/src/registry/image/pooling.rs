//! Pooling.

use crate::bench::{self, Bench, Call, Cost, INDEX, STORED, call};
use crate::case::{Case, Domain, Gen};
use crate::registry::common::{absolute, extents, none, one, two};
use crate::registry::invocation::Invocation;
use crate::registry::op::Class::{Reduction, Stages};
use crate::registry::op::Op;
use isograd_core::ops::{AvgPool, LpPool, MaxPool};
use isograd_core::{Result, Tensor};
use isograd_nn as nn;
use serde_json::{Value, json};

pub(crate) fn ops() -> Vec<Op> {
    vec![
        max::<1>("max_pool1d", Tensor::max_pool1d, Tensor::max_pool1d_with_indices),
        max::<2>("max_pool2d", Tensor::max_pool2d, Tensor::max_pool2d_with_indices).kernels(&["maxpool2d"]).bench([
            halved("k3s2", IMAGES, 1, |_, x| {
                x[0].max_pool2d(&MaxPool { stride: [2, 2], padding: [1, 1], ..MaxPool::new([3, 3]) })
            }),
            halved("k2s2", IMAGES, 1, |_, x| x[0].max_pool2d(&MaxPool::new([2, 2]))),
        ]),
        max::<3>("max_pool3d", Tensor::max_pool3d, Tensor::max_pool3d_with_indices)
            .kernels(&["maxpool3d"])
            .bench([halved("k2s2", VOLUMES, 1, |_, x| x[0].max_pool3d(&MaxPool::new([2, 2, 2])))]),
        avg::<1>("avg_pool1d", Tensor::avg_pool1d)
            // The gradient of a window that covers the volume is that of the mean: two kernels.
            .launches(1, 2),
        avg::<2>("avg_pool2d", Tensor::avg_pool2d).kernels(&["avgpool2d"]).launches(1, 2).bench([
            halved("k3s2", IMAGES, 0, |_, x| {
                x[0].avg_pool2d(&AvgPool { stride: [2, 2], padding: [1, 1], ..AvgPool::new([3, 3]) })
            }),
            halved("k2s2", IMAGES, 0, |_, x| x[0].avg_pool2d(&AvgPool::new([2, 2]))),
        ]),
        avg::<3>("avg_pool3d", Tensor::avg_pool3d).kernels(&["avgpool3d"]).launches(1, 2).bench([halved(
            "k2s2",
            VOLUMES,
            0,
            |_, x| x[0].avg_pool3d(&AvgPool::new([2, 2, 2])),
        )]),
        global_max::<2>("global_max_pool2d", Tensor::global_max_pool2d, Tensor::global_max_pool2d_with_indices)
            .kernels(&["global_maxpool2d"])
            // The position of the largest element, then its value.
            .launches(2, 1),
        global_max::<3>("global_max_pool3d", Tensor::global_max_pool3d, Tensor::global_max_pool3d_with_indices)
            // Position and value; a long volume is searched in parts.
            .launches(3, 1),
        global_avg::<2>("global_avg_pool2d", Tensor::global_avg_pool2d).kernels(&["global_avgpool2d"]).launches(1, 2),
        global_avg::<3>("global_avg_pool3d", Tensor::global_avg_pool3d).launches(2, 2),
        adaptive_max::<1>("adaptive_max_pool1d", Tensor::adaptive_max_pool1d, Tensor::adaptive_max_pool1d_with_indices)
            .launches(2, 1),
        adaptive_max::<2>("adaptive_max_pool2d", Tensor::adaptive_max_pool2d, Tensor::adaptive_max_pool2d_with_indices)
            .launches(2, 1)
            .bench([
                adapted("1", |_, x| x[0].adaptive_max_pool2d([1, 1]), |c| pooled(c, c.dims[0] * c.dims[1], INDEX)),
                adapted("7", |_, x| x[0].adaptive_max_pool2d([7, 7]), |c| pooled(c, 49 * c.dims[0] * c.dims[1], 1)),
                // Windows that several threads read.
                adapted("3", |_, x| x[0].adaptive_max_pool2d([3, 3]), |c| pooled(c, 9 * c.dims[0] * c.dims[1], 4)),
            ]),
        adaptive_max::<3>("adaptive_max_pool3d", Tensor::adaptive_max_pool3d, Tensor::adaptive_max_pool3d_with_indices)
            .launches(2, 1),
        adaptive_avg::<1>("adaptive_avg_pool1d", Tensor::adaptive_avg_pool1d).launches(1, 2),
        adaptive_avg::<2>("adaptive_avg_pool2d", Tensor::adaptive_avg_pool2d)
            .kernels(&["adaptive_avgpool2d"])
            .launches(1, 2)
            .bench([
                adapted("1", |_, x| x[0].adaptive_avg_pool2d([1, 1]), |c| pooled(c, c.dims[0] * c.dims[1], 0)),
                adapted("7", |_, x| x[0].adaptive_avg_pool2d([7, 7]), |c| pooled(c, 49 * c.dims[0] * c.dims[1], 0)),
                // Windows that do not divide the extents.
                adapted("13", |_, x| x[0].adaptive_avg_pool2d([13, 13]), |c| pooled(c, 169 * c.dims[0] * c.dims[1], 0)),
                adapted("3", |_, x| x[0].adaptive_avg_pool2d([3, 3]), |c| pooled(c, 9 * c.dims[0] * c.dims[1], 0)),
            ]),
        adaptive_avg::<3>("adaptive_avg_pool3d", Tensor::adaptive_avg_pool3d).launches(1, 2),
        lp::<1>("lp_pool1d", Tensor::lp_pool1d).also(&["avg_pool1d"]),
        lp::<2>("lp_pool2d", Tensor::lp_pool2d).also(&["avg_pool2d"]),
        lp::<3>("lp_pool3d", Tensor::lp_pool3d).also(&["avg_pool3d"]),
        unpool::<1>("max_unpool1d", Tensor::max_unpool1d),
        unpool::<2>("max_unpool2d", Tensor::max_unpool2d),
        unpool::<3>("max_unpool3d", Tensor::max_unpool3d),
    ]
}

type Values<P> = fn(&Tensor, &P) -> Result<Tensor>;
type Indices<P> = fn(&Tensor, &P) -> Result<(Tensor, Tensor)>;
type Adaptive<const N: usize, R> = fn(&Tensor, [usize; N]) -> Result<R>;

/// The largest elements, and their positions if `return_indices` is set.
fn maximum(
    c: &Invocation<'_>,
    values: impl FnOnce() -> Result<Tensor>,
    indices: impl FnOnce() -> Result<(Tensor, Tensor)>,
) -> Result<Vec<Tensor>> {
    if c.flag("return_indices")? { two(indices()) } else { one(values()) }
}

fn max<const N: usize>(name: &'static str, values: Values<MaxPool<N>>, indices: Indices<MaxPool<N>>) -> Op {
    let run = move |c: &Invocation<'_>| {
        let (x, pool) = (c.input("x")?, max_of(c, "")?);
        maximum(c, || values(x, &pool), || indices(x, &pool))
    };
    Op::new(name, run, |g| {
        let x = input::<N>(g, Domain::Distinct);
        let mut attributes = windows::<N>(g, &x, &[(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 2), (2, 3, 1, 1)]);
        attributes["return_indices"] = g.coin().into();
        Case::new(attributes, vec![("x", x)])
    })
    .fused()
}

fn avg<const N: usize>(name: &'static str, values: Values<AvgPool<N>>) -> Op {
    let make = |g: &mut Gen| {
        let x = input::<N>(g, Domain::Real);
        let mut attributes = windows::<N>(g, &x, &[(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 1), (2, 3, 1, 1)]);
        attributes["count_include_pad"] = g.coin().into();
        attributes["divisor_override"] = g.pick(&[Value::Null.as_i64(), Some(3)]).into();
        if let Some(attributes) = attributes.as_object_mut() {
            attributes.remove("dilation");
        }
        Case::new(attributes, vec![("x", x)])
    };
    Op::new(name, move |c| one(values(c.input("x")?, &avg_of(c, "")?)), make)
        .class(Reduction)
        .companion(absolute)
        .linear()
        .fused()
}

fn global_max<const N: usize>(
    name: &'static str,
    values: fn(&Tensor) -> Result<Tensor>,
    indices: fn(&Tensor) -> Result<(Tensor, Tensor)>,
) -> Op {
    let run = move |c: &Invocation<'_>| {
        let x = c.input("x")?;
        maximum(c, || values(x), || indices(x))
    };
    Op::new(name, run, |g| {
        let x = input::<N>(g, Domain::Distinct);
        Case::new(json!({"return_indices": g.coin()}), vec![("x", x)])
    })
    .fused()
}

fn global_avg<const N: usize>(name: &'static str, values: fn(&Tensor) -> Result<Tensor>) -> Op {
    let make = |g: &mut Gen| Case::new(none(), vec![("x", input::<N>(g, Domain::Real))]);
    Op::new(name, move |c| one(values(c.input("x")?)), make).class(Reduction).companion(absolute).linear()
}

fn adaptive_max<const N: usize>(
    name: &'static str,
    values: Adaptive<N, Tensor>,
    indices: Adaptive<N, (Tensor, Tensor)>,
) -> Op {
    let run = move |c: &Invocation<'_>| {
        let (x, output) = (c.input("x")?, output_of(c, "")?);
        maximum(c, || values(x, output), || indices(x, output))
    };
    Op::new(name, run, |g| {
        let x = input::<N>(g, Domain::Distinct);
        let attributes = json!({"output_size": outputs::<N>(g), "return_indices": g.coin()});
        Case::new(attributes, vec![("x", x)])
    })
    .fused()
}

fn adaptive_avg<const N: usize>(name: &'static str, values: Adaptive<N, Tensor>) -> Op {
    let make = |g: &mut Gen| {
        let x = input::<N>(g, Domain::Real);
        Case::new(json!({"output_size": outputs::<N>(g)}), vec![("x", x)])
    };
    Op::new(name, move |c| one(values(c.input("x")?, output_of(c, "")?)), make)
        .class(Reduction)
        .companion(absolute)
        .linear()
        .fused()
}

/// The windows of a maximum, from attributes with the prefix `at`.
pub(crate) fn max_of<const N: usize>(c: &Invocation<'_>, at: &str) -> Result<MaxPool<N>> {
    let of = |name: &str, default: [usize; N]| extents(c, &format!("{at}{name}"), Some(default));
    let pool = MaxPool::new(extents(c, &format!("{at}kernel_size"), None)?);
    Ok(MaxPool {
        stride: of("stride", pool.stride)?,
        padding: of("padding", pool.padding)?,
        padding_end: end_of(c, at)?,
        dilation: of("dilation", pool.dilation)?,
        ceil_mode: c.flag(&format!("{at}ceil_mode"))?,
        ..pool
    })
}

pub(crate) fn avg_of<const N: usize>(c: &Invocation<'_>, at: &str) -> Result<AvgPool<N>> {
    let (include, divisor) = (format!("{at}count_include_pad"), format!("{at}divisor_override"));
    let of = |name: &str, default: [usize; N]| extents(c, &format!("{at}{name}"), Some(default));
    let pool = AvgPool::new(extents(c, &format!("{at}kernel_size"), None)?);
    Ok(AvgPool {
        stride: of("stride", pool.stride)?,
        padding: of("padding", pool.padding)?,
        padding_end: end_of(c, at)?,
        dilation: of("dilation", pool.dilation)?,
        ceil_mode: c.flag(&format!("{at}ceil_mode"))?,
        count_include_pad: c.flag_or(&include, pool.count_include_pad)?,
        divisor_override: c.optional_of(&divisor, Invocation::int)?,
        ..pool
    })
}

/// The padding after the last element, if it is given.
fn end_of<const N: usize>(c: &Invocation<'_>, at: &str) -> Result<Option<[usize; N]>> {
    c.optional_of(&format!("{at}padding_end"), |c, name| extents(c, name, None))
}

/// The order and the windows of a norm, from attributes with the prefix `at`.
pub(crate) fn lp_of<const N: usize>(c: &Invocation<'_>, at: &str) -> Result<nn::LpPool<N>> {
    let pool = LpPool::new(extents(c, &format!("{at}kernel_size"), None)?);
    let stride = extents(c, &format!("{at}stride"), Some(pool.stride))?;
    let windows = LpPool { stride, ceil_mode: c.flag(&format!("{at}ceil_mode"))?, ..pool };
    Ok(nn::LpPool { p: c.float(&format!("{at}norm_type"))?, windows })
}

/// The norms of windows.
fn lp<const N: usize>(name: &'static str, values: fn(&Tensor, f64, &LpPool<N>) -> Result<Tensor>) -> Op {
    let run = move |c: &Invocation<'_>| {
        let nn::LpPool { p, windows } = lp_of(c, "")?;
        one(values(c.input("x")?, p, &windows))
    };
    let make = |g: &mut Gen| {
        let x = input::<N>(g, Domain::Positive);
        let mut attributes = windows::<N>(g, &x, &[(2, 2, 0, 1), (3, 2, 0, 1), (2, 1, 0, 1)]);
        attributes["norm_type"] = g.pick(&[1.0, 2.0, 3.0]).into();
        if let Some(attributes) = attributes.as_object_mut() {
            attributes.remove("dilation");
            attributes.remove("padding");
        }
        Case::new(attributes, vec![("x", x)])
    };
    Op::new(name, run, make).class(Stages).fused().launches(10, 14)
}

type Unpool<const N: usize> = fn(&Tensor, &Tensor, [usize; N]) -> Result<Tensor>;

/// The result of a maximum, back in its places.
fn unpool<const N: usize>(name: &'static str, values: Unpool<N>) -> Op {
    let run =
        move |c: &Invocation<'_>| one(values(c.input("x")?, c.input("indices")?, extents(c, "output_size", None)?));
    let make = |g: &mut Gen| {
        let x = input::<N>(g, Domain::Real);
        let shape = x.dims().to_vec();
        let size: Vec<usize> = shape[shape.len() - N..].iter().map(|n| n + 1).collect();
        let indices = g.overwriting_indices(size.iter().product(), &shape, shape.len() - 1);
        Case::new(json!({"output_size": size}), vec![("x", x), ("indices", indices)])
    };
    Op::new(name, run, make).linear().also(&["scatter"]).launches(8, 14)
}

pub(crate) fn output_of<const N: usize>(c: &Invocation<'_>, at: &str) -> Result<[usize; N]> {
    extents(c, &format!("{at}output_size"), None)
}

/// An input with N dimensions, after channels and possibly a batch, which may be empty.
pub(crate) fn input<const N: usize>(g: &mut Gen, domain: Domain) -> Tensor {
    g.at_least_rank(N + 1);
    let spare = g.shape.len().saturating_sub(N + 2);
    g.shape.drain(..spare);
    let is_batch = g.shape.len() == N + 2;
    let batch = g.shape[0];
    g.not_empty();
    if is_batch {
        g.shape[0] = batch;
    }
    g.x(domain)
}

/// Kernel, stride, padding and dilation of each dimension: one of the choices that fit, or single elements.
fn windows<const N: usize>(g: &mut Gen, x: &Tensor, choices: &[(usize, usize, usize, usize)]) -> Value {
    let (chosen, last) = (g.pick(choices), &x.dims()[x.rank() - N..]);
    let fits = |l: usize| if l > chosen.3 * (chosen.0 - 1) { chosen } else { (1, 1, 0, 1) };
    let all: Vec<_> = last.iter().map(|&l| fits(l)).collect();
    let of = |f: fn(&(usize, usize, usize, usize)) -> usize| all.iter().map(f).collect::<Vec<usize>>();
    json!({
        "kernel_size": of(|w| w.0),
        "stride": of(|w| w.1),
        "padding": of(|w| w.2),
        "dilation": of(|w| w.3),
        "ceil_mode": g.coin(),
    })
}

/// Numbers of windows, sometimes as many as elements.
fn outputs<const N: usize>(g: &mut Gen) -> Vec<Value> {
    (0..N)
        .map(|_| g.pick(&[None, Some(0), Some(1), Some(2), Some(3), Some(5)]).map_or(Value::Null, |o| o.into()))
        .collect()
}

const IMAGES: &[usize] = &[64, 64, 112, 112];
const VOLUMES: &[usize] = &[8, 64, 16, 56, 56];

/// x and the results, with an index of `index` bytes each.
fn pooled(c: &Call, outputs: usize, index: usize) -> Cost {
    Cost::bytes(c.bytes(c.numel() + outputs) + outputs * index)
}

/// Windows at a distance of 2 over `[N, C, ..]`. A maximum saves one byte per result: the number of the element within its window.
fn halved(variant: &'static str, dims: &[usize], index: usize, f: fn(&Call, &[Tensor]) -> Result<Tensor>) -> Bench {
    fn halves(c: &Call) -> usize {
        c.dims[..2].iter().product::<usize>() * c.dims[2..].iter().map(|l| l / 2).product::<usize>()
    }
    let costs: [fn(&Call) -> Cost; 2] = [|c| pooled(c, halves(c), 0), |c| pooled(c, halves(c), 1)];
    windowed(variant, dims, f, costs[index])
}

/// A fixed number of windows over images.
fn adapted(variant: &'static str, f: fn(&Call, &[Tensor]) -> Result<Tensor>, cost: fn(&Call) -> Cost) -> Bench {
    windowed(variant, &[64, 256, 56, 56], f, cost)
}

fn windowed(
    variant: &'static str,
    dims: &[usize],
    f: fn(&Call, &[Tensor]) -> Result<Tensor>,
    cost: fn(&Call) -> Cost,
) -> Bench {
    Bench::new(dims, call(bench::one, f), cost).dtypes(STORED).backward(cost).variant(variant)
}
