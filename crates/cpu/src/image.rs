//! Maxima and averages of windows, and their gradients: a thread takes a plane.

use crate::access::{Acc, PARALLEL, Source, Strided, Target, load, store, with_acc};
use crate::memory::scratch;
use isograd_core::fused::Fused;
use isograd_core::operands::{Input, Output};
use isograd_core::ops::image::pool::{
    AvgPoolBackward, AvgPoolForward, Divisor, MaxPoolBackward, MaxPoolBackwardInputs, MaxPoolForward, MaxPoolOutputs,
};
use isograd_core::ops::image::window::Windows;
use isograd_core::{Call, DType, Operand, Result, host};
use rayon::prelude::*;

/// The elements of a window along a dimension that are not in the padding.
struct Line {
    /// The number of the first one within the window, and its position.
    first: (usize, usize),
    count: usize,
    /// Distance between the positions of adjacent ones.
    step: usize,
}

impl Line {
    /// Numbers within the window, and positions.
    fn elements(&self) -> impl Iterator<Item = (usize, usize)> {
        let &Line { first: (number, at), count, step } = self;
        (0..count).map(move |i| (number + i, at + i * step))
    }
}

/// The elements of the windows along each dimension.
type Lines = [Vec<Line>; 3];

fn lines(op: &'static str, windows: &Windows) -> Result<Lines> {
    let of = |d: usize, q: usize| {
        let mut inside = windows.elements(d, q).enumerate().filter_map(|(k, at)| Some((k, at?)));
        // No window is in the padding alone.
        let first = inside.next().unwrap_or((0, 0));
        Line { first, count: 1 + inside.count(), step: windows.dilation[d] }
    };
    let along = |d: usize| host::collect(op, (0..windows.output[d]).map(|q| of(d, q)));
    Ok([along(0)?, along(1)?, along(2)?])
}

/// The fewest planes of a thread.
fn least(windows: &Windows) -> usize {
    (PARALLEL / windows.volume().max(1)).max(1)
}

/// The index of an element of a plane, written in the dtype of the output.
fn write_index(dtype: DType, bytes: &mut [u8], at: usize, index: usize) {
    match dtype {
        DType::U8 => bytes[at] = index as u8,
        DType::I32 => bytes[4 * at..4 * at + 4].copy_from_slice(&(index as i32).to_ne_bytes()),
        _ => bytes[8 * at..8 * at + 8].copy_from_slice(&(index as i64).to_ne_bytes()),
    }
}

fn read_position(dtype: DType, bytes: &[u8], at: usize) -> usize {
    match dtype {
        DType::I32 => bytes[4 * at..4 * at + 4].try_into().map_or(0, i32::from_ne_bytes) as usize,
        _ => bytes[8 * at..8 * at + 8].try_into().map_or(0, i64::from_ne_bytes) as usize,
    }
}

/// The largest element of each window, and its position if this is an output.
pub fn max(call: &Call<'_>, of: &MaxPoolForward) -> Result<()> {
    let (Input { x }, MaxPoolOutputs { y, index }) = (of.inputs(call), of.outputs(call));
    let windows = &of.0;
    let source = Source::new(x)?;
    let mut target = Target::new(y)?;
    let dtype = target.dtype;
    let mut index = index.map(Target::new).transpose()?;
    let index_dtype = index.as_ref().map_or(DType::I64, |index| index.dtype);
    let (outputs, lines) = (windows.outputs(), lines(call.op, windows)?);
    let values = target.elements().par_chunks_mut(outputs * dtype.size()).with_min_len(least(windows));
    match &mut index {
        Some(index) => {
            let places = index.elements().par_chunks_mut(outputs * index_dtype.size());
            values.zip(places).enumerate().try_for_each(|(plane, (y, index))| {
                let index = Some((index_dtype, index));
                with_acc!(dtype, max_of_plane(call, windows, &lines, &source, plane, y, index))
            })
        }
        None => values
            .enumerate()
            .try_for_each(|(plane, y)| with_acc!(dtype, max_of_plane(call, windows, &lines, &source, plane, y, None))),
    }
}

