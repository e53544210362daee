//! Divisions by norms.

use crate::check::{check_float, describe};
use crate::ops::{AvgPool, in_acc, in_acc_of, named};
use crate::{Error, Position, Result, Shape, Tensor, autocast};

/// The options of [`Tensor::local_response_norm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalResponse {
    /// The number of channels of a sum.
    pub size: usize,
    /// The factor of the mean square.
    pub alpha: f64,
    /// The exponent.
    pub beta: f64,
    /// The term that is added.
    pub k: f64,
}

impl LocalResponse {
    /// PyTorch's defaults: alpha 1e-4, beta 0.75, k 1.
    pub fn new(size: usize) -> LocalResponse {
        LocalResponse { size, alpha: 1e-4, beta: 0.75, k: 1.0 }
    }
}

/// # Normalisation by a norm
impl Tensor {
    /// Vectors along `dim` divided by their [`norm`](Tensor::norm) of order p, or by `eps` if that is larger. Float dtypes. Errors:
    /// `Attr`, `Dtype`.
    pub fn normalize(&self, p: f64, dim: impl Into<Position>, eps: f64) -> Result<Tensor> {
        let Position(dim) = dim.into();
        let op = "normalize";
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.normalize(p, dim, eps);
        }
        check_float(op, self)?;
        let d = self.shape().dim_for(op, dim)?;
        named(op, &[self], || {
            in_acc(self, |x| {
                let norm = x.norm(p, dim)?;
                let norm = if x.rank() == 0 { norm } else { norm.unsqueeze(d as isize)? };
                x.div(&norm.clamp(Some(eps.into()), None)?)
            })
        })
    }

    /// Elements of `[N, C, ..]` divided by `(k + alpha m)^beta`, where m is the sum of squares of the `size` nearest channels over
    /// `size`. Float dtypes. Errors: `Dtype`; `Attr` for a size of 0; `Shape` below rank 3. Krizhevsky et al. 2012, section 3.3.
    pub fn local_response_norm(&self, options: &LocalResponse) -> Result<Tensor> {
        let op = "local_response_norm";
        if let Some(([x], _)) = autocast::wide([self], None)? {
            return x.local_response_norm(options);
        }
        check_float(op, self)?;
        let LocalResponse { size, alpha, beta, k } = *options;
        if size == 0 {
            return Err(Error::attr(op, "size is 0, expected at least 1"));
        }
        if self.rank() < 3 {
            return Err(Error::shape(op, format!("{} was given, expected [N, C, ..]", describe(&[self]))));
        }
        if self.numel() == 0 {
            return Ok(self.clone());
        }
        let (batch, channels) = (self.dims()[0], self.dims()[1]);
        named(op, &[self], || {
            in_acc(self, |x| {
                let squares = x.square()?.reshape((batch, 1, channels, x.numel() / batch / channels))?;
                let window = AvgPool {
                    stride: [1, 1],
                    padding: [size / 2, 0],
                    padding_end: Some([(size - 1) / 2, 0]),
                    ..AvgPool::new([size, 1])
                };
                let mean = squares.avg_pool2d(&window)?.reshape(x.shape())?;
                x.div(&mean.mul_scalar(alpha)?.add_scalar(k)?.pow_scalar(beta)?)
            })
        })
    }

    /// A weight of this direction and of size g: `g v / |v|`, with a norm over all dimensions but `dim`, where g has extents of 1, or
    /// over all of them for `None`. Float dtypes. The gradient of v at 0 is NaN. Errors: `Attr`, `Dtype`, `Shape`. Salimans and Kingma
    /// 2016, arXiv 1602.07868.
    pub fn weight_norm(&self, g: &Tensor, dim: Option<isize>) -> Result<Tensor> {
        let op = "weight_norm";
        if let Some(([v, g], _)) = autocast::wide([self, g], None)? {
            return v.weight_norm(&g, dim);
        }
        check_float(op, self)?;
        let norm_shape = self.weight_norm_shape(op, dim)?;
        if g.shape() != &norm_shape {
            let message = format!("g must be {norm_shape} for v and g {}", describe(&[self, g]));
            return Err(Error::shape(op, message));
        }
        if self.numel() == 0 {
            return named(op, &[self, g], || self.mul(g));
        }
        named(op, &[self, g], || in_acc_of(op, [self, g], |[v, g]| v.mul(&g.div(&v.norm_but(dim)?)?)))
    }

    /// The norm of a weight over all dimensions but `dim`, which stay with extents of 1: the g of
    /// [`weight_norm`](Tensor::weight_norm) that leaves the weight as it is. Errors: `Attr`, `Dtype`.
    pub fn norm_but(&self, dim: Option<isize>) -> Result<Tensor> {
        let op = "norm_but";
        let shape = self.weight_norm_shape(op, dim)?;
        let d = dim.map(|dim| self.shape().dim_for(op, dim)).transpose()?;
        let axes: Vec<isize> = (0..self.rank()).filter(|&k| Some(k) != d).map(|k| k as isize).collect();
        let norm = if axes.is_empty() { self.abs() } else { self.l2_norm(axes) };
        norm.and_then(|norm| norm.reshape(shape)).map_err(|e| e.of(op))
    }

    fn weight_norm_shape(&self, op: &'static str, dim: Option<isize>) -> Result<Shape> {
        let Some(dim) = dim else { return Ok(Shape::from(())) };
        let d = self.shape().dim_for(op, dim)?;
        let extents = self.dims().iter().enumerate().map(|(k, &n)| if k == d { n } else { 1 });
        Ok(Shape::from(extents.collect::<Vec<usize>>()))
    }
}
