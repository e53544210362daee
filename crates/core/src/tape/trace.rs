//! The steps of a computation, for exporters: ops with their tensors and attributes, and the kernels that ran.

use super::no_grad;
use crate::backend::Kernel;
use crate::fused::AnyFused;
use crate::operands::{Mask, Operands};
use crate::thread::{Event, KERNELS, Kernels, Kind, Listener, Outer, Run, listen, tell, with_flag};
use crate::{DType, Error, Result, Tensor, autocast, no_autocast};
use std::any::{Any, type_name};
use std::fmt;
use std::sync::Arc;

/// A step of a trace.
#[derive(Clone, Debug)]
pub enum Step {
    /// An op has returned. The steps that it consists of come before it.
    Op(Op),
    /// A kernel has written memory.
    Kernel(Ran),
}

/// An op of a trace. Its tensors are outside of the tape.
#[derive(Clone, Debug)]
pub struct Op {
    /// Its name, as on the tape.
    pub name: &'static str,
    /// The operands, in the order of the op's documentation; absent ones are left out.
    pub inputs: Vec<Tensor>,
    /// The results.
    pub outputs: Vec<Tensor>,
    /// Attributes that do not follow from the shapes of the tensors. An op from the pointwise table has `row`, the row's name, and `floats` and `ints`, its
    /// attributes.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// The descriptor of an op that has one in place of attributes.
    descriptor: Option<Descriptor>,
}

/// The descriptor of an op: the attributes that do not follow from the shapes of its tensors, and the names of its operands.
pub trait Described: Any + Clone + fmt::Debug + PartialEq + Send + Sync {
    /// The operands.
    type Inputs<T>: Operands<T>;
}

/// [`Described`] for descriptors whose type is not known.
trait AnyDescribed: Any + fmt::Debug + Send + Sync {}

impl<D: Described> AnyDescribed for D {}

/// A descriptor, and the operands that are present.
#[derive(Clone, Debug)]
pub(crate) struct Descriptor(Arc<dyn AnyDescribed>, Mask);

impl Op {
    /// The descriptor, which is a `D`. `None` for an op without a descriptor. Panics if the descriptor is of another type.
    pub fn descriptor<D: Described>(&self) -> Option<&D> {
        let Descriptor(descriptor, _) = self.descriptor.as_ref()?;
        let found = (&**descriptor as &dyn Any).downcast_ref();
        Some(found.unwrap_or_else(|| panic!("{} reports {descriptor:?}, not a {}", self.name, type_name::<D>())))
    }

    /// Items that belong to the inputs, one each, by the names of the operands. `None` for an op without a descriptor.
    pub fn named<D: Described, T>(&self, items: impl IntoIterator<Item = T>) -> Option<D::Inputs<T>> {
        let Descriptor(_, mask) = self.descriptor.as_ref()?;
        Some(D::Inputs::of(*mask, &mut items.into_iter()))
    }
}

/// A kernel of a trace.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The op that ran it.
    pub op: &'static str,
    /// The inputs of the kernel.
    pub inputs: Vec<Tensor>,
    /// The outputs of the kernel.
    pub outputs: Vec<Tensor>,
    /// The descriptor of a fused kernel.
    pub fused: Option<Arc<dyn AnyFused>>,
    /// The operands of the fused kernel that are present.
    masks: [Mask; 2],
    /// True if it draws random numbers.
    pub is_random: bool,
}

impl Ran {
    /// The results of a fused kernel as its composite computes them, and the steps of the composite, which runs no fused kernel. There is
    /// none for an output of which the composite says nothing. Arithmetic of 16-bit floats is in f32. Errors: `Unsupported` for another
    /// kernel; those of the composite.
    pub fn expanded(&self) -> Result<(Vec<Option<Tensor>>, Vec<Step>)> {
        let none = || Error::unsupported(self.op, "the kernel is not fused from others");
        let fused = self.fused.as_ref().ok_or_else(none)?;
        let is_double = self.inputs.iter().any(|x| x.dtype() == DType::F64);
        let wide = |x: &Tensor| match x.dtype().is_float() {
            true => x.contiguous()?.cast(if is_double { DType::F64 } else { DType::F32 }),
            false => x.contiguous(),
        };
        let wide = |all: &[Tensor]| all.iter().map(wide).collect::<Result<Vec<_>>>();
        let like =
            |(y, own): (Option<Tensor>, &Tensor)| y.map(|y| y.reshape(own.shape())?.cast(own.dtype())).transpose();
        let compute = || {
            let found = fused.composite_of(self.masks, &wide(&self.inputs)?, &wide(&self.outputs)?)?;
            found.into_iter().zip(&self.outputs).map(like).collect::<Result<Vec<_>>>()
        };
        let (found, steps) = trace(|| no_grad(|| no_autocast(|| with_flag(&KERNELS, Kernels::Primitives, compute))));
        Ok((found?, steps))
    }
}

/// The value of an op's attribute. 1 stands for true, 0 for false.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A number or a flag.
    Int(i64),
    /// Numbers, such as axes or extents.
    Ints(Vec<i64>),
    /// A real number.
    Float(f64),
    /// Real numbers.
    Floats(Vec<f64>),
    /// The name of a mode.
    Text(&'static str),
}

