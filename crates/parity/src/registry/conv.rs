//! Convolution, and windows as columns.

use super::common::{absolute, extents, one};
use super::invocation::Invocation;
use super::op::Class::{Exact, Product, Reduction, Stages};
use super::op::Op;
use crate::bench::{BF16, Bench, Call, Cost, STORED, call};
use crate::case::{Case, Domain, Gen};
use isograd_core::ops::{Conv, ConvTranspose, Padding, Unfold};
use isograd_core::{Result, Tensor};
use serde_json::{Value, json};

pub(super) fn ops() -> Vec<Op> {
    vec![
        conv("conv1d", Tensor::conv1d),
        conv("conv2d", Tensor::conv2d).kernels(&["conv2d_direct", "depthwise_conv2d", "dilated_conv2d"]).bench([
            measured("3x3", &[64, 64, 56, 56, 64, 3, 1, 1], row_major),
            measured("3x3, few windows", &[64, 256, 14, 14, 256, 3, 1, 1], row_major),
            measured("stem", &[64, 3, 224, 224, 64, 7, 2, 1], row_major),
            measured("1x1", &[64, 256, 56, 56, 64, 1, 1, 1], row_major),
            measured("depthwise", &[64, 128, 56, 56, 128, 3, 1, 128], row_major),
            measured("depthwise, strided", &[64, 96, 112, 112, 96, 3, 2, 96], row_major),
            measured("depthwise, channels last", &[64, 144, 56, 56, 144, 3, 1, 144], channels_last),
            measured("depthwise, strided, channels last", &[64, 96, 112, 112, 96, 3, 2, 96], channels_last),
            measured("3x3, channels last", &[64, 64, 56, 56, 64, 3, 1, 1], channels_last).dtypes(BF16),
            measured("3x3, few windows, channels last", &[64, 256, 14, 14, 256, 3, 1, 1], channels_last).dtypes(BF16),
            measured("3x3, strided, channels last", &[64, 128, 28, 28, 256, 3, 2, 1], channels_last).dtypes(BF16),
            measured("1x1, channels last", &[64, 256, 56, 56, 64, 1, 1, 1], channels_last).dtypes(BF16),
            measured("1x1, few channels, channels last", &[64, 16, 112, 112, 96, 1, 1, 1], channels_last).dtypes(BF16),
        ]),
        conv("conv3d", Tensor::conv3d).kernels(&["conv3d_direct"]),
        transposed("conv_transpose1d", Tensor::conv_transpose1d),
        transposed("conv_transpose2d", Tensor::conv_transpose2d),
        transposed("conv_transpose3d", Tensor::conv_transpose3d),
        Op::new("deform_conv2d", |c| one(deformed(c, |x| Ok(x.clone()))), deformed_case)
            .class(Stages)
            .fused()
            .companion(|c| one(deformed(c, Tensor::abs)))
            .launches(500, 900)
            .wide("an element that is read at a rounded offset may lie between other elements")
            .finite(&["offset"]),
        Op::new("unfold", |c| one(c.input("x")?.unfold(&unfold_of(c, "")?)), unfold_case)
            .kernels(&["im2col"])
            .class(Exact)
            .linear()
            .launches(3, 4),
        Op::new("fold", |c| one(c.input("x")?.fold(extents(c, "output_size", None)?, &unfold_of(c, "")?)), fold_case)
            .kernels(&["col2im"])
            .class(Reduction)
            .companion(absolute)
            .linear()
            .launches(5, 3),
    ]
}

/// A convolution `[N, C, H, W, O, kernel, stride, groups]` with padding of half a kernel.
fn measured(variant: &'static str, dims: &[usize], inputs: fn(&Call) -> Result<Vec<Tensor>>) -> Bench {
    let run = |c: &Call, x: &[Tensor]| {
        let [kernel, stride, groups] = [5, 6, 7].map(|k| c.dims[k]);
        let padding = Padding::Each([kernel / 2; 2]);
        x[0].conv2d(&x[1], None, &Conv { stride: [stride; 2], padding, groups, ..Conv::default() })
    };
    Bench::new(dims, call(inputs, run), |c| once(c, 1)).dtypes(STORED).backward(|c| once(c, 2)).variant(variant)
}

