//! Losses that are a row of the pointwise table, then reduced.

use super::{Reduction, check_constant, check_operands};
use crate::check::{check_float, check_same};
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands::{List, Output};
use crate::ops::{common_shape, pointwise_one, row_like, run_expanded};
use crate::pointwise::Pointwise;
use crate::tape::{Backward, Gradients, Record, Saved, record};
use crate::tensor::Attributes;
use crate::{DType, Error, Result, Shape, Tensor, autocast};
use std::f64::consts::SQRT_2;

/// The content of the target of [`Tensor::kl_div`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KlTarget {
    /// Probabilities.
    #[default]
    Probabilities,
    /// Log probabilities.
    Logarithms,
}

/// The content of the input of [`Tensor::focal_loss`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FocalInput {
    /// Logits.
    #[default]
    Logits,
    /// Probabilities, clamped to `[1e-7, 1 - 1e-7]`.
    Probabilities,
}

/// The attributes of [`Tensor::focal_loss`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Focal {
    /// Weight of the positive class. If negative, there are no weights.
    pub alpha: f64,
    /// Exponent that reduces the weight of easy examples; at least 0.
    pub gamma: f64,
    /// The content of the input.
    pub input: FocalInput,
    /// The reduction of the losses.
    pub reduction: Reduction,
}

impl Default for Focal {
    fn default() -> Self {
        Focal { alpha: 0.25, gamma: 2.0, input: FocalInput::default(), reduction: Reduction::default() }
    }
}

/// The sum of the result of a row with one output, divided by a number and rounded once. Inputs are contiguous, not empty, and have
/// the same dtype and shape. The last inputs may have one element.
#[derive(Clone, Debug, PartialEq)]
pub struct PointwiseTotal {
    /// The row.
    pub row: Pointwise,
    /// The number of inputs with one element. They come last.
    pub numbers: usize,
    /// The row's attributes.
    pub attributes: Vec<f64>,
    /// The divisor of the sum.
    pub divisor: f64,
}

impl Fused for PointwiseTotal {
    type Inputs<T> = List<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "pointwise_total"
    }

    fn row(&self) -> Option<Pointwise> {
        Some(self.row)
    }

    fn composite(&self, inputs: List<&Tensor>, _before: Output<&Tensor>) -> Result<Output<Option<Tensor>>> {
        let (first, own) = (inputs[0], inputs.len() - self.numbers);
        let expanded = |(i, t): (usize, &Tensor)| match i < own {
            true => Ok(t.clone()),
            false => t.reshape(())?.broadcast_to(first.shape()),
        };
        let expanded = inputs.into_iter().enumerate().map(expanded).collect::<Result<Vec<_>>>()?;
        let y = row_like(self.row, &expanded, &[first.zeros_like()?], &self.attributes)?;
        Ok(Output { y: Some(y[0].sum(..)?.div_scalar(self.divisor)?) })
    }
}

/// The backward rows of a loss. They have one more attribute than the loss: 1 for a sum, 1/N for a mean.
struct Slopes {
    /// The row of each operand that has a gradient.
    rows: &'static [Slope],
    /// A row with the gradients of the first two operands, which reads the gradient and all operands.
    both: Option<Pointwise>,
}

/// The backward row of one operand.
#[derive(Clone, Copy)]
enum Slope {
    /// Reads the gradient and all operands.
    All(Pointwise),
    /// Reads the gradient and these operands.
    Of(Pointwise, &'static [usize]),
}

/// The two operands of a loss, with the target first.
const SWAPPED: &[usize] = &[1, 0];

impl Slopes {
    /// The first operands have gradients, each by a row of its own.
    const fn each(rows: &'static [Slope]) -> Slopes {
        Slopes { rows, both: None }
    }

