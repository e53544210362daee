//! Convolutions of groups of few channels (depthwise ones), without columns.
//!
//! The elements of a padded volume whose positions have the same remainders by the strides are copied to a plane of their own. Then the elements
//! that an element of the window meets are adjacent in a plane, for windows that are: one loop over adjacent elements computes all windows of a
//! volume. Between two lines of windows it computes some that do not exist, and whose results are not read.

use super::{Geometry, Output};
use crate::access::{PARALLEL, in_vectors, store, with_scratch};
use crate::vectors::Real;
use isograd_core::ops::image::window::Windows;
use isograd_core::{Result, host};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Vectors that are summed up together.
const VECTORS: usize = 4;

/// Elements behind the last one that vectors may read or write.
const SLACK: usize = VECTORS * 16;

/// The planes of a volume by the remainders of positions.
struct Planes {
    /// The extents of a plane.
    extents: [usize; 3],
    strides: [usize; 3],
    /// The remainders that elements of windows have: a plane each.
    remainders: Vec<[usize; 3]>,
    /// For each element of a window, the number of its plane, and how far it is from the window's place there.
    elements: Vec<(usize, [usize; 3])>,
}

impl Planes {
    fn new(op: &'static str, windows: &Windows) -> Result<Planes> {
        let &Windows { output, kernel, stride, dilation, .. } = windows;
        let extents = std::array::from_fn(|d| output[d] + (kernel[d] - 1) * dilation[d] / stride[d]);
        let mut remainders: Vec<[usize; 3]> = Vec::new();
        let mut elements = host::with_room(op, windows.window())?;
        for k in 0..windows.window() {
            let k = [k / (kernel[1] * kernel[2]), k / kernel[2] % kernel[1], k % kernel[2]];
            let at: [usize; 3] = std::array::from_fn(|d| k[d] * dilation[d]);
            let remainder = std::array::from_fn(|d| at[d] % stride[d]);
            let plane = remainders.iter().position(|of| *of == remainder).unwrap_or_else(|| {
                remainders.push(remainder);
                remainders.len() - 1
            });
            elements.push((plane, std::array::from_fn(|d| at[d] / stride[d])));
        }
        Ok(Planes { extents, strides: stride, remainders, elements })
    }

    /// Elements of a plane.
    fn volume(&self) -> usize {
        self.extents.iter().product()
    }

    /// Elements of the planes of `channels` channels.
    fn room(&self, channels: usize) -> usize {
        channels * self.remainders.len() * self.volume() + SLACK
    }

    /// Calls `f` for the lines of a plane that the input has: the position of the line in the plane, and in the input, where its elements are
    /// `strides[2]` apart; the first element and the number of elements that the input has.
    #[inline(always)]
    fn lines(&self, windows: &Windows, plane: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
        let ([e0, e1, e2], [s0, s1, s2], [r0, r1, r2]) = (self.extents, self.strides, self.remainders[plane]);
        let ([_, height, width], low) = (windows.input, windows.low);
        let inside = |d: usize, at: usize| at.checked_sub(low[d]).filter(|&at| at < windows.input[d]);
        let first = low[2].saturating_sub(r2).div_ceil(s2);
        let end = (width + low[2]).saturating_sub(r2).div_ceil(s2).min(e2);
        if first >= end {
            return;
        }
        for z in 0..e0 {
            let Some(from_z) = inside(0, z * s0 + r0) else { continue };
            for y in 0..e1 {
                let Some(from_y) = inside(1, y * s1 + r1) else { continue };
                let from = (from_z * height + from_y) * width + first * s2 + r2 - low[2];
                f((z * e1 + y) * e2 + first, from, first, end - first);
            }
        }
    }

    /// Fills the planes of a channel, with zeros for the padding.
    fn fill<A: Real>(&self, windows: &Windows, x: &[A], planes: &mut [A]) {
        planes.fill(A::from_i64(0));
        for (plane, to) in planes.chunks_exact_mut(self.volume()).enumerate() {
            in_vectors(
                #[inline(always)]
                || {
                    self.lines(
                        windows,
                        plane,
                        #[inline(always)]
                        |at, from, _, n| {
                            super::each_pair(&mut to[at..at + n], &x[from..], self.strides[2], |to, v| *to = v);
                        },
                    );
                },
            );
        }
    }
}

/// The position in a plane with these extents.
fn flat([z, y, x]: [usize; 3], extents: [usize; 3]) -> usize {
    (z * extents[1] + y) * extents[2] + x
}

/// The number of adjacent elements of a plane from the first to the last of so many along each dimension.
fn span(counts: [usize; 3], extents: [usize; 3]) -> usize {
    flat(counts.map(|n| n - 1), extents) + 1
}

/// `y[i] = bias + sum of w x[at + i]` for all pairs `(w, at)`.
struct Sums<'a, A> {
    y: &'a mut [A],
    x: &'a [A],
    factors: &'a [(A, usize)],
    bias: A,
}