fn max_of_plane<A: Acc>(
    call: &Call<'_>,
    windows: &Windows,
    [depths, rows, columns]: &Lines,
    source: &Source<'_>,
    plane: usize,
    y: &mut [u8],
    mut index: Option<(DType, &mut [u8])>,
) -> Result<()> {
    let ([_, height, width], volume, per_line) = (windows.input, windows.volume(), windows.output[2]);
    let mut x = scratch::<A>(call, volume)?;
    load(source.view(), &Strided::new(source.layout), plane * volume, &mut x);
    let mut best = scratch::<A>(call, per_line)?;
    // Numbers within the windows, or positions in the volume.
    let is_number = index.as_ref().is_some_and(|(dtype, _)| *dtype == DType::U8);
    let mut found = host::repeated(call.op, 0, per_line)?;
    // Element i of the windows of a line: its place in the line, and what it adds to an index. A window of fewer elements has its last
    // one again, which changes nothing.
    let longest = columns.iter().map(|column| column.count).max().unwrap_or(0);
    let mut elements = host::with_room(call.op, longest * per_line)?;
    for i in 0..longest {
        elements.extend(columns.iter().map(|column| {
            let i = i.min(column.count - 1);
            let at = column.first.1 + i * column.step;
            (at, if is_number { column.first.0 + i } else { at })
        }));
    }
    let size = y.len() / windows.outputs();
    let mut line = 0;
    for depth in depths {
        for row in rows {
            let mut is_first = true;
            for (kd, z) in depth.elements() {
                for (kh, row) in row.elements() {
                    let start = (z * height + row) * width;
                    let number = (kd * windows.kernel[1] + kh) * windows.kernel[2];
                    let (values, base) = (&x[start..start + width], if is_number { number } else { start });
                    for elements in elements.chunks(per_line) {
                        let all = best.iter_mut().zip(found.iter_mut()).zip(elements);
                        // The first of equal elements, and the last NaN. Without branches, which processors could not predict.
                        for ((best, found), &(at, number)) in all {
                            let v = values[at];
                            let is_more = is_first | (v > *best) | v.is_nan();
                            *best = if is_more { v } else { *best };
                            *found = if is_more { base + number } else { *found };
                        }
                        is_first = false;
                    }
                }
            }
            store(&best, source.dtype, &mut y[line * per_line * size..(line + 1) * per_line * size]);
            if let Some((dtype, bytes)) = &mut index {
                found.iter().enumerate().for_each(|(i, &v)| write_index(*dtype, bytes, line * per_line + i, v));
            }
            line += 1;
        }
    }
    Ok(())
}

/// `dx`, from dy and the positions of the maxima.
pub fn max_backward(call: &Call<'_>, of: &MaxPoolBackward) -> Result<()> {
    let (MaxPoolBackwardInputs { dy, index }, Output { y: dx }, windows) = (of.inputs(call), of.outputs(call), &of.0);
    let (dy, index) = (Source::new(dy)?, Source::new(index)?);
    let [_, height, width] = windows.input;
    let at = |[z, y, x]: [usize; 3], of: [usize; 3]| (z * of[0] * height + y * of[1]) * width + x * of[2];
    let numbered = index.dtype == DType::U8;
    // The distance of each element of a window from the window's beginning, which may be in the padding.
    let [deep, high, wide] = if numbered { windows.kernel } else { [0; 3] };
    let each = (0..deep).flat_map(|z| (0..high).flat_map(move |y| (0..wide).map(move |x| [z, y, x])));
    let offsets: Vec<usize> = each.map(|k| at(k, windows.dilation)).collect();
    let padding = at(windows.low, [1; 3]);
    let [_, rows, columns] = windows.output;
    let start = index.layout.offset();
    let bytes = &index.bytes;
    backward(call, windows, &dy, dx, |plane, dy, dx| {
        let first = start + plane * dy.len();
        for (line, dy) in dy.chunks(columns).enumerate() {
            let begin = at([line / rows, line % rows, 0], windows.stride);
            let first = first + line * columns;
            if numbered {
                for (i, (v, &number)) in dy.iter().zip(&bytes[first..]).enumerate() {
                    dx[begin + i * windows.stride[2] + offsets[number as usize] - padding] += v;
                }
            } else {
                dy.iter().enumerate().for_each(|(i, v)| dx[read_position(index.dtype, bytes, first + i)] += v);
            }
        }
    })
}

/// The divisor of each window's sum.
fn divisors(op: &'static str, windows: &Windows, lines: &Lines, divisor: Divisor) -> Result<Vec<f64>> {
    let [depths, rows, columns] = lines;
    let count = |d: usize, q: usize| match divisor {
        Divisor::Window if !windows.is_adaptive => windows.size(d, q),
        _ => lines[d][q].count,
    };
    let mut all = host::with_room(op, windows.outputs())?;
    for z in 0..depths.len() {
        for y in 0..rows.len() {
            let counted = (0..columns.len()).map(|x| (count(0, z) * count(1, y) * count(2, x)) as f64);
            all.extend(counted.map(|n| if let Divisor::Number(number) = divisor { number as f64 } else { n }));
        }
    }
    Ok(all)
}