/// A number of the maps of a convolution.
fn once(c: &Call, maps: usize) -> Cost {
    let &[n, channels, height, width, outputs, kernel, stride, groups] = &c.dims[..] else { return Cost::bytes(0) };
    let windows = n * height.div_ceil(stride) * width.div_ceil(stride);
    let weight = outputs * channels / groups * kernel * kernel;
    let bytes = c.bytes(n * channels * height * width + windows * outputs + weight);
    Cost { bytes: maps * bytes, flops: 2.0 * (maps * windows) as f64 * weight as f64 }
}

fn row_major(c: &Call) -> Result<Vec<Tensor>> {
    let &[n, channels, height, width, outputs, kernel, _, groups] = &c.dims[..] else { return Ok(Vec::new()) };
    c.normals([&[n, channels, height, width], &[outputs, channels / groups, kernel, kernel]])
}

fn channels_last(c: &Call) -> Result<Vec<Tensor>> {
    row_major(c)?.iter().map(Tensor::to_channels_last).collect()
}

type Run<const N: usize, O> = fn(&Tensor, &Tensor, Option<&Tensor>, &O) -> Result<Tensor>;

fn conv<const N: usize>(name: &'static str, run: Run<N, Conv<N>>) -> Op {
    let run = move |c: &Invocation<'_>| one(run(c.input("x")?, c.input("w")?, c.optional("b"), &conv_of(c, "")?));
    Op::new(name, run, conv_case::<N>).class(Product).companion(absolute).fused().launches(4, 7)
}

fn transposed<const N: usize>(name: &'static str, run: Run<N, ConvTranspose<N>>) -> Op {
    let run = move |c: &Invocation<'_>| one(run(c.input("x")?, c.input("w")?, c.optional("b"), &transposed_of(c, "")?));
    Op::new(name, run, transposed_case::<N>).class(Product).companion(absolute).fused().launches(4, 7)
}

/// A deformable convolution of operands, of which all but the offsets are mapped.
fn deformed(c: &Invocation<'_>, map: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let [mask, bias] = [c.optional("mask"), c.optional("b")].map(|t| t.map(&map).transpose());
    let (x, w, conv) = (map(c.input("x")?)?, map(c.input("w")?)?, conv_of(c, "")?);
    x.deform_conv2d(c.input("offset")?, mask?.as_ref(), &w, bias?.as_ref(), &conv)
}

/// An attribute with a number for each dimension, or one for all; `default` if it is absent.
fn each_or<const N: usize>(c: &Invocation<'_>, name: &str, default: usize) -> Result<[usize; N]> {
    let given = extents(c, name, Some([default; N]));
    c.defaults_to(name, default as i64);
    given
}

fn size(v: &Value) -> Option<usize> {
    v.as_u64().map(|v| v as usize)
}

/// `"valid"`, `"same"`, a size for all dimensions, one for each, or pairs.
fn padding<const N: usize>(c: &Invocation<'_>, name: &str) -> Result<Padding<N>> {
    let of = |v: &Value| match (v.as_str(), v.as_array()) {
        (Some("valid"), _) => Some(Padding::Valid),
        (Some("same"), _) => Some(Padding::Same),
        (Some(_), _) => None,
        (_, Some(all)) if all.iter().all(Value::is_array) => {
            let pair = |v: &Value| Some([size(v.get(0)?)?, size(v.get(1)?)?]);
            Some(Padding::Ends(all.iter().map(pair).collect::<Option<Vec<_>>>()?.try_into().ok()?))
        }
        (_, Some(all)) => Some(Padding::Each(all.iter().map(size).collect::<Option<Vec<_>>>()?.try_into().ok()?)),
        (_, None) => size(v).map(|v| Padding::Each([v; N])),
    };
    let what = "valid, same, a size for each dimension, or pairs";
    let given = c.optional_of(name, |c, name| c.get(name, what, of))?;
    c.defaults_to(name, "valid");
    Ok(given.unwrap_or(Padding::Valid))
}

