//! Mixup: samples that are sums of two.

use crate::{Collate, Context, HostTensor, Staged};
use isograd_core::{Error, Result, Tensor};

/// Mixes each sample of a batch with the one behind it, and the last with the first: image and target are
/// `w * own + (1 - w) * next`, where w of each sample has the distribution Beta(alpha, alpha). Zhang et al. 2018, arXiv 1710.09412.
///
/// Targets are probabilities, which `cross_entropy` takes. Batches of a loader that shuffles have other neighbours in each epoch.
///
/// ```
/// # use isograd_cpu as _;
/// # use isograd_core::{Device, Result};
/// # use isograd_data::{Dataset, Loader, images::{Images, Mixup, Normalize, augment}};
/// # fn main() -> Result<()> {
/// # let train = Images::new("squares", vec![255; 2 * 3 * 8 * 8], [3, 8, 8], vec![0, 1], 2)?;
/// let mixup = Mixup { alpha: 0.2, classes: 10 };
/// let normalize = Normalize::new(&[0.5; 3], &[0.25; 3])?;
/// let mixed = train.map(augment(normalize)).map(move |(x, y), context| mixup.draw(x, y, context));
/// for batch in Loader::new(mixed, 2)?.shuffle(42).to(&Device::cpu()?).epoch(0) {
///     let (x, y) = batch?;
///     assert_eq!((x.dims(), y.dims()), (&[2, 3, 8, 8][..], &[2, 10][..]));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixup {
    /// Both parameters of the distribution: the smaller, the less samples are mixed.
    pub alpha: f64,
    /// The number of classes.
    pub classes: usize,
}

/// A sample that its batch mixes: a result of [`Mixup::draw`]. The batch is the images, f32 `[B, ..]`, and the targets, f32
/// `[B, classes]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixed {
    image: HostTensor,
    label: usize,
    classes: usize,
    /// The share of this sample.
    weight: f32,
}

impl Mixup {
    /// A sample with the weight that its context draws. Errors: `Attr` unless alpha is positive and finite; `Index` if the label is not
    /// in `0..classes`.
    pub fn draw(&self, image: HostTensor, label: i64, context: &Context) -> Result<Mixed> {
        let Mixup { alpha, classes } = *self;
        if !(alpha > 0.0 && alpha.is_finite()) {
            return Err(Error::attr("mixup", format!("alpha is {alpha}, expected a positive number")));
        }
        let label = usize::try_from(label).ok().filter(|&l| l < classes).ok_or_else(|| {
            Error::index("mixup", format!("a sample has label {label}, expected one in 0..{classes}"))
        })?;
        Ok(Mixed { image, label, classes, weight: beta(alpha, context) as f32 })
    }
}

impl Collate for Mixed {
    type Batch = (Tensor, Tensor);

    /// Errors: `DType` unless images are f32; `Shape` if their shapes differ.
    fn collate(items: Vec<Mixed>) -> Result<Staged<(Tensor, Tensor)>> {
        let classes = items.iter().map(|item| item.classes).max().unwrap_or(0);
        let images: Vec<HostTensor> = items.iter().map(|item| item.image.clone()).collect();
        let batch = HostTensor::stack(&images)?;
        let values = batch.to_vec::<f32>()?;
        let each = values.len().checked_div(items.len()).unwrap_or(0);
        let (mut mixed, mut targets) = (Vec::with_capacity(values.len()), vec![0.0; items.len() * classes]);
        for (i, item) in items.iter().enumerate() {
            let (weight, next) = (item.weight, (i + 1) % items.len());
            let [own, other] = [i, next].map(|k| &values[k * each..(k + 1) * each]);
            mixed.extend(own.iter().zip(other).map(|(x, y)| weight * x + (1.0 - weight) * y));
            targets[i * classes + item.label] += weight;
            targets[i * classes + items[next].label] += 1.0 - weight;
        }
        let mixed = HostTensor::new(&mixed, batch.dims())?;
        let targets = HostTensor::new(&targets, [items.len(), classes])?;
        Ok(Staged::new(move |device| Ok((mixed.to(device)?, targets.to(device)?))))
    }
}

