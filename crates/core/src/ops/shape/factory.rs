//! Tensors of constants and sequences.

use crate::backend::{Kernel, Scan};
use crate::check::{check_holds, scalar_for};
use crate::tensor::{Attributes, run};
use crate::{DType, Device, Error, Layout, Result, Scalar, Shape, Tensor, bf16, f16, host};

/// In a shape given to `reshape`: the extent that is inferred from the number of elements.
pub const INFER: usize = usize::MAX;

/// # New tensors
impl Tensor {
    /// Every element is `value`. Errors: `Attr` if an integer dtype cannot hold it, `Dtype` for a float in an integer
    /// dtype.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::full((2, 2), 7, DType::I64, device)?;
    /// assert_eq!(x.to_vec::<i64>()?, [7; 4]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn full(shape: impl Into<Shape>, value: impl Into<Scalar>, dtype: DType, device: &Device) -> Result<Tensor> {
        filled("full", shape.into(), value.into(), dtype, device)
    }

    /// Every element is 0.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::zeros((2, 3), DType::F32, device)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0; 6]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn zeros(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        filled("zeros", shape.into(), 0.into(), dtype, device)
    }

    /// Every element is 1.
    pub fn ones(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        filled("ones", shape.into(), 1.into(), dtype, device)
    }

    /// [`full`](Tensor::full) with this tensor's shape, dtype and device.
    pub fn full_like(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        let y = Tensor::full(self.shape(), value, self.dtype(), self.device())?;
        let is_last = self.is_channels_last();
        Ok(if is_last { y.with_layout(Layout::channels_last(self.shape().clone())) } else { y })
    }

    /// [`zeros`](Tensor::zeros) with this tensor's shape, dtype and device.
    pub fn zeros_like(&self) -> Result<Tensor> {
        self.full_like(0)
    }

    /// [`ones`](Tensor::ones) with this tensor's shape, dtype and device.
    pub fn ones_like(&self) -> Result<Tensor> {
        self.full_like(1)
    }

    /// `0, 1, .., n - 1` as i64.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// assert_eq!(Tensor::arange(4, device)?.to_vec::<i64>()?, [0, 1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn arange(n: usize, device: &Device) -> Result<Tensor> {
        let op = "arange";
        let y = Tensor::allocate(op, &Shape::from(n), DType::I64, device)?;
        let one = Tensor::ones((), DType::I64, device)?;
        let ones = one.with_layout(one.layout().expand(y.shape()));
        // A running sum of ones needs no host memory.
        run(op, Kernel::Scan(Scan::Sum), &[&ones], &[&y], Attributes::ints(&[0, 1]))?;
        Ok(y)
    }

    /// `start, start + step, ..` up to, but without, `end`. Floats are computed on the host, in f64, and rounded once. Errors: `Attr` for
    /// a step of 0 or numbers that are not finite; `Dtype` for floats in an integer dtype, and for bool.
    pub fn arange_with(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let op = "arange";
        let ends = [start.into(), end.into(), step.into()];
        let too_many = |n: String| Error::shape(op, format!("{n} elements are more than memory can address"));
        if dtype.is_float() {
            let [start, end, step] = ends.map(Scalar::as_f64);
            check_finite(op, &[("start", start), ("end", end), ("step", step)])?;
            check_step(op, step == 0.0)?;
            let count = ((end - start) / step).ceil().max(0.0);
            if count > usize::MAX as f64 / 16.0 {
                return Err(too_many(count.to_string()));
            }
            return sequence(op, count as usize, dtype, device, |i| start + i as f64 * step);
        }
        let [start, end, step] = ends.map(|v| scalar_for(op, v, dtype).map(|(int, _)| int));
        let (start, end, step) = (start?, end?, step?);
        check_step(op, step == 0)?;
        let span = if step > 0 { end as i128 - start as i128 } else { start as i128 - end as i128 };
        let size = step.unsigned_abs() as i128;
        let count = (span.max(0) + size - 1) / size;
        let count = usize::try_from(count).map_err(|_| too_many(count.to_string()))?;
        if count > 0 {
            let last = start as i128 + (count as i128 - 1) * step as i128;
            check_holds(op, dtype, start)?;
            check_holds(op, dtype, last as i64)?;
        }
        let sequence = Tensor::arange(count, device)?.mul_scalar(step)?.add_scalar(start)?;
        if dtype == DType::Bool {
            return Err(Error::dtype(op, "bool was asked for, expected numbers"));
        }
        sequence.cast(dtype)
    }

    /// `steps` numbers at equal distances, of which the first is `start` and the last is `end`. Float dtypes. The numbers are computed on
    /// the host, in f64, and rounded once. Errors: `Attr` unless both ends are finite; `Dtype`.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::linspace(0.0, 1.0, 5, DType::F32, device)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn linspace(start: f64, end: f64, steps: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        let op = "linspace";
        check_finite(op, &[("start", start), ("end", end)])?;
        sequence(op, steps, dtype, device, |i| between(start, end, steps, i))
    }

    /// `base` to the powers of [`linspace`](Tensor::linspace). Errors: as there, and `Attr` for a base that is not finite.
    pub fn logspace(start: f64, end: f64, steps: usize, base: f64, dtype: DType, device: &Device) -> Result<Tensor> {
        let op = "logspace";
        check_finite(op, &[("start", start), ("end", end), ("base", base)])?;
        sequence(op, steps, dtype, device, |i| base.powf(between(start, end, steps, i)))
    }

    /// The identity matrix `[n, n]`.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// assert_eq!(Tensor::eye(2, DType::F32, device)?.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn eye(n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        let op = "eye";
        let t = filled(op, Shape::from((n, n)), 0.into(), dtype, device)?;
        let diagonal = t.with_layout(t.layout().reshape(&Shape::from(n * n)).unwrap_or(t.layout().clone()));
        fill(op, &diagonal.with_layout(diagonal.layout().narrow(0, 0, n, n + 1)), Scalar::Int(1))?;
        Ok(t)
    }
}

