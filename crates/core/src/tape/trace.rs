//! The steps of a computation, for exporters: ops with their tensors and attributes, and the kernels that ran.

use crate::Tensor;
use std::cell::{Cell, RefCell};

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
    /// True if it draws random numbers.
    pub is_random: bool,
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

thread_local! {
    static IS_ON: Cell<bool> = const { Cell::new(false) };
    static STEPS: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
}

/// Puts the outer trace back, also when the closure panics.
struct Outer(bool, Vec<Step>);

impl Drop for Outer {
    fn drop(&mut self) {
        let _ = IS_ON.try_with(|is_on| is_on.set(self.0));
        let _ = STEPS.try_with(|steps| steps.replace(std::mem::take(&mut self.1)));
    }
}

/// True while a trace of this thread is made. An op whose kernel has no parts that a trace could show computes its composite then.
pub(crate) fn is_traced() -> bool {
    IS_ON.get()
}

/// Runs `f` and returns the steps that this thread took in it, in order. They keep all tensors of `f` alive. A nested call has steps of its
/// own, which the outer one does not see.
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
    let outer = Outer(IS_ON.replace(true), STEPS.take());
    let result = f();
    let steps = STEPS.take();
    drop(outer);
    (result, steps)
}

fn kept(tensors: &[&Tensor]) -> Vec<Tensor> {
    tensors.iter().map(|t| t.with_layout(t.layout().clone())).collect()
}

/// Reports an op with its attributes to a trace.
pub(crate) fn report<const N: usize>(
    op: &'static str,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
    attributes: impl FnOnce() -> [(&'static str, Attribute); N],
) {
    if IS_ON.get() {
        let attributes = attributes().into();
        let op = Op { name: op, inputs: kept(inputs), outputs: kept(outputs), attributes };
        STEPS.with_borrow_mut(|steps| steps.push(Step::Op(op)));
    }
}

/// Reports an op that goes on the tape, unless it has reported itself.
pub(super) fn report_recorded(op: &'static str, inputs: &[&Tensor], outputs: &[Tensor]) {
    if !IS_ON.get() {
        return;
    }
    let is_same = |step: &Step| match step {
        Step::Op(last) => last.name == op && last.outputs[0].is_same(&outputs[0]),
        Step::Kernel(_) => false,
    };
    if !STEPS.with_borrow(|steps| steps.last().is_some_and(is_same)) {
        report(op, inputs, &outputs.iter().collect::<Vec<_>>(), || []);
    }
}

/// Reports a kernel.
pub(crate) fn report_kernel(op: &'static str, inputs: &[&Tensor], outputs: &[&Tensor], is_random: bool) {
    if IS_ON.get() {
        let ran = Ran { op, inputs: kept(inputs), outputs: kept(outputs), is_random };
        STEPS.with_borrow_mut(|steps| steps.push(Step::Kernel(ran)));
    }
}
