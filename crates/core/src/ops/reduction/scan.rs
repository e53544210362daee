//! Running sums, products and extrema.

use crate::backend::{Kernel, Scan};
use crate::check::{check_float, describe};
use crate::ops::{gradients, in_acc, named};
use crate::tape::{Attribute, Saved, record, report};
use crate::tensor::{Attributes, run};
use crate::{DType, Dims, Error, Position, Result, Shape, Tensor, autocast, no_grad};
use std::cmp::Reverse;

/// The options of [`Tensor::cumsum_with`] and [`Tensor::cumprod_with`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct ScanOptions {
    /// An element is not a term of its own result.
    pub exclusive: bool,
    /// From the last element to the first.
    pub reverse: bool,
}

impl ScanOptions {
    fn ints(self) -> [i64; 2] {
        [self.reverse as i64, self.exclusive as i64]
    }

    /// The attributes of a scan along dimension `d`.
    fn attributes(self, d: usize) -> [(&'static str, Attribute); 3] {
        [("dim", d.into()), ("reverse", self.reverse.into()), ("exclusive", self.exclusive.into())]
    }
}

/// # Cumulative ops
impl Tensor {
    /// The running sum along `dim`. Integers sum to i64. Errors: `Attr` for a dimension out of range, `Dtype` for bool.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// assert_eq!(Tensor::arange(4, device)?.cumsum(0)?.to_vec::<i64>()?, [0, 1, 3, 6]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn cumsum(&self, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        self.cumsum_with(dim, &ScanOptions::default())
    }

    /// [`cumsum`](Tensor::cumsum) from either end, with or without the element itself.
    pub fn cumsum_with(&self, dim: impl Into<Position>, options: &ScanOptions) -> Result<Tensor> {
        let Position(dim) = dim.into();
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.cumsum_with(dim, options);
        }
        let op = "cumsum";
        let (d, dtype) = (self.shape().dim_for(op, dim)?, scan_dtype(op, self)?);
        if self.rank() == 0 {
            return if options.exclusive { self.mul_scalar(0)?.cast(dtype) } else { self.cast(dtype) };
        }
        let y = self.scan(op, Scan::Sum, d, dtype, options.ints())?;
        report(op, &[self], &[&y], || options.attributes(d));
        let back = ScanOptions { reverse: !options.reverse, ..*options };
        record(op, &[self], y, move |t| gradients![Some(t.dy().cumsum_with(dim, &back)?)])
    }

    /// The running product along `dim`. Out of range it is 0 or infinite, and in range again if later factors allow it. The gradient is
    /// correct even if factors are zero; its kernels are some log2 of the extent. Integers multiply to i64, outside of the tape.
    /// Errors: `Attr`; `Dtype` for bool.
    pub fn cumprod(&self, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        self.cumprod_with(dim, &ScanOptions::default())
    }

    /// [`cumprod`](Tensor::cumprod) from either end, with or without the element itself.
    pub fn cumprod_with(&self, dim: impl Into<Position>, options: &ScanOptions) -> Result<Tensor> {
        let Position(dim) = dim.into();
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.cumprod_with(dim, options);
        }
        let op = "cumprod";
        let (d, dtype) = (self.shape().dim_for(op, dim)?, scan_dtype(op, self)?);
        if self.rank() == 0 {
            return if options.exclusive { self.mul_scalar(0)?.add_scalar(1)?.cast(dtype) } else { self.cast(dtype) };
        }
        let options = *options;
        let y = self.scan(op, Scan::Prod, d, dtype, options.ints())?;
        report(op, &[self], &[&y], || options.attributes(d));
        let saved = Saved::input(self);
        record(op, &[self], y, move |t| {
            let x = t.get(&saved)?;
            gradients![Some(in_acc(t.dy(), |dy| cumprod_gradient(dy, &x.cast(dy.dtype())?, d as isize, options))?)]
        })
    }

    /// The largest element up to each along `dim`, and the last of its positions so far (i64). NaN is the largest. The gradient goes to
    /// these positions. Some log2 of the extent kernels. Float and integer dtypes. Errors: `Attr`; `Dtype` for bool.
    pub fn cummax(&self, dim: impl Into<Position>) -> Result<(Tensor, Tensor)> {
        let Position(dim) = dim.into();
        running_extremum("cummax", self, dim, Tensor::gt)
    }

    /// The smallest element up to each along `dim`, and the last of its positions so far (i64). NaN is the smallest. As
    /// [`cummax`](Tensor::cummax).
    pub fn cummin(&self, dim: impl Into<Position>) -> Result<(Tensor, Tensor)> {
        let Position(dim) = dim.into();
        running_extremum("cummin", self, dim, Tensor::lt)
    }

    /// The logarithm of the running sum of `e^x` along `dim`, without overflow. Some log2 of the extent kernels. Float dtypes. Errors:
    /// `Attr`, `Dtype`.
    pub fn logcumsumexp(&self, dim: impl Into<Position>) -> Result<Tensor> {
        let Position(dim) = dim.into();
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.logcumsumexp(dim);
        }
        let op = "logcumsumexp";
        check_float(op, self)?;
        let d = self.shape().dim_for(op, dim)?;
        if self.rank() == 0 {
            return Ok(self.clone());
        }
        named(op, &[self], || {
            in_acc(self, |x| {
                let [y] = doubled([x.clone()], d as isize, |[before], [now]| Ok([before.logaddexp(now)?]))?;
                Ok(y)
            })
        })
    }

    /// The running product along dimension `d`, outside of the tape.
    pub(crate) fn running_product(&self, d: usize, options: ScanOptions) -> Result<Tensor> {
        self.scan("prod", Scan::Prod, d, self.dtype(), options.ints())
    }

    /// Scans along dimension `d`. The dimensions of the result are in the same memory order as in `self`.
    fn scan(&self, op: &'static str, kind: Scan, d: usize, dtype: DType, ints: [i64; 2]) -> Result<Tensor> {
        let mut order: Dims = (0..self.rank()).collect();
        // Expanded dimensions, of stride 0, come first.
        order.sort_by_key(|&d| Reverse(self.layout().strides()[d].wrapping_sub(1)));
        let mut inverse = order.clone();
        order.iter().enumerate().for_each(|(k, &d)| inverse[d] = k);
        let shape = Shape::from(order.iter().map(|&d| self.dims()[d]).collect::<Dims>());
        let y = Tensor::allocate(op, &shape, dtype, self.device())?;
        let y = y.with_layout(y.layout().permute(&inverse));
        let mut order: Dims = order.iter().copied().filter(|&k| k != d).collect();
        order.push(d);
        let [from, to] = [self, &y].map(|t| t.with_layout(t.layout().permute(&order)));
        if y.numel() > 0 {
            run(op, Kernel::Scan(kind), &[&from], &[&to], Attributes::ints(&ints))?;
        }
        Ok(y)
    }
}

