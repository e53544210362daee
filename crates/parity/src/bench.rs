//! What `isograd bench` measures of an op: calls at full size, and the bytes and operations that they need.

use isograd_core::{DType, Device, Result, Rng, Tensor};

/// Dtypes of a measurement.
pub const F32: &[DType] = &[DType::F32];
/// The 16 bits of IEEE.
pub const F16: &[DType] = &[DType::F16];
/// The 16 bits of training.
pub const BF16: &[DType] = &[DType::BF16];
/// Those that training stores.
pub const STORED: &[DType] = &[DType::F32, DType::BF16];

/// Elements of elementwise ops.
pub const MANY: usize = 64 << 20;
/// Bytes of an index.
pub const INDEX: usize = 8;

/// What a call needs at least: bytes of every input and output once, and operations, two for a multiply-add.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Bytes that are read or written.
    pub bytes: usize,
    /// Operations.
    pub flops: f64,
}

impl Cost {
    /// A cost of so many bytes, and no operations to speak of.
    pub fn bytes(bytes: usize) -> Cost {
        Cost { bytes, flops: 0.0 }
    }

    /// That of `[m, k] @ [k, n]` in the dtype of the call.
    pub fn product(c: &Call, [m, k, n]: [usize; 3]) -> Cost {
        Cost { bytes: c.bytes(m * k + k * n + m * n), flops: 2.0 * m as f64 * k as f64 * n as f64 }
    }
}

/// A measurement at its shape on a device.
pub struct Call {
    /// Where it runs.
    pub device: Device,
    /// The shape, whose meaning is the op's.
    pub dims: Vec<usize>,
    /// The dtype of its floats.
    pub dtype: DType,
    /// What its inputs are drawn from.
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

    /// Bytes of so many elements.
    pub fn bytes(&self, elements: usize) -> usize {
        elements * self.dtype.size()
    }

    /// A cost of so many tensors of the shape.
    pub fn whole(&self, tensors: usize) -> Cost {
        Cost::bytes(self.bytes(tensors * self.numel()))
    }

    /// A tensor of normal draws, so that no unit of the hardware has it easy.
    pub fn normal(&self, dims: &[usize]) -> Result<Tensor> {
        Tensor::randn(dims, 0.0, 1.0, self.dtype, &self.device, &self.rng)
    }

    /// Tensors of these shapes.
    pub fn normals<const N: usize>(&self, shapes: [&[usize]; N]) -> Result<Vec<Tensor>> {
        shapes.into_iter().map(|dims| self.normal(dims)).collect()
    }

    /// So many tensors of the shape.
    pub fn alike(&self, count: usize) -> Result<Vec<Tensor>> {
        (0..count).map(|_| self.normal(&self.dims)).collect()
    }

    /// Indices below `n`.
    pub fn indices(&self, n: usize, dims: &[usize]) -> Result<Tensor> {
        Tensor::rand(dims, 0.0, n as f64, DType::F32, &self.device, &self.rng)?.cast(DType::I64)
    }
}

/// Something that is timed again and again.
pub type Work = Box<dyn FnMut() -> Result<()>>;

/// What is measured.
#[derive(Clone, Copy)]
pub enum Action {
    /// A function of tensors, with the inputs that it is given.
    Call {
        /// Makes the inputs.
        inputs: fn(&Call) -> Result<Vec<Tensor>>,
        /// Runs the op.
        call: fn(&Call, &[Tensor]) -> Result<Tensor>,
    },
    /// Anything else.
    Work(fn(&Call) -> Result<Work>),
}

/// A function of tensors.
pub fn call(inputs: fn(&Call) -> Result<Vec<Tensor>>, call: fn(&Call, &[Tensor]) -> Result<Tensor>) -> Action {
    Action::Call { inputs, call }
}

/// A measurement of an op: a row for each dtype and pass.
#[derive(Clone)]
pub struct Bench {
    /// What distinguishes it from others of the same op, such as `of rows`; empty if nothing does.
    pub variant: &'static str,
    /// The shape.
    pub dims: Vec<usize>,
    /// What is measured.
    pub action: Action,
    /// The dtypes of its floats.
    pub dtypes: &'static [DType],
    /// How many of the first extents are divided where a device cannot take the whole.
    pub shrinks: usize,
    /// What the call needs.
    pub forward: fn(&Call) -> Cost,
    /// What the backward pass needs, where that is a row too. The inputs, floats, are leaves then.
    pub backward: Option<fn(&Call) -> Cost>,
}

impl Bench {
    /// A measurement in f32 of the call alone.
    pub fn new(dims: &[usize], action: Action, forward: fn(&Call) -> Cost) -> Bench {
        Bench { variant: "", dims: dims.to_vec(), action, forward, dtypes: F32, shrinks: 1, backward: None }
    }

    /// A function of `tensors` tensors of one shape of [`MANY`] elements, which reads each and writes as many.
    pub fn elementwise(tensors: fn(&Call) -> Result<Vec<Tensor>>, f: fn(&Call, &[Tensor]) -> Result<Tensor>) -> Bench {
        Bench::new(&[MANY], call(tensors, f), |c| c.whole(2)).dtypes(STORED)
    }

    /// What distinguishes it.
    pub fn variant(self, variant: &'static str) -> Bench {
        Bench { variant, ..self }
    }

    /// In other dtypes.
    pub fn dtypes(self, dtypes: &'static [DType]) -> Bench {
        Bench { dtypes, ..self }
    }

    /// With so many first extents divided where a device cannot take the whole.
    pub fn shrinks(self, shrinks: usize) -> Bench {
        Bench { shrinks, ..self }
    }

    /// With the backward pass.
    pub fn backward(self, cost: fn(&Call) -> Cost) -> Bench {
        Bench { backward: Some(cost), ..self }
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

/// The copy that the bandwidth of a device is measured with.
pub fn copy_ceiling() -> Bench {
    crate::registry::copies(256 << 20)
}

/// The product that the matrix rate of a device is measured with.
pub fn matrix_ceiling() -> Bench {
    crate::registry::squares(8192)
}