impl From<i64> for Attribute {
    fn from(v: i64) -> Attribute {
        Attribute::Int(v)
    }
}

impl From<usize> for Attribute {
    fn from(v: usize) -> Attribute {
        Attribute::Int(v as i64)
    }
}

impl From<bool> for Attribute {
    fn from(v: bool) -> Attribute {
        Attribute::Int(v.into())
    }
}

impl From<&[usize]> for Attribute {
    fn from(v: &[usize]) -> Attribute {
        Attribute::Ints(v.iter().map(|&v| v as i64).collect())
    }
}

impl From<&[i64]> for Attribute {
    fn from(v: &[i64]) -> Attribute {
        Attribute::Ints(v.to_vec())
    }
}

impl From<f64> for Attribute {
    fn from(v: f64) -> Attribute {
        Attribute::Float(v)
    }
}

impl From<&[f64]> for Attribute {
    fn from(v: &[f64]) -> Attribute {
        Attribute::Floats(v.to_vec())
    }
}

impl From<&'static str> for Attribute {
    fn from(v: &'static str) -> Attribute {
        Attribute::Text(v)
    }
}

#[derive(Default)]
struct Trace(Vec<Step>);

impl Listener for Trace {
    fn kinds(&self) -> &'static [Kind] {
        &[Kind::Op, Kind::Kernel]
    }

    fn hear(&mut self, event: &Event<'_>) {
        match event {
            Event::Op { name, inputs, outputs, attributes, descriptor } => {
                let has_reported = match self.0.last() {
                    Some(Step::Op(last)) => last.name == *name && last.outputs[0].is_same(outputs[0]),
                    _ => false,
                };
                if attributes.is_none() && descriptor.is_none() && has_reported {
                    return;
                }
                let attributes = attributes.unwrap_or_default().to_vec();
                let (inputs, outputs, descriptor) = (kept(inputs), kept(outputs), descriptor.cloned());
                self.0.push(Step::Op(Op { name, inputs, outputs, attributes, descriptor }));
            }
            Event::Kernel(Run { call, inputs, outputs, .. }) => {
                let fused = if let Kernel::Fused(fused) = call.kernel { Some(fused.kept()) } else { None };
                let masks = call.kernel.masks();
                let is_random = matches!(call.kernel, Kernel::Random(_));
                let (inputs, outputs) = (kept(inputs), kept(outputs));
                self.0.push(Step::Kernel(Ran { op: call.op, inputs, outputs, fused, masks, is_random }));
            }
            _ => (),
        }
    }
}

/// Runs `f` and returns the steps that this thread took in it, in order. They keep all tensors of `f` alive. A nested call has steps of its
/// own, which the outer one does not see. Casts that an [`autocast`](crate::autocast()) outside has made are made again.
///
/// ```
/// # use isograd_core::{Result, Tensor, tape::{self, Step}};
/// fn names_of_ops(f: impl FnOnce() -> Result<Tensor>) -> Result<Vec<&'static str>> {
///     let (y, steps) = tape::trace(f);
///     y?;
///     Ok(steps.iter().filter_map(|step| if let Step::Op(op) = step { Some(op.name) } else { None }).collect())
/// }
/// ```
pub fn trace<R>(f: impl FnOnce() -> R) -> (R, Vec<Step>) {
    let (result, Trace(steps)) = autocast::afresh(|| listen(Trace::default(), Outer::Pauses, f));
    (result, steps)
}

fn kept(tensors: &[&Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|t| t.with_layout(t.layout().clone())).collect()
}

/// Reports an op with its attributes.
pub(crate) fn report<const N: usize>(
    op: &'static str,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
    attributes: impl FnOnce() -> [(&'static str, Attribute); N],
) {
    let mut found = None;
    tell(Kind::Op, || {
        let attributes: &[_] = found.insert(attributes());
        Event::Op { name: op, inputs, outputs, attributes: Some(attributes), descriptor: None }
    });
}

/// Reports an op with its descriptor.
pub(crate) fn report_as<D: Described>(
    op: &'static str,
    inputs: D::Inputs<&Tensor>,
    outputs: &[&Tensor],
    descriptor: impl FnOnce() -> D,
) {
    let (mask, mut found) = (inputs.mask(), None);
    tell(Kind::Op, || {
        let (inputs, descriptor) = &*found.insert((inputs.present(), Descriptor(Arc::new(descriptor()), mask)));
        Event::Op { name: op, inputs, outputs, attributes: None, descriptor: Some(descriptor) }
    });
}

/// Reports an op that goes on the tape, unless it has reported itself.
pub(super) fn report_recorded(op: &'static str, inputs: &[&Tensor], outputs: &[Tensor]) {
    let mut found = None;
    tell(Kind::Op, || {
        let outputs = &*found.insert(outputs.iter().collect::<Vec<_>>());
        Event::Op { name: op, inputs, outputs, attributes: None, descriptor: None }
    });
}
