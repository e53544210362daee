//! A family of kernels: the fused ops that it launches, and calls that launch all of its kernels.

use crate::driver::Limits;
use crate::launch::device::Gpu;
use isograd_core::fused::{AnyFused, Fused};
use isograd_core::tape::{BackwardOptions, grad_with};
use isograd_core::{Call, DType, Determinism, Device, Error, Precision, Result, Tensor};
use std::any::{TypeId, type_name};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::LazyLock;

/// A family of kernels.
pub struct Family {
    /// The launchers of its fused ops.
    pub launchers: &'static [Launcher],
    /// Calls that together launch every kernel of its files, with tensors of this dtype.
    pub examples: &'static [Example],
}

/// A call with tensors of a dtype. An op that does not take the dtype gives its error.
pub type Example = fn(&Device, DType) -> Result<()>;

/// A fused op with kernels for GPUs.
pub trait FusedLaunch: Fused {
    /// Launches the kernels of a call, whose attributes are those of this descriptor.
    fn launch(&self, gpu: &Gpu, call: &Call<'_>) -> Result<()>;

    /// True if a device of these limits has the kernels for a dtype. Unless said otherwise, it has them for all floats that it has.
    fn takes(dtype: DType, limits: &Limits) -> bool {
        is_float(dtype, limits)
    }

    /// True if such a device has room on chip for this descriptor.
    fn has_room(&self, _dtype: DType, _limits: &Limits) -> bool {
        true
    }
}

/// True for the floats of a device.
pub fn is_float(dtype: DType, limits: &Limits) -> bool {
    dtype.is_float() && (dtype != DType::F64 || limits.has_f64)
}

/// The launcher of descriptors of one type.
pub struct Launcher {
    id: fn() -> TypeId,
    path: fn() -> &'static str,
    run: fn(&Gpu, &Call<'_>, &dyn AnyFused) -> Result<()>,
    takes: fn(DType, &Limits) -> bool,
    has_room: fn(&dyn AnyFused, DType, &Limits) -> bool,
}

impl Launcher {
    /// The launcher of a type.
    pub const fn of<F: FusedLaunch>() -> Launcher {
        Launcher {
            id: TypeId::of::<F>,
            path: type_name::<F>,
            run: run::<F>,
            takes: F::takes,
            has_room: |fused, dtype, limits| of::<F>(fused).has_room(dtype, limits),
        }
    }
}

fn run<F: FusedLaunch>(gpu: &Gpu, call: &Call<'_>, fused: &dyn AnyFused) -> Result<()> {
    of::<F>(fused).launch(gpu, call)
}

fn of<F: FusedLaunch>(fused: &dyn AnyFused) -> &F {
    fused.downcast_ref::<F>().expect("a launcher is found by the type of the descriptor")
}

/// The hash of a type's identity, which is a hash already: launchers are looked up for every call.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, v: u64) {
        self.0 = v;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// All launchers, by the type of the descriptor.
static LAUNCHERS: LazyLock<HashMap<TypeId, &'static Launcher, BuildHasherDefault<IdHasher>>> = LazyLock::new(|| {
    crate::ops::FAMILIES
        .iter()
        .flat_map(|(_, family)| family.launchers)
        .map(|launcher| ((launcher.id)(), launcher))
        .collect()
});

/// The types of the descriptors that have launchers, and the paths of these types.
pub fn types() -> impl Iterator<Item = (TypeId, &'static str)> {
    crate::ops::FAMILIES
        .iter()
        .flat_map(|(_, family)| family.launchers)
        .map(|launcher| ((launcher.id)(), (launcher.path)()))
}

/// Launches the kernels of a fused op. Errors: `Unsupported` if it has none.
pub fn launch(gpu: &Gpu, call: &Call<'_>, fused: &dyn AnyFused) -> Result<()> {
    match LAUNCHERS.get(&fused.id()) {
        Some(launcher) => (launcher.run)(gpu, call, fused),
        None => Err(Error::unsupported(call.op, format!("{} has no kernel on GPUs", fused.name()))),
    }
}

/// True if the device has the kernels of a fused op for a dtype.
pub fn supports(gpu: &Gpu, fused: TypeId, dtype: DType) -> bool {
    LAUNCHERS.get(&fused).is_some_and(|launcher| (launcher.takes)(dtype, gpu.driver().limits()))
}

/// True if the device has room on chip for a fused op whose kernels it has.
pub fn has_room(gpu: &Gpu, fused: &dyn AnyFused, dtype: DType) -> bool {
    LAUNCHERS.get(&fused.id()).is_some_and(|launcher| (launcher.has_room)(fused, dtype, gpu.driver().limits()))
}

/// The families, by the folders of their kernels, and their examples.
pub fn examples() -> impl Iterator<Item = (&'static str, &'static [Example])> {
    crate::ops::FAMILIES.iter().map(|(name, family)| (*name, family.examples))
}

/// A tensor of zeros.
pub fn zeros(device: &Device, dtype: DType, dims: &[usize]) -> Result<Tensor> {
    Tensor::zeros(dims, dtype, device)
}

/// The gradients of `f` at leaves of these shapes.
pub fn differentiate(
    device: &Device,
    dtype: DType,
    shapes: &[&[usize]],
    f: fn(&[Tensor]) -> Result<Tensor>,
) -> Result<()> {
    let leaves: Vec<Tensor> =
        shapes.iter().map(|dims| zeros(device, dtype, dims)?.require_grad()).collect::<Result<_>>()?;
    let y = f(&leaves)?;
    let options = BackwardOptions { gradient: Some(y.zeros_like()?), ..Default::default() };
    grad_with(&y, &leaves.iter().collect::<Vec<_>>(), &options).map(drop)
}

/// A call on a device that may round factors of products to TF32.
pub fn in_tf32(device: &Device, call: impl FnOnce() -> Result<()>) -> Result<()> {
    device.set_matmul_precision(Precision::Tf32);
    let done = call();
    device.set_matmul_precision(Precision::Exact);
    done
}

/// A call on a device that may add in any order.
pub fn in_any_order(device: &Device, call: impl FnOnce() -> Result<()>) -> Result<()> {
    device.set_determinism(Determinism::AnyOrder);
    let done = call();
    device.set_determinism(Determinism::SameBits);
    done
}