    /// The wanted gradients of operands `x`; `run` computes a row.
    fn gradients(
        &self,
        t: &Backward<'_>,
        dy: &Tensor,
        x: &[Tensor],
        run: impl Fn(Pointwise, &[&Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<Gradients> {
        let all = || -> Vec<&Tensor> { [dy].into_iter().chain(x).collect() };
        let mut found: Vec<Option<Tensor>> = x.iter().map(|_| None).collect();
        if let (Some(row), true, true) = (self.both, t.needs(0), t.needs(1)) {
            let both = run(row, &all())?;
            found.iter_mut().zip(both).for_each(|(gradient, d)| *gradient = Some(d));
            return Ok(found.into_iter().collect());
        }
        for (i, slope) in self.rows.iter().enumerate() {
            found[i] = t.want(i, || {
                let d = match slope {
                    Slope::All(row) => run(*row, &all()),
                    Slope::Of(row, of) => {
                        run(*row, &[dy].into_iter().chain(of.iter().map(|&k| &x[k])).collect::<Vec<_>>())
                    }
                };
                Ok(d?.swap_remove(0))
            })?;
        }
        Ok(found.into_iter().collect())
    }
}

/// The weight of the losses of elements, and their reduction.
#[derive(Clone, Copy)]
struct Finish<'a> {
    factor: f64,
    weight: Option<&'a Tensor>,
    reduction: Reduction,
}

impl Finish<'_> {
    fn apply(self, y: &Tensor) -> Result<Tensor> {
        let y = if self.factor == 1.0 { y.clone() } else { y.mul_scalar(self.factor)? };
        let y = self.weight.map_or(Ok(y.clone()), |w| y.mul(&w.cast(y.dtype())?))?;
        self.reduction.apply(&y)
    }
}

impl From<Reduction> for Finish<'static> {
    fn from(reduction: Reduction) -> Self {
        Finish { factor: 1.0, weight: None, reduction }
    }
}

/// A pointwise loss with its gradients, named as its method.
#[derive(Clone, Copy)]
struct Loss {
    op: &'static str,
    row: Pointwise,
    slopes: &'static Slopes,
}

/// The losses of all elements, computed in the accumulation dtype and reduced.
fn elementwise(loss: Loss, operands: &[&Tensor], attributes: &[f64], finish: Finish<'_>) -> Result<Tensor> {
    match divisor(operands[0], finish) {
        Some(divisor) if is_fused(operands) => fused(loss, operands, attributes, divisor),
        _ => composite(loss, operands, attributes, finish),
    }
}

/// The divisor of the sum of all losses, if they are summed.
fn divisor(x: &Tensor, finish: Finish<'_>) -> Option<f64> {
    let count = finish.reduction.divisor(x.dims())?;
    finish.weight.is_none().then_some(count / finish.factor)
}

/// The number of operands before the trailing operands that are constant. All have the same shape.
fn moving(operands: &[&Tensor]) -> usize {
    operands.iter().position(|t| !t.is_contiguous()).unwrap_or(operands.len())
}

fn is_fused(operands: &[&Tensor]) -> bool {
    let (own, shared) = operands.split_at(moving(operands));
    let is_one = |t: &&Tensor| t.layout().strides().iter().all(|&stride| stride == 0);
    !own.is_empty() && shared.iter().all(is_one) && has_kernel::<PointwiseTotal>(operands[0])
}

/// The sum of a row's results, in one pass. The backward pass runs the backward row.
fn fused(loss: Loss, operands: &[&Tensor], attributes: &[f64], divisor: f64) -> Result<Tensor> {
    let (Loss { op, row, slopes }, x) = (loss, operands[0]);
    let own = moving(operands);
    let number = |t: &Tensor| (0..t.rank()).fold(t.clone(), |t, _| t.with_layout(t.layout().select(0, 0)));
    let inputs: Vec<Tensor> =
        operands.iter().enumerate().map(|(i, t)| if i < own { t.detach() } else { number(t) }).collect();
    let y = Tensor::allocate(op, &Shape::from(()), x.dtype(), x.device())?;
    let (numbers, own_attributes) = (operands.len() - own, attributes.to_vec());
    let kernel = PointwiseTotal { row, numbers, attributes: own_attributes, divisor };
    run_fused(op, &kernel, inputs.iter().collect::<List<_>>(), Output { y: &y })?;
    let (dtype, shape) = (x.dtype(), x.shape().clone());
    let second = attributes.to_vec();
    let attributes = [attributes, &[1.0 / divisor]].concat();
    let specified = move |inputs: &[Tensor]| {
        let finish = Finish { factor: 1.0 / divisor, ..Reduction::Sum.into() };
        composite(loss, &inputs.iter().collect::<Vec<_>>(), &second, finish)
    };
    Record::new(op, operands).fused(y, specified, move |t, x| {
        let dy = t.dy().broadcast_to(&shape)?;
        slopes.gradients(t, &dy, x, |row, inputs| {
            let empty = |_| Tensor::allocate(op, &shape, dtype, dy.device());
            let outputs: Vec<Tensor> = (0..row.outputs()).map(empty).collect::<Result<_>>()?;
            run_expanded(op, row, inputs, &outputs.iter().collect::<Vec<_>>(), Attributes::floats(&attributes))?;
            Ok(outputs)
        })
    })
}

fn composite(loss: Loss, operands: &[&Tensor], attributes: &[f64], finish: Finish<'_>) -> Result<Tensor> {
    let Loss { op, row, slopes } = loss;
    let dtype = operands[0].dtype();
    let wide: Vec<Tensor> = operands.iter().map(|t| t.cast(dtype.acc())).collect::<Result<_>>()?;
    let references: Vec<&Tensor> = wide.iter().collect();
    let shape = wide[0].shape();
    let y = pointwise_one(op, row, &references, Attributes::floats(attributes), shape, dtype.acc())?;
    let saved: Vec<Saved> = wide.iter().map(Saved::input).collect();
    let attributes = [attributes, &[1.0]].concat();
    let y = record(op, &references, y, move |t| {
        let x: Vec<Tensor> = saved.iter().map(|s| t.get(s)).collect::<Result<_>>()?;
        slopes.gradients(t, t.dy(), &x, |row, inputs| t.rows(row, inputs, &attributes))
    })?;
    finish.apply(&y)?.cast(dtype)
}

/// A loss that is symmetric in `a` and `t`: the derivative with respect to the target is the derivative with respect to `a` with
/// swapped operands.
fn of_difference(loss: Loss, a: &Tensor, t: &Tensor, attributes: &[f64], finish: Finish<'_>) -> Result<Tensor> {
    if let Some(([a, t], _)) = autocast::wide([a, t], None)? {
        return of_difference(loss, &a, &t, attributes, finish);
    }
    check_float(loss.op, a)?;
    check_same(loss.op, &[a, t])?;
    let shape = common_shape(loss.op, &[a, t])?;
    let expand = |x: &Tensor| if *x.shape() == shape { Ok(x.clone()) } else { x.broadcast_to(&shape) };
    elementwise(loss, &[&expand(a)?, &expand(t)?], attributes, finish)
}

/// # Losses of elements
impl Tensor {
    /// `(a - t)^2`. Operands broadcast, and both have gradients. Float dtypes. Errors: `Shape`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # use isograd_core::ops::loss::Reduction;
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
    /// assert_eq!(x.mse_loss(&x.add_scalar(2.0)?, Reduction::Mean)?.item::<f64>()?, 4.0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn mse_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        mse("mse_loss", self, target, reduction.into())
    }

