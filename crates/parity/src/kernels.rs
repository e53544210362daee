//! The list of kernels, docs/kernels.toml, and the rows of the registry that cover them.

use crate::options::Check;
use crate::registry::{Derivative, OPS, Op};
use serde::Deserialize;
use std::sync::LazyLock;

/// A kernel of the list.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its other names.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The family.
    pub category: String,
    /// `kernel`, `composite` (several in a row) or `metadata` (no work for a device).
    pub kind: String,
    /// True if it has a gradient.
    pub differentiable: bool,
    /// The kernels of its gradient.
    #[serde(default)]
    pub backward: Vec<String>,
    /// The kernels whose gradient it is.
    #[serde(default)]
    pub backward_of: Vec<String>,
    /// `composite` if the gradient consists of other ops.
    pub backward_via: Option<String>,
    /// PyTorch's name.
    pub torch: String,
    /// The dtypes of its operands.
    pub dtypes: Vec<String>,
    /// True if two runs give the same bits.
    pub deterministic: bool,
    /// True if a faster kernel without this property is allowed.
    pub atomic_variant_allowed: bool,
    /// The class of its tolerance.
    pub tolerance_class: String,
}

#[derive(Deserialize)]
struct Table {
    kernel: Vec<Kernel>,
}

/// All kernels, in the list's order.
pub static KERNELS: LazyLock<Vec<Kernel>> = LazyLock::new(|| {
    let table: Table = toml::from_str(isograd_kernels::TABLE).expect("docs/kernels.toml is TOML of kernels");
    table.kernel
});

/// The kernels without an op.
pub fn planned() -> impl Iterator<Item = &'static Kernel> {
    KERNELS.iter().filter(|kernel| ops(kernel).is_empty())
}

fn is_named(op: &Op, kernel: &Kernel) -> bool {
    op.name == kernel.name || op.kernels.contains(&&*kernel.name)
}

/// The kernels that an op covers: the kernels of its name and its list, and their gradients.
pub fn of(op: &Op) -> Vec<&'static Kernel> {
    let own: Vec<&Kernel> = KERNELS.iter().filter(|kernel| is_named(op, kernel)).collect();
    let has_gradient = !matches!(op.derivative, Derivative::None(_));
    let is_gradient =
        |kernel: &&Kernel| has_gradient && own.iter().any(|forward| forward.backward.contains(&kernel.name));
    own.iter().copied().chain(KERNELS.iter().filter(is_gradient)).collect()
}

/// The ops that cover a kernel.
pub fn ops(kernel: &Kernel) -> Vec<&'static Op> {
    OPS.iter().filter(|op| of(op).iter().any(|k| k.name == kernel.name)).collect()
}

/// The checks of an op that run a kernel that it covers. For a gradient kernel, checks of results alone are excluded. For a kernel
/// whose gradient is another kernel, checks of gradients alone are excluded.
pub fn checks(op: &Op, kernel: &Kernel) -> impl Iterator<Item = Check> {
    let is_own = is_named(op, kernel);
    let has_gradient = is_own && !kernel.backward.is_empty() && !kernel.backward.contains(&kernel.name);
    Check::ALL.into_iter().filter(move |check| match check {
        Check::Forward | Check::Special | Check::Unrecorded => is_own,
        Check::Gradients | Check::Twice | Check::Gradcheck | Check::Gradgradcheck | Check::Singular => !has_gradient,
        _ => true,
    })
}
