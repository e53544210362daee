//! The tensor: a layout over shared device memory, and the tape's edge that made it.

use crate::backend::{Call, Kernel, Operand};
use crate::capture::check_wait;
use crate::check::describe;
use crate::foreign::Permission;
use crate::host;
use crate::page::{Access, Page, resident};
use crate::tape::{self, Edge};
use crate::thread::{self, Event, Run, tell};
use crate::{DType, Device, Element, Error, Kind, Layout, Memory, Result, Shape};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A multi-dimensional array on a device. Cheap to clone: clones and views share memory.
///
/// ```
/// # use isograd_core::{Device, Result, Tensor};
/// # fn example(device: &Device) -> Result<()> {
/// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], (2, 2), device)?;
/// let y = x.matmul(&x)?.add_scalar(1.0)?;
/// assert_eq!(y.to_vec::<f32>()?, [8.0, 11.0, 16.0, 23.0]);
/// // Operators do the same, and panic where the method has an error.
/// assert!((&x * &x + 1.0).allclose(&x.square()?.add_scalar(1.0)?, 0.0, 0.0)?);
/// assert_eq!(x.i((0, ..))?.mean(..)?.item::<f64>()?, 1.5);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Tensor(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub layout: Layout,
    pub dtype: DType,
    pub storage: Arc<Storage>,
    pub edge: Option<Edge>,
}

/// The location of a tensor's elements, for lookup of tensors. Two living tensors have equal keys if they are the same elements
/// of the same memory in the same order, as clones are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorKey {
    memory: usize,
    layout: Layout,
}

impl TensorKey {
    /// Identifies the allocation: equal for tensors that share memory.
    pub fn memory(&self) -> usize {
        self.memory
    }
}

pub(crate) struct Storage {
    memory: Box<dyn Memory>,
    device: Device,
    /// Counts in-place changes, so that the tape detects changes of saved tensors.
    version: AtomicU64,
    /// The number of allocations before this one.
    born: u64,
    /// The place of the elements, if they are not in the memory.
    page: Option<Page>,
    permission: Permission,
}

static BIRTHS: AtomicU64 = AtomicU64::new(0);

impl Storage {
    pub fn new(memory: Box<dyn Memory>, device: Device) -> Storage {
        let (version, born) = (AtomicU64::new(0), BIRTHS.fetch_add(1, Ordering::Relaxed));
        Storage { memory, device, version, born, page: None, permission: Permission::Write }
    }

    pub fn permission(&self) -> Permission {
        self.permission
    }

    pub fn with_permission(self, permission: Permission) -> Storage {
        Storage { permission, ..self }
    }

    pub fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub fn set_version(&self, version: u64) {
        self.version.store(version, Ordering::Release);
    }

    pub fn born(&self) -> u64 {
        self.born
    }

    /// [`born`](Storage::born) of the next allocation.
    pub fn births() -> u64 {
        BIRTHS.load(Ordering::Relaxed)
    }
}

/// The elements in row-major order, as [`Tensor::to_vec`].
impl<T: Element> TryFrom<&Tensor> for Vec<T> {
    type Error = Error;

    fn try_from(t: &Tensor) -> Result<Vec<T>> {
        t.to_vec()
    }
}

/// The elements in row-major order. Errors: as [`Tensor::to_vec`]; `Shape` for another number of elements.
impl<T: Element, const N: usize> TryFrom<&Tensor> for [T; N] {
    type Error = Error;

    fn try_from(t: &Tensor) -> Result<[T; N]> {
        let wrong = |_| Error::shape("to_vec", format!("{} has {} elements, expected {N}", t.shape(), t.numel()));
        <[T; N]>::try_from(t.to_vec::<T>()?).map_err(wrong)
    }
}

/// # Making, describing and reading
impl Tensor {
    /// A tensor of unspecified content, to be overwritten by the caller. Errors: `Shape`, `OutOfMemory`.
    pub fn empty(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        Tensor::allocate("empty", &shape.into(), dtype, device)
    }

