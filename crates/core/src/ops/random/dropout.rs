//! Dropout.

use crate::capture::Draw;
use crate::check::{check_float, check_same, describe};
use crate::fused::{FlatFused, has_kernel, run_fused};
use crate::ops::random::draw::threshold;
use crate::ops::{gradients, in_acc, pointwise_one};
use crate::pointwise::Pointwise;
use crate::tape::record;
use crate::tensor::Attributes;
use crate::{Error, Result, Rng, RngState, Shape, Tensor, autocast};
use smallvec::SmallVec;

/// Input: x. Output: `x m scale`, where m is 1 if a 32-bit draw is below the threshold, else 0. An optional second input, i64
/// `[3]`, is added to the generator's state. The kernel is its own backward kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The state of the generator at the first draw.
    pub state: RngState,
    /// Draws below this number keep an element; up to 2^32.
    pub threshold: i64,
    /// The factor of kept elements.
    pub scale: f64,
}

/// [`Dropout`] of the sum of x `[.., C]` and a bias `[C]`, which is the second input, before the state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BiasDropout(pub Dropout);

/// The gradient of [`BiasDropout`]. Input: dy `[.., C]`, where C is a multiple of 8. Outputs: [`Dropout`] of dy, and its sum over
/// rows, `[C]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BiasDropoutBackward(pub Dropout);

/// The channels of [`BiasDropoutBackward`] are a multiple of this number: a thread takes whole words.
const CHANNELS: usize = 8;

impl FlatFused for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(self.applied(&inputs[0], inputs.get(1))?)])
    }
}

impl Dropout {
    /// The composite for x, with draws that start at a state in memory, if there is one.
    fn applied(&self, x: &Tensor, base: Option<&Tensor>) -> Result<Tensor> {
        let rng = self.state.generator(base)?;
        let mask = Tensor::bernoulli(x.shape(), self.threshold as f64 / 4_294_967_296.0, x.device(), &rng)?;
        x.mul(&mask.cast(x.dtype())?)?.mul_scalar(self.scale)
    }
}

impl FlatFused for BiasDropout {
    fn name(&self) -> &'static str {
        "bias_dropout"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(self.0.applied(&inputs[0].add(&inputs[1])?, inputs.get(2))?)])
    }
}

impl BiasDropoutBackward {
    fn outputs(&self, dy: &Tensor, base: Option<&Tensor>) -> Result<Vec<Tensor>> {
        let dx = self.0.applied(dy, base)?;
        let dbias = dx.reshape(as_rows(&dx))?.sum(0)?;
        Ok(vec![dx, dbias])
    }
}

impl FlatFused for BiasDropoutBackward {
    fn name(&self) -> &'static str {
        "bias_dropout_backward"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(self.outputs(&inputs[0], inputs.get(1))?.into_iter().map(Some).collect())
    }

    fn companions(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
        self.outputs(&inputs[0].abs()?, inputs.get(1)).map(Some)
    }
}

impl Tensor {
    /// Multiplies each element by 0 with probability `p`, and by `1 / (1 - p)` otherwise. With `p` 0 nothing is drawn; with `p` 1
    /// every element is multiplied by 0. Float dtypes. Errors: `Attr` unless `0 <= p <= 1`. Srivastava et al. 2014, JMLR 15.
    pub fn dropout(&self, p: f64, rng: &Rng) -> Result<Tensor> {
        let op = "dropout";
        check_float(op, self)?;
        check_probability(op, p)?;
        if p == 0.0 {
            return Ok(self.clone());
        }
        let scale = scale(p);
        if has_kernel::<Dropout>(self) {
            return fused(op, self, rng.advance(self.numel())?, threshold(1.0 - p), scale);
        }
        let mask = Tensor::bernoulli(self.shape(), 1.0 - p, self.device(), rng)?;
        let y = masked(self, &mask, scale)?;
        record(op, &[self], y, move |t| gradients![Some(t.dy().masked_on_tape(&mask, scale)?)])
    }

