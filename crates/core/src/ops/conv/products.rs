//! Convolutions whose windows are the single elements of the input: products of matrices that are in memory already.

use super::geometry::{Geometry, OUTPUT, WEIGHT};
use crate::backend::Kernel;
use crate::tensor::{Attributes, run};
use crate::{Layout, Result, Shape, Tensor};

/// Computes the result of a map, `wanted`, as a product; false if it is none. `a` and `b` are the inputs of the map's kernel, and `bias`
/// is `[N, channels]`.
pub(super) fn try_run(
    op: &'static str,
    geometry: &Geometry,
    wanted: usize,
    [a, b]: [&Tensor; 2],
    bias: Option<&Tensor>,
    y: &Tensor,
) -> Result<bool> {
    if geometry.groups != 1 || !geometry.is_pointwise() || y.numel() == 0 {
        return Ok(false);
    }
    let bias = bias.map(|bias| bias.with_layout(bias.layout().select(0, 0)));
    let (factors, bias, y) = if [a, b, y].iter().all(|t| t.layout().has_channels_last()) {
        let (a, b) = (rows(a), rows(b));
        let factors = match wanted {
            OUTPUT => [a, turned(&b)],
            WEIGHT => [turned(&a), b],
            _ => [a, b],
        };
        let y = rows(y);
        (factors, bias.map(|bias| bias.with_layout(bias.layout().expand(y.shape()))), y)
    } else if wanted != WEIGHT && [a, b, y].iter().all(|t| t.is_contiguous()) {
        let weight = if wanted == OUTPUT { matrices(b) } else { turned(&matrices(b)) };
        let y = volumes(y);
        let shape = Shape::from([y.dims()[0], weight.dims()[1], weight.dims()[2]]);
        let weight = weight.with_layout(weight.layout().expand(&shape));
        let column =
            |bias: Tensor| bias.with_layout(bias.layout().split(0, [(bias.numel(), 1), (1, 1)]).expand(y.shape()));
        ([weight, volumes(a)], bias.map(column), y.clone())
    } else {
        return Ok(false);
    };
    let inputs: Vec<&Tensor> = factors.iter().chain(&bias).collect();
    run(op, Kernel::Matmul, &inputs, &[&y], Attributes::floats(&[1.0, 1.0]))?;
    Ok(true)
}

/// `[N, C, ..]`, of which the channels are last in memory, as one matrix `[1, N .., C]`.
fn rows(x: &Tensor) -> Tensor {
    let channels = x.dims()[1];
    shaped(x, [1, x.numel() / channels, channels])
}

/// A weight `[O, C, 1..]` as one matrix `[1, O, C]`.
fn matrices(weight: &Tensor) -> Tensor {
    shaped(weight, [1, weight.dims()[0], weight.dims()[1]])
}

/// `[N, C, ..]`, which is contiguous, as matrices `[N, C, ..]`.
fn volumes(x: &Tensor) -> Tensor {
    let (n, channels) = (x.dims()[0], x.dims()[1]);
    shaped(x, [n, channels, x.numel() / (n * channels)])
}

/// The same memory, which has no gaps, in row-major order.
fn shaped(x: &Tensor, dims: [usize; 3]) -> Tensor {
    x.with_layout(Layout::contiguous(Shape::from(dims)).shift(x.layout().offset()))
}

fn turned(x: &Tensor) -> Tensor {
    x.with_layout(x.layout().transpose(1, 2))
}