    /// `|a - t|`. Operands broadcast, and both have gradients. Float dtypes. Errors: `Shape`.
    pub fn l1_loss(&self, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
        const SLOPES: &Slopes = &Slopes {
            rows: &[Slope::All(Pointwise::L1Backward), Slope::Of(Pointwise::L1Backward, SWAPPED)],
            both: Some(Pointwise::L1BackwardBoth),
        };
        let loss = Loss { op: "l1_loss", row: Pointwise::L1Loss, slopes: SLOPES };
        of_difference(loss, self, target, &[], reduction.into())
    }

    /// `d^2 / (2 beta)` where `d = |a - t| < beta`, `d - beta / 2` elsewhere. Operands broadcast, and both have gradients. Float
    /// dtypes. Errors: `Shape`; `Attr` if beta is negative. Girshick 2015, arXiv 1504.08083.
    pub fn smooth_l1_loss(&self, target: &Tensor, beta: f64, reduction: Reduction) -> Result<Tensor> {
        if beta.is_nan() || beta < 0.0 {
            return Err(Error::attr("smooth_l1_loss", format!("beta is {beta}, expected at least 0")));
        }
        smooth_l1("smooth_l1_loss", self, target, beta, reduction.into())
    }

    /// `delta` times [`smooth_l1_loss`](Tensor::smooth_l1_loss) with `beta = delta`; half of the square if delta is infinite.
    /// Errors: as there, and `Attr` unless delta is positive.
    pub fn huber_loss(&self, target: &Tensor, delta: f64, reduction: Reduction) -> Result<Tensor> {
        if delta.is_nan() || delta <= 0.0 {
            return Err(Error::attr("huber_loss", format!("delta is {delta}, expected more than 0")));
        }
        // From this delta on, every finite loss is half of the square. A larger delta, and the square divided by it, could leave
        // the dtype's range.
        let largest = if self.dtype() == DType::F64 { f64::MAX } else { f32::MAX as f64 };
        if delta > SQRT_2 * largest.sqrt() {
            return mse("huber_loss", self, target, Finish { factor: 0.5, ..reduction.into() });
        }
        smooth_l1("huber_loss", self, target, delta, Finish { factor: delta, ..reduction.into() })
    }

