//! Transforms that change the values of pixels.

use super::{Transform, extents};
use crate::{Context, HostTensor};
use isograd_core::{DType, Error, Result};

/// f32 `(x - mean) / std` of each channel. Pixels of dtype u8 are divided by 255 before that; f32 values are taken as they are.
///
/// Errors: `Shape` if the image has another number of channels; `DType` for other dtypes.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {
    /// The mean and the deviation of each channel.
    channels: Vec<(f32, f32)>,
}

impl Normalize {
    /// One mean and one deviation for each channel. Errors: `Attr` unless means are finite, and deviations are finite and positive.
    pub fn new(mean: &[f32], std: &[f32]) -> Result<Normalize> {
        let is_good = |(mean, std): &(f32, f32)| mean.is_finite() && std.is_finite() && *std > 0.0;
        let channels: Vec<(f32, f32)> = mean.iter().copied().zip(std.iter().copied()).collect();
        if mean.len() != std.len() || !channels.iter().all(is_good) {
            let message = format!("the means are {mean:?} and the deviations {std:?}, expected positive deviations");
            return Err(Error::attr("normalize", message));
        }
        Ok(Normalize { channels })
    }
}

impl Transform for Normalize {
    fn apply(&self, image: HostTensor, _: &Context) -> Result<HostTensor> {
        let [channels, height, width] = extents("normalize", &image)?;
        if channels != self.channels.len() {
            let message = format!("the image has {channels} channels, expected {}", self.channels.len());
            return Err(Error::shape("normalize", message));
        }
        let (plane, mut values) = ((height * width).max(1), Vec::with_capacity(channels * height * width));
        match image.dtype() {
            DType::U8 => {
                for (pixels, (mean, std)) in image.bytes().chunks_exact(plane).zip(&self.channels) {
                    let table: [f32; 256] = std::array::from_fn(|p| (p as f32 / 255.0 - mean) / std);
                    values.extend(pixels.iter().map(|&p| table[usize::from(p)]));
                }
            }
            DType::F32 => {
                for (x, (mean, std)) in image.to_vec::<f32>()?.chunks_exact(plane).zip(&self.channels) {
                    values.extend(x.iter().map(|x| (x - mean) / std));
                }
            }
            other => return Err(Error::dtype("normalize", format!("the image is {other}, expected u8 or f32"))),
        }
        HostTensor::new(&values, [channels, height, width])
    }
}

/// Random changes of the brightness, the contrast and the saturation of u8 images with channels red, green and blue, in a random order.
/// A property is multiplied by a factor between `1 - x` (or 0) and `1 + x`, where x is the field of its name.
///
/// Errors: `Shape` unless there are three channels; `DType` unless pixels are u8; `Attr` unless fields are finite and at least 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ColorJitter {
    /// Brightness: black is 0.
    pub brightness: f64,
    /// Contrast: the mean of the grey image is 0.
    pub contrast: f64,
    /// Saturation: grey is 0.
    pub saturation: f64,
}

/// Shares of red, green and blue in grey. ITU-R BT.601-7, section 2.5.1.
pub const GREY: [f32; 3] = [0.299, 0.587, 0.114];

impl Transform for ColorJitter {
    fn apply(&self, image: HostTensor, context: &Context) -> Result<HostTensor> {
        let [channels, height, width] = extents("color_jitter", &image)?;
        let ranges = [self.brightness, self.contrast, self.saturation];
        if channels != 3 {
            return Err(Error::shape("color_jitter", format!("the image has {channels} channels, expected 3")));
        }
        if image.dtype() != DType::U8 {
            return Err(Error::dtype("color_jitter", format!("the image is {}, expected u8", image.dtype())));
        }
        if ranges.iter().any(|range| !range.is_finite() || *range < 0.0) {
            return Err(Error::attr("color_jitter", format!("the fields are {ranges:?}, expected at least 0")));
        }
        let factors = ranges.map(|range| context.between((1.0 - range).max(0.0), 1.0 + range) as f32);
        let mut order = [0, 1, 2];
        (1..3).rev().for_each(|i| order.swap(i, context.below(i + 1)));
        let plane = height * width;
        let bytes = image.bytes();
        let mut pixels: Vec<[f32; 3]> =
            (0..plane).map(|i| [0, 1, 2].map(|c| f32::from(bytes[c * plane + i]))).collect();
        for property in order {
            // A pixel becomes `origin + factor * (pixel - origin)`.
            let factor = factors[property];
            let mean = if property == 1 { pixels.iter().map(grey).sum::<f32>() / plane.max(1) as f32 } else { 0.0 };
            for pixel in &mut pixels {
                let origin = if property == 2 { grey(pixel) } else { mean };
                *pixel = pixel.map(|p| (origin + factor * (p - origin)).clamp(0.0, 255.0));
            }
        }
        let bytes = (0..3).flat_map(|c| pixels.iter().map(move |pixel| pixel[c].round() as u8)).collect();
        Ok(HostTensor::from_bytes(bytes, [3, height, width], DType::U8))
    }
}

