//! Dropout.

use crate::capture::Draw;
use crate::check::{check_float, check_same, describe};
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands::Output;
use crate::ops::random::draw::threshold;
use crate::ops::{gradients, in_acc, pointwise_one};
use crate::pointwise::Pointwise;
use crate::tape::record;
use crate::tensor::Attributes;
use crate::{Error, Result, Rng, RngState, Shape, Tensor, autocast};

/// `x m scale`, where m is 1 if a 32-bit draw is below the threshold, else 0. The kernel is its own backward kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The state of the generator at the first draw.
    pub state: RngState,
    /// Draws below this number keep an element; up to 2^32.
    pub threshold: i64,
    /// The factor of kept elements.
    pub scale: f64,
}

/// [`Dropout`] of the sum of x and a bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BiasDropout(pub Dropout);

/// The gradients of [`BiasDropout`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BiasDropoutBackward(pub Dropout);

crate::operands! {
    /// The inputs of [`Dropout`].
    pub struct DropoutInputs {
        /// x, or the gradient of y.
        x,
        /// Added to the generator's state: i64 `[3]`.
        state?,
    }
}

crate::operands! {
    /// The inputs of [`BiasDropout`].
    pub struct BiasDropoutInputs {
        /// `[.., C]`.
        x,
        /// Added to each row of x, `[C]`.
        bias,
        /// Added to the generator's state: i64 `[3]`.
        state?,
    }
}

crate::operands! {
    /// The inputs of [`BiasDropoutBackward`].
    pub struct BiasDropoutBackwardInputs {
        /// The gradient of y `[.., C]`. C is a multiple of 8.
        dy,
        /// Added to the generator's state: i64 `[3]`.
        state?,
    }
}

crate::operands! {
    /// The outputs of [`BiasDropoutBackward`].
    pub struct BiasDropoutBackwardOutputs {
        /// The gradient of x: [`Dropout`] of dy.
        dx,
        /// The gradient of the bias: the sum of dx over rows, `[C]`.
        bias,
    }
}

/// The channels of [`BiasDropoutBackward`] are a multiple of this number: a thread takes whole words.
const CHANNELS: usize = 8;

impl Fused for Dropout {
    type Inputs<T> = DropoutInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "dropout"
    }

    fn composite(
        &self,
        DropoutInputs { x, state }: DropoutInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        Ok(Output { y: Some(self.applied(x, state)?) })
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

impl Fused for BiasDropout {
    type Inputs<T> = BiasDropoutInputs<T>;
    type Outputs<T> = Output<T>;

    fn name(&self) -> &'static str {
        "bias_dropout"
    }

    fn composite(
        &self,
        BiasDropoutInputs { x, bias, state }: BiasDropoutInputs<&Tensor>,
        _before: Output<&Tensor>,
    ) -> Result<Output<Option<Tensor>>> {
        Ok(Output { y: Some(self.0.applied(&x.add(bias)?, state)?) })
    }
}

impl BiasDropoutBackward {
    fn gradients(&self, dy: &Tensor, state: Option<&Tensor>) -> Result<BiasDropoutBackwardOutputs<Tensor>> {
        let dx = self.0.applied(dy, state)?;
        let bias = dx.reshape(as_rows(&dx))?.sum(0)?;
        Ok(BiasDropoutBackwardOutputs { dx, bias })
    }
}

impl Fused for BiasDropoutBackward {
    type Inputs<T> = BiasDropoutBackwardInputs<T>;
    type Outputs<T> = BiasDropoutBackwardOutputs<T>;

    fn name(&self) -> &'static str {
        "bias_dropout_backward"
    }

    fn composite(
        &self,
        BiasDropoutBackwardInputs { dy, state }: BiasDropoutBackwardInputs<&Tensor>,
        _before: BiasDropoutBackwardOutputs<&Tensor>,
    ) -> Result<BiasDropoutBackwardOutputs<Option<Tensor>>> {
        Ok(self.gradients(dy, state)?.map(Some))
    }

    fn companions(
        &self,
        BiasDropoutBackwardInputs { dy, state }: BiasDropoutBackwardInputs<&Tensor>,
        _before: BiasDropoutBackwardOutputs<&Tensor>,
    ) -> Result<Option<BiasDropoutBackwardOutputs<Tensor>>> {
        self.gradients(&dy.abs()?, state).map(Some)
    }
}

/// # Dropout
impl Tensor {
    /// Multiplies each element by 0 with probability `p`, and by `1 / (1 - p)` otherwise. With `p` 0 nothing is drawn; with `p` 1
    /// every element is multiplied by 0. Float dtypes. Errors: `Attr` unless `0 <= p <= 1`. Srivastava et al. 2014, JMLR 15.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Rng, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::ones(8, DType::F32, device)?.dropout(0.5, &Rng::new(42))?;
    /// assert!(x.to_vec::<f32>()?.iter().all(|v| [0.0, 2.0].contains(v)));
    /// # Ok(())
    /// # }
    /// ```
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
    let inputs = DropoutInputs { x: &x, state: draw.base.as_ref() };
    run_fused(op, &Dropout { state: draw.state, threshold, scale }, inputs, Output { y: &y })?;
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
    let inputs = BiasDropoutInputs { x: &x, bias: &bias, state: draw.base.as_ref() };
    run_fused(op, &BiasDropout(kernel), inputs, Output { y: &y })?;
    record(op, &[&x, &bias], y, move |t| {
        let (dy, op) = (t.dy(), "bias_dropout_backward");
        let is_whole = dy.dims()[dy.rank() - 1].is_multiple_of(CHANNELS);
        if t.needs(1) && is_whole && !t.creates_graph() && has_kernel::<BiasDropoutBackward>(dy) {
            let dy = dy.contiguous()?;
            let like = |shape: &Shape| Tensor::allocate(op, shape, dy.dtype(), dy.device());
            let (dx, dbias) = (like(dy.shape())?, like(&Shape::from(dy.dims()[dy.rank() - 1]))?);
            let inputs = BiasDropoutBackwardInputs { dy: &dy, state: draw.base.as_ref() };
            let outputs = BiasDropoutBackwardOutputs { dx: &dx, bias: &dbias };
            run_fused(op, &BiasDropoutBackward(kernel), inputs, outputs)?;
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
