//! A tensor as it lies in a file, and its numbers.

use super::types::{Dequantise, Elements, TensorType};
use isograd_core::{DType, Device, Error, Kind, Result, Shape, Tensor, bf16, f16, host};
use isograd_files::{Mapped, Order};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Tensors with more blocks are converted by several threads.
const SERIAL: usize = 1 << 13;

/// Blocks that are dequantised before they are converted.
const AT_ONCE: usize = 16;

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
            Elements::Blocks(dequantise, _) => {
                let bytes = match dtype {
                    DType::F32 => self.numbers(dequantise, f32::to_ne_bytes),
                    DType::F64 => self.numbers(dequantise, |x| f64::from(x).to_ne_bytes()),
                    DType::F16 => self.numbers(dequantise, |x| f16::from_f32(x).to_ne_bytes()),
                    DType::BF16 => self.numbers(dequantise, |x| bf16::from_f32(x).to_ne_bytes()),
                    _ => Err(Error::new(
                        Kind::Dtype,
                        "gguf",
                        format!("{} has quantised floats, expected a dtype of floats, got {dtype}", self.kind),
                    )),
                }?;
                Tensor::from_bytes(&bytes, self.shape.clone(), dtype, device)
            }
            Elements::Unread => {
                let message = format!("tensors of the type {} are not read", self.kind);
                Err(Error::new(Kind::Unsupported, "gguf", message))
            }
        }
    }

    /// The bytes of all numbers in row-major order, each converted to `N` bytes.
    fn numbers<const N: usize>(
        &self,
        dequantise: Dequantise,
        convert: impl Fn(f32) -> [u8; N] + Sync,
    ) -> Result<Vec<u8>> {
        let (elements, bytes) = (self.kind.block_elements(), self.kind.block_bytes());
        let blocks = self.bytes().len() / bytes;
        let mut converted = host::repeated("gguf", 0u8, blocks * elements * N)?;
        in_parts(self.bytes(), bytes, &mut converted, elements * N, |packed, converted| {
            let mut values = vec![0.0; AT_ONCE * elements];
            let parts = packed.chunks(AT_ONCE * bytes).zip(converted.chunks_mut(AT_ONCE * elements * N));
            for (packed, converted) in parts {
                let values = &mut values[..converted.len() / N];
                dequantise(packed, values);
                values.iter().zip(converted.as_chunks_mut().0).for_each(|(&x, bytes)| *bytes = convert(x));
            }
        });
        Ok(converted)
    }
}

/// Calls a function with all blocks of two slices, which have `a` and `b` items each: in one part, or in as many as there are processors, which
/// this thread shares with those that can be started.
pub(super) fn in_parts<A: Sync, B: Send>(
    from: &[A],
    a: usize,
    to: &mut [B],
    b: usize,
    part: impl Fn(&[A], &mut [B]) + Sync,
) {
    let blocks = from.len() / a;
    if blocks <= SERIAL {
        return part(from, to);
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let each = blocks.div_ceil(threads);
    let parts = Mutex::new(from.chunks(each * a).zip(to.chunks_mut(each * b)));
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((from, to)) = next() {
            part(from, to);
        }
    };
    thread::scope(|scope| {
        (1..threads).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, work)));
        work();
    });
}
