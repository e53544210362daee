//! Maxima and averages of windows, and their gradients: a thread takes a plane.

use crate::access::{Acc, PARALLEL, Source, Strided, Target, borrow, in_vectors, load, store, with_acc, with_scratch};
use crate::memory::scratch;
use isograd_core::fused::Fused;
use isograd_core::operands::{Input, Output};
use isograd_core::ops::image::pool::{
    AvgPoolBackward, AvgPoolForward, Divisor, MaxPoolBackward, MaxPoolBackwardInputs, MaxPoolForward, MaxPoolOutputs,
};
use isograd_core::ops::image::window::Windows;
use isograd_core::{Call, DType, Error, Operand, Result, host};
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

/// Writes indices of elements of a plane in the dtype of the output.
fn write_indices(dtype: DType, bytes: &mut [u8], indices: &[u32]) {
    match dtype {
        DType::U8 => bytes.iter_mut().zip(indices).for_each(|(to, &index)| *to = index as u8),
        DType::I32 => {
            let to: &mut [i32] = bytemuck::cast_slice_mut(bytes);
            to.iter_mut().zip(indices).for_each(|(to, &index)| *to = index as i32);
        }
        _ => {
            let to: &mut [i64] = bytemuck::cast_slice_mut(bytes);
            to.iter_mut().zip(indices).for_each(|(to, &index)| *to = i64::from(index));
        }
    }
}

fn read_position(dtype: DType, bytes: &[u8], at: usize) -> usize {
    match dtype {
        DType::I32 => bytes[4 * at..4 * at + 4].try_into().map_or(0, i32::from_ne_bytes) as usize,
        _ => bytes[8 * at..8 * at + 8].try_into().map_or(0, i64::from_ne_bytes) as usize,
    }
}

