//! Memory that tensors share with other libraries of the same process, without a copy.

use crate::check::describe;
use crate::tensor::{Inner, Storage};
use crate::{DType, Device, Dims, Element, Error, Layout, Result, Shape, Tensor};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

const OP: &str = "from_foreign";

/// The memory that a device reads, as other libraries name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Space {
    /// The host's.
    Host,
    /// A CUDA device's, by its number.
    Cuda(u32),
    /// A ROCm device's, by its number.
    Rocm(u32),
}

impl Space {
    /// The device of this library that reads the memory. Errors: `Device` if its backend is not linked or the device is not there.
    pub fn device(self) -> Result<Device> {
        match self {
            Space::Host => Device::cpu(),
            Space::Cuda(number) => format!("cuda:{number}").parse(),
            Space::Rocm(number) => format!("hip:{number}").parse(),
        }
    }
}

/// Whether tensors may change memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permission {
    /// They may.
    #[default]
    Write,
    /// A change in place is an error.
    Read,
}

/// Memory that another library owns.
pub struct Foreign {
    address: u64,
    bytes: usize,
    permission: Permission,
    stream: Option<u64>,
    /// It is there to be dropped.
    _owner: Box<dyn Any + Send + Sync>,
}

impl Foreign {
    /// Memory of `bytes` bytes from `address` on. The owner is dropped when no tensor needs the memory any more.
    ///
    /// # Safety
    ///
    /// The memory belongs to the device that adopts it, and is there until the owner is dropped. Its bytes are initialised, and no other
    /// library writes them, or reads them while tensors are changed in place, without an order between both.
    #[allow(unsafe_code, reason = "nobody else can promise how long memory of another library is there")]
    pub unsafe fn new(address: u64, bytes: usize, owner: Box<dyn Any + Send + Sync>) -> Foreign {
        Foreign { address, bytes, permission: Permission::Write, stream: None, _owner: owner }
    }

    /// With another permission.
    pub fn with_permission(self, permission: Permission) -> Foreign {
        Foreign { permission, ..self }
    }

    /// With the stream on which the owner uses the memory again, by the handle that the driver gave. A GPU makes this stream wait for its
    /// own work before the owner is dropped. Without a stream it waits itself.
    pub fn with_stream(self, stream: u64) -> Foreign {
        Foreign { stream: Some(stream), ..self }
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The stream on which the owner uses the memory again.
    pub fn stream(&self) -> Option<u64> {
        self.stream
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Foreign { address, bytes, permission, stream, .. } = self;
        write!(f, "Foreign {{ {bytes} bytes at {address:#x}, {permission:?}, stream: {stream:?} }}")
    }
}

/// # Memory of other libraries
impl Tensor {
    /// A tensor of elements that another library owns. `offset` and `strides` count elements from the start of the memory. Changes by either
    /// side are seen by both; the tape does not notice those of the other library. Errors: `Shape` if `strides` has another rank than the
    /// shape, or if elements lie outside of the memory; `Value` if elements are not aligned to their size; `Unsupported` if the device adopts no memory.
    pub fn from_foreign(
        foreign: Foreign,
        offset: usize,
        shape: impl Into<Shape>,
        strides: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let shape = shape.into();
        shape.check(OP)?;
        if strides.len() != shape.rank() {
            return Err(Error::shape(OP, format!("{shape} has {} strides, expected {}", strides.len(), shape.rank())));
        }
        let end = shape.end(strides, offset).and_then(|end| end.checked_mul(dtype.size()));
        if end.is_none_or(|end| end > foreign.bytes) {
            let message = format!("{shape} of {dtype} with strides {strides:?} from {offset} on");
            return Err(Error::shape(OP, format!("{message} does not lie in {} bytes", foreign.bytes)));
        }
        if !foreign.address.is_multiple_of(dtype.size() as u64) {
            let message = format!("elements of {dtype} begin at address {:#x}", foreign.address);
            return Err(Error::value(OP, format!("{message}, expected a multiple of {}", dtype.size())));
        }
        let permission = foreign.permission;
        let memory = device.backend().adopt(foreign).map_err(|e| e.of(OP))?;
        let storage = Arc::new(Storage::new(memory, device.clone()).with_permission(permission));
        let layout = Layout::strided(shape, Dims::from_slice(strides), offset);
        Ok(Tensor(Arc::new(Inner { layout, dtype, storage, edge: None })))
    }

    /// A tensor of numbers in row-major order that another value owns: a vector, an `Arc<[T]>`, a buffer of Arrow, an image. On the CPU the memory is the
    /// owner's, and a change in place is an error; other devices get a copy. Errors: `Shape` if `shape` has another number of elements.
    ///
    /// ```
    /// # use isograd_core::{Device, Result, Tensor};
    /// # use std::sync::Arc;
    /// # fn example(cpu: &Device) -> Result<()> {
    /// let numbers: Arc<[f32]> = Arc::new([1.0, 2.0, 3.0, 4.0]);
    /// let t = Tensor::from_owner(numbers.clone(), [2, 2], cpu)?;
    /// assert_eq!(t.address()?, numbers.as_ptr() as u64);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_owner<T: Element>(
        owner: impl AsRef<[T]> + Send + Sync + 'static,
        shape: impl Into<Shape>,
        device: &Device,
    ) -> Result<Tensor> {
        let (shape, owner) = (shape.into(), Box::new(owner));
        let numbers = (*owner).as_ref();
        if device.backend().space() != Some(Space::Host) || numbers.len() != shape.numel() {
            return Tensor::from_slice(numbers, shape, device);
        }
        let (address, bytes) = (numbers.as_ptr().expose_provenance() as u64, size_of_val(numbers));
        // SAFETY: the box keeps the owner in its place, whose numbers nobody can change: they are borrowed from it, and it is given away.
        #[allow(unsafe_code, reason = "the memory of a value that the tensor keeps")]
        let foreign = unsafe { Foreign::new(address, bytes, owner) }.with_permission(Permission::Read);
        let strides = shape.strides();
        Tensor::from_foreign(foreign, 0, shape, &strides, T::DTYPE, device)
    }

    /// Whether tensors may change the memory.
    pub fn permission(&self) -> Permission {
        self.0.storage.permission()
    }

    /// The address of the first element, for another library on the same device. It is valid while a tensor shares the memory. The elements are there
    /// once the device's work is done: [`Backend::follow`](crate::Backend::follow) makes another library wait for it. Errors: `Unsupported` if
    /// other libraries cannot read the device's memory; `Value` for a result of a captured step, which the next run moves, and for elements
    /// that are not in memory.
    pub fn address(&self) -> Result<u64> {
        if self.page().is_some() {
            let message = format!("{} was read from a file page by page; take a `copy` of it", describe(&[self]));
            return Err(Error::value("address", message));
        }
        let start = self.device().backend().address(self.0.storage.memory()).map_err(|e| e.of("address"))?;
        Ok(start + (self.layout().offset() * self.dtype().size()) as u64)
    }
}
