//! Losses of distances between vectors.

use super::{Reduction, check_constant, check_operands};
use crate::check::check_same;
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands::Operands;
use crate::ops::normalization::norm::needed;
use crate::tape::{BackwardOptions, Record, grad_with};
use crate::{DType, Error, Result, Shape, Tensor, autocast, enable_grad};

/// The attributes of [`Tensor::triplet_loss`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Triplet {
    /// The margin by which the negative must be farther than the positive; above 0.
    pub margin: f64,
    /// The order of the norm, at least 1; infinity is the maximum norm.
    pub p: f64,
    /// Added to every component of a difference.
    pub eps: f64,
    /// The distance of the negative.
    pub negative: TripletNegative,
    /// The reduction of the losses of the rows.
    pub reduction: Reduction,
}

/// The distance of the negative in a triplet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TripletNegative {
    /// Its distance from the anchor.
    #[default]
    FromAnchor,
    /// The smaller of its distances from the anchor and from the positive ("swap").
    Nearest,
}

impl Default for Triplet {
    fn default() -> Self {
        let (negative, reduction) = (TripletNegative::default(), Reduction::default());
        Triplet { margin: 1.0, p: 2.0, eps: 1e-6, negative, reduction }
    }
}

/// A loss of distances between rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLoss {
    /// The loss of two rows, which are alike or not.
    Contrastive,
    /// The loss of an anchor, a positive and a negative row.
    Triplet,
    /// As `Triplet`, with the smaller distance of the negative.
    NearestTriplet,
}

impl RowLoss {
    /// The number of distances of a row.
    fn distances(self) -> usize {
        match self {
            RowLoss::Contrastive => 1,
            RowLoss::Triplet => 2,
            RowLoss::NearestTriplet => 3,
        }
    }
}

/// The losses of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DistanceLoss {
    /// The loss.
    pub loss: RowLoss,
    /// The margin.
    pub margin: f64,
    /// The order of the norm, finite.
    pub order: f64,
    /// Added to every component of a difference.
    pub eps: f64,
}

/// The gradients of [`DistanceLoss`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DistanceLossBackward {
    /// The forward kernel.
    pub forward: DistanceLoss,
    /// The factor of dy: 1 for a sum of losses, `1 / N` for their mean.
    pub share: f64,
}

crate::operands! {
    /// The inputs of [`DistanceLoss`].
    pub struct DistanceInputs {
        /// The first rows, or the anchors: `[N, D]`.
        a,
        /// The other rows, or the positives: like the first.
        b,
        /// The negatives of a triplet loss, like the anchors.
        c?,
        /// Of a contrastive loss: 1 for rows that are alike, `[N]`, in the dtype of the rows.
        like?,
    }
}

crate::operands! {
    /// The outputs of [`DistanceLoss`], in the accumulation dtype.
    pub struct DistanceOutputs {
        /// `[N]`.
        losses,
        /// The distances of b and c from a, and of c from b, as far as the loss needs them: `[1 to 3, N]`.
        distances,
    }
}

crate::operands! {
    /// The inputs of [`DistanceLossBackward`]: dy, and the inputs and distances of the forward kernel.
    pub struct DistanceBackwardInputs {
        /// The gradient of the reduced loss, one number, or of the losses, `[N]`.
        dy,
        /// As in the forward kernel.
        a,
        /// As in the forward kernel.
        b,
        /// As in the forward kernel.
        c?,
        /// As in the forward kernel.
        like?,
        /// As in the forward kernel.
        distances,
    }
}

crate::operands! {
    /// The outputs of [`DistanceLossBackward`]: the gradients of the rows.
    pub struct DistanceBackwardOutputs {
        /// The gradient of a.
        a,
        /// The gradient of b.
        b,
        /// The gradient of c.
        c?,
    }
}

impl DistanceLoss {
    fn losses(&self, DistanceInputs { a, b, c, like }: DistanceInputs<&Tensor>) -> Result<Tensor> {
        let (DistanceLoss { margin, order: p, eps, .. }, reduction) = (*self, Reduction::None);
        if let Some(like) = like {
            return a.contrastive_loss(b, like, margin, reduction);
        }
        let c = c.expect("a triplet has a negative");
        let negative = match self.loss {
            RowLoss::NearestTriplet => TripletNegative::Nearest,
            _ => TripletNegative::FromAnchor,
        };
        a.triplet_loss(b, c, &Triplet { margin, p, eps, negative, reduction })
    }

