//! Losses of distances between vectors.

use super::{Reduction, check_constant, check_operands};
use crate::check::check_same;
use crate::fused::{FlatFused, has_kernel, run_fused};
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
    /// Of two rows, which are alike or not.
    Contrastive,
    /// Of an anchor, a positive and a negative row.
    Triplet,
    /// As `Triplet`, with the smaller distance of the negative.
    NearestTriplet,
}

impl RowLoss {
    /// The pairs of inputs whose distances are computed.
    fn pairs(self) -> &'static [(usize, usize)] {
        match self {
            RowLoss::Contrastive => &[(0, 1)],
            RowLoss::Triplet => &[(0, 1), (0, 2)],
            RowLoss::NearestTriplet => &[(0, 1), (0, 2), (1, 2)],
        }
    }

    /// The number of inputs that have gradients. They come first.
    fn moving(self) -> usize {
        if self == RowLoss::Contrastive { 2 } else { 3 }
    }
}

/// Inputs: two or three tensors of rows `[N, D]`, of the same dtype; for a contrastive loss also `[N]`, 1 for rows that are alike.
/// Outputs: the losses `[N]` and the distances `[1 to 3, N]` between rows, in the accumulation dtype.
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

/// Inputs: dy, one number or `[N]`, and the inputs and distances of [`DistanceLoss`]. Outputs: the gradients of the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DistanceLossBackward {
    /// The forward kernel.
    pub forward: DistanceLoss,
    /// The factor of dy: 1 for a sum of losses, `1 / N` for their mean.
    pub share: f64,
}

impl DistanceLoss {
    fn losses(&self, x: &[Tensor]) -> Result<Tensor> {
        let (DistanceLoss { margin, order: p, eps, .. }, reduction) = (*self, Reduction::None);
        let negative = match self.loss {
            RowLoss::Contrastive => return x[0].contrastive_loss(&x[1], &x[2], margin, reduction),
            RowLoss::Triplet => TripletNegative::FromAnchor,
            RowLoss::NearestTriplet => TripletNegative::Nearest,
        };
        x[0].triplet_loss(&x[1], &x[2], &Triplet { margin, p, eps, negative, reduction })
    }

    fn distances(&self, x: &[Tensor]) -> Result<Tensor> {
        let p = self.order;
        let of = |&(a, b): &(usize, usize)| {
            x[a].sub(&x[b])?.add_scalar(self.eps)?.abs()?.pow_scalar(p)?.sum(1)?.pow_scalar(1.0 / p)
        };
        let all = self.loss.pairs().iter().map(of).collect::<Result<Vec<_>>>()?;
        Tensor::stack(&all.iter().collect::<Vec<_>>(), 0)
    }
}

impl FlatFused for DistanceLoss {
    fn name(&self) -> &'static str {
        "row_loss"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(self.losses(inputs)?), Some(self.distances(inputs)?)])
    }
}

impl FlatFused for DistanceLossBackward {
    fn name(&self) -> &'static str {
        "row_loss_backward"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (moving, mut x) = (self.forward.loss.moving(), inputs[1..4].to_vec());
        for x in &mut x[..moving] {
            *x = x.require_grad()?;
        }
        enable_grad(|| {
            let losses = self.forward.losses(&x)?;
            let dy = inputs[0].mul_scalar(self.share)?.broadcast_to(losses.shape())?;
            let options = BackwardOptions { gradient: Some(dy), ..Default::default() };
            let wanted: Vec<&Tensor> = x[..moving].iter().collect();
            Ok(grad_with(&losses, &wanted, &options)?.into_iter().map(Some).collect())
        })
    }
}

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
        let inputs = [self, positive, negative];
        match has_kernel::<DistanceLoss>(self) && p.is_finite() {
            true => fused(op, DistanceLoss { loss, margin, order: p, eps }, inputs, options.reduction, reduced),
            false => reduced(inputs),
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
        let (loss, inputs) = (RowLoss::Contrastive, [self, other, y]);
        let reduced = reduced(reduction, self.dtype(), composite);
        match has_kernel::<DistanceLoss>(self) {
            true => fused(op, DistanceLoss { loss, margin, order: 2.0, eps: 0.0 }, inputs, reduction, reduced),
            false => reduced(inputs),
        }
    }
}

/// Reduces the losses of rows that `composite` computes in the accumulation dtype.
fn reduced(
    reduction: Reduction,
    dtype: DType,
    composite: impl Fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
) -> impl Fn([&Tensor; 3]) -> Result<Tensor> {
    move |[a, b, c]| reduction.apply(&composite(a, b, c)?)?.cast(dtype)
}

/// The losses of rows by a kernel, reduced. All inputs have gradients, except the last of a contrastive loss.
fn fused(
    op: &'static str,
    kernel: DistanceLoss,
    inputs: [&Tensor; 3],
    reduction: Reduction,
    composite: impl Fn([&Tensor; 3]) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    let x = inputs.iter().map(|t| t.contiguous()).collect::<Result<Vec<_>>>()?;
    let (rows, acc, device) = (x[0].dims()[0], x[0].dtype().acc(), x[0].device());
    let distances = kernel.loss.pairs().len();
    let losses = Tensor::allocate(op, &Shape::from(rows), acc, device)?;
    let distances = Tensor::allocate(op, &Shape::from((distances, rows)), acc, device)?;
    let references: Vec<&Tensor> = x.iter().collect();
    run_fused(op, &kernel, &references, &[&losses, &distances])?;
    let y = reduction.apply(&losses)?.cast(x[0].dtype())?;
    let share = 1.0 / reduction.divisor(&[rows]).unwrap_or(1.0);
    let again = move |x: &[Tensor]| composite([&x[0], &x[1], &x[2]]);
    Record::new(op, &references).fused(y, again, move |t, x| {
        let dy = t.dy().contiguous()?;
        let like = |t: &Tensor| Tensor::allocate(op, t.shape(), t.dtype(), t.device());
        let found = x[..kernel.loss.moving()].iter().map(like).collect::<Result<Vec<_>>>()?;
        let operands: Vec<&Tensor> = [&dy].into_iter().chain(x).chain([&distances]).collect();
        let backward = DistanceLossBackward { forward: kernel, share };
        run_fused(op, &backward, &operands, &found.iter().collect::<Vec<_>>())?;
        let found = found.into_iter().enumerate().map(|(i, d)| Some(d).filter(|_| t.needs(i)));
        Ok(found.chain(std::iter::repeat(None)).take(x.len()).collect())
    })
}

fn check_rows(op: &'static str, x: &Tensor) -> Result<()> {
    if x.rank() != 2 {
        return Err(Error::shape(op, format!("{} was given, expected [N, D]", x.shape())));
    }
    Ok(())
}
