//! Windows as the kernels that include `window.h` take them: definitions and integers.

use crate::launch::integers::Integers;
use crate::program::source::Variant;
use isograd_core::ops::image::window::Windows;

/// Elements of a window up to which loops over them are unrolled.
const SMALL: usize = 32;

/// Whether a window is all of a volume, for adaptive ones.
pub fn is_one(windows: &Windows) -> bool {
    windows.is_adaptive && windows.output == [1; 3]
}

/// Whether volumes have one slice, and one window along it.
fn is_flat(windows: &Windows) -> bool {
    windows.input[0] == 1 && windows.output[0] == 1
}

/// Whether a position needs more than 31 bits, with room for a step beyond.
pub fn is_wide(windows: &Windows) -> bool {
    let volume = |extents: &[usize; 3]| windows.planes * extents.iter().product::<usize>();
    let padding = |d: usize| windows.low[d].max(windows.high[d]);
    let end = |d: usize| windows.input[d] + 2 * (padding(d) + windows.reach(d) + windows.stride[d]);
    volume(&windows.input).max(volume(&windows.output)).max((0..3).map(end).max().unwrap_or(0)) > 1 << 30
}

/// Adds the definitions of `window.h`.
pub fn define(variant: Variant, windows: &Windows) -> Variant {
    let Windows { input, output, kernel, stride, low, dilation, is_adaptive, .. } = windows;
    let names = [["KD", "KH", "KW"], ["SD", "SH", "SW"], ["PD", "PH", "PW"], ["DD", "DH", "DW"]];
    // The kernel computes adaptive windows.
    let values = if *is_adaptive { [[1; 3], [1; 3], [0; 3], [1; 3]] } else { [*kernel, *stride, *low, *dilation] };
    let pairs = names.into_iter().flatten().zip(values.into_iter().flatten());
    let variant = pairs.fold(variant, |variant, (name, value)| variant.define(name, value));
    let is_far = |d: usize| (input[d] + 1).saturating_mul(output[d] + 1) > i32::MAX as usize;
    variant.flags([
        ("ADAPTIVE", *is_adaptive),
        ("ONE", is_one(windows)),
        ("FAR", *is_adaptive && (0..3).any(is_far)),
        ("FLAT", is_flat(windows)),
        ("SMALL", !is_adaptive && windows.window() <= SMALL),
        ("WIDE", is_wide(windows)),
    ])
}

/// The integers of `window.h`: extents and the divisors of a thread's number, with their dividers. Lines have `strips` strips, in
/// volumes of the extents given last.
pub fn named(windows: &Windows, strips: usize, [depth, height, _]: [usize; 3]) -> Integers {
    let is_flat = usize::from(is_flat(windows));
    let inputs = ["IN_D", "IN_H", "IN_W"].into_iter().zip(windows.input).skip(is_flat);
    let outputs = ["OUT_D", "OUT_H", "OUT_W"].into_iter().zip(windows.output).skip(is_flat);
    let counts = [("STRIPS", strips), ("LINES", height), ("SLICES", depth)];
    Integers::new().divisors(inputs.chain(outputs).chain(counts))
}
