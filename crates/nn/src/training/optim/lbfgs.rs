//! L-BFGS.

use crate::module::StateDict;
use crate::number::{Checks, Range};
use isograd_core::{DType, Error, Result, Tensor, enable_grad, no_grad};
use std::collections::VecDeque;

const OP: &str = "lbfgs";

/// The search for the length of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineSearch {
    /// None: the rate is the length.
    #[default]
    Fixed,
    /// Until the strong Wolfe conditions hold, with the constants 1e-4 and 0.9; at most 25 evaluations.
    StrongWolfe,
}

/// L-BFGS, for gradients of all data: steps along the gradient times an approximation of the inverse Hessian, which comes from the last
/// changes of parameters and gradients. It evaluates the loss several times a step, and reads losses and products back from the device.
/// Rate 1, at most 20 iterations and 25 evaluations a step, history of 100. Nocedal, Wright 2006, Numerical Optimization, algorithms
/// 3.5, 3.6 and 7.4; as PyTorch's LBFGS.
///
/// ```
/// # use isograd_core::{DType, Device, Result, Tensor};
/// # use isograd_nn::{Lbfgs, LineSearch};
/// # fn main() -> Result<()> {
/// # let device = Device::cpu()?;
/// let x = Tensor::zeros(3, DType::F64, &device)?.require_grad()?;
/// let mut optimizer = Lbfgs::from_parameters(vec![x.clone()]).line_search(LineSearch::StrongWolfe);
/// optimizer.step(|| {
///     let loss = x.sub_scalar(2.0)?.square()?.sum(..)?;
///     loss.backward()?;
///     Ok(loss)
/// })?;
/// # assert!((x.to_vec::<f64>()?[0] - 2.0).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
pub struct Lbfgs {
    parameters: Vec<Tensor>,
    lr: f64,
    max_iter: usize,
    max_eval: Option<usize>,
    tolerance_grad: f64,
    tolerance_change: f64,
    history: usize,
    line_search: LineSearch,
    state: State,
}

/// The state between iterations. Vectors have the elements of all parameters, in the accumulation dtype.
#[derive(Clone, Default)]
struct State {
    iterations: usize,
    evaluations: usize,
    /// The last direction, the length of the step along it, and the gradient before it.
    last: Option<(Tensor, f64, Tensor)>,
    /// The factor of the identity in the approximation.
    diagonal: f64,
    pairs: VecDeque<Pair>,
}

/// The changes of the gradient and of the parameters in an iteration, and the inverse of their product.
#[derive(Clone)]
struct Pair {
    dg: Tensor,
    dx: Tensor,
    inverse: f64,
}

/// A point on the line of a search.
#[derive(Clone)]
struct Point {
    t: f64,
    loss: f64,
    gradient: Tensor,
    /// The product of gradient and direction.
    slope: f64,
}

fn dot(a: &Tensor, b: &Tensor) -> Result<f64> {
    a.mul(b)?.sum(..)?.item::<f64>()
}

fn largest(x: &Tensor) -> Result<f64> {
    if x.numel() == 0 { Ok(0.0) } else { x.abs()?.amax(..)?.item::<f64>() }
}

impl Lbfgs {
    /// For the parameters of `model`.
    pub fn new(model: &(impl crate::Module + ?Sized)) -> Self {
        Lbfgs::from_parameters(model.named_parameters().into_iter().map(|(_, t)| t).collect())
    }

    /// For any leaf tensors.
    pub fn from_parameters(parameters: Vec<Tensor>) -> Self {
        Lbfgs {
            parameters,
            lr: 1.0,
            max_iter: 20,
            max_eval: None,
            tolerance_grad: 1e-7,
            tolerance_change: 1e-9,
            history: 100,
            line_search: LineSearch::Fixed,
            state: State::default(),
        }
    }

    /// The length of a step, or the first one that a search tries; at least 0.
    pub fn lr(mut self, lr: f64) -> Self {
        self.lr = lr;
        self
    }

    /// The largest number of iterations of a step, and of evaluations, by default 1.25 times as many.
    pub fn limits(mut self, iterations: usize, evaluations: Option<usize>) -> Self {
        (self.max_iter, self.max_eval) = (iterations, evaluations);
        self
    }

    /// A step ends where no element of the gradient is larger than `gradient`, or where the loss or the parameters change by less than
    /// `change`. Both at least 0.
    pub fn tolerances(mut self, gradient: f64, change: f64) -> Self {
        (self.tolerance_grad, self.tolerance_change) = (gradient, change);
        self
    }

    /// The number of changes that are kept; at least 1.
    pub fn history(mut self, size: usize) -> Self {
        self.history = size;
        self
    }

