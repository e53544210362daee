//! Metrics that are added up on the device: an update waits for nothing, and only a result is read back.
//!
//! ```
//! # use isograd_core::{Device, Result, Tensor};
//! # use isograd_cpu as _;
//! use isograd_train::metrics::{Confusion, Mean};
//!
//! # fn main() -> Result<()> {
//! let device = Device::cpu()?;
//! let (mut confusion, mut loss) = (Confusion::new(3, &device)?, Mean::new(&device)?);
//! for (scores, targets) in [([0.1f32, 0.7, 0.2, 0.9, 0.1, 0.0], [1i64, 2])] {
//!     let (scores, targets) = (Tensor::from_slice(&scores, (2, 3), &device)?, Tensor::from_slice(&targets, 2, &device)?);
//!     confusion.update(&scores.argmax(-1)?, &targets)?;
//!     loss.update(&scores.cross_entropy(&targets)?, 2)?;
//! }
//! assert_eq!(confusion.counts()?.accuracy(), 0.5);
//! # Ok(())
//! # }
//! ```

use isograd_core::ops::{NanToNum, Order};
use isograd_core::{DType, Device, Error, Result, Tensor, no_grad};

/// The state of a metric, which [`Trainer::measure`](crate::Trainer::measure) asks for: samples that ranks have added are joined for the result.
pub trait Metric {
    /// The state as numbers, for the other ranks. Errors: those of the updates, on a device.
    fn numbers(&self) -> Result<Vec<f64>>;

    /// Becomes the state of all samples from the numbers of all ranks, among them its own. Errors: those of a device.
    fn join(&mut self, ranks: &[Vec<f64>]) -> Result<()>;
}

/// The sums over the ranks. Errors: `Value` if a rank has other numbers.
pub(crate) fn added<const N: usize>(ranks: &[Vec<f64>]) -> Result<[f64; N]> {
    let mut sums = [0.0; N];
    for rank in ranks {
        let rank: &[f64; N] = rank.as_slice().try_into().map_err(|_| {
            Error::value("metric", format!("a rank has {} numbers, expected {N} on all ranks", rank.len()))
        })?;
        sums.iter_mut().zip(rank).for_each(|(sum, v)| *sum += v);
    }
    Ok(sums)
}

/// A mean of numbers with weights, such as losses of batches with their sizes. The sum is compensated f32.
#[derive(Clone, Debug)]
pub struct Mean {
    sum: Tensor,
    /// The part of the terms that the sum has lost.
    lost: Tensor,
    weight: f64,
}

impl Mean {
    /// The mean of no numbers yet. Errors: `OutOfMemory`.
    pub fn new(device: &Device) -> Result<Mean> {
        let zero = || Tensor::zeros((), DType::F32, device);
        Ok(Mean { sum: zero()?, lost: zero()?, weight: 0.0 })
    }

    /// Adds a scalar that is the mean of `count` samples. Errors: `Shape`, `Device`.
    pub fn update(&mut self, value: &Tensor, count: usize) -> Result<()> {
        if value.numel() != 1 {
            return Err(Error::shape("mean", format!("the value is {}, expected one number", value.shape())));
        }
        no_grad(|| {
            let term = value.detach().reshape(())?.cast(DType::F32)?.mul_scalar(count as f64)?.add(&self.lost)?;
            let sum = self.sum.add(&term)?;
            // Kahan 1965. An infinite sum has lost nothing.
            let lost = term.sub(&sum.sub(&self.sum)?)?;
            self.lost = lost.nan_to_num(&NanToNum { nan: 0.0, infinity: Some(0.0), minus_infinity: Some(0.0) })?;
            self.sum = sum;
            Ok::<(), Error>(())
        })?;
        self.weight += count as f64;
        Ok(())
    }

    /// The mean; NaN of no numbers. Errors: those of the updates, on a device.
    pub fn value(&self) -> Result<f64> {
        Ok((self.sum.item::<f64>()? + self.lost.item::<f64>()?) / self.weight)
    }

