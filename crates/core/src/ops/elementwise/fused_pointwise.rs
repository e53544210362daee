//! Several arithmetic steps as one kernel: selection, clamping, addcmul, addcdiv, lerp, swiglu.

use crate::backend::Kernel;
use crate::check::{bound_for, check_device, check_float, check_holds, check_same, describe, scalar_for};
use crate::fused::{Fused, has_kernel, run_fused};
use crate::operands::List;
use crate::ops::elementwise::compare::check_bool;
use crate::ops::{OperandGradient, all_or_each, common_shape, gradient_of, gradients, pointwise_one, row_like};
use crate::pointwise::Pointwise;
use crate::tape::{Record, Saved, record};
use crate::tensor::{Attributes, run};
use crate::{DType, Error, Result, Scalar, Tensor};
use std::iter::once;

/// Inputs `[.., H]` of any strides. The outputs have the results of the row, in order, side by side: output k has `counts[k]` of
/// them and is `[.., counts[k] H]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blocks {
    /// The row.
    pub row: Pointwise,
    /// How many results each output has.
    pub counts: &'static [usize],
    /// The attributes of the row.
    pub attributes: &'static [f64],
}

impl Fused for Blocks {
    type Inputs<T> = List<T>;
    type Outputs<T> = List<T>;

    fn name(&self) -> &'static str {
        "blocks"
    }

    fn row(&self) -> Option<Pointwise> {
        Some(self.row)
    }

    fn composite(&self, inputs: List<&Tensor>, before: List<&Tensor>) -> Result<List<Option<Tensor>>> {
        let inputs: Vec<Tensor> = inputs.into_iter().cloned().collect();
        let like = |(y, &count): (&&Tensor, &usize)| -> Result<Vec<Tensor>> {
            let one = inputs[0].zeros_like()?.cast(y.dtype())?;
            Ok(vec![one; count])
        };
        let like = before.iter().zip(self.counts).map(like).collect::<Result<Vec<_>>>()?.concat();
        let found = row_like(self.row, &inputs, &like, self.attributes)?;
        let mut rest = found.as_slice();
        let joined = |count: &usize| {
            let (block, after) = rest.split_at(*count);
            rest = after;
            Tensor::concat(&block.iter().collect::<Vec<_>>(), -1).map(Some)
        };
        self.counts.iter().map(joined).collect()
    }
}

impl Blocks {
    /// Writes the outputs, by the kernel or the composite. Outside of the tape.
    pub(crate) fn write(&self, op: &'static str, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
        if has_kernel::<Blocks>(inputs[0]) {
            return run_fused(op, self, inputs, outputs);
        }
        for (found, y) in self.composite(inputs.into(), outputs.into())?.into_iter().flatten().zip(outputs) {
            run(op, Kernel::Copy, &[&found], &[y], Attributes::default())?;
        }
        Ok(())
    }
}

/// The constants of [`Tensor::swiglu_with`]. Those of gpt-oss are 1.702, 1 and 7.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Swiglu {
    /// The factor of the gate in the sigmoid; 1 by default.
    pub alpha: f64,
    /// Added to the other factor; 0 by default.
    pub beta: f64,
    /// The largest gate, and the largest absolute value of the other factor, beyond which gradients are 0; infinity by default.
    pub limit: f64,
}

impl Default for Swiglu {
    fn default() -> Swiglu {
        let &[alpha, beta, limit] = SILU;
        Swiglu { alpha, beta, limit }
    }
}

/// The constants of a gate that is silu.
const SILU: &[f64; 3] = &[1.0, 0.0, f64::INFINITY];

/// # Several steps in one kernel
impl Tensor {
    /// `cond ? a : b` for this bool tensor; NaN of the side not selected has no effect. All broadcast. `a` and `b` share any dtype.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let (a, b) = (Tensor::arange(4, device)?, Tensor::zeros(4, DType::I64, device)?);
    /// assert_eq!(a.gt_scalar(1)?.where_cond(&a, &b)?.to_vec::<i64>()?, [0, 0, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn where_cond(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let op = "where_cond";
        check_bool(op, self)?;
        check_same(op, &[a, b])?;
        check_device(op, &[self, a])?;
        let shape = common_shape(op, &[self, a, b])?;
        let y = pointwise_one(op, Pointwise::Where, &[self, a, b], Attributes::default(), &shape, a.dtype())?;
        let (saved, a_shape, b_shape) = (Saved::input(self), a.shape().clone(), b.shape().clone());
        record(op, &[a, b], y, move |t| {
            let cond = t.get(&saved)?;
            let parts: [OperandGradient<'_>; 2] =
                [(&a_shape, Pointwise::WhereBackwardA, &[&cond]), (&b_shape, Pointwise::WhereBackwardB, &[&cond])];
            all_or_each(t, 0, (Pointwise::WhereBackward, &[&cond]), &[], &parts)
        })
    }

