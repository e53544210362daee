//! Maxima of windows, and their gradient.

mod common;

use common::*;
use isograd_core::ops::pool::{MaxPoolBackward, MaxPoolForward};
use isograd_core::ops::window::{Last, Window, Windows};
use isograd_core::{DType, Kernel, Shape};

/// Windows over `[planes, D, H, W]` with kernel, stride, padding and dilation of all dimensions.
fn windows(dims: [usize; 4], of: [[usize; 3]; 4], last: Last) -> Windows {
    let [kernel, stride, low, dilation] = of;
    Windows::new("test", &Shape::new(&dims), &Window { kernel, stride, low, high: low, dilation }, last).unwrap()
}

fn cases() -> Vec<Windows> {
    let flat = |kernel: usize, stride: usize, padding: usize, dilation: usize| {
        [[1, kernel, kernel], [1, stride, stride], [0, padding, padding], [1, dilation, dilation]]
    };
    let mut all = Vec::new();
    for dims in [[3, 1, 7, 9], [2, 1, 8, 8], [40, 1, 31, 33]] {
        for (kernel, stride, padding, dilation) in [
            (1, 1, 0, 1),
            (2, 2, 0, 1),
            (2, 2, 1, 1),
            (3, 2, 1, 1),
            (3, 1, 1, 1),
            (4, 3, 2, 1),
            (3, 2, 1, 2),
            (2, 5, 1, 4),
        ] {
            for last in [Last::Whole, Last::Cut] {
                all.push(windows(dims, flat(kernel, stride, padding, dilation), last));
            }
        }
        all.extend([[3, 4], [7, 1], [1, 1], [9, 20]].map(|output| Windows::adaptive(&Shape::new(&dims), output)));
    }
    all.push(windows([2, 5, 4, 6], [[3, 2, 4], [2, 1, 3], [1, 1, 2], [1, 2, 1]], Last::Cut));
    all.push(Windows::adaptive(&Shape::new(&[2, 5, 4, 6]), [2, 3, 4]));
    all
}

/// By the definition: the position of each window's first largest element, or of its last NaN, and its number within the window.
fn largest(windows: &Windows, x: &[f64]) -> Vec<[usize; 2]> {
    let places = windows.positions("test").unwrap();
    let of_window = |plane: &[f64], places: &[Option<usize>]| {
        let mut best: Option<[usize; 2]> = None;
        for (number, place) in places.iter().enumerate().filter_map(|(number, place)| Some((number, (*place)?))) {
            let is_larger = best.is_none_or(|[found, _]| plane[place] > plane[found] || plane[place].is_nan());
            best = if is_larger { Some([place, number]) } else { best };
        }
        best.unwrap()
    };
    let of_plane = |plane| places.chunks(windows.window()).map(move |places| of_window(plane, places));
    x.chunks(windows.volume()).flat_map(of_plane).collect()
}

/// Small integers with many ties, zeros of both signs, infinities and NaN.
fn values(n: usize) -> Vec<f64> {
    let mut lcg = Lcg(5);
    let special = [0.0, -0.0, f64::NEG_INFINITY, f64::INFINITY, f64::NAN];
    (0..n).map(|_| special.get(lcg.next(60) as usize).copied().unwrap_or(lcg.next(6) as f64 - 4.0)).collect()
}

/// The dtypes of positions that a call may ask for.
fn kinds(windows: &Windows) -> Vec<Option<DType>> {
    let numbers = (!windows.is_adaptive && windows.window() <= 256).then_some(Some(DType::U8));
    [None, Some(DType::I32), Some(DType::I64)].into_iter().chain(numbers).collect()
}

#[test]
fn maxima_and_positions_are_those_of_the_definition() {
    for (windows, dtype) in cases().iter().flat_map(|windows| FLOATS.map(move |dtype| (windows, dtype))) {
        let (planes, outputs) = (windows.planes, windows.outputs());
        let mut x = values(planes * windows.volume());
        // A plane whose elements are all the least.
        x[..windows.volume()].fill(f64::NEG_INFINITY);
        let found = largest(windows, &x);
        let of = |(i, [place, _]): (usize, &[usize; 2])| x[i / outputs * windows.volume() + place];
        let expected: Vec<f64> = found.iter().enumerate().map(of).collect();
        let tx = T::new(dtype, &[planes, windows.volume()], &x);
        for kind in kinds(windows) {
            let (y, index) = (T::out(dtype, &[planes, outputs]), kind.map(|kind| T::out(kind, &[planes, outputs])));
            let targets: Vec<&T> = [&y].into_iter().chain(&index).collect();
            run(Kernel::Fused(&MaxPoolForward(*windows)), &[&tx], &targets, &[], &[]);
            assert_eq!(y.bytes(), bytes_of(dtype, &expected), "{windows:?} {dtype}");
            let Some(index) = index else { continue };
            let column = usize::from(kind == Some(DType::U8));
            let places: Vec<f64> = found.iter().map(|found| found[column] as f64).collect();
            assert_eq!(index.values(), places, "{windows:?} {dtype} {kind:?}");
        }
    }
}

#[test]
fn gradients_are_added_in_the_order_of_the_windows() {
    for (windows, dtype) in cases().iter().flat_map(|windows| FLOATS.map(move |dtype| (windows, dtype))) {
        let (planes, outputs, volume) = (windows.planes, windows.outputs(), windows.volume());
        let found = largest(windows, &values(planes * volume));
        let mut lcg = Lcg(6);
        let tdy = T::new(dtype, &[planes, outputs], &lcg.small(planes * outputs));
        let mut expected = vec![0.0; planes * volume];
        for (i, dy) in tdy.values().into_iter().enumerate() {
            expected[i / outputs * volume + found[i][0]] += dy;
        }
        for kind in kinds(windows).into_iter().flatten() {
            let column = usize::from(kind == DType::U8);
            let places: Vec<f64> = found.iter().map(|found| found[column] as f64).collect();
            let (index, dx) = (T::new(kind, &[planes, outputs], &places), T::out(dtype, &[planes, volume]));
            run(Kernel::Fused(&MaxPoolBackward(*windows)), &[&tdy, &index], &[&dx], &[], &[]);
            assert_eq!(dx.bytes(), bytes_of(dtype, &expected), "{windows:?} {dtype} {kind:?}");
        }
    }
}
