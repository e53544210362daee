//! Rotary position embedding.

use super::in_acc;
use crate::fused::{Fused, has_kernel, record_fused, run_fused};
use crate::tensor::{check_device, check_float, check_index, check_same, describe};
use crate::{DType, Dims, Error, Result, Shape, Tensor};
use std::iter::{once, repeat};

/// Which elements of a row make a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RotaryStyle {
    /// Those at one place of the two halves, as LLaMA and `rotate_half`.
    #[default]
    Half,
    /// Neighbours.
    Interleaved,
}

/// Which way pairs are turned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// By the angle: `(x1 cos - x2 sin, x2 cos + x1 sin)`.
    #[default]
    Forward,
    /// By its negative, which undoes it.
    Inverse,
}

impl Direction {
    /// 1, or -1 of the inverse.
    pub fn sign(self) -> i64 {
        if self == Direction::Forward { 1 } else { -1 }
    }

    fn turned(self) -> Direction {
        if self == Direction::Forward { Direction::Inverse } else { Direction::Forward }
    }
}

/// How [`Tensor::apply_rotary_embedding`] turns.
#[derive(Clone, Debug, Default)]
pub struct Rotary {
    /// What is a pair.
    pub style: RotaryStyle,
    /// Which way.
    pub direction: Direction,
    /// How many of a row's elements are turned, an even number; all if absent. The others stay.
    pub rotary_dim: Option<usize>,
    /// The rows of the tables for each place in the sequence, `[T]` or `[B, T]`, i64 or i32; `0..T` if absent.
    pub positions: Option<Tensor>,
}

impl Rotary {
    /// The turn that takes this one back, and the gradient with it.
    fn back(&self) -> Rotary {
        Rotary { direction: self.direction.turned(), ..self.clone() }
    }
}

/// One tensor or two `[B, H, T, D]`, their last dimension contiguous, cos and sin `[P, R/2]`, and positions, if there are any, `[T]`
/// or `[B, T]`, to the tensors with pairs turned. In the other direction it is its own backward kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotaryTurn {
    /// Which elements are a pair.
    pub style: RotaryStyle,
    /// Which way pairs are turned.
    pub direction: Direction,
    /// R: how many of a row's elements are turned.
    pub rotary_dim: usize,
    /// How many tensors are turned.
    pub tensors: usize,
}

impl Fused for RotaryTurn {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn composite(&self, inputs: &[Tensor], _before: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let (xs, rest) = inputs.split_at(self.tensors);
        let RotaryTurn { style, direction, rotary_dim, .. } = *self;
        let rotary = Rotary { style, direction, rotary_dim: Some(rotary_dim), positions: rest.get(2).cloned() };
        let turn = Turn { cos: rest[0].clone(), sin: rest[1].clone(), rotary };
        xs.iter().map(|x| turn.composite(x).map(Some)).collect()
    }
}

impl Tensor {
    /// Queries (this tensor, `[B, Hq, T, D]`) and keys `[B, Hk, T, D]`, in which pairs `(x1, x2)` of each row became
    /// `(x1 cos - x2 sin, x2 cos + x1 sin)` by the tables `cos` and `sin` `[P, R/2]`, of the queries' dtype or f32, where R is
    /// the `rotary_dim`. The tables have no gradient. Float dtypes. Su et al. 2021, arXiv 2104.09864.
    ///
    /// Errors: `Shape`; `Dtype`; `Attr` for an R that is odd or above D; `Index` for a position outside of `0..P`.
    pub fn apply_rotary_embedding(
        &self,
        k: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
        rotary: &Rotary,
    ) -> Result<(Tensor, Tensor)> {
        let op = "apply_rotary_embedding";
        check(op, self, k, cos, sin, rotary)?;
        let turn = Turn { cos: cos.detach(), sin: sin.detach(), rotary: rotary.clone() };
        if self.numel() == 0 || k.numel() == 0 || !has_kernel::<RotaryTurn>(self) {
            let turned = |x: &Tensor| turn.composite(x).map_err(|e| e.of(op));
            return Ok((turned(self)?, turned(k)?));
        }
        let mut both = turn.fused(op, &[self, k])?.into_iter();
        let mut recorded = |x: &Tensor| {
            let y = both.next().ok_or_else(|| Error::value(op, "an output for each input"))?;
            let operands: Vec<&Tensor> = [x, &turn.cos, &turn.sin].into_iter().chain(&turn.rotary.positions).collect();
            let (again, back) = (rotary.clone(), rotary.back());
            let composite = move |x: &[Tensor]| Turn::new(x, &again).composite(&x[0]);
            record_fused(op, &operands, y, composite, move |t, x| {
                let dx = Turn::new(x, &back).fused("apply_rotary_embedding_backward", &[t.dy()])?.pop();
                Ok(once(dx).chain(repeat(None)).take(x.len()).collect())
            })
        };
        Ok((recorded(self)?, recorded(k)?))
    }
}

