//! Muon.

use super::engine::{Engine, Field, Moved, Named, Rule, Step};
use super::{Group, Grouped, Optimizer, Scaling, optimizer, options};
use crate::StateDict;
use crate::number::{FLAG, Range};
use isograd_core::ops::{Gemm, Update, update_each_};
use isograd_core::pointwise::Pointwise;
use isograd_core::{DType, Error, Result, Tensor};

/// Muon: momentum whose matrix is made nearly orthogonal before each step. Parameters are `[A, ..]` of rank 2 or more, as matrices
/// `[A, B]`; others need another optimizer. Rate 1e-3, Nesterov momentum 0.95, decoupled weight decay 0.1. Jordan et al. 2024,
/// <https://kellerjordan.github.io/posts/muon>; as PyTorch's Muon, which accepts rank 2.
///
/// The momentum X is divided by its norm. Each of 5 iterations replaces it by `a X + (b M + c M^2) X`, where `M = X X^T`: a
/// Newton-Schulz iteration that brings singular values near 1. Parameters of the same shape are processed together.
pub struct Muon(Engine<MuonRule>);

optimizer!(Muon of MuonRule, lr 1e-3, weight_decay 0.1, rule MuonRule {
    momentum: 0.95,
    nesterov: true,
    steps: 5,
    coefficients: [3.4445, -4.7750, 2.0315],
    eps: 1e-7,
    adjust: Adjust::Original,
    dtype: DType::BF16,
});

/// The factor of a step of [`Muon`], for a matrix `[A, B]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Adjust {
    /// `sqrt(max(1, A / B))`.
    #[default]
    Original,
    /// `0.2 sqrt(max(A, B))`: elements move about as far as with AdamW. Liu et al. 2025, arXiv 2502.16982.
    MatchRmsAdamW,
}

impl Adjust {
    fn factor(self, a: usize, b: usize) -> f64 {
        let (a, b) = (a as f64, b as f64);
        match self {
            Adjust::Original => (a / b).max(1.0).sqrt(),
            Adjust::MatchRmsAdamW => 0.2 * a.max(b).sqrt(),
        }
    }
}

/// Saved as 0 or 1.
impl Field for Adjust {
    fn get(&self) -> f64 {
        (*self == Adjust::MatchRmsAdamW) as u8 as f64
    }

    fn set(&mut self, value: f64) {
        *self = if value == 0.0 { Adjust::Original } else { Adjust::MatchRmsAdamW };
    }
}

/// Saved as the size of an element, which distinguishes the dtypes of the iteration.
impl Field for DType {
    fn get(&self) -> f64 {
        self.size() as f64
    }

    fn set(&mut self, value: f64) {
        let dtypes = [DType::BF16, DType::F32, DType::F64];
        *self = dtypes.into_iter().find(|t| t.size() as f64 == value).unwrap_or(*self);
    }
}

options!(Muon {
    /// The decay rate of the mean of gradients, 0 to below 1.
    momentum(momentum: f64) |rule| rule.momentum = momentum;
    /// Uses the mean itself for the step, without Nesterov's variant.
    no_nesterov() |rule| rule.nesterov = false;
    /// The number of iterations, 1 to 99.
    ns_steps(steps: usize) |rule| rule.steps = steps;
    /// The coefficients a, b and c.
    ns_coefficients(coefficients: [f64; 3]) |rule| rule.coefficients = coefficients;
    /// The lower bound of the norm that divides the momentum, at least 0.
    eps(eps: f64) |rule| rule.eps = eps;
    /// The dependence of steps on the shape.
    adjust(adjust: Adjust) |rule| rule.adjust = adjust;
    /// The dtype of the iteration, to which each product is rounded; bf16 by default.
    ns_dtype(dtype: DType) |rule| rule.dtype = dtype;
});

#[derive(Clone)]
pub struct MuonRule {
    momentum: f64,
    nesterov: bool,
    steps: usize,
    coefficients: [f64; 3],
    eps: f64,
    adjust: Adjust,
    dtype: DType,
}

impl Rule for MuonRule {
    const NAME: &'static str = "muon";
    const IS_ELEMENTWISE: bool = false;

    fn accept(&self, parameter: &Tensor) -> Result<()> {
        match parameter.rank() {
            0 | 1 => {
                let message = format!("a parameter has shape {}, expected rank 2 or more", parameter.shape());
                Err(Error::shape(Self::NAME, message))
            }
            _ => Ok(()),
        }
    }

    fn check(&self) -> Result<()> {
        match self.dtype {
            DType::BF16 | DType::F32 | DType::F64 => Ok(()),
            other => Err(Error::attr(Self::NAME, format!("ns_dtype is {other}, expected bf16, f32 or f64"))),
        }
    }

