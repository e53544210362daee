//! Datasets: samples by index, and views of them.

use crate::draws::permutation;
use crate::{Collate, Context};
use isograd_core::{Device, Error, Result};
use std::fmt;
use std::sync::Arc;

/// Samples by index. A [`Loader`](crate::Loader) reads them on its worker threads and forms batches of them.
///
/// ```
/// use isograd_core::Result;
/// use isograd_data::{Context, Dataset};
///
/// /// Points of a noisy sine: x, and sin(x).
/// struct Sine;
///
/// impl Dataset for Sine {
///     type Item = ([f32; 1], [f32; 1]);
///
///     fn len(&self) -> usize {
///         1000
///     }
///
///     fn get(&self, index: usize, context: &Context) -> Result<Self::Item> {
///         let x = index as f32 / 100.0;
///         Ok(([x], [x.sin() + 0.1 * context.normal() as f32]))
///     }
/// }
/// ```
pub trait Dataset: Send + Sync {
    /// A sample. For a loader, it implements [`Collate`]: numbers, arrays, tensors, and tuples and structs of these do.
    type Item;

    /// The number of samples.
    fn len(&self) -> usize;

    /// Sample `index < len()`. The context has random numbers for augmentation, which are new in each epoch.
    /// An error ends the epoch and reaches the training loop as an item.
    fn get(&self, index: usize, context: &Context) -> Result<Self::Item>;

    /// True if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The samples changed by a function, each time they are read: augmented, or converted.
    fn map<U, F>(self, f: F) -> Map<Self, F>
    where
        Self: Sized,
        F: Fn(Self::Item, &Context) -> Result<U> + Send + Sync,
    {
        Map { dataset: self, f }
    }

    /// The samples at these indices, in this order. Errors: `Index` if there is no such sample.
    fn subset(self, indices: Vec<usize>) -> Result<Subset<Self>>
    where
        Self: Sized,
    {
        let len = self.len();
        if let Some(index) = indices.iter().find(|&&i| i >= len) {
            return Err(no_sample("subset", *index, len));
        }
        Ok(Subset { dataset: Arc::new(self), indices })
    }

    /// The samples of this dataset, then those of another.
    fn concat<D>(self, other: D) -> Concat<Self, D>
    where
        Self: Sized,
        D: Dataset<Item = Self::Item>,
    {
        Concat { first: self, second: other }
    }

    /// Parts with these shares of the samples, such as `[0.8, 0.2]`, in an order that the seed decides. Each sample is in one part.
    /// Errors: `Attr` unless every share is at least 0 and their sum is 1.
    fn random_split<const N: usize>(self, shares: [f64; N], seed: u64) -> Result<[Subset<Self>; N]>
    where
        Self: Sized,
    {
        let sum: f64 = shares.iter().sum();
        if shares.iter().any(|share| !(0.0..=1.0).contains(share)) || (sum - 1.0).abs() > 1e-6 {
            return Err(Error::attr("random_split", format!("the shares are {shares:?}, expected a sum of 1")));
        }
        let order = permutation(self.len(), seed, SPLIT);
        let dataset = Arc::new(self);
        let (mut start, mut share) = (0, 0.0);
        Ok(shares.map(|part| {
            share += part;
            let end = ((share * order.len() as f64).round() as usize).clamp(start, order.len());
            let indices = order[start..end].to_vec();
            start = end;
            Subset { dataset: dataset.clone(), indices }
        }))
    }

    /// All samples as one batch on a device, as read in epoch 0 with seed 0. Errors: those of samples and of the batch.
    fn to_batch(&self, device: &Device) -> Result<<Self::Item as Collate>::Batch>
    where
        Self::Item: Collate,
    {
        let items = (0..self.len()).map(|i| self.get(i, &Context::new(0, 0, i))).collect::<Result<Vec<_>>>()?;
        Collate::collate(items)?.to(device)
    }
}

/// The epoch whose order [`Dataset::random_split`] takes, which no run reaches.
const SPLIT: u64 = u64::MAX >> 1;

/// The error of an index behind the last sample.
pub(crate) fn no_sample(op: &str, index: usize, len: usize) -> Error {
    Error::index(op.to_string(), format!("there is no sample {index}, expected one in 0..{len}"))
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, index: usize, context: &Context) -> Result<D::Item> {
        (**self).get(index, context)
    }
}

impl<D: Dataset + ?Sized> Dataset for Box<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, index: usize, context: &Context) -> Result<D::Item> {
        (**self).get(index, context)
    }
}

/// Samples in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Items<T>(pub Vec<T>);

impl<T: Clone + Send + Sync> Dataset for Items<T> {
    type Item = T;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize, _: &Context) -> Result<T> {
        self.0.get(index).cloned().ok_or_else(|| no_sample("items", index, self.0.len()))
    }
}

