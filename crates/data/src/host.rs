//! Tensors in host memory.

use isograd_core::{DType, Device, Element, Error, Result, Tensor};

/// Elements of one dtype in row-major order, and their shape, in host memory: a part of a sample, or of a batch that has not been
/// uploaded.
#[derive(Clone, PartialEq, Eq)]
pub struct HostTensor {
    shape: Vec<usize>,
    dtype: DType,
    bytes: Vec<u8>,
}

impl HostTensor {
    /// Elements in row-major order. Errors: `Shape` if `shape` has another number of elements.
    pub fn new<T: Element>(values: &[T], shape: impl Into<Vec<usize>>) -> Result<HostTensor> {
        let shape = shape.into();
        if element_count(&shape) != Some(values.len()) {
            return Err(Error::shape("host_tensor", format!("{} values do not fill shape {shape:?}", values.len())));
        }
        let mut bytes = Vec::new();
        T::extend_bytes(values, &mut bytes);
        Ok(HostTensor { shape, dtype: T::DTYPE, bytes })
    }

    /// A vector, of shape `[values.len()]`.
    pub fn vector<T: Element>(values: &[T]) -> HostTensor {
        let mut bytes = Vec::new();
        T::extend_bytes(values, &mut bytes);
        HostTensor { shape: vec![values.len()], dtype: T::DTYPE, bytes }
    }

    /// The elements of a tensor, read from its device. Errors: those of the device.
    pub fn from_tensor(t: &Tensor) -> Result<HostTensor> {
        Ok(HostTensor { shape: t.dims().to_vec(), dtype: t.dtype(), bytes: t.to_bytes()? })
    }

    /// Elements by their bytes, which fill the shape.
    pub(crate) fn from_bytes(bytes: Vec<u8>, shape: impl Into<Vec<usize>>, dtype: DType) -> HostTensor {
        let shape = shape.into();
        debug_assert_eq!(element_count(&shape).map(|n| n * dtype.size()), Some(bytes.len()));
        HostTensor { shape, dtype, bytes }
    }

    /// The bytes of the elements in row-major order.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// [`bytes`](HostTensor::bytes), without a copy.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The extents.
    pub fn dims(&self) -> &[usize] {
        &self.shape
    }

    /// The dtype of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The elements in row-major order. Errors: `DType` unless `T` is the dtype.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        match self.dtype == T::DTYPE {
            true => Ok(T::from_bytes(&self.bytes)),
            false => Err(Error::dtype("to_vec", format!("the tensor is {}, asked for {}", self.dtype, T::DTYPE))),
        }
    }

    /// A tensor on a device. Errors: `OutOfMemory` and those of the device.
    pub fn to(&self, device: &Device) -> Result<Tensor> {
        Tensor::from_bytes(&self.bytes, &self.shape, self.dtype, device)
    }

    /// Tensors of one shape and dtype as `[N, ..]`; none are `[0]` of f32. Errors: `Shape` or `DType` if one differs from the first.
    pub fn stack(tensors: &[HostTensor]) -> Result<HostTensor> {
        let Some(first) = tensors.first() else { return Ok(HostTensor::vector::<f32>(&[])) };
        let mut bytes = Vec::with_capacity(first.bytes.len() * tensors.len());
        for (i, t) in tensors.iter().enumerate() {
            if t.shape != first.shape {
                let message = format!("sample {i} has shape {:?}, expected {:?} as the first", t.shape, first.shape);
                return Err(Error::shape("stack", message));
            }
            if t.dtype != first.dtype {
                let message = format!("sample {i} is {}, expected {} as the first", t.dtype, first.dtype);
                return Err(Error::dtype("stack", message));
            }
            bytes.extend_from_slice(&t.bytes);
        }
        let shape = std::iter::once(tensors.len()).chain(first.shape.iter().copied()).collect();
        Ok(HostTensor { shape, dtype: first.dtype, bytes })
    }
}

impl std::fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostTensor({} {:?})", self.dtype, self.shape)
    }
}

/// The product of extents, unless it overflows.
pub(crate) fn element_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_need_one_shape_and_dtype() {
        let pair = HostTensor::vector(&[1i64, 2]);
        let stacked = HostTensor::stack(&[pair.clone(), pair.clone(), pair.clone()]).unwrap();
        assert_eq!((stacked.dims(), stacked.to_vec::<i64>().unwrap()), (&[3, 2][..], vec![1, 2, 1, 2, 1, 2]));
        let error = HostTensor::stack(&[pair.clone(), HostTensor::vector(&[1i64])]).unwrap_err();
        assert_eq!(error.to_string(), "stack: Shape: sample 1 has shape [1], expected [2] as the first");
        let error = HostTensor::stack(&[pair.clone(), HostTensor::vector(&[1.0f32, 2.0])]).unwrap_err();
        assert!(error.message().ends_with("sample 1 is f32, expected i64 as the first"), "{error}");
        assert!(pair.to_vec::<f32>().is_err() && HostTensor::new(&[1.0f32], [2]).is_err());
    }
}
