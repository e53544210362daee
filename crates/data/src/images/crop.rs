//! Transforms that move and remove pixels. The dtype may be any.

use super::{Transform, extents};
use crate::{Context, HostTensor};
use isograd_core::{Error, Result};

/// A window at a random place of the image, around which are `padding` zeros on each side.
///
/// Errors: `Shape` if the window is larger than the padded image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomCrop {
    /// Rows and columns of the window.
    pub size: [usize; 2],
    /// Zeros on each side.
    pub padding: usize,
}

impl Transform for RandomCrop {
    fn apply(&self, image: HostTensor, context: &Context) -> Result<HostTensor> {
        let [channels, height, width] = extents("random_crop", &image)?;
        let (RandomCrop { size: [rows, columns], padding }, each) = (*self, image.dtype().size());
        let places = |extent: usize, size: usize| (extent + 2 * padding).checked_sub(size).map(|rest| rest + 1);
        let (Some(down), Some(right)) = (places(height, rows), places(width, columns)) else {
            let message = format!("a window of {rows} x {columns} in {height} x {width} pixels with padding {padding}");
            return Err(Error::shape("random_crop", message));
        };
        let (top, left) = (context.below(down), context.below(right));
        // Columns of the window that are in the image, and the first of them in the image.
        let first = padding.saturating_sub(left).min(columns);
        let from = (left + first).saturating_sub(padding).min(width);
        let count = (columns - first).min(width - from);
        let mut window = vec![0; channels * rows * columns * each];
        for (i, row) in window.chunks_exact_mut((columns * each).max(1)).enumerate() {
            let (channel, y) = (i / rows, top + i % rows);
            if (padding..padding + height).contains(&y) {
                let start = ((channel * height + y - padding) * width + from) * each;
                row[first * each..(first + count) * each].copy_from_slice(&image.bytes()[start..start + count * each]);
            }
        }
        Ok(HostTensor::from_bytes(window, [channels, rows, columns], image.dtype()))
    }
}

/// Exchanges left and right with a probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomHorizontalFlip {
    /// The probability.
    pub probability: f64,
}

impl Default for RandomHorizontalFlip {
    /// One half.
    fn default() -> RandomHorizontalFlip {
        RandomHorizontalFlip { probability: 0.5 }
    }
}

impl Transform for RandomHorizontalFlip {
    fn apply(&self, image: HostTensor, context: &Context) -> Result<HostTensor> {
        let [_, _, width] = extents("random_horizontal_flip", &image)?;
        if !context.chance(self.probability) {
            return Ok(image);
        }
        let each = image.dtype().size();
        let rows = image.bytes().chunks_exact((width * each).max(1));
        let flipped = rows.flat_map(|row| row.chunks_exact(each).rev().flatten()).copied().collect();
        Ok(HostTensor::from_bytes(flipped, image.dims(), image.dtype()))
    }
}

/// Zeros in a square around a random pixel, or the part of it that is in the image. Behind [`Normalize`](super::Normalize), zero is the
/// mean. DeVries, Taylor 2017, arXiv 1708.04552.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutout {
    /// The side of the square, in pixels.
    pub size: usize,
}

