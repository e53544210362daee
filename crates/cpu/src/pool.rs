//! The largest elements of windows, and their gradient.

use crate::access::{Acc, PARALLEL, Source, Strided, Target, borrow, store, with_acc};
use isograd_core::ops::window::Windows;
use isograd_core::{Call, DType, Result};
use rayon::prelude::*;

/// The columns of a line of windows of which element `i` of the window's row is in the input: columns `first .. end`, the first at
/// `from` of the input's row.
#[derive(Clone, Copy)]
struct Columns {
    first: usize,
    end: usize,
    from: usize,
}

/// Windows, and what all lines of windows have in common.
struct Lines<'a> {
    windows: &'a Windows,
    /// For each element of a window's row.
    columns: Vec<Columns>,
    /// For each column of windows, the first element of the window's row that is in the input.
    firsts: Vec<u32>,
}

/// Buffers of a thread.
struct Buffers<A> {
    plane: Vec<A>,
    best: Vec<A>,
    number: Vec<u32>,
}

/// Values, and positions where there is a second output. NaN is the largest; of equal elements the first is chosen, and of NaN the last.
pub fn max(call: &Call<'_>, windows: &Windows) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let mut y = Target::new(&call.outputs[0])?;
    let mut index = call.outputs.get(1).map(Target::new).transpose()?;
    with_acc!(source.dtype, max_of(windows, &source, &mut y, index.as_mut()));
    Ok(())
}

fn max_of<A: Acc>(windows: &Windows, source: &Source<'_>, y: &mut Target<'_>, index: Option<&mut Target<'_>>) {
    let (view, layout, volume, outputs) =
        (source.view(), Strided::new(source.layout), windows.volume(), windows.outputs());
    let lines = Lines::new(windows);
    let (dtype, kind) = (y.dtype, index.as_ref().map_or(DType::U8, |index| index.dtype));
    let values = y.elements().chunks_mut(outputs * dtype.size());
    let positions: Box<dyn Iterator<Item = &mut [u8]>> = match index {
        Some(index) => Box::new(index.elements().chunks_mut(outputs * kind.size())),
        None => Box::new(std::iter::repeat_with(Default::default)),
    };
    let planes: Vec<(&mut [u8], &mut [u8])> = values.zip(positions).collect();
    let one = |buffers: &mut Buffers<A>, (plane, (y, index)): (usize, (&mut [u8], &mut [u8]))| {
        let Buffers { plane: scratch, best, number } = buffers;
        scratch.resize(volume, A::from_i64(0));
        let x = borrow(view, &layout, plane * volume, scratch);
        lines.plane(x, best, number, (dtype, y), (kind, index));
    };
    each_plane(planes, outputs * windows.window(), one);
}

/// Calls `f` for every plane, each with so many elements to visit.
fn each_plane<A: Acc, T: Send>(planes: Vec<T>, each: usize, f: impl Fn(&mut Buffers<A>, (usize, T)) + Sync + Send) {
    let new = || Buffers { plane: Vec::new(), best: Vec::new(), number: Vec::new() };
    if planes.len() * each < PARALLEL {
        let mut buffers = new();
        planes.into_iter().enumerate().for_each(|plane| f(&mut buffers, plane));
    } else {
        planes.into_par_iter().enumerate().for_each_init(new, f);
    }
}

