//! Diffusion of features on a surface or a graph, in the basis of its Laplacian's eigenvectors.

use crate::check::{check_float, check_same, describe};
use crate::ops::in_acc;
use crate::ops::normalization::norm::in_f32;
use crate::{Error, Result, Shape, Tensor, autocast, no_autocast};

/// The first K eigenvalues and eigenvectors of a Laplacian of V points. They get no gradients.
#[derive(Clone, Copy, Debug)]
pub struct Spectrum<'a> {
    /// The eigenvalues, `[K]`.
    pub values: &'a Tensor,
    /// The eigenvectors, `[V, K]`, orthonormal in the inner product of the masses.
    pub vectors: &'a Tensor,
    /// The masses of points, `[V]`, by default 1.
    pub mass: Option<&'a Tensor>,
}

/// Times of diffusion `[T]`.
#[derive(Clone, Copy, Debug)]
pub enum Times<'a> {
    /// The times. They are read back and checked.
    Plain(&'a Tensor),
    /// Their natural logarithms, so that every value is valid.
    Log(&'a Tensor),
}

impl<'a> Times<'a> {
    fn tensor(self) -> &'a Tensor {
        match self {
            Times::Plain(t) | Times::Log(t) => t,
        }
    }

    fn checked(self, op: &'static str) -> Result<Times<'a>> {
        if let Times::Plain(t) = self
            && t.numel() > 0
        {
            let least = t.detach().amin(..)?.item::<f64>()?;
            if least < 0.0 {
                return Err(Error::value(op, format!("a time is {least}, expected 0 or more")));
            }
        }
        Ok(self)
    }
}

/// # Spectral ops on graphs
impl Tensor {
    /// Diffuses features x `[V, C]` or `[B, V, C]` for each time, and maps the results linearly: `y = [D_1 .. D_T] weight^T + bias`,
    /// `[.., V, O]`, where `D_t = vectors (e^(-values t) * (vectors^T (mass * x)))`. The weight is `[O, T C]`: column `t C + c` is of
    /// time t and feature c; the bias is `[O]`. All have the dtype of x. Float dtypes; arithmetic in the accumulation dtype. Errors:
    /// `Shape`, `Dtype`; `Value` for a negative time. Sharp et al. 2022, arXiv:2012.00888.
    pub fn diffusion_conv(
        &self,
        spectrum: Spectrum<'_>,
        times: Times<'_>,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let op = "diffusion_conv";
        let Spectrum { values, vectors, mass } = spectrum;
        if let Some(([x, values, vectors, t, weight], bias)) =
            autocast::wide([self, values, vectors, times.tensor(), weight], bias)?
        {
            let mass = in_f32(mass)?;
            let spectrum = Spectrum { values: &values, vectors: &vectors, mass: mass.as_ref() };
            let times = if matches!(times, Times::Log(_)) { Times::Log(&t) } else { Times::Plain(&t) };
            return no_autocast(|| x.diffusion_conv(spectrum, times, &weight, bias.as_ref()));
        }
        let all: Vec<&Tensor> =
            [self, values, vectors, times.tensor(), weight].into_iter().chain(mass).chain(bias).collect();
        check_float(op, self)?;
        check_same(op, &all)?;
        check_shapes(op, self, &spectrum, times.tensor(), weight, bias)?;
        let times = times.checked(op)?;
        no_autocast(|| in_acc(self, |x| diffused(x, &spectrum, times, weight, bias)))
    }
}

fn check_shapes(
    op: &'static str,
    x: &Tensor,
    spectrum: &Spectrum<'_>,
    times: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<()> {
    let Spectrum { values, vectors, mass } = spectrum;
    let is_whole = matches!(x.rank(), 2 | 3) && values.rank() == 1 && vectors.rank() == 2 && times.rank() == 1;
    let fits = is_whole && weight.rank() == 2 && {
        let [points, features] = [x.rank() - 2, x.rank() - 1].map(|d| x.dims()[d]);
        vectors.dims() == [points, values.numel()]
            && mass.is_none_or(|mass| mass.dims() == [points])
            && weight.dims()[1] == times.numel() * features
            && bias.is_none_or(|bias| bias.dims() == [weight.dims()[0]])
    };
    if fits {
        return Ok(());
    }
    let all: Vec<&Tensor> = [x, values, vectors, times, weight].into_iter().chain(*mass).chain(bias).collect();
    let expected =
        "expected x [.., V, C], values [K], vectors [V, K], times [T], the weight [O, T C], masses [V] and a bias [O]";
    Err(Error::shape(op, format!("{}: {expected}", describe(&all))))
}

/// The composite, for x in an accumulation dtype.
fn diffused(
    x: &Tensor,
    spectrum: &Spectrum<'_>,
    times: Times<'_>,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    // Strides would change the order of the products' sums.
    let (x, wide) = (&x.contiguous()?, |t: &Tensor| t.cast(x.dtype())?.contiguous());
    let (values, vectors) = (wide(&spectrum.values.detach())?, wide(&spectrum.vectors.detach())?);
    let times = match times {
        Times::Plain(t) => wide(t)?,
        Times::Log(t) => wide(t)?.exp()?,
    };
    let weighed = match spectrum.mass {
        Some(mass) => x.mul(&wide(&mass.detach())?.unsqueeze(1)?)?,
        None => x.clone(),
    };
    // [.., K, C], then [.., K, T, C], so that one product returns to points for all times.
    let spectral = vectors.t()?.matmul(&weighed)?;
    let decay = values.unsqueeze(1)?.mul(&times.unsqueeze(0)?)?.neg()?.exp()?;
    let decayed = spectral.unsqueeze(-2)?.mul(&decay.unsqueeze(-1)?)?;
    let mut dims = x.dims().to_vec();
    let rank = dims.len();
    (dims[rank - 2], dims[rank - 1]) = (values.numel(), times.numel() * x.dims()[rank - 1]);
    let found = vectors.matmul(&decayed.reshape(Shape::new(&dims))?)?;
    found.linear(&wide(weight)?, bias.map(wide).transpose()?.as_ref())
}
