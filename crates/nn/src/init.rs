//! Initial values of parameters.

use crate::number::{Checks, Range};
use isograd_core::{DType, Device, Error, Result, Rng, Shape, Tensor};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Creates parameters: device, dtype, and the generator that a model's layers share.
///
/// ```
/// # use isograd_core::{DType, Device};
/// # use isograd_nn::{Init, Linear};
/// # use isograd_cpu as _;
/// # fn main() -> isograd_core::Result<()> {
/// let init = Init::new(&Device::cpu()?).seed(42);
/// let layer = Linear::new(64, 10, &init)?;
/// // The same numbers, rounded, on any device.
/// let half = Linear::new(64, 10, &Init::new(&Device::best()?).seed(42).dtype(DType::BF16))?;
/// assert!(half.weight.allclose(&layer.weight, 0.01, 1e-6)?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Init {
    device: Device,
    dtype: DType,
    rng: Rng,
    is_last: bool,
    across: Option<Arc<dyn Across>>,
    keeper: Option<Arc<dyn Keeper>>,
    /// The elements that parameters may still have, whose values come from a file.
    loaded: Option<Arc<AtomicUsize>>,
}

/// The elements that count for a parameter beside its own.
const EACH: usize = 1 << 10;
/// The elements that parameters may have beyond those of a file: in tables that are computed, say.
const BEYOND: usize = 1 << 26;

/// The place where a model's parameters are kept, instead of tensors of their own.
pub trait Keeper: Debug + Send + Sync {
    /// The tensor that takes the place of initial values: a parameter is a leaf of it.
    fn keep(&self, values: Tensor) -> Result<Tensor>;
}

/// A sum over the processes or threads that compute parts of one batch.
pub trait Across: Debug + Send + Sync {
    /// The sum of their tensors x, with its gradient.
    fn sum(&self, x: &Tensor) -> Result<Tensor>;
}

/// The gain of a nonlinearity: the factor by which initial weights compensate its shrinking of the input.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Gain {
    /// 1.
    Linear,
    /// 5/3.
    Tanh,
    /// sqrt(2).
    Relu,
    /// sqrt(2 / (1 + slope^2)).
    LeakyRelu(f64),
    /// 3/4.
    Selu,
    /// 1.
    Sigmoid,
    /// Any number.
    Value(f64),
}

/// The number of a unit's neighbours that divides the variance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fan {
    /// Inputs: activations keep their variance.
    #[default]
    In,
    /// Outputs: gradients keep their variance.
    Out,
}

impl Gain {
    /// The factor of the deviation, as PyTorch's `calculate_gain`.
    pub fn value(self) -> f64 {
        match self {
            Gain::Linear | Gain::Sigmoid => 1.0,
            Gain::Tanh => 5.0 / 3.0,
            Gain::Relu => 2f64.sqrt(),
            Gain::LeakyRelu(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
            Gain::Selu => 0.75,
            Gain::Value(gain) => gain,
        }
    }
}

impl Fan {
    fn of(self, op: &'static str, shape: &Shape) -> Result<f64> {
        let (input, output) = fans(op, shape)?;
        Ok(match self {
            Fan::In => input,
            Fan::Out => output,
        })
    }
}

impl Init {
    /// f32 parameters on `device` from seed 0.
    pub fn new(device: &Device) -> Init {
        Init {
            device: device.clone(),
            dtype: DType::F32,
            rng: Rng::new(0),
            is_last: false,
            across: None,
            keeper: None,
            loaded: None,
        }
    }

    /// Starts a new generator from `seed`.
    pub fn seed(self, seed: u64) -> Init {
        Init { rng: Rng::new(seed), ..self }
    }

    /// Sets the dtype of parameters. All dtypes start from the same values, rounded.
    pub fn dtype(self, dtype: DType) -> Init {
        Init { dtype, ..self }
    }