    /// The search for the length of a step.
    pub fn line_search(mut self, search: LineSearch) -> Self {
        self.line_search = search;
        self
    }

    /// The parameters.
    pub fn parameters(&self) -> Vec<Tensor> {
        self.parameters.clone()
    }

    /// Takes a step, and returns the loss before it. `evaluate` computes the loss, runs its backward pass and returns it; gradients are
    /// cleared before each call and at the end. Errors: `Attr` for an option out of its range; `Value` without parameters, or for one
    /// that is no leaf; `Dtype` if some parameters are f64 and others not; the errors of `evaluate`.
    pub fn step(&mut self, mut evaluate: impl FnMut() -> Result<Tensor>) -> Result<f64> {
        self.check()?;
        let mut state = std::mem::take(&mut self.state);
        let result = no_grad(|| self.iterate(&mut state, &mut evaluate));
        self.state = state;
        self.clear();
        result
    }

    fn check(&self) -> Result<()> {
        let Some(first) = self.parameters.first() else {
            return Err(Error::value(OP, "the optimizer has no parameters"));
        };
        if let Some(p) = self.parameters.iter().find(|p| !p.is_leaf()) {
            return Err(Error::value(OP, format!("a parameter {} is no leaf; it can have no gradient", p.shape())));
        }
        if self.parameters.iter().any(|p| p.dtype().acc() != first.dtype().acc()) {
            return Err(Error::dtype(OP, "some parameters are f64 and others not"));
        }
        let checks = Checks { op: OP, dtype: first.dtype().acc() };
        checks.number("lr", self.lr, Range::AtLeast0)?;
        checks.number("tolerance_grad", self.tolerance_grad, Range::AtLeast0)?;
        checks.number("tolerance_change", self.tolerance_change, Range::AtLeast0)?;
        checks.number("history", self.history as f64, Range::Above(0.0))
    }

    fn clear(&self) {
        for parameter in &self.parameters {
            // A leaf accepts any gradient, and `None`.
            let _ = parameter.set_grad(None);
        }
    }

    /// The loss, and the gradients of all parameters as a vector.
    fn evaluate(&self, state: &mut State, loss: &mut dyn FnMut() -> Result<Tensor>) -> Result<(f64, Tensor)> {
        self.clear();
        state.evaluations += 1;
        let loss = enable_grad(loss)?.item::<f64>()?;
        let flat = |p: &Tensor| match p.grad() {
            Some(g) => g.detach().cast(p.dtype().acc())?.reshape(p.numel()),
            None => Tensor::zeros(p.numel(), p.dtype().acc(), p.device()),
        };
        let parts = self.parameters.iter().map(flat).collect::<Result<Vec<_>>>()?;
        Ok((loss, Tensor::concat(&parts.iter().collect::<Vec<_>>(), 0)?))
    }

    /// Moves the parameters from `start` along a direction.
    fn move_to(&self, start: &[Tensor], direction: &Tensor, t: f64) -> Result<()> {
        let mut first = 0;
        for (p, from) in self.parameters.iter().zip(start) {
            let part = direction.narrow(0, first, p.numel())?.reshape(p.shape())?;
            p.copy_(&from.cast(part.dtype())?.add_scaled(&part, t)?.cast(p.dtype())?)?;
            first += p.numel();
        }
        Ok(())
    }

    fn iterate(&self, state: &mut State, loss: &mut dyn FnMut() -> Result<Tensor>) -> Result<f64> {
        let before = state.evaluations;
        let most = self.max_eval.unwrap_or(self.max_iter * 5 / 4);
        let (first, mut gradient) = self.evaluate(state, loss)?;
        let mut value = first;
        for iteration in 1..=self.max_iter {
            // Not above: NaN goes on to the other conditions.
            if largest(&gradient)? <= self.tolerance_grad {
                break;
            }
            state.iterations += 1;
            let direction = self.direction(state, &gradient)?;
            let t = match state.iterations {
                1 => self.lr * (1.0 / gradient.abs()?.sum(..)?.item::<f64>()?).min(1.0),
                _ => self.lr,
            };
            let slope = dot(&gradient, &direction)?;
            state.last = Some((direction.clone(), t, gradient.clone()));
            if slope > -self.tolerance_change {
                break;
            }
            let start = self.parameters.iter().map(|p| p.detach().copy()).collect::<Result<Vec<_>>>()?;
            let origin = Point { t: 0.0, loss: value, gradient: gradient.clone(), slope };
            let found = match self.line_search {
                LineSearch::StrongWolfe => {
                    let scale = largest(&direction)?;
                    let mut at = |t: f64| {
                        self.move_to(&start, &direction, t)?;
                        let (loss, gradient) = self.evaluate(state, loss)?;
                        Ok(Point { t, loss, slope: dot(&gradient, &direction)?, gradient })
                    };
                    let found = self.search(&origin, t, scale, &mut at)?;
                    self.move_to(&start, &direction, found.t)?;
                    found
                }
                LineSearch::Fixed => {
                    self.move_to(&start, &direction, t)?;
                    if iteration == self.max_iter {
                        break;
                    }
                    let (loss, gradient) = self.evaluate(state, loss)?;
                    Point { t, loss, gradient, slope: 0.0 }
                }
            };
            let change = (found.loss - value).abs();
            let moved = largest(&direction)? * found.t;
            state.last = Some((direction, found.t, gradient));
            (value, gradient) = (found.loss, found.gradient);
            let is_small = moved <= self.tolerance_change || change < self.tolerance_change;
            if state.evaluations - before >= most || is_small {
                break;
            }
        }
        Ok(first)
    }

