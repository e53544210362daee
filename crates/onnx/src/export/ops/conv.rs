//! Convolutions.

use crate::export::graph::{int, ints};
use crate::export::translation::{Found, Translation};
use isograd_core::ops::conv::{ConvInputs, Convolution};

pub fn translate(t: &mut Translation<'_>) -> Found {
    let (Convolution { window, groups, output_padding }, ConvInputs { x, w, bias }) = t.described()?;
    let rank = t.x().rank() - 2;
    let last = |of: [usize; 3]| of.into_iter().skip(3 - rank).map(|v| v as i64);
    let mut attributes = vec![
        ints("kernel_shape", last(window.kernel)),
        ints("strides", last(window.stride)),
        ints("pads", last(window.low).chain(last(window.high))),
        ints("dilations", last(window.dilation)),
        int("group", groups as i64),
    ];
    let op = match output_padding {
        None => "Conv",
        Some(padding) => {
            attributes.push(ints("output_padding", padding.into_iter().map(|v| v as i64)));
            "ConvTranspose"
        }
    };
    Ok(t.graph.node_of(op, &[Some(x), Some(w), bias], &attributes, 1))
}