    /// Weights of three or more dimensions, as convolutions have them, get their channels last in memory, and convolutions then give
    /// this order to their results. It is the fast one in 16 bits. All orders start from the same values.
    pub fn channels_last(self) -> Init {
        Init { is_last: true, ..self }
    }

    /// Batch normalisations in training take mean and variance of the parts of a batch that all processes have. A
    /// [`BatchNorm`](crate::BatchNorm) takes those of its own part otherwise.
    pub fn across(self, across: impl Across + 'static) -> Init {
        Init { across: Some(Arc::new(across)), ..self }
    }

    /// The processes of [`across`](Init::across).
    pub(crate) fn processes(&self) -> Option<Arc<dyn Across>> {
        self.across.clone()
    }

    /// Parameters are kept by `keeper`, from the moment when they have their initial values.
    pub fn kept_by(self, keeper: impl Keeper + 'static) -> Init {
        Init { keeper: Some(Arc::new(keeper)), ..self }
    }

    /// Parameters get their values from a file with tensors of these shapes: they are 0 until then, and nothing is drawn. Together they may not
    /// have many more elements than the file, so that options that do not belong to it are an error before they fill the memory.
    pub fn loading<'a>(self, shapes: impl IntoIterator<Item = &'a Shape>) -> Init {
        let size = |shape: &Shape| shape.dims().iter().fold(1usize, |n, &d| n.saturating_mul(d)).saturating_add(EACH);
        let all = shapes.into_iter().map(size).fold(BEYOND, usize::saturating_add);
        Init { loaded: Some(Arc::new(AtomicUsize::new(all))), ..self }
    }