/// The options of a convolution, from attributes with the prefix `at`.
pub(super) fn conv_of<const N: usize>(c: &Invocation<'_>, at: &str) -> Result<Conv<N>> {
    Ok(Conv {
        stride: each_or(c, &format!("{at}stride"), 1)?,
        padding: padding(c, &format!("{at}padding"))?,
        dilation: each_or(c, &format!("{at}dilation"), 1)?,
        groups: c.size_or(&format!("{at}groups"), 1)?,
    })
}

pub(super) fn transposed_of<const N: usize>(c: &Invocation<'_>, at: &str) -> Result<ConvTranspose<N>> {
    Ok(ConvTranspose {
        stride: each_or(c, &format!("{at}stride"), 1)?,
        padding: each_or(c, &format!("{at}padding"), 0)?,
        output_padding: each_or(c, &format!("{at}output_padding"), 0)?,
        dilation: each_or(c, &format!("{at}dilation"), 1)?,
        groups: c.size_or(&format!("{at}groups"), 1)?,
    })
}

pub(super) fn unfold_of(c: &Invocation<'_>, at: &str) -> Result<Unfold> {
    Ok(Unfold {
        kernel: extents(c, &format!("{at}kernel_size"), None)?,
        dilation: each_or(c, &format!("{at}dilation"), 1)?,
        padding: each_or(c, &format!("{at}padding"), 0)?,
        stride: each_or(c, &format!("{at}stride"), 1)?,
    })
}

/// Windows along a dimension.
struct Side {
    length: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    padding: usize,
}

impl Side {
    /// A dimension, with fewer elements for more dimensions. Sometimes its windows are longer than the input.
    fn new(g: &mut Gen, dims: usize) -> Side {
        // The number of elements is a product over dimensions, as is the cost of second derivatives.
        let (most, longest) = [(9, 4), (5, 3), (2, 2)][dims - 1];
        let (kernel, stride): (usize, usize) = (1 + g.below(longest), g.pick(&[1, 1, 2, 3]));
        let (dilation, padding) = (g.pick(&[1, 1, 2]), g.pick(&[0, 1, 2]));
        let span = dilation * (kernel - 1) + 1;
        let length = (1 + g.below(most)).max(span.saturating_sub(2 * padding));
        Side { length, kernel, stride, dilation, padding }
    }

    fn windows(&self) -> usize {
        (self.length + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) / self.stride + 1
    }
}

/// Groups, and input and output channels of a group. Sometimes there is one channel per group.
fn channels(g: &mut Gen) -> [usize; 3] {
    g.pick(&[[1, 3, 2], [1, 1, 2], [2, 2, 1], [3, 1, 1], [2, 1, 2]])
}

/// x `[n, ..]` or a single sample, a weight, and a bias, if wanted.
fn operands(
    g: &mut Gen,
    inputs: usize,
    weight: [usize; 2],
    bias: usize,
    sides: &[Side],
) -> Vec<(&'static str, Tensor)> {
    let lengths = || sides.iter().map(|side| side.length);
    let batch = g.pick(&[Some(0), Some(1), Some(2), Some(3), None]);
    let x: Vec<usize> = batch.into_iter().chain([inputs]).chain(lengths()).collect();
    let w: Vec<usize> = weight.into_iter().chain(sides.iter().map(|side| side.kernel)).collect();
    let mut all = vec![("x", g.tensor(Domain::Real, &x)), ("w", g.tensor(Domain::Real, &w))];
    if g.coin() {
        all.push(("b", g.tensor(Domain::Real, &[bias])));
    }
    all
}

fn list(sides: &[Side], f: fn(&Side) -> usize) -> Vec<usize> {
    sides.iter().map(f).collect()
}

