//! Mixed precision: within a scope, products run in 16 bits, and ops that need f32 run in f32.

use crate::ops::elementwise::each::cast_each;
use crate::tape::is_grad_enabled;
use crate::tensor::Inner;
use crate::thread::{self, AUTOCAST, with_flag};
use crate::{DType, Error, Result, Tensor};
use std::sync::{Arc, Weak};

/// Elements of the largest leaf that is cast together with others. What a launch takes does not count for larger ones, whose gradients
/// in 16 bits would be kept until the last is known.
const MOST_TOGETHER: usize = 1 << 22;
/// Groups that a thread knows.
const MOST_GROUPS: usize = 64;

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

/// Leaves that a scope has cast, in order. A scope that begins with the same leaf casts all of them together.
struct Group {
    dtype: DType,
    leaves: Vec<Weak<Inner>>,
}

impl Group {
    fn begins_with(&self, x: &Tensor, dtype: DType) -> bool {
        self.dtype == dtype && std::ptr::eq(self.leaves[0].as_ptr(), Arc::as_ptr(&x.0))
    }
}

/// The casts of this thread's scope, and what it knows of earlier scopes.
pub(crate) struct Casts {
    made: Vec<Cast>,
    groups: Vec<Group>,
}

impl Casts {
    pub const NEW: Casts = Casts { made: Vec::new(), groups: Vec::new() };
}

/// Runs `f` on the casts of this thread.
fn casts<R>(f: impl FnOnce(&mut Casts) -> R) -> R {
    thread::with(|thread| f(&mut thread.casts.borrow_mut()))
}

/// Runs `f` as on a thread that has cast nothing.
pub(crate) fn afresh<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(Casts);
    impl Drop for Restore {
        fn drop(&mut self) {
            casts(|casts| std::mem::swap(casts, &mut self.0));
        }
    }
    let _restore = Restore(casts(|casts| std::mem::replace(casts, Casts::NEW)));
    f()
}

/// Runs `f`, on this thread, with mixed precision. Matrix products (`matmul`, `gemm`, `gemm_bias`, `linear`, `einsum`, `bilinear`, `sparse_mm`), messages that are copied along
/// edges, and recurrent ops take their operands in `dtype`, f16 or bf16. Softmax, losses, distances and similarities, norms (except `batch_norm`, `instance_norm`, and `residual_layer_norm` of a residual in f32), `exp`, `log`, `pow`, `rsqrt`, `reciprocal`, `softplus`, sums, means and products
/// of elements convert 16-bit operands to f32. Other ops run in the dtype of their operands. Only f32, f16 and bf16 operands are
/// converted.
///
/// Casts are on the tape, so the gradient of a parameter has the parameter's dtype. A parameter is cast once for all losses of a
/// scope, and each loss may have a backward pass of its own. From the second scope on, the parameters that the one before has cast are cast
/// together, in one launch where the device can, and so are their gradients, unless a hook waits for one ([`remembered_casts`]). A backward pass runs in the dtypes
/// of the forward pass, inside or outside of the scope. Use [`no_autocast`] inside for ops that must keep their dtype, and a loss scaler with f16. Micikevicius et
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
    with_flag(&AUTOCAST, None, f)
}

/// The dtype of products in this thread's scope.
pub(crate) fn current() -> Option<DType> {
    AUTOCAST.get()
}

/// Runs `f` within a scope of `dtype`, or without a scope. Casts live as long as the outermost scope.
pub(crate) fn with<R>(dtype: Option<DType>, f: impl FnOnce() -> R) -> R {
    struct Forget;
    impl Drop for Forget {
        fn drop(&mut self) {
            forget();
        }
    }
    let _forget = (AUTOCAST.get().is_none() && dtype.is_some()).then_some(Forget);
    with_flag(&AUTOCAST, dtype, f)
}

/// Drops the casts of a scope, and remembers which leaves they are of.
fn forget() {
    let made = casts(|casts| std::mem::take(&mut casts.made));
    let Some((leaf, dtype)) = made.first().map(|cast| (cast.leaf.clone(), cast.to.dtype())) else { return };
    let is_of = |cast: &&Cast| cast.to.dtype() == dtype && cast.leaf.device() == leaf.device();
    let leaves = made.iter().filter(is_of).map(|cast| Arc::downgrade(&cast.leaf.0)).collect();
    casts(|Casts { groups, .. }| {
        groups.retain(|group| group.leaves[0].strong_count() > 0 && !group.begins_with(&leaf, dtype));
        if groups.len() == MOST_GROUPS {
            groups.remove(0);
        }
        groups.push(Group { dtype, leaves });
    });
}