    /// `cond ? a : s` for this bool tensor. Operands broadcast. Errors: `Attr` if the dtype of `a` cannot hold an integer s.
    pub fn where_scalar(&self, a: &Tensor, s: impl Into<Scalar>) -> Result<Tensor> {
        let op = "where_cond";
        check_bool(op, self)?;
        check_device(op, &[self, a])?;
        let (int, float) = scalar_for(op, s.into(), a.dtype())?;
        check_holds(op, a.dtype(), int)?;
        let shape = common_shape(op, &[self, a])?;
        let attributes = Attributes { ints: &[int], floats: &[float] };
        let y = pointwise_one(op, Pointwise::WhereScalar, &[self, a], attributes, &shape, a.dtype())?;
        let (saved, a_shape) = (Saved::input(self), a.shape().clone());
        record(op, &[a], y, move |t| {
            gradients![gradient_of(t, Pointwise::WhereBackwardA, &[&t.get(&saved)?], &[], &a_shape)?]
        })
    }

    /// `min(max(x, lo), hi)`. Either bound is optional. The gradient at the bounds is 1. Float and integer dtypes. Float bounds are rounded to the
    /// dtype of x first. Errors: `Attr` if both bounds are absent, or if an integer dtype cannot hold a bound that elements would become.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(4, device)?;
    /// assert_eq!(x.clamp(Some(1.into()), None)?.to_vec::<i64>()?, [1, 1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clamp(&self, lo: Option<Scalar>, hi: Option<Scalar>) -> Result<Tensor> {
        let op = "clamp";
        if lo.is_none() && hi.is_none() {
            return Err(Error::attr(op, "both bounds are absent, expected at least one"));
        }
        check_numbers(op, self)?;
        let lo = lo.map(|s| bound_for(op, s, self.dtype())).transpose()?.unwrap_or((i64::MIN, f64::NEG_INFINITY));
        let hi = hi.map(|s| bound_for(op, s, self.dtype())).transpose()?.unwrap_or((i64::MAX, f64::INFINITY));
        let held = self.dtype().integers();
        check_holds(op, self.dtype(), lo.0.max(*held.start()))?;
        check_holds(op, self.dtype(), hi.0.min(*held.end()))?;
        let attributes = Attributes { ints: &[lo.0, hi.0], floats: &[lo.1, hi.1] };
        let y = pointwise_one(op, Pointwise::ClampScalar, &[self], attributes, self.shape(), self.dtype())?;
        let saved = Saved::input(self);
        record(op, &[self], y, move |t| {
            gradients![Some(t.row(Pointwise::ClampScalarBackward, &[t.dy(), &t.get(&saved)?], &[lo.1, hi.1])?)]
        })
    }

    /// `min(max(x, lo), hi)` with tensors as bounds, which broadcast. Float and integer dtypes.
    pub fn clamp_tensor(&self, lo: Option<&Tensor>, hi: Option<&Tensor>) -> Result<Tensor> {
        let op = "clamp";
        check_numbers(op, self)?;
        let unbounded = |bound: f64| Tensor::full((), bound, self.dtype(), self.device());
        let (lo, hi) = match (lo, hi) {
            (None, None) => return Err(Error::attr(op, "both bounds are absent, expected at least one")),
            (Some(lo), Some(hi)) => (lo.clone(), hi.clone()),
            (Some(lo), None) if !self.dtype().is_float() => return self.maximum(lo),
            (None, Some(hi)) if !self.dtype().is_float() => return self.minimum(hi),
            (Some(lo), None) => (lo.clone(), unbounded(f64::INFINITY)?),
            (None, Some(hi)) => (unbounded(f64::NEG_INFINITY)?, hi.clone()),
        };
        check_same(op, &[self, &lo, &hi])?;
        let shape = common_shape(op, &[self, &lo, &hi])?;
        let y = pointwise_one(op, Pointwise::Clamp, &[self, &lo, &hi], Attributes::default(), &shape, self.dtype())?;
        let saved = [Saved::input(self), Saved::input(&lo), Saved::input(&hi)];
        record(op, &[self, &lo, &hi], y, move |t| {
            let (x, lo, hi) = (t.get(&saved[0])?, t.get(&saved[1])?, t.get(&saved[2])?);
            let d = t.rows(Pointwise::ClampBackward, &[t.dy(), &x, &lo, &hi], &[])?;
            gradients![
                t.want(0, || d[0].sum_to_size(x.shape()))?,
                t.want(1, || d[1].sum_to_size(lo.shape()))?,
                t.want(2, || d[2].sum_to_size(hi.shape()))?,
            ]
        })
    }

    /// `s + value a b` for this tensor `s`. All broadcast. Float dtypes, and integer ones with an integer value.
    pub fn addcmul(&self, a: &Tensor, b: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
        let op = "addcmul";
        check_same(op, &[self, a, b])?;
        check_numbers(op, self)?;
        let (int, float) = scalar_for(op, value.into(), self.dtype())?;
        let shape = common_shape(op, &[self, a, b])?;
        let attributes = Attributes { ints: &[int], floats: &[float] };
        let y = pointwise_one(op, Pointwise::Addcmul, &[self, a, b], attributes, &shape, self.dtype())?;
        let (sa, sb, s_shape) = (Saved::input(a), Saved::input(b), self.shape().clone());
        record(op, &[self, a, b], y, move |t| {
            let (a, b) = (t.get(&sa)?, t.get(&sb)?);
            let row = Pointwise::AddcmulBackwardA;
            let parts: [OperandGradient<'_>; 2] = [(a.shape(), row, &[&b]), (b.shape(), row, &[&a])];
            let of_sum = t.want(0, || t.dy().sum_to_size(&s_shape))?;
            let of_product = all_or_each(t, 1, (Pointwise::AddcmulBackward, &[&a, &b]), &[float], &parts)?;
            Ok(once(of_sum.into()).chain(of_product.into_each()).collect::<Vec<_>>())
        })
    }

    /// `s + value a / b` for this tensor `s`. All broadcast. Float dtypes.
    pub fn addcdiv(&self, a: &Tensor, b: &Tensor, value: f64) -> Result<Tensor> {
        let op = "addcdiv";
        check_same(op, &[self, a, b])?;
        check_float(op, self)?;
        let shape = common_shape(op, &[self, a, b])?;
        let y =
            pointwise_one(op, Pointwise::Addcdiv, &[self, a, b], Attributes::floats(&[value]), &shape, self.dtype())?;
        let (sa, sb, s_shape) = (Saved::input(a), Saved::input(b), self.shape().clone());
        record(op, &[self, a, b], y, move |t| {
            let (a, b) = (t.get(&sa)?, t.get(&sb)?);
            let (first, second) = (Pointwise::AddcdivBackwardA, Pointwise::AddcdivBackwardB);
            let parts: [OperandGradient<'_>; 2] = [(a.shape(), first, &[&b]), (b.shape(), second, &[&a, &b])];
            let of_sum = t.want(0, || t.dy().sum_to_size(&s_shape))?;
            let of_quotient = all_or_each(t, 1, (Pointwise::AddcdivBackward, &[&a, &b]), &[value], &parts)?;
            Ok(once(of_sum.into()).chain(of_quotient.into_each()).collect::<Vec<_>>())
        })
    }

    /// `a + w (b - a)`, exact at 0 and 1, for this tensor `a`. All broadcast. Float dtypes.
    pub fn lerp(&self, b: &Tensor, w: &Tensor) -> Result<Tensor> {
        let op = "lerp";
        check_same(op, &[self, b, w])?;
        check_float(op, self)?;
        let shape = common_shape(op, &[self, b, w])?;
        let y = pointwise_one(op, Pointwise::Lerp, &[self, b, w], Attributes::default(), &shape, self.dtype())?;
        let saved = [Saved::input(self), Saved::input(b), Saved::input(w)];
        record(op, &[self, b, w], y, move |t| {
            let (a, b, w) = (t.get(&saved[0])?, t.get(&saved[1])?, t.get(&saved[2])?);
            let parts: [OperandGradient<'_>; 3] = [
                (a.shape(), Pointwise::LerpBackwardA, &[&w]),
                (b.shape(), Pointwise::Mul, &[&w]),
                (w.shape(), Pointwise::LerpBackwardW, &[&a, &b]),
            ];
            all_or_each(t, 0, (Pointwise::LerpBackward, &[&a, &b, &w]), &[], &parts)
        })
    }

    /// [`lerp`](Tensor::lerp) with one weight for all elements.
    pub fn lerp_scalar(&self, b: &Tensor, w: f64) -> Result<Tensor> {
        let op = "lerp";
        check_same(op, &[self, b])?;
        check_float(op, self)?;
        let shape = common_shape(op, &[self, b])?;
        let y = pointwise_one(op, Pointwise::LerpScalar, &[self, b], Attributes::floats(&[w]), &shape, self.dtype())?;
        let (a_shape, b_shape) = (self.shape().clone(), b.shape().clone());
        record(op, &[self, b], y, move |t| {
            gradients![
                t.want(0, || gradient_of(t, Pointwise::MulScalar, &[], &[1.0 - w], &a_shape))?,
                t.want(1, || gradient_of(t, Pointwise::MulScalar, &[], &[w], &b_shape))?,
            ]
        })
    }

    /// `silu(gate) up` for this tensor `gate`. Float dtypes. Errors: `Shape` if the shapes differ. Shazeer 2020,
    /// arXiv 2002.05202.
    pub fn swiglu(&self, up: &Tensor) -> Result<Tensor> {
        self.swiglu_with(up, &Swiglu::default())
    }

    /// `gate sigmoid(alpha gate) (up + beta)` for this tensor `gate`, of operands that are limited first. Errors: as
    /// [`swiglu`](Tensor::swiglu); `Attr` unless the limit is positive.
    pub fn swiglu_with(&self, up: &Tensor, options: &Swiglu) -> Result<Tensor> {
        let op = "swiglu";
        let Swiglu { alpha, beta, limit } = *options;
        if limit.is_nan() || limit <= 0.0 {
            return Err(Error::attr(op, format!("the limit is {limit}, expected a positive number")));
        }
        let attributes = [alpha, beta, self.dtype().rounded(limit)];
        check_same(op, &[self, up])?;
        check_float(op, self)?;
        if self.shape() != up.shape() {
            return Err(Error::shape(op, format!("gate {} and up {} must have one shape", self.shape(), up.shape())));
        }
        let floats = Attributes::floats(&attributes);
        let y = pointwise_one(op, Pointwise::Swiglu, &[self, up], floats, self.shape(), self.dtype())?;
        let (gate, up_saved) = (Saved::input(self), Saved::input(up));
        record(op, &[self, up], y, move |t| {
            let d = t.rows(Pointwise::SwigluBackward, &[t.dy(), &t.get(&gate)?, &t.get(&up_saved)?], &attributes)?;
            gradients![Some(d[0].clone()), Some(d[1].clone())]
        })
    }

    /// `silu(x[.., :H]) x[.., H:]` for `x: [.., 2H]`. Float dtypes. Errors: `Shape` if the last dimension is odd or
    /// missing.
    pub fn silu_and_mul(&self) -> Result<Tensor> {
        let op = "silu_and_mul";
        check_float(op, self)?;
        let width =
            self.dims().last().copied().filter(|d| d % 2 == 0).ok_or_else(|| {
                Error::shape(op, format!("{} was given, expected an even last dimension", self.shape()))
            })?;
        let halves = move |x: &Tensor| Ok((x.narrow(-1, 0, width / 2)?, x.narrow(-1, width / 2, width / 2)?));
        let (gate, up) = halves(self)?;
        if !has_kernel::<Blocks>(self) {
            return gate.swiglu(&up);
        }
        let y =
            pointwise_one(op, Pointwise::Swiglu, &[&gate, &up], Attributes::floats(SILU), gate.shape(), self.dtype())?;
        let composite = move |x: &[Tensor]| {
            let (gate, up) = halves(&x[0])?;
            gate.swiglu(&up)
        };
        Record::new(op, &[self]).fused(y, composite, move |t, x| {
            let (gate, up) = halves(&x[0])?;
            let dx = Tensor::allocate(op, x[0].shape(), x[0].dtype(), x[0].device())?;
            let blocks = Blocks { row: Pointwise::SwigluBackward, counts: &[2], attributes: SILU };
            run_fused(op, &blocks, [t.dy(), &gate, &up], [&dx])?;
            gradients![Some(dx)]
        })
    }
}

fn check_numbers(op: &'static str, t: &Tensor) -> Result<()> {
    match t.dtype() {
        DType::Bool => Err(Error::dtype(op, format!("{} was given, expected numbers", describe(&[t])))),
        _ => Ok(()),
    }
}
