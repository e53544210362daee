//! Tensors of a file: their extents, and their elements as bytes, as numbers, or in another file.

use super::element::Element;
use super::external::Folder;
use super::value::{HOST_MOST, Host};
use crate::proto::{SparseTensorProto, TensorProto};
use isograd_core::{DType, Device, Error, MAX_RANK, Result, Tensor};
use isograd_files::{Budget, Checked};
use std::borrow::Cow;

/// The elements of a tensor of a file, in the machine's order and in a dtype of the library.
pub struct Elements {
    pub element: Element,
    pub dims: Vec<usize>,
    bytes: Vec<u8>,
}

/// The extents of a tensor. Errors: a negative extent, and more dimensions or elements than a tensor can have.
pub fn extents(dims: &[i64]) -> Checked<Vec<usize>> {
    if dims.len() > MAX_RANK {
        return Err(format!("has {} dimensions, expected at most {MAX_RANK}", dims.len()));
    }
    let extents: Option<Vec<usize>> = dims.iter().map(|&d| usize::try_from(d).ok()).collect();
    let extents = extents.ok_or_else(|| format!("has the extents {dims:?}, expected none below 0"))?;
    let count = extents.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
    match count.filter(|&n| n <= isize::MAX as usize / 8) {
        Some(_) => Ok(extents),
        None => Err(format!("has the extents {dims:?}, which overflow")),
    }
}

