//! Mixed precision: within a scope, products run in 16 bits, and ops that need f32 run in f32.

use crate::tape::{is_grad_enabled, with_flag};
use crate::{DType, Error, Result, Tensor};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// A leaf's cast, made from this version of the leaf.
struct Cast {
    leaf: Tensor,
    version: u64,
    to: Tensor,
}

impl Cast {
    /// False if the leaf has changed in place since the cast, or if nobody else holds it.
    fn is_current(&self) -> bool {
        self.version == self.leaf.0.storage.version() && Arc::strong_count(&self.leaf.0) > 1
    }
}

thread_local! {
    static LOW: Cell<Option<DType>> = const { Cell::new(None) };
    static CASTS: RefCell<Vec<Cast>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f`, on this thread, with mixed precision. Matrix products (`matmul`, `gemm`, `gemm_bias`, `linear`, `einsum`, `bilinear`, `sparse_mm`), messages that are copied along
/// edges, and recurrent ops take their operands in `dtype`, f16 or bf16. Softmax, losses, distances and similarities, norms (except `batch_norm`, `instance_norm`, and `residual_layer_norm` of a residual in f32), `exp`, `log`, `pow`, `rsqrt`, `reciprocal`, `softplus`, sums, means and products
/// of elements convert 16-bit operands to f32. Other ops run in the dtype of their operands. Only f32, f16 and bf16 operands are
/// converted.
///
/// Casts are on the tape, so the gradient of a parameter has the parameter's dtype. A parameter is cast once for all losses of a
/// scope, and each loss may have a backward pass of its own. A backward pass runs in the dtypes of the forward pass, inside or
/// outside of the scope. Use [`no_autocast`] inside for ops that must keep their dtype, and a loss scaler with f16. Micikevicius et
/// al. 2017, arXiv 1710.03740. Errors: `Attr` for another dtype; the errors of `f`.
///
/// ```
/// # use isograd_core::{autocast, DType, Result, Tensor};
/// fn step(x: &Tensor, w: &Tensor, target: &Tensor) -> Result<()> {
///     let loss = autocast(DType::BF16, || x.linear(w, None)?.cross_entropy(target))?;
///     loss.backward()
/// }
/// ```
pub fn autocast<R>(dtype: DType, f: impl FnOnce() -> Result<R>) -> Result<R> {
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return Err(Error::attr("autocast", format!("{dtype} was asked for, expected f16 or bf16")));
    }
    with(Some(dtype), f)
}

/// Runs `f` without mixed precision, within an [`autocast`].
pub fn no_autocast<R>(f: impl FnOnce() -> R) -> R {
    with_flag(&LOW, None, f)
}

/// The dtype of products in this thread's scope.
pub(crate) fn current() -> Option<DType> {
    LOW.get()
}

/// Runs `f` within a scope of `dtype`, or without a scope. Casts live as long as the outermost scope.
pub(crate) fn with<R>(dtype: Option<DType>, f: impl FnOnce() -> R) -> R {
    struct Forget;
    impl Drop for Forget {
        fn drop(&mut self) {
            forget();
        }
    }
    let _forget = (LOW.get().is_none() && dtype.is_some()).then_some(Forget);
    with_flag(&LOW, dtype, f)
}

fn forget() {
    let _ = CASTS.try_with(|casts| std::mem::take(&mut *casts.borrow_mut()));
}

/// The operands of a product in the scope's dtype; `None` if they have it already, or outside of a scope.
pub(crate) fn low<const N: usize>(operands: [&Tensor; N], more: Option<&Tensor>) -> Result<Option<Operands<N>>> {
    let Some(dtype) = LOW.get() else { return Ok(None) };
    let changes = |x: &Tensor| is_eligible(x) && x.dtype() != dtype;
    converted(operands, more, operands.iter().copied().chain(more).any(changes), dtype)
}

/// [`low`] for an op with any number of operands.
pub(crate) fn low_each(operands: &[&Tensor]) -> Result<Option<Vec<Tensor>>> {
    let Some(dtype) = LOW.get() else { return Ok(None) };
    let is_needed = operands.iter().any(|x| is_eligible(x) && x.dtype() != dtype);
    is_needed.then(|| operands.iter().map(|x| cast(x, dtype)).collect()).transpose()
}

/// The operands of an op that needs f32; `None` if no operand is a 16-bit float, or outside of a scope.
pub(crate) fn wide<const N: usize>(operands: [&Tensor; N], more: Option<&Tensor>) -> Result<Option<Operands<N>>> {
    if LOW.get().is_none() {
        return Ok(None);
    }
    let changes = |x: &Tensor| is_eligible(x) && x.dtype() != DType::F32;
    converted(operands, more, operands.iter().copied().chain(more).any(changes), DType::F32)
}

type Operands<const N: usize> = ([Tensor; N], Option<Tensor>);

fn converted<const N: usize>(
    operands: [&Tensor; N],
    more: Option<&Tensor>,
    is_needed: bool,
    dtype: DType,
) -> Result<Option<Operands<N>>> {
    if !is_needed {
        return Ok(None);
    }
    let (mut all, mut more) = (operands.map(Tensor::clone), more.cloned());
    all.iter_mut().chain(&mut more).try_for_each(|x| cast(x, dtype).map(|y| *x = y))?;
    Ok(Some((all, more)))
}

fn is_eligible(x: &Tensor) -> bool {
    matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16)
}

fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if !is_eligible(x) || x.dtype() == dtype {
        return Ok(x.clone());
    }
    if !x.is_leaf() || !is_grad_enabled() {
        return x.cast(dtype);
    }
    let is_known =
        |c: &&Cast| Arc::ptr_eq(&c.leaf.0, &x.0) && c.version == x.0.storage.version() && c.to.dtype() == dtype;
    if let Some(to) = CASTS.with_borrow(|casts| casts.iter().find(is_known).map(|c| c.to.clone())) {
        return Ok(to);
    }
    let to = x.cast(dtype)?;
    CASTS.with_borrow_mut(|casts| {
        // A long scope, such as a training loop, changes its leaves.
        casts.retain(Cast::is_current);
        casts.push(Cast { leaf: x.clone(), version: x.0.storage.version(), to: to.clone() });
    });
    Ok(to)
}
