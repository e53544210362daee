//! Operators of images: samples at points, regions, boxes.

use super::{Op, Table};
use crate::import::call::{Call, few, misshapen, sizes, unsupported};
use crate::import::value::Value;
use isograd_core::ops::{GridEnds, GridMode, GridPadding, GridSample};
use isograd_core::{DType, Result, Tensor};

pub const OPS: Table = &[
    ("GridSample", Op::Tensor(grid_sample)),
    ("AffineGrid", Op::Tensor(affine_grid)),
    ("RoiAlign", Op::Tensor(roi_align)),
    ("NonMaxSuppression", Op::One(non_max_suppression)),
];

fn ends(c: &Call<'_>) -> Result<GridEnds> {
    Ok(if c.flag("align_corners")? { GridEnds::Centers } else { GridEnds::Edges })
}

fn grid_sample(c: &Call<'_>) -> Result<Tensor> {
    let mode = match c.text("mode", "linear")? {
        "linear" | "bilinear" => GridMode::Linear,
        "nearest" => GridMode::Nearest,
        "cubic" | "bicubic" => GridMode::Cubic,
        other => return unsupported(format!("samples of the mode {other:?}")),
    };
    let padding = match c.text("padding_mode", "zeros")? {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        other => return unsupported(format!("samples with the padding {other:?}")),
    };
    let (x, grid) = (c.x(0)?, c.x(1)?);
    x.grid_sample(&grid.cast(x.dtype())?, &GridSample { mode, padding, ends: ends(c)? })
}

fn affine_grid(c: &Call<'_>) -> Result<Tensor> {
    let size = sizes(&c.ints(1)?)?;
    if size.len() < 2 {
        return misshapen(format!("the size is {size:?}, expected [N, C, ..]"));
    }
    c.x(0)?.affine_grid(&size[2..], ends(c)?)
}

/// The samples of a region along a dimension: for each of its bins a few places.
struct Samples {
    /// The elements before and after each place, and the weight of the one after.
    low: Vec<i64>,
    high: Vec<i64>,
    weight: Vec<f64>,
    /// 0 for places outside of the image.
    inside: Vec<f64>,
    /// The places in a bin.
    each: usize,
}

impl Samples {
    fn new(start: f64, length: f64, bins: usize, ratio: usize, extent: usize) -> Result<Samples> {
        let bin = length / bins as f64;
        let each = if ratio > 0 { ratio } else { bin.ceil().max(0.0) as usize };
        few(bins.saturating_mul(each))?;
        let (mut low, mut high, mut weight, mut inside) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let last = extent.max(1) as i64 - 1;
        for i in 0..bins * each {
            let at = start + (i / each) as f64 * bin + ((i % each) as f64 + 0.5) * bin / each as f64;
            inside.push(f64::from((-1.0..=extent as f64).contains(&at)));
            let at = at.max(0.0);
            let floor = (at as i64).min(last);
            low.push(floor);
            high.push((floor + 1).min(last));
            weight.push(if floor == last { 0.0 } else { at - floor as f64 });
        }
        Ok(Samples { low, high, weight, inside, each })
    }

    /// The weighted rows of x `[L, ..]` before and after the places, `[bins each, ..]` both.
    fn of(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        let rows = |places: &[i64]| x.index_select(0, &Tensor::from_slice(places, places.len(), x.device())?);
        let column = |numbers: Vec<f64>| {
            let mut dims = vec![1; x.rank()];
            dims[0] = numbers.len();
            Tensor::from_vec(numbers, dims, x.device())?.cast(x.dtype())
        };
        let factor = |of: fn(f64) -> f64| self.weight.iter().zip(&self.inside).map(move |(w, i)| of(*w) * i).collect();
        let low = rows(&self.low)?.mul(&column(factor(|w| 1.0 - w))?)?;
        Ok([low, rows(&self.high)?.mul(&column(factor(|w| w))?)?])
    }
}