fn conv_case<const N: usize>(g: &mut Gen) -> Case {
    let sides: Vec<Side> = (0..N).map(|_| Side::new(g, N)).collect();
    let [groups, inputs, outputs] = channels(g);
    let padding = match g.below(4) {
        0 if sides.iter().all(|side| side.stride == 1) => json!("same"),
        1 => json!(sides.iter().map(|side| [side.padding, side.padding + 1]).collect::<Vec<_>>()),
        _ => json!(list(&sides, |side| side.padding)),
    };
    let attributes = json!({
        "stride": list(&sides, |side| side.stride),
        "padding": padding,
        "dilation": list(&sides, |side| side.dilation),
        "groups": groups,
    });
    Case::new(attributes, operands(g, groups * inputs, [groups * outputs, inputs], groups * outputs, &sides))
}

fn transposed_case<const N: usize>(g: &mut Gen) -> Case {
    let mut sides: Vec<Side> = (0..N).map(|_| Side::new(g, N)).collect();
    for side in &mut sides {
        // The output has at least one element.
        let all = |side: &Side| (side.length - 1) * side.stride + side.dilation * (side.kernel - 1) + 1;
        side.padding = side.padding.min((all(side) - 1) / 2);
    }
    let [groups, inputs, outputs] = channels(g);
    let output_padding: Vec<usize> = sides.iter().map(|side| g.below(side.stride.max(side.dilation))).collect();
    let attributes = json!({
        "stride": list(&sides, |side| side.stride),
        "padding": list(&sides, |side| side.padding),
        "output_padding": output_padding,
        "dilation": list(&sides, |side| side.dilation),
        "groups": groups,
    });
    Case::new(attributes, operands(g, groups * inputs, [groups * inputs, outputs], groups * outputs, &sides))
}

fn deformed_case(g: &mut Gen) -> Case {
    // As small as for three dimensions: there are as many offsets as elements of all windows.
    let sides: Vec<Side> = (0..2).map(|_| Side::new(g, 3)).collect();
    let [groups, inputs, outputs] = channels(g);
    let attributes = json!({
        "stride": list(&sides, |side| side.stride),
        "padding": list(&sides, |side| side.padding),
        "dilation": list(&sides, |side| side.dilation),
        "groups": groups,
    });
    let mut all = operands(g, groups * inputs, [groups * outputs, inputs], groups * outputs, &sides);
    let of_offsets = g.pick(&[1, groups * inputs]) * sides.iter().map(|side| side.kernel).product::<usize>();
    let batch = all[0].1.dims()[..all[0].1.rank() - 3].to_vec();
    let of = |rows: usize| [&batch[..], &[rows * of_offsets], &list(&sides, Side::windows)].concat();
    all.insert(1, ("offset", g.tensor(Domain::Real, &of(2))));
    if g.coin() {
        all.insert(2, ("mask", g.tensor(Domain::Real, &of(1))));
    }
    Case::new(attributes, all)
}

fn windows(sides: &[Side]) -> Value {
    json!({
        "kernel_size": list(sides, |side| side.kernel),
        "stride": list(sides, |side| side.stride),
        "padding": list(sides, |side| side.padding),
        "dilation": list(sides, |side| side.dilation),
    })
}

fn unfold_case(g: &mut Gen) -> Case {
    let sides: Vec<Side> = (0..2).map(|_| Side::new(g, 2)).collect();
    let batch = g.pick(&[Some(0), Some(1), Some(2), None]);
    let shape: Vec<usize> = batch.into_iter().chain([3]).chain(list(&sides, |side| side.length)).collect();
    Case::new(windows(&sides), vec![("x", g.tensor(Domain::Real, &shape))])
}

fn fold_case(g: &mut Gen) -> Case {
    let sides: Vec<Side> = (0..2).map(|_| Side::new(g, 2)).collect();
    let product = |f: fn(&Side) -> usize| sides.iter().map(f).product::<usize>();
    let columns = [2 * product(|side| side.kernel), product(Side::windows)];
    let batch = g.pick(&[Some(0), Some(1), Some(2), None]);
    let shape: Vec<usize> = batch.into_iter().chain(columns).collect();
    let mut attributes = windows(&sides);
    attributes["output_size"] = json!(list(&sides, |side| side.length));
    Case::new(attributes, vec![("x", g.tensor(Domain::Real, &shape))])
}
