//! Samples on the host.

use isograd_core::{Device, Error, Result, Tensor};

/// Anything that a [`Loader`](crate::Loader) can draw samples from. Implement it for data that does not fit in memory or that is
/// changed on the way; it is read on a thread of the loader's.
pub trait Source: Send + Sync {
    /// The number of samples.
    fn len(&self) -> usize;

    /// The extents of one sample.
    fn sample_shape(&self) -> &[usize];

    /// Writes sample `index < len()` to `x`, whose length is the product of `sample_shape`, and returns its label.
    /// An error ends the epoch and reaches the training loop as an item.
    fn copy_sample(&self, index: usize, x: &mut [f32]) -> Result<i64>;

    /// True if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Labelled samples in host memory: f32 features in row-major order and one class index a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    name: String,
    features: Vec<f32>,
    sample_shape: Vec<usize>,
    labels: Vec<i64>,
    classes: usize,
}

impl Dataset {
    /// A dataset of `labels.len()` samples of shape `sample_shape`, one after the other in `features`.
    ///
    /// Errors: `Shape` if the number of features is not that of the samples; `Index` if a label is not in `0..classes`.
    pub fn new(
        name: impl Into<String>,
        features: Vec<f32>,
        sample_shape: impl Into<Vec<usize>>,
        labels: Vec<i64>,
        classes: usize,
    ) -> Result<Dataset> {
        let (name, sample_shape) = (name.into(), sample_shape.into());
        check_features(&name, features.len(), &sample_shape, labels.len())?;
        if let Some((i, label)) = labels.iter().enumerate().find(|&(_, &l)| l < 0 || l as u64 >= classes as u64) {
            return Err(Error::index(name, format!("sample {i} has label {label}, expected one in 0..{classes}")));
        }
        Ok(Dataset { name, features, sample_shape, labels, classes })
    }

    /// What errors and reports call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// True if there are no samples.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The number of classes; labels are in `0..classes`.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The extents of one sample.
    pub fn sample_shape(&self) -> &[usize] {
        &self.sample_shape
    }

    /// The number of values in one sample.
    pub fn sample_len(&self) -> usize {
        self.sample_shape.iter().product()
    }

    /// All samples, one after the other.
    pub fn features(&self) -> &[f32] {
        &self.features
    }

    /// The class of each sample.
    pub fn labels(&self) -> &[i64] {
        &self.labels
    }

    /// Sample `index` with its label, or `None` behind the last.
    pub fn sample(&self, index: usize) -> Option<(&[f32], i64)> {
        let label = *self.labels.get(index)?;
        let start = index * self.sample_len();
        Some((&self.features[start..start + self.sample_len()], label))
    }

    /// The same samples in another shape of as many values, such as `[1, 28, 28]` for `[784]`.
    /// Errors: `Shape` if the number of values differs.
    pub fn with_sample_shape(self, shape: impl Into<Vec<usize>>) -> Result<Dataset> {
        let shape = shape.into();
        if element_count(&shape) != Some(self.sample_len()) {
            let message = format!("samples of shape {:?} cannot become {shape:?}", self.sample_shape);
            return Err(Error::shape(self.name, message));
        }
        Ok(Dataset { sample_shape: shape, ..self })
    }

    /// Every feature multiplied by `factor`.
    pub fn scaled(mut self, factor: f32) -> Dataset {
        self.features.iter_mut().for_each(|x| *x *= factor);
        self
    }

    /// The first `n` samples, and the others. Errors: `Attr` if there are fewer than `n`.
    pub fn split_at(&self, n: usize) -> Result<(Dataset, Dataset)> {
        if n > self.len() {
            let message = format!("cannot split after {n} samples, there are {}", self.len());
            return Err(Error::attr(self.name.clone(), message));
        }
        Ok(self.split_where(|i| i < n))
    }

    /// A training and a test part: samples whose index is divisible by `n` are for testing.
    /// Errors: `Attr` if `n` is 0.
    pub fn split_every(&self, n: usize) -> Result<(Dataset, Dataset)> {
        if n == 0 {
            return Err(Error::attr(self.name.clone(), "cannot split every 0 samples, expected at least 1"));
        }
        Ok(self.split_where(|i| i % n != 0))
    }