impl<'a> Lines<'a> {
    fn new(windows: &'a Windows) -> Lines<'a> {
        let Windows { input: [.., l], output: [.., count], kernel, stride: [.., s], low: [.., p], dilation, .. } =
            *windows;
        let column = |i: usize| {
            let shift = i * dilation[2];
            let first = p.saturating_sub(shift).div_ceil(s);
            let end = (l + p).saturating_sub(shift).div_ceil(s).min(count);
            Columns { first, end: end.max(first), from: (first * s + shift).saturating_sub(p) }
        };
        let is_regular = !windows.is_adaptive;
        let columns = if is_regular { (0..kernel[2]).map(column).collect() } else { Vec::new() };
        let firsts = (0..count).filter(|_| is_regular).map(|q| range(windows, 2, q).0 as u32).collect();
        Lines { windows, columns, firsts }
    }

    /// The maxima of a plane, line by line.
    fn plane<A: Acc>(
        &self,
        x: &[A],
        best: &mut Vec<A>,
        number: &mut Vec<u32>,
        (dtype, y): (DType, &mut [u8]),
        (kind, index): (DType, &mut [u8]),
    ) {
        let [depth, height, width] = self.windows.output;
        best.resize(width, A::from_i64(0));
        number.resize(width, 0);
        let mut indices = index.chunks_mut(width * kind.size());
        for (line, y) in y.chunks_mut(width * dtype.size()).enumerate() {
            let (at, index) = ([line / height % depth, line % height], indices.next().unwrap_or_default());
            if self.windows.is_adaptive {
                let places = self.adaptive_line(x, at, best);
                write(places.into_iter(), kind, index);
            } else {
                self.line(x, at, best, number);
                let of = |(q, &n): (usize, &u32)| self.place([at[0], at[1], q], n as usize);
                match kind {
                    DType::U8 => write(number.iter().map(|&n| n as usize), kind, index),
                    _ => write(number.iter().enumerate().map(of), kind, index),
                }
            }
            store(best, dtype, y);
        }
    }

    /// The maxima of a line of windows, and their numbers within the windows.
    fn line<A: Acc>(&self, x: &[A], [z, y]: [usize; 2], best: &mut [A], number: &mut [u32]) {
        let Windows { input: [_, height, width], kernel: [_, rows, columns], stride, low, dilation, .. } =
            *self.windows;
        let (depths, lines) = (range(self.windows, 0, z), range(self.windows, 1, y));
        let first = ((depths.0 * rows + lines.0) * columns) as u32;
        best.fill(A::from_f64(f64::NEG_INFINITY));
        number.iter_mut().zip(&self.firsts).for_each(|(number, column)| *number = first + column);
        for i in depths.0..depths.1 {
            let from = (z * stride[0] + i * dilation[0] - low[0]) * height;
            for j in lines.0..lines.1 {
                let row = &x[(from + y * stride[1] + j * dilation[1] - low[1]) * width..][..width];
                for (k, &Columns { first, end, from }) in self.columns.iter().enumerate() {
                    let n = ((i * rows + j) * columns + k) as u32;
                    if first < end {
                        larger(&mut best[first..end], &mut number[first..end], &row[from..], stride[2], n);
                    }
                }
            }
        }
    }

    /// The maxima of a line of adaptive windows; returns their positions in the volume.
    fn adaptive_line<A: Acc>(&self, x: &[A], [z, y]: [usize; 2], best: &mut [A]) -> Vec<usize> {
        let [_, height, width] = self.windows.input;
        let along = |d: usize, q: usize| self.windows.elements(d, q).flatten();
        let of_window = |(q, best): (usize, &mut A)| {
            let rows = along(0, z).flat_map(|z| along(1, y).map(move |y| (z * height + y) * width));
            let mut places = rows.flat_map(|row| along(2, q).map(move |column| row + column));
            let mut found = places.next().unwrap_or(0);
            places.for_each(|place| found = if is_larger(x[place], x[found]) { place } else { found });
            *best = x[found];
            found
        };
        best.iter_mut().enumerate().map(of_window).collect()
    }

    /// The position in the volume of an element of window `q`.
    fn place(&self, q: [usize; 3], number: usize) -> usize {
        let Windows { input: [_, height, width], kernel: [_, rows, columns], stride, low, dilation, .. } =
            *self.windows;
        let digits = [number / columns / rows, number / columns % rows, number % columns];
        let [z, y, x] = [0, 1, 2].map(|d| q[d] * stride[d] + digits[d] * dilation[d] - low[d]);
        (z * height + y) * width + x
    }
}

/// The elements of window `q` along a dimension that are in the input: the first, and the one behind the last.
fn range(windows: &Windows, d: usize, q: usize) -> (usize, usize) {
    let (start, p, step) = (q * windows.stride[d], windows.low[d], windows.dilation[d]);
    let end = (windows.input[d] + p).saturating_sub(start).div_ceil(step);
    (p.saturating_sub(start).div_ceil(step), end.min(windows.kernel[d]))
}

#[inline(always)]
fn is_larger<A: Acc>(v: A, than: A) -> bool {
    v > than || v.is_nan()
}

/// Replaces the maxima of adjacent windows by their elements with number `n`, which are `stride` apart, where these are larger.
fn larger<A: Acc>(best: &mut [A], number: &mut [u32], x: &[A], stride: usize, n: u32) {
    let replace = |((best, number), v): ((&mut A, &mut u32), A)| {
        let is_larger = is_larger(v, *best);
        *best = if is_larger { v } else { *best };
        *number = if is_larger { n } else { *number };
    };
    let maxima = best.iter_mut().zip(number);
    match stride {
        1 => maxima.zip(x.iter().copied()).for_each(replace),
        2 => maxima.zip(x.chunks(2).map(|pair| pair[0])).for_each(replace),
        _ => maxima.zip(x.iter().copied().step_by(stride)).for_each(replace),
    }
}

/// Writes positions in their dtype.
fn write(places: impl Iterator<Item = usize>, dtype: DType, bytes: &mut [u8]) {
    match dtype {
        DType::U8 => bytes.iter_mut().zip(places).for_each(|(to, place)| *to = place as u8),
        DType::I32 => {
            bytemuck::cast_slice_mut::<u8, i32>(bytes)
                .iter_mut()
                .zip(places)
                .for_each(|(to, place)| *to = place as i32);
        }
        _ => {
            bytemuck::cast_slice_mut::<u8, i64>(bytes).iter_mut().zip(places).for_each(|(to, place)| *to = place as i64)
        }
    }
}

/// The gradient of the input from that of the maxima and their positions. Terms are added in the order of the windows.
pub fn max_backward(call: &Call<'_>, windows: &Windows) -> Result<()> {
    let (dy, index) = (Source::new(&call.inputs[0])?, Source::new(&call.inputs[1])?);
    let mut dx = Target::new(&call.outputs[0])?;
    with_acc!(dy.dtype, scattered(windows, &dy, &index, &mut dx));
    Ok(())
}

fn scattered<A: Acc>(windows: &Windows, dy: &Source<'_>, index: &Source<'_>, dx: &mut Target<'_>) {
    let (volume, outputs, dtype) = (windows.volume(), windows.outputs(), dx.dtype);
    let (view, layout, kind) = (dy.view(), Strided::new(dy.layout), index.dtype);
    let places = &index.bytes[index.layout.offset() * kind.size()..];
    let numbers = if kind == DType::U8 { Numbers::new(windows) } else { Numbers::default() };
    let planes: Vec<&mut [u8]> = dx.elements().chunks_mut(volume * dtype.size()).collect();
    let one = |buffers: &mut Buffers<A>, (plane, dx): (usize, &mut [u8])| {
        let Buffers { plane: sums, best: scratch, .. } = buffers;
        sums.clear();
        sums.resize(volume, A::from_i64(0));
        scratch.resize(outputs, A::from_i64(0));
        let dy = borrow(view, &layout, plane * outputs, scratch);
        let places = &places[plane * outputs * kind.size()..][..outputs * kind.size()];
        let mut add = |place: usize, v: A| sums[place] = A::back(sums[place].number() + v.number());
        match kind {
            DType::U8 => numbers.each(windows, places, dy, add),
            DType::I32 => {
                let places: &[i32] = bytemuck::cast_slice(places);
                places.iter().zip(dy).for_each(|(&place, &v)| add(place as usize, v));
            }
            _ => {
                let places: &[i64] = bytemuck::cast_slice(places);
                places.iter().zip(dy).for_each(|(&place, &v)| add(place as usize, v));
            }
        }
        store(sums, dtype, dx);
    };
    each_plane(planes, volume + outputs, one);
}

/// The distance of each element of a window from the window's first, in the volume.
#[derive(Default)]
struct Numbers(Vec<usize>);

impl Numbers {
    fn new(windows: &Windows) -> Numbers {
        let Windows { input: [_, height, width], kernel: [_, rows, columns], dilation, .. } = *windows;
        let distance = |n: usize| {
            let [z, y, x] = [n / columns / rows, n / columns % rows, n % columns];
            (z * dilation[0] * height + y * dilation[1]) * width + x * dilation[2]
        };
        Numbers((0..windows.window()).map(distance).collect())
    }

    /// Calls `f` with the position in the volume of each window's element with the given number, and with the window's value.
    fn each<A: Acc>(&self, windows: &Windows, numbers: &[u8], values: &[A], mut f: impl FnMut(usize, A)) {
        let Windows { input: [_, height, width], output: [_, rows, columns], stride, low, .. } = *windows;
        let before = (low[0] * height + low[1]) * width + low[2];
        for (line, (numbers, values)) in numbers.chunks(columns).zip(values.chunks(columns)).enumerate() {
            let start = (line / rows * stride[0] * height + line % rows * stride[1]) * width;
            for (q, (&number, &value)) in numbers.iter().zip(values).enumerate() {
                f(start + q * stride[2] + self.0[number as usize] - before, value);
            }
        }
    }
}