/// A number of the distribution Beta(a, a): the share of one of two numbers of the distribution Gamma(a).
fn beta(a: f64, context: &Context) -> f64 {
    let (x, y) = (log_gamma(a, context), log_gamma(a, context));
    1.0 / (1.0 + (y - x).exp())
}

/// The logarithm of a number of the distribution Gamma(a), which may be too small for a float itself. Marsaglia, Tsang 2000,
/// "A Simple Method for Generating Gamma Variables", ACM TOMS 26.
fn log_gamma(a: f64, context: &Context) -> f64 {
    if a < 1.0 {
        // Gamma(a) = Gamma(a + 1) * u^(1 / a).
        let u = 1.0 - context.uniform();
        return log_gamma(a + 1.0, context) + (u.ln() / a).max(f64::MIN);
    }
    let d = a - 1.0 / 3.0;
    loop {
        let x = context.normal();
        let v = (1.0 + x / (9.0 * d).sqrt()).powi(3);
        let u = 1.0 - context.uniform();
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return (d * v).ln();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isograd_core::{Device, Kind};
    use isograd_cpu as _;

    #[test]
    fn weights_have_the_distribution_beta() {
        for alpha in [1e-300, 0.2, 1.0, 4.0] {
            let draws: Vec<f64> = (0..4000).map(|i| beta(alpha, &Context::new(3, 0, i))).collect();
            let mean = |f: &dyn Fn(f64) -> f64| draws.iter().map(|&w| f(w)).sum::<f64>() / draws.len() as f64;
            assert!(draws.iter().all(|w| (0.0..=1.0).contains(w)));
            // The deviation of the mean is at most 0.008, and that of the variance at most 0.002.
            assert!((mean(&|w| w) - 0.5).abs() < 0.03, "{alpha}");
            let variance = mean(&|w| (w - 0.5).powi(2));
            assert!((variance - 0.25 / (2.0 * alpha + 1.0)).abs() < 0.008, "{alpha}: {variance}");
        }
    }

    #[test]
    fn batches_mix_neighbours() {
        let sample = |value: f32, label, weight| Mixed {
            image: HostTensor::new(&[value; 2], [1, 1, 2]).unwrap(),
            label,
            classes: 3,
            weight,
        };
        let items = vec![sample(1.0, 0, 0.75), sample(5.0, 2, 1.0), sample(9.0, 0, 0.5)];
        let (x, y) = Mixed::collate(items).unwrap().to(&Device::cpu().unwrap()).unwrap();
        assert_eq!((x.dims(), x.to_vec::<f32>().unwrap()), (&[3, 1, 1, 2][..], vec![2.0, 2.0, 5.0, 5.0, 5.0, 5.0]));
        assert_eq!(y.to_vec::<f32>().unwrap(), [0.75, 0.0, 0.25, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
        let (x, y) = Mixed::collate(vec![sample(3.0, 1, 0.25)]).unwrap().to(&Device::cpu().unwrap()).unwrap();
        assert_eq!((x.to_vec::<f32>().unwrap(), y.to_vec::<f32>().unwrap()), (vec![3.0; 2], vec![0.0, 1.0, 0.0]));
    }

    #[test]
    fn samples_that_cannot_be_mixed() {
        let (image, context) = (HostTensor::new(&[1u8; 2], [1, 1, 2]).unwrap(), Context::new(0, 0, 0));
        let draw = |alpha, label| Mixup { alpha, classes: 3 }.draw(image.clone(), label, &context);
        for alpha in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(draw(alpha, 0).unwrap_err().kind(), Kind::Attr);
        }
        let error = draw(0.2, 3).unwrap_err();
        assert_eq!(error.to_string(), "mixup: Index: a sample has label 3, expected one in 0..3");
        assert_eq!(Mixed::collate(vec![draw(0.2, 2).unwrap()]).unwrap_err().kind(), Kind::Dtype);
    }
}
