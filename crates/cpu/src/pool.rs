//! The largest elements of windows, and their gradient.

use crate::access::{Acc, PARALLEL, Source, Strided, Target, View, borrow, store, with_acc};
use crate::memory::scratch;
use isograd_core::ops::window::Windows;
use isograd_core::{Call, DType, Result, host};
use rayon::prelude::*;

/// Elements that a thread visits before it takes further planes.
const GROUP: usize = 8 * 1024;

/// Element `number` of a window's row, and the columns of windows in which it is in the input: `first .. end`, the first at `from` of the
/// input's row.
#[derive(Clone, Copy)]
struct Column {
    number: usize,
    first: usize,
    end: usize,
    from: usize,
}

/// Windows, and what all their lines have in common.
struct Lines<'a> {
    windows: &'a Windows,
    columns: Vec<Column>,
}

/// Values, and positions where there is a second output. NaN is the largest; of equal elements the first is chosen, and of NaN the last.
pub fn max(call: &Call<'_>, windows: &Windows) -> Result<()> {
    let source = Source::new(&call.inputs[0])?;
    let mut y = Target::new(&call.outputs[0])?;
    let mut index = call.outputs.get(1).map(Target::new).transpose()?;
    with_acc!(source.dtype, max_of(call, windows, &source, &mut y, index.as_mut()))
}

fn max_of<A: Acc>(
    call: &Call<'_>,
    windows: &Windows,
    source: &Source<'_>,
    y: &mut Target<'_>,
    index: Option<&mut Target<'_>>,
) -> Result<()> {
    let (view, layout, volume, outputs) =
        (source.view(), Strided::new(source.layout), windows.volume(), windows.outputs());
    let lines = Lines::new(call.op, windows)?;
    let (dtype, kind) = (y.dtype, index.as_ref().map_or(DType::U8, |index| index.dtype));
    let values = y.elements().chunks_mut(outputs * dtype.size());
    let positions: Box<dyn Iterator<Item = &mut [u8]>> = match index {
        Some(index) => Box::new(index.elements().chunks_mut(outputs * kind.size())),
        None => Box::new(std::iter::repeat_with(Default::default)),
    };
    let converted = if view.dtype == A::DTYPE { 0 } else { volume };
    each_plane(values.zip(positions).collect(), outputs * windows.window(), |first, planes| {
        let width = windows.output[2];
        let (mut plane, mut best) = (scratch::<A>(call, converted)?, scratch::<A>(call, width)?);
        let mut number = scratch::<u32>(call, width)?;
        for (i, (y, index)) in planes.iter_mut().enumerate() {
            let x = elements(view, &layout, (first + i) * volume, volume, &mut plane);
            lines.plane(x, &mut best, &mut number, (dtype, y), (kind, index));
        }
        Ok(())
    })
}

/// Elements of a contiguous view, converted in a buffer unless they are in the accumulation type.
fn elements<'a, A: Acc>(view: View<'a>, layout: &Strided, start: usize, len: usize, buffer: &'a mut [A]) -> &'a [A] {
    match view.dtype == A::DTYPE {
        true => &bytemuck::cast_slice(view.bytes)[layout.offset + start..][..len],
        false => borrow(view, layout, start, buffer),
    }
}

/// Calls `f` for groups of adjacent planes, with the number of the first, where a plane has so many elements to visit.
fn each_plane<T: Send>(
    mut planes: Vec<T>,
    each: usize,
    f: impl Fn(usize, &mut [T]) -> Result<()> + Sync,
) -> Result<()> {
    if planes.len().saturating_mul(each) < PARALLEL {
        return f(0, &mut planes);
    }
    let group = (GROUP / each.max(1)).max(1);
    planes.par_chunks_mut(group).enumerate().try_for_each(|(i, planes)| f(i * group, planes))
}

