//! Batches of samples.

use crate::HostTensor;
use isograd_core::{Device, Result, Scalar, Tensor, Tensors, bf16, f16};

/// Samples of which batches are formed: every part of a sample becomes a tensor with one dimension more, of the same dtype.
///
/// | sample | batch |
/// |---|---|
/// | a number, such as `f32`, `i64` or `bool` | [`Tensor`] `[B]` |
/// | `[T; N]` | [`Tensor`] `[B, N]` |
/// | [`HostTensor`], of one shape | [`Tensor`] `[B, ..]` |
/// | `Vec<T>`, of any length | [`Padded`] |
/// | a tuple of samples | a tuple of batches |
/// | a struct with `#[derive(Collate)]` | a struct of batches |
///
/// `#[derive(Collate)]` on a struct `Pair` makes a struct `PairBatch`, whose fields have the same names. Another structure
/// implements the trait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no sample",
    label = "neither a number, an array, a vector of numbers, a `HostTensor`, nor a tuple or a struct of these",
    note = "a struct of samples has `#[derive(Collate)]`; a text becomes numbers by a `Tokenizer`, a class its index"
)]
pub trait Collate: Sized {
    /// A batch: a structure of tensors.
    type Batch: Tensors + Send;

    /// Forms a batch in host memory. The loader calls it on its worker threads. Errors: `Shape` or `DType` if samples do not fit together.
    fn collate(items: Vec<Self>) -> Result<Staged<Self::Batch>>;
}

/// A batch in host memory, ready for a device. The loader uploads it on the worker thread that formed it.
pub struct Staged<B>(Upload<B>);

type Upload<B> = Box<dyn FnOnce(&Device) -> Result<B> + Send>;

impl<B> Staged<B> {
    /// A batch that `upload` puts on a device.
    pub fn new(upload: impl FnOnce(&Device) -> Result<B> + Send + 'static) -> Staged<B> {
        Staged(Box::new(upload))
    }

    /// The batch on a device. Errors: `OutOfMemory` and those of the device.
    pub fn to(self, device: &Device) -> Result<B> {
        (self.0)(device)
    }
}

impl<B> std::fmt::Debug for Staged<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Staged").finish_non_exhaustive()
    }
}

impl Staged<Tensor> {
    fn tensor(host: HostTensor) -> Staged<Tensor> {
        Staged::new(move |device| host.to(device))
    }
}

impl Collate for HostTensor {
    type Batch = Tensor;

    fn collate(items: Vec<HostTensor>) -> Result<Staged<Tensor>> {
        Ok(Staged::tensor(HostTensor::stack(&items)?))
    }
}

/// Sequences of different lengths in one batch. Elements behind the end of a sequence are 0, or those of [`padded_with`](Padded::padded_with).
#[derive(Clone, Debug)]
pub struct Padded {
    /// `[B, L]`, where L is the greatest length.
    pub values: Tensor,
    /// `[B]`, i64.
    pub lengths: Tensor,
}

impl Padded {
    /// The same sequences with this value behind their ends, such as the target that a loss ignores. Errors: `Dtype` for a float among integers.
    pub fn padded_with(&self, value: impl Into<Scalar>) -> Result<Padded> {
        let values = self.values.masked_fill(&self.mask()?.logical_not()?, value)?;
        Ok(Padded { values, lengths: self.lengths.clone() })
    }

    /// Bool `[B, L]`: true where a sequence has an element.
    pub fn mask(&self) -> Result<Tensor> {
        let device = self.lengths.device();
        let positions: Vec<i64> = (0..self.values.dims()[1] as i64).collect();
        Tensor::from_slice(&positions, positions.len(), device)?.lt(&self.lengths.unsqueeze(1)?)
    }
}

impl Tensors for Padded {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Padded { values: self.values.map(f)?, lengths: self.lengths.map(f)? })
    }

    fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Tensor)) {
        [&self.values, &self.lengths].into_iter().for_each(f);
    }
}

macro_rules! elements {
    ($($t:ty)*) => {$(
        impl Collate for $t {
            type Batch = Tensor;

            fn collate(items: Vec<$t>) -> Result<Staged<Tensor>> {
                Ok(Staged::tensor(HostTensor::vector(&items)))
            }
        }

        impl<const N: usize> Collate for [$t; N] {
            type Batch = Tensor;

            fn collate(items: Vec<[$t; N]>) -> Result<Staged<Tensor>> {
                Ok(Staged::tensor(HostTensor::new(items.as_flattened(), [items.len(), N])?))
            }
        }

        impl Collate for Vec<$t> {
            type Batch = Padded;

            fn collate(items: Vec<Vec<$t>>) -> Result<Staged<Padded>> {
                let longest = items.iter().map(Vec::len).max().unwrap_or(0);
                let mut values = vec![<$t>::default(); items.len() * longest];
                for (row, item) in values.chunks_mut(longest.max(1)).zip(&items) {
                    row[..item.len()].copy_from_slice(item);
                }
                let lengths: Vec<i64> = items.iter().map(|item| item.len() as i64).collect();
                let values = HostTensor::new(&values, [items.len(), longest])?;
                let lengths = HostTensor::vector(&lengths);
                Ok(Staged::new(move |device| Ok(Padded { values: values.to(device)?, lengths: lengths.to(device)? })))
            }
        }
    )*};
}
elements! { f64 f32 f16 bf16 i64 i32 u8 bool }

macro_rules! tuples {
    ($(($($name:ident $i:tt $part:ident),*))*) => {$(
        impl<$($name: Collate<Batch: 'static>),*> Collate for ($($name,)*) {
            type Batch = ($($name::Batch,)*);

            fn collate(items: Vec<Self>) -> Result<Staged<Self::Batch>> {
                $(let mut $part = Vec::with_capacity(items.len());)*
                for item in items {
                    $($part.push(item.$i);)*
                }
                $(let $part = $name::collate($part)?;)*
                Ok(Staged::new(move |device| Ok(($($part.to(device)?,)*))))
            }
        }
    )*};
}
tuples! { (A 0 a) (A 0 a, B 1 b) (A 0 a, B 1 b, C 2 c) (A 0 a, B 1 b, C 2 c, D 3 d) }
