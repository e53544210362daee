//! The measurements of `isograd bench`: calls at full size, with their bytes and operations.

use isograd_core::{DType, Device, Precision, Result, Rng, Tensor};

/// Dtypes of measurements.
pub const F32: &[DType] = &[DType::F32];
/// IEEE half precision.
pub const F16: &[DType] = &[DType::F16];
/// The 16-bit dtype of training.
pub const BF16: &[DType] = &[DType::BF16];
/// The float dtypes of the devices' matrix units and of the CPU.
const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::F64];
/// The dtypes that training stores.
pub const STORED: &[DType] = &[DType::F32, DType::BF16];

/// Elements of elementwise ops.
pub const MANY: usize = 64 << 20;
/// Bytes of an index.
pub const INDEX: usize = 8;

/// The minimal cost of a call: bytes of every input and output once, and operations, two for a multiply-add.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Bytes that are read or written.
    pub bytes: usize,
    /// Operations.
    pub flops: f64,
}

impl Cost {
    /// A cost in bytes, with negligible operations.
    pub fn bytes(bytes: usize) -> Cost {
        Cost { bytes, flops: 0.0 }
    }

    /// The cost of `[m, k] @ [k, n]` in the dtype of the call.
    pub fn product(c: &Call, [m, k, n]: [usize; 3]) -> Cost {
        Cost { bytes: c.bytes(m * k + k * n + m * n), flops: 2.0 * m as f64 * k as f64 * n as f64 }
    }
}

/// A measurement at its shape on a device.
pub struct Call {
    /// The device.
    pub device: Device,
    /// The shape. Its meaning depends on the op.
    pub dims: Vec<usize>,
    /// The dtype of its floats.
    pub dtype: DType,
    /// The generator of the inputs.
    pub rng: Rng,
}

impl Call {
    /// A measurement of this shape and dtype on a device.
    pub fn new(device: &Device, dims: Vec<usize>, dtype: DType) -> Call {
        Call { device: device.clone(), dims, dtype, rng: Rng::new(0) }
    }

    /// Elements of the shape.
    pub fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes of a number of elements.
    pub fn bytes(&self, elements: usize) -> usize {
        elements * self.dtype.size()
    }

    /// The cost of a number of tensors of the shape.
    pub fn whole(&self, tensors: usize) -> Cost {
        Cost::bytes(self.bytes(tensors * self.numel()))
    }

    /// A tensor of normal draws, because constant data could make the hardware faster.
    pub fn normal(&self, dims: &[usize]) -> Result<Tensor> {
        Tensor::randn(dims, 0.0, 1.0, self.dtype, &self.device, &self.rng)
    }

    /// Tensors of these shapes.
    pub fn normals<const N: usize>(&self, shapes: [&[usize]; N]) -> Result<Vec<Tensor>> {
        shapes.into_iter().map(|dims| self.normal(dims)).collect()
    }

    /// A number of tensors of the shape.
    pub fn alike(&self, count: usize) -> Result<Vec<Tensor>> {
        (0..count).map(|_| self.normal(&self.dims)).collect()
    }

    /// Indices below `n`.
    pub fn indices(&self, n: usize, dims: &[usize]) -> Result<Tensor> {
        Tensor::rand(dims, 0.0, n as f64, DType::F32, &self.device, &self.rng)?.cast(DType::I64)
    }
}

/// Repeated, timed work.
pub type Work = Box<dyn FnMut() -> Result<()>>;

/// The measured action.
#[derive(Clone, Copy)]
pub enum Action {
    /// A function of tensors, with the inputs that it is given.
    Call {
        /// Makes the inputs.
        inputs: fn(&Call) -> Result<Vec<Tensor>>,
        /// Runs the op.
        call: fn(&Call, &[Tensor]) -> Result<Tensor>,
    },
    /// Any other work.
    Work(fn(&Call) -> Result<Work>),
}

/// A function of tensors.
pub fn call(inputs: fn(&Call) -> Result<Vec<Tensor>>, call: fn(&Call, &[Tensor]) -> Result<Tensor>) -> Action {
    Action::Call { inputs, call }
}

/// A measurement of an op: a row for each dtype and pass.
#[derive(Clone)]
pub struct Bench {
    /// The distinction from other measurements of the same op, such as `of rows`; empty if there is none.
    pub variant: &'static str,
    /// The shape.
    pub dims: Vec<usize>,
    /// The measured action.
    pub action: Action,
    /// The dtypes of its floats.
    pub dtypes: &'static [DType],
    /// The number of leading extents that are divided if a device cannot hold the whole.
    pub shrinks: usize,
    /// The cost of the call.
    pub forward: fn(&Call) -> Cost,
    /// The cost of the backward pass, if it is measured too. The float inputs are then leaves.
    pub backward: Option<fn(&Call) -> Cost>,
    /// The precision of matrix products, in both passes.
    pub precision: Precision,
}

impl Bench {
    /// A measurement in f32 of the call alone.
    pub fn new(dims: &[usize], action: Action, forward: fn(&Call) -> Cost) -> Bench {
        let precision = Precision::Exact;
        Bench { variant: "", dims: dims.to_vec(), action, forward, dtypes: F32, shrinks: 1, backward: None, precision }
    }

    /// A function of `tensors`, tensors of the same shape with [`MANY`] elements. It reads each and writes one.
    pub fn elementwise(tensors: fn(&Call) -> Result<Vec<Tensor>>, f: fn(&Call, &[Tensor]) -> Result<Tensor>) -> Bench {
        Bench::new(&[MANY], call(tensors, f), |c| c.whole(2)).dtypes(STORED)
    }

    /// Sets the distinction.
    pub fn variant(self, variant: &'static str) -> Bench {
        Bench { variant, ..self }
    }

    /// Sets the dtypes.
    pub fn dtypes(self, dtypes: &'static [DType]) -> Bench {
        Bench { dtypes, ..self }
    }

    /// Sets the number of leading extents that are divided if a device cannot hold the whole.
    pub fn shrinks(self, shrinks: usize) -> Bench {
        Bench { shrinks, ..self }
    }

    /// Adds the backward pass.
    pub fn backward(self, cost: fn(&Call) -> Cost) -> Bench {
        Bench { backward: Some(cost), ..self }
    }

    /// Sets the precision of matrix products.
    pub fn precision(self, precision: Precision) -> Bench {
        Bench { precision, ..self }
    }
}

/// One tensor of the shape.
pub fn one(c: &Call) -> Result<Vec<Tensor>> {
    c.alike(1)
}

/// Two tensors of the shape.
pub fn two(c: &Call) -> Result<Vec<Tensor>> {
    c.alike(2)
}

/// The copy that measures a device's bandwidth.
pub fn copy_ceiling() -> Bench {
    copies(256 << 20)
}

/// The product that measures a device's matrix rate.
pub fn matrix_ceiling() -> Bench {
    squares(8192)
}

/// A copy of this number of elements. It also measures a device's bandwidth.
pub(crate) fn copies(elements: usize) -> Bench {
    let copy = call(two, |_, x| x[1].copy_(&x[0]).map(|()| x[1].clone()));
    Bench::new(&[elements], copy, |c| c.whole(2))
}

/// The product of square matrices. It also measures a device's matrix rate.
pub(crate) fn squares(n: usize) -> Bench {
    let action = call(|c| c.normals([&c.dims[..2], &c.dims[1..]]), |_, x| x[0].matmul(&x[1]));
    let cost = |c: &Call| Cost::product(c, [c.dims[0], c.dims[1], c.dims[2]]);
    Bench::new(&[n, n, n], action, cost).dtypes(FLOATS).shrinks(3)
}