    /// `-w (t ln p + (1 - t) ln(1 - p))` for probabilities p. Logarithms are at least -100. p and t have gradients. Float dtypes.
    /// Errors: `Shape` if the shapes differ, `Value` where p is outside of `0..=1`.
    pub fn bce_loss(&self, target: &Tensor, weight: Option<&Tensor>, reduction: Reduction) -> Result<Tensor> {
        const SLOPES: &Slopes = &Slopes {
            rows: &[Slope::All(Pointwise::BceBackward), Slope::Of(Pointwise::BceBackwardT, &[0])],
            both: Some(Pointwise::BceBackwardBoth),
        };
        let op = "bce_loss";
        if let Some(([x, target], weight)) = autocast::wide([self, target], weight)? {
            return x.bce_loss(&target, weight.as_ref(), reduction);
        }
        check_operands(op, &[self, target])?;
        check_weight(op, self, weight)?;
        let loss = Loss { op, row: Pointwise::BceLoss, slopes: SLOPES };
        elementwise(loss, &[self, target], &[], Finish { weight, ..reduction.into() })
    }

    /// [`bce_loss`](Tensor::bce_loss) of `sigmoid(x)`, without the rounding of the sigmoid. `positive_weight`, which broadcasts, is
    /// the weight of the term of `t`. x and t have gradients. Float dtypes. Errors: `Shape` if the shapes differ.
    pub fn bce_with_logits(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        positive_weight: Option<&Tensor>,
        reduction: Reduction,
    ) -> Result<Tensor> {
        const SLOPES: &Slopes = &Slopes::each(&[
            Slope::All(Pointwise::BceWithLogitsBackward),
            Slope::Of(Pointwise::BceWithLogitsBackwardT, &[0, 2]),
        ]);
        let op = "bce_with_logits";
        if let Some(([x, target], weight)) = autocast::wide([self, target], weight)? {
            let positive = positive_weight.map(|w| w.cast(DType::F32)).transpose()?;
            return x.bce_with_logits(&target, weight.as_ref(), positive.as_ref(), reduction);
        }
        check_operands(op, &[self, target])?;
        check_weight(op, self, weight)?;
        let positive = match positive_weight {
            Some(w) => {
                check_constant(op, "positive_weight", w)?;
                w.broadcast_to(self.shape()).map_err(|e| e.of(op))?
            }
            None => Tensor::ones((), self.dtype(), self.device())?.broadcast_to(self.shape())?,
        };
        check_operands(op, &[self, &positive])?;
        let loss = Loss { op, row: Pointwise::BceWithLogits, slopes: SLOPES };
        elementwise(loss, &[self, target, &positive], &[], Finish { weight, ..reduction.into() })
    }

