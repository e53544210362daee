//! Rotary position embedding.

use crate::check::{check_device, check_float, check_index, check_same, describe};
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands;
use crate::operands::Operands;
use crate::ops::in_acc;
use crate::tape::Record;
use crate::{DType, Dims, Error, Result, Shape, Tensor};
use std::iter::{once, repeat};

/// The pairs of elements in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RotaryStyle {
    /// Element i of the first half with element i of the second half, as in LLaMA and `rotate_half`.
    #[default]
    Half,
    /// Adjacent elements.
    Interleaved,
}

/// The direction of the rotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Rotates by the angle: `(x1 cos - x2 sin, x2 cos + x1 sin)`.
    #[default]
    Forward,
    /// Rotates by the negative angle, which inverts `Forward`.
    Inverse,
}

impl Direction {
    /// 1, or -1 for the inverse.
    pub fn sign(self) -> i64 {
        if self == Direction::Forward { 1 } else { -1 }
    }

    fn turned(self) -> Direction {
        if self == Direction::Forward { Direction::Inverse } else { Direction::Forward }
    }
}

/// The options of [`Tensor::apply_rotary_embedding`].
#[derive(Clone, Debug, Default)]
pub struct Rotary {
    /// The pairs of elements.
    pub style: RotaryStyle,
    /// The direction of the rotation.
    pub direction: Direction,
    /// The number of rotated elements of a row, which is even. The others are copied. Defaults to the whole row.
    pub rotary_dim: Option<usize>,
    /// The rows of the tables for each position of the sequence, `[T]` or `[B, T]`, i64 or i32; `0..T` if absent.
    pub positions: Option<Tensor>,
}

impl Rotary {
    /// The inverse rotation, which also rotates the gradient.
    fn back(&self) -> Rotary {
        Rotary { direction: self.direction.turned(), ..self.clone() }
    }
}

/// The rotation of one or two tensors. The inverse direction is the backward kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotaryTurn {
    /// The pairs of elements.
    pub style: RotaryStyle,
    /// The direction of the rotation.
    pub direction: Direction,
    /// R: the number of rotated elements of a row.
    pub rotary_dim: usize,
}

operands! {
    /// The inputs of [`RotaryTurn`].
    pub struct RotaryInputs {
        /// `[B, H, T, D]`, contiguous in the last dimension.
        q,
        /// Like q, but for the number of heads.
        k?,
        /// `[P, R/2]`.
        cos,
        /// `[P, R/2]`.
        sin,
        /// `[T]` or `[B, T]`.
        positions?,
    }
}

operands! {
    /// The tensors that [`RotaryTurn`] rotates, or the rotated ones.
    pub struct RotaryTensors {
        /// `[B, H, T, D]`.
        q,
        /// Like q, but for the number of heads.
        k?,
    }
}

impl Fused for RotaryTurn {
    type Inputs<T> = RotaryInputs<T>;
    type Outputs<T> = RotaryTensors<T>;

    fn name(&self) -> &'static str {
        "rotary"
    }

    fn composite(
        &self,
        inputs: RotaryInputs<&Tensor>,
        _before: RotaryTensors<&Tensor>,
    ) -> Result<RotaryTensors<Option<Tensor>>> {
        let RotaryTurn { style, direction, rotary_dim } = *self;
        let turn = Turn::new(inputs, &Rotary { style, direction, rotary_dim: Some(rotary_dim), positions: None });
        let k = inputs.k.map(|k| turn.composite(k)).transpose()?;
        Ok(RotaryTensors { q: Some(turn.composite(inputs.q)?), k: k.map(Some) })
    }
}

/// # Rotary positions
impl Tensor {
    /// Rotates queries (this tensor, `[B, Hq, T, D]`) and keys `[B, Hk, T, D]`: each pair `(x1, x2)` of a row becomes `(x1 cos - x2
    /// sin, x2 cos + x1 sin)`. The tables `cos` and `sin` are `[P, R/2]`, in the queries' dtype or f32; R is the `rotary_dim`. The
    /// tables have no gradient. Float dtypes. Su et al. 2021, arXiv 2104.09864.
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
        let turned = turn.fused(op, RotaryTensors { q: self, k: Some(k) })?;
        let recorded = |x: &Tensor, y: Tensor| {
            let operands = turn.inputs(x);
            let (mask, again, back) = (operands.mask(), rotary.clone(), rotary.back());
            let composite = move |x: &[Tensor]| {
                let inputs = RotaryInputs::of(mask, &mut x.iter());
                Turn::new(inputs, &again).composite(inputs.q)
            };
            Record::new(op, &operands.present()).fused(y, composite, move |t, x| {
                let turn = Turn::new(RotaryInputs::of(mask, &mut x.iter()), &back);
                let dx = turn.fused("apply_rotary_embedding_backward", RotaryTensors { q: t.dy(), k: None })?.q;
                Ok(once(Some(dx)).chain(repeat(None)).take(x.len()).collect())
            })
        };
        let of_k = turned.k.expect("a rotated tensor for each");
        Ok((recorded(self, turned.q)?, recorded(k, of_k)?))
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

/// The checked arguments of a call, except the rotated tensors.
#[derive(Clone)]
struct Turn {
    cos: Tensor,
    sin: Tensor,
    rotary: Rotary,
}

impl Turn {
    /// From the inputs of a kernel or node, whose positions replace those of the options.
    fn new(inputs: RotaryInputs<&Tensor>, rotary: &Rotary) -> Turn {
        let rotary = Rotary { positions: inputs.positions.cloned(), ..rotary.clone() };
        Turn { cos: inputs.cos.clone(), sin: inputs.sin.clone(), rotary }
    }

    /// The inputs of the node of one tensor.
    fn inputs<'a>(&'a self, q: &'a Tensor) -> RotaryInputs<&'a Tensor> {
        let positions = self.rotary.positions.as_ref();
        RotaryInputs { q, k: None, cos: &self.cos, sin: &self.sin, positions }
    }

    fn fused(&self, op: &'static str, RotaryTensors { q, k }: RotaryTensors<&Tensor>) -> Result<RotaryTensors<Tensor>> {
        // The kernel accepts strided rows, but a row itself must be contiguous.
        let whole = |x: &Tensor| if x.layout().strides()[3] == 1 { Ok(x.detach()) } else { x.detach().contiguous() };
        let inputs = RotaryInputs {
            q: whole(q)?,
            k: k.map(whole).transpose()?,
            cos: self.cos.contiguous()?,
            sin: self.sin.contiguous()?,
            positions: self.rotary.positions.as_ref().map(Tensor::contiguous).transpose()?,
        };
        let empty = |x: &Tensor| Tensor::allocate(op, x.shape(), x.dtype(), x.device());
        let ys = RotaryTensors { q: empty(q)?, k: k.map(empty).transpose()? };
        let Rotary { style, direction, .. } = self.rotary;
        let turn = RotaryTurn { style, direction, rotary_dim: 2 * self.cos.dims()[1] };
        run_fused(op, &turn, inputs.as_ref(), ys.as_ref())?;
        Ok(ys)
    }

    /// The kernel's composite.
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
            // Pairs are transposed to two halves, and back.
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