/// The largest element of each window, and its position if this is an output.
pub fn max(call: &Call<'_>, pool: &MaxPoolForward) -> Result<()> {
    let (Input { x }, MaxPoolOutputs { y, index }) = (pool.inputs(call), pool.outputs(call));
    let windows = &pool.0;
    if u32::try_from(windows.volume()).is_err() {
        return Err(Error::unsupported(call.op, "the CPU has maxima of volumes of up to 2^32 elements"));
    }
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

/// Adjacent windows of a line that are computed together. The compiler takes loops over shorter arrays apart before it makes vectors of them.
const LANES: usize = 32;

/// The largest elements of adjacent windows so far, and their indices.
type Maxima<A> = ([A; LANES], [u32; LANES]);

/// The larger of two, the first of equal ones, and the last NaN. Without branches, which processors could not predict.
#[inline(always)]
fn larger<A: Acc>((best, found): (A, u32), v: A, index: u32) -> (A, u32) {
    let is_more = (v > best) | v.is_nan();
    (if is_more { v } else { best }, if is_more { index } else { found })
}

/// Elements that are `stride` apart. A copy by constant distances becomes one of vectors.
#[inline(always)]
fn strided<A: Acc>(x: &[A], stride: usize) -> [A; LANES] {
    let mut values = [A::from_i64(0); LANES];
    match (stride, x.first_chunk::<LANES>(), x.first_chunk::<{ 2 * LANES }>()) {
        (1, Some(x), _) => values = *x,
        (2, _, Some(x)) => {
            for i in 0..LANES {
                values[i] = x[2 * i];
            }
        }
        _ => values.iter_mut().zip(x.iter().step_by(stride)).for_each(|(to, &v)| *to = v),
    }
    values
}

/// The maxima of adjacent windows that are not cut by the padding, whose first elements are `stride` apart: `taken` has the position and the
/// index of each element of the first window, and `step` is what the index of the next window has more.
#[inline(always)]
fn maxima<A: Acc>(x: &[A], stride: usize, taken: &[(usize, u32)], step: u32) -> Maxima<A> {
    let mut best = strided(&x[taken[0].0..], stride);
    let mut found = [taken[0].1; LANES];
    for (i, found) in found.iter_mut().enumerate() {
        *found += i as u32 * step;
    }
    for &(at, index) in &taken[1..] {
        let values = strided(&x[at..], stride);
        for i in 0..LANES {
            let is_more = (values[i] > best[i]) | values[i].is_nan();
            best[i] = if is_more { values[i] } else { best[i] };
            found[i] = if is_more { index + i as u32 * step } else { found[i] };
        }
    }
    (best, found)
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
    let stride = windows.stride[2];
    // Windows at the end are computed with some that do not exist, unless windows are so far apart that these would need more memory than the rest.
    let beyond =
        Some(LANES.saturating_mul(stride)).filter(|&beyond| beyond <= volume && u32::try_from(volume + beyond).is_ok());
    let mut x = scratch::<A>(call, volume + beyond.unwrap_or(0))?;
    load(source.view(), &Strided::new(source.layout), plane * volume, &mut x[..volume]);
    x[volume..].fill(A::from_i64(0));
    // Numbers within the windows, or positions in the volume.
    let is_number = index.as_ref().is_some_and(|(dtype, _)| *dtype == DType::U8);
    let step = if is_number { 0 } else { stride as u32 };
    let is_whole = |column: &Line| beyond.is_some() && column.count == windows.kernel[2] && !windows.is_adaptive;
    let whole = columns.iter().position(is_whole).unwrap_or(per_line);
    let end = whole + columns[whole..].iter().take_while(|column| is_whole(column)).count();
    let (mut best, mut found) = (scratch::<A>(call, per_line + LANES)?, scratch::<u32>(call, per_line + LANES)?);
    // The elements of a window: positions and indices.
    let mut taken = host::with_room(call.op, windows.window())?;
    let size = y.len() / windows.outputs();
    for (line, (depth, row)) in depths.iter().flat_map(|depth| rows.iter().map(move |row| (depth, row))).enumerate() {
        let of_window = |column: &Line, taken: &mut Vec<(usize, u32)>| {
            taken.clear();
            for (kd, z) in depth.elements() {
                for (kh, row) in row.elements() {
                    let start = (z * height + row) * width;
                    let number = (kd * windows.kernel[1] + kh) * windows.kernel[2];
                    taken.extend(
                        column
                            .elements()
                            .map(|(kw, at)| (start + at, if is_number { number + kw } else { start + at } as u32)),
                    );
                }
            }
        };
        for at in (0..whole).chain(end..per_line) {
            of_window(&columns[at], &mut taken);
            let first = (x[taken[0].0], taken[0].1);
            let more = taken[1..].iter().fold(first, |best, &(at, index)| larger(best, x[at], index));
            (best[at], found[at]) = more;
        }
        if whole < end {
            of_window(&columns[whole], &mut taken);
        }
        for at in (whole..end).step_by(LANES) {
            let (values, indices) = in_vectors(
                #[inline(always)]
                || maxima(&x, stride, &taken, step),
            );
            let n = LANES.min(end - at);
            best[at..at + n].copy_from_slice(&values[..n]);
            found[at..at + n].copy_from_slice(&indices[..n]);
            let next = LANES * stride;
            taken.iter_mut().for_each(|(at, index)| (*at, *index) = (*at + next, *index + LANES as u32 * step));
        }
        store(&best[..per_line], source.dtype, &mut y[line * per_line * size..(line + 1) * per_line * size]);
        if let Some((dtype, bytes)) = &mut index {
            let of_line = line * per_line * dtype.size()..(line + 1) * per_line * dtype.size();
            write_indices(*dtype, &mut bytes[of_line], &found[..per_line]);
        }
    }
    Ok(())
}

/// The positions of the maxima of all planes.
struct Places<'a> {
    windows: &'a Windows,
    index: Source<'a>,
    /// Where the index has numbers within the windows: the distance of each element from the window's beginning.
    offsets: Vec<usize>,
    /// The beginning of the first window, which may be in the padding, is before the volume by so many elements.
    padding: usize,
}