impl Elements {
    /// The elements of a message. Errors: a type that is not read, extents that do not fit the elements, and those of another file.
    pub fn read(tensor: &TensorProto, folder: &Folder) -> Checked<Elements> {
        let element = Element::numbered(tensor.data_type.unwrap_or(0))?;
        let dims = extents(&tensor.dims)?;
        let count = dims.iter().product();
        let expected = element.bytes(count).ok_or("has more elements than memory")?;
        let external;
        let stored: Cow<'_, [u8]> = match &tensor.raw_data {
            _ if tensor.data_location == Some(1) => {
                external = folder.content(&tensor.external_data, expected)?;
                Cow::Borrowed(&external)
            }
            Some(raw) => Cow::Borrowed(raw),
            None => Cow::Owned(element.typed(tensor)),
        };
        if stored.len() != expected {
            let found = stored.len();
            return Err(format!("has {found} bytes, expected {expected} for {dims:?} of {}", element.name()));
        }
        let bytes = element.read(&stored, count)?.into_owned();
        Ok(Elements { element, dims, bytes })
    }

    /// True if all elements are the same number.
    pub fn is_one_number(&self) -> bool {
        let size = self.element.dtype().size();
        self.bytes.chunks_exact(size).all(|element| element == &self.bytes[..size])
    }

    /// The dense elements of a sparse message, of which the budget pays for the zeros.
    pub fn read_sparse(tensor: &SparseTensorProto, folder: &Folder, budget: &mut Budget) -> Checked<Elements> {
        let part = |part: &Option<TensorProto>, what: &str| match part {
            Some(part) => Elements::read(part, folder),
            None => Err(format!("is sparse, without {what}")),
        };
        let (values, places) = (part(&tensor.values, "values")?, part(&tensor.indices, "indices")?);
        let dims = extents(&tensor.dims)?;
        let (count, size) = (dims.iter().product::<usize>(), values.element.dtype().size());
        budget.spend(count, size)?;
        if places.element != Element::I64 {
            return Err(format!("has indices of {}, expected int64", places.element.name()));
        }
        let (numbers, mut bytes) = (places.ints(), vec![0; count * size]);
        let width = if places.dims.len() == 2 { places.dims[1] } else { 1 };
        if numbers.len() / width.max(1) * size != values.bytes.len() || ![1, dims.len()].contains(&width) {
            return Err(format!("has indices {:?} for values {:?}", places.dims, values.dims));
        }
        for (index, value) in numbers.chunks(width.max(1)).zip(values.bytes.chunks(size)) {
            let at = match index {
                [place] if places.dims.len() < 2 => usize::try_from(*place).ok(),
                _ => index.iter().zip(&dims).try_fold(0usize, |at, (&i, &extent)| {
                    usize::try_from(i).ok().filter(|&i| i < extent).map(|i| at * extent + i)
                }),
            };
            let at =
                at.filter(|&at| at < count).ok_or_else(|| format!("has the index {index:?} outside of {dims:?}"))?;
            bytes[at * size..(at + 1) * size].copy_from_slice(value);
        }
        Ok(Elements { element: values.element, dims, bytes })
    }

    /// The same elements, floats in f64.
    pub fn widened(self) -> Elements {
        fn of<T: isograd_core::Element + Into<f64>>(bytes: &[u8]) -> Vec<u8> {
            T::from_bytes(bytes).into_iter().flat_map(|v: T| v.into().to_ne_bytes()).collect()
        }
        let element = self.element.wide();
        let bytes = match self.element.dtype() {
            _ if element == self.element => self.bytes,
            DType::F32 => of::<f32>(&self.bytes),
            DType::F16 => of::<isograd_core::f16>(&self.bytes),
            DType::BF16 => of::<isograd_core::bf16>(&self.bytes),
            _ => self.bytes,
        };
        Elements { element, bytes, ..self }
    }

    /// The integers, of a tensor of i64.
    fn ints(&self) -> Vec<i64> {
        isograd_core::Element::from_bytes(&self.bytes)
    }

    /// The numbers on the host, of a tensor with few elements.
    pub fn host(&self) -> Option<Host> {
        let count: usize = self.dims.iter().product();
        if count > HOST_MOST || self.element.is_float8() {
            return None;
        }
        fn of<T: isograd_core::Element>(bytes: &[u8]) -> Vec<T> {
            T::from_bytes(bytes)
        }
        let (element, dims, b) = (self.element, self.dims.clone(), &self.bytes[..]);
        Some(match element.dtype() {
            DType::I64 => Host::ints(element, dims, of(b)),
            DType::I32 => Host::ints(element, dims, of::<i32>(b).into_iter().map(i64::from).collect()),
            DType::U8 | DType::Bool => Host::ints(element, dims, b.iter().map(|&v| v.into()).collect()),
            DType::F32 => Host::floats(element, dims, of::<f32>(b).into_iter().map(f64::from).collect()),
            DType::F64 => Host::floats(element, dims, of(b)),
            DType::F16 => Host::floats(element, dims, of::<isograd_core::f16>(b).into_iter().map(f64::from).collect()),
            DType::BF16 => {
                Host::floats(element, dims, of::<isograd_core::bf16>(b).into_iter().map(f64::from).collect())
            }
        })
    }

    /// True for floats that all are finite, and for other dtypes.
    pub fn is_finite(&self) -> bool {
        let is = |size: usize, of: &dyn Fn(&[u8]) -> f64| self.bytes.chunks_exact(size).all(|b| of(b).is_finite());
        match self.element.dtype() {
            DType::F32 => is(4, &|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]).into()),
            DType::F64 => is(8, &|b| <f64 as isograd_core::Element>::from_bytes(b)[0]),
            DType::F16 => is(2, &|b| isograd_core::f16::from_ne_bytes([b[0], b[1]]).into()),
            DType::BF16 => is(2, &|b| isograd_core::bf16::from_ne_bytes([b[0], b[1]]).into()),
            _ => true,
        }
    }

    /// The tensor on a device.
    pub fn tensor(&self, device: &Device) -> Result<Tensor> {
        Tensor::from_bytes(&self.bytes, &self.dims, self.element.dtype(), device)
    }
}

/// The error of a tensor of a file, which `why` describes.
pub fn invalid(file: &str, name: &str, why: impl std::fmt::Display) -> Error {
    Error::format(file.to_string(), format!("the tensor {name:?} {why}"))
}