/// The sum of each window over its divisor. Sums are in f64; one that is out of the dtype's range is infinite.
pub fn avg(call: &Call<'_>, of: &AvgPoolForward) -> Result<()> {
    let (Input { x }, Output { y }) = (of.inputs(call), of.outputs(call));
    let (source, mut target, windows) = (Source::new(x)?, Target::new(y)?, &of.windows);
    let (dtype, lines) = (target.dtype, lines(call.op, windows)?);
    let divisors = divisors(call.op, windows, &lines, of.divisor)?;
    let planes = target.elements().par_chunks_mut(windows.outputs() * dtype.size());
    planes
        .enumerate()
        .try_for_each(|(plane, y)| with_acc!(dtype, avg_of_plane(call, windows, &lines, &source, plane, &divisors, y)))
}

fn avg_of_plane<A: Acc>(
    call: &Call<'_>,
    windows: &Windows,
    lines: &Lines,
    source: &Source<'_>,
    plane: usize,
    divisors: &[f64],
    y: &mut [u8],
) -> Result<()> {
    let volume = windows.volume();
    let mut x = scratch::<A>(call, volume)?;
    load(source.view(), &Strided::new(source.layout), plane * volume, &mut x);
    let mut sums = scratch::<f64>(call, windows.outputs())?;
    sums.fill(0.0);
    each_element(windows, lines, |window, at| sums[window] += x[at].to_f64());
    let mut results = scratch::<A>(call, windows.outputs())?;
    results
        .iter_mut()
        .zip(sums.iter().zip(divisors))
        .for_each(|(y, (sum, n))| *y = A::from_f64(A::from_f64(*sum).to_f64() / n));
    store(&results, source.dtype, y);
    Ok(())
}

/// Calls `f(window, position)` for the elements of all windows of a plane, window after window of a line.
fn each_element(windows: &Windows, [depths, rows, columns]: &Lines, mut f: impl FnMut(usize, usize)) {
    let [_, height, width] = windows.input;
    let mut line = 0;
    for depth in depths {
        for row in rows {
            for (_, z) in depth.elements() {
                for (_, y) in row.elements() {
                    let start = (z * height + y) * width;
                    for (i, column) in columns.iter().enumerate() {
                        column.elements().for_each(|(_, at)| f(line + i, start + at));
                    }
                }
            }
            line += columns.len();
        }
    }
}

/// `dx` of averages.
pub fn avg_backward(call: &Call<'_>, of: &AvgPoolBackward) -> Result<()> {
    let (Input { x: dy }, Output { y: dx }) = (of.inputs(call), of.outputs(call));
    let AvgPoolForward { windows, divisor } = &of.0;
    let dy = Source::new(dy)?;
    let lines = lines(call.op, windows)?;
    let divisors = divisors(call.op, windows, &lines, *divisor)?;
    backward(call, windows, &dy, dx, |_, dy, dx| {
        dy.iter_mut().zip(&divisors).for_each(|(v, n)| *v /= n);
        each_element(windows, &lines, |window, at| dx[at] += dy[window]);
    })
}

/// Adds up the gradient of each plane in f64. `add` gets the plane's number, its dy, which it may change, and zeros for dx.
fn backward(
    call: &Call<'_>,
    windows: &Windows,
    dy: &Source<'_>,
    dx: &Operand<'_>,
    add: impl Fn(usize, &mut [f64], &mut [f64]) + Sync,
) -> Result<()> {
    let mut target = Target::new(dx)?;
    let (dtype, volume) = (target.dtype, windows.volume());
    let planes = target.elements().par_chunks_mut(volume * dtype.size()).with_min_len(least(windows));
    planes.enumerate().try_for_each(|(plane, dx)| {
        with_acc!(dtype, gradient_of_plane(call, windows.outputs(), volume, dy, plane, dx, &add))
    })
}

fn gradient_of_plane<A: Acc>(
    call: &Call<'_>,
    outputs: usize,
    volume: usize,
    dy: &Source<'_>,
    plane: usize,
    dx: &mut [u8],
    add: &(impl Fn(usize, &mut [f64], &mut [f64]) + Sync),
) -> Result<()> {
    let mut given = scratch::<A>(call, outputs)?;
    load(dy.view(), &Strided::new(dy.layout), plane * outputs, &mut given);
    let (mut wide, mut sums) = (scratch::<f64>(call, outputs)?, scratch::<f64>(call, volume)?);
    wide.iter_mut().zip(given.iter()).for_each(|(wide, v)| *wide = v.to_f64());
    sums.fill(0.0);
    add(plane, &mut wide, &mut sums);
    let mut results = scratch::<A>(call, volume)?;
    results.iter_mut().zip(sums.iter()).for_each(|(dx, sum)| *dx = A::from_f64(*sum));
    store(&results, dy.dtype, dx);
    Ok(())
}