/// The means or the largest of samples in the bins of regions, `[R, C, h, w]`. Regions are read on the host.
fn roi_align(c: &Call<'_>) -> Result<Tensor> {
    let (x, regions, images) = (c.x(0)?, c.value(1)?.floats()?, sizes(&c.ints(2)?)?);
    let &[count, channels, height, width] = x.dims() else { return misshapen(format!("{} was given", x.shape())) };
    let [h, w, ratio] = [("output_height", 1), ("output_width", 1), ("sampling_ratio", 0)].map(|(n, d)| c.int(n, d));
    let (bins, ratio) = ([sizes(&[h?])?[0], sizes(&[w?])?[0]], sizes(&[ratio?])?[0]);
    let scale = c.float("spatial_scale", 1.0)?;
    let is_half = c.opset() >= 16 && c.text("coordinate_transformation_mode", "half_pixel")? == "half_pixel";
    let is_max = c.text("mode", "avg")? == "max";
    if regions.len() != 4 * images.len() || images.iter().any(|&image| image >= count) || bins.contains(&0) {
        return misshapen(format!("{} regions for {} images", images.len(), count));
    }
    let mut found = Vec::new();
    for (region, &image) in regions.chunks(4).zip(&images) {
        let shift = if is_half { 0.5 } else { 0.0 };
        let [x1, y1, x2, y2] = std::array::from_fn(|i| region[i] * scale - shift);
        let length = |v: f64| if is_half { v } else { v.max(1.0) };
        let rows = Samples::new(y1, length(y2 - y1), bins[0], ratio, height)?;
        let columns = Samples::new(x1, length(x2 - x1), bins[1], ratio, width)?;
        let image = x.select(0, image as isize)?;
        // [H, C, W] to [h, C, W], then [W, C, h] to [w, C, h]. Of the largest, each of the four neighbours counts alone.
        let joined = |[low, high]: [Tensor; 2]| if is_max { low.maximum(&high) } else { low.add(&high) };
        let [low, high] = rows.of(&image.permute(&[1, 0, 2])?)?;
        let across = |part: &Tensor| joined(columns.of(&part.permute(&[2, 1, 0])?)?);
        let sampled = joined([across(&low)?, across(&high)?])?;
        let blocks = sampled.reshape([bins[1], columns.each, channels, bins[0], rows.each])?;
        let pooled = match is_max {
            true => blocks.amax([1, 4])?,
            false => blocks.mean([1, 4])?,
        };
        found.push(pooled.permute(&[1, 2, 0])?);
    }
    match found.is_empty() {
        true => Tensor::zeros([0, channels, bins[0], bins[1]], x.dtype(), x.device()),
        false => Tensor::stack(&found.iter().collect::<Vec<_>>(), 0),
    }
}

/// The ends of a box, in order.
fn ends_of(corners: &[f64], is_center: bool) -> [f64; 4] {
    if is_center {
        let [x, y, w, h] = [corners[0], corners[1], corners[2], corners[3]];
        return [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0];
    }
    let (a, b) = ([corners[0], corners[1]], [corners[2], corners[3]]);
    [a[0].min(b[0]), a[1].min(b[1]), a[0].max(b[0]), a[1].max(b[1])]
}

/// The share of the area of two boxes that both have.
fn overlap(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    let area = |v: &[f64; 4]| (v[2] - v[0]) * (v[3] - v[1]);
    let side = |d: usize| (a[d + 2].min(b[d + 2]) - a[d].max(b[d])).max(0.0);
    let shared = side(0) * side(1);
    if shared > 0.0 { shared / (area(a) + area(b) - shared) } else { 0.0 }
}

/// The boxes of each class that overlap none with a higher score: `[n, 3]` of image, class and box. Read on the host.
fn non_max_suppression(c: &Call<'_>) -> Result<Value> {
    let (dims, boxes) = (c.value(0)?.dims()?, c.value(0)?.floats()?);
    let (of_scores, scores) = (c.value(1)?.dims()?, c.value(1)?.floats()?);
    let (&[images, count, 4], &[_, classes, _]) = (&dims[..], &of_scores[..]) else {
        return misshapen(format!("boxes {dims:?} and scores {of_scores:?}, expected [N, B, 4] and [N, C, B]"));
    };
    if of_scores != [images, classes, count] {
        return misshapen(format!("boxes {dims:?} and scores {of_scores:?}, expected [N, B, 4] and [N, C, B]"));
    }
    let most = c.optional_number(2)?.unwrap_or(0.0).max(0.0) as usize;
    let (limit, least) = (c.optional_number(3)?.unwrap_or(0.0), c.optional_number(4)?);
    let is_center = c.int("center_point_box", 0)? == 1;
    let mut found: Vec<i64> = Vec::new();
    for (image, class) in (0..images).flat_map(|image| (0..classes).map(move |class| (image, class))) {
        let scores = &scores[(image * classes + class) * count..][..count];
        let corners = |b: usize| ends_of(&boxes[(image * count + b) * 4..][..4], is_center);
        let mut order: Vec<usize> = (0..count).filter(|&b| least.is_none_or(|least| scores[b] > least)).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let mut kept: Vec<[f64; 4]> = Vec::new();
        for b in order {
            if kept.len() == most {
                break;
            }
            if kept.iter().all(|other| overlap(other, &corners(b)) <= limit) {
                kept.push(corners(b));
                found.extend([image as i64, class as i64, b as i64]);
            }
        }
    }
    Ok(Tensor::from_slice(&found, [found.len() / 3, 3], c.device())?.cast(DType::I64)?.into())
}
