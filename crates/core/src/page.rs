//! Tensors whose elements are elsewhere until a kernel uses them, such as the parameters of a model that is distributed over devices.

use crate::{DType, Error, Layout, Result, Shape, Tensor, no_autocast, no_grad};
use std::sync::Weak;

/// The use that a kernel makes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Elements are read.
    Read,
    /// Elements are changed in place, all or some.
    Write,
}

/// The keeper of the elements of pages.
pub trait Pager: Send + Sync {
    /// The elements of each of these pages, in the order of memory: one contiguous tensor `[n]` a page, which is not a page itself. They
    /// are used by one kernel. Changes of it must be seen by later calls.
    fn elements(&self, pages: &[(usize, Access)]) -> Result<Vec<Tensor>>;
}

/// The place of a tensor's elements, in place of memory.
#[derive(Clone)]
pub(crate) struct Page {
    pager: Weak<dyn Pager>,
    number: usize,
}

impl Tensor {
    /// A tensor with the shape, the order of memory and the device of this one, in `dtype`, whose elements `pager` has under `number`. It has
    /// no memory of its own: each kernel that uses it asks the pager. Errors: `Value` unless the elements fill memory without gaps;
    /// `OutOfMemory`.
    pub fn paged(&self, dtype: DType, pager: Weak<dyn Pager>, number: usize) -> Result<Tensor> {
        let layout = dense(self)?;
        let empty = Tensor::empty(0, dtype, self.device())?;
        Ok(empty.with_page(layout, Page { pager, number }))
    }

    /// True if the elements are a pager's.
    pub fn is_paged(&self) -> bool {
        self.page().is_some()
    }

    /// The elements in the order of memory, `[n]`, outside of the tape. Shares memory. Errors: `Value` unless they fill memory without gaps.
    pub fn in_memory_order(&self) -> Result<Tensor> {
        dense(self)?;
        Ok(self.with_layout(Layout::contiguous(Shape::from(self.numel())).shift(self.layout().offset())))
    }

    /// These elements `[n]` with the shape and the order of memory of `other`, outside of the tape. Shares memory. Errors: `Shape` if it has
    /// another number of elements; `Value` unless both fill memory without gaps.
    pub fn in_order_of(&self, other: &Tensor) -> Result<Tensor> {
        if self.numel() != other.numel() {
            return Err(Error::shape(
                "in_order_of",
                format!("{} cannot be laid out as {}", self.shape(), other.shape()),
            ));
        }
        dense(self)?;
        Ok(self.with_layout(dense(other)?.shift(self.layout().offset())))
    }

    /// Marks the elements as changed, as a kernel does: tensors that the tape has saved before can no longer be used. For a pager whose
    /// pages get new values.
    pub fn mark_changed(&self) {
        self.touch();
    }
}

/// The layout from the start of memory, if elements fill it without gaps.
fn dense(t: &Tensor) -> Result<Layout> {
    let layout = t.layout();
    let mut axes: Vec<(usize, usize)> = layout.strides().iter().copied().zip(t.dims().iter().copied()).collect();
    axes.retain(|&(_, extent)| extent != 1);
    axes.sort_unstable();
    let mut expected = 1;
    let is_dense = axes.iter().all(|&(stride, extent)| {
        let is_next = stride == expected;
        expected *= extent;
        is_next
    });
    if !is_dense && t.numel() > 0 {
        let message = format!("{} with strides {:?} has gaps, expected dense elements", t.shape(), layout.strides());
        return Err(Error::value("paged", message));
    }
    Ok(layout.at_start())
}

/// These tensors, with the elements of pages in memory.
pub(crate) fn resident(op: &'static str, tensors: &[(&Tensor, Access)]) -> Result<Vec<Tensor>> {
    let mut found: Vec<Tensor> = tensors.iter().map(|(t, _)| (*t).clone()).collect();
    let mut left: Vec<usize> = (0..tensors.len()).filter(|i| tensors[*i].0.is_paged()).collect();
    while let Some(Page { pager, .. }) = left.first().and_then(|i| tensors[*i].0.page()) {
        let of_pager: Vec<(usize, usize)> = left
            .iter()
            .filter_map(|i| {
                tensors[*i].0.page().filter(|page| Weak::ptr_eq(&page.pager, pager)).map(|page| (*i, page.number))
            })
            .collect();
        left.retain(|i| !of_pager.iter().any(|(known, _)| known == i));
        let gone = || Error::value(op, "a parameter is distributed, and what has its parts was dropped");
        let pager = pager.upgrade().ok_or_else(gone)?;
        let pages: Vec<(usize, Access)> = of_pager.iter().map(|(i, number)| (*number, tensors[*i].1)).collect();
        let elements = no_grad(|| no_autocast(|| pager.elements(&pages)))?;
        for ((i, _), elements) in of_pager.iter().zip(elements) {
            let t = tensors[*i].0;
            found[*i] = elements.with_layout(t.layout().shift(elements.layout().offset()));
        }
    }
    Ok(found)
}