    /// [`empty`](Tensor::empty), with errors of `op`.
    pub(crate) fn allocate(op: &'static str, shape: &Shape, dtype: DType, device: &Device) -> Result<Tensor> {
        shape.check(op)?;
        let bytes = shape.numel() * dtype.size();
        let memory = device.backend().allocate(bytes).map_err(|e| explained(e.of(op), device))?;
        let storage = Arc::new(Storage::new(memory, device.clone()));
        tell(thread::Kind::Memory, || Event::Allocation { op, storage: &storage, bytes });
        Ok(Tensor(Arc::new(Inner { layout: Layout::contiguous(shape.clone()), dtype, storage, edge: None })))
    }

    /// The same memory under another layout, outside of the tape.
    pub(crate) fn with_layout(&self, layout: Layout) -> Tensor {
        self.with_edge(layout, None)
    }

    pub(crate) fn with_edge(&self, layout: Layout, edge: Option<Edge>) -> Tensor {
        Tensor(Arc::new(Inner { layout, dtype: self.dtype(), storage: self.0.storage.clone(), edge }))
    }

    /// The same layout in other memory, outside of the tape.
    pub(crate) fn with_storage(&self, storage: Arc<Storage>) -> Tensor {
        Tensor(Arc::new(Inner { layout: self.layout().clone(), dtype: self.dtype(), storage, edge: None }))
    }

    /// A tensor of this one's dtype and device whose elements are a page. This one is empty and unique.
    pub(crate) fn with_page(self, layout: Layout, page: Page) -> Tensor {
        let dtype = self.dtype();
        let storage = Arc::try_unwrap(self.0).ok().and_then(|inner| Arc::try_unwrap(inner.storage).ok());
        let mut storage = storage.expect("a tensor that was just made has its memory alone");
        storage.page = Some(page);
        Tensor(Arc::new(Inner { layout, dtype, storage: Arc::new(storage), edge: None }))
    }

    pub(crate) fn page(&self) -> Option<&Page> {
        self.0.storage.page.as_ref()
    }

    /// A tensor from host values in row-major order. Errors: `Shape` if `shape` has another number of elements; `OutOfMemory`.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], (2, 2), device)?;
    /// assert_eq!((x.dims(), x.dtype()), (&[2, 2][..], DType::F32));
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_vec<T: Element>(values: Vec<T>, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        Tensor::from_slice(&values, shape, device)
    }

    /// A tensor from host values in row-major order. Errors: `Shape` if `shape` has another number of elements; `OutOfMemory`.
    pub fn from_slice<T: Element>(values: &[T], shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        let (op, shape) = ("from_vec", shape.into());
        shape.check(op)?;
        if values.len() != shape.numel() {
            let message = format!("{} values were given, shape {shape} has {}", values.len(), shape.numel());
            return Err(Error::shape(op, message));
        }
        let mut bytes = host::with_room(op, size_of_val(values))?;
        T::extend_bytes(values, &mut bytes);
        Tensor::from_bytes(&bytes, shape, T::DTYPE, device)
    }

    /// A tensor from the bytes of its elements, in the machine's order. Errors: `Shape` if their number is wrong.
    pub fn from_bytes(bytes: &[u8], shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
        let shape = shape.into();
        shape.check("from_bytes")?;
        if bytes.len() != shape.numel() * dtype.size() {
            let message = format!("shape {shape} of {dtype} has {} bytes", shape.numel() * dtype.size());
            return Err(Error::shape("from_bytes", format!("{message}, got {}", bytes.len())));
        }
        let t = Tensor::allocate("from_bytes", &shape, dtype, device)?;
        t.upload(bytes)?;
        Ok(t)
    }

    /// Replaces the bytes at the start of this tensor's memory.
    pub(crate) fn upload(&self, bytes: &[u8]) -> Result<()> {
        self.device().backend().upload(&*self.0.storage.memory, bytes)
    }

