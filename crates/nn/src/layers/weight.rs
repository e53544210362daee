//! Weights that are computed from parameters: a layer is built from such a weight in each step.

use crate::{Init, Mode, Module};
use isograd_core::{Error, Result, Tensor, no_grad};

/// A weight of a direction v and a size g: `g v / |v|`. Salimans and Kingma 2016, arXiv 1602.07868.
///
/// ```
/// # use isograd_core::{DType, Device, Result, Tensor};
/// # use isograd_nn::{Forward, Init, Linear, WeightNorm};
/// # use isograd_cpu as _;
/// # fn main() -> Result<()> {
/// let device = Device::cpu()?;
/// let linear = Linear::new(3, 2, &Init::new(&device))?;
/// let norm = WeightNorm::new(&linear.weight, Some(0))?;
/// let x = Tensor::ones((1, 3), DType::F32, &device)?;
/// let y = Linear { weight: norm.weight()?, bias: linear.bias.clone() }.forward(&x)?;
/// # assert_eq!(y.dims(), [1, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Module)]
pub struct WeightNorm {
    /// The size: extents of 1 in all dimensions but one, or a scalar.
    #[module(name = "weight_g")]
    pub g: Tensor,
    /// The direction, in the weight's shape.
    #[module(name = "weight_v")]
    pub v: Tensor,
    #[module(skip)]
    dim: Option<isize>,
}

impl WeightNorm {
    /// Parameters that give this weight. Norms are over all dimensions but `dim` (PyTorch's default is 0), or over all of them. Errors:
    /// `Attr`, `Dtype`.
    pub fn new(weight: &Tensor, dim: Option<isize>) -> Result<WeightNorm> {
        let (g, v) = no_grad(|| Ok::<_, Error>((weight.detach().norm_but(dim)?.copy()?, weight.detach().copy()?)))?;
        Ok(WeightNorm { g: g.require_grad()?, v: v.require_grad()?, dim })
    }

    /// The weight, with gradients of both parameters. Errors: `OutOfMemory`.
    pub fn weight(&self) -> Result<Tensor> {
        self.v.weight_norm(&self.g, self.dim)
    }
}

/// A weight over its largest singular value, which is estimated by power iteration: in training, each call of
/// [`weight`](SpectralNorm::weight) takes one step. Miyato et al. 2018, arXiv 1802.05957.
#[derive(Debug, Module)]
pub struct SpectralNorm {
    /// The parameter.
    #[module(name = "weight_orig")]
    pub original: Tensor,
    /// The estimate of the left singular vector.
    #[module(name = "weight_u")]
    u: Tensor,
    /// The estimate of the right singular vector.
    #[module(name = "weight_v")]
    v: Tensor,
    mode: Mode,
}

/// The least norm of a vector that is divided by it.
const EPS: f64 = 1e-12;

impl SpectralNorm {
    /// For a weight `[out, ..]`, which counts as a matrix of `out` rows. The vectors begin random, and take 15 steps. Errors: `Shape`
    /// below rank 2.
    pub fn new(weight: &Tensor, init: &Init) -> Result<SpectralNorm> {
        if weight.rank() < 2 {
            let message = format!("the weight is {}, expected two dimensions or more", weight.shape());
            return Err(Error::shape("spectral_norm", message));
        }
        let (rows, columns) = (weight.dims()[0], weight.numel() / weight.dims()[0].max(1));
        let vector = |n: usize| init.normal(n, 0.0, 1.0)?.detach().normalize(2.0, 0, EPS)?.cast(weight.dtype());
        let norm = no_grad(|| {
            let original = weight.detach().copy()?.require_grad()?;
            Ok::<_, Error>(SpectralNorm { original, u: vector(rows)?, v: vector(columns)?, mode: Mode::default() })
        })?;
        (0..15).try_for_each(|_| norm.step())?;
        Ok(norm)
    }

    /// The parameter as a matrix.
    fn matrix(&self) -> Result<Tensor> {
        self.original.reshape((self.u.numel(), self.v.numel()))
    }

    /// A step of the power iteration.
    fn step(&self) -> Result<()> {
        no_grad(|| {
            let matrix = self.matrix()?.detach();
            let u = matrix.matmul(&self.v)?.normalize(2.0, 0, EPS)?;
            self.u.copy_(&u)?;
            self.v.copy_(&matrix.t()?.matmul(&self.u)?.normalize(2.0, 0, EPS)?)
        })
    }

    /// The weight, in the parameter's shape. Errors: `OutOfMemory`.
    pub fn weight(&self) -> Result<Tensor> {
        if self.mode.is_training() {
            self.step()?;
        }
        // Copies, because the next step changes the vectors.
        let (u, v) = (self.u.copy()?, self.v.copy()?);
        let sigma = self.matrix()?.matmul(&v)?.mul(&u)?.sum(..)?;
        self.original.div(&sigma)
    }
}