/// The result of [`Dataset::map`].
#[derive(Clone, Copy)]
pub struct Map<D, F> {
    dataset: D,
    f: F,
}

impl<D, F, U> Dataset for Map<D, F>
where
    D: Dataset,
    F: Fn(D::Item, &Context) -> Result<U> + Send + Sync,
{
    type Item = U;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn get(&self, index: usize, context: &Context) -> Result<U> {
        (self.f)(self.dataset.get(index, context)?, context)
    }
}

impl<D: fmt::Debug, F> fmt::Debug for Map<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map").field("dataset", &self.dataset).finish_non_exhaustive()
    }
}

/// Some samples of a dataset, which it shares with other subsets: the result of [`Dataset::subset`] and [`Dataset::random_split`].
#[derive(Debug)]
pub struct Subset<D> {
    dataset: Arc<D>,
    indices: Vec<usize>,
}

impl<D> Subset<D> {
    /// The dataset that this is a part of.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }

    /// The indices of the samples in the dataset.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }
}

impl<D> Clone for Subset<D> {
    fn clone(&self) -> Self {
        Subset { dataset: self.dataset.clone(), indices: self.indices.clone() }
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn get(&self, index: usize, context: &Context) -> Result<D::Item> {
        let at = self.indices.get(index).ok_or_else(|| no_sample("subset", index, self.indices.len()))?;
        self.dataset.get(*at, context)
    }
}

/// The samples of two datasets, one after the other: the result of [`Dataset::concat`].
#[derive(Clone, Copy, Debug)]
pub struct Concat<A, B> {
    first: A,
    second: B,
}

impl<A: Dataset, B: Dataset<Item = A::Item>> Dataset for Concat<A, B> {
    type Item = A::Item;

    fn len(&self) -> usize {
        self.first.len() + self.second.len()
    }

    fn get(&self, index: usize, context: &Context) -> Result<A::Item> {
        match index.checked_sub(self.first.len()) {
            None => self.first.get(index, context),
            Some(at) if at < self.second.len() => self.second.get(at, context),
            Some(_) => Err(no_sample("concat", index, self.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isograd_core::Kind;

    fn items<D: Dataset>(dataset: &D) -> Vec<D::Item> {
        (0..dataset.len()).map(|i| dataset.get(i, &Context::new(0, 0, i)).unwrap()).collect()
    }

    #[test]
    fn a_random_split_has_every_sample_once() {
        let data = Items((0..103).collect::<Vec<i64>>());
        let parts = data.clone().random_split([0.7, 0.2, 0.1], 5).unwrap();
        assert_eq!(parts.each_ref().map(|p| p.len()), [72, 21, 10]);
        let mut all = parts.each_ref().map(items).concat();
        assert_ne!(all, data.0);
        all.sort_unstable();
        assert_eq!(all, data.0);
        let again = data.clone().random_split([0.7, 0.2, 0.1], 5).unwrap();
        assert_eq!(again[0].indices(), parts[0].indices());
        assert_ne!(data.clone().random_split([0.7, 0.3], 6).unwrap()[0].indices(), parts[0].indices());
        for shares in [[0.5, 0.4], [1.5, -0.5], [f64::NAN, 1.0]] {
            assert_eq!(data.clone().random_split(shares, 5).unwrap_err().kind(), Kind::Attr);
        }
    }

    #[test]
    fn subsets_and_maps_nest() {
        let odd = Items((0..10).collect::<Vec<i64>>()).subset(vec![1, 3, 5, 7]).unwrap();
        let tens = odd.map(|x, _| Ok(10 * x)).subset(vec![3, 0]).unwrap();
        assert_eq!(items(&tens), [70, 10]);
        let error = tens.subset(vec![0, 2]).unwrap_err();
        assert_eq!(error.to_string(), "subset: Index: there is no sample 2, expected one in 0..2");
    }

    #[test]
    fn concatenated_datasets_keep_their_order() {
        let (first, second) = (Items(vec![1, 2, 3]), Items(vec![4, 5]).map(|x, _| Ok(10 * x)));
        let all = first.concat(second).concat(Items(Vec::new()));
        assert_eq!(items(&all), [1, 2, 3, 40, 50]);
        let error = all.get(5, &Context::new(0, 0, 5)).unwrap_err();
        assert_eq!(error.to_string(), "concat: Index: there is no sample 5, expected one in 0..5");
    }

    #[test]
    fn maps_of_one_sample_draw_different_numbers() {
        let noisy = Items(vec![0.0; 3]).map(|x, c| Ok((x, c.uniform()))).map(|(_, first), c| Ok((first, c.uniform())));
        assert!(items(&noisy).iter().all(|(first, second)| first != second));
    }
}