impl<A: Real> WithSimd for Sums<'_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let width = VECTORS * (size_of::<A::Vector<S>>() / size_of::<A>());
        for (i, y) in self.y.chunks_exact_mut(width).enumerate() {
            let mut sums = [A::splat(simd, self.bias); VECTORS];
            for &(w, at) in self.factors {
                let w = A::splat(simd, w);
                let x: &[A::Vector<S>] = bytemuck::cast_slice(&self.x[at + i * width..][..width]);
                for v in 0..VECTORS {
                    sums[v] = A::multiply_add(simd, w, x[v], sums[v]);
                }
            }
            y.copy_from_slice(bytemuck::cast_slice(&sums));
        }
    }
}

/// The sum of `g[i] x[i]`.
struct Inner<'a, A> {
    g: &'a [A],
    x: &'a [A],
}

impl<A: Real> WithSimd for Inner<'_, A> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        let width = VECTORS * (size_of::<A::Vector<S>>() / size_of::<A>());
        let mut sums = [A::splat(simd, A::from_i64(0)); VECTORS];
        for (g, x) in self.g.chunks_exact(width).zip(self.x.chunks_exact(width)) {
            let g: &[A::Vector<S>] = bytemuck::cast_slice(g);
            let x: &[A::Vector<S>] = bytemuck::cast_slice(x);
            for v in 0..VECTORS {
                sums[v] = A::multiply_add(simd, g[v], x[v], sums[v]);
            }
        }
        let sums: &[A] = bytemuck::cast_slice(&sums);
        sums.iter().map(|v| v.to_f64()).sum()
    }
}

/// True if a group has so few channels that products of matrices would move more than they multiply, and the zeros of the padding have products
/// of 0 with all factors.
pub fn is_direct<A: Real>(geometry: &Geometry, factors: &[A]) -> bool {
    let is_small = geometry.channels * geometry.outputs <= 4 && geometry.channels * geometry.outputs > 0;
    let is_finite = || factors.iter().all(|v| v.to_f64().is_finite());
    is_small && geometry.windows.outputs() > 0 && geometry.windows.volume() > 0 && is_finite()
}

/// `y` from x and the weight.
pub fn forward<A: Real>(
    op: &'static str,
    geometry: &Geometry,
    x: &[A],
    w: &[A],
    bias: impl Fn(usize, usize, usize) -> A + Sync,
    mut target: Output<'_>,
) -> Result<()> {
    let Geometry { groups, channels, outputs, ref windows, .. } = *geometry;
    let (planes, volume, dtype) = (Planes::new(op, windows)?, windows.volume(), target.target.dtype);
    let (of_plane, of_channel) = (planes.volume(), planes.remainders.len() * planes.volume());
    let length = span(windows.output, planes.extents).next_multiple_of(SLACK);
    let each = |(plane, at): &(usize, [usize; 3])| plane * of_plane + flat(*at, planes.extents);
    let places: Vec<usize> = host::collect(op, planes.elements.iter().map(each))?;
    let size = windows.outputs() * dtype.size();
    let tasks = target.bytes().par_chunks_mut(outputs * size).with_min_len((PARALLEL / 4).div_ceil(volume));
    tasks.enumerate().for_each(|(i, y)| {
        with_scratch(planes.room(channels) + length, |scratch: &mut [A]| {
            let (sums, copies) = scratch.split_at_mut(length);
            for channel in 0..channels {
                let x = &x[(i * channels + channel) * volume..][..volume];
                planes.fill(windows, x, &mut copies[channel * of_channel..][..of_channel]);
            }
            copies[channels * of_channel..].fill(A::from_i64(0));
            let mut factors = Vec::with_capacity(channels * places.len());
            for (o, y) in y.chunks_exact_mut(size).enumerate() {
                let w = &w[(i % groups * outputs + o) * channels * places.len()..][..channels * places.len()];
                let place = |k: usize| k / places.len() * of_channel + places[k % places.len()];
                factors.clear();
                factors.extend(w.iter().enumerate().map(|(k, &w)| (w, place(k))));
                // The last windows that exist are before the end of the copies, by less than the slack.
                let bias = bias(i / groups, i % groups, o);
                Arch::new().dispatch(Sums { y: sums, x: copies, factors: &factors, bias });
                let [_, rows, columns] = windows.output;
                for (line, y) in y.chunks_exact_mut(columns * dtype.size()).enumerate() {
                    let at = flat([line / rows, line % rows, 0], planes.extents);
                    store(&sums[at..at + columns], dtype, y);
                }
            }
        });
    });
    target.finish();
    Ok(())
}