/// The dtype of a running sum or product: i64 for integers.
fn scan_dtype(op: &'static str, x: &Tensor) -> Result<DType> {
    match x.dtype() {
        DType::Bool => Err(Error::dtype(op, format!("{} was given, expected numbers", describe(&[x])))),
        dtype if dtype.is_float() => Ok(dtype),
        _ => Ok(DType::I64),
    }
}

/// Combines each element with all before it along dimension d. In each round an element takes what twice as many elements before it
/// have become; `combine` of parts before and after is associative.
pub(crate) fn doubled<const N: usize>(
    mut x: [Tensor; N],
    d: isize,
    combine: impl Fn([&Tensor; N], [&Tensor; N]) -> Result<[Tensor; N]>,
) -> Result<[Tensor; N]> {
    let extent = x[0].dims()[d as usize];
    let mut step = 1;
    while step < extent {
        let part = |from: usize, length: usize| -> Result<[Tensor; N]> {
            let all = x.iter().map(|t| t.narrow(d, from, length)).collect::<Result<Vec<_>>>()?;
            Ok(std::array::from_fn(|i| all[i].clone()))
        };
        let (first, before, now) = (part(0, step)?, part(0, extent - step)?, part(step, extent - step)?);
        let later = combine(before.each_ref(), now.each_ref())?;
        let all = first.iter().zip(&later).map(|(a, b)| Tensor::concat(&[a, b], d)).collect::<Result<Vec<_>>>()?;
        x = std::array::from_fn(|i| all[i].clone());
        step *= 2;
    }
    Ok(x)
}

fn running_extremum(
    op: &'static str,
    x: &Tensor,
    dim: isize,
    exceeds: fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<(Tensor, Tensor)> {
    if x.dtype() == DType::Bool {
        return Err(Error::dtype(op, format!("{} was given, expected numbers", describe(&[x]))));
    }
    let d = x.shape().dim_for(op, dim)?;
    if x.rank() == 0 {
        return Ok((x.clone(), Tensor::zeros((), DType::I64, x.device())?));
    }
    named(op, &[x], || {
        let index = no_grad(|| {
            let mut dims = vec![1; x.rank()];
            dims[d] = x.dims()[d];
            let place = Tensor::arange(dims[d], x.device())?.reshape(dims)?.broadcast_to(x.shape())?;
            let [_, index] = doubled([x.detach(), place], d as isize, |[v, i], [w, j]| {
                let exceeds = exceeds(v, w)?;
                // NaN stays, until another NaN comes.
                let is_kept = match x.dtype().is_float() {
                    true => exceeds.logical_or(&v.isnan()?)?.logical_and(&w.isnan()?.logical_not()?)?,
                    false => exceeds,
                };
                Ok([is_kept.where_cond(v, w)?, is_kept.where_cond(i, j)?])
            })?;
            index.contiguous()
        })?;
        Ok((x.gather(d as isize, &index)?, index))
    })
}

/// The gradient of a running product. With `P[k]` the product of the factors before k, it is `P[k] S[k]`, where
/// `S[k] = dy[k] + x[k + 1] S[k + 1]`; for an exclusive product `S[k] = dy[k + 1] + x[k + 1] S[k + 1]`.
fn cumprod_gradient(dy: &Tensor, x: &Tensor, d: isize, options: ScanOptions) -> Result<Tensor> {
    let ScanOptions { exclusive, reverse } = options;
    let extent = x.dims()[d as usize];
    if x.numel() == 0 {
        return Ok(dy.clone());
    }
    // In the order in which S is computed: from the end of the scan to its start.
    let turned = |t: &Tensor| if reverse { Ok(t.clone()) } else { t.flip(&[d]) };
    let later = |t: &Tensor| {
        let t = turned(t)?;
        Tensor::concat(&[&t.narrow(d, 0, 1)?.zeros_like()?, &t.narrow(d, 0, extent - 1)?], d)
    };
    let added = if exclusive { later(dy)? } else { turned(dy)? };
    // Steps S -> b + a S; two in sequence are b2 + a2 (b1 + a1 S).
    let step = |[a1, b1]: [&Tensor; 2], [a2, b2]: [&Tensor; 2]| Ok([a1.mul(a2)?, a2.mul(b1)?.add(b2)?]);
    let [_, sums] = doubled([later(x)?, added], d, step)?;
    x.cumprod_with(d, &ScanOptions { exclusive: true, reverse })?.mul(&turned(&sums)?)
}
