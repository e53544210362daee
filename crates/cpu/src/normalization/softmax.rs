//! Softmax of slices.

use crate::access::in_vectors;
use crate::slices::{Elements, Slices, largest, row, sum, sum_and_dot};
use isograd_core::fused::Fused;
use isograd_core::operands::{Input, Output};
use isograd_core::ops::normalization::softmax::{Softmax, SoftmaxBackward, SoftmaxBackwardInputs, SoftmaxKind};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Call, Result};

pub fn forward(call: &Call<'_>, softmax: &Softmax) -> Result<()> {
    let (Input { x }, Output { y }) = (softmax.inputs(call), softmax.outputs(call));
    let [add, exp, div] = [Pointwise::AddScalar, Pointwise::Exp, Pointwise::DivScalar].map(row);
    let slices = Slices::new([softmax.outer, softmax.extent, softmax.inner]);
    slices.each(call.op, y, [&Elements::new(x)?], |_, [x], y, [z, e]| {
        let largest = largest(x);
        // Softmax1 has one more element, 0.
        let max = if softmax.kind == SoftmaxKind::PlusOne && largest < 0.0 { 0.0 } else { largest };
        add(&[x], &[-max], &mut [&mut *z]);
        exp(&[z], &[], &mut [&mut *e]);
        let total = sum(e) + if softmax.kind == SoftmaxKind::PlusOne { f64::from((-max).exp()) } else { 0.0 };
        match softmax.kind {
            SoftmaxKind::Logarithm => add(&[z], &[-(total.ln() as f32)], &mut [y]),
            _ => div(&[e], &[total as f32], &mut [y]),
        }
    })
}

// dx = y (dy - sum(dy y)); of the logarithm, dx = dy - e^y sum(dy)
pub fn backward(call: &Call<'_>, softmax: &SoftmaxBackward) -> Result<()> {
    let (SoftmaxBackwardInputs { dy, y, x }, Output { y: dx }) = (softmax.inputs(call), softmax.outputs(call));
    let [dy, y, x] = [dy, y, x].map(Elements::new);
    let (x, Softmax { outer, extent, inner, kind }) = (x?, softmax.0);
    let exp = row(Pointwise::Exp);
    let slices = Slices::new([outer, extent, inner]);
    slices.each(call.op, dx, [&dy?, &y?], |slice, [dy, y], dx, _| {
        let n = dx.len();
        let (dy, y) = (&dy[..n], &y[..n]);
        if kind == SoftmaxKind::Logarithm {
            let total = sum(dy) as f32;
            exp(&[y], &[], &mut [&mut *dx]);
            in_vectors(
                #[inline(always)]
                || (0..n).for_each(|i| dx[i] = dy[i] - dx[i] * total),
            );
        } else {
            let dot = sum_and_dot(dy, y)[1] as f32;
            in_vectors(
                #[inline(always)]
                || (0..n).for_each(|i| dx[i] = y[i] * (dy[i] - dot)),
            );
        }
        // An undefined softmax is NaN throughout.
        if y[0].is_nan() {
            let is_masked = |i: usize| x.at(slices.start(slice) + i * inner, &mut [0.0])[0] == f32::NEG_INFINITY;
            (0..n).filter(|&i| is_masked(i)).for_each(|i| dx[i] = 0.0);
        }
    })
}