    /// Counts the elements of a parameter or a table, if parameters are loaded. Errors: `Value` if these are more than a file has.
    pub fn count(&self, shape: &Shape) -> Result<()> {
        let Some(left) = &self.loaded else { return Ok(()) };
        let size = shape.dims().iter().try_fold(1usize, |n, &d| n.checked_mul(d)).and_then(|n| n.checked_add(EACH));
        let spend = |left: usize| size.and_then(|size| left.checked_sub(size));
        let spent = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend);
        spent.map(drop).map_err(|_| {
            let message = format!("a parameter of shape {shape} is more than what the file of the weights has");
            Error::value("init", message)
        })
    }

    /// A parameter with values that are drawn, or loaded later.
    fn drawn(&self, shape: &Shape, draw: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        self.count(shape)?;
        self.leaf(if self.loaded.is_some() { Tensor::zeros(shape, self.dtype, &self.device)? } else { draw()? })
    }

    /// A parameter.
    fn leaf(&self, values: Tensor) -> Result<Tensor> {
        let values = if self.is_last && values.rank() > 2 { values.to_channels_last()? } else { values };
        match &self.keeper {
            Some(keeper) => keeper.keep(values)?.require_grad(),
            None => values.require_grad(),
        }
    }

    /// The device of the parameters.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The generator, from which dropout layers draw too.
    pub fn rng(&self) -> &Rng {
        &self.rng
    }

    /// The dtype of the parameters.
    pub fn parameter_dtype(&self) -> DType {
        self.dtype
    }

    /// Every element is `value`. Errors: `Attr` unless it is finite in the dtype.
    pub fn constant(&self, shape: impl Into<Shape>, value: f64) -> Result<Tensor> {
        self.check("constant", &[("value", value, Range::Finite)])?;
        let shape = shape.into();
        self.drawn(&shape, || Tensor::full(&shape, value, self.dtype, &self.device))
    }

    /// Every element is 0.
    pub fn zeros(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.constant(shape, 0.0)
    }

    /// Every element is 1.
    pub fn ones(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.constant(shape, 1.0)
    }

    /// Uniform in `[lo, hi)`. Errors: `Attr` unless both are finite in the dtype and in order.
    pub fn uniform(&self, shape: impl Into<Shape>, lo: f64, hi: f64) -> Result<Tensor> {
        self.check("uniform", &[("lo", lo, Range::Finite), ("hi", hi, Range::Finite)])?;
        let shape = shape.into();
        self.drawn(&shape, || Tensor::rand(&shape, lo, hi, self.dtype, &self.device, &self.rng))
    }

    /// Normal. Errors: `Attr` unless mean and deviation are finite in the dtype, and `std >= 0`.
    pub fn normal(&self, shape: impl Into<Shape>, mean: f64, std: f64) -> Result<Tensor> {
        self.check("normal", &[("mean", mean, Range::Finite), ("std", std, Range::AtLeast0)])?;
        let shape = shape.into();
        self.drawn(&shape, || Tensor::randn(&shape, mean, std, self.dtype, &self.device, &self.rng))
    }

    /// Normal, redrawn where outside of `[lo, hi]`; the bounds may be infinite. Computed on the host. Errors: `Attr` unless `lo <
    /// hi` and mean and deviation are as for [`normal`](Init::normal), or if the interval has almost no probability.
    pub fn truncated_normal(&self, shape: impl Into<Shape>, mean: f64, std: f64, lo: f64, hi: f64) -> Result<Tensor> {
        const ROUNDS: usize = 1000;
        let op = "truncated_normal";
        self.check(op, &[("mean", mean, Range::Finite), ("std", std, Range::AtLeast0)])?;
        if lo.is_nan() || hi.is_nan() || lo >= hi {
            return Err(Error::attr(op, format!("the range is {lo}..={hi}, expected lo < hi")));
        }
        let shape = shape.into();
        self.drawn(&shape, || {
            let n = shape.numel();
            let mut values = Vec::with_capacity(n);
            for _ in 0..ROUNDS {
                if values.len() == n {
                    break;
                }
                let drawn = Tensor::randn(n, mean, std, DType::F64, &self.device, &self.rng)?.to_vec::<f64>()?;
                values.extend(drawn.into_iter().filter(|v| (lo..=hi).contains(v)).take(n - values.len()));
            }
            if values.len() < n {
                let message = format!("a normal of mean {mean} and std {std} hardly ever lies in {lo}..={hi}");
                return Err(Error::attr(op, message));
            }
            self.host_values(values, &shape)
        })
    }

    /// Uniform with variance `gain^2 / fan`. He et al. 2015, arXiv 1502.01852. Errors: `Shape` below
    /// rank 2; `Attr` for a gain that is negative, or not finite in the dtype.
    pub fn kaiming_uniform(&self, shape: impl Into<Shape>, fan: Fan, gain: Gain) -> Result<Tensor> {
        let shape = shape.into();
        let gain = self.gain("kaiming_uniform", gain)?;
        let bound = gain * (3.0 / fan.of("kaiming_uniform", &shape)?).sqrt();
        self.uniform(shape, -bound, bound)
    }

    /// Normal with variance `gain^2 / fan`. He et al. 2015, arXiv 1502.01852. Errors: `Shape` below
    /// rank 2; `Attr` for a gain that is negative, or not finite in the dtype.
    pub fn kaiming_normal(&self, shape: impl Into<Shape>, fan: Fan, gain: Gain) -> Result<Tensor> {
        let shape = shape.into();
        let std = self.gain("kaiming_normal", gain)? / fan.of("kaiming_normal", &shape)?.sqrt();
        self.normal(shape, 0.0, std)
    }

    /// Uniform with variance `2 gain^2 / (fan_in + fan_out)`. Glorot, Bengio 2010, AISTATS. Errors: `Shape` below
    /// rank 2; `Attr` for a gain that is negative, or not finite in the dtype.
    pub fn xavier_uniform(&self, shape: impl Into<Shape>, gain: Gain) -> Result<Tensor> {
        let shape = shape.into();
        let (input, output) = fans("xavier_uniform", &shape)?;
        let bound = self.gain("xavier_uniform", gain)? * (6.0 / (input + output)).sqrt();
        self.uniform(shape, -bound, bound)
    }

    /// Normal with variance `2 gain^2 / (fan_in + fan_out)`. Glorot, Bengio 2010, AISTATS. Errors: `Shape` below
    /// rank 2; `Attr` for a gain that is negative, or not finite in the dtype.
    pub fn xavier_normal(&self, shape: impl Into<Shape>, gain: Gain) -> Result<Tensor> {
        let shape = shape.into();
        let (input, output) = fans("xavier_normal", &shape)?;
        self.normal(shape, 0.0, self.gain("xavier_normal", gain)? * (2.0 / (input + output)).sqrt())
    }

    /// `gain` times a matrix `[rows, rest]`. Its rows are orthonormal, or its columns if there are fewer of them. Computed in f64
    /// on the host. Saxe et al. 2013, arXiv 1312.6120. Errors: `Shape` below rank 2; `Attr` for a gain that is negative, or not
    /// finite in the dtype.
    pub fn orthogonal(&self, shape: impl Into<Shape>, gain: Gain) -> Result<Tensor> {
        let shape = shape.into();
        let gain = self.gain("orthogonal", gain)?;
        if shape.rank() < 2 {
            return Err(Error::shape("orthogonal", format!("{shape} has rank {}, expected at least 2", shape.rank())));
        }
        self.drawn(&shape, || {
            let rows = shape[0];
            let rest = shape.numel().checked_div(rows).unwrap_or(0);
            let drawn = Tensor::randn(shape.numel(), 0.0, 1.0, DType::F64, &self.device, &self.rng)?.to_vec::<f64>()?;
            let (count, length) = (rows.min(rest), rows.max(rest));
            let mut vectors: Vec<Vec<f64>> = drawn.chunks(length.max(1)).take(count).map(<[f64]>::to_vec).collect();
            orthonormalise(&mut vectors);
            let at = |i: usize| if rows <= rest { vectors[i / rest][i % rest] } else { vectors[i % rest][i / rest] };
            self.host_values((0..shape.numel()).map(|i| gain * at(i)).collect(), &shape)
        })
    }

    fn check(&self, op: &'static str, numbers: &[(&str, f64, Range)]) -> Result<()> {
        let checks = Checks { op, dtype: self.dtype };
        numbers.iter().try_for_each(|&(name, value, range)| checks.number(name, value, range))
    }

    /// A gain as a number. Errors: `Attr` if it is negative, or not finite in the dtype.
    fn gain(&self, op: &'static str, gain: Gain) -> Result<f64> {
        if let Gain::LeakyRelu(slope) = gain {
            self.check(op, &[("slope", slope, Range::Finite)])?;
        }
        self.check(op, &[("gain", gain.value(), Range::AtLeast0)])?;
        Ok(gain.value())
    }

    fn host_values(&self, values: Vec<f64>, shape: &Shape) -> Result<Tensor> {
        Tensor::from_vec(values, shape, &self.device)?.cast(self.dtype)
    }
}

/// The numbers of inputs and outputs of one unit: `[out, in, window..]`.
fn fans(op: &'static str, shape: &Shape) -> Result<(f64, f64)> {
    if shape.rank() < 2 {
        return Err(Error::shape(op, format!("{shape} has no fan-in and fan-out, expected rank 2 or more")));
    }
    let window: f64 = shape[2..].iter().map(|&d| d as f64).product();
    let fan = |n: usize| (n as f64 * window).max(1.0);
    Ok((fan(shape[1]), fan(shape[0])))
}

/// The Gram-Schmidt method. Each projection is subtracted twice, to remove its rounding errors.
fn orthonormalise(vectors: &mut [Vec<f64>]) {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for i in 0..vectors.len() {
        let (before, rest) = vectors.split_at_mut(i);
        let v = &mut rest[0];
        for u in before.iter().chain(before.iter()) {
            let projection = dot(u, v);
            v.iter_mut().zip(u).for_each(|(v, u)| *v -= projection * u);
        }
        let norm = dot(v, v).sqrt();
        v.iter_mut().for_each(|v| *v /= norm);
    }
}