    fn fields(&mut self) -> Vec<Named<'_>> {
        let MuonRule { momentum, nesterov, steps, coefficients: [a, b, c], eps, adjust, dtype } = self;
        let all: [Named<'_>; 9] = [
            ("momentum", momentum, Range::Rate),
            ("eps", eps, Range::AtLeast0),
            ("a", a, Range::Finite),
            ("b", b, Range::Finite),
            ("c", c, Range::Finite),
            ("nesterov", nesterov, FLAG),
            ("ns_steps", steps, Range::Count(1.0, 99.0)),
            ("adjust", adjust, FLAG),
            ("ns_bytes", dtype, Range::OneOf(&[2.0, 4.0, 8.0])),
        ];
        all.into()
    }

    fn states(&self) -> &'static [&'static str] {
        &["momentum_buffer"]
    }

    fn prepare(&self, _weight_decay: f64) -> (Pointwise, Vec<f64>) {
        (Pointwise::SgdPrepare, Vec::new())
    }

    fn update(&self, step: &Step<'_>) -> Result<()> {
        let alike = alike(&step.members);
        let stacks: Vec<Tensor> = alike.iter().map(|members| self.stack(members)).collect::<Result<_>>()?;
        let pieces: Vec<Vec<Tensor>> = stacks.iter().map(pieces_of).collect::<Result<_>>()?;
        let sets = alike.iter().flatten().zip(pieces.iter().flatten());
        let sets: Vec<Update<'_>> = sets.map(|(m, x)| set(vec![&m.states[0], x], m.gradient)).collect();
        let nesterov = if self.nesterov { 1.0 } else { 0.0 };
        let attributes = [step.limit, self.momentum, 1.0 - self.momentum, nesterov];
        update_each_(Pointwise::MuonMomentum, &sets, &step.prepared(), &attributes)?;
        for (members, stack) in alike.iter().zip(&stacks) {
            let shape = stack.shape().clone();
            let (count, a) = (shape[0], shape[1]);
            let b = shape[2..].iter().product();
            if count * a * b == 0 {
                continue;
            }
            let x = pieces_of(&self.orthogonal(stack.reshape((count, a, b))?)?.reshape(shape)?)?;
            let sets: Vec<_> = members.iter().zip(&x).map(|(m, x)| set(vec![m.parameter], x)).collect();
            let attributes = [step.weight_decay, self.adjust.factor(a, b)];
            let shared = [&step.numbers.lr, step.found_inf];
            update_each_(Pointwise::MuonStep, &sets, &shared, &attributes)?;
        }
        Ok(())
    }
}

impl MuonRule {
    /// Memory for the updates of members of the same shape, `[count, A, ..]`.
    fn stack(&self, members: &[&Moved<'_>]) -> Result<Tensor> {
        let first = members[0].parameter;
        let dims: Vec<usize> = std::iter::once(members.len()).chain(first.dims().iter().copied()).collect();
        Tensor::empty(dims, self.dtype, first.device())
    }

    /// Matrices `x: [count, A, B]` with singular values near 1. M is the smaller of `X X^T` and `X^T X`.
    fn orthogonal(&self, x: Tensor) -> Result<Tensor> {
        let [a, b, c] = self.coefficients;
        let is_wide = x.dims()[1] <= x.dims()[2];
        let norm = x.l2_norm([1, 2])?.reshape((x.dims()[0], 1, 1))?.clamp(Some(self.eps.into()), None)?;
        let mut x = x.div(&norm)?;
        for _ in 0..self.steps {
            let m = if is_wide { x.matmul(&x.t()?)? } else { x.t()?.matmul(&x)? };
            let p = m.gemm(&m, Some(&m), &Gemm { alpha: c, beta: b })?;
            let scale = Gemm { alpha: 1.0, beta: a };
            x = if is_wide { p.gemm(&x, Some(&x), &scale)? } else { x.gemm(&p.t()?, Some(&x), &scale)? };
        }
        Ok(x)
    }
}

fn set<'a>(targets: Vec<&'a Tensor>, input: &'a Tensor) -> Update<'a> {
    Update { targets, inputs: vec![input], numbers: Vec::new() }
}

/// Views of the tensors of a stack.
fn pieces_of(stack: &Tensor) -> Result<Vec<Tensor>> {
    (0..stack.dims()[0]).map(|i| stack.select(0, i as isize)).collect()
}

/// Groups members by shape.
fn alike<'s, 'a>(members: &'s [Moved<'a>]) -> Vec<Vec<&'s Moved<'a>>> {
    let mut all: Vec<Vec<&Moved<'_>>> = Vec::new();
    for member in members {
        match all.iter_mut().find(|group| group[0].parameter.shape() == member.parameter.shape()) {
            Some(group) => group.push(member),
            None => all.push(vec![member]),
        }
    }
    all
}
