//! Tensors of constants and sequences.

use crate::backend::{Kernel, Scan};
use crate::tensor::{Attributes, check_holds, run, scalar_for};
use crate::{DType, Device, Layout, Result, Scalar, Shape, Tensor};

/// In a shape given to `reshape`: the extent that is inferred from the number of elements.
pub const INFER: usize = usize::MAX;

impl Tensor {
    /// Every element is `value`. Errors: `Attr` if an integer dtype cannot hold it, `Dtype` for a float in an integer
    /// dtype.
    pub fn full(shape: impl Into<Shape>, value: impl Into<Scalar>, dtype: DType, device: &Device) -> Result<Tensor> {
        filled("full", shape.into(), value.into(), dtype, device)
    }

    /// Every element is 0.
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
    pub fn arange(n: usize, device: &Device) -> Result<Tensor> {
        let op = "arange";
        let y = Tensor::allocate(op, &Shape::from(n), DType::I64, device)?;
        let one = Tensor::ones((), DType::I64, device)?;
        let ones = one.with_layout(one.layout().expand(y.shape()));
        // A running sum of ones needs no host memory.
        run(op, Kernel::Scan(Scan::Sum), &[&ones], &[&y], Attributes::ints(&[0, 1]))?;
        Ok(y)
    }

    /// The identity matrix `[n, n]`.
    pub fn eye(n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        let op = "eye";
        let t = filled(op, Shape::from((n, n)), 0.into(), dtype, device)?;
        let diagonal = t.with_layout(t.layout().reshape(&Shape::from(n * n)).unwrap_or(t.layout().clone()));
        fill(op, &diagonal.with_layout(diagonal.layout().narrow(0, 0, n, n + 1)), Scalar::Int(1))?;
        Ok(t)
    }
}

fn filled(op: &'static str, shape: Shape, value: Scalar, dtype: DType, device: &Device) -> Result<Tensor> {
    let t = Tensor::allocate(op, &shape, dtype, device)?;
    fill(op, &t, value)?;
    Ok(t)
}

/// Writes `value` to every element of a view.
pub(super) fn fill(op: &'static str, t: &Tensor, value: Scalar) -> Result<()> {
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