impl Transform for Cutout {
    fn apply(&self, image: HostTensor, context: &Context) -> Result<HostTensor> {
        let [channels, height, width] = extents("cutout", &image)?;
        let each = image.dtype().size();
        let side = |extent: usize| {
            let (start, before) = (context.below(extent), self.size / 2);
            let end = start.saturating_add(self.size - before).min(extent);
            start.saturating_sub(before)..end
        };
        let (rows, columns) = (side(height), side(width));
        let (shape, dtype) = ([channels, height, width], image.dtype());
        let mut bytes = image.into_bytes();
        for y in (0..channels).flat_map(|channel| rows.clone().map(move |y| channel * height + y)) {
            bytes[(y * width + columns.start) * each..(y * width + columns.end) * each].fill(0);
        }
        Ok(HostTensor::from_bytes(bytes, shape, dtype))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn context(index: usize) -> Context {
        Context::new(1, 0, index)
    }

    /// The results of 400 samples, without repetition.
    fn results(transform: impl Transform, image: &HostTensor) -> BTreeSet<Vec<u8>> {
        (0..400).map(|i| transform.apply(image.clone(), &context(i)).unwrap().to_vec::<u8>().unwrap()).collect()
    }

    fn numbered(shape: [usize; 3]) -> HostTensor {
        let values: Vec<u8> = (1..=shape.iter().product::<usize>() as u8).collect();
        HostTensor::new(&values, shape).unwrap()
    }

    #[test]
    fn crops_are_all_windows_of_the_padded_image() {
        let (channels, height, width, padding, size) = (2, 2, 3, 1, [3, 2]);
        let image = numbered([channels, height, width]);
        let at = |c: usize, y: usize, x: usize| match (y.checked_sub(padding), x.checked_sub(padding)) {
            (Some(y), Some(x)) if y < height && x < width => (1 + (c * height + y) * width + x) as u8,
            _ => 0,
        };
        let mut expected = BTreeSet::new();
        for (top, left) in (0..2).flat_map(|top| (0..4).map(move |left| (top, left))) {
            let pixels = (0..channels * size[0] * size[1]).map(|i| {
                let (c, y, x) = (i / (size[0] * size[1]), i / size[1] % size[0], i % size[1]);
                at(c, top + y, left + x)
            });
            expected.insert(pixels.collect::<Vec<u8>>());
        }
        assert_eq!(results(RandomCrop { size, padding }, &image), expected);
    }

    #[test]
    fn crops_of_wide_padding_may_miss_the_image() {
        let image = numbered([1, 1, 1]);
        let found = results(RandomCrop { size: [1, 1], padding: 2 }, &image);
        assert_eq!(found, BTreeSet::from([vec![0], vec![1]]));
        let whole = RandomCrop { size: [5, 5], padding: 2 };
        assert_eq!(results(whole, &image).into_iter().next().unwrap().iter().position(|&p| p == 1), Some(12));
        let error = RandomCrop { size: [6, 1], padding: 2 }.apply(image, &context(0)).unwrap_err();
        assert_eq!(error.to_string(), "random_crop: Shape: a window of 6 x 1 in 1 x 1 pixels with padding 2");
    }

    #[test]
    fn flips_reverse_rows_of_elements() {
        let image = HostTensor::new(&[1i64, 2, 3, 4, 5, 6], [1, 2, 3]).unwrap();
        let flip = |probability| {
            let flipped = RandomHorizontalFlip { probability }.apply(image.clone(), &context(0)).unwrap();
            flipped.to_vec::<i64>().unwrap()
        };
        assert_eq!((flip(1.0), flip(0.0)), (vec![3, 2, 1, 6, 5, 4], vec![1, 2, 3, 4, 5, 6]));
        assert_eq!(results(RandomHorizontalFlip::default(), &numbered([1, 1, 3])).len(), 2);
    }

    #[test]
    fn cutouts_are_squares_that_the_image_clips() {
        let image = HostTensor::new(&[1u8; 2 * 5 * 5], [2, 5, 5]).unwrap();
        for (size, areas) in [(2, vec![1, 2, 4]), (3, vec![4, 6, 9]), (0, vec![0]), (100, vec![25])] {
            let found = results(Cutout { size }, &image);
            let planes = |pixels: &Vec<u8>| pixels.chunks(25).map(|p| p.iter().filter(|&&p| p == 0).count()).collect();
            let holes: BTreeSet<Vec<usize>> = found.iter().map(planes).collect();
            assert_eq!(holes, areas.into_iter().map(|area| vec![area; 2]).collect(), "size {size}");
            assert!(size != 3 || found.len() == 25, "{}", found.len());
        }
    }

    #[test]
    fn images_need_three_dimensions() {
        let flat = HostTensor::vector(&[1u8, 2]);
        let error = RandomHorizontalFlip::default().apply(flat, &context(0)).unwrap_err();
        assert!(error.message().contains("the image has shape [2], expected [C, H, W]"), "{error}");
    }
}
