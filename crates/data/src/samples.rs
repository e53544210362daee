//! Samples in host memory: features of one shape and a target each.

use crate::dataset::no_sample;
use crate::host::element_count;
use crate::{Context, Dataset, HostTensor};
use isograd_core::{Error, Result};

/// Samples in host memory: f32 features of one shape in row-major order, and a target for each sample. Batches are `x: [B, ..]` and
/// the batch of the targets: `[B]` i64 for [`Labelled`], `[B, K]` f32 for [`Regression`].
#[derive(Clone, Debug, PartialEq)]
pub struct Samples<T> {
    name: String,
    features: Vec<f32>,
    sample_shape: Vec<usize>,
    targets: Vec<T>,
    /// For class indices.
    classes: usize,
    /// The names of classes, if they have some.
    class_names: Vec<String>,
}

/// Samples with a class index each.
pub type Labelled = Samples<i64>;

/// Samples with a vector of f32 targets each.
pub type Regression = Samples<HostTensor>;

impl Labelled {
    /// `labels.len()` samples of shape `sample_shape`, one after the other in `features`.
    ///
    /// Errors: `Shape` if the number of features is not that of the samples; `Index` if a label is not in `0..classes`.
    pub fn new(
        name: impl Into<String>,
        features: Vec<f32>,
        sample_shape: impl Into<Vec<usize>>,
        labels: Vec<i64>,
        classes: usize,
    ) -> Result<Labelled> {
        let (name, sample_shape) = (name.into(), sample_shape.into());
        check_features(&name, features.len(), &sample_shape, labels.len())?;
        if let Some((i, label)) = labels.iter().enumerate().find(|&(_, &l)| l < 0 || l as u64 >= classes as u64) {
            return Err(Error::index(name, format!("sample {i} has label {label}, expected one in 0..{classes}")));
        }
        Ok(Samples { name, features, sample_shape, targets: labels, classes, class_names: Vec::new() })
    }

    /// The number of classes; labels are in `0..classes`.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The names of the classes in the order of their indices; none if they have only indices.
    pub fn class_names(&self) -> &[String] {
        &self.class_names
    }

    /// The same samples with names of the classes. Errors: `Attr` unless each class has one.
    pub fn with_class_names(self, names: Vec<String>) -> Result<Labelled> {
        match names.len() == self.classes {
            true => Ok(Samples { class_names: names, ..self }),
            false => {
                let message = format!("{} names of classes, expected {}", names.len(), self.classes);
                Err(Error::attr(self.name, message))
            }
        }
    }

    /// The class of each sample.
    pub fn labels(&self) -> &[i64] {
        &self.targets
    }
}

impl Regression {
    /// Samples of shape `sample_shape` with `targets_each` targets each, one after the other in `features` and `targets`.
    /// Errors: `Shape` if the number of features or targets is not that of the samples; `Attr` if a sample has no target.
    pub fn new(
        name: impl Into<String>,
        features: Vec<f32>,
        sample_shape: impl Into<Vec<usize>>,
        targets: &[f32],
        targets_each: usize,
    ) -> Result<Regression> {
        let (name, sample_shape) = (name.into(), sample_shape.into());
        if targets_each == 0 {
            return Err(Error::attr(name, "samples have 0 targets each, expected at least 1"));
        }
        if !targets.len().is_multiple_of(targets_each) {
            let message = format!("{} targets are not {targets_each} for each sample", targets.len());
            return Err(Error::shape(name, message));
        }
        let targets: Vec<HostTensor> = targets.chunks(targets_each).map(HostTensor::vector).collect();
        check_features(&name, features.len(), &sample_shape, targets.len())?;
        Ok(Samples { name, features, sample_shape, targets, classes: 0, class_names: Vec::new() })
    }
}

impl<T: Clone> Samples<T> {
    /// The name in errors and reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// True if there are no samples.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
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

    /// The target of each sample.
    pub fn targets(&self) -> &[T] {
        &self.targets
    }

    /// Sample `index` with its target, or `None` behind the last.
    pub fn sample(&self, index: usize) -> Option<(&[f32], &T)> {
        let target = self.targets.get(index)?;
        let start = index * self.sample_len();
        Some((&self.features[start..start + self.sample_len()], target))
    }

    /// The same samples in another shape of as many values, such as `[1, 28, 28]` for `[784]`.
    /// Errors: `Shape` if the number of values differs.
    pub fn with_sample_shape(self, shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        if element_count(&shape) != Some(self.sample_len()) {
            let message = format!("samples of shape {:?} cannot become {shape:?}", self.sample_shape);
            return Err(Error::shape(self.name, message));
        }
        Ok(Samples { sample_shape: shape, ..self })
    }