    /// All samples as tensors on `device`: features `[N, ..]` f32 and labels `[N]` i64.
    pub fn to_tensors(&self, device: &Device) -> Result<(Tensor, Tensor)> {
        let mut shape = vec![self.len()];
        shape.extend(&self.sample_shape);
        Ok((Tensor::from_slice(&self.features, shape, device)?, Tensor::from_slice(&self.labels, self.len(), device)?))
    }

    fn split_where(&self, first: impl Fn(usize) -> bool) -> (Dataset, Dataset) {
        let (a, b): (Vec<_>, Vec<_>) = (0..self.len()).partition(|&i| first(i));
        (self.select(&a), self.select(&b))
    }

    fn select(&self, rows: &[usize]) -> Dataset {
        let samples = || rows.iter().filter_map(|&i| self.sample(i));
        Dataset {
            name: self.name.clone(),
            features: samples().flat_map(|(x, _)| x).copied().collect(),
            sample_shape: self.sample_shape.clone(),
            labels: samples().map(|(_, label)| label).collect(),
            classes: self.classes,
        }
    }
}

impl Source for Dataset {
    fn len(&self) -> usize {
        Dataset::len(self)
    }

    fn sample_shape(&self) -> &[usize] {
        Dataset::sample_shape(self)
    }

    fn copy_sample(&self, index: usize, x: &mut [f32]) -> Result<i64> {
        let (sample, label) = self.sample(index).ok_or_else(|| {
            Error::index(self.name.clone(), format!("there is no sample {index}, expected one in 0..{}", self.len()))
        })?;
        if x.len() != sample.len() {
            let message = format!("a sample has {} values, got room for {}", sample.len(), x.len());
            return Err(Error::shape(self.name.clone(), message));
        }
        x.copy_from_slice(sample);
        Ok(label)
    }
}

/// The product of extents, unless it overflows.
pub(crate) fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

fn check_features(name: &str, features: usize, sample_shape: &[usize], samples: usize) -> Result<()> {
    let expected = element_count(sample_shape).and_then(|n| n.checked_mul(samples));
    if expected == Some(features) {
        return Ok(());
    }
    let message = format!("{features} features do not fill {samples} samples of shape {sample_shape:?}");
    Err(Error::shape(name.to_string(), message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use isograd_core::Kind;

    fn counted(n: usize) -> Dataset {
        let features = (0..2 * n).map(|i| i as f32).collect();
        Dataset::new("counted", features, [2], (0..n as i64).collect(), n).unwrap()
    }

    #[test]
    fn split_every_tests_on_divisible_indices() {
        let (train, test) = counted(11).split_every(5).unwrap();
        assert_eq!(test.labels(), [0, 5, 10]);
        assert_eq!(train.labels(), [1, 2, 3, 4, 6, 7, 8, 9]);
        assert_eq!(test.sample(1), Some((&[10.0, 11.0][..], 5)));
        assert_eq!(counted(3).split_every(0).unwrap_err().kind(), Kind::Attr);
    }

    #[test]
    fn split_at_keeps_order() {
        let (first, rest) = counted(5).split_at(3).unwrap();
        assert_eq!((first.labels(), rest.labels()), (&[0, 1, 2][..], &[3, 4][..]));
        assert_eq!(counted(2).split_at(3).unwrap_err().kind(), Kind::Attr);
    }

    #[test]
    fn mismatches_name_what_was_expected() {
        let error = Dataset::new("d", vec![0.0; 5], [2], vec![0, 1], 2).unwrap_err();
        assert_eq!(error.to_string(), "d: Shape: 5 features do not fill 2 samples of shape [2]");
        let error = Dataset::new("d", vec![0.0; 4], [2], vec![0, 2], 2).unwrap_err();
        assert_eq!(error.to_string(), "d: Index: sample 1 has label 2, expected one in 0..2");
        let error = Dataset::new("d", vec![], [usize::MAX, 2], vec![0], 1).unwrap_err();
        assert_eq!(error.kind(), Kind::Shape);
        assert_eq!(counted(2).with_sample_shape([3]).unwrap_err().kind(), Kind::Shape);
        assert_eq!(counted(2).with_sample_shape([1, 2, 1]).unwrap().sample_shape(), [1, 2, 1]);
    }
}
