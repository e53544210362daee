//! A tensor as it lies in a file, and its numbers.

use super::types::{Elements, TensorType};
use isograd_core::quantized::QuantizedWeight;
use isograd_core::{DType, Device, Error, Kind, Result, Shape, Tensor};
use isograd_files::{Mapped, Order};
use std::ops::Range;
use std::sync::Arc;

/// A tensor of a GGUF file, whose bytes stay in the file. A clone has the same bytes.
#[derive(Clone, Debug)]
pub struct Packed {
    kind: TensorType,
    shape: Shape,
    memory: Arc<Mapped>,
    place: Range<usize>,
}

impl Packed {
    /// A tensor whose bytes are there: as many as the type has for the shape, whose last dimension is one of whole blocks.
    pub(super) fn new(kind: TensorType, shape: Shape, memory: Arc<Mapped>, place: Range<usize>) -> Packed {
        Packed { kind, shape, memory, place }
    }

    /// The type of its elements.
    pub fn kind(&self) -> TensorType {
        self.kind
    }

    /// The shape in this library's order: rows are contiguous, and blocks lie along the last dimension. The file has the reverse.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The bytes of all blocks, row by row.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.place.clone()]
    }

    /// The first of its bytes in the file.
    pub fn offset(&self) -> usize {
        self.place.start
    }

    /// Its numbers as a tensor of a dtype. Those of blocks are computed in f32 and rounded once; [`TensorType::dtype`] is without loss.
    /// Errors: `Dtype` for a dtype of integers, if the type has blocks; `Unsupported` for a type that is not read; `OutOfMemory`.
    pub fn tensor(&self, dtype: DType, device: &Device) -> Result<Tensor> {
        match self.kind.elements() {
            Elements::Plain(stored) => {
                let native = stored.read(self.bytes(), Order::Little).map_err(|why| Error::format("gguf", why))?;
                Tensor::from_bytes(&native, self.shape.clone(), stored.dtype(), device)?.cast(dtype)
            }
            Elements::Blocks(format) => {
                let bytes = format.numbers("gguf", self.bytes(), dtype)?;
                Tensor::from_bytes(&bytes, self.shape.clone(), dtype, device)
            }
            Elements::Unread => {
                let message = format!("tensors of the type {} are not read", self.kind);
                Err(Error::new(Kind::Unsupported, "gguf", message))
            }
        }
    }

    /// True for a type with blocks that [`weight`](Packed::weight) keeps.
    pub fn has_blocks(&self) -> bool {
        matches!(self.kind.elements(), Elements::Blocks(_))
    }

    /// A matrix as it is: its blocks on a device. Its leading dimensions are merged. Errors: `Unsupported` for a type without blocks, or that is not
    /// read; `OutOfMemory`.
    pub fn weight(&self, device: &Device) -> Result<QuantizedWeight> {
        let Elements::Blocks(format) = self.kind.elements() else {
            let message = format!("a tensor of the type {} has no blocks that are kept as they are", self.kind);
            return Err(Error::unsupported("gguf", message));
        };
        let (rows, columns) = match self.shape.dims() {
            [rows @ .., columns] => (rows.iter().product(), *columns),
            [] => (1, 1),
        };
        QuantizedWeight::from_bytes(format, self.bytes(), [rows, columns], device)
    }
}
