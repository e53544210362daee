//! Softmax and its logarithm.

use super::fused::{has_kernel, record_fused};
use super::{gradients, in_acc};
use crate::backend::{Fused, Kernel};
use crate::tape::Saved;
use crate::tensor::{Attributes, check_float, run};
use crate::{Result, Tensor, autocast};

/// Which of the two.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Plain,
    Logarithm,
}

impl Tensor {
    /// `e^x / sum(e^x)` along `dim`, without overflow. Float dtypes. NaN where the slice has NaN or +inf, or is all -inf.
    /// Errors: `Attr` for a dimension out of range.
    pub fn softmax(&self, dim: isize) -> Result<Tensor> {
        softmax("softmax", self, dim, Form::Plain)
    }

    /// `ln softmax(x)` along `dim`. Float dtypes. Errors: `Attr`.
    pub fn log_softmax(&self, dim: isize) -> Result<Tensor> {
        softmax("log_softmax", self, dim, Form::Logarithm)
    }
}

fn softmax(op: &'static str, x: &Tensor, dim: isize, form: Form) -> Result<Tensor> {
    if let Some(([x], _)) = autocast::wide([x], None)? {
        return softmax(op, &x, dim, form);
    }
    check_float(op, x)?;
    let d = x.shape().dim_for(op, dim)?;
    if !has_kernel(Fused::Softmax, x) || x.rank() == 0 {
        return composite(x, dim, form);
    }
    let x = x.contiguous()?;
    let (outer, inner): (usize, usize) = (x.dims()[..d].iter().product(), x.dims()[d + 1..].iter().product());
    let ints = [outer, x.dims()[d], inner, (form == Form::Logarithm) as usize].map(|v| v as i64);
    let y = Tensor::allocate(op, x.shape(), x.dtype(), x.device())?;
    run(op, Kernel::Fused(Fused::Softmax), &[&x], &[&y], Attributes::ints(&ints))?;
    let saved = Saved::output(&y);
    record_fused(
        op,
        &[&x],
        y,
        move |x| composite(&x[0], dim, form),
        move |t, _| {
            let (dy, y) = (t.dy().contiguous()?, t.get(&saved)?);
            let dx = Tensor::allocate(op, y.shape(), y.dtype(), y.device())?;
            run(op, Kernel::Fused(Fused::SoftmaxBackward), &[&dy, &y], &[&dx], Attributes::ints(&ints))?;
            gradients![Some(dx)]
        },
    )
}

/// What the kernel computes, in tensor ops.
fn composite(x: &Tensor, dim: isize, form: Form) -> Result<Tensor> {
    in_acc(x, |x| {
        let z = shifted(x, dim)?;
        let e = z.exp()?;
        let sum = e.sum_keepdim(dim)?;
        if form == Form::Plain { e.div(&sum) } else { z.sub(&sum.log()?) }
    })
}

/// `x - max(x)`; the maximum is a constant, since the result does not depend on it.
fn shifted(x: &Tensor, dim: isize) -> Result<Tensor> {
    if x.numel() == 0 { Ok(x.clone()) } else { x.sub(&x.detach().amax_keepdim(dim)?) }
}