fn grey(pixel: &[f32; 3]) -> f32 {
    pixel.iter().zip(GREY).map(|(p, share)| p * share).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use isograd_core::Kind;

    fn context(index: usize) -> Context {
        Context::new(1, 0, index)
    }

    #[test]
    fn normalised_values_have_mean_and_deviation_of_their_channel() {
        let normalize = Normalize::new(&[0.5, 0.25], &[0.25, 0.5]).unwrap();
        let apply = |image: HostTensor| normalize.apply(image, &context(0)).map(|y| y.to_vec::<f32>().unwrap());
        let pixels = HostTensor::new(&[0u8, 255, 51, 255], [2, 1, 2]).unwrap();
        assert_eq!(apply(pixels).unwrap(), [-2.0, 2.0, (0.2 - 0.25) / 0.5, 1.5]);
        let floats = HostTensor::new(&[0.5f32, 1.0, 0.25, -0.25], [2, 2, 1]).unwrap();
        assert_eq!(apply(floats).unwrap(), [0.0, 2.0, 0.0, -1.0]);
        let error = apply(HostTensor::new(&[0u8; 3], [3, 1, 1]).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "normalize: Shape: the image has 3 channels, expected 2");
        assert_eq!(apply(HostTensor::new(&[0i64; 2], [2, 1, 1]).unwrap()).unwrap_err().kind(), Kind::Dtype);
        for (mean, std) in [(&[0.5][..], &[0.0][..]), (&[0.5], &[-1.0]), (&[f32::NAN], &[1.0]), (&[0.5], &[1.0, 1.0])] {
            assert_eq!(Normalize::new(mean, std).unwrap_err().kind(), Kind::Attr);
        }
    }

    #[test]
    fn each_property_changes_what_it_names() {
        let image = HostTensor::new(&[100u8, 50, 60, 50, 20, 50], [3, 1, 2]).unwrap();
        let jitter = |options: ColorJitter, i| {
            let y = options.apply(image.clone(), &context(i)).unwrap().to_vec::<u8>().unwrap();
            [[y[0], y[2], y[4]], [y[1], y[3], y[5]]].map(|pixel| pixel.map(f64::from))
        };
        let mut factors = Vec::new();
        for i in 0..50 {
            let [[r, g, b], [grey, ..]] = jitter(ColorJitter { brightness: 0.5, ..ColorJitter::default() }, i);
            // All pixels by the same factor, up to rounding.
            assert!((r * 0.6 - g).abs() < 1.0 && (r * 0.2 - b).abs() < 1.0 && (r * 0.5 - grey).abs() < 1.0);
            factors.push(r / 100.0);
            let saturated = jitter(ColorJitter { saturation: 0.5, ..ColorJitter::default() }, i);
            assert_eq!(saturated[1], [50.0; 3]);
            let mean = |p: [f64; 3]| 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2];
            assert!((mean(saturated[0]) - mean([100.0, 60.0, 20.0])).abs() < 1.0);
            let [first, second] = jitter(ColorJitter { contrast: 0.5, ..ColorJitter::default() }, i);
            assert!((mean(first) + mean(second) - mean([100.0, 60.0, 20.0]) - 50.0).abs() < 1.0);
        }
        assert!(factors.iter().all(|f| (0.5..=1.5).contains(f)), "{factors:?}");
        assert!(factors.iter().any(|f| *f < 0.7) && factors.iter().any(|f| *f > 1.3), "{factors:?}");
        assert_eq!(jitter(ColorJitter::default(), 0), [[100.0, 60.0, 20.0], [50.0; 3]]);
    }

    #[test]
    fn jitter_needs_colours() {
        let apply = |image: HostTensor, brightness| {
            ColorJitter { brightness, ..ColorJitter::default() }.apply(image, &context(0)).unwrap_err().kind()
        };
        assert_eq!(apply(HostTensor::new(&[0u8; 2], [2, 1, 1]).unwrap(), 0.5), Kind::Shape);
        assert_eq!(apply(HostTensor::new(&[0f32; 3], [3, 1, 1]).unwrap(), 0.5), Kind::Dtype);
        assert_eq!(apply(HostTensor::new(&[0u8; 3], [3, 1, 1]).unwrap(), f64::INFINITY), Kind::Attr);
    }
}