    /// The gradient times the approximation of the inverse Hessian, negated.
    fn direction(&self, state: &mut State, gradient: &Tensor) -> Result<Tensor> {
        let Some((direction, t, before)) = &state.last else {
            state.diagonal = 1.0;
            return gradient.neg();
        };
        let (dg, dx) = (gradient.sub(before)?, direction.mul_scalar(*t)?);
        let product = dot(&dg, &dx)?;
        if product > 1e-10 {
            if state.pairs.len() >= self.history {
                state.pairs.pop_front();
            }
            state.diagonal = product / dot(&dg, &dg)?;
            state.pairs.push_back(Pair { dg, dx, inverse: 1.0 / product });
        }
        let mut shares = Vec::with_capacity(state.pairs.len());
        let mut q = gradient.neg()?;
        for pair in state.pairs.iter().rev() {
            let share = dot(&pair.dx, &q)? * pair.inverse;
            q = q.add_scaled(&pair.dg, -share)?;
            shares.push(share);
        }
        let mut q = q.mul_scalar(state.diagonal)?;
        for (pair, share) in state.pairs.iter().zip(shares.into_iter().rev()) {
            let back = dot(&pair.dg, &q)? * pair.inverse;
            q = q.add_scaled(&pair.dx, share - back)?;
        }
        Ok(q)
    }

    /// A point at which the strong Wolfe conditions hold, or the best one that was found. `scale` is the largest element of the
    /// direction.
    fn search(
        &self,
        origin: &Point,
        first: f64,
        scale: f64,
        at: &mut dyn FnMut(f64) -> Result<Point>,
    ) -> Result<Point> {
        const EVALUATIONS: usize = 25;
        const ARMIJO: f64 = 1e-4;
        const CURVATURE: f64 = 0.9;
        let is_too_high = |p: &Point| p.loss > origin.loss + ARMIJO * p.t * origin.slope;
        let is_flat = |p: &Point| p.slope.abs() <= -CURVATURE * origin.slope;
        let (mut before, mut now, mut tried) = (origin.clone(), at(first)?, 0);
        // Steps grow until a minimum is bracketed.
        let mut bracket = loop {
            if tried >= EVALUATIONS {
                break [origin.clone(), now];
            }
            if is_too_high(&now) || (tried > 1 && now.loss >= before.loss) {
                break [before, now];
            }
            if is_flat(&now) {
                return Ok(now);
            }
            if now.slope >= 0.0 {
                break [before, now];
            }
            let t = minimum(&before, &now, (now.t + 0.01 * (now.t - before.t), now.t * 10.0));
            before = std::mem::replace(&mut now, at(t)?);
            tried += 1;
        };
        let mut is_slow = false;
        while tried < EVALUATIONS {
            let [a, b] = &bracket;
            let (low, high) = (a.t.min(b.t), a.t.max(b.t));
            if (high - low) * scale < self.tolerance_change {
                break;
            }
            let mut t = minimum(a, b, (low, high));
            // Two steps in sequence that end near a side are moved away from it.
            let margin = 0.1 * (high - low);
            let is_near = (high - t).min(t - low) < margin;
            let is_moved = is_near && (is_slow || t >= high || t <= low);
            if is_moved {
                t = if (t - high).abs() < (t - low).abs() { high - margin } else { low + margin };
            }
            is_slow = is_near && !is_moved;
            let new = at(t)?;
            tried += 1;
            let best = usize::from(bracket[0].loss > bracket[1].loss);
            if is_too_high(&new) || new.loss >= bracket[best].loss {
                bracket[1 - best] = new;
                continue;
            }
            if is_flat(&new) {
                return Ok(new);
            }
            if new.slope * (bracket[1 - best].t - bracket[best].t) >= 0.0 {
                bracket.swap(0, 1);
                bracket[best] = new;
            } else {
                bracket[best] = new;
            }
        }
        let [a, b] = bracket;
        Ok(if a.loss <= b.loss { a } else { b })
    }