    fn distances(&self, DistanceInputs { a, b, c, .. }: DistanceInputs<&Tensor>) -> Result<Tensor> {
        let p = self.order;
        let of =
            |x: &Tensor, y: &Tensor| x.sub(y)?.add_scalar(self.eps)?.abs()?.pow_scalar(p)?.sum(1)?.pow_scalar(1.0 / p);
        let pairs = [Some((a, b)), c.map(|c| (a, c)), c.map(|c| (b, c))];
        let pairs = pairs.into_iter().flatten().take(self.loss.distances());
        let all = pairs.map(|(x, y)| of(x, y)).collect::<Result<Vec<_>>>()?;
        Tensor::stack(&all.iter().collect::<Vec<_>>(), 0)
    }
}

impl Fused for DistanceLoss {
    type Inputs<T> = DistanceInputs<T>;
    type Outputs<T> = DistanceOutputs<T>;

    fn name(&self) -> &'static str {
        "row_loss"
    }

    fn composite(
        &self,
        inputs: DistanceInputs<&Tensor>,
        _before: DistanceOutputs<&Tensor>,
    ) -> Result<DistanceOutputs<Option<Tensor>>> {
        Ok(DistanceOutputs { losses: Some(self.losses(inputs)?), distances: Some(self.distances(inputs)?) })
    }
}

impl Fused for DistanceLossBackward {
    type Inputs<T> = DistanceBackwardInputs<T>;
    type Outputs<T> = DistanceBackwardOutputs<T>;

    fn name(&self) -> &'static str {
        "row_loss_backward"
    }

    fn composite(
        &self,
        DistanceBackwardInputs { dy, a, b, c, like, .. }: DistanceBackwardInputs<&Tensor>,
        before: DistanceBackwardOutputs<&Tensor>,
    ) -> Result<DistanceBackwardOutputs<Option<Tensor>>> {
        let rows = DistanceBackwardOutputs { a, b, c }.try_map(Tensor::require_grad)?;
        let DistanceBackwardOutputs { a, b, c } = rows.as_ref();
        enable_grad(|| {
            let losses = self.forward.losses(DistanceInputs { a, b, c, like })?;
            let dy = dy.mul_scalar(self.share)?.broadcast_to(losses.shape())?;
            let options = BackwardOptions { gradient: Some(dy), ..Default::default() };
            let found = grad_with(&losses, &rows.as_ref().present(), &options)?;
            Ok(DistanceBackwardOutputs::of(before.mask(), &mut found.into_iter().map(Some)))
        })
    }
}

/// # Losses of distances
impl Tensor {
    /// `max(0, d(a, positive) - d(a, negative) + margin)` for rows of this tensor `a: [N, D]`. All three have gradients. Float
    /// dtypes. Errors: `Shape`, `Attr`; `Value` for the infinite norm of rows without elements. Balntas et al. 2016, BMVC.
    pub fn triplet_loss(&self, positive: &Tensor, negative: &Tensor, options: &Triplet) -> Result<Tensor> {
        let op = "triplet_loss";
        if let Some(([a, p, n], _)) = autocast::wide([self, positive, negative], None)? {
            return a.triplet_loss(&p, &n, options);
        }
        check_operands(op, &[self, positive, negative])?;
        check_rows(op, self)?;
        let options = *options;
        let Triplet { margin, p, eps, .. } = options;
        if margin.is_nan() || margin <= 0.0 || p.is_nan() || p < 1.0 || eps.is_nan() {
            let got = format!("margin is {margin}, p {p} and eps {eps}");
            return Err(Error::attr(op, format!("{got}, expected margin > 0, p >= 1 and a number")));
        }
        let composite = move |a: &Tensor, positive: &Tensor, negative: &Tensor| {
            let a = a.cast(a.dtype().acc())?;
            let (positive, negative) = (positive.cast(a.dtype())?, negative.cast(a.dtype())?);
            let distance = |u: &Tensor, v: &Tensor| u.sub(v)?.add_scalar(eps)?.norm(p, 1);
            let mut far = distance(&a, &negative)?;
            if options.negative == TripletNegative::Nearest {
                let other = distance(&positive, &negative)?;
                far = other.lt(&far)?.where_cond(&other, &far)?;
            }
            distance(&a, &positive)?.sub(&far)?.add_scalar(margin)?.clamp(Some(0.0.into()), None)
        };
        let loss = match options.negative {
            TripletNegative::FromAnchor => RowLoss::Triplet,
            TripletNegative::Nearest => RowLoss::NearestTriplet,
        };
        let reduced = reduced(options.reduction, self.dtype(), composite);
        let inputs = DistanceInputs { a: self, b: positive, c: Some(negative), like: None };
        match has_kernel::<DistanceLoss>(self) && p.is_finite() {
            true => fused(op, DistanceLoss { loss, margin, order: p, eps }, inputs, options.reduction, reduced),
            false => reduced(self, positive, negative),
        }
    }