/// `dx` from dy and the weight.
pub fn input<A: Real>(op: &'static str, geometry: &Geometry, g: &[A], w: &[A], mut target: Output<'_>) -> Result<()> {
    let Geometry { groups, channels, outputs, ref windows, .. } = *geometry;
    let (planes, volume, dtype) = (Planes::new(op, windows)?, windows.volume(), target.target.dtype);
    // The gradients of the windows, with zeros on both sides: an element of a plane has those of the windows before it.
    let [rows, columns] = [windows.output[1], windows.output[2]];
    let before: [usize; 3] = std::array::from_fn(|d| planes.extents[d] - windows.output[d]);
    let padded: [usize; 3] = std::array::from_fn(|d| planes.extents[d] + before[d]);
    let of_output: usize = padded.iter().product();
    let length = span(planes.extents, padded).next_multiple_of(SLACK);
    let size = planes.elements.len();
    let tasks =
        target.bytes().par_chunks_mut(channels * volume * dtype.size()).with_min_len((PARALLEL / 4).div_ceil(volume));
    tasks.enumerate().for_each(|(i, dx)| {
        let room = length + channels * volume + outputs * of_output + SLACK;
        with_scratch(room, |scratch: &mut [A]| {
            let (sums, rest) = scratch.split_at_mut(length);
            let (results, copies) = rest.split_at_mut(channels * volume);
            results.fill(A::from_i64(0));
            copies.fill(A::from_i64(0));
            for (line, g) in
                g[i * outputs * windows.outputs()..][..outputs * windows.outputs()].chunks(columns).enumerate()
            {
                let of_volume = windows.output[0] * rows;
                let (o, line) = (line / of_volume, line % of_volume);
                let at = flat([line / rows + before[0], line % rows + before[1], before[2]], padded);
                copies[o * of_output + at..][..columns].copy_from_slice(g);
            }
            let mut factors = Vec::with_capacity(outputs * size);
            for channel in 0..channels {
                for plane in 0..planes.remainders.len() {
                    factors.clear();
                    for o in 0..outputs {
                        let w = &w[((i % groups * outputs + o) * channels + channel) * size..][..size];
                        let of_plane = planes.elements.iter().zip(w).filter(|((of, _), _)| *of == plane);
                        factors.extend(of_plane.map(|((_, at), &w)| {
                            let shift = std::array::from_fn(|d| before[d] - at[d]);
                            (w, o * of_output + flat(shift, padded))
                        }));
                    }
                    Arch::new().dispatch(Sums { y: sums, x: copies, factors: &factors, bias: A::from_i64(0) });
                    let to = &mut results[channel * volume..][..volume];
                    planes.lines(windows, plane, |at, from, first, n| {
                        let line = at / planes.extents[2];
                        let at = flat([line / planes.extents[1], line % planes.extents[1], first], padded);
                        let to = to[from..].iter_mut().step_by(planes.strides[2]);
                        to.zip(&sums[at..at + n]).for_each(|(to, &v)| *to = v);
                    });
                }
            }
            store(results, dtype, dx);
        });
    });
    target.finish();
    Ok(())
}

/// `dw` from dy and x: `sums` has a gradient for each element of the weight. It is not a number where a product with a 0 between lines is not.
pub fn weight<A: Real>(op: &'static str, geometry: &Geometry, g: &[A], x: &[A], sums: &mut [A]) -> Result<()> {
    let Geometry { batch, groups, channels, outputs, ref windows } = *geometry;
    let (planes, volume, per_sample) = (Planes::new(op, windows)?, windows.volume(), windows.outputs());
    let (of_plane, of_channel) = (planes.volume(), planes.remainders.len() * planes.volume());
    let length = span(windows.output, planes.extents).next_multiple_of(SLACK);
    let each = |(plane, at): &(usize, [usize; 3])| plane * of_plane + flat(*at, planes.extents);
    let places: Vec<usize> = host::collect(op, planes.elements.iter().map(each))?;
    let size = channels * places.len();
    let [_, rows, columns] = windows.output;
    sums.par_chunks_mut(outputs * size).enumerate().for_each(|(group, dw)| {
        with_scratch(planes.room(channels) + length, |scratch: &mut [A]| {
            let (lines, copies) = scratch.split_at_mut(length);
            let mut totals = vec![0.0; dw.len()];
            for sample in 0..batch {
                for channel in 0..channels {
                    let x = &x[((sample * groups + group) * channels + channel) * volume..][..volume];
                    planes.fill(windows, x, &mut copies[channel * of_channel..][..of_channel]);
                }
                copies[channels * of_channel..].fill(A::from_i64(0));
                for (o, totals) in totals.chunks_exact_mut(size).enumerate() {
                    lines.fill(A::from_i64(0));
                    let g = &g[((sample * groups + group) * outputs + o) * per_sample..][..per_sample];
                    for (line, g) in g.chunks_exact(columns).enumerate() {
                        let at = flat([line / rows, line % rows, 0], planes.extents);
                        lines[at..at + columns].copy_from_slice(g);
                    }
                    for (k, total) in totals.iter_mut().enumerate() {
                        let at = k / places.len() * of_channel + places[k % places.len()];
                        *total += Arch::new().dispatch(Inner { g: lines, x: &copies[at..at + length] });
                    }
                }
            }
            dw.iter_mut().zip(totals).for_each(|(dw, total)| *dw = A::from_f64(total));
        });
    });
    Ok(())
}