    /// The numbers of iterations and evaluations (`n_iter`, `func_evals`), and, after a step, the last direction, its length and the
    /// gradient before it (`d`, `t`, `prev_flat_grad`), the factor of the identity (`h_diag`) and the changes that are kept, one a row
    /// (`old_dirs`, `old_stps`). Errors: as [`step`](Lbfgs::step).
    pub fn state_dict(&self) -> Result<StateDict> {
        self.check()?;
        let (state, device) = (&self.state, self.parameters[0].device());
        let number = |v: f64| Tensor::full((), v, DType::F64, device);
        let mut saved = StateDict::new();
        saved.insert("n_iter".into(), number(state.iterations as f64)?);
        saved.insert("func_evals".into(), number(state.evaluations as f64)?);
        let Some((direction, t, gradient)) = &state.last else { return Ok(saved) };
        saved.insert("d".into(), direction.clone());
        saved.insert("t".into(), number(*t)?);
        saved.insert("prev_flat_grad".into(), gradient.clone());
        saved.insert("h_diag".into(), number(state.diagonal)?);
        if !state.pairs.is_empty() {
            let rows = |of: fn(&Pair) -> &Tensor| Tensor::stack(&state.pairs.iter().map(of).collect::<Vec<_>>(), 0);
            saved.insert("old_dirs".into(), rows(|p| &p.dg)?);
            saved.insert("old_stps".into(), rows(|p| &p.dx)?);
        }
        Ok(saved)
    }

    /// Loads the result of [`state_dict`](Lbfgs::state_dict). Errors: `Value` for a tensor that is missing or of another shape; then
    /// nothing has changed.
    pub fn load_state_dict(&mut self, saved: &StateDict) -> Result<()> {
        self.check()?;
        let first = &self.parameters[0];
        let (device, dtype) = (first.device(), first.dtype().acc());
        let length: usize = self.parameters.iter().map(Tensor::numel).sum();
        let find = |name: &str| saved.get(name).ok_or_else(|| Error::value(OP, format!("{name} is missing")));
        let number = |name: &str| find(name)?.item::<f64>();
        let vector = |name: &str| match find(name)? {
            t if t.dims() == [length] => t.detach().to_device(device)?.cast(dtype)?.copy(),
            t => Err(Error::value(OP, format!("{name} is {}, expected [{length}]", t.shape()))),
        };
        let mut state = State {
            iterations: number("n_iter")? as usize,
            evaluations: number("func_evals")? as usize,
            ..State::default()
        };
        if saved.contains_key("d") {
            state.last = Some((vector("d")?, number("t")?, vector("prev_flat_grad")?));
            state.diagonal = number("h_diag")?;
        }
        if saved.contains_key("old_dirs") {
            let [dirs, steps] = [find("old_dirs")?, find("old_stps")?];
            if dirs.shape() != steps.shape() || dirs.rank() != 2 || dirs.dims()[1] != length {
                let message =
                    format!("old_dirs {} and old_stps {}, expected [*, {length}]", dirs.shape(), steps.shape());
                return Err(Error::value(OP, message));
            }
            let row = |t: &Tensor, k: usize| t.detach().to_device(device)?.cast(dtype)?.select(0, k as isize)?.copy();
            for k in 0..dirs.dims()[0] {
                let (dg, dx) = (row(dirs, k)?, row(steps, k)?);
                let inverse = 1.0 / dot(&dg, &dx)?;
                state.pairs.push_back(Pair { dg, dx, inverse });
            }
        }
        self.state = state;
        Ok(())
    }
}

/// The minimum of the cubic through two points with these slopes, within bounds; the middle of the bounds if there is none.
fn minimum(a: &Point, b: &Point, (low, high): (f64, f64)) -> f64 {
    let (a, b) = if a.t <= b.t { (a, b) } else { (b, a) };
    let d1 = a.slope + b.slope - 3.0 * (a.loss - b.loss) / (a.t - b.t);
    let square = d1 * d1 - a.slope * b.slope;
    if square < 0.0 || square.is_nan() {
        return (low + high) / 2.0;
    }
    let d2 = square.sqrt();
    let t = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2.0 * d2));
    t.max(low).min(high)
}