fn check(op: &'static str, q: &Tensor, k: &Tensor, cos: &Tensor, sin: &Tensor, rotary: &Rotary) -> Result<()> {
    check_float(op, q)?;
    check_same(op, &[q, k])?;
    check_same(op, &[cos, sin])?;
    check_device(op, &[q, cos])?;
    if cos.dtype() != q.dtype() && cos.dtype() != DType::F32 {
        return Err(Error::dtype(op, format!("the tables must have the dtype of q or f32: {}", describe(&[q, cos]))));
    }
    let is_alike = q.rank() == 4 && k.rank() == 4 && [0, 2, 3].iter().all(|&d| q.dims()[d] == k.dims()[d]);
    if !is_alike {
        let message = format!("q and k are {}, expected [B, Hq, T, D] and [B, Hk, T, D]", describe(&[q, k]));
        return Err(Error::shape(op, message));
    }
    let (b, t, d) = (q.dims()[0], q.dims()[2], q.dims()[3]);
    let r = rotary.rotary_dim.unwrap_or(d);
    if !r.is_multiple_of(2) || r > d {
        let message = format!("rotary_dim is {r}, expected an even number up to {d}, the last of {}", q.shape());
        return Err(Error::attr(op, message));
    }
    if cos.rank() != 2 || cos.shape() != sin.shape() || cos.dims()[1] != r / 2 {
        let message = format!("the tables are {} and {}, expected [P, {}]", cos.shape(), sin.shape(), r / 2);
        return Err(Error::shape(op, message));
    }
    match &rotary.positions {
        None if t > cos.dims()[0] => {
            let message = format!("position {} of {} is outside of the tables {}", t - 1, q.shape(), cos.shape());
            Err(Error::index(op, message))
        }
        None => Ok(()),
        Some(positions) => {
            check_index(op, positions)?;
            check_device(op, &[q, positions])?;
            if positions.dims() != [t] && positions.dims() != [b, t] {
                let message =
                    format!("positions are {}, expected [{t}] or [{b}, {t}] for {}", positions.shape(), q.shape());
                return Err(Error::shape(op, message));
            }
            Ok(())
        }
    }
}

/// A checked call but for what is turned.
#[derive(Clone)]
struct Turn {
    cos: Tensor,
    sin: Tensor,
    rotary: Rotary,
}

impl Turn {
    /// Of the inputs of the node: x, cos, sin and positions, if there are any.
    fn new(inputs: &[Tensor], rotary: &Rotary) -> Turn {
        let rotary = Rotary { positions: inputs.get(3).cloned(), ..rotary.clone() };
        Turn { cos: inputs[1].clone(), sin: inputs[2].clone(), rotary }
    }

    fn fused(&self, op: &'static str, xs: &[&Tensor]) -> Result<Vec<Tensor>> {
        // Rows anywhere, each of them whole.
        let whole = |x: &&Tensor| if x.layout().strides()[3] == 1 { Ok(x.detach()) } else { x.detach().contiguous() };
        let mut inputs = xs.iter().map(whole).collect::<Result<Vec<_>>>()?;
        inputs.extend([self.cos.contiguous()?, self.sin.contiguous()?]);
        if let Some(positions) = &self.rotary.positions {
            inputs.push(positions.contiguous()?);
        }
        let ys =
            xs.iter().map(|x| Tensor::allocate(op, x.shape(), x.dtype(), x.device())).collect::<Result<Vec<_>>>()?;
        let Rotary { style, direction, .. } = self.rotary;
        let turn = RotaryTurn { style, direction, rotary_dim: 2 * self.cos.dims()[1], tensors: xs.len() };
        let (inputs, outputs): (Vec<_>, Vec<_>) = (inputs.iter().collect(), ys.iter().collect());
        run_fused(op, &turn, &inputs, &outputs)?;
        Ok(ys)
    }

    /// What the kernel computes, in tensor ops.
    fn composite(&self, x: &Tensor) -> Result<Tensor> {
        let (b, t, d, half) = (x.dims()[0], x.dims()[2], x.dims()[3], self.cos.dims()[1]);
        in_acc(x, |x| {
            let table = |table: &Tensor| {
                let rows = match &self.rotary.positions {
                    None => table.narrow(0, 0, t)?,
                    Some(positions) => table.index_select(0, &positions.reshape(positions.numel())?)?,
                };
                let batches = if self.rotary.positions.as_ref().is_some_and(|p| p.rank() == 2) { b } else { 1 };
                rows.cast(x.dtype())?.reshape((batches, 1, t, half))
            };
            let (c, s) = (table(&self.cos)?, table(&self.sin)?.mul_scalar(self.rotary.direction.sign() as f64)?);
            let is_half = self.rotary.style == RotaryStyle::Half;
            // The elements of pairs come to stand in two halves, and go back.
            let (dim, split): (isize, [usize; 2]) = if is_half { (3, [2, half]) } else { (4, [half, 2]) };
            let mut dims = Dims::from_slice(&x.dims()[..3]);
            dims.extend(split);
            let pairs = x.narrow(3, 0, 2 * half)?.reshape(Shape::from(dims))?;
            let (x1, x2) = (pairs.select(dim, 0)?, pairs.select(dim, 1)?);
            let (y1, y2) = (x1.mul(&c)?.sub(&x2.mul(&s)?)?, x2.mul(&c)?.add(&x1.mul(&s)?)?);
            let mut dims = Dims::from_slice(&x.dims()[..3]);
            dims.push(2 * half);
            let turned = Tensor::stack(&[&y1, &y2], dim)?.reshape(Shape::from(dims))?;
            if 2 * half == d {
                return Ok(turned);
            }
            Tensor::concat(&[&turned, &x.narrow(3, 2 * half, d - 2 * half)?], 3)
        })
    }
}