/// The scopes of [`autocast`] that this thread remembers: the dtype of each and the leaves that it has cast, in order. A scope that begins with
/// the first leaf of a list casts all of the list in one launch. There are at most 64 lists; they do not keep their leaves alive.
pub fn remembered_casts() -> Vec<(DType, Vec<Tensor>)> {
    let living = |group: &Group| group.leaves.iter().filter_map(Weak::upgrade).map(Tensor).collect();
    casts(|casts| casts.groups.iter().map(|group| (group.dtype, living(group))).collect())
}

/// Forgets the [`remembered_casts`]: the next scope of [`autocast`] casts each leaf by itself.
pub fn forget_casts() {
    drop(casts(|casts| std::mem::take(&mut casts.groups)));
}

/// The leaves that are cast together with x, which is the first of them; x alone if there are no others.
fn together(x: &Tensor, dtype: DType) -> Vec<Tensor> {
    let fits = |x: &Tensor| x.requires_grad() && x.numel() <= MOST_TOGETHER && !x.is_hooked();
    if !fits(x) {
        return vec![x.clone()];
    }
    let leaves = |group: &Group| group.leaves.iter().filter_map(Weak::upgrade).map(Tensor).collect::<Vec<_>>();
    let known = casts(|casts| casts.groups.iter().find(|group| group.begins_with(x, dtype)).map(leaves));
    let is_wanted = |leaf: &Tensor| leaf.is_leaf() && fits(leaf) && known_cast(leaf, dtype).is_none();
    known.map_or_else(|| vec![x.clone()], |known| known.into_iter().filter(is_wanted).collect())
}

/// The operands of a product in the scope's dtype; `None` if they have it already, or outside of a scope.
pub(crate) fn low<const N: usize>(operands: [&Tensor; N], more: Option<&Tensor>) -> Result<Option<Operands<N>>> {
    let Some(dtype) = AUTOCAST.get() else { return Ok(None) };
    let changes = |x: &Tensor| is_eligible(x) && x.dtype() != dtype;
    converted(operands, more, operands.iter().copied().chain(more).any(changes), dtype)
}

/// [`low`] for an op with any number of operands.
pub(crate) fn low_each(operands: &[&Tensor]) -> Result<Option<Vec<Tensor>>> {
    let Some(dtype) = AUTOCAST.get() else { return Ok(None) };
    let is_needed = operands.iter().any(|x| is_eligible(x) && x.dtype() != dtype);
    is_needed.then(|| operands.iter().map(|x| cast(x, dtype)).collect()).transpose()
}

/// The operands of an op that needs f32; `None` if no operand is a 16-bit float, or outside of a scope.
pub(crate) fn wide<const N: usize>(operands: [&Tensor; N], more: Option<&Tensor>) -> Result<Option<Operands<N>>> {
    if AUTOCAST.get().is_none() {
        return Ok(None);
    }
    let changes = |x: &Tensor| is_eligible(x) && x.dtype() != DType::F32;
    converted(operands, more, operands.iter().copied().chain(more).any(changes), DType::F32)
}

/// [`wide`] for an op with any number of operands.
pub(crate) fn wide_each(operands: &[&Tensor]) -> Result<Option<Vec<Tensor>>> {
    let is_needed = AUTOCAST.get().is_some() && operands.iter().any(|x| is_eligible(x) && x.dtype() != DType::F32);
    is_needed.then(|| operands.iter().map(|x| cast(x, DType::F32)).collect()).transpose()
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
    if let Some(to) = known_cast(x, dtype) {
        return Ok(to);
    }
    let leaves = together(x, dtype);
    let made = match &leaves[..] {
        [_] => vec![x.cast(dtype)?],
        _ => cast_each(&leaves.iter().collect::<Vec<_>>(), dtype)?,
    };
    let to = made[0].clone();
    casts(|casts| {
        // A long scope, such as a training loop, changes its leaves.
        casts.made.retain(Cast::is_current);
        let made = leaves.into_iter().zip(made);
        casts.made.extend(made.map(|(leaf, to)| Cast { version: leaf.0.storage.version(), leaf, to }));
    });
    Ok(to)
}

/// The cast of a leaf as it is now, if the scope has made it.
fn known_cast(x: &Tensor, dtype: DType) -> Option<Tensor> {
    let is_it = |c: &&Cast| Arc::ptr_eq(&c.leaf.0, &x.0) && c.version == x.0.storage.version() && c.to.dtype() == dtype;
    casts(|casts| casts.made.iter().find(is_it).map(|c| c.to.clone()))
}