/// Number i of `steps` numbers from `start` to `end`. The second half is computed from the end, so that the last number is exact.
fn between(start: f64, end: f64, steps: usize, i: usize) -> f64 {
    let step = (end - start) / (steps.max(2) - 1) as f64;
    if i < steps.div_ceil(2) { start + i as f64 * step } else { end - (steps - 1 - i) as f64 * step }
}

fn check_finite(op: &'static str, numbers: &[(&str, f64)]) -> Result<()> {
    match numbers.iter().find(|(_, v)| !v.is_finite()) {
        Some((name, v)) => Err(Error::attr(op, format!("{name} is {v}, expected a finite number"))),
        None => Ok(()),
    }
}

fn check_step(op: &'static str, is_zero: bool) -> Result<()> {
    if is_zero { Err(Error::attr(op, "the step is 0")) } else { Ok(()) }
}

/// A vector of `n` floats, each rounded once from f64.
fn sequence(op: &'static str, n: usize, dtype: DType, device: &Device, f: impl Fn(usize) -> f64) -> Result<Tensor> {
    let all = (0..n).map(f);
    let made = match dtype {
        DType::F64 => Tensor::from_vec(host::collect(op, all)?, n, device),
        DType::F32 => Tensor::from_vec(host::collect(op, all.map(|v| v as f32))?, n, device),
        DType::F16 => Tensor::from_vec(host::collect(op, all.map(f16::from_f64))?, n, device),
        DType::BF16 => Tensor::from_vec(host::collect(op, all.map(bf16::from_f64))?, n, device),
        _ => Err(Error::dtype(op, format!("{dtype} was asked for, expected a float dtype"))),
    };
    made.map_err(|e| e.of(op))
}

fn filled(op: &'static str, shape: Shape, value: Scalar, dtype: DType, device: &Device) -> Result<Tensor> {
    let t = Tensor::allocate(op, &shape, dtype, device)?;
    fill(op, &t, value)?;
    Ok(t)
}

/// Writes `value` to every element of a view.
pub(crate) fn fill(op: &'static str, t: &Tensor, value: Scalar) -> Result<()> {
    let (int, float) = match (value, t.dtype().is_float()) {
        (_, true) => (0, value.as_f64()),
        (Scalar::Int(v), false) => (v, 0.0),
        _ => scalar_for(op, value, t.dtype())?,
    };
    check_holds(op, t.dtype(), int)?;
    if t.numel() == 0 {
        return Ok(());
    }
    run(op, Kernel::Fill, &[], &[t], Attributes { ints: &[int], floats: &[float] })
}