    /// [`dropout`](Tensor::dropout) of the sum of this tensor `[.., C]` and a bias `[C]`, rounded once. With `p` 0 nothing is drawn.
    /// Float dtypes. Errors: `Attr` unless `0 <= p <= 1`, `Shape`, `Dtype`.
    pub fn bias_dropout(&self, bias: &Tensor, p: f64, rng: &Rng) -> Result<Tensor> {
        let op = "bias_dropout";
        // Parameters are cast within a scope, as by a product whose bias it is.
        let bias = &if autocast::current().is_some() { bias.cast(self.dtype())? } else { bias.clone() };
        check_same(op, &[self, bias])?;
        check_float(op, self)?;
        check_probability(op, p)?;
        if self.rank() == 0 || bias.dims() != &self.dims()[self.rank() - 1..] {
            return Err(Error::shape(
                op,
                format!("x and the bias are {}, expected [.., C] and [C]", describe(&[self, bias])),
            ));
        }
        if p == 0.0 {
            return self.add(bias);
        }
        let scale = scale(p);
        if has_kernel::<BiasDropout>(self) {
            return fused_with_bias(op, self, bias, rng.advance(self.numel())?, threshold(1.0 - p), scale);
        }
        let mask = Tensor::bernoulli(self.shape(), 1.0 - p, self.device(), rng)?;
        in_acc(self, |x| x.add(&bias.cast(x.dtype())?)?.masked_on_tape(&mask, scale))
    }

    /// [`masked`], differentiable.
    fn masked_on_tape(&self, mask: &Tensor, scale: f64) -> Result<Tensor> {
        let kept = mask.clone();
        let y = masked(self, mask, scale)?;
        record("dropout", &[self], y, move |t| gradients![Some(t.dy().masked_on_tape(&kept, scale)?)])
    }
}

fn check_probability(op: &'static str, p: f64) -> Result<()> {
    match (0.0..=1.0).contains(&p) {
        true => Ok(()),
        false => Err(Error::attr(op, format!("p is {p}, expected 0 to 1"))),
    }
}

/// The factor of kept elements.
fn scale(p: f64) -> f64 {
    if p == 1.0 { 0.0 } else { 1.0 / (1.0 - p) }
}

/// `[.., C]` as rows `[N, C]`.
fn as_rows(x: &Tensor) -> Shape {
    let channels = x.dims()[x.rank() - 1];
    Shape::from((x.numel() / channels.max(1), channels))
}

/// `x mask scale` for these draws. The gradient repeats the draws, so no mask is saved.
fn fused(op: &'static str, x: &Tensor, draw: Draw, threshold: i64, scale: f64) -> Result<Tensor> {
    let x = x.contiguous()?;
    let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
    let inputs: SmallVec<[&Tensor; 2]> = std::iter::once(&x).chain(&draw.base).collect();
    run_fused(op, &Dropout { state: draw.state, threshold, scale }, &inputs, &[&y])?;
    drop(inputs);
    record(op, &[&x], y, move |t| gradients![Some(fused("dropout_backward", t.dy(), draw.clone(), threshold, scale)?)])
}

/// `(x + bias) mask scale` for these draws. The gradient repeats the draws.
fn fused_with_bias(
    op: &'static str,
    x: &Tensor,
    bias: &Tensor,
    draw: Draw,
    threshold: i64,
    scale: f64,
) -> Result<Tensor> {
    let (x, bias) = (x.contiguous()?, bias.contiguous()?);
    let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
    let kernel = Dropout { state: draw.state, threshold, scale };
    let inputs: SmallVec<[&Tensor; 3]> = [&x, &bias].into_iter().chain(&draw.base).collect();
    run_fused(op, &BiasDropout(kernel), &inputs, &[&y])?;
    drop(inputs);
    record(op, &[&x, &bias], y, move |t| {
        let (dy, op) = (t.dy(), "bias_dropout_backward");
        let is_whole = dy.dims()[dy.rank() - 1].is_multiple_of(CHANNELS);
        if t.needs(1) && is_whole && !t.creates_graph() && has_kernel::<BiasDropoutBackward>(dy) {
            let dy = dy.contiguous()?;
            let like = |shape: &Shape| Tensor::allocate(op, shape, dy.dtype(), dy.device());
            let (dx, dbias) = (like(dy.shape())?, like(&Shape::from(dy.dims()[dy.rank() - 1]))?);
            let inputs: SmallVec<[&Tensor; 2]> = std::iter::once(&dy).chain(&draw.base).collect();
            run_fused(op, &BiasDropoutBackward(kernel), &inputs, &[&dx, &dbias])?;
            return gradients![Some(dx), Some(dbias)];
        }
        let dx = fused(op, dy, draw.clone(), threshold, scale)?;
        let dbias = t.want(1, || dx.reshape(as_rows(&dx))?.sum(0))?;
        gradients![Some(dx).filter(|_| t.needs(0)), dbias]
    })
}

/// `x mask scale`.
fn masked(x: &Tensor, mask: &Tensor, scale: f64) -> Result<Tensor> {
    pointwise_one("dropout", Pointwise::Dropout, &[x, mask], Attributes::floats(&[scale]), x.shape(), x.dtype())
}