    /// `e` to the mean: the perplexity, if the numbers are losses of tokens.
    pub fn perplexity(&self) -> Result<f64> {
        self.value().map(f64::exp)
    }
}

impl Metric for Mean {
    fn numbers(&self) -> Result<Vec<f64>> {
        Ok(vec![self.sum.item::<f64>()?, self.lost.item::<f64>()?, self.weight])
    }

    fn join(&mut self, ranks: &[Vec<f64>]) -> Result<()> {
        let [sum, lost, weight] = added(ranks)?;
        let device = self.sum.device();
        let f32 = |v: f64| Tensor::scalar(v as f32, device);
        // The sum of the ranks may have more digits than f32. An infinite sum has lost nothing.
        let rest = lost + (sum - f64::from(sum as f32));
        self.lost = f32(if (sum as f32).is_finite() { rest } else { 0.0 })?;
        (self.sum, self.weight) = (f32(sum)?, weight);
        Ok(())
    }
}

/// The share of samples whose target is among the k highest scores.
#[derive(Clone, Debug)]
pub struct TopK {
    k: usize,
    right: Tensor,
    count: usize,
}

impl TopK {
    /// The share of no samples yet. Errors: `OutOfMemory`.
    pub fn new(k: usize, device: &Device) -> Result<TopK> {
        Ok(TopK { k, right: Tensor::zeros((), DType::I64, device)?, count: 0 })
    }

    /// Adds samples: scores `[.., C]` and targets `[..]`. Errors: `Shape`, `Dtype`; `Attr` if there are fewer than k classes.
    pub fn update(&mut self, scores: &Tensor, targets: &Tensor) -> Result<()> {
        no_grad(|| {
            let (_, classes) = scores.detach().topk(self.k, -1, Order::Descending)?;
            let is_right = classes.eq(&targets.cast(DType::I64)?.unsqueeze(-1)?)?;
            self.right = self.right.add(&is_right.sum(..)?)?;
            Ok::<(), Error>(())
        })?;
        self.count += targets.numel();
        Ok(())
    }

    /// The share; NaN of no samples.
    pub fn value(&self) -> Result<f64> {
        Ok(self.right.item::<f64>()? / self.count as f64)
    }
}

impl Metric for TopK {
    fn numbers(&self) -> Result<Vec<f64>> {
        Ok(vec![self.right.item::<f64>()?, self.count as f64])
    }

    fn join(&mut self, ranks: &[Vec<f64>]) -> Result<()> {
        let [right, count] = added(ranks)?;
        self.right = Tensor::scalar(right as i64, self.right.device())?;
        self.count = count as usize;
        Ok(())
    }
}

/// The numbers of samples of each class that were predicted to be of each class.
#[derive(Clone, Debug)]
pub struct Confusion {
    /// i64, a row for each target, a column for each prediction.
    counts: Tensor,
    classes: usize,
    ignored: Option<i64>,
}

impl Confusion {
    /// The matrix of no samples yet. Errors: `OutOfMemory`.
    pub fn new(classes: usize, device: &Device) -> Result<Confusion> {
        Ok(Confusion { counts: Tensor::zeros(classes * classes, DType::I64, device)?, classes, ignored: None })
    }

    /// Leaves out samples with this target, such as padding.
    pub fn ignore(self, target: i64) -> Confusion {
        Confusion { ignored: Some(target), ..self }
    }