    /// The Kullback-Leibler divergence `t (ln t - x)` for log probabilities x; 0 where t is 0, as is the gradient of t
    /// there. x and t have gradients. For the mathematical mean over a batch use `BatchMean`. Float dtypes. Errors: `Shape` if the
    /// shapes differ.
    pub fn kl_div(&self, target: &Tensor, kind: KlTarget, reduction: Reduction) -> Result<Tensor> {
        const PLAIN: &Slopes =
            &Slopes::each(&[Slope::Of(Pointwise::KlDivBackward, &[1]), Slope::All(Pointwise::KlDivBackwardT)]);
        const LOG: &Slopes =
            &Slopes::each(&[Slope::Of(Pointwise::KlDivLogBackward, &[1]), Slope::All(Pointwise::KlDivLogBackwardT)]);
        if let Some(([x, target], _)) = autocast::wide([self, target], None)? {
            return x.kl_div(&target, kind, reduction);
        }
        let op = "kl_div";
        check_operands(op, &[self, target])?;
        let (row, slopes) = match kind {
            KlTarget::Probabilities => (Pointwise::KlDiv, PLAIN),
            KlTarget::Logarithms => (Pointwise::KlDivLog, LOG),
        };
        elementwise(Loss { op, row, slopes }, &[self, target], &[], reduction.into())
    }

    /// Cross entropy of a sigmoid, weighted by `(1 - p_t)^gamma`. Only x has a gradient. Float dtypes. Errors: `Shape` if
    /// the shapes differ, `Attr` if gamma is negative. Lin et al. 2017, arXiv 1708.02002.
    pub fn focal_loss(&self, target: &Tensor, options: &Focal) -> Result<Tensor> {
        const LOGITS: &Slopes = &Slopes::each(&[Slope::All(Pointwise::FocalBackward)]);
        const PROBABILITIES: &Slopes = &Slopes::each(&[Slope::All(Pointwise::FocalProbabilityBackward)]);
        let op = "focal_loss";
        if let Some(([x, target], _)) = autocast::wide([self, target], None)? {
            return x.focal_loss(&target, options);
        }
        check_operands(op, &[self, target])?;
        check_constant(op, "the target", target)?;
        let Focal { alpha, gamma, input, reduction } = *options;
        if alpha.is_nan() || gamma.is_nan() || gamma < 0.0 {
            let message = format!("alpha is {alpha} and gamma {gamma}, expected numbers with gamma at least 0");
            return Err(Error::attr(op, message));
        }
        let (row, slopes) = match input {
            FocalInput::Logits => (Pointwise::FocalLoss, LOGITS),
            FocalInput::Probabilities => (Pointwise::FocalProbability, PROBABILITIES),
        };
        elementwise(Loss { op, row, slopes }, &[self, target], &[alpha, gamma], reduction.into())
    }
}

fn mse(op: &'static str, a: &Tensor, t: &Tensor, finish: Finish<'_>) -> Result<Tensor> {
    const SLOPES: &Slopes = &Slopes {
        rows: &[Slope::All(Pointwise::MseBackward), Slope::Of(Pointwise::MseBackward, SWAPPED)],
        both: Some(Pointwise::MseBackwardBoth),
    };
    of_difference(Loss { op, row: Pointwise::MseLoss, slopes: SLOPES }, a, t, &[], finish)
}

fn smooth_l1(op: &'static str, a: &Tensor, t: &Tensor, beta: f64, finish: Finish<'_>) -> Result<Tensor> {
    const SLOPES: &Slopes = &Slopes {
        rows: &[Slope::All(Pointwise::SmoothL1Backward), Slope::Of(Pointwise::SmoothL1Backward, SWAPPED)],
        both: Some(Pointwise::SmoothL1BackwardBoth),
    };
    of_difference(Loss { op, row: Pointwise::SmoothL1Loss, slopes: SLOPES }, a, t, &[beta], finish)
}

fn check_weight(op: &'static str, x: &Tensor, weight: Option<&Tensor>) -> Result<()> {
    match weight {
        Some(w) => check_operands(op, &[x, w]).and_then(|()| check_constant(op, "the weight", w)),
        None => Ok(()),
    }
}