    /// A rank-0 tensor.
    pub fn scalar<T: Element>(value: T, device: &Device) -> Result<Tensor> {
        Tensor::from_slice(&[value], (), device)
    }

    /// The extents.
    pub fn shape(&self) -> &Shape {
        self.0.layout.shape()
    }

    /// The extents as a slice.
    pub fn dims(&self) -> &[usize] {
        self.shape().dims()
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.shape().numel()
    }

    /// The elements' type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The device that holds the memory.
    pub fn device(&self) -> &Device {
        &self.0.storage.device
    }

    /// Shape, strides and offset.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// True if the elements are adjacent in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.0.layout.is_contiguous()
    }

    /// True if the elements of this tensor `[N, C, ..]` fill memory without gaps with adjacent channels, and not in row-major order as
    /// well.
    pub fn is_channels_last(&self) -> bool {
        self.0.layout.is_channels_last()
    }

    /// True if both tensors share memory.
    pub fn shares_memory(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0.storage, &other.0.storage)
    }

    /// The location of the elements.
    pub fn key(&self) -> TensorKey {
        TensorKey { memory: Arc::as_ptr(&self.0.storage) as usize, layout: self.layout().clone() }
    }

    /// The address on the host of the memory's owner, and the byte range of a contiguous tensor's elements.
    pub(crate) fn span(&self) -> (usize, Range<usize>) {
        let start = self.layout().offset() * self.dtype().size();
        (Arc::as_ptr(&self.0.storage) as usize, start..start + self.numel() * self.dtype().size())
    }

    /// True if no other tensor shares this memory.
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && Arc::strong_count(&self.0.storage) == 1
    }

    /// True if both tensors are the same elements of the same memory.
    pub(crate) fn is_same(&self, other: &Tensor) -> bool {
        self.shares_memory(other) && self.layout() == other.layout() && self.dtype() == other.dtype()
    }

    /// True if the tensor is on the tape: it is a leaf that is not frozen, or was computed from one.
    pub fn requires_grad(&self) -> bool {
        self.edge().is_some()
    }

    /// The tensor's place on the tape; `None` for a frozen leaf.
    pub(crate) fn edge(&self) -> Option<&Edge> {
        self.0.edge.as_ref().filter(|edge| !edge.is_frozen())
    }

    /// This tensor as a parameter: a leaf of the tape that shares this tensor's memory. `backward` accumulates its gradient.
    /// Errors: `Dtype` unless it is a float tensor.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::from_vec(vec![1.0f32, 2.0], 2, device)?.require_grad()?;
    /// x.square()?.sum(..)?.backward()?;
    /// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn require_grad(&self) -> Result<Tensor> {
        if !self.dtype().is_float() {
            return Err(Error::dtype(
                "require_grad",
                format!("{} has no gradient, expected a float dtype", self.dtype()),
            ));
        }
        Ok(self.with_edge(self.layout().clone(), Some(tape::leaf_edge(self))))
    }

    /// The same values outside of the tape.
    pub fn detach(&self) -> Tensor {
        if self.0.edge.is_some() { self.with_layout(self.layout().clone()) } else { self.clone() }
    }

    /// The elements in row-major order. Waits for the device. Errors: `Dtype` if `T` is not the tensor's type; `OutOfMemory`.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::arange(3, device)?;
    /// assert_eq!(x.to_vec::<i64>()?, [0, 1, 2]);
    /// assert!(x.to_vec::<f32>().is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype() {
            return Err(Error::dtype("to_vec", format!("the tensor is {}, asked for {}", self.dtype(), T::DTYPE)));
        }
        let mut elements = host::with_room("to_vec", self.numel())?;
        T::extend_elements(&self.to_bytes()?, &mut elements);
        Ok(elements)
    }

    /// The elements converted to f64, in row-major order. Waits for the device.
    pub fn to_f64_vec(&self) -> Result<Vec<f64>> {
        self.detach().cast(DType::F64)?.to_vec()
    }

    /// True if `|x - y| <= atol + rtol |y|` for all elements x of this tensor and y of the other, as f64. Equal infinities are close, and NaN is
    /// close to nothing. Waits for the device. Errors: `Shape` if the shapes differ.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let x = Tensor::full(2, 1.0, DType::F32, device)?;
    /// assert!(x.allclose(&x.add_scalar(1e-6)?, 1e-5, 0.0)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn allclose(&self, other: &Tensor, rtol: f64, atol: f64) -> Result<bool> {
        if self.shape() != other.shape() {
            return Err(Error::shape("allclose", format!("{} was compared with {}", self.shape(), other.shape())));
        }
        let is_close = |(x, y): (&f64, &f64)| x == y || ((x - y).abs() <= atol + rtol * y.abs() && y.is_finite());
        Ok(self.to_f64_vec()?.iter().zip(&other.to_f64_vec()?).all(is_close))
    }

    /// The elements' bytes in row-major order and the machine's byte order. Waits for the device.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        check_wait("to_vec")?;
        self.read()
    }

    /// [`to_bytes`](Tensor::to_bytes), also within a captured step, for composites of devices that do not record.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        let t = self.detach().contiguous()?.resident("to_vec", Access::Read)?;
        let mut bytes = host::repeated("to_vec", 0, t.numel() * t.dtype().size())?;
        let offset = t.layout().offset() * t.dtype().size();
        t.device().backend().download(&*t.0.storage.memory, offset, &mut bytes)?;
        Ok(bytes)
    }

    /// The only element as a `T`: `loss.item::<f64>()`. Waits for the device. A float is read as any float type, an integer as a float
    /// or another integer type. Errors: `Shape` if there is not exactly one element; `Dtype` for a float that is asked for as an integer
    /// or a bool.
    ///
    /// ```
    /// # use isograd_core::{DType, Device, Result, Tensor};
    /// # fn example(device: &Device) -> Result<()> {
    /// let mean = Tensor::full((), 2.5, DType::F32, device)?;
    /// assert_eq!(mean.item::<f64>()?, 2.5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn item<T: Element>(&self) -> Result<T> {
        if self.numel() != 1 {
            return Err(Error::shape("item", format!("{} has {} elements, expected one", self.shape(), self.numel())));
        }
        if self.dtype().is_float() && !T::DTYPE.is_float() {
            return Err(Error::dtype("item", format!("the tensor is {}, asked for {}", self.dtype(), T::DTYPE)));
        }
        let values = self.detach().cast(T::DTYPE)?.to_vec()?;
        Ok(values[0])
    }

    /// The same values on another device. The gradient comes back to this one. Waits for the device.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device() == device {
            return Ok(self.clone());
        }
        let y = Tensor::from_bytes(&self.to_bytes()?, self.shape(), self.dtype(), device)?;
        let source = self.device().clone();
        tape::Record::new("to_device", &[self]).stateless().rule(y, move |t| Ok([t.dy().to_device(&source)?]))
    }

    /// This tensor, with its elements in memory.
    pub(crate) fn resident(self, op: &'static str, access: Access) -> Result<Tensor> {
        if self.is_paged() { Ok(resident(op, &[(&self, access)])?.swap_remove(0)) } else { Ok(self) }
    }

    /// The operand of a kernel. The tensor is no page.
    pub(crate) fn operand(&self) -> Operand<'_> {
        debug_assert!(self.page().is_none(), "a page has no memory");
        Operand { memory: &*self.0.storage.memory, layout: &self.0.layout, dtype: self.dtype() }
    }

    /// Checks that a tensor may be changed in place, and notifies the watch of a checkpoint. Every change in place calls it first.
    /// Returns an error for a tensor on the tape, and for elements that share a position: the result of several writes to one
    /// position is undefined.
    pub(crate) fn check_in_place(&self, op: &'static str) -> Result<()> {
        if self.requires_grad() && tape::is_grad_enabled() {
            return Err(Error::value(
                op,
                "a tensor that requires a gradient is changed in place; do so within `no_grad`",
            ));
        }
        if self.permission() == Permission::Read {
            let message = format!("the memory of {} belongs to another library", describe(&[self]));
            return Err(Error::value(op, format!("{message}, which lets nobody write it; write to a `copy` of it")));
        }
        if self.layout().overlaps() {
            let strides = self.layout().strides();
            let message =
                format!("several elements of {} are one place: its strides are {strides:?}", describe(&[self]));
            return Err(Error::value(op, format!("{message}; write to a `copy` of it")));
        }
        let error = RefCell::new(Ok(()));
        tell(thread::Kind::Write, || Event::Write { target: self, error: &error });
        error.into_inner()
    }

    pub(crate) fn touch(&self) {
        self.0.storage.version.fetch_add(1, Ordering::AcqRel);
    }
}