impl<'a> Lines<'a> {
    fn new(op: &'static str, windows: &'a Windows) -> Result<Lines<'a>> {
        let Windows { input: [.., l], output: [.., count], kernel, stride: [.., s], low: [.., p], dilation, .. } =
            *windows;
        let step = dilation[2];
        let column = |number: usize| {
            let shift = number * step;
            let first = p.saturating_sub(shift).div_ceil(s);
            let end = (l + p).saturating_sub(shift).div_ceil(s).min(count);
            Column { number, first, end, from: (first * s + shift).saturating_sub(p) }
        };
        let some = match windows.is_adaptive {
            true => 0..0,
            // Of others, all windows have the element in the padding.
            false => p.saturating_sub((count - 1) * s).div_ceil(step)..(l + p).div_ceil(step).min(kernel[2]),
        };
        let mut columns = host::with_room(op, some.len())?;
        columns.extend(some.map(column).filter(|column| column.first < column.end));
        Ok(Lines { windows, columns })
    }

    /// The maxima of a plane, line by line.
    fn plane<A: Acc>(
        &self,
        x: &[A],
        best: &mut [A],
        number: &mut [u32],
        (dtype, y): (DType, &mut [u8]),
        (kind, index): (DType, &mut [u8]),
    ) {
        let [_, height, width] = self.windows.output;
        let mut indices = index.chunks_mut(width * kind.size());
        for (line, y) in y.chunks_mut(width * dtype.size()).enumerate() {
            let (at, index) = ([line / height, line % height], indices.next().unwrap_or_default());
            if self.windows.is_adaptive {
                let places = best.iter_mut().enumerate().map(|(q, best)| self.adaptive(x, [at[0], at[1], q], best));
                write(places, kind, index);
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
        // The first element in the input, for windows whose elements are all -inf.
        number.fill(first);
        let padded = low[2].div_ceil(stride[2]).min(number.len());
        number[..padded].iter_mut().zip(0..).for_each(|(number, q)| *number += range(self.windows, 2, q).0 as u32);
        for i in depths.0..depths.1 {
            let from = (z * stride[0] + i * dilation[0] - low[0]) * height;
            for j in lines.0..lines.1 {
                let row = &x[(from + y * stride[1] + j * dilation[1] - low[1]) * width..][..width];
                for &Column { number: k, first, end, from } in &self.columns {
                    let n = ((i * rows + j) * columns + k) as u32;
                    larger(&mut best[first..end], &mut number[first..end], &row[from..], stride[2], n);
                }
            }
        }
    }

    /// The maximum of an adaptive window; returns its position in the volume.
    fn adaptive<A: Acc>(&self, x: &[A], [z, y, column]: [usize; 3], best: &mut A) -> usize {
        let [_, height, width] = self.windows.input;
        let along = |d: usize, q: usize| self.windows.elements(d, q).flatten();
        let rows = along(0, z).flat_map(|z| along(1, y).map(move |y| (z * height + y) * width));
        let mut places = rows.flat_map(|row| along(2, column).map(move |column| row + column));
        let mut found = places.next().unwrap_or(0);
        places.for_each(|place| found = if is_larger(x[place], x[found]) { place } else { found });
        *best = x[found];
        found
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
    with_acc!(dy.dtype, scattered(call, windows, &dy, &index, &mut dx))
}

fn scattered<A: Acc>(
    call: &Call<'_>,
    windows: &Windows,
    dy: &Source<'_>,
    index: &Source<'_>,
    dx: &mut Target<'_>,
) -> Result<()> {
    let (volume, outputs, dtype) = (windows.volume(), windows.outputs(), dx.dtype);
    let (view, layout, kind) = (dy.view(), Strided::new(dy.layout), index.dtype);
    let places = &index.bytes[index.layout.offset() * kind.size()..];
    let numbers = if kind == DType::U8 { Numbers::new(windows) } else { Numbers::default() };
    let is_own = dtype == A::DTYPE;
    let (wide, narrow) = if is_own { (0, 0) } else { (volume, outputs) };
    let planes: Vec<&mut [u8]> = dx.elements().chunks_mut(volume * dtype.size()).collect();
    each_plane(planes, volume + outputs, |first, planes| {
        let (mut sums, mut buffer) = (scratch::<A>(call, wide)?, scratch::<A>(call, narrow)?);
        for (plane, dx) in (first..).zip(planes) {
            let dy = elements(view, &layout, plane * outputs, outputs, &mut buffer);
            let places = &places[plane * outputs * kind.size()..][..outputs * kind.size()];
            match is_own {
                true => add(windows, &numbers, (kind, places), dy, bytemuck::cast_slice_mut(dx)),
                false => {
                    add(windows, &numbers, (kind, places), dy, &mut sums);
                    store(&sums, dtype, dx);
                }
            }
        }
        Ok(())
    })
}

/// Adds the gradients of a plane's maxima at their positions.
fn add<A: Acc>(windows: &Windows, numbers: &Numbers, (kind, places): (DType, &[u8]), dy: &[A], sums: &mut [A]) {
    sums.fill(A::from_i64(0));
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