    /// Adds samples with these predicted classes and targets (integers, of one shape). Errors: `Shape`, `Dtype`; `Index` for a class
    /// out of range.
    pub fn update(&mut self, predictions: &Tensor, targets: &Tensor) -> Result<()> {
        let op = "confusion";
        if predictions.shape() != targets.shape() {
            let message = format!("predictions are {}, targets {}", predictions.shape(), targets.shape());
            return Err(Error::shape(op, message));
        }
        no_grad(|| {
            // A class out of range is an error here, where it would be another class below.
            let all = Tensor::arange(self.classes, self.counts.device())?;
            let checked = |t: &Tensor| all.index_select(0, &t.reshape(t.numel())?);
            // A sample with the ignored target counts 0 times, in the cell of class 0.
            let count = match self.ignored {
                Some(ignored) => targets.detach().ne_scalar(ignored)?.reshape(targets.numel())?.cast(DType::I64)?,
                None => Tensor::ones(targets.numel(), DType::I64, targets.device())?,
            };
            let targets = match self.ignored {
                Some(_) => targets.reshape(targets.numel())?.cast(DType::I64)?.mul(&count)?,
                None => targets.clone(),
            };
            let cells = checked(&targets)?.mul_scalar(self.classes as i64)?.add(&checked(predictions)?)?;
            self.counts.scatter_add_(0, &cells, &count)
        })
        .map_err(|e| e.of(op))
    }

    /// Reads the numbers back.
    pub fn counts(&self) -> Result<Counts> {
        let counts = self.counts.to_vec::<i64>()?;
        Ok(Counts { rows: counts.chunks(self.classes.max(1)).map(<[i64]>::to_vec).collect() })
    }
}

impl Metric for Confusion {
    fn numbers(&self) -> Result<Vec<f64>> {
        self.counts.to_f64_vec()
    }

    fn join(&mut self, ranks: &[Vec<f64>]) -> Result<()> {
        let mut counts = vec![0i64; self.classes * self.classes];
        ranks.iter().for_each(|rank| counts.iter_mut().zip(rank).for_each(|(sum, v)| *sum += *v as i64));
        self.counts = Tensor::from_vec(counts, self.classes * self.classes, self.counts.device())?;
        Ok(())
    }
}

/// A confusion matrix on the host. A share of no samples is 0, as in scikit-learn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Row: target; column: prediction.
    pub rows: Vec<Vec<i64>>,
}

impl Counts {
    fn share(part: i64, all: i64) -> f64 {
        if all == 0 { 0.0 } else { part as f64 / all as f64 }
    }

    fn right(&self, class: usize) -> i64 {
        self.rows[class][class]
    }

    /// The share of samples that were predicted right.
    pub fn accuracy(&self) -> f64 {
        let right = (0..self.rows.len()).map(|c| self.right(c)).sum();
        Counts::share(right, self.rows.iter().flatten().sum())
    }

    /// For each class, the share of right ones among its predictions.
    pub fn precision(&self) -> Vec<f64> {
        let predicted = |c: usize| self.rows.iter().map(|row| row[c]).sum();
        (0..self.rows.len()).map(|c| Counts::share(self.right(c), predicted(c))).collect()
    }

    /// For each class, the share of its samples that were predicted right.
    pub fn recall(&self) -> Vec<f64> {
        (0..self.rows.len()).map(|c| Counts::share(self.right(c), self.rows[c].iter().sum())).collect()
    }

    /// For each class, the harmonic mean of precision and recall.
    pub fn f1(&self) -> Vec<f64> {
        let of = |(p, r): (f64, f64)| if p + r == 0.0 { 0.0 } else { 2.0 * p * r / (p + r) };
        self.precision().into_iter().zip(self.recall()).map(of).collect()
    }

    /// The mean of [`f1`](Counts::f1) over the classes that occur as a target or a prediction, each with the same weight, as in scikit-learn: a
    /// class that [`Confusion::ignore`] leaves out is none of them.
    pub fn macro_f1(&self) -> f64 {
        let occurs =
            |c: &usize| self.rows[*c].iter().sum::<i64>() + self.rows.iter().map(|row| row[*c]).sum::<i64>() > 0;
        let f1 = self.f1();
        Counts::mean(&(0..f1.len()).filter(occurs).map(|c| f1[c]).collect::<Vec<f64>>())
    }

    /// The mean of a number over the classes, each with the same weight ("macro").
    pub fn mean(numbers: &[f64]) -> f64 {
        numbers.iter().sum::<f64>() / numbers.len() as f64
    }
}

