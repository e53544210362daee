//! The program of a recorded step: its calls in order, and the memory that they make.

use crate::launch::operands::block;
use crate::memory::block::{Block, Later, Place};
use crate::memory::pool::Pool;
use crate::ops::elementwise::group::Group;
use isograd_core::backend::{Reduce, outermost};
use isograd_core::fused::{AnyFused, FusedCall};
use isograd_core::operands::Mask;
use isograd_core::{Call, DType, Kernel, Layout, Operand, Result};
use smallvec::SmallVec;
use std::sync::Arc;

/// A step while it is recorded.
#[derive(Default)]
pub struct Program {
    /// In the order in which they run.
    pub entries: Vec<Entry>,
    /// The memory that the step has asked for. The program's are the last owners of what no tensor has any more.
    pub memory: Vec<Arc<Later>>,
}

/// A call that was put off.
pub struct Entry {
    /// The op that made the call.
    pub op: &'static str,
    /// The op that this one is a part of, or itself.
    pub whole: &'static str,
    pub work: Work,
    pub inputs: SmallVec<[KeptOperand; 4]>,
    pub outputs: SmallVec<[KeptOperand; 2]>,
}

/// An operand that outlives its call.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptOperand {
    pub place: Place,
    pub layout: Layout,
    pub dtype: DType,
}

#[derive(Clone)]
pub enum Work {
    /// A copy from the host to the start of the output's memory.
    Upload(Vec<u8>),
    Call {
        kernel: KeptKernel,
        ints: SmallVec<[i64; 4]>,
        floats: SmallVec<[f64; 4]>,
    },
    /// A reduction over the dimensions in which the output has one element, and the operands have the order of memory.
    Reduce(Reduction),
    /// Elementwise calls in one kernel.
    Group(Box<Group>),
}

/// The call of a reduction whose operands are in the order of memory.
#[derive(Clone)]
pub struct Reduction {
    pub kind: Reduce,
    /// The number of dimensions that it reduces, which are the last ones.
    pub dims: usize,
    /// The layouts of the input and the output, as the call has them.
    pub layouts: [Layout; 2],
}

/// A kernel that outlives its call.
#[derive(Clone)]
pub enum KeptKernel {
    Fused(Arc<dyn AnyFused>, [Mask; 2]),
    Other(Kernel<'static>),
}

impl KeptKernel {
    fn new(kernel: Kernel<'_>) -> KeptKernel {
        KeptKernel::Other(match kernel {
            Kernel::Fused(fused) => return KeptKernel::Fused(fused.fused().kept(), fused.masks()),
            Kernel::Fill => Kernel::Fill,
            Kernel::Copy => Kernel::Copy,
            Kernel::Cast => Kernel::Cast,
            Kernel::Pointwise(row) => Kernel::Pointwise(row),
            Kernel::Reduce(kind) => Kernel::Reduce(kind),
            Kernel::ArgMax => Kernel::ArgMax,
            Kernel::ArgMin => Kernel::ArgMin,
            Kernel::Matmul => Kernel::Matmul,
            Kernel::Gather => Kernel::Gather,
            Kernel::Scatter(mode) => Kernel::Scatter(mode),
            Kernel::Random(kind) => Kernel::Random(kind),
            Kernel::Sort => Kernel::Sort,
            Kernel::Scan(kind) => Kernel::Scan(kind),
            Kernel::Custom(op) => Kernel::Custom(op),
        })
    }

    /// The kernel of the call.
    pub fn kernel(&self) -> Kernel<'_> {
        match self {
            KeptKernel::Fused(fused, masks) => Kernel::Fused(FusedCall::of(&**fused, *masks)),
            KeptKernel::Other(kernel) => *kernel,
        }
    }
}

impl Entry {
    /// Whether it is an elementwise call that reads its outputs.
    pub fn is_inout(&self) -> bool {
        let Work::Call { kernel: KeptKernel::Other(Kernel::Pointwise(row)), .. } = &self.work else { return false };
        row.is_inout()
    }
}

impl Program {
    /// Memory for a tensor.
    pub fn allocate(&mut self, bytes: usize) -> Arc<Later> {
        let later = Later::new(self.memory.len(), bytes);
        self.memory.push(later.clone());
        later
    }

    /// Adds a call.
    pub fn call(&mut self, call: &Call<'_>) -> Result<()> {
        let part = |operand: &Operand<'_>| {
            let place = block(operand.memory)?.place(&self.memory)?;
            Ok(KeptOperand { place, layout: operand.layout.clone(), dtype: operand.dtype })
        };
        let inputs = call.inputs.iter().map(part).collect::<Result<_>>()?;
        let outputs = call.outputs.iter().map(part).collect::<Result<_>>()?;
        let (kernel, whole) = (KeptKernel::new(call.kernel), outermost(call.op));
        let work = Work::Call {
            kernel,
            ints: call.ints.iter().copied().collect(),
            floats: call.floats.iter().copied().collect(),
        };
        self.entries.push(Entry { op: call.op, whole, work, inputs, outputs });
        Ok(())
    }

    /// Adds a copy from the host.
    pub fn upload(&mut self, place: Place, bytes: &[u8]) {
        const OP: &str = "upload";
        let part = KeptOperand { place, layout: Layout::contiguous(bytes.len().into()), dtype: DType::U8 };
        let (inputs, outputs) = (SmallVec::new(), SmallVec::from_iter([part]));
        self.entries.push(Entry { op: OP, whole: outermost(OP), work: Work::Upload(bytes.to_vec()), inputs, outputs });
    }

    /// For each memory, whether a tensor still has it: results of the step and states.
    pub fn survivors(&self) -> Vec<bool> {
        self.memory.iter().map(|later| Arc::strong_count(later) > 1).collect()
    }

    /// The memory of an operand, for the duration of a call.
    pub fn block(&self, part: &KeptOperand, pool: &Arc<Pool>) -> Block {
        match part.place {
            Place::At(address) => Block::at(pool, address),
            Place::Later(number) => Block::later(pool, self.memory[number].clone()),
        }
    }
}