impl<'a> Places<'a> {
    fn new(windows: &'a Windows, index: &Operand<'a>) -> Result<Places<'a>> {
        let index = Source::new(index)?;
        let [_, height, width] = windows.input;
        let at = |[z, y, x]: [usize; 3], of: [usize; 3]| (z * of[0] * height + y * of[1]) * width + x * of[2];
        let [deep, high, wide] = if index.dtype == DType::U8 { windows.kernel } else { [0; 3] };
        let each = (0..deep).flat_map(|z| (0..high).flat_map(move |y| (0..wide).map(move |x| [z, y, x])));
        let offsets = each.map(|k| at(k, windows.dilation)).collect();
        Ok(Places { windows, index, offsets, padding: at(windows.low, [1; 3]) })
    }

    /// Calls `f(window, position)` for the windows of a plane.
    fn each(&self, plane: usize, mut f: impl FnMut(usize, usize)) {
        let Windows { input: [_, height, width], output: [_, rows, columns], stride, .. } = *self.windows;
        let outputs = self.windows.outputs();
        let first = self.index.layout.offset() + plane * outputs;
        if self.index.dtype != DType::U8 {
            return (0..outputs).for_each(|i| f(i, read_position(self.index.dtype, &self.index.bytes, first + i)));
        }
        for (line, numbers) in self.index.bytes[first..first + outputs].chunks(columns).enumerate() {
            let begin = (line / rows * stride[0] * height + line % rows * stride[1]) * width;
            for (i, &number) in numbers.iter().enumerate() {
                f(line * columns + i, begin + i * stride[2] + self.offsets[number as usize] - self.padding);
            }
        }
    }
}

/// `dx`, from dy and the positions of the maxima.
pub fn max_backward(call: &Call<'_>, pool: &MaxPoolBackward) -> Result<()> {
    let (MaxPoolBackwardInputs { dy, index }, Output { y: dx }, windows) =
        (pool.inputs(call), pool.outputs(call), &pool.0);
    let (dy, places) = (Source::new(dy)?, Places::new(windows, index)?);
    let are_apart = !windows.is_adaptive && (0..3).all(|d| windows.reach(d) < windows.stride[d]);
    if !are_apart {
        return backward(call, windows, &dy, dx, |plane, dy, dx| places.each(plane, |window, at| dx[at] += dy[window]));
    }
    // Each element is in one window at most.
    let mut target = Target::new(dx)?;
    let (dtype, volume) = (target.dtype, windows.volume());
    let planes = target.elements().par_chunks_mut(volume * dtype.size()).with_min_len(least(windows));
    planes.enumerate().for_each(|(plane, dx)| with_acc!(dtype, put_maxima(windows, &dy, plane, dx, &places)));
    Ok(())
}

fn put_maxima<A: Acc>(windows: &Windows, dy: &Source<'_>, plane: usize, dx: &mut [u8], places: &Places<'_>) {
    let outputs = windows.outputs();
    with_scratch(outputs + windows.volume(), |scratch: &mut [A]| {
        let (given, results) = scratch.split_at_mut(outputs);
        let given = borrow(dy.view(), &Strided::new(dy.layout), plane * outputs, given);
        results.fill(A::from_i64(0));
        places.each(plane, |window, at| results[at] = A::back(results[at].number() + given[window].number()));
        store(results, dy.dtype, dx);
    });
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
pub fn avg(call: &Call<'_>, pool: &AvgPoolForward) -> Result<()> {
    let (Input { x }, Output { y }) = (pool.inputs(call), pool.outputs(call));
    let (source, mut target, windows) = (Source::new(x)?, Target::new(y)?, &pool.windows);
    let (dtype, lines) = (target.dtype, lines(call.op, windows)?);
    let divisors = divisors(call.op, windows, &lines, pool.divisor)?;
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
pub fn avg_backward(call: &Call<'_>, pool: &AvgPoolBackward) -> Result<()> {
    let (Input { x: dy }, Output { y: dx }) = (pool.inputs(call), pool.outputs(call));
    let AvgPoolForward { windows, divisor } = &pool.0;
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