/// The order of samples by their scores: the area under the receiver operating characteristic, and the average precision. Scores stay on the
/// device, and are read back for the result.
#[derive(Clone, Debug, Default)]
pub struct Auc {
    scores: Vec<Tensor>,
    targets: Vec<Tensor>,
    /// The samples of all ranks.
    joined: Option<Vec<(f64, bool)>>,
}

impl Auc {
    /// The area of no samples yet.
    pub fn new() -> Auc {
        Auc::default()
    }

    /// Adds samples: scores, and targets that are not 0 for positive ones, of one shape. Errors: `Shape`.
    pub fn update(&mut self, scores: &Tensor, targets: &Tensor) -> Result<()> {
        if scores.shape() != targets.shape() {
            let message = format!("scores are {}, targets {}", scores.shape(), targets.shape());
            return Err(Error::shape("auc", message));
        }
        // Copies: a captured step overwrites its results.
        self.scores.push(no_grad(|| scores.detach().reshape(scores.numel())?.copy())?);
        self.targets.push(no_grad(|| targets.detach().reshape(targets.numel())?.copy())?);
        Ok(())
    }

    /// The samples of all updates, by ascending scores.
    fn samples(&self) -> Result<Vec<(f64, bool)>> {
        let read = |all: &[Tensor]| -> Result<Vec<f64>> {
            let parts = all.iter().map(Tensor::to_f64_vec).collect::<Result<Vec<_>>>()?;
            Ok(parts.concat())
        };
        let mut samples: Vec<(f64, bool)> = match &self.joined {
            Some(joined) => joined.clone(),
            None => read(&self.scores)?.into_iter().zip(read(&self.targets)?.iter().map(|&t| t != 0.0)).collect(),
        };
        if samples.iter().any(|(score, _)| score.is_nan()) {
            return Err(Error::value("auc", "a score is NaN"));
        }
        samples.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(samples)
    }

    /// The mean, over positive samples, of the share of positive ones among those that have at least their score; NaN without a positive
    /// sample. Errors: `Value` for a score of NaN.
    pub fn average_precision(&self) -> Result<f64> {
        let samples = self.samples()?;
        let (mut all, mut positives, mut sum) = (0.0, 0.0, 0.0);
        for equal in samples.chunk_by(|a, b| a.0 == b.0).rev() {
            let new = equal.iter().filter(|s| s.1).count() as f64;
            (all, positives) = (all + equal.len() as f64, positives + new);
            sum += new * positives / all;
        }
        Ok(sum / positives)
    }

    /// The area under the curve: the probability that a positive sample has a higher score than a negative one, where equal scores count half;
    /// NaN unless there are samples of both kinds. Errors: `Value` for a score of NaN.
    pub fn value(&self) -> Result<f64> {
        let samples = self.samples()?;
        let positives = samples.iter().filter(|s| s.1).count() as f64;
        let (mut ranks, mut before) = (0.0, 0.0);
        for equal in samples.chunk_by(|a, b| a.0 == b.0) {
            let rank = before + (equal.len() as f64 + 1.0) / 2.0;
            ranks += rank * equal.iter().filter(|s| s.1).count() as f64;
            before += equal.len() as f64;
        }
        let negatives = samples.len() as f64 - positives;
        Ok((ranks - positives * (positives + 1.0) / 2.0) / (positives * negatives))
    }
}

impl Metric for Auc {
    /// A score and 0 or 1 for each sample.
    fn numbers(&self) -> Result<Vec<f64>> {
        Ok(self.samples()?.into_iter().flat_map(|(score, target)| [score, f64::from(u8::from(target))]).collect())
    }

    fn join(&mut self, ranks: &[Vec<f64>]) -> Result<()> {
        let pairs = ranks.iter().flat_map(|rank| rank.as_chunks::<2>().0);
        self.joined = Some(pairs.map(|[score, target]| (*score, *target != 0.0)).collect());
        Ok(())
    }
}