    /// Every feature multiplied by `factor`.
    pub fn scaled(mut self, factor: f32) -> Self {
        self.features.iter_mut().for_each(|x| *x *= factor);
        self
    }

    /// The same samples under another name.
    pub fn with_name(self, name: impl Into<String>) -> Self {
        Samples { name: name.into(), ..self }
    }

    /// The first `n` samples, and the others. Errors: `Attr` if there are fewer than `n`.
    pub fn split_at(&self, n: usize) -> Result<(Self, Self)> {
        if n > self.len() {
            let message = format!("cannot split after {n} samples, there are {}", self.len());
            return Err(Error::attr(self.name.clone(), message));
        }
        Ok(self.split_where(|i| i < n))
    }

    /// A training and a test part: samples whose index is divisible by `n` are for testing.
    /// Errors: `Attr` if `n` is 0.
    pub fn split_every(&self, n: usize) -> Result<(Self, Self)> {
        if n == 0 {
            return Err(Error::attr(self.name.clone(), "cannot split every 0 samples, expected at least 1"));
        }
        Ok(self.split_where(|i| i % n != 0))
    }

    fn split_where(&self, first: impl Fn(usize) -> bool) -> (Self, Self) {
        let (a, b): (Vec<_>, Vec<_>) = (0..self.len()).partition(|&i| first(i));
        (self.select(&a), self.select(&b))
    }

    fn select(&self, rows: &[usize]) -> Self {
        let samples = || rows.iter().filter_map(|&i| self.sample(i));
        Samples {
            name: self.name.clone(),
            features: samples().flat_map(|(x, _)| x).copied().collect(),
            sample_shape: self.sample_shape.clone(),
            targets: samples().map(|(_, target)| target.clone()).collect(),
            classes: self.classes,
            class_names: self.class_names.clone(),
        }
    }
}

impl<T: Clone + Send + Sync> Dataset for Samples<T> {
    type Item = (HostTensor, T);

    fn len(&self) -> usize {
        Samples::len(self)
    }

    fn get(&self, index: usize, _: &Context) -> Result<(HostTensor, T)> {
        let (x, target) = self.sample(index).ok_or_else(|| no_sample(&self.name, index, self.len()))?;
        Ok((HostTensor::new(x, self.sample_shape.as_slice())?, target.clone()))
    }
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

    fn counted(n: usize) -> Labelled {
        let features = (0..2 * n).map(|i| i as f32).collect();
        Labelled::new("counted", features, [2], (0..n as i64).collect(), n).unwrap()
    }

    #[test]
    fn split_every_tests_on_divisible_indices() {
        let (train, test) = counted(11).split_every(5).unwrap();
        assert_eq!(test.labels(), [0, 5, 10]);
        assert_eq!(train.labels(), [1, 2, 3, 4, 6, 7, 8, 9]);
        assert_eq!(test.sample(1), Some((&[10.0, 11.0][..], &5)));
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
        let error = Labelled::new("d", vec![0.0; 5], [2], vec![0, 1], 2).unwrap_err();
        assert_eq!(error.to_string(), "d: Shape: 5 features do not fill 2 samples of shape [2]");
        let error = Labelled::new("d", vec![0.0; 4], [2], vec![0, 2], 2).unwrap_err();
        assert_eq!(error.to_string(), "d: Index: sample 1 has label 2, expected one in 0..2");
        let error = Regression::new("d", vec![0.0; 4], [2], &[0.0; 3], 2).unwrap_err();
        assert_eq!(error.to_string(), "d: Shape: 3 targets are not 2 for each sample");
        assert_eq!(Regression::new("d", vec![], [2], &[], 0).unwrap_err().kind(), Kind::Attr);
        assert_eq!(Regression::new("d", vec![0.0; 5], [2], &[0.0; 4], 2).unwrap_err().kind(), Kind::Shape);
        let error = Labelled::new("d", vec![], [usize::MAX, 2], vec![0], 1).unwrap_err();
        assert_eq!(error.kind(), Kind::Shape);
        assert_eq!(counted(2).with_sample_shape([3]).unwrap_err().kind(), Kind::Shape);
        assert_eq!(counted(2).with_sample_shape([1, 2, 1]).unwrap().sample_shape(), [1, 2, 1]);
    }
}