/// An error for want of memory with the largest holders, or with the way to learn them.
fn explained(error: Error, device: &Device) -> Error {
    if error.kind() != Kind::OutOfMemory {
        return error;
    }
    let holders = RefCell::default();
    tell(thread::Kind::Memory, || Event::Refusal { device, holders: &holders });
    let holders: Vec<String> = holders.into_inner();
    let rest = match holders.is_empty() {
        true => "within `profile`, this error names what holds the memory".to_string(),
        false => format!("the largest holders are {}", holders.join(", ")),
    };
    Error::new(Kind::OutOfMemory, error.op().to_string(), format!("{}; {rest}", error.message()))
}

/// The arguments of a kernel other than tensors.
#[derive(Clone, Copy, Default)]
pub(crate) struct Attributes<'a> {
    pub ints: &'a [i64],
    pub floats: &'a [f64],
}

impl<'a> Attributes<'a> {
    pub fn ints(ints: &'a [i64]) -> Self {
        Attributes { ints, floats: &[] }
    }

    pub fn floats(floats: &'a [f64]) -> Self {
        Attributes { ints: &[], floats }
    }
}

/// Runs a kernel. This is the only place where core calls a backend. Empty outputs need no kernel.
pub(crate) fn run(
    op: &'static str,
    kernel: Kernel<'_>,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
    attributes: Attributes<'_>,
) -> Result<()> {
    if outputs[0].numel() == 0 {
        return Ok(());
    }
    if inputs.iter().chain(outputs).all(|t| t.page().is_none()) {
        return launch(op, kernel, [inputs, outputs], [inputs, outputs], attributes);
    }
    let read = inputs.iter().map(|t| (*t, Access::Read));
    let all: Vec<(&Tensor, Access)> = read.chain(outputs.iter().map(|t| (*t, Access::Write))).collect();
    let all = resident(op, &all)?;
    let all: Vec<&Tensor> = all.iter().collect();
    launch(op, kernel, [inputs, outputs], all.split_at(inputs.len()).into(), attributes)
}

/// Runs a kernel on operands in memory, and tells of it.
fn launch(
    op: &'static str,
    kernel: Kernel<'_>,
    [given, written]: [&[&Tensor]; 2],
    [inputs, outputs]: [&[&Tensor]; 2],
    attributes: Attributes<'_>,
) -> Result<()> {
    let device = outputs[0].device();
    let inputs: SmallVec<[Operand<'_>; 4]> = inputs.iter().map(|t| t.operand()).collect();
    let outputs: SmallVec<[Operand<'_>; 4]> = outputs.iter().map(|t| t.operand()).collect();
    let Attributes { ints, floats } = attributes;
    let call = Call { op, kernel, inputs: &inputs, outputs: &outputs, ints, floats };
    thread::run(&Run { device, call: &call, inputs: given, outputs: written })
}