    /// `y d^2 + (1 - y) max(0, margin - d)^2` with the Euclidean distance `d` of rows of this tensor and `other`
    /// (`[N, D]`); `y: [N]` is 1 where they are alike. The rows have gradients. Float dtypes. Errors: `Shape`; `Attr` for a
    /// margin that is NaN. Hadsell et al. 2006, CVPR (with labels inverted and without the factor 1/2).
    pub fn contrastive_loss(&self, other: &Tensor, y: &Tensor, margin: f64, reduction: Reduction) -> Result<Tensor> {
        let op = "contrastive_loss";
        if let Some(([x, other, y], _)) = autocast::wide([self, other, y], None)? {
            return x.contrastive_loss(&other, &y, margin, reduction);
        }
        check_operands(op, &[self, other])?;
        check_rows(op, self)?;
        if margin.is_nan() {
            return Err(Error::attr(op, "the margin is NaN, expected a number"));
        }
        check_constant(op, "y", y)?;
        check_same(op, &[self, y])?;
        if y.rank() != 1 || y.dims()[0] != self.dims()[0] {
            let message = format!("y is {}, expected one number a row of {}", y.shape(), self.shape());
            return Err(Error::shape(op, message));
        }
        let composite = move |x: &Tensor, other: &Tensor, y: &Tensor| {
            let x = x.cast(x.dtype().acc())?;
            let y = y.cast(x.dtype())?;
            let d = x.sub(&other.cast(x.dtype())?)?.l2_norm(1)?;
            let apart = d.rsub_scalar(margin)?.clamp(Some(0.0.into()), None)?.square()?;
            // `d^2` may be infinite where y is 0.
            y.mul(&d)?.mul(&d)?.add(&y.rsub_scalar(1.0)?.mul(&apart)?)
        };
        let (loss, inputs) = (RowLoss::Contrastive, DistanceInputs { a: self, b: other, c: None, like: Some(y) });
        let reduced = reduced(reduction, self.dtype(), composite);
        match has_kernel::<DistanceLoss>(self) {
            true => fused(op, DistanceLoss { loss, margin, order: 2.0, eps: 0.0 }, inputs, reduction, reduced),
            false => reduced(self, other, y),
        }
    }
}

/// Reduces the losses of rows that `composite` computes in the accumulation dtype.
fn reduced(
    reduction: Reduction,
    dtype: DType,
    composite: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) -> impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor> {
    move |a, b, c| reduction.apply(&composite(a, b, c)?)?.cast(dtype)
}

/// The losses of rows by a kernel, reduced. All inputs have gradients, except the last of a contrastive loss.
fn fused(
    op: &'static str,
    kernel: DistanceLoss,
    inputs: DistanceInputs<&Tensor>,
    reduction: Reduction,
    composite: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    let inputs = inputs.try_map(Tensor::contiguous)?;
    let (rows, dtype, device) = (inputs.a.dims()[0], inputs.a.dtype(), inputs.a.device());
    let losses = Tensor::allocate(op, &Shape::from(rows), dtype.acc(), device)?;
    let distances = Tensor::allocate(op, &Shape::from((kernel.loss.distances(), rows)), dtype.acc(), device)?;
    run_fused(op, &kernel, inputs.as_ref(), DistanceOutputs { losses: &losses, distances: &distances })?;
    let y = reduction.apply(&losses)?.cast(dtype)?;
    let share = 1.0 / reduction.divisor(&[rows]).unwrap_or(1.0);
    let again = move |x: &[Tensor]| composite(&x[0], &x[1], &x[2]);
    let mask = inputs.mask();
    Record::new(op, &inputs.as_ref().present()).fused(y, again, move |t, inputs| {
        let DistanceInputs { a, b, c, like } = DistanceInputs::of(mask, &mut inputs.iter());
        let (dy, distances) = (&t.dy().contiguous()?, &distances);
        let memory = |t: &Tensor| Tensor::allocate(op, t.shape(), t.dtype(), t.device());
        let found = DistanceBackwardOutputs { a, b, c }.try_map(memory)?;
        let inputs = DistanceBackwardInputs { dy, a, b, c, like, distances };
        run_fused(op, &DistanceLossBackward { forward: kernel, share }, inputs, found.as_ref())?;
        let DistanceBackwardOutputs { a, b, c } = found.map(Some);
        Ok(needed(t, DistanceInputs { a, b, c, like: like.map(|_| None) }))
    })
}

fn check_rows(op: &'static str, x: &Tensor) -> Result<()> {
    if x.rank() != 2 {
        return Err(Error::shape(op, format!("{} was given, expected [N, D]", x.shape())));
    }
    Ok(())
}
